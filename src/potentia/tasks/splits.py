"""Which documents a model trains on, is selected on, and is tested on: one seeded plan for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from potentia.errors import TaskError
from potentia.study import Caps

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")

EIGHT_ONE_ONE = (8.0, 1.0, 1.0)

# Separate streams of one seed, so that a change of one cap does not move the others.
_CARVE, _CAP = 1, 2


@dataclass(frozen=True, slots=True)
class Part:
    """One split: the public split (or the rule) it came from, its size before and after the cap."""

    origin: str
    available: int
    used: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Where each split came from, how large it was and is, and the seed and fraction behind it; goes into manifests."""

    train: Part
    validation: Part
    test: Part
    caps: Caps
    seed: int
    carve: float
    dropped_overlap: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {"caps": self.caps.model_dump()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one split of one source: (source number, name of its public split, row numbers in it)."""

    source: int
    public: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a benchmark with one public split is divided: by shares of train, validation and test, or into folds.

    Of K folds, fold k is the test, and validation is carved out of the others; every document is tested once in all.
    """

    ratios: tuple[float, float, float] | None = None  # 8:1:1 where neither is given
    fold: tuple[int, int] | None = None  # (k from 1, K)


def divide(
    sizes: Mapping[str, int | None],
    *,
    seed: int,
    carve: float,
    source: int = 0,
    division: Division | None = None,
) -> tuple[dict[Split, Rows], dict[Split, str]]:
    """Decide the splits of one benchmark from the public splits it has, before any cap.

    A benchmark with both validation and labelled test uses them. One without a labelled test is tested on its public
    validation split. In every other case validation is carved out of train (20 % in the paper). A benchmark that has
    one public split only is divided as its ``division`` says.
    """
    division = division or Division()
    train, validation, test = (sizes.get(split) or 0 for split in SPLITS)
    if not 0 < carve < 1:
        raise TaskError(f"the fraction of train carved out as validation is {carve}; it must lie between 0 and 1")
    if not train + validation + test:
        raise TaskError("no split has any document")
    if train and not validation and not test:
        order = np.random.default_rng([seed, _CARVE]).permutation(train)
        held, how = (
            _folded(order, division.fold, carve) if division.fold else _shared(order, division.ratios or EIGHT_ONE_ONE)
        )
        rows = {split: Rows(source, "train", _ordered(held[split])) for split in SPLITS}
        return rows, dict.fromkeys(SPLITS, f"{how} of the one split")
    if division.fold is not None or division.ratios is not None:
        raise TaskError(
            "ratios and folds are for data in one split; this has its own",
            hint="leave them out, or give one file",
        )
    origins: dict[Split, str] = {"train": "train", "validation": "validation", "test": "test"}
    chosen: dict[Split, Rows] = {"test": Rows(source, "test", tuple(range(test)))}
    if not test:
        chosen["test"] = Rows(source, "validation", tuple(range(validation)))
        origins["test"] = "validation"
    if validation and test:
        chosen["validation"] = Rows(source, "validation", tuple(range(validation)))
        chosen["train"] = Rows(source, "train", tuple(range(train)))
    else:
        order = np.random.default_rng([seed, _CARVE]).permutation(train)
        held_out = min(train - 1, max(1, round(train * carve))) if train >= 2 else 0
        chosen["validation"] = Rows(source, "train", _ordered(order[:held_out]))
        chosen["train"] = Rows(source, "train", _ordered(order[held_out:]))
        origins["validation"] = f"{carve:.0%} of train" if held_out else "none"
    if not train:
        origins["train"] = "none"
    return chosen, origins


Order = np.ndarray[Any, np.dtype[np.int64]]


def _shared(order: Order, ratios: tuple[float, float, float]) -> tuple[dict[Split, Order], str]:
    """Divide documents by shares; every split gets at least one."""
    if len(order) < 3:
        raise TaskError(f"only {len(order)} document(s), too few to divide into train, validation and test")
    whole = sum(ratios)
    test, validation = (max(1, round(len(order) * ratios[k] / whole)) for k in (2, 1))
    if test + validation >= len(order):
        raise TaskError(f"the shares {ratios} leave nothing to train on of {len(order)} documents")
    parts: dict[Split, Order] = {
        "test": order[:test],
        "validation": order[test : test + validation],
        "train": order[test + validation :],
    }
    return parts, ":".join(f"{ratio:g}" for ratio in ratios)


def _folded(order: Order, fold: tuple[int, int], carve: float) -> tuple[dict[Split, Order], str]:
    """Take fold k of K as the test, and carve validation out of the others."""
    k, folds = fold
    if len(order) < 2 * folds:
        raise TaskError(f"only {len(order)} document(s), too few for {folds} folds")
    pieces = np.array_split(order, folds)
    rest = np.concatenate([piece for n, piece in enumerate(pieces, 1) if n != k])
    held = min(len(rest) - 1, max(1, round(len(rest) * carve)))
    return {"test": pieces[k - 1], "validation": rest[:held], "train": rest[held:]}, f"fold {k} of {folds}"


def undivided(
    sizes: Sequence[Mapping[str, int | None]], *, hold_out: int, seed: int
) -> tuple[dict[Split, list[Rows]], dict[Split, str]]:
    """Leave auxiliary data whole: all of train is trained on, but for ``hold_out`` documents kept to choose by."""
    every = [Rows(i, "train", tuple(range(size.get("train") or 0))) for i, size in enumerate(sizes)]
    total = sum(len(part.rows) for part in every)
    if hold_out and hold_out >= total:
        raise TaskError(f"{hold_out} documents to hold out of {total} leave none to train on")
    held = cap(every, hold_out, seed=seed)
    taken = [set(part.rows) for part in held] if hold_out else [set[int]() for _ in held]
    rows: dict[Split, list[Rows]] = {
        "train": [
            replace(part, rows=tuple(r for r in part.rows if r not in out))
            for part, out in zip(every, taken, strict=True)
        ],
        "validation": [replace(part, rows=tuple(sorted(out))) for part, out in zip(every, taken, strict=True)],
        "test": [Rows(i, "test", ()) for i in range(len(every))],
    }
    origins: dict[Split, str] = {
        "train": "train",
        "validation": "held out of train" if hold_out else "none",
        "test": "none",
    }
    return rows, origins


def cap(parts: Sequence[Rows], limit: int | None, *, seed: int) -> list[Rows]:
    """Keep at most ``limit`` rows of a split that may span several sources: a seeded sample, in the public order."""
    total = sum(len(part.rows) for part in parts)
    if limit is None or total <= limit:
        return list(parts)
    keep = np.zeros(total, dtype=bool)
    keep[np.random.default_rng([seed, _CAP]).permutation(total)[:limit]] = True
    kept, start = [], 0
    for part in parts:
        mine = keep[start : start + len(part.rows)]
        start += len(part.rows)
        rows = tuple(row for row, wanted in zip(part.rows, mine, strict=True) if wanted)
        kept.append(Rows(part.source, part.public, rows))
    return kept


def _ordered(rows: Order) -> tuple[int, ...]:
    return tuple(int(row) for row in np.sort(rows))

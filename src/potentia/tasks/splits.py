"""Which documents a model trains on, is selected on, and is tested on: one seeded plan, the same for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from potentia.errors import TaskError
from potentia.study import Caps

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")
USUAL_RATIOS = (8.0, 1.0, 1.0)  # of train, validation and test
# Separate streams of one seed, so that a change of one cap does not move the others.
_CARVE_STREAM = 1
_CAP_STREAM = 2

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split: the public split (or the rule) it came from, its size before and after the cap."""

    origin: str
    available: int
    used: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Where each split came from, how large it was and is, and the seed and fraction behind it; goes into manifests."""

    train: PlannedSplit
    validation: PlannedSplit
    test: PlannedSplit
    caps: Caps
    seed: int
    carve: float
    dropped_overlap: int = 0

    @property
    def shares_one_split(self) -> bool:
        """Whether training, validation and test documents are parts of one public split."""
        return self.train.origin == self.validation.origin == self.test.origin

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {"caps": self.caps.model_dump()}


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Row numbers in one public split of a subtask."""

    public: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a benchmark with one public split is divided: by shares of train, validation and test, or into folds.

    Of K folds, fold k is the test, and validation is carved out of the others; every document is tested once in all.
    """

    ratios: tuple[float, float, float] | None = None  # 8:1:1 where neither is given
    fold: tuple[int, int] | None = None  # (k from 1, K)


class DividedSubtask(NamedTuple):
    """The rows of one subtask in each split, and where they are from."""

    rows: dict[Split, SplitRows]
    origins: dict[Split, str]


class DividedTask(NamedTuple):
    """The rows of all subtasks in each split, and where they are from."""

    rows: dict[Split, list[SplitRows]]
    origins: dict[Split, str]


def plan_splits(
    sizes: Sequence[Mapping[str, int]],
    *,
    caps: Caps,
    seed: int,
    carve: float,
    division: Division | None,
    hold_out: int | None,
) -> tuple[SplitPlan, dict[Split, list[SplitRows]]]:
    """Return the plan of a task's splits and the rows of each subtask in them; ``sizes`` are those of its subtasks."""
    if hold_out is None:
        available = _divide_subtasks(sizes, seed=seed, carve=carve, division=division)
    else:
        available = hold_out_documents(sizes, hold_out=hold_out, seed=seed)
    used: dict[Split, list[SplitRows]] = {}
    planned: dict[Split, PlannedSplit] = {}
    for split in SPLITS:
        used[split] = cap_rows(available.rows[split], getattr(caps, split), seed=seed)
        planned[split] = PlannedSplit(
            origin=available.origins[split],
            available=count_rows(available.rows[split]),
            used=count_rows(used[split]),
        )
    plan = SplitPlan(
        train=planned["train"],
        validation=planned["validation"],
        test=planned["test"],
        caps=caps,
        seed=seed,
        carve=carve,
    )
    return plan, used


def _divide_subtasks(
    sizes: Sequence[Mapping[str, int]], *, seed: int, carve: float, division: Division | None
) -> DividedTask:
    divided = [divide_documents(size, seed=seed, carve=carve, division=division) for size in sizes]
    rows: dict[Split, list[SplitRows]] = {}
    origins: dict[Split, str] = {}
    for split in SPLITS:
        rows[split] = [subtask.rows[split] for subtask in divided]
        distinct_origins = dict.fromkeys(subtask.origins[split] for subtask in divided)
        origins[split] = ", ".join(distinct_origins)
    return DividedTask(rows, origins)


def divide_documents(
    sizes: Mapping[str, int], *, seed: int, carve: float, division: Division | None = None
) -> DividedSubtask:
    """Decide the splits of one benchmark from the public splits it has, before any cap: rows, and where they are from.

    A benchmark with both validation and labelled test uses them. One without a labelled test is tested on its public
    validation split. In every other case validation is carved out of train (20 % in the paper). A benchmark that has
    one public split only is divided as its ``division`` says.
    """
    division = division or Division()
    train_size = sizes.get("train") or 0
    validation_size = sizes.get("validation") or 0
    test_size = sizes.get("test") or 0
    if not 0 < carve < 1:
        raise TaskError(
            f"the fraction of train carved out as validation is {carve}; it must lie between 0 and 1"
        )
    if not train_size + validation_size + test_size:
        raise TaskError("no split has any document")
    shuffled = np.random.default_rng([seed, _CARVE_STREAM]).permutation(train_size)
    if not validation_size and not test_size:
        return _divide_one_split(shuffled, division, carve)
    if division != Division():
        raise TaskError(
            "ratios and folds are for data in one split; this has its own",
            hint="leave them out, or give one file",
        )
    tested = "test" if test_size else "validation"
    rows: dict[Split, SplitRows] = {
        "train": _train_rows(shuffled),
        "validation": _train_rows(shuffled[:0]),
        "test": _all_rows(tested, test_size or validation_size),
    }
    origins: dict[Split, str] = {
        "train": "train" if train_size else "none",
        "validation": "none",
        "test": tested,
    }
    if validation_size and test_size:
        rows["validation"] = _all_rows("validation", validation_size)
        origins["validation"] = "validation"
    elif train_size > 1:
        carved = _carved_size(train_size, carve)
        rows["train"] = _train_rows(shuffled[carved:])
        rows["validation"] = _train_rows(shuffled[:carved])
        origins["validation"] = f"{carve:.0%} of train"
    return DividedSubtask(rows, origins)


def _divide_one_split(shuffled: RowNumbers, division: Division, carve: float) -> DividedSubtask:
    """Divide a benchmark that has one public split, into folds or by shares."""
    if division.fold:
        parts = _divide_into_folds(shuffled, division.fold, carve)
        rule = f"fold {division.fold[0]} of {division.fold[1]}"
    else:
        ratios = division.ratios or USUAL_RATIOS
        parts = _divide_by_ratios(shuffled, ratios)
        rule = ":".join(f"{ratio:g}" for ratio in ratios)
    rows = {split: _train_rows(part) for split, part in zip(SPLITS, parts, strict=True)}
    return DividedSubtask(rows, dict.fromkeys(SPLITS, f"{rule} of the one split"))


def _divide_by_ratios(
    shuffled: RowNumbers, ratios: tuple[float, float, float]
) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
    """Return train, validation and test by shares; every split gets at least one document."""
    count = len(shuffled)
    if count < 3:
        raise TaskError(
            f"only {count} document(s), too few to divide into train, validation and test"
        )
    test_size = max(1, round(count * ratios[2] / sum(ratios)))
    validation_size = max(1, round(count * ratios[1] / sum(ratios)))
    if test_size + validation_size >= count:
        raise TaskError(f"the shares {ratios} leave nothing to train on of {count} documents")
    test, validation, train = np.split(shuffled, [test_size, test_size + validation_size])
    return train, validation, test


def _divide_into_folds(
    shuffled: RowNumbers, fold: tuple[int, int], carve: float
) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
    """Return train, validation and test: fold k of K is the test, validation is carved out of the others."""
    number, folds = fold
    if len(shuffled) < 2 * folds:
        raise TaskError(f"only {len(shuffled)} document(s), too few for {folds} folds")
    pieces = np.array_split(shuffled, folds)
    remaining = np.concatenate([*pieces[: number - 1], *pieces[number:]])
    carved = _carved_size(len(remaining), carve)
    return remaining[carved:], remaining[:carved], pieces[number - 1]


def _carved_size(count: int, carve: float) -> int:
    """Return how many of so many documents become validation: at least one, and never all."""
    return min(count - 1, max(1, round(count * carve)))


def hold_out_documents(
    sizes: Sequence[Mapping[str, int]], *, hold_out: int, seed: int
) -> DividedTask:
    """Leave auxiliary data whole: all of train is trained on, but for ``hold_out`` documents kept to choose by."""
    available = [_all_rows("train", size.get("train") or 0) for size in sizes]
    total = count_rows(available)
    if hold_out and hold_out >= total:
        raise TaskError(f"{hold_out} documents to hold out of {total} leave none to train on")
    held_out = cap_rows(available, hold_out, seed=seed)
    train = []
    for everything, held in zip(available, held_out, strict=True):
        train.append(SplitRows("train", tuple(sorted(set(everything.rows) - set(held.rows)))))
    rows: dict[Split, list[SplitRows]] = {
        "train": train,
        "validation": held_out,
        "test": [SplitRows("test", ()) for _ in available],
    }
    origins: dict[Split, str] = {
        "train": "train",
        "validation": "held out of train" if hold_out else "none",
        "test": "none",
    }
    return DividedTask(rows, origins)


def cap_rows(parts: Sequence[SplitRows], limit: int | None, *, seed: int) -> list[SplitRows]:
    """Keep at most ``limit`` rows of a split that may span several sources: a seeded sample, in the public order."""
    total = count_rows(parts)
    if limit is None or total <= limit:
        return list(parts)
    is_kept = np.zeros(total, dtype=bool)
    is_kept[np.random.default_rng([seed, _CAP_STREAM]).permutation(total)[:limit]] = True
    decisions = iter(is_kept.tolist())
    return [
        replace(part, rows=tuple(row for row in part.rows if next(decisions))) for part in parts
    ]


def count_rows(parts: Sequence[SplitRows]) -> int:
    """Return how many rows several parts have in all."""
    return sum(len(part.rows) for part in parts)


def _train_rows(rows: RowNumbers) -> SplitRows:
    return SplitRows("train", tuple(np.sort(rows).tolist()))


def _all_rows(public: str, size: int) -> SplitRows:
    return SplitRows(public, tuple(range(size)))

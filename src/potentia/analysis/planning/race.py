"""Racing candidates on one task: who stays in, who is best and how sure that is, and what would make it surer.

Rounds are decided on validation: everyone who may still be the best stays (P ≥ 5 %, shared out over the rounds, paired
where all answered the same documents), and the better half in any case, so that a lucky draw drops nobody. The end is
decided on the test documents by the rule of every ranking (``rankings.decide``), so that a report on the same store
says the same. Learning rates race by the same rule.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from potentia.analysis.planning.sentences import choice_sentences
from potentia.analysis.rankings.decide import Ranking, paired_noise, root, shares, shrunk
from potentia.analysis.rankings.pair import Missing
from potentia.values.findings import Cell, Finding, Table, jsonable
from potentia.values.scores import Floats

MAYBE = 0.05  # a candidate at least so likely to be the best stays in the race
DRAWS = 4_000
Z = 1.959964


@dataclass(frozen=True)
class Standing:
    """One candidate at the end: scores with standard errors, its chance to be best, where it went out."""

    model: str
    direct: float
    direct_stderr: float
    tuned: float  # test score after tuning; NaN for those that went out before
    tuned_stderr: float
    validation: float
    p_best: float  # among the finalists; NaN for the others
    out: int | None = None  # the round it went out in
    problem: str = ""


@dataclass(frozen=True)
class Choice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    ranking: Ranking  # of the finalists
    missing: Missing | None  # what would separate the first two
    lost: float  # chance that a model dropped before the end would have been the best
    seconds: float  # spent in all
    more_seconds: float  # what scoring so many documents would take; NaN where unknown
    train: int  # documents that the finalists were tuned on
    standings: tuple[Standing, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def p_best(self) -> float:
        """Its chance."""
        return next(s.p_best for s in self.standings if s.model == self.best)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the best with its chance, and who is close to it."""
        found = {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}
        return found | {"best": self.best, "p_best": self.p_best, "close": list(self.ranking.rivals)}

    def answer(self) -> str:
        """Return the answer in a few sentences."""
        return choice_sentences(self)

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first."""
        rows: list[tuple[Cell, ...]] = []
        for s in self.standings:
            state = s.problem or ("best" if s.model == self.best else "close" if s.model in self.ranking.rivals else "")
            state = f"out in round {s.out}" if s.out is not None else state
            scores = _span(s.direct, s.direct_stderr), _span(s.tuned, s.tuned_stderr)
            rows.append((s.model, *scores, s.validation, s.p_best, state))
        note = self.answer() + "".join(f" {note}" for note in self.notes)
        columns = ("model", "direct", "tuned", "validation", "P(best)", "")
        return [Table(f"{self.task} ({self.metric}), tuned on {self.train} documents", columns, tuple(rows), note=note)]


def stay_in(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    right: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    looks: int = 1,
    seed: int = 0,
) -> tuple[list[str], dict[str, float]]:
    """Return who stays in the race, best first, and every candidate's chance to be the best; ``looks`` in all."""
    sign = 1.0 if higher_is_better else -1.0
    worth = {n: sign * v if math.isfinite(v) else -math.inf for n, v in values.items()}
    chance = may_win(values, stderr, right, higher_is_better=higher_is_better, seed=seed)
    order = sorted(values, key=lambda n: (-worth[n], n))
    half = math.ceil(len(order) / 2)
    staying = [n for k, n in enumerate(order) if math.isfinite(worth[n]) and (k < half or chance[n] >= MAYBE / looks)]
    return staying, chance


def may_win(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    right: Mapping[str, str] | None = None,
    *,
    higher_is_better: bool,
    seed: int = 0,
) -> dict[str, float]:
    """Return every candidate's chance to be the best, from values with standard errors; without a value it has none.

    ``right`` (``pack_right``) says which documents each got right: on the same documents, candidates that fail together
    differ more surely than their errors say.
    """
    names = list(values)
    x = np.array([values[n] for n in names]) * (1.0 if higher_is_better else -1.0)
    error = np.nan_to_num(np.array([stderr[n] for n in names]), nan=0.0)
    known = np.isfinite(x)
    if not known.any():
        return dict.fromkeys(names, 1.0 / len(names))
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((DRAWS, int(known.sum())))
    paired = unpack_right([(right or {}).get(n, "") for n, there in zip(names, known, strict=True) if there])
    drawn = x[known] + (error[known] * noise if paired is None else noise @ root(paired_noise(error[known], paired)).T)
    chance = np.zeros(len(names))
    chance[known] = shares(shrunk(drawn, rng))
    return dict(zip(names, chance.tolist(), strict=True))


def pack_right(outcomes: Sequence[float]) -> str:
    """Write which documents were got right in a few characters; nothing where an outcome is neither 0 nor 1."""
    if len(outcomes) < 2 or not set(outcomes) <= {0.0, 1.0}:
        return ""
    bits = np.packbits(np.asarray(outcomes, dtype=bool)).tobytes()
    return f"{len(outcomes)}:{base64.b85encode(bits).decode()}"


def unpack_right(packed: Sequence[str]) -> Floats | None:
    """Return (candidates, documents) of several ``pack_right``; None where they are not of as many documents each."""
    sizes = {text.partition(":")[0] for text in packed}
    if len(packed) < 2 or len(sizes) > 1 or "" in sizes:
        return None
    rows = [np.frombuffer(base64.b85decode(text.partition(":")[2]), dtype=np.uint8) for text in packed]
    return np.unpackbits(np.stack(rows), axis=1, count=int(sizes.pop())).astype(np.float64)


def _span(value: float, stderr: float) -> str | None:
    if not math.isfinite(value):
        return None
    return f"{value:.3f}" + (f" ± {Z * stderr:.3f}" if math.isfinite(stderr) else "")

"""Two models side by side on every task they share: who is better, by how much, and how sure that is.

Both have answered the same documents, so where items are stored the difference is taken document by document: its
interval is of the paired differences, and McNemar's exact test looks at the documents that one model alone gets right.
Where there are no items, or a score is no mean of items (f1, mcc), two scores have nothing in common but their errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import POWER, mcnemar
from potentia.errors import InputError
from potentia.values.findings import Cell, Finding, Interval, Table, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MCNEMAR, PAIRED, APART = "McNemar", "paired z", "z"


@dataclass(frozen=True)
class TaskPair:
    """One task under one protocol; ``difference`` is of the first model over the second, and more is better."""

    protocol: Protocol
    task: str
    first: float
    second: float
    difference: Interval
    p_value: float
    test: str
    documents: int | None  # that both have answered; None without items
    first_only: tuple[int, ...] = ()  # documents that the first model alone gets right
    second_only: tuple[int, ...] = ()
    text: bool = False  # a text to predict, in bits; it has no part in a mean of scores

    @property
    def real(self) -> bool:
        """Whether test noise alone is an unlikely cause of the difference."""
        return self.p_value < 1 - self.difference.level


@dataclass(frozen=True)
class Pair(Finding):
    """Two models on every task and protocol that both have."""

    first: str
    second: str
    tasks: tuple[TaskPair, ...]
    level: float = LEVEL

    @property
    def names(self) -> tuple[str, str]:
        """The two models by the short names that people read."""
        one, two = short_names([self.first, self.second])
        return one, two

    def under(self, protocol: Protocol) -> list[TaskPair]:
        """Return the tasks of one protocol whose scores have a mean; texts to predict where there is nothing else."""
        pairs = [pair for pair in self.tasks if pair.protocol == protocol]
        return [pair for pair in pairs if not pair.text] or pairs

    def mean(self, protocol: Protocol) -> Interval:
        """Return the mean difference over the tasks of a protocol, with the interval of test noise."""
        pairs = self.under(protocol)
        z = norm.ppf(0.5 + self.level / 2)
        error = math.sqrt(sum(((p.difference.high - p.difference.low) / 2 / z) ** 2 for p in pairs)) / len(pairs)
        value = sum(p.difference.value for p in pairs) / len(pairs)
        return Interval(value, value - z * error, value + z * error, self.level)

    def sentences(self) -> list[str]:
        """Say, for each protocol, who is ahead and whether test noise could explain it."""
        one, two = self.names
        told = []
        for protocol in dict.fromkeys(pair.protocol for pair in self.tasks):
            pairs, mean = self.under(protocol), self.mean(protocol)
            ahead, behind = (one, two) if mean.value >= 0 else (two, one)
            where = f"over {len(pairs)} tasks" if len(pairs) > 1 else f"on {pairs[0].task}"
            low, high = sorted((abs(mean.low), abs(mean.high)))
            sure = mean.low > 0 or mean.high < 0
            span = f"{low:.3f} to {high:.3f}" if sure else f"{mean.low:+.3f} to {mean.high:+.3f}"
            by = f"{abs(mean.value):.3f} ({self.level:.0%} interval {span})".replace("%", " %")
            start = f"{protocol.label[:1].upper()}{protocol.label[1:]}: "
            if not math.isfinite(mean.low):
                told.append(f"{start}{ahead} is ahead of {behind} {where} by {abs(mean.value):.3f}; no error is known.")
                continue
            told.append(
                f"{start}{ahead} is ahead of {behind} {where} by {by}"
                + (", beyond test noise." if sure else f"; test noise can explain it.{self._needed(mean)}")
                + (f" {_wins(pairs, one, two)}" if len(pairs) > 1 else "")
            )
        return told

    def _needed(self, mean: Interval) -> str:
        z = float(norm.ppf(0.5 + self.level / 2))
        error = (mean.high - mean.low) / 2 / z
        times = ((z + float(norm.ppf(POWER))) * error / mean.value) ** 2 if mean.value else math.inf
        if times > 100:
            return " They are as good as equal here."
        return f" About {times:.2g} times as many test documents would tell them apart four times in five."

    def tables(self) -> Sequence[Table]:
        """Return a row for each task and protocol."""
        one, two = self.names
        items = any(pair.documents is not None for pair in self.tasks)
        rows: list[tuple[Cell, ...]] = []
        for pair in self.tasks:
            low, high = pair.difference.low, pair.difference.high
            row: list[Cell] = [pair.protocol.label, pair.task, pair.first, pair.second, pair.difference.value]
            row.append(f"{low:+.3f} to {high:+.3f}" if math.isfinite(low) else None)
            counted = pair.documents is not None
            if items:
                row += [len(pair.first_only), len(pair.second_only), pair.documents] if counted else [None] * 3
            rows.append((*row, _likely(pair.p_value), pair.test, "yes" if pair.real else "no"))
        alone = (f"{one} alone", f"{two} alone", "documents") if items else ()
        span = f"{self.level:.0%} interval".replace("%", " %")
        note = "Difference: the first over the second, where more is better."
        if items:
            note += " Alone: documents that one of the two alone gets right."
        columns = ("protocol", "task", one, two, "difference", span, *alone, "p", "test", "real")
        return [Table(f"{one} against {two}", columns, tuple(rows), note=note)]


def find_pair(evidence: Evidence, first: str, second: str, *, level: float = LEVEL) -> Pair:
    """Compare two models, given by name or by a part of it that no other model has."""
    one, two = (known_model(evidence, name) for name in (first, second))
    if one == two:
        raise InputError(f"{first} and {second} are the same model", where=evidence.source)
    pairs = []
    for protocol, matrix in evidence.planned.items():
        if {one, two} <= set(matrix.models):
            both = matrix.select(models=[one, two])
            outcomes = evidence.outcomes.get(protocol, {})
            tasks = set(both.benchmarks().tasks)
            pairs += [
                _of_task(both, k, outcomes.get(task, {}), level, text=task not in tasks)
                for k, task in enumerate(both.tasks)
            ]
    shared = tuple(pair for pair in pairs if pair is not None)
    if not shared:
        raise InputError(f"{one} and {two} share no task", where=evidence.source)
    return Pair(one, two, shared, level)


def known_model(evidence: Evidence, name: str) -> str:
    """Return the model that is meant: its name, its last part, or a part that no other model has."""
    models, plain = evidence.models, name.casefold()
    for same in (
        lambda m: m == name,
        lambda m: m.rpartition("/")[2].casefold() == plain,
        lambda m: plain in m.casefold(),
    ):
        found = [model for model in models if same(model)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{name!r} may be {len(found)} models", where=evidence.source, hint=f"such as {', '.join(found[:5])}"
            )
    raise InputError(f"no model {name!r}", where=evidence.source, hint=f"there are: {', '.join(models[:12])}")


def _of_task(
    matrix: ScoreMatrix, k: int, items: Mapping[str, Mapping[int, float]], level: float, *, text: bool
) -> TaskPair | None:
    """Compare the two rows of a matrix on one task; None where one has no score."""
    one, two = (float(v) for v in matrix.values[:, k])
    if not (math.isfinite(one) and math.isfinite(two)):
        return None
    sign = 1.0 if matrix.higher_is_better[k] else -1.0
    z = float(norm.ppf(0.5 + level / 2))
    error, test, p = float(np.hypot(*matrix.stderr[:, k])), APART, math.nan
    documents, only = None, ((), ())
    x, y, shared = _aligned(matrix.models, items)
    if len(shared) > 1 and np.allclose([x.mean(), y.mean()], [one, two], atol=1e-6):
        documents, error, test = len(shared), float(np.std(x - y, ddof=1)) / math.sqrt(len(shared)), PAIRED
        if set(np.unique([x, y])) <= {0.0, 1.0}:
            only = (tuple(shared[x > y].tolist()), tuple(shared[x < y].tolist()))
            test, p = MCNEMAR, mcnemar(len(only[0]), len(only[1]))
    difference = sign * (one - two)
    if test != MCNEMAR:
        p = 2.0 * float(norm.sf(abs(difference) / error)) if error > 0 else (1.0 if difference == 0 else 0.0)
        p = p if math.isfinite(error) else math.nan
    span = Interval(difference, difference - z * error, difference + z * error, level)
    return TaskPair(matrix.protocol, matrix.tasks[k], one, two, span, p, test, documents, *only, text=text)


def _aligned(
    models: Sequence[str], items: Mapping[str, Mapping[int, float]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values of two models on the documents that both have, and the documents."""
    one, two = (items.get(model, {}) for model in models)
    shared = sorted(set(one) & set(two))
    return np.array([one[d] for d in shared]), np.array([two[d] for d in shared]), np.array(shared, dtype=int)


def _likely(p: float) -> Cell:
    return p if not p < 0.0005 else "< 0.001"


def _wins(pairs: Sequence[TaskPair], one: str, two: str) -> str:
    real = [pair for pair in pairs if pair.real]
    first = sum(pair.difference.value > 0 for pair in real)
    return f"{one} is really better on {first} of them, {two} on {len(real) - first}."

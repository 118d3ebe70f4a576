"""Copies that were shown a test on purpose, against their own originals, under every protocol.

Each pair of a model and its copy is one observation: the mean difference over the tasks that the copy was shown, and
over those it was not. If a protocol measures what models can become, the advantage on the shown tasks is there under
direct evaluation and gone after the same tuning of all (section 3.1 of "Training on the test task", on any models).
Two intervals answer two questions: over pairs, what models like these would show; by test noise, what these very
models do. The latter counts originals and copies as tested apart, though they answer the same documents: it is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEVEL = 0.95


@dataclass(frozen=True)
class Advantage:
    """What copies score more than their originals under one protocol; intervals are over pairs of models."""

    protocol: Protocol
    pairs: tuple[tuple[str, str], ...]  # (original, copy)
    shown: Interval
    noise: float | None  # half-width of the interval of `shown` for these very models, by their standard errors
    other: Interval | None  # on tasks that the copies were not shown
    by_pair: tuple[float, ...]  # mean difference on the shown tasks
    by_task: dict[str, Interval]
    places: float  # how many places copies stand above their originals, by the mean score on the shown tasks


@dataclass(frozen=True)
class Copies(Finding):
    """The advantage of treated copies under every protocol."""

    tasks: tuple[str, ...]  # that the copies were shown
    advantages: tuple[Advantage, ...]

    def tables(self) -> Sequence[Table]:
        """Return the advantage by protocol, and by task."""
        rows: list[tuple[Cell, ...]] = []
        for one in self.advantages:
            other = _span(one.other) if one.other is not None else None
            rows.append((one.protocol.label, len(one.pairs), one.shown.value, _span(one.shown),
                         None if one.noise is None else f"± {one.noise:.3f}", one.places,
                         None if one.other is None else one.other.value, other))  # fmt: skip
        by_task: list[tuple[Cell, ...]] = [
            (task, *(x for one in self.advantages for x in _cells(one.by_task.get(task)))) for task in self.tasks
        ]
        heads = [f"{one.protocol.label}{suffix}" for one in self.advantages for suffix in ("", " 95 %")]
        return [
            Table(
                "What copies that were shown a test score more than their originals",
                ("protocol", "pairs", "shown tasks", "95 %", "these models", "places", "other tasks", "95 % "),
                tuple(rows),
                note="Mean difference copy − original; intervals over pairs of models (Student's t), and for "
                "these very models by test noise alone. Places: how far "
                f"copies stand above their originals among all models on the shown tasks ({', '.join(self.tasks)}).",
            ),
            Table("The same by shown task", ("task", *heads), tuple(by_task)),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the advantage by protocol with its interval, and every pair."""
        labels = tuple(one.protocol.label for one in self.advantages)
        bars: dict[str, list[Interval]] = {"shown tasks": [one.shown for one in self.advantages]}
        others = [one.other for one in self.advantages if one.other is not None]
        if len(others) == len(labels):
            bars["other tasks"] = others
        pairs = [
            Points(
                one.protocol.label,
                tuple(float(k + 1) for k in range(len(one.pairs))),
                one.by_pair,
                labels=tuple(original for original, _ in one.pairs),
            )
            for one in self.advantages
        ]
        difference = "score, copy − original"
        caption = (
            "Copy minus original, mean over pairs of models, 95 % interval; 0 means that having seen the test is worth "
            "nothing."
        )
        return [
            Bars.of("copies", "Advantage of copies that were shown the test", caption, labels, bars, difference),
            Plot(
                name="copies-by-model",
                title="Copies that were shown a test, against their originals",
                caption="On the shown tasks, a line for each model. 0: having seen the test is worth nothing.",
                points=tuple(pairs),
                y_label=difference,
                joined=True,
            ),
        ]


def measure_copies(
    scores: Mapping[Protocol, ScoreMatrix], copies: Mapping[str, str], shown: Mapping[str, Sequence[str]]
) -> Copies | None:
    """Compare copies with originals (``copies``: copy → original); ``shown`` says which tasks each copy was shown."""
    tasks = tuple(dict.fromkeys(task for names in shown.values() for task in names))
    found = []
    for protocol, matrix in scores.items():
        benchmarks = matrix.benchmarks()
        alike = benchmarks if set(tasks) & set(benchmarks.tasks) else matrix.corpora()  # copies that saw texts alone
        one = _advantage(alike, protocol, copies, shown)
        if one is not None:
            found.append(one)
    return Copies(tasks, tuple(found)) if found else None


def _advantage(
    matrix: ScoreMatrix, protocol: Protocol, copies: Mapping[str, str], shown: Mapping[str, Sequence[str]]
) -> Advantage | None:
    values, place = matrix.oriented(), {m: k for k, m in enumerate(matrix.models)}
    pairs = [(original, copy) for copy, original in copies.items() if copy in place and original in place]
    if not pairs or not matrix.tasks:
        return None
    difference = np.array([values[place[copy]] - values[place[original]] for original, copy in pairs])
    seen = np.array([[task in shown.get(copy, ()) for task in matrix.tasks] for _, copy in pairs])
    by_pair, others = _means(difference, seen), _means(difference, ~seen)
    kept = np.isfinite(by_pair)
    if not kept.any():
        return None
    by_task = {
        task: _interval(difference[seen[:, j], j])
        for j, task in enumerate(matrix.tasks)
        if seen[:, j].any() and np.isfinite(difference[seen[:, j], j]).any()
    }
    variance = np.array([matrix.stderr[place[a]] ** 2 + matrix.stderr[place[b]] ** 2 for a, b in pairs])
    counted = seen & np.isfinite(difference)
    shares = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1) / int(kept.sum())
    reach = float(norm.ppf(0.5 + LEVEL / 2) * np.sqrt((np.where(counted, variance, 0.0) * shares**2).sum()))
    order = _order(_means(values, np.tile(seen.any(axis=0), (len(values), 1))))
    places = [order[place[original]] - order[place[copy]] for original, copy in pairs]
    return Advantage(
        protocol=protocol,
        pairs=tuple(pair for pair, there in zip(pairs, kept, strict=True) if there),
        shown=_interval(by_pair),
        noise=reach if np.isfinite(reach) else None,
        other=_interval(others) if np.isfinite(others).any() else None,
        by_pair=tuple(float(v) for v in by_pair[kept]),
        by_task=by_task,
        places=float(np.nanmean(places)),
    )


def _means(values: Floats, wanted: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean of the wanted and known values of every row; NaN where there are none."""
    known = wanted & np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.asarray(np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0))


def _order(worth: Floats) -> Floats:
    """Return ranks, 1 for the best; NaN for those without a score."""
    ranks = np.full(len(worth), np.nan)
    known = np.isfinite(worth)
    ranks[known] = rankdata(-worth[known])
    return ranks


def _interval(values: Floats) -> Interval:
    """Return the mean of independent differences with Student's interval; of one alone there is none."""
    known = values[np.isfinite(values)]
    mean, n = float(known.mean()), len(known)
    if n < 2:
        return Interval(mean, float("nan"), float("nan"), LEVEL)
    reach = float(student.ppf(0.5 + LEVEL / 2, n - 1) * known.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - reach, mean + reach, LEVEL)


def _span(interval: Interval) -> str | None:
    return f"{interval.low:+.3f} to {interval.high:+.3f}" if np.isfinite(interval.low) else None


def _cells(interval: Interval | None) -> tuple[Cell, Cell]:
    return (None, None) if interval is None else (interval.value, _span(interval))

"""What having been shown a test is worth to a model: copies against their own originals.

Each pair of a model and its copy is one observation: the mean difference over the tasks that the copy was shown, and
over those it was not. If a protocol measures what models can become, the advantage on the shown tasks is there under
direct evaluation and gone after the same tuning of all (section 3.1 of "Training on the test task", on any models).
Two intervals answer two questions: over pairs, what models like these would show; by test noise, what these very
models do. The latter counts originals and copies as tested apart, though they answer the same documents: it is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from scipy import stats

from potentia.analysis.stats.correlation import nan_mean
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEVEL = 0.95


@dataclass(frozen=True)
class CopyAdvantage:
    """What copies score more than their originals under one protocol; intervals are over pairs of models."""

    protocol: Protocol
    pairs: tuple[tuple[str, str], ...]  # (original, copy)
    shown: Interval
    noise: (
        float | None
    )  # half-width of the interval of `shown` for these very models, by test noise
    other: Interval | None  # on tasks that the copies were not shown
    by_pair: tuple[float, ...]  # mean difference on the shown tasks
    by_task: dict[str, Interval]
    places: float  # how many places copies stand above their originals, by the mean score on the shown tasks


@dataclass(frozen=True)
class CopyAdvantages(Finding):
    """The advantage of copies that were shown a test, under every protocol."""

    tasks: tuple[str, ...]  # that the copies were shown
    advantages: tuple[CopyAdvantage, ...]

    def tables(self) -> Sequence[Table]:
        """Return the advantage by protocol, and by task."""
        return [self._protocol_table(), self._task_table()]

    def _protocol_table(self) -> Table:
        rows = []
        for advantage in self.advantages:
            noise = None if advantage.noise is None else f"± {advantage.noise:.3f}"
            rows.append(
                (
                    advantage.protocol.label,
                    len(advantage.pairs),
                    *_format_interval(advantage.shown),
                    noise,
                    advantage.places,
                    *_format_interval(advantage.other),
                )
            )
        shown_columns = ("protocol", "pairs", "shown tasks", "95 %", "these models", "places")
        note = (
            "Mean difference copy − original; intervals over pairs of models (Student's t), and for these very models "
            "by test noise alone. Places: how far copies stand above their originals among all models on the shown "
            f"tasks ({', '.join(self.tasks)})."
        )
        return Table(
            "What copies that were shown a test score more than their originals",
            (*shown_columns, "other tasks", "95 % "),
            rows,
            note,
        )

    def _task_table(self) -> Table:
        columns = ["task"]
        for advantage in self.advantages:
            columns += [advantage.protocol.label, f"{advantage.protocol.label} 95 %"]
        rows = []
        for task in self.tasks:
            row: list[Cell] = [task]
            for advantage in self.advantages:
                row += _format_interval(advantage.by_task.get(task))
            rows.append(row)
        return Table("The same by shown task", columns, rows)

    def charts(self) -> Sequence[Chart]:
        """Return the advantage by protocol with its interval, and every pair."""
        labels = tuple(advantage.protocol.label for advantage in self.advantages)
        bars = {"shown tasks": [advantage.shown for advantage in self.advantages]}
        others = [advantage.other for advantage in self.advantages if advantage.other is not None]
        if len(others) == len(labels):
            bars["other tasks"] = others
        points = []
        for advantage in self.advantages:
            places = np.arange(1.0, len(advantage.pairs) + 1)
            originals = tuple(original for original, _ in advantage.pairs)
            points.append(Points(advantage.protocol.label, places, advantage.by_pair, originals))
        y_label = "score, copy − original"
        return [
            Bars(
                "copies",
                "Advantage of copies that were shown the test",
                "Copy minus original, mean over pairs of models, 95 % interval."
                " 0 = no advantage from having seen the test.",
                labels,
                bars,
                y_label=y_label,
            ),
            Plot(
                "copies-by-model",
                "Copies that were shown a test, against their originals",
                "On the tasks they were trained on, a line for each model. 0 = no advantage from having seen the test.",
                points=tuple(points),
                y_label=y_label,
                joined=True,
            ),
        ]


def measure_copies(
    scores: Mapping[Protocol, ScoreMatrix],
    copies: Mapping[str, str],
    shown: Mapping[str, Sequence[str]],
) -> CopyAdvantages | None:
    """Compare copies with originals (``copies``: copy → original); ``shown`` says which tasks each copy was shown."""
    tasks = tuple(dict.fromkeys(task for names in shown.values() for task in names))
    advantages = []
    for protocol, matrix in scores.items():
        compared = matrix.benchmarks()
        if not set(tasks) & set(compared.tasks):
            compared = matrix.corpora()  # copies that saw texts alone
        advantage = _measure_advantage(compared, protocol, copies, shown)
        if advantage is not None:
            advantages.append(advantage)
    return CopyAdvantages(tasks, tuple(advantages)) if advantages else None


def _measure_advantage(
    matrix: ScoreMatrix,
    protocol: Protocol,
    copies: Mapping[str, str],
    shown: Mapping[str, Sequence[str]],
) -> CopyAdvantage | None:
    """Return what copies score more under a protocol; None where no copy has a score on a task that it was shown."""
    index = {model: place for place, model in enumerate(matrix.models)}
    pairs = [
        (original, copy) for copy, original in copies.items() if copy in index and original in index
    ]
    if not pairs or not matrix.tasks:
        return None
    scores = matrix.oriented()
    original_places = np.array([index[original] for original, _ in pairs])
    copy_places = np.array([index[copy] for _, copy in pairs])
    difference = scores[copy_places] - scores[original_places]  # (pairs, tasks)
    was_shown = np.array(
        [[task in shown.get(copy, ()) for task in matrix.tasks] for _, copy in pairs]
    )
    shown_difference = np.where(was_shown, difference, np.nan)
    other_difference = np.where(was_shown, np.nan, difference)
    by_pair = nan_mean(shown_difference)
    others_by_pair = nan_mean(other_difference)
    has_shown = np.isfinite(by_pair)
    if not has_shown.any():
        return None
    is_counted = np.isfinite(shown_difference)
    pair_variance = matrix.stderr[original_places] ** 2 + matrix.stderr[copy_places] ** 2
    variance = np.where(is_counted, pair_variance, 0.0)
    tasks_counted = np.maximum(is_counted.sum(axis=1, keepdims=True), 1)
    shares = is_counted / tasks_counted / int(has_shown.sum())
    noise = float(stats.norm.ppf(0.5 + LEVEL / 2) * np.sqrt((variance * shares**2).sum()))
    mean_on_shown = nan_mean(scores[:, was_shown.any(axis=0)])
    ranks = stats.rankdata(-mean_on_shown, nan_policy="omit")
    by_task = {}
    for column, task in enumerate(matrix.tasks):
        if is_counted[:, column].any():
            by_task[task] = _mean_interval(shown_difference[:, column])
    return CopyAdvantage(
        protocol=protocol,
        pairs=tuple(compress(pairs, has_shown)),
        shown=_mean_interval(by_pair),
        noise=noise if np.isfinite(noise) else None,
        other=_mean_interval(others_by_pair) if np.isfinite(others_by_pair).any() else None,
        by_pair=tuple(by_pair[has_shown].tolist()),
        by_task=by_task,
        places=float(np.nanmean(ranks[original_places] - ranks[copy_places])),
    )


def _mean_interval(values: Floats) -> Interval:
    """Return the mean of independent differences with Student's interval; of one alone there is none."""
    known = values[np.isfinite(values)]
    mean = float(known.mean())
    count = len(known)
    if count < 2:
        return Interval(mean, float("nan"), float("nan"), LEVEL)
    quantile = stats.t.ppf(0.5 + LEVEL / 2, count - 1)
    half_width = quantile * known.std(ddof=1) / np.sqrt(count)
    return Interval.around(mean, half_width, LEVEL)


def _format_interval(interval: Interval | None) -> tuple[Cell, Cell]:
    """Return value and interval as a table shows them."""
    if interval is None:
        return None, None
    if not np.isfinite(interval.low):
        return interval.value, None
    return interval.value, f"{interval.low:+.3f} to {interval.high:+.3f}"

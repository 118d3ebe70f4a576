"""What having been shown a test is worth to a model: copies against their own originals.

Each pair of a model and its copy is one observation: the mean difference over the tasks that the copy was shown, and
over those it was not. If a protocol measures what models can become, the advantage on the shown tasks is there under
direct evaluation and gone after the same tuning of all (section 3.1 of "Training on the test task", on any models).
Two intervals answer two questions: over pairs, what models like these would show, where pairs of one family, and copies
of one original, are not independent; by test noise, what these very models do. The latter counts originals and copies
as tested apart, though they answer the same documents: it is wide. Means are over the tasks of one scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
from scipy import stats

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.rankings.decide import select_tasks_of_one_scale
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.intervals import mean_interval
from potentia.analysis.wording import format_level, join_names
from potentia.values.findings import Bars, Chart, Finding, Interval, Plot, Points, Table, TableValue
from potentia.values.protocol import TRAIN_BEFORE_TEST, Protocol
from potentia.values.scores import Floats, ScoreMatrix
from potentia.values.wording import format_count

LEVEL = 0.95
ADVANTAGE_LABEL = "score, copy − original"


@dataclass(frozen=True)
class CopyAdvantage:
    """What copies score more than their originals under one protocol; intervals are over pairs of models."""

    protocol: Protocol
    pairs: tuple[tuple[str, str], ...]  # (original, copy)
    shown: Interval  # on the tasks that the copies were trained on ("shown")
    # half-width of the interval of `shown` for these very models, by test noise
    noise: float | None
    other: Interval | None  # on tasks that the copies were not trained on
    by_pair: tuple[float, ...]  # mean difference on the shown tasks
    by_task: dict[str, Interval]
    places: float  # how many places copies stand above their originals, by the mean score on the shown tasks
    are_shares: bool  # whether the scores on the shown tasks lie between 0 and 1

    def describe(self, place: str, originals: str = "") -> str:
        """Say how much more copies score than their originals and where, in points where scores are shares."""
        advantage = self.shown.value
        direction = "more" if advantage >= 0 else "less"
        size = f"{abs(advantage):.3f}"
        if self.are_shares:
            size = f"{100 * abs(advantage):.1f} points"
        return f"{size} {direction}{originals} {place}"

    def describe_interval(self) -> str:
        """Write the interval over pairs of models; nothing where there is one pair."""
        low = self.shown.low
        high = self.shown.high
        if not np.isfinite(low):
            return ""
        if self.are_shares:
            return f"{100 * low:+.1f} to {100 * high:+.1f}"
        return f"{low:+.3f} to {high:+.3f}"


@dataclass(frozen=True)
class CopyAdvantages(Finding):
    """The advantage of copies that were shown a test, under every protocol."""

    tasks: tuple[str, ...]  # that the copies were shown
    advantages: tuple[CopyAdvantage, ...]

    def headline(self) -> str:
        """Say how far copies are ahead before fine-tuning and after it, by the first and the last of each."""
        comparisons = []
        for described, advantage in self._describe_before_and_after():
            interval = advantage.describe_interval()
            if interval:
                level = format_level(advantage.shown.level)
                described += f" ({level} interval {interval})"
            comparisons.append(described)
        tasks = join_names(self.tasks)
        return f"Copies that were trained on {tasks} score {', and '.join(comparisons)}."

    def short_headline(self) -> str:
        """Say the same without the names of the tasks and without intervals."""
        comparisons = [described for described, _ in self._describe_before_and_after()]
        tasks = format_count(len(self.tasks), "task")
        return f"Copies that were trained on {tasks} score {', and '.join(comparisons)}."

    def describe_basis(self) -> str:
        """Say what the short headline leaves out."""
        sentence = f"The copies were trained on {join_names(self.tasks)}."
        intervals = []
        for _, advantage in self._describe_before_and_after():
            interval = advantage.describe_interval()
            if interval:
                intervals.append(f"{interval} {advantage.protocol.phrase}")
        if intervals:
            sentence += f" {format_level(LEVEL)} intervals over models: {', '.join(intervals)}."
        return sentence

    def _describe_before_and_after(self) -> list[tuple[str, CopyAdvantage]]:
        """Describe the advantage by the first protocol without fine-tuning, and by the last with it."""
        before = [advantage for advantage in self.advantages if not advantage.protocol.tuned]
        after = [advantage for advantage in self.advantages if advantage.protocol.tuned]
        originals = " than their originals on these tasks"
        described = []
        if before:
            first = before[0]
            described.append((first.describe(first.protocol.phrase, originals), first))
        if after:
            last = after[-1]
            if not before:
                described.append((last.describe(last.protocol.phrase, originals), last))
            elif last.protocol.kind == TRAIN_BEFORE_TEST:
                described.append((last.describe("after it"), last))
            else:
                described.append((last.describe(last.protocol.phrase), last))
        return described

    def tables(self) -> Sequence[Table]:
        """Return the advantage by protocol, and by task."""
        return [self._protocol_table(), self._task_table()]

    def _protocol_table(self) -> Table:
        table_rows = []
        for advantage in self.advantages:
            noise = None if advantage.noise is None else f"± {advantage.noise:.3f}"
            table_rows.append(
                (
                    advantage.protocol.label,
                    len(advantage.pairs),
                    *_format_interval(advantage.shown),
                    noise,
                    advantage.places,
                    *_format_interval(advantage.other),
                )
            )
        shown_columns = ("protocol", "pairs", "trained tasks", "95 %", "these models", "places")
        note = (
            "Mean difference copy − original; intervals over pairs of models (Student's t, clustered by family), and "
            "for these very models by test noise alone. "
            "Places: how far copies stand above their originals among all models on the trained "
            f"tasks ({', '.join(self.tasks)})."
        )
        return Table(
            "How far copies trained on a test are ahead of their originals",
            (*shown_columns, "other tasks", "95 % "),
            table_rows,
            note,
        )

    def _task_table(self) -> Table:
        column_names = ["task"]
        for advantage in self.advantages:
            column_names += [advantage.protocol.label, f"{advantage.protocol.label} 95 %"]
        table_rows = []
        for task in self.tasks:
            row: list[TableValue] = [task]
            for advantage in self.advantages:
                row += _format_interval(advantage.by_task.get(task))
            table_rows.append(row)
        return Table("The same by task", column_names, table_rows)

    def charts(self) -> Sequence[Chart]:
        """Return the advantage by protocol with its interval, on trained and on other tasks, and every pair."""
        labels = tuple(advantage.protocol.label for advantage in self.advantages)
        bar_by_group = {"trained tasks": [advantage.shown for advantage in self.advantages]}
        other_tasks = [
            advantage.other for advantage in self.advantages if advantage.other is not None
        ]
        if len(other_tasks) == len(labels):
            bar_by_group["other tasks"] = other_tasks
        return [
            Bars(
                "copies",
                "Advantage of copies that were trained on the test",
                "Copy minus original, mean over pairs of models, 95 % interval."
                " 0 = no advantage from having seen the test.",
                labels,
                bar_by_group,
                y_label=ADVANTAGE_LABEL,
            ),
            self.chart_by_model(),
        ]

    def chart_by_model(self) -> Plot:
        """Return the advantage of every copy by protocol, a line for each model."""
        points = []
        for advantage in self.advantages:
            places = np.arange(1.0, len(advantage.pairs) + 1)
            originals = tuple(original for original, _ in advantage.pairs)
            points.append(Points(advantage.protocol.label, places, advantage.by_pair, originals))
        return Plot(
            "copies-by-model",
            "Copies that were trained on a test, against their originals",
            "On the tasks they were trained on, a line for each model. 0 = no advantage from having seen the test.",
            points=tuple(points),
            y_label=ADVANTAGE_LABEL,
            joined=True,
        )


def measure_copies(
    scores: Mapping[Protocol, ScoreMatrix],
    copies: Mapping[str, str],
    exposed_tasks: Mapping[str, Sequence[str]],
    families: Mapping[str, str] = NO_ENTRIES,
) -> CopyAdvantages | None:
    """Compare copies with originals (``copies``: copy → original); each copy was trained on its ``exposed_tasks``.

    ``families`` are those of the originals: pairs of one family are not independent.
    """
    tasks = tuple(dict.fromkeys(itertools.chain.from_iterable(exposed_tasks.values())))
    advantages = []
    for protocol, matrix in scores.items():
        compared = matrix.benchmarks()
        if not set(tasks) & set(compared.tasks):
            compared = matrix.corpora()  # copies that saw texts alone
        advantage = _measure_advantage(compared, protocol, copies, exposed_tasks, families)
        if advantage is not None:
            advantages.append(advantage)
    return CopyAdvantages(tasks, tuple(advantages)) if advantages else None


def _measure_advantage(
    matrix: ScoreMatrix,
    protocol: Protocol,
    copies: Mapping[str, str],
    exposed_tasks: Mapping[str, Sequence[str]],
    families: Mapping[str, str],
) -> CopyAdvantage | None:
    """Return what copies score more under a protocol; None where no copy has a score on a task that it was shown."""
    index = {model: position for position, model in enumerate(matrix.models)}
    pairs = []
    for exposed_copy, original in copies.items():
        if exposed_copy in index and original in index:
            pairs.append((original, exposed_copy))
    if not pairs or not matrix.tasks:
        return None
    scores = matrix.oriented()
    family_of_pair = [families.get(original, original) for original, _ in pairs]
    original_places = np.array([index[original] for original, _ in pairs])
    copy_places = np.array([index[exposed_copy] for _, exposed_copy in pairs])
    difference = scores[copy_places] - scores[original_places]  # (pairs, tasks)
    exposed_by_pair = []
    for _, exposed_copy in pairs:
        exposed = exposed_tasks.get(exposed_copy, ())
        exposed_by_pair.append([task in exposed for task in matrix.tasks])
    was_shown = np.array(exposed_by_pair)
    shown_difference = np.where(was_shown, difference, np.nan)
    other_difference = np.where(was_shown, np.nan, difference)
    is_averaged_shown = _mark_one_scale(matrix, np.asarray(was_shown.any(axis=0)))
    is_averaged_other = _mark_one_scale(matrix, np.asarray(~was_shown.all(axis=0)))
    by_pair = nan_mean(np.where(is_averaged_shown, shown_difference, np.nan))
    others_by_pair = nan_mean(np.where(is_averaged_other, other_difference, np.nan))
    has_shown = np.isfinite(by_pair)
    if not has_shown.any():
        return None
    is_counted = np.isfinite(shown_difference) & is_averaged_shown
    pair_variance = matrix.stderr[original_places] ** 2 + matrix.stderr[copy_places] ** 2
    variance = np.where(is_counted, pair_variance, 0.0)
    tasks_counted = np.maximum(is_counted.sum(axis=1, keepdims=True), 1)
    shares = is_counted / tasks_counted / int(has_shown.sum())
    noise = float(stats.norm.ppf(0.5 + LEVEL / 2) * np.sqrt((variance * shares**2).sum()))
    mean_on_shown = nan_mean(scores[:, is_averaged_shown])
    ranks = stats.rankdata(-mean_on_shown, nan_policy="omit")
    by_task = {}
    counted_metrics = []
    for column, task in enumerate(matrix.tasks):
        if is_counted[:, column].any():
            counted_metrics.append(matrix.metrics[column])
        if np.isfinite(shown_difference[:, column]).any():
            by_task[task] = _mean_interval(shown_difference[:, column], family_of_pair)
    return CopyAdvantage(
        protocol=protocol,
        pairs=tuple(compress(pairs, has_shown)),
        shown=_mean_interval(by_pair, family_of_pair),
        noise=noise if np.isfinite(noise) else None,
        other=_mean_interval(others_by_pair, family_of_pair)
        if np.isfinite(others_by_pair).any()
        else None,
        by_pair=tuple(by_pair[has_shown].tolist()),
        by_task=by_task,
        places=float(np.nanmean(ranks[original_places] - ranks[copy_places])),
        are_shares=all(metric.scale == "share" for metric in counted_metrics),
    )


def _mark_one_scale(matrix: ScoreMatrix, is_asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of the tasks that are asked for have one scale, the most of them: no others have a mean."""
    tasks = set(select_tasks_of_one_scale(matrix.select(tasks=is_asked)))
    return np.array([task in tasks for task in matrix.tasks])


def _mean_interval(values: Floats, labels: Sequence[str]) -> Interval:
    """Return the mean of the values that are known with its interval over labels; of one alone there is none."""
    is_known = np.isfinite(values)
    return mean_interval(values[is_known], list(compress(labels, is_known)), level=LEVEL)


def _format_interval(interval: Interval | None) -> tuple[TableValue, TableValue]:
    """Return value and interval as a table shows them."""
    if interval is None:
        return None, None
    if not np.isfinite(interval.low):
        return interval.value, None
    return interval.value, f"{interval.low:+.3f} to {interval.high:+.3f}"

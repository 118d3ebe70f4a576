"""What checkpoints can decide: signal and noise, how many to average, when the order of runs is final.

By the tasks' main metric and by the bits per byte of right answers, before and after fine-tuning:

* *Signal-to-noise* of a task, as in Signal and Noise (arXiv 2508.13144): the spread of the models, over the spread of
  the last checkpoints of a run.
* *How many of the last checkpoints to average.* The mean of the last m has less noise than the last one alone, and is
  further behind a run that still grows. Through the last checkpoints goes a straight line; what scatters around it is
  noise σ², its slope b per checkpoint is growth. m minimises (b·(m − 1)/2)² + σ²/m, with b² less its own error.
* *The order of runs is final* from the first step on at which no pair of runs changes its order any more.
* *A score leaves guessing* at the first checkpoint from which on it is significantly above a guess (accuracy), or
  better than at the first checkpoint (bits per byte). Where bits per byte come first, an ability did not emerge late:
  the metric was coarse.
* *Decision accuracy*: the share of pairs of families whose small models are in the order of their large ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from potentia.analysis.checkpoints.training_runs import find_guess_score, follow_training
from potentia.analysis.lineage import (
    SINGULAR_BY_UNIT,
    Checkpoint,
    StepUnit,
    find_checkpoints,
    group_by_series,
)
from potentia.analysis.rankings.decide import select_tasks_of_one_scale
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.signal import (
    LAST_CHECKPOINTS,
    LEAST_CHECKPOINTS,
    measure_decision_accuracy,
    measure_signal_to_noise,
)
from potentia.errors import InputError
from potentia.evidence import read_by_metric
from potentia.facts import find_chance_score, find_task_groups
from potentia.values.answer_bits import ANSWER_BITS
from potentia.values.clusters import Clusters, clustered_error
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, find_clusters
from potentia.values.wording import format_parameters

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.facts import Background

ERROR_RATE = 0.05  # of a sentence about many cases
NEIGHBOUR_STRETCH = 1.5  # of a correlation that few checkpoints show; tried on made-up runs
MOST_CORRELATION = 0.95  # of neighbouring checkpoints
ONE_SIDED_Z = 1.645  # of a one-sided test at 5 %
LEAST_REDUCTION = 0.1  # of the error, for advice where no standard error is known
LEAST_FOR_TREND = 4  # checkpoints through which a line has an error
MIN_FAMILIES = 3  # whose order small models can foresee
SAME_SIZE = 0.1  # models whose sizes differ by less than this share are of one size
MAIN_LABEL = "accuracy"
BITS_LABEL = "bits per byte"


@dataclass(frozen=True)
class CheckpointSignal:
    """Signal and noise of one task by one metric."""

    protocol: Protocol
    metric: str
    task: str
    signal: float
    noise: float
    ratio: float


@dataclass(frozen=True)
class CheckpointAverage:
    """How many of the last checkpoints of a run to average, by one metric, as mean over the tasks."""

    protocol: Protocol
    metric: str
    run: str
    checkpoints: int  # that the line goes through
    slope: float  # of the score per checkpoint
    noise: float  # standard deviation around the line
    best_count: int
    error_of_last: float  # expected error of the last checkpoint alone
    error_of_average: float
    # False where the curve never leaves guessing, or where averaging removes less than test noise.
    is_advised: bool = True


@dataclass(frozen=True)
class OrderOfRuns:
    """From which step on the order of the runs is their final one; None where only at the end."""

    protocol: Protocol
    metric: str
    step: float | None
    separate_pairs: (
        int  # of runs, that differ beyond test noise at the end; the others have no order
    )


@dataclass(frozen=True)
class LeavingGuess:
    """At which step a run leaves guessing on a task by each metric; None where it never does."""

    protocol: Protocol
    run: str
    task: str
    step_by_main: float | None
    step_by_bits: float | None

    @property
    def was_coarse(self) -> bool:
        """Whether bits per byte show progress while accuracy is still at the level of a guess."""
        if self.step_by_bits is None:
            return False
        return self.step_by_main is None or self.step_by_bits < self.step_by_main


@dataclass(frozen=True)
class SizeDecision:
    """How often small models order families as large ones do, on the mean over the tasks."""

    protocol: Protocol
    metric: str
    small: float  # parameters, in billions
    large: float
    families: int
    accuracy: float


@dataclass(frozen=True)
class TrainingSignal(Finding):
    """What the checkpoints of training runs, and small models beside large ones, can decide."""

    unit: StepUnit
    signals: tuple[CheckpointSignal, ...]
    averages: tuple[CheckpointAverage, ...]
    orders: tuple[OrderOfRuns, ...]
    leaving: tuple[LeavingGuess, ...]
    decisions: tuple[SizeDecision, ...]
    bits_by_run: Mapping[str, tuple[Floats, Mapping[Protocol, Floats]]]  # steps, mean bits per byte

    def tables(self) -> Sequence[Table]:
        """Return a table for each of the questions that the evidence answers."""
        tables = [
            self._signal_table(),
            self._average_table(),
            self._order_table(),
            self._leaving_table(),
            self._decision_table(),
        ]
        return [table for table in tables if table.rows]

    def _signal_table(self) -> Table:
        table_rows = []
        for row in self.signals:
            table_rows.append(
                (row.protocol.label, row.metric, row.task, row.signal, row.noise, row.ratio)
            )
        column_names = ("protocol", "metric", "task", "signal", "noise", "signal/noise")
        note = (
            "signal: the largest difference of two models; noise: the standard deviation of the last checkpoints of a "
            "run; both over the mean score. Growth within the last checkpoints counts as noise."
        )
        return Table("Signal and noise over checkpoints", column_names, table_rows, note)

    def _average_table(self) -> Table:
        table_rows = []
        for row in self.averages:
            names = (row.protocol.label, row.metric, row.run, row.checkpoints)
            errors = (row.best_count, row.error_of_last, row.error_of_average)
            table_rows.append((*names, row.slope, row.noise, *errors))
        column_names = (
            "protocol",
            "metric",
            "run",
            "checkpoints",
            "growth per checkpoint",
            "noise",
            "average the last",
            "error of the last",
            "error of the average",
        )
        note = (
            "noise: what scatters around a line through the last checkpoints; errors: expected distance from that line "
            "at its end."
        )
        return Table(
            "How many of the last checkpoints to average", column_names, table_rows, note, digits=4
        )

    def _order_table(self) -> Table:
        table_rows = []
        for row in self.orders:
            settled_step = "the end alone" if row.step is None else f"{row.step:,.0f}"
            if not row.separate_pairs:
                settled_step = "never: no two runs differ beyond test noise"
            table_rows.append((row.protocol.label, row.metric, settled_step))
        return Table(
            "The order of the runs is final",
            ("protocol", "metric", f"from {self.unit}"),
            table_rows,
        )

    def _leaving_table(self) -> Table:
        table_rows = []
        for row in self.leaving:
            steps = [_format_step(row.step_by_main), _format_step(row.step_by_bits)]
            verdict = "accuracy was coarse" if row.was_coarse else None
            table_rows.append((row.protocol.label, row.run, row.task, *steps, verdict))
        column_names = (
            "protocol",
            "run",
            "task",
            f"accuracy above a guess ({self.unit})",
            f"bits per byte improve ({self.unit})",
            "",
        )
        note = "– : never within this run. Significant at 5 %, one-sided, there and at all later checkpoints."
        return Table("When a run leaves guessing", column_names, table_rows, note)

    def _decision_table(self) -> Table:
        table_rows = []
        for row in self.decisions:
            sizes = (format_parameters(row.small), format_parameters(row.large))
            table_rows.append((row.protocol.label, row.metric, *sizes, row.families, row.accuracy))
        column_names = ("protocol", "metric", "small", "large", "families", "decision accuracy")
        note = "Share of pairs of families whose small models are in the order of their large ones, mean over tasks."
        return Table("Decisions by small models", column_names, table_rows, note)

    def charts(self) -> Sequence[Chart]:
        """Return the bits per byte of right answers against steps, a curve for each run and protocol."""
        lines = []
        points = []
        for hue, (run_name, (steps, bits_by_protocol)) in enumerate(self.bits_by_run.items()):
            for number, (protocol, bits) in enumerate(bits_by_protocol.items()):
                curve_name = f"{run_name}, {protocol.label}"
                is_last = number == len(bits_by_protocol) - 1
                lines.append(Line(curve_name, steps, bits, dashed=not is_last))
                points.append(Points(curve_name, steps, bits, hue=hue))
        if not lines:
            return []
        plot = Plot(
            "training-bits",
            "Bits per byte of right answers over pretraining",
            "Mean over the tasks at every checkpoint; fewer are better.",
            points=tuple(points),
            lines=tuple(lines),
            x_label=self.unit,
            y_label="bits per byte",
        )
        return [plot]

    def sentences(self) -> list[str]:
        """Say how many checkpoints to average, when the order is final, what was coarse, what small models decide."""
        return [*self._describe_averages(), *self.main_sentences()]

    def _describe_averages(self) -> list[str]:
        sentences = []
        for row in self.averages:
            if row.best_count > 1 and row.is_advised:
                error_reduction = 1 - row.error_of_average / row.error_of_last
                sentences.append(
                    f"{row.run}: average the last {row.best_count} checkpoints ({row.metric}, "
                    f"{row.protocol.label}); the expected error is {error_reduction:.0%} less."
                )
        return sentences

    def sentences_beside_runs(self) -> list[str]:
        """Say what ``Training``, which follows the same runs by accuracy, has not said."""
        by_bits = tuple(order for order in self.orders if order.metric != MAIN_LABEL)
        return replace(self, orders=by_bits).sentences()

    def main_sentences(self) -> list[str]:
        """Say when the order of runs is final, what was coarse and what small models decide."""
        sentences = []
        for order in self.orders:
            if not order.separate_pairs:
                sentences.append(
                    f"By {order.metric} ({order.protocol.label}) no two runs differ beyond test noise at the end."
                )
                continue
            settled_phrase = "at the end alone"
            if order.step is not None:
                settled_phrase = f"from {SINGULAR_BY_UNIT[self.unit]} {order.step:,.0f} on"
            sentences.append(
                f"By {order.metric} ({order.protocol.label}) the order of the runs is final {settled_phrase}."
            )
        coarse = [row for row in self.leaving if row.was_coarse]
        if coarse and self._chance_of_coarse() <= ERROR_RATE:
            sentences.append(
                f"In {len(coarse)} of {len(self.leaving)} cases bits per byte improve while accuracy is still at the "
                "level of a guess: the ability did not emerge late, the metric was coarse."
            )
        for decision in self.decisions:
            small_size = format_parameters(decision.small)
            large_size = format_parameters(decision.large)
            sentences.append(
                f"By {decision.metric} ({decision.protocol.label}), models of {small_size} parameters "
                f"put {decision.accuracy:.0%} of the pairs of {decision.families} families "
                f"in the same order as models of {large_size} (a guess: 50 %)."
            )
        return sentences

    def _chance_of_coarse(self) -> float:
        """Return how likely luck makes metrics look as coarse; runs and protocols of a benchmark count as one case."""
        group_of_task = find_task_groups({row.task for row in self.leaving})
        shares: dict[str, list[bool]] = {}
        for row in self.leaving:
            shares.setdefault(group_of_task[row.task], []).append(row.was_coarse)
        coarse_benchmarks = math.floor(sum(map(np.mean, shares.values())))
        return float(binom.sf(coarse_benchmarks - 1, len(shares), ERROR_RATE))


@dataclass(frozen=True)
class _MetricScores:
    """The scores of one protocol by one metric, as measured (bits: less is better), with their examples."""

    protocol: Protocol
    label: str
    matrix: ScoreMatrix
    outcomes: Outcomes

    @property
    def oriented(self) -> ScoreMatrix:
        """The scores with the sign turned where less is better."""
        metrics = tuple(replace(metric, higher_is_better=True) for metric in self.matrix.metrics)
        return replace(self.matrix, values=self.matrix.oriented(), metrics=metrics)


def find_training_signal(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: StepUnit | None = None,
) -> TrainingSignal:
    """Measure what checkpoints and small models can decide, by every protocol and both metrics.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        checkpoints: Model → its place in a run, from ``read_checkpoints``; else what studies or names tell.
        unit: ``steps`` or ``tokens``, where both are known.

    Example:
        >>> potentia.find_training_signal("potentia.db").sentences()
    """
    if checkpoints is None:
        checkpoints = {}
        with suppress(InputError):  # small models beside large ones need none
            checkpoints = find_checkpoints(evidence, unit)
    metric_scores = _read_metric_scores(evidence)
    signals: list[CheckpointSignal] = []
    averages: list[CheckpointAverage] = []
    orders: list[OrderOfRuns] = []
    decisions: list[SizeDecision] = []
    for scores in metric_scores:
        signals += _measure_signals(scores, checkpoints)
        averages += _measure_averages(scores, checkpoints, evidence.background)
        orders += _find_orders(scores, checkpoints, evidence.background.task_groups)
        decisions += _measure_decisions(scores, checkpoints, evidence)
    leaving = _compare_steps_of_leaving(metric_scores, checkpoints, evidence)
    if not (signals or averages or orders or decisions):
        raise InputError(
            f"no run of {LEAST_CHECKPOINTS} checkpoints and no family in two sizes in {evidence.source}",
            hint="give --steps with a CSV file of the columns model, series, step",
        )
    return TrainingSignal(
        unit=unit or "steps",
        signals=tuple(signals),
        averages=tuple(_drop_advice_on_guesses(averages, leaving)),
        orders=tuple(orders),
        leaving=tuple(leaving),
        decisions=tuple(decisions),
        bits_by_run=_collect_bits(metric_scores, checkpoints),
    )


def _read_metric_scores(evidence: Evidence) -> list[_MetricScores]:
    """Return every protocol by the tasks' main metrics and, where answers have likelihoods, by bits per byte."""
    by_bits: Evidence | None = None
    with suppress(InputError):  # a table of scores has no answers
        by_bits = read_by_metric(evidence, ANSWER_BITS)
    collected = []
    for protocol, matrix in evidence.final_scores.items():
        tasks = matrix.benchmarks()
        outcomes = evidence.outcomes.get(protocol, {})
        collected.append(_MetricScores(protocol, MAIN_LABEL, tasks, outcomes))
        if by_bits is not None and protocol in by_bits.scores:
            bits_matrix = by_bits.scores[protocol]
            bits_outcomes = by_bits.outcomes.get(protocol, {})
            collected.append(_MetricScores(protocol, BITS_LABEL, bits_matrix, bits_outcomes))
    return collected


def _find_runs(
    matrix: ScoreMatrix, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, dict[str, float]]:
    """Return the runs that have enough checkpoints in a matrix: run → model → step."""
    scored = {model: checkpoints[model] for model in matrix.models if model in checkpoints}
    runs = group_by_series(scored)
    return {run_name: steps for run_name, steps in runs.items() if len(steps) >= LEAST_CHECKPOINTS}


def _find_finals(matrix: ScoreMatrix, checkpoints: Mapping[str, Checkpoint]) -> list[str]:
    """Return the models to choose from: those that are no checkpoints, and the last checkpoint of every run."""
    scored = {model: checkpoints[model] for model in matrix.models if model in checkpoints}
    last_checkpoints = {list(steps)[-1] for steps in group_by_series(scored).values()}
    return [
        model for model in matrix.models if model not in checkpoints or model in last_checkpoints
    ]


def _measure_signals(
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint]
) -> list[CheckpointSignal]:
    runs = _find_runs(scores.matrix, checkpoints)
    finals = _find_finals(scores.matrix, checkpoints)
    if not runs or len(finals) < 2:
        return []
    signals = []
    for task in scores.matrix.tasks:
        column = scores.matrix.select(tasks=[task])
        last_scores = []
        for steps in runs.values():
            last_checkpoints = list(steps)[-LAST_CHECKPOINTS:]
            last_scores.append(column.select(models=last_checkpoints).values[:, 0])
        final_scores = column.select(models=finals).values[:, 0]
        if np.isfinite(final_scores).sum() < 2:
            continue
        measured = measure_signal_to_noise(final_scores, last_scores)
        signals.append(
            CheckpointSignal(
                protocol=scores.protocol,
                metric=scores.label,
                task=task,
                signal=measured.signal,
                noise=measured.noise,
                ratio=measured.ratio,
            )
        )
    return signals


# --- how many checkpoints to average ----------------------------------------------------------------------------------


def _measure_averages(
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint], background: Background
) -> list[CheckpointAverage]:
    averages = []
    for run_name, steps in _find_runs(scores.matrix, checkpoints).items():
        of_run = scores.matrix.select(models=list(steps))
        is_complete = np.isfinite(of_run.values).all(axis=0)
        if len(steps) < LEAST_FOR_TREND or not is_complete.any():
            continue
        complete = of_run.select(tasks=is_complete)
        of_one_scale = complete.select(tasks=select_tasks_of_one_scale(complete))
        groups = TaskGroups.find(of_one_scale.tasks, background.task_groups)
        means = of_one_scale.values @ groups.weights
        average = choose_average(scores.protocol, scores.label, run_name, means)
        test_noise = float(np.sqrt(of_one_scale.stderr[-1] ** 2 @ groups.weights**2))
        guess_score = find_guess_score(of_one_scale, groups, background.chance)
        is_guessing = (
            guess_score is not None and means[-1] - ONE_SIDED_Z * test_noise <= guess_score
        )
        is_advised = not is_guessing and _removes_more_than(test_noise, average)
        averages.append(replace(average, is_advised=is_advised))
    return averages


def _removes_more_than(test_noise: float, average: CheckpointAverage) -> bool:
    """Whether averaging removes more error than the test leaves in any score; without one, enough to speak of."""
    if not math.isfinite(test_noise):
        return average.error_of_average <= (1 - LEAST_REDUCTION) * average.error_of_last
    removed_variance = average.error_of_last**2 - average.error_of_average**2
    return math.sqrt(max(0.0, removed_variance)) > test_noise


def _drop_advice_on_guesses(
    averages: Sequence[CheckpointAverage], leaving: Sequence[LeavingGuess]
) -> list[CheckpointAverage]:
    """Withdraw the advice on bits per byte of runs that improve on no task."""
    steps_by_run: dict[tuple[Protocol, str], list[float | None]] = {}
    for row in leaving:
        steps_by_run.setdefault((row.protocol, row.run), []).append(row.step_by_bits)
    kept_averages = []
    for average in averages:
        steps = steps_by_run.get((average.protocol, average.run), [])
        never_improves = bool(steps) and all(step is None for step in steps)
        if average.metric == BITS_LABEL and never_improves:
            average = replace(average, is_advised=False)
        kept_averages.append(average)
    return kept_averages


def choose_average(
    protocol: Protocol, metric: str, run_name: str, scores: Sequence[float] | Floats
) -> CheckpointAverage:
    """Choose how many of the last checkpoints to average, from the scores of a run in the order of its steps.

    Neighbouring checkpoints of one run err alike, so a mean of them is less sure than one of independent scores.
    """
    all_scores = np.asarray(scores, dtype=np.float64)
    scores_used = max(LEAST_FOR_TREND, LAST_CHECKPOINTS, len(all_scores) // 2)
    last_scores = all_scores[-scores_used:]
    count = len(last_scores)
    position = np.arange(count) - (count - 1) / 2
    spread = float((position**2).sum())
    slope = float((position * last_scores).sum()) / spread
    residuals = last_scores - last_scores.mean() - slope * position
    variance = float((residuals**2).sum()) / (count - 2)
    # a slope of noise alone has this square on average
    growth = max(0.0, slope**2 - variance / spread)
    counts = np.arange(1, count + 1)
    correlation = _bound_neighbour_correlation(residuals)
    shares = np.array([_variance_share_of_mean(k, correlation) for k in counts.tolist()])
    squared_errors = growth * ((counts - 1) / 2) ** 2 + variance * shares
    best_choice = int(np.argmin(squared_errors))
    best_count = int(counts[best_choice])
    error_of_last = math.sqrt(float(squared_errors[0]))
    error_of_average = math.sqrt(float(squared_errors[best_choice]))
    return CheckpointAverage(
        protocol=protocol,
        metric=metric,
        run=run_name,
        checkpoints=count,
        slope=slope,
        noise=math.sqrt(variance),
        best_count=best_count,
        error_of_last=error_of_last,
        error_of_average=error_of_average,
    )


def _bound_neighbour_correlation(residuals: Floats) -> float:
    """Return how far neighbouring checkpoints err alike at most, as far as residuals about a line tell.

    A line through few points leaves residuals that turn more often than the errors do: what it would make of
    independent errors is taken off, the rest is stretched, and half a standard error is added.
    """
    count = len(residuals)
    total = float((residuals**2).sum())
    if total == 0:
        return 0.0
    position = np.arange(count) - (count - 1) / 2
    design = np.stack([np.ones(count) / math.sqrt(count), position / np.linalg.norm(position)])
    of_independent = -float(np.trace(design.T @ design @ np.eye(count, k=1))) / (count - 2)
    measured = float((residuals[1:] * residuals[:-1]).sum()) / total
    stretched = NEIGHBOUR_STRETCH * (measured - of_independent)
    return float(np.clip(stretched + 0.5 / math.sqrt(count), 0.0, MOST_CORRELATION))


def _variance_share_of_mean(count: int, correlation: float) -> float:
    """Return the variance of a mean of so many checkpoints over that of one, where neighbours err alike."""
    lags = np.arange(1, count)
    shared = float(((1 - lags / count) * correlation**lags).sum())
    return (1 + 2 * shared) / count


# --- the order of runs ------------------------------------------------------------------------------------------------


def _find_orders(
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint], task_groups: Mapping[str, str]
) -> list[OrderOfRuns]:
    try:
        training = follow_training(
            {scores.protocol: scores.oriented},
            checkpoints,
            scores.protocol,
            outcomes={scores.protocol: scores.outcomes},
            task_groups=task_groups,
        )
    except InputError:  # no run has three checkpoints
        return []
    if len(training.runs) < 2:
        return []
    step = training.find_settled_step(scores.protocol)
    separate_pairs = training.count_separate_pairs(scores.protocol)
    return [OrderOfRuns(scores.protocol, scores.label, step, separate_pairs)]


# --- leaving the level of a guess -------------------------------------------------------------------------------------


def _compare_steps_of_leaving(
    metric_scores: Sequence[_MetricScores],
    checkpoints: Mapping[str, Checkpoint],
    evidence: Evidence,
) -> list[LeavingGuess]:
    by_label = {(scores.protocol, scores.label): scores for scores in metric_scores}
    leaving = []
    for scores in metric_scores:
        bits_scores = by_label.get((scores.protocol, BITS_LABEL))
        if scores.label != MAIN_LABEL or bits_scores is None:
            continue
        for run_name, steps in _find_runs(scores.matrix, checkpoints).items():
            for column, task in enumerate(scores.matrix.tasks):
                metric = scores.matrix.metrics[column]
                chance = find_chance_score(task, metric, evidence.background.chance)
                if chance is None or task not in bits_scores.matrix.tasks:
                    continue
                leaving.append(
                    LeavingGuess(
                        protocol=scores.protocol,
                        run=run_name,
                        task=task,
                        step_by_main=_find_step_above(scores.matrix, task, steps, chance),
                        step_by_bits=_find_step_of_progress(bits_scores, task, steps),
                    )
                )
    return leaving


def _find_step_above(
    matrix: ScoreMatrix, task: str, steps: Mapping[str, float], level: float
) -> float | None:
    """Return the step from which on every checkpoint is significantly above a level."""
    run_matrix = matrix.select(models=list(steps), tasks=[task])
    is_above = run_matrix.values[:, 0] - ONE_SIDED_Z * run_matrix.stderr[:, 0] > level
    return _find_lasting_step(is_above.tolist(), list(steps.values()))


def _find_step_of_progress(
    scores: _MetricScores, task: str, steps: Mapping[str, float]
) -> float | None:
    """Return the step from which on every checkpoint has significantly fewer bits than the first, by example."""
    outcomes = scores.outcomes.get(task, {})
    models = list(steps)
    if any(model not in outcomes for model in models):
        return None
    first = outcomes[models[0]]
    cluster_by_example = find_clusters(scores.outcomes, task)
    is_better = [False]
    for model in models[1:]:
        later = outcomes[model]
        examples = [example for example in first if example in later]
        # bits saved since the first checkpoint: above 0 is better
        gains = np.array([first[example] - later[example] for example in examples])
        error = clustered_error(gains, Clusters.of_examples(examples, cluster_by_example))
        is_better.append(bool(len(gains) > 1 and gains.mean() > ONE_SIDED_Z * error))
    return _find_lasting_step(is_better, list(steps.values()))


def _find_lasting_step(holds: Sequence[bool], steps: Sequence[float]) -> float | None:
    """Return the first step from which on something holds to the end."""
    lasting = None
    for step, is_so in zip(reversed(steps), reversed(holds), strict=True):
        if not is_so:
            break
        lasting = step
    return lasting


# --- small models for large ones --------------------------------------------------------------------------------------


def _measure_decisions(
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint], evidence: Evidence
) -> list[SizeDecision]:
    """Compare the order of families among small models with that among the largest."""
    finals = _find_finals(scores.matrix, checkpoints)
    sizes = evidence.background.billions
    families = evidence.background.families
    model_by_place: dict[float, dict[str, str]] = {}  # size → family → model
    for model in finals:
        if model in evidence.exposed_copies or model not in sizes or model not in families:
            continue
        if evidence.background.kinds.get(model) == "instruct":
            continue
        known_size = _find_size(sizes[model], model_by_place)
        model_by_place.setdefault(known_size, {}).setdefault(families[model], model)
    ordered_sizes = sorted(model_by_place)
    if len(ordered_sizes) < 2:
        return []
    large = model_by_place[ordered_sizes[-1]]
    decisions = []
    oriented = scores.oriented
    groups = TaskGroups.find(oriented.tasks, evidence.background.task_groups)
    for known_size in ordered_sizes[:-1]:
        small = model_by_place[known_size]
        shared = [family for family in small if family in large]
        if len(shared) < MIN_FAMILIES:
            continue
        small_scores = oriented.select(models=[small[family] for family in shared]).values
        large_scores = oriented.select(models=[large[family] for family in shared]).values
        by_task = [
            measure_decision_accuracy(small_scores[:, column], large_scores[:, column])
            for column in range(len(oriented.tasks))
        ]
        decisions.append(
            SizeDecision(
                protocol=scores.protocol,
                metric=scores.label,
                small=known_size,
                large=ordered_sizes[-1],
                families=len(shared),
                accuracy=_mean_over_groups(by_task, groups),
            )
        )
    return decisions


def _mean_over_groups(values: Sequence[float], groups: TaskGroups) -> float:
    """Return the mean over groups of tasks of the known values of each; NaN where none is known."""
    values_by_group: dict[str, list[float]] = {}
    for group, value in zip(groups.group_of_task, values, strict=True):
        if math.isfinite(value):
            values_by_group.setdefault(group, []).append(value)
    if not values_by_group:
        return math.nan
    return float(np.mean([np.mean(known_values) for known_values in values_by_group.values()]))


def _find_size(billions: float, known_sizes: Mapping[float, Mapping[str, str]]) -> float:
    """Return the size that a model's counts as: one that is there already, or its own."""
    for size in known_sizes:
        if abs(size - billions) <= SAME_SIZE * size:
            return size
    return billions


def _collect_bits(
    metric_scores: Sequence[_MetricScores], checkpoints: Mapping[str, Checkpoint]
) -> dict[str, tuple[Floats, dict[Protocol, Floats]]]:
    """Return steps and mean bits per byte of every run, by protocol."""
    collected: dict[str, tuple[Floats, dict[Protocol, Floats]]] = {}
    for scores in metric_scores:
        if scores.label != BITS_LABEL:
            continue
        for run_name, steps in _find_runs(scores.matrix, checkpoints).items():
            values = scores.matrix.select(models=list(steps)).values
            is_complete = np.isfinite(values).all(axis=0)
            if not is_complete.any():
                continue
            run_steps = np.array(list(steps.values()))
            collected.setdefault(run_name, (run_steps, {}))
            if len(run_steps) == len(collected[run_name][0]):
                collected[run_name][1][scores.protocol] = values[:, is_complete].mean(axis=1)
    return collected


def _format_step(step: float | None) -> str | None:
    """Write a step; None where there is none."""
    return None if step is None else f"{step:,.0f}"

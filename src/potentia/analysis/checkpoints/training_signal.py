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

from potentia.analysis.checkpoints.lineage import Checkpoint, find_checkpoints, group_by_series
from potentia.analysis.checkpoints.training_runs import follow_training
from potentia.analysis.stats.cluster_errors import clustered_error
from potentia.analysis.stats.signal import (
    LAST_CHECKPOINTS,
    LEAST_CHECKPOINTS,
    measure_decision_accuracy,
    measure_signal_to_noise,
)
from potentia.errors import InputError
from potentia.evidence import read_by_metric
from potentia.facts import known_chance
from potentia.values.answer_bits import ANSWER_BITS
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, find_clusters

if TYPE_CHECKING:
    from potentia.evidence import Evidence

ONE_SIDED_Z = 1.645  # of a one-sided test at 5 %
LEAST_FOR_TREND = 4  # checkpoints through which a line has an error
MIN_FAMILIES = 3  # whose order small models can foresee
SAME_SIZE = 0.1  # models whose sizes differ by less than this share are of one size
MAIN_LABEL = "accuracy"
BITS_LABEL = "bits per byte"


@dataclass(frozen=True)
class TaskSignal:
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


@dataclass(frozen=True)
class OrderOfRuns:
    """From which step on the order of the runs is their final one; None where only at the end."""

    protocol: Protocol
    metric: str
    step: float | None


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

    unit: str
    signals: tuple[TaskSignal, ...]
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
        rows = []
        for row in self.signals:
            rows.append(
                (row.protocol.label, row.metric, row.task, row.signal, row.noise, row.ratio)
            )
        columns = ("protocol", "metric", "task", "signal", "noise", "signal/noise")
        note = (
            "signal: the largest difference of two models; noise: the standard deviation of the last checkpoints of a "
            "run; both over the mean score. Growth within the last checkpoints counts as noise."
        )
        return Table("Signal and noise over checkpoints", columns, rows, note)

    def _average_table(self) -> Table:
        rows = []
        for row in self.averages:
            names = (row.protocol.label, row.metric, row.run, row.checkpoints)
            errors = (row.best_count, row.error_of_last, row.error_of_average)
            rows.append((*names, row.slope, row.noise, *errors))
        columns = (
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
        return Table("How many of the last checkpoints to average", columns, rows, note, digits=4)

    def _order_table(self) -> Table:
        rows = []
        for row in self.orders:
            step = "the end alone" if row.step is None else f"{row.step:,.0f}"
            rows.append((row.protocol.label, row.metric, step))
        return Table(
            "The order of the runs is final", ("protocol", "metric", f"from {self.unit}"), rows
        )

    def _leaving_table(self) -> Table:
        rows = []
        for row in self.leaving:
            steps = [
                None if step is None else f"{step:,.0f}"
                for step in (row.step_by_main, row.step_by_bits)
            ]
            verdict = "accuracy was coarse" if row.was_coarse else None
            rows.append((row.protocol.label, row.run, row.task, *steps, verdict))
        columns = (
            "protocol",
            "run",
            "task",
            f"accuracy above a guess ({self.unit})",
            f"bits per byte improve ({self.unit})",
            "",
        )
        note = "– : never within this run. Significant at 5 %, one-sided, there and at all later checkpoints."
        return Table("When a run leaves guessing", columns, rows, note)

    def _decision_table(self) -> Table:
        rows = []
        for row in self.decisions:
            sizes = (_format_size(row.small), _format_size(row.large))
            rows.append((row.protocol.label, row.metric, *sizes, row.families, row.accuracy))
        columns = ("protocol", "metric", "small", "large", "families", "decision accuracy")
        note = "Share of pairs of families whose small models are in the order of their large ones, mean over tasks."
        return Table("Decisions by small models", columns, rows, note)

    def charts(self) -> Sequence[Chart]:
        """Return the bits per byte of right answers against steps, a curve for each run and protocol."""
        lines = []
        points = []
        for hue, (run, (steps, bits_by_protocol)) in enumerate(self.bits_by_run.items()):
            for number, (protocol, bits) in enumerate(bits_by_protocol.items()):
                name = f"{run}, {protocol.label}"
                is_last = number == len(bits_by_protocol) - 1
                lines.append(Line(name, steps, bits, dashed=not is_last))
                points.append(Points(name, steps, bits, hue=hue))
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
            if row.best_count > 1:
                gain = 1 - row.error_of_average / row.error_of_last
                sentences.append(
                    f"{row.run}: average the last {row.best_count} checkpoints ({row.metric}, "
                    f"{row.protocol.label}); the expected error is {gain:.0%} less."
                )
        return sentences

    def main_sentences(self) -> list[str]:
        """Say when the order of runs is final, what was coarse and what small models decide."""
        sentences = []
        for order in self.orders:
            when = "at the end alone"
            if order.step is not None:
                when = f"from {self.unit.removesuffix('s')} {order.step:,.0f} on"
            sentences.append(
                f"By {order.metric} ({order.protocol.label}) the order of the runs is final {when}."
            )
        coarse = [row for row in self.leaving if row.was_coarse]
        if coarse:
            sentences.append(
                f"In {len(coarse)} of {len(self.leaving)} cases bits per byte improve while accuracy is still at the "
                "level of a guess: the ability did not emerge late, the metric was coarse."
            )
        for decision in self.decisions:
            sentences.append(
                f"By {decision.metric} ({decision.protocol.label}), models of {_format_size(decision.small)} "
                f"parameters order {decision.accuracy:.0%} of the pairs of families as models of "
                f"{_format_size(decision.large)} do."
            )
        return sentences


def _format_size(billions: float) -> str:
    """Return a number of parameters as model names carry it: 237k, 135M, 1.1B."""
    for factor, unit in ((1.0, "B"), (1e-3, "M")):
        if billions >= factor:
            return f"{billions / factor:.3g}{unit}"
    return f"{billions / 1e-6:.3g}k"


@dataclass(frozen=True)
class _MetricScores:
    """The scores of one protocol by one metric, oriented so that more is better, with their examples."""

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
    unit: str | None = None,
) -> TrainingSignal:
    """Measure what checkpoints and small models can decide, by every protocol and both metrics."""
    if checkpoints is None:
        checkpoints = {}
        with suppress(InputError):  # small models beside large ones need none
            checkpoints = find_checkpoints(evidence, unit)
    metric_scores = _read_metric_scores(evidence)
    signals: list[TaskSignal] = []
    averages: list[CheckpointAverage] = []
    orders: list[OrderOfRuns] = []
    decisions: list[SizeDecision] = []
    for scores in metric_scores:
        signals += _measure_signals(scores, checkpoints)
        averages += _measure_averages(scores, checkpoints)
        orders += _find_orders(scores, checkpoints)
        decisions += _measure_decisions(scores, checkpoints, evidence)
    leaving = _find_leaving(metric_scores, checkpoints, evidence)
    if not (signals or averages or orders or decisions):
        raise InputError(
            f"no run of {LEAST_CHECKPOINTS} checkpoints and no family in two sizes in {evidence.source}",
            hint="give --steps with a CSV file of the columns model, series, step",
        )
    return TrainingSignal(
        unit=unit or "steps",
        signals=tuple(signals),
        averages=tuple(averages),
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
    for protocol, matrix in evidence.planned.items():
        tasks = matrix.benchmarks()
        outcomes = evidence.outcomes.get(protocol, {})
        collected.append(_MetricScores(protocol, MAIN_LABEL, tasks, outcomes))
        if by_bits is not None and protocol in by_bits.scores:
            bits = by_bits.scores[protocol]
            bits_outcomes = by_bits.outcomes.get(protocol, {})
            collected.append(_MetricScores(protocol, BITS_LABEL, bits, bits_outcomes))
    return collected


def _find_runs(
    matrix: ScoreMatrix, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, dict[str, float]]:
    """Return the runs that have enough checkpoints in a matrix: run → model → step."""
    scored = {model: checkpoints[model] for model in matrix.models if model in checkpoints}
    runs = group_by_series(scored)
    return {run: steps for run, steps in runs.items() if len(steps) >= LEAST_CHECKPOINTS}


def _find_finals(matrix: ScoreMatrix, checkpoints: Mapping[str, Checkpoint]) -> list[str]:
    """Return the models to choose from: those that are no checkpoints, and the last checkpoint of every run."""
    scored = {model: checkpoints[model] for model in matrix.models if model in checkpoints}
    last = {list(steps)[-1] for steps in group_by_series(scored).values()}
    return [model for model in matrix.models if model not in checkpoints or model in last]


def _measure_signals(
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint]
) -> list[TaskSignal]:
    runs = _find_runs(scores.matrix, checkpoints)
    finals = _find_finals(scores.matrix, checkpoints)
    if not runs or len(finals) < 2:
        return []
    signals = []
    for task in scores.matrix.tasks:
        column = scores.matrix.select(tasks=[task])
        last_scores = []
        for steps in runs.values():
            last = list(steps)[-LAST_CHECKPOINTS:]
            last_scores.append(column.select(models=last).values[:, 0])
        final_scores = column.select(models=finals).values[:, 0]
        if np.isfinite(final_scores).sum() < 2:
            continue
        measured = measure_signal_to_noise(final_scores, last_scores)
        signals.append(
            TaskSignal(
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
    scores: _MetricScores, checkpoints: Mapping[str, Checkpoint]
) -> list[CheckpointAverage]:
    averages = []
    for run, steps in _find_runs(scores.matrix, checkpoints).items():
        values = scores.matrix.select(models=list(steps)).values
        is_complete = np.isfinite(values).all(axis=0)
        if len(steps) < LEAST_FOR_TREND or not is_complete.any():
            continue
        means = values[:, is_complete].mean(axis=1)
        averages.append(choose_average(scores.protocol, scores.label, run, means))
    return averages


def choose_average(
    protocol: Protocol, metric: str, run: str, scores: Sequence[float] | Floats
) -> CheckpointAverage:
    """Choose how many of the last checkpoints to average, from the scores of a run in the order of its steps."""
    all_scores = np.asarray(scores, dtype=np.float64)
    used = max(LEAST_FOR_TREND, LAST_CHECKPOINTS, len(all_scores) // 2)
    last = all_scores[-used:]
    count = len(last)
    position = np.arange(count) - (count - 1) / 2
    spread = float((position**2).sum())
    slope = float((position * last).sum()) / spread
    residuals = last - last.mean() - slope * position
    variance = float((residuals**2).sum()) / (count - 2)
    # a slope of noise alone has this square on average
    growth = max(0.0, slope**2 - variance / spread)
    counts = np.arange(1, count + 1)
    squared_errors = growth * ((counts - 1) / 2) ** 2 + variance / counts
    best = int(np.argmin(squared_errors))
    return CheckpointAverage(
        protocol=protocol,
        metric=metric,
        run=run,
        checkpoints=count,
        slope=slope,
        noise=math.sqrt(variance),
        best_count=int(counts[best]),
        error_of_last=math.sqrt(float(squared_errors[0])),
        error_of_average=math.sqrt(float(squared_errors[best])),
    )


# --- the order of runs ------------------------------------------------------------------------------------------------


def _find_orders(scores: _MetricScores, checkpoints: Mapping[str, Checkpoint]) -> list[OrderOfRuns]:
    try:
        training = follow_training({scores.protocol: scores.oriented}, checkpoints, scores.protocol)
    except InputError:  # no run has three checkpoints
        return []
    if len(training.runs) < 2:
        return []
    step = training.find_settled_step(scores.protocol)
    return [OrderOfRuns(scores.protocol, scores.label, step)]


# --- leaving the level of a guess -------------------------------------------------------------------------------------


def _find_leaving(
    metric_scores: Sequence[_MetricScores],
    checkpoints: Mapping[str, Checkpoint],
    evidence: Evidence,
) -> list[LeavingGuess]:
    by_label = {(scores.protocol, scores.label): scores for scores in metric_scores}
    leaving = []
    for scores in metric_scores:
        bits = by_label.get((scores.protocol, BITS_LABEL))
        if scores.label != MAIN_LABEL or bits is None:
            continue
        for run, steps in _find_runs(scores.matrix, checkpoints).items():
            for column, task in enumerate(scores.matrix.tasks):
                metric = scores.matrix.metrics[column]
                chance = known_chance(task, metric, evidence.background.chance)
                if chance is None or task not in bits.matrix.tasks:
                    continue
                leaving.append(
                    LeavingGuess(
                        protocol=scores.protocol,
                        run=run,
                        task=task,
                        step_by_main=_find_step_above(scores.matrix, task, steps, chance),
                        step_by_bits=_find_step_of_progress(bits, task, steps),
                    )
                )
    return leaving


def _find_step_above(
    matrix: ScoreMatrix, task: str, steps: Mapping[str, float], level: float
) -> float | None:
    """Return the step from which on every checkpoint is significantly above a level."""
    part = matrix.select(models=list(steps), tasks=[task])
    is_above = part.values[:, 0] - ONE_SIDED_Z * part.stderr[:, 0] > level
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
    clusters = find_clusters(scores.outcomes, task)
    is_better = [False]
    for model in models[1:]:
        later = outcomes[model]
        examples = [example for example in first if example in later]
        gains = np.array([first[example] - later[example] for example in examples])
        error = clustered_error(gains, [clusters.get(example, "") for example in examples])
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
        size = _find_size(sizes[model], model_by_place)
        model_by_place.setdefault(size, {}).setdefault(families[model], model)
    ordered_sizes = sorted(model_by_place)
    if len(ordered_sizes) < 2:
        return []
    large = model_by_place[ordered_sizes[-1]]
    decisions = []
    oriented = scores.oriented
    for size in ordered_sizes[:-1]:
        small = model_by_place[size]
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
                small=size,
                large=ordered_sizes[-1],
                families=len(shared),
                accuracy=float(np.nanmean(by_task)),
            )
        )
    return decisions


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
        for run, steps in _find_runs(scores.matrix, checkpoints).items():
            values = scores.matrix.select(models=list(steps)).values
            is_complete = np.isfinite(values).all(axis=0)
            if not is_complete.any():
                continue
            run_steps = np.array(list(steps.values()))
            collected.setdefault(run, (run_steps, {}))
            if len(run_steps) == len(collected[run][0]):
                collected[run][1][scores.protocol] = values[:, is_complete].mean(axis=1)
    return collected

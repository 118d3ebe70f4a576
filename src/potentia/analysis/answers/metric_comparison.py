"""Accuracy beside the bits per byte of the right answer: which of the two tells more about the same results.

Three questions, for every task and protocol. Do both put the models in the same order (Kendall's τ)? Which of them
finds more differences: the share of model pairs whose scores differ significantly, by a paired test on the same
examples? And, where a study has checkpoints, which has the higher ratio of signal (spread of the models) to noise
(spread of a run's last checkpoints), as in Signal and Noise (arXiv 2508.13144)? Models whose accuracy is at the level
of a guess are counted: a smooth metric is for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.checkpoints import Checkpoint, find_checkpoints, group_by_series
from potentia.analysis.stats import measure_signal_to_noise
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.signal import LAST_CHECKPOINTS, LEAST_CHECKPOINTS
from potentia.analysis.stats.significance import align_outcomes, item_p_values
from potentia.errors import InputError
from potentia.evidence import read_by_metric
from potentia.facts import find_chance_score
from potentia.values.answer_bits import ANSWER_BITS
from potentia.values.clusters import LEAST_CLUSTERS
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

SIGNIFICANT = 0.05
MIN_MODELS = 3  # that have an order
FEW_POINTS = 0.02  # difference of two shares of pairs that is not spoken of


@dataclass(frozen=True)
class TaskMetrics:
    """One task by both metrics; NaN where the evidence does not tell."""

    protocol: Protocol
    task: str
    main_metric: str
    models: int
    tau: float  # of the two orders of models
    at_guess: int  # models whose score is within two standard errors of a guess
    separated_by_main: float  # share of model pairs that differ significantly
    separated_by_bits: float
    signal_of_main: float  # signal-to-noise ratio
    signal_of_bits: float


@dataclass(frozen=True)
class MetricComparison(Finding):
    """Every task by its main metric and by the bits per byte of its right answers."""

    tasks: tuple[TaskMetrics, ...]
    checkpoints: int  # whose spread is the noise of the signal-to-noise ratio

    def tables(self) -> Sequence[Table]:
        """Return one row per protocol and task."""
        column_names = (
            "protocol",
            "task",
            "models",
            "τ between the two rankings",
            "models that only guess",
            "pairs that differ (accuracy)",
            "pairs that differ (bits per byte)",
            "signal/noise (accuracy)",
            "signal/noise (bits per byte)",
        )
        table_rows = []
        for row in self.tasks:
            shares = (row.separated_by_main, row.separated_by_bits)
            signals = (row.signal_of_main, row.signal_of_bits)
            names = (row.protocol.label, row.task, row.models, row.tau, row.at_guess)
            table_rows.append((*names, *shares, *signals))
        note = (
            "Bits per byte: −log₂ of the probability of the right answer, per byte of its text; fewer are better. "
            f"Pairs differ at the {SIGNIFICANT:.0%} level, by a paired test on the same examples."
        )
        if self.checkpoints:
            note += (
                " Signal/noise: spread of the models over that of the last checkpoints of a run"
                f" ({self.checkpoints} checkpoints)."
            )
        return [
            Table("Accuracy and bits per byte of the right answer", column_names, table_rows, note)
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the share of pairs that each metric separates, for every protocol."""
        charts = []
        for protocol in dict.fromkeys(row.protocol for row in self.tasks):
            rows = [row for row in self.tasks if row.protocol == protocol]
            title = f"Model pairs that differ significantly ({protocol.label})"
            chart = Bars(
                f"answer-bits-{protocol}",
                title,
                "The same results by accuracy and by the bits per byte of the right answer.",
                [row.task for row in rows],
                {
                    "accuracy": [row.separated_by_main for row in rows],
                    "bits per byte": [row.separated_by_bits for row in rows],
                },
                y_label="share of pairs",
                y_range=(0.0, 1.0),
                group="answer-bits",
            )
            charts.append(chart)
        return charts

    def sentences(self) -> list[str]:
        """Say what each metric separates, where one has the higher signal-to-noise ratio, and where the orders part."""
        sentences = []
        for protocol in dict.fromkeys(row.protocol for row in self.tasks):
            rows = [row for row in self.tasks if row.protocol == protocol]
            sentences += _describe_protocol(protocol, rows)
        return sentences


def _describe_protocol(protocol: Protocol, rows: Sequence[TaskMetrics]) -> list[str]:
    sentences = []
    by_main = _mean_of_known([row.separated_by_main for row in rows])
    by_bits = _mean_of_known([row.separated_by_bits for row in rows])
    if math.isfinite(by_main) and math.isfinite(by_bits):
        comparison = "Bits per byte separate more model pairs"
        if by_bits < by_main - FEW_POINTS:
            comparison = "Accuracy separates more model pairs"
        elif by_bits <= by_main + FEW_POINTS:
            comparison = "Both metrics separate about as many model pairs"
        sentences.append(
            f"{comparison} ({protocol.label}): {by_bits:.0%} by bits per byte, {by_main:.0%} by accuracy, "
            f"on average over {len(rows)} tasks."
        )
    compared = []
    for row in rows:
        if math.isfinite(row.signal_of_main) and math.isfinite(row.signal_of_bits):
            compared.append(row)
    if compared:
        lower = [row.task for row in compared if row.signal_of_bits <= row.signal_of_main]
        count = len(compared) - len(lower)
        sentence = (
            f"The signal-to-noise ratio of bits per byte is higher than accuracy's "
            f"on {count} of {len(compared)} tasks ({protocol.label})"
        )
        sentences.append(
            f"{sentence}; it is not on {', '.join(lower)}." if lower else f"{sentence}."
        )
    return sentences


def _mean_of_known(values: Sequence[float]) -> float:
    known_values = [value for value in values if math.isfinite(value)]
    return sum(known_values) / len(known_values) if known_values else math.nan


def find_metric_comparison(evidence: Evidence) -> MetricComparison:
    """Compare accuracy with the bits per byte of right answers, on the stores of the evidence."""
    by_bits = read_by_metric(evidence, ANSWER_BITS)
    checkpoints: Mapping[str, Checkpoint] = {}
    with suppress(InputError):  # a study without checkpoints
        checkpoints = find_checkpoints(evidence)
    tasks: list[TaskMetrics] = []
    noise_checkpoints = 0
    for protocol, bits_per_byte in by_bits.scores.items():
        if protocol.step is not None:
            continue
        main = evidence.scores[protocol].benchmarks()
        models = [model for model in bits_per_byte.models if model in main.models]
        runs = _find_last_checkpoints(models, checkpoints)
        noise_checkpoints = max(
            noise_checkpoints, sum(len(run_checkpoints) for run_checkpoints in runs)
        )
        for task in bits_per_byte.tasks:
            if task not in main.tasks:
                continue
            main_items = evidence.outcomes.get(protocol, {}).get(task, {})
            bits_items = by_bits.outcomes.get(protocol, {}).get(task, {})
            chance = find_chance_score(
                task, main.metrics[main.tasks.index(task)], evidence.background.chance
            )
            row = compare_metrics(
                main.select(models=models, tasks=[task]),
                bits_per_byte.select(models=models, tasks=[task]),
                main_items=main_items,
                bits_items=bits_items,
                chance=chance,
                last_checkpoints=runs,
                earlier_checkpoints=_find_earlier_checkpoints(models, checkpoints),
            )
            if row is not None:
                tasks.append(row)
    if not tasks:
        raise InputError(
            f"no task of {evidence.source} has log-likelihoods of its answers",
            hint="they are stored for multiple choice, and for written answers since version 0.4",
        )
    return MetricComparison(tuple(tasks), noise_checkpoints)


def _find_last_checkpoints(
    models: Sequence[str], checkpoints: Mapping[str, Checkpoint]
) -> list[list[str]]:
    """Return the last checkpoints of every run that has enough of them."""
    scored = {model: checkpoints[model] for model in models if model in checkpoints}
    last_of_runs = []
    for steps in group_by_series(scored).values():
        last_checkpoints = list(steps)[-LAST_CHECKPOINTS:]
        if len(last_checkpoints) >= LEAST_CHECKPOINTS:
            last_of_runs.append(last_checkpoints)
    return last_of_runs


def _find_earlier_checkpoints(
    models: Sequence[str], checkpoints: Mapping[str, Checkpoint]
) -> set[str]:
    """Return the checkpoints that are not the last of their run: they are no models to choose from."""
    scored = {model: checkpoints[model] for model in models if model in checkpoints}
    earlier: set[str] = set()
    for steps in group_by_series(scored).values():
        earlier.update(list(steps)[:-1])
    return earlier


def compare_metrics(
    main: ScoreMatrix,
    bits_per_byte: ScoreMatrix,
    *,
    main_items: Mapping[str, Mapping[int, float]],
    bits_items: Mapping[str, Mapping[int, float]],
    chance: float | None = None,
    last_checkpoints: Sequence[Sequence[str]] = (),
    earlier_checkpoints: Sequence[str] | set[str] = (),
) -> TaskMetrics | None:
    """Compare two metrics of one task, each a matrix of one column; None where fewer than three models have both."""
    main_scores = main.oriented()[:, 0]
    bits_scores = bits_per_byte.oriented()[:, 0]
    has_both = np.isfinite(main_scores) & np.isfinite(bits_scores)
    if has_both.sum() < MIN_MODELS:
        return None
    models = [model for model, scored in zip(main.models, has_both, strict=True) if scored]
    row_of_model = {model: row for row, model in enumerate(main.models)}
    finals = [row_of_model[model] for model in models if model not in earlier_checkpoints]
    runs = []
    for checkpoints_of_run in last_checkpoints:
        runs.append([row_of_model[model] for model in checkpoints_of_run if model in models])
    at_guess = 0
    if chance is not None and main.higher_is_better[0]:
        limit = chance + 2 * main.stderr[has_both, 0]
        at_guess = int((main.values[has_both, 0] <= limit).sum())
    main_metric = main.metrics[0].name
    signal_of_main = _measure_signal(main.values[:, 0], finals, runs)
    signal_of_bits = _measure_signal(bits_per_byte.values[:, 0], finals, runs)
    return TaskMetrics(
        protocol=main.protocol,
        task=main.tasks[0],
        main_metric=main_metric,
        models=len(models),
        tau=float(kendall_by_row(main_scores[has_both], bits_scores[has_both])),
        at_guess=at_guess,
        separated_by_main=measure_separated_share(models, main_items),
        separated_by_bits=measure_separated_share(models, bits_items),
        signal_of_main=signal_of_main,
        signal_of_bits=signal_of_bits,
    )


def _measure_signal(values: Floats, finals: Sequence[int], runs: Sequence[Sequence[int]]) -> float:
    """Return the signal-to-noise ratio of one metric; NaN without a run of enough checkpoints."""
    if len(finals) < 2 or not runs:
        return math.nan
    return measure_signal_to_noise(values[finals], [values[run_rows] for run_rows in runs]).ratio


def measure_separated_share(
    models: Sequence[str], items: Mapping[str, Mapping[int, float]]
) -> float:
    """Return the share of model pairs whose mean differs significantly, paired by example; NaN without examples."""
    aligned = align_outcomes(models, items)
    values = aligned.values
    clusters = aligned.clusters
    if len(values) < 2 or clusters.count < LEAST_CLUSTERS:
        return math.nan
    return float((item_p_values(values, clusters) < SIGNIFICANT).mean())

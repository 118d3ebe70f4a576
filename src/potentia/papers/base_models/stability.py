"""Stability: whether a benchmark's score grows with pretraining, and how fine a step it can tell apart.

Stability is Kendall's tau between the scores of a model's checkpoints and their pretraining steps or tokens (BOSE,
section 4.1.3). A benchmark *resolves* a gap when most pairs of checkpoints at least that far apart differ
significantly and in the right direction; the smallest such gap says how often checkpoints are worth comparing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from potentia.analysis.checkpoints import Checkpoint, StepUnit, find_checkpoints, group_by_series
from potentia.analysis.left_out import describe_left_out, drop_names_in, format_notes
from potentia.analysis.stats.bootstrap import add_score_noise, kendall_by_row, noise_interval
from potentia.analysis.stats.correlation import nan_mean
from potentia.errors import InputError
from potentia.papers.base_models.methods import (
    RESAMPLES,
    Improvement,
    MethodScores,
    improvement_tables,
    tau_charts,
)
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MIN_CHECKPOINTS = 3  # that tau needs
ONE_SIDED_Z = 1.645  # of a one-sided test at 5 %


@dataclass(frozen=True, eq=False)
class StabilityCurve:
    """One benchmark by one method over one series of checkpoints, and how stably it grows."""

    series: str
    task: str
    method: str
    models: tuple[str, ...]
    steps: Floats  # (checkpoints,) ascending
    scores: Floats
    stderr: Floats
    tau: Interval
    gap: float | None  # the smallest resolved; None where none is, or no standard error is known
    neighbours: (
        float | None
    )  # the share of neighbouring checkpoints that differ significantly, in the right order

    def to_line(self) -> Line:
        """Return scores against steps, with 95 % intervals where they are known."""
        if not np.isfinite(self.stderr).all():
            return Line(self.method, self.steps, self.scores)
        low = self.scores - 1.96 * self.stderr
        high = self.scores + 1.96 * self.stderr
        return Line(self.method, self.steps, self.scores, low=low, high=high)

    def to_points(self) -> Points:
        """Return the checkpoints as labelled points."""
        return Points(self.method, self.steps, self.scores, self.models)


@dataclass(frozen=True)
class Stability(Finding):
    """Stability of every benchmark and method over every series of checkpoints."""

    unit: StepUnit
    baseline: str | None
    methods: tuple[str, ...]
    curves: tuple[StabilityCurve, ...]
    improvements: tuple[Improvement, ...]
    power: float
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return tau per curve, the mean per method, and the improvements over the baseline (table 1's layout)."""
        return (
            self._curve_table(),
            self._method_table(),
            *improvement_tables("stability", self.improvements, "series"),
        )

    def _curve_table(self) -> Table:
        table_rows = []
        for curve in self.curves:
            names = (curve.series, curve.task, curve.method, len(curve.steps))
            table_rows.append((*names, curve.tau, _whole(curve.gap), curve.neighbours))
        name_columns = ("series", "task", "method", "checkpoints")
        column_names = (*name_columns, "τ", "low", "high", f"gap ({self.unit})", "neighbours")
        note = (
            f"gap: the smallest distance at which at least {self.power:.0%} of the pairs of checkpoints that far apart "
            "or farther are significantly in the right order (one-sided, 5 %); – where none is. neighbours: the share "
            f"of adjacent checkpoints in the right order by that test.{format_notes(self.left_out)}"
        )
        return Table(
            f"Stability: Kendall's τ between scores and {self.unit}",
            column_names,
            table_rows,
            note,
        )

    def _method_table(self) -> Table:
        table_rows = []
        for method in self.methods:
            curves = [curve for curve in self.curves if curve.method == method]
            mean_tau = float(nan_mean([curve.tau.value for curve in curves]))
            resolved = sum(curve.gap is not None for curve in curves)
            table_rows.append((method, len(curves), mean_tau, resolved))
        return Table(
            "Mean stability of each method",
            ("method", "curves", "mean τ", "with a gap"),
            table_rows,
            "with a gap: curves that have one. Compare methods on the same curves only.",
        )

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and scores against steps for each benchmark and series."""
        caption = f"Kendall's τ between scores and {self.unit}; 1 means that every later checkpoint scores higher."
        tau_by_series_and_method = {
            (f"{curve.task} ({curve.series})", curve.method): curve.tau.value
            for curve in self.curves
        }
        charts = tau_charts("stability", caption, tau_by_series_and_method, self.improvements)
        for series, task in dict.fromkeys((curve.series, curve.task) for curve in self.curves):
            charts.append(self._plot_curves(series, task))
        return charts

    def _plot_curves(self, series: str, task: str) -> Plot:
        curves = [curve for curve in self.curves if (curve.series, curve.task) == (series, task)]
        caption = (
            "Scores at each checkpoint, one curve per method, with 95 % intervals where known. "
            "A stable method rises throughout."
        )
        return Plot(
            f"stability-{series}-{task}",
            f"{task} over the pretraining of {series}",
            caption,
            points=tuple(curve.to_points() for curve in curves),
            lines=tuple(curve.to_line() for curve in curves),
            x_label=self.unit,
            y_label="score",
        )


def _whole(gap: float | None) -> float | int | None:
    """Return a gap as the whole number of steps or tokens that it is."""
    if gap is None or not gap.is_integer():
        return gap
    return int(gap)


def find_stability(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: StepUnit | None = None,
    baseline: str | None = None,
    power: float = 0.8,
) -> Stability:
    """Say how stably scores grow over the checkpoints of a run: those given, else those that studies or names tell.

    ``baseline`` and ``power`` are those of ``measure_stability``.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        checkpoints: Model → its place in a run, from ``read_checkpoints``; else what studies or names tell.
        unit: ``steps`` or ``tokens``, where both are known.
        baseline: The method that every other is compared with.
        power: The power with which a benchmark has to detect a gap between checkpoints.

    Example:
        >>> potentia.find_stability("potentia.db").to_frame()
    """
    if checkpoints is None:
        checkpoints = find_checkpoints(evidence, unit)
    return measure_stability(
        evidence.final_scores, checkpoints, unit=unit or "steps", baseline=baseline, power=power
    )


def measure_stability(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    *,
    unit: StepUnit = "steps",
    baseline: str | None = None,
    power: float = 0.8,
) -> Stability:
    """Measure each benchmark and method over each series of checkpoints.

    ``scores`` maps protocols to matrices, ``checkpoints`` models to their place in a series. Intervals come from a
    parametric bootstrap over the scores' standard errors; where these are unknown the interval is unknown too. With a
    ``baseline`` method the finding also says how much every other method improves on it, on the checkpoints that both
    scored. ``power`` is the share of pairs from which a gap counts as resolved.
    """
    method_scores = MethodScores.from_matrices(scores)
    methods = method_scores.methods_from_baseline(baseline)
    rng = np.random.default_rng(0)
    curves: list[StabilityCurve] = []
    for series, step_by_model in group_by_series(checkpoints).items():
        for column in method_scores.columns:
            curve = _measure_curve(series, step_by_model, method_scores, column, power, rng)
            if curve is not None:
                curves.append(curve)
    if not curves:
        raise InputError(
            "no series has three or more scored checkpoints",
            hint="name each checkpoint as the scores do, with its series and step; tau needs at least three",
        )
    curves.sort(key=lambda curve: (curve.series, curve.task, methods.index(curve.method)))
    improvements = _measure_improvements(curves, baseline, rng) if baseline else ()
    curve_methods = {curve.method for curve in curves}
    return Stability(
        unit=unit,
        baseline=baseline,
        methods=tuple(sorted(curve_methods, key=methods.index)),
        curves=tuple(curves),
        improvements=improvements,
        power=power,
        left_out=_explain_left_out(curves, checkpoints, method_scores),
    )


def _explain_left_out(
    curves: Sequence[StabilityCurve],
    checkpoints: Mapping[str, Checkpoint],
    method_scores: MethodScores,
) -> tuple[str, ...]:
    followed: set[str] = set()
    for curve in curves:
        followed.update(curve.models)
    unscored = drop_names_in(checkpoints, method_scores.models)
    reasons = {
        "no score": unscored,
        "of a series of fewer than three scored checkpoints": drop_names_in(
            checkpoints, {*followed, *unscored}
        ),
        "no checkpoint of a series": drop_names_in(method_scores.models, checkpoints),
    }
    return describe_left_out(reasons)


def measure_resolvable_gap(
    steps: Floats, scores: Floats, stderr: Floats, *, power: float = 0.8
) -> tuple[float | None, float | None]:
    """Return the smallest gap resolved, and the share of neighbouring checkpoints that differ.

    A pair differs when the later checkpoint's score is higher by more than 1.645 standard errors of the
    difference. A gap g is resolved when at least ``power`` of the pairs with a distance of g or more are. Checkpoints
    share their items, which makes the true error of a difference smaller than this one: the gap errs on the large side.
    """
    if not np.isfinite(stderr).all() or len(steps) < 2:
        return None, None
    early, late = np.triu_indices(len(steps), k=1)
    distance = steps[late] - steps[early]
    difference_stderr = np.hypot(stderr[late], stderr[early])
    is_significant = scores[late] - scores[early] > ONE_SIDED_Z * difference_stderr
    is_adjacent = (late - early == 1) & (distance > 0)
    neighbours = float(is_significant[is_adjacent].mean()) if is_adjacent.any() else None
    for step_gap in np.unique(distance[distance > 0]).tolist():
        if is_significant[distance >= step_gap].mean() >= power:
            return step_gap, neighbours
    return None, neighbours


def _measure_curve(
    series: str,
    step_by_model: Mapping[str, float],
    method_scores: MethodScores,
    column: tuple[str, str],
    power: float,
    rng: Generator,
) -> StabilityCurve | None:
    """Return a benchmark's curve by a method over a series; None where fewer than three checkpoints have scores."""
    scores, stderr = method_scores.scores_of_models(column, step_by_model)
    is_scored = np.isfinite(scores)
    if is_scored.sum() < MIN_CHECKPOINTS:
        return None
    steps = np.array(list(step_by_model.values()))[is_scored]
    scores = scores[is_scored]
    stderr = stderr[is_scored]
    tau_draws = _draw_taus(steps, scores, stderr, rng)
    step_gap, neighbours = measure_resolvable_gap(steps, scores, stderr, power=power)
    task, method = column
    return StabilityCurve(
        series=series,
        task=task,
        method=method,
        models=tuple(compress(step_by_model, is_scored)),
        steps=steps,
        scores=scores,
        stderr=stderr,
        tau=noise_interval(float(kendall_by_row(steps, scores)), tau_draws, bounds=(-1.0, 1.0)),
        gap=step_gap,
        neighbours=neighbours,
    )


def _draw_taus(steps: Floats, scores: Floats, stderr: Floats, rng: Generator) -> Floats:
    """Return tau of scores drawn again; none where a standard error is unknown."""
    if not np.isfinite(stderr).all():
        return np.array([])
    return kendall_by_row(steps, add_score_noise(scores, stderr, RESAMPLES, rng))


def _measure_improvements(
    curves: Sequence[StabilityCurve], baseline: str, rng: Generator
) -> tuple[Improvement, ...]:
    """Compare every curve with the baseline's, on the checkpoints that both have."""
    baseline_curves = {
        (curve.series, curve.task): curve for curve in curves if curve.method == baseline
    }
    improvements: list[Improvement] = []
    for curve in curves:
        baseline_curve = baseline_curves.get((curve.series, curve.task))
        if baseline_curve is None or baseline_curve is curve:
            continue
        difference = _compare_taus(curve, baseline_curve, rng)
        if difference is not None:
            improvements.append(
                Improvement(
                    series=curve.series,
                    task=curve.task,
                    method=curve.method,
                    baseline=baseline,
                    difference=difference,
                )
            )
    return tuple(improvements)


def _compare_taus(
    curve: StabilityCurve, baseline_curve: StabilityCurve, rng: Generator
) -> Interval | None:
    """Return how much a curve's tau is above the baseline's; None where they share fewer than three checkpoints."""
    common, places, baseline_places = np.intersect1d(
        curve.models, baseline_curve.models, return_indices=True
    )
    if len(common) < MIN_CHECKPOINTS:
        return None
    order = np.argsort(curve.steps[places], kind="stable")
    places = places[order]
    baseline_places = baseline_places[order]
    steps = curve.steps[places]
    scores = curve.scores[places]
    stderr = curve.stderr[places]
    baseline_scores = baseline_curve.scores[baseline_places]
    baseline_stderr = baseline_curve.stderr[baseline_places]
    difference_draws = np.array([])
    if np.isfinite([stderr, baseline_stderr]).all():
        taus = _draw_taus(steps, scores, stderr, rng)
        baseline_taus = _draw_taus(steps, baseline_scores, baseline_stderr, rng)
        difference_draws = taus - baseline_taus
    difference = float(kendall_by_row(steps, scores) - kendall_by_row(steps, baseline_scores))
    return noise_interval(difference, difference_draws, bounds=(-2.0, 2.0))

"""Ranking agreement: whether the order of models on one task holds on the others.

Agreement of two tasks is Kendall's tau between their scores over the models (section 3.2). A task's agreement is its
mean with every other task, the matrix's agreement the mean over pairs, and a category's the mean over the pairs that
belong to it (figure 3). Each comes with an interval per source of uncertainty: other models or families, other tasks,
and the noise of finite test sets. Two protocols are compared on the same models and tasks, with the same resamples for
both. With the method ``tau_b``, insignificant differences count as ties (appendix C.2, figures 12 to 15).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from potentia.analysis.left_out import NO_ENTRIES, keep_names_in
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import (
    DEFAULT_SAMPLING,
    MODELS,
    Sampling,
    draw_row_counts,
    mean_over_pairs,
    percentile_interval,
    percentile_intervals,
    redraw_scores,
)
from potentia.analysis.stats.correlation import (
    CORRELATIONS,
    FIRST_ORDER,
    Correlate,
    mean_offdiagonal,
    nan_mean,
)
from potentia.analysis.stats.first_place import ENOUGH_MODELS, student_widening
from potentia.analysis.stats.reliability import (
    correlate_without_noise,
    measure_reliability,
    tau_of_correlation,
)
from potentia.analysis.stats.score_errors import believe_errors
from potentia.analysis.stats.significance import tau_b_matrix
from potentia.analysis.wording import format_level
from potentia.errors import InputError
from potentia.facts import CATEGORIES
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Heatmap,
    Interval,
    Table,
    format_mean,
    select_positions,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEAST_GROUPS = 2  # of tasks, that can be drawn; subsets of one benchmark alone are drawn themselves
NOISE_BLOCK = 1 << 22  # scores drawn at once
# Draws of noise for more models than FIRST_ORDER: their mean agreement hardly moves.
MANY_MODELS_NOISE = 200
SIGNIFICANT = "tau_b"
RANGE_OF_TAU = (-1.0, 1.0)
RANGE_OF_DIFFERENCE = (-2.0, 2.0)  # of two taus
UNKNOWN_DIFFERENCE = Interval(math.nan, math.nan, math.nan)
METHOD_NAMES = {
    "kendall": "Kendall's τ",
    "spearman": "Spearman's ρ",
    "pearson": "Pearson's r",
    SIGNIFICANT: "Kendall's τ-b on significant differences",
}


def _describe_ties(method: str) -> str:
    """Say in a title that insignificant differences count as ties, where they do."""
    return ", insignificant differences as ties" if method == SIGNIFICANT else ""


@dataclass(frozen=True)
class Agreement(Finding):
    """How far the tasks of one protocol rank the models alike."""

    protocol: Protocol
    method: str
    models: int
    tasks: tuple[str, ...]
    matrix: Floats  # (tasks, tasks)
    mean: float
    intervals: dict[str, Interval]  # of the mean, by source: families, models, tasks, noise
    per_task: tuple[Interval, ...]  # over ``resampled_unit``
    categories: tuple[str, ...] = ()
    by_category: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    resampled_unit: str = (
        "models"  # what intervals of tasks and categories draw: models, families or lineages
    )
    drawing: str = ""  # says what intervals draw, and which families were inferred

    @property
    def interval(self) -> Interval:
        """The mean with its interval over families where they are known, else over models."""
        return self.intervals[self.resampled_unit]

    def tables(self) -> Sequence[Table]:
        """Return the mean with its intervals, the mean per task, and the category matrix."""
        matrix_size = f"{self.models} models × {len(self.tasks)} tasks"
        scope = f"{METHOD_NAMES[self.method]}, {self.protocol.label}, {matrix_size}"
        by_source = [(f"over {source}", mean) for source, mean in self.intervals.items()]
        order = np.argsort([mean.value for mean in self.per_task], kind="stable")
        by_task = list(zip(self.tasks, self.per_task, strict=True))
        mean_table = Table(
            f"Mean agreement over pairs of tasks ({scope})",
            ("interval", "mean", "low", "high"),
            by_source,
        )
        task_table = Table(
            f"Mean agreement of each task with the others ({scope})",
            ("task", "mean", "low", "high"),
            select_positions(by_task, order),
            self.drawing,
        )
        tables = [mean_table, task_table]
        if self.categories:
            tables.append(
                Table(
                    f"Agreement by category ({scope})",
                    ("category", *self.categories),
                    zip(self.categories, *self.by_category.T, strict=True),
                    "The diagonal is agreement within a category, over distinct tasks.",
                )
            )
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return the task × task heat map (figures 9, 10, 14, 15) and the categories' (figures 3, 13)."""
        lowest = np.nanmin(self.matrix, initial=0.0)
        charts = [
            Heatmap(
                self._chart_name("agreement"),
                self._chart_title("Ranking agreement between tasks"),
                f"{METHOD_NAMES[self.method]} of every two tasks, {self.models} models; "
                f"{format_mean(self.mean)}.",
                self.tasks,
                self.tasks,
                self.matrix,
                low=-1.0 if lowest < -0.2 else 0.0,
                high=1.0,
                unit=METHOD_NAMES[self.method],
                group=f"agreement-{self.method}",
            )
        ]
        if self.categories:
            caption = (
                "Mean over the pairs of tasks of two categories; within a category on the diagonal."
            )
            charts.append(
                Heatmap(
                    self._chart_name("categories"),
                    self._chart_title("Agreement by category"),
                    caption + _explain_categories(self.categories),
                    self.categories,
                    self.categories,
                    self.by_category,
                    low=0.0,
                    high=1.0,
                    unit=METHOD_NAMES[self.method],
                    group=f"categories-{self.method}",
                )
            )
        return charts

    def _chart_name(self, chart_kind: str) -> str:
        return f"{chart_kind}-{self.protocol}-{self.method}"

    def _chart_title(self, subject: str) -> str:
        return f"{subject}{_describe_ties(self.method)}: {self.protocol.label}"


def _explain_categories(categories: Sequence[str]) -> str:
    """Say what the short names of categories mean."""
    explained = []
    for category in categories:
        meaning = CATEGORIES.get(category, category)
        if meaning.lower() != category.lower():
            explained.append(f"{category}: {meaning}")
    return f" {'; '.join(explained)}." if explained else ""


@dataclass(frozen=True)
class AgreementChange(Finding):
    """What one protocol changes against another, on the same models and tasks."""

    before: Protocol
    after: Protocol
    method: str
    models: int
    tasks: tuple[str, ...]
    mean_before: float
    mean_after: float
    difference: dict[str, Interval]  # by source: families, models, tasks, noise
    pairs_improved: int
    pairs: int
    per_task_before: tuple[float, ...]
    per_task_after: tuple[float, ...]
    per_task_difference: tuple[Interval, ...]  # over ``resampled_unit``
    resampled_unit: str = "models"
    # Mean τ as it would be without test noise, and the difference of the correlations behind it; NaN where noise is
    # nearly all, or not known.
    corrected_before: float = math.nan
    corrected_after: float = math.nan
    corrected_difference: Interval = UNKNOWN_DIFFERENCE

    @property
    def interval(self) -> Interval:
        """The change of the mean with its interval over families where they are known, else over models."""
        return self.difference[self.resampled_unit]

    @property
    def direction(self) -> int:
        """1 where the tasks may be said to agree more, -1 for less, 0 where neither may.

        Every interval has to leave zero out: over relatives alone, few models claim too often. The agreement without
        test noise has to change too: models that tuning moves apart agree more in noisy scores although each task
        ranks them as before. Of fewer than five models neither may be said.
        """
        if self.models < ENOUGH_MODELS:
            return 0
        intervals = (*self.difference.values(), self.corrected_difference)
        agrees_more = all(interval.low > 0 for interval in intervals)
        agrees_less = all(interval.high < 0 for interval in intervals)
        return int(agrees_more) - int(agrees_less)

    def tables(self) -> Sequence[Table]:
        """Return the change of the mean, and of each task."""
        before = self.before.label
        after = self.after.label
        matrix_size = f"{self.models} models × {len(self.tasks)} tasks"
        by_source = []
        for source, difference in self.difference.items():
            by_source.append((f"over {source}", self.mean_before, self.mean_after, difference))
        by_task = list(
            zip(
                self.tasks,
                self.per_task_before,
                self.per_task_after,
                self.per_task_difference,
                strict=True,
            )
        )
        order = np.argsort(self.per_task_before, kind="stable")
        columns = (before, after, "difference", "low", "high")
        mean_table = Table(
            f"Agreement, {before} → {after} ({METHOD_NAMES[self.method]}, {matrix_size})",
            ("interval", *columns),
            by_source,
            f"{self.pairs_improved} of {self.pairs} pairs of tasks agree more {self.after.phrase}."
            f"{self._describe_correction()}",
        )
        task_table = Table(
            f"Mean agreement of each task, {before} → {after}",
            ("task", *columns),
            select_positions(by_task, order),
            f"Intervals: bootstrap over {self.resampled_unit}.",
        )
        return [mean_table, task_table]

    def _describe_correction(self) -> str:
        """Say what the agreement would be without test noise; nothing where that is not known."""
        difference = self.corrected_difference
        if not math.isfinite(difference.value):
            return ""
        # Both estimates at the end of the scale, or one outside its own interval: the correction says nothing.
        is_cut = abs(self.corrected_before) == 1.0 and self.corrected_before == self.corrected_after
        if is_cut or not difference.low <= difference.value <= difference.high:
            return ""
        level = format_level(difference.level)
        return (
            f" Corrected for test noise: {self.corrected_before:.2f} and {self.corrected_after:.2f} "
            f"(difference of the correlations {difference.value:+.2f}, "
            f"{level} interval {difference.low:.2f} to {difference.high:.2f})."
        )

    def charts(self) -> Sequence[Chart]:
        """Return the bars of figure 2 (and 12): each task's mean agreement under both protocols."""
        order = np.argsort(self.per_task_before, kind="stable")
        mean_by_label = {
            self.before.label: self.mean_before,
            self.after.label: self.mean_after,
        }
        means = [f"{format_mean(mean)} ({label})" for label, mean in mean_by_label.items()]
        title = f"Mean ranking agreement of each task with all others{_describe_ties(self.method)}"
        caption = (
            f"{METHOD_NAMES[self.method]}; {', '.join(means)}; "
            f"{self.pairs_improved} of {self.pairs} pairs agree more."
        )
        chart = Bars(
            f"agreement-{self.before}-{self.after}-{self.method}",
            title,
            caption,
            select_positions(self.tasks, order),
            {
                self.before.label: select_positions(self.per_task_before, order),
                self.after.label: select_positions(self.per_task_after, order),
            },
            y_label=f"mean {METHOD_NAMES[self.method]}",
        )
        return [chart]


def measure_agreement(
    matrix: ScoreMatrix,
    *,
    method: str = "kendall",
    categories: Mapping[str, str] = NO_ENTRIES,
    task_groups: Mapping[str, str] = NO_ENTRIES,
    items: Mapping[str, npt.ArrayLike] | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> Agreement:
    """Measure the agreement between all tasks of a matrix, with intervals; ``categories`` maps task to category.

    ``items[task]`` (models, items), where stored, replaces the standard errors as the source of noise. The interval of
    the mean by model stands beside that by the units of ``sampling`` in any case; that over tasks draws the tasks of
    one benchmark together, as names, facts and ``task_groups`` tell them.
    """
    matrix = believe_errors(matrix)
    resamples = _resample_correlations([matrix], method, items, sampling, task_groups)[0]
    listed = [categories[task] for task in keep_names_in(categories, matrix.tasks)]
    category_names = tuple(dict.fromkeys(filter(None, listed)))
    per_task = percentile_intervals(
        mean_offdiagonal(resamples.matrix, axis=True),
        mean_offdiagonal(resamples.by_units, axis=True),
        level=sampling.level,
    )
    by_category = _average_by_category(resamples.matrix, matrix.tasks, categories, category_names)
    intervals = resamples.intervals(sampling.level)
    return Agreement(
        protocol=matrix.protocol,
        method=method,
        models=matrix.shape[0],
        tasks=matrix.tasks,
        matrix=resamples.matrix,
        mean=resamples.mean,
        intervals=intervals,
        per_task=per_task,
        categories=category_names,
        by_category=by_category,
        resampled_unit=resamples.resampled_unit,
        drawing=sampling.units.describe_drawing(matrix.models),
    )


def compare_agreement(
    before: ScoreMatrix,
    after: ScoreMatrix,
    *,
    method: str = "kendall",
    task_groups: Mapping[str, str] = NO_ENTRIES,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> AgreementChange:
    """Return the difference in agreement between two protocols over the models and tasks that both have.

    Where tasks are drawn, those of one benchmark come and go together: names, facts and ``task_groups`` tell them.
    """
    before, after = select_shared(before, after)
    first, second = _resample_correlations([before, after], method, None, sampling, task_groups)
    rows, columns = np.triu_indices(len(before.tasks), 1)
    pairs_before = first.matrix[rows, columns]
    pairs_after = second.matrix[rows, columns]
    has_both = np.isfinite(pairs_before) & np.isfinite(pairs_after)
    per_task_before = mean_offdiagonal(first.matrix, axis=True)
    per_task_after = mean_offdiagonal(second.matrix, axis=True)
    drawn_before = mean_offdiagonal(first.by_units, axis=True)
    drawn_after = mean_offdiagonal(second.by_units, axis=True)
    per_task_difference = percentile_intervals(
        per_task_after - per_task_before, drawn_after - drawn_before, level=sampling.level
    )
    agrees_more = (pairs_after > pairs_before)[has_both]
    corrected = _CorrectedChange(math.nan, math.nan, UNKNOWN_DIFFERENCE)
    if method == "kendall" and before.shape[0] >= ENOUGH_MODELS:
        corrected = _correct_for_noise(before, after, first, second, sampling)
    difference = second.difference_intervals(sampling.level, first)
    pairs_improved = int(agrees_more.sum())
    pairs = int(has_both.sum())
    return AgreementChange(
        before=before.protocol,
        after=after.protocol,
        method=method,
        models=before.shape[0],
        tasks=before.tasks,
        mean_before=first.mean,
        mean_after=second.mean,
        difference=difference,
        pairs_improved=pairs_improved,
        pairs=pairs,
        per_task_before=tuple(per_task_before.tolist()),
        per_task_after=tuple(per_task_after.tolist()),
        per_task_difference=per_task_difference,
        resampled_unit=first.resampled_unit,
        corrected_before=corrected.before,
        corrected_after=corrected.after,
        corrected_difference=corrected.difference,
    )


@dataclass(frozen=True)
class _CorrectedChange:
    """Mean agreement as it would be without test noise, under two protocols."""

    before: float
    after: float
    difference: Interval  # of the correlations behind them


def _correct_for_noise(
    before: ScoreMatrix,
    after: ScoreMatrix,
    first: _Resamples,
    second: _Resamples,
    sampling: Sampling,
) -> _CorrectedChange:
    """Compare the agreement of two protocols as it would be without test noise."""
    draws = sampling.draw_models(before.models)
    correlation_before, drawn_before = _correlate_means_without_noise(before, first, draws)
    correlation_after, drawn_after = _correlate_means_without_noise(after, second, draws)
    # A resample in which noise is nearly all may have any agreement: it speaks against a change.
    drawn_difference = np.nan_to_num(drawn_after - drawn_before, nan=0.0)
    difference = percentile_interval(
        correlation_after - correlation_before,
        drawn_difference,
        level=sampling.level,
        bounds=RANGE_OF_DIFFERENCE,
    )
    return _CorrectedChange(
        before=float(tau_of_correlation(correlation_before)),
        after=float(tau_of_correlation(correlation_after)),
        difference=difference,
    )


def _correlate_means_without_noise(
    matrix: ScoreMatrix, resamples: _Resamples, draws: Floats
) -> tuple[float, Floats]:
    """Return the correlation behind the mean τ without test noise, and that of each resample."""
    errors = fill_errors(matrix)
    reliability = measure_reliability(matrix.values, errors)
    correlation = float(correlate_without_noise(resamples.mean, reliability))
    drawn_reliability = measure_reliability(matrix.values, errors, draws)
    drawn_means = mean_over_pairs(resamples.by_units)
    return correlation, correlate_without_noise(drawn_means, drawn_reliability)


def fill_errors(matrix: ScoreMatrix) -> Floats:
    """Return the standard errors; a score without one gets the median of its task where half of the scores have one."""
    is_scored = np.isfinite(matrix.values)
    is_known = is_scored & np.isfinite(matrix.stderr)
    enough = is_known.sum(axis=0) * 2 >= is_scored.sum(axis=0)
    median = np.full(len(matrix.tasks), np.nan)
    for column in np.flatnonzero(enough & is_known.any(axis=0)):
        median[column] = float(np.median(matrix.stderr[is_known[:, column], column]))
    return np.where(is_known, matrix.stderr, median)


def select_shared(before: ScoreMatrix, after: ScoreMatrix) -> tuple[ScoreMatrix, ScoreMatrix]:
    """Return both matrices on the models and tasks they share, in the order of the first (``believe_errors``)."""
    models = keep_names_in(before.models, set(after.models))
    tasks = keep_names_in(before.tasks, set(after.tasks))
    if not models or not tasks:
        raise InputError(
            f"{before.protocol} and {after.protocol} have no model and task in common",
            hint="score the same models on the same tasks under both protocols",
        )
    shared_before = believe_errors(before.select(models=models, tasks=tasks))
    return shared_before, believe_errors(after.select(models=models, tasks=tasks))


# --- resamples -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Resamples:
    """One matrix of correlations, and its resamples by source."""

    matrix: Floats  # (T, T)
    by_models: Floats  # (R, T, T)
    by_units: Floats  # (R, T, T); the same where models are what is drawn
    resampled_unit: str
    by_noise: Floats | None  # (R, T, T); absent where no standard error is known
    task_draws: Floats  # (R, T)
    task_widening: float  # of what so few tasks vary by when they are drawn

    @property
    def mean(self) -> float:
        """The mean over the pairs of tasks."""
        return float(mean_over_pairs(self.matrix))

    def draws_of_mean(self) -> dict[str, Floats]:
        """Return the draws of the mean by source."""
        draws = {
            self.resampled_unit: mean_over_pairs(self.by_units),
            "models": mean_over_pairs(self.by_models),
            "tasks": self._widen_for_few_tasks(mean_over_pairs(self.matrix, self.task_draws)),
        }
        if self.by_noise is not None:
            draws["noise"] = mean_over_pairs(self.by_noise)
        return draws

    def _widen_for_few_tasks(self, draws: Floats) -> Floats:
        """Move the draws away from the mean: drawn with replacement, few tasks vary less than other tasks would."""
        return np.asarray(self.mean + self.task_widening * (draws - self.mean))

    def intervals(self, level: float) -> dict[str, Interval]:
        """Return the intervals of the mean by source."""
        return _intervals_by_source(self.mean, self.draws_of_mean(), level, RANGE_OF_TAU)

    def difference_intervals(self, level: float, baseline: _Resamples) -> dict[str, Interval]:
        """Return the intervals of the difference of the mean to that of other resamples, by source."""
        own_draws = self.draws_of_mean()
        other_draws = baseline.draws_of_mean()
        differences = {}
        for source, draws in own_draws.items():
            if source in other_draws:
                differences[source] = draws - other_draws[source]
        difference = self.mean - baseline.mean
        return _intervals_by_source(difference, differences, level, RANGE_OF_DIFFERENCE)


def _intervals_by_source(
    value: float,
    draws_by_source: Mapping[str, Floats],
    level: float,
    bounds: tuple[float, float],
) -> dict[str, Interval]:
    """Return the interval of a value for each source of draws; those of noise are centred on it."""
    intervals = {}
    for source, draws in draws_by_source.items():
        centred = source == "noise"
        intervals[source] = percentile_interval(
            value, draws, level=level, centred=centred, bounds=bounds
        )
    return intervals


def _resample_correlations(
    matrices: Sequence[ScoreMatrix],
    method: str,
    items: Mapping[str, npt.ArrayLike] | None,
    sampling: Sampling,
    task_groups: Mapping[str, str],
) -> list[_Resamples]:
    """Correlate and resample matrices of the same shape; models and tasks are drawn alike for all of them."""
    if method not in METHOD_NAMES:
        raise InputError(f"no correlation {method!r}", hint=f"one of: {', '.join(METHOD_NAMES)}")
    rng = np.random.default_rng(sampling.seed)
    names = matrices[0].models
    models = len(names)
    model_draws = draw_row_counts(models, sampling.resamples, rng)
    groups = TaskGroups.find(matrices[0].tasks, task_groups)
    task_draws = _draw_tasks(groups, sampling.resamples, rng)
    resampled_unit = sampling.units.drawn_unit(names)
    unit_draws = model_draws
    if resampled_unit != MODELS.name:
        unit_draws = sampling.draw_models(names)
    resamples = []
    for matrix in matrices:
        by_noise = None
        drawn_tasks = task_draws
        if method == SIGNIFICANT:
            level = sampling.level
            correlations = tau_b_matrix(matrix, level=level)
            by_models = tau_b_matrix(matrix, level=level, weights=model_draws)
            by_units = tau_b_matrix(matrix, level=level, weights=unit_draws)
        else:
            correlate = CORRELATIONS[method]
            values = matrix.oriented()
            correlations = correlate(values)
            if items or np.isfinite(matrix.stderr).any():
                by_noise = _redraw_correlations(
                    matrix, items, correlate, correlations, sampling.resamples, rng
                )
            by_models = correlate(values, weights=model_draws)
            by_units = correlate(values, weights=unit_draws)
        if models < ENOUGH_MODELS:  # drawing so few again says nothing of others
            by_models = np.full_like(by_models, np.nan)
            by_units = np.full_like(by_units, np.nan)
            drawn_tasks = np.full_like(task_draws, np.nan)
        resamples.append(
            _Resamples(
                matrix=correlations,
                by_models=by_models,
                by_units=by_units,
                resampled_unit=resampled_unit,
                by_noise=by_noise,
                task_draws=drawn_tasks,
                task_widening=_widen_for_few(len(groups.names)),
            )
        )
    return resamples


def _draw_tasks(groups: TaskGroups, resamples: int, rng: np.random.Generator) -> Floats:
    """Draw how often each task counts in each resample; tasks of one benchmark are no independent tasks."""
    if len(groups.names) < LEAST_GROUPS:
        return draw_row_counts(len(groups.tasks), resamples, rng)
    return draw_row_counts(len(groups.names), resamples, rng)[:, groups.positions]


def _widen_for_few(groups: int) -> float:
    """Return by how much Student's t of a mean over so many groups is wider than their bootstrap; 1 for one group."""
    if groups < LEAST_GROUPS:
        return 1.0
    return student_widening(groups - 1) * math.sqrt(groups / (groups - 1))


def _redraw_correlations(
    matrix: ScoreMatrix,
    items: Mapping[str, npt.ArrayLike] | None,
    correlate: Correlate,
    correlations: Floats,
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """Return correlations as other runs of the same tests could have given them, as far apart as they would be.

    Noise is each model's own, so what it does to a mean over models falls with their root: of many, some tell.
    """
    models = len(matrix.models)
    rows = np.arange(models)
    draws = resamples
    if models > FIRST_ORDER:
        rows = np.sort(rng.permutation(models)[:FIRST_ORDER])
        draws = min(resamples, MANY_MODELS_NOISE)
    drawn_matrix = matrix.select(models=rows)
    part_items = {task: np.asarray(table)[rows] for task, table in (items or {}).items()}
    blocks = max(1, draws * drawn_matrix.values.size // NOISE_BLOCK)
    redrawn = []
    for block in np.array_split(np.arange(draws), blocks):
        redrawn.append(correlate(redraw_scores(drawn_matrix, part_items, len(block), rng)))
    deviations = np.concatenate(redrawn) - correlate(drawn_matrix.oriented())
    return np.asarray(correlations + deviations * np.sqrt(len(rows) / models))


def _average_by_category(
    correlations: Floats,
    tasks: Sequence[str],
    categories: Mapping[str, str],
    category_names: Sequence[str],
) -> Floats:
    """Return the mean over pairs of distinct tasks for every two categories: (categories, categories)."""
    off_diagonal = np.where(np.eye(len(tasks), dtype=bool), np.nan, correlations)
    members = []
    for category in category_names:
        members.append([row for row, task in enumerate(tasks) if categories.get(task) == category])
    means = np.zeros((len(category_names), len(category_names)))
    for row, row_tasks in enumerate(members):
        for column, column_tasks in enumerate(members):
            block = off_diagonal[np.ix_(row_tasks, column_tasks)]
            means[row, column] = float(nan_mean(block.ravel()))
    return means

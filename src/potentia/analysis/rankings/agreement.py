"""Ranking agreement: whether the order of models on one task holds on the others.

Agreement of two tasks is Kendall's tau between their scores over the models (section 3.2). A task's agreement is its
mean with every other task, the matrix's agreement the mean over pairs, and a category's the mean over the pairs that
belong to it (figure 3). Each comes with an interval per source of uncertainty: other models or families, other tasks,
and the noise of finite test sets. Two protocols are compared on the same models and tasks, with the same resamples for
both. With the method ``tau_b``, insignificant differences count as ties (appendix C.2, figures 12 to 15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import numpy.typing as npt

from potentia.analysis.left_out import NO_ENTRIES, keep_names_in
from potentia.analysis.stats.bootstrap import (
    MODELS,
    How,
    Sampling,
    mean_over_pairs,
    percentile_interval,
    percentile_intervals,
    redraw_scores,
)
from potentia.analysis.stats.bootstrap import draw_row_counts as draw_rows
from potentia.analysis.stats.correlation import (
    CORRELATIONS,
    FIRST_ORDER,
    Correlate,
    mean_offdiagonal,
    nan_mean,
)
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.significance import tau_b_matrix
from potentia.errors import InputError
from potentia.facts import CATEGORIES
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Heatmap,
    Interval,
    Table,
    mean_in_words,
    picked,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

NOISE_BLOCK = 1 << 22  # scores drawn at once
MANY_MODELS_NOISE = (
    200  # draws of noise for more models than FIRST_ORDER: their mean agreement hardly moves
)
SIGNIFICANT = "tau_b"
METHOD_NAMES = {
    "kendall": "Kendall's τ",
    "spearman": "Spearman's ρ",
    "pearson": "Pearson's r",
    SIGNIFICANT: "Kendall's τ-b on significant differences",
}


def _ties(method: str) -> str:
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
    per_task: tuple[Interval, ...]  # over ``over``
    categories: tuple[str, ...] = ()
    by_category: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    over: str = (
        "models"  # what the intervals of tasks and categories draw: models, families or lineages
    )

    @property
    def interval(self) -> Interval:
        """The mean with its interval over families where they are known, else over models."""
        return self.intervals[self.over]

    def tables(self) -> Sequence[Table]:
        """Return the mean with its intervals, the mean per task, and the category matrix."""
        what = f"{METHOD_NAMES[self.method]}, {self.protocol.label}, {self.models} models × {len(self.tasks)} tasks"
        rows = [(f"over {source}", one) for source, one in self.intervals.items()]
        order = np.argsort([i.value for i in self.per_task], kind="stable")
        each = picked(list(zip(self.tasks, self.per_task, strict=True)), order)
        title, over = (
            f"Mean agreement of each task with the others ({what})",
            f"Intervals: bootstrap over {self.over}.",
        )
        tables = [
            Table(
                f"Mean agreement over pairs of tasks ({what})",
                ("interval", "mean", "low", "high"),
                rows,
            ),
            Table(title, ("task", "mean", "low", "high"), each, over),
        ]
        if self.categories:
            cells = zip(self.categories, *self.by_category.T, strict=True)
            note = "The diagonal is agreement within a category, over distinct tasks."
            tables.append(
                Table(
                    f"Agreement by category ({what})", ("category", *self.categories), cells, note
                )
            )
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return the task × task heat map (figures 9, 10, 14, 15) and the categories' (figures 3, 13)."""
        caption = f"{METHOD_NAMES[self.method]} of every two tasks, {self.models} models; {mean_in_words(self.mean)}."
        low = -1.0 if np.nanmin(self.matrix, initial=0.0) < -0.2 else 0.0
        charts = [
            self._heatmap(
                "agreement",
                "Ranking agreement between tasks",
                caption,
                self.tasks,
                self.matrix,
                low,
            )
        ]
        if self.categories:
            caption = (
                "Mean over the pairs of tasks of two categories; within a category on the diagonal."
            )
            caption += _meanings(self.categories)
            named = self.categories, self.by_category, 0.0
            charts.append(self._heatmap("categories", "Agreement by category", caption, *named))
        return charts

    def _heatmap(
        self, kind: str, what: str, caption: str, names: tuple[str, ...], values: Floats, low: float
    ) -> Chart:
        name, full = (
            f"{kind}-{self.protocol}-{self.method}",
            f"{what}{_ties(self.method)}: {self.protocol.label}",
        )
        cells, unit = (names, names, values, low, 1.0), METHOD_NAMES[self.method]
        return Heatmap(name, full, caption, *cells, unit=unit, group=f"{kind}-{self.method}")


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
    per_task_difference: tuple[Interval, ...]  # over ``over``
    over: str = "models"
    has_errors: bool = True  # whether every score has a standard error

    @property
    def interval(self) -> Interval:
        """The change of the mean with its interval over families where they are known, else over models."""
        return self.difference[self.over]

    @property
    def direction(self) -> int:
        """1 where the tasks may be said to agree more, -1 for less, 0 where neither may.

        Every interval has to leave zero out: over relatives alone, few models claim too often. Of fewer than five, or
        without standard errors, neither may be said.
        """
        if self.models < ENOUGH_MODELS or not self.has_errors:
            return 0
        every = self.difference.values()
        return int(all(i.low > 0 for i in every)) - int(all(i.high < 0 for i in every))

    def tables(self) -> Sequence[Table]:
        """Return the change of the mean, and of each task."""
        what = f"{METHOD_NAMES[self.method]}, {self.models} models × {len(self.tasks)} tasks"
        before, after = self.before.label, self.after.label
        rows = [
            (f"over {s}", self.mean_before, self.mean_after, gap)
            for s, gap in self.difference.items()
        ]
        by_task = self.tasks, self.per_task_before, self.per_task_after, self.per_task_difference
        each = picked(
            list(zip(*by_task, strict=True)), np.argsort(self.per_task_before, kind="stable")
        )
        columns = (before, after, "difference", "low", "high")
        more = f"{self.pairs_improved} of {self.pairs} pairs of tasks agree more under {after}."
        title, note = (
            f"Mean agreement of each task, {before} → {after}",
            f"Intervals: bootstrap over {self.over}.",
        )
        return [
            Table(f"Agreement, {before} → {after} ({what})", ("interval", *columns), rows, more),
            Table(title, ("task", *columns), each, note),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the bars of figure 2 (and 12): each task's mean agreement under both protocols."""
        order = np.argsort(self.per_task_before, kind="stable")
        means = {self.before: self.mean_before, self.after: self.mean_after}
        told = ", ".join(
            f"{mean_in_words(mean)} ({protocol.label})" for protocol, mean in means.items()
        )
        name = f"agreement-{self.before}-{self.after}-{self.method}"
        title = f"Mean ranking agreement of each task with all others{_ties(self.method)}"
        caption = f"{METHOD_NAMES[self.method]}; {told}; {self.pairs_improved} of {self.pairs} pairs agree more."
        both = {self.before.label: self.per_task_before, self.after.label: self.per_task_after}
        bars = {label: picked(values, order) for label, values in both.items()}
        y_label = f"mean {METHOD_NAMES[self.method]}"
        return [Bars(name, title, caption, picked(self.tasks, order), bars, y_label=y_label)]


def _meanings(categories: Sequence[str]) -> str:
    """Say what the short names of categories mean."""
    known = [
        f"{name}: {CATEGORIES[name]}"
        for name in categories
        if CATEGORIES.get(name, name).lower() != name.lower()
    ]
    return f" {'; '.join(known)}." if known else ""


def measure_agreement(
    matrix: ScoreMatrix,
    *,
    method: str = "kendall",
    categories: Mapping[str, str] = NO_ENTRIES,
    items: Mapping[str, npt.ArrayLike] | None = None,
    **how: Unpack[How],
) -> Agreement:
    """Agreement between all tasks of a matrix, with intervals; ``categories`` maps task to category.

    ``items[task]`` (models, items), where stored, replaces the standard errors as the source of noise. ``units`` says
    what is drawn; the interval of the mean by model stands beside it in any case.
    """
    sampling = Sampling(**how)
    level, draws = sampling.level, _resample([matrix], method, items, sampling)[0]
    names = tuple(
        dict.fromkeys(filter(None, map(categories.get, keep_names_in(categories, matrix.tasks))))
    )
    per_task, drawn = (
        mean_offdiagonal(draws.matrix, axis=True),
        mean_offdiagonal(draws.by_units, axis=True),
    )
    return Agreement(
        matrix.protocol,
        method,
        matrix.shape[0],
        matrix.tasks,
        draws.matrix,
        draws.mean,
        draws.intervals(level),
        per_task=percentile_intervals(per_task, drawn, level=level),
        categories=names,
        by_category=_by_category(draws.matrix, matrix.tasks, categories, names),
        over=draws.over,
    )


def compare_agreement(
    before: ScoreMatrix, after: ScoreMatrix, *, method: str = "kendall", **how: Unpack[How]
) -> AgreementChange:
    """Difference in agreement between two protocols over the models and tasks that both have."""
    one, two = select_shared(before, after)
    sampling = Sampling(**how)
    level, (first, second) = sampling.level, _resample([one, two], method, None, sampling)
    i, j = np.triu_indices(len(one.tasks), 1)
    both = np.isfinite(first.matrix[i, j]) & np.isfinite(second.matrix[i, j])
    task_one, task_two = (
        mean_offdiagonal(first.matrix, axis=True),
        mean_offdiagonal(second.matrix, axis=True),
    )
    moved = mean_offdiagonal(second.by_units, axis=True) - mean_offdiagonal(
        first.by_units, axis=True
    )
    return AgreementChange(
        before=one.protocol,
        after=two.protocol,
        method=method,
        models=one.shape[0],
        tasks=one.tasks,
        mean_before=first.mean,
        mean_after=second.mean,
        difference=second.intervals(level, first),
        pairs_improved=int((second.matrix[i, j] > first.matrix[i, j])[both].sum()),
        pairs=int(both.sum()),
        per_task_before=tuple(task_one.tolist()),
        per_task_after=tuple(task_two.tolist()),
        per_task_difference=percentile_intervals(task_two - task_one, moved, level=level),
        over=first.over,
        has_errors=all(
            bool(np.isfinite(m.stderr[np.isfinite(m.values)]).all()) for m in (one, two)
        ),
    )


def select_shared(before: ScoreMatrix, after: ScoreMatrix) -> tuple[ScoreMatrix, ScoreMatrix]:
    """Both matrices on the models and tasks they have in common, in the order of the first."""
    models, tasks = (
        keep_names_in(before.models, set(after.models)),
        keep_names_in(before.tasks, set(after.tasks)),
    )
    if not models or not tasks:
        message = f"{before.protocol} and {after.protocol} have no model and task in common"
        raise InputError(
            message, hint="score the same models on the same tasks under both protocols"
        )
    return before.select(models=models, tasks=tasks), after.select(models=models, tasks=tasks)


# --- resamples -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Resamples:
    """One matrix of correlations, and its resamples by source."""

    matrix: Floats  # (T, T)
    by_models: Floats  # (R, T, T)
    by_units: Floats  # (R, T, T); the same where models are what is drawn
    over: str
    by_noise: Floats | None  # (R, T, T); absent where no standard error is known
    task_draws: Floats  # (R, T)

    @property
    def mean(self) -> float:
        return float(mean_over_pairs(self.matrix))

    def means(self) -> dict[str, Floats]:
        found = {
            self.over: mean_over_pairs(self.by_units),
            "models": mean_over_pairs(self.by_models),
        }
        found["tasks"] = mean_over_pairs(self.matrix, self.task_draws)
        return found if self.by_noise is None else found | {"noise": mean_over_pairs(self.by_noise)}

    def intervals(self, level: float, less: _Resamples | None = None) -> dict[str, Interval]:
        """Return the intervals of the mean by source, or of its difference to that of other resamples."""
        value, mine = self.mean, self.means()
        if less is not None:
            theirs = less.means()
            value, mine = value - less.mean, {s: mine[s] - theirs[s] for s in mine if s in theirs}
        return {
            s: percentile_interval(value, draws, level=level, centred=s == "noise")
            for s, draws in mine.items()
        }


def _resample(
    matrices: Sequence[ScoreMatrix],
    method: str,
    items: Mapping[str, npt.ArrayLike] | None,
    how: Sampling,
) -> list[_Resamples]:
    """Correlate and resample matrices of the same shape; models and tasks are drawn alike for all of them."""
    if method not in METHOD_NAMES:
        raise InputError(f"no correlation {method!r}", hint=f"one of: {', '.join(METHOD_NAMES)}")
    rng, level = np.random.default_rng(how.seed), how.level
    models, tasks = matrices[0].shape
    model_draws, task_draws = (
        draw_rows(models, how.resamples, rng),
        draw_rows(tasks, how.resamples, rng),
    )
    over = how.units.drawn_unit(matrices[0].models)
    unit_draws = model_draws if over == MODELS.name else how.draws(matrices[0].models)
    found = []
    for matrix in matrices:
        noise = None
        if method == SIGNIFICANT:
            tau = tau_b_matrix(matrix, level=level)
            by_models, by_units = (
                tau_b_matrix(matrix, level=level, weights=d) for d in (model_draws, unit_draws)
            )
        else:
            correlate, values = CORRELATIONS[method], matrix.oriented()
            tau = correlate(values)
            if items or np.isfinite(matrix.stderr).any():
                noise = _with_noise(matrix, items, correlate, tau, how.resamples, rng)
            by_models, by_units = (correlate(values, weights=d) for d in (model_draws, unit_draws))
        if models < ENOUGH_MODELS:  # drawing so few again says nothing of others
            by_models, by_units = np.full_like(by_models, np.nan), np.full_like(by_units, np.nan)
        found.append(_Resamples(tau, by_models, by_units, over, noise, task_draws))
    return found


def _with_noise(
    matrix: ScoreMatrix,
    items: Mapping[str, npt.ArrayLike] | None,
    correlate: Correlate,
    tau: Floats,
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """Correlations as other runs of the same tests could have given them, as far apart as they would be.

    Noise is each model's own, so what it does to a mean over models falls with their root: of many, some tell.
    """
    models = len(matrix.models)
    few = min(models, FIRST_ORDER)
    rows = np.arange(models) if few == models else np.sort(rng.permutation(models)[:few])
    part = matrix.select(models=rows)
    stored = {task: np.asarray(table)[rows] for task, table in (items or {}).items()}
    draws = resamples if few == models else min(resamples, MANY_MODELS_NOISE)
    sizes = [
        len(block)
        for block in np.array_split(
            np.arange(draws), max(1, draws * part.values.size // NOISE_BLOCK)
        )
    ]
    noise = np.concatenate([correlate(redraw_scores(part, stored, size, rng)) for size in sizes])
    return np.asarray(tau + (noise - correlate(part.oriented())) * np.sqrt(few / models))


def _by_category(
    tau: Floats, tasks: Sequence[str], categories: Mapping[str, str], names: Sequence[str]
) -> Floats:
    """Mean over pairs of distinct tasks for every two categories: (categories, categories)."""
    off = np.where(np.eye(len(tasks), dtype=bool), np.nan, tau)
    members = [[k for k, t in enumerate(tasks) if categories.get(t) == name] for name in names]
    means = [
        float(nan_mean(off[np.ix_(rows, columns)].ravel()))
        for rows in members
        for columns in members
    ]
    return np.array(means).reshape(len(names), len(names))

"""Is the recipe enough? A sample of cells tuned with more capacity beside it, and whether the ranking changes.

A pair of models on a task is ordered otherwise where both ways of tuning tell the two apart beyond their noise (1.96
standard errors each) and do not agree. The gain of a way is its mean advantage over the recipe. Results of one model
are not independent, nor are those of one task: the interval of a gain is clustered by both (Cameron, Gelbach and
Miller 2011), with Student's t for the smaller number of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student_t

from potentia.analysis.rankings.decide import select_tasks_of_one_scale
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.score_errors import believe_errors
from potentia.values.clusters import LEAST_CLUSTERS, Clusters, clustered_error
from potentia.values.findings import Finding, Table
from potentia.values.scores import Floats, ScoreMatrix

SIGNIFICANT_Z = 1.96


@dataclass(frozen=True)
class TuningVariant:
    """One way of tuning beside the recipe."""

    name: str
    gain: float  # over cells
    half_width: float  # of its 95 % interval, over models and tasks
    tau: float  # of the two rankings, the mean over tasks; NaN for fewer than three models
    comparisons: int  # of two models on a task, significant by both ways
    reversed: tuple[str, ...]  # of these, those that the two ways order otherwise

    def sentence(self) -> str:
        """Say what this way adds and whether it orders models otherwise."""
        gain_text = f"{self.gain:+.3f} ± {self.half_width:.3f} over the recipe"
        if not self.comparisons:
            return f"{self.name}: {gain_text}; no comparison of two models on a task is significant by both."
        counted = f"{len(self.reversed)} of {self.comparisons} comparisons of two models on a task"
        order = f"the order changes in {counted} that are significant by both"
        if self.reversed:
            order += f": {'; '.join(self.reversed)}"
        return f"{self.name}: {gain_text}; {order}."


@dataclass(frozen=True)
class _ScoreDifference:
    """What a way of tuning adds to one model on one task, with the 95 % interval by test noise."""

    model: str
    task: str
    variant: str
    recipe_score: float
    score: float
    half_width: float

    @property
    def value(self) -> float:
        """The difference."""
        return self.score - self.recipe_score

    @property
    def low(self) -> float:
        """The lower end of its interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """The upper end of its interval."""
        return self.value + self.half_width

    def sentence(self) -> str:
        """Say what the model reaches by both ways."""
        scores = (
            f"{self.model} scores {self.recipe_score:.3f} by the recipe "
            f"and {self.score:.3f} by {self.variant}"
        )
        noise = "its noise is not known"
        if math.isfinite(self.low):
            noise = f"95 % interval {self.low:+.3f} to {self.high:+.3f}"
        return f"On {self.task} {scores}: {self.value:+.3f} ({noise})."


@dataclass(frozen=True)
class Elicitation(Finding):
    """The recipe and other ways of tuning, cell by cell."""

    recipe: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Mapping[str, Floats]  # by way: (models, tasks)
    errors: Mapping[str, Floats]  # of these scores
    variants: tuple[TuningVariant, ...]

    def sentences(self) -> list[str]:
        """Say of every way what it adds and whether it orders models otherwise; of one model, what it reaches."""
        if len(self.models) > 1:
            return [variant.sentence() for variant in self.variants]
        sentences = [difference.sentence() for difference in self._differences()]
        sentences.append("One model cannot show whether the ranking changes: name two or more.")
        return sentences

    def _differences(self) -> list[_ScoreDifference]:
        """Return what every way adds to the first model on every task."""
        differences = []
        for (column, task), variant in product(enumerate(self.tasks), self.variants):
            recipe_error = self.errors[self.recipe][0][column]
            variant_error = self.errors[variant.name][0][column]
            differences.append(
                _ScoreDifference(
                    model=self.models[0],
                    task=task,
                    variant=variant.name,
                    recipe_score=self.scores[self.recipe][0][column],
                    score=self.scores[variant.name][0][column],
                    half_width=SIGNIFICANT_Z * math.hypot(recipe_error, variant_error),
                )
            )
        return differences

    def tables(self) -> Sequence[Table]:
        """Return the ways beside the recipe, and the scores; of one model, every difference with its interval."""
        if len(self.models) == 1:
            return [self._tabulate_differences()]
        return [self._tabulate_variants(), self._tabulate_scores()]

    def _tabulate_differences(self) -> Table:
        table_rows = []
        for difference in self._differences():
            table_rows.append(
                (
                    difference.task,
                    difference.variant,
                    difference.recipe_score,
                    difference.score,
                    difference.value,
                    difference.low,
                    difference.high,
                )
            )
        return Table(
            f"Can {self.models[0]} score higher than with the study's recipe?",
            ("task", "way", self.recipe, "score", "difference", "low", "high"),
            table_rows,
            " ".join(self.sentences()),
        )

    def _tabulate_variants(self) -> Table:
        table_rows = []
        for variant in self.variants:
            table_rows.append(
                (
                    variant.name,
                    variant.gain,
                    variant.half_width,
                    variant.tau,
                    variant.comparisons,
                    len(variant.reversed),
                )
            )
        column_names = (
            "way",
            "gain",
            "±",
            "τ with the recipe",
            "comparisons significant by both",
            "order changes",
        )
        return Table("Is the recipe enough?", column_names, table_rows, " ".join(self.sentences()))

    def _tabulate_scores(self) -> Table:
        variant_names = [self.recipe, *(variant.name for variant in self.variants)]
        table_rows = []
        for (row, model), (column, task) in product(enumerate(self.models), enumerate(self.tasks)):
            scores = [self.scores[variant_name][row][column] for variant_name in variant_names]
            table_rows.append((model, task, *scores))
        return Table("Scores", ("model", "task", *variant_names), table_rows)


def measure_elicitation(recipe: str, matrices: Mapping[str, ScoreMatrix]) -> Elicitation:
    """Compare every way's scores with the recipe's; all matrices have the same models and tasks."""
    recipe_matrix = matrices[recipe]
    variants = []
    for variant_name, matrix in matrices.items():
        if variant_name != recipe:
            variants.append(_compare_with_recipe(variant_name, recipe_matrix, matrix))
    scores = {}
    errors = {}
    for variant_name, matrix in matrices.items():
        scores[variant_name] = matrix.values
        errors[variant_name] = matrix.stderr
    return Elicitation(
        recipe=recipe,
        models=recipe_matrix.models,
        tasks=recipe_matrix.tasks,
        scores=scores,
        errors=errors,
        variants=tuple(variants),
    )


def _compare_with_recipe(
    variant_name: str, recipe_matrix: ScoreMatrix, variant: ScoreMatrix
) -> TuningVariant:
    """Compare one way of tuning with the recipe; its gain is over the tasks of one scale."""
    averaged_tasks = select_tasks_of_one_scale(recipe_matrix)
    gains = variant.select(tasks=averaged_tasks).oriented()
    gains = gains - recipe_matrix.select(tasks=averaged_tasks).oriented()
    tau = math.nan
    if len(recipe_matrix.models) > 2:
        tau = float(nan_mean(kendall_by_row(recipe_matrix.values.T, variant.values.T)))
    # (pairs, tasks): 1 where both ways order a pair of models alike, -1 where not, 0 where one finds no difference
    sign_products = _significant_signs(recipe_matrix) * _significant_signs(variant)
    first_of_pair, second_of_pair = np.triu_indices(len(recipe_matrix.models), 1)
    reversed_comparisons = []
    for column, pair in np.argwhere((sign_products == -1).T):
        models = f"{recipe_matrix.models[first_of_pair[pair]]} and {recipe_matrix.models[second_of_pair[pair]]}"
        reversed_comparisons.append(f"{models} on {recipe_matrix.tasks[column]}")
    return TuningVariant(
        name=variant_name,
        gain=float(nan_mean(gains.ravel())),
        half_width=measure_half_width(gains, TaskGroups.find(averaged_tasks).positions),
        tau=tau,
        comparisons=int((sign_products != 0).sum()),
        reversed=tuple(reversed_comparisons),
    )


def measure_half_width(gains: Floats, benchmarks: npt.NDArray[np.intp]) -> float:
    """Return the half-width of the 95 % interval of the mean of (models, tasks); NaN where there is one gain.

    ``benchmarks`` numbers those that tasks are of: subsets of one are no independent tasks.
    """
    rows, columns = np.nonzero(np.isfinite(gains))
    known_gains = gains[rows, columns]
    if len(known_gains) < LEAST_CLUSTERS:
        return math.nan
    variances = []
    units = []
    for labels in (rows, benchmarks[columns]):
        clusters = Clusters.from_labels(labels.tolist())
        if clusters.count >= LEAST_CLUSTERS:
            variances.append(clustered_error(known_gains, clusters) ** 2)
            units.append(clusters.count)
    if len(variances) > 1:
        of_both = Clusters.from_labels(list(zip(rows, benchmarks[columns], strict=True)))
        of_results = clustered_error(known_gains, of_both) ** 2
        variances.append(sum(variances) - of_results)
    return float(student_t.ppf(0.975, min(units) - 1)) * math.sqrt(max(variances))


def _significant_signs(matrix: ScoreMatrix) -> Floats:
    """Return the signs of the differences of every two models beyond their noise, (pairs, tasks); 0 within it."""
    matrix = believe_errors(matrix)
    first_of_pair, second_of_pair = np.triu_indices(len(matrix.models), 1)
    difference = matrix.values[first_of_pair] - matrix.values[second_of_pair]
    noise = SIGNIFICANT_Z * np.hypot(matrix.stderr[first_of_pair], matrix.stderr[second_of_pair])
    return np.where(np.abs(difference) > noise, np.sign(difference), 0.0)

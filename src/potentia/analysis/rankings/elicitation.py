"""Is the recipe enough? A sample of cells tuned with more capacity beside it, and whether the ranking changes.

A pair of models on a task is ordered otherwise where both ways of tuning tell the two apart beyond their noise (1.96
standard errors each) and do not agree. The gain of a way is its mean advantage over the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.correlation import nan_mean
from potentia.values.findings import Finding, Table
from potentia.values.scores import Floats, ScoreMatrix

SIGNIFICANT_Z = 1.96


@dataclass(frozen=True)
class TuningVariant:
    """One way of tuning beside the recipe."""

    name: str
    gain: float  # over cells
    gain_error: float
    tau: float  # of the two rankings, the mean over tasks; NaN for fewer than three models
    pairs: int  # that both ways tell apart
    turned: tuple[str, ...]  # pairs ordered otherwise

    def sentence(self) -> str:
        """Say what this way adds and whether it orders models otherwise."""
        gain = f"{self.gain:+.3f} ± {SIGNIFICANT_Z * self.gain_error:.3f} over the recipe"
        if not self.pairs:
            return f"{self.name}: {gain}; no pair differs significantly by both."
        counted = f"{len(self.turned)} of {self.pairs} pairs"
        order = f"{counted} that differ significantly by both are ordered otherwise"
        if self.turned:
            order += f": {'; '.join(self.turned)}"
        return f"{self.name}: {gain}; {order}."


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
        rows = []
        for difference in self._differences():
            rows.append(
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
            f"Has {self.models[0]} more in it than the recipe brings out?",
            ("task", "way", self.recipe, "score", "difference", "low", "high"),
            rows,
            " ".join(self.sentences()),
        )

    def _tabulate_variants(self) -> Table:
        rows = []
        for variant in self.variants:
            rows.append(
                (
                    variant.name,
                    variant.gain,
                    SIGNIFICANT_Z * variant.gain_error,
                    variant.tau,
                    variant.pairs,
                    len(variant.turned),
                )
            )
        columns = (
            "way",
            "gain",
            "±",
            "τ with the recipe",
            "pairs significantly different",
            "ordered otherwise",
        )
        return Table("Is the recipe enough?", columns, rows, " ".join(self.sentences()))

    def _tabulate_scores(self) -> Table:
        names = [self.recipe, *(variant.name for variant in self.variants)]
        rows = []
        for (row, model), (column, task) in product(enumerate(self.models), enumerate(self.tasks)):
            scores = [self.scores[name][row][column] for name in names]
            rows.append((model, task, *scores))
        return Table("Scores", ("model", "task", *names), rows)


def measure_elicitation(recipe: str, matrices: Mapping[str, ScoreMatrix]) -> Elicitation:
    """Compare every way's scores with the recipe's; all matrices have the same models and tasks."""
    base = matrices[recipe]
    variants = []
    for name, matrix in matrices.items():
        if name != recipe:
            variants.append(_compare_with_recipe(name, base, matrix))
    return Elicitation(
        recipe=recipe,
        models=base.models,
        tasks=base.tasks,
        scores={name: matrix.values for name, matrix in matrices.items()},
        errors={name: matrix.stderr for name, matrix in matrices.items()},
        variants=tuple(variants),
    )


def _compare_with_recipe(name: str, base: ScoreMatrix, other: ScoreMatrix) -> TuningVariant:
    """Compare one way of tuning with the recipe."""
    gains = (other.oriented() - base.oriented()).ravel()
    gains = gains[np.isfinite(gains)]
    gain_error = math.nan
    if len(gains) > 1:
        gain_error = float(gains.std(ddof=1) / np.sqrt(len(gains)))
    tau = math.nan
    if len(base.models) > 2:
        tau = float(nan_mean(kendall_by_row(base.values.T, other.values.T)))
    agreement = _significant_signs(base) * _significant_signs(other)  # (pairs, tasks)
    first, second = np.triu_indices(len(base.models), 1)
    turned = []
    for column, pair in np.argwhere((agreement == -1).T):
        models = f"{base.models[first[pair]]} and {base.models[second[pair]]}"
        turned.append(f"{models} on {base.tasks[column]}")
    return TuningVariant(
        name=name,
        gain=float(gains.mean()) if len(gains) else math.nan,
        gain_error=gain_error,
        tau=tau,
        pairs=int((agreement != 0).sum()),
        turned=tuple(turned),
    )


def _significant_signs(matrix: ScoreMatrix) -> Floats:
    """Return the signs of the differences of every two models beyond their noise, (pairs, tasks); 0 within it."""
    first, second = np.triu_indices(len(matrix.models), 1)
    difference = matrix.values[first] - matrix.values[second]
    noise = SIGNIFICANT_Z * np.hypot(matrix.stderr[first], matrix.stderr[second])
    return np.where(np.abs(difference) > noise, np.sign(difference), 0.0)

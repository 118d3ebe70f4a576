"""Principal components of the score matrix: how many abilities the scores show (section 3.4).

Every task is standardized (mean 0, standard deviation 1 over the models), so no task counts more for its scale; the
explained variance of the components then says how close the matrix is to rank one. The sign of a component is free: it
is chosen so that its loadings sum to more than zero, which for PC1 means higher is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.analysis.stats.bootstrap import DEFAULT_SAMPLING, Sampling
from potentia.analysis.stats.standardize import standardize
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Interval, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

GAPS = ("models", "tasks", "mean")
GAP_NOTES = {
    "models": "models with a gap left out",
    "tasks": "tasks with a gap left out",
    "mean": "filled with the task's mean",
}
ALL_MODELS = "all models"
COMPONENT_NAMES = ("PC1", "PC2", "PC3", "PC4", "PC5")  # that are shown
BLOCK = 1 << 20  # scores standardized at once


@dataclass(frozen=True)
class Components(Finding):
    """Explained variance, loadings and scores of the principal components."""

    protocol: Protocol
    group: str
    gaps: str  # what was done about missing cells
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    explained: tuple[Interval, ...]  # variance ratios
    loadings: Floats  # (components, tasks)
    scores: Floats  # (models, components)
    resampled_unit: str = "models"  # what the intervals draw

    @property
    def pc1(self) -> dict[str, float]:
        """Each model's score on the first component; higher is better."""
        first_component = self.scores[:, 0].tolist()
        return dict(zip(self.models, first_component, strict=True))

    def tables(self) -> Sequence[Table]:
        """Return the explained variance of the first components, and PC1 of each model."""
        scope = f"{self.protocol.label}, {self.group}"
        matrix_size = f"{len(self.models)} × {len(self.tasks)}"
        ranked = sorted(self.pc1.items(), key=lambda model_and_score: -model_and_score[1])
        return [
            Table(
                f"Explained variance ({scope}: {matrix_size})",
                ("component", "share", "low", "high"),
                zip(COMPONENT_NAMES, self.explained, strict=False),
                f"Missing scores: {GAP_NOTES[self.gaps]}. "
                f"Intervals: bootstrap over {self.resampled_unit}, where there are {ENOUGH_UNITS} or more.",
            ),
            Table(f"PC1 of each model ({scope})", ("model", "PC1"), ranked),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scree bars (figures 6 and 8) and PC1 of each model (figure 11)."""
        label = self.protocol.label
        leading_components = self.explained[: len(COMPONENT_NAMES)]
        share = f"{100 * leading_components[0].value:.0f} %"
        chart_name = f"{self.protocol}-{self.group}".replace(" ", "-")
        charts = [
            Bars(
                f"scree-{chart_name}",
                f"Explained variance: {label}, {self.group}",
                f"The first principal component (PC1) explains {share} of the variance.",
                COMPONENT_NAMES[: len(leading_components)],
                {label: leading_components},
                y_label="share of variance",
                group=f"scree-{self.group}",
            )
        ]
        if self.group == ALL_MODELS:
            order = np.argsort(-self.scores[:, 0], kind="stable")
            charts.append(
                Bars(
                    f"pc1-{chart_name}",
                    f"PC1 of each model: {label}",
                    "Scores on the first principal component (PC1); higher is better.",
                    select_positions(self.models, order),
                    {label: self.scores[order, 0]},
                    y_label="PC1",
                    group="pc1",
                )
            )
        return charts


# Models drawn with replacement have fewer different ones among them, which one component explains better: the share of
# PC1 can only rise. Of 150 made-up studies each with one factor and 6 or 12 tasks the 95 % interval holds the true
# share in 0 to 95 % with 4 to 10 models, in 78 to 87 % with 15, in 87 to 96 % from 20 on.
ENOUGH_UNITS = 20


def compute_components(
    matrix: ScoreMatrix,
    *,
    group: str = ALL_MODELS,
    gaps: str = "models",
    sampling: Sampling = DEFAULT_SAMPLING,
) -> Components:
    """Compute the principal components of the standardized scores.

    ``gaps`` says what to do about missing cells: leave out the models that have one ("models"), leave out the tasks
    that have one ("tasks"), or fill in the task's mean ("mean").
    """
    complete = remove_gaps(matrix, gaps)
    if complete.shape[0] < 2:
        available = f"{group} of {matrix.protocol} has {complete.shape[0]}"
        raise InputError(
            f"components need two models without missing scores, {available}",
            hint=(
                'gaps="tasks" leaves out incomplete tasks instead of models, '
                'gaps="mean" fills them in'
            ),
        )
    values = complete.oriented()
    scores, loadings, singular_values = principal_components(values)
    total = (singular_values**2).sum()
    ratios = np.full_like(singular_values, np.nan)
    if total > 0:
        ratios = singular_values**2 / total
    drawn_ratios = explained_variance(values, sampling.draw_models(complete.models))
    if sampling.units.count_drawn(complete.models) < ENOUGH_UNITS:
        drawn_ratios = np.full_like(drawn_ratios, np.nan)
    explained = []
    for component, ratio in enumerate(ratios):
        explained.append(sampling.interval(float(ratio), drawn_ratios[:, component]))
    return Components(
        protocol=matrix.protocol,
        group=group,
        gaps=gaps,
        models=complete.models,
        tasks=complete.tasks,
        explained=tuple(explained),
        loadings=loadings,
        scores=scores,
        resampled_unit=sampling.units.drawn_unit(complete.models),
    )


def principal_components(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return scores (models, components), loadings (components, tasks) and singular values of standardized scores."""
    left_vectors, singular_values, loadings = np.linalg.svd(
        standardize(values), full_matrices=False
    )
    sign = np.where(loadings.sum(axis=1) < 0, -1.0, 1.0)
    return left_vectors * singular_values * sign, loadings * sign[:, None], singular_values


def remove_gaps(matrix: ScoreMatrix, gaps: str) -> ScoreMatrix:
    """Return a matrix without missing cells; ``compute_components`` says how."""
    measured = np.isfinite(matrix.values)
    if gaps == "models":
        return matrix.drop_incomplete_models()
    if gaps == "tasks":
        return matrix.select(tasks=measured.all(axis=0))
    if gaps == "mean":
        with_scores = matrix.select(tasks=measured.any(axis=0))
        is_scored = np.isfinite(with_scores.values)
        totals = np.where(is_scored, with_scores.values, 0.0).sum(axis=0)
        means = totals / is_scored.sum(axis=0)
        return replace(with_scores, values=np.where(is_scored, with_scores.values, means))
    raise InputError(f"no treatment of gaps {gaps!r}", hint=f"one of: {', '.join(GAPS)}")


def explained_variance(values: Floats, weights: Floats) -> Floats:
    """Return the variance ratios of the components of standardized values, largest first, for each resample.

    ``weights`` (resamples, models) says how many models each row stands for.
    """
    blocks = max(1, -(-len(weights) * values.size // BLOCK))
    eigenvalues_of_blocks = []
    for block in np.array_split(weights, blocks):
        z_scores = standardize(values, block) * np.sqrt(block)[:, :, None]
        transposed = z_scores.transpose(0, 2, 1)  # (resamples, tasks, models)
        if len(values) >= values.shape[1]:
            gram_matrix = transposed @ z_scores
        else:
            gram_matrix = z_scores @ transposed
        eigenvalues_of_blocks.append(np.linalg.eigvalsh(gram_matrix)[:, ::-1])
    eigenvalues = np.clip(np.concatenate(eigenvalues_of_blocks), 0.0, None)
    total = eigenvalues.sum(axis=1, keepdims=True)
    ratios = np.full(eigenvalues.shape, np.nan)
    return np.asarray(np.divide(eigenvalues, total, out=ratios, where=total > 0))

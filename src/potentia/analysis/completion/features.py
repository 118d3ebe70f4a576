"""What is known of models before they are tuned, as the problem of the factor model.

A latent ability of the models is a Gaussian process whose kernel is a weighted sum of (M, M) parts: linear in the
principal components of the scores before tuning, in log parameters, log training tokens, date and kind; a
second-degree and a smooth part over components and size; and blocks for family, generation (a family, by date),
lineage (a base model and what was tuned from it) and the model itself. An input that is unknown has mean zero and
variance one, and enters as such: E[x_i x_j] = m_i m_j + δ_ij v_i, so a model without facts is not an average model but
an uncertain one.

The study's models come first, each history's after them; a model in both has two rows, tied by name and lineage, for a
score of another run is evidence of a kind, not a measurement of this study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.completion.factors import FactorProblem
from potentia.analysis.completion.links import LEVEL_SPREAD, LinkScale, TaskLinks
from potentia.errors import InputError
from potentia.facts import Background, ModelTable
from potentia.values.metric import Metric
from potentia.values.scores import Floats, ScoreMatrix

COMPONENTS = 6
SMOOTH_COMPONENTS = 3
SMOOTH_LENGTH = 2.0
GENERATION_MONTHS = 4.0
LEAST_DATE = -2.0  # standard deviations; older models are alike
# Before anything is tuned: the first ability rises with direct scores, size and tokens; learned weights take over.
EXPECTED_WEIGHTS = {"component 1": 0.5, "size": 0.35, "tokens": 0.2}
ITERATIONS = 10
ITERATIONS_WITH_GAPS = 50
LEAST_NOISE = 1e-3


@dataclass(frozen=True)
class Kinship:
    """Family and lineage of each model; a model that nobody knows is its own."""

    family: tuple[str, ...]
    lineage: tuple[str, ...]

    @classmethod
    def look_up(cls, models: Sequence[str], table: ModelTable) -> Kinship:
        """Look the models up; the checkpoints of a run (``run@step``) are one family."""
        background = Background.of(models, table=table)
        families = [background.families.get(model, f"alone {model}") for model in models]
        lineages = [background.lineages.get(model, model) for model in models]
        return cls(tuple(families), tuple(lineages))


@dataclass(frozen=True)
class UncertainInput:
    """One quantity of every model: its mean and its variance, 0 and 1 where it is not known."""

    mean: Floats  # (models,)
    variance: Floats  # (models,)

    @classmethod
    def standardize(cls, values: npt.ArrayLike) -> UncertainInput:
        """Standardize values with NaN where unknown; all alike, they say nothing: 0 and 0 throughout."""
        numbers = np.asarray(values, dtype=np.float64)
        is_known = np.isfinite(numbers)
        if is_known.sum() < 2 or np.ptp(numbers[is_known]) < 1e-12:
            return cls(np.zeros(len(numbers)), np.zeros(len(numbers)))
        standard = (numbers - numbers[is_known].mean()) / numbers[is_known].std()
        return cls(np.where(is_known, standard, 0.0), np.where(is_known, 0.0, 1.0))

    def linear_kernel(self) -> Floats:
        """Return the kernel that is linear in this quantity."""
        return np.outer(self.mean, self.mean) + np.diag(self.variance)


@dataclass(frozen=True)
class ModelFeatures:
    """What a ``FactorProblem`` needs to know of models, and each task's mean direct score."""

    grams: Floats  # (parts, models, models)
    expected_ability: Floats  # (models,): of the first ability
    lineage: Floats  # (models, models): 1 where two models are of one lineage
    direct_scores: Floats  # (models, tasks): what the components do not say of them
    direct_means: Floats  # (tasks,): on the link scale, NaN where unknown


def describe_models(
    models: Sequence[str],
    kinship: Kinship,
    tasks: Sequence[str],
    direct: Sequence[ScoreMatrix],
    table: ModelTable,
) -> ModelFeatures:
    """Gather what is known of models before tuning; a name may come twice, in the study and in its history."""
    columns, column_tasks = _stack_direct_scores(models, direct)
    component_means, component_variances = fit_components(columns, COMPONENTS)
    inputs = {}
    for component in range(component_means.shape[1]):
        inputs[f"component {component + 1}"] = UncertainInput(
            mean=component_means[:, component], variance=component_variances[:, component]
        )
    curved_inputs = [*inputs, "size"]
    smooth_inputs = [*list(inputs)[:SMOOTH_COMPONENTS], "size"]
    months = _months_of_release(models, table)
    inputs |= _inputs_from_facts(models, table, months)
    lineage = _match_labels(kinship.lineage)
    family = _match_labels(kinship.family)
    parts = [quantity.linear_kernel() for quantity in inputs.values()]
    parts.append(_second_degree_kernel([inputs[name] for name in curved_inputs]))
    parts.append(_smooth_kernel([inputs[name] for name in smooth_inputs]))
    parts += [family, _generation_kernel(family, months), lineage, _match_labels(models)]
    telling_parts = [part for part in parts if np.abs(part).max(initial=0.0) > 1e-12]
    expected_ability = np.zeros(len(models))
    for name, weight in EXPECTED_WEIGHTS.items():
        if name in inputs:
            expected_ability = expected_ability + weight * inputs[name].mean
    direct_scores, direct_means = _unexplained_direct_scores(
        tasks, columns, column_tasks, component_means
    )
    return ModelFeatures(
        grams=np.stack(telling_parts),
        expected_ability=expected_ability,
        lineage=lineage,
        direct_scores=direct_scores,
        direct_means=direct_means,
    )


def _months_of_release(models: Sequence[str], table: ModelTable) -> Floats:
    """Return the month of each model's date, counted from the year 0; NaN where unknown."""
    months = np.full(len(models), np.nan)
    for row, model in enumerate(models):
        facts = table.find(model)
        if facts and facts.date:
            months[row] = 12.0 * int(facts.date[:4]) + int(facts.date[5:7])
    return months


def _inputs_from_facts(
    models: Sequence[str], table: ModelTable, months: Floats
) -> dict[str, UncertainInput]:
    """Return what is known of the models beside their scores."""
    sizes = np.full(len(models), np.nan)
    tokens = np.full(len(models), np.nan)
    is_instruct = np.full(len(models), np.nan)
    for row, model in enumerate(models):
        facts = table.find(model)
        if facts is None:
            continue
        sizes[row] = facts.parameters or np.nan
        tokens[row] = facts.tokens or np.nan
        is_instruct[row] = float(facts.kind == "instruct")
    date = UncertainInput.standardize(months)
    return {
        "size": UncertainInput.standardize(np.log(sizes)),
        "tokens": UncertainInput.standardize(np.log(tokens)),
        "date": UncertainInput(np.maximum(date.mean, LEAST_DATE), date.variance),
        "instruct": UncertainInput.standardize(is_instruct),
    }


def fit_components(columns: Floats, most_components: int) -> tuple[Floats, Floats]:
    """Fit principal components of standardized columns with gaps, by EM: each row's mean and variance of each.

    Probabilistic PCA (Tipping & Bishop): x = W s + noise, s ~ N(0, 1). A row with gaps has wider scores, a row
    without any score the prior's. Each component is scaled to a second moment of one and the first is turned so that
    higher scores are better.
    """
    rows = len(columns)
    columns = columns[:, np.isfinite(columns).sum(axis=0) > 1]
    columns = columns[:, np.nanstd(columns, axis=0) > 1e-9]
    has_score = np.isfinite(columns)
    rows_with_scores = int(has_score.any(axis=1).sum())
    count = min(most_components, columns.shape[1], max(rows_with_scores - 1, 0))
    if count < 1:
        return np.zeros((rows, 0)), np.zeros((rows, 0))
    scores = np.nan_to_num((columns - np.nanmean(columns, axis=0)) / np.nanstd(columns, axis=0))
    _, singular, right = np.linalg.svd(scores, full_matrices=False)
    loadings = right[:count].T * singular[:count] / np.sqrt(rows_with_scores)  # (columns, count)
    unexplained = float((singular[count:] ** 2).sum())
    noise = max(unexplained / max(int(has_score.sum()), 1), LEAST_NOISE)
    weight = has_score.astype(np.float64)
    iterations = ITERATIONS if has_score.all() else ITERATIONS_WITH_GAPS
    for _ in range(iterations):
        loadings, noise = _improve_loadings(scores, weight, loadings, noise)
    axes, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    loadings = axes * lengths  # turned to principal axes
    loadings = loadings * np.where(loadings.sum(axis=0) < 0, -1.0, 1.0)
    mean, covariance = _score_rows(scores, weight, loadings, noise)
    variance = np.einsum("raa->ra", covariance)
    scale = np.sqrt((mean**2 + variance).mean(axis=0))
    return mean / scale, variance / scale**2


def _improve_loadings(
    scores: Floats, weight: Floats, loadings: Floats, noise: float
) -> tuple[Floats, float]:
    """Return loadings and noise after one step of EM."""
    mean, covariance = _score_rows(scores, weight, loadings, noise)
    second_moment = covariance + mean[:, :, None] * mean[:, None, :]  # (rows, count, count)
    moment = np.einsum("rc,rab->cab", weight, second_moment) + 1e-6 * np.eye(loadings.shape[1])
    products = np.einsum("rc,ra->ca", scores * weight, mean)
    loadings = np.linalg.solve(moment, products[:, :, None])[:, :, 0]
    fitted = np.einsum("ca,rab,cb->rc", loadings, second_moment, loadings, optimize=True)
    error = weight * (scores**2 - 2.0 * scores * (mean @ loadings.T) + fitted)
    return loadings, max(float(error.sum() / weight.sum()), LEAST_NOISE)


def _score_rows(
    scores: Floats, weight: Floats, loadings: Floats, noise: float
) -> tuple[Floats, Floats]:
    """Return each row's mean (rows, count) and covariance (rows, count, count) of the components."""
    information = np.einsum("rc,ca,cb->rab", weight, loadings, loadings) / noise
    precision = np.eye(loadings.shape[1]) + information
    covariance = np.linalg.inv(precision)
    mean = np.einsum("rab,rb->ra", covariance, (scores * weight) @ loadings / noise)
    return mean, covariance


def _stack_direct_scores(
    models: Sequence[str], direct: Sequence[ScoreMatrix]
) -> tuple[Floats, list[str]]:
    """Return every column of the scores before tuning on its link scale, for these models, and its task."""
    blocks = [np.zeros((len(models), 0))]
    tasks: list[str] = []
    for matrix in direct:
        links = TaskLinks.choose(
            dict(zip(matrix.tasks, matrix.metrics, strict=True)), matrix.values
        )
        no_scores = np.full((1, len(matrix.tasks)), np.nan)
        link_scores = np.vstack([links.forward(matrix.values), no_scores])
        row_of_model = {model: row for row, model in enumerate(matrix.models)}
        rows = [row_of_model.get(model, len(matrix.models)) for model in models]
        blocks.append(link_scores[rows])
        tasks += matrix.tasks
    return np.concatenate(blocks, axis=1), tasks


def _unexplained_direct_scores(
    tasks: Sequence[str],
    columns: Floats,
    column_tasks: Sequence[str],
    component_means: Floats,
) -> tuple[Floats, Floats]:
    """Return each task's direct scores, standardized, less what the first components say of them; and their means."""
    unexplained = np.zeros((len(columns), len(tasks)))
    means = np.full(len(tasks), np.nan)
    for position, task in enumerate(tasks):
        if task not in column_tasks:
            continue
        column = columns[:, column_tasks.index(task)]
        has_score = np.isfinite(column)
        if not has_score.any():
            continue
        means[position] = column[has_score].mean()
        constant = np.ones(has_score.sum())
        basis = np.column_stack([constant, component_means[has_score, :SMOOTH_COMPONENTS]])
        spread = column[has_score].std()
        if spread > 1e-9 and has_score.sum() > 2 * basis.shape[1]:
            standard = (column[has_score] - means[position]) / spread
            coefficients = np.linalg.lstsq(basis, standard, rcond=None)[0]
            unexplained[has_score, position] = standard - basis @ coefficients
    return unexplained, means


def _second_degree_kernel(inputs: Sequence[UncertainInput]) -> Floats:
    """Return the kernel (x·x′/p)² of the inputs; unknown inputs add to the diagonal alone."""
    linear = sum(np.outer(quantity.mean, quantity.mean) for quantity in inputs) / len(inputs)
    variance = sum(quantity.variance for quantity in inputs) / len(inputs)
    return np.asarray(linear**2 + np.diag(2.0 * np.diag(linear) * variance + variance**2))


def _smooth_kernel(inputs: Sequence[UncertainInput]) -> Floats:
    """Return the Gaussian kernel of the inputs; what is unknown of a model weakens its correlation with every other."""
    distance = sum((quantity.mean[:, None] - quantity.mean) ** 2 for quantity in inputs)
    variance = sum(quantity.variance for quantity in inputs)
    damping = np.exp(-variance / (2.0 * SMOOTH_LENGTH**2))
    kernel = np.exp(-0.5 * distance / SMOOTH_LENGTH**2) * np.outer(damping, damping)
    np.fill_diagonal(kernel, 1.0)
    return np.asarray(kernel)


def _generation_kernel(family: Floats, months: Floats) -> Floats:
    """Return the kernel of models of one family that came out at about the same time."""
    distance = np.abs(months[:, None] - months)
    closeness = np.where(np.isfinite(distance), np.exp(-distance / GENERATION_MONTHS), 0.0)
    kernel = family * closeness
    np.fill_diagonal(kernel, 1.0)
    return np.asarray(kernel)


def _match_labels(labels: Sequence[str]) -> Floats:
    """Return 1 for every two rows with the same label, else 0."""
    _, codes = np.unique(np.asarray(labels, dtype=str), return_inverse=True)
    return np.asarray(codes[:, None] == codes, dtype=np.float64)


def build_problem(
    tuned: ScoreMatrix,
    direct: Sequence[ScoreMatrix],
    history: Sequence[ScoreMatrix],
    table: ModelTable,
    chances: Mapping[str, float] | None,
    scale: LinkScale | None = None,
) -> tuple[FactorProblem, LinkScale, Kinship]:
    """Stack study and history and standardize them; a given ``scale`` is kept."""
    matrices = [tuned, *history]
    metrics = _join_metrics(matrices)
    tasks = list(metrics)
    models: list[str] = []
    value_blocks = []
    stderr_blocks = []
    for matrix in matrices:
        values_of_matrix, stderr_of_matrix, _ = matrix.arrange(matrix.models, tasks)
        models += matrix.models
        value_blocks.append(values_of_matrix)
        stderr_blocks.append(stderr_of_matrix)
    values = np.vstack(value_blocks)
    stderr = np.where(np.isfinite(values), np.vstack(stderr_blocks), np.nan)
    kinship = Kinship.look_up(models, table)
    features = describe_models(models, kinship, tasks, direct, table)
    if scale is None:
        links = TaskLinks.choose(metrics, values, chances)
        scale = LinkScale.fit(
            links, links.forward(values), features.direct_means, features.expected_ability
        )
    excess = _excess_variance((stderr * scale.links.slope(values)) ** 2) / scale.spread**2
    level_variance = (LEVEL_SPREAD / scale.spread) ** 2
    problem = FactorProblem(
        scores=scale.standardize(values),
        excess=excess,
        grams=features.grams,
        expected_ability=features.expected_ability,
        lineage=features.lineage,
        direct_scores=features.direct_scores,
        level_variance=level_variance,
    )
    return problem, scale, kinship


def _excess_variance(variance: Floats) -> Floats:
    """Return the variance of each score beyond the median of its task; 0 where it has no error."""
    has_error = np.isfinite(variance)
    usual = np.zeros(variance.shape[1])
    for column in range(variance.shape[1]):
        if has_error[:, column].any():
            usual[column] = np.median(variance[has_error[:, column], column])
    return np.where(has_error, np.maximum(variance - usual, 0.0), 0.0)


def _join_metrics(matrices: Sequence[ScoreMatrix]) -> dict[str, Metric]:
    """Return the metric of each task, as the first matrix that has it says; all must agree on its direction."""
    metrics: dict[str, Metric] = {}
    for matrix in matrices:
        for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
            first = metrics.setdefault(task, metric)
            if first.higher_is_better != metric.higher_is_better:
                raise InputError(
                    f"{task} is better when higher in the study and when lower in its history, "
                    "or the reverse",
                    hint="leave the task out of the history, or name the two metrics apart",
                )
    return metrics

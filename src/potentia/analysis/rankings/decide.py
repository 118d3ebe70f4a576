"""The one rule behind "first", "better", "tied" and "holds": draws from the posterior of every model's overall score.

The overall score is a mean over tasks of scores on a common scale: the scores themselves where models are few, z scores
from five models on (with two models a z score only counts signs). A missing cell is drawn from a model + task fit, so
that what was not measured widens the interval; models that share no task with the others are not ranked.

What is drawn besides depends on what can be said. With five tasks or more the tasks are a sample: the mean over tasks
varies as Student's t with the covariance of the models over tasks, which holds test noise, seeds, the choice of tasks
and the likeness of relatives at once. With fewer tasks nothing can be said of others, and test noise alone is drawn,
paired where models answered the same documents. Where a score has no standard error nothing is claimed at all.

A claim needs a probability of 97.5 %: for two equal models that is the two-sided test at 5 %, for more it is stricter.
The first of many is partly first by luck, so from five models on the draws behind P(first) are shrunk
(``shrink_draws``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import TYPE_CHECKING
from typing import Protocol as Interface

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from potentia.analysis.rankings.noise import TaskNoise, task_noise
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.first_place import (
    CLAIM_PROBABILITY,
    ENOUGH_MODELS,
    ENOUGH_TASKS,
    first_place_shares,
    shrink_draws,
)
from potentia.facts import variant_of
from potentia.values.findings import Finding, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

if TYPE_CHECKING:
    from potentia.analysis.completion import CellSampler

RIVAL_CHANCE = 0.05  # a model at least so likely to be first is named beside the first
DRAWS = 10_000
LEAST_DRAWS = 400
MOST_NUMBERS = 2_000_000  # of many models fewer draws are made, so that they hold so many numbers
CHUNK = 500  # draws at a time


class AggregateMethod(StrEnum):
    """What the overall score of a model is."""

    SCORE = "score"
    MEAN_SCORE = "mean score"
    MEAN_Z = "mean z"

    @classmethod
    def choose(cls, matrix: ScoreMatrix) -> AggregateMethod:
        """Choose the method for so many models and tasks."""
        models, tasks = matrix.shape
        if tasks == 1:
            return cls.SCORE
        if models < ENOUGH_MODELS:
            return cls.MEAN_SCORE
        return cls.MEAN_Z

    @property
    def label(self) -> str:
        """The method in words."""
        return AGGREGATE_LABELS[self]

    @property
    def reason(self) -> str:
        """Why this method."""
        return {
            AggregateMethod.SCORE: "there is one task",
            AggregateMethod.MEAN_SCORE: f"z scores need {ENOUGH_MODELS} models",
            AggregateMethod.MEAN_Z: "tasks count alike, whatever their scale",
        }[self]


AGGREGATE_LABELS: dict[str, str] = {
    AggregateMethod.SCORE: "score",
    AggregateMethod.MEAN_SCORE: "mean score over tasks",
    AggregateMethod.MEAN_Z: "mean z score over tasks",
}


@dataclass(frozen=True)
class AggregateScale:
    """The common scale of all tasks: what a score of each task is multiplied by before the mean is taken."""

    method: AggregateMethod
    factors: Floats  # (tasks,)

    @classmethod
    def choose(cls, matrix: ScoreMatrix, predicted: Floats | None = None) -> AggregateScale:
        """Choose the scale for a matrix.

        With missing cells ``predicted`` (draws, models, tasks) says how far apart all models are: the few that were
        measured on a task, often the small ones, would make it count too much.
        """
        method = AggregateMethod.choose(matrix)
        magnitude = np.nanmax(np.abs(matrix.values), axis=0)
        if method is AggregateMethod.MEAN_Z:
            if predicted is None:
                spread = np.nanstd(matrix.values, axis=0)
            else:
                spread = np.sqrt(predicted.var(axis=1).mean(axis=0))
            varies = spread > 1e-12 * np.maximum(magnitude, 1e-300)
            factors = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
            return cls(method, np.asarray(factors))
        is_share = magnitude <= 1.0
        if is_share.all() or len(set(matrix.metrics)) == 1:
            return cls(method, np.ones(len(magnitude)))
        return cls(method, np.asarray(1.0 / np.where(is_share, 1.0, magnitude)))


@dataclass(frozen=True)
class Ranking(Finding):
    """Models from best to worst under one protocol, and how likely each is the first."""

    protocol: Protocol
    method: AggregateMethod
    models: tuple[str, ...]  # best first
    tasks: tuple[str, ...]
    scores: Floats  # (models,) by the method; higher is better
    ranks: Floats
    low: Floats  # best rank within the interval; NaN without standard errors
    high: Floats
    p_first: Floats  # NaN without standard errors
    task_counts: tuple[int, ...]  # tasks that each model was measured on
    generalizes: bool  # whether the draws are of other tasks like these too
    unranked: tuple[str, ...] = ()  # models that share no task with these
    level: float = LEVEL
    task_scales: Floats = field(default_factory=lambda: np.zeros(0), repr=False)  # (tasks,)
    draws: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)  # (draws, models)

    @classmethod
    def from_draws(
        cls,
        matrix: ScoreMatrix,
        scores: FilledScores,
        draws: Floats,
        *,
        generalizes: bool,
        unranked: tuple[str, ...],
        level: float,
        seed: int,
    ) -> Ranking:
        """Rank the models by their estimates, with the ranks and the chances that the draws give them."""
        models = len(matrix.models)
        low = high = p_first = np.full(models, np.nan)
        if len(draws):
            tail = (1 - level) / 2
            low, high = np.quantile(rankdata(-draws, axis=1), [tail, 1 - tail], axis=0)
            first_draws = draws
            if models >= ENOUGH_MODELS:
                first_draws = shrink_draws(draws, np.random.default_rng([seed, 1]))
            p_first = first_place_shares(first_draws)
        order = np.argsort(-scores.estimate, kind="stable")
        ranks = rankdata(-np.round(scores.estimate, 12))
        task_counts = np.isfinite(matrix.values).sum(axis=1)
        return cls(
            protocol=matrix.protocol,
            method=scores.scale.method,
            models=select_positions(matrix.models, order),
            tasks=matrix.tasks,
            scores=scores.estimate[order],
            ranks=ranks[order],
            low=low[order],
            high=high[order],
            p_first=p_first[order],
            task_counts=tuple(task_counts[order].tolist()),
            generalizes=generalizes,
            unranked=unranked,
            level=level,
            task_scales=scores.scale.factors,
            draws=draws[:, order],
        )

    @property
    def reason(self) -> str:
        """Why this method."""
        return self.method.reason

    @property
    def can_claim(self) -> bool:
        """Whether anything can be claimed: every score has a standard error."""
        return bool(len(self.draws))

    @property
    def first(self) -> str:
        """The model that is most likely the best; without standard errors the one with the best score."""
        if not self.can_claim:
            return self.models[0]
        return self.models[int(np.argmax(np.round(self.p_first, 2)))]

    @property
    def is_first_certain(self) -> bool:
        """Whether the first may be called the best."""
        if not self.can_claim or len(self.models) < 2:
            return False
        return float(self.p_first.max()) >= CLAIM_PROBABILITY

    @property
    def rivals(self) -> tuple[str, ...]:
        """The models that may be first too, the likeliest first; none where the first is certain."""
        if self.is_first_certain or not self.can_claim:
            return ()
        chances = dict(zip(self.models, self.p_first.tolist(), strict=True))
        others = [model for model in self.models if model != self.first]
        others.sort(key=lambda model: -chances[model])
        likely = [model for model in others[1:] if chances[model] >= RIVAL_CHANCE]
        return (*others[:1], *likely)

    @property
    def rival_variants(self) -> tuple[str, ...]:
        """The rivals that are the first itself in other bits, at another step or exposed; none where all models are."""
        base = variant_of(self.first)
        if all(variant_of(model) == base for model in self.models):
            return ()
        return tuple(model for model in self.rivals if variant_of(model) == base)

    def rank_of(self, model: str) -> float | None:
        """Return a model's rank; None where it has none."""
        if model not in self.models:
            return None
        return float(self.ranks[self.models.index(model)])

    def draws_of(self, model: str) -> Floats:
        """Return the drawn overall scores of a model."""
        return self.draws[:, self.models.index(model)]

    def probability_better(self, first: str, second: str) -> float:
        """Return the probability that the first model is better than the second; NaN where nothing is claimed."""
        if not self.can_claim or first not in self.models or second not in self.models:
            return math.nan
        difference = self.draws_of(first) - self.draws_of(second)
        return float(np.mean(difference > 0) + 0.5 * np.mean(difference == 0))

    def tables(self) -> Sequence[Table]:
        """Return the ranking."""
        rows = zip(
            self.models,
            map("{:g}".format, self.ranks),
            map(format_rank_span, self.low, self.high),
            self.p_first,
            self.task_counts,
            self.scores,
            strict=True,
        )
        size = f"{len(self.models)} models × {len(self.tasks)} tasks"
        title = f"Overall ranking ({self.protocol.label}, {size})"
        columns = ("model", "rank", f"{self.level:.0%} interval", "P(first)", "tasks", self.method)
        note = f"By the {self.method.label}: {self.reason}."
        if self.unranked:
            note += f" Not ranked, for want of a common task: {', '.join(self.unranked)}."
        return [Table(title, columns, rows, note, digits=2)]


def format_rank_span(low: float, high: float) -> str | None:
    """Write an interval of ranks; None where it is not known."""
    if not math.isfinite(low):
        return None
    return f"{low:.0f}–{high:.0f}"


def decide_ranking(
    matrix: ScoreMatrix,
    items: Outcomes | None = None,
    *,
    cell_sampler: CellSampler | None = None,
    level: float = LEVEL,
    seed: int = 0,
    draws: int = DRAWS,
) -> Ranking:
    """Rank the models of a matrix over all its tasks.

    ``items`` are stored outcomes, for paired noise; ``cell_sampler`` draws the missing cells, else the model + task
    fit does.
    """
    unranked: tuple[str, ...] = ()
    if cell_sampler is None:
        matrix, unranked = largest_connected_part(matrix)
    rng = np.random.default_rng(seed)
    generalizes = has_enough_tasks(matrix)
    scores = fill_scores(matrix, cell_sampler, generalizes=generalizes, rng=rng)
    aggregates = np.zeros((0, len(matrix.models)))
    if has_all_errors(matrix) and len(matrix.models) > 1:
        aggregates = draw_aggregates(
            matrix,
            scores,
            noise_by_task(matrix, items),
            count=int(np.clip(MOST_NUMBERS // len(matrix.models), LEAST_DRAWS, draws)),
            generalizes=generalizes,
            rng=rng,
        )
    return Ranking.from_draws(
        matrix,
        scores,
        aggregates,
        generalizes=generalizes,
        unranked=unranked,
        level=level,
        seed=seed,
    )


def largest_connected_part(matrix: ScoreMatrix) -> tuple[ScoreMatrix, tuple[str, ...]]:
    """Return the largest part whose models are connected by common tasks, and the names of the other models."""
    measured = np.isfinite(matrix.values)
    models, tasks = matrix.shape
    rows, columns = np.nonzero(measured)
    edges = (rows, models + columns)
    nodes = models + tasks
    graph = coo_array((np.ones(len(rows)), edges), shape=(nodes, nodes))
    _, part_of_node = connected_components(graph, directed=False)
    part_of_model = part_of_node[:models]
    models_by_part = np.bincount(part_of_model, minlength=part_of_node.max() + 1)
    connected = part_of_model == np.argmax(models_by_part)
    if connected.all():
        return matrix, ()
    part = matrix.select(models=connected, tasks=measured[connected].any(axis=0))
    return part, tuple(compress(matrix.models, ~connected))


def has_enough_tasks(matrix: ScoreMatrix) -> bool:
    """Whether the models were measured on enough tasks to speak of other tasks like these."""
    tasks_of_models = np.isfinite(matrix.values).sum(axis=1)
    return float(np.median(tasks_of_models)) >= ENOUGH_TASKS


def has_all_errors(matrix: ScoreMatrix) -> bool:
    """Whether every score has a standard error."""
    return bool(np.isfinite(matrix.stderr[np.isfinite(matrix.values)]).all())


def noise_by_task(matrix: ScoreMatrix, items: Outcomes | None) -> list[TaskNoise]:
    """Return the test noise of every task."""
    return [task_noise(matrix, column, items) for column in range(len(matrix.tasks))]


class FilledScores(Interface):
    """Scores on the common scale without gaps: as measured, or with the missing cells drawn."""

    scale: AggregateScale
    estimate: Floats  # (models,): the overall score
    includes_noise: bool  # whether test noise is drawn together with the missing cells

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield scores (1 or draws, models, tasks), and for how many draws they are."""
        ...


def fill_scores(
    matrix: ScoreMatrix,
    cell_sampler: CellSampler | None,
    *,
    generalizes: bool,
    rng: np.random.Generator,
) -> FilledScores:
    """Choose where missing cells are taken from: nowhere, from the completion of the study, or from a fit."""
    if np.isfinite(matrix.values).all():
        return CompleteScores(matrix)
    if cell_sampler is not None:
        return PredictedScores(matrix, cell_sampler, rng)
    return AdditiveFit(matrix, draws_cells=generalizes)


class CompleteScores:
    """Every model has a score on every task."""

    includes_noise = False

    def __init__(self, matrix: ScoreMatrix) -> None:
        self.scale = AggregateScale.choose(matrix)
        self.scores = matrix.oriented() * self.scale.factors
        self.estimate: Floats = self.scores.mean(axis=1)

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield the one matrix, for all draws."""
        yield self.scores[None], count


class PredictedScores:
    """Missing cells are drawn as the completion of an unfinished study predicts them."""

    includes_noise = False

    def __init__(
        self, matrix: ScoreMatrix, cell_sampler: CellSampler, rng: np.random.Generator
    ) -> None:
        self.matrix = matrix
        self.cell_sampler = cell_sampler
        predicted = np.concatenate(list(cell_sampler(2 * LEAST_DRAWS, rng)))
        filled = self._fill_gaps(predicted)
        self.scale = AggregateScale.choose(matrix, filled)
        mean_scores = filled.mean(axis=0) * matrix.sign * self.scale.factors
        self.estimate: Floats = mean_scores.mean(axis=1)

    def _fill_gaps(self, predicted: Floats) -> Floats:
        """Return predicted cells (draws, models, tasks) with the measured ones in their place."""
        return np.where(np.isfinite(self.matrix.values), self.matrix.values, predicted)

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield draws of the whole matrix, some at a time."""
        for predicted in self.cell_sampler(count, rng):
            scores = self._fill_gaps(predicted) * self.matrix.sign * self.scale.factors
            yield scores, len(predicted)


class AdditiveFit:
    """Missing cells are drawn from a fit of model + task to the measured ones.

    Luck in a measured cell moves the cells that are predicted from it. Where the draws are of these tasks alone, both
    are therefore drawn at once, and the noise of the measured cells is in the draws.
    """

    def __init__(self, matrix: ScoreMatrix, *, draws_cells: bool) -> None:
        self.scale = AggregateScale.choose(matrix)
        self.includes_noise = not draws_cells
        self.measured = np.isfinite(matrix.values)
        self.scores = matrix.oriented() * self.scale.factors
        self.errors = np.where(self.measured, matrix.stderr * self.scale.factors, 0.0)
        fit = fit_model_and_task(self.scores[None], self.measured)
        self.residuals = np.where(self.measured, self.scores - fit, 0.0)
        self.estimate: Floats = fit.mean(axis=2)[0]

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield draws of the whole matrix, some at a time, with all that the fit leaves open."""
        shape = self.scores.shape
        freedom = int(self.measured.sum()) - sum(shape) + 1
        residual_deviation = math.sqrt(self._residual_variance(freedom))
        observed = np.where(self.measured, self.scores, 0.0)
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            chi_square = rng.chisquare(max(freedom, 1), size=size)
            widening = np.sqrt(max(freedom, 1) / chi_square)
            deviation = residual_deviation * widening[:, None, None]
            luck = rng.standard_normal((size, *shape))
            fit = fit_model_and_task(observed + deviation * luck, self.measured)
            predicted = fit + deviation * rng.standard_normal(fit.shape)
            scores = self.scores
            if self.includes_noise:
                scores = self.scores + self.errors * luck
            yield np.where(self.measured, scores, predicted), size

    def _residual_variance(self, freedom: int) -> float:
        """Return the variance about the fit, at least that of the test noise."""
        if freedom > 0:
            variance = float((self.residuals**2).sum()) / freedom
        else:
            variance = float(np.nanvar(self.scores))
        return max(variance, float((self.errors[self.measured] ** 2).mean()))


def fit_model_and_task(scores: Floats, measured: npt.NDArray[np.bool_]) -> Floats:
    """Fit model + task by least squares to the measured cells of each (draws, models, tasks); return the fit."""
    present = measured.astype(np.float64)
    values = np.where(measured, scores, 0.0)
    tasks_of_model = present.sum(axis=1)
    models_of_task = present.sum(axis=0)
    sums_of_model = values.sum(axis=2)
    # The normal equations of the tasks, with the models eliminated.
    system = np.diag(models_of_task) - present.T @ (present / tasks_of_model[:, None])
    right_side = values.sum(axis=1) - (sums_of_model / tasks_of_model) @ present
    task_effects = right_side @ np.linalg.pinv(system, hermitian=True)
    model_effects = (sums_of_model - task_effects @ present.T) / tasks_of_model
    return np.asarray(model_effects[:, :, None] + task_effects[:, None, :])


def draw_aggregates(
    matrix: ScoreMatrix,
    scores: FilledScores,
    noise: Sequence[TaskNoise],
    *,
    count: int,
    generalizes: bool,
    rng: np.random.Generator,
) -> Floats:
    """Draw the overall score of every model: (draws, models), centred on the estimate."""
    chunks = []
    for filled, size in scores.draw_chunks(count, rng):
        if generalizes:
            variance = sum(
                task.total_variance * factor**2
                for task, factor in zip(noise, scores.scale.factors, strict=True)
            )
            chunks.append(_draw_other_tasks(filled, float(variance), size, rng))
        elif scores.includes_noise:
            chunks.append(filled.mean(axis=2))
        else:
            errors = _draw_test_noise(matrix, scores.scale, noise, size, rng)
            chunks.append(filled.mean(axis=2) + errors)
    drawn = np.concatenate(chunks)
    return np.asarray(drawn - drawn.mean(axis=0) + scores.estimate)


def _draw_other_tasks(
    filled: Floats, noise_variance: float, count: int, rng: np.random.Generator
) -> Floats:
    """Draw the mean over other tasks like these from (1 or draws, models, tasks), as Student's t.

    Scores may by chance vary less over tasks than their noise alone would make them; the draws never do.
    """
    tasks = filled.shape[2]
    mean = filled.mean(axis=2)
    deviations = filled - mean[:, :, None]
    # What all models share changes no rank.
    deviations = deviations - deviations.mean(axis=1, keepdims=True)
    variance = float((deviations**2).sum(axis=(1, 2)).mean()) * tasks / (tasks - 1)
    widening = 1.0
    if variance > 0:
        widening = max(1.0, math.sqrt(noise_variance / variance))
    normals = rng.standard_normal((count, tasks))
    chi_square = rng.chisquare(tasks - 1, size=(count, 1))
    weights = normals * np.sqrt((tasks - 1) / chi_square)
    weights *= widening / math.sqrt(tasks * (tasks - 1))
    if len(deviations) == 1:
        moved = weights @ deviations[0].T
    else:
        moved = np.einsum("kt,kmt->km", weights, deviations)
    return np.asarray(mean + moved)


def _draw_test_noise(
    matrix: ScoreMatrix,
    scale: AggregateScale,
    noise: Sequence[TaskNoise],
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw the test noise of every model's mean over these tasks: (draws, models)."""
    models, tasks = matrix.shape
    measured = np.isfinite(matrix.values)
    total = np.zeros((count, models))
    for column, task in enumerate(noise):
        normals = rng.standard_normal((count, models))
        present = scale.factors[column] * measured[:, column]
        total += present * task.scale_draws(normals)
    return total / tasks

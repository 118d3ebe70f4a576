"""The one rule behind "first", "better", "tied" and "holds": draws from the posterior of every model's overall score.

The overall score is a mean over tasks of scores on a common scale: z scores from five models on (with two models a z
score only counts signs), with fewer the scores themselves where all tasks have one scale, else ranks. Tasks of one
benchmark are averaged first and count as one (``task_groups``). A missing cell is drawn from a model + task fit, so
that what was not measured widens the interval; models that share no task with the others are ranked apart.

What is drawn besides depends on what can be said. With five groups of tasks or more they are a sample: the mean over
them varies as Student's t with the covariance of the models over groups, which holds test noise, seeds, the choice of
tasks and the likeness of relatives at once, and needs no standard errors. With fewer nothing can be said of other
tasks, and test noise alone is drawn, paired where models answered the same documents; where a score has no standard
error nothing is claimed then.

A claim needs a probability of 97.5 % for every pair that it is about, which is the paired two-sided test at 5 %: "is
better" for its one pair, "is the best" for the first against each of the others. That is an intersection–union test: a
model that is not the best has to win against the true best by luck, so the chance of a false claim is at most 5 %,
however many models there are. What all of them say together is P(first); the first of many is partly first by luck, so
from five models on the draws behind it are shrunk (``shrink_draws``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING
from typing import Protocol as Interface

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from potentia.analysis.rankings.noise import TaskNoise, task_noise
from potentia.analysis.rankings.pair_test import (
    PairTest,
    PairTester,
    has_one_scale,
    widening_of_z,
)
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.first_place import (
    CLAIM_PROBABILITY,
    ENOUGH_MODELS,
    ENOUGH_TASKS,
    first_place_shares,
    shrink_draws,
)
from potentia.facts import variant_of
from potentia.values.findings import Finding, Table, ValuedText, select_positions
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
    MEAN_RANK = "share of wins"
    MEAN_Z = "mean z"

    @classmethod
    def choose(cls, matrix: ScoreMatrix) -> AggregateMethod:
        """Choose the method for so many models and tasks."""
        models, tasks = matrix.shape
        if tasks == 1:
            return cls.SCORE
        if models >= ENOUGH_MODELS:
            return cls.MEAN_Z
        if has_one_scale(matrix):
            return cls.MEAN_SCORE
        return cls.MEAN_RANK

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
            AggregateMethod.MEAN_RANK: "the scales of the tasks differ, "
            f"and z scores need {ENOUGH_MODELS} models",
            AggregateMethod.MEAN_Z: "tasks count alike, whatever their scale",
        }[self]


AGGREGATE_LABELS: dict[str, str] = {
    AggregateMethod.SCORE: "score",
    AggregateMethod.MEAN_SCORE: "mean score over tasks",
    AggregateMethod.MEAN_RANK: "share of comparisons won over tasks",
    AggregateMethod.MEAN_Z: "mean z score over tasks",
}


def select_tasks_of_one_scale(matrix: ScoreMatrix) -> tuple[str, ...]:
    """Return the tasks whose scores may be averaged; of several scales that of the most tasks."""
    tasks_by_scale: dict[tuple[str, bool], list[str]] = {}
    for column, (task, metric) in enumerate(zip(matrix.tasks, matrix.metrics, strict=True)):
        largest = float(np.nanmax(np.abs(matrix.values[:, column]), initial=0.0))
        scale = metric.canonical_name or task
        if metric.has_unit_scale(largest):
            scale = "share"
        tasks_by_scale.setdefault((scale, metric.higher_is_better), []).append(task)
    most_tasks: list[str] = max(tasks_by_scale.values(), key=len, default=[])
    return tuple(most_tasks)


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
        if method is not AggregateMethod.MEAN_Z:
            return cls(method, np.ones(len(matrix.tasks)))
        magnitude = np.nanmax(np.abs(matrix.values), axis=0, initial=0.0)
        if predicted is None:
            spread = np.nanstd(matrix.values, axis=0)
        else:
            spread = np.sqrt(predicted.var(axis=1).mean(axis=0))
        varies = spread > 1e-12 * np.maximum(magnitude, 1e-300)
        factors = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
        return cls(method, np.asarray(factors))

    def centre(self, estimate: Floats) -> Floats:
        """Return overall scores with a mean of zero where they are z scores, else as they are."""
        if self.method is AggregateMethod.MEAN_Z:
            return np.asarray(estimate - estimate.mean())
        return estimate

    def apply(self, matrix: ScoreMatrix) -> Floats:
        """Return the scores on the common scale: (models, tasks), higher is better."""
        if self.method is AggregateMethod.MEAN_RANK:
            return win_shares(matrix.oriented())
        return np.asarray(matrix.oriented() * self.factors)


def win_shares(scores: Floats) -> Floats:
    """Return the share of the other models that each beats on each task, ties half: (…, models, tasks)."""
    ranks = rankdata(scores, axis=-2, nan_policy="omit")
    scored = np.isfinite(scores).sum(axis=-2, keepdims=True)
    return np.asarray((ranks - 1.0) / np.maximum(scored - 1, 1))


@dataclass(frozen=True)
class Ranking(Finding):
    """Models from best to worst under one protocol, and how likely each is the first."""

    protocol: Protocol
    method: AggregateMethod
    models: tuple[str, ...]  # best first
    tasks: tuple[str, ...]
    scores: Floats  # (models,) by the method; higher is better
    ranks: Floats
    low: Floats  # best rank within the interval; NaN where nothing can be claimed
    high: Floats
    p_first: Floats  # NaN where nothing can be claimed
    p_beats: (
        Floats  # (models,): probability that the first of them is better than each; NaN for itself
    )
    task_counts: tuple[int, ...]  # tasks that each model was measured on
    generalizes: bool  # whether the draws are of other tasks like these too
    groups: TaskGroups
    unranked: tuple[str, ...] = ()  # models that share no task with any other
    # Rankings of models that share no task with these, where there are two or more such models.
    other_parts: tuple[Ranking, ...] = ()
    without_error: tuple[
        tuple[str, str], ...
    ] = ()  # (model, task) of scores without standard error
    level: float = LEVEL
    task_scales: Floats = field(default_factory=lambda: np.zeros(0), repr=False)  # (tasks,)
    drawn_scores: Floats = field(
        default_factory=lambda: np.zeros((0, 0)), repr=False
    )  # (draws, models)
    pair_tester: PairTester | None = field(default=None, repr=False)  # of any two of these models

    @classmethod
    def from_draws(
        cls,
        matrix: ScoreMatrix,
        scores: FilledScores,
        drawn_scores: Floats,
        *,
        pair_tester: PairTester,
        generalizes: bool,
        level: float,
        seed: int,
    ) -> Ranking:
        """Rank the models by their estimates, with the ranks and the chances that the draws give them.

        That the first is better than another is what their own test says.
        """
        models = len(matrix.models)
        order = np.argsort(-scores.estimate, kind="stable")
        low = high = p_first = p_beats = np.full(models, np.nan)
        if len(drawn_scores):
            tail_share = (1 - level) / 2
            low, high = np.quantile(
                rankdata(-drawn_scores, axis=1), [tail_share, 1 - tail_share], axis=0
            )
            shrunk = drawn_scores
            if models >= ENOUGH_MODELS:
                shrunk = shrink_draws(drawn_scores, np.random.default_rng([seed, 1]))
            p_first = first_place_shares(shrunk)
            p_beats = _test_first(
                pair_tester, matrix.models[int(order[0])], generalizes=generalizes
            )
        if models == 2 and len(drawn_scores):
            # The one pair that there is: its test says how likely each is to be first.
            p_first, low, high = _place_two(p_beats, level)
        ranks = rankdata(-np.round(scores.estimate, 12))
        centred_scores = scores.scale.centre(scores.estimate)
        task_counts = np.isfinite(matrix.values).sum(axis=1)[order]
        return cls(
            protocol=matrix.protocol,
            method=scores.scale.method,
            models=select_positions(matrix.models, order),
            tasks=matrix.tasks,
            scores=centred_scores[order],
            ranks=ranks[order],
            low=low[order],
            high=high[order],
            p_first=p_first[order],
            p_beats=p_beats[order],
            task_counts=tuple(task_counts.tolist()),
            generalizes=generalizes,
            groups=scores.groups,
            without_error=list_scores_without_error(matrix),
            level=level,
            task_scales=scores.scale.factors,
            drawn_scores=drawn_scores[:, order],
            pair_tester=pair_tester,
        )

    @property
    def reason(self) -> str:
        """Why this method."""
        return self.method.reason

    @property
    def can_claim(self) -> bool:
        """Whether the uncertainty of the scores is known, so that one model may be called better than another.

        That takes enough tasks, or a standard error of every score.
        """
        return bool(len(self.drawn_scores))

    @property
    def has_no_errors(self) -> bool:
        """Whether no score has a standard error."""
        return bool(self.without_error) and len(self.without_error) == sum(self.task_counts)

    @property
    def first(self) -> str:
        """The model that is most likely the best; where nothing can be claimed the one with the best score."""
        if not self.can_claim or self.is_first_certain:
            return self.models[0]
        return self.models[int(np.argmax(np.round(self.p_first, 2)))]

    @property
    def p_beats_closest(self) -> float:
        """The probability that the first is better than the model that comes closest to it; NaN without claims."""
        if not self.can_claim or len(self.models) < 2:
            return math.nan
        return float(np.nanmin(self.p_beats))

    @property
    def closest(self) -> str | None:
        """The model that is hardest to tell from the first of all; None where nothing can be claimed."""
        if not self.can_claim or len(self.models) < 2:
            return None
        return self.models[int(np.nanargmin(self.p_beats))]

    @property
    def is_first_certain(self) -> bool:
        """Whether the first may be called the best: it is significantly better than each of the others."""
        return self.p_beats_closest >= CLAIM_PROBABILITY

    @property
    def rivals(self) -> tuple[str, ...]:
        """The likeliest other model, and all others that are first with at least ``RIVAL_CHANCE``.

        None where the first is certain or nothing can be claimed.
        """
        if self.is_first_certain or not self.can_claim:
            return ()
        chances = dict(zip(self.models, self.p_first.tolist(), strict=True))
        other_models = [model for model in self.models if model != self.first]
        other_models.sort(key=lambda model: -chances[model])
        likely = [model for model in other_models[1:] if chances[model] >= RIVAL_CHANCE]
        return (*other_models[:1], *likely)

    @property
    def rival_variants(self) -> tuple[str, ...]:
        """The rivals that are the first itself in other bits, at another step or exposed; none where all models are."""
        original = variant_of(self.first)
        if all(variant_of(model) == original for model in self.models):
            return ()
        return tuple(model for model in self.rivals if variant_of(model) == original)

    def rank_of(self, model: str) -> float | None:
        """Return a model's rank; None where it has none."""
        if model not in self.models:
            return None
        return float(self.ranks[self.models.index(model)])

    def draws_of(self, model: str) -> Floats:
        """Return draws of a model's overall score, which vary as it is uncertain; higher is better."""
        return self.drawn_scores[:, self.models.index(model)]

    def probability_better(self, first: str, second: str) -> float:
        """Return the probability that the first model is better than the second; NaN where nothing is claimed."""
        pair_test = self.test_pair(first, second)
        return math.nan if pair_test is None else pair_test.chance

    def test_pair(self, first: str, second: str) -> PairTest | None:
        """Test two models on the tasks that both have; None where they share none."""
        for part in self.other_parts:
            if first in part.models:
                return part.test_pair(first, second)
        if self.pair_tester is None or not {first, second} <= set(self.models):
            return None
        return self.pair_tester.test(first, second)

    def tables(self) -> Sequence[Table]:
        """Return the ranking, and those of the models that cannot be compared with these."""
        table_rows = zip(
            self.models,
            [ValuedText(f"{rank:g}", value=rank) for rank in self.ranks.tolist()],
            map(format_rank_span, self.low, self.high),
            self.p_first,
            self.task_counts,
            self.scores,
            strict=True,
        )
        matrix_size = f"{len(self.models)} models × {self.groups.describe_size()}"
        title = f"Overall ranking ({self.protocol.label}, {matrix_size})"
        column_names = (
            "model",
            "rank",
            f"{self.level:.0%} interval",
            "P(first)",
            "tasks",
            self.method,
        )
        notes = [f"By the {self.method.label}: {self.reason}."]
        if self.groups.has_several_tasks_in_one:
            notes.append(self.groups.describe_groups())
        if self.unranked:
            notes.append(
                f"Not ranked, because they share no task with the others: {', '.join(self.unranked)}."
            )
        frame_names = {f"{self.level:.0%} interval": "rank"}
        table_note = " ".join(notes)
        tables = [
            Table(title, column_names, table_rows, table_note, digits=2, frame_names=frame_names)
        ]
        for part in self.other_parts:
            tables += part.tables()
        return tables


def _test_first(pair_tester: PairTester, first: str, *, generalizes: bool) -> Floats:
    """Return the probability that one model is better than each of the others; NaN for itself.

    It is one half where their own scores say nothing: where two share no task, or too few to speak of others.
    """
    chances = []
    for model in pair_tester.matrix.models:
        if model == first:
            chances.append(math.nan)
            continue
        pair_test = pair_tester.test(first, model, of_other_tasks=generalizes)
        chance = 0.5
        if pair_test is not None and (pair_test.generalizes or not generalizes):
            chance = pair_test.chance
        chances.append(0.5 if math.isnan(chance) else chance)
    return np.array(chances)


def _place_two(p_beats: Floats, level: float) -> tuple[Floats, Floats, Floats]:
    """Return of two models the probabilities of first place, and the ends of the intervals of their ranks."""
    chance = float(np.nanmax(p_beats))
    is_first = np.isnan(p_beats)
    p_first = np.where(is_first, chance, 1 - chance)
    own_rank = np.where(is_first, 1.0, 2.0)
    if chance >= 0.5 + level / 2:
        return p_first, own_rank, own_rank
    return p_first, np.array([1.0, 1.0]), np.array([2.0, 2.0])


def format_rank_span(low: float, high: float) -> str | None:
    """Write an interval of ranks; None where it is not known."""
    if not math.isfinite(low):
        return None
    return ValuedText(f"{low:.0f}–{high:.0f}", low=low, high=high)


def decide_ranking(
    matrix: ScoreMatrix,
    items: Outcomes | None = None,
    *,
    task_groups: Mapping[str, str] | None = None,
    cell_sampler: CellSampler | None = None,
    level: float = LEVEL,
    seed: int = 0,
    draw_count: int = DRAWS,
) -> Ranking:
    """Rank the models of a matrix over all its tasks.

    ``items`` are stored outcomes, for paired noise; ``task_groups`` are groups by task that the user names, else names
    and facts decide; ``cell_sampler`` draws the missing cells, else the model + task fit does. Models that no chain of
    common tasks connects are ranked in parts: the part with the most scores comes first.
    """
    parts = [matrix] if cell_sampler is not None else connected_parts(matrix)
    rankings: list[Ranking] = []
    unranked: list[str] = []
    for part in parts:
        if rankings and len(part.models) < 2:
            unranked += part.models
        else:
            rankings.append(
                _rank_connected(part, items, task_groups, cell_sampler, level, seed, draw_count)
            )
    return replace(rankings[0], unranked=tuple(unranked), other_parts=tuple(rankings[1:]))


def _rank_connected(
    matrix: ScoreMatrix,
    items: Outcomes | None,
    task_groups: Mapping[str, str] | None,
    cell_sampler: CellSampler | None,
    level: float,
    seed: int,
    draw_count: int,
) -> Ranking:
    """Rank models that are connected by common tasks."""
    rng = np.random.default_rng(seed)
    groups = TaskGroups.find(matrix.tasks, task_groups)
    generalizes = has_enough_tasks(matrix, groups)
    noise = noise_by_task(matrix, items)
    scores = fill_scores(matrix, groups, noise, cell_sampler, generalizes=generalizes, rng=rng)
    drawn_scores = np.zeros((0, len(matrix.models)))
    if len(matrix.models) > 1 and (generalizes or scores.can_draw_noise):
        drawn_scores = draw_aggregates(
            matrix,
            scores,
            noise,
            draws=int(np.clip(MOST_NUMBERS // len(matrix.models), LEAST_DRAWS, draw_count)),
            generalizes=generalizes,
            rng=rng,
        )
    z_factors = None
    if scores.scale.method is AggregateMethod.MEAN_Z:
        z_factors = scores.scale.factors
    return Ranking.from_draws(
        matrix,
        scores,
        drawn_scores,
        pair_tester=PairTester(matrix, items, groups, z_factors, noise),
        generalizes=generalizes,
        level=level,
        seed=seed,
    )


def connected_parts(matrix: ScoreMatrix) -> list[ScoreMatrix]:
    """Return the parts whose models are connected by common tasks, the one with the most scores first."""
    measured = np.isfinite(matrix.values)
    models, tasks = matrix.shape
    rows, columns = np.nonzero(measured)
    edges = (rows, models + columns)
    nodes = models + tasks
    graph = coo_array((np.ones(len(rows)), edges), shape=(nodes, nodes))
    _, part_of_node = connected_components(graph, directed=False)
    part_of_model = part_of_node[:models]
    numbers = np.unique(part_of_model)
    if len(numbers) == 1:
        return [matrix]
    parts = []
    for number in numbers:
        members = part_of_model == number
        parts.append(matrix.select(models=members, tasks=measured[members].any(axis=0)))
    parts.sort(key=_size_of_part, reverse=True)
    return parts


def _size_of_part(matrix_part: ScoreMatrix) -> tuple[bool, int, int]:
    """Return whether a part has models to compare, how many scores and how many models."""
    models = len(matrix_part.models)
    return models > 1, int(np.isfinite(matrix_part.values).sum()), models


def has_enough_tasks(matrix: ScoreMatrix, groups: TaskGroups) -> bool:
    """Whether the models were measured on enough groups of tasks to speak of other tasks like these."""
    groups_of_models = groups.count_by_model(np.isfinite(matrix.values))
    return float(np.median(groups_of_models)) >= ENOUGH_TASKS


def list_scores_without_error(matrix: ScoreMatrix) -> tuple[tuple[str, str], ...]:
    """Return the model and the task of every score that has no standard error."""
    lacking = np.isfinite(matrix.values) & ~np.isfinite(matrix.stderr)
    return tuple(
        (matrix.models[row], matrix.tasks[column]) for row, column in np.argwhere(lacking).tolist()
    )


def has_all_errors(matrix: ScoreMatrix) -> bool:
    """Whether every score has a standard error."""
    return bool(np.isfinite(matrix.stderr[np.isfinite(matrix.values)]).all())


def noise_by_task(matrix: ScoreMatrix, items: Outcomes | None) -> list[TaskNoise]:
    """Return the test noise of every task."""
    return [task_noise(matrix, column, items) for column in range(len(matrix.tasks))]


class FilledScores(Interface):
    """Scores on the common scale without gaps: as measured, or with the missing cells drawn."""

    scale: AggregateScale
    groups: TaskGroups
    estimate: Floats  # (models,): the overall score
    includes_noise: bool  # whether test noise is drawn together with the missing cells
    can_draw_noise: bool  # whether every error is known that draws of test noise need

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield scores (1 or draws, models, tasks), and for how many draws they are."""
        ...


def fill_scores(
    matrix: ScoreMatrix,
    groups: TaskGroups,
    noise: Sequence[TaskNoise],
    cell_sampler: CellSampler | None,
    *,
    generalizes: bool,
    rng: np.random.Generator,
) -> FilledScores:
    """Choose where missing cells are taken from: nowhere, from the completion of the study, or from a fit."""
    if np.isfinite(matrix.values).all():
        return CompleteScores(matrix, groups)
    if cell_sampler is not None:
        return PredictedScores(matrix, groups, cell_sampler, rng)
    return AdditiveFit(matrix, groups, noise, draws_cells=generalizes)


class CompleteScores:
    """Every model has a score on every task."""

    includes_noise = False

    def __init__(self, matrix: ScoreMatrix, groups: TaskGroups) -> None:
        self.groups = groups
        self.scale = AggregateScale.choose(matrix)
        self.scores = self.scale.apply(matrix)
        self.can_draw_noise = has_all_errors(matrix)
        self.estimate: Floats = self.scores @ groups.weights

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield the one matrix, for all draws."""
        yield self.scores[None], count


class PredictedScores:
    """Missing cells are drawn as the completion of an unfinished study predicts them."""

    includes_noise = False

    def __init__(
        self,
        matrix: ScoreMatrix,
        groups: TaskGroups,
        cell_sampler: CellSampler,
        rng: np.random.Generator,
    ) -> None:
        self.matrix = matrix
        self.groups = groups
        self.cell_sampler = cell_sampler
        self.can_draw_noise = has_all_errors(matrix)
        predicted = np.concatenate(list(cell_sampler(2 * LEAST_DRAWS, rng)))
        filled = self._fill_gaps(predicted)
        self.scale = AggregateScale.choose(matrix, filled)
        self.estimate: Floats = self._scale(filled).mean(axis=0) @ groups.weights

    def _fill_gaps(self, predicted: Floats) -> Floats:
        """Return predicted cells (draws, models, tasks) with the measured ones in their place."""
        return np.where(np.isfinite(self.matrix.values), self.matrix.values, predicted)

    def _scale(self, filled: Floats) -> Floats:
        """Put filled cells (draws, models, tasks) on the common scale."""
        oriented = filled * self.matrix.sign
        if self.scale.method is AggregateMethod.MEAN_RANK:
            return win_shares(oriented)
        return oriented * self.scale.factors

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield draws of all cells, some at a time."""
        for predicted in self.cell_sampler(count, rng):
            yield self._scale(self._fill_gaps(predicted)), len(predicted)


class AdditiveFit:
    """Missing cells are drawn from a fit of model + task to the measured ones.

    Luck in a measured cell moves the cells that are predicted from it. Where the draws are of these tasks alone, both
    are therefore drawn at once, and the noise of the measured cells is in the draws. What a model has of its own on
    one task of a group it has on all of them: a missing group is as uncertain as one missing task.
    """

    def __init__(
        self,
        matrix: ScoreMatrix,
        groups: TaskGroups,
        noise: Sequence[TaskNoise],
        *,
        draws_cells: bool,
    ) -> None:
        self.groups = groups
        self.scale = AggregateScale.choose(matrix)
        self.includes_noise = not draws_cells
        self.measured = np.isfinite(matrix.values)
        self.scores = self.scale.apply(matrix)
        # With the least that an accuracy has, and with clusters: more than the stored errors may say.
        errors = np.stack([task.errors for task in noise], axis=1) * self.scale.factors
        self.errors = np.where(self.measured, errors, 0.0)
        # Noise of a score is no noise of a rank.
        has_scores = self.scale.method is not AggregateMethod.MEAN_RANK
        self.can_draw_noise = has_scores and has_all_errors(matrix)
        fit = fit_model_and_task(self.scores[None], self.measured)
        self.residuals = np.where(self.measured, self.scores - fit, 0.0)
        self.estimate: Floats = fit[0] @ groups.weights

    def draw_chunks(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Yield draws of all cells, some at a time, with all that the fit leaves open."""
        models, tasks = self.scores.shape
        degrees_of_freedom = int(self.measured.sum()) - models - tasks + 1
        residual_deviation = math.sqrt(self._residual_variance(degrees_of_freedom))
        observed = np.where(self.measured, self.scores, 0.0)
        for start in range(0, count, CHUNK):
            chunk_size = min(CHUNK, count - start)
            chi_square = rng.chisquare(max(degrees_of_freedom, 1), size=chunk_size)
            widening = np.sqrt(max(degrees_of_freedom, 1) / chi_square)
            deviation = residual_deviation * widening[:, None, None]
            noise = rng.standard_normal((chunk_size, models, tasks))
            drawn_fit = fit_model_and_task(observed + deviation * noise, self.measured)
            own_of_groups = rng.standard_normal((chunk_size, models, len(self.groups.names)))
            predicted = drawn_fit + deviation * own_of_groups[:, :, self.groups.positions]
            scores = self.scores
            if self.includes_noise:
                scores = self.scores + self.errors * noise
            yield np.where(self.measured, scores, predicted), chunk_size

    def _residual_variance(self, degrees_of_freedom: int) -> float:
        """Return the variance about the fit, at least that of the test noise."""
        if degrees_of_freedom > 0:
            variance = float((self.residuals**2).sum()) / degrees_of_freedom
        else:
            variance = float(np.nanvar(self.scores))
        return max(variance, float((self.errors[self.measured] ** 2).mean()))


def fit_model_and_task(scores: Floats, measured: npt.NDArray[np.bool_]) -> Floats:
    """Fit model + task by least squares to the measured cells of each (draws, models, tasks); return the fit."""
    is_measured = measured.astype(np.float64)
    values = np.where(measured, scores, 0.0)
    tasks_of_model = is_measured.sum(axis=1)
    models_of_task = is_measured.sum(axis=0)
    sums_of_model = values.sum(axis=2)
    # The normal equations of the tasks, with the models eliminated.
    system = np.diag(models_of_task) - is_measured.T @ (is_measured / tasks_of_model[:, None])
    right_side = values.sum(axis=1) - (sums_of_model / tasks_of_model) @ is_measured
    task_effects = right_side @ np.linalg.pinv(system, hermitian=True)
    model_effects = (sums_of_model - task_effects @ is_measured.T) / tasks_of_model
    return np.asarray(model_effects[:, :, None] + task_effects[:, None, :])


def draw_aggregates(
    matrix: ScoreMatrix,
    scores: FilledScores,
    noise: Sequence[TaskNoise],
    *,
    draws: int,
    generalizes: bool,
    rng: np.random.Generator,
) -> Floats:
    """Draw the overall score of every model: (draws, models), centred on the estimate."""
    method = scores.scale.method
    is_ranked = method is AggregateMethod.MEAN_RANK
    if is_ranked and not generalizes:
        return _draw_win_shares(matrix, scores.groups, noise, draws, rng)
    chunks = []
    for filled, chunk_size in scores.draw_chunks(draws, rng):
        if generalizes:
            noise_variance = 0.0 if is_ranked else _noise_of_groups(matrix, scores, noise)
            of_groups = scores.groups.average(filled)
            chunks.append(_draw_other_tasks(of_groups, noise_variance, chunk_size, rng, method))
        elif scores.includes_noise:
            chunks.append(filled @ scores.groups.weights)
        else:
            errors = _draw_test_noise(matrix, scores, noise, chunk_size, rng)
            chunks.append(filled @ scores.groups.weights + errors)
    drawn = np.concatenate(chunks)
    return np.asarray(drawn - drawn.mean(axis=0) + scores.estimate)


def _noise_of_groups(
    matrix: ScoreMatrix, scores: FilledScores, noise: Sequence[TaskNoise]
) -> float:
    """Return the variance about their mean that test noise alone gives the models, summed over all groups.

    A z score is divided by the spread of its task, which by luck may be small: noise is at most all of that spread.
    """
    is_standardised = scores.scale.method is AggregateMethod.MEAN_Z
    multipliers = scores.scale.factors * scores.groups.shares
    total = 0.0
    for column, task in enumerate(noise):
        variance = task.variance_about_mean
        if is_standardised and np.isfinite(matrix.values[:, column]).any():
            values = matrix.values[:, column]
            known_values = values[np.isfinite(values)]
            variance = min(variance, float(known_values.size * known_values.var()))
        total += variance * float(multipliers[column]) ** 2
    return total


def _draw_other_tasks(
    of_groups: Floats,
    noise_variance: float,
    draws: int,
    rng: np.random.Generator,
    method: AggregateMethod,
) -> Floats:
    """Draw the mean over other tasks like these from (1 or draws, models, groups of tasks), as Student's t.

    Scores may by chance vary less over tasks than their noise alone would make them; the draws never do. Ranks that
    are the same on all tasks do not vary at all, so their deviations are taken from what equal models would have.
    """
    models, groups = of_groups.shape[1:]
    mean = of_groups.mean(axis=2)
    deviations = of_groups - mean[:, :, None]
    # What all models share changes no rank.
    deviations = deviations - deviations.mean(axis=1, keepdims=True)
    if method is AggregateMethod.MEAN_RANK:
        deviations = of_groups - of_groups.mean(axis=1, keepdims=True)
    variance = float((deviations**2).sum(axis=(1, 2)).mean()) * groups / (groups - 1)
    widening = 1.0
    if variance > 0:
        widening = max(1.0, math.sqrt(noise_variance / variance))
    if method is AggregateMethod.MEAN_Z:
        widening *= widening_of_z(models, groups)
    normals = rng.standard_normal((draws, groups))
    chi_square = rng.chisquare(groups - 1, size=(draws, 1))
    weights = normals * np.sqrt((groups - 1) / chi_square)
    weights *= widening / math.sqrt(groups * (groups - 1))
    if len(deviations) == 1:
        moved = weights @ deviations[0].T
    else:
        moved = np.einsum("kt,kmt->km", weights, deviations)
    return np.asarray(mean + moved)


def _draw_test_noise(
    matrix: ScoreMatrix,
    scores: FilledScores,
    noise: Sequence[TaskNoise],
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw the test noise of every model's mean over these tasks: (draws, models)."""
    measured = np.isfinite(matrix.values)
    weights = scores.scale.factors * scores.groups.weights
    total = np.zeros((draws, len(matrix.models)))
    for column, task in enumerate(noise):
        normals = rng.standard_normal((draws, len(matrix.models)))
        total += weights[column] * measured[:, column] * task.scale_draws(normals)
    return total


def _draw_win_shares(
    matrix: ScoreMatrix,
    groups: TaskGroups,
    noise: Sequence[TaskNoise],
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw the share of comparisons won over these tasks, with other test documents: (draws, models)."""
    scores = matrix.oriented()
    total = np.zeros((draws, len(matrix.models)))
    for column, task in enumerate(noise):
        normals = rng.standard_normal((draws, len(matrix.models)))
        redrawn = scores[:, column] + task.scale_draws(normals)
        total += groups.weights[column] * win_shares(redrawn[:, :, None])[:, :, 0]
    return total

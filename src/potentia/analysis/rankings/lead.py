"""How far one model is ahead of another, and what more would have to be measured to separate the two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm
from scipy.stats import t as student_t

from potentia.analysis.rankings.decide import (
    CLAIM_PROBABILITY,
    AggregateMethod,
    Ranking,
    has_one_scale,
)
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import POWER
from potentia.values.findings import Interval, select_positions
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

MOST_TIMES = 100.0  # times as many test examples as there are: more are out of reach
MOST_TASKS = 10.0
SPLIT_LEVEL = 0.05  # of the tests that say that each of two models leads on a task


@dataclass(frozen=True)
class Lead:
    """How far one model lies above another on the tasks that both have."""

    first: str
    second: str
    tasks: int
    # Of the mean scores, with its interval of test noise; None where tasks of different scales have no mean.
    difference: Interval | None
    tasks_ahead: int  # on which the first scores more
    chance: float  # that the first is better, as the ranking draws it
    generalizes: bool  # on other tasks like these too
    are_shares: bool = (
        False  # whether scores are shares of 1, so that a difference is told in points
    )

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY


def measure_lead(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str
) -> Lead | None:
    """Compare two models; the likelier of them comes first. None where they share no task."""
    score_gaps = ScoreGaps.measure(matrix, items, first, second, ranking.groups)
    if score_gaps is None:
        return None
    chance = ranking.probability_better(first, second)
    # Models that score alike stay in their order.
    if chance < 0.5 and score_gaps.differences.any():
        first, second = second, first
        chance = 1.0 - chance
        score_gaps = score_gaps.reversed()
    difference = score_gaps.mean_difference(ranking.level)
    tasks_ahead = int((score_gaps.differences > 0).sum())
    return Lead(
        first=first,
        second=second,
        tasks=len(score_gaps.tasks),
        difference=difference,
        tasks_ahead=tasks_ahead,
        chance=chance,
        generalizes=ranking.generalizes,
        are_shares=score_gaps.are_shares,
    )


@dataclass(frozen=True)
class ScoreGaps:
    """The differences of two models on the tasks that both have."""

    tasks: tuple[str, ...]
    groups: TaskGroups  # of these tasks
    differences: Floats  # (tasks,): of the first over the second; more is better
    variances: Floats  # (tasks,): by test noise; NaN without standard errors
    has_one_scale: bool  # whether the differences may be averaged
    are_shares: bool  # whether the scores are shares of 1

    @classmethod
    def measure(
        cls,
        matrix: ScoreMatrix,
        items: Outcomes | None,
        first: str,
        second: str,
        groups: TaskGroups,
    ) -> ScoreGaps | None:
        """Measure the differences; None where the models share no task."""
        pair_matrix = matrix.select(models=[first, second])
        columns = np.flatnonzero(np.isfinite(pair_matrix.values).all(axis=0))
        if not len(columns):
            return None
        covariances = [
            task_noise(pair_matrix, int(column), items).full_covariance() for column in columns
        ]
        noise = np.stack(covariances)  # (tasks, 2, 2)
        variances = noise[:, 0, 0] + noise[:, 1, 1] - 2 * noise[:, 0, 1]
        # Of a model and its copy, rounding may leave less than nothing.
        variances = np.maximum(variances, 0.0)
        has_errors = np.isfinite(pair_matrix.stderr[:, columns]).all(axis=0)
        scores = pair_matrix.oriented()[:, columns]
        tasks = select_positions(matrix.tasks, columns)
        known_tasks = set(groups.tasks)
        differences = scores[0] - scores[1]
        return cls(
            tasks=tasks,
            groups=groups.select(tasks)
            if known_tasks.issuperset(tasks)
            else TaskGroups.find(tasks),
            differences=differences,
            variances=np.where(has_errors, variances, np.nan),
            has_one_scale=has_one_scale(pair_matrix.select(tasks=columns)),
            are_shares=pair_matrix.select(tasks=columns).has_unit_scale,
        )

    def reversed(self) -> ScoreGaps:
        """Return the differences of the second model over the first."""
        return replace(self, differences=-self.differences)

    def mean_difference(self, level: float) -> Interval | None:
        """Return the difference of the mean scores with its interval of test noise; None without a common scale."""
        if not self.has_one_scale:
            return None
        weights = self.groups.weights
        error = math.sqrt(float(weights**2 @ self.variances))
        half_width = float(norm.ppf(0.5 + level / 2)) * error
        return Interval.around(float(weights @ self.differences), half_width, level)

    @property
    def is_split(self) -> bool:
        """Whether each of the two models leads on a task by more than test noise (Bonferroni, 5 %)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z_scores = self.differences / np.sqrt(self.variances)
        threshold = float(norm.ppf(1 - SPLIT_LEVEL / (2 * len(self.tasks))))
        return bool((z_scores > threshold).any() and (z_scores < -threshold).any())

    def vary_by_group(self, scales: Floats) -> bool:
        """Whether the differences on a common scale vary over groups of tasks by more than test noise (Cochran's Q)."""
        groups = len(self.groups.names)
        differences = self.groups.average(self.differences * scales)
        shares = scales * self.groups.shares
        variances = np.bincount(self.groups.positions, shares**2 * self.variances, minlength=groups)
        if not (variances > 0).all():
            return bool(np.ptp(differences) > 0)
        weights = 1.0 / variances
        deviations = differences - np.average(differences, weights=weights)
        return bool(chi2.sf(float(weights @ deviations**2), groups - 1) < SPLIT_LEVEL)


@dataclass(frozen=True)
class MissingEvidence:
    """What would separate two models with 80 % power; ``examples`` and ``tasks`` are more than there are now."""

    first: str
    rival: str
    times: float  # as many test examples; infinite where the choice of tasks alone could change the order
    examples: int | None  # per task; None where their number is not known, or none would do
    tasks: int | None  # where more examples alone would not do; None beyond reach
    has_several_tasks: bool
    is_split: bool  # each leads on a task by more than test noise
    # Whether the scores differ more by the choice of tasks than these two do; None where luck may look so.
    is_limited_by_tasks: bool | None = False


def estimate_missing_evidence(
    ranking: Ranking,
    matrix: ScoreMatrix,
    items: Outcomes | None,
    test_sizes: Mapping[str, float],
    first: str,
    rival: str,
) -> MissingEvidence | None:
    """Return how many test examples or tasks would separate two models, if they differ as much as they seem to.

    The variance of their difference in the ranking has two parts: test noise, which falls with the examples, and the
    rest, which falls with the tasks alone. That there is such a rest is tested: a difference that varies over tasks
    no more than by test noise does not say that examples would not do. None where nothing is missing or no error is
    known.
    """
    if ranking.method is AggregateMethod.MEAN_RANK:
        return None
    score_gaps = ScoreGaps.measure(matrix, items, first, rival, ranking.groups)
    if score_gaps is None or not ranking.can_claim or not np.isfinite(score_gaps.variances).all():
        return None
    chance = ranking.probability_better(first, rival)
    if not chance < CLAIM_PROBABILITY:
        return None
    groups = len(score_gaps.groups.names)
    difference = ranking.draws_of(first) - ranking.draws_of(rival)
    scales = ranking.task_scales[[ranking.tasks.index(task) for task in score_gaps.tasks]]
    noise_variance = float((scales * score_gaps.groups.weights) ** 2 @ score_gaps.variances)
    variance = noise_variance
    detectable = detectable_z()
    varies_by_task = False
    if ranking.generalizes:
        freedom = len(ranking.groups.names) - 1
        # The draws are Student's t, which vary more than the mean that they are of.
        variance = max(float(np.var(difference)) * (freedom - 2) / freedom, noise_variance)
        detectable = float(student_t.ppf(0.5 + LEVEL / 2, freedom) + student_t.ppf(POWER, freedom))
        varies_by_task = score_gaps.vary_by_group(scales)
    task_variance = variance - noise_variance
    allowed = (float(difference.mean()) / detectable) ** 2
    is_limited_by_tasks: bool | None = allowed <= task_variance
    if is_limited_by_tasks and not varies_by_task:
        is_limited_by_tasks = None
    times = math.inf
    more_examples = None
    more_tasks = None
    if allowed > task_variance and 0 < noise_variance <= MOST_TIMES * (allowed - task_variance):
        times = noise_variance / (allowed - task_variance)
        more_examples = _count_more_examples(times, score_gaps.tasks, test_sizes)
    elif ranking.generalizes and allowed > 0:
        needed = groups * variance / allowed
        if needed <= MOST_TASKS * groups:
            more_tasks = max(1, math.ceil(needed) - groups)
    return MissingEvidence(
        first=first,
        rival=rival,
        times=times,
        examples=more_examples,
        tasks=more_tasks,
        has_several_tasks=len(score_gaps.tasks) > 1,
        is_split=score_gaps.is_split,
        is_limited_by_tasks=is_limited_by_tasks,
    )


def _count_more_examples(
    times: float, tasks: tuple[str, ...], test_sizes: Mapping[str, float]
) -> int | None:
    """Return how many more test examples a task needs to have so many times as many; None where sizes are not known."""
    sizes = [test_sizes[task] for task in tasks if task in test_sizes]
    if not sizes:
        return None
    more_examples = max(1, math.ceil((times - 1) * float(np.median(sizes))))
    # Two digits, rounded up: nobody knows more.
    rounding_unit = int(10 ** max(0, len(str(more_examples)) - 2))
    return math.ceil(more_examples / rounding_unit) * rounding_unit


def detectable_z(level: float = LEVEL) -> float:
    """Return the standard errors of a difference that is found with 80 % power."""
    return float(norm.ppf(0.5 + level / 2) + norm.ppf(POWER))

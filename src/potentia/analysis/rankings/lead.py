"""How far one model is ahead of another, and what more would have to be measured to separate the two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

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

MOST_DOCUMENTS = 100.0  # times as many as there are: more are out of reach
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

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY


def measure_lead(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str
) -> Lead | None:
    """Compare two models; the likelier of them comes first. None where they share no task."""
    gaps = ScoreGaps.measure(matrix, items, first, second, ranking.groups)
    if gaps is None:
        return None
    chance = ranking.probability_better(first, second)
    # Models that score alike stay in their order.
    if chance < 0.5 and gaps.differences.any():
        first, second = second, first
        chance = 1.0 - chance
        gaps = gaps.reversed()
    return Lead(
        first=first,
        second=second,
        tasks=len(gaps.tasks),
        difference=gaps.mean_difference(ranking.level),
        tasks_ahead=int((gaps.differences > 0).sum()),
        chance=chance,
        generalizes=ranking.generalizes,
    )


@dataclass(frozen=True)
class ScoreGaps:
    """The differences of two models on the tasks that both have."""

    tasks: tuple[str, ...]
    groups: TaskGroups  # of these tasks
    differences: Floats  # (tasks,): of the first over the second; more is better
    variances: Floats  # (tasks,): by test noise; NaN without standard errors
    has_one_scale: bool  # whether the differences may be averaged

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
        pair = matrix.select(models=[first, second])
        columns = np.flatnonzero(np.isfinite(pair.values).all(axis=0))
        if not len(columns):
            return None
        covariances = [task_noise(pair, int(k), items).full_covariance() for k in columns]
        noise = np.stack(covariances)  # (tasks, 2, 2)
        variances = noise[:, 0, 0] + noise[:, 1, 1] - 2 * noise[:, 0, 1]
        has_errors = np.isfinite(pair.stderr[:, columns]).all(axis=0)
        scores = pair.oriented()[:, columns]
        tasks = select_positions(matrix.tasks, columns)
        known_tasks = set(groups.tasks)
        return cls(
            tasks=tasks,
            groups=groups.select(tasks)
            if known_tasks.issuperset(tasks)
            else TaskGroups.find(tasks),
            differences=scores[0] - scores[1],
            variances=np.where(has_errors, variances, np.nan),
            has_one_scale=has_one_scale(pair.select(tasks=columns)),
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


@dataclass(frozen=True)
class MissingEvidence:
    """What would separate two models with 80 % power; ``documents`` and ``tasks`` are more than there are now."""

    first: str
    rival: str
    times: float  # as many test documents; infinite where the choice of tasks alone could change the order
    documents: int | None  # per task; None where their number is not known, or none would do
    tasks: int | None  # where documents alone would not do; None beyond reach
    has_several_tasks: bool
    is_split: bool  # each leads on a task by more than test noise
    # Whether the scores differ more by the choice of tasks than these two do.
    is_limited_by_tasks: bool = False


def estimate_missing_evidence(
    ranking: Ranking,
    matrix: ScoreMatrix,
    items: Outcomes | None,
    test_sizes: Mapping[str, float],
    first: str,
    rival: str,
) -> MissingEvidence | None:
    """Return how many documents or tasks would separate two models, if they differ as much as they seem to.

    The variance of their difference in the ranking has two parts: test noise, which falls with the documents, and the
    rest, which falls with the tasks alone. None where nothing is missing or no error is known.
    """
    if ranking.method is AggregateMethod.MEAN_RANK:
        return None
    gaps = ScoreGaps.measure(matrix, items, first, rival, ranking.groups)
    if gaps is None or not ranking.can_claim or not np.isfinite(gaps.variances).all():
        return None
    chance = ranking.probability_better(first, rival)
    if not chance < CLAIM_PROBABILITY:
        return None
    groups = len(gaps.groups.names)
    difference = ranking.draws_of(first) - ranking.draws_of(rival)
    scales = ranking.task_scales[[ranking.tasks.index(task) for task in gaps.tasks]]
    noise_variance = float((scales * gaps.groups.weights) ** 2 @ gaps.variances)
    variance = noise_variance
    if ranking.generalizes:
        variance = max(float(np.var(difference)), noise_variance)
    task_variance = variance - noise_variance
    allowed = (float(difference.mean()) / detectable_z()) ** 2
    times = math.inf
    more_documents = None
    more_tasks = None
    if allowed > task_variance and 0 < noise_variance <= MOST_DOCUMENTS * (allowed - task_variance):
        times = noise_variance / (allowed - task_variance)
        more_documents = _count_more_documents(times, gaps.tasks, test_sizes)
    elif ranking.generalizes and allowed > 0:
        needed = groups * variance / allowed
        if needed <= MOST_TASKS * groups:
            more_tasks = max(1, math.ceil(needed) - groups)
    return MissingEvidence(
        first=first,
        rival=rival,
        times=times,
        documents=more_documents,
        tasks=more_tasks,
        has_several_tasks=len(gaps.tasks) > 1,
        is_split=gaps.is_split,
        is_limited_by_tasks=allowed <= task_variance,
    )


def _count_more_documents(
    times: float, tasks: tuple[str, ...], test_sizes: Mapping[str, float]
) -> int | None:
    """Return how many more documents a task needs to have so many times as many; None where sizes are not known."""
    sizes = [test_sizes[task] for task in tasks if task in test_sizes]
    if not sizes:
        return None
    more = max(1, math.ceil((times - 1) * float(np.median(sizes))))
    # Two digits, rounded up: nobody knows more.
    unit = int(10 ** max(0, len(str(more)) - 2))
    return math.ceil(more / unit) * unit


def detectable_z(level: float = LEVEL) -> float:
    """Return the standard errors of a difference that is found with 80 % power."""
    return float(norm.ppf(0.5 + level / 2) + norm.ppf(POWER))

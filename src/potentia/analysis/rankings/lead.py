"""How far one model is ahead of another, and what more would have to be measured to separate the two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student_t

from potentia.analysis.rankings.decide import (
    CLAIM_PROBABILITY,
    AggregateMethod,
    Ranking,
)
from potentia.analysis.rankings.pair_test import ScoreGaps
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import POWER
from potentia.values.findings import Interval
from potentia.values.scores import Outcomes, ScoreMatrix

MOST_TIMES = 100.0  # times as many test examples as there are: more are out of reach
MOST_TASKS = 10.0


class RankedOtherwise(StrEnum):
    """Why a ranking of all models orders two of them otherwise than their own difference does."""

    BY_SPREAD = "spread"  # tasks count by how far apart all models are on them
    BY_OTHER_TASKS = "other tasks"  # tasks count that one of the two lacks
    BY_OTHER_MODELS = "other models"  # comparisons with all models are counted


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
    ranked_otherwise: RankedOtherwise | None = None  # why the ranking puts the second first

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY


def measure_lead(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str
) -> Lead | None:
    """Compare two models; the likelier of them comes first. None where they share no task."""
    pair_test = ranking.test_pair(first, second)
    score_gaps = ScoreGaps.measure(matrix, items, first, second, ranking.groups)
    if score_gaps is None:
        return None
    generalizes = ranking.generalizes
    chance = math.nan
    if pair_test is not None:
        chance = pair_test.chance
        generalizes = pair_test.generalizes
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
        generalizes=generalizes,
        are_shares=score_gaps.are_shares,
        ranked_otherwise=_explain_order(ranking, first, second, score_gaps),
    )


def _explain_order(
    ranking: Ranking, first: str, second: str, score_gaps: ScoreGaps
) -> RankedOtherwise | None:
    """Say why the ranking puts the second model before the first; None where it does not."""
    first_rank = ranking.rank_of(first)
    second_rank = ranking.rank_of(second)
    if first_rank is None or second_rank is None or first_rank <= second_rank:
        return None
    difference = score_gaps.mean_difference(ranking.level)
    if difference is not None and difference.value <= 0:
        return None
    if ranking.method is AggregateMethod.MEAN_Z and score_gaps.has_one_scale:
        return RankedOtherwise.BY_SPREAD
    if len(score_gaps.tasks) < len(ranking.tasks):
        return RankedOtherwise.BY_OTHER_TASKS
    return RankedOtherwise.BY_OTHER_MODELS


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
    pair_test = ranking.test_pair(first, rival)
    if pair_test is None or pair_test.scales is None:
        return None
    score_gaps = pair_test.gaps
    is_open = 1 - CLAIM_PROBABILITY < pair_test.chance < CLAIM_PROBABILITY
    if not np.isfinite(score_gaps.variances).all() or not is_open:
        return None
    groups = len(score_gaps.groups.names)
    noise_variance = pair_test.noise_variance
    detectable = detectable_z()
    varies_by_task = False
    if pair_test.generalizes:
        freedom = groups - 1
        detectable = float(student_t.ppf(0.5 + LEVEL / 2, freedom) + student_t.ppf(POWER, freedom))
        varies_by_task = score_gaps.vary_by_group(pair_test.scales)
    task_variance = pair_test.variance - noise_variance
    allowed = (pair_test.value / detectable) ** 2
    is_limited_by_tasks: bool | None = allowed <= task_variance
    if is_limited_by_tasks and not varies_by_task:
        is_limited_by_tasks = None
    times = math.inf
    more_examples = None
    more_tasks = None
    if allowed > task_variance and 0 < noise_variance <= MOST_TIMES * (allowed - task_variance):
        times = noise_variance / (allowed - task_variance)
        more_examples = _count_more_examples(times, score_gaps.tasks, test_sizes)
    elif pair_test.generalizes and allowed > 0:
        needed = groups * pair_test.variance / allowed
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

"""The one test of two models over all tasks that both have: their own difference decides, no other model does.

Scores of one scale are averaged as they are. Scores of different scales have no mean of their own: they are put on the
common scale of the ranking where it has one (z scores of five models or more), else the tasks that each wins are
counted. A task that one of the two lacks says nothing of the pair, and changes nothing.

On one task the test is that of the task (``task_difference``). On several, with fewer than five groups, it is a z test
of the mean difference by its test noise. With five groups or more it speaks of other tasks like these: Student's t test
of the differences of the groups, whose spread holds test noise too, so that no standard error is needed. Where errors
are known the z test has to agree: of differences that vary by luck less than their noise, t alone would be too sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm
from scipy.stats import t as student_t

from potentia.analysis.rankings.noise import TaskNoise, task_noise
from potentia.analysis.rankings.task_difference import TaskDifference, measure_task_difference
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.first_place import CLAIM_PROBABILITY, ENOUGH_TASKS
from potentia.values.findings import Interval, select_positions
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

SPLIT_LEVEL = 0.05  # of the tests that say that each of two models leads on a task
DRAWS_OF_WINS = 10_000
# A z score of few models is bounded, as it is divided by a spread that holds the model itself. Of numbers whose
# excess kurtosis is −6/(models + 1) Student's t is too sure: of five equal models on five tasks it calls two
# different in 6.0 %. The factor is from 30,000 studies each of 5 to 20 models on 5 to 24 tasks.
BOUNDED_Z = 2.0


def widening_of_z(models: int, groups: int) -> float:
    """Return how much wider Student's t of z scores of so many models has to be."""
    return 1 + BOUNDED_Z / ((models + 1) * (groups - 1))


def has_one_scale(matrix: ScoreMatrix) -> bool:
    """Whether the scores of all tasks may be averaged: they are by one metric, or all shares that are to be high."""
    names = {(metric.canonical_name, metric.higher_is_better) for metric in matrix.metrics}
    if len(names) == 1 and next(iter(names))[0]:
        return True
    return (
        matrix.has_unit_scale and len({metric.higher_is_better for metric in matrix.metrics}) == 1
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
    only_task: TaskDifference | None = None  # where there is one task: what its test says

    @classmethod
    def measure(
        cls,
        matrix: ScoreMatrix,
        items: Outcomes | None,
        first: str,
        second: str,
        groups: TaskGroups,
        *,
        noise: Sequence[TaskNoise] | None = None,
    ) -> ScoreGaps | None:
        """Measure the differences; None where the models share no task.

        ``noise`` is that of every task of the matrix, where it is known already.
        """
        rows = [matrix.models.index(first), matrix.models.index(second)]
        columns = np.flatnonzero(np.isfinite(matrix.values[rows]).all(axis=0))
        if not len(columns):
            return None
        pair_matrix = matrix.select(models=[first, second], tasks=columns)
        variances = np.empty(len(columns))
        for position, column in enumerate(columns.tolist()):
            known_noise = None if noise is None else noise[column]
            if known_noise is None or (known_noise.covariance is None and items):
                of_pair = task_noise(pair_matrix, position, items).difference_variance(0, 1)
            else:
                of_pair = known_noise.difference_variance(*rows)
            variances[position] = of_pair
        has_errors = np.isfinite(pair_matrix.stderr).all(axis=0)
        scores = pair_matrix.oriented()
        tasks = select_positions(matrix.tasks, columns)
        known_tasks = set(groups.tasks)
        only_task = None
        if len(columns) == 1:
            only_task = measure_task_difference(pair_matrix, 0, items)
        return cls(
            tasks=tasks,
            groups=groups.select(tasks)
            if known_tasks.issuperset(tasks)
            else TaskGroups.find(tasks),
            differences=scores[0] - scores[1],
            variances=np.where(has_errors, variances, np.nan),
            has_one_scale=has_one_scale(pair_matrix),
            are_shares=pair_matrix.has_unit_scale,
            only_task=only_task,
        )

    def reversed(self) -> ScoreGaps:
        """Return the differences of the second model over the first."""
        only_task = self.only_task
        if only_task is not None:
            only_task = only_task.reversed()
        return replace(self, differences=-self.differences, only_task=only_task)

    def mean_difference(self, level: float) -> Interval | None:
        """Return the difference of the mean scores with its interval of test noise; None without a common scale."""
        if self.only_task is not None:
            return self.only_task.interval(level)
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
class PairTest:
    """What the scores of two models say of the two: which of them is better over all tasks that both have."""

    gaps: ScoreGaps
    scales: (
        Floats | None
    )  # (tasks,): what a difference is multiplied by; None where wins are counted
    generalizes: bool  # of other tasks like these too
    widening: float = 1.0  # of Student's t

    @cached_property
    def chance(self) -> float:
        """The probability that the first is better; NaN where no error is known that the test needs.

        A claim needs 97.5 %: twice the rest is the p value of the two-sided test.
        """
        if self.gaps.only_task is not None:
            return self.gaps.only_task.chance
        if not self.gaps.differences.any():
            return 0.5
        if self.scales is None:
            return self._chance_by_wins()
        if not self.generalizes:
            return self._chance_by_noise()
        by_groups = self._chance_by_groups()
        by_noise = self._chance_by_noise()
        if math.isnan(by_noise):
            has_enough_groups = len(self.differences_of_groups) >= ENOUGH_TASKS
            return by_groups if has_enough_groups else math.nan
        # Either may be too sure by luck: a claim needs both.
        return min(by_groups, by_noise, key=lambda chance: abs(chance - 0.5))

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY

    @cached_property
    def differences_of_groups(self) -> Floats:
        """The differences on the common scale, averaged within each group of tasks: (groups,)."""
        scales = np.ones(len(self.gaps.tasks)) if self.scales is None else self.scales
        return self.gaps.groups.average(self.gaps.differences * scales)

    @property
    def value(self) -> float:
        """The mean difference over groups of tasks, on the common scale."""
        return float(self.differences_of_groups.mean())

    @property
    def noise_variance(self) -> float:
        """The variance of the mean difference by test noise; NaN where an error is not known."""
        if self.scales is None:
            return math.nan
        return float((self.scales * self.gaps.groups.weights) ** 2 @ self.gaps.variances)

    @property
    def variance(self) -> float:
        """The variance of the mean difference: by the choice of tasks too where it speaks of others."""
        if not self.generalizes:
            return self.noise_variance
        groups = len(self.differences_of_groups)
        return float(np.fmax(self.differences_of_groups.var(ddof=1) / groups, self.noise_variance))

    def _chance_by_noise(self) -> float:
        """Return the probability that the first is better on these tasks, by test noise alone."""
        variance = self.noise_variance
        if not math.isfinite(variance):
            return math.nan
        if variance <= 0:
            return 0.5 + 0.5 * float(np.sign(self.value))
        return float(norm.cdf(self.value / math.sqrt(variance)))

    def _chance_by_groups(self) -> float:
        """Return the probability that the first is better on tasks like these, by Student's t over groups of tasks."""
        differences = self.differences_of_groups
        groups = len(differences)
        if groups < 2:
            return math.nan
        error = float(differences.std(ddof=1)) / math.sqrt(groups)
        if error <= 1e-9 * abs(self.value):
            # Differences that are all the same have no spread to tell by, but that of their noise.
            if math.isfinite(self.noise_variance) and self.noise_variance > 0:
                deviations = self.value / math.sqrt(self.noise_variance)
                return float(student_t.cdf(deviations, groups - 1))
            # Their signs are all that is known.
            return 0.5 + float(np.sign(self.value)) * (0.5 - 0.5**groups)
        return float(student_t.cdf(self.value / (error * self.widening), groups - 1))

    def _chance_by_wins(self) -> float:
        """Return the probability that the first wins more groups of tasks than the second.

        Of other tasks by Student's t, whose deviations are from what equal models win: models that win all have no
        spread of their own. Of these tasks by drawing their test noise.
        """
        gaps = self.gaps
        if self.generalizes:
            wins = gaps.groups.average(0.5 * np.sign(gaps.differences))
            groups = len(wins)
            spread = math.sqrt(float((wins**2).sum()) / (groups * (groups - 1)))
            return float(student_t.cdf(wins.mean() / spread, groups - 1)) if spread > 0 else 0.5
        if not np.isfinite(gaps.variances).all():
            return math.nan
        normals = np.random.default_rng(0).standard_normal((DRAWS_OF_WINS, len(gaps.tasks)))
        redrawn = gaps.differences + normals * np.sqrt(gaps.variances)
        lead = np.round(np.sign(redrawn) @ gaps.groups.weights, 9)
        return float(np.mean(lead > 0) + 0.5 * np.mean(lead == 0))


@dataclass(frozen=True)
class PairTester:
    """The scores of some models, of which any two can be tested."""

    matrix: ScoreMatrix
    items: Outcomes | None
    groups: TaskGroups
    z_factors: (
        Floats | None
    )  # (tasks,): of the z scores of all these models; None where they have none
    noise: Sequence[TaskNoise] | None = None  # of every task

    def test(
        self, first: str, second: str, *, of_other_tasks: bool | None = None
    ) -> PairTest | None:
        """Test two models on the tasks that both have; None where they share none.

        ``of_other_tasks`` asks of other tasks even where the two share fewer than five groups, by Student's t of as
        few; by itself the test speaks of others from five groups on.
        """
        gaps = ScoreGaps.measure(
            self.matrix, self.items, first, second, self.groups, noise=self.noise
        )
        if gaps is None:
            return None
        groups = len(gaps.groups.names)
        generalizes = groups >= ENOUGH_TASKS
        if of_other_tasks and groups > 1:
            generalizes = True
        scales, widening = self._choose_scales(gaps, generalizes)
        return PairTest(gaps, scales, generalizes, widening)

    def _choose_scales(self, gaps: ScoreGaps, generalizes: bool) -> tuple[Floats | None, float]:
        """Return what differences are multiplied by, and how much wider Student's t has to be for it."""
        if gaps.has_one_scale or gaps.only_task is not None:
            return np.ones(len(gaps.tasks)), 1.0
        if self.z_factors is None:
            return None, 1.0
        columns: npt.NDArray[np.intp] = np.array(
            [self.matrix.tasks.index(task) for task in gaps.tasks], dtype=np.intp
        )
        widening = 1.0
        if generalizes:
            widening = widening_of_z(len(self.matrix.models), len(gaps.groups.names))
        return self.z_factors[columns], widening

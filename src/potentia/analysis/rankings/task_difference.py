"""The difference of two models on one task: its test, and the interval of that test.

Where items are stored the difference is taken document by document: McNemar's exact test looks at the documents that
one model alone gets right. Documents that share a passage are no independent evidence: they are taken together, as
clusters. Where there are no items, or a score is no mean of items (f1, mcc), two scores have nothing in common but
their errors.

An exact test and the interval of a normal mean may disagree about zero where few documents differ. The interval is
then that of the test: its standard error is the one that gives the test's p value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.stats import t as student_t

from potentia.analysis.rankings.noise import PairedOutcomes, paired_outcomes, task_noise
from potentia.analysis.stats.sign_flips import sign_flip_p_value
from potentia.analysis.stats.significance import mcnemar_p_value
from potentia.values.clusters import clustered_error, degrees_of_freedom
from potentia.values.findings import Interval
from potentia.values.scores import Outcomes, ScoreMatrix


class DifferenceTest(StrEnum):
    """How the difference of two scores is tested."""

    MCNEMAR = "McNemar"
    PAIRED = "paired t"
    MCNEMAR_CLUSTERS = "McNemar, clusters"  # whole passages are flipped
    PAIRED_CLUSTERS = "paired t, clusters"
    UNPAIRED = "z"


@dataclass(frozen=True)
class TaskDifference:
    """The difference of two scores on one task, the first over the second; more is better."""

    value: float
    test: DifferenceTest
    error: float  # standard error of the difference
    p_value: float  # NaN where the error is not known
    freedom: float = math.inf  # degrees of freedom of the error
    documents: int | None = None  # that both have answered; None without items
    first_only: tuple[int, ...] = ()  # documents that the first model alone gets right
    second_only: tuple[int, ...] = ()

    @property
    def chance(self) -> float:
        """The probability that the first is better: one half where they score alike, NaN where nothing is known."""
        if math.isnan(self.p_value):
            return math.nan
        if self.value == 0:
            return 0.5
        return 1 - self.p_value / 2 if self.value > 0 else self.p_value / 2

    def reversed(self) -> TaskDifference:
        """Return the difference of the second over the first."""
        return replace(
            self,
            value=-self.value,
            first_only=self.second_only,
            second_only=self.first_only,
        )

    def interval(self, level: float) -> Interval:
        """Return the interval of the difference, which has zero in it where the test finds nothing at this level."""
        critical = float(student_t.ppf(0.5 + level / 2, self.freedom))
        half_width = critical * self.error
        is_found = self.p_value <= 1 - level
        if math.isfinite(half_width) and is_found != (abs(self.value) > half_width):
            half_width *= self._correct_error()
        return Interval.around(self.value, half_width, level)

    def _correct_error(self) -> float:
        """Return what the error has to be multiplied by to give the test's p value."""
        if self.value == 0 or self.error == 0:
            return 1.0
        deviations = float(student_t.isf(self.p_value / 2, self.freedom))
        if deviations <= 0:
            return 1.0
        return abs(self.value) / (deviations * self.error)


def measure_task_difference(
    pair_matrix: ScoreMatrix, column: int, items: Outcomes | None
) -> TaskDifference | None:
    """Compare the two rows of a matrix on one task; None where one has no score."""
    first, second = (float(score) for score in pair_matrix.values[:, column])
    if not (math.isfinite(first) and math.isfinite(second)):
        return None
    sign = 1.0 if pair_matrix.higher_is_better[column] else -1.0
    difference = (first - second) * sign
    paired = paired_outcomes(pair_matrix, column, items)
    if paired is None:
        return _test_unpaired(pair_matrix, column, difference)
    return _test_paired(pair_matrix, column, difference, paired)


def _test_unpaired(matrix: ScoreMatrix, column: int, difference: float) -> TaskDifference:
    """Test the difference of two scores that have nothing in common but their errors."""
    error = float(np.hypot(*matrix.stderr[:, column]))
    degrees = math.inf
    documents = matrix.n[:, column]
    if np.isfinite(documents).all() and math.isfinite(error):
        # The errors themselves are known from so many documents.
        error = float(np.hypot(*task_noise(matrix, column, None).errors))
        degrees = float(documents.min()) - 1
    p_value = _two_sided_p_value(difference, error, degrees)
    return TaskDifference(difference, DifferenceTest.UNPAIRED, error, p_value, degrees)


def _test_paired(
    matrix: ScoreMatrix,
    column: int,
    difference: float,
    paired: PairedOutcomes,
) -> TaskDifference:
    """Test the difference of two scores document by document; documents that share a passage speak as one.

    McNemar's test is of these very fine-tunings. Where it is known how far another seed moves a score, the difference
    has to stand out from that, too.
    """
    first, second = paired.outcomes
    clusters = paired.clusters
    task = matrix.tasks[column]
    seed_errors = [matrix.seed_error(model, task) for model in matrix.models]
    error = math.hypot(clustered_error(first - second, clusters), *seed_errors)
    freedom = degrees_of_freedom(clusters)
    p_value_by_error = _two_sided_p_value(difference, error, freedom)
    by_error = DifferenceTest.PAIRED
    if not clusters.are_independent:
        by_error = DifferenceTest.PAIRED_CLUSTERS
    if not set(np.unique(paired.outcomes)) <= {0.0, 1.0}:
        return TaskDifference(difference, by_error, error, p_value_by_error, freedom, len(first))
    numbers = np.array(paired.documents)
    first_only = tuple(numbers[first > second].tolist())
    second_only = tuple(numbers[first < second].tolist())
    if clusters.are_independent:
        difference_test = DifferenceTest.MCNEMAR
        p_value = mcnemar_p_value(len(first_only), len(second_only))
    else:
        difference_test = DifferenceTest.MCNEMAR_CLUSTERS
        p_value = sign_flip_p_value(clusters.sum_by_cluster(first - second))
    if any(seed_errors) and p_value_by_error > p_value:
        difference_test = by_error
        p_value = p_value_by_error
    return TaskDifference(
        value=difference,
        test=difference_test,
        error=error,
        p_value=p_value,
        freedom=freedom,
        documents=len(first),
        first_only=first_only,
        second_only=second_only,
    )


def _two_sided_p_value(difference: float, error: float, degrees: float) -> float:
    """Return the p value of a difference by Student's t; NaN where its error is not known."""
    if not math.isfinite(error):
        return math.nan
    if error > 0:
        return 2.0 * float(student_t.sf(abs(difference) / error, degrees))
    return float(difference == 0)

"""What the scores of a task say among others: whether models differ on it, and whether it ranks them as the others do.

Failing to show something is no evidence of its opposite, so each question has three answers. That a task ranks as the
others do is shown by permutation tests of Kendall's τ with their mean and with the nearest of them. That it does *not*
is shown where τ lies below what the others have among themselves, allowing for the noise of its own test: the interval
of the shortfall, over families of models drawn anew, leaves out zero. Everything else cannot be told.

Models of one family are near copies of each other, so they never count as independent: whole families are drawn,
scores are permuted as means of families and as deviations within them, and whether models differ is asked between
families and within them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy import stats

from potentia.analysis.stats.bootstrap import (
    ResamplingUnits,
    Sampling,
    kendall_between,
    kendall_by_row,
    percentile_interval,
)
from potentia.analysis.stats.correlation import kendall_matrix, nan_mean
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.reliability import (
    LEAST_RELIABILITY,
    attenuate,
    measure_reliability,
)
from potentia.values.clusters import Clusters, degrees_of_freedom
from potentia.values.findings import Interval
from potentia.values.scores import Floats, ScoreMatrix

Codes = npt.NDArray[np.intp]

TEST_LEVEL = 0.02  # of each test behind an answer
MIN_MODELS = 4  # of which anything is asked
MIN_UNITS = (
    6  # families (or models of none) from which a ranking may be said to be unlike the others
)
MIN_OTHERS = 3  # benchmarks whose agreement among themselves is something to compare with
NARROW_SHARE = 0.5  # of the spread on the other tasks, below which models hardly differ
RESAMPLES = 1_000
PERMUTATIONS = 2_000
MAX_COMPARISONS = 4_000_000  # of pairs of models in all permutations


# --- differences between models --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreDifferences:
    """Whether models differ on a task beyond chance, and how reliable their ranking is; NaN where nothing tells."""

    p_value: float
    reliability: float


UNKNOWN_DIFFERENCES = ScoreDifferences(math.nan, math.nan)


def code_families(models: Sequence[str], families: Mapping[str, str]) -> Codes:
    """Return the number of every model's family; a model of none is one by itself."""
    labels = ResamplingUnits("families", families).label_models(models)
    number_of_label = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([number_of_label[label] for label in labels], dtype=np.intp)


def average_families(values: Floats, family: Codes) -> Floats:
    """Average (models, …) over the models of each family."""
    family_sums = np.zeros((int(family.max()) + 1, *values.shape[1:]))
    np.add.at(family_sums, family, values)
    sizes = np.bincount(family).reshape(-1, *([1] * (values.ndim - 1)))
    return np.asarray(family_sums / sizes)


def compare_models_by_items(
    answers: Floats,
    family: Codes | None = None,
    clusters: Clusters | None = None,
    seed_variance: float = 0.0,
) -> ScoreDifferences:
    """Test by F tests of models × items whether models answer alike, and measure the reliability of their ranking.

    The reliability is Hoyt's, which is Cronbach's α: the mean over all split halves, stepped up to all items. Items
    that share a passage are no independent evidence: with ``clusters`` their sums take the place of items. A model's
    score moves on all items together with the seed of its fine-tuning: by ``seed_variance``.
    """
    models = len(answers)
    family = np.arange(models) if family is None else family
    examples = answers.shape[1]
    freedom = float(examples - 1)  # of the differences between items
    if clusters is not None and not clusters.are_independent:
        answers = clusters.sum_by_cluster(answers)
        freedom = degrees_of_freedom(clusters)
        seed_variance *= (examples / answers.shape[1]) ** 2
    if not freedom > 0:
        return UNKNOWN_DIFFERENCES
    one_family = np.zeros(models, dtype=np.intp)
    of_all = _analyze_variance(answers, one_family, freedom, seed_variance)
    between_families = average_families(answers, family)
    p_values = []
    if len(between_families) > 1:
        single_family = np.zeros(len(between_families), dtype=np.intp)
        of_means = float((1 / np.bincount(family)).mean()) * seed_variance
        tested = _analyze_variance(between_families, single_family, freedom, of_means)
        p_values.append(tested.p_value)
    if len(between_families) < models:
        p_values.append(_analyze_variance(answers, family, freedom, seed_variance).p_value)
    if of_all.between <= 0:
        return ScoreDifferences(p_value=1.0, reliability=0.0)
    return ScoreDifferences(
        p_value=min(1.0, len(p_values) * min(p_values)),
        reliability=max(-1.0, 1 - of_all.within / of_all.between),
    )


@dataclass(frozen=True)
class _Variances:
    """The variance of answers between models of a family, that of the rest, and P that both are the same."""

    between: float
    within: float
    p_value: float


def _analyze_variance(
    answers: Floats, family: Codes, freedom: float, seed_variance: float
) -> _Variances:
    """Compare the variance between the models of each family with that of models × items.

    ``freedom`` are the degrees of freedom of the items: one less than there are, or fewer where they are clusters.
    What seeds make of the variance between models is added to the rest.
    """
    items = answers.shape[1]
    deviations = answers - average_families(answers, family)[family]
    of_models = deviations.mean(axis=1, keepdims=True)
    residuals = deviations - of_models
    model_degrees = len(answers) - (int(family.max()) + 1)
    between = items * float((of_models**2).sum()) / model_degrees
    within = float((residuals**2).sum()) / (model_degrees * (items - 1)) + items * seed_variance
    if between <= 0:
        return _Variances(between, within, 1.0)
    p_value = 0.0
    if within > 0:
        p_value = float(stats.f.sf(between / within, model_degrees, model_degrees * freedom))
    return _Variances(between, within, p_value)


def compare_models_by_errors(
    scores: Floats, stderr: Floats, family: Codes | None = None
) -> ScoreDifferences:
    """Test by χ² on the standard errors whether models score alike, and return the reliability that these leave.

    Near copies err on the same documents, so a family's mean is given the error of one of its models.
    """
    is_known = np.isfinite(scores) & np.isfinite(stderr) & (stderr > 0)
    if is_known.sum() < MIN_MODELS:
        return UNKNOWN_DIFFERENCES
    family = np.arange(len(scores)) if family is None else family
    scores = scores[is_known]
    stderr = stderr[is_known]
    _, family = np.unique(family[is_known], return_inverse=True)
    p_values = []
    means = average_families(scores, family)
    if len(means) > 1:
        errors = np.sqrt(average_families(stderr**2, family))
        p_values.append(_test_equal_scores(means, errors, np.zeros(len(means), dtype=np.intp)))
    if len(means) < len(scores):
        p_values.append(_test_equal_scores(scores, stderr, family))
    variance = float(scores.var(ddof=1))
    reliability = math.nan
    if variance > 0:
        reliability = max(0.0, 1 - float((stderr**2).mean()) / variance)
    return ScoreDifferences(min(1.0, len(p_values) * min(p_values)), reliability)


def _test_equal_scores(scores: Floats, stderr: Floats, family: Codes) -> float:
    """Return P that scores differ as much within families where their models score alike."""
    weight = 1 / stderr**2
    families = int(family.max()) + 1
    weight_of_family = np.bincount(family, weight, minlength=families)
    means = np.bincount(family, weight * scores, minlength=families) / weight_of_family
    statistic = float((weight * (scores - means[family]) ** 2).sum())
    return float(stats.chi2.sf(statistic, len(scores) - families))


def bound_spread(scores: Floats, stderr: Floats, family: Codes) -> float:
    """Return the largest standard deviation of true scores between families that the errors leave open (98 %)."""
    is_known = np.isfinite(scores) & np.isfinite(stderr) & (stderr > 0)
    _, family = np.unique(family[is_known], return_inverse=True)
    if not is_known.any() or int(family.max()) < 1:
        return math.inf
    means = average_families(scores[is_known], family)
    noise = float((stderr[is_known] ** 2).mean())
    degrees = len(means) - 1
    largest = float(means.var(ddof=1)) * degrees / float(stats.chi2.ppf(TEST_LEVEL, degrees))
    return math.sqrt(max(0.0, largest - noise))


# --- agreement with the other tasks ----------------------------------------------------------------------------------


class RankingAnswer(StrEnum):
    """Whether a task ranks models as the others do."""

    AGREES = "agrees with the others"
    AGAINST = "ranks against the others"
    UNLIKE = "agrees less than the others do among themselves"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True)
class TaskAgreement:
    """How the ranking of one task agrees with those of the others."""

    others: tuple[str, ...]
    taus: tuple[float, ...]  # with each of the others
    lowest_taus: tuple[float, ...]  # the lower ends of their intervals, over families of models
    mean: Interval  # their mean, over families of models drawn anew
    among_others: float  # mean τ of the others among themselves
    expected: float  # τ of a task that ranks as the others do, with the noise of this test
    shortfall: Interval  # of the mean τ below the expected one; NaN where none can be expected
    # Whether models surely differ less than half as much as on the others.
    is_narrow: bool
    p_agrees: float  # that it agrees no more than a shuffled ranking; NaN: not tested
    p_against: float  # that it disagrees no more than a shuffled ranking; NaN: not tested
    units: int  # families, and models of none
    other_groups: int  # benchmarks among the others, of which each has one task or more
    drawn_unit: str = "models"  # what the intervals draw anew: families or models
    least_p: float = 0.0  # the smallest P that so many permutations can give

    @property
    def answer(self) -> RankingAnswer:
        """What may be said of its ranking.

        AGREES and AGAINST need the permutation tests. ``TaskAgreements.compare`` may leave these out only where no flag
        depends on them: then the answer is UNKNOWN, be it that the tests would show that the task agrees.
        """
        # A single task that is alike may pass the test where the mean says nothing.
        may_be_zero = self.mean.low <= 0  # never where the interval is not known
        if self.p_agrees < TEST_LEVEL and not may_be_zero:
            return RankingAnswer.AGREES
        is_reversed = self.mean.high < 0 and self.p_against < TEST_LEVEL
        if is_reversed and len(self.others) > 1:
            return RankingAnswer.AGAINST
        has_enough = self.units >= MIN_UNITS and self.other_groups >= MIN_OTHERS
        if has_enough and self.shortfall.high < 0:
            return RankingAnswer.UNLIKE
        return RankingAnswer.UNKNOWN


class TaskAgreements:
    """The agreement of the tasks of a matrix with each other, resampled once for all of them."""

    def __init__(
        self,
        matrix: ScoreMatrix,
        families: Mapping[str, str],
        groups: Mapping[str, str],
        *,
        level: float,
        seed: int = 0,
    ) -> None:
        self.matrix = matrix
        self.groups = groups
        self.level = level
        self.seed = seed
        self.scores = matrix.oriented()
        units = ResamplingUnits("families", families)
        self.drawn_unit = units.drawn_unit(matrix.models)
        self.family = code_families(matrix.models, families)
        if len(np.unique(self.family)) == 1:  # all are as near to each other
            self.family = np.arange(len(matrix.models))
        sampling = Sampling(units=units, resamples=RESAMPLES, seed=seed)
        draws = sampling.draw_models(matrix.models)
        self.taus = kendall_matrix(self.scores)
        self.drawn_taus = kendall_matrix(self.scores, weights=draws)
        self.reliability = measure_reliability(matrix.values, matrix.stderr)
        self.noise = nan_mean(matrix.stderr**2, axis=0)  # (tasks,)

    def compare(self, task: str, *, models_differ: bool, must_test: bool = True) -> TaskAgreement:
        """Compare one task with the others.

        ``models_differ`` says that the spread of its scores is no chance; else it is asked how a task would rank on
        which models differ as on the others. Without ``must_test`` the permutation tests are made only where they
        decide something.
        """
        column = self.matrix.tasks.index(task)
        other_columns = self._list_others(column)
        units = len(np.unique(self.family[np.isfinite(self.scores[:, column])]))
        unknown = Interval(math.nan, math.nan, math.nan, self.level)
        names = tuple(self.matrix.tasks[position] for position in other_columns)
        if not other_columns:
            return TaskAgreement(
                others=(),
                taus=(),
                lowest_taus=(),
                mean=unknown,
                among_others=math.nan,
                expected=math.nan,
                shortfall=unknown,
                is_narrow=False,
                p_agrees=1.0,
                p_against=1.0,
                units=units,
                other_groups=0,
                drawn_unit=self.drawn_unit,
            )
        shares = self._shares_in_groups(other_columns)
        mean = float(_weighted_mean(self.taus[column, other_columns], shares))
        drawn_mean = _weighted_mean(self.drawn_taus[:, column, other_columns], shares)
        among = float(self._mean_among(self.taus[None], other_columns)[0])
        factor = self._relative_noise(column, other_columns, models_differ)
        expected = float(attenuate(among, factor)) if math.isfinite(factor) else math.nan
        drawn_expected = attenuate(self._mean_among(self.drawn_taus, other_columns), factor)
        shortfall = percentile_interval(
            mean - expected, drawn_mean - drawn_expected, level=self.level
        )
        interval = percentile_interval(mean, drawn_mean, level=self.level)
        if units < ENOUGH_MODELS:  # drawing so few again says nothing of others
            interval = Interval(mean, math.nan, math.nan, self.level)
        is_narrow = self._is_narrow(column, other_columns)
        p_agrees = p_against = math.nan
        if must_test or is_narrow or shortfall.high < 0 or interval.high < 0:
            p_agrees, p_against = self._test_by_permutation(column, other_columns)
        permutations = _count_permutations(int(np.isfinite(self.scores[:, column]).sum()))
        taus = tuple(self.taus[column, other_columns].tolist())
        lowest_taus = np.full(len(other_columns), np.nan)
        if units >= ENOUGH_MODELS:
            tail = (1 - self.level) / 2
            lowest_taus = np.nanquantile(self.drawn_taus[:, column, other_columns], tail, axis=0)
        return TaskAgreement(
            others=names,
            taus=taus,
            lowest_taus=tuple(lowest_taus.tolist()),
            mean=interval,
            among_others=among,
            expected=expected,
            shortfall=shortfall,
            is_narrow=is_narrow,
            p_agrees=p_agrees,
            p_against=p_against,
            units=units,
            other_groups=round(float(shares.sum())),
            drawn_unit=self.drawn_unit,
            least_p=2 / (1 + permutations),
        )

    def _list_others(self, column: int) -> list[int]:
        """Return the tasks to compare with: those of other benchmarks where there are two, else all others."""
        is_scored = np.isfinite(self.scores)
        shared_models = (is_scored & is_scored[:, [column]]).sum(axis=0)
        other_columns = []
        for position in range(len(self.matrix.tasks)):
            if position != column and shared_models[position] >= MIN_MODELS:
                other_columns.append(position)
        group = self.groups.get(self.matrix.tasks[column])
        of_others = [
            position
            for position in other_columns
            if self.groups.get(self.matrix.tasks[position]) != group
        ]
        return of_others if len(of_others) > 1 else other_columns

    def _shares_in_groups(self, columns: Sequence[int]) -> Floats:
        """Return the weight of each of these tasks where all tasks of one benchmark together count as one."""
        groups = [self.groups.get(self.matrix.tasks[column]) for column in columns]
        sizes = Counter(groups)
        return np.array([1.0 / sizes[group] for group in groups])

    def _mean_among(self, taus: Floats, other_columns: Sequence[int]) -> Floats:
        """Return the mean τ over pairs of other benchmarks, from (resamples, tasks, tasks).

        Subsets of one benchmark agree with each other more than benchmarks do, so their pairs do not count.
        """
        rows, columns = np.triu_indices(len(other_columns), 1)
        positions = np.asarray(other_columns)
        shares = self._shares_in_groups(other_columns)
        groups = np.array([str(self.groups.get(self.matrix.tasks[column])) for column in positions])
        weights = shares[rows] * shares[columns] * (groups[rows] != groups[columns])
        return _weighted_mean(taus[:, positions[rows], positions[columns]], weights)

    def _relative_noise(
        self, column: int, other_columns: Sequence[int], models_differ: bool
    ) -> float:
        """Return by what factor the noise of this test lowers a correlation that the others have among themselves."""
        known_reliability = self.reliability[list(other_columns)]
        known_reliability = np.clip(known_reliability[np.isfinite(known_reliability)], 0.0, 1.0)
        if not len(known_reliability):
            return math.nan
        reliability_of_others = float(np.median(known_reliability))
        own_reliability = float(self.reliability[column])
        if not models_differ:
            own_reliability = self._expected_reliability(column, other_columns)
        if not math.isfinite(own_reliability) or reliability_of_others < LEAST_RELIABILITY:
            return math.nan
        return math.sqrt(min(1.0, max(own_reliability, 0.0) / reliability_of_others))

    def _expected_reliability(self, column: int, other_columns: Sequence[int]) -> float:
        """Return the reliability of this test if models differed on it as on the others; NaN where scales differ."""
        true_variance = self._variance_on_others(column, other_columns)
        noise = float(self.noise[column])
        if not math.isfinite(noise) or not true_variance > 0:
            return math.nan
        return true_variance / (true_variance + noise)

    def _is_narrow(self, column: int, other_columns: Sequence[int]) -> bool:
        """Whether models surely differ less than half as much on this task as on the others."""
        largest = bound_spread(self.scores[:, column], self.matrix.stderr[:, column], self.family)
        return largest < NARROW_SHARE * math.sqrt(self._variance_on_others(column, other_columns))

    def _variance_on_others(self, column: int, other_columns: Sequence[int]) -> float:
        """Return the median variance of true scores on the other tasks; NaN where scales differ or errors lack."""
        scales = {
            self.matrix.metrics[task_position].scale for task_position in (column, *other_columns)
        }
        if len(scales) > 1:
            return math.nan
        with np.errstate(invalid="ignore"):
            spread = np.nanvar(self.matrix.values[:, list(other_columns)], axis=0, ddof=1)
        return float(np.median(np.maximum(spread - self.noise[list(other_columns)], 0.0)))

    def _test_by_permutation(
        self, column: int, other_columns: Sequence[int]
    ) -> tuple[float, float]:
        """Return P of such agreement, and of such disagreement, of a shuffled ranking."""
        is_scored = np.isfinite(self.scores[:, column])
        scores = self.scores[is_scored, column]
        other_scores = self.scores[is_scored][:, list(other_columns)]
        _, family = np.unique(self.family[is_scored], return_inverse=True)
        rng = np.random.default_rng([self.seed, column])
        count = _count_permutations(len(scores))
        shuffled = permute_in_families(scores, family, count, rng)
        common = _mean_standardised(other_scores, self._shares_in_groups(other_columns))
        is_known = np.isfinite(common)
        by_chance = kendall_by_row(shuffled[:, is_known], common[is_known])
        observed = float(kendall_by_row(scores[is_known], common[is_known]))
        with_others = kendall_between(shuffled, other_scores.T)
        highest = float(np.nanmax(self.taus[column, list(other_columns)], initial=-1.0))
        nearest = np.nanmax(np.where(np.isfinite(with_others), with_others, -1.0), axis=1)
        with_nearest = _share_reaching(highest, nearest)
        with_mean = _share_reaching(observed, by_chance)
        p_agrees = min(1.0, 2 * min(with_mean, with_nearest))
        against_mean = _share_reaching(-observed, -by_chance)
        return p_agrees, min(1.0, 2 * against_mean)  # nobody named the direction beforehand


def _count_permutations(models: int) -> int:
    """Return how often the scores of so many models are shuffled."""
    return max(100, min(PERMUTATIONS, MAX_COMPARISONS // models**2))


def permute_in_families(scores: Floats, family: Codes, permutations: int, rng: Generator) -> Floats:
    """Shuffle scores so often: the means of families among families, the deviations from them within each family."""
    means = average_families(scores, family)
    deviations = np.tile(scores - means[family], (permutations, 1))
    for family_number in np.flatnonzero(np.bincount(family) > 1):
        members = np.flatnonzero(family == family_number)
        deviations[:, members] = rng.permuted(deviations[:, members], axis=1)
    shuffled_means = rng.permuted(np.tile(means, (permutations, 1)), axis=1)
    return np.asarray(shuffled_means[:, family] + deviations)


def _mean_standardised(scores: Floats, weights: Floats) -> Floats:
    """Return the weighted mean over tasks of standardised scores (models, tasks); NaN for a model that has none."""
    spread = np.nanstd(scores, axis=0)
    divisor = np.where(spread > 0, spread, 1.0)
    return _weighted_mean((scores - np.nanmean(scores, axis=0)) / divisor, weights)


def _weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Return the weighted mean over the last axis of the values that are known; NaN where none has weight."""
    known_weights = np.where(np.isfinite(values), weights, 0.0)
    total = known_weights.sum(axis=-1)
    weighted_sum = (np.where(np.isfinite(values), values, 0.0) * known_weights).sum(axis=-1)
    return np.asarray(
        np.divide(weighted_sum, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    )


def _share_reaching(observed: float, by_chance: Floats) -> float:
    """Return the share of draws that reach what was observed, itself among them."""
    if not math.isfinite(observed):
        return 1.0
    reaching = float((by_chance >= observed - 1e-12).sum())
    return (1 + reaching) / (1 + len(by_chance))

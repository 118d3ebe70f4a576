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
    kendall_by_row,
    percentile_interval,
)
from potentia.analysis.stats.correlation import kendall_matrix, nan_mean
from potentia.analysis.stats.reliability import (
    LEAST_RELIABILITY,
    attenuate,
    measure_reliability,
)
from potentia.values.findings import Interval
from potentia.values.scores import Floats, ScoreMatrix

Codes = npt.NDArray[np.intp]

TEST_LEVEL = 0.02  # of each test behind an answer
MIN_MODELS = 4  # of which anything is asked
MIN_UNITS = (
    6  # families (or models of none) from which a ranking may be said to be unlike the others
)
MIN_OTHERS = 3  # tasks whose agreement among themselves is something to compare with
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
    sums = np.zeros((int(family.max()) + 1, *values.shape[1:]))
    np.add.at(sums, family, values)
    sizes = np.bincount(family).reshape(-1, *([1] * (values.ndim - 1)))
    return np.asarray(sums / sizes)


def compare_models_by_items(answers: Floats, family: Codes | None = None) -> ScoreDifferences:
    """Test by F tests of models × items whether models answer alike, and measure the reliability of their ranking.

    The reliability is Hoyt's, which is Cronbach's α: the mean over all split halves, stepped up to all items.
    """
    models = len(answers)
    family = np.arange(models) if family is None else family
    of_all = _analyze_variance(answers, np.zeros(models, dtype=np.intp))
    between_families = average_families(answers, family)
    p_values = []
    if len(between_families) > 1:
        single_family = np.zeros(len(between_families), dtype=np.intp)
        p_values.append(_analyze_variance(between_families, single_family).p_value)
    if len(between_families) < models:
        p_values.append(_analyze_variance(answers, family).p_value)
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


def _analyze_variance(answers: Floats, family: Codes) -> _Variances:
    """Compare the variance between the models of each family with that of models × items."""
    items = answers.shape[1]
    deviations = answers - average_families(answers, family)[family]
    of_models = deviations.mean(axis=1, keepdims=True)
    residuals = deviations - of_models
    model_degrees = len(answers) - (int(family.max()) + 1)
    residual_degrees = model_degrees * (items - 1)
    between = items * float((of_models**2).sum()) / model_degrees
    within = float((residuals**2).sum()) / residual_degrees
    if between <= 0:
        return _Variances(between, within, 1.0)
    p_value = 0.0
    if within > 0:
        p_value = float(stats.f.sf(between / within, model_degrees, residual_degrees))
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
    mean: Interval  # their mean, over families of models drawn anew
    among_others: float  # mean τ of the others among themselves
    expected: float  # τ of a task that ranks as the others do, with the noise of this test
    shortfall: Interval  # of the mean τ below the expected one; NaN where none can be expected
    # Whether models surely differ less than half as much as on the others.
    is_narrow: bool
    p_agrees: float  # that it agrees no more than a shuffled ranking
    p_against: float  # that it disagrees no more than a shuffled ranking
    units: int  # families, and models of none

    @property
    def answer(self) -> RankingAnswer:
        """What may be said of its ranking."""
        if self.p_agrees < TEST_LEVEL:
            return RankingAnswer.AGREES
        if self.p_against < TEST_LEVEL and len(self.others) > 1:
            return RankingAnswer.AGAINST
        has_enough = self.units >= MIN_UNITS and len(self.others) >= MIN_OTHERS
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
        self.family = code_families(matrix.models, families)
        if units.drawn_unit(matrix.models) == "models":
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
        others = self._list_others(column)
        units = len(np.unique(self.family[np.isfinite(self.scores[:, column])]))
        unknown = Interval(math.nan, math.nan, math.nan, self.level)
        names = tuple(self.matrix.tasks[other] for other in others)
        if not others:
            return TaskAgreement(
                others=(),
                taus=(),
                mean=unknown,
                among_others=math.nan,
                expected=math.nan,
                shortfall=unknown,
                is_narrow=False,
                p_agrees=1.0,
                p_against=1.0,
                units=units,
            )
        mean = float(nan_mean(self.taus[column, others]))
        drawn_mean = nan_mean(self.drawn_taus[:, column, others])
        among = float(self._mean_among(self.taus[None], others)[0])
        factor = self._relative_noise(column, others, models_differ)
        expected = float(attenuate(among, factor)) if math.isfinite(factor) else math.nan
        drawn_expected = attenuate(self._mean_among(self.drawn_taus, others), factor)
        shortfall = percentile_interval(
            mean - expected, drawn_mean - drawn_expected, level=self.level
        )
        interval = percentile_interval(mean, drawn_mean, level=self.level)
        p_agrees = p_against = math.nan
        if must_test or shortfall.high < 0 or interval.high < 0:
            p_agrees, p_against = self._test_by_permutation(column, others)
        return TaskAgreement(
            others=names,
            taus=tuple(self.taus[column, others].tolist()),
            mean=interval,
            among_others=among,
            expected=expected,
            shortfall=shortfall,
            is_narrow=self._is_narrow(column, others),
            p_agrees=p_agrees,
            p_against=p_against,
            units=units,
        )

    def _list_others(self, column: int) -> list[int]:
        """Return the tasks to compare with: those of other benchmarks where there are two, else all others."""
        is_scored = np.isfinite(self.scores)
        shared_models = (is_scored & is_scored[:, [column]]).sum(axis=0)
        others = [
            other
            for other in range(len(self.matrix.tasks))
            if other != column and shared_models[other] >= MIN_MODELS
        ]
        group = self.groups.get(self.matrix.tasks[column])
        of_others = [
            other for other in others if self.groups.get(self.matrix.tasks[other]) != group
        ]
        return of_others if len(of_others) > 1 else others

    def _mean_among(self, taus: Floats, others: Sequence[int]) -> Floats:
        """Return the mean τ over pairs of other tasks, from (resamples, tasks, tasks)."""
        rows, columns = np.triu_indices(len(others), 1)
        positions = np.asarray(others)
        return nan_mean(taus[:, positions[rows], positions[columns]])

    def _relative_noise(self, column: int, others: Sequence[int], models_differ: bool) -> float:
        """Return by what factor the noise of this test lowers a correlation that the others have among themselves."""
        known = self.reliability[list(others)]
        known = np.clip(known[np.isfinite(known)], 0.0, 1.0)
        if not len(known):
            return math.nan
        reliability_of_others = float(np.median(known))
        own = float(self.reliability[column])
        if not models_differ:
            own = self._expected_reliability(column, others)
        if not math.isfinite(own) or reliability_of_others < LEAST_RELIABILITY:
            return math.nan
        return math.sqrt(min(1.0, max(own, 0.0) / reliability_of_others))

    def _expected_reliability(self, column: int, others: Sequence[int]) -> float:
        """Return the reliability of this test if models differed on it as on the others; NaN where scales differ."""
        true_variance = self._variance_on_others(column, others)
        noise = float(self.noise[column])
        if not math.isfinite(noise) or not true_variance > 0:
            return math.nan
        return true_variance / (true_variance + noise)

    def _is_narrow(self, column: int, others: Sequence[int]) -> bool:
        """Whether models surely differ less than half as much on this task as on the others."""
        largest = bound_spread(self.scores[:, column], self.matrix.stderr[:, column], self.family)
        return largest < NARROW_SHARE * math.sqrt(self._variance_on_others(column, others))

    def _variance_on_others(self, column: int, others: Sequence[int]) -> float:
        """Return the median variance of true scores on the other tasks; NaN where scales differ or errors lack."""
        scales = {self.matrix.metrics[position].scale for position in (column, *others)}
        if len(scales) > 1:
            return math.nan
        with np.errstate(invalid="ignore"):
            spread = np.nanvar(self.matrix.values[:, list(others)], axis=0, ddof=1)
        return float(np.median(np.maximum(spread - self.noise[list(others)], 0.0)))

    def _test_by_permutation(self, column: int, others: Sequence[int]) -> tuple[float, float]:
        """Return P of such agreement, and of such disagreement, of a shuffled ranking."""
        is_scored = np.isfinite(self.scores[:, column])
        scores = self.scores[is_scored, column]
        other_scores = self.scores[is_scored][:, list(others)]
        _, family = np.unique(self.family[is_scored], return_inverse=True)
        rng = np.random.default_rng([self.seed, column])
        count = max(100, min(PERMUTATIONS, MAX_COMPARISONS // len(scores) ** 2))
        shuffled = permute_in_families(scores, family, count, rng)
        common = _mean_standardised(other_scores)
        is_known = np.isfinite(common)
        by_chance = kendall_by_row(shuffled[:, is_known], common[is_known])
        observed = float(kendall_by_row(scores[is_known], common[is_known]))
        nearest = [kendall_by_row(shuffled, other_scores[:, k]) for k in range(len(others))]
        highest = float(np.nanmax(self.taus[column, list(others)], initial=-1.0))
        with_nearest = _share_reaching(highest, np.nanmax(np.stack(nearest), axis=0))
        with_mean = _share_reaching(observed, by_chance)
        p_agrees = min(1.0, 2 * min(with_mean, with_nearest))
        return p_agrees, _share_reaching(-observed, -by_chance)


def permute_in_families(scores: Floats, family: Codes, count: int, rng: Generator) -> Floats:
    """Shuffle scores so often: the means of families among families, the deviations from them within each family."""
    means = average_families(scores, family)
    deviations = np.tile(scores - means[family], (count, 1))
    for number in np.flatnonzero(np.bincount(family) > 1):
        members = np.flatnonzero(family == number)
        deviations[:, members] = rng.permuted(deviations[:, members], axis=1)
    shuffled_means = rng.permuted(np.tile(means, (count, 1)), axis=1)
    return np.asarray(shuffled_means[:, family] + deviations)


def _mean_standardised(scores: Floats) -> Floats:
    """Return the mean over tasks of standardised scores (models, tasks); NaN for a model that has none."""
    spread = np.nanstd(scores, axis=0)
    divisor = np.where(spread > 0, spread, 1.0)
    return nan_mean((scores - np.nanmean(scores, axis=0)) / divisor)


def _share_reaching(observed: float, by_chance: Floats) -> float:
    """Return the share of draws that reach what was observed, itself among them."""
    if not math.isfinite(observed):
        return 1.0
    reaching = float((by_chance >= observed - 1e-12).sum())
    return (1 + reaching) / (1 + len(by_chance))

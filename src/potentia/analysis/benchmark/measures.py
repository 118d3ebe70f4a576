"""The measures behind a benchmark's verdict: differences, reliability, agreement, resolution, items to look at.

Scores are of one benchmark, (models,), oriented so that higher is better; ``answers`` are its items, (models, items).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from scipy import stats

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.values.findings import Interval
from potentia.values.scores import Floats, ScoreMatrix

RESAMPLES = 2_000
MAX_COMPARISONS = 4_000_000  # of pairs of models in all resamples
MIN_MODELS = 4  # of a verdict
RESOLUTION = 0.02  # a difference that a benchmark should find, four times in five
POWER_FACTOR = (1.96 + 0.8416) ** 2  # of a two-sided test at 5 % with a power of 80 %
FALSE_DISCOVERY_RATE = 0.1  # share of items listed as negative that may be fine


# --- agreement with the other benchmarks -----------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkAgreement:
    """How a benchmark's ranking agrees with those of the others."""

    mean: Interval  # mean τ with the others, over models drawn anew
    p_value: float  # that it agrees no more than a shuffled ranking
    taus: tuple[float, ...]  # with each of the others


def measure_agreement_with_others(
    scores: Floats, other_scores: Floats, rng: Generator
) -> BenchmarkAgreement:
    """Measure the agreement of one benchmark with the others, (models, others).

    A benchmark agrees where its τ with the mean of the others or with the nearest of them is more than chance gives.
    """
    models, others = other_scores.shape
    if not others:
        return BenchmarkAgreement(Interval(math.nan, math.nan, math.nan), 1.0, ())
    draws = max(100, min(RESAMPLES, MAX_COMPARISONS // models**2))
    resampled = rng.integers(models, size=(draws, models))
    rows = np.concatenate([np.arange(models)[None, :], resampled])  # the models themselves first
    taus = [kendall_by_row(scores[rows], other_scores[rows, k]) for k in range(others)]
    means = _mean_of_known(taus)
    low, high = np.nanpercentile(means[1:], [2.5, 97.5])
    observed_taus = tuple(float(tau[0]) for tau in taus)
    p_with_mean = _test_agreement_with_mean(scores, other_scores, draws, rng)
    p_with_nearest = _test_agreement_with_nearest(
        scores, other_scores, float(np.nanmax(observed_taus)), draws, rng
    )
    return BenchmarkAgreement(
        mean=Interval(float(means[0]), float(low), float(high)),
        p_value=min(1.0, 2 * min(p_with_mean, p_with_nearest)),
        taus=observed_taus,
    )


def _mean_of_known(taus: Sequence[Floats]) -> Floats:
    """Return the mean over benchmarks of the taus that are defined; NaN where none is."""
    counts = np.isfinite(taus).sum(axis=0)
    unknown = np.full(len(counts), np.nan)
    means: Floats = np.divide(np.nansum(taus, axis=0), counts, out=unknown, where=counts > 0)
    return means


def _test_agreement_with_mean(
    scores: Floats, other_scores: Floats, draws: int, rng: Generator
) -> float:
    """Return P that a shuffled ranking agrees as well with the mean of the standardised others."""
    spread = np.nanstd(other_scores, axis=0)
    divisor = np.where(spread > 0, spread, 1.0)
    standardised = (other_scores - np.nanmean(other_scores, axis=0)) / divisor
    common = np.nanmean(standardised, axis=1)
    is_known = np.isfinite(common)
    scores = scores[is_known]
    common = common[is_known]
    shuffled = rng.permuted(np.tile(scores, (draws, 1)), axis=1)
    observed = float(kendall_by_row(scores, common))
    return _share_reaching(observed, kendall_by_row(shuffled, common))


def _test_agreement_with_nearest(
    scores: Floats, other_scores: Floats, observed: float, draws: int, rng: Generator
) -> float:
    """Return P that a shuffled ranking agrees as well with the benchmark that is nearest to it."""
    shuffled = rng.permuted(np.tile(scores, (draws, 1)), axis=1)
    taus = [kendall_by_row(shuffled, other_scores[:, k]) for k in range(other_scores.shape[1])]
    return _share_reaching(observed, np.nanmax(np.stack(taus), axis=0))


def _share_reaching(observed: float, by_chance: Floats) -> float:
    """Return the share of draws that reach what was observed, itself among them."""
    if not math.isfinite(observed):
        return 1.0
    reaching = float((by_chance >= observed - 1e-12).sum())
    return (1 + reaching) / (1 + len(by_chance))


# --- differences between models --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreDifferences:
    """Whether models differ on a benchmark beyond chance, and how reliable their ranking is."""

    p_value: float
    reliability: float


def compare_models_by_items(answers: Floats) -> ScoreDifferences:
    """Test by the F test of models × items whether models answer alike, and measure the reliability of their ranking.

    That is Hoyt's, which is Cronbach's α: the mean over all split halves, stepped up to the whole test.
    """
    models, items = answers.shape
    model_means = answers.mean(axis=1, keepdims=True)
    residuals = answers - answers.mean(axis=0) - model_means + answers.mean()
    model_degrees = models - 1
    residual_degrees = (models - 1) * (items - 1)
    squares_of_models = float(((answers.mean(axis=1) - answers.mean()) ** 2).sum())
    between = items * squares_of_models / model_degrees
    within = float((residuals**2).sum()) / residual_degrees
    if between <= 0:
        return ScoreDifferences(p_value=1.0, reliability=0.0)
    p_value = 0.0
    if within > 0:
        p_value = float(stats.f.sf(between / within, model_degrees, residual_degrees))
    return ScoreDifferences(p_value, reliability=max(-1.0, 1 - within / between))


def compare_models_by_errors(scores: Floats, stderr: Floats) -> ScoreDifferences:
    """Test by χ² on the standard errors whether models score alike, and return the reliability that these leave."""
    is_known = np.isfinite(stderr) & (stderr > 0)
    if is_known.sum() < MIN_MODELS:
        return ScoreDifferences(math.nan, math.nan)
    scores = scores[is_known]
    weight = 1 / stderr[is_known] ** 2
    mean = float((scores * weight).sum() / weight.sum())
    statistic = float((weight * (scores - mean) ** 2).sum())
    p_value = float(stats.chi2.sf(statistic, len(scores) - 1))
    variance = float(scores.var(ddof=1))
    reliability = math.nan
    if variance > 0:
        reliability = max(0.0, 1 - float((1 / weight).mean()) / variance)
    return ScoreDifferences(p_value, reliability)


def estimate_documents_needed(answers: Floats) -> float:
    """Return how many documents find a difference of ``RESOLUTION`` four times in five, by a paired test.

    The variance is the median one of models that are neighbours in the ranking.
    """
    order = np.argsort(answers.mean(axis=1))
    variances = [
        (answers[worse] - answers[better]).var(ddof=1) for worse, better in pairwise(order)
    ]
    return float(math.ceil(POWER_FACTOR * float(np.median(variances)) / RESOLUTION**2))


def measure_resolved_share(answers: Floats, scores: Floats, stderr: Floats) -> float:
    """Return the share of model pairs that differ significantly (5 %), paired where there are items."""
    first, second = np.triu_indices(len(scores), 1)
    if answers.shape[1] >= 2:
        differs = [
            _differ_paired(answers[i] - answers[j]) for i, j in zip(first, second, strict=True)
        ]
        return float(np.mean(differs))
    pair_stderr = np.hypot(stderr[first], stderr[second])
    is_known = np.isfinite(pair_stderr)
    if not is_known.any():
        return math.nan
    is_apart = np.abs(scores[first] - scores[second]) > 1.96 * pair_stderr
    return float(np.mean(is_apart[is_known]))


def _differ_paired(differences: Floats) -> bool:
    stderr = differences.std(ddof=1) / math.sqrt(len(differences))
    return bool(abs(differences.mean()) > 1.96 * stderr)


# --- items to look at ------------------------------------------------------------------------------------------------


class SuspectReason(StrEnum):
    """Why an item is to be looked at."""

    NEGATIVE_DISCRIMINATION = "negative discrimination"  # worse models answer it better
    ALWAYS_WRONG = "always wrong"
    ALWAYS_WRONG_TUNED = "always wrong after tuning"


@dataclass(frozen=True)
class SuspectItem:
    """An item to look at, and why."""

    document: int
    reason: SuspectReason
    right: float  # share of models that got it right
    discrimination: float  # correlation over models with the rest of the test


def find_suspect_items(
    documents: Sequence[int], answers: Floats, *, tuned: bool
) -> tuple[SuspectItem, ...]:
    """Return items that worse models answer better, beyond chance, and those that no model gets right."""
    models = len(answers)
    discrimination = _measure_discrimination(answers)
    degrees = max(models - 2, 1)
    unexplained = np.maximum(1 - discrimination**2, 1e-9)
    t_statistic = discrimination * np.sqrt(degrees / unexplained)
    p_values = stats.false_discovery_control(stats.t.cdf(t_statistic, degrees))
    negative = np.flatnonzero(p_values < FALSE_DISCOVERY_RATE)
    most_negative_first = negative[np.argsort(discrimination[negative], kind="stable")]
    share_right = answers.mean(axis=0)
    suspects = []
    for item in map(int, most_negative_first):
        suspects.append(
            SuspectItem(
                document=documents[item],
                reason=SuspectReason.NEGATIVE_DISCRIMINATION,
                right=float(share_right[item]),
                discrimination=float(discrimination[item]),
            )
        )
    wrong = SuspectReason.ALWAYS_WRONG_TUNED if tuned else SuspectReason.ALWAYS_WRONG
    for item in map(int, np.flatnonzero(answers.max(axis=0) <= 0)):
        suspects.append(
            SuspectItem(document=documents[item], reason=wrong, right=0.0, discrimination=0.0)
        )
    return tuple(suspects)


def _measure_discrimination(answers: Floats) -> Floats:
    """Return the correlation over models of each item with the rest of the test; 0 where one does not vary."""
    items = answers.shape[1]
    rest = (answers.sum(axis=1, keepdims=True) - answers) / max(items - 1, 1)
    item_deviation = answers - answers.mean(axis=0)
    rest_deviation = rest - rest.mean(axis=0)
    norm = np.sqrt((item_deviation**2).sum(axis=0) * (rest_deviation**2).sum(axis=0))
    covariance = (item_deviation * rest_deviation).sum(axis=0)
    correlation: Floats = np.divide(covariance, norm, out=np.zeros(items), where=norm > 1e-12)
    return correlation


# --- before and after tuning -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuningEffect:
    """What tuning changes on a benchmark: the mean gain, and τ of the rankings before and after."""

    gain: Interval | None
    tau: float


def measure_tuning_effect(
    matrix: ScoreMatrix, direct: ScoreMatrix | None, task: str, rng: Generator
) -> TuningEffect:
    """Return the mean gain by tuning over models drawn anew, and τ of the rankings before and after it."""
    if direct is None:
        return TuningEffect(None, math.nan)
    models = keep_names_in(matrix.models, direct.models)
    after = matrix.select(models=models, tasks=[task]).oriented()[:, 0]
    before = direct.select(models=models, tasks=[task]).oriented()[:, 0]
    gains = (after - before)[np.isfinite(after - before)]
    if len(gains) < 2:
        return TuningEffect(None, math.nan)
    resampled = gains[rng.integers(len(gains), size=(RESAMPLES, len(gains)))]
    low, high = np.percentile(resampled.mean(axis=1), [2.5, 97.5])
    gain = Interval(float(gains.mean()), float(low), float(high))
    return TuningEffect(gain, float(kendall_by_row(after, before)))

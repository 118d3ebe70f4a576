"""Intervals of shares and scores that hold at the ends, too.

A model that is right on none of 200 examples has a standard error of 0, and "0.000 ± 0.000" would say that it can
never be right. Wilson's interval of a share knows better: 0 to 0.019. It is taken from the standard error, through the
number of independent examples that would give this error, p(1 − p)/s², so that errors with clusters and seeds widen it
as they should. Bounds of rates that are counted are Clopper and Pearson's, which never promise too much. A mean over
models has an interval over their families, since models of one family are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from scipy.stats import beta, norm
from scipy.stats import t as student_t

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.values.clusters import (
    LEAST_CLUSTERS,
    Clusters,
    clustered_error,
    degrees_of_freedom,
)
from potentia.values.findings import Interval
from potentia.values.scores import Floats, Score


def wilson_interval(share: float, examples: float, *, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of a share of so many independent examples; these need not be a whole number."""
    z = float(norm.ppf(0.5 + level / 2))
    shrink = 1.0 + z**2 / examples
    centre = (share + z**2 / (2 * examples)) / shrink
    variance = share * (1 - share) / examples + z**2 / (4 * examples**2)
    half_width = z * math.sqrt(variance) / shrink
    low = max(0.0, min(share, centre - half_width))
    high = min(1.0, max(share, centre + half_width))
    return Interval(value=share, low=low, high=high, level=level)


def score_interval(
    value: float,
    stderr: float,
    *,
    examples: float = math.nan,
    is_share: bool = False,
    level: float = LEVEL,
) -> Interval:
    """Return the interval of a score: Wilson's where it is a share of examples, else the normal one.

    Both ends are NaN where the standard error is not known.
    """
    if not math.isfinite(stderr):
        return Interval(value=value, low=math.nan, high=math.nan, level=level)
    has_examples = math.isfinite(examples) and examples >= 1
    if is_share and has_examples and 0.0 <= value <= 1.0:
        independent = _count_independent_examples(value, stderr, examples)
        return wilson_interval(value, independent, level=level)
    half_width = float(norm.ppf(0.5 + level / 2)) * stderr
    return Interval.around(value, half_width, level)


def average_intervals(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """Return the interval of a weighted mean of independent values, its sides the roots of summed squares.

    That keeps the sides of Wilson's intervals apart where a score is near 0 or 1.
    """
    value = 0.0
    below = 0.0
    above = 0.0
    for interval, weight in zip(intervals, weights, strict=True):
        value += weight * interval.value
        below = math.hypot(below, weight * (interval.value - interval.low))
        above = math.hypot(above, weight * (interval.high - interval.value))
    return Interval(value=value, low=value - below, high=value + above, level=intervals[0].level)


def mean_interval(values: Floats, labels: Sequence[Hashable], *, level: float = LEVEL) -> Interval:
    """Return the mean of values with its interval; values with one label, such as a family's, are not independent.

    Errors are clustered (CR2), with Student's t of Satterthwaite's degrees of freedom. Values that all have one label
    are as near to each other, and count alone. One value has no interval.
    """
    mean = float(values.mean())
    clusters = Clusters.from_labels(labels)
    if clusters.count < LEAST_CLUSTERS:
        clusters = Clusters.singletons(len(values))
    if clusters.count < LEAST_CLUSTERS:
        return Interval(mean, math.nan, math.nan, level)
    quantile = float(student_t.ppf(0.5 + level / 2, degrees_of_freedom(clusters)))
    return Interval.around(mean, quantile * clustered_error(values, clusters), level)


def interval_of_score(score: Score, *, level: float = LEVEL) -> Interval:
    """Return the interval of a score that knows its metric and its examples."""
    return score_interval(
        score.value,
        score.stderr,
        examples=score.n or math.nan,
        is_share=score.metric.scale == "share",
        level=level,
    )


def _count_independent_examples(share: float, stderr: float, examples: float) -> float:
    """Return how many independent examples would give a share this standard error; at the ends, all there are."""
    variance = share * (1 - share)
    if stderr <= 0 or variance <= 0:
        return examples
    return max(1.0, variance / stderr**2)


def exact_upper_bound(hits: int, trials: int, *, level: float = LEVEL) -> float:
    """Return the upper end of Clopper and Pearson's interval of a rate; 1 where there are no trials."""
    if hits >= trials:
        return 1.0
    return float(beta.ppf(0.5 + level / 2, hits + 1, trials - hits))


def exact_lower_bound(hits: int, trials: int, *, level: float = LEVEL) -> float:
    """Return the lower end of Clopper and Pearson's interval of a rate; 0 where there are no hits."""
    if hits <= 0:
        return 0.0
    return float(beta.ppf(0.5 - level / 2, hits, trials - hits + 1))

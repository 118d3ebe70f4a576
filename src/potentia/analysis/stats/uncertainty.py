"""Kendall's tau of many noisy copies of the same scores, and the interval that they give.

Scores are measured on a sample of items, so a tau between scores and anything else has an uncertainty. The parametric
bootstrap draws every score again from a normal law with its standard error and computes tau each time. Drawing adds
noise to scores that are noisy already and so pulls tau towards zero; the interval therefore also takes the draws'
spread around *their* mean and puts it around the observed value, and reaches as far as either does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.values.findings import Interval
from potentia.values.scores import Floats


@dataclass(frozen=True)
class Spread:
    """A mean over repetitions and the range that holds a share of them; what single runs do, no confidence interval."""

    value: float
    low: float
    high: float
    share: float = 0.95


def spread_of(values: Floats, share: float = 0.95) -> Spread:
    """Return the mean and the middle share of some repetitions; NaN where there is none."""
    if not len(values):
        return Spread(float("nan"), float("nan"), float("nan"), share)
    tail = 100 * (1 - share) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return Spread(float(values.mean()), float(low), float(high), share)


def three(interval: Interval | Spread) -> tuple[float, float, float]:
    """Return value, low and high, the three cells that an interval takes in a table."""
    return interval.value, interval.low, interval.high


def tau_rows(first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
    """Kendall's tau-b along the last axis, for any number of leading axes that broadcast (NaN where one is constant).

    Equals ``scipy.stats.kendalltau`` on every row, ties included. Where ``kendall_matrix`` compares every column with
    every other, this compares row with row, which is what a bootstrap that changes both sides at once needs.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    upper, lower = np.triu_indices(x.shape[-1], k=1)
    sign_x = np.sign(x[..., lower] - x[..., upper])  # (…, pairs)
    sign_y = np.sign(y[..., lower] - y[..., upper])
    agreement = (sign_x * sign_y).sum(axis=-1)
    untied = np.sqrt((sign_x**2).sum(axis=-1) * (sign_y**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(untied > 0, agreement / untied, np.nan))


def redraw(values: Floats, stderr: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draw the scores again from a normal law; a score without a standard error stays as it is. (draws, models)."""
    noise = rng.standard_normal((draws, len(values)))
    return values + noise * np.nan_to_num(stderr, nan=0.0)


def tau_interval(value: float, draws: Floats, *, level: float = 0.95, bounds: tuple[float, float]) -> Interval:
    """Span the draws' percentiles, and the same moved to where the draws' mean is the observed value."""
    known = draws[np.isfinite(draws)]
    if not np.isfinite(value) or len(known) < 2:
        return Interval(value, float("nan"), float("nan"), level)
    tail = 100 * (1 - level) / 2
    ends = np.percentile(known, [tail, 100 - tail])
    moved = ends - known.mean() + value
    low, high = min(ends[0], moved[0], value), max(ends[1], moved[1], value)
    return Interval(float(value), float(max(low, bounds[0])), float(min(high, bounds[1])), level)

"""How much of the spread of scores is no test noise, and what agreement would be without that noise.

Two tasks that rank models alike agree less the noisier their tests are. If scores are normal, Kendall's τ is
(2/π)·asin ρ; noise lowers ρ by √(r_t·r_u), where the reliability r of a task is the share of the variance of its scores
that is no test noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potentia.values.scores import Floats

LEAST_RELIABILITY = 0.1  # below, what noise took away cannot be given back


def measure_reliability(values: Floats, errors: Floats, weights: Floats | None = None) -> Floats:
    """Return the reliability of each task of (models, tasks); NaN without errors or without spread.

    ``weights`` (resamples, models) say how often each model counts, as a bootstrap draws them: (resamples, tasks).
    """
    is_known = np.isfinite(values) & np.isfinite(errors)
    counts = is_known.astype(np.float64)
    draws = np.ones((1, len(values))) if weights is None else np.asarray(weights, dtype=np.float64)
    totals = draws @ counts
    scores = np.where(is_known, values, 0.0)
    squared_errors = np.where(is_known, errors**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = draws @ scores / totals
        # About a value near them all, so that no digits are lost.
        centre = np.where(is_known, values - means[0], 0.0)
        offset = draws @ centre / totals
        variance = (draws @ centre**2 / totals - offset**2) * totals / (totals - 1)
        reliability = 1.0 - (draws @ squared_errors / totals) / variance
    reliability = np.where((totals > 1) & (variance > 1e-18), reliability, np.nan)
    return np.asarray(reliability[0] if weights is None else reliability)


def correlate_without_noise(mean_tau: npt.ArrayLike, reliability: Floats) -> Floats:
    """Return the correlation behind a mean τ over pairs of tasks as it would be without test noise.

    ``reliability`` is (…, tasks), one row for each mean. The mean τ becomes a correlation, and that is divided by the
    mean over all pairs of what noise leaves of a correlation, √(r_t·r_u): one ratio for all pairs. Corrected one by
    one and averaged, pairs of noisy tasks would decide, and the mean could fall below that of the τ, since neither the
    sine nor its inverse is linear. NaN where noise is nearly all, or unknown for more than half of the pairs.
    """
    first, second = np.triu_indices(reliability.shape[-1], 1)
    roots = np.sqrt(np.clip(reliability, 0.0, 1.0))
    remaining = roots[..., first] * roots[..., second]
    is_known = np.isfinite(remaining)
    known_pairs = is_known.sum(axis=-1)
    total = np.where(is_known, remaining, 0.0).sum(axis=-1)
    mean_remaining = np.full(np.shape(total), np.nan)
    np.divide(total, known_pairs, out=mean_remaining, where=2 * known_pairs >= max(len(first), 1))
    is_enough = mean_remaining >= LEAST_RELIABILITY
    correlation = np.sin(np.pi / 2 * np.asarray(mean_tau, dtype=np.float64))
    return np.asarray(correlation / np.where(is_enough, mean_remaining, np.nan))


def tau_of_correlation(correlation: npt.ArrayLike) -> Floats:
    """Return the Kendall's τ that normal scores of this correlation have."""
    return np.asarray(2 / np.pi * np.arcsin(np.clip(correlation, -1.0, 1.0)))


def attenuate(tau: npt.ArrayLike, factor: float) -> Floats:
    """Return Kendall's τ after its correlation is lowered (or raised) by a factor."""
    return tau_of_correlation(np.sin(np.pi / 2 * np.asarray(tau, dtype=np.float64)) * factor)

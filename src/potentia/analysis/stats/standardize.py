"""z scores: the scores of each task with mean 0 and standard deviation 1 over the models, and their mean over tasks."""

from __future__ import annotations

import numpy as np

from potentia.analysis.stats.correlation import nan_mean
from potentia.values.scores import Floats


def standardize(values: Floats, weights: Floats | None = None) -> Floats:
    """Return columns with mean 0 and standard deviation 1 (divisor n); a constant column becomes zero.

    ``weights`` says how many models each row stands for. With several resamples, (resamples, models), every resample
    is standardized by itself: the result is (resamples, models, tasks).
    """
    row_weights = np.ones(len(values)) if weights is None else weights
    shares = row_weights / row_weights.sum(axis=-1, keepdims=True)
    shares = shares[..., None, :]  # (…, 1, models)
    centred = values - shares @ values
    spread = np.sqrt(shares @ centred**2)
    magnitude = np.abs(values).max(axis=0, initial=0.0)
    varies = spread > 1e-12 * np.where(magnitude > 0, magnitude, 1.0)
    return np.where(varies, centred / np.where(varies, spread, 1.0), 0.0)


def mean_z_scores(values: Floats) -> Floats:
    """Return each model's mean over tasks of its z score among the models that have the task."""
    if np.isfinite(values).all():
        return np.asarray(standardize(values).mean(axis=1))
    z_scores = np.full(values.shape, np.nan)
    for column in range(values.shape[1]):
        scored = np.isfinite(values[:, column])
        if scored.any():
            z_scores[scored, column] = standardize(values[scored, column : column + 1])[:, 0]
    return nan_mean(z_scores)

"""Standard errors of means over examples, some of which share a passage and so are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from potentia.values.scores import Floats


def sum_by_cluster(values: Floats, labels: Sequence[str]) -> Floats:
    """Return the sums over the examples of each cluster, (rows, clusters), of (rows, examples).

    An example without a label is a cluster of its own.
    """
    numbers: dict[str, int] = {}
    positions = []
    for position, label in enumerate(labels):
        key = f"cluster {label}" if label else f"example {position}"
        positions.append(numbers.setdefault(key, len(numbers)))
    sums = np.zeros((values.shape[0], len(numbers)))
    np.add.at(sums.T, positions, values.T)
    return sums


def covariance_of_means(values: Floats, labels: Sequence[str]) -> Floats:
    """Return the covariance of the means over examples of several rows, (rows, rows), of (rows, examples)."""
    centred = values - values.mean(axis=1, keepdims=True)
    sums = sum_by_cluster(centred, labels)
    clusters = sums.shape[1]
    if clusters < 2:
        return np.full((len(values), len(values)), math.nan)
    correction = clusters / (clusters - 1)
    return np.asarray(correction * (sums @ sums.T) / values.shape[1] ** 2, dtype=np.float64)


def clustered_error(values: Floats, labels: Sequence[str]) -> float:
    """Return the standard error of one mean over examples; NaN where there are not two clusters."""
    if len(values) < 2:
        return math.nan
    variance = float(covariance_of_means(values[None, :], labels)[0, 0])
    return math.sqrt(variance) if variance >= 0 else math.nan

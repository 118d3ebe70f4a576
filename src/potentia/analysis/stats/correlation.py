"""Spearman's and Pearson's correlations between every two tasks, beside Kendall's, and means over pairs of tasks.

Like ``kendall_matrix``, both treat missing scores pairwise and take bootstrap weights: how often each model counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from potentia.analysis.stats.kendall import kendall_matrix, three_axes
from potentia.values.scores import Floats

Correlate = Callable[..., Floats]
_BLOCK = 1 << 20  # scores weighed at once


def spearman_matrix(
    values: npt.ArrayLike, others: npt.ArrayLike | None = None, *, weights: npt.ArrayLike | None = None
) -> Floats:
    """Spearman's rho between columns: Pearson's r of the midranks, on the models that have both scores."""
    return _correlate(values, others, weights, ranks=True)


def pearson_matrix(
    values: npt.ArrayLike, others: npt.ArrayLike | None = None, *, weights: npt.ArrayLike | None = None
) -> Floats:
    """Pearson's r between columns, on the models that have both scores; NaN where a column is constant."""
    return _correlate(values, others, weights, ranks=False)


METHODS: dict[str, Correlate] = {"kendall": kendall_matrix, "spearman": spearman_matrix, "pearson": pearson_matrix}


def mean_offdiagonal(matrix: Floats, *, axis: bool = False) -> Floats:
    """Mean over the distinct pairs of a symmetric (…, T, T) matrix, or per task where ``axis`` is true; skips NaN."""
    off = np.where(np.eye(matrix.shape[-1], dtype=bool), np.nan, matrix)
    return nan_mean(off, axis=-1) if axis else nan_mean(off.reshape(*off.shape[:-2], -1), axis=-1)


def nan_mean(values: npt.ArrayLike, axis: int = -1) -> Floats:
    """Mean that skips NaN and is NaN, silently, where nothing is left."""
    array = np.asarray(values, dtype=np.float64)
    there = np.isfinite(array)
    count = there.sum(axis=axis)
    total = np.where(there, array, 0.0).sum(axis=axis)
    return np.asarray(np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0))


def _correlate(
    values: npt.ArrayLike, others: npt.ArrayLike | None, weights: npt.ArrayLike | None, *, ranks: bool
) -> Floats:
    x = three_axes(values)
    y = x if others is None else three_axes(others)
    draws = np.ones((1, x.shape[1])) if weights is None else np.atleast_2d(np.asarray(weights, dtype=np.float64))
    whole = bool(np.isfinite(x).all() and np.isfinite(y).all())
    parts = []
    resamples = max(len(x), len(draws))
    for rows in np.array_split(np.arange(resamples), max(1, -(-resamples * x[0].size // _BLOCK))):
        one, two, weight = (part if len(part) == 1 else part[rows] for part in (x, y, draws))
        if not whole:
            parts.append(_with_gaps(one, two, weight, ranks=ranks))
            continue
        left = _midranks(one, weight) if ranks else one
        right = left if y is x else _midranks(two, weight) if ranks else two
        parts.append(_pearson_of_whole(left, right, weight))
    single = np.ndim(values) == 2 and (weights is None or np.ndim(weights) == 1)
    return parts[0][0] if single else np.concatenate(parts)


def _pearson_of_whole(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Weighted r without gaps, all resamples at once: x and y are (1 or R, models, tasks), weight (R, models)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (weight / weight.sum(axis=1, keepdims=True))[:, None, :]  # (R, 1, models)
        left = x - share @ x
        spread_x = _spread(share @ left**2, share @ x**2)
        right = left if y is x else y - share @ y
        spread_y = spread_x if y is x else _spread(share @ right**2, share @ y**2)
        together = (left * share.transpose(0, 2, 1)).transpose(0, 2, 1) @ right
        r = together / np.sqrt(spread_x).transpose(0, 2, 1) / np.sqrt(spread_y)
    return np.asarray(np.clip(r, -1.0, 1.0))


def _with_gaps(x: Floats, y: Floats, weight: Floats, *, ranks: bool) -> Floats:
    """Weighted r of columns, or of their midranks, on the rows that both have: x and y are (1 or R, models, tasks).

    Which rows both have, and so the ranks, differ from pair to pair of columns: these are taken one by one.
    """
    resamples = max(len(x), len(weight))
    result = np.full((resamples, x.shape[2], y.shape[2]), np.nan)
    for i, j in np.ndindex(x.shape[2], y.shape[2]):
        both = np.isfinite(x[0, :, i]) & np.isfinite(y[0, :, j])
        if both.sum() < 2:
            continue
        one, two, w = x[:, both, i : i + 1], y[:, both, j : j + 1], weight[:, both]
        if ranks:
            one, two = _midranks(one, w), _midranks(two, w)
        result[:, i, j] = _pearson_of_whole(one, two, w)[:, 0, 0]
    return result


def _spread(variance: Floats, scale: Floats) -> Floats:
    """Variance, or NaN, hence an undefined correlation, where it is only rounding."""
    return np.where(variance > 1e-26 * scale, variance, np.nan)


def _midranks(x: Floats, weight: Floats) -> Floats:
    """Average ranks where row a stands for ``weight[r, a]`` equal rows: (resamples, models, tasks).

    ``x`` is (1 or R, models, tasks) and ``weight`` (1 or R, models).
    """
    if len(x) > 1:
        return np.concatenate([_midranks(x[r : r + 1], weight[r % len(weight)][None]) for r in range(len(x))])
    ranks = np.empty((len(weight), *x.shape[1:]))
    for column in range(x.shape[2]):
        order = np.argsort(x[0, :, column], kind="stable")
        ascending = x[0, order, column]
        new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        mass = np.add.reduceat(weight[:, order], np.flatnonzero(new), axis=1)  # (resamples, distinct scores)
        middle = np.cumsum(mass, axis=1) - mass + (mass + 1.0) / 2.0
        ranks[:, order, column] = middle[:, np.cumsum(new) - 1]
    return ranks

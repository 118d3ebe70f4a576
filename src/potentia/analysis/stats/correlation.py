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
_SURE = 1e-3  # of a sum of squares: a variance above it has lost no more than three digits


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
    single = np.ndim(values) == 2 and (weights is None or np.ndim(weights) == 1)
    if len(x) == 1 and np.isfinite(x).all() and np.isfinite(y).all():
        parts = []
        for part in np.array_split(draws, -(-len(draws) * x[0].size // _BLOCK)):
            left, right = (
                (_midranks(x[0], part), None if others is None else _midranks(y[0], part)) if ranks else (x, y)
            )
            parts.append(_pearson_of_whole(left, left if right is None else right, part))
        result = np.concatenate(parts)
    else:
        rows = np.arange(max(len(x), len(draws)))
        each = _spearman_with_gaps if ranks else _pearson_with_gaps
        size = x.shape[1] * (x.shape[2] + y.shape[2])
        blocks = np.array_split(rows, -(-len(rows) * size // _BLOCK))
        result = np.concatenate([each(x[b % len(x)], y[b % len(y)], draws[b % len(draws)]) for b in blocks])
    return result[0] if single else result


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


def _pearson_with_gaps(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Weighted r of columns on the rows that both have: x and y are (R, models, tasks), weight (R, models).

    Sums over the rows that both have are products with which rows are known. A variance that is left over from much
    larger sums is not to be trusted (a column may be constant there): such pairs are taken by themselves.
    """
    (left, here), (right, there) = _centred(x), _centred(y)
    share = weight[:, :, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        turned, known = (left * share).transpose(0, 2, 1), (here * share).transpose(0, 2, 1)  # (R, tasks, models)
        n = known @ there
        mean_x, mean_y = turned @ there / n, known @ right / n
        square_x, square_y = (left**2 * share).transpose(0, 2, 1) @ there / n, known @ right**2 / n
        spread_x, spread_y = square_x - mean_x**2, square_y - mean_y**2
        r = np.clip((turned @ right / n - mean_x * mean_y) / np.sqrt(spread_x) / np.sqrt(spread_y), -1.0, 1.0)
    several = (here * (share > 0)).transpose(0, 2, 1) @ there > 1
    sure = (spread_x > _SURE * square_x) & (spread_y > _SURE * square_y)
    for k, i, j in np.argwhere(several & ~sure):
        both = np.isfinite(x[k, :, i]) & np.isfinite(y[k, :, j]) & (weight[k] > 0)
        one, other = x[k, both, i][None, :, None], y[k, both, j][None, :, None]
        r[k, i, j] = _pearson_of_whole(one, other, weight[k, both][None])[0, 0, 0]
    return np.asarray(np.where(several, r, np.nan))


def _centred(x: Floats) -> tuple[Floats, Floats]:
    """Columns less their mean over the rows that have them, zero at the others, and which rows have them."""
    known = np.isfinite(x)
    filled = np.where(known, x, 0.0)
    mean = filled.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known, filled - mean, 0.0), known.astype(np.float64)


def _spearman_with_gaps(x: Floats, y: Floats, weight: Floats) -> Floats:
    """The same of the midranks; they differ from pair to pair, so pairs are taken one by one."""
    return np.stack([_spearman(one, other, w) for one, other, w in zip(x, y, weight, strict=True)])


def _spearman(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Weighted rho of every pair of columns, ranked anew on the rows that both have."""
    result = np.full((x.shape[1], y.shape[1]), np.nan)
    for i in range(x.shape[1]):
        for j in range(y.shape[1]):
            both = np.isfinite(x[:, i]) & np.isfinite(y[:, j])
            if both.sum() > 1:
                w = weight[None, both]
                left, right = _midranks(x[both, i : i + 1], w), _midranks(y[both, j : j + 1], w)
                result[i, j] = _pearson_of_whole(left, right, w)[0, 0, 0]
    return result


def _spread(variance: Floats, scale: Floats) -> Floats:
    """Variance, or NaN, hence an undefined correlation, where it is only rounding."""
    return np.where(variance > 1e-26 * scale, variance, np.nan)


def _midranks(x: Floats, weight: Floats) -> Floats:
    """Average ranks where row a stands for ``weight[r, a]`` equal rows: (resamples, models, tasks)."""
    ranks = np.empty((len(weight), *x.shape))
    for column in range(x.shape[1]):
        order = np.argsort(x[:, column], kind="stable")
        ascending = x[order, column]
        new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        mass = np.add.reduceat(weight[:, order], np.flatnonzero(new), axis=1)  # (resamples, distinct scores)
        middle = np.cumsum(mass, axis=1) - mass + (mass + 1.0) / 2.0
        ranks[:, order, column] = middle[:, np.cumsum(new) - 1]
    return ranks

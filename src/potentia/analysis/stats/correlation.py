"""Correlations of every two tasks at once, with ties, gaps and bootstrap weights: Kendall's, Spearman's and Pearson's.

Kendall's tau only needs the sign of every pair of models on every task. Written as a matrix S of (tasks, pairs) with
entries -1, 0, 1, the concordant-minus-discordant counts of all tasks are one product SSᵀ, and a bootstrap resample of
models is that product with each pair (a, b) weighted by w_a·w_b, the times each model was drawn: copies of one model
tie on every task and so count nowhere, exactly as tau-b on the resampled rows. Missing scores are treated pairwise:
a pair of tasks is compared on the models that have both. Models that are always drawn together, as those of a family,
have one weight, so their pairs are summed before they are weighed.

The cost of a resample grows with the pairs of what is drawn. Past ``FIRST_ORDER`` it is followed to first order: with
w = 1 + d, the sum over pairs of w_a·w_b·c_ab is that of c_ab, plus the sum of d_a times the row sums of c, and what is
left out, d_a·d_b·c_ab, is of order 1 / models (the Hájek projection of a U-statistic).

The analyses of one set of scores ask for the same resampled correlations again and again (agreement, its change, by
group, by measure), each from its own module and with the same seed: the latest answers are kept, by the content of the
arguments.

Spearman's and Pearson's treat missing scores pairwise too, and take the same weights: how often each model counts.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.values.scores import Floats

_BLOCK = 1 << 22  # signs of a working block
_TOGETHER = 1024  # pairs of units weighed at once
FIRST_ORDER = 120
Index = npt.NDArray[np.intp]
Signs = npt.NDArray[np.float32]
Side = tuple[
    Signs, Signs | None
]  # the signs of pairs, and which pairs are known where not all are: (…, tasks, pairs)


LEAST_BYTES, KEPT = (
    1 << 16,
    16,
)  # smaller answers are made again sooner than they are found; so many are kept


def cache_large_results(function: Callable[..., Floats]) -> Callable[..., Floats]:
    """Keep the latest large answers of a pure function of arrays."""
    known: dict[bytes, Floats] = {}

    @functools.wraps(function)
    def ask(*arguments: Any, **named: Any) -> Floats:
        if not any(np.size(value) * 8 >= LEAST_BYTES for value in (*arguments, *named.values())):
            return function(*arguments, **named)
        key = hashlib.blake2b(pickle.dumps((arguments, named)), digest_size=16).digest()
        answer = known.pop(key, None)
        if answer is None:
            answer = function(*arguments, **named)
            answer.setflags(write=False)
        known[key] = answer  # the last asked for comes last
        for oldest in list(known)[:-KEPT]:
            known.pop(oldest, None)
        return answer

    ask.forget = known.clear  # type: ignore[attr-defined]
    return ask


@cache_large_results
def kendall_matrix(
    values: npt.ArrayLike,
    others: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Kendall's tau-b between every column of ``values`` and every column of ``others`` (or of ``values``).

    ``values`` is (models, tasks), or (resamples, models, tasks) for resamples that change the scores themselves.
    ``weights`` (models,) or (resamples, models) says how often each model counts, as a bootstrap draws them. The
    result is (tasks, other tasks), with a leading axis of resamples where one came in. Equal to
    ``scipy.stats.kendalltau`` for each pair of columns on the rows where both are finite; NaN where a column is
    constant or fewer than two models are left.
    """
    x = with_resample_axis(values)
    y = x if others is None else with_resample_axis(others)
    if y.shape[:2] != x.shape[:2]:
        raise InputError(
            f"values {x.shape} and others {y.shape} must have the same models and resamples"
        )
    draws = _draws(weights, x.shape[1])
    if draws is not None and len(x) > 1 and len(draws) not in (1, len(x)):
        raise InputError("weights and values name different numbers of resamples")
    sides = [
        _Scores(np.ascontiguousarray(part.transpose(0, 2, 1)))
        for part in ((x,) if y is x else (x, y))
    ]
    if draws is None:
        tau = _unweighted(sides[0], sides[-1])
    elif len(x) == 1:
        tau = _weighted(sides[0].one(0), sides[-1].one(0), draws)
    else:
        weight = [draws[r % len(draws)][None] for r in range(len(x))]
        tau = np.concatenate(
            [_weighted(sides[0].one(r), sides[-1].one(r), w) for r, w in enumerate(weight)]
        )
    return tau[0] if np.ndim(values) == 2 and (weights is None or np.ndim(weights) == 1) else tau


@cache_large_results
def kendall_of_significant_differences(
    values: npt.ArrayLike,
    stderr: npt.ArrayLike,
    threshold: float,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Tau-b between the columns where two models differ when |z| exceeds a threshold, and tie where it does not.

    This is tau-b for comparisons that are no ranking: where an insignificant difference counts as a tie, ties are not
    transitive and only the pairwise signs exist (appendix C.2). ``values`` and ``stderr`` are (models, tasks); pairs
    without a score or an error could not be compared at all; ``weights`` are per model, as in ``kendall_matrix``.
    """
    x, spread = (
        np.ascontiguousarray(np.asarray(part, dtype=np.float64).T) for part in (values, stderr)
    )
    side, draws = _Scores(x, spread, threshold), _draws(weights, x.shape[1])
    tau = _unweighted(side, side)[None] if draws is None else _weighted(side, side, draws)
    return tau[0] if weights is None or np.ndim(weights) == 1 else tau


def z_of_difference(one: Floats, one_error: Floats, two: Floats, two_error: Floats) -> Floats:
    """The z of differences; NaN where a score or its error is missing, and infinite or zero where there is no error."""
    difference, error = one - two, np.sqrt(one_error**2 + two_error**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = difference / error
    return np.where((difference == 0) & np.isfinite(error), 0.0, z)


@dataclass(frozen=True)
class _Scores:
    """Scores of one side, (…, tasks, models); with standard errors, two differ by more than ``threshold`` of them."""

    x: Floats
    stderr: Floats | None = None
    threshold: float = 0.0

    def one(self, resample: int) -> _Scores:
        return _Scores(self.x[resample])

    def signs(self, a: Index, b: Index) -> Side:
        """Signs of the models ``a`` against ``b``, two indices that broadcast; a model against itself ties."""
        x, s = self.x, self.stderr
        return self._of(
            x[..., a] - x[..., b]
            if s is None
            else z_of_difference(x[..., a], s[..., a], x[..., b], s[..., b])
        )

    def rows(self, start: int, stop: int) -> Side:
        """Signs of the models from start to stop, each against those after it."""
        x, s = self.x, self.stderr
        ends = np.cumsum([0, *(x.shape[-1] - 1 - m for m in range(start, stop))])
        z = np.empty((*x.shape[:-1], ends[-1]), dtype=np.float32)
        for m, begin, end in zip(range(start, stop), ends, ends[1:], strict=False):
            one, rest = slice(m, m + 1), slice(m + 1, None)
            if s is None:
                np.subtract(x[..., one], x[..., rest], out=z[..., begin:end])
            else:
                z[..., begin:end] = z_of_difference(
                    x[..., one], s[..., one], x[..., rest], s[..., rest]
                )
        return self._of(z)

    def _of(self, z: npt.NDArray[np.floating]) -> Side:
        unknown = np.isnan(z)
        signs = np.subtract(z > self.threshold, z < -self.threshold, dtype=np.float32)
        return signs, (~unknown).astype(np.float32) if unknown.any() else None


def _unweighted(left: _Scores, right: _Scores) -> Floats:
    """Tau-b with all models counting once, of every resample there is."""
    stack, (tasks, models) = left.x.shape[:-2], left.x.shape[-2:]
    if stack:
        step = max(1, _BLOCK // max(1, (tasks + right.x.shape[1]) * models * (models - 1) // 2))
        if step < stack[0]:
            parts = [slice(start, start + step) for start in range(0, stack[0], step)]
            return np.concatenate(
                [_unweighted(_Scores(left.x[p]), _Scores(right.x[p])) for p in parts]
            )
    sums = [np.zeros((*stack, tasks, right.x.shape[-2])) for _ in range(3)]
    step = max(1, _BLOCK // max(1, (tasks + right.x.shape[-2]) * models * int(np.prod(stack))))
    for start in range(0, models - 1, step):
        rows = start, min(start + step, models - 1)
        one = left.rows(*rows)
        for total, part in zip(
            sums, _sums(one, one if right is left else right.rows(*rows)), strict=True
        ):
            total += part
    return _tau(*sums)


def _weighted(left: _Scores, right: _Scores, draws: npt.NDArray[np.floating]) -> Floats:
    """Tau-b under every draw of models: (draws, tasks, other tasks)."""
    units, label = np.unique(draws, axis=1, return_inverse=True)  # models drawn alike are one unit
    label = label.ravel()
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(units.shape[1]))
    simple = units.shape[1] > FIRST_ORDER
    sums = [np.zeros((len(draws), 1, 1)) for _ in range(3)]
    waiting: list[
        tuple[npt.NDArray[np.floating], list[Floats]]
    ] = []  # weights of some pairs, and what is weighed
    for u, some in enumerate(np.split(order, starts[1:])):
        others = order if simple else order[starts[u] :]
        one = left.signs(some[None], others[:, None])
        two = one if right is left else right.signs(some[None], others[:, None])
        if simple:  # row sums hold every pair twice: half of 1 + 2d, d = w - 1
            weight = units[:, u : u + 1] - 0.5
            found = [part[None].astype(np.float64) for part in _sums(_flat(one), _flat(two))]
        else:
            weight = units[:, u:] * units[:, u : u + 1]
            rows = _sums(_turned(one), _turned(two))
            found = [np.add.reduceat(row, starts[u:] - starts[u], axis=0) for row in rows]
            for part in found:
                part[0] /= 2  # within the unit every pair is there twice
        waiting.append((weight, found))
        if u + 1 == units.shape[1] or sum(w.shape[1] for w, _ in waiting) >= _TOGETHER:
            weights = np.concatenate([w for w, _ in waiting], axis=1)
            for k in range(3):
                parts = np.broadcast_arrays(*(f[k][:0] for _, f in waiting))[0].shape[1:]
                pile = np.concatenate(
                    [np.broadcast_to(f[k], (len(f[k]), *parts)) for _, f in waiting]
                )
                sums[k] = sums[k] + (weights @ pile.reshape(len(pile), -1)).reshape(-1, *parts)
            waiting = []
    return _tau(*sums)


def _flat(side: Side) -> Side:
    """(tasks, others, some) → (tasks, pairs)."""
    signs, known = side
    return signs.reshape(len(signs), -1), None if known is None else known.reshape(len(known), -1)


def _turned(side: Side) -> Side:
    """(tasks, others, some) → (others, tasks, some): the sums are then over some, for each of the others."""
    signs, known = side
    return signs.transpose(1, 0, 2), None if known is None else known.transpose(1, 0, 2)


def _sums(one: Side, two: Side) -> tuple[Signs, Signs, Signs]:
    """Sums over pairs: concordance, and pairs untied on one side among those known on both; (…, tasks, other tasks)."""
    (s, known_s), (t, known_t) = one, two
    turned = t.swapaxes(-1, -2)
    untied_s, untied_t = np.abs(s), np.abs(turned)
    if known_s is None and known_t is None:
        return s @ turned, untied_s.sum(axis=-1)[..., None], untied_t.sum(axis=-2)[..., None, :]
    left = np.ones_like(s) if known_s is None else known_s
    right = np.ones_like(turned) if known_t is None else known_t.swapaxes(-1, -2)
    return s @ turned, untied_s @ right, left @ untied_t


def _tau(concordance: Floats, untied_left: Floats, untied_right: Floats) -> Floats:
    """Tau-b of every two tasks; NaN where one of them ties all its pairs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        tau = concordance / np.sqrt(untied_left) / np.sqrt(untied_right)
    return np.clip(tau, -1.0, 1.0)


def _draws(weights: npt.ArrayLike | None, models: int) -> npt.NDArray[np.floating] | None:
    """Return weights as (resamples, models); whole numbers in float32, in which they and their sums are exact."""
    if weights is None:
        return None
    draws = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if draws.shape[1] != models:
        raise InputError(f"weights are for {draws.shape[1]} models, the scores for {models}")
    return draws.astype(np.float32) if np.all(draws == np.rint(draws)) else draws


def with_resample_axis(values: npt.ArrayLike) -> Floats:
    """Return scores as (resamples, models, tasks), a single matrix as one resample."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise InputError(
            f"expected (models, tasks) or (resamples, models, tasks), not {array.ndim} axes"
        )
    return array if array.ndim == 3 else array[None]


Correlate = Callable[..., Floats]
_WEIGHED = 1 << 20  # scores weighed at once


def spearman_matrix(
    values: npt.ArrayLike,
    others: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Spearman's rho between columns: Pearson's r of the midranks, on the models that have both scores."""
    return _correlate(values, others, weights, ranks=True)


def pearson_matrix(
    values: npt.ArrayLike,
    others: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Pearson's r between columns, on the models that have both scores; NaN where a column is constant."""
    return _correlate(values, others, weights, ranks=False)


CORRELATIONS: dict[str, Correlate] = {
    "kendall": kendall_matrix,
    "spearman": spearman_matrix,
    "pearson": pearson_matrix,
}


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
    return np.asarray(
        np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    )


def _correlate(
    values: npt.ArrayLike,
    others: npt.ArrayLike | None,
    weights: npt.ArrayLike | None,
    *,
    ranks: bool,
) -> Floats:
    x = with_resample_axis(values)
    y = x if others is None else with_resample_axis(others)
    draws = (
        np.ones((1, x.shape[1]))
        if weights is None
        else np.atleast_2d(np.asarray(weights, dtype=np.float64))
    )
    whole = bool(np.isfinite(x).all() and np.isfinite(y).all())
    parts = []
    resamples = max(len(x), len(draws))
    for rows in np.array_split(np.arange(resamples), max(1, -(-resamples * x[0].size // _WEIGHED))):
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
        return np.concatenate(
            [_midranks(x[r : r + 1], weight[r % len(weight)][None]) for r in range(len(x))]
        )
    ranks = np.empty((len(weight), *x.shape[1:]))
    for column in range(x.shape[2]):
        order = np.argsort(x[0, :, column], kind="stable")
        ascending = x[0, order, column]
        new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        mass = np.add.reduceat(
            weight[:, order], np.flatnonzero(new), axis=1
        )  # (resamples, distinct scores)
        middle = np.cumsum(mass, axis=1) - mass + (mass + 1.0) / 2.0
        ranks[:, order, column] = middle[:, np.cumsum(new) - 1]
    return ranks

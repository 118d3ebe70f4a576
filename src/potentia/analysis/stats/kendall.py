"""Kendall's tau-b between every two tasks at once, with ties, gaps and bootstrap weights.

Kendall's tau only needs the sign of every pair of models on every task. Written as a matrix S of (pairs, tasks) with
entries -1, 0, 1, the concordant-minus-discordant counts of all tasks are one product SᵀS, and a bootstrap resample of
models is that product with each pair (a, b) weighted by w_a·w_b, the times each model was drawn: copies of one model
tie on every task and so count nowhere, exactly as tau-b on the resampled rows. Missing scores are treated pairwise:
a pair of tasks is compared on the models that have both.

The cost of a resample grows with the pairs of models. Past ``FIRST_ORDER`` models it is followed to first order: with
w = 1 + d, the sum over pairs of w_a·w_b·c_ab is that of c_ab, plus the sum of d_a times the row sums of c, and what is
left out, d_a·d_b·c_ab, is of order 1 / models (the Hájek projection of a U-statistic). Row sums are needed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from potentia.analysis.stats.remember import remembered
from potentia.errors import InputError
from potentia.scores import Floats

_BLOCK = 1 << 22  # entries of a working block: small enough for the cache to help, large enough for BLAS
_STACK = 1 << 23  # bytes of a working block of signs for a stack of matrices
_MANY_MODELS = 1_000
FIRST_ORDER = 500
_EXACT = 1 << 24  # integers up to here are exact in float32


@remembered
def kendall_matrix(
    values: npt.ArrayLike, others: npt.ArrayLike | None = None, *, weights: npt.ArrayLike | None = None
) -> Floats:
    """Kendall's tau-b between every column of ``values`` and every column of ``others`` (or of ``values``).

    ``values`` is (models, tasks), or (resamples, models, tasks) for resamples that change the scores themselves.
    ``weights`` (models,) or (resamples, models) says how often each model counts, as a bootstrap draws them. The
    result is (tasks, other tasks), with a leading axis of resamples where one came in. Equal to
    ``scipy.stats.kendalltau`` for each pair of columns on the rows where both are finite; NaN where a column is
    constant or fewer than two models are left.
    """
    x = three_axes(values)
    y = None if others is None else three_axes(others)
    if y is not None and y.shape[:2] != x.shape[:2]:
        raise InputError(f"values {x.shape} and others {y.shape} must have the same models and resamples")
    draws = _draws(weights, x.shape[1])
    if draws is not None and x.shape[0] > 1 and len(draws) not in (1, x.shape[0]):
        raise InputError("weights and values name different numbers of resamples")
    single = np.ndim(values) == 2 and (weights is None or np.ndim(weights) == 1)
    if x.shape[0] == 1:
        tau = _tau_of_one(x[0], None if y is None else y[0], draws)
    elif y is None and draws is None and x.shape[1] <= _MANY_MODELS and not np.isnan(x).any():
        tau = _tau_of_stack(x)
    else:
        weight = [None] * len(x) if draws is None else [draws[r % len(draws)][None] for r in range(len(x))]
        tau = np.stack([_tau_of_one(x[r], None if y is None else y[r], weight[r])[0] for r in range(len(x))])
    return tau[0] if single else tau


def kendall_of_signs(
    signs: npt.ArrayLike, known: npt.ArrayLike | None = None, *, weights: npt.ArrayLike | None = None
) -> Floats:
    """Tau-b between the columns of a sign matrix: (pairs of models, tasks) in the order of ``np.triu_indices``.

    This is tau-b for comparisons that need not be a ranking: where an insignificant difference counts as a tie, ties
    are not transitive and only the pairwise signs exist (appendix C.2). ``known`` marks the pairs that could be
    compared at all (default: every pair); ``weights`` are per model, as in ``kendall_matrix``.
    """
    s = np.asarray(signs, dtype=np.float32)
    models = _models_of_pairs(s.shape[0])
    draws = _draws(weights, models)
    a, b = np.triu_indices(models, 1)
    v = None if known is None or np.all(known) else np.asarray(known, dtype=np.float32)
    totals = _Totals(s.shape[1], None, 1 if draws is None else len(draws), gaps=v is not None)
    if draws is not None and models > FIRST_ORDER:
        totals.first_order(_rows_of_signs(s, v, models), draws)
    for part in _slices(len(a), totals.width) if draws is None or models <= FIRST_ORDER else ():
        pair = None if draws is None else draws[:, a[part]] * draws[:, b[part]]
        totals.add(s[part], None, None if v is None else v[part], None, pair)
    tau = totals.tau()
    return tau[0] if weights is None or np.ndim(weights) == 1 else tau


Signs = npt.NDArray[np.float32]
_Row = tuple[Signs, Signs | None, Signs | None, Signs | None]  # the signs on both sides, and which are known


class _Totals:
    """Running sums over blocks of pairs: concordance, and pairs untied on one side among those known on both."""

    def __init__(self, left: int, right: int | None, resamples: int, *, gaps: bool) -> None:
        self.symmetric = right is None
        self.left, self.right = left, left if right is None else right
        self.gaps = gaps
        shape = (resamples, self.left, self.right)
        self.concordance = np.zeros(shape)
        self.untied_left, self.untied_right = np.zeros(shape), np.zeros(shape)
        self.width = max(1, self.left * self.right if resamples > 1 else self.left + self.right, resamples)

    def add(
        self,
        s: npt.NDArray[np.float32],
        t: npt.NDArray[np.float32] | None,
        known_s: npt.NDArray[np.float32] | None,
        known_t: npt.NDArray[np.float32] | None,
        pair: npt.NDArray[np.floating] | None,
    ) -> None:
        t = s if t is None else t
        known_t = known_s if known_t is None else known_t
        square_s, square_t = np.abs(s), np.abs(t)
        if pair is None:
            self.concordance[0] += s.T @ t
            if self.gaps:
                self.untied_left[0] += square_s.T @ _ones_or(known_t, t)
                self.untied_right[0] += _ones_or(known_s, s).T @ square_t
            elif not self.symmetric:
                self.untied_left[0] += square_s.sum(axis=0)[:, None]
                self.untied_right[0] += square_t.sum(axis=0)[None, :]
            return
        self.concordance += self._products(s, t, pair, self.symmetric)
        if self.gaps:
            self.untied_left += self._products(square_s, _ones_or(known_t, t), pair, False)
            self.untied_right += self._products(_ones_or(known_s, s), square_t, pair, False)
        elif not self.symmetric:
            self.untied_left += (pair @ square_s)[:, :, None]
            self.untied_right += (pair @ square_t)[:, None, :]

    def first_order(self, rows: Iterable[_Row], draws: npt.NDArray[np.floating]) -> None:
        """Add all pairs, each model's with all others in turn, weighted to first order in how the draws differ."""
        sums = [np.zeros((draws.shape[1], self.left, self.right), dtype=np.float32) for _ in range(3)]
        concordance, left, right = sums
        for m, (s, t, known_s, known_t) in enumerate(rows):
            t = s if t is None else t
            known_t = known_s if known_t is None else known_t
            concordance[m] = s.T @ t
            if self.gaps:
                left[m] = np.abs(s).T @ _ones_or(known_t, t)
                right[m] = _ones_or(known_s, s).T @ np.abs(t)
            elif not self.symmetric:
                left[m] = np.abs(s).sum(axis=0)[:, None]
                right[m] = np.abs(t).sum(axis=0)[None, :]
        weights = (draws - 0.5).astype(np.float64)  # row sums hold every pair twice: half of 1 + 2d, d = w - 1
        for total, found in zip((self.concordance, self.untied_left, self.untied_right), sums, strict=True):
            total += (weights @ found.reshape(len(found), -1)).reshape(total.shape)

    def _products(
        self, s: npt.NDArray[np.float32], t: npt.NDArray[np.float32], pair: npt.NDArray[np.floating], symmetric: bool
    ) -> Floats:
        """Weighted sums of s_i·t_j for every i and j; for a symmetric matrix only half of them are computed."""
        i, j = np.triu_indices(self.left) if symmetric else np.indices((self.left, self.right)).reshape(2, -1)
        flat = pair @ (s[:, i] * t[:, j])
        full = np.empty((len(pair), self.left, self.right))
        full[:, i, j] = flat
        if symmetric:
            full[:, j, i] = flat
        return full

    def tau(self) -> Floats:
        if self.symmetric and not self.gaps:  # then the diagonal of SᵀS counts the untied pairs
            untied = np.diagonal(self.concordance, axis1=1, axis2=2)
            self.untied_left, self.untied_right = untied[:, :, None], untied[:, None, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            tau = self.concordance / np.sqrt(self.untied_left) / np.sqrt(self.untied_right)
        return np.clip(tau, -1.0, 1.0)


def _tau_of_one(x: Floats, y: Floats | None, draws: npt.NDArray[np.floating] | None) -> Floats:
    """Tau-b of one score matrix under any number of resampling weights."""
    models = x.shape[0]
    if models > _MANY_MODELS and draws is None:
        return _tau_by_sorting(x, y)[None]
    known_x, known_y = ~np.isnan(x), None if y is None else ~np.isnan(y)
    gaps = not (known_x.all() and (known_y is None or known_y.all()))
    totals = _Totals(x.shape[1], None if y is None else y.shape[1], 1 if draws is None else len(draws), gaps=gaps)
    if draws is not None and models > FIRST_ORDER:
        totals.first_order(_rows(x, y, gaps=gaps), draws)
        return totals.tau()
    for a, b in _pairs(models, max(1, _BLOCK // totals.width)):
        totals.add(
            _signs(x, a, b),
            None if y is None else _signs(y, a, b),
            (known_x[a] & known_x[b]).astype(np.float32) if gaps else None,
            (known_y[a] & known_y[b]).astype(np.float32) if gaps and known_y is not None else None,
            None if draws is None else draws[:, a] * draws[:, b],
        )
    return totals.tau()


def _rows(x: Floats, y: Floats | None, *, gaps: bool) -> Iterator[_Row]:
    """Give every model's signs against all others."""
    for m in range(len(x)):
        others = np.delete(np.arange(len(x)), m)
        same = np.full(len(others), m)
        yield (
            _signs(x, same, others),
            None if y is None else _signs(y, same, others),
            _both(x, m, others) if gaps else None,
            _both(y, m, others) if gaps and y is not None else None,
        )


def _rows_of_signs(s: Signs, known: Signs | None, models: int) -> Iterator[_Row]:
    """The same from signs of pairs: that of (a, b) turns with their order, a product of two of them does not."""
    place = np.zeros((models, models), dtype=np.intp)
    a, b = np.triu_indices(models, 1)
    place[a, b] = place[b, a] = np.arange(len(a))
    for m in range(models):
        pairs = np.delete(place[m], m)
        yield s[pairs], None, None if known is None else known[pairs], None


def _both(x: Floats, m: int, others: npt.NDArray[np.intp]) -> Signs:
    found: Signs = (~np.isnan(x[m]) & ~np.isnan(x[others])).astype(np.float32)
    return found


def _tau_of_stack(x: Floats) -> Floats:
    """Tau-b of each of a stack of whole matrices."""
    resamples, models, tasks = x.shape
    tau = np.empty((resamples, tasks, tasks))
    step = max(1, _STACK // max(1, models * (models - 1) // 2 * tasks))
    for start in range(0, resamples, step):
        places, tied = _dense_ranks(x[start : start + step])
        tau[start : start + step] = _tau_of_signs(places) if tied else _tau_of_bits(places)
    return tau


def _tau_of_signs(places: npt.NDArray[np.int16]) -> Floats:
    """Tau-b from places with ties, by batched products of small integers."""
    a, b = np.triu_indices(places.shape[2], 1)
    totals = _Totals(places.shape[1], None, len(places), gaps=False)
    for k, part in enumerate(places):  # (tasks, models)
        s = np.sign(part[:, a] - part[:, b]).astype(np.float32)  # (tasks, pairs)
        totals.concordance[k] = s @ s.T
    return totals.tau()


def _tau_of_bits(places: npt.NDArray[np.int16]) -> Floats:
    """Tau from places without ties: a sign is one bit, and the discordant pairs of two tasks are where bits part."""
    resamples, tasks, models = places.shape
    pairs = models * (models - 1) // 2
    above = np.zeros((resamples, tasks, -(-pairs // 64) * 64), dtype=bool)  # padded to whole words
    end = 0
    for m in range(models - 1):
        end, begin = end + models - 1 - m, end
        np.greater(places[:, :, m : m + 1], places[:, :, m + 1 :], out=above[:, :, begin:end])
    words = np.packbits(above, axis=2).view(np.uint64)
    totals = _Totals(tasks, None, resamples, gaps=False)
    for j in range(tasks):
        apart = np.bitwise_count(words[:, j : j + 1] ^ words[:, j:]).sum(axis=2, dtype=np.int64)
        totals.concordance[:, j, j:] = totals.concordance[:, j:, j] = pairs - 2 * apart
    return totals.tau()


def _dense_ranks(x: Floats) -> tuple[npt.NDArray[np.int16], bool]:
    """Return integers in the order of the models, equal for equal scores, as (resamples, tasks, models); any ties."""
    scores = np.ascontiguousarray(x.transpose(0, 2, 1))
    order = np.argsort(scores, axis=2)
    ascending = np.take_along_axis(scores, order, axis=2)
    new = ascending[:, :, 1:] != ascending[:, :, :-1]
    steps = np.zeros(scores.shape, dtype=np.int16)
    np.cumsum(new, axis=2, out=steps[:, :, 1:])
    places = np.empty_like(steps)
    np.put_along_axis(places, order, steps, axis=2)
    return places, not bool(new.all())


def _tau_by_sorting(x: Floats, y: Floats | None) -> Floats:
    """Tau-b of many models: past a thousand, sorting (n log n) beats looking at every pair of models (n²)."""
    from scipy.stats import kendalltau

    other = x if y is None else y
    tau = np.full((x.shape[1], other.shape[1]), np.nan)
    for i in range(x.shape[1]):
        for j in range(other.shape[1]):
            if y is None and j < i:
                tau[i, j] = tau[j, i]
                continue
            both = ~(np.isnan(x[:, i]) | np.isnan(other[:, j]))
            if both.sum() > 1:
                tau[i, j] = kendalltau(x[both, i], other[both, j], method="asymptotic").statistic
    return tau


def _signs(x: Floats, a: npt.NDArray[np.intp], b: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    """Which of each pair is better, per task: 1, -1, or 0 for a tie or a gap."""
    first, second = x[a], x[b]
    return np.subtract(first > second, first < second, dtype=np.float32)


def _pairs(models: int, size: int) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """All pairs a < b in blocks of at most about ``size`` pairs (never fewer than one model's)."""
    start = 0
    while start < models - 1:
        stop, count = start, 0
        while stop < models - 1 and (count == 0 or count + models - 1 - stop <= size):
            count += models - 1 - stop
            stop += 1
        lengths = models - 1 - np.arange(start, stop)
        a = np.repeat(np.arange(start, stop), lengths)
        b = np.concatenate([np.arange(m + 1, models) for m in range(start, stop)])
        yield a, b
        start = stop


def _ones_or(known: npt.NDArray[np.float32] | None, like: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.ones_like(like) if known is None else known


def _slices(total: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // width)
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def _models_of_pairs(pairs: int) -> int:
    models = (1 + math.isqrt(1 + 8 * pairs)) // 2
    if models * (models - 1) // 2 != pairs:
        raise InputError(f"{pairs} rows are not all pairs of any number of models")
    return models


def _draws(weights: npt.ArrayLike | None, models: int) -> npt.NDArray[np.floating] | None:
    """Return weights as (resamples, models); float32 where every sum of pair weights stays exact in it."""
    if weights is None:
        return None
    draws = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if draws.shape[1] != models:
        raise InputError(f"weights are for {draws.shape[1]} models, the scores for {models}")
    exact = bool(np.all(draws == np.rint(draws)) and draws.sum(axis=1).max(initial=0.0) ** 2 / 2 < _EXACT)
    return draws.astype(np.float32) if exact else draws


def three_axes(values: npt.ArrayLike) -> Floats:
    """Return scores as (resamples, models, tasks), a single matrix as one resample."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise InputError(f"expected (models, tasks) or (resamples, models, tasks), not {array.ndim} axes")
    return array if array.ndim == 3 else array[None]

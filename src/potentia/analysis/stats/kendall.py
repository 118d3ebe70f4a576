"""Kendall's tau-b between every two tasks at once, with ties, gaps and bootstrap weights.

Kendall's tau only needs the sign of every pair of models on every task. Written as a matrix S of (pairs, tasks) with
entries -1, 0, 1, the concordant-minus-discordant counts of all tasks are one product SᵀS, and a bootstrap resample of
models is that product with each pair (a, b) weighted by w_a·w_b, the times each model was drawn: copies of one model
tie on every task and so count nowhere, exactly as tau-b on the resampled rows. Missing scores are treated pairwise:
a pair of tasks is compared on the models that have both. ``pair_sums`` has the sums.

The cost of a resample grows with the pairs of models. Past ``FIRST_ORDER`` models it is followed to first order: with
w = 1 + d, the sum over pairs of w_a·w_b·c_ab is that of c_ab, plus the sum of d_a times the row sums of c, and what is
left out, d_a·d_b·c_ab, is of order 1 / models (the Hájek projection of a U-statistic). Row sums are needed once.
Models that are always drawn together, as those of a family, need no such step: their pairs are summed beforehand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potentia.analysis.stats.pair_sums import (
    Index,
    Row,
    Signs,
    Totals,
    bits_of_scores,
    bits_of_signs,
    model_blocks,
    pairs_of,
)
from potentia.analysis.stats.remember import remembered
from potentia.errors import InputError
from potentia.values.scores import Floats

_BLOCK = 1 << 22  # entries of a working block: small enough for the cache to help, large enough for BLAS
_STACK = 1 << 24  # bytes of a working block of bits
_MANY_MODELS = 10_000
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
    elif draws is None and x.shape[1] <= _MANY_MODELS:
        tau = _tau_of_bits(x, y)
    else:
        weight = [None] * len(x) if draws is None else [draws[r % len(draws)][None] for r in range(len(x))]
        tau = np.stack([_tau_of_one(x[r], None if y is None else y[r], weight[r])[0] for r in range(len(x))])
    return tau[0] if single else tau


@remembered
def kendall_of_tests(
    values: npt.ArrayLike, stderr: npt.ArrayLike, threshold: float, *, weights: npt.ArrayLike | None = None
) -> Floats:
    """Tau-b between the columns where two models differ when |z| exceeds a threshold, and tie where it does not.

    This is tau-b for comparisons that are no ranking: where an insignificant difference counts as a tie, ties are not
    transitive and only the pairwise signs exist (appendix C.2). ``values`` and ``stderr`` are (models, tasks); pairs
    without a score or an error could not be compared at all; ``weights`` are per model, as in ``kendall_matrix``. Signs
    are made in blocks as they are needed: five thousand models have twelve million pairs on every task.
    """
    x, spread = np.asarray(values, dtype=np.float64), np.asarray(stderr, dtype=np.float64)
    models, tasks = x.shape
    draws = _draws(weights, models)
    pairs = _SignsOfTests(x, spread, threshold)
    totals = Totals(tasks, None, 1 if draws is None else len(draws), gaps=pairs.gaps)
    if draws is None:
        for block in model_blocks(models, max(1, _BLOCK // max(1, tasks))):
            signs, _, known, _ = pairs.block(*block)
            totals.add_bits(bits_of_signs(signs.T, None if known is None else known.T > 0), None)
    else:
        totals.add_weighted(pairs, draws, block=_BLOCK, first_order=models > FIRST_ORDER)
    tau = totals.tau()
    return tau[0] if weights is None or np.ndim(weights) == 1 else tau


def z_of(one: Floats, one_error: Floats, two: Floats, two_error: Floats) -> Floats:
    """The z of differences; NaN where a score or its error is missing, and infinite or zero where there is no error."""
    difference, error = one - two, np.sqrt(one_error**2 + two_error**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = difference / error
    return np.where((difference == 0) & np.isfinite(error), 0.0, z)


class _SignsOfTests:
    """Signs of pairs of models where a test tells them apart, from scores and standard errors (models, tasks)."""

    def __init__(self, x: Floats, stderr: Floats, threshold: float) -> None:
        self.x, self.stderr = np.ascontiguousarray(x.T), np.ascontiguousarray(stderr.T)
        self.threshold = threshold
        self.gaps = bool(np.isnan(x).any() or np.isnan(stderr).any())

    def block(self, start: int, stop: int) -> Row:
        """The models from start to stop, each with those after it."""
        a, b = pairs_of(start, stop, self.x.shape[1])
        return self._row(z_of(self.x[:, a], self.stderr[:, a], self.x[:, b], self.stderr[:, b]))

    def between(self, some: Index, others: Index) -> Row:
        """Some models, each with each of the others."""
        x, s = self.x, self.stderr
        return self._row(z_of(x[:, some, None], s[:, some, None], x[:, None, others], s[:, None, others]))

    def _row(self, z: Floats) -> Row:
        flat = z.reshape(len(z), -1)
        signs = np.subtract(flat > self.threshold, flat < -self.threshold, dtype=np.float32)
        return signs, None, (~np.isnan(flat)).astype(np.float32) if self.gaps else None, None


class _SignsOfScores:
    """Signs of pairs of models from their scores, (models, tasks) on either side."""

    def __init__(self, x: Floats, y: Floats | None, *, gaps: bool) -> None:
        self.sides = [np.ascontiguousarray(x.T), None if y is None else np.ascontiguousarray(y.T)]
        self.gaps = gaps

    def block(self, start: int, stop: int) -> Row:
        """The models from start to stop, each with those after it."""
        a, b = pairs_of(start, stop, self.sides[0].shape[1])  # type: ignore[union-attr]
        return self._row([None if x is None else (x[:, a], x[:, b]) for x in self.sides])

    def between(self, some: Index, others: Index) -> Row:
        """Some models, each with each of the others."""
        return self._row([None if x is None else (x[:, some, None], x[:, None, others]) for x in self.sides])

    def _row(self, sides: list[tuple[Floats, Floats] | None]) -> Row:
        signs: list[Signs | None] = [None, None]
        known: list[Signs | None] = [None, None]
        for k, side in enumerate(sides):
            if side is not None:
                one, two = side
                signs[k] = np.subtract(one > two, one < two, dtype=np.float32).reshape(len(one), -1)
                if self.gaps:
                    known[k] = (~np.isnan(one) & ~np.isnan(two)).astype(np.float32).reshape(len(one), -1)
        assert signs[0] is not None
        return signs[0], signs[1], known[0], known[1]


def _tau_of_one(x: Floats, y: Floats | None, draws: npt.NDArray[np.floating] | None) -> Floats:
    """Tau-b of one score matrix under any number of resampling weights."""
    models = x.shape[0]
    if draws is None:
        return (
            _tau_by_sorting(x, y)[None] if models > _MANY_MODELS else _tau_of_bits(x[None], y if y is None else y[None])
        )
    gaps = bool(np.isnan(x).any() or (y is not None and np.isnan(y).any()))
    totals = Totals(x.shape[1], None if y is None else y.shape[1], len(draws), gaps=gaps)
    pairs = _SignsOfScores(x, y, gaps=gaps)
    totals.add_weighted(pairs, draws, block=_BLOCK, first_order=models > FIRST_ORDER)
    return totals.tau()


def _tau_of_bits(x: Floats, y: Floats | None) -> Floats:
    """Tau-b of each of a stack of matrices, all models counting once."""
    resamples, models, tasks = x.shape
    others = 0 if y is None else y.shape[2]
    tau = np.empty((resamples, tasks, others or tasks))
    step = max(1, _STACK // max(1, models * (models - 1) // 2 * (tasks + others)))
    for start in range(0, resamples, step):
        part = slice(start, start + step)
        gaps = bool(np.isnan(x[part]).any() or (y is not None and np.isnan(y[part]).any()))
        left = _dense_ranks(x[part])
        right = None if y is None else _dense_ranks(y[part])
        totals = Totals(tasks, None if y is None else others, len(left[0]), gaps=gaps)
        for block in model_blocks(models, max(1, _STACK // (tasks + others))):
            totals.add_bits(
                bits_of_scores(left[0], *block, tied=left[1], gaps=gaps),
                None if right is None else bits_of_scores(right[0], *block, tied=right[1], gaps=gaps),
            )
        tau[part] = totals.tau()
    return tau


def _dense_ranks(x: Floats) -> tuple[npt.NDArray[np.generic], bool]:
    """Return integers in the order of the models, equal for equal scores, as (resamples, tasks, models); any ties.

    With gaps the scores themselves serve: what follows only compares them.
    """
    scores = np.ascontiguousarray(x.transpose(0, 2, 1))
    if np.isnan(scores).any():
        return scores, True
    models = scores.shape[2]
    order = np.argsort(scores, axis=2).reshape(scores.shape[0] * scores.shape[1], models)
    order += np.arange(len(order))[:, None] * models  # into all the scores, laid end to end
    ascending = scores.reshape(-1)[order]
    new = ascending[:, 1:] != ascending[:, :-1]
    steps = np.broadcast_to(np.arange(models, dtype=np.int16), order.shape)
    if tied := not bool(new.all()):
        steps = np.zeros(order.shape, dtype=np.int16)
        np.cumsum(new, axis=1, out=steps[:, 1:])
    places = np.empty(scores.size, dtype=np.int16)
    places[order] = steps
    return places.reshape(scores.shape), tied


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

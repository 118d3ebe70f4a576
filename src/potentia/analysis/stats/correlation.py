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

_SIGN_BLOCK = 1 << 22  # signs of a working block
_PAIR_BLOCK = 1024  # pairs of units weighed at once
_SCORE_BLOCK = 1 << 20  # scores weighed at once
FIRST_ORDER = 120
LEAST_CACHED_BYTES = 1 << 16  # smaller results are computed again sooner than they are found
CACHED_RESULTS = 16
Indices = npt.NDArray[np.intp]
Signs = npt.NDArray[np.float32]
Weights = npt.NDArray[np.floating]
Correlate = Callable[..., Floats]


def cache_large_results(function: Callable[..., Floats]) -> Callable[..., Floats]:
    """Keep the latest large results of a pure function of arrays."""
    results: dict[bytes, Floats] = {}

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Floats:
        sizes = [np.size(value) * 8 for value in (*arguments, *named.values())]
        if max(sizes, default=0) < LEAST_CACHED_BYTES:
            return function(*arguments, **named)
        key = hashlib.blake2b(pickle.dumps((arguments, named)), digest_size=16).digest()
        result = results.pop(key, None)
        if result is None:
            result = function(*arguments, **named)
            result.setflags(write=False)
        results[key] = result  # the last asked for comes last
        for oldest in list(results)[:-CACHED_RESULTS]:
            results.pop(oldest, None)
        return result

    call.forget = results.clear  # type: ignore[attr-defined]
    return call


@cache_large_results
def kendall_matrix(
    values: npt.ArrayLike,
    second_values: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Return Kendall's tau-b of every column of ``values`` with every one of ``second_values`` (or of ``values``).

    ``values`` is (models, tasks), or (resamples, models, tasks) for resamples that change the scores themselves.
    ``weights`` (models,) or (resamples, models) says how often each model counts, as a bootstrap draws them. The
    result is (tasks, other tasks), with a leading axis of resamples where one came in. Equal to
    ``scipy.stats.kendalltau`` for each pair of columns on the rows where both are finite; NaN where a column is
    constant or fewer than two models are left.
    """
    first = with_resample_axis(values)
    second = first if second_values is None else with_resample_axis(second_values)
    if second.shape[:2] != first.shape[:2]:
        raise InputError(
            f"values {first.shape} and others {second.shape} must have the same models and resamples"
        )
    resamples = len(first)
    draws = _draws_from_weights(weights, first.shape[1])
    if draws is not None and resamples > 1 and len(draws) not in (1, resamples):
        raise InputError("weights and values name different numbers of resamples")
    first_scores = _ComparedScores.from_columns(first)
    second_scores = first_scores if second is first else _ComparedScores.from_columns(second)
    if draws is None:
        tau = _tau_unweighted(first_scores, second_scores)
    elif resamples == 1:
        tau = _tau_of_resample(first_scores, second_scores, 0, draws)
    else:
        parts = []
        for resample in range(resamples):
            drawn_scores = draws[resample % len(draws)][None]
            parts.append(_tau_of_resample(first_scores, second_scores, resample, drawn_scores))
        tau = np.concatenate(parts)
    if _is_single(values, weights):
        return np.asarray(tau[0])
    return tau


def _is_single(values: npt.ArrayLike, weights: npt.ArrayLike | None) -> bool:
    """Whether one matrix under one weighting came in, so that the result has no axis of resamples."""
    return np.ndim(values) == 2 and (weights is None or np.ndim(weights) == 1)


@cache_large_results
def kendall_of_significant_differences(
    values: npt.ArrayLike,
    stderr: npt.ArrayLike,
    threshold: float,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Return tau-b between the columns where two models differ when |z| exceeds a threshold, and tie where not.

    This is tau-b for comparisons that are no ranking: where an insignificant difference counts as a tie, ties are not
    transitive and only the pairwise signs exist (appendix C.2). ``values`` and ``stderr`` are (models, tasks); pairs
    without a score or an error could not be compared at all; ``weights`` are per model, as in ``kendall_matrix``.
    """
    scores = np.ascontiguousarray(np.asarray(values, dtype=np.float64).T)
    errors = np.ascontiguousarray(np.asarray(stderr, dtype=np.float64).T)
    compared = _ComparedScores(scores, errors, threshold)
    draws = _draws_from_weights(weights, scores.shape[1])
    if weights is None or draws is None:
        return _tau_unweighted(compared, compared)
    tau = _tau_weighted(compared, compared, draws)
    if np.ndim(weights) == 1:
        return np.asarray(tau[0])
    return tau


def z_of_difference(
    first_value: Floats, first_error: Floats, second_value: Floats, second_error: Floats
) -> Floats:
    """Return z of differences; NaN where a score or its error is missing, infinite or zero where there is no error."""
    difference = first_value - second_value
    error = np.sqrt(first_error**2 + second_error**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = difference / error
    return np.where((difference == 0) & np.isfinite(error), 0.0, z)


@dataclass(frozen=True)
class _PairSigns:
    """The signs of pairs of models, and which pairs are known where not all are: (…, tasks, pairs)."""

    signs: Signs
    is_known: Signs | None

    @classmethod
    def from_differences(
        cls, differences: npt.NDArray[np.floating], threshold: float
    ) -> _PairSigns:
        """Take the signs of differences beyond a threshold."""
        unknown = np.isnan(differences)
        is_above = differences > threshold
        is_below = differences < -threshold
        signs = np.subtract(is_above, is_below, dtype=np.float32)
        is_known = (~unknown).astype(np.float32) if unknown.any() else None
        return cls(signs, is_known)

    def flatten_pairs(self) -> _PairSigns:
        """Return (tasks, others, members) as (tasks, pairs)."""
        signs = self.signs.reshape(len(self.signs), -1)
        is_known = None if self.is_known is None else self.is_known.reshape(len(self.is_known), -1)
        return _PairSigns(signs, is_known)

    def by_other(self) -> _PairSigns:
        """Return (tasks, others, members) as (others, tasks, members): sums then run over members alone."""
        signs = self.signs.transpose(1, 0, 2)
        is_known = None if self.is_known is None else self.is_known.transpose(1, 0, 2)
        return _PairSigns(signs, is_known)


@dataclass(frozen=True)
class _ComparedScores:
    """Scores of one side, (…, tasks, models); with standard errors, two differ by more than ``threshold`` of them."""

    scores: Floats
    stderr: Floats | None = None
    threshold: float = 0.0

    @classmethod
    def from_columns(cls, values: Floats) -> _ComparedScores:
        """Take scores (resamples, models, tasks) without errors."""
        return cls(np.ascontiguousarray(values.transpose(0, 2, 1)))

    def select_resamples(self, resamples: int | slice) -> _ComparedScores:
        """Return some resamples, or one of them without its axis."""
        return _ComparedScores(self.scores[resamples])

    def compare(self, first: Indices, second: Indices) -> _PairSigns:
        """Return the signs of models against others, two indices that broadcast; a model against itself ties."""
        scores, errors = self.scores, self.stderr
        if errors is None:
            differences = scores[..., first] - scores[..., second]
        else:
            differences = z_of_difference(
                scores[..., first], errors[..., first], scores[..., second], errors[..., second]
            )
        return _PairSigns.from_differences(differences, self.threshold)

    def compare_with_later(self, start: int, stop: int) -> _PairSigns:
        """Return the signs of the models from start to stop, each against those after it."""
        scores, errors = self.scores, self.stderr
        models = scores.shape[-1]
        pairs_of_models = [models - 1 - model for model in range(start, stop)]
        pair_ends = np.cumsum([0, *pairs_of_models])
        differences = np.empty((*scores.shape[:-1], pair_ends[-1]), dtype=np.float32)
        for position, model in enumerate(range(start, stop)):
            pairs = slice(pair_ends[position], pair_ends[position + 1])
            this = slice(model, model + 1)
            later = slice(model + 1, None)
            if errors is None:
                np.subtract(scores[..., this], scores[..., later], out=differences[..., pairs])
            else:
                differences[..., pairs] = z_of_difference(
                    scores[..., this], errors[..., this], scores[..., later], errors[..., later]
                )
        return _PairSigns.from_differences(differences, self.threshold)


def _tau_unweighted(first_scores: _ComparedScores, second_scores: _ComparedScores) -> Floats:
    """Return tau-b with all models counting once, of every resample there is."""
    stack = first_scores.scores.shape[:-2]
    tasks, models = first_scores.scores.shape[-2:]
    all_tasks = tasks + second_scores.scores.shape[-2]
    if stack:
        block_size = max(1, _SIGN_BLOCK // max(1, all_tasks * models * (models - 1) // 2))
        if block_size < stack[0]:
            parts = []
            for start in range(0, stack[0], block_size):
                block = slice(start, start + block_size)
                parts.append(
                    _tau_unweighted(
                        first_scores.select_resamples(block), second_scores.select_resamples(block)
                    )
                )
            return np.concatenate(parts)
    sums = [np.zeros((*stack, tasks, second_scores.scores.shape[-2])) for _ in range(3)]
    block_size = max(1, _SIGN_BLOCK // max(1, all_tasks * models * int(np.prod(stack))))
    for start in range(0, models - 1, block_size):
        block_end = min(start + block_size, models - 1)
        left_signs = first_scores.compare_with_later(start, block_end)
        right_signs = left_signs
        if second_scores is not first_scores:
            right_signs = second_scores.compare_with_later(start, block_end)
        for total, block_sum in zip(sums, _sum_over_pairs(left_signs, right_signs), strict=True):
            total += block_sum
    return _tau_from_sums(*sums)


def _tau_of_resample(
    first_scores: _ComparedScores, second_scores: _ComparedScores, resample: int, draws: Weights
) -> Floats:
    """Return tau-b of one resample under draws of models."""
    left_scores = first_scores.select_resamples(resample)
    # The sign of a pair is computed once where both sides are the same.
    right_scores = (
        left_scores if second_scores is first_scores else second_scores.select_resamples(resample)
    )
    return _tau_weighted(left_scores, right_scores, draws)


@dataclass(frozen=True)
class _WeighedPairs:
    """Weights of some pairs of units under every draw, and the three sums that are weighed."""

    weights: Weights  # (draws, pairs)
    sums: list[Floats]  # each (pairs, tasks, other tasks), or 1 in the place of one of the last two


def _tau_weighted(
    first_scores: _ComparedScores, second_scores: _ComparedScores, draws: Weights
) -> Floats:
    """Return tau-b under every draw of models: (draws, tasks, other tasks)."""
    # Models that are drawn alike are one unit.
    unit_draws, unit_of_model = np.unique(draws, axis=1, return_inverse=True)
    unit_of_model = unit_of_model.ravel()
    units = unit_draws.shape[1]
    order = np.argsort(unit_of_model, kind="stable")
    starts = np.searchsorted(unit_of_model[order], np.arange(units))
    is_first_order = units > FIRST_ORDER
    totals = [np.zeros((len(draws), 1, 1)) for _ in range(3)]
    waiting: list[_WeighedPairs] = []
    for unit, members in enumerate(np.split(order, starts[1:])):
        other_rows = order if is_first_order else order[starts[unit] :]
        left_signs = first_scores.compare(members[None], other_rows[:, None])
        right_signs = left_signs
        if second_scores is not first_scores:
            right_signs = second_scores.compare(members[None], other_rows[:, None])
        if is_first_order:
            # Row sums hold every pair twice: half of 1 + 2d, d = w - 1.
            weights = unit_draws[:, unit : unit + 1] - 0.5
            parts = _sum_over_pairs(left_signs.flatten_pairs(), right_signs.flatten_pairs())
            sums = [part[None].astype(np.float64) for part in parts]
        else:
            weights = unit_draws[:, unit:] * unit_draws[:, unit : unit + 1]
            parts = _sum_over_pairs(left_signs.by_other(), right_signs.by_other())
            unit_starts = starts[unit:] - starts[unit]
            sums = [np.add.reduceat(part, unit_starts, axis=0) for part in parts]
            for part in sums:
                part[0] /= 2  # within the unit every pair appears twice
        waiting.append(_WeighedPairs(weights, sums))
        waiting_pairs = sum(pairs.weights.shape[1] for pairs in waiting)
        if unit + 1 == units or waiting_pairs >= _PAIR_BLOCK:
            _add_weighed(totals, waiting)
            waiting = []
    return _tau_from_sums(*totals)


def _add_weighed(totals: list[Floats], waiting: list[_WeighedPairs]) -> None:
    """Weigh the sums of pairs of units that wait, and add them to the totals."""
    weights = np.concatenate([pairs.weights for pairs in waiting], axis=1)
    for k in range(3):
        sums = [pairs.sums[k] for pairs in waiting]
        shape = np.broadcast_arrays(*(part[:0] for part in sums))[0].shape[1:]
        stacked = np.concatenate([np.broadcast_to(part, (len(part), *shape)) for part in sums])
        weighed = weights @ stacked.reshape(len(stacked), -1)
        totals[k] = totals[k] + weighed.reshape(-1, *shape)


def _sum_over_pairs(
    first_signs: _PairSigns, second_signs: _PairSigns
) -> tuple[Signs, Signs, Signs]:
    """Return sums over pairs: concordance, and pairs untied on one side among those known on both.

    Each is (…, tasks, other tasks), or 1 in the place of one of the last two.
    """
    turned = second_signs.signs.swapaxes(-1, -2)
    concordance = first_signs.signs @ turned
    untied_left = np.abs(first_signs.signs)
    untied_right = np.abs(turned)
    if first_signs.is_known is None and second_signs.is_known is None:
        left_sums = untied_left.sum(axis=-1)[..., None]
        right_sums = untied_right.sum(axis=-2)[..., None, :]
        return concordance, left_sums, right_sums
    known_left = (
        np.ones_like(first_signs.signs) if first_signs.is_known is None else first_signs.is_known
    )
    known_right = np.ones_like(turned)
    if second_signs.is_known is not None:
        known_right = second_signs.is_known.swapaxes(-1, -2)
    return concordance, untied_left @ known_right, known_left @ untied_right


def _tau_from_sums(concordance: Floats, untied_left: Floats, untied_right: Floats) -> Floats:
    """Return tau-b of every two tasks; NaN where one of them ties all its pairs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        tau = concordance / np.sqrt(untied_left) / np.sqrt(untied_right)
    return np.clip(tau, -1.0, 1.0)


def _draws_from_weights(weights: npt.ArrayLike | None, models: int) -> Weights | None:
    """Return weights as (resamples, models); whole numbers in float32, in which they and their sums are exact."""
    if weights is None:
        return None
    draws = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if draws.shape[1] != models:
        raise InputError(f"weights are for {draws.shape[1]} models, the scores for {models}")
    if np.all(draws == np.rint(draws)):
        return draws.astype(np.float32)
    return draws


def with_resample_axis(values: npt.ArrayLike) -> Floats:
    """Return scores as (resamples, models, tasks), a single matrix as one resample."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (2, 3):
        raise InputError(
            f"expected (models, tasks) or (resamples, models, tasks), not {array.ndim} axes"
        )
    return array if array.ndim == 3 else array[None]


def spearman_matrix(
    values: npt.ArrayLike,
    second_values: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Return Spearman's rho between columns: Pearson's r of the midranks, on the models that have both scores."""
    return _correlate_columns(values, second_values, weights, ranks=True)


def pearson_matrix(
    values: npt.ArrayLike,
    second_values: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """Return Pearson's r between columns, on the models that have both scores; NaN where a column is constant."""
    return _correlate_columns(values, second_values, weights, ranks=False)


CORRELATIONS: dict[str, Correlate] = {
    "kendall": kendall_matrix,
    "spearman": spearman_matrix,
    "pearson": pearson_matrix,
}


def mean_offdiagonal(matrix: Floats, *, axis: bool = False) -> Floats:
    """Return the mean over the distinct pairs of a symmetric (…, T, T) matrix, or per task with ``axis``; skips NaN."""
    off_diagonal = np.where(np.eye(matrix.shape[-1], dtype=bool), np.nan, matrix)
    if axis:
        return nan_mean(off_diagonal, axis=-1)
    return nan_mean(off_diagonal.reshape(*off_diagonal.shape[:-2], -1), axis=-1)


def nan_mean(values: npt.ArrayLike, axis: int = -1) -> Floats:
    """Return the mean of the finite numbers; NaN, without a warning, where there is none."""
    array = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(array)
    count = finite.sum(axis=axis)
    total = np.where(finite, array, 0.0).sum(axis=axis)
    mean = np.full(np.shape(total), np.nan)
    return np.asarray(np.divide(total, count, out=mean, where=count > 0))


def _correlate_columns(
    values: npt.ArrayLike,
    second_values: npt.ArrayLike | None,
    weights: npt.ArrayLike | None,
    *,
    ranks: bool,
) -> Floats:
    """Return weighted r of every two columns, or of their midranks, some resamples at a time."""
    first = with_resample_axis(values)
    second = first if second_values is None else with_resample_axis(second_values)
    draws = np.ones((1, first.shape[1]))
    if weights is not None:
        draws = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    is_complete = bool(np.isfinite(first).all() and np.isfinite(second).all())
    resamples = max(len(first), len(draws))
    blocks = max(1, -(-resamples * first[0].size // _SCORE_BLOCK))
    parts = []
    for block in np.array_split(np.arange(resamples), blocks):
        first_columns = _select_resamples(first, block)
        second_columns = _select_resamples(second, block)
        block_draws = _select_resamples(draws, block)
        if not is_complete:
            parts.append(
                _pearson_with_gaps(first_columns, second_columns, block_draws, ranks=ranks)
            )
            continue
        if ranks:
            first_columns = _midranks(first_columns, block_draws)
        if second is first:
            second_columns = first_columns
        elif ranks:
            second_columns = _midranks(second_columns, block_draws)
        parts.append(_pearson_complete(first_columns, second_columns, block_draws))
    if _is_single(values, weights):
        return np.asarray(parts[0][0])
    return np.concatenate(parts)


def _select_resamples(array: Floats, resamples: Indices) -> Floats:
    """Return some resamples of an array; the one that there is, where it holds for all."""
    return array if len(array) == 1 else array[resamples]


def _pearson_complete(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return weighted r without gaps: x and y are (1 or R, models, tasks), weights (R, models)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (weights / weights.sum(axis=1, keepdims=True))[:, None, :]  # (R, 1, models)
        centred_x = x - shares @ x
        variance_x = _variance_or_nan(shares @ centred_x**2, shares @ x**2)
        if y is x:
            centred_y = centred_x
            variance_y = variance_x
        else:
            centred_y = y - shares @ y
            variance_y = _variance_or_nan(shares @ centred_y**2, shares @ y**2)
        weighted_x = (centred_x * shares.transpose(0, 2, 1)).transpose(0, 2, 1)
        covariance = weighted_x @ centred_y
        correlation = covariance / np.sqrt(variance_x).transpose(0, 2, 1) / np.sqrt(variance_y)
    return np.asarray(np.clip(correlation, -1.0, 1.0))


def _pearson_with_gaps(x: Floats, y: Floats, weights: Floats, *, ranks: bool) -> Floats:
    """Return weighted r of columns, or of their midranks, on the rows that both have: (R, tasks, other tasks).

    ``x`` and ``y`` are (1 or R, models, tasks). Which rows both have, and so the ranks, differ from pair to pair of
    columns: these are taken one by one.
    """
    resamples = max(len(x), len(weights))
    result = np.full((resamples, x.shape[2], y.shape[2]), np.nan)
    for i, j in np.ndindex(x.shape[2], y.shape[2]):
        has_both = np.isfinite(x[0, :, i]) & np.isfinite(y[0, :, j])
        if has_both.sum() < 2:
            continue
        first_column = x[:, has_both, i : i + 1]
        second_column = y[:, has_both, j : j + 1]
        row_weights = weights[:, has_both]
        if ranks:
            first_column = _midranks(first_column, row_weights)
            second_column = _midranks(second_column, row_weights)
        result[:, i, j] = _pearson_complete(first_column, second_column, row_weights)[:, 0, 0]
    return result


def _variance_or_nan(variance: Floats, scale: Floats) -> Floats:
    """Return the variance, or NaN, hence an undefined correlation, where it is only rounding."""
    return np.where(variance > 1e-26 * scale, variance, np.nan)


def _midranks(x: Floats, weights: Floats) -> Floats:
    """Return average ranks where row a stands for ``weights[r, a]`` equal rows: (resamples, models, tasks).

    ``x`` is (1 or R, models, tasks) and ``weights`` (1 or R, models).
    """
    if len(x) > 1:
        parts = []
        for resample in range(len(x)):
            row_weights = weights[resample % len(weights)][None]
            parts.append(_midranks(x[resample : resample + 1], row_weights))
        return np.concatenate(parts)
    ranks = np.empty((len(weights), *x.shape[1:]))
    for column in range(x.shape[2]):
        order = np.argsort(x[0, :, column], kind="stable")
        ascending = x[0, order, column]
        is_new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        # (resamples, distinct scores)
        tied_mass = np.add.reduceat(weights[:, order], np.flatnonzero(is_new), axis=1)
        midranks = np.cumsum(tied_mass, axis=1) - tied_mass + (tied_mass + 1.0) / 2.0
        ranks[:, order, column] = midranks[:, np.cumsum(is_new) - 1]
    return ranks

"""The exact search for the least-squares hinge of equation 1, for a batch of outcomes at once.

``log_flops`` is log₁₀ compute. Between two neighbouring values of it the set of models above c, the point of emergence,
is fixed and the fit is linear, so the best c is either the free optimum of one such piece or one of the values
themselves. Below all values the hinge is a plain line, whatever c is; where that line would fall it is level, which a
hinge comes as close to as one likes (c = −∞, α = 0). Trying all of them finds the global least-squares fit without any
starting value.

``outcomes`` are scores above chance, (draws, models), and ``group`` is N as 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.values.scores import Floats

MIN_ABOVE = 3  # distinct values at or above c: with fewer, slope and c cannot be told from noise
ROUNDING_SHARE = 1e-12  # of the squared outcomes: two fits that differ by less are equally good


@dataclass(frozen=True, eq=False)
class HingeBatch:
    """The least-squares hinges of a batch: slope, point of emergence, group effect, residual sum of squares."""

    slope: Floats  # (draws,)
    emergence: Floats  # (draws,) NaN where all are at chance, −∞ where all are equally far above it
    effect: Floats  # (draws,) zero without a group
    rss: Floats  # (draws,)
    level: Floats  # (draws,) above chance, where that is so; else zero


@dataclass(frozen=True, eq=False)
class HingeCandidates:
    """Fits among which the search chooses, each (draws, candidates)."""

    slope: Floats
    emergence: Floats
    effect: Floats
    rss: Floats
    level: Floats


def search_hinges(log_flops: Floats, outcomes: Floats, group: Floats | None) -> HingeBatch:
    """Find the global least-squares hinge with α > 0 for every outcome of the batch."""
    centre = float(np.mean(log_flops))
    order = np.argsort(log_flops, kind="stable")
    centred = (log_flops - centre)[order]
    outcomes = outcomes[:, order]
    group_values = np.zeros_like(centred) if group is None else group[order]
    starts = _list_piece_starts(centred)
    # of fits that are equally good, the first is chosen, so the plainest ones come first
    flat = _fit_flat(outcomes, group_values)
    level = _fit_level(outcomes, group_values)
    pieces = _fit_pieces(centred, outcomes, group_values, starts)
    at_points = _fit_at_points(centred, outcomes, group_values, centred[starts])
    candidates = _join_candidates([flat, level, pieces, at_points])
    draws = np.arange(len(outcomes))
    best = _find_first_best(candidates, outcomes)
    return HingeBatch(
        slope=candidates.slope[draws, best],
        emergence=candidates.emergence[draws, best] + centre,
        effect=candidates.effect[draws, best],
        rss=candidates.rss[draws, best],
        level=candidates.level[draws, best],
    )


def _sum_squares(outcomes: Floats) -> Floats:
    """Return the sum of squares of each draw: (draws,)."""
    return np.asarray(np.einsum("bn,bn->b", outcomes, outcomes))


def _join_candidates(candidates: Sequence[HingeCandidates]) -> HingeCandidates:
    """Return all candidates side by side."""
    return HingeCandidates(
        slope=np.concatenate([fits.slope for fits in candidates], axis=1),
        emergence=np.concatenate([fits.emergence for fits in candidates], axis=1),
        effect=np.concatenate([fits.effect for fits in candidates], axis=1),
        rss=np.concatenate([fits.rss for fits in candidates], axis=1),
        level=np.concatenate([fits.level for fits in candidates], axis=1),
    )


def _find_first_best(candidates: HingeCandidates, outcomes: Floats) -> npt.NDArray[np.intp]:
    """Return the first candidate of each draw that fits as well as the best, up to rounding.

    A level line fits as well as one that rises by 10⁻¹⁸, and its point of emergence is −∞, not −10¹⁶.
    """
    residual_squares = np.where(candidates.slope >= 0, candidates.rss, np.inf)
    total = _sum_squares(outcomes)[:, None]
    least = residual_squares.min(axis=1, keepdims=True)
    is_best = residual_squares <= least + ROUNDING_SHARE * total
    return np.asarray(np.argmax(is_best, axis=1))


def profile_rss(log_flops: Floats, outcome: Floats, group: Floats | None, points: Floats) -> Floats:
    """Return the residual sum of squares of one outcome with the point of emergence held at each of ``points``."""
    group_values = np.zeros_like(log_flops) if group is None else group
    centre = float(np.mean(log_flops))
    candidates = _fit_at_points(log_flops - centre, outcome[None, :], group_values, points - centre)
    return np.asarray(candidates.rss[0])


def linear_basis(log_flops: Floats, emergence: Floats, group: Floats | None) -> Floats:
    """Return the columns that the fit is linear in: compute and 1 above c, and the group: (draws, models, 2 or 3).

    They span what the derivatives by slope and point of emergence do, and stay apart however far below all it is.
    """
    centred = log_flops - np.mean(log_flops)
    above_from = np.where(np.isnan(emergence), np.inf, emergence)[:, None]
    is_above = log_flops[None, :] > above_from
    is_rising = is_above & np.isfinite(above_from)  # a level line has no slope
    rise = np.where(is_rising, centred[None, :], 0.0)
    level = is_above.astype(np.float64)
    columns = [rise, level]
    if group is not None:
        columns.append(np.broadcast_to(group, is_above.shape).astype(np.float64))
    return np.stack(columns, axis=2)


def predict_above_chance(log_flops: Floats, hinges: HingeBatch, group: Floats | None) -> Floats:
    """Return the fitted values above chance: (draws, models)."""
    # a hinge that rises nowhere, or has no slope, rises from beyond the largest compute
    rises_from = np.where(np.isfinite(hinges.emergence), hinges.emergence, log_flops.max())
    distance_above = np.maximum(0.0, log_flops[None, :] - rises_from[:, None])
    without_group = hinges.slope[:, None] * distance_above + hinges.level[:, None]
    if group is None:
        return without_group
    return without_group + hinges.effect[:, None] * group[None, :]


def _list_piece_starts(log_flops: Floats) -> list[int]:
    """Return the first index of every piece that keeps enough distinct values at or above it; they are sorted."""
    is_new_value = np.r_[True, np.diff(log_flops) > 0]
    first_indices = np.flatnonzero(is_new_value)
    piece_count = len(first_indices) - MIN_ABOVE + 1
    return list(first_indices[:piece_count].tolist())


def _fit_pieces(
    log_flops: Floats, outcomes: Floats, group_values: Floats, starts: list[int]
) -> HingeCandidates:
    """Fit a + α·compute above each start, θ·N everywhere; keep the fits whose c = −a/α lies in their own piece."""
    models = np.arange(len(log_flops))
    is_above = models[None, :] >= np.asarray(starts)[:, None]  # (pieces, models)
    group_by_piece = np.broadcast_to(group_values, is_above.shape)
    # (pieces, 3, models): the columns of a, α and θ
    design = np.stack([is_above * 1.0, is_above * log_flops, group_by_piece], axis=1)
    cross_products = np.einsum("pin,bn->bpi", design, outcomes)
    normal_matrices = np.einsum("pin,pjn->pij", design, design)
    inverses = np.linalg.pinv(normal_matrices, hermitian=True)
    coefficients = np.einsum("pij,bpj->bpi", inverses, cross_products)
    intercept = coefficients[:, :, 0]
    slope = coefficients[:, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        emergence = -intercept / slope
    below_models = np.append(-np.inf, log_flops)  # shifted by one: the compute below each model's
    lower = below_models[starts]
    upper = log_flops[starts]
    total = _sum_squares(outcomes)[:, None]
    residual_squares = total - np.einsum("bpi,bpi->bp", coefficients, cross_products)
    is_valid = (slope > 0) & (emergence >= lower) & (emergence <= upper)
    return HingeCandidates(
        slope=slope,
        emergence=emergence,
        effect=coefficients[:, :, 2],
        rss=np.where(is_valid, residual_squares, np.inf),
        level=np.zeros_like(slope),
    )


def _fit_at_points(
    log_flops: Floats, outcomes: Floats, group_values: Floats, points: Floats
) -> HingeCandidates:
    """Fit α and θ with c held at each of ``points``."""
    rises = np.maximum(0.0, log_flops[None, :] - points[:, None])  # (points, models)
    rise_squares = np.einsum("pn,pn->p", rises, rises)
    rise_by_group = rises @ group_values
    group_squares = float(group_values @ group_values)
    rise_by_outcome = outcomes @ rises.T
    group_by_outcome = (outcomes @ group_values)[:, None]
    if group_squares > 0:
        product = rise_squares * group_squares
        determinant = product - rise_by_group**2
        is_regular = determinant > 1e-12 * np.maximum(product, 1e-300)
        divisor = np.where(is_regular, determinant, np.inf)
        slope = (group_squares * rise_by_outcome - rise_by_group * group_by_outcome) / divisor
        effect = (rise_squares * group_by_outcome - rise_by_group * rise_by_outcome) / divisor
    else:
        slope = rise_by_outcome / np.where(rise_squares > 0, rise_squares, np.inf)
        effect = np.zeros_like(rise_by_outcome)
    total = _sum_squares(outcomes)[:, None]
    return HingeCandidates(
        slope=slope,
        emergence=np.broadcast_to(points, slope.shape),
        effect=effect,
        rss=total - slope * rise_by_outcome - effect * group_by_outcome,
        level=np.zeros_like(slope),
    )


def _fit_level(outcomes: Floats, group_values: Floats) -> HingeCandidates:
    """Fit one level above chance and θ·N: a hinge that emerged long before and rises no more.

    Its slope is 0, or −1 where the level is below chance: such a fit is never chosen.
    """
    design = np.stack([np.ones_like(group_values), group_values])
    cross_products = outcomes @ design.T  # (draws, 2)
    inverse = np.linalg.pinv(design @ design.T, hermitian=True)
    coefficients = cross_products @ inverse  # (draws, 2): the level, and θ
    explained_squares = np.einsum("bi,bi->b", coefficients, cross_products)
    residual_squares = _sum_squares(outcomes) - explained_squares
    level = coefficients[:, :1]
    return HingeCandidates(
        slope=np.where(level > 0, 0.0, -1.0),
        emergence=np.full((len(outcomes), 1), -np.inf),
        effect=coefficients[:, 1:],
        rss=residual_squares[:, None],
        level=np.maximum(level, 0.0),
    )


def _fit_flat(outcomes: Floats, group_values: Floats) -> HingeCandidates:
    """Fit no rise at all: θ·N alone. The answer where every hinge would fall with compute."""
    group_squares = float(group_values @ group_values)
    group_by_outcome = (outcomes @ group_values)[:, None]
    effect = np.zeros((len(outcomes), 1))
    if group_squares > 0:
        effect = group_by_outcome / group_squares
    total = _sum_squares(outcomes)[:, None]
    return HingeCandidates(
        slope=np.zeros_like(effect),
        emergence=np.full_like(effect, np.nan),
        effect=effect,
        rss=total - effect * group_by_outcome,
        level=np.zeros_like(effect),
    )

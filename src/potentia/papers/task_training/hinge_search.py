"""The exact search for the least-squares hinge of equation 1, for a batch of outcomes at once.

Between two neighbouring values of x the set of models above c is fixed and the fit is linear, so the best c is either
the free optimum of one such piece or one of the x themselves. Below all x the hinge is a plain line, whatever c is;
where that line would fall it is level, which a hinge comes as close to as one likes (c = −∞, α = 0). Trying all of them
finds the global least-squares fit without any starting value.

Outcomes ``Y`` are scores above chance, (draws, models). ``x`` is log₁₀ compute, ``group`` is N as 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.values.scores import Floats

MIN_ABOVE = 3  # distinct x at or above c: with fewer, slope and c cannot be told from noise


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


def search_hinges(x: Floats, Y: Floats, group: Floats | None) -> HingeBatch:
    """Find the global least-squares hinge with α > 0 for every outcome of the batch."""
    centre = float(np.mean(x))
    order = np.argsort(x, kind="stable")
    centred = (x - centre)[order]
    Y = Y[:, order]
    g = np.zeros_like(centred) if group is None else group[order]
    starts = _list_piece_starts(centred)
    candidates = (
        _fit_pieces(centred, Y, g, starts),
        _fit_at_points(centred, Y, g, centred[starts]),
        _fit_level(Y, g),
        _fit_flat(Y, g),
    )
    slope = np.concatenate([one.slope for one in candidates], axis=1)
    emergence = np.concatenate([one.emergence for one in candidates], axis=1)
    effect = np.concatenate([one.effect for one in candidates], axis=1)
    rss = np.concatenate([one.rss for one in candidates], axis=1)
    level = np.concatenate([one.level for one in candidates], axis=1)
    best = np.argmin(np.where(slope >= 0, rss, np.inf), axis=1)
    chosen = (np.arange(len(Y)), best)
    return HingeBatch(
        slope=slope[chosen],
        emergence=emergence[chosen] + centre,
        effect=effect[chosen],
        rss=rss[chosen],
        level=level[chosen],
    )


def profile_rss(x: Floats, y: Floats, group: Floats | None, points: Floats) -> Floats:
    """Return the residual sum of squares of one outcome with the point of emergence held at each of ``points``."""
    g = np.zeros_like(x) if group is None else group
    centre = float(np.mean(x))
    candidates = _fit_at_points(x - centre, y[None, :], g, points - centre)
    return np.asarray(candidates.rss[0])


def linear_basis(x: Floats, emergence: Floats, group: Floats | None) -> Floats:
    """Return the columns that the fit is linear in: x and 1 above c, and the group: (draws, models, 2 or 3).

    They span what the derivatives by slope and point of emergence do, and stay apart however far below all x that is.
    """
    centred = x - np.mean(x)
    c = np.where(np.isnan(emergence), np.inf, emergence)[:, None]
    is_above = x[None, :] > c
    is_rising = is_above & np.isfinite(c)  # a level line has no slope
    columns = [np.where(is_rising, centred[None, :], 0.0), is_above.astype(np.float64)]
    if group is not None:
        columns.append(np.broadcast_to(group, is_above.shape).astype(np.float64))
    return np.stack(columns, axis=2)


def predict_above_chance(x: Floats, hinges: HingeBatch, group: Floats | None) -> Floats:
    """Return the fitted values above chance: (draws, models)."""
    c = np.where(np.isfinite(hinges.emergence), hinges.emergence, x.max())[:, None]
    rise = hinges.slope[:, None] * np.maximum(0.0, x[None, :] - c) + hinges.level[:, None]
    if group is None:
        return rise
    return rise + hinges.effect[:, None] * group[None, :]


def _list_piece_starts(x: Floats) -> list[int]:
    """Return the first index of every piece that keeps enough distinct x at or above it; x is sorted."""
    firsts = np.flatnonzero(np.r_[True, np.diff(x) > 0])
    return list(firsts[: len(firsts) - MIN_ABOVE + 1].tolist())


def _fit_pieces(x: Floats, Y: Floats, g: Floats, starts: list[int]) -> HingeCandidates:
    """Fit a + α·x above each start, θ·N everywhere; keep the fits whose c = −a/α lies in their own piece."""
    is_above = np.arange(len(x))[None, :] >= np.asarray(starts)[:, None]  # (pieces, models)
    columns = [is_above * 1.0, is_above * x, np.broadcast_to(g, is_above.shape)]
    X = np.stack(columns, axis=1)  # (pieces, 3, models)
    cross = np.einsum("pin,bn->bpi", X, Y)
    inverse = np.linalg.pinv(np.einsum("pin,pjn->pij", X, X), hermitian=True)
    coefficients = np.einsum("pij,bpj->bpi", inverse, cross)
    slope = coefficients[:, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        c = -coefficients[:, :, 0] / slope
    lower = np.array([-np.inf if start == 0 else x[start - 1] for start in starts])
    upper = x[starts]
    total = np.einsum("bn,bn->b", Y, Y)[:, None]
    rss = total - np.einsum("bpi,bpi->bp", coefficients, cross)
    is_valid = (slope > 0) & (c >= lower) & (c <= upper)
    return HingeCandidates(
        slope=slope,
        emergence=c,
        effect=coefficients[:, :, 2],
        rss=np.where(is_valid, rss, np.inf),
        level=np.zeros_like(slope),
    )


def _fit_at_points(x: Floats, Y: Floats, g: Floats, points: Floats) -> HingeCandidates:
    """Fit α and θ with c held at each of ``points``."""
    H = np.maximum(0.0, x[None, :] - points[:, None])  # (points, models)
    hh = np.einsum("pn,pn->p", H, H)
    hg = H @ g
    gg = float(g @ g)
    hy = Y @ H.T
    gy = (Y @ g)[:, None]
    if gg > 0:
        determinant = hh * gg - hg**2
        is_regular = determinant > 1e-12 * np.maximum(hh * gg, 1e-300)
        divisor = np.where(is_regular, determinant, np.inf)
        slope = (gg * hy - hg * gy) / divisor
        effect = (hh * gy - hg * hy) / divisor
    else:
        slope = hy / np.where(hh > 0, hh, np.inf)
        effect = np.zeros_like(hy)
    total = np.einsum("bn,bn->b", Y, Y)[:, None]
    return HingeCandidates(
        slope=slope,
        emergence=np.broadcast_to(points, slope.shape),
        effect=effect,
        rss=total - slope * hy - effect * gy,
        level=np.zeros_like(slope),
    )


def _fit_level(Y: Floats, g: Floats) -> HingeCandidates:
    """Fit one level above chance and θ·N: a hinge that emerged long before and rises no more.

    Its slope is 0, or −1 where the level is below chance: such a fit is never chosen.
    """
    X = np.stack([np.ones_like(g), g])
    coefficients = Y @ X.T @ np.linalg.pinv(X @ X.T, hermitian=True)  # (draws, 2)
    rss = np.einsum("bn,bn->b", Y, Y) - np.einsum("bi,bi->b", coefficients, Y @ X.T)
    level = coefficients[:, :1]
    return HingeCandidates(
        slope=np.where(level > 0, 0.0, -1.0),
        emergence=np.full((len(Y), 1), -np.inf),
        effect=coefficients[:, 1:],
        rss=rss[:, None],
        level=np.maximum(level, 0.0),
    )


def _fit_flat(Y: Floats, g: Floats) -> HingeCandidates:
    """Fit no rise at all: θ·N alone. The answer where every hinge would fall with compute."""
    gg = float(g @ g)
    gy = (Y @ g)[:, None]
    effect = gy / gg if gg > 0 else np.zeros((len(Y), 1))
    total = np.einsum("bn,bn->b", Y, Y)[:, None]
    return HingeCandidates(
        slope=np.zeros_like(effect),
        emergence=np.full_like(effect, np.nan),
        effect=effect,
        rss=total - effect * gy,
        level=np.zeros_like(effect),
    )

"""The numerics of the hinge A = α·max(0, x − c) + θ·N: an exact search for the least-squares fit.

Between two neighbouring values of x the set of models above c is fixed and the fit is linear, so the best c is either
the free optimum of one such piece, or one of the x themselves, or the lowest c allowed. Trying all of them finds the
global least-squares fit without any starting value. All functions take a batch of outcomes ``Y`` (draws, models) over
the same x and N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.values.scores import Floats

LEAST_ABOVE = 3  # distinct x that must lie at or above c: with fewer, slope and c cannot be told from noise


@dataclass(frozen=True, eq=False)
class Hinges:
    """The least-squares hinges of a batch: slope, point of emergence, group effect, residual sum of squares."""

    slope: Floats  # (draws,)
    emergence: Floats  # (draws,) NaN where no rise was found
    effect: Floats  # (draws,) zero without a group
    rss: Floats  # (draws,)


def search(x: Floats, Y: Floats, group: Floats | None) -> Hinges:
    """Find the global least-squares hinge with α > 0 for every outcome of the batch."""
    centre = float(np.mean(x))
    order = np.argsort(x, kind="stable")
    u, Y = (x - centre)[order], Y[:, order]
    g = np.zeros_like(u) if group is None else group[order]
    starts = _starts(u)
    piece = _free_pieces(u, Y, g, starts)
    knot = _at(u, Y, g, np.append(u[starts], earliest_emergence(u)))
    flat = _flat(Y, g)
    joined = [np.concatenate([a, b, c], axis=1) for a, b, c in zip(piece, knot, flat, strict=True)]
    slope, emergence, effect, rss = joined
    best = np.argmin(np.where(slope >= 0, rss, np.inf), axis=1)
    pick = (np.arange(len(Y)), best)
    return Hinges(slope[pick], emergence[pick] + centre, effect[pick], rss[pick])


def profile(x: Floats, y: Floats, group: Floats | None, points: Floats) -> Floats:
    """Return the residual sum of squares of one outcome with the point of emergence held at each of ``points``."""
    g = np.zeros_like(x) if group is None else group
    centre = float(np.mean(x))
    return np.asarray(_at(x - centre, y[None, :], g, points - centre)[3][0])


def earliest_emergence(x: Floats) -> float:
    """Return the smallest point of emergence that the search allows: twice the range of x below the smallest."""
    return float(x.min() - 2 * np.ptp(x))


def latest_emergence(x: Floats) -> float:
    """Return the largest point of emergence that the search allows."""
    return float(np.unique(x)[-LEAST_ABOVE])


def jacobian(x: Floats, slope: Floats, emergence: Floats, group: Floats | None) -> Floats:
    """Return the derivatives by slope, point of emergence and group effect: (draws, models, 2 or 3)."""
    c = np.where(np.isfinite(emergence), emergence, np.inf)[:, None]
    above = x[None, :] > c
    parts = [np.where(above, x[None, :] - np.where(above, c, 0.0), 0.0), np.where(above, -slope[:, None], 0.0)]
    if group is not None:
        parts.append(np.broadcast_to(group, above.shape).astype(np.float64))
    return np.stack(parts, axis=2)


def fitted(x: Floats, hinges: Hinges, group: Floats | None) -> Floats:
    """Return the fitted values above chance: (draws, models)."""
    c = np.where(np.isfinite(hinges.emergence), hinges.emergence, x.max())[:, None]
    rise = hinges.slope[:, None] * np.maximum(0.0, x[None, :] - c)
    return rise if group is None else rise + hinges.effect[:, None] * group[None, :]


def _starts(u: Floats) -> list[int]:
    """Return the first index of every piece that keeps enough distinct x at or above it."""
    firsts = np.flatnonzero(np.r_[True, np.diff(u) > 0])
    return [int(i) for i in firsts[: len(firsts) - LEAST_ABOVE + 1]]


def _free_pieces(u: Floats, Y: Floats, g: Floats, starts: list[int]) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit a + α·x above each start, θ·N everywhere; keep the fits whose c = −a/α lies in their own piece."""
    above = np.arange(len(u))[None, :] >= np.asarray(starts)[:, None]  # (pieces, models)
    X = np.stack([above * 1.0, above * u, np.broadcast_to(g, above.shape)], axis=1)  # (pieces, 3, models)
    cross = np.einsum("pin,bn->bpi", X, Y)
    inverse = np.linalg.pinv(np.einsum("pin,pjn->pij", X, X), hermitian=True)
    coefficients = np.einsum("pij,bpj->bpi", inverse, cross)
    slope, effect = coefficients[:, :, 1], coefficients[:, :, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        c = -coefficients[:, :, 0] / slope
    lower = np.array([earliest_emergence(u) if s == 0 else u[s - 1] for s in starts])
    upper = u[starts]
    rss = np.einsum("bn,bn->b", Y, Y)[:, None] - np.einsum("bpi,bpi->bp", coefficients, cross)
    return slope, c, effect, np.where((slope > 0) & (c >= lower) & (c <= upper), rss, np.inf)


def _at(u: Floats, Y: Floats, g: Floats, points: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit α and θ with c held at each of ``points``."""
    H = np.maximum(0.0, u[None, :] - points[:, None])  # (points, models)
    hh, hg, gg = np.einsum("pn,pn->p", H, H), H @ g, float(g @ g)
    hy, gy = Y @ H.T, (Y @ g)[:, None]
    if gg > 0:
        determinant = hh * gg - hg**2
        safe = np.where(determinant > 1e-12 * np.maximum(hh * gg, 1e-300), determinant, np.inf)
        slope, effect = (gg * hy - hg * gy) / safe, (hh * gy - hg * hy) / safe
    else:
        slope, effect = hy / np.where(hh > 0, hh, np.inf), np.zeros_like(hy)
    rss = np.einsum("bn,bn->b", Y, Y)[:, None] - slope * hy - effect * gy
    return slope, np.broadcast_to(points, slope.shape), effect, rss


def _flat(Y: Floats, g: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit no rise at all: θ·N alone. The answer where every hinge would fall with compute."""
    gg = float(g @ g)
    effect = (Y @ g)[:, None] / gg if gg > 0 else np.zeros((len(Y), 1))
    rss = np.einsum("bn,bn->b", Y, Y)[:, None] - effect * (Y @ g)[:, None]
    return np.zeros_like(effect), np.full_like(effect, np.nan), effect, rss

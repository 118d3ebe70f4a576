"""The numerics of the hinge A = α·max(0, x − c) + θ·N: an exact search for the least-squares fit.

Between two neighbouring values of x the set of models above c is fixed and the fit is linear, so the best c is either
the free optimum of one such piece or one of the x themselves. Below all x the hinge is a plain line, whatever c is;
where that line would fall it is level, which a hinge comes as close to as one likes (c = −∞, α = 0). Trying all of them
finds the global least-squares fit without any starting value. All functions take a batch of outcomes ``Y`` (draws,
models) over the same x and N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.values.scores import Floats

LEAST_ABOVE = 3  # distinct x that must lie at or above c: with fewer, slope and c cannot be told from noise


@dataclass(frozen=True, eq=False)
class Hinges:
    """The least-squares hinges of a batch: slope, point of emergence, group effect, residual sum of squares."""

    slope: Floats  # (draws,)
    emergence: Floats  # (draws,) NaN where all are at chance, −∞ where all are equally far above it
    effect: Floats  # (draws,) zero without a group
    rss: Floats  # (draws,)
    level: Floats  # (draws,) above chance, where that is so; else zero


def search(x: Floats, Y: Floats, group: Floats | None) -> Hinges:
    """Find the global least-squares hinge with α > 0 for every outcome of the batch."""
    centre = float(np.mean(x))
    order = np.argsort(x, kind="stable")
    u, Y = (x - centre)[order], Y[:, order]
    g = np.zeros_like(u) if group is None else group[order]
    starts = _starts(u)
    candidates = [_free_pieces(u, Y, g, starts), _at(u, Y, g, u[starts]), _even(Y, g), _flat(Y, g)]
    level = [np.zeros_like(part[0]) for part in candidates]
    level[2] = np.maximum(candidates[2][0], 0.0)
    slope, emergence, effect, rss = (np.concatenate(parts, axis=1) for parts in zip(*candidates, strict=True))
    slope[:, -2] = np.where(slope[:, -2] > 0, 0.0, -1.0)  # of the level line: no slope, and no fit below chance
    best = np.argmin(np.where(slope >= 0, rss, np.inf), axis=1)
    pick = (np.arange(len(Y)), best)
    above = np.concatenate(level, axis=1)[pick]
    return Hinges(slope[pick], emergence[pick] + centre, effect[pick], rss[pick], above)


def profile(x: Floats, y: Floats, group: Floats | None, points: Floats) -> Floats:
    """Return the residual sum of squares of one outcome with the point of emergence held at each of ``points``."""
    g = np.zeros_like(x) if group is None else group
    centre = float(np.mean(x))
    return np.asarray(_at(x - centre, y[None, :], g, points - centre)[3][0])


def basis(x: Floats, emergence: Floats, group: Floats | None) -> Floats:
    """Return the columns that the fit is linear in: x and 1 above c, and the group: (draws, models, 2 or 3).

    They span what the derivatives by slope and point of emergence do, and stay apart however far below all x that is.
    """
    centred = x - np.mean(x)
    c = np.where(np.isnan(emergence), np.inf, emergence)[:, None]
    above = x[None, :] > c
    rising = above & np.isfinite(c)  # a level line has no slope
    parts = [np.where(rising, centred[None, :], 0.0), above.astype(np.float64)]
    if group is not None:
        parts.append(np.broadcast_to(group, above.shape).astype(np.float64))
    return np.stack(parts, axis=2)


def fitted(x: Floats, hinges: Hinges, group: Floats | None) -> Floats:
    """Return the fitted values above chance: (draws, models)."""
    c = np.where(np.isfinite(hinges.emergence), hinges.emergence, x.max())[:, None]
    rise = hinges.slope[:, None] * np.maximum(0.0, x[None, :] - c) + hinges.level[:, None]
    return rise if group is None else rise + hinges.effect[:, None] * group[None, :]


def _starts(u: Floats) -> list[int]:
    """Return the first index of every piece that keeps enough distinct x at or above it."""
    firsts = np.flatnonzero(np.r_[True, np.diff(u) > 0])
    return list(firsts[: len(firsts) - LEAST_ABOVE + 1].tolist())


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
    lower = np.array([-np.inf if s == 0 else u[s - 1] for s in starts])
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


def _even(Y: Floats, g: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit one level above chance and θ·N: a hinge that emerged long before and rises no more. Level for slope."""
    X = np.stack([np.ones_like(g), g])
    coefficients = Y @ X.T @ np.linalg.pinv(X @ X.T, hermitian=True)  # (draws, 2)
    rss = np.einsum("bn,bn->b", Y, Y) - np.einsum("bi,bi->b", coefficients, Y @ X.T)
    return coefficients[:, :1], np.full((len(Y), 1), -np.inf), coefficients[:, 1:], rss[:, None]


def _flat(Y: Floats, g: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit no rise at all: θ·N alone. The answer where every hinge would fall with compute."""
    gg = float(g @ g)
    effect = (Y @ g)[:, None] / gg if gg > 0 else np.zeros((len(Y), 1))
    rss = np.einsum("bn,bn->b", Y, Y)[:, None] - effect * (Y @ g)[:, None]
    return np.zeros_like(effect), np.full_like(effect, np.nan), effect, rss


# --- a wild bootstrap over families ----------------------------------------------------------------------------------
# Every family keeps its residuals and gets one random sign (or Webb weight) in each draw, so the likeness of models
# within a family survives the resampling (Cameron, Gelbach & Miller 2008). Each draw is fitted anew, c_e included.


def wild_p(x: Floats, above: Floats, g: Floats, families: Sequence[str], hinge: Hinges, draws: int, seed: int) -> float:
    """Return the p-value of θ = 0, imposed on the resamples."""
    codes = np.unique(np.asarray(families), return_inverse=True)[1]
    clusters = (codes[None, :] == np.arange(codes.max() + 1)[:, None]).astype(np.float64)
    weights = _weights(len(clusters), draws, np.random.default_rng(seed))[:, codes]
    observed = _effect_t(x, above[None, :], g, clusters, hinge)[0]
    flat = fitted(x, search(x, above[None, :], None), None)[0]
    under_null = flat + weights * (above - flat)
    ts = _effect_t(x, under_null, g, clusters, search(x, under_null, g))
    return (1 + int(np.sum(np.abs(ts) >= abs(observed)))) / (draws + 1)


def _effect_t(x: Floats, Y: Floats, g: Floats, clusters: Floats, hinges: Hinges) -> Floats:
    """Return θ's t statistics by clustered standard errors, one per draw."""
    error = clustered_stderr(basis(x, hinges.emergence, g), Y - fitted(x, hinges, g), clusters)[:, -1]
    return np.asarray(hinges.effect / np.maximum(error, 1e-12))


def clustered_stderr(J: Floats, residuals: Floats, clusters: Floats) -> Floats:
    """Return cluster-robust standard errors (CR1), one row per draw; ``clusters`` is (clusters, models) of 0 and 1.

    One cluster says nothing of how clusters differ: its errors are NaN.
    """
    _, n, k = J.shape
    count = len(clusters)
    if count < 2:
        return np.full((len(J), k), np.nan)
    bread = np.linalg.pinv(np.einsum("bnk,bnl->bkl", J, J), hermitian=True)
    sums = np.einsum("gn,bnk->bgk", clusters, J * residuals[:, :, None])
    meat = np.einsum("bgk,bgl->bkl", sums, sums)
    scale = count / (count - 1) * (n - 1) / (n - k)
    variance = np.einsum("bkl,blm,bmk->bk", bread, meat, bread) * scale
    return np.asarray(np.sqrt(np.clip(variance, 0.0, None)))


def _weights(clusters: int, draws: int, generator: np.random.Generator) -> Floats:
    """Draw one weight per cluster: Rademacher, or Webb's six points where clusters are too few for it (< 12)."""
    if clusters >= 12:
        return generator.choice(np.array([-1.0, 1.0]), size=(draws, clusters))
    six = np.sqrt(np.array([0.5, 1.0, 1.5]))
    return generator.choice(np.concatenate([-six, six]), size=(draws, clusters))

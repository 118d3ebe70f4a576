"""A wild bootstrap over families for the hinge: inference that holds when there are few clusters.

Every family keeps its residuals and gets one random sign (or Webb weight) in each draw, so the likeness of models
within a family survives the resampling (Cameron, Gelbach & Miller 2008). Each draw is fitted anew, c_e included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.stats import hinge_fit
from potentia.values.findings import Interval
from potentia.values.scores import Floats


@dataclass(frozen=True)
class WildBootstrap:
    """A wild bootstrap over families: the p-value of θ = 0, and intervals that allow for clusters."""

    draws: int
    p: float
    effect: Interval | None
    slope: Interval
    emergence: Interval


def wild_bootstrap(
    x: Floats,
    above: Floats,
    g: Floats | None,
    families: Sequence[str],
    hinge: hinge_fit.Hinges,
    draws: int,
    seed: int,
    level: float,
    sign: float,
) -> WildBootstrap:
    """Resample residuals with one random sign per family; θ = 0 imposed for the p-value, not for the intervals."""
    codes = np.unique(np.asarray(families), return_inverse=True)[1]
    clusters = (codes[None, :] == np.arange(codes.max() + 1)[:, None]).astype(np.float64)
    weights = _weights(len(clusters), draws, np.random.default_rng(seed))[:, codes]
    observed = _effect_t(x, above[None, :], g, clusters, hinge, 0.0)
    tail = (1 - level) / 2

    fit = hinge_fit.fitted(x, hinge, g)[0]
    outcomes = fit + weights * (above - fit)
    drawn = hinge_fit.search(x, outcomes, g)
    centre = float(hinge.emergence[0])
    # c_e without a bound (no rise found in a draw) counts as beyond every model
    emergences = np.where(np.isnan(drawn.emergence), np.inf, drawn.emergence)
    slopes = _ordered(sign * np.quantile(drawn.slope, [tail, 1 - tail]))
    emergence = Interval(centre, _quantile(emergences, tail), _quantile(emergences, 1 - tail), level)
    slope = Interval(sign * float(hinge.slope[0]), *slopes, level)
    if g is None:
        return WildBootstrap(draws, float("nan"), None, slope, emergence)
    t, error = observed
    spread = _effect_t(x, outcomes, g, clusters, drawn, float(hinge.effect[0]))[0]
    upper, lower = np.quantile(spread, [1 - tail, tail])
    ends = float(hinge.effect[0]) - np.array([upper, lower]) * error[0]
    effect = Interval(sign * float(hinge.effect[0]), *_ordered(sign * ends), level)

    null = hinge_fit.search(x, above[None, :], None)
    flat = hinge_fit.fitted(x, null, None)[0]
    under_null = flat + weights * (above - flat)
    ts = _effect_t(x, under_null, g, clusters, hinge_fit.search(x, under_null, g), 0.0)[0]
    p = (1 + int(np.sum(np.abs(ts) >= abs(t[0])))) / (draws + 1)
    return WildBootstrap(draws, p, effect, slope, emergence)


def _effect_t(
    x: Floats, Y: Floats, g: Floats | None, clusters: Floats, hinges: hinge_fit.Hinges, truth: float
) -> tuple[Floats, Floats]:
    """Return θ's t statistics about ``truth`` and its clustered standard errors, one per draw."""
    J = hinge_fit.basis(x, hinges.emergence, g)
    error = clustered_stderr(J, Y - hinge_fit.fitted(x, hinges, g), clusters)[:, -1]
    return (hinges.effect - truth) / np.maximum(error, 1e-12), error


def _ordered(ends: Floats) -> tuple[float, float]:
    return float(min(ends)), float(max(ends))


def _quantile(values: Floats, q: float) -> float:
    """Return an observed order statistic, so that infinite values stay harmless."""
    return float(np.quantile(values, q, method="nearest"))


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

"""What is believed of the aggregates as cells are measured in thought: the worth of a cell, and the forecast after it.

Each model's aggregate is close to linear in its unseen cells, so their joint normal distribution gives the aggregates'
covariance C and, for a cell c with variance v, what measuring it would take away: C − g·gᵀ/v with g = cov(a, z_c). For
a pair of models with expected difference d and variance s², of which the cell explains δ², the chance to be ordered
wrongly afterwards is in expectation 2·T(|d|/s, √(s² − δ²)/δ), T being Owen's function: no simulation is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, owens_t

from potentia.analysis.planning.complete import Completion, expected_spread, row_error, steepness
from potentia.analysis.planning.posterior import Posterior
from potentia.analysis.stats.uncertainty import tau_rows
from potentia.values.findings import Interval
from potentia.values.scores import Floats

CANDIDATES = 150  # cells looked at closely in each step: the best by variance
PAIRS = 3_000  # pairs of models looked at: those most likely to be misordered
VAR = 1.0  # weight of the variance beside that of misorderings
NEAR = 0.005  # a pair less likely than this to be misordered is settled


class Outlook:
    """The covariance of aggregates and cells, as cells are taken."""

    def __init__(self, posterior: Posterior, aggregate: Floats, weights: Floats, wider: float) -> None:
        self.posterior = posterior
        self.aggregate = aggregate
        total, cells = posterior.covariance_with(weights)
        # The spread of whole rows was checked apart from that of cells; both sides of g·gᵀ/v scale with it.
        self.total, self.cells = total * wider**2, cells * wider
        self.variance = posterior.variance.copy()
        self.taken: list[tuple[Floats, float]] = []

    @classmethod
    def of(cls, completion: Completion) -> Outlook:
        """Linearise each model's aggregate in its unseen cells."""
        posterior, scale = completion.posterior, completion.fitted.scale
        rise = steepness(posterior, scale)
        spread = expected_spread(np.where(completion.measured, completion.values, completion.mean), posterior, scale)
        weights = np.where(completion.measured | (spread < 1e-12), 0.0, rise / np.maximum(spread, 1e-12))
        weights = weights / len(completion.tasks)
        state = cls(posterior, completion.aggregate, weights, completion.fitted.calibration.wider)
        state.total = state.total + np.diag(row_error(completion.measured) ** 2)
        return state

    def pair_weights(self, completion: Completion, top: int | None) -> Floats | None:
        """How much each pair matters: all alike, or by the chance that it straddles the edge of the top."""
        if top is None:
            return None
        p = completion.p_top(top)
        return np.asarray(p[:, None] * (1.0 - p) + p * (1.0 - p[:, None]))

    def best(self, cells: npt.NDArray[np.bool_], price: Floats, matter: Floats | None) -> tuple[int, int] | None:
        """The open cell with the most worth per cost."""
        places = np.argwhere(cells & (self.variance > 1e-10))
        if not len(places):
            return None
        count = len(self.aggregate)
        cost = np.maximum(price[tuple(places.T)], 1e-12 * np.nanmax(price, initial=1e-300) + 1e-300)
        g = self.cells[:, places[:, 0], places[:, 1]]  # (models, places)
        v = self.variance[tuple(places.T)]
        lost = ((g**2).sum(axis=0) - g.sum(axis=0) ** 2 / count) / v  # of the variance about the common mean
        if len(places) > 2 * CANDIDATES:
            keep = np.union1d(np.argsort(-lost / cost)[:CANDIDATES], np.argsort(-lost)[: CANDIDATES // 4])
            places, cost, g, v, lost = places[keep], cost[keep], g[:, keep], v[keep], lost[keep]
        total = float(np.trace(self.total) - self.total.sum() / count)
        worth = lost / max(total, 1e-300)
        first, second, base, share = self._pairs(matter)
        if len(base):
            gap = (self.aggregate[first] - self.aggregate[second])[:, None]
            s2 = _pair_variance(self.total, first, second)[:, None]
            after = expected_misorder(gap, s2, (g[first] - g[second]) ** 2 / v)
            gone = share @ (base[:, None] - after)
            worth = VAR * worth + gone / max(float(share @ base), 1e-300)
        row, task = places[int(np.argmax(worth / cost))]
        return int(row), int(task)

    def _pairs(self, matter: Floats | None) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats, Floats]:
        first, second = np.triu_indices(len(self.aggregate), 1)
        gap = np.abs(self.aggregate[first] - self.aggregate[second])
        flip = ndtr(-gap / np.sqrt(_pair_variance(self.total, first, second)))
        share = np.ones(len(flip)) if matter is None else matter[first, second]
        weight = flip * share
        near = np.flatnonzero((flip > NEAR) & (weight > 0))
        if len(near) > PAIRS:
            near = near[np.argsort(-weight[near])[:PAIRS]]
        return first[near], second[near], flip[near], share[near]

    def take(self, cell: tuple[int, int]) -> None:
        """Measure a cell in thought: everything that varies with it varies less."""
        along = self.posterior.covariance_of(*cell)  # (models, tasks)
        for earlier, variance in self.taken:
            along = along - earlier * earlier[cell] / variance
        variance = float(max(along[cell], 1e-12))
        g = self.cells[:, cell[0], cell[1]].copy()
        self.taken.append((along, variance))
        self.total = self.total - np.outer(g, g) / variance
        self.cells = self.cells - g[:, None, None] * (along / variance)
        self.variance = np.maximum(self.variance - along**2 / variance, 0.0)

    def expected(self, start: Floats, completion: Completion, top: int | None, noise: Floats) -> float:
        """The forecast's mean: in closed form for pairs, simulated for a top."""
        if top is not None:
            return forecast(self, start, completion, top, noise).value
        first, second = np.triu_indices(len(self.aggregate), 1)
        if not len(first):
            return 1.0
        before = _pair_variance(start, first, second)
        after = np.minimum(_pair_variance(self.total, first, second), before)
        gap = self.aggregate[first] - self.aggregate[second]
        return float(1.0 - 2.0 * expected_misorder(gap, before, before - after).mean())


def expected_misorder(gap: Floats, variance: Floats, explained: Floats) -> Floats:
    """P(to order a pair wrongly), expected, once ``explained`` of its ``variance`` is known: 2·T(|d|/s, s′/δ)."""
    whole = np.maximum(variance, 1e-300)
    known = np.clip(explained, 0.0, whole)
    slant = np.sqrt((whole - known) / np.maximum(known, 1e-300))
    return np.asarray(2.0 * owens_t(np.abs(gap) / np.sqrt(whole), np.minimum(slant, 1e9)))


def _pair_variance(total: Floats, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> Floats:
    own = np.diag(total)
    return np.maximum(own[first] + own[second] - 2.0 * total[first, second], 1e-18)


def forecast(state: Outlook, start: Floats, completion: Completion, top: int | None, noise: Floats) -> Interval:
    """Simulate what will be believed and what is true: a′ ~ N(a, C − C′) and truth ~ N(a′, C′)."""
    learned, left = _half(start - state.total), _half(state.total)
    believed = state.aggregate + noise[0] @ learned.T
    truth = believed + noise[1] @ left.T
    if top is not None:
        k = min(top, len(state.aggregate))
        named = np.argsort(-believed, axis=1, kind="stable")[:, :k]
        real = np.argsort(-truth, axis=1, kind="stable")[:, :k]
        measure = (named[:, :, None] == real[:, None, :]).any(axis=2).mean(axis=1)
    elif len(state.aggregate) < 2:
        measure = np.ones(len(truth))
    else:
        few = max(20, min(len(truth), 2_000_000 // len(state.aggregate) ** 2))
        measure = np.nan_to_num(tau_rows(believed[:few], truth[:few]), nan=0.0 if left.any() else 1.0)  # all tied
    tail = (1.0 - completion.level) / 2.0
    low, high = np.quantile(measure, [tail, 1.0 - tail])
    value = float(measure.mean())
    if top is None:
        value = state.expected(start, completion, None, noise)
    return Interval(value, float(low), float(high), completion.level)


def _half(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

"""Scores as a few latent abilities of the models and what is left: the factor model behind completion.

On the link scale, standardised, a score is

    z(m, t) = Σ_k λ_k(t)·f_k(m) + r_t(m),    f_k ~ GP(h_k, Σ_p w_kp·G_p),    r_t ~ GP(0, R_t),
    R_t = ψ_t·[(1 − ρ)·I + ρ·lineage] + b·d_t·d_tᵀ + σ_t²·1·1ᵀ + τ²·h·hᵀ.

The abilities f are Gaussian processes over models with the kernel parts G_p of ``features``; the first is expected at
h (direct scores and size), the others at zero. The rest r_t of a task is common within a lineage to the share ρ,
follows the task's own direct score d_t, holds the task's mean with variance σ_t², and lets the task rise with the
expected ability h more or less steeply than λ says: a task known from weak models alone is uncertain for strong ones.
A measured score has no noise of its own, since what is to be predicted are scores as measured; only where its
standard error exceeds the task's usual one does the excess count. Loadings λ, ψ, ρ, b and the weights w maximise the
marginal likelihood times weak priors; with abilities and rests integrated out exactly, its gradient is that of the
expected complete likelihood (Fisher's identity), so one solve per evaluation gives value and gradient. The priors
make the model start from one common ability (λ_1 ≈ 0.9), which is what holds when nothing has been measured.

What the factor model says of cells: their joint normal distribution given the known ones.

Given the abilities, the rest of a task is predicted from the rests of the measured models of the same lineage (and
through the task's mean from all of them): z_t = A_t·(Λf)_t + G_t·y_t + e_t with gain G_t = R_t·(R_t + excess)⁻¹,
A_t = I − G_t and e_t ~ N(0, A_t·R_t). So the covariance of any two cells is a product of small matrices, and a matrix
of 500 × 40 cells needs no 20,000 × 20,000 one. ``Posterior`` answers for the rows of the study alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.optimize import minimize

from potentia.values.scores import Floats

# With whole rows to start from, stopping early shrinks: with more, unseen cells are predicted worse and too surely.
# Without them the search starts from one common ability and has further to go.
FACTORS, ITERATIONS = 3, 15
COLD_FACTORS, COLD_ITERATIONS = 5, 30
WHOLE_ROWS = 8  # at most so many: cold
MOST_ROWS = 160  # rows that the weights are learned from; prediction takes all
LOADING, LOADING_SPREAD, FURTHER_SPREAD = 0.9, 0.3, 0.25
REST, REST_WEIGHT = 0.12, 3.0
KERNEL, FURTHER_KERNEL, KERNEL_SPREAD = 0.003, 0.03, 1.5  # about the expected ability, about zero
KIN, OWN = 0.2, 0.02
TILT, BEND = 0.5**2, 0.3**2
JITTER = 1e-6


@dataclass(frozen=True)
class FactorProblem:
    """Standardised scores with gaps, and what is known of the models."""

    z: Floats  # (models, tasks), NaN where unknown
    excess: Floats  # (models, tasks): variance of a score beyond its task's usual one
    grams: Floats  # (parts, models, models)
    mean: Floats  # (models,): where the first ability is expected
    kin: Floats  # (models, models)
    own: Floats  # (models, tasks)
    level_variance: Floats  # (tasks,): σ² of the task means

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which scores are there."""
        return np.isfinite(self.z)

    def select_rows(self, rows: npt.NDArray[np.intp]) -> FactorProblem:
        """Return the problem of these rows alone."""
        square = np.ix_(rows, rows)
        by_row = {name: getattr(self, name)[rows] for name in ("z", "excess", "mean", "own")}
        return replace(
            self,
            **by_row,
            kin=self.kin[square],
            grams=np.stack([gram[square] for gram in self.grams]),
        )

    def hide_cells(self, cells: npt.NDArray[np.bool_]) -> FactorProblem:
        """Return the problem with these cells unknown."""
        return replace(self, z=np.where(cells, np.nan, self.z))


@dataclass(frozen=True)
class FactorWeights:
    """What is learned: loadings λ, rests ψ, the own score's b, the lineage's share ρ, kernel weights w."""

    loadings: Floats  # (tasks, factors)
    rest: Floats  # (tasks,)
    own: Floats  # (tasks,)
    kin: float
    kernels: Floats  # (factors, parts)

    def pack(self) -> Floats:
        """Return all as one unbounded vector."""
        share = np.log(self.kin / (1.0 - self.kin))
        parts = (
            self.loadings.ravel(),
            np.log(self.rest),
            np.log(self.own),
            [share],
            np.log(self.kernels).ravel(),
        )
        return np.concatenate(parts)

    @classmethod
    def unpack(cls, vector: Floats, tasks: int, factors: int) -> FactorWeights:
        """Undo ``pack``."""
        a = tasks * factors
        rest = np.clip(vector[a:], -30.0, 30.0)
        return cls(
            loadings=vector[:a].reshape(tasks, factors),
            rest=np.exp(rest[:tasks]),
            own=np.exp(rest[tasks : 2 * tasks]),
            kin=float(1.0 / (1.0 + np.exp(-rest[2 * tasks]))),
            kernels=np.exp(rest[2 * tasks + 1 :]).reshape(factors, -1),
        )


@dataclass(frozen=True)
class FactorSolution:
    """The abilities given the known scores, and what led to them."""

    weights: FactorWeights
    rest: Floats  # (tasks, models, models): R_t
    inverse: Floats  # (tasks, models, models): (R_t + excess)⁻¹ on the known cells, 0 elsewhere
    prior: Floats  # (factors, models, models): inverse kernels
    mean: Floats  # (factors, models)
    cov: Floats  # (factors·models, factors·models)
    evidence: float  # log marginal likelihood


def solve_abilities(problem: FactorProblem, weights: FactorWeights) -> FactorSolution:
    """Condition the abilities on the known scores."""
    models, tasks = problem.z.shape
    factors = weights.loadings.shape[1]
    known, y = problem.known, np.nan_to_num(problem.z)
    rest = rest_covariance(problem, weights)
    inverse = np.zeros((tasks, models, models))
    evidence = 0.0
    for t in range(tasks):
        seen = np.flatnonzero(known[:, t])
        if len(seen):
            block = rest[t][np.ix_(seen, seen)] + np.diag(problem.excess[seen, t] + JITTER)
            inverse[t][np.ix_(seen, seen)], determinant = _inverse(block)
            evidence -= 0.5 * determinant
    kernels = np.tensordot(weights.kernels, problem.grams, 1) + JITTER * np.eye(models)
    prior = np.empty_like(kernels)
    for k in range(factors):
        prior[k], determinant = _inverse(kernels[k])
        evidence -= 0.5 * determinant
    pairs = _pairs(weights.loadings)  # (tasks, factors²)
    precision = (pairs.T @ inverse.reshape(tasks, -1)).reshape(factors, factors, models, models)
    precision = np.ascontiguousarray(
        precision.transpose(0, 2, 1, 3)
    )  # (factors, models, factors, models)
    for k in range(factors):
        precision[k, :, k, :] += prior[k]
    weighted = np.einsum("tij,jt->ti", inverse, y)
    right = weights.loadings.T @ weighted  # (factors, models)
    right[0] += prior[0] @ problem.mean
    size = factors * models
    cov, determinant = _inverse(precision.reshape(size, size))
    mean = cov @ right.ravel()
    evidence -= 0.5 * determinant
    evidence -= 0.5 * float(
        np.einsum("ti,it->", weighted, y) + problem.mean @ prior[0] @ problem.mean
    )
    evidence += 0.5 * float(right.ravel() @ mean)
    return FactorSolution(
        weights, rest, inverse, prior, mean.reshape(factors, models), cov, evidence
    )


def rest_covariance(problem: FactorProblem, weights: FactorWeights) -> Floats:
    """R_t of every task: (tasks, models, models)."""
    kin = (1.0 - weights.kin) * np.eye(len(problem.z)) + weights.kin * problem.kin
    own = problem.own.T[:, :, None] * problem.own.T[:, None, :]
    bend = (problem.mean**2 - np.mean(problem.mean**2)) / np.sqrt(2.0)
    common = TILT * np.outer(problem.mean, problem.mean) + BEND * np.outer(bend, bend)
    rest, share, level = (
        x[:, None, None] for x in (weights.rest, weights.own, problem.level_variance)
    )
    return np.asarray(rest * kin + share * own + level + common)


def fit_weights(problem: FactorProblem) -> FactorWeights:
    """Find the weights; of many rows, those with the most known scores speak."""
    rows = np.flatnonzero(problem.known.any(axis=1))
    if len(rows) > MOST_ROWS:
        count = problem.known[rows].sum(axis=1) + np.random.default_rng(0).random(len(rows))
        rows = np.sort(rows[np.argsort(-count)[:MOST_ROWS]])
    part = (
        problem.select_rows(rows)
        if len(rows)
        else problem.select_rows(np.arange(min(len(problem.z), 2)))
    )
    tasks = problem.z.shape[1]
    warm = int(part.known.all(axis=1).sum()) > WHOLE_ROWS
    factors, iterations = (FACTORS, ITERATIONS) if warm else (COLD_FACTORS, COLD_ITERATIONS)
    first = _start(part, min(factors, max(tasks, 1)))
    args, options = (part, first.loadings.shape[1]), {"maxiter": iterations, "maxcor": 20}
    best = minimize(_objective, first.pack(), args, jac=True, method="L-BFGS-B", options=options)
    return FactorWeights.unpack(best.x, tasks, first.loadings.shape[1])


def _start(problem: FactorProblem, factors: int) -> FactorWeights:
    """Loadings of the principal components where enough rows are whole, else one common ability."""
    tasks = problem.z.shape[1]
    whole = problem.z[problem.known.all(axis=1)]
    loadings = np.random.default_rng(0).normal(scale=0.05, size=(tasks, factors))
    loadings[:, 0] = LOADING
    if len(whole) > WHOLE_ROWS and tasks > factors:
        values, vectors = np.linalg.eigh(whole.T @ whole / len(whole))
        values, vectors = values[::-1], vectors[:, ::-1]
        vectors = vectors * np.where(vectors.sum(axis=0) < 0, -1.0, 1.0)
        loadings = vectors[:, :factors] * np.sqrt(
            np.maximum(values[:factors] - values[factors:].mean(), 0.01)
        )
    return FactorWeights(
        loadings,
        np.full(tasks, REST),
        np.full(tasks, OWN),
        KIN,
        _kernels(factors, len(problem.grams)),
    )


def _objective(vector: Floats, problem: FactorProblem, factors: int) -> tuple[float, Floats]:
    """Minus the log posterior of the weights, and its gradient."""
    models, tasks = problem.z.shape
    weights = FactorWeights.unpack(vector, tasks, factors)
    try:
        solved = solve_abilities(problem, weights)
    except np.linalg.LinAlgError:  # a step too far: the search turns back
        return 1e12, np.zeros_like(vector)
    known, y = problem.known, np.nan_to_num(problem.z)
    lam, mean = weights.loadings, solved.mean
    cov = solved.cov.reshape(factors, models, factors, models)
    left = np.where(known.T, y.T - lam @ mean, 0.0)  # (tasks, models)
    blocks = np.ascontiguousarray(cov.transpose(0, 2, 1, 3)).reshape(
        factors**2, -1
    )  # (factors², models²)
    precise = solved.inverse
    moment = (precise.reshape(tasks, -1) @ blocks.T).reshape(tasks, factors, factors)
    moment += np.einsum("ai,tij,bj->tab", mean, precise, mean, optimize=True)
    weighted = np.einsum("tij,jt->ti", precise, y)
    by_loadings = weighted @ mean.T - np.einsum("tab,tb->ta", moment, lam)
    second = (_pairs(lam) @ blocks).reshape(tasks, models, models) + left[:, :, None] * left[
        :, None, :
    ]
    by_cov = 0.5 * (precise @ second @ precise - precise)  # of R_t
    kin = (1.0 - weights.kin) * np.eye(models) + weights.kin * problem.kin
    by_rest = weights.rest * np.tensordot(by_cov, kin, 2)
    by_kin = float(weights.rest @ np.tensordot(by_cov, problem.kin - np.eye(models), 2))
    by_own = weights.own * np.einsum(
        "it,tij,jt->t", problem.own, by_cov, problem.own, optimize=True
    )
    by_kernels = np.empty_like(weights.kernels)
    for k in range(factors):
        centred = mean[k] - (problem.mean if k == 0 else 0.0)
        about = np.outer(centred, centred) + cov[k, :, k, :]
        change = 0.5 * (solved.prior[k] @ about @ solved.prior[k] - solved.prior[k])
        by_kernels[k] = weights.kernels[k] * np.tensordot(problem.grams, change, 2)
    gradient = np.concatenate(
        [
            by_loadings.ravel(),
            by_rest,
            by_own,
            [by_kin * weights.kin * (1.0 - weights.kin)],
            by_kernels.ravel(),
        ]
    )
    belief, slope = _log_prior(vector, weights)
    return -(solved.evidence + belief), -(gradient + slope)


def _log_prior(vector: Floats, weights: FactorWeights) -> tuple[float, Floats]:
    """Weak beliefs: one common ability, small rests, kernel parts of a few per cent each."""
    tasks, factors = weights.loadings.shape
    centre, spread = np.zeros(factors), np.full(factors, FURTHER_SPREAD)
    centre[0], spread[0] = LOADING, LOADING_SPREAD
    off = (weights.loadings - centre) / spread
    log_rest = np.log(weights.rest)
    a, b = tasks * factors, tasks * factors + tasks
    kernels = np.log(_kernels(*weights.kernels.shape)).ravel()
    start = np.concatenate([np.full(tasks, np.log(OWN)), [np.log(KIN / (1 - KIN))], kernels])
    others = vector[b:] - start
    width = np.concatenate([np.ones(tasks + 1), np.full(len(kernels), KERNEL_SPREAD)])
    value = -0.5 * float((off**2).sum()) - 0.5 * float(((others / width) ** 2).sum())
    value -= REST_WEIGHT * float((log_rest + REST / weights.rest).sum())
    slope = np.empty_like(vector)
    slope[:a] = (-off / spread).ravel()
    slope[a:b] = -REST_WEIGHT * (1.0 - REST / weights.rest)
    slope[b:] = -others / width**2
    return value, slope


def _kernels(factors: int, parts: int) -> Floats:
    """Kernel weights to start from and to shrink to."""
    weights = np.full((factors, parts), FURTHER_KERNEL)
    weights[0] = KERNEL
    return weights


def _pairs(loadings: Floats) -> Floats:
    """Products of every two loadings of a task: (tasks, factors²)."""
    return np.asarray((loadings[:, :, None] * loadings[:, None, :]).reshape(len(loadings), -1))


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log determinant of a positive definite matrix."""
    factor, failed = lapack.dpotrf(matrix, lower=1)
    if failed:
        raise np.linalg.LinAlgError("a covariance is not positive definite")
    half, _ = lapack.dpotri(factor, lower=1)
    lower = np.tril(half)
    return lower + np.tril(lower, -1).T, 2.0 * float(np.log(np.diag(factor)).sum())


CHUNK = 100  # draws at a time


@dataclass(frozen=True)
class CellPosterior:
    """Means, variances and the parts of the covariance of the cells of some rows and tasks, on the standard scale."""

    mean: Floats  # (rows, tasks)
    variance: Floats  # (rows, tasks)
    common: Floats  # (tasks,): of the variance, what all rows share: how hard the task is
    through: Floats  # (tasks, rows, models): A_t
    rest: Floats  # (tasks, rows, rows): covariance of e_t
    loadings: Floats  # (tasks, factors)
    base: Floats  # (rows, tasks): mean at abilities zero, G_t·y_t
    abilities: Floats  # (factors, models)
    cov: Floats  # (factors, models, factors, models)

    def covariance_with(self, weights: Floats) -> tuple[Floats, Floats]:
        """Of the sums a = Σ_t weights·z of each row: their covariance, and that of each with every cell.

        ``weights`` is (rows, tasks); returns (rows, rows) and (rows, rows, tasks): [i, m, t] = cov(a_i, z(m, t)).
        """
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        sums = np.einsum(
            "it,tij,ta->iaj", weights, self.through, self.loadings, optimize=True
        )  # (rows, factors, models)
        flat = sums.reshape(rows, factors * models)
        spread = flat @ self.cov.reshape(factors * models, factors * models)
        total = spread @ flat.T
        cells = np.empty((rows, rows, tasks))
        spread = spread.reshape(rows, factors, models)
        for t in range(tasks):
            along = np.einsum("iaj,a->ij", spread, self.loadings[t])
            cells[:, :, t] = along @ self.through[t].T + weights[:, t][:, None] * self.rest[t]
            total = total + weights[:, t][:, None] * self.rest[t] * weights[:, t]
        return 0.5 * (total + total.T), cells

    def covariance_of(self, row: int, task: int) -> Floats:
        """Covariance of one cell with all: (rows, tasks)."""
        factors, models = self.abilities.shape
        one = np.multiply.outer(self.loadings[task], self.through[task, row]).ravel()
        spread = (self.cov.reshape(factors * models, factors * models) @ one).reshape(
            factors, models
        )
        result = np.einsum("tij,tj->it", self.through, self.loadings @ spread)
        result[:, task] += self.rest[task, row]
        return np.asarray(result)

    def draw_cells(self, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Joint draws of all cells in chunks of (≤ CHUNK, rows, tasks)."""
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        half = _root(self.cov.reshape(factors * models, factors * models))
        rests = [_root(self.rest[t]) for t in range(tasks)]
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            f = self.abilities.ravel() + rng.standard_normal((size, factors * models)) @ half.T
            f = f.reshape(size, factors, models)
            chunk = np.empty((size, rows, tasks))
            for t in range(tasks):
                ability = np.einsum("saj,a->sj", f, self.loadings[t])
                noise = rng.standard_normal((size, rows)) @ rests[t].T
                chunk[:, :, t] = self.base[:, t] + ability @ self.through[t].T + noise
            yield chunk


def predict_cells(
    problem: FactorProblem,
    solved: FactorSolution,
    rows: npt.NDArray[np.intp],
    tasks: npt.NDArray[np.intp],
) -> CellPosterior:
    """Return the distribution of the cells of ``rows`` × ``tasks``; a known cell is what it is."""
    factors, models = solved.mean.shape
    known, y = problem.known, np.nan_to_num(problem.z)
    cov = solved.cov.reshape(factors, models, factors, models)
    blocks = np.ascontiguousarray(cov.transpose(0, 2, 1, 3)).reshape(
        factors**2, -1
    )  # (factors², models²)
    loadings = solved.weights.loadings[tasks]
    through = np.empty((len(tasks), len(rows), models))
    rest = np.empty((len(tasks), len(rows), len(rows)))
    base, mean, variance = (np.empty((len(rows), len(tasks))) for _ in range(3))
    common = np.empty(len(tasks))
    for c, t in enumerate(tasks):
        gain = solved.rest[t][rows] @ solved.inverse[t]  # (rows, models); zero where unknown
        through[c] = -gain
        through[c, np.arange(len(rows)), rows] += 1.0
        rest[c] = solved.rest[t][np.ix_(rows, rows)] - gain @ solved.rest[t][:, rows]
        base[:, c] = gain @ y[:, t]
        mean[:, c] = base[:, c] + through[c] @ (loadings[c] @ solved.mean)
        spread = (np.multiply.outer(loadings[c], loadings[c]).ravel() @ blocks).reshape(
            models, models
        )
        variance[:, c] = ((through[c] @ spread) * through[c]).sum(axis=1) + np.diag(rest[c])
        middle = through[c].mean(axis=0)
        common[c] = float(middle @ spread @ middle + rest[c].mean())
    seen = known[np.ix_(rows, tasks)]
    mean = np.where(seen, y[np.ix_(rows, tasks)], mean)
    variance = np.where(seen, 0.0, np.maximum(variance, 1e-12))
    return CellPosterior(mean, variance, common, through, rest, loadings, base, solved.mean, cov)


def _root(matrix: Floats) -> Floats:
    """A square root of a covariance that may be singular: measured cells have no variance."""
    return np.asarray(np.linalg.cholesky(matrix + 1e-9 * np.eye(len(matrix))))

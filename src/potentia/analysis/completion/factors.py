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
of 500 × 40 cells needs no 20,000 × 20,000 one. ``CellPosterior`` answers for the rows of the study alone.
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
        return replace(
            self,
            z=self.z[rows],
            excess=self.excess[rows],
            mean=self.mean[rows],
            own=self.own[rows],
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
        """Return all weights as one unbounded vector."""
        kin_logit = np.log(self.kin / (1.0 - self.kin))
        parts = (
            self.loadings.ravel(),
            np.log(self.rest),
            np.log(self.own),
            [kin_logit],
            np.log(self.kernels).ravel(),
        )
        return np.concatenate(parts)

    @classmethod
    def unpack(cls, vector: Floats, tasks: int, factors: int) -> FactorWeights:
        """Undo ``pack``."""
        loading_count = tasks * factors
        loadings = vector[:loading_count]
        logarithms = np.clip(vector[loading_count:], -30.0, 30.0)
        log_rest = logarithms[:tasks]
        log_own = logarithms[tasks : 2 * tasks]
        kin_logit = logarithms[2 * tasks]
        log_kernels = logarithms[2 * tasks + 1 :]
        return cls(
            loadings=loadings.reshape(tasks, factors),
            rest=np.exp(log_rest),
            own=np.exp(log_own),
            kin=float(1.0 / (1.0 + np.exp(-kin_logit))),
            kernels=np.exp(log_kernels).reshape(factors, -1),
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
    known = problem.known
    scores = np.nan_to_num(problem.z)
    rest = rest_covariance(problem, weights)
    inverse = np.zeros((tasks, models, models))
    evidence = 0.0
    for task in range(tasks):
        measured = np.flatnonzero(known[:, task])
        if len(measured) == 0:
            continue
        square = np.ix_(measured, measured)
        covariance = rest[task][square] + np.diag(problem.excess[measured, task] + JITTER)
        inverse[task][square], log_determinant = _invert(covariance)
        evidence -= 0.5 * log_determinant
    kernels = np.tensordot(weights.kernels, problem.grams, 1) + JITTER * np.eye(models)
    prior = np.empty_like(kernels)
    for factor in range(factors):
        prior[factor], log_determinant = _invert(kernels[factor])
        evidence -= 0.5 * log_determinant
    loading_products = _multiply_loadings(weights.loadings)  # (tasks, factors²)
    flat_precision = loading_products.T @ inverse.reshape(tasks, -1)
    precision_by_factors = flat_precision.reshape(factors, factors, models, models)
    # (factors, models, factors, models)
    precision = np.ascontiguousarray(precision_by_factors.transpose(0, 2, 1, 3))
    for factor in range(factors):
        precision[factor, :, factor, :] += prior[factor]
    weighted_scores = np.einsum("tij,jt->ti", inverse, scores)
    right_side = weights.loadings.T @ weighted_scores  # (factors, models)
    right_side[0] += prior[0] @ problem.mean
    size = factors * models
    cov, log_determinant = _invert(precision.reshape(size, size))
    mean = cov @ right_side.ravel()
    evidence -= 0.5 * log_determinant
    score_square = np.einsum("ti,it->", weighted_scores, scores)
    prior_square = problem.mean @ prior[0] @ problem.mean
    evidence -= 0.5 * float(score_square + prior_square)
    evidence += 0.5 * float(right_side.ravel() @ mean)
    return FactorSolution(
        weights=weights,
        rest=rest,
        inverse=inverse,
        prior=prior,
        mean=mean.reshape(factors, models),
        cov=cov,
        evidence=evidence,
    )


def rest_covariance(problem: FactorProblem, weights: FactorWeights) -> Floats:
    """Return R_t of every task: (tasks, models, models)."""
    lineage = _lineage_covariance(problem, weights)
    own_scores = problem.own.T
    own_products = own_scores[:, :, None] * own_scores[:, None, :]
    bend = (problem.mean**2 - np.mean(problem.mean**2)) / np.sqrt(2.0)
    common = TILT * np.outer(problem.mean, problem.mean) + BEND * np.outer(bend, bend)
    rest = weights.rest[:, None, None]
    own = weights.own[:, None, None]
    level = problem.level_variance[:, None, None]
    return np.asarray(rest * lineage + own * own_products + level + common)


def _lineage_covariance(problem: FactorProblem, weights: FactorWeights) -> Floats:
    """Return (1 − ρ)·I + ρ·lineage: (models, models)."""
    models = len(problem.z)
    return np.asarray((1.0 - weights.kin) * np.eye(models) + weights.kin * problem.kin)


def fit_weights(problem: FactorProblem) -> FactorWeights:
    """Find the weights; of many rows, those with the most known scores are used."""
    part = problem.select_rows(_choose_rows(problem))
    tasks = problem.z.shape[1]
    complete_rows = int(part.known.all(axis=1).sum())
    if complete_rows > WHOLE_ROWS:
        factors = FACTORS
        iterations = ITERATIONS
    else:
        factors = COLD_FACTORS
        iterations = COLD_ITERATIONS
    factors = min(factors, max(tasks, 1))
    start = _choose_start(part, factors)
    best = minimize(
        _objective,
        start.pack(),
        (part, factors),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxcor": 20},
    )
    return FactorWeights.unpack(best.x, tasks, factors)


def _choose_rows(problem: FactorProblem) -> npt.NDArray[np.intp]:
    """Return the rows that the weights are learned from; ties in the number of known scores are broken by chance."""
    rows = np.flatnonzero(problem.known.any(axis=1))
    if len(rows) == 0:
        return np.arange(min(len(problem.z), 2))
    if len(rows) <= MOST_ROWS:
        return rows
    tie_breaks = np.random.default_rng(0).random(len(rows))
    known_counts = problem.known[rows].sum(axis=1) + tie_breaks
    fullest = np.argsort(-known_counts)[:MOST_ROWS]
    return np.sort(rows[fullest])


def _choose_start(problem: FactorProblem, factors: int) -> FactorWeights:
    """Return loadings of the principal components where enough rows are complete, else one common ability."""
    tasks = problem.z.shape[1]
    complete = problem.z[problem.known.all(axis=1)]
    if len(complete) > WHOLE_ROWS and tasks > factors:
        loadings = _principal_loadings(complete, factors)
    else:
        loadings = np.random.default_rng(0).normal(scale=0.05, size=(tasks, factors))
        loadings[:, 0] = LOADING
    return FactorWeights(
        loadings=loadings,
        rest=np.full(tasks, REST),
        own=np.full(tasks, OWN),
        kin=KIN,
        kernels=_expected_kernels(factors, len(problem.grams)),
    )


def _principal_loadings(scores: Floats, factors: int) -> Floats:
    """Return the loadings of the first principal components, less the mean variance of the others."""
    ascending_values, ascending_vectors = np.linalg.eigh(scores.T @ scores / len(scores))
    values = ascending_values[::-1]
    vectors = ascending_vectors[:, ::-1]
    signs = np.where(vectors.sum(axis=0) < 0, -1.0, 1.0)
    vectors = vectors * signs
    variances = np.maximum(values[:factors] - values[factors:].mean(), 0.01)
    return np.asarray(vectors[:, :factors] * np.sqrt(variances))


def _objective(vector: Floats, problem: FactorProblem, factors: int) -> tuple[float, Floats]:
    """Minus the log posterior of the weights, and its gradient."""
    models, tasks = problem.z.shape
    weights = FactorWeights.unpack(vector, tasks, factors)
    try:
        solved = solve_abilities(problem, weights)
    except np.linalg.LinAlgError:  # a step too far: the search turns back
        return 1e12, np.zeros_like(vector)
    scores = np.nan_to_num(problem.z)
    loadings = weights.loadings
    mean = solved.mean
    cov = solved.cov.reshape(factors, models, factors, models)
    residuals = np.where(problem.known.T, scores.T - loadings @ mean, 0.0)  # (tasks, models)
    blocks = _covariance_blocks(cov)
    inverse = solved.inverse
    moment = (inverse.reshape(tasks, -1) @ blocks.T).reshape(tasks, factors, factors)
    moment += np.einsum("ai,tij,bj->tab", mean, inverse, mean, optimize=True)
    weighted_scores = np.einsum("tij,jt->ti", inverse, scores)
    by_loadings = weighted_scores @ mean.T - np.einsum("tab,tb->ta", moment, loadings)
    ability_covariance = (_multiply_loadings(loadings) @ blocks).reshape(tasks, models, models)
    second_moment = ability_covariance + residuals[:, :, None] * residuals[:, None, :]
    by_rest_covariance = 0.5 * (inverse @ second_moment @ inverse - inverse)  # of R_t
    lineage = _lineage_covariance(problem, weights)
    by_rest = weights.rest * np.tensordot(by_rest_covariance, lineage, 2)
    lineage_change = problem.kin - np.eye(models)
    by_kin = float(weights.rest @ np.tensordot(by_rest_covariance, lineage_change, 2))
    by_own = weights.own * np.einsum(
        "it,tij,jt->t", problem.own, by_rest_covariance, problem.own, optimize=True
    )
    by_kernels = _differentiate_kernels(problem, solved)
    by_kin_logit = by_kin * weights.kin * (1.0 - weights.kin)
    gradient = np.concatenate(
        [by_loadings.ravel(), by_rest, by_own, [by_kin_logit], by_kernels.ravel()]
    )
    log_prior, prior_gradient = _log_prior(vector, weights)
    return -(solved.evidence + log_prior), -(gradient + prior_gradient)


def _differentiate_kernels(problem: FactorProblem, solved: FactorSolution) -> Floats:
    """Return the gradient of the evidence by the logarithms of the kernel weights: (factors, parts)."""
    kernels = solved.weights.kernels
    factors, models = solved.mean.shape
    cov = solved.cov.reshape(factors, models, factors, models)
    by_kernels = np.empty_like(kernels)
    for factor in range(factors):
        centred = solved.mean[factor]
        if factor == 0:
            centred = centred - problem.mean
        second_moment = np.outer(centred, centred) + cov[factor, :, factor, :]
        prior = solved.prior[factor]
        by_kernel = 0.5 * (prior @ second_moment @ prior - prior)
        by_kernels[factor] = kernels[factor] * np.tensordot(problem.grams, by_kernel, 2)
    return by_kernels


def _covariance_blocks(cov: Floats) -> Floats:
    """Return the covariance of the abilities by pairs of factors: (factors², models²)."""
    factors = len(cov)
    by_factors = np.ascontiguousarray(cov.transpose(0, 2, 1, 3))
    return np.asarray(by_factors.reshape(factors**2, -1))


def _log_prior(vector: Floats, weights: FactorWeights) -> tuple[float, Floats]:
    """Return the log density of weak beliefs, and its gradient.

    The beliefs are one common ability, small rests, and kernel parts of a few per cent each.
    """
    tasks, factors = weights.loadings.shape
    centre = np.zeros(factors)
    centre[0] = LOADING
    spread = np.full(factors, FURTHER_SPREAD)
    spread[0] = LOADING_SPREAD
    loading_errors = (weights.loadings - centre) / spread
    loading_end = tasks * factors
    rest_end = loading_end + tasks
    log_own = np.full(tasks, np.log(OWN))
    kin_logit = np.log(KIN / (1 - KIN))
    log_kernels = np.log(_expected_kernels(*weights.kernels.shape)).ravel()
    other_errors = vector[rest_end:] - np.concatenate([log_own, [kin_logit], log_kernels])
    other_spread = np.concatenate([np.ones(tasks + 1), np.full(len(log_kernels), KERNEL_SPREAD)])
    loading_square = float((loading_errors**2).sum())
    other_square = float(((other_errors / other_spread) ** 2).sum())
    log_prior = -0.5 * loading_square - 0.5 * other_square
    log_prior -= REST_WEIGHT * float((np.log(weights.rest) + REST / weights.rest).sum())
    gradient = np.empty_like(vector)
    gradient[:loading_end] = (-loading_errors / spread).ravel()
    gradient[loading_end:rest_end] = -REST_WEIGHT * (1.0 - REST / weights.rest)
    gradient[rest_end:] = -other_errors / other_spread**2
    return log_prior, gradient


def _expected_kernels(factors: int, parts: int) -> Floats:
    """Return the kernel weights to start from and to shrink to."""
    weights = np.full((factors, parts), FURTHER_KERNEL)
    weights[0] = KERNEL
    return weights


def _multiply_loadings(loadings: Floats) -> Floats:
    """Return the products of every two loadings of a task: (tasks, factors²)."""
    products = loadings[:, :, None] * loadings[:, None, :]
    return np.asarray(products.reshape(len(loadings), -1))


def _invert(matrix: Floats) -> tuple[Floats, float]:
    """Return the inverse and the log determinant of a positive definite matrix."""
    cholesky_factor, failed = lapack.dpotrf(matrix, lower=1)
    if failed:
        raise np.linalg.LinAlgError("a covariance is not positive definite")
    half_inverse, _ = lapack.dpotri(cholesky_factor, lower=1)
    lower = np.tril(half_inverse)
    log_determinant = 2.0 * float(np.log(np.diag(cholesky_factor)).sum())
    return lower + np.tril(lower, -1).T, log_determinant


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
        """Return the covariance of the rows' sums a = Σ_t weights·z, and that of each sum with every cell.

        ``weights`` is (rows, tasks); returns (rows, rows) and (rows, rows, tasks): [i, m, t] = cov(a_i, z(m, t)).
        """
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        sums = np.einsum(
            "it,tij,ta->iaj", weights, self.through, self.loadings, optimize=True
        )  # (rows, factors, models)
        flat_sums = sums.reshape(rows, factors * models)
        flat_with_abilities = flat_sums @ self._flat_covariance()
        of_sums = flat_with_abilities @ flat_sums.T
        with_abilities = flat_with_abilities.reshape(rows, factors, models)
        with_cells = np.empty((rows, rows, tasks))
        for task in range(tasks):
            task_weights = weights[:, task]
            weighted_rest = task_weights[:, None] * self.rest[task]
            with_ability = np.einsum("iaj,a->ij", with_abilities, self.loadings[task])
            with_cells[:, :, task] = with_ability @ self.through[task].T + weighted_rest
            of_sums = of_sums + weighted_rest * task_weights
        return 0.5 * (of_sums + of_sums.T), with_cells

    def covariance_with_cell(self, row: int, task: int) -> Floats:
        """Return the covariance of one cell with all: (rows, tasks)."""
        factors, models = self.abilities.shape
        cell = np.multiply.outer(self.loadings[task], self.through[task, row]).ravel()
        with_abilities = (self._flat_covariance() @ cell).reshape(factors, models)
        with_cells = np.einsum("tij,tj->it", self.through, self.loadings @ with_abilities)
        with_cells[:, task] += self.rest[task, row]
        return np.asarray(with_cells)

    def draw_cells(self, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield joint draws of all cells in chunks of (≤ CHUNK, rows, tasks)."""
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        ability_root = _covariance_root(self._flat_covariance())
        rest_roots = [_covariance_root(self.rest[task]) for task in range(tasks)]
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            ability_noise = rng.standard_normal((size, factors * models)) @ ability_root.T
            flat_abilities = self.abilities.ravel() + ability_noise
            abilities = flat_abilities.reshape(size, factors, models)
            chunk = np.empty((size, rows, tasks))
            for task in range(tasks):
                task_ability = np.einsum("saj,a->sj", abilities, self.loadings[task])
                noise = rng.standard_normal((size, rows)) @ rest_roots[task].T
                through = task_ability @ self.through[task].T
                chunk[:, :, task] = self.base[:, task] + through + noise
            yield chunk

    def _flat_covariance(self) -> Floats:
        """Return the covariance of the abilities: (factors·models, factors·models)."""
        return self.cov.reshape(self.abilities.size, self.abilities.size)


def predict_cells(
    problem: FactorProblem,
    solved: FactorSolution,
    rows: npt.NDArray[np.intp],
    tasks: npt.NDArray[np.intp],
) -> CellPosterior:
    """Return the distribution of the cells of ``rows`` × ``tasks``; a known cell is what it is."""
    factors, models = solved.mean.shape
    scores = np.nan_to_num(problem.z)
    cov = solved.cov.reshape(factors, models, factors, models)
    blocks = _covariance_blocks(cov)
    loadings = solved.weights.loadings[tasks]
    through = np.empty((len(tasks), len(rows), models))
    rest = np.empty((len(tasks), len(rows), len(rows)))
    base = np.empty((len(rows), len(tasks)))
    mean = np.empty((len(rows), len(tasks)))
    variance = np.empty((len(rows), len(tasks)))
    common = np.empty(len(tasks))
    for column, task in enumerate(tasks):
        task_rest = solved.rest[task]
        gain = task_rest[rows] @ solved.inverse[task]  # (rows, models); zero where unknown
        task_through = -gain
        task_through[np.arange(len(rows)), rows] += 1.0
        through[column] = task_through
        rest[column] = task_rest[np.ix_(rows, rows)] - gain @ task_rest[:, rows]
        base[:, column] = gain @ scores[:, task]
        mean[:, column] = base[:, column] + through[column] @ (loadings[column] @ solved.mean)
        loading_products = np.multiply.outer(loadings[column], loadings[column]).ravel()
        ability_covariance = (loading_products @ blocks).reshape(models, models)
        through_variance = ((through[column] @ ability_covariance) * through[column]).sum(axis=1)
        variance[:, column] = through_variance + np.diag(rest[column])
        mean_through = through[column].mean(axis=0)
        common[column] = float(
            mean_through @ ability_covariance @ mean_through + rest[column].mean()
        )
    cells = np.ix_(rows, tasks)
    is_known = problem.known[cells]
    return CellPosterior(
        mean=np.where(is_known, scores[cells], mean),
        variance=np.where(is_known, 0.0, np.maximum(variance, 1e-12)),
        common=common,
        through=through,
        rest=rest,
        loadings=loadings,
        base=base,
        abilities=solved.mean,
        cov=cov,
    )


def _covariance_root(matrix: Floats) -> Floats:
    """Return a square root of a covariance that may be singular: measured cells have no variance."""
    return np.asarray(np.linalg.cholesky(matrix + 1e-9 * np.eye(len(matrix))))

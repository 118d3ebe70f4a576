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
FACTORS = 3
ITERATIONS = 15
COLD_FACTORS = 5
COLD_ITERATIONS = 30
WHOLE_ROWS = 8  # at most so many: cold
MOST_ROWS = 160  # rows that the weights are learned from; prediction takes all
LOADING = 0.9
LOADING_SPREAD = 0.3
FURTHER_LOADING_SPREAD = 0.25
RESIDUAL_VARIANCE = 0.12
RESIDUAL_PRIOR_WEIGHT = 3.0
FIRST_KERNEL = 0.003  # of the first ability, about its expectation
FURTHER_KERNEL = 0.03  # of the others, about zero
KERNEL_SPREAD = 1.5
LINEAGE_SHARE = 0.2
DIRECT_WEIGHT = 0.02
TILT_VARIANCE = 0.5**2
BEND_VARIANCE = 0.3**2
JITTER = 1e-6


@dataclass(frozen=True)
class FactorProblem:
    """Standardised scores with gaps, and what is known of the models."""

    scores: Floats  # (models, tasks), NaN where unknown
    excess: Floats  # (models, tasks): variance of a score beyond its task's usual one
    grams: Floats  # (parts, models, models)
    expected_ability: Floats  # (models,): of the first ability
    lineage: Floats  # (models, models): 1 where two models are of one lineage
    direct_scores: Floats  # (models, tasks): d_t, before tuning
    level_variance: Floats  # (tasks,): σ² of the task means

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Which scores are there."""
        return np.isfinite(self.scores)

    def select_rows(self, rows: npt.NDArray[np.intp]) -> FactorProblem:
        """Return the problem of these rows alone."""
        square = np.ix_(rows, rows)
        scores = self.scores[rows]
        excess = self.excess[rows]
        expected_ability = self.expected_ability[rows]
        direct_scores = self.direct_scores[rows]
        lineage = self.lineage[square]
        grams = np.stack([gram_matrix[square] for gram_matrix in self.grams])
        return replace(
            self,
            scores=scores,
            excess=excess,
            expected_ability=expected_ability,
            direct_scores=direct_scores,
            lineage=lineage,
            grams=grams,
        )

    def hide_cells(self, cells: npt.NDArray[np.bool_]) -> FactorProblem:
        """Return the problem with these cells unknown."""
        return replace(self, scores=np.where(cells, np.nan, self.scores))


@dataclass(frozen=True)
class FactorWeights:
    """The learned parameters of the factor model; each field names its symbol."""

    loadings: Floats  # (tasks, factors): λ
    residual_variance: Floats  # (tasks,): ψ
    direct_weight: Floats  # (tasks,): b
    lineage_share: float  # ρ
    kernels: Floats  # (factors, parts): w

    def pack(self) -> Floats:
        """Return all weights as one unbounded vector."""
        lineage_logit = np.log(self.lineage_share / (1.0 - self.lineage_share))
        parts = (
            self.loadings.ravel(),
            np.log(self.residual_variance),
            np.log(self.direct_weight),
            [lineage_logit],
            np.log(self.kernels).ravel(),
        )
        return np.concatenate(parts)

    @classmethod
    def unpack(cls, vector: Floats, tasks: int, factors: int) -> FactorWeights:
        """Undo ``pack``."""
        loading_count = tasks * factors
        loadings = vector[:loading_count]
        logarithms = np.clip(vector[loading_count:], -30.0, 30.0)
        log_residual_variance = logarithms[:tasks]
        log_direct_weight = logarithms[tasks : 2 * tasks]
        lineage_logit = logarithms[2 * tasks]
        log_kernels = logarithms[2 * tasks + 1 :]
        lineage_share = float(1.0 / (1.0 + np.exp(-lineage_logit)))
        kernels = np.exp(log_kernels).reshape(factors, -1)
        return cls(
            loadings=loadings.reshape(tasks, factors),
            residual_variance=np.exp(log_residual_variance),
            direct_weight=np.exp(log_direct_weight),
            lineage_share=lineage_share,
            kernels=kernels,
        )


@dataclass(frozen=True)
class FactorSolution:
    """The abilities given the known scores, and what led to them."""

    weights: FactorWeights
    residual_covariance: Floats  # (tasks, models, models): R_t
    inverse: Floats  # (tasks, models, models): (R_t + excess)⁻¹ on the known cells, 0 elsewhere
    prior: Floats  # (factors, models, models): inverse kernels
    abilities: Floats  # (factors, models)
    covariance: Floats  # (factors·models, factors·models), of the abilities
    evidence: float  # log marginal likelihood


def solve_abilities(problem: FactorProblem, weights: FactorWeights) -> FactorSolution:
    """Condition the abilities on the known scores."""
    models, tasks = problem.scores.shape
    factors = weights.loadings.shape[1]
    is_known = problem.is_known
    scores = np.nan_to_num(problem.scores)
    residual_covariance = compute_residual_covariance(problem, weights)
    inverse = np.zeros((tasks, models, models))
    evidence = 0.0
    for task in range(tasks):
        measured = np.flatnonzero(is_known[:, task])
        if len(measured) == 0:
            continue
        square = np.ix_(measured, measured)
        covariance = residual_covariance[task][square] + np.diag(
            problem.excess[measured, task] + JITTER
        )
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
    right_side[0] += prior[0] @ problem.expected_ability
    unknowns = factors * models
    ability_covariance, log_determinant = _invert(precision.reshape(unknowns, unknowns))
    abilities = ability_covariance @ right_side.ravel()
    evidence -= 0.5 * log_determinant
    score_square = np.einsum("ti,it->", weighted_scores, scores)
    prior_square = problem.expected_ability @ prior[0] @ problem.expected_ability
    evidence -= 0.5 * float(score_square + prior_square)
    evidence += 0.5 * float(right_side.ravel() @ abilities)
    return FactorSolution(
        weights=weights,
        residual_covariance=residual_covariance,
        inverse=inverse,
        prior=prior,
        abilities=abilities.reshape(factors, models),
        covariance=ability_covariance,
        evidence=evidence,
    )


def compute_residual_covariance(problem: FactorProblem, weights: FactorWeights) -> Floats:
    """Return R_t of every task: (tasks, models, models)."""
    lineage = _lineage_covariance(problem, weights)
    direct_scores = problem.direct_scores.T
    direct_products = direct_scores[:, :, None] * direct_scores[:, None, :]
    curvature = (problem.expected_ability**2 - np.mean(problem.expected_ability**2)) / np.sqrt(2.0)
    common = TILT_VARIANCE * np.outer(
        problem.expected_ability, problem.expected_ability
    ) + BEND_VARIANCE * np.outer(curvature, curvature)
    residual_variance = weights.residual_variance[:, None, None]
    direct_weight = weights.direct_weight[:, None, None]
    level_variance = problem.level_variance[:, None, None]
    from_lineage = residual_variance * lineage
    from_direct_scores = direct_weight * direct_products
    return np.asarray(from_lineage + from_direct_scores + level_variance + common)


def _lineage_covariance(problem: FactorProblem, weights: FactorWeights) -> Floats:
    """Return (1 − ρ)·I + ρ·lineage: (models, models)."""
    models = len(problem.scores)
    return np.asarray(
        (1.0 - weights.lineage_share) * np.eye(models) + weights.lineage_share * problem.lineage
    )


def fit_weights(problem: FactorProblem) -> FactorWeights:
    """Find the weights; of many rows, those with the most known scores are used."""
    sampled_problem = problem.select_rows(_choose_rows(problem))
    tasks = problem.scores.shape[1]
    complete_rows = int(sampled_problem.is_known.all(axis=1).sum())
    if complete_rows > WHOLE_ROWS:
        factors = FACTORS
        iterations = ITERATIONS
    else:
        factors = COLD_FACTORS
        iterations = COLD_ITERATIONS
    factors = min(factors, max(tasks, 1))
    start = _choose_start(sampled_problem, factors)
    optimum = minimize(
        _objective,
        start.pack(),
        (sampled_problem, factors),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxcor": 20},
    )
    return FactorWeights.unpack(optimum.x, tasks, factors)


def _choose_rows(problem: FactorProblem) -> npt.NDArray[np.intp]:
    """Return the rows that the weights are learned from; ties in the number of known scores are broken by chance."""
    rows = np.flatnonzero(problem.is_known.any(axis=1))
    if len(rows) == 0:
        return np.arange(min(len(problem.scores), 2))
    if len(rows) <= MOST_ROWS:
        return rows
    tie_breaks = np.random.default_rng(0).random(len(rows))
    known_counts = problem.is_known[rows].sum(axis=1) + tie_breaks
    fullest = np.argsort(-known_counts)[:MOST_ROWS]
    return np.sort(rows[fullest])


def _choose_start(problem: FactorProblem, factors: int) -> FactorWeights:
    """Return loadings of the principal components where enough rows are complete, else one common ability."""
    tasks = problem.scores.shape[1]
    complete = problem.scores[problem.is_known.all(axis=1)]
    if len(complete) > WHOLE_ROWS and tasks > factors:
        loadings = _principal_loadings(complete, factors)
    else:
        loadings = np.random.default_rng(0).normal(scale=0.05, size=(tasks, factors))
        loadings[:, 0] = LOADING
    return FactorWeights(
        loadings=loadings,
        residual_variance=np.full(tasks, RESIDUAL_VARIANCE),
        direct_weight=np.full(tasks, DIRECT_WEIGHT),
        lineage_share=LINEAGE_SHARE,
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
    models, tasks = problem.scores.shape
    weights = FactorWeights.unpack(vector, tasks, factors)
    try:
        solved = solve_abilities(problem, weights)
    except np.linalg.LinAlgError:  # a step too far: the search turns back
        return 1e12, np.zeros_like(vector)
    scores = np.nan_to_num(problem.scores)
    loadings = weights.loadings
    abilities = solved.abilities
    covariance = solved.covariance.reshape(factors, models, factors, models)
    residuals = np.where(
        problem.is_known.T, scores.T - loadings @ abilities, 0.0
    )  # (tasks, models)
    blocks = _covariance_blocks(covariance)
    inverse = solved.inverse
    moment = (inverse.reshape(tasks, -1) @ blocks.T).reshape(tasks, factors, factors)
    moment += np.einsum("ai,tij,bj->tab", abilities, inverse, abilities, optimize=True)
    weighted_scores = np.einsum("tij,jt->ti", inverse, scores)
    by_loadings = weighted_scores @ abilities.T - np.einsum("tab,tb->ta", moment, loadings)
    ability_covariance = (_multiply_loadings(loadings) @ blocks).reshape(tasks, models, models)
    second_moment = ability_covariance + residuals[:, :, None] * residuals[:, None, :]
    by_residual_covariance = 0.5 * (inverse @ second_moment @ inverse - inverse)  # of R_t
    lineage = _lineage_covariance(problem, weights)
    by_residual_variance = weights.residual_variance * np.tensordot(
        by_residual_covariance, lineage, 2
    )
    lineage_change = problem.lineage - np.eye(models)
    by_lineage_share = float(
        weights.residual_variance @ np.tensordot(by_residual_covariance, lineage_change, 2)
    )
    by_direct_weight = weights.direct_weight * np.einsum(
        "it,tij,jt->t",
        problem.direct_scores,
        by_residual_covariance,
        problem.direct_scores,
        optimize=True,
    )
    by_kernels = _differentiate_kernels(problem, solved)
    by_lineage_logit = by_lineage_share * weights.lineage_share * (1.0 - weights.lineage_share)
    gradient = np.concatenate(
        [
            by_loadings.ravel(),
            by_residual_variance,
            by_direct_weight,
            [by_lineage_logit],
            by_kernels.ravel(),
        ]
    )
    log_prior, prior_gradient = _log_prior(vector, weights)
    return -(solved.evidence + log_prior), -(gradient + prior_gradient)


def _differentiate_kernels(problem: FactorProblem, solved: FactorSolution) -> Floats:
    """Return the gradient of the evidence by the logarithms of the kernel weights: (factors, parts)."""
    kernels = solved.weights.kernels
    factors, models = solved.abilities.shape
    covariance = solved.covariance.reshape(factors, models, factors, models)
    by_kernels = np.empty_like(kernels)
    for factor in range(factors):
        centred = solved.abilities[factor]
        if factor == 0:
            centred = centred - problem.expected_ability
        second_moment = np.outer(centred, centred) + covariance[factor, :, factor, :]
        prior = solved.prior[factor]
        by_kernel = 0.5 * (prior @ second_moment @ prior - prior)
        by_kernels[factor] = kernels[factor] * np.tensordot(problem.grams, by_kernel, 2)
    return by_kernels


def _covariance_blocks(covariance: Floats) -> Floats:
    """Return the covariance of the abilities by pairs of factors: (factors², models²)."""
    factors = len(covariance)
    by_factors = np.ascontiguousarray(covariance.transpose(0, 2, 1, 3))
    return np.asarray(by_factors.reshape(factors**2, -1))


def _log_prior(vector: Floats, weights: FactorWeights) -> tuple[float, Floats]:
    """Return the log density of weak beliefs, and its gradient.

    The beliefs are one common ability, small rests, and kernel parts of a few per cent each.
    """
    tasks, factors = weights.loadings.shape
    centre = np.zeros(factors)
    centre[0] = LOADING
    spread = np.full(factors, FURTHER_LOADING_SPREAD)
    spread[0] = LOADING_SPREAD
    loading_errors = (weights.loadings - centre) / spread
    loading_end = tasks * factors
    residual_end = loading_end + tasks
    log_direct_weight = np.full(tasks, np.log(DIRECT_WEIGHT))
    lineage_logit = np.log(LINEAGE_SHARE / (1 - LINEAGE_SHARE))
    log_kernels = np.log(_expected_kernels(*weights.kernels.shape)).ravel()
    other_errors = vector[residual_end:] - np.concatenate(
        [log_direct_weight, [lineage_logit], log_kernels]
    )
    other_spread = np.concatenate([np.ones(tasks + 1), np.full(len(log_kernels), KERNEL_SPREAD)])
    loading_square = float((loading_errors**2).sum())
    other_square = float(((other_errors / other_spread) ** 2).sum())
    log_prior = -0.5 * loading_square - 0.5 * other_square
    log_prior -= RESIDUAL_PRIOR_WEIGHT * float(
        (np.log(weights.residual_variance) + RESIDUAL_VARIANCE / weights.residual_variance).sum()
    )
    gradient = np.empty_like(vector)
    gradient[:loading_end] = (-loading_errors / spread).ravel()
    gradient[loading_end:residual_end] = -RESIDUAL_PRIOR_WEIGHT * (
        1.0 - RESIDUAL_VARIANCE / weights.residual_variance
    )
    gradient[residual_end:] = -other_errors / other_spread**2
    return log_prior, gradient


def _expected_kernels(factors: int, parts: int) -> Floats:
    """Return the kernel weights to start from and to shrink to."""
    weights = np.full((factors, parts), FURTHER_KERNEL)
    weights[0] = FIRST_KERNEL
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
    residual_covariance: Floats  # (tasks, rows, rows): covariance of e_t
    loadings: Floats  # (tasks, factors): λ
    base: Floats  # (rows, tasks): mean at abilities zero, G_t·y_t
    abilities: Floats  # (factors, models)
    covariance: Floats  # (factors, models, factors, models), of the abilities

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
            weighted_residual = task_weights[:, None] * self.residual_covariance[task]
            with_ability = np.einsum("iaj,a->ij", with_abilities, self.loadings[task])
            with_cells[:, :, task] = with_ability @ self.through[task].T + weighted_residual
            of_sums = of_sums + weighted_residual * task_weights
        return 0.5 * (of_sums + of_sums.T), with_cells

    def covariance_with_cell(self, row: int, task: int) -> Floats:
        """Return the covariance of one cell with all: (rows, tasks)."""
        factors, models = self.abilities.shape
        cell = np.multiply.outer(self.loadings[task], self.through[task, row]).ravel()
        with_abilities = (self._flat_covariance() @ cell).reshape(factors, models)
        with_cells = np.einsum("tij,tj->it", self.through, self.loadings @ with_abilities)
        with_cells[:, task] += self.residual_covariance[task, row]
        return np.asarray(with_cells)

    def draw_cells(self, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield joint draws of all cells in chunks of (≤ CHUNK, rows, tasks)."""
        rows, tasks = self.mean.shape
        factors, models = self.abilities.shape
        ability_root = _covariance_root(self._flat_covariance())
        residual_roots = [_covariance_root(self.residual_covariance[task]) for task in range(tasks)]
        for start in range(0, count, CHUNK):
            chunk_size = min(CHUNK, count - start)
            ability_noise = rng.standard_normal((chunk_size, factors * models)) @ ability_root.T
            flat_abilities = self.abilities.ravel() + ability_noise
            abilities = flat_abilities.reshape(chunk_size, factors, models)
            chunk = np.empty((chunk_size, rows, tasks))
            for task in range(tasks):
                task_ability = np.einsum("saj,a->sj", abilities, self.loadings[task])
                noise = rng.standard_normal((chunk_size, rows)) @ residual_roots[task].T
                through = task_ability @ self.through[task].T
                chunk[:, :, task] = self.base[:, task] + through + noise
            yield chunk

    def _flat_covariance(self) -> Floats:
        """Return the covariance of the abilities: (factors·models, factors·models)."""
        return self.covariance.reshape(self.abilities.size, self.abilities.size)


def predict_cells(
    problem: FactorProblem,
    solved: FactorSolution,
    rows: npt.NDArray[np.intp],
    tasks: npt.NDArray[np.intp],
) -> CellPosterior:
    """Return the distribution of the cells of ``rows`` × ``tasks``; a known cell is what it is."""
    factors, models = solved.abilities.shape
    scores = np.nan_to_num(problem.scores)
    covariance = solved.covariance.reshape(factors, models, factors, models)
    blocks = _covariance_blocks(covariance)
    loadings = solved.weights.loadings[tasks]
    through = np.empty((len(tasks), len(rows), models))
    residual_covariance = np.empty((len(tasks), len(rows), len(rows)))
    prior_mean = np.empty((len(rows), len(tasks)))
    mean = np.empty((len(rows), len(tasks)))
    variance = np.empty((len(rows), len(tasks)))
    common = np.empty(len(tasks))
    for column, task in enumerate(tasks):
        task_residual = solved.residual_covariance[task]
        gain = task_residual[rows] @ solved.inverse[task]  # (rows, models); zero where unknown
        task_through = -gain
        task_through[np.arange(len(rows)), rows] += 1.0
        through[column] = task_through
        residual_covariance[column] = (
            task_residual[np.ix_(rows, rows)] - gain @ task_residual[:, rows]
        )
        prior_mean[:, column] = gain @ scores[:, task]
        mean[:, column] = prior_mean[:, column] + through[column] @ (
            loadings[column] @ solved.abilities
        )
        loading_products = np.multiply.outer(loadings[column], loadings[column]).ravel()
        ability_covariance = (loading_products @ blocks).reshape(models, models)
        through_variance = ((through[column] @ ability_covariance) * through[column]).sum(axis=1)
        variance[:, column] = through_variance + np.diag(residual_covariance[column])
        mean_through = through[column].mean(axis=0)
        common[column] = float(
            mean_through @ ability_covariance @ mean_through + residual_covariance[column].mean()
        )
    cells = np.ix_(rows, tasks)
    is_known = problem.is_known[cells]
    return CellPosterior(
        mean=np.where(is_known, scores[cells], mean),
        variance=np.where(is_known, 0.0, np.maximum(variance, 1e-12)),
        common=common,
        through=through,
        residual_covariance=residual_covariance,
        loadings=loadings,
        base=prior_mean,
        abilities=solved.abilities,
        covariance=covariance,
    )


def _covariance_root(matrix: Floats) -> Floats:
    """Return a square root of a covariance that may be singular: measured cells have no variance."""
    return np.asarray(np.linalg.cholesky(matrix + 1e-9 * np.eye(len(matrix))))

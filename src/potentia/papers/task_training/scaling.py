"""Scores against pretraining compute: the hinge of equation 1 and the log-linear line, with honest uncertainty.

The hinge A = α·max(0, log₁₀ C − c_e) + θ·N + r says that models score at chance r up to the point of emergence c_e and
then improve by α per factor of ten of compute; θ is what the group N has more than the others at equal compute. Models
of one family resemble each other, so beside plain standard errors there are errors clustered by family and, because
clusters are few, a wild cluster bootstrap. The least-squares hinge is found by ``hinge_search``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy import stats

from potentia.errors import InputError
from potentia.papers.task_training.hinge_search import (
    MIN_ABOVE,
    HingeBatch,
    linear_basis,
    predict_above_chance,
    profile_rss,
    search_hinges,
)
from potentia.values.findings import Interval, TableValue
from potentia.values.scores import Floats

EFFECT_COLUMNS = ("models", "families", "θ", "s.e.", "by family", "p", "wild p")
EFFECT_NOTE = (
    "θ: what the group has more at equal compute. By family: standard error clustered by family, and its p; "
    "wild p: wild cluster bootstrap with θ = 0 imposed, the one to trust with few families."
)
CURVE_COLUMNS = ("α", "c_e", "c_e 95 %", "R²", "R² above chance")
CURVE_NOTE = "A = α·max(0, log₁₀ C − c_e) + θ·N + r. R² above chance: 1 − RSS / Σ(A − r)²."
MIN_RADEMACHER_CLUSTERS = 12  # with fewer, two weights give too few different draws


@dataclass(frozen=True)
class Coefficient:
    """An estimate with its plain and its family-clustered standard error and p-value (NaN where there is none)."""

    value: float
    stderr: float
    p: float
    clustered_stderr: float = float("nan")
    clustered_p: float = float("nan")

    def to_row(self) -> tuple[float, float, float, float, float]:
        """Return value, error, p, and error and p by family: the cells that a coefficient takes in a table."""
        return self.value, self.stderr, self.p, self.clustered_stderr, self.clustered_p


UNKNOWN_COEFFICIENT = Coefficient(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class HingeFit:
    """Equation 1 fitted to one set of scores. ``slope`` and ``emergence`` are per log₁₀ FLOPs."""

    n: int
    clusters: int
    chance: float
    slope: Coefficient
    emergence: Coefficient
    effect: Coefficient | None
    emergence_interval: Interval  # by inverting the F test over the profile
    r2: float
    r2_above_chance: float  # 1 − RSS / Σ(A − r)²: the R² of the regression without intercept
    spread: float  # best minus worst score
    level: float = 0.0  # of all scores above chance, where none rises (c_e is −∞)
    wild_p: float = float("nan")  # of θ = 0, by a wild bootstrap over families

    def predict(self, log_compute: npt.ArrayLike, *, member: bool = False) -> Floats:
        """Return the fitted score at these log₁₀ FLOPs, for a member of the group or for the others."""
        log_flops = np.asarray(log_compute, dtype=np.float64)
        emergence = self.emergence.value
        if np.isfinite(emergence):
            predicted_rise = self.slope.value * np.maximum(0.0, log_flops - emergence)
        else:
            predicted_rise = np.full_like(log_flops, self.level)
        shift = self.theta.value if member else 0.0
        return np.asarray(self.chance + predicted_rise + shift)

    @property
    def relative_effect(self) -> float:
        """θ as a share of the difference between the best and the worst model (appendix E)."""
        return self.theta.value / self.spread if self.spread > 0 else math.nan

    @property
    def theta(self) -> Coefficient:
        """The effect; NaN where there is no group."""
        return self.effect or UNKNOWN_COEFFICIENT

    def effect_row(self) -> tuple[TableValue, ...]:
        """Return the cells of ``EFFECT_COLUMNS``."""
        theta = self.theta
        errors = (theta.stderr, theta.clustered_stderr)
        return self.n, self.clusters, theta.value, *errors, theta.clustered_p, self.wild_p

    def curve_row(self) -> tuple[TableValue, ...]:
        """Return the cells of ``CURVE_COLUMNS``."""
        emergence = _format_emergence(self.emergence.value)
        bounds = _format_emergence_interval(self.emergence_interval)
        return self.slope.value, emergence, bounds, self.r2, self.r2_above_chance


def _format_emergence(log_flops: float) -> TableValue:
    """Return a point of emergence as a table shows it: empty where no score rises above chance."""
    if log_flops == -math.inf:
        return "below all models"
    return log_flops if math.isfinite(log_flops) else None


def _format_emergence_interval(interval: Interval) -> str | None:
    """Write the interval of a point of emergence; empty where the scores do not bound it."""
    low = f"{interval.low:.2f}"
    high = f"{interval.high:.2f}"
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        return f"{low} – {high}"
    if math.isfinite(interval.high):
        return f"up to {high}"
    return f"from {low}" if math.isfinite(interval.low) else None


@dataclass(frozen=True)
class LogLinearFit:
    """A = a + b·log₁₀ C: the line that scores follow where there is no emergence (section 5)."""

    n: int
    intercept: Coefficient
    slope: Coefficient
    r2: float

    def predict(self, log_compute: npt.ArrayLike) -> Floats:
        """Return the fitted score at these log₁₀ FLOPs."""
        log_flops = np.asarray(log_compute, dtype=np.float64)
        return np.asarray(self.intercept.value + self.slope.value * log_flops)


def fit_hinge(
    log_compute: npt.ArrayLike,
    scores: npt.ArrayLike,
    *,
    chance: float = 0.0,
    group: npt.ArrayLike | None = None,
    families: Sequence[str] | None = None,
    higher_is_better: bool = True,
    draws: int = 0,
    seed: int = 0,
) -> HingeFit:
    """Fit equation 1 by exact least squares over all points of emergence.

    ``group`` is N (0/1 or bool), ``families`` the clusters, ``draws`` the number of wild bootstrap samples (0: none).
    For a metric where lower is better (Brier score) the hinge falls from ``chance``; slope and θ keep that sign.
    """
    log_flops = np.asarray(log_compute, dtype=np.float64)
    score_values = np.asarray(scores, dtype=np.float64)
    group_values = None if group is None else np.asarray(group, dtype=np.float64)
    _check_inputs(log_flops, score_values, group_values)
    sign = 1.0 if higher_is_better else -1.0
    above = sign * (score_values - chance)
    hinge = search_hinges(log_flops, above[None, :], group_values)
    residuals = above - predict_above_chance(log_flops, hinge, group_values)[0]
    coefficients = _estimate_hinge(log_flops, hinge, group_values, residuals, families)
    residual_squares = float(residuals @ residuals)
    clusters = len(set(families or ()))
    effect = None
    if coefficients.effect is not None:
        effect = _flip_sign(coefficients.effect, sign)
    hinge_fit = HingeFit(
        n=len(log_flops),
        clusters=clusters,
        chance=chance,
        slope=_flip_sign(coefficients.slope, sign),
        emergence=coefficients.emergence,
        effect=effect,
        emergence_interval=_invert_profile(
            log_flops,
            above,
            group_values,
            coefficients.emergence,
            least_squares=residual_squares,
            clusters=clusters,
        ),
        r2=_compute_r2(score_values, residuals),
        r2_above_chance=1 - residual_squares / float(above @ above) if above.any() else math.nan,
        spread=float(score_values.max() - score_values.min()),
        level=sign * float(hinge.level[0]),
    )
    # The signs of one family alone tell nothing.
    if draws <= 0 or group_values is None or families is None or clusters < 2:
        return hinge_fit
    wild_p = compute_wild_p(log_flops, above, group_values, families, hinge, draws=draws, seed=seed)
    return replace(hinge_fit, wild_p=wild_p)


def fit_log_linear(
    log_compute: npt.ArrayLike, scores: npt.ArrayLike, *, families: Sequence[str] | None = None
) -> LogLinearFit:
    """Fit a straight line in log₁₀ compute by least squares."""
    log_flops = np.asarray(log_compute, dtype=np.float64)
    score_values = np.asarray(scores, dtype=np.float64)
    _check_inputs(log_flops, score_values, None)
    (intercept, slope), _ = fit_linear(
        np.column_stack([np.ones_like(log_flops), log_flops]), score_values, families
    )
    r2 = _compute_r2(score_values, score_values - intercept.value - slope.value * log_flops)
    return LogLinearFit(n=len(log_flops), intercept=intercept, slope=slope, r2=r2)


def fit_linear(
    design: Floats, outcomes: Floats, families: Sequence[str] | None
) -> tuple[list[Coefficient], float]:
    """Return least squares of ``outcomes`` on ``design`` (which holds its own constant), with R² about the mean."""
    solution = np.linalg.lstsq(design, outcomes, rcond=None)[0]
    plain, clustered = _estimate_covariances(design, outcomes, families)
    coefficients = [
        _combine_coefficients(value, unit_vector, plain, clustered)
        for value, unit_vector in zip(solution, np.eye(len(solution)), strict=True)
    ]
    return coefficients, _compute_r2(outcomes, outcomes - design @ solution)


def _compute_r2(outcomes: Floats, residuals: Floats) -> float:
    """Return the share of the variance that a fit explains; NaN where the scores do not vary."""
    total = float(np.sum((outcomes - outcomes.mean()) ** 2))
    if total == 0:
        return math.nan
    return 1 - float(residuals @ residuals) / total


def _check_inputs(log_flops: Floats, score_values: Floats, group_values: Floats | None) -> None:
    if (
        log_flops.shape != score_values.shape
        or log_flops.ndim != 1
        or (group_values is not None and group_values.shape != log_flops.shape)
    ):
        raise InputError("compute, scores and group need one value per model")
    if not (np.isfinite(log_flops).all() and np.isfinite(score_values).all()):
        raise InputError("compute or a score is missing", hint="drop models without a score first")
    distinct = len(np.unique(log_flops))
    if distinct <= MIN_ABOVE:
        raise InputError(f"{distinct} models of different compute are too few for a scaling fit")
    if group_values is not None and (group_values.min() == group_values.max()):
        raise InputError(
            "all models are on one side of the split", hint="choose another cut-off or column"
        )


def _flip_sign(coefficient: Coefficient, sign: float) -> Coefficient:
    return replace(coefficient, value=sign * coefficient.value)


# --- standard errors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HingeCoefficients:
    """The coefficients of one hinge; the effect is None without a group."""

    slope: Coefficient
    emergence: Coefficient
    effect: Coefficient | None


@dataclass(frozen=True, eq=False)
class CovarianceEstimate:
    """A covariance of coefficients and its degrees of freedom; NaN where unknown."""

    matrix: Floats
    degrees: float


def _estimate_hinge(
    log_flops: Floats,
    hinge: HingeBatch,
    group_values: Floats | None,
    residuals: Floats,
    families: Sequence[str] | None,
) -> HingeCoefficients:
    """Return slope, point of emergence and group effect with errors and p of the same fit.

    A hinge is linear above c: level a + α·compute there, and c = −a/α, whose error follows from theirs (delta method).
    """
    basis = linear_basis(log_flops, hinge.emergence, group_values)[0]
    slope = float(hinge.slope[0])
    emergence_point = float(hinge.emergence[0])
    middle = float(np.mean(log_flops))
    if np.isfinite(emergence_point):
        height = slope * (middle - emergence_point)  # of the line at the mean compute
    else:
        height = float(hinge.level[0])
    solution = np.array([slope, height])
    if group_values is not None:
        solution = np.array([slope, height, hinge.effect[0]])
    plain, clustered = _estimate_covariances(basis, basis @ solution + residuals, families)
    units = np.eye(len(solution))
    emergence = Coefficient(emergence_point, math.nan, math.nan)
    if np.isfinite(emergence_point) and slope != 0:
        gradient = (units[1] + (emergence_point - middle) * units[0]) / slope
        emergence = _combine_coefficients(emergence_point, gradient, plain, clustered)
    effect = None
    if group_values is not None:
        effect = _combine_coefficients(solution[2], units[2], plain, clustered)
    return HingeCoefficients(
        slope=_combine_coefficients(slope, units[0], plain, clustered),
        emergence=emergence,
        effect=effect,
    )


def _combine_coefficients(
    value: float, weights: Floats, plain: CovarianceEstimate, clustered: CovarianceEstimate
) -> Coefficient:
    """Return a linear combination of coefficients, which is worth ``value``, with its errors and p-values."""
    stderr, p_value = _test_combination(value, weights, plain)
    clustered_stderr, clustered_p = _test_combination(value, weights, clustered)
    return Coefficient(
        value=float(value),
        stderr=stderr,
        p=p_value,
        clustered_stderr=clustered_stderr,
        clustered_p=clustered_p,
    )


def _test_combination(
    value: float, weights: Floats, covariance: CovarianceEstimate
) -> tuple[float, float]:
    """Return the standard error of a linear combination and P that it is zero."""
    is_used = weights != 0
    matrix = covariance.matrix[np.ix_(is_used, is_used)]
    stderr = float(np.sqrt(weights[is_used] @ matrix @ weights[is_used]))
    if not stderr > 0:
        return stderr, math.nan
    return stderr, float(2 * stats.t.sf(abs(value) / stderr, covariance.degrees))


def _estimate_covariances(
    X: Floats, outcomes: Floats, families: Sequence[str] | None
) -> tuple[CovarianceEstimate, CovarianceEstimate]:
    """Return the plain and the family-clustered covariance of the coefficients; NaN where unknown.

    Both are those of ``statsmodels`` (a test compares them): the plain one is the residual variance times (XᵀX)⁻¹, the
    clustered one the sandwich of the families' summed scores with the small-sample factor G/(G−1) · (n−1)/(n−k).
    """
    columns = X.shape[1]
    # A fit without a rise has nothing to say about slope and point of emergence.
    is_used = np.any(X != 0, axis=0)
    plain = np.full((columns, columns), np.nan)
    clustered = np.full((columns, columns), np.nan)
    degrees = math.nan
    cluster_degrees = math.nan
    if is_used.any():
        design = X[:, is_used]
        inverse = np.linalg.pinv(design)
        bread = inverse @ inverse.T  # (XᵀX)⁻¹
        residuals = outcomes - design @ (inverse @ outcomes)
        degrees = float(len(outcomes) - np.linalg.matrix_rank(design))
        if degrees > 0:
            plain[np.ix_(is_used, is_used)] = bread * (residuals @ residuals / degrees)
        if degrees > 0 and len(set(families or ())) > 1:
            meat, families_count = _sum_family_scores(design, residuals, families or ())
            correction = families_count / (families_count - 1)
            correction *= (len(outcomes) - 1) / (len(outcomes) - design.shape[1])
            clustered[np.ix_(is_used, is_used)] = correction * bread @ meat @ bread
            cluster_degrees = float(families_count - 1)
    return CovarianceEstimate(plain, degrees), CovarianceEstimate(clustered, cluster_degrees)


def _sum_family_scores(
    design: Floats, residuals: Floats, families: Sequence[str]
) -> tuple[Floats, int]:
    """Return the outer products of the families' summed scores, added up, and the number of families."""
    codes = np.unique(np.asarray(families), return_inverse=True)[1]
    families_count = int(codes.max()) + 1
    family_sums = np.zeros((families_count, design.shape[1]))
    np.add.at(family_sums, codes, design * residuals[:, None])
    return family_sums.T @ family_sums, families_count


# --- the interval of the point of emergence --------------------------------------------------------------------------


def _invert_profile(
    log_flops: Floats,
    above: Floats,
    group_values: Floats | None,
    emergence: Coefficient,
    *,
    least_squares: float,
    clusters: int,
) -> Interval:
    """Return every c_e that the F test does not reject; open (infinite) where the data set no bound.

    Models of a family resemble each other: the test allows for as much more variance of c_e as the clustered error
    shows, and counts families instead of models.
    """
    best_emergence = emergence.value
    if not np.isfinite(best_emergence):
        return Interval(best_emergence, -np.inf, np.inf)
    residual_degrees = len(log_flops) - (2 if group_values is None else 3)
    error_ratio = math.nan
    if emergence.stderr > 0:
        error_ratio = emergence.clustered_stderr / emergence.stderr
    variance_factor = 1.0
    test_degrees = residual_degrees
    if np.isfinite(error_ratio):
        variance_factor = max(1.0, error_ratio**2)
        test_degrees = clusters - 1
    quantile = float(stats.f.ppf(0.95, 1, test_degrees))
    limit = least_squares * (1 + variance_factor * quantile / residual_degrees)
    compute_span = np.ptp(log_flops)
    far_points = log_flops.min() - compute_span * np.geomspace(
        0.1, 1e4, 300
    )  # below all models, profiles hardly change
    largest = np.unique(log_flops)[-MIN_ABOVE]  # that c_e may be
    near_points = np.linspace(log_flops.min() - 0.1 * compute_span, largest, 3001)
    points = np.unique(np.concatenate([far_points, near_points, [best_emergence]]))
    excess = profile_rss(log_flops, above, group_values, points) - limit
    accepted = np.flatnonzero(excess <= 0)
    if len(accepted) == 0:
        return Interval(best_emergence, best_emergence, best_emergence)
    first_accepted = int(accepted[0])
    last_accepted = int(accepted[-1])
    low = (
        -np.inf
        if first_accepted == 0
        else _interpolate_crossing(points, excess, first_accepted - 1)
    )
    is_open = last_accepted == len(points) - 1 and excess[last_accepted] < 0
    high = np.inf if is_open else _interpolate_crossing(points, excess, last_accepted)
    return Interval(best_emergence, low, high)


def _interpolate_crossing(points: Floats, excess: Floats, index: int) -> float:
    """Return where the excess crosses zero between a point and the next."""
    if index + 1 >= len(points):
        return float(points[-1])
    share = excess[index] / (excess[index] - excess[index + 1])
    return float(points[index] + share * (points[index + 1] - points[index]))


# --- a wild bootstrap over families ----------------------------------------------------------------------------------
# Every family keeps its residuals and gets one random sign (or Webb weight) in each draw, so the likeness of models
# within a family survives the resampling (Cameron, Gelbach & Miller 2008). Each draw is fitted anew, c_e included.


def compute_wild_p(
    log_flops: Floats,
    above: Floats,
    group_values: Floats,
    families: Sequence[str],
    hinge: HingeBatch,
    *,
    draws: int,
    seed: int,
) -> float:
    """Return the p-value of θ = 0, imposed on the resamples."""
    codes = np.unique(np.asarray(families), return_inverse=True)[1]
    clusters = (codes[None, :] == np.arange(codes.max() + 1)[:, None]).astype(np.float64)
    rng = np.random.default_rng(seed)
    weights = _draw_cluster_weights(len(clusters), draws, rng)[:, codes]
    observed = _compute_effect_t(log_flops, above[None, :], group_values, clusters, hinge)[0]
    without_effect = search_hinges(log_flops, above[None, :], None)
    null_fit = predict_above_chance(log_flops, without_effect, None)[0]
    under_null = null_fit + weights * (above - null_fit)
    null_hinges = search_hinges(log_flops, under_null, group_values)
    t_statistics = _compute_effect_t(log_flops, under_null, group_values, clusters, null_hinges)
    reaching = int(np.sum(np.abs(t_statistics) >= abs(observed)))
    return (1 + reaching) / (draws + 1)


def _compute_effect_t(
    log_flops: Floats, outcomes: Floats, group_values: Floats, clusters: Floats, hinges: HingeBatch
) -> Floats:
    """Return θ's t statistics by clustered standard errors, one per draw."""
    residuals = outcomes - predict_above_chance(log_flops, hinges, group_values)
    errors = clustered_stderr(
        linear_basis(log_flops, hinges.emergence, group_values), residuals, clusters
    )
    effect_error = errors[:, -1]
    return np.asarray(hinges.effect / np.maximum(effect_error, 1e-12))


def clustered_stderr(jacobian: Floats, residuals: Floats, clusters: Floats) -> Floats:
    """Return cluster-robust standard errors (CR1), one row per draw; ``clusters`` is (clusters, models) of 0 and 1.

    One cluster says nothing of how clusters differ: its errors are NaN.
    """
    _, models, coefficients = jacobian.shape
    cluster_count = len(clusters)
    if cluster_count < 2:
        return np.full((len(jacobian), coefficients), np.nan)
    bread = np.linalg.pinv(np.einsum("bnk,bnl->bkl", jacobian, jacobian), hermitian=True)
    cluster_sums = np.einsum("gn,bnk->bgk", clusters, jacobian * residuals[:, :, None])
    meat = np.einsum("bgk,bgl->bkl", cluster_sums, cluster_sums)
    scale = cluster_count / (cluster_count - 1) * (models - 1) / (models - coefficients)
    variance = np.einsum("bkl,blm,bmk->bk", bread, meat, bread) * scale
    return np.asarray(np.sqrt(np.clip(variance, 0.0, None)))


def _draw_cluster_weights(clusters: int, draws: int, rng: Generator) -> Floats:
    """Draw one weight per cluster: Rademacher, or Webb's six points where clusters are too few for it."""
    if clusters >= MIN_RADEMACHER_CLUSTERS:
        return rng.choice(np.array([-1.0, 1.0]), size=(draws, clusters))
    positive = np.sqrt(np.array([0.5, 1.0, 1.5]))
    return rng.choice(np.concatenate([-positive, positive]), size=(draws, clusters))

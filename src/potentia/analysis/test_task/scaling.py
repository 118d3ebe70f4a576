"""Scores against pretraining compute: the hinge of equation 1 and the log-linear line, with honest uncertainty.

The hinge A = α·max(0, log₁₀ C − c_e) + θ·N + r says that models score at chance r up to the point of emergence c_e and
then improve by α per factor of ten of compute; θ is what the group N has more than the others at equal compute. Models
of one family resemble each other, so beside plain standard errors there are errors clustered by family and, because
clusters are few, a wild cluster bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from potentia.analysis.test_task import hinge as hinge_fit
from potentia.errors import InputError
from potentia.values.findings import Cell, Interval
from potentia.values.scores import Floats


@dataclass(frozen=True)
class Coefficient:
    """An estimate with its plain and its family-clustered standard error and p-value (NaN where there is none)."""

    value: float
    stderr: float
    p: float
    clustered_stderr: float = float("nan")
    clustered_p: float = float("nan")

    def row(self) -> tuple[float, float, float, float, float]:
        """Return value, error, p, and error and p by family: the cells that a coefficient takes in a table."""
        return self.value, self.stderr, self.p, self.clustered_stderr, self.clustered_p


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
        x = np.asarray(log_compute, dtype=np.float64)
        c = self.emergence.value
        rise = self.slope.value * np.maximum(0.0, x - c) if np.isfinite(c) else np.full_like(x, self.level)
        shift = self.effect.value if member and self.effect else 0.0
        return np.asarray(self.chance + rise + shift)

    @property
    def relative_effect(self) -> float:
        """θ as a share of the difference between the best and the worst model (appendix E)."""
        return self.effect.value / self.spread if self.effect and self.spread > 0 else float("nan")

    def effect_row(self) -> tuple[Cell, ...]:
        """Return the cells of ``EFFECT_COLUMNS``."""
        effect = self.effect or Coefficient(float("nan"), float("nan"), float("nan"))
        errors = (effect.stderr, effect.clustered_stderr, effect.clustered_p, self.wild_p)
        return self.n, self.clusters, effect.value, *errors

    def curve_row(self) -> tuple[Cell, ...]:
        """Return the cells of ``CURVE_COLUMNS``."""
        bounds = f"{self.emergence_interval.low:.2f} – {self.emergence_interval.high:.2f}"
        return self.slope.value, self.emergence.value, bounds, self.r2, self.r2_above_chance


EFFECT_COLUMNS = ("models", "families", "θ", "s.e.", "by family", "p", "wild p")
EFFECT_NOTE = (
    "θ: what the group has more at equal compute. By family: standard error clustered by family, and its p; "
    "wild p: wild cluster bootstrap with θ = 0 imposed, the one to trust with few families."
)
CURVE_COLUMNS = ("α", "c_e", "c_e 95 %", "R²", "R² above chance")
CURVE_NOTE = "A = α·max(0, log₁₀ C − c_e) + θ·N + r. R² above chance: 1 − RSS / Σ(A − r)²."


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
    x, y = np.asarray(log_compute, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    g = None if group is None else np.asarray(group, dtype=np.float64)
    _check(x, y, g)
    sign = 1.0 if higher_is_better else -1.0
    above = sign * (y - chance)
    hinge = hinge_fit.search(x, above[None, :], g)
    residuals = above - hinge_fit.fitted(x, hinge, g)[0]
    slope, emergence, *rest = _hinge_coefficients(x, hinge, g, residuals, families)
    rss, total = float(residuals @ residuals), float(np.sum((y - y.mean()) ** 2))
    clusters = len(set(families or ()))
    freedom = len(x) - (2 if g is None else 3)
    fit = HingeFit(
        n=len(x),
        clusters=clusters,
        chance=chance,
        slope=_signed(slope, sign),
        emergence=emergence,
        effect=_signed(rest[0], sign) if rest else None,
        emergence_interval=_profile_interval(x, above, g, emergence, rss, freedom, clusters),
        r2=1 - rss / total if total > 0 else float("nan"),
        r2_above_chance=1 - rss / float(above @ above) if above.any() else float("nan"),
        spread=float(y.max() - y.min()),
        level=sign * float(hinge.level[0]),
    )
    if draws <= 0 or g is None or families is None or clusters < 2:  # one family's signs alone tell nothing
        return fit
    return replace(fit, wild_p=hinge_fit.wild_p(x, above, g, families, hinge, draws, seed))


@dataclass(frozen=True)
class LogLinearFit:
    """A = a + b·log₁₀ C: the line that scores follow where there is no emergence (section 5)."""

    n: int
    intercept: Coefficient
    slope: Coefficient
    r2: float

    def predict(self, log_compute: npt.ArrayLike) -> Floats:
        """Return the fitted score at these log₁₀ FLOPs."""
        return np.asarray(self.intercept.value + self.slope.value * np.asarray(log_compute, dtype=np.float64))


def fit_log_linear(
    log_compute: npt.ArrayLike, scores: npt.ArrayLike, *, families: Sequence[str] | None = None
) -> LogLinearFit:
    """Fit a straight line in log₁₀ compute by least squares."""
    x, y = np.asarray(log_compute, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    _check(x, y, None)
    (intercept, slope), _ = linear_coefficients(np.column_stack([np.ones_like(x), x]), y, families)
    residuals = y - intercept.value - slope.value * x
    return LogLinearFit(len(x), intercept, slope, 1 - float(residuals @ residuals) / float(np.sum((y - y.mean()) ** 2)))


def linear_coefficients(X: Floats, y: Floats, families: Sequence[str] | None) -> tuple[list[Coefficient], float]:
    """Return ordinary least squares of ``y`` on ``X`` (which holds its own constant), with R² about the mean."""
    values = np.linalg.lstsq(X, y, rcond=None)[0]
    plain, robust = _covariances(X, y, families)
    found = [_coefficient(*one, plain, robust) for one in zip(values, np.eye(len(values)), strict=True)]
    residuals = y - X @ values
    return found, 1 - float(residuals @ residuals) / float(np.sum((y - y.mean()) ** 2))


def _check(x: Floats, y: Floats, g: Floats | None) -> None:
    if x.shape != y.shape or x.ndim != 1 or (g is not None and g.shape != x.shape):
        raise InputError("compute, scores and group need one value per model")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("compute or a score is missing", hint="drop models without a score first")
    if len(np.unique(x)) <= hinge_fit.LEAST_ABOVE:
        raise InputError(f"{len(np.unique(x))} models of different compute are too few for a scaling fit")
    if g is not None and (g.min() == g.max()):
        raise InputError("all models are on one side of the split", hint="choose another cut-off or column")


def _hinge_coefficients(
    x: Floats, hinge: hinge_fit.Hinges, g: Floats | None, residuals: Floats, families: Sequence[str] | None
) -> list[Coefficient]:
    """Return slope, point of emergence and group effect with errors and p of the same fit.

    A hinge is linear above c: level a + α·x there, and c = −a/α, whose error follows from theirs (delta method).
    """
    B = hinge_fit.basis(x, hinge.emergence, g)[0]
    alpha, c = float(hinge.slope[0]), float(hinge.emergence[0])
    middle = float(np.mean(x))
    height = alpha * (middle - c) if np.isfinite(c) else float(hinge.level[0])  # of the line in the middle of x
    values = np.array([alpha, height, *([hinge.effect[0]] if g is not None else [])])
    plain, robust = _covariances(B, B @ values + residuals, families)
    units = np.eye(len(values))
    slope, _, *rest = (_coefficient(*one, plain, robust) for one in zip(values, units, strict=True))
    emergence = Coefficient(c, float("nan"), float("nan"))
    if np.isfinite(c) and alpha != 0:
        emergence = _coefficient(c, (units[1] + (c - middle) * units[0]) / alpha, plain, robust)
    return [slope, emergence, *rest]


_Covariance = tuple[Floats, float]  # and its degrees of freedom


def _coefficient(value: float, weights: Floats, plain: _Covariance, robust: _Covariance) -> Coefficient:
    """Return a linear combination of coefficients, which is worth ``value``, with its errors and p-values."""
    found, used = [], weights != 0
    for covariance, degrees in (plain, robust):
        error = float(np.sqrt(weights[used] @ covariance[np.ix_(used, used)] @ weights[used]))
        found += [error, float(2 * stats.t.sf(abs(value) / error, degrees)) if error > 0 else float("nan")]
    return Coefficient(float(value), *found)


def _covariances(X: Floats, y: Floats, families: Sequence[str] | None) -> tuple[_Covariance, _Covariance]:
    """Return the plain and the family-clustered covariance of the coefficients, from statsmodels; NaN where unknown."""
    import statsmodels.api as sm

    k = X.shape[1]
    used = np.any(X != 0, axis=0)  # a fit without a rise has nothing to say about slope and point of emergence
    plain, robust = np.full((k, k), np.nan), np.full((k, k), np.nan)
    degrees = clusters = float("nan")
    if used.any():
        fit = sm.OLS(y, X[:, used]).fit()
        plain[np.ix_(used, used)], degrees = fit.cov_params(), float(fit.df_resid)
        if len(set(families or ())) > 1:
            codes = np.unique(np.asarray(families), return_inverse=True)[1]
            robust[np.ix_(used, used)] = fit.get_robustcov_results("cluster", groups=codes, use_t=True).cov_params()
            clusters = float(codes.max())
    return (plain, degrees), (robust, clusters)


def _signed(coefficient: Coefficient, sign: float) -> Coefficient:
    return replace(coefficient, value=sign * coefficient.value)


def _profile_interval(
    x: Floats, above: Floats, g: Floats | None, emergence: Coefficient, rss: float, degrees: int, clusters: int
) -> Interval:
    """Return every c_e that the F test does not reject; open (infinite) where the data set no bound.

    Models of a family resemble each other: the test allows for as much more variance of c_e as the clustered error
    shows, and counts families instead of models.
    """
    best = emergence.value
    if not np.isfinite(best):
        return Interval(best, -np.inf, np.inf)
    more = emergence.clustered_stderr / emergence.stderr if emergence.stderr > 0 else float("nan")
    wider = max(1.0, more**2) if np.isfinite(more) else 1.0
    freedom = clusters - 1 if np.isfinite(more) else degrees
    limit = rss * (1 + wider * float(stats.f.ppf(0.95, 1, freedom)) / degrees)
    span = np.ptp(x)
    far = x.min() - span * np.geomspace(0.1, 1e4, 300)  # below all x, profiles hardly change any more
    near = np.linspace(x.min() - 0.1 * span, np.unique(x)[-hinge_fit.LEAST_ABOVE], 3001)  # c_e at most
    points = np.unique(np.concatenate([far, near, [best]]))
    excess = hinge_fit.profile(x, above, g, points) - limit
    inside = np.flatnonzero(excess <= 0)
    if len(inside) == 0:
        return Interval(best, best, best)
    first, last = int(inside[0]), int(inside[-1])
    low = -np.inf if first == 0 else _crossing(points, excess, first - 1)
    high = np.inf if last == len(points) - 1 and excess[last] < 0 else _crossing(points, excess, last)
    return Interval(best, low, high)


def _crossing(points: Floats, excess: Floats, i: int) -> float:
    if i + 1 >= len(points):
        return float(points[-1])
    share = excess[i] / (excess[i] - excess[i + 1])
    return float(points[i] + share * (points[i + 1] - points[i]))

"""Scores against pretraining compute: the hinge of equation 1 and the log-linear line, with honest uncertainty.

The hinge A = α·max(0, log₁₀ C − c_e) + θ·N + r says that models score at chance r up to the point of emergence c_e and
then improve by α per factor of ten of compute; θ is what the group N has more than the others at equal compute. Models
of one family resemble each other, so beside plain standard errors there are errors clustered by family and, because
clusters are few, a wild cluster bootstrap.

The search for the least-squares hinge is exact. Between two neighbouring values of x the set of models above c is fixed
and the fit is linear, so the best c is either the free optimum of one such piece or one of the x themselves. Below all
x the hinge is a plain line, whatever c is; where that line would fall it is level, which a hinge comes as close to as
one likes (c = −∞, α = 0). Trying all of them finds the global least-squares fit without any starting value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

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
        rise = (
            self.slope.value * np.maximum(0.0, x - c)
            if np.isfinite(c)
            else np.full_like(x, self.level)
        )
        shift = self.theta.value if member else 0.0
        return np.asarray(self.chance + rise + shift)

    @property
    def relative_effect(self) -> float:
        """θ as a share of the difference between the best and the worst model (appendix E)."""
        return self.theta.value / self.spread if self.spread > 0 else float("nan")

    @property
    def theta(self) -> Coefficient:
        """The effect; NaN where there is no group."""
        return self.effect or Coefficient(float("nan"), float("nan"), float("nan"))

    def effect_row(self) -> tuple[Cell, ...]:
        """Return the cells of ``EFFECT_COLUMNS``."""
        value, error, _, by_family, p = self.theta.row()
        return self.n, self.clusters, value, error, by_family, p, self.wild_p

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
    hinge = search(x, above[None, :], g)
    residuals = above - fitted(x, hinge, g)[0]
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
    if (
        draws <= 0 or g is None or families is None or clusters < 2
    ):  # one family's signs alone tell nothing
        return fit
    return replace(fit, wild_p=wild_p(x, above, g, families, hinge, draws, seed))


@dataclass(frozen=True)
class LogLinearFit:
    """A = a + b·log₁₀ C: the line that scores follow where there is no emergence (section 5)."""

    n: int
    intercept: Coefficient
    slope: Coefficient
    r2: float

    def predict(self, log_compute: npt.ArrayLike) -> Floats:
        """Return the fitted score at these log₁₀ FLOPs."""
        return np.asarray(
            self.intercept.value + self.slope.value * np.asarray(log_compute, dtype=np.float64)
        )


def fit_log_linear(
    log_compute: npt.ArrayLike, scores: npt.ArrayLike, *, families: Sequence[str] | None = None
) -> LogLinearFit:
    """Fit a straight line in log₁₀ compute by least squares."""
    x, y = np.asarray(log_compute, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    _check(x, y, None)
    (intercept, slope), _ = linear_coefficients(np.column_stack([np.ones_like(x), x]), y, families)
    residuals = y - intercept.value - slope.value * x
    return LogLinearFit(
        len(x),
        intercept,
        slope,
        1 - float(residuals @ residuals) / float(np.sum((y - y.mean()) ** 2)),
    )


def linear_coefficients(
    X: Floats, y: Floats, families: Sequence[str] | None
) -> tuple[list[Coefficient], float]:
    """Return ordinary least squares of ``y`` on ``X`` (which holds its own constant), with R² about the mean."""
    values = np.linalg.lstsq(X, y, rcond=None)[0]
    plain, robust = _covariances(X, y, families)
    found = [
        _coefficient(*one, plain, robust) for one in zip(values, np.eye(len(values)), strict=True)
    ]
    residuals = y - X @ values
    return found, 1 - float(residuals @ residuals) / float(np.sum((y - y.mean()) ** 2))


def _check(x: Floats, y: Floats, g: Floats | None) -> None:
    if x.shape != y.shape or x.ndim != 1 or (g is not None and g.shape != x.shape):
        raise InputError("compute, scores and group need one value per model")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("compute or a score is missing", hint="drop models without a score first")
    if len(np.unique(x)) <= LEAST_ABOVE:
        raise InputError(
            f"{len(np.unique(x))} models of different compute are too few for a scaling fit"
        )
    if g is not None and (g.min() == g.max()):
        raise InputError(
            "all models are on one side of the split", hint="choose another cut-off or column"
        )


def _hinge_coefficients(
    x: Floats, hinge: Hinges, g: Floats | None, residuals: Floats, families: Sequence[str] | None
) -> list[Coefficient]:
    """Return slope, point of emergence and group effect with errors and p of the same fit.

    A hinge is linear above c: level a + α·x there, and c = −a/α, whose error follows from theirs (delta method).
    """
    B = basis(x, hinge.emergence, g)[0]
    alpha, c = float(hinge.slope[0]), float(hinge.emergence[0])
    middle = float(np.mean(x))
    height = (
        alpha * (middle - c) if np.isfinite(c) else float(hinge.level[0])
    )  # of the line in the middle of x
    values = np.array([alpha, height, *([hinge.effect[0]] if g is not None else [])])
    plain, robust = _covariances(B, B @ values + residuals, families)
    units = np.eye(len(values))
    slope, _, *rest = (_coefficient(*one, plain, robust) for one in zip(values, units, strict=True))
    emergence = Coefficient(c, float("nan"), float("nan"))
    if np.isfinite(c) and alpha != 0:
        emergence = _coefficient(c, (units[1] + (c - middle) * units[0]) / alpha, plain, robust)
    return [slope, emergence, *rest]


_Covariance = tuple[Floats, float]  # and its degrees of freedom


def _coefficient(
    value: float, weights: Floats, plain: _Covariance, robust: _Covariance
) -> Coefficient:
    """Return a linear combination of coefficients, which is worth ``value``, with its errors and p-values."""
    found, used = [], weights != 0
    for covariance, degrees in (plain, robust):
        error = float(np.sqrt(weights[used] @ covariance[np.ix_(used, used)] @ weights[used]))
        found += [
            error,
            float(2 * stats.t.sf(abs(value) / error, degrees)) if error > 0 else float("nan"),
        ]
    return Coefficient(float(value), *found)


def _covariances(
    X: Floats, y: Floats, families: Sequence[str] | None
) -> tuple[_Covariance, _Covariance]:
    """Return the plain and the family-clustered covariance of the coefficients, from statsmodels; NaN where unknown."""
    import statsmodels.api as sm

    k = X.shape[1]
    used = np.any(
        X != 0, axis=0
    )  # a fit without a rise has nothing to say about slope and point of emergence
    plain, robust = np.full((k, k), np.nan), np.full((k, k), np.nan)
    degrees = clusters = float("nan")
    if used.any():
        fit = sm.OLS(y, X[:, used]).fit()
        plain[np.ix_(used, used)], degrees = fit.cov_params(), float(fit.df_resid)
        if len(set(families or ())) > 1:
            codes = np.unique(np.asarray(families), return_inverse=True)[1]
            robust[np.ix_(used, used)] = fit.get_robustcov_results(
                "cluster", groups=codes, use_t=True
            ).cov_params()
            clusters = float(codes.max())
    return (plain, degrees), (robust, clusters)


def _signed(coefficient: Coefficient, sign: float) -> Coefficient:
    return replace(coefficient, value=sign * coefficient.value)


def _profile_interval(
    x: Floats,
    above: Floats,
    g: Floats | None,
    emergence: Coefficient,
    rss: float,
    degrees: int,
    clusters: int,
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
    far = x.min() - span * np.geomspace(
        0.1, 1e4, 300
    )  # below all x, profiles hardly change any more
    near = np.linspace(x.min() - 0.1 * span, np.unique(x)[-LEAST_ABOVE], 3001)  # c_e at most
    points = np.unique(np.concatenate([far, near, [best]]))
    excess = profile(x, above, g, points) - limit
    inside = np.flatnonzero(excess <= 0)
    if len(inside) == 0:
        return Interval(best, best, best)
    first, last = int(inside[0]), int(inside[-1])
    low = -np.inf if first == 0 else _crossing(points, excess, first - 1)
    high = (
        np.inf if last == len(points) - 1 and excess[last] < 0 else _crossing(points, excess, last)
    )
    return Interval(best, low, high)


def _crossing(points: Floats, excess: Floats, i: int) -> float:
    if i + 1 >= len(points):
        return float(points[-1])
    share = excess[i] / (excess[i] - excess[i + 1])
    return float(points[i] + share * (points[i + 1] - points[i]))


# --- the search for the hinge -----------------------------------------------------------------------------------------


LEAST_ABOVE = (
    3  # distinct x that must lie at or above c: with fewer, slope and c cannot be told from noise
)


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
    slope, emergence, effect, rss = (
        np.concatenate(parts, axis=1) for parts in zip(*candidates, strict=True)
    )
    slope[:, -2] = np.where(
        slope[:, -2] > 0, 0.0, -1.0
    )  # of the level line: no slope, and no fit below chance
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


def _free_pieces(
    u: Floats, Y: Floats, g: Floats, starts: list[int]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit a + α·x above each start, θ·N everywhere; keep the fits whose c = −a/α lies in their own piece."""
    above = np.arange(len(u))[None, :] >= np.asarray(starts)[:, None]  # (pieces, models)
    X = np.stack(
        [above * 1.0, above * u, np.broadcast_to(g, above.shape)], axis=1
    )  # (pieces, 3, models)
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


def wild_p(
    x: Floats,
    above: Floats,
    g: Floats,
    families: Sequence[str],
    hinge: Hinges,
    draws: int,
    seed: int,
) -> float:
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
    error = clustered_stderr(basis(x, hinges.emergence, g), Y - fitted(x, hinges, g), clusters)[
        :, -1
    ]
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

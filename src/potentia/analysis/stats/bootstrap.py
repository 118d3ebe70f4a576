"""Resampling: how a number would move with other models, other tasks, or another run of the same test.

Three sources, kept apart because they answer different questions. *Models*: rows are drawn with replacement; the
weights of ``kendall_matrix`` carry them. Models of one family resemble each other, so where families are known whole
families are drawn: 61 models of six families are not 61 independent ones, and an interval by model is too narrow.
*Tasks*: columns are drawn with replacement; a task never pairs with its own copy, so a mean over pairs weights pair
(i, j) by w_i·w_j. *Noise*: every score is drawn again, from a normal with its standard error, or, where the items are
stored, by drawing the items of each task (the same items for all models).

Noise is drawn on scores that are noisy already, which pulls tau towards zero; ``tau_interval`` therefore also takes the
draws' spread around *their* mean, puts it around the observed value, and reaches as far as either does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from potentia.values.findings import Interval
from potentia.values.scores import Floats, ScoreMatrix

RESAMPLES = 1_000
LEVEL = 0.95


def draw_row_counts(rows: int, resamples: int, rng: np.random.Generator) -> Floats:
    """How often each of ``rows`` is drawn in each resample: (resamples, rows), each row summing to ``rows``."""
    if rows == 0:
        return np.zeros((resamples, 0))
    return rng.multinomial(rows, np.full(rows, 1.0 / rows), size=resamples).astype(np.float64)


@dataclass(frozen=True)
class ResamplingUnits:
    """What is drawn with replacement: models, or their families or lineages, whose models come and go together."""

    name: str = "models"
    unit_of_model: Mapping[str, str] = field(
        default_factory=dict
    )  # model → family; a model without one is by itself

    def drawn_unit(self, models: Sequence[str]) -> str:
        """Return what is drawn of these models: families where there are at least three of them, else models."""
        labels = {self.unit_of_model.get(model, model) for model in models}
        return self.name if LEAST_UNITS <= len(labels) < len(models) else MODELS.name


class How(TypedDict, total=False):
    """How intervals are made, as every analysis that has some is told: the fields of ``Sampling``."""

    units: ResamplingUnits
    resamples: int
    level: float
    seed: int


LEAST_UNITS = 3
LEAST_TASKS, COPY = (
    5,
    1e-3,
)  # tasks on which copies can be told; how rarely equal models come so close by chance
MOST_LOOSE = 300  # models of no family whose pairs are looked at
MODELS = ResamplingUnits()


@dataclass(frozen=True)
class Sampling:
    """What is drawn, how often, and the level of the intervals."""

    units: ResamplingUnits = MODELS
    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0

    def draws(self, models: Sequence[str]) -> Floats:
        """How often each model counts in each resample: (resamples, models)."""
        rng = np.random.default_rng(self.seed)
        if self.units.drawn_unit(models) == MODELS.name:
            return draw_row_counts(len(models), self.resamples, rng)
        labels = [self.units.unit_of_model.get(model, model) for model in models]
        place = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        return draw_row_counts(len(place), self.resamples, rng)[
            :, [place[label] for label in labels]
        ]

    def interval(self, value: float, draws: npt.ArrayLike) -> Interval:
        """Percentile interval of draws."""
        return percentile_interval(value, draws, level=self.level)


def join_copies_to_families(families: Mapping[str, str], matrix: ScoreMatrix) -> dict[str, str]:
    """Return the families, with models of no family that score so alike that they must be copies made one.

    Two equal models differ by their test noise; copies, also in fewer bits or a few steps later, by far less.
    """
    found = dict(families)
    loose = [k for k, m in enumerate(matrix.models) if m not in found]
    near = chi2.ppf(COPY, np.arange(len(matrix.tasks) + 1))
    for place, k in enumerate(loose if len(loose) <= MOST_LOOSE else ()):
        others = loose[:place]
        with np.errstate(invalid="ignore", divide="ignore"):
            noise = matrix.stderr[k] ** 2 + matrix.stderr[others] ** 2
            off = (matrix.values[k] - matrix.values[others]) ** 2 / noise
        known = np.isfinite(off)
        tasks = known.sum(axis=1)
        alike = np.flatnonzero(
            (tasks >= LEAST_TASKS) & (np.where(known, off, 0.0).sum(axis=1) < near[tasks])
        )
        if len(alike):
            name = matrix.models[others[alike[0]]]
            found[matrix.models[k]] = found.setdefault(name, f"like {name}")
    return found


def redraw_scores(
    matrix: ScoreMatrix,
    items: Mapping[str, npt.ArrayLike],
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """Scores, higher is better, as other runs of the same tests could have given them: (resamples, models, tasks).

    From stored items, where ``items[task]`` is (models, items) of per-item values: all models answer the same drawn
    items, which keeps the differences between models as sharp as they are. Else from the standard errors.
    """
    values = add_score_noise(matrix.oriented(), matrix.stderr, resamples, rng)
    for column, task in enumerate(matrix.tasks):
        if task in items:
            outcomes = np.asarray(items[task], dtype=np.float64)  # (models, items)
            draws = draw_row_counts(outcomes.shape[1], resamples, rng) / outcomes.shape[1]
            values[:, :, column] = matrix.sign[column] * (draws @ outcomes.T)
    return values


def mean_over_pairs(matrix: Floats, draws: npt.ArrayLike | None = None) -> Floats:
    """Mean over the pairs of tasks of a (…, T, T) matrix; under ``draws`` (R, T) of tasks, one mean per resample."""
    i, j = np.triu_indices(matrix.shape[-1], 1)
    pairs = matrix[..., i, j]
    weights = (
        np.ones(len(i)) if draws is None else np.asarray(draws)[..., i] * np.asarray(draws)[..., j]
    )
    weights = np.where(np.isfinite(pairs), weights, 0.0)
    total = weights.sum(axis=-1)
    summed = (np.where(np.isfinite(pairs), pairs, 0.0) * weights).sum(axis=-1)
    return np.asarray(
        np.divide(summed, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    )


def percentile_interval(
    value: float, draws: npt.ArrayLike, *, level: float = LEVEL, centred: bool = False
) -> Interval:
    """Percentile interval of ``draws``. ``centred`` moves it so that the draws' median falls on the value.

    Noise added to scores that already carry noise lowers every agreement a little; the shift says nothing about the
    uncertainty, so intervals for noise are centred.
    """
    array = np.asarray(draws, dtype=np.float64)
    array = array[np.isfinite(array)]
    if array.size == 0 or not np.isfinite(value):
        return Interval(float(value), float("nan"), float("nan"), level)
    tail = (1.0 - level) / 2.0
    low, middle, high = np.quantile(array, [tail, 0.5, 1.0 - tail])
    shift = float(value) - middle if centred else 0.0
    return Interval(float(value), float(low + shift), float(high + shift), level)


def percentile_intervals(
    values: Floats, draws: Floats, *, level: float = LEVEL
) -> tuple[Interval, ...]:
    """One interval per entry of ``values``; ``draws`` is (resamples, entries)."""
    return tuple(
        percentile_interval(value, draws[:, k], level=level) for k, value in enumerate(values)
    )


@dataclass(frozen=True)
class RepetitionSpread:
    """A mean over repetitions and the range that holds a share of them; what single runs do, no confidence interval."""

    value: float
    low: float
    high: float
    share: float = LEVEL


def summarize_repetitions(values: Floats) -> RepetitionSpread:
    """Return the mean and the middle 95 % of some repetitions; NaN where there is none."""
    if not len(values):
        return RepetitionSpread(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return RepetitionSpread(float(values.mean()), float(low), float(high))


def kendall_by_row(first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
    """Kendall's tau-b along the last axis, for any number of leading axes that broadcast (NaN where one is constant).

    Equals ``scipy.stats.kendalltau`` on every row, ties included, over the entries that both have. Where
    ``kendall_matrix`` compares every column with every other, this compares row with row.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    upper, lower = np.triu_indices(x.shape[-1], k=1)
    sign_x = np.sign(x[..., lower] - x[..., upper])  # (…, pairs)
    sign_y = np.sign(y[..., lower] - y[..., upper])
    unknown = np.isnan(sign_x) | np.isnan(sign_y)
    sign_x, sign_y = np.where(unknown, 0.0, sign_x), np.where(unknown, 0.0, sign_y)
    agreement = (sign_x * sign_y).sum(axis=-1)
    untied = np.sqrt((sign_x**2).sum(axis=-1) * (sign_y**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(untied > 0, agreement / untied, np.nan))


def add_score_noise(values: Floats, stderr: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draw the scores again from a normal law; a score without a standard error stays as it is. (draws, …)."""
    return np.asarray(
        values + np.nan_to_num(stderr, nan=0.0) * rng.standard_normal((draws, *values.shape))
    )


def noise_interval(value: float, draws: Floats, *, bounds: tuple[float, float]) -> Interval:
    """Span the draws' percentiles, and the same moved to where the draws' mean is the observed value."""
    known = draws[np.isfinite(draws)]
    if not np.isfinite(value) or len(known) < 2:
        return Interval(value, float("nan"), float("nan"))
    tail = 100 * (1 - LEVEL) / 2
    ends = np.percentile(known, [tail, 100 - tail])
    moved = ends - known.mean() + value
    low, high = min(ends[0], moved[0], value), max(ends[1], moved[1], value)
    return Interval(float(value), float(max(low, bounds[0])), float(min(high, bounds[1])))

"""Resampling: how a number would move with other models, other tasks, or another run of the same test.

Three sources, kept apart because they answer different questions. *Models*: rows are drawn with replacement; the
weights of ``kendall_matrix`` carry them. Models of one family resemble each other, so where families are known whole
families are drawn: 61 models of six families are not 61 independent ones, and an interval by model is too narrow.
*Tasks*: columns are drawn with replacement; a task never pairs with its own copy, so a mean over pairs weights pair
(i, j) by w_i·w_j. *Noise*: every score is drawn again, from a normal with its standard error, or, where the items are
stored, by drawing the items of each task (the same items for all models).

Noise is drawn on scores that are noisy already, which pulls tau towards zero. There are two answers to that. The
agreements of ``analysis.rankings.agreement`` move the draws so that their median falls on the observed value
(``percentile_interval`` with ``centred``). The analyses of ``papers.base_models`` take ``noise_interval``, which is
wider: it reaches as far as the draws do, and as far as the draws moved so that their mean falls on the observed value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from potentia.values.findings import Interval
from potentia.values.scores import Floats, ScoreMatrix

RESAMPLES = 1_000
LEVEL = 0.95
LEAST_UNITS = 3  # families that can be drawn


def draw_row_counts(rows: int, resamples: int, rng: np.random.Generator) -> Floats:
    """Draw how often each row counts in each resample: (resamples, rows), each resample summing to ``rows``."""
    if rows == 0:
        return np.zeros((resamples, 0))
    probabilities = np.full(rows, 1.0 / rows)
    return rng.multinomial(rows, probabilities, size=resamples).astype(np.float64)


@dataclass(frozen=True)
class ResamplingUnits:
    """What is drawn with replacement: models, or their families or lineages, whose models come and go together."""

    name: str = "models"
    unit_of_model: Mapping[str, str] = field(
        default_factory=dict
    )  # a model without one is by itself
    inference: str = ""  # says which units were inferred, and from what

    def label_models(self, models: Sequence[str]) -> list[str]:
        """Return the unit of each model."""
        return [self.unit_of_model.get(model, model) for model in models]

    def describe_drawing(self, models: Sequence[str]) -> str:
        """Say what intervals over these models draw, and which units were inferred."""
        unit = self.drawn_unit(models)
        note = f"Intervals: bootstrap over {unit}."
        if unit == MODELS.name or not self.inference:
            return note
        return f"{note} {self.inference}"

    def count_drawn(self, models: Sequence[str]) -> int:
        """Return how many units there are to draw."""
        if self.drawn_unit(models) == MODELS.name:
            return len(models)
        return len(set(self.label_models(models)))

    def drawn_unit(self, models: Sequence[str]) -> str:
        """Return what is drawn of these models: families where there are at least three of them, else models."""
        units = set(self.label_models(models))
        if LEAST_UNITS <= len(units) < len(models):
            return self.name
        return MODELS.name


MODELS = ResamplingUnits()


@dataclass(frozen=True)
class Sampling:
    """What is drawn, how often, and the level of the intervals."""

    units: ResamplingUnits = MODELS
    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0

    def draw_models(self, models: Sequence[str]) -> Floats:
        """Draw how often each model counts in each resample: (resamples, models).

        All models of a unit are drawn together where there are at least three units and fewer than models.
        """
        rng = np.random.default_rng(self.seed)
        if self.units.drawn_unit(models) == MODELS.name:
            return draw_row_counts(len(models), self.resamples, rng)
        labels = self.units.label_models(models)
        column_of_unit = {unit: column for column, unit in enumerate(dict.fromkeys(labels))}
        unit_counts = draw_row_counts(len(column_of_unit), self.resamples, rng)
        return unit_counts[:, [column_of_unit[unit] for unit in labels]]

    def interval(self, value: float, draws: npt.ArrayLike) -> Interval:
        """Return the percentile interval of draws at the level of this sampling."""
        return percentile_interval(value, draws, level=self.level)


DEFAULT_SAMPLING = Sampling()


def redraw_scores(
    matrix: ScoreMatrix,
    items: Mapping[str, npt.ArrayLike],
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw the scores that other runs of the same tests could have given: (resamples, models, tasks), higher is better.

    From stored items, where ``items[task]`` is (models, items) of per-item values: all models answer the same drawn
    items, which keeps the differences between models as sharp as they are. Else from the standard errors.
    """
    scores = add_score_noise(matrix.oriented(), matrix.stderr, resamples, rng)
    for column, task in enumerate(matrix.tasks):
        if task not in items:
            continue
        outcomes = np.asarray(items[task], dtype=np.float64)  # (models, items)
        count = outcomes.shape[1]
        shares = draw_row_counts(count, resamples, rng) / count
        scores[:, :, column] = matrix.sign[column] * (shares @ outcomes.T)
    return scores


def mean_over_pairs(matrix: Floats, task_draws: npt.ArrayLike | None = None) -> Floats:
    """Return the mean over the pairs of tasks of a (…, T, T) matrix; under draws (R, T) of tasks, one per resample."""
    first_of_pair, second_of_pair = np.triu_indices(matrix.shape[-1], 1)
    pairs = matrix[..., first_of_pair, second_of_pair]
    weights: Floats = np.ones(len(first_of_pair))
    if task_draws is not None:
        draws = np.asarray(task_draws)
        weights = draws[..., first_of_pair] * draws[..., second_of_pair]
    defined = np.isfinite(pairs)
    weights = np.where(defined, weights, 0.0)
    total = weights.sum(axis=-1)
    weighted_sum = (np.where(defined, pairs, 0.0) * weights).sum(axis=-1)
    mean = np.full(np.shape(total), np.nan)
    return np.asarray(np.divide(weighted_sum, total, out=mean, where=total > 0))


def percentile_interval(
    value: float,
    draws: npt.ArrayLike,
    *,
    level: float = LEVEL,
    centred: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """Return the percentile interval of draws; ``centred`` moves it so that their median falls on the value.

    Noise added to scores that already carry noise lowers every agreement a little; the shift says nothing about the
    uncertainty, so the agreements' intervals for noise are centred. ``noise_interval`` is the wider alternative.
    ``bounds`` are the least and the largest value there can be.
    """
    finite = np.asarray(draws, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0 or not np.isfinite(value):
        return Interval(float(value), float("nan"), float("nan"), level)
    tail_share = (1.0 - level) / 2.0
    low, median, high = np.quantile(finite, [tail_share, 0.5, 1.0 - tail_share])
    shift = float(value) - median if centred else 0.0
    low, high = np.clip([low + shift, high + shift], *bounds)
    return Interval(float(value), float(low), float(high), level)


def percentile_intervals(
    values: Floats, draws: Floats, *, level: float = LEVEL
) -> tuple[Interval, ...]:
    """Return one interval per entry of ``values``; ``draws`` is (resamples, entries)."""
    intervals = []
    for column, value in enumerate(values):
        intervals.append(percentile_interval(value, draws[:, column], level=level))
    return tuple(intervals)


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
    """Return Kendall's tau-b along the last axis, for leading axes that broadcast; NaN where one is constant.

    Equals ``scipy.stats.kendalltau`` on every row, ties included, over the entries that both have. Where
    ``kendall_matrix`` compares every column with every other, this compares row with row.
    """
    first_signs, second_signs = _pair_signs(first), _pair_signs(second)
    if np.isnan(first_signs).any() or np.isnan(second_signs).any():
        undefined = np.isnan(first_signs) | np.isnan(second_signs)
        first_signs = np.where(undefined, 0.0, first_signs)
        second_signs = np.where(undefined, 0.0, second_signs)
    agreement = np.einsum("...p,...p->...", first_signs, second_signs)
    untied_in_first = np.einsum("...p,...p->...", first_signs, first_signs)
    untied_in_second = np.einsum("...p,...p->...", second_signs, second_signs)
    return _divide_by_untied(agreement, untied_in_first * untied_in_second)


def kendall_between(first: Floats, second: Floats) -> Floats:
    """Return Kendall's tau-b of every row of one table with every row of another: (rows, rows).

    Equals ``kendall_by_row`` of each pair of rows; the pairs of entries are compared once for each row.
    """
    first_signs, second_signs = _pair_signs(first), _pair_signs(second)
    first_defined, second_defined = np.isfinite(first_signs), np.isfinite(second_signs)
    first_signs[~first_defined] = 0.0
    second_signs[~second_defined] = 0.0
    agreement = first_signs @ second_signs.T
    untied_in_first = first_signs**2 @ second_defined.T.astype(np.float64)
    untied_in_second = first_defined.astype(np.float64) @ (second_signs**2).T
    return _divide_by_untied(agreement, untied_in_first * untied_in_second)


def _pair_signs(values: npt.ArrayLike) -> Floats:
    """Return the sign of the difference of every two entries along the last axis: (…, pairs)."""
    entries = np.asarray(values, dtype=np.float64)
    upper, lower = np.triu_indices(entries.shape[-1], k=1)
    return np.asarray(np.sign(entries[..., lower] - entries[..., upper]))


def _divide_by_untied(agreement: Floats, untied_product: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        taus = agreement / np.sqrt(untied_product)
        return np.asarray(np.where(untied_product > 0, taus, np.nan))


def add_score_noise(values: Floats, stderr: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draw scores again from a normal law: (draws, …); a score without a standard error stays as it is."""
    noise = rng.standard_normal((draws, *values.shape))
    return np.asarray(values + np.nan_to_num(stderr, nan=0.0) * noise)


def noise_interval(value: float, draws: Floats, *, bounds: tuple[float, float]) -> Interval:
    """Return the interval that spans the draws' percentiles, and the same moved to the observed value.

    Wider than the centred ``percentile_interval``: it keeps the end that the pull of the noise reaches.
    """
    finite = draws[np.isfinite(draws)]
    if not np.isfinite(value) or len(finite) < 2:
        return Interval(value, float("nan"), float("nan"))
    tail_percent = 100 * (1 - LEVEL) / 2
    percentiles = np.percentile(finite, [tail_percent, 100 - tail_percent])
    moved_ends = percentiles - finite.mean() + value
    low = min(percentiles[0], moved_ends[0], value)
    high = max(percentiles[1], moved_ends[1], value)
    lowest, highest = bounds
    return Interval(float(value), float(max(low, lowest)), float(min(high, highest)))

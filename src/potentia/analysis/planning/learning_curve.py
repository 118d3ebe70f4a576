"""What more training examples would change: the line through two sizes of training data, on log scales.

Fine-tuned errors and losses fall nearly as a power of the number of examples, so the error at 4 N follows from those at
N/4 and N. The line has an error of its own, beside that of the test: ``LINE_ERROR`` is its standard deviation at four
times the examples, in log units, measured on 30 published models (``bench/select_public.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from potentia.analysis.stats.first_place import (
    covariance_root,
    first_place_shares,
    student_widening,
)
from potentia.analysis.wording import format_percent, format_range
from potentia.values.clusters import (
    LEAST_CLUSTERS,
    Clusters,
    clustered_covariance,
    degrees_of_freedom,
)
from potentia.values.findings import Finding, Table, TableValue, short_names
from potentia.values.scores import NO_CLUSTERS, Floats

FACTOR = 4.0  # how many times the examples the outlook is for
LINE_ERROR = 0.02
SLOPE_KEPT = (
    0.9  # of a slope's distance from the mean slope; chosen on the first published data set
)
DRAWS = 4_000
OPEN = 0.1  # a smaller difference of the chances to be best names nobody
FEWEST_TESTED = 50  # test examples, below which nothing is said of more training examples
SMALL_GAIN = 0.0005  # that does not show in three digits


@dataclass(frozen=True)
class CurvePoint:
    """The error of one model (a loss, or 1 − accuracy) after fine-tuning on so many examples."""

    model: str
    examples: int
    error: float


@dataclass(frozen=True)
class LearningCurve(Finding):
    """The errors of models at two sizes of training data, and what the lines through them say of more data."""

    models: tuple[str, ...]
    sizes: tuple[int, int]
    errors: Floats  # (models, sizes)
    expected: Floats  # (models,) errors at FACTOR times the larger size
    p_best: Floats  # (models,) chance to be the best there
    higher_is_better: bool  # of the score that the errors are made of
    gains: Floats = field(default_factory=lambda: np.zeros((0, 2)))  # (models, ends) 95 % intervals
    tested: int = 0  # test examples that all of it rests on; 0 where they are not known
    tested_in: str = ""  # the folds that they are of, where these are not all

    @property
    def best_now(self) -> str:
        """The model with the smallest error at the larger size."""
        return self.models[int(np.argmin(self.errors[:, 1]))]

    @property
    def best_later(self) -> str:
        """The model that is most likely the best with more examples."""
        return self.models[int(np.argmax(self.p_best))]

    def gain_of(self, model: str) -> float:
        """Return by how much a model's error is expected to fall."""
        row = self.models.index(model)
        return float(self.errors[row, 1] - self.expected[row])

    def sentence(self, best_model: str | None = None) -> str:
        """Say what more training examples would bring, and whether they would change the winner."""
        start = f"With {FACTOR:g} times the training examples ({self._more_examples:,}):"
        if self.is_open:
            return f"{start} {self._describe_tested()} are too few to say what they would change."
        current = best_model if best_model in self.models else self.best_now
        names = dict(zip(self.models, short_names(list(self.models)), strict=True))
        chances = dict(zip(self.models, self.p_best.tolist(), strict=True))
        expected_gain = max(self.gain_of(current), 0.0)
        amount = f"about +{100 * expected_gain:.1f} points"
        if not self.higher_is_better:
            amount = f"about −{expected_gain:.3f}"
        if expected_gain < SMALL_GAIN:
            amount = "hardly any gain"
        start = f"{start} {amount}{self._describe_interval(current)}"
        if len(self.models) < 2:
            return f"{start} for {names[current]}."
        chance = format_percent(chances[current])
        if self.best_later == current:
            return f"{start}, same winner ({chance})."
        later = self.best_later
        if chances[later] - chances[current] < OPEN:
            return f"{start} for {names[current]}; which model is ahead then is open."
        return (
            f"{start} for {names[current]}; {names[later]} may be ahead then"
            f" ({format_percent(chances[later])})."
        )

    @property
    def is_open(self) -> bool:
        """Whether too few examples were tested to say anything."""
        return 0 < self.tested < FEWEST_TESTED

    def _describe_tested(self) -> str:
        examples = "1 test example" if self.tested == 1 else f"{self.tested:,} test examples"
        return f"{examples} of {self.tested_in}" if self.tested_in else examples

    def _describe_interval(self, model: str) -> str:
        """Write the interval of a gain and the test examples that it rests on; nothing where they are not known."""
        if not self.tested:
            return ""
        low, high = self.gains[self.models.index(model)]
        if not self.higher_is_better:
            low, high = -high, -low
        ends = format_range(float(low), float(high), in_points=self.higher_is_better, sign=True)
        return f" (95 % interval {ends}, by {self._describe_tested()})"

    @property
    def _more_examples(self) -> int:
        return round(FACTOR * self.sizes[1])

    def tables(self) -> Sequence[Table]:
        """Return the scores at both sizes, and what is expected of more."""
        table_rows: list[tuple[TableValue, ...]] = []
        for row, model_name in enumerate(short_names(list(self.models))):
            small, large = map(self._score_of, self.errors[row])
            expected = self._score_of(self.expected[row])
            outlook = () if self.is_open else (expected, float(self.p_best[row]))
            table_rows.append((model_name, small, large, *outlook))
        sizes = self.sizes if self.is_open else (*self.sizes, self._more_examples)
        columns = ["model", *(f"{size:,} examples" for size in sizes)]
        note = "Too few are tested to say more."
        if not self.is_open:
            columns.append("P(best there)")
            note = "The score at the last size is extrapolated from the first two."
        if self.tested_in:
            note += " The scores above are of all test examples."
        title = "More training examples"
        if self.tested:
            title += f", by {self._describe_tested()}"
        return [Table(title, columns, table_rows, note)]

    def _score_of(self, error: float) -> float:
        return float(1.0 - error) if self.higher_is_better else float(error)


def extrapolate(
    small: Floats,
    large: Floats,
    ratio: float,
    factor: float = FACTOR,
    *,
    slope_kept: float = SLOPE_KEPT,
) -> Floats:
    """Return errors at ``factor`` times the larger size, by the lines through two sizes that differ by ``ratio``.

    The models are in the last dimension. A slope of two points has noise, so slopes are drawn a tenth of the way to
    their mean. More examples do not make a model worse, so a rising line is taken as level.
    """
    slope = np.log(large / small) / math.log(ratio)
    mean_slope = slope.mean(axis=-1, keepdims=True)
    shrunk_slope = mean_slope + slope_kept * (slope - mean_slope)
    return np.asarray(large * factor ** np.minimum(shrunk_slope, 0.0))


def measure_learning_curve(
    points: Sequence[CurvePoint],
    outcomes: Mapping[tuple[str, int], Mapping[int, float]],
    *,
    higher_is_better: bool,
    cluster_by_example: Mapping[int, str] = NO_CLUSTERS,
    tested_in: str = "",
    seed: int = 0,
) -> LearningCurve | None:
    """Return the curve of the models that were tuned on both sizes; None where there are no two sizes.

    ``outcomes`` are the scores of single examples by model and size: all models answered the same examples, so their
    noise is drawn together. Examples that share a passage (``cluster_by_example``) are drawn as one. ``tested_in``
    names the folds that they are of, where these are not all.
    """
    sizes = sorted({point.examples for point in points})
    if len(sizes) < 2:
        return None
    small_size, large_size = sizes[0], sizes[-1]
    error_by_point = {(point.model, point.examples): point.error for point in points}
    models = []
    for point in points:
        has_both = all((point.model, size) in error_by_point for size in (small_size, large_size))
        if has_both and point.model not in models:
            models.append(point.model)
    if not models:
        return None
    keys = list(itertools.product(models, (small_size, large_size)))
    errors = np.array([error_by_point[key] for key in keys])
    rng = np.random.default_rng(seed)
    drawn = errors + _draw_noise(keys, outcomes, cluster_by_example, rng)
    floor = _smallest_error(keys, outcomes)
    drawn = np.maximum(drawn, floor).reshape(DRAWS, len(models), 2)
    ratio = large_size / small_size
    later = extrapolate(drawn[:, :, 0], drawn[:, :, 1], ratio)
    later = later * np.exp(LINE_ERROR * rng.standard_normal(later.shape))
    gains = np.quantile(drawn[:, :, 1] - later, [0.025, 0.975], axis=0).T
    table = np.maximum(errors, floor).reshape(len(models), 2)
    expected = extrapolate(table[:, 0], table[:, 1], ratio)
    return LearningCurve(
        models=tuple(models),
        sizes=(small_size, large_size),
        errors=errors.reshape(len(models), 2),
        expected=expected,
        p_best=first_place_shares(-later),
        higher_is_better=higher_is_better,
        gains=gains,
        tested=len(_common_examples(keys, outcomes)),
        tested_in=tested_in,
    )


def _common_examples(
    points: Sequence[tuple[str, int]], outcomes: Mapping[tuple[str, int], Mapping[int, float]]
) -> list[int]:
    """Return the examples that every model answered at every size."""
    if not all(point in outcomes for point in points):
        return []
    return sorted(set.intersection(*(set(outcomes[point]) for point in points)))


def _draw_noise(
    points: Sequence[tuple[str, int]],
    outcomes: Mapping[tuple[str, int], Mapping[int, float]],
    cluster_by_example: Mapping[int, str],
    rng: np.random.Generator,
) -> Floats:
    """Draw what other test examples would have changed, (draws, keys); nothing where the outcomes are not known."""
    examples = _common_examples(points, outcomes)
    clusters = Clusters.of_examples(examples, cluster_by_example)
    if clusters.count < LEAST_CLUSTERS:
        return np.zeros((DRAWS, len(points)))
    rows = []
    for point in points:
        rows.append([outcomes[point][example] for example in examples])
    table = np.array(rows)
    covariance = clustered_covariance(table, clusters)
    if not clusters.are_independent:
        covariance = covariance * student_widening(degrees_of_freedom(clusters)) ** 2
    # all right or all wrong is not without noise
    covariance = covariance + np.eye(len(points)) * 0.25 / len(examples) ** 2
    return np.asarray(rng.standard_normal((DRAWS, len(points))) @ covariance_root(covariance).T)


def _smallest_error(
    points: Sequence[tuple[str, int]], outcomes: Mapping[tuple[str, int], Mapping[int, float]]
) -> float:
    """Return the error below which a test of this size sees nothing: half an example."""
    examples = _common_examples(points, outcomes)
    return 0.5 / (len(examples) + 1) if examples else 1e-6

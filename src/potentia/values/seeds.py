"""How far another fine-tuning seed moves a score, pooled over the results that have several seeds.

A result that was fine-tuned once says nothing of its spread over seeds, and one that was fine-tuned twice says little.
So the variance over seeds is pooled over all results on one scale that have several seeds (the setting ``seed_check``
of a study gives a tenth of them a second one). It becomes part of the standard error of every fine-tuned score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.values.scores import Floats, ScoreMatrix

# So many results on a scale must have several seeds: fewer say too little of the others.
MIN_REPEATED_RESULTS = 3


@dataclass(frozen=True)
class SeedSpread:
    """How far another seed moves a score, as far as one matrix shows it."""

    fine_tuned: int  # results after a fine-tuning
    repeated: int  # of these, results with several seeds
    repeated_shares: int  # of these, results whose scores lie between 0 and 1
    # standard deviation over seeds of a score between 0 and 1; NaN with fewer than three repeated ones
    deviation: float

    @property
    def is_known(self) -> bool:
        """Whether enough results with scores between 0 and 1 have several seeds."""
        return math.isfinite(self.deviation)


def measure_seed_spread(matrix: ScoreMatrix) -> SeedSpread:
    """Return how many results of a matrix have several seeds, and how far a seed moves a score between 0 and 1."""
    scored_count = int(np.isfinite(matrix.values).sum())
    if matrix.seeds is None:
        return SeedSpread(
            fine_tuned=scored_count, repeated=0, repeated_shares=0, deviation=math.nan
        )
    # an unknown scale is taken for one from 0 to 1
    scales = [metric.scale or "share" for metric in matrix.metrics]
    share_columns = [column for column, scale in enumerate(scales) if scale == "share"]
    repeated_scores = _list_repeated(matrix, range(len(matrix.tasks)))
    repeated_shares = _list_repeated(matrix, share_columns)
    return SeedSpread(
        fine_tuned=scored_count,
        repeated=len(repeated_scores),
        repeated_shares=len(repeated_shares),
        deviation=_pool_deviation(repeated_shares),
    )


def pool_seed_variance(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return a matrix whose standard errors have the pooled variance over seeds, if enough results have several.

    Scores on different scales are not pooled together. A matrix that is pooled already is returned as it is.
    """
    if matrix.seeds is None or matrix.seed_deviations is not None:
        return matrix
    scales = [metric.scale or "share" for metric in matrix.metrics]
    deviations = np.full(len(matrix.tasks), np.nan)
    for scale in set(scales):
        columns = [column for column, column_scale in enumerate(scales) if column_scale == scale]
        deviations[columns] = _pool_deviation(_list_repeated(matrix, columns))
    if not np.isfinite(deviations).any():
        return matrix
    pooled = replace(matrix, seed_deviations=deviations)
    return replace(pooled, stderr=_replace_seed_errors(matrix, pooled))


def _list_repeated(matrix: ScoreMatrix, columns: Iterable[int]) -> list[tuple[float, ...]]:
    """Return, for every result in these columns that has several seeds, its value with each of them."""
    repeated_values: list[tuple[float, ...]] = []
    if matrix.seeds is None:
        return repeated_values
    for column in columns:
        for row in np.flatnonzero(np.isfinite(matrix.values[:, column])):
            values = matrix.seeds[row, column]
            if values and len(values) > 1:
                repeated_values.append(values)
    return repeated_values


def _pool_deviation(repeated_values: Sequence[tuple[float, ...]]) -> float:
    """Return the standard deviation over seeds, pooled over results; NaN if fewer than three are repeated."""
    value_arrays = [np.array(values) for values in repeated_values]
    if len(value_arrays) < MIN_REPEATED_RESULTS:
        return math.nan
    # fsum is exact: the order in which a file has its scores changes not even the last bit
    squared_deviations = math.fsum(
        float(((values - values.mean()) ** 2).sum()) for values in value_arrays
    )
    degrees_of_freedom = sum(len(values) - 1 for values in value_arrays)
    return math.sqrt(squared_deviations / degrees_of_freedom)


def _replace_seed_errors(matrix: ScoreMatrix, pooled: ScoreMatrix) -> Floats:
    """Return the standard errors with each result's own part of the seeds replaced by the pooled part."""
    stderr = matrix.stderr.copy()
    for row, model in enumerate(matrix.models):
        for column, task in enumerate(matrix.tasks):
            example_error = _remove_part(stderr[row, column], matrix.seed_error(model, task))
            stderr[row, column] = math.hypot(example_error, pooled.seed_error(model, task))
    return stderr


def _remove_part(error: float, part: float) -> float:
    """Return a standard error without one of its independent parts; 0 where the part is all of it, or more."""
    if part >= error:
        return 0.0
    return error * math.sqrt(1 - (part / error) ** 2)  # a square of the error itself may overflow

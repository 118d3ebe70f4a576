"""How far another fine-tuning seed moves a score, pooled over the results that have several seeds.

A score that was fine-tuned once has no spread over seeds of its own, and one that was fine-tuned twice has a poor
estimate of it. So the variance over seeds is pooled over all results of a scale that have several (``seed_check`` of a
study gives a tenth of them a second seed), and becomes part of the standard error of every fine-tuned score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.values.scores import Floats, ScoreMatrix

LEAST_REPEATED = 3  # results with several seeds: fewer say too little to speak for the others


@dataclass(frozen=True)
class SeedSpread:
    """How far another seed moves a score, as far as a matrix tells."""

    fine_tuned: int  # results after a fine-tuning
    repeated: int  # of these, with several seeds
    deviation: float  # standard deviation of a score over seeds; NaN where too few are repeated

    @property
    def is_known(self) -> bool:
        """Whether enough results have several seeds."""
        return math.isfinite(self.deviation)


def measure_seed_spread(matrix: ScoreMatrix) -> SeedSpread:
    """Return how many results of a matrix have several seeds, and how far a seed moves a score that is a share."""
    scored = int(np.isfinite(matrix.values).sum())
    if matrix.seeds is None:
        return SeedSpread(scored, 0, math.nan)
    share_columns = [
        column for column, metric in enumerate(matrix.metrics) if metric.scale in ("share", None)
    ]
    repeated = _list_repeated(matrix, range(len(matrix.tasks)))
    of_shares = _list_repeated(matrix, share_columns)
    return SeedSpread(scored, len(repeated), _pool_deviation(of_shares))


def pool_seed_variance(matrix: ScoreMatrix) -> ScoreMatrix:
    """Give every fine-tuned score the pooled variance over seeds, where enough results have several.

    Scores of different scales are not pooled. A matrix that is pooled already stays as it is.
    """
    if matrix.seeds is None or matrix.seed_deviations is not None:
        return matrix
    scales = [metric.scale or "share" for metric in matrix.metrics]
    deviations = np.full(len(matrix.tasks), np.nan)
    for scale in set(scales):
        columns = [column for column, other in enumerate(scales) if other == scale]
        deviations[columns] = _pool_deviation(_list_repeated(matrix, columns))
    if not np.isfinite(deviations).any():
        return matrix
    pooled = replace(matrix, seed_deviations=deviations)
    return replace(pooled, stderr=_exchange_seed_errors(matrix, pooled))


def _list_repeated(matrix: ScoreMatrix, columns: Iterable[int]) -> list[tuple[float, ...]]:
    """Return the values by seed of every result in these columns that has several."""
    repeated: list[tuple[float, ...]] = []
    if matrix.seeds is None:
        return repeated
    for column in columns:
        for row in np.flatnonzero(np.isfinite(matrix.values[:, column])):
            values = matrix.seeds[row, column]
            if values and len(values) > 1:
                repeated.append(values)
    return repeated


def _pool_deviation(repeated: Sequence[tuple[float, ...]]) -> float:
    """Return the root of the pooled variance of scores over seeds; NaN where fewer than three have several."""
    several = [np.array(values) for values in repeated]
    if len(several) < LEAST_REPEATED:
        return math.nan
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in several)
    degrees = sum(len(values) - 1 for values in several)
    return math.sqrt(squares / degrees)


def _exchange_seed_errors(matrix: ScoreMatrix, pooled: ScoreMatrix) -> Floats:
    """Return the standard errors with the pooled part of the seeds in place of each result's own."""
    stderr = matrix.stderr.copy()
    for row, model in enumerate(matrix.models):
        for column, task in enumerate(matrix.tasks):
            of_examples = stderr[row, column] ** 2 - matrix.seed_error(model, task) ** 2
            of_seeds = pooled.seed_error(model, task)
            stderr[row, column] = math.sqrt(max(of_examples, 0.0) + of_seeds**2)
    return stderr

"""The ranks that a model may have on a task.

A model's rank lies between 1 + (models that significantly beat it) and n − (models it beats). With the pairwise z
threshold each interval holds model by model; with the quantile of the largest of all pairwise |z| (Tukey's range,
unequal errors, simulated) all intervals of a task hold together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from potentia.analysis.rank_chart import plot_ranks
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.first_place import covariance_root
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

SIMULATIONS = 2_000
BLOCK = 1 << 17  # differences simulated at once


@dataclass(frozen=True)
class RankIntervals(Finding):
    """Rank, best rank and worst rank of every model on every task; NaN where the score is missing."""

    protocol: Protocol
    level: float
    simultaneous: bool
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    rank: Floats  # (models, tasks), 1 is best
    best: Floats
    worst: Floats

    def tables(self) -> Sequence[Table]:
        """Return each model's mean rank and mean interval over tasks, best model first."""
        interval_kind = "simultaneous" if self.simultaneous else "pairwise"
        mean_rank = nan_mean(self.rank)
        times_first = (self.best == 1).sum(axis=1)
        table_rows = list(
            zip(
                self.models,
                mean_rank,
                nan_mean(self.best),
                nan_mean(self.worst),
                times_first,
                strict=True,
            )
        )
        column_names = (
            "model",
            "mean rank",
            "best possible",
            "worst possible",
            "tasks where it may be first",
        )
        scope = f"{self.protocol.label}, {self.level:.0%}, {interval_kind}"
        title = f"Rank intervals, mean over {len(self.tasks)} tasks ({scope})"
        order = np.argsort(mean_rank, kind="stable")  # NaN last
        return [Table(title, column_names, select_positions(table_rows, order), digits=1)]

    def charts(self) -> Sequence[Chart]:
        """Return the mean intervals as a chart, best model first."""
        title = f"Rank intervals: {self.protocol.label}"
        chart = plot_ranks(
            f"rank-intervals-{self.protocol}",
            title,
            "Mean rank over tasks, between the mean best and the mean worst possible rank.",
            self.models,
            nan_mean(self.rank),
            nan_mean(self.best),
            nan_mean(self.worst),
            group="rank-intervals",
        )
        return [chart]


def rank_intervals(
    matrix: ScoreMatrix,
    items: Outcomes | None = None,
    *,
    level: float = LEVEL,
    simultaneous: bool = False,
    seed: int = 0,
) -> RankIntervals:
    """Return rank intervals of every model on every task; tasks without standard errors are refused.

    ``items`` are stored outcomes: models that answered the same documents are compared document by document.
    """
    values = matrix.oriented()
    point_rank = np.full(matrix.shape, np.nan)
    best_rank = np.full(matrix.shape, np.nan)
    worst = np.full(matrix.shape, np.nan)
    rng = np.random.default_rng(seed)
    for column, task in enumerate(matrix.tasks):
        scored = np.isfinite(values[:, column])
        if not np.isfinite(matrix.stderr[scored, column]).all():
            raise InputError(
                f"{task} has scores without standard errors",
                hint="leave the task out, or score it with Potentia",
            )
        scores = values[scored, column]
        covariance = task_noise(matrix, column, items).full_covariance()
        covariance = covariance[np.ix_(scored, scored)]
        if simultaneous:
            threshold = simultaneous_threshold(covariance, level, rng)
        else:
            threshold = pairwise_threshold(level)
        beats = scores[:, None] - scores > threshold * difference_errors(covariance)
        point_rank[scored, column] = rankdata(-scores, method="average")
        best_rank[scored, column] = 1 + beats.sum(axis=0)
        worst[scored, column] = len(scores) - beats.sum(axis=1)
    return RankIntervals(
        protocol=matrix.protocol,
        level=level,
        simultaneous=simultaneous,
        models=matrix.models,
        tasks=matrix.tasks,
        rank=point_rank,
        best=best_rank,
        worst=worst,
    )


def difference_errors(covariance: Floats) -> Floats:
    """Return the standard error of the difference of every two scores: (models, models)."""
    variances = np.diag(covariance)
    return np.sqrt(np.maximum(variances[:, None] + variances - 2 * covariance, 0.0))


def pairwise_threshold(level: float) -> float:
    """Return the |z| above which one difference is significant."""
    return float(norm.ppf(0.5 + level / 2))


def simultaneous_threshold(
    covariance: Floats, level: float, rng: np.random.Generator, *, simulations: int = SIMULATIONS
) -> float:
    """Return the ``level`` quantile of the largest |z| over all pairs when no model differs from another.

    ``covariance`` (models, models) is that of the scores: where models answered the same documents, it is not
    diagonal, and differences are sharper.
    """
    models = len(covariance)
    if models < 2:
        return pairwise_threshold(level)
    first_of_pair, second_of_pair = np.triu_indices(models, 1)
    errors = difference_errors(covariance)[first_of_pair, second_of_pair]
    per_error = np.divide(1.0, errors, out=np.zeros_like(errors), where=errors > 0)
    per_error = per_error.astype(np.float32)
    root_of_covariance = covariance_root(covariance)
    largest = np.empty(simulations)
    chunk_size = max(1, BLOCK // len(first_of_pair))
    for start in range(0, simulations, chunk_size):
        drawn_count = min(chunk_size, simulations - start)
        draws = (rng.standard_normal((drawn_count, models)) @ root_of_covariance.T).astype(
            np.float32
        )
        z_scores = np.abs(draws[:, first_of_pair] - draws[:, second_of_pair]) * per_error
        largest[start : start + chunk_size] = z_scores.max(axis=1)
    return float(np.quantile(largest, level))

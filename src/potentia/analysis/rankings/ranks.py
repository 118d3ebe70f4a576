"""Rank intervals: the best and worst place that each model may truly have on a task.

A model cannot be better than the models that significantly beat it, nor worse than those it significantly beats; so its
rank lies between 1 + (models that beat it) and n - (models it beats). With the pairwise z threshold each interval holds
model by model; with the quantile of the largest of all pairwise |z| (Tukey's range, unequal errors, simulated) all
intervals of a task hold together: a simultaneous rank confidence set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from potentia.analysis.rankings.decide import noise_of
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

SIMULATIONS = 2_000


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
        kind = "simultaneous" if self.simultaneous else "pairwise"
        mean = np.array([_mean(r) for r in self.rank])
        order = np.argsort(np.where(np.isnan(mean), np.inf, mean), kind="stable")
        rows: list[tuple[Cell, ...]] = [
            (
                self.models[k],
                float(mean[k]),
                _mean(self.best[k]),
                _mean(self.worst[k]),
                int((self.best[k] == 1).sum()),
            )
            for k in order
        ]
        return [
            Table(
                f"Rank intervals, mean over {len(self.tasks)} tasks ({self.protocol.label}, {self.level:.0%}, {kind})",
                ("model", "mean rank", "best possible", "worst possible", "tasks where it may be first"),
                tuple(rows),
                digits=1,
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the mean intervals as a chart, best model first."""
        mean = np.array([_mean(r) for r in self.rank])
        order = [int(k) for k in np.argsort(mean, kind="stable") if np.isfinite(mean[k])]
        return [
            Plot(
                name=f"rank-intervals-{self.protocol}",
                title=f"Rank intervals: {self.protocol.label}",
                caption="Mean rank over tasks, between the mean best and the mean worst possible rank.",
                points=(
                    Points(
                        name=self.protocol.label,
                        x=tuple(float(k + 1) for k in range(len(order))),
                        y=tuple(float(mean[k]) for k in order),
                        labels=tuple(self.models[k] for k in order),
                        low=tuple(_mean(self.best[k]) for k in order),
                        high=tuple(_mean(self.worst[k]) for k in order),
                    ),
                ),
                x_label="model, by mean rank",
                y_label="rank (1 is best)",
                group="rank-intervals",
            )
        ]


def rank_intervals(
    matrix: ScoreMatrix,
    items: Outcomes | None = None,
    *,
    level: float = LEVEL,
    simultaneous: bool = False,
    seed: int = 0,
) -> RankIntervals:
    """Rank intervals of every model on every task; tasks without standard errors are refused.

    ``items`` are stored outcomes: models that answered the same documents are compared document by document.
    """
    values = matrix.oriented()
    rank, best, worst = (np.full(matrix.shape, np.nan) for _ in range(3))
    rng = np.random.default_rng(seed)
    for column, task in enumerate(matrix.tasks):
        known = np.isfinite(values[:, column])
        score = values[known, column]
        if not np.isfinite(matrix.stderr[known, column]).all():
            raise InputError(
                f"{task} has scores without standard errors", hint="leave the task out, or score it with Potentia"
            )
        noise = noise_of(matrix, column, items)
        noise = (np.diag(noise**2) if noise.ndim == 1 else noise)[np.ix_(known, known)]
        apart = np.sqrt(np.maximum(np.diag(noise)[:, None] + np.diag(noise) - 2 * noise, 0.0))
        threshold = simultaneous_threshold(noise, level, rng) if simultaneous else float(norm.ppf(0.5 + level / 2))
        rank[known, column] = rankdata(-score, method="average")
        beats = score[:, None] - score > threshold * apart
        best[known, column], worst[known, column] = 1 + beats.sum(axis=0), len(score) - beats.sum(axis=1)
    return RankIntervals(matrix.protocol, level, simultaneous, matrix.models, matrix.tasks, rank, best, worst)


def simultaneous_threshold(
    noise: Floats, level: float, rng: np.random.Generator, *, simulations: int = SIMULATIONS
) -> float:
    """Return the ``level`` quantile of the largest |z| over all pairs when no model differs from another.

    ``noise`` (models, models) is the covariance of the scores: where models answered the same documents, it is not
    diagonal, and differences are sharper.
    """
    count = len(noise)
    if count < 2:
        return float(norm.ppf(0.5 + level / 2))
    a, b = np.triu_indices(count, 1)
    values, vectors = np.linalg.eigh(noise)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    scale = np.sqrt(np.maximum(noise[a, a] + noise[b, b] - 2 * noise[a, b], 0.0))
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0).astype(np.float32)
    largest = np.empty(simulations)
    step = max(1, (1 << 17) // len(a))
    for start in range(0, simulations, step):
        drawn = (rng.standard_normal((min(step, simulations - start), count)) @ root.T).astype(np.float32)
        largest[start : start + step] = (np.abs(drawn[:, a] - drawn[:, b]) * per_unit).max(axis=1)
    return float(np.quantile(largest, level))


def _mean(row: Floats) -> float:
    known = row[np.isfinite(row)]
    return float(known.mean()) if known.size else float("nan")

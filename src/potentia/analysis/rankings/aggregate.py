"""One ranking from many tasks, four ways, and how much it hangs on any one task.

*PC1* and *mean z* use the size of differences; *Borda* (the share of comparisons with other models that a model wins,
ties half) and *mean rank* only their order. A multi-task ranking that disagrees within itself is fragile (Zhang &
Hardt): so every aggregate comes with its top after leaving out each task in turn. Which of the models is first, and
how sure that is, is for ``decide``.

Rank intervals: the best and worst place that each model may truly have on a task.

A model cannot be better than the models that significantly beat it, nor worse than those it significantly beats; so its
rank lies between 1 + (models that beat it) and n - (models it beats). With the pairwise z threshold each interval holds
model by model; with the quantile of the largest of all pairwise |z| (Tukey's range, unequal errors, simulated) all
intervals of a task hold together: a simultaneous rank confidence set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from potentia.analysis.rankings.components import standardise
from potentia.analysis.rankings.decide import noise_of
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix


@dataclass(frozen=True)
class Aggregate(Finding):
    """Aggregate scores and ranks of every model, and the ranking without each task."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    scores: Floats  # (models, methods); higher is better, NaN where the method needs a missing score
    ranks: Floats  # (models, methods); 1 is best
    winners: tuple[tuple[str, ...], ...]  # (methods, tasks): first model without that task
    tau: Floats  # (methods, tasks): agreement with the full ranking

    def order(self, method: str) -> list[str]:
        """Return the models from best to worst by one method."""
        column = self.ranks[:, self.methods.index(method)]
        return [self.models[k] for k in np.argsort(column, kind="stable") if np.isfinite(column[k])]

    def tables(self) -> Sequence[Table]:
        """Return the ranking by every method, and its sensitivity to each task."""
        order = np.argsort(self.ranks[:, 0], kind="stable")
        rows: list[tuple[Cell, ...]] = []
        for k in order:
            rows.append((self.models[k], float(self.scores[k, 0]), *map(float, self.ranks[k])))
        loose: list[tuple[Cell, ...]] = []
        for j, task in enumerate(self.tasks):
            cells: list[Cell] = [task]
            for m in range(len(self.methods)):
                cells += [self.winners[m][j], float(self.tau[m, j])]
            loose.append(tuple(cells))
        heads = ["without"]
        for method in self.methods:
            heads += [f"first by {method}", "τ"]
        return [
            Table(
                f"Aggregate ranking ({self.protocol.label}, {len(self.models)} models × {len(self.tasks)} tasks)",
                ("model", self.methods[0], *(f"rank by {m}" for m in self.methods)),
                tuple(rows),
                note="Intervals are those of the overall ranking.",
                digits=1,
            ),
            Table(
                f"The ranking without each task ({self.protocol.label})",
                tuple(heads),
                tuple(loose),
                note=f"With all tasks: {', '.join(f'{o[0]} ({m})' for m in self.methods if (o := self.order(m)))}.",
                digits=2,
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the ranks by every method."""
        order = [int(k) for k in np.argsort(self.ranks[:, 0], kind="stable") if np.isfinite(self.ranks[k, 0])]
        return [
            Heatmap(
                name=f"aggregate-methods-{self.protocol}",
                title=f"Rank by each way of aggregating: {self.protocol.label}",
                caption="1 is best. PC1: score on the first principal component; mean z: mean z score over tasks; "
                "Borda: share of comparisons with other models won; mean rank: over tasks.",
                rows=tuple(self.models[k] for k in order),
                columns=self.methods,
                values=self.ranks[order],
                digits=0,
                unit="rank",
                fewer=True,
                group="aggregate-methods",
            )
        ]


def aggregate_ranks(matrix: ScoreMatrix) -> Aggregate:
    """Rank the models over all tasks by PC1, mean z score, Borda and mean rank.

    With missing scores, PC1 ranks only the complete models; the others average over the tasks a model has, and a
    model is compared only with models that have the task too.
    """
    models, tasks = matrix.shape
    if tasks == 0 or models == 0:
        raise InputError("there is nothing to aggregate: no models or no tasks")
    values = matrix.oriented()
    names = tuple(METHODS)
    scores = np.stack([METHODS[name](values) for name in names], axis=1)
    ranks = np.stack([_ranks(scores[:, m]) for m in range(len(names))], axis=1)
    winners, tau = [], np.full((len(names), tasks), np.nan)
    for m, name in enumerate(names):
        if tasks == 1:
            winners.append(("",))
            continue
        without = np.stack([METHODS[name](np.delete(values, j, axis=1)) for j in range(tasks)], axis=1)
        first = np.argmax(np.where(np.isfinite(without), without, -np.inf), axis=0)
        winners.append(tuple(matrix.models[k] for k in first))
        tau[m] = kendall_matrix(scores[:, m : m + 1], without)[0]
    return Aggregate(
        protocol=matrix.protocol,
        models=matrix.models,
        tasks=matrix.tasks,
        methods=names,
        scores=scores,
        ranks=ranks,
        winners=tuple(winners),
        tau=tau,
    )


def first_component(values: Floats) -> Floats:
    """PC1 of the standardised scores; NaN for models with a missing score."""
    result = np.full(len(values), np.nan)
    whole = np.isfinite(values).all(axis=1)
    if whole.sum() > 1:
        z = standardise(values[whole])
        left, singular, loadings = np.linalg.svd(z, full_matrices=False)
        result[whole] = left[:, 0] * singular[0] * (-1.0 if loadings[0].sum() < 0 else 1.0)
    return result


def mean_z(values: Floats) -> Floats:
    """Mean over tasks of the z score among the models that have the task."""
    if np.isfinite(values).all():
        return np.asarray(standardise(values).mean(axis=1))
    z = np.full(values.shape, np.nan)
    for j in range(values.shape[1]):
        known = np.isfinite(values[:, j])
        if known.any():
            z[known, j] = standardise(values[known, j : j + 1])[:, 0]
    return nan_mean(z)


def borda(values: Floats) -> Floats:
    """Share of comparisons with other models, over all tasks, that a model wins; a tie counts half.

    With no score missing this orders the models as the mean rank does.
    """
    known = np.isfinite(values)
    wins = np.where(known, _task_ranks(values) - 1.0, 0.0).sum(axis=1)
    met = np.where(known, known.sum(axis=0) - 1, 0).sum(axis=1)
    return np.asarray(np.divide(wins, met, out=np.full(len(values), np.nan), where=met > 0))


def negative_mean_rank(values: Floats) -> Floats:
    """Mean rank over tasks, scaled to all models where some lack the task, turned so that higher is better."""
    return nan_mean(-_task_ranks(-values) / np.isfinite(values).sum(axis=0).clip(1) * len(values))


def _task_ranks(values: Floats) -> Floats:
    """Midranks on each task, 1 for the lowest, among the models that have it."""
    return np.asarray(rankdata(values, axis=0, nan_policy="omit"))


METHODS: dict[str, Callable[[Floats], Floats]] = {
    "PC1": first_component,
    "mean z": mean_z,
    "Borda": borda,
    "mean rank": negative_mean_rank,
}


def _ranks(scores: Floats) -> Floats:
    ranks = np.full(len(scores), np.nan)
    known = np.isfinite(scores)
    ranks[known] = rankdata(-scores[known])
    return ranks


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
        mean = np.array([float(nan_mean(r)) for r in self.rank])
        order = np.argsort(np.where(np.isnan(mean), np.inf, mean), kind="stable")
        rows: list[tuple[Cell, ...]] = [
            (
                self.models[k],
                float(mean[k]),
                float(nan_mean(self.best[k])),
                float(nan_mean(self.worst[k])),
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
        mean = np.array([float(nan_mean(r)) for r in self.rank])
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
                        low=tuple(float(nan_mean(self.best[k])) for k in order),
                        high=tuple(float(nan_mean(self.worst[k])) for k in order),
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

"""One ranking from many tasks, four ways.

*PC1* and *mean z* use the size of differences; *Borda* (the share of comparisons with other models that a model wins,
ties half) and *mean rank* only their order. Every aggregate comes with its top after leaving out each task in turn
(Zhang & Hardt). Which of the models is first, and how sure that is, is for ``decide_ranking``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from potentia.analysis.rank_chart import order_best_first
from potentia.analysis.rankings.components import principal_components
from potentia.analysis.stats.correlation import kendall_matrix, nan_mean
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Heatmap, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class Aggregate(Finding):
    """Aggregate scores and ranks of every model, and the ranking without each task."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    scores: (
        Floats  # (models, methods); higher is better, NaN where the method needs a missing score
    )
    ranks: Floats  # (models, methods); 1 is best
    # (methods, tasks): the best model when this task is left out; "" where none has a score
    winners: tuple[tuple[str, ...], ...]
    tau: Floats  # (methods, tasks): agreement with the full ranking

    def models_by(self, method: str) -> list[str]:
        """Return the models from best to worst by one method."""
        ranks = self.ranks[:, self.methods.index(method)]
        return list(select_positions(self.models, order_best_first(ranks)))

    def tables(self) -> Sequence[Table]:
        """Return the ranking by every method, and its sensitivity to each task."""
        return [self._tabulate_ranks(), self._tabulate_sensitivity()]

    def _tabulate_ranks(self) -> Table:
        table_rows = list(zip(self.models, self.scores[:, 0], *self.ranks.T, strict=True))
        order = np.argsort(self.ranks[:, 0], kind="stable")
        matrix_size = f"{len(self.models)} models × {len(self.tasks)} tasks"
        title = f"Aggregate ranking ({self.protocol.label}, {matrix_size})"
        return Table(
            title,
            (
                "model",
                f"{self.methods[0]} score",
                *(f"rank by {method}" for method in self.methods),
            ),
            select_positions(table_rows, order),
            note="No intervals here: the table of the overall ranking has them.",
            digits=1,
        )

    def _tabulate_sensitivity(self) -> Table:
        names = ["without"]
        columns: list[Sequence[str] | Floats] = [self.tasks]
        for row, method in enumerate(self.methods):
            names += [f"first by {method}", "τ"]
            columns += [self.winners[row], self.tau[row]]
        first_by_method = []
        for method in self.methods:
            models = self.models_by(method)
            if models:
                first_by_method.append(f"{models[0]} ({method})")
        return Table(
            f"The ranking without each task ({self.protocol.label})",
            names,
            zip(*columns, strict=True),
            f"With all tasks: {', '.join(first_by_method)}.",
            digits=2,
        )

    def charts(self) -> Sequence[Chart]:
        """Return the ranks by every method."""
        order = order_best_first(self.ranks[:, 0])
        caption = (
            "1 is best. PC1: score on the first principal component; mean z: mean z score over tasks; "
            "Borda: share of comparisons with other models won; mean rank: over tasks."
        )
        title = f"Rank by each way of aggregating: {self.protocol.label}"
        chart = Heatmap(
            f"aggregate-methods-{self.protocol}",
            title,
            caption,
            select_positions(self.models, order),
            self.methods,
            self.ranks[order],
            digits=0,
            unit="rank",
            fewer=True,
            group="aggregate-methods",
        )
        return [chart]


def aggregate_ranks(matrix: ScoreMatrix) -> Aggregate:
    """Rank the models over all tasks by PC1, mean z score, Borda and mean rank.

    With missing scores, PC1 ranks only the complete models; the others average over the tasks a model has, and a
    model is compared only with models that have the task too.
    """
    models, tasks = matrix.shape
    if tasks == 0 or models == 0:
        raise InputError("there is nothing to aggregate: no models or no tasks")
    values = matrix.oriented()
    scores = np.stack([method(values) for method in AGGREGATE_METHODS.values()], axis=1)
    winners: list[tuple[str, ...]] = [("",)] * len(AGGREGATE_METHODS)
    tau = np.full((len(AGGREGATE_METHODS), tasks), np.nan)
    if tasks > 1:
        for row, method in enumerate(AGGREGATE_METHODS.values()):
            left_out = [method(np.delete(values, column, axis=1)) for column in range(tasks)]
            scores_without = np.stack(left_out, axis=1)
            defined = np.isfinite(scores_without)
            first = np.argmax(np.where(defined, scores_without, -np.inf), axis=0)
            names = np.where(defined.any(axis=0), select_positions(matrix.models, first), "")
            winners[row] = tuple(names.tolist())
            tau[row] = kendall_matrix(scores[:, row : row + 1], scores_without)[0]
    ranks = np.asarray(rankdata(-scores, axis=0, nan_policy="omit"))
    return Aggregate(
        protocol=matrix.protocol,
        models=matrix.models,
        tasks=matrix.tasks,
        methods=tuple(AGGREGATE_METHODS),
        scores=scores,
        ranks=ranks,
        winners=tuple(winners),
        tau=tau,
    )


def first_component(values: Floats) -> Floats:
    """Return PC1 of the standardized scores; NaN for models with a missing score."""
    scores = np.full(len(values), np.nan)
    complete = np.isfinite(values).all(axis=1)
    if complete.sum() > 1:
        component_scores, _, _ = principal_components(values[complete])
        scores[complete] = component_scores[:, 0]
    return scores


def borda(values: Floats) -> Floats:
    """Return the share of comparisons with other models, over all tasks, that a model wins; a tie counts half.

    With no score missing this orders the models as the mean rank does.
    """
    is_scored = np.isfinite(values)
    win_counts = np.where(is_scored, _rank_on_tasks(values) - 1.0, 0.0).sum(axis=1)
    comparisons = np.where(is_scored, is_scored.sum(axis=0) - 1, 0).sum(axis=1)
    shares = np.full(len(values), np.nan)
    return np.asarray(np.divide(win_counts, comparisons, out=shares, where=comparisons > 0))


def negative_mean_rank(values: Floats) -> Floats:
    """Return the mean rank over tasks, scaled to all models where some lack the task, negated: higher is better."""
    models_of_task = np.isfinite(values).sum(axis=0).clip(1)
    return nan_mean(-_rank_on_tasks(-values) / models_of_task * len(values))


def _rank_on_tasks(values: Floats) -> Floats:
    """Return midranks on each task, 1 for the lowest, among the models that have it."""
    return np.asarray(rankdata(values, axis=0, nan_policy="omit"))


AGGREGATE_METHODS: dict[str, Callable[[Floats], Floats]] = {
    "PC1": first_component,
    "mean z": mean_z_scores,
    "Borda": borda,
    "mean rank": negative_mean_rank,
}

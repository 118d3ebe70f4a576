"""One ranking from many tasks, four ways; the ranks that a model may have on a task; how few tasks suffice.

*PC1* and *mean z* use the size of differences; *Borda* (the share of comparisons with other models that a model wins,
ties half) and *mean rank* only their order. Every aggregate comes with its top after leaving out each task in turn
(Zhang & Hardt). Which of the models is first, and how sure that is, is for ``decide``.

On a task a model's rank lies between 1 + (models that significantly beat it) and n − (models it beats). With the
pairwise z threshold each interval holds model by model; with the quantile of the largest of all pairwise |z| (Tukey's
range, unequal errors, simulated) all intervals of a task hold together.

Agreement of a fixed subset of tasks with the ranking over all (section 4) is judged on other models than those that
chose it, with lineages on one side: tasks are added one by one, each time the one that raises τ the most per cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.rank_chart import order_best_first, plot_ranks
from potentia.analysis.rankings.components import principal_components
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.stats.bootstrap import LEVEL, kendall_by_row
from potentia.analysis.stats.correlation import kendall_matrix, nan_mean
from potentia.analysis.stats.first_place import covariance_root
from potentia.analysis.stats.standardize import mean_z_scores, standardize
from potentia.errors import InputError
from potentia.values.findings import (
    Chart,
    Finding,
    Heatmap,
    Interval,
    Line,
    Plot,
    Table,
    picked,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix


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
    winners: tuple[tuple[str, ...], ...]  # (methods, tasks): first model without that task
    tau: Floats  # (methods, tasks): agreement with the full ranking

    def order(self, method: str) -> list[str]:
        """Return the models from best to worst by one method."""
        return list(
            picked(self.models, order_best_first(self.ranks[:, self.methods.index(method)]))
        )

    def tables(self) -> Sequence[Table]:
        """Return the ranking by every method, and its sensitivity to each task."""
        rows = list(zip(self.models, self.scores[:, 0], *self.ranks.T, strict=True))
        best = picked(rows, np.argsort(self.ranks[:, 0], kind="stable"))
        pairs = (
            pair for both in zip(self.winners, self.tau, strict=True) for pair in both
        )  # first and τ, by method
        heads = (
            "without",
            *(head for method in self.methods for head in (f"first by {method}", "τ")),
        )
        title = f"Aggregate ranking ({self.protocol.label}, {len(self.models)} models × {len(self.tasks)} tasks)"
        columns = ("model", self.methods[0], *(f"rank by {m}" for m in self.methods))
        note = f"With all tasks: {', '.join(f'{o[0]} ({m})' for m in self.methods if (o := self.order(m)))}."
        without, loose = (
            f"The ranking without each task ({self.protocol.label})",
            zip(self.tasks, *pairs, strict=True),
        )
        return [
            Table(
                title, columns, best, note="Intervals are those of the overall ranking.", digits=1
            ),
            Table(without, heads, loose, note, digits=2),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the ranks by every method."""
        order = order_best_first(self.ranks[:, 0])
        name, title = (
            f"aggregate-methods-{self.protocol}",
            f"Rank by each way of aggregating: {self.protocol.label}",
        )
        caption = (
            "1 is best. PC1: score on the first principal component; mean z: mean z score over tasks; "
            "Borda: share of comparisons with other models won; mean rank: over tasks."
        )
        cells = picked(self.models, order), self.methods, self.ranks[order]
        return [
            Heatmap(
                name,
                title,
                caption,
                *cells,
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
    scores = np.stack([method(values) for method in METHODS.values()], axis=1)
    ranks = np.asarray(rankdata(-scores, axis=0, nan_policy="omit"))
    winners: list[tuple[str, ...]] = [("",)] * len(METHODS)
    tau = np.full((len(METHODS), tasks), np.nan)
    for m, method in enumerate(METHODS.values() if tasks > 1 else ()):
        without = np.stack([method(np.delete(values, j, axis=1)) for j in range(tasks)], axis=1)
        first = np.argmax(np.where(np.isfinite(without), without, -np.inf), axis=0)
        winners[m] = picked(matrix.models, first)
        tau[m] = kendall_matrix(scores[:, m : m + 1], without)[0]
    return Aggregate(
        matrix.protocol,
        matrix.models,
        matrix.tasks,
        tuple(METHODS),
        scores,
        ranks,
        tuple(winners),
        tau,
    )


def first_component(values: Floats) -> Floats:
    """PC1 of the standardised scores; NaN for models with a missing score."""
    result = np.full(len(values), np.nan)
    whole = np.isfinite(values).all(axis=1)
    if whole.sum() > 1:
        result[whole] = principal_components(values[whole])[0][:, 0]
    return result


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
    "mean z": mean_z_scores,
    "Borda": borda,
    "mean rank": negative_mean_rank,
}


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
        mean, best, worst = self._means()
        rows = list(zip(self.models, mean, best, worst, (self.best == 1).sum(axis=1), strict=True))
        title = f"Rank intervals, mean over {len(self.tasks)} tasks ({self.protocol.label}, {self.level:.0%}, {kind})"
        columns = (
            "model",
            "mean rank",
            "best possible",
            "worst possible",
            "tasks where it may be first",
        )
        return [
            Table(title, columns, picked(rows, np.argsort(mean, kind="stable")), digits=1)
        ]  # NaN last

    def charts(self) -> Sequence[Chart]:
        """Return the mean intervals as a chart, best model first."""
        caption = "Mean rank over tasks, between the mean best and the mean worst possible rank."
        name, title = f"rank-intervals-{self.protocol}", f"Rank intervals: {self.protocol.label}"
        return [
            plot_ranks(name, title, caption, self.models, *self._means(), group="rank-intervals")
        ]

    def _means(self) -> tuple[Floats, Floats, Floats]:
        return nan_mean(self.rank), nan_mean(self.best), nan_mean(self.worst)


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
            message = f"{task} has scores without standard errors"
            raise InputError(message, hint="leave the task out, or score it with Potentia")
        noise = task_noise(matrix, column, items).full_covariance()[np.ix_(known, known)]
        apart = np.sqrt(np.maximum(np.diag(noise)[:, None] + np.diag(noise) - 2 * noise, 0.0))
        threshold = (
            simultaneous_threshold(noise, level, rng)
            if simultaneous
            else float(norm.ppf(0.5 + level / 2))
        )
        rank[known, column] = rankdata(-score, method="average")
        beats = score[:, None] - score > threshold * apart
        best[known, column], worst[known, column] = (
            1 + beats.sum(axis=0),
            len(score) - beats.sum(axis=1),
        )
    return RankIntervals(
        matrix.protocol, level, simultaneous, matrix.models, matrix.tasks, rank, best, worst
    )


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
    half = covariance_root(noise)
    scale = np.sqrt(np.maximum(noise[a, a] + noise[b, b] - 2 * noise[a, b], 0.0))
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0).astype(np.float32)
    largest = np.empty(simulations)
    step = max(1, (1 << 17) // len(a))
    for start in range(0, simulations, step):
        drawn = (rng.standard_normal((min(step, simulations - start), count)) @ half.T).astype(
            np.float32
        )
        largest[start : start + step] = (np.abs(drawn[:, a] - drawn[:, b]) * per_unit).max(axis=1)
    return float(np.quantile(largest, level))


SPLITS = 40
LEAST = 8  # models of a curve


@dataclass(frozen=True)
class TaskCurve(Finding):
    """Agreement of subsets of one, two, three … tasks with the whole, on models that the choice did not see."""

    protocol: Protocol
    tasks: tuple[str, ...]  # in the order of choice, on all models
    cost: Floats  # share of the cost of all tasks so far
    held_out: tuple[Interval, ...]  # τ on models left out, mean and 10–90 % over splits
    seen: Floats  # τ on the models that chose
    any_subset: Floats  # τ of random subsets of that size, on the models left out

    def tasks_needed(self, agreement: float) -> int | None:
        """Return how many tasks reach this agreement; None where no subset does."""
        return next(
            (k + 1 for k, value in enumerate(self.held_out) if value.value >= agreement), None
        )

    def tables(self) -> Sequence[Table]:
        """Return the curve."""
        held, spans = zip(
            *((h.value, f"{h.low:.3f}–{h.high:.3f}") for h in self.held_out), strict=True
        )
        parts = self.tasks, self.cost, held, spans, self.seen, self.any_subset
        reached = {level: self.tasks_needed(level) for level in (0.8, 0.9, 0.95)}
        said = ", ".join(f"τ {level:g} takes {k}" for level, k in reached.items() if k is not None)
        columns = (
            "tasks",
            "added",
            "cost share",
            "τ, other models",
            "10–90 %",
            "τ, same models",
            "random",
        )
        note = "Chosen on half of the models, judged on the others."
        note += f" Of {len(self.tasks)} tasks, {said}." if said else ""
        rows = zip(range(1, len(held) + 1), *parts, strict=True)
        return [Table(f"How few tasks suffice ({self.protocol.label})", columns, rows, note)]

    def charts(self) -> Sequence[Chart]:
        """Return agreement against cost."""
        name, title = (
            f"fewer-tasks-{self.protocol}",
            "Agreement with the whole ranking against cost",
        )
        caption = "Fixed subsets of tasks, chosen on half of the models; random ones beside."
        lines = (
            Line("on other models", self.cost, [h.value for h in self.held_out]),
            Line("on the same models", self.cost, self.seen),
            Line("random tasks, by number", self.cost, self.any_subset, dashed=True),
        )
        drawn = (), lines, "share of the cost of all tasks", "Kendall's τ"
        return [Plot(name, f"{title}: {self.protocol.label}", caption, *drawn, group="fewer-tasks")]


def measure_task_curve(
    matrix: ScoreMatrix,
    *,
    costs: Mapping[str, float] = NO_ENTRIES,
    lineages: Mapping[str, str] = NO_ENTRIES,
    splits: int = SPLITS,
    seed: int = 0,
) -> TaskCurve:
    """Measure how agreement rises with the tasks of a fixed subset; ``costs`` by task, else all cost the same."""
    whole = matrix.benchmarks().complete()
    values, names = whole.oriented(), whole.models
    if not has_enough_for_curve(whole):
        few = f"{len(names)} models have all of {len(whole.tasks)} tasks: too few to choose on some and judge on others"
        raise InputError(few, hint=f"at least {LEAST} models and two tasks are needed")
    price = np.array([costs.get(t, np.nan) for t in whole.tasks], dtype=np.float64)
    price = np.where(
        np.isnan(price), np.nanmedian(price) if np.isfinite(price).any() else 1.0, price
    )
    kin = np.array([lineages.get(m, m) for m in names])
    kin = kin if len(set(kin.tolist())) >= LEAST // 2 else np.array(names)
    rng = np.random.default_rng(seed)
    count = len(whole.tasks)
    seen, other, plain = (np.empty((splits, count)) for _ in range(3))
    for split in range(splits):
        groups = rng.permutation(np.unique(kin))
        inside = np.isin(kin, groups[: len(groups) // 2])
        order = choose_tasks(values[inside], price)
        seen[split] = _taus(values[inside], order)
        other[split] = _taus(values[~inside], order)
        plain[split] = _taus(values[~inside], rng.permutation(count))
    final = choose_tasks(values, price)
    mean, (low, high) = np.nanmean(other, axis=0), np.nanquantile(other, [0.1, 0.9], axis=0)
    cost, same, chance = (
        np.cumsum(price[final]) / price.sum(),
        np.nanmean(seen, axis=0),
        np.nanmean(plain, axis=0),
    )
    held_out = tuple(
        Interval(*one, 0.8) for one in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
    )
    return TaskCurve(whole.protocol, picked(whole.tasks, final), cost, held_out, same, chance)


def has_enough_for_curve(whole: ScoreMatrix) -> bool:
    """Whether there are models to choose tasks on and others to judge by."""
    return len(whole.models) >= LEAST and len(whole.tasks) > 1


def choose_tasks(values: Floats, price: Floats) -> npt.NDArray[np.intp]:
    """Order the tasks: each time the one that raises τ with the whole the most for its cost."""
    z = standardize(values)
    truth, count = z.mean(axis=1), values.shape[1]
    order: list[int] = []
    total, held = np.zeros(len(values)), 0.0
    while len(order) < count:
        left = np.setdiff1d(np.arange(count), order)
        taus = np.nan_to_num(kendall_by_row(truth, (total[:, None] + z[:, left]).T))
        gain = np.maximum(taus - held, 0.0)
        # Where nothing raises τ any more, the least harm.
        worth = gain / price[left] if gain.max() > 0 else taus
        best = int(np.argmax(worth))
        order.append(int(left[best]))
        total, held = total + z[:, left[best]], float(taus[best])
    return np.array(order)


def _taus(values: Floats, order: npt.NDArray[np.intp]) -> Floats:
    """τ of the first one, two, three … tasks with all of them."""
    return kendall_by_row(mean_z_scores(values), np.cumsum(standardize(values)[:, order], axis=1).T)

"""How few tasks suffice for the ranking over all.

Agreement of a fixed subset of tasks with the ranking over all (section 4) is judged on other models than those that
chose it, with lineages on one side: tasks are added one by one, each time the one that raises τ the most per cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.standardize import standardize
from potentia.errors import InputError
from potentia.values.findings import (
    Chart,
    Finding,
    Interval,
    Line,
    Plot,
    Table,
    ValuedText,
    select_positions,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

Groups = npt.NDArray[np.intp]  # (tasks,): the number of each task's benchmark
SPLITS = 40
LEAST_MODELS = 8  # of a curve
REPORTED_AGREEMENTS = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class TaskCurve(Finding):
    """Agreement of subsets of one, two, three … tasks with all of them, on models that the choice did not see."""

    protocol: Protocol
    tasks: tuple[str, ...]  # in the order of choice, on all models
    cost: Floats  # share of the cost of all tasks so far
    held_out: tuple[Interval, ...]  # τ on models left out, mean and 10–90 % over splits
    seen: Floats  # τ on the models that chose
    any_subset: Floats  # τ of random subsets of that size, on the models left out

    def tasks_needed(self, agreement: float) -> int | None:
        """Return how many tasks reach this agreement; None where no subset does."""
        for count, tau in enumerate(self.held_out, start=1):
            if tau.value >= agreement:
                return count
        return None

    def tables(self) -> Sequence[Table]:
        """Return the curve."""
        table_rows = zip(
            range(1, len(self.held_out) + 1),
            self.tasks,
            self.cost,
            [tau.value for tau in self.held_out],
            map(_format_span, self.held_out),
            self.seen,
            self.any_subset,
            strict=True,
        )
        column_names = (
            "tasks",
            "added",
            "cost share",
            "τ, other models",
            "10–90 %",
            "τ, same models",
            "random",
        )
        note = "Chosen on half of the models, judged on the others."
        reached = []
        for agreement in REPORTED_AGREEMENTS:
            count = self.tasks_needed(agreement)
            if count is not None:
                reached.append(f"τ {agreement:g} takes {count}")
        if reached:
            note += f" Of {len(self.tasks)} tasks, {', '.join(reached)}."
        title = f"How few tasks suffice ({self.protocol.label})"
        frame_names = {"10–90 %": "tau_other_models"}
        return [Table(title, column_names, table_rows, note, frame_names=frame_names)]

    def charts(self) -> Sequence[Chart]:
        """Return agreement against cost."""
        held_out = [tau.value for tau in self.held_out]
        title = f"Agreement with the whole ranking against cost: {self.protocol.label}"
        chart = Plot(
            f"fewer-tasks-{self.protocol}",
            title,
            "Subsets of tasks that were chosen on half of the models, and random subsets for comparison.",
            (),
            (
                Line("on other models", self.cost, held_out),
                Line("on the same models", self.cost, self.seen),
                Line("random tasks, by number", self.cost, self.any_subset, dashed=True),
            ),
            x_label="share of the cost of all tasks",
            y_label="Kendall's τ",
            group="fewer-tasks",
        )
        return [chart]


def measure_task_curve(
    matrix: ScoreMatrix,
    *,
    costs: Mapping[str, float] = NO_ENTRIES,
    lineages: Mapping[str, str] = NO_ENTRIES,
    task_groups: Mapping[str, str] | None = None,
    splits: int = SPLITS,
    seed: int = 0,
) -> TaskCurve:
    """Measure how agreement rises with the tasks of a fixed subset; ``costs`` by task, else all cost the same.

    ``task_groups`` are groups by task that the user names, beside those that names and facts tell: the ranking over all
    tasks counts a benchmark once. Without it every task counts by itself, as in the paper.
    """
    complete = matrix.benchmarks().drop_incomplete_models()
    if not has_enough_for_curve(complete):
        available = f"{len(complete.models)} models have all of {len(complete.tasks)} tasks"
        raise InputError(
            f"{available}: too few to choose on some and judge on others",
            hint=f"at least {LEAST_MODELS} models and two tasks are needed",
        )
    values = complete.oriented()
    task_costs = _fill_costs(complete.tasks, costs)
    groups = np.arange(len(complete.tasks))
    if task_groups is not None:
        groups = TaskGroups.find(complete.tasks, task_groups).positions
    lineage_of_row = _divide_by_lineage(complete.models, lineages)
    rng = np.random.default_rng(seed)
    tasks = len(complete.tasks)
    tau_of_choosing = np.empty((splits, tasks))
    held_out = np.empty((splits, tasks))
    random_subsets = np.empty((splits, tasks))
    for split in range(splits):
        shuffled = rng.permutation(np.unique(lineage_of_row))
        choosing = np.isin(lineage_of_row, shuffled[: len(shuffled) // 2])
        order = choose_tasks(values[choosing], task_costs, groups)
        tau_of_choosing[split] = _agreement_of_first(values[choosing], order, groups)
        held_out[split] = _agreement_of_first(values[~choosing], order, groups)
        random_order = rng.permutation(tasks)
        random_subsets[split] = _agreement_of_first(values[~choosing], random_order, groups)
    final_order = choose_tasks(values, task_costs, groups)
    cost = np.cumsum(task_costs[final_order]) / task_costs.sum()
    tau_of_half = np.nanmean(tau_of_choosing, axis=0)
    any_subset = np.nanmean(random_subsets, axis=0)
    return TaskCurve(
        protocol=complete.protocol,
        tasks=select_positions(complete.tasks, final_order),
        cost=cost,
        held_out=_summarize_splits(held_out),
        seen=tau_of_half,
        any_subset=any_subset,
    )


def _fill_costs(tasks: Sequence[str], costs: Mapping[str, float]) -> Floats:
    """Return the cost of each task; the median of the known ones, or 1, where it is not known."""
    task_costs = np.array([costs.get(task, np.nan) for task in tasks], dtype=np.float64)
    usual = 1.0
    if np.isfinite(task_costs).any():
        usual = float(np.nanmedian(task_costs))
    return np.where(np.isnan(task_costs), usual, task_costs)


def _divide_by_lineage(models: Sequence[str], lineages: Mapping[str, str]) -> npt.NDArray[np.str_]:
    """Return the lineage of each model, which stays on one side; each model by itself where lineages are few."""
    labels = np.array([lineages.get(model, model) for model in models])
    if len(set(labels.tolist())) >= LEAST_MODELS // 2:
        return labels
    return np.array(models)


def _summarize_splits(tau: Floats) -> tuple[Interval, ...]:
    """Return the mean over splits and the middle 80 % of them, for each number of tasks."""
    mean = np.nanmean(tau, axis=0)
    low, high = np.nanquantile(tau, [0.1, 0.9], axis=0)
    rows = zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
    return tuple(Interval(value, low, high, level=0.8) for value, low, high in rows)


def has_enough_for_curve(complete: ScoreMatrix) -> bool:
    """Whether there are models to choose tasks on and others to judge by."""
    return len(complete.models) >= LEAST_MODELS and len(complete.tasks) > 1


def choose_tasks(values: Floats, costs: Floats, groups: Groups) -> npt.NDArray[np.intp]:
    """Order the tasks: each time the one that raises τ with the whole the most for its cost."""
    z_scores = standardize(values)
    tasks = values.shape[1]
    target = z_scores @ (1.0 / np.bincount(groups)[groups])
    order: list[int] = []
    sums = np.zeros((len(values), int(groups.max()) + 1))  # (models, groups): of the chosen tasks
    counts = np.zeros(int(groups.max()) + 1)
    reached = 0.0
    while len(order) < tasks:
        remaining = np.setdiff1d(np.arange(tasks), order)
        means = sums / np.maximum(counts, 1)
        of_groups = groups[remaining]
        with_candidate = (sums[:, of_groups] + z_scores[:, remaining]) / (counts[of_groups] + 1)
        candidates = means.sum(axis=1, keepdims=True) - means[:, of_groups] + with_candidate
        taus = np.nan_to_num(kendall_by_row(target, candidates.T))
        gains = np.maximum(taus - reached, 0.0)
        # Where nothing raises τ any more, the least harm.
        worth = gains / costs[remaining] if gains.max() > 0 else taus
        best_candidate = int(np.argmax(worth))
        best_task = int(remaining[best_candidate])
        order.append(best_task)
        sums[:, groups[best_task]] += z_scores[:, best_task]
        counts[groups[best_task]] += 1
        reached = float(taus[best_candidate])
    return np.array(order)


def _agreement_of_first(values: Floats, order: npt.NDArray[np.intp], groups: Groups) -> Floats:
    """Return τ of the first one, two, three … tasks with all of them."""
    z_scores = standardize(values)
    sums = np.zeros((int(groups.max()) + 1, len(values)))  # of the tasks so far, by group
    counts = np.zeros(len(sums))
    total = np.zeros(len(values))  # of the means of all groups
    totals = []
    for task in order.tolist():
        group = groups[task]
        total = total - sums[group] / max(counts[group], 1.0)
        sums[group] += z_scores[:, task]
        counts[group] += 1
        total = total + sums[group] / counts[group]
        totals.append(total)
    return kendall_by_row(totals[-1], np.array(totals))


def _format_span(tau: Interval) -> ValuedText:
    return ValuedText(f"{tau.low:.3f}–{tau.high:.3f}", low=tau.low, high=tau.high)

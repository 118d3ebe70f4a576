"""Every two models on every task: which differences are significant, and how large one must be to be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from potentia.analysis.rankings.decide import select_tasks_of_one_scale
from potentia.analysis.rankings.lead import detectable_z
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import (
    benjamini_hochberg,
    find_task_p_values,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

Counts = npt.NDArray[np.int_]


@dataclass(frozen=True)
class EvidenceMap:
    """Every pair of models (in the order of ``np.triu_indices``) on every task of one protocol."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    basis: tuple[str, ...]  # per task: McNemar, paired t or z test
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    difference: Floats  # (pairs, tasks), first minus second, higher is better
    p: Floats  # (pairs, tasks)
    critical: (
        Floats  # (tasks,) the largest p that Benjamini–Hochberg keeps over all pairs of the task
    )
    detectable: Floats  # (pairs,) of the mean difference
    mean: Floats  # (pairs,) mean difference over the shared tasks
    mean_p: Floats  # (pairs,)
    level: float = LEVEL

    def count_outcomes(self) -> tuple[Counts, Counts, Counts]:
        """Return wins, losses and ties of the first model of every pair, over the tasks that both have."""
        tested = np.isfinite(self.p)
        significant = tested & (self.p < 1 - self.level)
        win_counts = (significant & (self.difference > 0)).sum(axis=1)
        loss_counts = (significant & (self.difference < 0)).sum(axis=1)
        tie_counts = tested.sum(axis=1) - win_counts - loss_counts
        return win_counts, loss_counts, tie_counts

    def pair_rows(self) -> list[tuple[int | float, ...]]:
        """Return wins, losses, ties, mean difference, its p and what is detectable of every pair over all tasks."""
        win_counts, loss_counts, tie_counts = self.count_outcomes()
        columns = (win_counts, loss_counts, tie_counts, self.mean, self.mean_p, self.detectable)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def map_evidence(
    matrix: ScoreMatrix,
    outcomes: Outcomes | None = None,
    task_groups: Mapping[str, str] | None = None,
) -> EvidenceMap | None:
    """Compare every two models on every higher-is-better task with standard errors; None where there is none.

    The mean difference is over tasks of one scale, those of one benchmark counting as one (``task_groups``: by name).
    """
    tested = _select_testable(matrix)
    if tested is None:
        return None
    first_of_pair, second_of_pair = np.triu_indices(len(tested.models), 1)
    difference = tested.values[first_of_pair] - tested.values[second_of_pair]
    tests = [find_task_p_values(tested, task, outcomes) for task in tested.tasks]
    p_values = np.stack([of_task.p_values for of_task in tests], axis=1)
    groups = TaskGroups.find(tested.tasks, task_groups)
    mean, error = _mean_differences(tested, difference, groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_p = np.where(mean == 0, 1.0, 2.0 * norm.sf(np.abs(mean / error)))
    detectable = np.where(np.isfinite(mean), detectable_z(LEVEL) * error, np.nan)
    return EvidenceMap(
        protocol=matrix.protocol,
        models=tested.models,
        tasks=tested.tasks,
        basis=tuple(of_task.test for of_task in tests),
        values=tested.values,
        stderr=tested.stderr,
        difference=difference,
        p=p_values,
        critical=_critical_p_values(p_values),
        detectable=detectable,
        mean=mean,
        mean_p=mean_p,
    )


def _select_testable(matrix: ScoreMatrix) -> ScoreMatrix | None:
    """Return the models with scores and the tasks on which two of them can be tested; None where there is none."""
    measured = np.isfinite(matrix.values)
    usable_tasks = matrix.sign > 0
    usable_tasks &= measured.sum(axis=0) > 1
    usable_tasks &= np.isfinite(matrix.stderr).any(axis=0)
    usable_models = measured.any(axis=1)
    if not usable_tasks.any() or usable_models.sum() < 2:
        return None
    return matrix.select(models=usable_models, tasks=usable_tasks)


def _mean_differences(
    matrix: ScoreMatrix, difference: Floats, groups: TaskGroups
) -> tuple[Floats, Floats]:
    """Return the mean difference of every pair over the tasks that both have, and its standard error."""
    first_of_pair, second_of_pair = np.triu_indices(len(matrix.models), 1)
    variance = matrix.stderr[first_of_pair] ** 2 + matrix.stderr[second_of_pair] ** 2
    averaged_tasks = set(select_tasks_of_one_scale(matrix))
    is_averaged = np.array([task in averaged_tasks for task in matrix.tasks])
    is_shared = np.isfinite(difference) & np.isfinite(variance) & is_averaged
    weights = np.where(is_shared, groups.shares, 0.0)  # (pairs, tasks)
    total_weight = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(total_weight > 0, total_weight, 1.0)
    total = (weights * np.where(is_shared, difference, 0.0)).sum(axis=1)
    mean = np.where(is_shared.any(axis=1), total, np.nan)
    error = np.sqrt((weights**2 * np.where(is_shared, variance, 0.0)).sum(axis=1))
    return mean, error


def _critical_p_values(p_values: Floats) -> Floats:
    """Return the largest p of each task that Benjamini–Hochberg keeps; 0 where it keeps none."""
    significant_p_values = np.where(benjamini_hochberg(p_values) <= 1 - LEVEL, p_values, np.nan)
    critical = np.zeros(significant_p_values.shape[1])
    for column in range(significant_p_values.shape[1]):
        if np.isfinite(significant_p_values[:, column]).any():
            critical[column] = np.nanmax(significant_p_values[:, column])
    return critical

"""Robustness: whether the data that a small model was trained on moves a task more than the luck of its seed.

R is the variance of a task's scores over models trained on different data, divided by the variance over models that
differ only in their seed (proxy-task paper, section 3.2). It is a ratio of two variances, so under normal scores its
interval is that of the F distribution. With five and three models the interval spans a factor of four hundred; the
finding says so and calls a task robust only where the interval lies above one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as f_distribution

from potentia.analysis.stats.bootstrap import three
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Interval, Table
from potentia.values.scores import ScoreMatrix

_SMALL_GROUP = 6


@dataclass(frozen=True)
class TaskRobustness:
    """One task's two variances and their ratio, with what the data can say about it."""

    task: str
    data_models: int
    seed_models: int
    data_variance: float
    seed_variance: float
    ratio: Interval  # R
    p_value: float  # that the data moves the task no more than the seed does
    verdict: str  # "robust", "noise" or "cannot tell", with the reason where there is one


@dataclass(frozen=True)
class Robustness(Finding):
    """Robustness of every task from two groups of small models."""

    tasks: tuple[TaskRobustness, ...]

    def tables(self) -> Sequence[Table]:
        """Return table 5's layout, with the interval and the verdict."""
        sizes = [(t.data_models, t.seed_models) for t in self.tasks]
        note = "R above one: data moves the task more than the seed does. Interval: F distribution, normal scores."
        if sizes and min(min(pair) for pair in sizes) < _SMALL_GROUP:
            data, seeds = min(sizes)
            widest = _width(data, seeds)
            note += f" Groups as small as {data} and {seeds} models: the interval spans a factor of {widest:.0f}."
        columns = ("task", "data models", "seed models", "seed variance", "data variance", "R", "low", "high", "p",
                   "verdict")  # fmt: skip
        rows = []
        for t in self.tasks:
            variances = (t.data_models, t.seed_models, t.seed_variance, t.data_variance)
            rows.append((t.task, *variances, *three(t.ratio), t.p_value, t.verdict))
        title = "Robustness to training: variance over data against variance over seeds"
        return (Table(title, columns, tuple(rows), note=note),)

    def charts(self) -> Sequence[Chart]:
        """Return R with its interval, one bar per task."""
        known = [t for t in self.tasks if np.isfinite(t.ratio.value)]
        caption = "Variance over data divided by variance over seeds. Below one, the seed matters more than the data."
        names, ratios = [t.task for t in known], {"R": [t.ratio for t in known]}
        return (Bars.of("robustness", "Robustness of each task", caption, names, ratios, "R"),)


def measure_robustness(
    scores: ScoreMatrix, data_group: Sequence[str], seed_group: Sequence[str], *, level: float = 0.95
) -> Robustness:
    """Compare, task by task, the models trained on different data with those that differ in their seed only."""
    both = sorted(set(data_group) & set(seed_group))
    if both:
        raise InputError(f"in both groups: {', '.join(both)}", hint="a model differs either in its data or in its seed")
    data, seeds = scores.select(models=data_group).values, scores.select(models=seed_group).values
    return Robustness(
        tuple(variance_ratio(data[:, j], seeds[:, j], task=task, level=level) for j, task in enumerate(scores.tasks))
    )


def variance_ratio(
    data: Sequence[float] | np.ndarray, seeds: Sequence[float] | np.ndarray, *, task: str = "", level: float = 0.95
) -> TaskRobustness:
    """Divide the two sample variances and give the ratio its F interval: [R / F(1-α/2), R / F(α/2)]."""
    first, second = (np.asarray(group, dtype=np.float64) for group in (data, seeds))
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    nan = float("nan")
    top = float(first.var(ddof=1)) if len(first) > 1 else nan
    bottom = float(second.var(ddof=1)) if len(second) > 1 else nan
    sizes = (len(first), len(second))
    if min(sizes) < 2 or bottom == 0.0:
        why = "a variance needs two models in each group" if min(sizes) < 2 else "all seeds score the same"
        unknown = Interval(nan, nan, nan, level)
        return TaskRobustness(task, *sizes, top, bottom, unknown, nan, f"cannot tell: {why}")
    ratio, freedom = top / bottom, (len(first) - 1, len(second) - 1)
    tail = (1 - level) / 2
    low, high = ratio / f_distribution.ppf(1 - tail, *freedom), ratio / f_distribution.ppf(tail, *freedom)
    verdict = "robust" if low > 1 else "noise" if high < 1 else "cannot tell"
    p_value = float(f_distribution.sf(ratio, *freedom))
    return TaskRobustness(task, *sizes, top, bottom, Interval(ratio, float(low), float(high), level), p_value, verdict)


def _width(data: int, seeds: int, level: float = 0.95) -> float:
    """How many times larger the interval's upper end is than its lower end, for these group sizes."""
    if min(data, seeds) < 2:
        return float("inf")
    tail = (1 - level) / 2
    return float(f_distribution.ppf(1 - tail, data - 1, seeds - 1) / f_distribution.ppf(tail, data - 1, seeds - 1))

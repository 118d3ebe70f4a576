"""A method is a protocol with a prompt form: ``direct``, ``blank_ppl``, ``train_before_test:cloze``.

A task named ``arc_easy:blank_ppl`` is the benchmark ``arc_easy`` in the form ``blank_ppl``. Stability, consistency and
the ablation compare methods on the same benchmark, so they read score matrices as columns of (benchmark, method), and
the first two say how much one method's tau improves on another's.

The ablation itself has the layout of BOSE's table 4, its summary figure 5: in each cell of model and benchmark the
methods are ranked (1 is best, ties share the mean rank), and the ranks are averaged over the cells. The interval
resamples models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from potentia.analysis.left_out import left_out, noted
from potentia.errors import InputError
from potentia.values.findings import Bars, Cell, Chart, Finding, Heatmap, Interval, Table
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix

DRAWS = 2_000  # of an interval


@dataclass(frozen=True, eq=False)
class Column:
    """The scores of some models on one benchmark by one method; higher always means better."""

    task: str
    method: str
    models: tuple[str, ...]
    values: Floats  # (models,)
    stderr: Floats  # (models,)

    def at(self, models: Sequence[str]) -> tuple[Floats, Floats]:
        """Return values and standard errors of these models, NaN where the column lacks one."""
        nothing = (np.nan, np.nan)
        known = dict(zip(self.models, zip(self.values, self.stderr, strict=True), strict=True))
        both = np.array([known.get(model, nothing) for model in models], dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def columns(scores: Mapping[Protocol, ScoreMatrix]) -> tuple[Column, ...]:
    """Read matrices, keyed by protocol, as columns; a column without any score is left out.

    A form that was scored without tuning or examples needs no protocol in front of its name.
    """
    found: list[Column] = []
    for protocol, matrix in scores.items():
        oriented = matrix.oriented()
        for k, name in enumerate(map(TaskName, matrix.tasks)):
            method = f"{protocol}:{name.form}" if name.form and protocol != "direct" else name.form or protocol
            if np.isfinite(oriented[:, k]).any():
                found.append(Column(name.base, method, matrix.models, oriented[:, k], matrix.stderr[:, k]))
    if not found:
        raise InputError("no scores to analyse", hint="choose a protocol and tasks that have scores")
    return tuple(found)


def order_methods(found: Sequence[Column], baseline: str | None = None) -> tuple[str, ...]:
    """Return the methods in order of appearance, the baseline first where one is named."""
    names = tuple(dict.fromkeys(column.method for column in found))
    if baseline is None:
        return names
    if baseline not in names:
        raise InputError(f"no method {baseline!r} in these scores", hint=f"there are: {', '.join(names)}")
    return (baseline, *(name for name in names if name != baseline))


def tau_heatmap(name: str, title: str, caption: str, taus: Mapping[tuple[str, str], float]) -> Heatmap:
    """Draw Kendall's tau by (label, method)."""
    rows, methods = (tuple(dict.fromkeys(key[k] for key in taus)) for k in (0, 1))
    values = np.array([[taus.get((row, method), np.nan) for method in methods] for row in rows])
    return Heatmap(name, title, caption, rows, methods, values, low=-1, high=1, diverging=True)


def mean_tau(taus: Sequence[float]) -> float:
    """Return the mean of those that are known."""
    known = [tau for tau in taus if np.isfinite(tau)]
    return float(np.mean(known)) if known else float("nan")


@dataclass(frozen=True)
class Improvement:
    """How much more stable (or consistent) one method is than another on the same models."""

    series: str
    task: str
    method: str
    baseline: str
    difference: Interval

    @property
    def real(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


def improvement_table(what: str, improvements: Sequence[Improvement], group: str) -> Table:
    """Lay out improvements: one row per benchmark and method, with whether the interval leaves out zero."""
    rows = tuple(
        (i.series, i.task, i.method, i.difference.value, i.difference.low, i.difference.high, "yes" if i.real else "no")
        for i in improvements
    )
    title = f"Improvement in {what} over {improvements[0].baseline}"
    columns = (group, "task", "method", "difference", "low", "high", "real")
    return Table(title, columns, rows, note="real: the interval leaves out zero.")


def improvement_chart(what: str, improvements: Sequence[Improvement]) -> Bars:
    """Draw improvements as bars with intervals, one group per benchmark and one colour per method."""
    labels = tuple(dict.fromkeys(f"{i.task} ({i.series})" for i in improvements))
    methods = tuple(dict.fromkeys(i.method for i in improvements))
    table = {(f"{i.task} ({i.series})", i.method): i.difference for i in improvements}
    missing = Interval(float("nan"), float("nan"), float("nan"))

    caption = f"Difference in Kendall's tau to {improvements[0].baseline}, with 95 % intervals; above zero is better."
    bars = {method: [table.get((label, method), missing) for label in labels] for method in methods}
    return Bars.of(f"{what}-improvement", f"Improvement in {what}", caption, labels, bars, "difference in tau")


@dataclass(frozen=True, eq=False)
class Ablation(Finding):
    """Scores of models × methods × benchmarks (higher is better) and the mean rank of each method."""

    models: tuple[str, ...]
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Floats  # (models, methods, tasks)
    mean_rank: tuple[Interval, ...]  # per method
    best: tuple[int, ...]  # cells in which the method is best
    near: tuple[int, ...]  # cells in which it is not best but within ``tolerance``
    cells: int
    tolerance: float
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return the ablation table with the best of each cell marked, and the mean ranks."""
        rows: list[tuple[Cell, ...]] = []
        for i, model in enumerate(self.models):
            for j, method in enumerate(self.methods):
                values = self.scores[i, j]
                marks = [self._show(i, j, k) for k in range(len(self.tasks))]
                mean = float(values.mean()) if np.isfinite(values).all() else None
                rows.append((model if j == 0 else "", method, *marks, mean))
        return (
            Table(
                "Every model by every method",
                ("model", "method", *self.tasks, "mean"),
                tuple(rows),
                note=f"**: the best method in this cell; *: within {self.tolerance:g} of it.",
            ),
            Table(
                "Mean rank of each method (1 is best)",
                ("method", "mean rank", "low", "high", "best in", "near best in", "cells"),
                tuple(
                    (m, r.value, r.low, r.high, b, n, self.cells)
                    for m, r, b, n in zip(self.methods, self.mean_rank, self.best, self.near, strict=True)
                ),
                note=f"Only cells scored by all methods count. Intervals resample models.{noted(self.left_out)}",
                digits=2,
            ),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the mean-rank figure."""
        name, caption = "mean rank", "Mean over models and benchmarks of the method's rank; lower is better."
        bars = {name: self.mean_rank}
        return (Bars.of("mean-rank", "Mean rank of each method", caption, self.methods, bars, name),)

    def _show(self, model: int, method: int, task: int) -> str | None:
        cell = self.scores[model, :, task]
        value = cell[method]
        if not np.isfinite(value):
            return None
        top = np.nanmax(cell)
        mark = "**" if value == top else "*" if top - value <= self.tolerance else ""
        return f"{value:.3f}{mark}"


def compare_methods(
    scores: Mapping[Protocol, ScoreMatrix],
    *,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    tolerance: float = 0.01,
) -> Ablation:
    """Rank the methods in every cell of model and benchmark and average the ranks.

    ``tolerance`` is the gap that still counts as near best: one point of accuracy, as in the paper. Without ``methods``
    those are compared that share the most cells: multiple-choice tasks and open ones have other forms. A model or
    benchmark that not all of them scored is left out.
    """
    found = columns(scores)
    rows = tuple(models) if models else tuple(dict.fromkeys(model for c in found for model in c.models))
    names = tuple(methods) if methods else _sharing(found, rows)
    benchmarks = tuple(dict.fromkeys(c.task for c in found if c.method in names))
    cube = np.full((len(rows), len(names), len(benchmarks)), np.nan)
    for column in found:
        if column.method in names:
            cube[:, names.index(column.method), benchmarks.index(column.task)] = column.at(rows)[0]
    whole = np.isfinite(cube).all(axis=1)  # (models, tasks)
    if len(names) < 2 or not whole.any():
        raise InputError(
            "no model and benchmark is scored by two methods or more",
            hint="score a task in more than one form, such as arc_easy and arc_easy:blank_ppl, or name fewer methods",
        )
    keep_rows, keep_tasks = whole.any(axis=1), whole.any(axis=0)
    cube, whole = cube[keep_rows][:, :, keep_tasks], whole[keep_rows][:, keep_tasks]
    ranks = rankdata(-cube, axis=1, nan_policy="omit")
    ranks = np.where(whole[:, None, :], ranks, np.nan)
    highest = np.fmax.reduce(cube, axis=1, keepdims=True)  # NaN where no method scored the cell
    top = cube == highest
    near = ~top & (highest - cube <= tolerance)
    counted = whole[:, None, :]
    kept = {k for k, keep in zip((*rows, *benchmarks), (*keep_rows, *keep_tasks), strict=True) if keep}
    reasons: dict[str, list[str]] = {
        "not scored by all methods on any task": [m for m in rows if m not in kept],
        "scored by all methods on no model": [t for t in benchmarks if t not in kept],
        "methods that share fewer cells": [m for m in dict.fromkeys(c.method for c in found) if m not in names],
    }
    return Ablation(
        models=tuple(m for m in rows if m in kept),
        methods=names,
        tasks=tuple(t for t in benchmarks if t in kept),
        scores=cube,
        mean_rank=_mean_ranks(ranks),
        best=tuple(int(v) for v in (top & counted).sum(axis=(0, 2))),
        near=tuple(int(v) for v in (near & counted).sum(axis=(0, 2))),
        cells=int(whole.sum()),
        tolerance=tolerance,
        left_out=left_out(reasons),
    )


def _sharing(found: Sequence[Column], models: Sequence[str]) -> tuple[str, ...]:
    """Return the methods of some benchmark that together have the most cells; of equal sets the larger."""
    scored = {(c.task, c.method): np.isfinite(c.at(models)[0]) for c in found}
    by_task: dict[str, list[str]] = {}
    for task, method in scored:
        by_task.setdefault(task, []).append(method)

    def cells(methods: Sequence[str]) -> tuple[int, int]:
        whole = [
            np.all([scored[task, m] for m in methods], axis=0).sum()
            for task, there in by_task.items()
            if set(methods) <= set(there)
        ]
        return int(sum(whole)), len(methods)

    sets = [methods for methods in by_task.values() if len(methods) > 1]
    best: list[str] = max(sets, key=cells) if sets else []
    return tuple(best)


def _mean_ranks(ranks: Floats) -> tuple[Interval, ...]:
    """Average the ranks per method; resample models, the unit whose cells hang together."""
    values = np.nanmean(ranks, axis=(0, 2))
    if len(ranks) < 2:
        return tuple(Interval(float(v), float("nan"), float("nan")) for v in values)
    choices = np.random.default_rng(0).integers(0, len(ranks), size=(DRAWS, len(ranks)))
    totals, counts = np.nansum(ranks, axis=2), np.isfinite(ranks).sum(axis=2)  # (models, methods)
    means = totals[choices].sum(axis=1) / counts[choices].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return tuple(Interval(float(v), float(a), float(b)) for v, a, b in zip(values, low, high, strict=True))

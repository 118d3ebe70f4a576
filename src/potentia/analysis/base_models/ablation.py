"""A method is a protocol with a prompt form: ``direct``, ``blank_ppl``, ``train_before_test:cloze``.

A task named ``arc_easy:blank_ppl`` is the benchmark ``arc_easy`` in the form ``blank_ppl``. Stability, consistency and
the ablation compare methods on the same benchmark, so they read score matrices as columns of (benchmark, method), and
the first two say how much one method's tau improves on another's.

The ablation itself has the layout of BOSE's table 4, its summary figure 5: in each cell of model and benchmark the
methods are ranked (1 is best, ties share the mean rank), and the ranks are averaged over the cells. The interval
resamples models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product, repeat

import numpy as np
from scipy.stats import rankdata

from potentia.analysis.left_out import describe_left_out, drop_names_in, format_notes
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Heatmap, Interval, Table
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix

DRAWS = 2_000  # of an interval


@dataclass(frozen=True, eq=False)
class Columns:
    """The scores of all models by benchmark and method; higher always means better."""

    models: Mapping[str, int]  # and their places
    table: Mapping[
        tuple[str, str], Floats
    ]  # by benchmark and method: (2, models + 1) of values and standard errors

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in order of appearance."""
        return tuple(dict.fromkeys(method for _, method in self.table))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The benchmarks in order of appearance."""
        return tuple(dict.fromkeys(task for task, _ in self.table))

    def at(self, key: tuple[str, str], models: Iterable[str]) -> Floats:
        """Return values and standard errors of these models, (2, models); NaN where there is no score."""
        return self.table[key][:, [self.models.get(model, -1) for model in models]]

    def ordered(self, baseline: str | None) -> tuple[str, ...]:
        """Return the methods, the baseline first where one is named."""
        if baseline is None:
            return self.methods
        if baseline not in self.methods:
            raise InputError(
                f"no method {baseline!r} in these scores",
                hint=f"there are: {', '.join(self.methods)}",
            )
        return (baseline, *(name for name in self.methods if name != baseline))


def columns(scores: Mapping[Protocol, ScoreMatrix]) -> Columns:
    """Read matrices, keyed by protocol, as columns; a column without any score is left out.

    A form that was scored without tuning or examples needs no protocol in front of its name.
    """
    names = dict.fromkeys(model for matrix in scores.values() for model in matrix.models)
    models = {model: place for place, model in enumerate(names)}
    table: dict[tuple[str, str], Floats] = {}
    for protocol, matrix in scores.items():
        rows, oriented = [models[model] for model in matrix.models], matrix.oriented()
        for k, name in enumerate(map(TaskName, matrix.tasks)):
            method = (
                f"{protocol}:{name.form}"
                if name.form and protocol != "direct"
                else name.form or protocol
            )
            if np.isfinite(oriented[:, k]).any():
                column = np.full(
                    (2, len(models) + 1), np.nan
                )  # the last place is of models without a score
                column[:, rows] = oriented[:, k], matrix.stderr[:, k]
                table[name.base, method] = column
    if not table:
        raise InputError(
            "no scores to analyse", hint="choose a protocol and tasks that have scores"
        )
    return Columns(models, table)


def tau_charts(
    what: str,
    caption: str,
    taus: Mapping[tuple[str, str], float],
    improvements: Sequence[Improvement],
) -> list[Chart]:
    """Draw Kendall's tau by (label, method), and the improvements over the baseline where there are some."""
    rows, methods = (tuple(dict.fromkeys(key[k] for key in taus)) for k in (0, 1))
    values = np.array([[taus.get((row, method), np.nan) for method in methods] for row in rows])
    title = f"{what.capitalize()} by method"
    drawn: list[Chart] = [
        Heatmap(what, title, caption, rows, methods, values, low=-1, high=1, diverging=True)
    ]
    if improvements:
        table = {(f"{i.task} ({i.series})", i.method): i.difference for i in improvements}
        labels, methods = (tuple(dict.fromkeys(key[k] for key in table)) for k in (0, 1))
        missing = Interval(np.nan, np.nan, np.nan)
        bars = {
            method: [table.get((label, method), missing) for label in labels] for method in methods
        }
        caption = f"Difference in Kendall's tau to {improvements[0].baseline}, 95 % intervals; above zero is better."
        name, title = f"{what}-improvement", f"Improvement in {what}"
        drawn.append(Bars(name, title, caption, labels, bars, y_label="difference in tau"))
    return drawn


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


def improvement_tables(what: str, improvements: Sequence[Improvement], group: str) -> list[Table]:
    """Lay out improvements, one row per benchmark and method; no table where there are none."""
    if not improvements:
        return []
    rows = [
        (i.series, i.task, i.method, i.difference, "yes" if i.real else "no") for i in improvements
    ]
    title = f"Improvement in {what} over {improvements[0].baseline}"
    columns = (group, "task", "method", "difference", "low", "high", "real")
    return [Table(title, columns, rows, note="real: the interval leaves out zero.")]


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
        rows = []
        for (i, model), (j, method) in product(enumerate(self.models), enumerate(self.methods)):
            marks = [self._show(self.scores[i, :, k], j) for k in range(len(self.tasks))]
            rows.append((model if j == 0 else "", method, *marks, self.scores[i, j].mean()))
        columns = ("method", "mean rank", "low", "high", "best in", "near best in", "cells")
        ranks = zip(
            self.methods, self.mean_rank, self.best, self.near, repeat(self.cells), strict=False
        )
        marked = f"**: the best method in this cell; *: within {self.tolerance:g} of it."
        note = f"Only cells scored by all methods count. Intervals resample models.{format_notes(self.left_out)}"
        return (
            Table(
                "Every model by every method",
                ("model", "method", *self.tasks, "mean"),
                rows,
                marked,
            ),
            Table("Mean rank of each method (1 is best)", columns, ranks, note, digits=2),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the mean-rank figure."""
        caption = "Mean over models and benchmarks of the method's rank; lower is better."
        bars = {"mean rank": self.mean_rank}
        return (
            Bars(
                "mean-rank",
                "Mean rank of each method",
                caption,
                self.methods,
                bars,
                y_label="mean rank",
            ),
        )

    def _show(self, cell: Floats, method: int) -> str | None:
        value, top = cell[method], np.fmax.reduce(cell)
        if not np.isfinite(value):
            return None
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
    rows = tuple(models or found.models)
    names = tuple(methods) if methods else _sharing(found, rows)
    tasks = tuple(dict.fromkeys(task for task, method in found.table if method in names))
    cube = np.full((len(rows), len(names), len(tasks)), np.nan)
    for task, method in found.table:
        if method in names:
            cube[:, names.index(method), tasks.index(task)] = found.at((task, method), rows)[0]
    whole = np.isfinite(cube).all(axis=1)  # (models, tasks)
    if len(names) < 2 or not whole.any():
        hint = "score a task in more than one form, such as arc_easy and arc_easy:blank_ppl"
        raise InputError("no model and benchmark is scored by two methods or more", hint=hint)
    of_rows, of_tasks = whole.any(axis=1), whole.any(axis=0)
    reasons = {
        "not scored by all methods on any task": list(compress(rows, ~of_rows)),
        "scored by all methods on no model": list(compress(tasks, ~of_tasks)),
        "methods that share fewer cells": drop_names_in(found.methods, names),
    }
    cube, counted = cube[of_rows][:, :, of_tasks], whole[of_rows][:, None, of_tasks]
    highest = np.fmax.reduce(cube, axis=1, keepdims=True)  # NaN where no method scored the cell
    best, near = cube == highest, (cube < highest) & (highest - cube <= tolerance)
    ranked = np.where(counted, rankdata(-cube, axis=1, nan_policy="omit"), np.nan)
    wins, close = (tuple((part & counted).sum(axis=(0, 2)).tolist()) for part in (best, near))
    return Ablation(
        models=tuple(compress(rows, of_rows)),
        methods=names,
        tasks=tuple(compress(tasks, of_tasks)),
        scores=cube,
        mean_rank=_mean_ranks(ranked),
        best=wins,
        near=close,
        cells=int(whole.sum()),
        tolerance=tolerance,
        left_out=describe_left_out(reasons),
    )


def _sharing(found: Columns, models: Sequence[str]) -> tuple[str, ...]:
    """Return the methods of some benchmark that together have the most cells; of equal sets the larger."""
    scored = {key: np.isfinite(found.at(key, models)[0]) for key in found.table}
    nobody = np.zeros(len(models), dtype=bool)
    most, chosen = (0, 0), tuple[str, ...]()
    for task in found.tasks:
        methods = tuple(method for of, method in scored if of == task)
        whole = [
            np.all([scored.get((other, m), nobody) for m in methods], axis=0).sum()
            for other in found.tasks
        ]
        if len(methods) > 1 and (cells := (int(sum(whole)), len(methods))) > most:
            most, chosen = cells, methods
    return chosen


def _mean_ranks(ranks: Floats) -> tuple[Interval, ...]:
    """Average the ranks per method; resample models, the unit whose cells hang together."""
    values = np.nanmean(ranks, axis=(0, 2))
    if len(ranks) < 2:
        return tuple(Interval(v, math.nan, math.nan) for v in values.tolist())
    choices = np.random.default_rng(0).integers(0, len(ranks), size=(DRAWS, len(ranks)))
    totals, counts = np.nansum(ranks, axis=2), np.isfinite(ranks).sum(axis=2)  # (models, methods)
    means = totals[choices].sum(axis=1) / counts[choices].sum(axis=1)
    ends = np.percentile(means, [2.5, 97.5], axis=0)
    return tuple(Interval(*one) for one in np.vstack([values, ends]).T.tolist())

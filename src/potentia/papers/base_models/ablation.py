"""The ablation of methods, in the layout of BOSE's table 4 with its summary, figure 5.

In each cell of model and benchmark the methods are ranked (1 is best, ties share the mean rank), and the ranks are
averaged over the cells. The interval resamples models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import describe_left_out, drop_names_in, format_notes
from potentia.errors import InputError
from potentia.papers.base_models.methods import RESAMPLES, MethodScores
from potentia.values.findings import Bars, Chart, Finding, Interval, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

Booleans = npt.NDArray[np.bool_]


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
        return (
            Table(
                "Every model by every method",
                ("model", "method", *self.tasks, "mean"),
                self._score_rows(),
                f"**: the best method in this cell; *: within {self.tolerance:g} of it.",
            ),
            Table(
                "Mean rank of each method (1 is best)",
                ("method", "mean rank", "low", "high", "best in", "near best in", "cells"),
                self._rank_rows(),
                "Only cells scored by all methods count. Intervals resample models."
                f"{format_notes(self.left_out)}",
                digits=2,
            ),
        )

    def _score_rows(self) -> list[tuple[object, ...]]:
        rows = []
        for model_index, model in enumerate(self.models):
            for method_index, method in enumerate(self.methods):
                marked_scores = [
                    self._mark_score(self.scores[model_index, :, task_index], method_index)
                    for task_index in range(len(self.tasks))
                ]
                shown_model = model if method_index == 0 else ""
                mean = self.scores[model_index, method_index].mean()
                rows.append((shown_model, method, *marked_scores, mean))
        return rows

    def _rank_rows(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for index, method in enumerate(self.methods):
            counts = (self.best[index], self.near[index], self.cells)
            rows.append((method, self.mean_rank[index], *counts))
        return rows

    def _mark_score(self, scores_by_method: Floats, method_index: int) -> str | None:
        """Write a score of a cell, marked where it is the best or close to it."""
        score = scores_by_method[method_index]
        best = np.fmax.reduce(scores_by_method)
        if not np.isfinite(score):
            return None
        if score == best:
            return f"{score:.3f}**"
        if best - score <= self.tolerance:
            return f"{score:.3f}*"
        return f"{score:.3f}"

    def charts(self) -> Sequence[Chart]:
        """Return the mean-rank figure."""
        chart = Bars(
            "mean-rank",
            "Mean rank of each method",
            "Mean over models and benchmarks of the method's rank; lower is better.",
            self.methods,
            {"mean rank": self.mean_rank},
            y_label="mean rank",
        )
        return (chart,)


def find_ablation(
    evidence: Evidence, models: Sequence[str] | None = None, *, methods: Sequence[str] | None = None
) -> Ablation:
    """Rank the methods (protocols and prompt forms) on the models given, else on all that are not known as instruct."""
    kinds = evidence.background.kinds
    base_models = [model for model in evidence.models if kinds.get(model) != "instruct"]
    return compare_methods(evidence.planned, models=models or base_models, methods=methods)


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
    method_scores = MethodScores.from_matrices(scores)
    all_models = tuple(models or method_scores.models)
    if methods:
        compared = tuple(methods)
    else:
        compared = _find_methods_sharing_most_cells(method_scores, all_models)
    all_tasks = tuple(
        dict.fromkeys(task for task, method in method_scores.columns if method in compared)
    )
    cube = _stack_scores(method_scores, all_models, compared, all_tasks)
    is_complete = np.all(np.isfinite(cube), axis=1)  # (models, tasks)
    if len(compared) < 2 or not is_complete.any():
        raise InputError(
            "no model and benchmark is scored by two methods or more",
            hint="score a task in more than one form, such as arc_easy and arc_easy:blank_ppl",
        )
    has_model = np.any(is_complete, axis=1)
    has_task = np.any(is_complete, axis=0)
    reasons = {
        "not scored by all methods on any task": list(compress(all_models, ~has_model)),
        "scored by all methods on no model": list(compress(all_tasks, ~has_task)),
        "methods that share fewer cells": drop_names_in(method_scores.methods, compared),
    }
    cube = cube[has_model][:, :, has_task]
    counted = is_complete[has_model][:, None, has_task]
    highest = np.fmax.reduce(cube, axis=1, keepdims=True)  # NaN where no method scored the cell
    is_best = cube == highest
    is_near = (cube < highest) & (highest - cube <= tolerance)
    ranks = np.where(counted, rankdata(-cube, axis=1, nan_policy="omit"), np.nan)
    return Ablation(
        models=tuple(compress(all_models, has_model)),
        methods=compared,
        tasks=tuple(compress(all_tasks, has_task)),
        scores=cube,
        mean_rank=_average_ranks(ranks),
        best=_count_cells(is_best & counted),
        near=_count_cells(is_near & counted),
        cells=int(is_complete.sum()),
        tolerance=tolerance,
        left_out=describe_left_out(reasons),
    )


def _stack_scores(
    method_scores: MethodScores,
    models: Sequence[str],
    methods: Sequence[str],
    tasks: Sequence[str],
) -> Floats:
    """Return the scores as one array, (models, methods, tasks)."""
    cube = np.full((len(models), len(methods), len(tasks)), np.nan)
    for task, method in method_scores.columns:
        if method in methods:
            values = method_scores.scores_of_models((task, method), models)[0]
            cube[:, methods.index(method), tasks.index(task)] = values
    return cube


def _count_cells(is_counted: Booleans) -> tuple[int, ...]:
    return tuple(is_counted.sum(axis=(0, 2)).tolist())


def _find_methods_sharing_most_cells(
    method_scores: MethodScores, models: Sequence[str]
) -> tuple[str, ...]:
    """Return the methods of some benchmark that together have the most cells; of equal sets the larger."""
    is_scored = {
        column: np.isfinite(method_scores.scores_of_models(column, models)[0])
        for column in method_scores.columns
    }
    nobody = np.zeros(len(models), dtype=bool)
    most = (0, 0)  # cells, methods
    chosen: tuple[str, ...] = ()
    for task in method_scores.tasks:
        methods = tuple(method for other, method in is_scored if other == task)
        cells = 0
        for other in method_scores.tasks:
            by_method = [is_scored.get((other, method), nobody) for method in methods]
            cells += int(np.all(by_method, axis=0).sum())
        if len(methods) > 1 and (cells, len(methods)) > most:
            most = (cells, len(methods))
            chosen = methods
    return chosen


def _average_ranks(ranks: Floats) -> tuple[Interval, ...]:
    """Average the ranks per method; resample models, the unit whose cells hang together."""
    values = np.nanmean(ranks, axis=(0, 2))
    if len(ranks) < 2:
        return tuple(Interval(value, math.nan, math.nan) for value in values.tolist())
    rng = np.random.default_rng(0)
    choices = rng.integers(0, len(ranks), size=(RESAMPLES, len(ranks)))
    totals = np.nansum(ranks, axis=2)  # (models, methods)
    counts = np.isfinite(ranks).sum(axis=2)
    means = totals[choices].sum(axis=1) / counts[choices].sum(axis=1)
    lows, highs = np.percentile(means, [2.5, 97.5], axis=0)
    return tuple(
        Interval(value, low, high)
        for value, low, high in zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    )

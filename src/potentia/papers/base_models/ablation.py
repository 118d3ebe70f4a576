"""The ablation of methods, in the layout of BOSE's table 4 with its summary, figure 5.

In each cell of model and benchmark the methods are ranked (1 is best, ties share the mean rank), and the ranks are
averaged over the cells. The interval resamples models, by family where families are known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import (
    NO_ENTRIES,
    describe_left_out,
    drop_names_in,
    format_notes,
)
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.wording import join_names
from potentia.errors import InputError
from potentia.papers.base_models.methods import RESAMPLES, MethodScores
from potentia.values.findings import Bars, Chart, Finding, Interval, Table
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

Booleans = npt.NDArray[np.bool_]


class BenchmarkScale(NamedTuple):
    """What the scores of a benchmark are measured in, and whether high ones are good; scores of one scale average."""

    name: str
    higher_is_better: bool


@dataclass(frozen=True, eq=False)
class Ablation(Finding):
    """Scores of models × methods × benchmarks (higher is better: some negated) and the mean rank of each method."""

    models: tuple[str, ...]
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Floats  # (models, methods, tasks)
    mean_rank: tuple[Interval, ...]  # per method
    best: tuple[int, ...]  # cells in which the method is best
    near: tuple[int, ...]  # cells in which it is not best but within ``tolerance``
    cells: int
    tolerance: float
    resampled_unit: str = "models"  # what the intervals draw anew: families or models
    left_out: tuple[str, ...] = ()
    averaged_tasks: tuple[str, ...] = ()  # those of one scale; the mean is over them
    negated_tasks: tuple[str, ...] = ()  # where lower is better: their scores are negated

    def tables(self) -> Sequence[Table]:
        """Return the ablation table with the best of each cell marked, and the mean ranks."""
        return (
            Table(
                "Every model by every method",
                ("model", "method", *self.tasks, "mean"),
                self._score_rows(),
                self._describe_scores(),
            ),
            Table(
                "Mean rank of each method (1 is best)",
                ("method", "mean rank", "low", "high", "best in", "near best in", "results"),
                self._rank_rows(),
                "Only results by all methods count. "
                f"Intervals resample {self.resampled_unit}.{format_notes(self.left_out)}",
                digits=2,
            ),
        )

    def _describe_scores(self) -> str:
        """Say what the marks mean, and which tasks the mean leaves out or are better when lower."""
        note = f"**: the best method here; *: within {self.tolerance:g} of it."
        if len(self.averaged_tasks) < len(self.tasks):
            note += f" mean: of {join_names(self.averaged_tasks)}, whose scores have one scale."
        if self.negated_tasks:
            note += f" {join_names(self.negated_tasks)}: lower is better."
        return note

    def _score_rows(self) -> list[tuple[object, ...]]:
        signs = [-1.0 if task in self.negated_tasks else 1.0 for task in self.tasks]
        is_averaged = np.isin(self.tasks, self.averaged_tasks)
        rows = []
        for model_index, model in enumerate(self.models):
            for method_index, method in enumerate(self.methods):
                marked_scores = [
                    self._mark_score(self.scores[model_index, :, task_index], method_index, sign)
                    for task_index, sign in enumerate(signs)
                ]
                shown_model = model if method_index == 0 else ""
                mean = self.scores[model_index, method_index, is_averaged].mean()
                rows.append((shown_model, method, *marked_scores, mean))
        return rows

    def _rank_rows(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for index, method in enumerate(self.methods):
            counts = (self.best[index], self.near[index], self.cells)
            rows.append((method, self.mean_rank[index], *counts))
        return rows

    def _mark_score(self, scores_by_method: Floats, method_index: int, sign: float) -> str | None:
        """Write a score of a cell as it was measured, marked where it is the best or close to it."""
        score = scores_by_method[method_index]
        best_score = np.fmax.reduce(scores_by_method)
        if not np.isfinite(score):
            return None
        measured_score = sign * score
        if score == best_score:
            return f"{measured_score:.3f}**"
        if best_score - score <= self.tolerance:
            return f"{measured_score:.3f}*"
        return f"{measured_score:.3f}"

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
    """Rank the methods (protocols and prompt forms) on the models given, else on all that are not known as instruct.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        models: The models to rank on; else all that are not known as instruct.
        methods: The methods to compare; else all.

    Example:
        >>> potentia.find_ablation("potentia.db").to_frame()
    """
    kinds = evidence.background.kinds
    base_models = [model for model in evidence.models if kinds.get(model) != "instruct"]
    return compare_methods(
        evidence.final_scores,
        models=models or base_models,
        methods=methods,
        families=ModelFamilies.of_evidence(evidence).family_of_model,
    )


def compare_methods(
    scores: Mapping[Protocol, ScoreMatrix],
    *,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    families: Mapping[str, str] = NO_ENTRIES,
    tolerance: float = 0.01,
) -> Ablation:
    """Rank the methods in every cell of model and benchmark and average the ranks.

    ``tolerance`` is the gap that still counts as near best: one point of accuracy, as in the paper. Without ``methods``
    those are compared that share the most cells: multiple-choice tasks and open ones have other forms. A model or
    benchmark that not all of them scored is left out. Intervals draw the ``families`` of models, where they are known.
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
    score_cube = _stack_scores(method_scores, all_models, compared, all_tasks)
    is_complete = np.all(np.isfinite(score_cube), axis=1)  # (models, tasks)
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
        "methods that share fewer results": drop_names_in(method_scores.methods, compared),
    }
    score_cube = score_cube[has_model][:, :, has_task]
    counted = is_complete[has_model][:, None, has_task]
    highest = np.fmax.reduce(
        score_cube, axis=1, keepdims=True
    )  # NaN where no method scored the cell
    is_best = score_cube == highest
    is_near = (score_cube < highest) & (highest - score_cube <= tolerance)
    ranks = np.where(counted, rankdata(-score_cube, axis=1, nan_policy="omit"), np.nan)
    ranked_models = tuple(compress(all_models, has_model))
    ranked_tasks = tuple(compress(all_tasks, has_task))
    scales = _read_scales(scores)
    sampling = Sampling(units=ResamplingUnits("families", families), resamples=RESAMPLES)
    return Ablation(
        models=ranked_models,
        methods=compared,
        tasks=ranked_tasks,
        scores=score_cube,
        mean_rank=average_ranks(ranks, sampling.draw_models(ranked_models)),
        best=_count_cells(is_best & counted),
        near=_count_cells(is_near & counted),
        cells=int(is_complete.sum()),
        tolerance=tolerance,
        resampled_unit=sampling.units.drawn_unit(ranked_models),
        left_out=describe_left_out(reasons),
        averaged_tasks=_select_tasks_of_one_scale(ranked_tasks, scales),
        negated_tasks=tuple(task for task in ranked_tasks if not scales[task].higher_is_better),
    )


def _read_scales(scores: Mapping[Protocol, ScoreMatrix]) -> dict[str, BenchmarkScale]:
    """Return the scale of each benchmark: the same in all its forms, or the last one's."""
    scales = {}
    for matrix in scores.values():
        for column, (task, metric) in enumerate(zip(matrix.tasks, matrix.metrics, strict=True)):
            largest = float(np.nanmax(np.abs(matrix.values[:, column]), initial=0.0))
            name = "share" if metric.has_unit_scale(largest) else metric.canonical_name
            scales[TaskName(task).base] = BenchmarkScale(name, metric.higher_is_better)
    return scales


def _select_tasks_of_one_scale(
    tasks: Sequence[str], scales: Mapping[str, BenchmarkScale]
) -> tuple[str, ...]:
    """Return the tasks whose scores may be averaged: those of the scale that most have."""
    (most_common_scale, _), *_ = Counter(scales[task] for task in tasks).most_common(1)
    return tuple(task for task in tasks if scales[task] == most_common_scale)


def _stack_scores(
    method_scores: MethodScores,
    models: Sequence[str],
    methods: Sequence[str],
    tasks: Sequence[str],
) -> Floats:
    """Return the scores as one array, (models, methods, tasks)."""
    score_cube = np.full((len(models), len(methods), len(tasks)), np.nan)
    for task, method in method_scores.columns:
        if method in methods:
            values = method_scores.scores_of_models((task, method), models)[0]
            score_cube[:, methods.index(method), tasks.index(task)] = values
    return score_cube


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
    largest = (0, 0)  # cells, methods
    chosen: tuple[str, ...] = ()
    for task in method_scores.tasks:
        methods = tuple(method for scored_task, method in is_scored if scored_task == task)
        cells = 0
        for counted_task in method_scores.tasks:
            by_method = [is_scored.get((counted_task, method), nobody) for method in methods]
            cells += int(np.all(by_method, axis=0).sum())
        if len(methods) > 1 and (cells, len(methods)) > largest:
            largest = (cells, len(methods))
            chosen = methods
    return chosen


def average_ranks(ranks: Floats, model_draws: Floats) -> tuple[Interval, ...]:
    """Average the ranks (models, methods, tasks) per method, with intervals over draws (resamples, models)."""
    values = np.nanmean(ranks, axis=(0, 2))
    if len(ranks) < 2:
        return tuple(Interval(value, math.nan, math.nan) for value in values.tolist())
    totals = np.nansum(ranks, axis=2)  # (models, methods)
    counts = np.isfinite(ranks).sum(axis=2)
    means = (model_draws @ totals) / (model_draws @ counts)
    lows, highs = np.percentile(means, [2.5, 97.5], axis=0)
    return tuple(
        Interval(value, low, high)
        for value, low, high in zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    )

"""Relevance: how alike two tasks are, judged by which models do well on them.

A task is the vector of its models' scores. The vectors are normalised across models (each task to mean 0 and spread 1)
and then across tasks (each model likewise), which takes away how hard a task and how good a model is; what is left is
the profile. Relevance is the correlation of two tasks' vectors (proxy-task paper, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from potentia.analysis.stats.correlation import pearson_matrix, spearman_matrix
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.errors import InputError
from potentia.values.scores import Floats, ScoreMatrix

Metric = Literal["pearson", "spearman", "kendall"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Normalise = Literal["both", "feature", "none"]
_CORRELATE = {"pearson": pearson_matrix, "spearman": spearman_matrix, "kendall": kendall_matrix}


@dataclass(frozen=True, eq=False)
class Relevance:
    """The correlation of a target with every candidate, by each metric, and the models behind it."""

    target: str
    candidates: tuple[str, ...]
    models: tuple[str, ...]
    by_metric: dict[Metric, Floats]  # each (candidates,)


def normalise(values: Floats, how: Normalise = "both") -> Floats:
    """Normalise (models, tasks): ``feature`` each task across models, ``both`` then each model across tasks.

    A task on which all models score the same carries no information and becomes zeros.
    """
    if how == "none":
        return values
    by_task = _standardise(values, axis=0)
    return by_task if how == "feature" else _standardise(by_task, axis=1)


def performance(scores: ScoreMatrix, target: str, candidates: Sequence[str] | None = None) -> ScoreMatrix:
    """Return the target, then the candidates (default: all other tasks), on the models that have every score."""
    others = [task for task in (candidates or scores.tasks) if task != target]
    chosen = scores.select(tasks=[target, *dict.fromkeys(others)]).complete()
    if len(chosen.tasks) < 2:
        raise InputError("no candidate task besides the target", hint="name candidates, or score more tasks")
    if len(chosen.models) < 3:
        raise InputError(
            f"only {len(chosen.models)} models have a score on {target} and on every candidate; three are needed",
            hint="leave out candidates that few models were scored on",
        )
    return chosen


def measure_relevance(
    scores: ScoreMatrix, target: str, candidates: Sequence[str] | None = None, *, how: Normalise = "both"
) -> Relevance:
    """Correlate the target with every candidate by Pearson, Spearman and Kendall on the normalised scores."""
    chosen = performance(scores, target, candidates)
    vectors = normalise(chosen.oriented(), how)
    return Relevance(
        target=target,
        candidates=chosen.tasks[1:],
        models=chosen.models,
        by_metric={metric: correlate_target(vectors, metric) for metric in METRICS},
    )


def correlate_target(vectors: Floats, metric: Metric, *, weights: Floats | None = None) -> Floats:
    """Correlate column 0, the target, with the other columns; ``weights`` (draws, models) gives (draws, candidates)."""
    result = _CORRELATE[metric](vectors[:, :1], vectors[:, 1:], weights=weights)
    return result[..., 0, :]


def _standardise(values: Floats, axis: int) -> Floats:
    centred = values - values.mean(axis=axis, keepdims=True)
    spread = values.std(axis=axis, keepdims=True)
    blank = spread <= 1e-12 * np.abs(values).max(initial=1.0)
    return np.asarray(np.where(blank, 0.0, centred / np.where(blank, 1.0, spread)))

"""The signal of a task beside its noise, and how well it orders large models by small ones (arXiv 2508.13144).

Where a study has checkpoints of pretraining runs, noise is the spread of the last ones, as in the paper. Elsewhere it
is test noise alone, which is less: the measure says which. Decision accuracy is of families with models of two sizes:
the share of pairs of families that their smallest models order as their largest do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from potentia.analysis.checkpoints import group_by_series, named_checkpoints
from potentia.analysis.stats.signal import (
    LAST_CHECKPOINTS,
    LEAST_CHECKPOINTS,
    measure_decision_accuracy,
    measure_relative_dispersion,
    measure_signal_to_noise,
)
from potentia.values.scores import Floats, ScoreMatrix

LEAST_FAMILIES = 3  # with two sizes each: fewer make fewer than three pairs
SIZE_RATIO = 2.0  # of the largest model of a family to its smallest, at least


@dataclass(frozen=True)
class TaskSignal:
    """How well a task separates models, beside its noise."""

    ratio: float  # signal over noise; NaN where the noise is not known
    by_checkpoints: bool  # whether the noise is that of checkpoints, or test noise alone
    decision_accuracy: (
        float  # of small models about large ones; NaN where there are too few families
    )
    families: int  # with models of two sizes

    @property
    def ratio_label(self) -> str:
        """What the ratio is called in a table."""
        noise = "spread of the last checkpoints" if self.by_checkpoints else "test noise"
        return f"signal-to-noise (range of the models' scores over the {noise})"


def measure_task_signal(
    matrix: ScoreMatrix,
    task: str,
    families: Mapping[str, str],
    sizes: Mapping[str, float],
) -> TaskSignal:
    """Measure signal, noise and decision accuracy of one task; ``families`` and ``sizes`` are by model."""
    column = matrix.tasks.index(task)
    scores = matrix.values[:, column]
    small, large = _scores_by_size(matrix, scores, families, sizes)
    accuracy = math.nan
    if len(small) >= LEAST_FAMILIES:
        accuracy = measure_decision_accuracy(small, large)
    last_scores = _last_scores_of_runs(matrix, scores)
    if last_scores:
        is_final = _mark_final_models(matrix)
        ratio = math.nan
        if is_final.sum() > 1:
            ratio = measure_signal_to_noise(scores[is_final], last_scores).ratio
        return TaskSignal(ratio, True, accuracy, len(small))
    return TaskSignal(_signal_over_test_noise(matrix, column), False, accuracy, len(small))


def _signal_over_test_noise(matrix: ScoreMatrix, column: int) -> float:
    """Return the spread of models over the standard error of a score, both over the mean score."""
    scores = matrix.values[:, column]
    stderr = matrix.stderr[:, column]
    is_measured = np.isfinite(scores) & np.isfinite(stderr)
    mean = float(np.abs(scores[is_measured]).mean()) if is_measured.sum() > 1 else 0.0
    noise = float(np.sqrt((stderr[is_measured] ** 2).mean())) if is_measured.any() else 0.0
    if mean == 0 or noise == 0:
        return math.nan
    return measure_relative_dispersion(scores[is_measured]) / (noise / mean)


def _last_scores_of_runs(matrix: ScoreMatrix, scores: Floats) -> list[Floats]:
    """Return the scores of the last checkpoints of every run that has enough of them."""
    row_of_model = {model: row for row, model in enumerate(matrix.models)}
    last_scores = []
    for steps in group_by_series(named_checkpoints(matrix.models)).values():
        rows = [row_of_model[model] for model in steps][-LAST_CHECKPOINTS:]
        if len(rows) >= LEAST_CHECKPOINTS:
            last_scores.append(scores[rows])
    return last_scores


def _mark_final_models(matrix: ScoreMatrix) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which models are no checkpoints, or the last of their run."""
    checkpoints = named_checkpoints(matrix.models)
    finals = {list(steps)[-1] for steps in group_by_series(checkpoints).values()}
    return np.array([model not in checkpoints or model in finals for model in matrix.models])


def _scores_by_size(
    matrix: ScoreMatrix,
    scores: Floats,
    families: Mapping[str, str],
    sizes: Mapping[str, float],
) -> tuple[list[float], list[float]]:
    """Return the scores of the smallest and of the largest model of every family that has two sizes."""
    members: dict[str, list[tuple[float, float]]] = {}
    for model, score in zip(matrix.models, scores.tolist(), strict=True):
        if model in families and model in sizes and math.isfinite(score):
            members.setdefault(families[model], []).append((sizes[model], score))
    small = []
    large = []
    for models in members.values():
        smallest = min(models)
        largest = max(models)
        if largest[0] >= SIZE_RATIO * smallest[0]:
            small.append(smallest[1])
            large.append(largest[1])
    return small, large

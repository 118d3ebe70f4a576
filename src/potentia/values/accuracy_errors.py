"""The least standard error of an accuracy: that of its number of examples, whatever a table says."""

from __future__ import annotations

import numpy as np

from potentia.values.scores import Floats, ScoreMatrix

ACCURACIES = ("acc", "acc_norm", "exact_match")  # shares of examples, each right or wrong
ROUNDING = 0.02  # a table's digits may make an error so much smaller


def accuracy_errors(matrix: ScoreMatrix) -> Floats:
    """Return the standard errors that accuracies have by their number of examples; 0 for every other metric."""
    accuracy = matrix.values
    examples = matrix.n
    is_accuracy = np.array(
        [metric.name_without_filter in ACCURACIES for metric in matrix.metrics], dtype=bool
    )
    is_known = np.isfinite(accuracy) & (accuracy >= 0) & (accuracy <= 1) & (examples > 1)
    variance = np.where(is_known, accuracy * (1 - accuracy) / np.maximum(examples - 1, 1), 0.0)
    return np.asarray(np.sqrt(np.where(is_accuracy, variance, 0.0)))


def count_raised_errors(matrix: ScoreMatrix) -> int:
    """Return how many scores have a standard error that is smaller than their number of examples allows."""
    return int((matrix.stderr < (1 - ROUNDING) * accuracy_errors(matrix)).sum())

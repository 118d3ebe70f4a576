"""Standard errors that can be believed: an accuracy on n examples has an error of its own, whatever a table says.

Tables come with errors of other things: of a mean over seeds, halved, or of the last digit. One that is smaller than
the number of examples allows makes differences of luck. Errors that are larger are believed, and missing ones stay so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from potentia.values.scores import Floats, ScoreMatrix

ACCURACIES = ("acc", "acc_norm", "exact_match")  # shares of examples, each right or wrong


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


def believe_errors(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the matrix with no standard error of an accuracy below what its number of examples allows."""
    least_errors = accuracy_errors(matrix)
    if not (matrix.stderr < least_errors).any():
        return matrix
    return replace(matrix, stderr=np.maximum(matrix.stderr, least_errors))

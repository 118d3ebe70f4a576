"""Standard errors that can be believed: an accuracy on n examples has an error of its own, whatever a table says.

Tables come with errors of other things: of a mean over seeds, halved, or of the last digit. One that is smaller than
the number of examples allows makes differences of luck. Errors that are larger are believed, and missing ones stay so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from potentia.values.accuracy_errors import accuracy_errors
from potentia.values.scores import ScoreMatrix


def believe_errors(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the matrix with no standard error of an accuracy below what its number of examples allows."""
    least_errors = accuracy_errors(matrix)
    if not (matrix.stderr < least_errors).any():
        return matrix
    return replace(matrix, stderr=np.maximum(matrix.stderr, least_errors))

"""Equation 1 as the authors' notebook fits it: a general optimizer from one fixed start.

It may end at a local optimum, where our exact search (``hinge_search``) finds a smaller sum of squares. A printed θ
that is not ours can be explained by that; no other number is computed this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.papers.task_training.adjustment import GroupScaling
from potentia.values.scores import Floats

START = (0.0, 22.0, 0.0)  # slope, point of emergence and θ, as in the authors' notebook
NOTABLE_EXCESS = 1e-3  # of our sum of squares


@dataclass(frozen=True)
class LocalFit:
    """Where the authors' optimizer ends: θ and the sum of squares, beside that of the exact fit."""

    theta: float
    squares: float
    least_squares: float

    @property
    def is_local_optimum(self) -> bool:
        """Whether the exact fit is notably better."""
        return self.squares > self.least_squares * (1 + NOTABLE_EXCESS)


def fit_like_authors(scaling: GroupScaling) -> LocalFit:
    """Minimize the sum of squares of equation 1 by BFGS from the authors' start."""
    from scipy.optimize import minimize

    log_compute = scaling.cohort.log_compute
    members = np.asarray(scaling.split.members, dtype=np.float64)

    def sum_squares(parameters: Floats) -> float:
        slope, emergence, theta = parameters
        predicted_rise = slope * np.maximum(log_compute - emergence, 0)
        return float(
            np.sum((scaling.fit.chance + predicted_rise + theta * members - scaling.scores) ** 2)
        )

    ended = minimize(sum_squares, START)
    exact = scaling.fit.predict(log_compute)
    exact = exact + scaling.fit.theta.value * members
    return LocalFit(
        theta=float(ended.x[2]),
        squares=float(ended.fun),
        least_squares=float(np.sum((exact - scaling.scores) ** 2)),
    )

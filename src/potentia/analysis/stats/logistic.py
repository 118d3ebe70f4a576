"""A logistic curve of one variable between two classes that weigh the same, whatever their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit

from potentia.values.scores import Floats

PENALTY = 0.01  # of the squared slope, halved: a finite curve where the classes do not overlap


@dataclass(frozen=True)
class LogisticCurve:
    """P(member) = 1 / (1 + exp(-(slope · x + intercept)))."""

    slope: float
    intercept: float


def fit_balanced_logistic(x: Floats, is_member: npt.NDArray[np.bool_]) -> LogisticCurve:
    """Fit the curve by penalised likelihood; both classes have half of the weight.

    It is scikit-learn's ``LogisticRegression(C=100, class_weight="balanced")``, which a test compares.
    """
    class_sizes = np.where(is_member, is_member.sum(), (~is_member).sum())
    weights = len(x) / (2 * class_sizes)
    signs = np.where(is_member, 1.0, -1.0)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        slope, intercept = parameters
        margins = signs * (slope * x + intercept)
        loss = weights @ np.logaddexp(0, -margins) + PENALTY / 2 * slope**2
        by_margin = -weights * signs * expit(-margins)
        return float(loss), np.array([by_margin @ x + PENALTY * slope, by_margin.sum()])

    optimum = minimize(
        loss_and_gradient, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    return LogisticCurve(slope=float(optimum.x[0]), intercept=float(optimum.x[1]))

"""How well a task separates models beside how much its scores jump about (Signal and Noise, arXiv 2508.13144).

*Signal* is the spread of models: the largest difference of two of them, over their mean score. *Noise* is the spread
of the last checkpoints of one training run: their standard deviation, over their mean. A task with a high ratio of the
two orders small models as it orders large ones. *Decision accuracy* is the share of pairs that small models (or early
checkpoints) order as large ones (or the last) do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.values.scores import Floats

LAST_CHECKPOINTS = (
    5  # of a run whose spread is its noise; the paper takes 5 of small runs and 30 of large ones
)
LEAST_CHECKPOINTS = 3  # fewer have no spread to speak of


@dataclass(frozen=True)
class SignalToNoise:
    """The spread of models on a task, beside that of the last checkpoints of their runs."""

    signal: float  # largest difference of two models, over their mean
    noise: float  # standard deviation of the last checkpoints, over their mean
    models: int
    checkpoints: int  # whose spread is the noise, over all runs

    @property
    def ratio(self) -> float:
        """Signal over noise; NaN where the noise is not known, infinite where checkpoints never differ."""
        if self.noise == 0:
            return math.inf
        return self.signal / self.noise


def measure_signal_to_noise(
    scores_of_models: npt.ArrayLike, last_scores_of_runs: Sequence[npt.ArrayLike]
) -> SignalToNoise:
    """Measure signal and noise of one task, from the scores of models and of the last checkpoints of runs.

    With several runs the noise is the root mean square of theirs. Models and checkpoints without a score are left out.
    """
    scores = _known_values(scores_of_models)
    runs = [_known_values(run) for run in last_scores_of_runs]
    runs = [run for run in runs if len(run) >= LEAST_CHECKPOINTS]
    if len(scores) < 2:
        raise InputError("the signal of a task needs the scores of two models or more")
    return SignalToNoise(
        signal=measure_relative_dispersion(scores),
        noise=_pool_relative_deviations(runs),
        models=len(scores),
        checkpoints=sum(len(run) for run in runs),
    )


def measure_relative_dispersion(scores: npt.ArrayLike) -> float:
    """Return the largest difference of two scores, over their mean; NaN where the mean is 0."""
    known_scores = _known_values(scores)
    mean = float(np.mean(known_scores))
    if mean == 0:
        return math.nan
    return float(np.ptp(known_scores)) / abs(mean)


def _pool_relative_deviations(runs: Sequence[Floats]) -> float:
    """Return the root mean square, over runs, of the standard deviation of checkpoints over their mean."""
    variances = []
    for run in runs:
        mean = float(run.mean())
        if mean != 0:
            variances.append(float(run.var()) / mean**2)
    return math.sqrt(sum(variances) / len(variances)) if variances else math.nan


def measure_decision_accuracy(
    scores_of_small: npt.ArrayLike, scores_of_large: npt.ArrayLike
) -> float:
    """Return the share of pairs that two lists of scores, of the same candidates, put in the same order.

    A pair that the first list ties counts half; pairs that the second ties have no order and do not count. NaN where
    there is no pair.
    """
    small = np.asarray(scores_of_small, dtype=np.float64)
    large = np.asarray(scores_of_large, dtype=np.float64)
    if small.shape != large.shape or small.ndim != 1:
        raise InputError("decision accuracy needs two lists of scores of the same candidates")
    has_both = np.isfinite(small) & np.isfinite(large)
    first, second = np.triu_indices(int(has_both.sum()), 1)
    small_order = np.sign(small[has_both][first] - small[has_both][second])
    large_order = np.sign(large[has_both][first] - large[has_both][second])
    has_order = large_order != 0
    if not has_order.any():
        return math.nan
    agreement = small_order[has_order] * large_order[has_order]
    return float(((agreement + 1) / 2).mean())


def _known_values(values: npt.ArrayLike) -> Floats:
    """Return the values that are numbers, as one list."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.isfinite(flat)]

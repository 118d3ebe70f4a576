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
    scores_by_run = [_known_values(run_scores) for run_scores in last_scores_of_runs]
    scores_by_run = [
        run_scores for run_scores in scores_by_run if len(run_scores) >= LEAST_CHECKPOINTS
    ]
    if len(scores) < 2:
        raise InputError("the signal of a task needs the scores of two models or more")
    return SignalToNoise(
        signal=measure_relative_dispersion(scores),
        noise=_pool_relative_deviations(scores_by_run),
        models=len(scores),
        checkpoints=sum(len(run_scores) for run_scores in scores_by_run),
    )


def measure_relative_dispersion(scores: npt.ArrayLike) -> float:
    """Return the largest difference of two scores, over their mean; NaN where the mean is 0."""
    known_scores = _known_values(scores)
    mean = float(np.mean(known_scores))
    if mean == 0:
        return math.nan
    return float(np.ptp(known_scores)) / abs(mean)


def _pool_relative_deviations(scores_by_run: Sequence[Floats]) -> float:
    """Return the root mean square, over runs, of the standard deviation of checkpoints over their mean."""
    variances = []
    for run_scores in scores_by_run:
        mean = float(run_scores.mean())
        if mean != 0:
            variances.append(float(run_scores.var()) / mean**2)
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
    first_of_pair, second_of_pair = np.triu_indices(int(has_both.sum()), 1)
    small_order = np.sign(small[has_both][first_of_pair] - small[has_both][second_of_pair])
    large_order = np.sign(large[has_both][first_of_pair] - large[has_both][second_of_pair])
    has_order = large_order != 0
    if not has_order.any():
        return math.nan
    agreement = small_order[has_order] * large_order[has_order]
    return float(((agreement + 1) / 2).mean())


def _known_values(values: npt.ArrayLike) -> Floats:
    """Return the values that are numbers, as one list."""
    flat_values = np.asarray(values, dtype=np.float64).ravel()
    return flat_values[np.isfinite(flat_values)]

"""How far log-probabilities of a fast path may be from the model's own: rounding, and no more.

In float32 a wrong mask is a thousand times what rounding is, and constants do. In 16 bits the model's own rounding is
the measure, where a float32 copy of it can be made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """Of each token: |difference| <= absolute + relative × |log-probability|; and of the mean over tokens, in nats."""

    absolute: float
    relative: float
    mean: float


PRECISE_DTYPES = (torch.float32, torch.float64)
_TOLERANCES = {
    torch.float64: Tolerance(absolute=1e-6, relative=1e-8, mean=1e-7),
    torch.float32: Tolerance(absolute=1e-3, relative=1e-4, mean=2e-4),
    # in 16 bits these count where there is no float32 copy to compare with
    torch.float16: Tolerance(absolute=0.05, relative=0.01, mean=0.02),
    torch.bfloat16: Tolerance(absolute=0.5, relative=0.05, mean=0.1),
}
OWN_ROUNDINGS = 3.0  # how many times as far as the reference a path may be from float32's numbers
SMALL_ROUNDING = 0.02  # root mean square in 16 bits that is rounding in any case
UNNOTICED = 0.002  # root mean square in float32 that a model of 16 bits does not notice


def tolerance_for(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance of log-probabilities in a dtype."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])


def is_close(fast: Sequence[float], reference: Sequence[float], dtype: torch.dtype) -> bool:
    """Say whether the log-probabilities of some tokens differ by rounding alone."""
    tolerance = tolerance_for(dtype)
    differences = [abs(ours - theirs) for ours, theirs in zip(fast, reference, strict=True)]
    largest = max(1.0, math.log2(len(differences) / 8))  # of many roundings the largest is larger
    for difference, value in zip(differences, reference, strict=True):
        if not difference <= largest * (tolerance.absolute + tolerance.relative * abs(value)):
            return False
    size = sum(map(abs, reference))
    return sum(differences) <= len(differences) * tolerance.mean + tolerance.relative * size


def root_mean_square(differences: Sequence[float]) -> float:
    """Return the size of differences; infinite where one is not a number."""
    squares = sum(difference * difference for difference in differences)
    size = math.sqrt(squares / max(1, len(differences)))
    return math.inf if math.isnan(size) else size

"""How far log-probabilities of a fast scoring route may be from the reference's, the model's own forward.

In float32 a wrong mask moves them a thousand times as far as rounding does, so constants tell the two apart. In 16 bits
the model's own rounding is the measure, where it can be compared with a float32 copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """How far log-probabilities, in nats, may differ.

    For each token |difference| <= absolute + relative × |log-probability|; the mean over tokens has a bound of its own.
    """

    absolute: float
    relative: float
    mean: float


_TOLERANCES = {
    torch.float64: Tolerance(absolute=1e-6, relative=1e-8, mean=1e-7),
    torch.float32: Tolerance(absolute=1e-3, relative=1e-4, mean=2e-4),
    # used in 16 bits only where there is no float32 copy to compare with
    torch.float16: Tolerance(absolute=0.05, relative=0.01, mean=0.02),
    torch.bfloat16: Tolerance(absolute=0.5, relative=0.05, mean=0.1),
}
# root mean square of differences that counts as rounding in 16 bits, whatever the model
SMALL_ROUNDING = 0.02
UNNOTICED = 0.002  # root mean square in float32 that does not matter to a model in 16 bits


def tolerance_for(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for log-probabilities in a dtype; for dtypes that are not listed, bfloat16's."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])


def is_close(fast: Sequence[float], reference: Sequence[float], dtype: torch.dtype) -> bool:
    """Whether the log-probabilities of a sequence's tokens differ by rounding alone."""
    tolerance = tolerance_for(dtype)
    differences = [
        abs(fast_value - reference_value)
        for fast_value, reference_value in zip(fast, reference, strict=True)
    ]
    # the largest of many roundings is larger than that of a few
    factor = max(1.0, math.log2(len(differences) / 8))
    for difference, value in zip(differences, reference, strict=True):
        if not difference <= factor * (tolerance.absolute + tolerance.relative * abs(value)):
            return False
    total_size = sum(map(abs, reference))
    return sum(differences) <= len(differences) * tolerance.mean + tolerance.relative * total_size


def root_mean_square(differences: Sequence[float]) -> float:
    """Return the root of the mean square; infinity where a difference is not a number."""
    squares = sum(difference * difference for difference in differences)
    root = math.sqrt(squares / max(1, len(differences)))
    return math.inf if math.isnan(root) else root

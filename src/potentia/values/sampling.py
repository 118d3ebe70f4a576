"""Answers that are sampled several times, and the probability that one of k of them is right (pass@k).

Of n samples of a problem, c are right. The unbiased estimate of the probability that one of k samples is right is
1 − C(n − c, k) / C(n, k) (Chen et al. 2021); its mean over problems is the score. Two kinds of noise are in it: which
problems are in the test, and which samples were drawn. The standard error over problems includes both. The part that
is due to the samples is estimated by leaving out one sample of each problem at a time (jackknife).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How a task's answers are sampled, and which pass@k are scored."""

    count: int  # samples of each answer
    temperature: float
    k: tuple[int, ...]  # every k that is scored
    seed: int = 0

    def make_seed(self, example: int, sample_number: int) -> int:
        """Return the 64-bit seed of one sample of one example: the same whatever is sampled beside it."""
        digest = hashlib.sha256(f"{self.seed}:{example}:{sample_number}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def describe(self) -> dict[str, object]:
        """Return the settings that can change a score; they are part of a result's key in the store."""
        return {
            "count": self.count,
            "temperature": self.temperature,
            "k": list(self.k),
            "seed": self.seed,
        }


def list_default_ks(samples: int) -> tuple[int, ...]:
    """Return the k that are scored if a study names none: 1, 2, 4 … up to the number of samples."""
    ks = [1]
    while ks[-1] * 2 <= samples:
        ks.append(ks[-1] * 2)
    return tuple(ks)


def name_pass_metric(k: int) -> str:
    """Return ``pass@k``, the name of the metric."""
    return f"pass@{k}"


def estimate_pass_at_k(samples: int, right: int, k: int) -> float:
    """Estimate the probability that one of k samples is right, of ``samples`` samples of which ``right`` are right."""
    if not 0 < k <= samples:
        raise ValueError(f"pass@{k} needs {k} samples at least, and there are {samples}")
    if samples - right < k:
        return 1.0
    # C(n − c, k) / C(n, k) as a product, which no large factorial can overflow
    none_right = 1.0
    for factor in range(samples - right + 1, samples + 1):
        none_right *= 1.0 - k / factor
    return 1.0 - none_right


def estimate_sampling_variance(samples: int, right: int, k: int) -> float:
    """Return how much a problem's pass@k varies with the samples that were drawn: the variance, by the jackknife.

    NaN if k = ``samples``: without one sample there are too few for an estimate.
    """
    if k >= samples:
        return math.nan
    estimate_without_one_right = 0.0
    if right:
        estimate_without_one_right = estimate_pass_at_k(samples - 1, right - 1, k)
    estimate_without_one_wrong = 0.0
    if samples > right:
        estimate_without_one_wrong = estimate_pass_at_k(samples - 1, right, k)
    wrong_count = samples - right
    mean = (right * estimate_without_one_right + wrong_count * estimate_without_one_wrong) / samples
    spread = (
        right * (estimate_without_one_right - mean) ** 2
        + wrong_count * (estimate_without_one_wrong - mean) ** 2
    )
    return (samples - 1) / samples * spread


def estimate_generation_error(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Return the part of the standard error of a mean pass@k that is due to which samples were generated.

    The whole standard error has a second source, which problems are in the test, and is no part of this one.
    ``counts`` has (samples, right ones) of every problem.
    """
    variances = [estimate_sampling_variance(samples, right, k) for samples, right in counts]
    if not variances:
        return math.nan
    return math.sqrt(sum(variances)) / len(variances)

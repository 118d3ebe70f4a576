"""Answers that are sampled several times, and how often one of k of them is right (pass@k).

Of n samples of a problem, c are right. The unbiased estimate of the probability that one of k samples is right is
1 − C(n − c, k) / C(n, k) (Chen et al. 2021); its mean over problems is the score. Two kinds of noise are in it: which
problems are in the test, and which samples were drawn. The standard error over problems holds both; the part of the
samples is estimated by leaving out one sample of each problem at a time (jackknife).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How a task's answers are sampled: how many of each, at which temperature, and which k are scored."""

    count: int
    temperature: float
    k: tuple[int, ...]
    seed: int = 0

    def seed_of(self, example: int, number: int) -> int:
        """Return the seed of one sample of one example: the same whatever is sampled beside it."""
        digest = hashlib.sha256(f"{self.seed}:{example}:{number}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def describe(self) -> dict[str, Any]:
        """Return what can change a score, for the key of a result."""
        return {
            "count": self.count,
            "temperature": self.temperature,
            "k": list(self.k),
            "seed": self.seed,
        }


def default_k(count: int) -> tuple[int, ...]:
    """Return the k that are scored where none are named: 1, 2, 4 … up to the number of samples."""
    values = [1]
    while values[-1] * 2 <= count:
        values.append(values[-1] * 2)
    return tuple(values)


def pass_metric(k: int) -> str:
    """Return the name of a metric."""
    return f"pass@{k}"


def estimate_pass_at_k(count: int, right: int, k: int) -> float:
    """Return the unbiased estimate, from ``count`` samples of which ``right`` are right, that one of k is right."""
    if not 0 < k <= count:
        raise ValueError(f"pass@{k} needs {k} samples at least, and there are {count}")
    if count - right < k:
        return 1.0
    none_right = 1.0
    for size in range(count - right + 1, count + 1):
        none_right *= 1.0 - k / size
    return 1.0 - none_right


def estimate_sampling_variance(count: int, right: int, k: int) -> float:
    """Return the variance of a problem's estimate that is due to its samples, by the jackknife; NaN where k = n."""
    if k >= count:
        return math.nan
    without_right = 0.0
    if right:
        without_right = estimate_pass_at_k(count - 1, right - 1, k)
    without_wrong = 0.0
    if count > right:
        without_wrong = estimate_pass_at_k(count - 1, right, k)
    wrong = count - right
    mean = (right * without_right + wrong * without_wrong) / count
    spread = right * (without_right - mean) ** 2 + wrong * (without_wrong - mean) ** 2
    return (count - 1) / count * spread


def sampling_error(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Return the standard error of a mean pass@k that is due to the samples; ``counts`` are (samples, right)."""
    variances = [estimate_sampling_variance(count, right, k) for count, right in counts]
    if not variances:
        return math.nan
    return math.sqrt(sum(variances)) / len(variances)

"""Two models on zeros and ones, compared by flipping signs: McNemar's exact test, also where examples share a passage.

Where both models are equally good, a passage that speaks for the one might as well have spoken for the other, so all
signs of the differences by cluster are equally likely. With clusters of one example that is McNemar's exact test.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom, norm

from potentia.values.scores import Floats

MOST_EXACT_CLUSTERS = 400  # that speak for one model; more are tested by the normal distribution


def sign_flip_p_value(cluster_sums: Floats) -> float:
    """Return the two-sided p value of cluster sums of differences, all signs being as likely as their opposites.

    The sums are whole numbers: examples that the first model alone gets right, less those of the second.
    """
    sizes = np.abs(np.rint(cluster_sums)).astype(np.int64)
    observed = abs(int(np.rint(cluster_sums.sum())))
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return 1.0
    if len(sizes) > MOST_EXACT_CLUSTERS:
        z = observed / math.sqrt(float((sizes.astype(np.float64) ** 2).sum()))
        return float(2 * norm.sf(z))
    reach = int(sizes.sum())
    chances = np.ones(1)  # of the sum from −reach to reach, in steps of 1
    for difference_size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        steps = np.zeros(2 * int(difference_size) * int(count) + 1)
        steps[:: 2 * int(difference_size)] = binom.pmf(np.arange(int(count) + 1), int(count), 0.5)
        chances = np.convolve(chances, steps)
    possible_sums = np.arange(-reach, reach + 1)
    return min(1.0, float(chances[np.abs(possible_sums) >= observed].sum()))

"""Training on the test task, whole: every question that one pair of protocols and the models' facts can answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potentia.analysis.test_task.adjustment import compare_groups
from potentia.analysis.test_task.cohort import Cohort, Split
from potentia.analysis.test_task.discriminator import discriminate
from potentia.analysis.test_task.families import compare_families
from potentia.analysis.test_task.frontier import frontier_shift
from potentia.analysis.test_task.gain import measure_gain
from potentia.analysis.test_task.mediation import mediate
from potentia.analysis.test_task.pair import Pair, slug
from potentia.analysis.test_task.rank_shift import shift_of_ranks
from potentia.findings import Finding


def analyze_pair(
    pair: Pair,
    split: Callable[[Cohort], Split],
    *,
    families: Sequence[str] | None = None,
    draws: int = 1999,
    seed: int = 0,
) -> dict[str, Finding]:
    """Return every finding about one task, by name; ``split`` makes N from the facts of the models that remain.

    Families are compared where at least two have three models; groups told apart where both have five.
    """
    parts = split(pair.cohort)
    name = slug(pair.task)
    found: dict[str, Finding] = {
        f"{name}-adjustment": compare_groups(pair, parts, draws=draws, seed=seed),
        f"{name}-mediation": mediate(pair, parts),
        f"{name}-gain": measure_gain(pair, parts),
        f"{name}-frontier": frontier_shift(pair, parts),
        f"{name}-ranks": shift_of_ranks(pair),
    }
    sizes = [pair.cohort.family.count(family) for family in set(pair.cohort.family)]
    if families or sum(size >= 3 for size in sizes) >= 2:
        found[f"{name}-families"] = compare_families(pair, families)
    if min(int(np.sum(parts.members)), int(np.sum(~parts.members))) >= 5:
        found[f"{name}-discrimination"] = discriminate(pair, parts, seed=seed)
    return found

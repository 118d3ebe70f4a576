"""A sample of ``bench/nulls.py``: where nothing is true, hardly a sentence claims anything."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from nulls import CLAIMS, Setting, allowed_share, false_claims

STUDIES = 12


@pytest.mark.parametrize("models", [2, 3, 6, 10])
def test_claims_are_rare_where_nothing_is_true(models: int) -> None:
    points = [
        Setting("equal", models, 1, 100),
        Setting("equal", models, 3, 1000, gaps="random"),
        Setting("equal", models, 3, 100, errors="halved"),
        Setting("equal", models, 5, 100_000, families=True),
        Setting("equal", models, 12, 100, families=True, gaps="low scores"),
        Setting("equal", models, 12, 100_000, errors="one missing"),
        Setting("equal", models, 12, 1000, subsets=True),
        Setting("equal", models, 24, 1000, subsets=True, families=True, gaps="random"),
    ]
    shares_by_kind: dict[str, list[float]] = defaultdict(list)
    for point in points:
        for kind, share in false_claims(point, STUDIES).items():
            shares_by_kind[kind].append(share)
    for kind in CLAIMS:
        shares = shares_by_kind[kind]
        assert np.mean(shares) <= allowed_share(STUDIES * len(shares) // 2), kind


@pytest.mark.parametrize(
    ("models", "tasks", "subsets"), [(2, 1, False), (4, 3, False), (6, 16, True)]
)
def test_without_errors_nothing_is_claimed_of_few_tasks(
    models: int, tasks: int, subsets: bool
) -> None:
    at = Setting("equal", models, tasks, 1000, subsets=subsets, errors="none")
    assert set(false_claims(at, 4).values()) == {0.0}

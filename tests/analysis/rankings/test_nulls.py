"""A sample of ``bench/nulls.py``: where nothing is true, hardly a sentence claims anything."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from nulls import CLAIMS, Setting, false_claims, limit

STUDIES = 16


@pytest.mark.parametrize("models", [2, 3, 6, 10])
def test_claims_are_rare_where_nothing_is_true(models: int):
    points = [
        Setting(models, tasks, n, gaps, families, errors=True)
        for tasks, n, gaps, families in (
            (1, 100, False, False),
            (3, 1000, True, False),
            (5, 100_000, False, True),
            (12, 100, True, True),
            (12, 100_000, False, False),
        )
    ]
    found = [false_claims(at, STUDIES) for at in points]
    for kind in CLAIMS:
        assert np.mean([shares[kind] for shares in found]) <= limit(STUDIES * len(points) // 2), (
            kind
        )


@pytest.mark.parametrize(("models", "tasks"), [(2, 1), (4, 3), (6, 6)])
def test_without_errors_nothing_is_claimed(models: int, tasks: int):
    found = false_claims(Setting(models, tasks, 1000, gaps=False, families=False, errors=False), 4)
    assert found == dict.fromkeys(CLAIMS, 0.0)

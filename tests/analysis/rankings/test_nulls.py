"""A sample of ``bench/nulls.py``: where nothing is true, hardly a sentence claims anything."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from nulls import (
    CLAIMS,
    FAMILIES_KNOWN,
    SOUND_KEPT,
    VERDICT_CLAIMS,
    Setting,
    allowed_share,
    false_claims,
    measure,
)
from potentia.analysis.rankings.pair import compare_tasks

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
        Setting("equal", models, 1, 500, passages=True),
        Setting("equal", models, 3, 500, passages=True),
        Setting("equal", models, 24, 1000, subsets=True, families=True, gaps="random"),
    ]
    shares_by_kind: dict[str, list[float]] = defaultdict(list)
    for point in points:
        for kind, share in false_claims(point, STUDIES).items():
            shares_by_kind[kind].append(share)
    for kind in CLAIMS:
        shares = shares_by_kind[kind]
        assert np.mean(shares) <= allowed_share(STUDIES * len(shares) // 2), kind


@pytest.mark.parametrize("families_known", FAMILIES_KNOWN)
@pytest.mark.parametrize("study", VERDICT_CLAIMS)
def test_verdicts_are_rarely_false_of_near_copies(study: str, families_known: str) -> None:
    """Copies of unknown family that answered the same examples: 5 to 28 % of verdicts were false."""
    shares_by_kind: dict[str, list[float]] = defaultdict(list)
    for models, redrawn in ((24, 0.05), (24, 0.5), (12, 0.2), (18, 1.0)):
        at = Setting(
            study, models, 6, 1000, families=True, families_known=families_known, redrawn=redrawn
        )
        for kind, share in false_claims(at, STUDIES).items():
            shares_by_kind[kind].append(share)
    for kind, _ in VERDICT_CLAIMS[study]:
        assert np.mean(shares_by_kind[kind]) <= allowed_share(4 * STUDIES), kind
    if study == "sound":
        assert np.mean(shares_by_kind[SOUND_KEPT]) >= 0.2


def test_unknown_passages_would_make_false_claims() -> None:
    """The grid bites: the same outcomes without their passages call equal models different in every sixth study."""
    at = Setting("equal", 2, 1, 500, passages=True)
    truth = np.full((2, 1), 0.5)
    claims = 0
    for seed in range(60):
        scores = measure(at, truth, "direct", np.random.default_rng(seed))
        (comparison,) = compare_tasks(scores.matrix, {"t0": dict(scores.outcomes["t0"])})
        claims += bool(comparison.is_significant)
    assert claims / 60 > allowed_share(1000)


@pytest.mark.parametrize(
    ("models", "tasks", "subsets"), [(2, 1, False), (4, 3, False), (6, 16, True)]
)
def test_without_errors_nothing_is_claimed_of_few_tasks(
    models: int, tasks: int, subsets: bool
) -> None:
    at = Setting("equal", models, tasks, 1000, subsets=subsets, errors="none")
    assert set(false_claims(at, 4).values()) == {0.0}

"""Evidence between models: against a plain loop over the definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from potentia.analysis.rankings.evidence_map import map_evidence
from potentia.analysis.stats.significance import mcnemar_p_value
from potentia.values.scores import ScoreMatrix

STREAM = np.random.default_rng(0)
ERROR = np.full((5, 4), 0.03)
MATRIX = ScoreMatrix.build(
    "abcde", ["w", "x", "y", "z"], STREAM.random((5, 4)), stderr=ERROR, protocol="direct"
)


def test_every_pair_by_the_z_test():
    found = map_evidence(MATRIX)
    assert found is not None
    wins, losses, ties = found.count_outcomes()
    for k, (a, b) in enumerate(itertools.combinations(range(5), 2)):
        difference = MATRIX.values[a] - MATRIX.values[b]
        p = 2 * norm.sf(np.abs(difference) / np.sqrt(2 * 0.03**2))
        assert found.p[k] == pytest.approx(p)
        assert (wins[k], losses[k]) == (
            ((p < 0.05) & (difference > 0)).sum(),
            ((p < 0.05) & (difference < 0)).sum(),
        )
        assert wins[k] + losses[k] + ties[k] == 4
        assert found.mean[k] == pytest.approx(difference.mean())
        error = np.sqrt(4 * 2 * 0.03**2) / 4
        assert found.mean_p[k] == pytest.approx(2 * norm.sf(abs(difference.mean()) / error))
        assert found.detectable[k] == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * error)


def test_stored_items_sharpen_the_test_of_their_task_alone():
    right = STREAM.random((5, 40)) < 0.6
    outcomes = {
        "x": {
            m: {d: float(v) for d, v in enumerate(right[k])}
            for k, m in enumerate("abcde")
            if m != "c"
        }
    }
    plain, sharp = map_evidence(MATRIX), map_evidence(MATRIX, outcomes)
    assert plain is not None
    assert sharp is not None
    assert sharp.basis == ("z test", "McNemar", "z test", "z test")
    for k, (a, b) in enumerate(itertools.combinations(range(5), 2)):
        expected = plain.p[k].copy()
        if 2 not in (a, b):
            expected[1] = mcnemar_p_value(
                int((right[a] & ~right[b]).sum()), int((right[b] & ~right[a]).sum())
            )
        assert sharp.p[k] == pytest.approx(expected)


def test_gaps_and_corpora_are_left_out():
    values = MATRIX.values.copy()
    values[0, 0] = np.nan
    mixed = ScoreMatrix.build(
        "abcde",
        ["w", "x", "y", "z"],
        values,
        stderr=ERROR,
        higher_is_better=[True, True, True, False],
    )
    found = map_evidence(mixed)
    assert found is not None
    assert found.tasks == ("w", "x", "y")
    assert np.isnan(found.p[:4, 0]).all()
    assert np.isfinite(found.mean).all()


def test_without_errors_there_is_no_evidence():
    assert map_evidence(ScoreMatrix.build("ab", ["x"], [[0.1], [0.2]])) is None

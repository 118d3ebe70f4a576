"""Evidence between models: against a plain loop over the definition."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from potentia.analysis.rankings.evidence_map import map_evidence
from potentia.analysis.stats.significance import mcnemar_p_value, measure_significance
from potentia.values.scores import ScoreMatrix

STREAM = np.random.default_rng(0)
ERROR = np.full((5, 4), 0.03)
MATRIX = ScoreMatrix.build(
    "abcde", ["w", "x", "y", "z"], STREAM.random((5, 4)), stderr=ERROR, protocol="direct"
)


def test_every_pair_by_the_z_test():
    evidence = map_evidence(MATRIX)
    assert evidence is not None
    wins, losses, ties = evidence.count_outcomes()
    for k, (a, b) in enumerate(itertools.combinations(range(5), 2)):
        difference = MATRIX.values[a] - MATRIX.values[b]
        p = 2 * norm.sf(np.abs(difference) / np.sqrt(2 * 0.03**2))
        assert evidence.p[k] == pytest.approx(p)
        assert (wins[k], losses[k]) == (
            ((p < 0.05) & (difference > 0)).sum(),
            ((p < 0.05) & (difference < 0)).sum(),
        )
        assert wins[k] + losses[k] + ties[k] == 4
        assert evidence.mean[k] == pytest.approx(difference.mean())
        error = np.sqrt(4 * 2 * 0.03**2) / 4
        assert evidence.mean_p[k] == pytest.approx(2 * norm.sf(abs(difference.mean()) / error))
        assert evidence.detectable[k] == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * error)


def test_stored_items_sharpen_the_test_of_their_task_alone():
    right = STREAM.random((5, 40)) < 0.6
    outcomes = {
        "x": {
            m: {d: float(v) for d, v in enumerate(right[k])}
            for k, m in enumerate("abcde")
            if m != "c"
        }
    }
    values = MATRIX.values.copy()
    values[:, 1] = right.mean(axis=1)  # else the items are not those of the scores
    scored = replace(MATRIX, values=values)
    plain, sharp = map_evidence(scored), map_evidence(scored, outcomes)
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
    evidence = map_evidence(mixed)
    assert evidence is not None
    assert evidence.tasks == ("w", "x", "y")
    assert np.isnan(evidence.p[:4, 0]).all()
    assert np.isfinite(evidence.mean).all()


def test_without_errors_there_is_no_evidence():
    assert map_evidence(ScoreMatrix.build("ab", ["x"], [[0.1], [0.2]])) is None


def test_means_are_of_one_scale_and_subsets_of_a_benchmark_count_as_one():
    values = np.array([[0.6, 0.6, 0.6, 0.3, 9.0], [0.5, 0.5, 0.5, 0.5, 2.0]])
    matrix = ScoreMatrix.build(
        "ab",
        ["law_a", "law_b", "law_c", "x", "mt_bench"],
        values,
        stderr=np.full((2, 5), 0.01),
        metrics=["acc"] * 4 + ["mt_bench"],
    )
    evidence = map_evidence(matrix)
    assert evidence is not None
    assert evidence.mean[0] == pytest.approx((0.1 - 0.2) / 2)
    error = np.sqrt(2) * 0.01 / 2 * np.sqrt(1 / 3 + 1)
    assert evidence.detectable[0] == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * error)


def test_what_seeds_move_is_no_win():
    rng = np.random.default_rng(3)
    right = (rng.random((2, 1_000)) < np.array([[0.64], [0.58]])).astype(float)
    outcomes = {
        "own": {m: dict(enumerate(row.tolist())) for m, row in zip("ab", right, strict=True)}
    }
    matrix = ScoreMatrix.build(
        "ab", ["own"], right.mean(axis=1)[:, None], stderr=np.full((2, 1), 0.0155), metrics=["acc"]
    )
    with_seeds = replace(
        matrix,
        seeds=np.empty((2, 1), dtype=object),
        seed_deviations=np.array([0.04]),
        stderr=np.full((2, 1), np.hypot(0.0155, 0.04)),
    )
    plain, careful = map_evidence(matrix, outcomes), map_evidence(with_seeds, outcomes)
    assert plain is not None
    assert careful is not None
    assert plain.p[0, 0] < 0.05
    assert careful.p[0, 0] > 0.2
    assert measure_significance(matrix, outcomes).significant == (1,)
    assert measure_significance(with_seeds, outcomes).significant == (0,)

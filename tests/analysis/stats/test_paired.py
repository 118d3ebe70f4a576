"""Paired tests of all models at once, against statsmodels one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.contingency_tables import mcnemar

from potentia.analysis.rankings import RankingOptions, analyze_scores
from potentia.analysis.stats.significance import (
    mcnemar_p_values,
    measure_significance,
    outcome_tables,
)
from potentia.facts import Background
from potentia.values.scores import ScoreMatrix


def study(models=4, items=300, seed=0):
    """Models that answer the same documents, with correlated luck."""
    rng = np.random.default_rng(seed)
    hardness = rng.random(items)
    right = hardness < np.linspace(0.6, 0.7, models)[:, None] + 0.03 * rng.normal(
        size=(models, items)
    )
    outcomes = {"rte": {f"m{i}": dict(enumerate(row.astype(float))) for i, row in enumerate(right)}}
    mean = right.mean(axis=1, keepdims=True)
    stderr = np.sqrt(mean * (1 - mean) / (items - 1))
    matrix = ScoreMatrix.build([f"m{i}" for i in range(models)], ["rte"], mean, stderr=stderr)
    return matrix, outcomes, right


def test_all_pairs_equal_statsmodels():
    _, _, right = study(models=6)
    right[5] = right[4]
    p = mcnemar_p_values(right)
    for k, (a, b) in enumerate(zip(*np.triu_indices(6, 1), strict=True)):
        table = [[0, (right[a] & ~right[b]).sum()], [(right[b] & ~right[a]).sum(), 0]]
        assert p[k] == pytest.approx(mcnemar(table, exact=True).pvalue if a != 4 else 1.0)


def test_shared_items_resolve_what_standard_errors_cannot():
    matrix, outcomes, _ = study()
    significance = measure_significance(matrix, outcomes)
    assert (significance.models, significance.items, significance.pairs) == (4, (300,), (6,))
    assert significance.significant[0] > measure_significance(matrix).significant[0]
    assert significance.tables()[0].rows[0][-2:] == ("McNemar", 300)


def test_only_the_documents_that_all_have():
    matrix, outcomes, right = study()
    del outcomes["rte"]["m0"][7]
    assert measure_significance(matrix, outcomes).items == (300,)  # m0 by its standard error
    matrix.values[0] = np.delete(right[0], 7).mean()
    assert measure_significance(matrix, outcomes).items == (299,)
    assert measure_significance(matrix, {"rte": {"m0": {0: 1.0}}}).items == (0,)
    assert measure_significance(matrix).items == (0,)


def test_items_stand_for_scores_only_where_their_mean_is_the_score():
    matrix, outcomes, right = study()
    np.testing.assert_array_equal(outcome_tables(matrix, outcomes)["rte"], right)
    score_matrix = ScoreMatrix.build(
        matrix.models, matrix.tasks, matrix.values + 0.1, stderr=matrix.stderr
    )
    assert outcome_tables(score_matrix, outcomes) == {}
    matrix.values[0] = np.nan
    partial = outcome_tables(
        matrix, {"rte": {m: v for m, v in outcomes["rte"].items() if m != "m0"}}
    )["rte"]
    assert np.isnan(partial[0]).all()
    assert np.isfinite(partial[1:]).all()


def test_items_reach_the_findings():
    matrix, outcomes, _ = study()
    scores = analyze_scores(
        {"direct": matrix}, Background(), RankingOptions(resamples=20), {"direct": outcomes}
    )
    assert scores.significance["direct"].tests == ("McNemar",)

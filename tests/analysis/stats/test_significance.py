"""Tests of differences against scipy and statsmodels, and tau-b with insignificant differences as ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests

from potentia.analysis.stats.correlation import kendall_matrix
from potentia.analysis.stats.significance import (
    benjamini_hochberg,
    detectable_difference,
    mcnemar_p_value,
    measure_significance,
    pair_p_values,
    pair_z_scores,
    significant_order,
    tau_b_matrix,
)
from potentia.errors import InputError
from potentia.values.scores import ScoreMatrix


def matrix(values, stderr, **more):
    values = np.asarray(values, dtype=float)
    models, tasks = values.shape
    return ScoreMatrix.build(
        [f"m{i}" for i in range(models)],
        [f"t{j}" for j in range(tasks)],
        values,
        stderr=stderr,
        **more,
    )


def count_pairs(tested, **options):
    """Return how many pairs could be compared on each task, and how many differ."""
    significance = measure_significance(tested, **options)
    return significance.pairs, significance.significant


@given(st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_mcnemar(first_only, second_only):
    table = [[5, first_only], [second_only, 7]]
    assert mcnemar_p_value(first_only, second_only) == pytest.approx(
        statsmodels_mcnemar(table, exact=True).pvalue, abs=1e-12
    )


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1)))
@settings(max_examples=60, deadline=None)
def test_benjamini_hochberg(p):
    adjusted = benjamini_hochberg(p[:, None])[:, 0]
    np.testing.assert_allclose(adjusted, multipletests(p, method="fdr_bh")[1], atol=1e-12)


def test_benjamini_hochberg_leaves_gaps_out():
    p = np.array([[0.01, np.nan], [0.04, 0.02], [np.nan, 0.03]])
    adjusted = benjamini_hochberg(p)
    np.testing.assert_allclose(adjusted[:2, 0], multipletests(p[:2, 0], method="fdr_bh")[1])
    assert np.isnan(adjusted[2, 0])
    assert np.isnan(adjusted[0, 1])


def test_z_test_is_the_two_sample_test():
    result = matrix([[0.6], [0.5]], [[0.03], [0.04]])
    z = 0.1 / 0.05
    assert pair_z_scores(result)[0, 0] == pytest.approx(z)
    assert pair_p_values(result)[0, 0] == pytest.approx(2 * stats.norm.sf(z))
    assert count_pairs(result) == ((1,), (1,))
    assert count_pairs(result, level=0.99) == ((1,), (0,))


def test_lower_is_better_turns_the_sign():
    assert (
        pair_z_scores(matrix([[0.6], [0.5]], [[0.01], [0.01]], higher_is_better=False))[0, 0] < -5
    )


def test_gaps_and_missing_errors_are_not_compared():
    result = matrix(
        [[0.6, 0.6], [np.nan, 0.1], [0.2, 0.2]], [[0.01, np.nan], [0.01, 0.01], [0.01, 0.01]]
    )
    np.testing.assert_array_equal(
        np.isfinite(pair_z_scores(result)), [[False, False], [True, False], [False, True]]
    )
    assert count_pairs(result) == ((1, 1), (1, 1))


def test_scores_without_error_differ_where_they_differ():
    assert count_pairs(matrix([[0.6], [0.5], [0.5]], np.zeros((3, 1)))) == ((3,), (2,))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_tau_b_on_signs_is_the_definition(data):
    """Concordant minus discordant over the geometric mean of untied pairs, counted one pair at a time."""
    n = data.draw(st.integers(2, 7))
    values = data.draw(
        arrays(np.float64, (n, 2), elements=st.integers(0, 10).map(lambda k: k / 10))
    )
    stderr = data.draw(arrays(np.float64, (n, 2), elements=st.sampled_from([0.01, 0.1])))
    signs = np.zeros((2, n, n))
    for task in range(2):
        for a in range(n):
            for b in range(n):
                gap = values[a, task] - values[b, task]
                if abs(gap) > stats.norm.ppf(0.975) * np.hypot(stderr[a, task], stderr[b, task]):
                    signs[task, a, b] = np.sign(gap)
    upper = np.triu_indices(n, 1)
    x, y = signs[0][upper], signs[1][upper]
    untied = np.sqrt((x != 0).sum() * (y != 0).sum())
    expected = (x * y).sum() / untied if untied else np.nan
    assert tau_b_matrix(matrix(values, stderr))[0, 1] == pytest.approx(expected, nan_ok=True)


def test_with_tiny_errors_tau_b_is_tau():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(15, 4)).round(1)
    np.testing.assert_allclose(
        tau_b_matrix(matrix(values, np.full(values.shape, 1e-9))), kendall_matrix(values)
    )


def test_partial_order_needs_every_error():
    with pytest.raises(InputError):
        significant_order(np.array([0.1, 0.2]), np.array([0.1, np.nan]))


def test_detectable_difference_has_the_power_it_says():
    stderr = 0.02
    smallest = detectable_difference(matrix(np.zeros((5, 1)), np.full((5, 1), stderr)))[0]
    rng = np.random.default_rng(1)
    draws = rng.normal(smallest, stderr, 20_000) - rng.normal(0, stderr, 20_000)
    power = (np.abs(draws) > stats.norm.ppf(0.975) * stderr * np.sqrt(2)).mean()
    assert power == pytest.approx(0.8, abs=0.01)


def test_the_note_on_mcnemar_promises_no_count():
    """The note said that McNemar finds more, above a row in which it found fewer."""
    rng = np.random.default_rng(0)
    right = (rng.random((4, 200)) < np.array([[0.4], [0.5], [0.6], [0.7]])).astype(float)
    errors = right.std(axis=1, ddof=1, keepdims=True) / np.sqrt(200)
    outcomes = {f"m{row}": dict(enumerate(answers)) for row, answers in enumerate(right.tolist())}
    scored = matrix(right.mean(axis=1, keepdims=True), errors)
    table = measure_significance(scored, {"t0": outcomes}).tables()[0]
    assert "exact test on the stored examples" in table.note
    assert "finds more" not in table.note

"""All-pairs correlations against scipy, one pair at a time: ties, gaps, constant columns, few models, resamples."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from potentia.analysis.stats import correlation as module
from potentia.analysis.stats.correlation import (
    kendall_matrix,
    kendall_of_significant_differences,
    mean_offdiagonal,
    pearson_matrix,
    spearman_matrix,
)
from potentia.errors import InputError

SCIPY = {
    kendall_matrix: stats.kendalltau,
    spearman_matrix: stats.spearmanr,
    pearson_matrix: stats.pearsonr,
}


def by_pairs(method, x, y):
    """The slow way: scipy on the rows that both columns have."""
    result = np.full((x.shape[1], y.shape[1]), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(x.shape[1]):
            for j in range(y.shape[1]):
                has_both = np.isfinite(x[:, i]) & np.isfinite(y[:, j])
                if has_both.sum() > 1:
                    result[i, j] = SCIPY[method](x[has_both, i], y[has_both, j]).statistic
    return result


def scores(gaps: bool = True):
    """Score matrices with many ties (tenths), gaps, constant columns, from 2 models and 1 task on."""
    tenths = st.integers(-5, 5).map(lambda k: k / 10)
    cell = st.one_of(tenths, tenths, st.just(float("nan"))) if gaps else tenths
    shape = st.tuples(st.integers(2, 9), st.integers(1, 5))
    return shape.flatmap(lambda s: arrays(np.float64, s, elements=cell))


@pytest.mark.parametrize("method", SCIPY, ids=lambda f: f.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_agrees_with_scipy_on_ties_and_gaps(method, data):
    x = data.draw(scores())
    np.testing.assert_allclose(method(x), by_pairs(method, x, x), atol=1e-12)


@pytest.mark.parametrize("method", SCIPY, ids=lambda f: f.__name__)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_between_two_sets_of_tasks(method, data):
    x = data.draw(scores())
    y = data.draw(arrays(np.float64, (x.shape[0], 3), elements=st.integers(0, 4).map(float)))
    np.testing.assert_allclose(method(x, y), by_pairs(method, x, y), atol=1e-12)


@pytest.mark.parametrize("method", SCIPY, ids=lambda f: f.__name__)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_weights_equal_repeated_rows(method, data):
    x = data.draw(scores())
    draws = data.draw(arrays(np.int64, (3, x.shape[0]), elements=st.integers(0, 3)))
    weighted = method(x, weights=draws)
    for k, draw in enumerate(draws):
        rows = x[np.repeat(np.arange(len(draw)), draw)]
        np.testing.assert_allclose(weighted[k], by_pairs(method, rows, rows), atol=1e-12)


@pytest.mark.parametrize("method", SCIPY, ids=lambda f: f.__name__)
def test_a_stack_of_matrices_is_done_one_by_one(method):
    rng = np.random.default_rng(0)
    stack = rng.normal(size=(4, 12, 3))
    draws = rng.multinomial(12, [1 / 12] * 12, size=4)
    together = method(stack, weights=draws)
    for k in range(4):
        np.testing.assert_allclose(together[k], method(stack[k], weights=draws[k]), atol=1e-12)


def test_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 6)).round(1)
    draws = rng.multinomial(40, [1 / 40] * 40, size=7)
    in_one_block = kendall_matrix(x, weights=draws)
    at_once = kendall_matrix(x)
    monkeypatch.setattr(module, "_SIGN_BLOCK", 500)
    monkeypatch.setattr(module, "_PAIR_BLOCK", 50)
    np.testing.assert_array_equal(kendall_matrix(x, weights=draws), in_one_block)
    np.testing.assert_array_equal(kendall_matrix(x), at_once)


def every_difference(x, **options):
    """Tau-b of tests that find every difference: the scores' own."""
    return kendall_of_significant_differences(x, np.where(np.isnan(x), np.nan, 0.0), 0.0, **options)


def test_tau_of_tests_that_find_every_difference_is_tau_of_the_scores():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 5)).round(1)
    draws = rng.multinomial(20, [1 / 20] * 20, size=3)
    np.testing.assert_allclose(every_difference(x), kendall_matrix(x), atol=1e-12)
    np.testing.assert_allclose(
        every_difference(x, weights=draws), kendall_matrix(x, weights=draws), atol=1e-12
    )


def test_tau_of_tests_counts_pair_by_pair(monkeypatch):
    """The slow way: every pair of models, in blocks or at once, with errors, ties and gaps."""
    rng = np.random.default_rng(6)
    x, error = rng.normal(size=(30, 4)).round(1), rng.uniform(0.1, 0.6, size=(30, 4))
    x[rng.random(x.shape) < 0.1] = np.nan
    error[rng.random(x.shape) < 0.05] = np.nan
    s, known = np.zeros((2, 435, 4))
    for k, (a, b) in enumerate(itertools.combinations(range(30), 2)):
        z = (x[a] - x[b]) / np.sqrt(error[a] ** 2 + error[b] ** 2)
        known[k] = np.isfinite(z)
        s[k] = np.where(np.abs(z) > 1.5, np.sign(z), 0.0)
    slow = (s.T @ s) / np.sqrt(np.abs(s).T @ known) / np.sqrt(known.T @ np.abs(s))
    np.testing.assert_allclose(kendall_of_significant_differences(x, error, 1.5), slow, atol=1e-12)
    monkeypatch.setattr(module, "_SIGN_BLOCK", 100)
    np.testing.assert_allclose(kendall_of_significant_differences(x, error, 1.5), slow, atol=1e-12)


def test_mean_over_pairs_leaves_the_diagonal_and_gaps_out():
    tau = np.array([[1.0, 0.5, np.nan], [0.5, 1.0, 0.1], [np.nan, 0.1, 1.0]])
    assert mean_offdiagonal(tau) == pytest.approx(0.3)
    np.testing.assert_allclose(mean_offdiagonal(tau, axis=True), [0.5, 0.3, 0.1])
    assert np.isnan(mean_offdiagonal(np.ones((1, 1))))


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="weights are for 3 models"):
        kendall_matrix(np.ones((4, 2)), weights=[1, 1, 1])
    with pytest.raises(InputError, match="same models"):
        kendall_matrix(np.ones((4, 2)), np.ones((5, 2)))
    with pytest.raises(InputError, match="weights are for 3 models"):
        kendall_of_significant_differences(np.ones((4, 2)), np.ones((4, 2)), 2.0, weights=[1, 1, 1])


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_stack_with_ties_agrees_with_scipy(data):
    stack = np.stack(
        [
            data.draw(arrays(np.float64, (6, 3), elements=st.integers(0, 3).map(float)))
            for _ in range(3)
        ]
    )
    for k, tau in enumerate(kendall_matrix(stack)):
        np.testing.assert_allclose(tau, by_pairs(kendall_matrix, stack[k], stack[k]), atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("models", [2, 3, 65, 130])  # pairs that fill a word, and that do not
def test_a_stack_agrees_with_one_at_a_time(models, tied):
    rng = np.random.default_rng(models)
    stack = rng.normal(size=(7, models, 5))
    if tied:
        stack = np.round(stack, 1)
    slow = np.stack([by_pairs(kendall_matrix, one, one) for one in stack])
    np.testing.assert_allclose(kendall_matrix(stack), slow, atol=1e-12)


def test_the_same_question_is_answered_once(monkeypatch):
    calls = []
    true = module._tau_weighted
    monkeypatch.setattr(module, "_tau_weighted", lambda *a: calls.append(a) or true(*a))
    rng = np.random.default_rng(5)
    x, weights = rng.normal(size=(40, 12)), rng.integers(0, 3, size=(300, 40)).astype(float)
    kendall_matrix.forget()
    first, again = (
        kendall_matrix(x, weights=weights),
        kendall_matrix(x.copy(), weights=weights.copy()),
    )
    assert len(calls) == 1
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        again[0, 0, 0] = 2.0  # it is shared, so nobody may change it
    other = kendall_matrix(x[:, ::-1], weights=weights)
    assert len(calls) == 2
    np.testing.assert_array_equal(other[:, ::-1, ::-1], first)


def test_many_models_are_resampled_to_first_order(monkeypatch: pytest.MonkeyPatch):
    """Past FIRST_ORDER models: the spread and the interval of the mean agreement are those of whole resamples."""
    rng = np.random.default_rng(3)
    models, tasks = 260, 6
    x = np.round(rng.normal(size=models)[:, None] + rng.normal(size=(models, tasks)), 2)
    x[rng.random(x.shape) < 0.03] = np.nan
    y = x[:, :2] + rng.normal(size=(models, 2))
    draws = rng.multinomial(models, np.full(models, 1 / models), size=400)
    asks = (
        lambda: kendall_matrix(x, weights=draws),
        lambda: kendall_matrix(x, y, weights=draws),
        lambda: every_difference(x, weights=draws),
    )
    for ask in asks:
        monkeypatch.setattr(module, "FIRST_ORDER", 1_000)
        by_all_models = ask()
        kendall_matrix.forget(), kendall_of_significant_differences.forget()
        monkeypatch.undo()
        first = ask()
        kendall_matrix.forget(), kendall_of_significant_differences.forget()
        assert first.shape == by_all_models.shape
        assert not np.array_equal(first, by_all_models)
        assert np.abs(first - by_all_models).max() < 0.04
        assert first.std(axis=0) == pytest.approx(by_all_models.std(axis=0), rel=0.1, abs=1e-3)
        assert first.mean(axis=0) == pytest.approx(by_all_models.mean(axis=0), abs=0.002)
    assert kendall_matrix(x, weights=np.ones(models)) == pytest.approx(kendall_matrix(x), abs=1e-6)


@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_models_drawn_together_are_weighed_as_if_each_alone(monkeypatch: pytest.MonkeyPatch, gaps):
    """Families: pairs are summed by unit first. Also past FIRST_ORDER, where nothing need be left out then."""
    rng = np.random.default_rng(4)
    family = rng.integers(0, 5, size=60)
    x = np.round(rng.normal(size=(60, 4)), 1)
    x[rng.random(x.shape) < gaps] = np.nan
    y = np.round(x[:, :2] + rng.normal(size=(60, 2)), 1)
    draws = rng.multinomial(5, [1 / 5] * 5, size=6)[:, family]
    monkeypatch.setattr(module, "FIRST_ORDER", 10)
    for k, draw in enumerate(draws):
        rows = np.repeat(np.arange(60), draw)
        alone = by_pairs(kendall_matrix, x[rows], x[rows])
        np.testing.assert_allclose(kendall_matrix(x, weights=draws)[k], alone, atol=1e-12)
        np.testing.assert_allclose(every_difference(x, weights=draws)[k], alone, atol=1e-12)
        beside = by_pairs(kendall_matrix, x[rows], y[rows])
        np.testing.assert_allclose(kendall_matrix(x, y, weights=draws)[k], beside, atol=1e-12)

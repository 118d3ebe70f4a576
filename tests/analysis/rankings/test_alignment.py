"""Alignment against the paper's own loop, kept here as the oracle."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata

from potentia.analysis.rankings.alignment import align_orders, align_rankings
from potentia.analysis.stats.significance import significant_order
from potentia.errors import InputError
from potentia.values.scores import ScoreMatrix


def naive_rank_models(score1, stderr1, score2, stderr2):
    """Algorithms 1 to 3 as printed: every pair of available models, sorted by cost, at every place."""
    models = range(len(score1))
    edges1, edges2 = significant_order(score1, stderr1), significant_order(score2, stderr2)
    vanilla1, vanilla2 = rankdata(-score1), rankdata(-score2)
    order1, order2 = [], []

    def available(edges, order):
        remaining = [m for m in models if m not in order]
        return [m for m in remaining if not any(edges[rival, m] for rival in remaining)]

    def placement(model, order):
        return order.index(model) if model in order else len(models)

    for _ in models:
        pairs = []
        for m1 in available(edges1, order1):
            for m2 in available(edges2, order2):
                cost = (
                    placement(m1, order2) + placement(m2, order1),
                    m1 != m2,
                    vanilla2[m1] + vanilla1[m2],
                )
                pairs.append((cost, m1, m2))
        _, m1, m2 = min(pairs)
        order1.append(m1)
        order2.append(m2)
    places = np.empty((2, len(score1)), dtype=int)
    places[0, order1] = places[1, order2] = np.arange(1, len(score1) + 1)
    return places


tenths = st.integers(0, 10).map(lambda k: k / 10)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_equals_the_papers_loop(data):
    n = data.draw(st.integers(1, 9))
    score1, score2 = (data.draw(arrays(np.float64, n, elements=tenths)) for _ in range(2))
    stderr1, stderr2 = (
        data.draw(arrays(np.float64, n, elements=st.sampled_from([0.0, 0.03, 0.1])))
        for _ in range(2)
    )
    expected = naive_rank_models(score1, stderr1, score2, stderr2)
    np.testing.assert_array_equal(align_orders(score1, stderr1, score2, stderr2), expected)


@given(st.integers(0, 10_000), st.integers(2, 40))
@settings(max_examples=50, deadline=None)
def test_never_against_a_significant_difference(seed, n):
    rng = np.random.default_rng(seed)
    score1, score2 = rng.random(n), rng.random(n)
    stderr1, stderr2 = rng.random(n) * 0.2, rng.random(n) * 0.2
    rank1, rank2 = align_orders(score1, stderr1, score2, stderr2)
    for rank, score, stderr in ((rank1, score1, stderr1), (rank2, score2, stderr2)):
        assert sorted(rank) == list(range(1, n + 1))
        winner, loser = np.nonzero(significant_order(score, stderr))
        assert (rank[winner] < rank[loser]).all()


def test_insignificant_rankings_become_equal():
    rng = np.random.default_rng(0)
    rank1, rank2 = align_orders(rng.random(20), np.full(20, 5.0), rng.random(20), np.full(20, 5.0))
    np.testing.assert_array_equal(rank1, rank2)


def test_much_faster_than_the_loop():
    rng = np.random.default_rng(1)
    inputs = rng.random(60), np.full(60, 0.1), rng.random(60), np.full(60, 0.1)
    start = time.process_time()
    expected = naive_rank_models(*inputs)
    slow = time.process_time() - start
    start = time.process_time()
    for _ in range(5):
        ours = align_orders(*inputs)
    fast = (time.process_time() - start) / 5
    np.testing.assert_array_equal(ours, expected)
    assert slow > 10 * fast


def scores(values, stderr):
    return ScoreMatrix.build(["a", "b", "c"], ["x", "y"], values, stderr=stderr)


def test_finding_leaves_incomplete_models_out():
    rankings = align_rankings(
        scores([[0.9, 0.8], [0.5, np.nan], [0.1, 0.2]], np.full((3, 2), 0.01)), "x", "y"
    )
    assert rankings.models == ("a", "c")
    np.testing.assert_array_equal(rankings.ranks, [[1, 1], [2, 2]])
    assert (rankings.moved, rankings.aligned_tau) == (0, 1.0)


def test_needs_standard_errors():
    with pytest.raises(InputError, match="standard errors"):
        align_rankings(scores(np.ones((3, 2)), np.full((3, 2), np.nan)), "x", "y")
    with pytest.raises(InputError, match="no task 'z'"):
        align_rankings(scores(np.ones((3, 2)), np.ones((3, 2))), "x", "z")

"""Wherever pairs of models are tested on a task, one test decides: by stored items, else by standard errors."""

import numpy as np
import pytest

from potentia.analysis.answers.metric_comparison import measure_separated_share
from potentia.analysis.benchmark.measures import measure_resolved_share
from potentia.analysis.rankings.evidence_map import map_evidence
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.rankings.screening import screen_tasks
from potentia.analysis.stats.significance import measure_significance
from potentia.values.clusters import Clusters
from potentia.values.scores import ScoreMatrix, TaskOutcomes

MODELS = tuple("abcdefgh")


def draw_study(seed=2, examples=300, graded=False):
    """Return eight models on one task, a few points apart, with their outcomes."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=examples)
    ability = np.linspace(0.0, 0.5, len(MODELS))
    chances = 1 / (1 + np.exp(2 * difficulty - ability[:, None]))
    right = (rng.random(chances.shape) < chances).astype(float)
    if graded:
        right = np.clip(right * 0.5 + 0.5 * rng.random(right.shape), 0, 1)
    outcomes = {
        "ask": TaskOutcomes(
            {m: dict(enumerate(row.tolist())) for m, row in zip(MODELS, right, strict=True)}
        )
    }
    matrix = ScoreMatrix.build(
        MODELS,
        ["ask"],
        right.mean(axis=1)[:, None],
        stderr=right.std(axis=1, ddof=1)[:, None] / np.sqrt(examples),
        n=np.full((len(MODELS), 1), examples),
        metrics=["acc"],
    )
    return matrix, outcomes, right


@pytest.mark.parametrize("graded", [False, True])
def test_one_share_of_pairs_wherever_it_is_said(graded):
    """One page said 87 %, 88 %, 0.857 and 0.893 of the same pairs."""
    matrix, outcomes, right = draw_study(graded=graded)
    significance = measure_significance(matrix, outcomes)
    share = significance.significant[0] / significance.pairs[0]
    assert 0.05 < share < 0.95
    clusters = Clusters.singletons(right.shape[1])
    resolved = measure_resolved_share(
        right, clusters, matrix.values[:, 0], matrix.stderr[:, 0], np.zeros(len(MODELS))
    )
    assert resolved == pytest.approx(share)
    assert measure_separated_share(MODELS, outcomes["ask"]) == pytest.approx(share)
    evidence = map_evidence(matrix, outcomes)
    assert evidence is not None
    assert (evidence.p < 0.05).mean() == pytest.approx(share)
    assert evidence.basis == significance.tests
    assert screen_tasks(matrix, items=outcomes).resolved[0] == pytest.approx(share)
    found = 0
    for first in range(len(MODELS)):
        for second in range(first + 1, len(MODELS)):
            pair = matrix.select(models=np.array([first, second]))
            (comparison,) = compare_tasks(pair, outcomes)
            found += comparison.p_value < 0.05
    assert found == significance.significant[0]


@pytest.mark.parametrize("seed", range(6))
def test_an_interval_leaves_zero_out_where_its_test_finds_a_difference(seed):
    """An interval of −0.137 to −0.003 stood beside p = 0.053."""
    matrix, outcomes, _ = draw_study(seed, examples=116)
    for first in range(len(MODELS)):
        for second in range(first + 1, len(MODELS)):
            pair = matrix.select(models=np.array([first, second]))
            (comparison,) = compare_tasks(pair, outcomes)
            has_zero = comparison.difference.low <= 0 <= comparison.difference.high
            assert has_zero == (comparison.p_value > 0.05)


def test_scores_that_are_no_means_of_items_are_tested_by_their_errors():
    matrix, outcomes, _ = draw_study()
    matrix.values[:] += 0.1
    assert measure_significance(matrix, outcomes).tests == ("z test",)
    assert measure_significance(matrix, outcomes).items == (0,)

"""Examples that share a passage make no false differences: in the pair, the headline and the tests by items."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.rankings.pair import DifferenceTest, compare_tasks
from potentia.analysis.stats.significance import measure_significance
from potentia.values.clusters import Clusters, clustered_error
from potentia.values.scores import Outcomes, ScoreMatrix, TaskOutcomes

PASSAGES, QUESTIONS = 50, 10
LABELS = {k: f"passage {k // QUESTIONS}" for k in range(PASSAGES * QUESTIONS)}


def draw_study(rng: np.random.Generator, *, clustered: bool) -> tuple[ScoreMatrix, Outcomes]:
    """Draw two equally good models on 50 passages × 10 questions, with an effect of 1 logit on every passage."""
    effects = rng.standard_normal((2, PASSAGES, 1))
    logits = 0.5 + effects + rng.standard_normal((1, PASSAGES, QUESTIONS))
    right = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).reshape(2, -1).astype(float)
    examples = right.shape[1]
    by_model = {name: dict(enumerate(row.tolist())) for name, row in zip("ab", right, strict=True)}
    errors = right.std(axis=1, ddof=1) / np.sqrt(examples)
    if clustered:
        clusters = Clusters.of_examples(range(examples), LABELS)
        errors = np.array([clustered_error(row, clusters) for row in right])
    matrix = ScoreMatrix.build(
        ["a", "b"],
        ["reading"],
        right.mean(axis=1)[:, None],
        stderr=errors[:, None],
        n=np.full((2, 1), examples),
        metrics=["acc"],
    )
    return matrix, {"reading": TaskOutcomes(by_model, LABELS if clustered else {})}


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [False, True])
def test_false_differences_of_equal_models(clustered: bool) -> None:
    rng = np.random.default_rng(0)
    studies = 300
    by_pair = by_headline = by_items = 0
    for _ in range(studies):
        matrix, outcomes = draw_study(rng, clustered=clustered)
        (comparison,) = compare_tasks(matrix, outcomes)
        by_pair += bool(comparison.is_significant)
        by_headline += decide_ranking(matrix, outcomes).is_first_certain
        by_items += measure_significance(matrix, outcomes).by_items[0]
    rates = np.array([by_pair, by_headline, by_items]) / studies
    if clustered:
        # 5 % and two standard errors of 300 studies.
        assert (rates <= 0.075).all(), rates
    else:
        assert (rates > 0.10).all(), rates


def test_the_test_and_the_interval_say_that_passages_are_shared() -> None:
    matrix, outcomes = draw_study(np.random.default_rng(1), clustered=True)
    (clustered,) = compare_tasks(matrix, outcomes)
    (plain,) = compare_tasks(matrix, {"reading": dict(outcomes["reading"])})
    assert clustered.test is DifferenceTest.MCNEMAR_CLUSTERS
    assert plain.test is DifferenceTest.MCNEMAR
    width = clustered.difference.high - clustered.difference.low
    assert width > 1.2 * (plain.difference.high - plain.difference.low)


def test_noise_is_at_least_that_of_the_clusters_whatever_error_is_stored() -> None:
    matrix, outcomes = draw_study(np.random.default_rng(2), clustered=True)
    without_clusters, _ = draw_study(np.random.default_rng(2), clustered=False)
    stored = task_noise(matrix, 0, outcomes)
    understated = task_noise(without_clusters, 0, outcomes)
    assert understated.errors == pytest.approx(stored.errors, rel=0.02)

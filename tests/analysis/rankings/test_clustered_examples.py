"""Examples that share a passage make no false differences: in the pair, the headline and the tests by items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.rankings.pair_test import ScoreGaps
from potentia.analysis.rankings.task_difference import DifferenceTest
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.first_place import paired_noise_covariance
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
    studies = 300 if clustered else 100
    by_pair = by_headline = by_items = 0
    for _ in range(studies):
        matrix, outcomes = draw_study(rng, clustered=clustered)
        (comparison,) = compare_tasks(matrix, outcomes)
        by_pair += bool(comparison.is_significant)
        by_headline += decide_ranking(matrix, outcomes).is_first_certain
        by_items += measure_significance(matrix, outcomes).significant[0]
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


def test_a_model_and_its_copy_score_the_same_on_passages() -> None:
    """Rounding left their difference a variance below zero in one study of five, and ``compare`` stopped."""
    for seed in range(20):
        right = (np.random.default_rng(seed).random(60) < 0.6).astype(float)
        answers = dict(enumerate(right.tolist()))
        passages = {example: f"passage {example // 10}" for example in answers}
        matrix = ScoreMatrix.build(
            ["a", "copy"],
            ["reading"],
            np.full((2, 1), right.mean()),
            stderr=np.full((2, 1), right.std(ddof=1) / np.sqrt(60)),
            n=np.full((2, 1), 60),
            metrics=["acc"],
        )
        outcomes = {"reading": TaskOutcomes({"a": answers, "copy": answers}, passages)}
        gaps = ScoreGaps.measure(matrix, outcomes, "a", "copy", TaskGroups.find(["reading"]))
        assert gaps is not None
        difference = gaps.mean_difference(0.95)
        assert difference is not None
        assert difference.value == 0.0
        assert np.isfinite([difference.low, difference.high]).all()


def test_noise_is_at_least_that_of_the_clusters_whatever_error_is_stored() -> None:
    matrix, outcomes = draw_study(np.random.default_rng(2), clustered=True)
    without_clusters, _ = draw_study(np.random.default_rng(2), clustered=False)
    stored = task_noise(matrix, 0, outcomes)
    understated = task_noise(without_clusters, 0, outcomes)
    assert understated.errors == pytest.approx(stored.errors, rel=0.02)


def test_errors_of_few_passages_are_as_wide_as_students_t() -> None:
    """With ten passages, normal draws called equal models different in 8 % of studies."""
    rng = np.random.default_rng(3)
    right = (rng.random((2, 100)) < 0.6).astype(float)
    clusters = Clusters.of_examples(range(100), LABELS)
    covariance = paired_noise_covariance(np.zeros(2), right, clusters)
    plain = clustered_error(right[0], clusters)
    assert np.sqrt(covariance[0, 0]) / plain == pytest.approx(2.262 / 1.960, abs=1e-3)


def draw_seed_study(rng: np.random.Generator) -> tuple[ScoreMatrix, Outcomes]:
    """Draw two models that are equally good over fine-tunings with other seeds, and how far a seed moves a score."""
    chances = np.clip(0.6 + 0.04 * rng.standard_normal(2), 0.05, 0.95)
    right = (rng.random((2, 1_000)) < chances[:, None]).astype(float)
    by_model = {name: dict(enumerate(row.tolist())) for name, row in zip("ab", right, strict=True)}
    matrix = ScoreMatrix.build(
        ["a", "b"],
        ["own"],
        right.mean(axis=1)[:, None],
        stderr=np.hypot(right.std(axis=1, ddof=1) / np.sqrt(1_000), 0.04)[:, None],
        n=np.full((2, 1), 1_000),
        metrics=["acc"],
    )
    seeds = np.empty((2, 1), dtype=object)
    return replace(matrix, seeds=seeds, seed_deviations=np.array([0.04])), {"own": by_model}


def test_what_a_seed_moves_makes_no_difference_of_a_pair() -> None:
    rng = np.random.default_rng(5)
    significant = []
    for _ in range(200):
        matrix, outcomes = draw_seed_study(rng)
        (comparison,) = compare_tasks(matrix, outcomes)
        significant.append(comparison.is_significant)
    # 5 % and two standard errors of 200 studies; McNemar's test alone says it of 40 % and more.
    assert np.mean(significant) <= 0.08

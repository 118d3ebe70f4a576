"""Errors and tests with clusters, against statsmodels, scipy and simulations without a difference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student_t

from potentia.analysis.stats.sign_flips import sign_flip_p_value
from potentia.analysis.stats.significance import mcnemar_p_value
from potentia.values.clusters import (
    Clusters,
    clustered_covariance,
    clustered_error,
    degrees_of_freedom,
    intracluster_correlation,
)


def draw_passages(
    rng: np.random.Generator, *, passages: int = 50, questions: int = 10, models: int = 2
) -> np.ndarray:
    """Draw zeros and ones of equally good models, each with an effect of 1 logit of its own on every passage."""
    effects = rng.standard_normal((models, passages, 1))
    difficulty = rng.standard_normal((1, passages, questions))
    logits = 0.5 + effects + difficulty
    chances = 1 / (1 + np.exp(-logits))
    return (rng.random(chances.shape) < chances).reshape(models, -1).astype(float)


def test_the_error_is_statsmodels_for_clusters_of_one_size() -> None:
    statsmodels = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    (values, _) = draw_passages(rng)
    labels = np.repeat(np.arange(50), 10)
    fit = statsmodels.OLS(values, np.ones(500)).fit(cov_type="cluster", cov_kwds={"groups": labels})
    error = clustered_error(values, Clusters.from_labels(labels.tolist()))
    assert error == pytest.approx(float(fit.bse[0]))


def test_the_error_is_millers_formula_with_clusters_of_unequal_size() -> None:
    values = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    labels = [0, 0, 0, 1, 1, 2, 3]
    clusters = Clusters.from_labels(labels)
    residuals = values - values.mean()
    expected = 0.0
    for group in range(4):
        members = [k for k, label in enumerate(labels) if label == group]
        products = sum(residuals[i] * residuals[j] for i, j in itertools.product(members, members))
        expected += products / (1 - len(members) / 7)
    assert clustered_error(values, clusters) == pytest.approx(math.sqrt(expected) / 7)


def test_clusters_of_one_example_give_the_usual_error() -> None:
    values = np.random.default_rng(1).random(40)
    clusters = Clusters.singletons(40)
    assert clustered_error(values, clusters) == pytest.approx(values.std(ddof=1) / math.sqrt(40))
    assert degrees_of_freedom(clusters) == 39
    assert clusters.are_independent


def test_clusters_of_one_size_have_as_many_degrees_as_clusters_less_one() -> None:
    clusters = Clusters.from_labels(np.repeat(np.arange(12), 5).tolist())
    assert degrees_of_freedom(clusters) == pytest.approx(11)
    uneven = Clusters.from_labels([0] * 50 + list(range(1, 12)))
    assert degrees_of_freedom(uneven) < 4


def test_an_example_without_a_label_is_a_cluster_of_its_own() -> None:
    clusters = Clusters.of_examples([3, 5, 7, 9], {3: "a", 5: "a", 7: ""})
    assert clusters.numbers.tolist() == [0, 0, 1, 2]
    assert clusters.mean_size == pytest.approx(6 / 4)


def test_flipping_signs_is_mcnemars_test_where_examples_are_independent() -> None:
    for first_only, second_only in [(0, 0), (3, 0), (8, 2), (20, 31), (150, 120)]:
        sums = np.array([1.0] * first_only + [-1.0] * second_only + [0.0] * 50)
        expected = mcnemar_p_value(first_only, second_only)
        assert sign_flip_p_value(sums) == pytest.approx(expected)
    assert sign_flip_p_value(np.array([1.0] * 9 + [-1.0])) == pytest.approx(binomtest(1, 10).pvalue)


def test_flipping_signs_counts_all_ways_to_flip() -> None:
    sums = np.array([3.0, -1.0, 2.0, 2.0, 0.0])
    flips = [
        abs(sum(s * v for s, v in zip(signs, sums, strict=True)))
        for signs in itertools.product((-1, 1), repeat=5)
    ]
    expected = sum(flip >= 6 for flip in flips) / len(flips)
    assert sign_flip_p_value(sums) == pytest.approx(expected)


def test_questions_on_one_passage_no_longer_make_false_differences() -> None:
    """50 passages × 10 questions, passage effect of 1 logit, no difference: McNemar is wrong far too often."""
    rng = np.random.default_rng(2)
    clusters = Clusters.from_labels(np.repeat(np.arange(50), 10).tolist())
    studies = 1_000
    plain = clustered = by_t = 0
    critical = student_t.ppf(0.975, degrees_of_freedom(clusters))
    for _ in range(studies):
        first, second = draw_passages(rng)
        difference = first - second
        plain += mcnemar_p_value(int((difference > 0).sum()), int((difference < 0).sum())) < 0.05
        clustered += sign_flip_p_value(clusters.sum_by_cluster(difference)) < 0.05
        by_t += abs(difference.mean()) > critical * clustered_error(difference, clusters)
    assert plain / studies > 0.12
    assert clustered / studies < 0.06
    assert by_t / studies < 0.065


def test_correlation_within_clusters() -> None:
    clusters = Clusters.from_labels(np.repeat(np.arange(200), 5).tolist())
    rng = np.random.default_rng(3)
    shared = np.repeat(rng.standard_normal(200), 5)
    values = math.sqrt(0.3) * shared + math.sqrt(0.7) * rng.standard_normal(1000)
    assert intracluster_correlation(values, clusters) == pytest.approx(0.3, abs=0.06)
    assert intracluster_correlation(rng.standard_normal(1000), clusters) < 0.06
    assert math.isnan(intracluster_correlation(values, Clusters.singletons(1000)))


def test_covariance_of_models_is_that_of_their_difference() -> None:
    outcomes = draw_passages(np.random.default_rng(4))
    clusters = Clusters.from_labels(np.repeat(np.arange(50), 10).tolist())
    covariance = clustered_covariance(outcomes, clusters)
    of_difference = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    expected = clustered_error(outcomes[0] - outcomes[1], clusters)
    assert math.sqrt(of_difference) == pytest.approx(expected)

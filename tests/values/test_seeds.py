"""Fine-tuning seeds: a few results with two seeds speak for all, and errors and sentences say so."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from potentia.analysis.rankings.sentences import seed_sentence
from potentia.evidence import Evidence
from potentia.study import Study, cell_key
from potentia.values.metric import Metric, Origin
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.scores import Score, ScoreMatrix
from potentia.values.seeds import measure_seed_spread, pool_seed_variance

ACCURACY = Metric.of("acc")


def build_matrix(
    rng: np.random.Generator, *, models: int, tasks: int, repeated: int, deviation: float
) -> ScoreMatrix:
    """Draw equally good models whose scores move with the seed; so many results have two seeds."""
    cells = {}
    for number in range(models * tasks):
        place = (f"model{number % models}", f"task{number // models}")
        seeds = rng.normal(0.6, deviation, 2 if number < repeated else 1)
        score = Score(float(seeds[0]), 0.001, 1000, ACCURACY, Origin(recipe="fair"))
        if len(seeds) > 1:
            parts = [
                Score(float(value), 0.001, 1000, ACCURACY, Origin(recipe="fair")) for value in seeds
            ]
            score = Score.mean(parts)
        cells[place] = score
    return ScoreMatrix.from_cells("train_before_test", cells)


def test_two_seeds_on_a_tenth_estimate_the_spread_of_all() -> None:
    matrix = build_matrix(
        np.random.default_rng(0), models=20, tasks=10, repeated=20, deviation=0.02
    )
    pooled = pool_seed_variance(matrix)
    spread = measure_seed_spread(matrix)
    assert (spread.fine_tuned, spread.repeated) == (200, 20)
    assert pooled.seed_error("model0", "task9") == pytest.approx(spread.deviation)
    assert pooled.seed_error("model0", "task0") == pytest.approx(spread.deviation / math.sqrt(2))
    expected = math.hypot(0.001, spread.deviation)
    assert pooled.stderr[0, 9] == pytest.approx(expected)
    assert pool_seed_variance(pooled) is pooled


def test_an_error_whose_square_overflows_stays_as_it_is() -> None:
    matrix = build_matrix(np.random.default_rng(0), models=5, tasks=4, repeated=4, deviation=0.02)
    stderr = matrix.stderr.copy()
    stderr[4, 3] = 1e200
    with np.errstate(over="raise"):
        pooled = pool_seed_variance(replace(matrix, stderr=stderr))
    assert pooled.stderr[4, 3] == 1e200


def test_the_spread_is_estimated_without_bias() -> None:
    rng = np.random.default_rng(4)
    variances = []
    for _ in range(50):
        matrix = build_matrix(rng, models=10, tasks=4, repeated=8, deviation=0.02)
        variances.append(measure_seed_spread(matrix).deviation ** 2)
    assert np.mean(variances) == pytest.approx(0.02**2, rel=0.15)


def test_evidence_pools_and_keeps_it_when_narrowed() -> None:
    matrix = build_matrix(np.random.default_rng(1), models=5, tasks=4, repeated=4, deviation=0.02)
    evidence = Evidence.of(matrix)
    (scores,) = evidence.scores.values()
    assert scores.stderr[4, 3] > 0.005
    (narrowed,) = evidence.narrowed(tasks=["task3"]).scores.values()
    assert narrowed.stderr[4, 0] == scores.stderr[4, 3]


def test_two_results_with_two_seeds_say_too_little() -> None:
    matrix = build_matrix(np.random.default_rng(2), models=5, tasks=4, repeated=2, deviation=0.02)
    assert pool_seed_variance(matrix) is matrix
    assert not measure_seed_spread(matrix).is_known


@pytest.mark.parametrize("repeated", [1, 2])
def test_few_repeated_results_are_not_called_fine_tuned_once(repeated: int) -> None:
    matrix = build_matrix(
        np.random.default_rng(2), models=5, tasks=4, repeated=repeated, deviation=0.02
    )
    sentence = seed_sentence(measure_seed_spread(matrix))
    assert sentence is not None
    assert "once" not in sentence
    assert f"has {repeated} " in sentence


def test_only_shares_speak_for_the_spread_of_a_share() -> None:
    matrix = build_matrix(np.random.default_rng(2), models=5, tasks=4, repeated=8, deviation=0.02)
    correlation = Metric.of("mcc")
    assert correlation.scale not in (None, "share")
    metrics = (*matrix.metrics[:1], correlation, *matrix.metrics[2:])  # task1: 3 of the 8
    mixed = replace(matrix, metrics=metrics)
    spread = measure_seed_spread(mixed)
    assert (spread.fine_tuned, spread.repeated, spread.repeated_shares) == (20, 8, 5)
    assert "from 5 results" in str(seed_sentence(spread))


def test_equal_models_do_not_differ_by_their_seeds() -> None:
    """With one seed and its spread unknown, z tests of equal models are wrong far too often."""
    rng = np.random.default_rng(3)
    wrong = {True: 0, False: 0}
    studies = 200
    for _ in range(studies):
        matrix = build_matrix(rng, models=2, tasks=10, repeated=4, deviation=0.01)
        for is_pooled in (True, False):
            tested = pool_seed_variance(matrix) if is_pooled else matrix
            difference = tested.values[0, 9] - tested.values[1, 9]
            wrong[is_pooled] += abs(difference) > 1.96 * np.hypot(*tested.stderr[:, 9])
    assert wrong[False] / studies > 0.5
    assert wrong[True] / studies < 0.15  # 4 degrees of freedom


def make_study(**fields: object) -> Study:
    return Study.model_validate(
        {"models": ["a", "b", "c"], "tasks": [f"task{k}" for k in range(10)], **fields}
    )


def test_a_study_gives_a_share_of_its_results_a_second_seed() -> None:
    study = make_study(seed_check=0.1)
    counts = [study.count_seeds(model, f"task{k}") for model in "abc" for k in range(10)]
    assert counts.count(2) == 3
    assert make_study().count_seeds("a", "task0") == 1
    assert make_study(seeds=3, seed_check=0.1).count_seeds("a", "task0") == 3


def test_a_second_seed_changes_the_key_of_its_result_alone() -> None:
    plain = cell_key(make_study(), "model", "task", TRAIN_BEFORE_TEST, kind=None)
    checked = make_study(seed_check=0.1)
    once = cell_key(checked, "model", "task", TRAIN_BEFORE_TEST, kind=None, seeds=1)
    twice = cell_key(checked, "model", "task", TRAIN_BEFORE_TEST, kind=None, seeds=2)
    assert once == plain
    assert twice != plain

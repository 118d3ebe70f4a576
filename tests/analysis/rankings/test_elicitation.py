"""Whether more capacity ranks models otherwise: a comparison of matrices, and the three ways of tuning."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings import measure_elicitation
from potentia.run.elicitation import list_elicitation_recipes
from potentia.study import Tuning
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.scores import ScoreMatrix


def matrix(values: list[list[float]]) -> ScoreMatrix:
    errors = np.full((3, 2), 0.01)
    return ScoreMatrix.build(
        ["a", "b", "c"], ["t", "u"], values, stderr=errors, protocol=TRAIN_BEFORE_TEST
    )


def test_a_comparison_is_reversed_where_both_ways_tell_models_apart_and_disagree():
    recipe = matrix([[0.5, 0.5], [0.6, 0.6], [0.7, 0.7]])
    more = matrix([[0.65, 0.51], [0.55, 0.61], [0.75, 0.71]])
    elicitation = measure_elicitation(
        "recipe", {"recipe": recipe, "rank 64": more, "again": recipe}
    )
    rank, again = elicitation.variants
    assert rank.reversed == ("a and b on t",)
    assert rank.comparisons == 6
    assert rank.gain == pytest.approx(0.03)
    assert (again.gain, again.tau, again.reversed) == (0.0, 1.0, ())
    assert (
        "the order changes in 1 of 6 comparisons of two models on a task that are significant by both: a and b on t."
        in elicitation.sentences()[0]
    )
    assert len(elicitation.tables()[1].rows) == 6


def test_one_model_says_what_it_reaches_and_not_what_only_a_ranking_can_show():
    recipe, more = (
        matrix(values).select(models=["a"]) for values in ([[0.5, 0.5]] * 3, [[0.6, 0.49]] * 3)
    )
    elicitation = measure_elicitation("recipe", {"recipe": recipe, "rank 64": more})
    first, second, last = elicitation.sentences()
    assert (
        first
        == "On t a scores 0.500 by the recipe and 0.600 by rank 64: +0.100 (95 % interval +0.072 to +0.128)."
    )
    assert second.startswith("On u a scores 0.500 by the recipe and 0.490 by rank 64: -0.010")
    assert last.startswith("One model cannot show whether the ranking changes")
    (table,) = elicitation.tables()
    assert [row[:2] for row in table.rows] == [("t", "rank 64"), ("u", "rank 64")]
    assert "nan" not in str(elicitation)


def test_the_ways_differ_in_capacity_alone():
    fair = Tuning(epochs=2, least_updates=90)
    recipe, higher, whole = list_elicitation_recipes(fair, 64).values()
    assert recipe == fair
    assert (higher.rank, higher.alpha / higher.rank) == (64, fair.alpha / fair.rank)
    assert higher.model_copy(update={"rank": fair.rank, "alpha": fair.alpha}) == fair
    assert (whole.method, whole.epochs, whole.least_updates, whole.loss) == (
        "full",
        2,
        90,
        "completion",
    )
    assert max(whole.learning_rates) <= 1e-4 < whole.rate_bounds[1], (
        "all weights take smaller steps"
    )


@pytest.mark.parametrize("what_gains", ["models", "tasks"])
def test_the_interval_of_a_gain_counts_models_and_tasks_and_not_results(what_gains: str) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    studies = 300
    for _ in range(studies):
        shape = (6, 1) if what_gains == "models" else (1, 6)
        gains = 0.05 * rng.standard_normal(shape) + 0.005 * rng.standard_normal((6, 6))
        names = [f"m{row}" for row in range(6)]
        tasks = [f"t{column}" for column in range(6)]
        before = np.full((6, 6), 0.5)
        matrices = {
            name: ScoreMatrix.build(names, tasks, values, stderr=np.full((6, 6), 0.01))
            for name, values in {"recipe": before, "rank 64": before + gains}.items()
        }
        (variant,) = measure_elicitation("recipe", matrices).variants
        covered += abs(variant.gain) <= variant.half_width
    # 95 % and three standard errors; results taken for independent cover it in 58 %.
    assert covered / studies > 0.95 - 0.038


def test_subsets_of_a_benchmark_that_gain_together_are_one_task() -> None:
    """Twelve subsets of three benchmarks: taken for twelve tasks, the interval covers the gain in 64 %."""
    rng = np.random.default_rng(0)
    tasks = [f"{name}_{letter}" for name in ("mmlu", "bbh", "law") for letter in "abcd"]
    names = [f"m{row}" for row in range(6)]
    before = np.full((6, 12), 0.5)
    covered = 0
    studies = 200
    for _ in range(studies):
        gains = np.repeat(0.05 * rng.standard_normal(3), 4) + 0.005 * rng.standard_normal((6, 12))
        matrices = {
            name: ScoreMatrix.build(names, tasks, values, stderr=np.full((6, 12), 0.01))
            for name, values in {"recipe": before, "rank 64": before + gains}.items()
        }
        (variant,) = measure_elicitation("recipe", matrices).variants
        covered += abs(variant.gain) <= variant.half_width
    assert covered / studies > 0.95 - 0.046


def test_gains_on_different_scales_are_not_averaged():
    metrics = ["acc", "acc", "mt_bench"]
    before, after = (
        ScoreMatrix.build(["a", "b"], ["t", "u", "mt_bench"], np.array(values), metrics=metrics)
        for values in (
            [[0.5, 0.4, 7.0], [0.6, 0.5, 5.0]],
            [[0.52, 0.42, 8.5], [0.62, 0.52, 6.0]],
        )
    )
    (variant,) = measure_elicitation("recipe", {"recipe": before, "rank 64": after}).variants
    assert variant.gain == pytest.approx(0.02)

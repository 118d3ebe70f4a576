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


def test_a_pair_is_turned_where_both_ways_tell_it_apart_and_disagree():
    recipe = matrix([[0.5, 0.5], [0.6, 0.6], [0.7, 0.7]])
    more = matrix([[0.65, 0.51], [0.55, 0.61], [0.75, 0.71]])
    found = measure_elicitation("recipe", {"recipe": recipe, "rank 64": more, "again": recipe})
    rank, again = found.variants
    assert rank.turned == ("a and b on t",)
    assert rank.pairs == 6
    assert rank.gain == pytest.approx(0.03)
    assert (again.gain, again.tau, again.turned) == (0.0, 1.0, ())
    assert (
        "1 of 6 pairs that differ significantly by both are ordered otherwise: a and b on t."
        in found.sentences()[0]
    )
    assert len(found.tables()[1].rows) == 6


def test_one_model_says_what_it_reaches_and_not_what_only_a_ranking_can_show():
    recipe, more = (
        matrix(values).select(models=["a"]) for values in ([[0.5, 0.5]] * 3, [[0.6, 0.49]] * 3)
    )
    found = measure_elicitation("recipe", {"recipe": recipe, "rank 64": more})
    first, second, last = found.sentences()
    assert (
        first
        == "On t a scores 0.500 by the recipe and 0.600 by rank 64: +0.100 (95 % interval +0.072 to +0.128)."
    )
    assert second.startswith("On u a scores 0.500 by the recipe and 0.490 by rank 64: -0.010")
    assert last.startswith("One model cannot show whether the ranking changes")
    (table,) = found.tables()
    assert [row[:2] for row in table.rows] == [("t", "rank 64"), ("u", "rank 64")]
    assert "nan" not in str(found)


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

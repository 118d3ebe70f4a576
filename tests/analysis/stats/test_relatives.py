"""Models of unknown family that score alike: copies are joined, unrelated models are left apart."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.stats.relatives import ModelFamilies, find_alike_models
from potentia.facts import Background
from potentia.values.scores import ScoreMatrix

EXAMPLES = 1_000


def answer(seed: int, families: int, copies: int, tasks: int, redrawn: float) -> ScoreMatrix:
    """Test families of copies on the same examples, of which each copy has a share of its own luck."""
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=(families, 1))
    ability = 0.8 * skill + 0.6 * rng.normal(size=(families, tasks))
    chances = np.clip(0.5 + 0.08 * ability, 0.05, 0.95)[..., None]
    first = rng.random((families, tasks, EXAMPLES)) < chances
    values = []
    for family in range(families):
        for _ in range(copies):
            is_redrawn = rng.random((tasks, EXAMPLES)) < redrawn
            luck = rng.random((tasks, EXAMPLES)) < chances[family]
            values.append(np.where(is_redrawn, luck, first[family]).mean(axis=1))
    names = [f"m{row}" for row in range(families * copies)]
    return ScoreMatrix.build(names, [f"t{column}" for column in range(tasks)], np.array(values))


def count_pairs(matrix: ScoreMatrix, copies: int) -> tuple[float, float]:
    """Return the share of pairs of copies, and of unrelated models, that are joined."""
    family_of_model = find_alike_models(matrix)
    labels = np.array([family_of_model.get(model, model) for model in matrix.models])
    true_family = np.arange(len(labels)) // copies
    first, second = np.triu_indices(len(labels), 1)
    is_joined = labels[first] == labels[second]
    is_copy = true_family[first] == true_family[second]
    return is_joined[is_copy].mean() if is_copy.any() else np.nan, is_joined[~is_copy].mean()


@pytest.mark.parametrize(("redrawn", "least"), [(0.05, 0.98), (0.2, 0.85), (0.5, 0.6)])
def test_near_copies_are_joined(redrawn: float, least: float) -> None:
    """Only models closer than their noise were joined, so a fifth of the answers drawn anew hid the copies."""
    shares = [count_pairs(answer(seed, 6, 4, 6, redrawn), copies=4) for seed in range(10)]
    joined_copies, joined_others = np.mean(shares, axis=0)
    assert joined_copies >= least
    assert joined_others <= 0.01


@pytest.mark.parametrize(("models", "tasks"), [(6, 5), (20, 3), (20, 12), (60, 6)])
def test_few_unrelated_models_are_joined(models: int, tasks: int) -> None:
    units = []
    for seed in range(10):
        matrix = answer(seed, models, 1, tasks, 1.0)
        family_of_model = find_alike_models(matrix)
        units.append(len({family_of_model.get(model, model) for model in matrix.models}))
    assert np.mean(units) >= 0.85 * models


def test_known_families_stay_apart_and_take_in_their_copies() -> None:
    matrix = answer(0, 6, 4, 12, 0.1)
    families = {"m0": "first", "m1": "first", "m4": "second", "m8": "third", "m9": "other third"}
    joined = find_alike_models(matrix, families)
    assert joined["m2"] == joined["m3"] == "first"
    assert joined["m5"] == "second"
    assert not set(joined) & set(families)
    assert "m10" not in joined  # it is like models of two families


def test_scores_with_gaps_and_few_tasks_join_nobody_by_mistake() -> None:
    matrix = answer(1, 5, 2, 2, 0.05)
    assert find_alike_models(matrix) == {}  # two tasks cannot tell copies apart
    rng = np.random.default_rng(0)
    complete = answer(1, 6, 3, 12, 0.05)
    values = np.where(rng.random(complete.values.shape) < 0.3, np.nan, complete.values)
    with_gaps = ScoreMatrix.build(complete.models, complete.tasks, values)
    joined_copies, joined_others = count_pairs(with_gaps, copies=3)
    assert joined_copies >= 0.6
    assert joined_others <= 0.02


def test_what_was_inferred_is_said() -> None:
    matrix = answer(0, 6, 2, 12, 0.05)
    names = ["acme-7b", "acme-7b-chat", *matrix.models[2:]]
    renamed = ScoreMatrix.build(names, matrix.tasks, matrix.values)
    families = ModelFamilies.of_background(Background.of(names), renamed)
    note = families.describe_inference(names)
    assert "Families inferred from names: acme-7b and acme-7b-chat." in note
    assert "Models that score alike count as one family: m10 and m11" in note
    assert "--facts" in note
    assert ModelFamilies({"m0": "a", "m1": "a"}).describe_inference(["m0", "m1"]) == ""

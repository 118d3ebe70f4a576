"""Exposure over several tasks: a planted θ is found, its absence too, and the test over assignments is exact."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, ScorePair
from potentia.papers.task_training.exposure_effect import measure_exposure_effect

FAMILIES = ("a", "b", "c", "d")
SEEN = {"one": "b", "two": "c", "three": "d", "four": "b"}


def pairs(theta: float, left: float, seed: int = 0) -> list[ScorePair]:
    """Four families of four models; each task's form was seen by one family, which is worth ``theta`` before."""
    noise = np.random.default_rng(seed)
    cohort = Cohort.from_records(
        {
            "model": f"{family}{size}",
            "family": family,
            "compute": 10 ** (13 + 0.2 * size + 0.03 * place),
            "exposure": ";".join(task for task, who in SEEN.items() if who == family),
        }
        for place, family in enumerate(FAMILIES)
        for size in range(4)
    )
    made = []
    for task, family in SEEN.items():
        group = np.array([f == family for f in cohort.family], dtype=float)
        rise = 0.25 + 0.3 * (cohort.log_compute - 13)
        before, after = (
            rise + effect * group + noise.normal(0, 0.03, 16) for effect in (theta, left)
        )
        made.append(ScorePair(task, cohort, before, after, chance=0.25))
    return made


def test_a_planted_effect_is_found_and_its_absence_too():
    exposure = measure_exposure_effect(pairs(0.4, 0.0), draws=199)
    assert exposure.exact
    assert exposure.assignments == 4**4
    assert exposure.before.fit.theta.value == pytest.approx(0.4, abs=0.03)
    assert exposure.before.assigned_p == 1 / 256, "no other assignment reaches it"
    assert abs(exposure.after.fit.theta.value) < 0.04
    assert exposure.after.assigned_p > 0.05
    assert exposure.before.within.value == pytest.approx(0.4, abs=0.03)
    assert exposure.before.within_p <= 2 / 256
    assert abs(exposure.after.within.value) < 0.04
    assert [len(table.rows) for table in exposure.tables()] == [2, 2]


def test_within_models_a_family_that_is_better_everywhere_has_no_advantage():
    """Family d is better at every task; at equal compute that looks like exposure to its own, within models not."""
    made = [
        ScorePair(
            pair.task,
            pair.cohort,
            pair.before + 0.3 * np.array([f == "d" for f in pair.cohort.family]),
            pair.after,
            chance=0.25,
        )
        for pair in pairs(0.0, 0.0)
        if pair.task in ("two", "three")
    ]
    result = measure_exposure_effect(made, draws=0).before
    assert result.fit.theta.value > 0.08
    assert abs(result.within.value) < 0.03
    direct = [np.mean(p.before[[f == SEEN[p.task] for f in p.cohort.family]]) for p in made]
    assert direct[1] > direct[0] + 0.2


def test_under_no_effect_small_p_values_are_rare():
    small = sum(
        measure_exposure_effect(pairs(0.0, 0.0, seed), draws=0).before.assigned_p <= 0.1
        for seed in range(30)
    )
    assert small <= 8  # about three are expected; more than eight happen once in a thousand


def test_exposure_within_families_is_assigned_by_model():
    (first, *_) = pairs(0.4, 0.0)
    cohort = first.cohort
    mixed = Cohort.from_records(
        {"model": m, "family": f, "compute": c, "exposure": "one" if m.endswith(("1", "3")) else ""}
        for m, f, c in zip(cohort.models, cohort.family, cohort.compute, strict=True)
    )
    exposure = measure_exposure_effect(
        [ScorePair("one", mixed, first.before, first.after, chance=0.25)], draws=0
    )
    assert not exposure.exact  # 12,870 ways to choose eight of sixteen models
    assert len(exposure.tables()) == 1


def test_a_task_that_nobody_saw_cannot_be_split():
    (first, *_) = pairs(0.4, 0.0)
    with pytest.raises(InputError, match="exposure to zero"):
        measure_exposure_effect([ScorePair("zero", first.cohort, first.before, first.after)])

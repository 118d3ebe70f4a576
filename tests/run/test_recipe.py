"""A recipe has one set of defaults: the study's."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from potentia.study import Tuning
from potentia.values.recipe import LoraConfig, Schedule

STUDY_NAMES = {"r": "rank", "kind": "method"}  # of what the engine calls otherwise


@pytest.mark.parametrize("engine_type", [Schedule, LoraConfig])
def test_the_engine_has_no_other_default_than_the_study(engine_type: type):
    tuning = Tuning()
    for field in fields(engine_type):
        name = STUDY_NAMES.get(field.name, field.name)
        if field.default is not MISSING and name != "eps":  # no study sets AdamW's epsilon
            assert field.default == getattr(tuning, name), name


@pytest.mark.parametrize("recipe", ["fair", "paper"])
def test_all_of_a_recipe_reaches_the_engine(recipe: str):
    tuning = Tuning.model_validate({"recipe": recipe})
    schedule = tuning.make_schedule(3e-4)
    adapter = tuning.make_lora_config()
    assert schedule.learning_rate == 3e-4
    for field in fields(Schedule):
        if field.name not in ("learning_rate", "eps"):
            assert getattr(schedule, field.name) == getattr(tuning, field.name), field.name
    for field in fields(LoraConfig):
        assert getattr(adapter, field.name) == getattr(
            tuning, STUDY_NAMES.get(field.name, field.name)
        )

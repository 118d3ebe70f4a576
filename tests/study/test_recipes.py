"""The two recipes by name: what they hold, and what is meant where a value is named beside them."""

from __future__ import annotations

import pytest

from potentia.errors import StudyError
from potentia.study import Tuning, cell_key, content_key, make_study, read_study
from potentia.values.protocol import TRAIN_BEFORE_TEST

SMALL = {"models": ["a"], "tasks": ["arc_easy"]}


def test_the_papers_recipe_is_appendix_a2_and_its_code():
    paper = make_study(SMALL | {"tuning": {"recipe": "paper"}}).tuning
    assert (paper.method, paper.rank, paper.alpha, paper.dropout, paper.weight_decay) == (
        "lora",
        8,
        32,
        0.1,
        0.01,
    )
    assert (paper.epochs, paper.batch, paper.clip, paper.max_tokens, paper.decay) == (
        5,
        8,
        1.0,
        1024,
        "linear",
    )
    assert (paper.learning_rates, paper.rate_bounds, paper.least_updates) == (
        (1e-5, 2e-5, 5e-5),
        None,
        0,
    )
    assert (paper.loss, paper.end_of_text, paper.answers, paper.race) == (
        "text",
        "texts",
        "all",
        False,
    )
    assert paper.targets is None, "PEFT's choice for the architecture"
    assert not paper.task_description


def test_the_papers_recipe_computes_in_float32_unless_a_dtype_is_named():
    by_paper = make_study(SMALL | {"tuning": {"recipe": "paper"}})
    assert by_paper.dtype == "float32"
    assert make_study(SMALL).dtype == "auto"
    named = make_study(SMALL | {"tuning": {"recipe": "paper"}, "dtype": "bfloat16"})
    assert named.dtype == "bfloat16"
    stored = make_study(by_paper.model_dump(mode="json", exclude_defaults=True))
    assert stored.dtype == "float32"


def test_a_field_that_came_later_leaves_stored_keys_as_they_were():
    values = {name: value for name, value in Tuning() if name not in ("recipe", "task_description")}
    assert content_key(t=Tuning()) == content_key(t=values)


def test_the_papers_study_file_is_the_papers_recipe():
    assert read_study("examples/paper.yaml").tuning == Tuning(recipe="paper")


def test_the_default_gives_every_architecture_the_same_and_searches():
    fair = make_study(SMALL).tuning
    assert (fair.targets, fair.dropout, fair.loss, fair.end_of_text) == (
        ("all-linear",),
        0.0,
        "completion",
        "answers",
    )
    assert fair.rate_bounds is not None
    assert fair.race
    assert fair == Tuning(recipe="fair")


def test_a_grid_that_is_named_is_not_extended_and_epochs_that_are_named_are_meant():
    named = Tuning(learning_rates=(1e-4, 1e-3), epochs=2)
    assert named.rate_bounds is None
    assert named.plan_epochs(16) == (2, 1)
    tuning = Tuning(learning_rates=(1e-4,), rate_bounds=(1e-5, 1e-3), epochs=2, least_updates=50)
    assert tuning.rate_bounds == (1e-5, 1e-3)
    assert tuning.count_updates(16) >= 50
    with pytest.raises(StudyError, match="rate_bounds must enclose"):
        make_study(SMALL | {"tuning": {"learning_rates": [1e-2], "rate_bounds": [1e-5, 1e-3]}})


@pytest.mark.parametrize("documents", [1, 8, 16, 150, 319, 320, 321, 2000, 50_000])
def test_few_documents_are_passed_over_until_there_are_enough_updates(documents: int):
    fair = Tuning()
    epochs, passes_per_epoch = fair.plan_epochs(documents)
    assert fair.count_updates(documents) >= fair.least_updates
    assert epochs <= 10
    assert epochs * passes_per_epoch >= fair.epochs
    once = -(-documents // fair.batch)
    assert fair.count_updates(documents) <= max(
        fair.least_updates + 2 * epochs * once, fair.epochs * once + fair.epochs
    )


def test_a_recipes_name_is_no_part_of_its_content():
    explicit = {
        name: getattr(Tuning(recipe="paper"), name)
        for name in Tuning.model_fields
        if name != "recipe"
    }
    assert content_key(t=Tuning(recipe="paper")) == content_key(t=Tuning(**explicit))
    again = make_study(SMALL | {"tuning": Tuning(recipe="paper").model_dump(exclude_defaults=True)})
    assert content_key(t=again.tuning) == content_key(t=Tuning(recipe="paper"))


def test_other_recipes_are_other_cells():
    bodies = (
        {},
        {"recipe": "paper"},
        {"method": "full"},
        {"rate_bounds": None},
        {"least_updates": 0},
    )
    studies = [make_study(SMALL | {"tuning": body}) for body in bodies]
    keys = {cell_key(study, "model", "task", TRAIN_BEFORE_TEST, kind=None) for study in studies}
    assert len(keys) == len(bodies)

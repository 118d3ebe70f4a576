"""What a report says of the store of a selection: the rounds that belong together, and what a trial rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from made_store import STUDY, make_store
from potentia.analysis.planning import find_selection
from potentia.evidence import read
from potentia.store import CellRecord, Store
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.splits import EMPTY_ORIGIN, PlannedSplit, SplitPlan

MODELS = ("org/a", "org/b")


def shrink(cell: CellRecord, key: str, study: str, recipe: str, examples: int) -> CellRecord:
    """Return a fine-tuned result as one of a selection: by this recipe, on so many examples."""
    train = PlannedSplit((EMPTY_ORIGIN,), examples, examples)
    split_plan = SplitPlan(train, train, train, caps={}, seed=0, carve=0.2)
    task = replace(cell.provenance.task, splits=split_plan)
    score = replace(cell.score, origin=replace(cell.score.origin, recipe=recipe))
    return replace(
        cell,
        key=key,
        study=study,
        scores={cell.metric: score},
        provenance=replace(cell.provenance, task=task),
        selection=replace(cell.selection, updates=8),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(make_store(tmp_path / "s.db", models=MODELS, tasks=("tickets",)))


def commit_round(store: Store, name: str, recipe: str, examples: int) -> None:
    key = f"{name}-{recipe}"
    store.studies.open(name, key, {"name": name, "models": list(MODELS), "tasks": ["tickets"]})
    for cell in store.cells.read(study=STUDY, protocol=TRAIN_BEFORE_TEST):
        items = store.cells.read_items(cell.key)
        store.cells.commit(shrink(cell, f"{key}-{cell.model}", key, recipe, examples), items=items)


@pytest.mark.parametrize(("first_recipe", "has_curve"), [("long", True), ("short", False)])
def test_the_curve_is_of_one_recipe(store: Store, first_recipe: str, has_curve: bool) -> None:
    commit_round(store, "select-round-1", first_recipe, 40)
    commit_round(store, "select-final", "long", 160)
    selection = find_selection(read(store.where), MODELS[0])
    assert selection is not None
    assert (selection.curve is not None) is has_curve


def test_the_first_round_is_the_one_opened_last(store: Store) -> None:
    commit_round(store, "select-round-1", "long", 20)
    commit_round(store, "select-round-1", "other", 40)
    commit_round(store, "select-final", "other", 160)
    selection = find_selection(read(store.where), MODELS[0])
    assert selection is not None
    assert selection.curve is not None
    assert selection.curve.sizes == (40, 160)


def test_a_trial_says_how_short_it_was(store: Store) -> None:
    commit_round(store, "select-trial", "short", 32)
    selection = find_selection(read(store.where), MODELS[0])
    assert selection is not None
    assert selection.sentences() == [
        "The budget of this selection was enough for a trial alone (8 training steps on 32 training examples):"
        " a longer one may change the order."
    ]


def test_a_selection_over_two_stores_has_one_curve(tmp_path: Path) -> None:
    stores = []
    for models in (MODELS, ("org/c", "org/d")):
        path = make_store(tmp_path / f"{len(stores)}.db", models=models, tasks=("tickets",))
        store = Store.open(path)
        commit_round(store, "select-round-1", "long", 40)
        commit_round(store, "select-final", "long", 160)
        stores.append(store.where)
    selection = find_selection(read(*stores), MODELS[0])
    assert selection is not None
    assert selection.curve is not None
    assert set(selection.curve.models) == {"org/a", "org/b", "org/c", "org/d"}

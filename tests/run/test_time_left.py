"""The time that a run has left follows from its steps, long before the first of its cells ends."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

import ticket_files
from potentia.cli.progress_view import ProgressView
from potentia.run import (
    WORK_EVENT,
    StudyClock,
    StudyPlan,
    WorkLeft,
    describe_time_left,
    plan_study,
)
from potentia.run.cost import count_work, find_parameters
from potentia.run.plan import Assignment
from potentia.run.progress import DOCUMENTS, STEPS, CellName, RowProgress
from potentia.run.time_left import RowState
from potentia.store import Store
from potentia.study import read_study
from potentia.zoo import write_model_folders

MODELS = ("birch-71k", "birch-159k")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> StudyPlan:
    folder = tmp_path_factory.mktemp("time-left")
    ticket_files.write(folder / "tickets.csv", ticket_files.of_the_zoo(100))
    write_model_folders(folder / "zoo", list(MODELS))
    settings = {
        "name": "left",
        "models": [str(folder / "zoo" / name) for name in MODELS],
        "tasks": [{"name": "tickets", "file": str(folder / "tickets.csv")}],
        "protocols": ["direct", "train_before_test"],
        "tuning": {"learning_rates": [1e-3, 1e-2], "epochs": 4},
        "store": str(folder / "left.db"),
    }
    return plan_study(read_study(None, settings))


def measure_share(
    work: WorkLeft, ended: Collection[CellName], progress: Mapping[str, Mapping[str, Any]]
) -> float:
    """Return the share of a run's work that is done."""
    states = [RowState.from_progress(name, record) for name, record in progress.items()]
    work_done = 0.0
    for model, row in work._rows.items():
        work_done += row.count_done(ended, [state for state in states if state.model == model])
    return work_done / sum(row.total for row in work._rows.values())


@pytest.mark.parametrize(("method", "train_factor"), [("lora", 2), ("full", 3)])
def test_full_tuning_also_computes_the_gradients_of_weights(
    plan: StudyPlan, method: str, train_factor: int
) -> None:
    tuning = plan.study.tuning.model_copy(update={"method": method})
    planned = replace(plan, study=plan.study.model_copy(update={"tuning": tuning}))
    cells = count_work(planned)
    assert any(cell.train_tokens for cell in cells)
    for cell in cells:
        row = next(row for row in planned.rows if row.model.name == cell.model)
        scored_tokens = train_factor * cell.train_tokens + cell.score_tokens
        if cell.train_tokens:
            assert cell.work_in_scored_tokens == scored_tokens
        assert cell.flops == pytest.approx(2 * find_parameters(row.model) * scored_tokens)
    work = WorkLeft.count(planned)
    assert work is not None
    assert sum(row.total for row in work._rows.values()) == pytest.approx(
        sum(cell.flops for cell in cells)
    )


def test_steps_count_before_any_cell_has_ended(plan: StudyPlan) -> None:
    work = WorkLeft.count(plan)
    assert work is not None
    model = plan.rows[0].model.name
    assert measure_share(work, (), {}) == 0.0
    steps = 2 * 4 * 10  # two rates, four epochs, 80 rows in batches of 8
    halfway = measure_share(work, (), {model: {"steps_done": steps / 2}})
    share = measure_share(work, (), {model: {"steps_done": steps}})
    assert 0.0 < halfway < 0.5
    assert share == pytest.approx(2 * halfway)
    parts = {
        "first": {"model": model, "steps_done": steps / 4},
        "second": {"model": model, "steps_done": steps / 4},
    }
    assert measure_share(work, (), parts) == pytest.approx(halfway)
    names = [
        (row.model.name, cell.task, str(cell.protocol)) for row in plan.rows for cell in row.cells
    ]
    assert measure_share(work, names, {}) == pytest.approx(1.0)


def test_a_larger_model_counts_for_what_it_costs(plan: StudyPlan) -> None:
    work = WorkLeft.count(plan)
    assert work is not None
    small, large = (row.model.name for row in plan.rows)
    share_small = measure_share(work, (), {small: {"steps_done": 80}})
    share_large = measure_share(work, (), {large: {"steps_done": 80}})
    assert share_large > 1.5 * share_small


def describe_row(
    *, seconds: float, preparing: float = 0.0, steps_done: float = 0, **facts: object
) -> dict[str, object]:
    """Return the record of a row that has run for so long, and has spent some of it on preparing."""
    began = 1_000_000.0
    times = {"began": began, "at": began + seconds, "seconds_preparing": preparing}
    return {**times, "steps_done": steps_done, **facts}


def test_steps_of_an_earlier_run_are_done_but_took_no_time(plan: StudyPlan) -> None:
    work = WorkLeft.count(plan)
    assert work is not None
    model = plan.rows[1].model.name
    fresh = work.estimate_seconds((), {model: describe_row(seconds=60, steps_done=60)})
    resumed_row = describe_row(seconds=60, steps_done=60, steps_resumed=40)
    resumed = work.estimate_seconds((), {model: resumed_row})
    assert fresh is not None
    assert resumed == pytest.approx(3 * fresh, rel=0.01)
    assert work.estimate_seconds((), {}) is None


def test_a_long_preparation_is_no_part_of_the_pace(plan: StudyPlan) -> None:
    """38 s of loading and 2 of 146 s of steps: the estimate is near 144 s, not near an hour."""
    model = plan.rows[0].model.name
    work = WorkLeft.count(plan)
    assert work is not None
    one_row = WorkLeft({model: work._rows[model]})
    steps = 2 * 4 * 10
    row = describe_row(seconds=38 + 2, preparing=38, steps_done=steps * 2 / 146)
    seconds_left = one_row.estimate_seconds((), {model: row})
    assert seconds_left is not None
    share_of_training = measure_share(one_row, (), {model: {"steps_done": steps}})
    assert seconds_left == pytest.approx(146 / share_of_training - 2, rel=0.01)


def test_models_to_come_are_prepared_once_each(plan: StudyPlan) -> None:
    first = plan.rows[0].model.name
    work = WorkLeft.count(plan)
    assert work is not None
    quick = work.estimate_seconds((), {first: describe_row(seconds=10, steps_done=40)})
    slow = work.estimate_seconds(
        (), {first: describe_row(seconds=110, preparing=100, steps_done=40)}
    )
    assert quick is not None
    assert slow == pytest.approx(quick + 100)


def test_examples_of_a_score_under_way_count(plan: StudyPlan) -> None:
    work = WorkLeft.count(plan)
    assert work is not None
    row = plan.rows[0]
    (direct,) = [cell for cell in row.cells if str(cell.protocol) == "direct"]
    cell = [direct.task, "direct"]
    half = measure_share(work, (), {row.model.name: {"cell": cell, "done": 5, "total": 10}})
    ended = measure_share(work, {(row.model.name, direct.task, "direct")}, {})
    assert 0 < half == pytest.approx(ended / 2)


def test_steps_that_are_skipped_are_not_waited_for(plan: StudyPlan) -> None:
    """A fine-tuning that falls behind ends early; half of the steps that are left after that are half."""
    work = WorkLeft.count(plan)
    assert work is not None
    model = plan.rows[0].model.name
    planned = {"steps_planned": 80}
    without = measure_share(work, (), {model: {"steps_done": 40, **planned}})
    with_skipped = measure_share(
        work, (), {model: {"steps_done": 30, "steps_skipped": 20, **planned}}
    )
    assert with_skipped == pytest.approx(without)


def test_the_work_of_a_run_is_read_from_its_log(plan: StudyPlan) -> None:
    """The board and ``status`` know how long a run has left from the store alone."""
    work = WorkLeft.count(plan)
    assert work is not None
    model = plan.rows[0].model.name
    with Store.open(plan.study.store, create=True) as store:
        store.studies.open("left", plan.key, {})
        clock = StudyClock(store, plan.key)
        assert clock.estimate_seconds() is None
        store.events.append(plan.key, WORK_EVENT, work.to_payload())
        row = describe_row(seconds=20, steps_done=40)
        store.events.save_progress(plan.key, model, row)
        assert clock.estimate_seconds() == pytest.approx(work.estimate_seconds((), {model: row}))


def test_the_view_tells_the_time_left_by_the_steps_of_all_waves(plan: StudyPlan) -> None:
    with Store.open(plan.study.store, create=True) as store:
        store.studies.open("left", plan.key, {})
        view = ProgressView(plan, store)
        assert view.seconds_left is None
        progress = RowProgress(Assignment(plan.rows[1]), store, seconds=0.0)
        progress.note(began=time.time() - 100.0)
        progress.phase("tuning", total=40, unit=STEPS)
        progress.reach(20)
        first = view.seconds_left
        progress.reach(40)
        second = view.seconds_left
        progress.phase("testing tickets", total=10, unit=DOCUMENTS)
        progress.reach(10)
        assert view.seconds_left == pytest.approx(second, rel=0.05)
        progress.phase("tuning, more rates", total=40, unit=STEPS)
        progress.reach(40)
        third = view.seconds_left
        assert first is not None
        assert second is not None
        assert third is not None
        assert first > second > third
        assert "left" in view.describe_state()


@pytest.mark.parametrize(
    ("seconds_left", "budget_left", "expected"),
    [
        (None, None, ""),
        (450.0, None, "about 7:30 min left"),
        (450.0, 68.0, "at most 1:08 min left"),
        (None, 68.0, "at most 1:08 min left"),
        (30.0, 68.0, "about 30 s left"),
        (30.0, -1.0, "the budget is spent"),
    ],
)
def test_the_time_left_never_goes_beyond_the_budget(
    seconds_left: float | None, budget_left: float | None, expected: str
) -> None:
    assert describe_time_left(seconds_left, budget_left) == expected


def test_the_view_of_a_selection_knows_when_its_budget_ends(plan: StudyPlan) -> None:
    with Store.open(plan.study.store, create=True) as store:
        store.studies.open("left", plan.key, {})
        view = ProgressView(plan, store, budget_end=time.time() + 4000.0)
        assert "at most 1:06 h left" in view.describe_state()


def test_steps_that_a_row_plans_beyond_those_counted_are_still_to_come(plan: StudyPlan) -> None:
    """A chat model is fine-tuned in two styles: twice the steps that were counted before it began."""
    work = WorkLeft.count(plan)
    assert work is not None
    model = plan.rows[0].model.name
    counted = measure_share(work, (), {model: {"steps_done": 80}})
    planned = measure_share(work, (), {model: {"steps_done": 80, "steps_planned": 160}})
    assert planned == pytest.approx(counted / 2)

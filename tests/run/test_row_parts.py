"""Rows in parts: who gets what, the same numbers, found again by another run, nothing left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from potentia.evidence import read
from potentia.run import execute, gpu_sharing, plan_study, row_parts, run_study, worker
from potentia.run.executors import AssignmentQueue, ExecutionRequest, local
from potentia.run.plan import Assignment, StudyPlan
from potentia.run.progress import name_lanes_folder
from potentia.run.row_context import RowOutcome
from potentia.store import Store
from potentia.study import make_study

TASKS = ["a", "b", "c", "d"]


def under_way(plan: StudyPlan, threads: int) -> StudyPlan:
    """Return the plan as a run has it."""
    assert threads == 1
    return replace(plan, run="r")


def assigned(plan: StudyPlan) -> list[Assignment]:
    return execute.make_assignments(plan, 1, threads=1)


def run_here(plan: StudyPlan, parts: list[Assignment]) -> dict[str, RowOutcome]:
    def divide(workers: int, device: str) -> list[Assignment]:
        return parts

    request = ExecutionRequest(parts, plan.tasks, 1, lambda: False, divide, give_up=None)
    return local.LocalExecutor().run(request)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    tiny.save_model(folder / "one")
    tiny.save_model(folder / "two", seed=1)
    for k, name in enumerate(TASKS):
        tiny.save_questions(folder / f"{name}.jsonl", n=60 + 20 * k, seed=k)
    return folder


def study(world: Path, store: Path, **changes: Any) -> Any:
    body = {
        "name": "parts",
        "models": [{"name": "one", "path": str(world / "one")}],
        "tasks": [{"name": name, "file": str(world / f"{name}.jsonl")} for name in TASKS],
        "tuning": {
            "learning_rates": [5e-3],
            "epochs": 2,
            "dropout": 0.0,
            "targets": ["all-linear"],
        },
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def divided(plan: StudyPlan, workers: int, **options: Any) -> list[Any]:
    with Store.open(plan.study.store) as store:
        return row_parts.divide_assignments(
            plan, assigned(plan), store, workers, device="cpu", **options
        )


def tasks_of(row: Any) -> set[str]:
    return {cell.task for cell in row.cells}


def values(store: Path) -> dict[tuple[str, str, str], float]:
    return {(c.model, c.task, str(c.protocol)): c.score.value for c in read(str(store)).cells()}


@pytest.fixture(scope="module")
def whole(world: Path) -> dict[Any, float]:
    assert run_study(study(world, world / "whole.db"), threads=1).computed == 8
    return values(world / "whole.db")


def test_a_long_row_goes_to_the_workers_there_are_and_a_short_one_stays_whole(
    world: Path, tmp_path: Path
) -> None:
    plan = under_way(plan_study(study(world, tmp_path / "s.db")), 1)
    assert [row.part for row in divided(plan, 1, least_seconds=0)] == [None]
    two, four = divided(plan, 2, least_seconds=0), divided(plan, 4, least_seconds=0)
    assert [sorted(tasks_of(row)) for row in two] == [["a", "d"], ["b", "c"]]  # by their sizes
    assert sorted(row.label for row in two) == ["one · part 1 of 2", "one · part 2 of 2"]
    assert sorted(min(tasks_of(row)) for row in four) == TASKS
    for cut in (two, four):
        assert sum(len(row.cells) for row in cut) == len(plan.rows[0].cells)
    assert [row.part for row in divided(plan, 4)] == [
        None
    ]  # seconds of work are not worth another loading
    assert [row.part for row in divided(plan, 4, least_seconds=float("inf"))] == [None]


def test_the_longest_row_is_first_and_only_what_is_long_enough_is_divided(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        row_parts, "LOAD_RATE", float("inf")
    )  # tiny texts for huge models: reading these would decide
    models = [
        {"name": n, "path": str(world / n), "parameters": size}
        for n, size in (("one", 1e11), ("two", 1e13))
    ]
    plan = under_way(plan_study(study(world, tmp_path / "s.db", models=models)), 1)
    rows = assigned(plan)
    with Store.open(plan.study.store) as store:
        alone = row_parts.divide_assignments(plan, rows, store, 1, device="cuda")
        cut = row_parts.divide_assignments(plan, rows, store, 4, device="cuda")
    assert [row.label for row in alone] == ["two", "one"]
    assert [row.model.name for row in cut] == ["two"] * 4 + ["one"]


def test_what_is_adjusted_stays_together_and_a_treated_copy_whole(
    world: Path, tmp_path: Path
) -> None:
    adjusted = study(
        world,
        tmp_path / "s.db",
        protocols=["direct", "adjust", "train_before_test"],
        adjust={"data": str(world / "a.jsonl"), "at_steps": [2]},
        treat={"data": ["a"]},
    )
    cut = divided(under_way(plan_study(adjusted), 1), 8, least_seconds=0)
    adjusting = [row for row in cut if any(cell.protocol.kind == "adjust" for cell in row.cells)]
    assert sorted(row.label for row in cut if row.model.copy_of) == ["one+exposed"]
    assert len([row for row in adjusting if not row.model.copy_of]) == 1
    assert sum(
        cell.protocol.kind == "adjust" for row in adjusting for cell in row.cells
    ) == 2 * 2 * len(TASKS)


def test_a_row_in_parts_gives_the_numbers_of_the_whole_and_leaves_nothing(
    world: Path, whole: dict[Any, float], tmp_path: Path
) -> None:
    plan = under_way(plan_study(study(world, tmp_path / "s.db")), 1)
    execute.register_study(plan)
    ended = run_here(plan, divided(plan, 2, least_seconds=0))
    assert (ended["one"].done, ended["one"].failed) == (8, 0)
    assert values(tmp_path / "s.db") == pytest.approx(whole, abs=1e-6)
    assert not (tmp_path / "s.db.lanes").exists()
    lines = [
        json.loads(line) for log in (tmp_path / "s.db.logs").glob("*.jsonl") for line in log.open()
    ]
    assert {line["row"] for line in lines if line["kind"] == "lease"} == {
        "one · part 1 of 2",
        "one · part 2 of 2",
    }
    with Store.open(str(tmp_path / "s.db"), readonly=True) as store:
        states = store.events.read_progress(store.studies.read()[0].key)
    assert {state["model"] for state in states.values()} == {"one"}
    assert len(states) == 2
    assert all(state["done"] == state["total"] > 0 for state in states.values()), (
        "documents, of documents"
    )
    assert not any("lanes_active" in state for state in states.values()), (
        "nothing is trained any more"
    )


def test_a_part_that_was_begun_is_found_by_a_run_with_other_workers(
    world: Path, whole: dict[Any, float], tmp_path: Path
) -> None:
    asked = study(world, tmp_path / "s.db")
    plan = under_way(plan_study(asked), 1)
    execute.register_study(plan)
    first = divided(plan, 2, least_seconds=0)[0]

    def stop() -> bool:  # once it has begun to tune
        return any((tmp_path / "s.db.lanes").glob("*/*/*"))

    with pytest.raises(execute.Stopped):
        worker.compute_assignment(first, stop, tasks=plan.tasks)
    begun = tmp_path / "s.db.lanes" / name_lanes_folder(first.row, "train_before_test")
    assert begun.is_dir()
    again = under_way(plan_study(asked), 1)
    for workers, least in ((1, float("inf")), (1, 0), (4, 0)):
        cut = divided(again, workers, least_seconds=least)
        assert tasks_of(first) in [tasks_of(row) for row in cut]
        assert set.union(*map(tasks_of, cut)) == set(TASKS)
    result = run_study(asked)  # one worker
    assert result.computed + result.reused == 8
    assert not (tmp_path / "s.db.lanes").exists()
    assert values(tmp_path / "s.db") == pytest.approx(whole, abs=1e-6)


def test_lanes_of_a_part_whose_run_was_killed_at_its_end_are_swept(
    world: Path, whole: dict[Any, float], tmp_path: Path
) -> None:
    store = world / "whole.db"
    part = divided(
        under_way(plan_study(study(world, tmp_path / "none.db")), 1), 2, least_seconds=0
    )[0]
    left = world / "whole.db.lanes" / name_lanes_folder(part.row, "train_before_test")
    left.mkdir(parents=True)
    run_study(study(world, store))
    assert not left.parent.exists()
    assert values(store) == whole


def test_two_runs_share_the_parts_of_one_row(world: Path, tmp_path: Path) -> None:
    asked = study(world, tmp_path / "s.db")
    plan = under_way(plan_study(asked), 1)
    execute.register_study(plan)
    first, second = divided(plan, 2, least_seconds=0)
    with Store.open(asked.store) as store:
        lease = worker.claim_cells(first, store)
        assert store.leases.is_mine(lease)
        other = replace(second, run="other")
        assert worker.compute_assignment(other, lambda: False, tasks=plan.tasks).done == len(
            second.cells
        )
        assert worker.compute_assignment(
            assigned(plan)[0], lambda: False, tasks=plan.tasks
        ).holder  # a run that has it whole waits
        store.leases.release(lease)
    result = run_study(asked)
    assert (result.computed, result.reused) == (len(first.cells), len(second.cells))


@pytest.mark.parametrize(
    ("number", "gpus", "place"),
    [
        (0, 2, "cuda:0"),
        (1, 2, "cuda:1"),
        (2, 2, "cuda:0"),
        (3, 1, "cuda:0"),
        (1, 0, "auto"),
    ],
)
def test_a_worker_has_a_gpu_or_shares_one(number: int, gpus: int, place: str) -> None:
    assert gpu_sharing.choose_device("auto", number, gpus) == place
    assert gpu_sharing.choose_device("cpu", number, gpus) == "cpu"
    assert gpu_sharing.choose_device("cuda:5", number, gpus) == "cuda:5"


def test_a_model_larger_than_a_gpu_asks_for_several_and_has_them_alone(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from potentia.run.executors import ray as ray_executor

    monkeypatch.setattr(local, "estimate_weight_bytes", lambda row: 100 << 30)
    monkeypatch.setattr(ray_executor, "estimate_weight_bytes", lambda row: 100 << 30)
    plan = plan_study(study(world, tmp_path / "s.db", device="cuda"))
    rows = assigned(plan)
    assert local.find_oversized(rows) == []  # no GPU here
    assert ray_executor.estimate_resources(rows[0], 80 << 30).num_gpus == 2.0
    assert ray_executor.estimate_resources(rows[0], 160 << 30).num_gpus <= 1.0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for size, large in ((80 << 30, rows), (120 << 30, [])):
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda k, s=size: type("P", (), {"total_memory": s}),
        )
        assert local.find_oversized(rows) == large


# --- the lanes of a task in parts ------------------------------------------------------------------------------------

SEARCH = {
    "learning_rates": [1e-6, 1e-4, 1e-3],
    "rate_bounds": [1e-7, 1.0],
    "epochs": 4,
    "batch": 8,
    "race": True,
}


class Killed(SystemExit):
    """As SIGKILL: nobody catches it."""


def one_task(world: Path, store: Path, **changes: Any) -> Any:
    tasks = [{"name": "d", "file": str(world / "d.jsonl")}]
    return study(world, store, **({"tasks": tasks, "tuning": SEARCH, "seeds": 2} | changes))


def run_parts(plan: StudyPlan, parts: list[Any]) -> Any:
    execute.register_study(plan)
    return run_here(plan, parts)


def told(store: Path) -> tuple[Any, Any]:
    """Return all that cells and lanes say, but how long they took and how many trained beside one another."""
    with Store.open(str(store), readonly=True) as opened:
        cells = {
            (c.task, str(c.protocol)): (c.scores, c.selection, c.probe) for c in opened.cells.read()
        }
        lanes = {
            lane.key: (lane.status, lane.selected, [replace(e, seconds=0.0) for e in lane.epochs])
            for lane in opened.lanes.read()
        }
    return cells, lanes


@pytest.fixture(scope="module")
def undivided(world: Path) -> Path:
    assert run_study(one_task(world, world / "undivided.db"), threads=1).computed == 2
    return world / "undivided.db"


def test_lanes_are_divided_where_tasks_are_too_few_for_the_workers(
    world: Path, tmp_path: Path
) -> None:
    plan = under_way(plan_study(one_task(world, tmp_path / "s.db")), 1)
    three, many = divided(plan, 3, least_seconds=0), divided(plan, 50, least_seconds=0)
    assert [row.label for row in three] == [
        *(f"one · fine-tunings, part {k} of 3" for k in (1, 2, 3)),
        "one",
    ]
    assert [str(c.protocol) for c in three[0].cells] == ["train_before_test"]
    assert len(three[-1].cells) == 2
    assert len(many) == 7, "three rates × two seeds, and who chooses"
    assert [row.label for row in divided(plan, 3)] == ["one"], (
        "seconds are not worth another loading"
    )
    full = one_task(
        world, tmp_path / "s.db", tuning={"method": "full", "learning_rates": [1e-3, 1e-4]}
    )
    assert len(divided(under_way(plan_study(full), 1), 8, least_seconds=0)) == 1


@pytest.fixture(scope="module")
def apart(world: Path) -> Path:
    plan = under_way(plan_study(one_task(world, world / "apart.db")), 1)
    ended = run_parts(plan, divided(plan, 3, least_seconds=0))
    assert (ended["one"].done, ended["one"].failed, ended["one"].finished_elsewhere) == (2, 0, 0)
    return world / "apart.db"


def test_divided_lanes_give_the_scores_and_the_choice_of_the_whole(
    undivided: Path, apart: Path
) -> None:
    assert not apart.with_name("apart.db.lanes").exists()
    assert values(apart) == values(undivided)
    (cells, lanes), (cells_whole, lanes_whole) = told(apart), told(undivided)
    choice, choice_whole = (each["d", "train_before_test"][1] for each in (cells, cells_whole))
    assert replace(choice, validation_stderr=0) == replace(choice_whole, validation_stderr=0)
    assert len(choice.rates_tried) > 3, "the search went on beyond the grid"
    assert {key: lane[:2] for key, lane in lanes.items()} == {
        key: lane[:2] for key, lane in lanes_whole.items()
    }
    assert "dropped" in {lane[0] for lane in lanes.values()}, "the race was held"


def test_a_part_of_lanes_that_is_killed_loses_nothing(
    world: Path, apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from potentia.engine.training import lane_run

    asked = one_task(world, tmp_path / "killed.db")
    plan = under_way(plan_study(asked), 1)
    first, second, *_ = divided(plan, 3, least_seconds=0)
    run_parts(plan, [first])
    steps = 0

    def dying(self: Any, _: Any = lane_run.LaneRun._make_step) -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            raise Killed
        _(self)

    with monkeypatch.context() as patched:
        patched.setattr(lane_run.LaneRun, "_make_step", dying)
        with pytest.raises(Killed):
            run_parts(plan, [second])
        assert steps == 12
    again = under_way(plan_study(asked), 1)
    assert [row.label for row in divided(again, 1, least_seconds=0)] == ["one"], (
        "one worker loads the model once"
    )
    assert [row.lane_parts for row in divided(again, 8, least_seconds=0)] == [3] * 4, (
        "as it was begun"
    )
    assert run_study(asked, threads=1).computed == 2
    assert told(tmp_path / "killed.db") == told(apart)
    assert not (tmp_path / "killed.db.lanes").exists()


def test_who_chooses_waits_for_the_lanes_also_of_another_run(world: Path, tmp_path: Path) -> None:
    asked = one_task(world, tmp_path / "s.db")
    plan = under_way(plan_study(asked), 1)
    execute.register_study(plan)
    parts = divided(plan, 3, least_seconds=0)
    queue = AssignmentQueue(parts, give_up=None)
    first, second, third = (queue.take() for _ in range(3))
    assert (first, second, third) == tuple(parts[:3])
    assert queue.take([first, third]) is None
    queue.record(first, RowOutcome(holder="another run"))
    assert queue.take() is None, "another run trains these lanes"
    assert len(queue) == 2
    with Store.open(asked.store) as store:
        lease, other = worker.claim_cells(first, store), worker.claim_cells(second, store)
        assert store.leases.is_mine(lease)
        assert store.leases.is_mine(other)
        store.leases.release(other)
        for row in (first, parts[-1], assigned(plan)[0]):
            assert worker.compute_assignment(row, lambda: False, tasks=plan.tasks).holder
        store.leases.release(lease)
        whole = worker.claim_cells(assigned(plan)[0], store)
        assert worker.compute_assignment(second, lambda: False, tasks=plan.tasks).holder, (
            "who has the cell has its lanes"
        )
        store.leases.release(whole)
    lost = worker.give_up_assignment(first, plan.tasks, "its worker died")
    assert lost.failed == 0, "who chooses trains them"

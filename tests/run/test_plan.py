"""Planning: pure, once, and enough for a worker to go by."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path

import pytest

import tiny
from potentia.errors import InputError
from potentia.run import plan_study, run_study
from potentia.store import Store
from potentia.study import Study, make_study
from potentia.tasks import Task
from speed import PATIENCE


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    for seed in (0, 1):
        tiny.save_model(folder / f"m{seed}", seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    tiny.save_questions(folder / "auxiliary.jsonl", n=40, seed=1)
    return folder


def study(world: Path, store: object, **changes: object) -> Study:
    body = {
        "name": "planned",
        "models": [{"name": f"m{seed}", "path": str(world / f"m{seed}")} for seed in (0, 1)],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "protocols": ["direct"],
        "store": str(store),
    }
    return make_study(body | changes)


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_plan_leaves_nothing_behind(world: Path, tmp_path: Path):
    new_study = study(world, tmp_path / "deep" / "s.db")
    assert [cell.finished for cell in plan_study(new_study).iterate_cells()] == [False, False]
    assert not any(tmp_path.iterdir())
    run_study(new_study)
    before = files(tmp_path)
    other = study(world, new_study.store, name="other")
    assert [cell.finished for cell in plan_study(other).iterate_cells()] == [True, True]
    assert files(tmp_path) == before
    with Store.open(new_study.store, readonly=True) as store:
        assert [record.name for record in store.studies.read()] == ["planned"], (
            "a plan registers nothing"
        )


def test_planning_tells_how_far_it_is(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("potentia.run.plan.REPORT_SECONDS", 0.0)
    sentences: list[str] = []
    plan_study(study(world, tmp_path / "s.db"), report=sentences.append)
    assert sentences == ["reading models: 1 of 2", "reading models: 2 of 2"]


def test_everything_is_read_once(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tasks are loaded and rows planned by the plan alone; running its rows does neither again."""
    from potentia import tasks
    from potentia.engine.models import identity
    from potentia.run import plan

    seen: list[str] = []
    for module, name in ((tasks, "load"), (identity, "fingerprint"), (plan, "study_key")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, real=real, name=name, **k: seen.append(name) or real(*a, **k)
        )
    new_study = study(
        world, tmp_path / "s.db", protocols=["direct", "train_before_test"], tuning={"epochs": 1}
    )
    assert run_study(plan_study(new_study)).computed == 4
    assert sorted(seen) == ["fingerprint", "fingerprint", "load", "study_key"]


def test_models_are_hashed_side_by_side_while_tasks_are_read(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from potentia.engine.models import identity
    from potentia.run import plan

    both, hashed, read = (
        threading.Barrier(3, timeout=PATIENCE),
        identity.fingerprint,
        plan.load_tasks,
    )
    monkeypatch.setattr(identity, "fingerprint", lambda *a, **k: (both.wait(), hashed(*a, **k))[1])
    monkeypatch.setattr(
        plan, "load_tasks", lambda study_to_load: (both.wait(), read(study_to_load))[1]
    )
    rows = plan_study(study(world, tmp_path / "s.db")).rows
    assert len({row.model_fingerprint for row in rows}) == 2
    assert not any(row.problem for row in rows)


def test_a_study_that_is_refused_waits_for_no_hashing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from potentia.engine.models import identity

    never = threading.Event()
    waited: list[bool] = []
    monkeypatch.setattr(
        identity, "fingerprint", lambda *a, **k: waited.append(never.wait(PATIENCE))
    )
    new_study = study(
        world,
        tmp_path / "s.db",
        tasks=[{"name": "nowhere", "file": str(tmp_path / "nowhere.jsonl")}],
    )
    with pytest.raises(InputError, match="nowhere"):
        plan_study(new_study)
    assert not waited, "the refusal came while models were still being hashed"
    never.set()


def test_a_row_is_computed_from_its_plan_alone(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A worker gets the row's plan by pickle: it neither plans nor hashes the tasks again."""
    from potentia.run.plan import Assignment
    from potentia.run.worker import compute_assignment

    plan = plan_study(study(world, tmp_path / "s.db"))
    row = pickle.loads(pickle.dumps(plan.rows[0]))
    assert row == plan.rows[0]
    run_study(study(world, tmp_path / "s.db", models=[{"name": "m1", "path": str(world / "m1")}]))
    with Store.open(tmp_path / "s.db") as store:
        store.studies.open("planned", plan.key, {})
    monkeypatch.setattr("potentia.run.plan.fingerprints", None)
    monkeypatch.setattr(Task, "fingerprint", property(lambda self: 1 / 0))
    assert compute_assignment(Assignment(row), lambda: False).done == 1
    with Store.open(tmp_path / "s.db") as store:
        assert store.cells.has(plan.rows[0].cells[0].key)


def test_a_row_looks_again_before_it_computes(world: Path, tmp_path: Path):
    """What another run finished since the plan was made is taken over, not computed."""
    new_study = study(world, tmp_path / "s.db")
    plan = plan_study(new_study)
    assert run_study(study(world, new_study.store, name="meanwhile")).computed == 2
    result = run_study(plan)
    assert (result.computed, result.reused) == (0, 2)
    with Store.open(new_study.store) as store:
        assert store.cells.count(study=plan.key) == 2


def test_scores_on_the_way_are_planned_cells(world: Path, tmp_path: Path):
    adjust = {"data": str(world / "auxiliary.jsonl"), "form": "own", "at_steps": [2, 4]}
    tuning = {"epochs": 1, "learning_rates": [1e-3]}
    new_study = study(world, tmp_path / "s.db", protocols=["adjust"], adjust=adjust, tuning=tuning)
    assert [str(cell.protocol) for cell in plan_study(new_study).rows[0].cells] == [
        "adjust@2",
        "adjust@4",
        "adjust",
    ]
    assert run_study(new_study).computed == 6
    assert run_study(new_study).reused == 6
    too_far = study(
        world,
        tmp_path / "s.db",
        protocols=["adjust"],
        adjust=adjust | {"at_steps": [6]},
        tuning=tuning,
    )
    with pytest.raises(InputError, match="6 lies beyond the tuning, which has 5 steps"):
        plan_study(too_far)


def test_a_model_replaced_since_the_plan_is_not_scored_under_its_name(world: Path, tmp_path: Path):
    shutil.copytree(world / "m0", tmp_path / "model")
    new_study = study(
        world, tmp_path / "s.db", models=[{"name": "m", "path": str(tmp_path / "model")}]
    )
    plan = plan_study(new_study)
    shutil.copytree(world / "m1", tmp_path / "model", dirs_exist_ok=True)
    result = run_study(plan)
    assert (result.computed, result.failed) == (0, 1)
    assert "changed since the study was planned" in result.reasons[0]
    assert run_study(new_study).computed == 1


def test_a_gpu_and_a_cpu_name_their_cells_apart(world: Path, tmp_path: Path):
    """``dtype: auto`` is another dtype on each, so another score."""

    def keys(**changes: object) -> list[str]:
        return [
            cell.key
            for cell in plan_study(study(world, tmp_path / "s.db", **changes)).iterate_cells()
        ]

    here, there = keys(device="cpu"), keys(device="cuda")
    assert not set(here) & set(there)
    assert here == keys(device="cpu", dtype="float32") == keys(device="cuda", dtype="float32")
    assert there in (keys(dtype="bfloat16"), keys(dtype="float16"))
    treat = {"data": ["colours"]}
    assert not set(keys(device="cpu", treat=treat)) & set(keys(device="cuda", treat=treat))


def test_copies_are_shown_a_folder_that_has_its_own_splits(world: Path, tmp_path: Path) -> None:
    """Data that no task of the study is were divided 8:1:1 by force, which files with splits refuse."""
    folder = tmp_path / "shown"
    folder.mkdir()
    for seed, split in enumerate(("train", "validation", "test"), start=2):
        tiny.save_questions(folder / f"{split}.jsonl", n=20, seed=seed)
    for data in (folder, world / "auxiliary.jsonl"):
        plan = plan_study(
            study(world, tmp_path / "s.db", treat={"data": [str(data)], "who": "copies"})
        )
        assert plan.tasks.exposure[str(data)].documents("train")

"""The protocol adjust in a study: one tuning on auxiliary data serves all benchmarks, also on its way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiny
from potentia.run import count_work, plan_study, run_study
from potentia.store import Store
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adjust")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=80)
    tiny.save_questions(folder / "auxiliary.jsonl", n=160, seed=1)
    tiny.save_texts(folder / "notes.jsonl")
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    return make_study(
        {
            "name": "adjusted",
            "models": [{"name": "base", "path": str(world / "base")}],
            "tasks": [
                {"name": "colours", "file": str(world / "colours.jsonl")},
                {"name": "notes", "file": str(world / "notes.jsonl")},
            ],
            "protocols": ["direct", "adjust"],
            "adjust": {"data": str(world / "auxiliary.jsonl"), "form": "own", "at_steps": [10]},
            "tuning": {"learning_rates": [3e-3, 1e-2], "epochs": 4, "dropout": 0.0},
            "store": str(store),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def finished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    new_study = study(world, tmp_path_factory.mktemp("store") / "potentia.db")
    result = run_study(new_study)
    assert (result.failed, result.exit_code) == (0, 0), result.reasons
    return new_study


def test_tuning_on_auxiliary_data_teaches_the_benchmark(finished: Study):
    with Store.open(finished.store) as store:
        cell = store.cells.read(protocol="adjust", task="colours")[0]
        assert cell.selection.tuned
        assert cell.gain == pytest.approx(cell.score.value - cell.direct_value)
        assert cell.gain > 0
        on_the_way = store.scores.read_matrix("adjust@10")
        assert on_the_way.tasks == ("colours", "notes")


def test_every_benchmark_has_its_own_curve_of_the_tuning(finished: Study):
    with Store.open(finished.store) as store:
        for cell in store.cells.read(protocol="adjust"):
            lanes = store.lanes.read(cell=cell.key)
            assert {lane.task for lane in lanes} == {cell.task}
            assert sorted(lane.learning_rate for lane in lanes) == [3e-3, 1e-2]
            assert all([point.epoch for point in lane.epochs] == [0, 1, 2, 3, 4] for lane in lanes)
            chosen = [lane for lane in lanes if lane.selected]
            if cell.selection.tuned:
                assert [lane.epochs[-1].value for lane in chosen] == [cell.selection.validation]
            else:
                assert chosen == []


def test_the_data_count_by_content_not_by_place(finished: Study, world: Path, tmp_path: Path):
    shutil.copyfile(world / "auxiliary.jsonl", tmp_path / "auxiliary.jsonl")
    moved = study(
        world,
        Path(finished.store),
        name="moved",
        adjust={"data": str(tmp_path / "auxiliary.jsonl"), "form": "own", "at_steps": [10]},
    )
    assert run_study(moved).reused == 6
    with Store.open(finished.store) as store:
        assert store.scores.read_matrix("adjust@10", study="moved").tasks == ("colours", "notes"), (
            "with the scores on the way"
        )


def test_the_plan_counts_the_tuning_once(world: Path, tmp_path: Path):
    cost = count_work(plan_study(study(world, tmp_path / "s.db")))
    assert sum(cell.lanes for cell in cost) == 2
    assert sum(cell.train_tokens for cell in cost) > 0


def test_selection_tuned_never_keeps_the_untuned_model(world: Path, tmp_path: Path):
    """Validation prefers the untuned model to a harmful tuning; `selection: tuned` reports what the tuning did."""
    harmful = {"learning_rates": [3.0], "epochs": 1, "dropout": 0.0, "clip": 1e9}
    kept, data = {}, {"data": str(world / "auxiliary.jsonl"), "form": "own", "cap": 128}
    for choice in ("validation", "tuned"):
        new_study = study(
            world, tmp_path / "s.db", name=choice, selection=choice, tuning=harmful, adjust=data
        )
        assert run_study(new_study).failed == 0
        with Store.open(new_study.store) as store:
            kept[choice] = {c.task: c for c in store.cells.read(study=choice, protocol="adjust")}
    assert not kept["validation"]["notes"].selection.tuned
    assert all(cell.selection.tuned for cell in kept["tuned"].values())
    assert kept["tuned"]["notes"].score.value > kept["validation"]["notes"].score.value, (
        "more bits per byte"
    )

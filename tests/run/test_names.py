"""The same files under several names: computed once, and there under every name that a study uses."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.run import run_study
from potentia.store import Store
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    tiny.save_model(folder / "end")
    tiny.save_model(folder / "early", seed=1)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    return folder


def study(world: Path, store: Path, name: str, models: list[dict], task: str = "colours") -> Study:
    return make_study(
        {
            "name": name,
            "models": models,
            "tasks": [{"name": task, "file": str(world / "colours.jsonl")}],
            "protocols": ["direct"],
            "store": str(store),
        }
    )


def test_another_study_gets_the_cell_under_its_own_names(world: Path, tmp_path: Path):
    store = tmp_path / "s.db"
    first = study(world, store, "first", [{"name": "end", "path": str(world / "end")}])
    assert run_study(first).computed == 1
    series = {
        "name": "run",
        "checkpoints": [
            {"step": 10, "path": str(world / "early")},
            {"step": 20, "path": str(world / "end")},
        ],
    }
    second = study(world, store, "second", [series], task="hues")
    assert (run_study(second).computed, run_study(second).reused) == (1, 2)
    with Store.open(store) as opened:
        matrix = opened.scores.read_matrix("direct", study="second")
        assert (matrix.models, matrix.tasks) == (("run@10", "run@20"), ("hues",))
        known = opened.scores.read_matrix("direct", study="first")
        assert (known.models, known.tasks) == (("end",), ("colours",)), (
            "the first study keeps its own"
        )
        assert matrix.values[1, 0] == known.values[0, 0]
        cell = opened.cells.read(study="second", model="run@20")[0]
        assert len(opened.cells.read_items(cell.key)) == cell.score.n


def test_two_rows_of_one_study_may_have_the_same_files(world: Path, tmp_path: Path):
    twins = [{"name": name, "path": str(world / "end")} for name in ("one", "two")]
    new_study = study(world, tmp_path / "s.db", "twins", twins)
    run_study(new_study)
    with Store.open(new_study.store) as opened:
        matrix = opened.scores.read_matrix("direct", study="twins")
    assert matrix.models == ("one", "two")
    assert matrix.values[0, 0] == matrix.values[1, 0]
    assert run_study(new_study).reused == 2

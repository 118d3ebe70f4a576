"""What a killed run leaves behind goes with the run that finds the cells done."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.run import run_study
from potentia.store import Store
from potentia.store.items import items_path
from potentia.study import Study, make_study


class Killed(SystemExit):
    """As SIGKILL: nobody catches it."""


def study(folder: Path) -> Study:
    tiny.save_model(folder / "m0", seed=0)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    return make_study(
        {
            "name": "swept",
            "models": [{"name": "m0", "path": str(folder / "m0")}],
            "tasks": [{"name": "colours", "file": str(folder / "colours.jsonl")}],
            "protocols": ["train_before_test"],
            "tuning": {"learning_rates": [1e-3], "epochs": 1},
            "keep_adapters": True,
            "store": str(folder / "s.db"),
        }
    )


def test_a_row_killed_after_its_last_cell_leaves_no_lanes_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    new_study, lanes = study(tmp_path), tmp_path / "s.db.lanes"

    def die(folder: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("potentia.run.tuning.remove_lanes_folder", die)
        with pytest.raises(Killed):
            run_study(new_study)
    assert any(lanes.rglob("*.sealed")), "it died before it could tidy up"
    with Store.open(new_study.store) as store:
        (key,) = [cell.key for cell in store.cells.read()]
        half = items_path(store.items_folder, key).with_name(f".{key}.123.00000000.tmp")
        half.write_bytes(b"half")
        unfinished = half.with_name(".another.123.00000000.tmp")
        unfinished.write_bytes(b"half")
        adapter = store.adapters_folder / f".{key}.123.tmp"
        adapter.mkdir(parents=True)
    other = lanes / "another-study"
    other.mkdir()
    assert run_study(new_study).computed == 0
    assert not half.exists()
    assert not adapter.exists()
    assert unfinished.exists(), "its writer may be alive: the cell is not there yet"
    assert list(lanes.iterdir()) == [other], "only what no row needs goes"
    other.rmdir()
    assert run_study(new_study).computed == 0
    assert not lanes.exists()

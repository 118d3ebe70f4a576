"""A damaged store: told, put right, and computed anew where it was damaged."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiny
from potentia.cli.app import app
from potentia.errors import StoreError
from potentia.run import plan_study, run_study
from potentia.store import Store, check_store
from potentia.store.cells import Cells
from potentia.store.items import items_path
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("whole")
    tiny.save_model(folder / "m0", seed=0)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    made = make_study(
        {
            "name": "damaged",
            "models": [{"name": "m0", "path": str(folder / "m0")}],
            "tasks": [{"name": "colours", "file": str(folder / "colours.jsonl")}],
            "tuning": {"learning_rates": [1e-3], "epochs": 1},
            "device": "cpu",
            "store": str(folder / "s.db"),
        }
    )
    assert run_study(made).computed == 2
    return made


@pytest.fixture
def study(finished: Study, tmp_path: Path) -> Study:
    """That study, with a copy of its store."""
    shutil.copytree(Path(finished.store).parent, tmp_path, dirs_exist_ok=True)
    return finished.model_copy(update={"store": str(tmp_path / "s.db")})


def items_of(study: Study, protocol: str) -> Path:
    with Store.open(study.store, readonly=True) as store:
        (cell,) = store.cells.read(protocol=protocol)
        return items_path(store.items_folder, cell.key)


@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_a_cell_with_bad_items_is_computed_anew(study: Study, damage: str):
    path = items_of(study, "direct")
    with Store.open(study.store, readonly=True) as store:
        before = store.scores.read_matrix("direct").values
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    plan = plan_study(study)
    assert len(plan.damaged) == 1
    result = run_study(plan)
    assert (result.computed, result.reused, result.failed) == (1, 1, 0)
    with Store.open(study.store, readonly=True) as store:
        assert (store.scores.read_matrix("direct").values == before).all()
        assert check_store(store) == []


def test_check_tells_and_repairs_what_only_a_whole_reading_finds(study: Study):
    path = items_of(study, "train_before_test")
    whole = bytearray(path.read_bytes())
    whole[8 : len(whole) // 2] = bytes(len(whole) // 2 - 8)  # the ends are as they should be
    path.write_bytes(bytes(whole))
    stray = path.with_name("nobody.parquet")
    stray.write_bytes(b"?")
    told = CliRunner().invoke(app, ["status", "--check", study.store, "--json"])
    assert told.exit_code == 1
    found = json.loads(told.stdout)["problems"]
    assert sorted(problem["kind"] for problem in found) == ["items", "stray"]
    assert path.exists()
    assert CliRunner().invoke(app, ["status", "--check", study.store, "--repair"]).exit_code == 0
    assert not stray.exists()
    assert len(items_of_all(study, "train_before_test")) == 1, (
        "the score stays until its replacement is there"
    )
    assert run_study(study).computed == 1
    again = CliRunner().invoke(app, ["status", "--check", study.store])
    assert (again.exit_code, "2 results, none damaged" in again.stdout) == (0, True)


def test_a_changed_value_inside_the_items_is_found(study: Study):
    path = items_of(study, "direct")
    whole, told = bytearray(path.read_bytes()), 0
    with Store.open(study.store, readonly=True) as store:
        (cell,) = store.cells.read(protocol="direct")
        before = store.cells.read_items(cell.key)
        for place in range(4, len(whole) - 8, 31):  # one bit, at many places in turn
            path.write_bytes(bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]))
            found = [problem.kind for problem in check_store(store)]
            assert found == ["items"] or store.cells.read_items(cell.key) == before, place
            told += bool(found)
    assert told > 20


def test_nothing_finished_is_deleted_before_its_replacement(
    study: Study, monkeypatch: pytest.MonkeyPatch
):
    items_of(study, "direct").write_bytes(b"")
    before = items_of_all(study, "direct")
    during: list[list[str]] = []
    commit = Cells.commit

    def watched(self: Cells, *given: object, **more: object) -> bool:
        during.append(items_of_all(study, "direct"))
        return commit(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Cells, "commit", watched)
    assert run_study(study).computed == 1
    assert during == [before]
    assert items_of_all(study, "direct") == before


def test_a_run_that_sees_none_of_the_items_refuses(study: Study, tmp_path: Path):
    (tmp_path / "s.db.items").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="items of all 2 finished cells are missing"):
        plan_study(study)
    (tmp_path / "elsewhere").rename(tmp_path / "s.db.items")
    assert run_study(study).computed == 0


def test_a_link_to_a_store_is_that_store(study: Study, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / "s.db")
    linked = study.model_copy(update={"store": str(tmp_path / "other" / "link.db")})
    assert run_study(linked).computed == 0
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["link.db"]


def test_one_cell_is_discarded_and_computed_again(study: Study):
    asked = ["store", "discard", study.store, "--protocol", "direct"]
    refused = CliRunner().invoke(app, asked)  # no terminal to ask
    assert "m0 × colours × direct" in refused.stdout
    assert "this would discard 1 results" in str(refused.exception)
    assert all(cell.finished for cell in plan_study(study).iterate_cells())
    assert CliRunner().invoke(app, [*asked, "--yes"]).exit_code == 0
    assert not items_of_all(study, "direct")
    assert run_study(study).computed == 1


def items_of_all(study: Study, protocol: str) -> list[str]:
    with Store.open(study.store, readonly=True) as store:
        return [cell.key for cell in store.cells.read(protocol=protocol)]


def test_a_store_in_use_is_not_repaired(study: Study):
    with Store.open(study.store) as store:
        lease = store.leases.claim("damaged", "m0", ["x"])
        told = CliRunner().invoke(app, ["status", "--check", study.store, "--repair"])
        assert "is run by process" in str(told.exception)
        store.leases.release(lease)


def test_a_record_that_commands_cannot_read_is_found(study: Study):
    damages = (
        "UPDATE provenances SET provenance = substr(provenance, 1, 20)",
        "UPDATE provenances SET selection = 'x'",
        'UPDATE provenances SET selection = \'{"epoch": "x"}\'',
        "UPDATE studies SET spec = '{'",
        "UPDATE events SET payload = '['",
        "UPDATE cells SET metric = 'other'",
        "UPDATE lanes SET model = CAST(x'ff' AS TEXT)",
        "DELETE FROM scores",
        "PRAGMA foreign_keys = OFF; DELETE FROM studies",
    )
    whole = Path(study.store).read_bytes()
    for damage in damages:
        with contextlib.closing(sqlite3.connect(study.store)) as raw:
            raw.executescript(damage)
        told = CliRunner().invoke(app, ["status", "--check", study.store])
        assert told.exit_code == 1, damage
        assert "Traceback" not in told.stdout
        Path(study.store).write_bytes(whole)
    assert CliRunner().invoke(app, ["status", "--check", study.store]).exit_code == 0

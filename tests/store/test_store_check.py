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
from potentia.store import Store, absorb_study, check_store
from potentia.store.cells import Cells
from potentia.store.items import items_path
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("whole")
    tiny.save_model(folder / "m0", seed=0)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    new_study = make_study(
        {
            "name": "damaged",
            "models": [{"name": "m0", "path": str(folder / "m0")}],
            "tasks": [{"name": "colours", "file": str(folder / "colours.jsonl")}],
            "tuning": {"learning_rates": [1e-3], "epochs": 1},
            "device": "cpu",
            "store": str(folder / "s.db"),
        }
    )
    assert run_study(new_study).computed == 2
    return new_study


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
    original_bytes = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(original_bytes[: len(original_bytes) // 2] if damage == "cut" else b"")
    plan = plan_study(study)
    assert len(plan.damaged) == 1
    result = run_study(plan)
    assert (result.computed, result.reused, result.failed) == (1, 1, 0)
    with Store.open(study.store, readonly=True) as store:
        assert (store.scores.read_matrix("direct").values == before).all()
        assert check_store(store) == []


def test_check_tells_and_repairs_what_only_a_whole_reading_finds(study: Study):
    path = items_of(study, "train_before_test")
    original_bytes = bytearray(path.read_bytes())
    original_bytes[8 : len(original_bytes) // 2] = bytes(
        len(original_bytes) // 2 - 8
    )  # the ends are as they should be
    path.write_bytes(bytes(original_bytes))
    stray = path.with_name("nobody.parquet")
    stray.write_bytes(b"?")
    invocation = CliRunner().invoke(app, ["status", "--check", study.store, "--json"])
    assert invocation.exit_code == 1
    result = json.loads(invocation.stdout)["problems"]
    assert sorted(problem["kind"] for problem in result) == ["items", "stray"]
    assert path.exists()
    printed = CliRunner().invoke(app, ["status", "--check", study.store]).stdout
    assert printed.startswith("2 problems; 1 of 2 results is damaged")
    assert CliRunner().invoke(app, ["status", "--check", study.store, "--repair"]).exit_code == 0
    assert not stray.exists()
    assert len(items_of_all(study, "train_before_test")) == 1, (
        "the score stays until its replacement is there"
    )
    assert run_study(study).computed == 1
    again = CliRunner().invoke(app, ["status", "--check", study.store])
    assert (again.exit_code, "2 results, none damaged" in again.stdout) == (0, True)


def test_the_lanes_of_an_interrupted_run_are_no_problem(study: Study):
    with Store.open(study.store) as store:
        (store.lanes_folder / "row").mkdir(parents=True)
    checked = CliRunner().invoke(app, ["status", "--check", study.store])
    assert checked.exit_code == 0
    assert checked.stdout.startswith("2 results, none damaged")
    assert "resumes from them" in " ".join(checked.stdout.split())


def test_a_stray_file_damages_no_result(study: Study):
    items_of(study, "direct").with_name("nobody.parquet").write_bytes(b"?")
    checked = CliRunner().invoke(app, ["status", "--check", study.store])
    assert checked.exit_code == 1
    assert checked.stdout.startswith("1 problem; none of the 2 results is damaged")


def test_a_changed_value_inside_the_items_is_found(study: Study):
    path = items_of(study, "direct")
    original_bytes, told = bytearray(path.read_bytes()), 0
    with Store.open(study.store, readonly=True) as store:
        (cell,) = store.cells.read(protocol="direct")
        before = store.cells.read_items(cell.key)
        for place in range(4, len(original_bytes) - 8, 31):  # one bit, at many places in turn
            path.write_bytes(
                bytes(
                    original_bytes[:place]
                    + bytes([original_bytes[place] ^ 1])
                    + original_bytes[place + 1 :]
                )
            )
            result = [problem.kind for problem in check_store(store)]
            assert result == ["items"] or store.cells.read_items(cell.key) == before, place
            told += bool(result)
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
    with pytest.raises(StoreError, match="examples of all 2 finished results are missing"):
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
    assert "this would discard 1 result" in str(refused.exception)
    assert all(cell.finished for cell in plan_study(study).iterate_cells())
    discarded = CliRunner().invoke(app, [*asked, "--yes", "--json"])
    (result,) = json.loads(discarded.stdout)["discarded"]
    assert (result["model"], result["task"], result["protocol"]) == ("m0", "colours", "direct")
    assert not items_of_all(study, "direct")
    assert run_study(study).computed == 1


def items_of_all(study: Study, protocol: str) -> list[str]:
    with Store.open(study.store, readonly=True) as store:
        return [cell.key for cell in store.cells.read(protocol=protocol)]


def test_a_store_in_use_is_not_repaired(study: Study):
    with Store.open(study.store) as store:
        lease = store.leases.claim("damaged", "m0", ["x"])
        invocation = CliRunner().invoke(app, ["status", "--check", study.store, "--repair"])
        assert "is run by process" in str(invocation.exception)
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
    original_bytes = Path(study.store).read_bytes()
    for damage in damages:
        with contextlib.closing(sqlite3.connect(study.store)) as raw:
            raw.executescript(damage)
        invocation = CliRunner().invoke(app, ["status", "--check", study.store])
        assert invocation.exit_code == 1, damage
        assert "Traceback" not in invocation.stdout
        Path(study.store).write_bytes(original_bytes)
    assert CliRunner().invoke(app, ["status", "--check", study.store]).exit_code == 0


def test_a_study_takes_over_the_one_that_it_replaces(finished: Study, tmp_path: Path) -> None:
    """A study of one more checkpoint replaces the study before it: results, curves and log stay."""
    store_file = tmp_path / "s.db"
    shutil.copy(finished.store, store_file)
    shutil.copytree(f"{finished.store}.items", f"{store_file}.items")
    with Store.open(store_file) as store:
        (earlier,) = store.studies.read()
        cells = {cell.key for cell in store.cells.read(study=earlier.key)}
        lanes = {lane.key for lane in store.lanes.read(study=earlier.key)}
        events = len(store.events.read(earlier.key))
        assert cells
        assert lanes
        assert events
        later = store.studies.open("later", "later-key", {**earlier.spec, "name": "later"})
        store.cells.adopt(later.key, list(cells)[:1])
        absorb_study(store, earlier.key, later.key)
        assert [study.key for study in store.studies.read()] == [later.key]
        assert {cell.key for cell in store.cells.read(study=later.key)} == cells
        assert {lane.key for lane in store.lanes.read(study=later.key)} == lanes
        assert len(store.events.read(later.key)) == events
        assert check_store(store) == []

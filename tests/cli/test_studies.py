"""Studies of a store listed, renamed and deleted; what another study uses stays."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from made_store import MODELS, STUDY, make_store
from potentia.store import Store, find_study, schema
from potentia.store.items import items_path

OTHER = "fedcba9876543210fedcba9876543210"


@pytest.fixture
def store(tmp_path):
    """Two studies: the second uses the cells of one model of the first, which has lanes and a failure too."""
    path = make_store(tmp_path / "made.db")
    with Store.open(path) as opened:
        opened.studies.open("other", OTHER, {"name": "other"})
        mine = [cell.key for cell in opened.cells.read(study=STUDY, model=MODELS[0])]
        opened.cells.adopt(OTHER, mine)
    return path


def test_deleting_leaves_what_another_study_uses(potentia, store):
    with Store.open(store, readonly=True) as opened:
        kept_scores = {cell.key: cell.score for cell in opened.cells.read(study=OTHER)}
        gone = {cell.key for cell in opened.cells.read(study=STUDY)} - set(kept_scores)
        curves = {lane.key for lane in opened.lanes.read() if lane.cell in kept_scores}
        assert 0 < len(curves) < len(opened.lanes.read())
        folder = opened.items_folder
    done = potentia("store", "delete", store, "made", "--yes")
    assert done.returncode == 0, done.stderr
    assert "with 16 results; 6 that other studies use" in done.stdout
    with Store.open(store) as opened:
        assert [record.name for record in opened.studies.read()] == ["other"]
        assert {cell.key: cell.score for cell in opened.cells.read()} == kept_scores
        assert all(cell.study == OTHER for cell in opened.cells.read())
        assert all(opened.cells.read_items(key) for key in kept_scores), "their items are there"
        assert {lane.key for lane in opened.lanes.read()} == curves, (
            "the curve of a cell that stays, stays"
        )
        assert opened.failures.read() == []
        with opened.database.reading() as connection:
            for table in (schema.scores, schema.provenances, schema.study_cells):
                remaining_rows = connection.execute(
                    sa.select(sa.func.count(table.c.cell.distinct()))
                ).scalar_one()
                assert remaining_rows == len(kept_scores), table.name
            assert set(connection.execute(sa.select(schema.epochs.c.lane)).scalars()) == curves
            assert (
                connection.execute(
                    sa.select(sa.func.count()).select_from(schema.events)
                ).scalar_one()
                == 0
            )
    assert not any(items_path(folder, key).exists() for key in gone)


def test_the_last_study_takes_all_with_it(potentia, store):
    for name in ("other", "made"):
        assert potentia("store", "delete", store, name, "--yes").returncode == 0
    with Store.open(store, readonly=True) as opened:
        assert opened.studies.read() == []
        assert opened.cells.read() == []
        assert not list(opened.items_folder.rglob("*.parquet"))


def test_a_renamed_study_is_found_by_both_its_files(potentia, store):
    assert potentia("store", "rename", store, STUDY[:8], "first try").returncode == 0
    with Store.open(store, readonly=True) as opened:
        record = find_study(opened, "first try")
        assert (record.key, record.spec["name"]) == (STUDY, "first try")
        assert opened.cells.count(study="first try") == 22


def test_what_is_not_meant_is_refused(potentia, store, tmp_path):
    refused = potentia("store", "delete", store, "made")  # no terminal to ask
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert "there are: other, made" in potentia("store", "delete", store, "nothing", "--yes").stderr
    with Store.open(store) as opened:
        opened.events.save_progress(STUDY, MODELS[0], {"phase": "direct", "at": time.time()})
    running = potentia("store", "delete", store, "made", "--yes")
    assert running.returncode == 2
    assert "is running" in running.stderr
    with Store.open(store) as opened:
        opened.studies.open("made", "a" * 32, {"name": "made"})
    assert "2 studies are called 'made'" in potentia("store", "rename", store, "made", "x").stderr
    assert potentia("store", "delete", tmp_path / "no.db", "x").returncode == 2
    missing = potentia("status", store, "--study", "nothing")
    assert (missing.returncode, "no study 'nothing'" in missing.stderr) == (2, True)
    assert not (tmp_path / "no.db").exists()

"""A store of version 0.1 opens, is read and reported, and its study goes on from what it has.

``tests/data/store-0.1.tar.xz`` was made by version 0.1, from the two study files in it: two zoo models, a file of
questions and one of texts, every protocol, scores at two steps. ``full.yaml`` is a study that 0.1 computed wrongly.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from potentia import zoo
from potentia.run import plan_study, run_study
from potentia.store import Store
from potentia.study import Study, read_study

ARCHIVE = Path(__file__).parents[1] / "data" / "store-0.1.tar.xz"
POTENTIA = str(Path(sys.executable).with_name("potentia"))


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    zoo.model_folders(tmp_path / "models", ["aster-71k", "birch-71k"])
    monkeypatch.chdir(tmp_path)  # the studies name their files from here
    return tmp_path


def test_it_is_read(old: Path):
    with Store.open("potentia.db", readonly=True) as store:
        assert store.protocols(study="before") == [
            "adjust", "adjust@2", "adjust@4", "direct", "few_shot:2", "train_before_test",
        ]  # fmt: skip
        assert store.matrix("train_before_test", study="before").values.shape == (2, 2)
        (cell,) = store.cells(study="before", model="aster-71k", task="ask", protocol="train_before_test")
        assert len(store.items(cell.key)) == cell.score.n == 8
        assert (cell.selection["style"], cell.selection["learning_rate"]) == ("plain", 0.003)
        lanes = store.lanes(cell=cell.key)
        assert [(lane.learning_rate, lane.style, lane.status) for lane in lanes] == [
            (1e-3, "plain", "done"),
            (3e-3, "plain", "done"),
        ]
        assert [point.epoch for point in lanes[0].epochs] == [0, 1, 2]


def test_it_is_reported_and_analysed(old: Path):
    for command in (
        ["report", "potentia.db", "--study", "before", "-o", "report.html"],
        ["status", "potentia.db", "--json"],
        ["export", "potentia.db", "--study", "before", "-o", "scores.csv"],
    ):
        done = subprocess.run([POTENTIA, *command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        if command[0] == "status":
            (state,) = (s for s in json.loads(done.stdout)["studies"] if s["name"] == "before")
            assert (state["done"], state["asked"]) == (22, 22)
    assert "aster-71k" in (old / "report.html").read_text()
    assert len((old / "scores.csv").read_text().splitlines()) == 1 + 22


def scores(made: Study) -> dict[tuple[str, str, str], float]:
    with Store.open(made.store) as store:
        return {(c.model, c.task, c.protocol): c.score.value for c in store.cells(study=made.name)}


def test_its_study_is_found_done(old: Path):
    study = read_study("study.yaml")
    plan = plan_study(study)
    anew = [cell for cell in plan.cells() if not cell.done]
    assert {cell.protocol.kind for cell in anew} == {"adjust"}, "its auxiliary data were divided"
    assert (len(anew), len(plan.outdated)) == (12, 12)
    result = run_study(plan)
    assert (result.computed, result.reused, result.failed) == (12, 10, 0)
    with Store.open(study.store) as store:
        assert sorted(record.name for record in store.studies()) == ["before", "full"], "it is the same study"


def test_a_cell_of_another_dtype_is_not_this_study_s(old: Path):
    """Version 0.1 gave a cell computed on a GPU and one computed on a CPU the same key under ``dtype: auto``."""
    import sqlite3

    with sqlite3.connect("potentia.db") as raw:
        raw.execute("""UPDATE manifests SET manifest = replace(manifest, '"float32"', '"bfloat16"')""")
    plan = plan_study(read_study("study.yaml", {"device": "cpu"}))
    assert not any(cell.done for cell in plan.cells())
    assert len(plan.outdated) == 22
    on_a_gpu = plan_study(read_study("study.yaml", {"device": "cuda"}))
    assert all(cell.done for cell in on_a_gpu.cells() if not cell.protocol.tuned)
    assert not any(cell.done for cell in on_a_gpu.cells() if cell.protocol.tuned), "in few bits, they are tuned again"


def test_a_cell_that_is_missing_is_computed_among_the_others(old: Path):
    """The rest of the row stays; what is computed is what was there."""
    study = read_study("study.yaml")
    before = scores(study)
    import sqlite3

    with sqlite3.connect("potentia.db") as raw:
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("DELETE FROM cells WHERE protocol IN ('train_before_test', 'few_shot:2') AND model = 'birch-71k'")
    study = study.model_copy(update={"protocols": tuple(p for p in study.protocols if p != "adjust")})
    before = {place: value for place, value in before.items() if not place[2].startswith("adjust")}
    result = run_study(study)
    assert (result.computed, result.reused) == (3, 7)
    assert scores(study) == pytest.approx(before, abs=1e-6)


def test_what_0_1_computed_otherwise_is_computed_anew_with_a_word(old: Path):
    """Under ``method: full`` version 0.1 tuned adapters before the test."""
    study = read_study("full.yaml")
    with Store.open(study.store) as store:
        (wrong,) = store.cells(study="full", protocol="train_before_test")
    done = subprocess.run([POTENTIA, "run", "full.yaml"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "1 cells of this study were made by another version" in done.stderr
    assert "1 cells computed, 1 found" in done.stdout
    with Store.open(study.store) as store:
        (right,) = store.cells(study="full", protocol="train_before_test")
        assert right.key != wrong.key
        assert store.has(wrong.key), "the store keeps it; the study does not ask for it any more"
    again = subprocess.run([POTENTIA, "run", "full.yaml"], capture_output=True, text=True, timeout=300)
    assert "another version" not in again.stderr

"""The layout of the laboratory: every file is one that the tool's own readers take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potentia import tasks, zoo
from potentia.cli.app import app
from potentia.facts import models as known_models
from potentia.lab.laboratory import AUXILIARY_DOCUMENTS, BENCHMARKS, Laboratory, lay_out_laboratory
from potentia.papers.task_training.cohort import Cohort
from potentia.run import run_study
from potentia.run.plan import check_model_source, load_tasks
from potentia.store import Store
from potentia.study import list_checkpoints_at, read_study


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return lay_out_laboratory(tmp_path_factory.mktemp("lab"))


def test_every_study_file_can_be_read_and_names_what_is_there(laboratory: Laboratory):
    for name, path in laboratory.studies.items():
        study = read_study(path)
        assert study.name == name
        assert path.read_text().startswith(f"# potentia run {path}\n")
        for row in study.rows():
            check_model_source(row)
    loaded = load_tasks(read_study(laboratory.studies["checkpoints-direct"]))
    assert loaded.by_name["ask:blank_ppl"].metric == "acc_token"


def test_checkpoint_series_end_with_the_finished_model(laboratory: Laboratory):
    rows = read_study(laboratory.studies["checkpoints-tuned"]).rows()
    for run in ("aster-159k", "cedar-159k"):
        series = [row for row in rows if row.series == run]
        assert len(series) == 8
        assert [row.step for row in series] == sorted(row.step for row in series)
        assert Path(series[-1].source).name == run


def test_each_run_has_a_folder_of_checkpoints_that_the_command_line_takes(laboratory: Laboratory):
    """`run --checkpoints lab/models` was refused ("2 runs"), and the last step had no step in its name."""
    rows = read_study(laboratory.studies["checkpoints-tuned"]).rows()
    for run in ("aster-159k", "cedar-159k"):
        folder = laboratory.folder / "runs" / run
        found = list_checkpoints_at(str(folder))
        series = [row for row in rows if row.series == run]
        assert [checkpoint["step"] for checkpoint in found] == [row.step for row in series]
        for checkpoint, row in zip(found, series, strict=True):
            assert Path(checkpoint["path"]).resolve() == Path(row.source).resolve()
    lay_out_laboratory(laboratory.folder)  # again: what is there stays


def test_the_auxiliary_data_hold_every_form_and_nobody_of_the_test_splits(laboratory: Laboratory):
    data = tasks.load(str(laboratory.folder / "tasks/auxiliary.yaml"))
    train = data.documents("train")
    assert len(train) == AUXILIARY_DOCUMENTS * len(BENCHMARKS)
    tested = {
        doc["about"]
        for name in BENCHMARKS
        for doc in tasks.load(str(laboratory.folder / f"tasks/{name}.yaml")).documents("test")
    }
    assert not tested & {doc["about"] for doc in train}


def test_the_facts_say_who_saw_which_form(laboratory: Laboratory):
    table = known_models(laboratory.facts)
    cohort = Cohort.from_facts([m.name for m in zoo.models("base")], table)
    assert len(cohort.models) == 16
    for m in zoo.models("base"):
        facts = table.find(m.name)
        assert facts is not None
        assert facts.exposure == m.exposure
        assert facts.flops == pytest.approx(m.flops)
    for name in BENCHMARKS:
        members = cohort.split_by_exposure(name).members
        assert {f for f, inside in zip(cohort.family, members, strict=True) if inside} == {
            m.family for m in zoo.models("base") if name in m.exposure
        }
    assert table.find("cedar-159k@600") is not None


def test_a_second_layout_changes_no_file_of_the_tasks(laboratory: Laboratory):
    files = sorted((laboratory.folder / "tasks").rglob("*.*"))
    before = [file.stat().st_mtime_ns for file in files]
    lay_out_laboratory(laboratory.folder)
    assert [file.stat().st_mtime_ns for file in files] == before


def test_the_command_prints_what_to_run(tmp_path: Path):
    invocation = CliRunner().invoke(app, ["demo", "--zoo", str(tmp_path / "lab"), "--json"])
    assert invocation.exit_code == 0, invocation.output
    printed = json.loads(invocation.output)
    assert printed["models"] == len(zoo.models())
    lines = [line for question in printed["commands"].values() for line in question]
    for line in lines:
        if line.startswith("potentia run "):
            assert Path(line.removeprefix("potentia run ")).exists()
    assert {line.split()[1] for line in lines} == {"run", "analyze", "papers"}


def test_treatment_teaches_the_form_to_half_of_the_models(laboratory: Laboratory, tmp_path: Path):
    study = read_study(laboratory.studies["treatment"])
    rows = study.rows()
    assert sum(row.copy_of is not None for row in rows) == len(rows) // 2 == 6
    assert all(row.exposure == ("ask",) for row in rows if row.copy_of is not None)
    one = tuple(model for model in study.models if model.name == "cedar-237k")
    treat = study.treat.model_copy(update={"who": "copies"})
    changes = {
        "models": one,
        "treat": treat,
        "protocols": ("direct",),
        "store": str(tmp_path / "s.db"),
    }
    assert run_study(study.model_copy(update=changes)).failed == 0
    with Store.open(tmp_path / "s.db") as store:
        value = {cell.model: cell.score.value for cell in store.cells.read()}
    assert value["cedar-237k+exposed"] > value["cedar-237k"] + 0.2

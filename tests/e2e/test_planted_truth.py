"""The planted truth, for real: exposure gives an advantage at equal compute, and the same tuning for all removes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potentia.cli.app import app
from potentia.run import run_study
from potentia.study import read_study

MODELS = (
    "aster-237k",
    "birch-237k",
    "cedar-237k",
    "dahlia-237k",
)  # the first saw no form, the others one each
TASKS = ("ask", "record", "beside")


@pytest.mark.long
def test_exposure_shows_before_adjustment_and_not_after(tmp_path: Path):
    invoke = CliRunner().invoke
    folder = tmp_path / "lab"
    text = invoke(app, ["demo", "--zoo", str(folder)])
    assert text.exit_code == 0, text.output
    whole_study = read_study(folder / "adjust.yaml")
    study = whole_study.model_copy(
        update={
            "models": tuple(model for model in whole_study.models if model.name in MODELS),
            "tasks": tuple(task for task in whole_study.tasks if task.name in TASKS),
            "caps": whole_study.caps.model_copy(
                update={"train": 900, "validation": 60, "test": 250}
            ),
            "tuning": whole_study.tuning.model_copy(update={"epochs": 4}),
            "adjust": whole_study.adjust.model_copy(update={"at_steps": ()}),
        }
    )
    result = run_study(study)
    assert (result.computed, result.failed) == (24, 0), result.reasons
    chosen_tasks = [
        "papers",
        "test-task",
        study.store,
        "--facts",
        str(folder / "facts.csv"),
        "--group",
        "exposed",
    ]
    text = invoke(app, [*chosen_tasks, "--chance", "0.25", "--json"])
    assert text.exit_code == 0, text.output
    exposure = json.loads(text.stdout)["exposure"]

    before, after = (exposure[stage]["fit"]["effect"] for stage in ("before", "after"))
    assert exposure["assignments"] == 4**3
    assert exposure["before"]["assigned_p"] <= 2 / 64, (
        "hardly another way to hand out the forms gives as much"
    )
    assert before["value"] - 3 * before["stderr"] > 0.2
    assert before["value"] - 3 * before["stderr"] > after["value"] + 3 * after["stderr"], (
        "far apart, errors included"
    )
    assert abs(after["value"]) < 2 * after["stderr"], "gone"
    assert exposure["after"]["assigned_p"] > 0.1

"""``potentia run --save``: a study file to start from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiny
from potentia.cli.app import app
from potentia.errors import InputError
from potentia.run import plan_study
from potentia.study import read_study


def save(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["run", "--save", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_flags_make_a_study_that_can_be_read(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    result = save(
        str(out),
        "--models",
        "org/a",
        "--models",
        "org/b",
        "--tasks",
        "arc_easy",
        "--protocols",
        "few_shot:5",
    )
    study = read_study(out)
    assert [m.name for m in study.models] == ["org/a", "org/b"]
    assert ([t.name for t in study.tasks], study.protocols) == (["arc_easy"], ("few_shot:5",))
    assert f"potentia run {out}" in result
    assert "recipe: fair" in out.read_text()
    with pytest.raises(InputError, match="exists already"):
        save(str(out), "--models", "m", "--tasks", "arc_easy")


def test_columns_of_ones_own_data_are_guessed_and_the_study_plans(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    rows = [{"Query": f"{i} + 1", "Options": [str(i), str(i + 1)], "Label": 1} for i in range(30)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "s.yaml"
    save(
        str(out),
        "--models",
        str(tmp_path / "m"),
        "--tasks",
        str(tmp_path / "q.jsonl"),
        "--set",
        "caps.train=400",
    )
    study = read_study(out, {"store": str(tmp_path / "s.db")})
    assert study.tasks[0].columns.list_stated() == {
        "question": "Query",
        "choices": "Options",
        "answer": "Label",
    }
    assert study.caps.train == 400
    assert study.tasks[0].ratios == (6, 1, 3), "30 rows: a tenth would be three"
    assert len(plan_study(study).rows[0].cells) == 2


def test_what_is_missing_is_named_where_nobody_can_be_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--models is missing"):
        save(str(tmp_path / "s.yaml"), "--tasks", "arc_easy")
    with pytest.raises(InputError, match=r"there is no nothing\.csv"):
        save(str(tmp_path / "s.yaml"), "--models", "m", "--tasks", "nothing.csv")
    assert not (tmp_path / "s.yaml").exists()

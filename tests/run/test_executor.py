"""A new executor is one new file: `run/on_NAME.py` with `run_elsewhere`."""

from __future__ import annotations

from pathlib import Path

import pytest

import potentia.run
import tiny
from potentia.errors import InputError
from potentia.run import run_study
from potentia.study import make_study

HERE = """
from potentia.run.local import AssignmentQueue, answer_assignment

seen = []

def run_elsewhere(rows, tasks, *, stop, divide):
    turns = AssignmentQueue(divide(1, "cpu"), tasks)
    while (row := turns.take()) is not None:
        seen.append(row.label)
        turns.end(row, answer_assignment(row, stop, tasks=tasks))
    return turns.ended
"""


def test_a_file_makes_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "on_here.py").write_text(HERE)
    monkeypatch.setattr(potentia.run, "__path__", [*potentia.run.__path__, str(tmp_path)])
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "colours.jsonl", n=40)
    made = make_study(
        {
            "models": [{"name": "m", "path": str(tmp_path / "m")}],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )
    with pytest.raises(InputError, match="no executor 'slurm'"):
        run_study(made, executor="slurm")
    assert run_study(made, executor="here").computed == 1
    from potentia.run.on_here import seen  # type: ignore[import-not-found]

    assert seen == ["m"]

"""A selection reads its data once in every process, and loads a model once at most, however many rounds it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ticket_files as tickets
from potentia.run import Race
from potentia.run.row_context import RowContext
from potentia.study import make_study
from potentia.zoo import write_model_folders

# What a worker does at its start, because this file is on its path: it notes whenever the data is opened.
HOOK = """
import os, sys
log, data = os.environ["OPENED_LOG"], os.environ["OPENED_DATA"]
def heard(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0] == data and not heard.within:
        heard.within = True
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\\n")
        heard.within = False
heard.within = False
sys.addaudithook(heard)
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_data_and_models_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    log, data = (
        tmp_path / "opened.txt",
        tickets.write(tmp_path / "tickets.csv", tickets.of_the_zoo(260)),
    )
    log.touch()
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("OPENED_LOG", str(log))
    monkeypatch.setenv("OPENED_DATA", str(data))
    loads: list[str] = []
    load = RowContext.load_model
    monkeypatch.setattr(
        RowContext,
        "load_model",
        lambda self, **how: loads.append(self.row.model.name) or load(self, **how),
    )
    folders = write_model_folders(tmp_path / "zoo", ["birch-71k", "aster-71k", "birch-159k"])
    tuning = {"learning_rates": [1e-2], "epochs": 1, "targets": ["all-linear"], "dropout": 0.0}
    study = make_study(
        {
            "name": "select",
            "models": [str(folder) for folder in folders.values()],
            "device": "cpu",
            "tuning": tuning,
            "tasks": [{"name": "tickets", "file": str(data)}],
            "store": str(tmp_path / "s.db"),
        }
    )
    result: list[str] = []
    choice = Race(study, report=result.append, workers=workers).run()
    assert choice.best
    assert "leads (P(best)" in result[-1]
    opened = log.read_text().split()
    if workers == 1:
        assert len(loads) == len(set(loads)) == 3
    else:
        assert opened
        assert len(opened) == len(set(opened)), "a worker has read the data again"

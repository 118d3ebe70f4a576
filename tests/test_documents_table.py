"""The table of the documents' methods stays true: every command, function and report section is there."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import typer

from potentia.cli.app import app
from potentia.show import sections

PAGE = Path(__file__).parents[1] / "docs" / "documents.md"
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| document")
]


def test_every_document_and_analysis_is_in_the_table():
    assert {row[0] for row in ROWS} == {"train-before-test", "test task", "proxies", "BOSE"}
    group = typer.main.get_command(app).commands["analyze"]  # type: ignore[attr-defined]
    told = {row[2].split()[2] for row in ROWS if row[2].startswith("potentia analyze")}
    assert told <= set(group.commands)
    assert {"rankings", "test-task", "checkpoints", "consistency", "ablation", "proxy"} <= told


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_a_row_names_things_that_are_there(row: list[str]):
    assert len(row) == 6
    assert all(row)
    command = typer.main.get_command(app)
    for word in row[2].split()[1:]:
        if command.name == "reproduce":  # which document is its argument
            break
        command = command.commands[word]  # type: ignore[attr-defined]
    module, _, name = row[3].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert row[4] == "–" or f'"{row[4]}"' in inspect.getsource(sections)

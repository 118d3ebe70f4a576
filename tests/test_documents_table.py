"""The table of the documents' methods stays true: every command, function and report section is there."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import typer

from potentia.cli.app import app
from potentia.extensions import ExtensionKind, load_extensions
from potentia.show import sections

PAGE = Path(__file__).parents[1] / "docs" / "documents.md"
METHODS, _, ITEMS = PAGE.read_text("utf-8").partition("## Every numbered item")


def rows_of(text: str, first: str) -> list[list[str]]:
    return [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(f"| {first}")
    ]


ROWS = rows_of(METHODS, "document")
NUMBERED = {  # how many figures, tables and algorithms each document numbers; its numbered equations
    "Train-before-test": {"figure": 15, "table": 8, "algorithm": 3},
    "Training on the test task": {"figure": 20, "table": 5, "equation": 6},
    "Proxy tasks": {"figure": 1, "table": 10, "algorithm": 1},
    "BOSE": {"figure": 5, "table": 12},
}


@pytest.mark.parametrize("document", NUMBERED)
def test_every_numbered_item_has_a_state(document: str):
    (part,) = [part for part in ITEMS.split("### ") if part.startswith(document)]
    found: dict[str, list[int]] = {}
    for item, _, state in rows_of(part, "item"):
        kind = ""
        for word in re.findall(r"[a-z]+|\d+", item.replace("§ 3.", "").replace("§ 4.", "")):
            kind = word.removesuffix("s") if word.isalpha() else kind
            if word.isdigit() and kind in NUMBERED[document]:
                found.setdefault(kind, []).append(int(word))
        assert re.match(r"right|method|given|unreachable: |8 of 18 entries right", state), state
    assert {kind: sorted(numbers) for kind, numbers in found.items()} == {
        kind: list(range(1, last + 1)) for kind, last in NUMBERED[document].items()
    }


def test_every_document_and_analysis_is_in_the_table():
    assert {row[0] for row in ROWS} == {"train-before-test", "test task", "proxies", "BOSE"}
    groups = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = [row[2].split()[1:3] for row in ROWS if row[2].startswith("potentia ")]
    for group, name in (words for words in commands if words[0] in ("analyze", "papers")):
        assert name in groups[group].commands
    told = {words[1] for words in commands if len(words) > 1}
    assert {"rankings", "test-task", "checkpoints", "proxy"} <= told


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
    registered = {one.title for one in load_extensions(ExtensionKind.SECTION).values()}
    built_in = f'"{row[4]}"' in inspect.getsource(sections)
    assert row[4] == "–" or row[4] in registered or built_in

"""The table of the documents' methods stays true: every command, function and report section is there."""

from __future__ import annotations

import importlib
import inspect
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import typer

import potentia
from potentia.cli.app import app
from potentia.extensions import ExtensionKind, load_extensions
from potentia.papers import reproduce_bose, reproduce_proxy
from potentia.papers.task_training.evaluations import EvaluationTree
from potentia.papers.task_training.published_scores import PublishedScores
from potentia.papers.task_training.reproduction import reproduce_task_training
from potentia.papers.train_before_test.reproduction import reproduce_train_before_test
from potentia.show import sections

PAGE = Path(__file__).parents[1] / "docs" / "documents.md"
METHODS, _, _REST = PAGE.read_text("utf-8").partition("## Every numbered item")
ITEMS, _, SLIPS = _REST.partition("## Slips of the papers")


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
        assert re.match(r"\d+ of \d+ agree|method|given|unreachable: ", state), state
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


# --- states, as `potentia papers reproduce` prints them ------------------------------------------------------------

TEXT = frozenset({("text", 0)})  # a number of the text, of no figure or table


def items_in(text: str) -> frozenset[tuple[str, int]]:
    """Return the figures and tables that a text names: "figures 6 and 8, table 8"."""
    items = set()
    kind = ""
    for word in re.findall(r"[a-z]+|\d+", text.lower().partition(":")[0]):
        if word.isalpha():
            kind = word.removesuffix("s") if word not in ("and", "to") else kind
        elif kind in ("figure", "table"):
            items.add((kind, int(word)))
    return frozenset(items) or TEXT


def reproduce(document: str, published: Path, evaluations: Path) -> Any:
    if document == "Train-before-test":
        scores = potentia.read(str(published / "train_before_test_scores.csv")).scores
        return reproduce_train_before_test(scores, resamples=20)
    if document == "Training on the test task":
        table = PublishedScores.from_table(published / "test_task_training_scores.csv")
        tree = EvaluationTree.read(evaluations)
        return reproduce_task_training(table, evaluations=tree, draws=0)
    return reproduce_proxy() if document == "Proxy tasks" else reproduce_bose()


@pytest.mark.shared
@pytest.mark.parametrize("document", NUMBERED)
def test_the_states_are_what_reproduce_prints(document: str, shared_data: Path, tmp_path: Path):
    published = shared_data / "published"
    with tarfile.open(published / "test_task_evaluations.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    paper = reproduce(document, published, tmp_path)
    lines = [line for line in paper.lines() if line.agrees is not None]
    unreachable = set()
    for missing in getattr(paper, "missing", ()):
        unreachable |= items_in(missing.figure)
    (part,) = [part for part in ITEMS.split("### ") if part.startswith(document)]
    counted = 0
    for item, _, state in rows_of(part, "item"):
        items = items_in(item)
        printed = [line for line in lines if items_in(line.place) & items]
        agreeing = sum(line.agrees for line in printed)
        counted += len(printed)
        if printed:
            assert state.startswith(f"{agreeing} of {len(printed)} agree"), (item, state, agreeing)
        else:
            assert not re.match(r"\d+ of", state), (item, state)
        if state.startswith("unreachable") and document == "Training on the test task":
            assert items <= unreachable, item
    assert counted == len(lines), "a number that no row counts, or two do"

"""The entrances: every way in which a file that someone was sent reaches Potentia.

One list. ``tests/test_entrances.py`` walks it and fails where a command of Potentia is in none of the tables below, so
that the next entrance cannot be forgotten; ``fuzz.hostile`` sends every hostile file through every entrance that reads
files of its kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class FileKind(StrEnum):
    """What a hostile file is taken for."""

    DEFINITION = "task definition"
    DATA = "data"
    TABLE = "score table"
    MODEL = "model"
    ADAPTER = "adapter"
    STORE = "store"


@dataclass(frozen=True)
class HostileInput:
    """A hostile file and what a command needs beside it, all harmless: a model, an adapter, rows of text."""

    kind: FileKind
    path: Path
    folder: Path  # to work in
    base: Path
    adapter: Path


@dataclass(frozen=True)
class Entrance:
    """One way in: the kinds of files that it reads, and what a user does to have one read."""

    name: str
    kinds: frozenset[FileKind]
    enter: Callable[[HostileInput], None]


class CommandRefused(Exception):  # noqa: N818  (it is an outcome, not an error of ours)
    """A command ended with a code that says that something was refused or failed, and with words."""


def run_command(*arguments: object) -> None:
    """Run a command of Potentia in this process."""
    from potentia.cli import app

    sys.argv = ["potentia", *map(str, arguments)]
    try:
        app.run_command_line()
    except SystemExit as end:
        if end.code in (1, 2):
            raise CommandRefused(f"exit code {end.code}") from None
        if end.code not in (0, None):
            raise


# --- what a study of the hostile file looks like ---------------------------------------------------------------------


def write_rows(file: Path) -> Path:
    """Write rows that an adapter is asked about."""
    rows = [{"text": f"a fine day {number}"} for number in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def study_of(hostile_input: HostileInput) -> dict[str, Any]:
    """Return a study in which the hostile file is the task, the model or the adapter."""
    model: dict[str, Any] = {"name": "m", "path": str(hostile_input.base)}
    questions = hostile_input.folder / "questions.jsonl"
    rows = []
    for number in range(20):
        question = f"Which is {number}?"
        rows.append({"question": question, "choices": ["a", "b"], "answer": number % 2})
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task: Any = {"name": "t", "file": str(questions)}
    if hostile_input.kind is FileKind.DEFINITION:
        task = str(hostile_input.path)
    elif hostile_input.kind is FileKind.DATA:
        task = {"name": "t", "file": str(hostile_input.path)}
    elif hostile_input.kind is FileKind.MODEL:
        model["path"] = str(hostile_input.path)
    elif hostile_input.kind is FileKind.ADAPTER:
        model["adapter"] = str(hostile_input.path)
    return {
        "name": "hostile",
        "models": [model],
        "tasks": [task],
        "protocols": ["direct"],
        "caps": {"test": 20},
        "chat": "always" if hostile_input.kind is FileKind.MODEL else "never",
        "device": "cpu",
        "store": str(hostile_input.folder / "study.db"),
    }


def write_study(hostile_input: HostileInput) -> Path:
    """Write that study as a file."""
    file = hostile_input.folder / "study.yaml"
    file.write_text(json.dumps(study_of(hostile_input)))  # JSON is YAML
    return file


# --- the entrances ---------------------------------------------------------------------------------------------------


def _run(hostile_input: HostileInput) -> None:
    run_command("run", write_study(hostile_input), "--workers", 1)


def _plan(hostile_input: HostileInput) -> None:
    run_command("run", write_study(hostile_input), "--dry-run")


def _tasks_show(hostile_input: HostileInput) -> None:
    run_command("tasks", hostile_input.path)


def _predict(hostile_input: HostileInput) -> None:
    adapter = hostile_input.adapter
    rows = (
        hostile_input.path
        if hostile_input.kind is FileKind.DATA
        else write_rows(hostile_input.folder / "rows.jsonl")
    )
    options: list[object] = ["--device", "cpu", "-o", hostile_input.folder / "predicted.csv"]
    if hostile_input.kind is FileKind.ADAPTER:
        adapter = hostile_input.path
    if hostile_input.kind is FileKind.MODEL:
        options += ["--base", hostile_input.path]
    run_command("predict", adapter, rows, *options)


def _merge(hostile_input: HostileInput) -> None:
    options: list[object] = ["-o", hostile_input.folder / "merged"]
    adapter = hostile_input.path
    if hostile_input.kind is FileKind.MODEL:
        adapter = hostile_input.adapter
        options += ["--base", hostile_input.path]
    run_command("adapters", "export", "--merge", adapter, *options)


def _models_check(hostile_input: HostileInput) -> None:
    run_command("doctor", hostile_input.path, "--device", "cpu")


def _import(hostile_input: HostileInput) -> None:
    run_command("export", hostile_input.path, "-o", hostile_input.folder / "new.db")


def _report(hostile_input: HostileInput) -> None:
    run_command("report", hostile_input.path, "-o", hostile_input.folder / "report.html")


def _board(hostile_input: HostileInput) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from starlette.testclient import TestClient

    from potentia.show.board.app import create_app

    app = create_app(str(hostile_input.path), executor=ThreadPoolExecutor(1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        listed = client.get("/api/studies")
        pages = ["/"]
        if listed.status_code == 200:
            for study in _study_keys(listed.json()):
                pages += [f"/studies/{study}", f"/api/studies/{study}/cells"]
        codes = [client.get(page).status_code for page in pages]
    if listed.status_code >= 400 or max(codes) >= 400:
        raise CommandRefused(f"codes {listed.status_code}, {codes}")


def _study_keys(listed: Any) -> list[str]:
    studies = listed.get("studies", []) if isinstance(listed, dict) else listed
    keys = [study.get("key") for study in studies if isinstance(study, dict)]
    return [str(key) for key in keys if key][:3]


def _notebook(hostile_input: HostileInput) -> None:
    import potentia

    if hostile_input.kind in (FileKind.TABLE, FileKind.STORE):
        evidence = potentia.read(str(hostile_input.path))
        evidence.to_frame()
        return
    result = potentia.evaluate(write_study(hostile_input))
    if result.run.failed:
        raise CommandRefused("; ".join(result.run.reasons))
    assert result._repr_html_()


_ASKED = frozenset({FileKind.DEFINITION, FileKind.DATA})
_LOADED = frozenset({FileKind.MODEL, FileKind.ADAPTER})
_READ = frozenset({FileKind.TABLE, FileKind.STORE})

ENTRANCES: tuple[Entrance, ...] = (
    Entrance("run", _ASKED | _LOADED, _run),
    Entrance("run --dry-run", _ASKED | _LOADED, _plan),
    Entrance("tasks", _ASKED, _tasks_show),
    Entrance("predict", _LOADED | {FileKind.DATA}, _predict),
    Entrance("adapters export", _LOADED, _merge),
    Entrance("doctor", frozenset({FileKind.MODEL}), _models_check),
    Entrance("export", _READ, _import),
    Entrance("report", _READ, _report),
    Entrance("board", frozenset({FileKind.STORE}), _board),
    Entrance("notebook", _ASKED | _LOADED | _READ, _notebook),
)

# Commands that read a stranger's files through the door of an entrance above.
SAME_DOOR: dict[str, str] = {
    "serve": "board",
    "select": "run",
    "papers elicitation": "run",
    "compare": "report",
    "papers reproduce": "report",
    "status": "board",
    "analyze rankings": "report",
    "analyze checkpoints": "report",
    "analyze exposure": "report",
    "analyze answers": "report",
    "papers test-task": "report",
    "papers proxy": "report",
    "papers judge": "report",
    "analyze benchmark": "report",
    "store discard": "board",
    "store rename": "board",
    "store delete": "board",
}
# Commands that read nobody's files.
NO_FILES: frozenset[str] = frozenset({"demo"})


def entrances_for(kind: FileKind, names: Sequence[str] = ()) -> list[Entrance]:
    """Return the entrances that read files of a kind; of these alone where names are given."""
    chosen = [entrance for entrance in ENTRANCES if kind in entrance.kinds]
    return [entrance for entrance in chosen if not names or entrance.name in names]

"""The names of all harness tasks and the file behind each: lm-eval's own index, which takes it 12 s, kept on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from potentia.errors import TaskError
from potentia.files import write_file

Kind = Literal["task", "group", "tag", "class"]
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the harness: a task, a group of tasks, a tag, or a task written as a Python class."""

    kind: Kind
    path: str  # relative to lm_eval/tasks; empty for a tag
    members: tuple[str, ...] = ()  # a tag's tasks


def tasks_folder() -> Path:
    """Return the folder of task definitions, without importing lm-eval."""
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise TaskError("lm-eval is not installed", hint="pip install 'lm-eval>=0.4.13'")
    return Path(next(iter(found.submodule_search_locations))) / "tasks"


def cache_folder() -> Path:
    """Return the user's cache folder of Potentia (``POTENTIA_CACHE`` moves it)."""
    if own := os.environ.get("POTENTIA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potentia"


@cache
def index() -> dict[str, Entry]:
    """Return every name of the installed harness; a quarter of a minute on the first call ever, then milliseconds."""
    folder = tasks_folder()
    stamp = {"format": _FORMAT, "lm_eval": version("lm_eval"), "folder": str(folder)}
    file = cache_folder() / f"tasks-lm_eval-{stamp['lm_eval']}.json"
    try:
        kept = json.loads(file.read_text("utf-8"))
        if kept["stamp"] == stamp:
            return {name: Entry(e["kind"], e["path"], tuple(e["members"])) for name, e in kept["names"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    names = build(folder)
    _keep(file, {"stamp": stamp, "names": {name: asdict(entry) for name, entry in names.items()}})
    return names


def build(folder: Path) -> dict[str, Entry]:
    """Read the names under one folder of task definitions, in lm-eval's order: the first of two equal names counts."""
    from lm_eval.tasks._index import TaskIndex

    from potentia.tasks.data import quiet

    kinds: dict[str, Kind] = {"TASK": "task", "GROUP": "group", "TAG": "tag", "PY_TASK": "class"}
    with quiet():
        found = TaskIndex.build([folder])
    names = {}
    for name, entry in found.items():
        kind = kinds[entry.kind.name]
        path = entry.yaml_path.relative_to(folder).as_posix() if entry.yaml_path is not None else ""
        names[name] = Entry(kind, path, tuple(sorted(entry.tags)) if kind == "tag" else ())
    return names


def _keep(file: Path, content: dict[str, Any]) -> None:
    """Write the cache in one step; a folder that cannot be written only costs time."""
    try:
        write_file(file, json.dumps(content))
    except OSError:
        return

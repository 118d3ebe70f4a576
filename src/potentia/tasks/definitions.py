"""Task definitions: what a name of the harness or a user's file stands for.

lm-eval's own definitions are read as lm-eval reads them, anyone else's as data that run no code (see ``consent``).
What counts is a definition as it is used, after all files and groups are merged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from potentia.errors import PotentiaError, TaskError
from potentia.files import read_yaml, write_file
from potentia.tasks.consent import (
    Definition,
    apply_consent,
    check_stock_consent,
    make_loader,
    merge_definitions,
    read_chain,
)
from potentia.tasks.data import as_list, silence_libraries

# --- the names of the harness ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HarnessEntry:
    """One name of the harness: a task, a group of tasks, a tag, or a task written as a Python class."""

    kind: Literal["task", "group", "tag", "class"]
    path: str  # relative to lm_eval/tasks; empty for a tag
    members: tuple[str, ...] = ()  # a tag's tasks


def tasks_folder() -> Path:
    """Return the folder of task definitions, without importing lm-eval."""
    package = find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise TaskError("lm-eval is not installed", hint="pip install 'lm-eval>=0.4.13'")
    return Path(next(iter(package.submodule_search_locations))) / "tasks"


def find_entry(name: str) -> HarnessEntry | None:
    """Return what a name of the harness stands for; None where it is no name of it."""
    path = _plain_tasks().get(name)
    if path is not None:
        return HarnessEntry("task", path)
    return task_index().get(name)


@cache
def task_index() -> dict[str, HarnessEntry]:
    """Return every name of the installed harness; a quarter of a minute on the first call ever, then milliseconds."""

    def build(folder: Path) -> dict[str, Any]:
        return {name: asdict(entry) for name, entry in build_index(folder).items()}

    entries = {}
    for name, fields in _read_cached("tasks", build).items():
        entries[name] = HarnessEntry(fields["kind"], fields["path"], tuple(fields["members"]))
    return entries


@cache
def _plain_tasks() -> dict[str, str]:
    """Return the tasks whose names need no YAML to be read, with their files: a second on the first call ever."""
    return _read_cached("plain-tasks", scan_names)


def _read_cached(content: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return what the user's cache folder (``POTENTIA_CACHE`` moves it) has of the harness, made where it has not."""
    folder = tasks_folder()
    stamp = {"format": 1, "lm_eval": version("lm_eval"), "folder": str(folder)}
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potentia"
    cache_folder = Path(os.environ.get("POTENTIA_CACHE") or caches)
    file = cache_folder / f"{content}-lm_eval-{stamp['lm_eval']}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(file.read_text("utf-8"))
        if stored["stamp"] == stamp:
            return dict(stored["names"])
    names = make(folder)
    with suppress(OSError):  # a folder that cannot be written only costs time
        write_file(file, json.dumps({"stamp": stamp, "names": names}))
    return names


_NAME = re.compile(
    r"""^(task|group)[ \t]*:[ \t]*['"]?([^\s'"#\[{]+)['"]?[ \t]*(?:#.*)?$""", re.MULTILINE
)
_CLASS = re.compile(r"^class[ \t]*:", re.MULTILINE)


def scan_names(folder: Path) -> dict[str, str]:
    """Return the tasks whose name is written as one line of one file alone, and is no group's; with their files.

    Text is not read as YAML, which takes ten times as long; what is written otherwise is left to lm-eval.
    """
    paths_by_name: dict[str, set[str]] = {}
    for file in folder.rglob("*yaml*"):
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        path = ""
        if file.suffix == ".yaml" and not _CLASS.search(text):
            path = file.relative_to(folder).as_posix()
        for kind, name in _NAME.findall(text):
            paths_by_name.setdefault(name, set()).add(path if kind == "task" else "")
    return {name: path for name, (path, *others) in paths_by_name.items() if path and not others}


def build_index(folder: Path) -> dict[str, HarnessEntry]:
    """Read the names under one folder of task definitions, in lm-eval's order: the first of two equal names counts."""
    from lm_eval.tasks._index import TaskIndex

    kinds: dict[str, Any] = {"TASK": "task", "GROUP": "group", "TAG": "tag", "PY_TASK": "class"}
    with silence_libraries():
        index = TaskIndex.build([folder])
    entries = {}
    for name, entry in index.items():
        kind = kinds[entry.kind.name]
        path = ""
        if entry.yaml_path is not None:
            path = entry.yaml_path.relative_to(folder).as_posix()
        members = tuple(sorted(entry.tags)) if kind == "tag" else ()
        entries[name] = HarnessEntry(kind, path, members)
    return entries


# --- tasks and groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskDefinitions:
    """What a name or a file stands for: the definition of one task, or of all subtasks of a group."""

    name: str
    subtasks: list[Definition]
    # per metric of a group, whether lm-eval weights its subtasks by size (no entry: it does)
    weighted_by_size: dict[str, bool]


@dataclass(frozen=True)
class _MergedSubtask:
    """A subtask's definition with all overrides, and the stock definition that it is made of."""

    definition: Definition
    stock: Definition | None


def read_stock_task(name: str, *, as_data: bool = False) -> TaskDefinitions:
    """Return the definitions behind a name of the harness: one for a task, all subtasks for a group or tag.

    With ``as_data`` functions stay names and nothing is imported: enough to see where the data come from.
    """
    entry = find_entry(name)
    if entry is None:
        raise KeyError(name)
    if entry.kind == "tag":
        members = [read_stock_task(member, as_data=as_data) for member in entry.members]
        subtasks = [subtask for member in members for subtask in member.subtasks]
        return TaskDefinitions(name, subtasks, {})
    definition = _read_stock_entry(entry, as_data=as_data)
    if entry.kind == "class" or "class" in definition:
        raise TaskError(
            f"{name} is written as a Python class, which cannot be given other data",
            hint="use a task that is defined by a YAML file",
        )
    if entry.kind == "task":
        return TaskDefinitions(name, [definition], {})
    merged = _merge_group(name, definition, {}, as_data=as_data)
    subtasks = [subtask.definition for subtask in merged]
    return TaskDefinitions(name, subtasks, _read_weights(definition))


def read_user_task(path: Path) -> TaskDefinitions:
    """Return the definitions of a task or group that a user's own file defines, with what it may run."""
    definition, included_stock = read_definition(path)
    if "group" in definition:
        merged = _merge_group(str(definition["group"]), definition, {}, as_data=False)
    else:
        merged = [_MergedSubtask(definition, _find_namesake(definition))]
    subtasks = []
    for subtask in merged:
        stock = list(included_stock)
        if subtask.stock is not None:
            stock.append(subtask.stock)
        subtasks.append(apply_consent(subtask.definition, stock, str(path)))
    name = str(definition.get("group") or definition.get("task") or path.stem)
    return TaskDefinitions(name, subtasks, _read_weights(definition))


def _find_namesake(definition: Mapping[str, Any]) -> Definition | None:
    """Return the stock definition of the task that a user's definition is named after, if it may be used."""
    name = definition.get("task")
    entry = find_entry(name) if isinstance(name, str) else None
    if entry is None or entry.kind != "task":
        return None
    try:
        return _read_stock_entry(entry)
    except TaskError:  # one that executes what a model writes lends its functions to nobody
        return None


def _read_stock_entry(entry: HarnessEntry, *, as_data: bool = False) -> Definition:
    path = tasks_folder() / entry.path
    if as_data:
        return merge_definitions(*read_chain(path))
    return read_definition(path)[0]


def _read_weights(definition: Mapping[str, Any]) -> dict[str, bool]:
    """Return per metric whether a group weights its subtasks by size."""
    entries = as_list(definition.get("aggregate_metric_list") or None)
    if not all(isinstance(entry, Mapping) and "metric" in entry for entry in entries):
        raise TaskError("aggregate_metric_list: each entry names a `metric`")
    return {str(entry["metric"]): bool(entry.get("weight_by_size", True)) for entry in entries}


# A group's own keys (lm_eval.config.group.GroupConfig); its other keys are overrides for the tasks in it.
_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}


def _merge_group(
    name: str, group: Mapping[str, Any], overrides: Mapping[str, Any], *, as_data: bool
) -> list[_MergedSubtask]:
    """Return all subtasks of a group, its overrides and those from above merged into each."""
    own_overrides = {key: value for key, value in group.items() if key not in _GROUP_KEYS}
    below = merge_definitions(own_overrides, overrides)
    subtasks: list[_MergedSubtask] = []
    for item in group.get("task") or []:
        changes = {} if isinstance(item, str) else dict(item)
        member = item if isinstance(item, str) else changes.get("group") or changes.get("task")
        if not isinstance(member, str):
            raise TaskError(f"the group {name} has a member without a name: {item!r}")
        entry = find_entry(member)
        if entry is None and "group" in changes:
            subtasks += _merge_group(f"{name}::{member}", changes, below, as_data=as_data)
            continue
        changes.pop("group", None)
        if entry is None:
            definition = merge_definitions(below, changes, {"task": f"{name}::{member}"})
            subtasks.append(_MergedSubtask(definition, None))
        elif entry.kind == "group":
            inner = _read_stock_entry(entry, as_data=as_data)
            changes = merge_definitions(below, changes)
            subtasks += _merge_group(member, inner, changes, as_data=as_data)
        else:
            for stock in read_stock_task(member, as_data=as_data).subtasks:
                definition = merge_definitions(stock, below, changes, {"task": stock["task"]})
                subtasks.append(_MergedSubtask(definition, stock))
    return subtasks


# --- files -----------------------------------------------------------------------------------------------------------


def read_definition(path: Path) -> tuple[Definition, list[Definition]]:
    """Read a task definition with its includes; with a user's come the stock definitions that it includes."""
    stock: list[Definition] = []
    return _read_file(path, (), stock), stock


def _read_file(path: Path, above: tuple[Path, ...], stock: list[Definition]) -> Definition:
    """Read one file and what it includes; ``above`` are the files that include it."""
    path = path.expanduser().resolve()
    try:
        if tasks_folder().resolve() in path.parents:
            stock.append(_read_stock_file(path))
            return dict(stock[-1])
        if path in above:
            raise TaskError("it includes itself", where=str(path))
        content, _ = read_yaml(
            path,
            description="the task definition",
            error=TaskError,
            loader=make_loader(path.parent),
        )
        if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
            raise TaskError(
                "a task definition holds `task:`, `doc_to_text:` and so on at its top level"
            )
        merged: Definition = {}
        for include in as_list(content.pop("include", None) or None):
            if not isinstance(include, str):
                raise TaskError(f"include: {include!r} is no file", where=str(path))
            included = _read_file(path.parent / include, (*above, path), stock)
            included.pop("task_list", None)
            merged = merge_definitions(merged, included)
        return merge_definitions(merged, content)
    except PotentiaError as error:
        error.where = error.where or str(path)
        raise
    except Exception as error:  # YAML, import and attribute errors of the definition's own code
        raise TaskError(
            f"the task definition cannot be read: {type(error).__name__}: {error}".splitlines()[0],
            where=str(path),
        ) from error


def _read_stock_file(path: Path) -> Definition:
    """Read a definition of lm-eval as lm-eval does, functions imported; one that needs consent is refused before."""
    from lm_eval.tasks._yaml_loader import load_yaml

    check_stock_consent(path)
    definition: Definition = load_yaml(path)
    return definition

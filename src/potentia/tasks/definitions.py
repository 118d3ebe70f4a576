"""Task definitions: from a name of lm-eval's (the harness), or from a user's file, to the definitions of its tasks.

A definition is a task's configuration as lm-eval reads it. lm-eval's own definitions (*stock*) are read as lm-eval
reads them, anyone else's as data that run no code (see ``consent``). A file may include others, and a group may
override settings of its tasks: what comes out is each task's definition with all of that merged in.

lm-eval has about 13,000 names, and reading all its files takes 15 seconds. So an index of the names is kept in the
user's cache folder.
"""

from __future__ import annotations

import hashlib
import itertools
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
    """What one name of lm-eval's stands for: a task, a group of tasks, a tag, or a task written as a Python class."""

    kind: Literal["task", "group", "tag", "class"]
    path: str  # relative to lm_eval/tasks; empty for a tag
    members: tuple[str, ...] = ()  # a tag's tasks


def tasks_folder() -> Path:
    """Return the folder of task definitions, without importing lm-eval."""
    package = find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise TaskError("lm-eval is not installed", hint="pip install 'lm-eval>=0.4.13'")
    return Path(next(iter(package.submodule_search_locations))) / "tasks"


def find_entry(task_name: str) -> HarnessEntry | None:
    """Return what a name stands for in lm-eval; None if lm-eval does not know it."""
    definition_file = _index_plain_tasks().get(task_name)
    if definition_file is not None:
        return HarnessEntry("task", definition_file)
    return task_index().get(task_name)


@cache
def shipped_tasks() -> dict[str, Path]:
    """Return the files of the tasks that Potentia defines itself, by name: tasks of the papers that lm-eval lacks."""
    folder = Path(__file__).parent / "shipped"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


@cache
def task_index() -> dict[str, HarnessEntry]:
    """Return what every name of the installed lm-eval stands for; 15 s on the first call ever, then milliseconds."""

    def build(folder: Path) -> dict[str, object]:
        return {task_name: asdict(entry) for task_name, entry in build_index(folder).items()}

    entries = {}
    for task_name, fields in _read_or_build("tasks", build).items():
        entries[task_name] = HarnessEntry(fields["kind"], fields["path"], tuple(fields["members"]))
    return entries


@cache
def _index_plain_tasks() -> dict[str, str]:
    """Return the files of the tasks that ``scan_names`` finds, by name: a second on the first call ever."""
    return _read_or_build("plain-tasks", scan_names)


def _read_or_build(index_name: str, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return an index of lm-eval's names from the user's cache folder; build and store it where it is not there.

    There is one for each installation of lm-eval, and it is built anew for another version. ``POTENTIA_CACHE`` moves
    the folder.
    """
    folder = tasks_folder()
    stamp: dict[str, object] = {
        "format": 1,
        "lm_eval": version("lm_eval"),
        "folder": str(folder),
    }
    # an editable installation changes without a new version
    if "site-packages" not in folder.parts:
        stamp["files"] = _hash_definition_files(folder)
    user_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache_folder = Path(os.environ.get("POTENTIA_CACHE") or user_caches / "potentia")
    # a file for each installation: two environments that shared one would write it anew at every turn
    installation = hashlib.blake2b(str(folder).encode(), digest_size=4).hexdigest()
    cache_file = cache_folder / f"{index_name}-lm_eval-{stamp['lm_eval']}-{installation}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(cache_file.read_text("utf-8"))
        if stored["stamp"] == stamp:
            return dict(stored["names"])
    index = build(folder)
    with suppress(OSError):  # a folder that cannot be written only costs time
        write_file(cache_file, json.dumps({"stamp": stamp, "names": index}))
    return index


def _hash_definition_files(folder: Path) -> str:
    """Return a hash of the names and times of all YAML files below a folder; half a second for lm-eval's tasks."""
    digest = hashlib.sha256()
    for definition_file in sorted(folder.rglob("*yaml*")):
        if not definition_file.is_file():
            continue
        changed = definition_file.stat().st_mtime_ns
        digest.update(f"{definition_file}\0{changed}\0".encode())
    return digest.hexdigest()


_NAME_LINE = re.compile(
    r"""^(task|group)[ \t]*:[ \t]*['"]?([^\s'"#\[{]+)['"]?[ \t]*(?:#.*)?$""", re.MULTILINE
)
_CLASS_LINE = re.compile(r"^class[ \t]*:", re.MULTILINE)


def scan_names(folder: Path) -> dict[str, str]:
    """Return the files of the tasks whose name one line of one file gives (``task: NAME``), by name.

    The files are searched as text, which takes a tenth of the time of reading YAML. A name that is written in any other
    way, is given twice, or is a group's as well, is left out: lm-eval's own index (``build_index``) has it.
    """
    paths_by_name: dict[str, set[str]] = {}
    for definition_file in folder.rglob("*yaml*"):
        text = definition_file.read_text("utf-8", "replace") if definition_file.is_file() else ""
        path = ""  # of what is no plain task
        if definition_file.suffix == ".yaml" and not _CLASS_LINE.search(text):
            path = definition_file.relative_to(folder).as_posix()
        for kind, task_name in _NAME_LINE.findall(text):
            paths_by_name.setdefault(task_name, set()).add(path if kind == "task" else "")
    path_by_name = {}
    for task_name, (path, *other_paths) in paths_by_name.items():
        if path and not other_paths:
            path_by_name[task_name] = path
    return path_by_name


def build_index(folder: Path) -> dict[str, HarnessEntry]:
    """Return what every name in a folder of task definitions stands for, as lm-eval's own ``TaskIndex`` finds them."""
    from lm_eval.tasks._index import TaskIndex

    kinds: dict[str, Any] = {"TASK": "task", "GROUP": "group", "TAG": "tag", "PY_TASK": "class"}
    with silence_libraries():
        index = TaskIndex.build([folder])
    entries = {}
    for task_name, entry in index.items():
        kind = kinds[entry.kind.name]
        path = ""
        if entry.yaml_path is not None:
            path = entry.yaml_path.relative_to(folder).as_posix()
        # the tags of a tag are its tasks, in TaskIndex; the tasks of a group are in the group's file
        members = tuple(sorted(entry.tags)) if kind == "tag" else ()
        entries[task_name] = HarnessEntry(kind, path, members)
    return entries


# --- tasks and groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskDefinitions:
    """What a name or a file stands for: the definition of one task, or of all subtasks of a group."""

    name: str
    subtasks: list[Definition]
    # for each metric of a group, whether large subtasks count more (no entry: they do)
    weighted_by_size: dict[str, bool]


@dataclass(frozen=True)
class _MergedSubtask:
    """A subtask's definition with all overrides, and the stock definition that it is made of, if there is one."""

    definition: Definition
    stock: Definition | None


def read_stock_task(task_name: str, *, as_data: bool = False) -> TaskDefinitions:
    """Return the definitions that a name of lm-eval's stands for: one of a task, all subtasks' of a group or tag.

    Raises ``KeyError`` for an unknown name. ``as_data`` leaves functions as names and imports nothing: enough to see
    where the data come from.
    """
    entry = find_entry(task_name)
    if entry is None:
        raise KeyError(task_name)
    if entry.kind == "tag":
        members = [read_stock_task(member, as_data=as_data) for member in entry.members]
        subtasks = list(itertools.chain.from_iterable(member.subtasks for member in members))
        return TaskDefinitions(task_name, subtasks, {})
    definition = _read_stock_entry(entry, as_data=as_data)
    if entry.kind == "class" or "class" in definition:
        raise TaskError(
            f"{task_name} is written as a Python class, which cannot be given other data",
            hint="use a task that is defined by a YAML file",
        )
    if entry.kind == "task":
        return TaskDefinitions(task_name, [definition], {})
    merged = _merge_group(task_name, definition, {}, as_data=as_data)
    subtasks = [subtask.definition for subtask in merged]
    return TaskDefinitions(task_name, subtasks, _read_weights(definition))


def read_user_task(definition_file: Path) -> TaskDefinitions:
    """Return the definitions of the task or group in a user's own file, with only the code that it may run."""
    definition, included_stock = read_definition(definition_file)
    if "group" in definition:
        merged = _merge_group(str(definition["group"]), definition, {}, as_data=False)
    else:
        merged = [_MergedSubtask(definition, _find_namesake(definition))]
    subtasks = []
    for subtask in merged:
        stock = list(included_stock)
        if subtask.stock is not None:
            stock.append(subtask.stock)
        subtasks.append(apply_consent(subtask.definition, stock, str(definition_file)))
    task_name = str(definition.get("group") or definition.get("task") or definition_file.stem)
    return TaskDefinitions(task_name, subtasks, _read_weights(definition))


def _find_namesake(definition: Mapping[str, object]) -> Definition | None:
    """Return lm-eval's definition of the task that a user's definition is named after: it may keep its functions."""
    task_name = definition.get("task")
    entry = find_entry(task_name) if isinstance(task_name, str) else None
    if entry is None or entry.kind != "task":
        return None
    try:
        return _read_stock_entry(entry)
    except TaskError:  # it executes what a model writes: nobody may keep its functions
        return None


def _read_stock_entry(entry: HarnessEntry, *, as_data: bool = False) -> Definition:
    definition_file = tasks_folder() / entry.path
    if as_data:
        return merge_definitions(*read_chain(definition_file))
    return read_definition(definition_file)[0]


def _read_weights(definition: Mapping[str, object]) -> dict[str, bool]:
    """Return for each metric of a group whether its subtasks are weighted by size."""
    entries = as_list(definition.get("aggregate_metric_list") or None)
    if not all(isinstance(entry, Mapping) and "metric" in entry for entry in entries):
        raise TaskError("aggregate_metric_list: each entry names a `metric`")
    return {str(entry["metric"]): bool(entry.get("weight_by_size", True)) for entry in entries}


# A group's own keys (lm_eval.config.group.GroupConfig); its other keys override settings of the tasks in it.
_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}


def _merge_group(
    group_name: str,
    group: Mapping[str, Any],
    outer_overrides: Mapping[str, object],
    *,
    as_data: bool,
) -> list[_MergedSubtask]:
    """Return all subtasks of a group, each with the group's overrides and those of the groups around it."""
    group_overrides = {key: value for key, value in group.items() if key not in _GROUP_KEYS}
    overrides = merge_definitions(group_overrides, outer_overrides)
    subtasks: list[_MergedSubtask] = []
    for member in group.get("task") or []:
        # a member is a name, or a mapping of its name and of overrides for it alone
        changes = {} if isinstance(member, str) else dict(member)
        member_name = (
            member if isinstance(member, str) else changes.get("group") or changes.get("task")
        )
        if not isinstance(member_name, str):
            raise TaskError(f"the group {group_name} has a member without a name: {member!r}")
        full_name = f"{group_name}::{member_name}"
        entry = find_entry(member_name)
        if entry is None and "group" in changes:  # a group that is written inside this one
            subtasks += _merge_group(full_name, changes, overrides, as_data=as_data)
            continue
        changes.pop("group", None)
        if entry is None:  # a task that is written inside this group
            definition = merge_definitions(overrides, changes, {"task": full_name})
            subtasks.append(_MergedSubtask(definition, None))
        elif entry.kind == "group":
            inner_group = _read_stock_entry(entry, as_data=as_data)
            member_overrides = merge_definitions(overrides, changes)
            subtasks += _merge_group(member_name, inner_group, member_overrides, as_data=as_data)
        else:
            for stock in read_stock_task(member_name, as_data=as_data).subtasks:
                definition = merge_definitions(stock, overrides, changes, {"task": stock["task"]})
                subtasks.append(_MergedSubtask(definition, stock))
    return subtasks


# --- files -----------------------------------------------------------------------------------------------------------


_EXTRA_OF_LM_EVAL = re.compile(r"lm[-_]eval\[(\w+)\]")  # in its errors: "pip install lm-eval[math]"


def read_definition(definition_file: Path) -> tuple[Definition, list[Definition]]:
    """Return a task definition with its includes merged in, and the stock definitions among those files."""
    stock: list[Definition] = []
    return _read_file(definition_file, (), stock), stock


def _read_file(
    definition_file: Path, including_files: tuple[Path, ...], stock: list[Definition]
) -> Definition:
    """Return the definition in one file with its includes merged in; stock definitions are added to ``stock``."""
    definition_file = definition_file.expanduser().resolve()
    try:
        if tasks_folder().resolve() in definition_file.parents:
            stock.append(_read_stock_file(definition_file))
            return dict(stock[-1])
        if definition_file in including_files:
            raise TaskError("it includes itself", where=str(definition_file))
        content, _ = read_yaml(
            definition_file,
            description="the task definition",
            error=TaskError,
            loader=make_loader(definition_file.parent),
        )
        if not isinstance(content, dict) or not all(
            isinstance(setting, str) for setting in content
        ):
            raise TaskError(
                "a task definition holds `task:`, `doc_to_text:` and so on at its top level"
            )
        merged: Definition = {}
        for include in as_list(content.pop("include", None) or None):
            if not isinstance(include, str):
                raise TaskError(f"include: {include!r} is not a file", where=str(definition_file))
            included = _read_file(
                definition_file.parent / include, (*including_files, definition_file), stock
            )
            included.pop("task_list", None)
            merged = merge_definitions(merged, included)
        return merge_definitions(merged, content)
    except PotentiaError as error:
        error.where = error.where or str(definition_file)
        raise
    except Exception as error:  # the definition's own code may raise anything
        extra = _EXTRA_OF_LM_EVAL.search(str(error))
        if extra is not None:
            raise TaskError(
                "lm-eval computes it with packages that are not here, or not in the version it asks for",
                where=definition_file.stem,
                hint=f"pip install 'lm_eval[{extra[1]}]'",
            ) from error
        raise TaskError(
            f"the task definition cannot be read: {type(error).__name__}: {error}".splitlines()[0],
            where=str(definition_file),
        ) from error


def _read_stock_file(definition_file: Path) -> Definition:
    """Return a definition of lm-eval's with its functions imported; refuse it before that if it needs consent."""
    from lm_eval.tasks._yaml_loader import load_yaml

    check_stock_consent(definition_file)
    definition: Definition = load_yaml(definition_file)
    return definition

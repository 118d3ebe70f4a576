"""Task definitions: what a name of the harness or a user's file stands for.

lm-eval's own definitions are read as lm-eval reads them, anyone else's as data that run no code. A definition can name
functions (``!function``), data that a function makes, metrics that are fetched and run, and pickled data. From a file
of one's own these count only where code is allowed (``--allow-code``, or ``POTENTIA_ALLOW_CODE=1``). Being part of
lm-eval makes no function safe: some evaluate what they are given. So a file may keep the functions of one stock task
that it includes or names, on that task's own data, and no others. What counts is a definition as it is used, after all
files and groups are merged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from potentia.errors import PotentiaError, TaskError
from potentia.files import CODE, allowed, read_yaml, write_file
from potentia.tasks.data import LIMITED, as_list, quiet

Config = dict[str, Any]
Leaves = list[
    tuple[Config, Config | None]
]  # definitions, each with the stock definition that it is made of

# --- the names of the harness ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the harness: a task, a group of tasks, a tag, or a task written as a Python class."""

    kind: Literal["task", "group", "tag", "class"]
    path: str  # relative to lm_eval/tasks; empty for a tag
    members: tuple[str, ...] = ()  # a tag's tasks


def tasks_folder() -> Path:
    """Return the folder of task definitions, without importing lm-eval."""
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise TaskError("lm-eval is not installed", hint="pip install 'lm-eval>=0.4.13'")
    return Path(next(iter(found.submodule_search_locations))) / "tasks"


def find_entry(name: str) -> Entry | None:
    """Return what a name of the harness stands for; None where it is no name of it."""
    plain = _plain_tasks().get(name)
    return task_index().get(name) if plain is None else Entry("task", plain)


@cache
def task_index() -> dict[str, Entry]:
    """Return every name of the installed harness; a quarter of a minute on the first call ever, then milliseconds."""
    known = _kept(
        "tasks", lambda folder: {name: asdict(entry) for name, entry in build_index(folder).items()}
    )
    return {name: Entry(e["kind"], e["path"], tuple(e["members"])) for name, e in known.items()}


@cache
def _plain_tasks() -> dict[str, str]:
    """Return the tasks whose names need no YAML to be read, with their files: a second on the first call ever."""
    return _kept("plain-tasks", scan_names)


def _kept(what: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return what the user's cache folder (``POTENTIA_CACHE`` moves it) has of the harness, made where it has not."""
    folder = tasks_folder()
    stamp = {"format": 1, "lm_eval": version("lm_eval"), "folder": str(folder)}
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potentia"
    file = (
        Path(os.environ.get("POTENTIA_CACHE") or caches) / f"{what}-lm_eval-{stamp['lm_eval']}.json"
    )
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
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*yaml*"):
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        path = (
            file.relative_to(folder).as_posix()
            if file.suffix == ".yaml" and not _CLASS.search(text)
            else ""
        )
        for kind, name in _NAME.findall(text):
            found.setdefault(name, set()).add(path if kind == "task" else "")
    return {name: path for name, (path, *others) in found.items() if path and not others}


def build_index(folder: Path) -> dict[str, Entry]:
    """Read the names under one folder of task definitions, in lm-eval's order: the first of two equal names counts."""
    from lm_eval.tasks._index import TaskIndex

    kinds: dict[str, Any] = {"TASK": "task", "GROUP": "group", "TAG": "tag", "PY_TASK": "class"}
    with quiet():
        found = TaskIndex.build([folder])
    names = {}
    for name, entry in found.items():
        kind = kinds[entry.kind.name]
        path = entry.yaml_path.relative_to(folder).as_posix() if entry.yaml_path is not None else ""
        names[name] = Entry(kind, path, tuple(sorted(entry.tags)) if kind == "tag" else ())
    return names


# --- tasks and groups ------------------------------------------------------------------------------------------------


def leaf_configs(name: str) -> tuple[list[Config], dict[str, bool]]:
    """Return the definitions behind a name of the harness: one for a task, all leaves for a group or tag.

    With a group comes, per metric, whether lm-eval weights its subtasks by size (no entry: it does).
    """
    entry = find_entry(name)
    if entry is None:
        raise KeyError(name)
    if entry.kind == "tag":
        return [leaf for member in entry.members for leaf in leaf_configs(member)[0]], {}
    config = _stock(entry)
    if entry.kind == "class" or "class" in config:
        raise TaskError(
            f"{name} is written as a Python class, which cannot be given other data",
            hint="use a task that is defined by a YAML file",
        )
    if entry.kind == "task":
        return [config], {}
    return [leaf for leaf, _ in _group_leaves(name, config, {})], _weights(config)


def user_leaves(path: Path) -> tuple[str, list[Config], dict[str, bool]]:
    """Return name, leaves and weights (as ``leaf_configs`` does) of a task or group that a user's own file defines."""
    config, stock = read_definition(path)
    if "group" in config:
        leaves = _group_leaves(str(config["group"]), config, {})
    else:
        name = config.get("task")
        entry = find_entry(name) if isinstance(name, str) else None
        leaves = [(config, _stock(entry) if entry is not None and entry.kind == "task" else None)]
    made = [admitted(leaf, [*stock, *([own] if own else [])], str(path)) for leaf, own in leaves]
    return str(config.get("group") or config.get("task") or path.stem), made, _weights(config)


def _stock(entry: Entry) -> Config:
    return read_definition(tasks_folder() / entry.path)[0]


def _weights(config: Mapping[str, Any]) -> dict[str, bool]:
    listed = as_list(config.get("aggregate_metric_list") or None)
    if not all(isinstance(item, Mapping) and "metric" in item for item in listed):
        raise TaskError("aggregate_metric_list: each entry names a `metric`")
    return {str(item["metric"]): bool(item.get("weight_by_size", True)) for item in listed}


# A group's own keys (lm_eval.config.group.GroupConfig); its other keys are overrides for the tasks in it.
_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}


def _group_leaves(name: str, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Leaves:
    below = {key: value for key, value in config.items() if key not in _GROUP_KEYS} | dict(
        overrides
    )
    leaves: Leaves = []
    for item in config.get("task") or []:
        own = {} if isinstance(item, str) else dict(item)
        member = item if isinstance(item, str) else own.get("group") or own.get("task")
        if not isinstance(member, str):
            raise TaskError(f"the group {name} has a member without a name: {item!r}")
        entry = find_entry(member)
        if entry is None and "group" in own:
            leaves += _group_leaves(f"{name}::{member}", own, below)
            continue
        own.pop("group", None)
        if entry is None:
            leaves.append(({**below, **own, "task": f"{name}::{member}"}, None))
        elif entry.kind == "group":
            leaves += _group_leaves(member, _stock(entry), {**below, **own})
        else:
            leaves += [
                ({**leaf, **below, **own, "task": leaf["task"]}, leaf)
                for leaf in leaf_configs(member)[0]
            ]
    return leaves


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A function that a user's file names and nobody imported: ``!function utils.process_docs``."""

    name: str
    folder: Path


def read_definition(path: Path) -> tuple[Config, list[Config]]:
    """Read a task definition with its includes; with a user's come the stock definitions that it includes."""
    stock: list[Config] = []
    return _read(path, (), stock), stock


def _read(path: Path, above: tuple[Path, ...], stock: list[Config]) -> Config:
    from lm_eval.tasks._yaml_loader import load_yaml

    path = path.expanduser().resolve()
    try:
        if tasks_folder().resolve() in path.parents:  # one of lm-eval's own
            stock.append(load_yaml(path))
            return dict(stock[-1])
        if path in above:
            raise TaskError("it includes itself", where=str(path))
        config, _ = read_yaml(
            path, what="the task definition", error=TaskError, loader=_loader(path.parent)
        )
        if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
            raise TaskError(
                "a task definition holds `task:`, `doc_to_text:` and so on at its top level"
            )
        merged: Config = {}
        for include in as_list(config.pop("include", None) or None):
            if not isinstance(include, str):
                raise TaskError(f"include: {include!r} is no file", where=str(path))
            included = _read(path.parent / include, (*above, path), stock)
            merged |= {key: value for key, value in included.items() if key != "task_list"}
        return merged | config
    except PotentiaError as error:
        error.where = error.where or str(path)
        raise
    except Exception as error:  # YAML, import and attribute errors of the definition's own code
        raise TaskError(
            f"the task definition cannot be read: {type(error).__name__}: {error}".splitlines()[0],
            where=str(path),
        ) from error


def _loader(folder: Path) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        """Safe YAML that reads ``!function`` as a name."""

    Loader.add_constructor("!function", lambda loader, node: Named(str(node.value), folder))
    return Loader


# --- what a user's file may do ---------------------------------------------------------------------------------------

REPEATS = 1_000
# Where documents come from: a stock function is kept for these as the stock task has them.
_DATA = (
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "metadata",
    "fewshot_config.samples",
)
_OPTIONS = frozenset(
    {
        "data_files",
        "revision",
        "field",
        "split",
        "sep",
        "delimiter",
        "encoding",
        "trust_remote_code",
    }
)
_CODE_KEYS = {
    "unsafe_code": "runs what models write",
    "custom_dataset": "has data that a function makes",
    "use_prompt": "takes its prompt from another file",
    "class": "is a Python class",
}
_HINT = "read it, then allow it: --allow-code, or POTENTIA_ALLOW_CODE=1 in the environment"


def admitted(leaf: Mapping[str, Any], stock: list[Config], where: str) -> Config:
    """Return the definition of one task from a user's file, after merging, with its functions; or refuse it.

    ``stock`` are the definitions of lm-eval that it was made of.
    """
    try:
        if allowed(CODE):
            found: Config = _replaced(leaf, lambda _, function: _import(function))
        else:
            _refuse_code(leaf)
            found = _with_stock_functions(leaf, stock)
        repeats = found.get("repeats", 1)
        if not isinstance(repeats, int) or not 0 < repeats <= REPEATS:
            raise TaskError(f"repeats: {repeats!r} is no number up to {REPEATS}")
        if found.get("doc_to_image") is not None or found.get("doc_to_audio") is not None:
            raise TaskError("it asks about images or sound; only text tasks can be run")
    except PotentiaError as error:
        error.where = error.where or where
        raise
    return {**found, LIMITED: True}


def _import(value: Any) -> Any:
    """Return the function that a name stands for: code is allowed."""
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    try:
        return _import_func_in_yml(value.name, value.folder) if isinstance(value, Named) else value
    except Exception as error:  # the definition's own code may raise anything
        raise TaskError(
            f"!function {value.name} cannot be had: {type(error).__name__}: {error}"[:300]
        ) from error


def _refuse_code(leaf: Mapping[str, Any]) -> None:
    """Refuse what would fetch and run code, or write anywhere, but for functions."""
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import metric_registry

    judged = leaf.get("process_results") is not None  # then metrics are names alone
    for entry in () if judged else as_list(leaf.get("metric_list") or None):
        named = entry if isinstance(entry, Mapping) else {"metric": entry}
        metric = named.get("metric")
        if not _is_function(metric) and (
            named.get("hf_evaluate") or str(metric) not in metric_registry
        ):
            raise TaskError(
                f"the metric {metric!r} is none of lm-eval's, and would be fetched and run",
                hint=_HINT,
            )
    for key, does in _CODE_KEYS.items():
        if leaf.get(key):
            raise TaskError(f"it {does}: {key}", hint=_HINT)
    options = leaf.get("dataset_kwargs") or {}
    more = (
        sorted(map(str, set(options) - _OPTIONS))
        if isinstance(options, Mapping)
        else [repr(options)]
    )
    if more:
        raise TaskError(
            f"dataset_kwargs: {', '.join(more)[:200]} could write or run something", hint=_HINT
        )


def _with_stock_functions(leaf: Mapping[str, Any], stock: list[Config]) -> Config:
    """Return a definition whose functions are all those of one stock task, at the same keys and on the same data."""
    wanted = list(_functions(leaf))
    if not wanted:
        return dict(leaf)
    for candidate in stock:
        have = {(path, name): function for path, name, function in _functions(candidate)}
        same = all(_at(leaf, key) == _at(candidate, key) for key in _DATA)
        if same and all((path, name) in have for path, name, _ in wanted):
            return dict(_replaced(leaf, lambda path, function: have[path, _full_name(function)]))  # noqa: B023
    name = next((name for _, name, value in wanted if isinstance(value, Named)), wanted[0][1])
    raise TaskError(
        f"it runs code that is not of the task it is made of: !function {name}", hint=_HINT
    )


Keys = tuple[str, ...]


def _is_function(value: Any) -> bool:
    return isinstance(value, Named) or callable(value)


def _functions(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, str, Any]]:
    """Go through all that a definition could call: (keys that lead there, full name, function)."""
    if _is_function(value):
        yield path, _full_name(value), value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _functions(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _functions(inner, path)


def _full_name(function: Any) -> str:
    if isinstance(function, Named):
        return function.name
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _replaced(value: Any, give: Callable[[Keys, Any], Any], path: Keys = ()) -> Any:
    """Return a definition with what is given for each of its functions."""
    if _is_function(value):
        return give(path, value)
    if isinstance(value, Mapping):
        return {key: _replaced(inner, give, (*path, str(key))) for key, inner in value.items()}
    return (
        [_replaced(inner, give, path) for inner in value]
        if isinstance(value, (list, tuple))
        else value
    )


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config

"""Task definitions: lm-eval's own are read as lm-eval reads them, anyone else's as data that run no code.

A definition can name functions (``!function``), data that a function makes, metrics that are fetched and run, and
pickled data. From a file of one's own these count only where code is allowed (``--allow-code``, or
``POTENTIA_ALLOW_CODE=1``). Being part of lm-eval makes no function safe: some evaluate what they are given. So a file
may keep the functions of one stock task that it includes or names, on that task's own data, and no others. What counts
is a definition as it is used, after all files and groups are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from potentia.errors import PotentiaError, TaskError
from potentia.files import read_yaml
from potentia.processes import CODE, allowed
from potentia.tasks.index import tasks_folder

LIMITED = "limited"  # the key of a definition from a user's file: its templates are rendered in a process of its own
REPEATS = 1_000
# Where documents come from: a stock function is kept for these as the stock task has them.
_DATA = ("dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset", "metadata", "fewshot_config.samples")
_OPTIONS = frozenset({"data_files", "revision", "field", "split", "sep", "delimiter", "encoding", "trust_remote_code"})
_HINT = "read it, then allow it: --allow-code, or POTENTIA_ALLOW_CODE=1 in the environment"


@dataclass(frozen=True)
class Named:
    """A function that a user's file names and nobody imported: ``!function utils.process_docs``."""

    name: str
    folder: Path


def is_stock(path: Path) -> bool:
    """Tell whether a file is one of lm-eval's own definitions."""
    return tasks_folder().resolve() in path.expanduser().resolve().parents


def read_definition(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a task definition with its includes; with a user's come the stock definitions that it includes."""
    stock: list[dict[str, Any]] = []
    return _read(path, (), stock), stock


def _read(path: Path, above: tuple[Path, ...], stock: list[dict[str, Any]]) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    path = path.expanduser().resolve()
    try:
        if is_stock(path):
            stock.append(load_yaml(path))
            return dict(stock[-1])
        if path in above:
            raise TaskError("it includes itself", where=str(path))
        config, _ = read_yaml(path, what="the task definition", error=TaskError, loader=_loader(path.parent))
        if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
            raise TaskError("a task definition holds `task:`, `doc_to_text:` and so on at its top level")
        merged: dict[str, Any] = {}
        includes = config.pop("include", None) or []
        for include in includes if isinstance(includes, list) else [includes]:
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
            f"the task definition cannot be read: {type(error).__name__}: {error}".splitlines()[0], where=str(path)
        ) from error


def _loader(folder: Path) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        """Safe YAML that reads ``!function`` as a name."""

    Loader.add_constructor("!function", lambda loader, node: Named(str(node.value), folder))
    return Loader


def admitted(leaf: Mapping[str, Any], stock: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """Return the definition of one task from a user's file, after merging, with its functions; or refuse it.

    ``stock`` are the definitions of lm-eval that it was made of.
    """
    try:
        if allowed(CODE):
            found: dict[str, Any] = _replaced(leaf, lambda _, function: _import(function))
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
        raise TaskError(f"!function {value.name} cannot be had: {type(error).__name__}: {error}"[:300]) from error


def _refuse_code(leaf: Mapping[str, Any]) -> None:
    """Refuse what would fetch and run code, or write anywhere, but for functions."""
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import metric_registry

    listed = leaf.get("metric_list") or []
    for entry in listed if isinstance(listed, list) else [listed]:
        metric = entry.get("metric") if isinstance(entry, Mapping) else entry
        outside = isinstance(entry, Mapping) and entry.get("hf_evaluate")
        judged = leaf.get("process_results") is not None  # then metrics are names alone
        named = isinstance(metric, Named) or callable(metric)
        if not judged and not named and (outside or str(metric) not in metric_registry):
            raise TaskError(f"the metric {metric!r} is none of lm-eval's, and would be fetched and run", hint=_HINT)
    for key, does in (
        ("unsafe_code", "runs what models write"),
        ("custom_dataset", "has data that a function makes"),
        ("use_prompt", "takes its prompt from another file"),
        ("class", "is a Python class"),
    ):
        if leaf.get(key):
            raise TaskError(f"it {does}: {key}", hint=_HINT)
    options = leaf.get("dataset_kwargs") or {}
    more = sorted(map(str, set(options) - _OPTIONS)) if isinstance(options, Mapping) else [repr(options)]
    if more:
        raise TaskError(f"dataset_kwargs: {', '.join(more)[:200]} could write or run something", hint=_HINT)


def _with_stock_functions(leaf: Mapping[str, Any], stock: list[dict[str, Any]]) -> dict[str, Any]:
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
    raise TaskError(f"it runs code that is not of the task it is made of: !function {name}", hint=_HINT)


Keys = tuple[str, ...]


def _functions(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, str, Any]]:
    """Go through all that a definition could call: (keys that lead there, full name, function)."""
    if isinstance(value, Named) or callable(value):
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
    if isinstance(value, Named) or callable(value):
        return give(path, value)
    if isinstance(value, Mapping):
        return {key: _replaced(inner, give, (*path, str(key))) for key, inner in value.items()}
    return [_replaced(inner, give, path) for inner in value] if isinstance(value, (list, tuple)) else value


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


@cache
def sandbox() -> Any:
    """Return lm-eval's environment of templates as a sandbox: a template reads its document and nothing else."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    theirs = utils.env
    made = SandboxedEnvironment(undefined=theirs.undefined, keep_trailing_newline=theirs.keep_trailing_newline)
    made.filters.update(theirs.filters)
    utils.env = made  # what lm-eval renders by itself (prefixes, images) is rendered here too
    return made

"""Task definitions: lm-eval's own are read as lm-eval reads them, anyone else's as data that run no code.

A definition can name functions (``!function``), metrics that are fetched and run, and pickled data. From a file of
one's own these count only where code is allowed (``--allow-code``, or ``POTENTIA_ALLOW_CODE=1``), but for functions of
lm-eval's own tasks. Templates are rendered in Jinja's sandbox in every case.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from potentia.consent import CODE, allowed
from potentia.errors import PotentiaError, TaskError
from potentia.tasks.index import tasks_folder
from potentia.values.plain_yaml import read_yaml

HARNESS = "lm_eval.tasks."
LONGEST = 10_000_000  # characters that a template may make of one product


def read_definition(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a task definition with its includes and functions."""
    from lm_eval.tasks._yaml_loader import load_yaml

    path = path.expanduser().resolve()
    try:
        if tasks_folder().resolve() in path.parents:
            own: dict[str, Any] = load_yaml(path)
            return own
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
            included = read_definition(path.parent / include, (*above, path))
            merged |= {key: value for key, value in included.items() if key != "task_list"}
        merged |= config
    except PotentiaError as error:
        error.where = error.where or str(path)
        raise
    except Exception as error:  # YAML, import and attribute errors of the definition's own code
        raise TaskError(
            f"the task definition cannot be read: {type(error).__name__}: {error}".splitlines()[0], where=str(path)
        ) from error
    if not above:
        check_definition(merged, str(path))
    return merged


def _loader(folder: Path) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        """Safe YAML that knows ``!function``."""

    Loader.add_constructor("!function", lambda loader, node: _function(str(node.value), folder))
    return Loader


def _function(name: str, folder: Path) -> Any:
    """Return a function that a definition names: lm-eval's own, or any where code is allowed."""
    if allowed(CODE):
        from lm_eval.tasks._yaml_loader import _import_func_in_yml

        return _import_func_in_yml(name, folder)
    if name.startswith(HARNESS):
        from importlib import import_module

        module, _, last = name.rpartition(".")
        found = getattr(import_module(module), last, None)
        if inspect.isfunction(found) and found.__module__.startswith(HARNESS):
            return found
        raise TaskError(f"lm-eval has no function {name}")
    raise TaskError(f"it runs code of its own: !function {name}", hint=_HINT)


_HINT = "read it, then allow it: --allow-code, or POTENTIA_ALLOW_CODE=1 in the environment"


def check_definition(config: Mapping[str, Any], where: str) -> None:
    """Refuse what would fetch and run code, or unpickle data, unless code is allowed."""
    if allowed(CODE):
        return
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import metric_registry

    listed = config.get("metric_list") or []
    for entry in listed if isinstance(listed, list) else [listed]:
        metric = entry.get("metric") if isinstance(entry, Mapping) else entry
        outside = isinstance(entry, Mapping) and entry.get("hf_evaluate")
        judged = config.get("process_results") is not None  # then metrics are names alone
        if not callable(metric) and not judged and (outside or str(metric) not in metric_registry):
            words = f"the metric {metric!r} is none of lm-eval's, and would be fetched and run"
            raise TaskError(words, where=where, hint=_HINT)
    if config.get("unsafe_code"):
        raise TaskError("it runs what models write: unsafe_code", where=where, hint=_HINT)
    members = config.get("task")
    for member in members if isinstance(members, list) else ():
        if isinstance(member, Mapping):
            check_definition(member, where)


@cache
def sandbox() -> Any:
    """Return lm-eval's environment of templates as a sandbox: a template reads its document and nothing else."""
    from jinja2.sandbox import SandboxedEnvironment, SecurityError
    from lm_eval import utils

    class Sandbox(SandboxedEnvironment):
        """A sandbox in which no product outgrows memory."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Multiply, within reason."""
            if operator == "**" and isinstance(right, (int, float)) and abs(right) > 1_000:
                raise SecurityError("too large a power")
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int) and len(text) * times > LONGEST:
                    raise SecurityError("too long a text")
            return super().call_binop(context, operator, left, right)

    theirs = utils.env
    made = Sandbox(loader=theirs.loader, undefined=theirs.undefined, keep_trailing_newline=theirs.keep_trailing_newline)
    made.filters.update(theirs.filters)
    utils.env = made  # what lm-eval renders by itself (prefixes, images) is rendered here too
    return made

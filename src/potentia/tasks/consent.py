"""What a task definition may do without the user's consent (``--allow code``, or ``POTENTIA_ALLOW_CODE=1``).

A definition can name functions (``!function``), data that a function makes, metrics that are fetched and run, and
pickled data. From a user's file these count only with consent. Being part of lm-eval makes no function safe: some
evaluate what they are given. So:

- A stock task that executes what a model writes needs consent under any name. Such a task says ``unsafe_code: true``
  somewhere in the files that it is made of, or its functions lie in a module that calls ``eval``, a shell or the like.
- A file may keep the functions of one stock task that it includes or names, on that task's own data. A function that
  reads results is kept only where everything that reaches it is the stock task's as well: filters, templates,
  generation settings, metrics.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from potentia.errors import PotentiaError, TaskError
from potentia.files import CODE, is_allowed
from potentia.tasks.data import LIMITED, as_list

Definition = dict[str, Any]
"""A task's configuration as lm-eval reads it."""

UNSAFE = "unsafe_code"
CONSENT_HINT = "read it, then allow it: --allow code, or POTENTIA_ALLOW_CODE=1 in the environment"
MOST_REPEATS = 1_000


@dataclass(frozen=True)
class FunctionName:
    """A function that a definition names and nobody imported: ``!function utils.process_docs``."""

    name: str
    folder: Path  # of the definition: its modules come first


# --- reading and merging ---------------------------------------------------------------------------------------------


def make_loader(folder: Path) -> type[yaml.SafeLoader]:
    """Return a safe YAML loader that reads ``!function`` as a name."""

    class DefinitionLoader(yaml.SafeLoader):
        """Safe YAML with the names of functions."""

    DefinitionLoader.add_constructor(
        "!function", lambda loader, node: FunctionName(str(node.value), folder)
    )
    return DefinitionLoader


def merge_definitions(*definitions: Mapping[str, Any]) -> Definition:
    """Merge definitions, the last one first; what one of them marks as unsafe stays unsafe."""
    merged: Definition = {}
    for definition in definitions:
        merged.update(definition)
    if any(definition.get(UNSAFE) for definition in definitions):
        merged[UNSAFE] = True
    return merged


# --- stock tasks that execute what a model writes --------------------------------------------------------------------

_EXECUTING_NAMES = frozenset(
    {"eval", "exec", "compile", "__import__", "Popen", "parse_expr", "sympify"}
)
_EXECUTING_ATTRIBUTES = {
    "os": ("system", "popen", "exec", "spawn", "posix_spawn"),
    "subprocess": ("",),
    "pickle": ("load", "Unpickler"),
    "marshal": ("load",),
}
_EXECUTING_METRICS = frozenset({"code_eval"})  # of the `evaluate` library: it runs programs


def check_stock_consent(path: Path, name: str | None = None) -> None:
    """Refuse a definition of lm-eval that would execute what a model writes, unless code is allowed.

    Nothing of the definition is imported for this.
    """
    if is_allowed(CODE):
        return
    chain = read_chain(path)
    definition = merge_definitions(*chain)
    marked = bool(definition.get(UNSAFE))
    calls = find_executing_calls(definition)
    if not marked and not calls:
        return
    runs = calls or [f"!function {function.name}" for _, _, function in walk_functions(definition)]
    reasons = ["lm-eval marks it unsafe_code"] if marked else []
    reasons += [f"it would run {', '.join(runs[:3])}"] if runs else []
    raise TaskError(
        f"{name or definition.get('task')} executes what a model writes: {'; '.join(reasons)}",
        hint="a model can write any program; allow it only where that may run: --allow code, or "
        "POTENTIA_ALLOW_CODE=1 in the environment",
    )


def read_chain(path: Path) -> list[Definition]:
    """Read a definition of lm-eval and all that it includes, the first included first; functions stay names."""
    return [dict(definition) for definition in _read_chain(path.resolve(), ())]


@cache
def _read_chain(path: Path, above: tuple[Path, ...]) -> tuple[Definition, ...]:
    if path in above:
        raise TaskError("it includes itself", where=str(path))
    loader = make_loader(path.parent)
    definition = yaml.load(path.read_bytes(), Loader=loader)
    if not isinstance(definition, dict):
        raise TaskError("a task definition holds keys and values", where=str(path))
    included: list[Definition] = []
    for include in as_list(definition.pop("include", None) or None):
        for part in _read_chain((path.parent / str(include)).resolve(), (*above, path)):
            included.append({key: value for key, value in part.items() if key != "task_list"})
    return (*included, definition)


def find_executing_calls(definition: Mapping[str, Any]) -> list[str]:
    """Return the calls in the modules of a definition's functions that execute text: ``metrics.py: eval``."""
    calls: dict[str, None] = {}
    for _, _, function in walk_functions(definition):
        module = find_module_file(function)
        if module is None:
            continue
        for call in executing_calls(module):
            calls[call] = None
    return list(calls)


def find_module_file(function: Any) -> Path | None:
    """Return the Python file that holds a function, which may be a name alone."""
    if not isinstance(function, FunctionName):
        module_name = getattr(function, "__module__", "") or ""
        return _find_importable_file(module_name)
    module_name = function.name.rpartition(".")[0]
    beside = (function.folder / f"{module_name.replace('.', '/')}.py").resolve()
    return beside if beside.is_file() else _find_importable_file(module_name)


def _find_importable_file(module_name: str) -> Path | None:
    """Return the file of a module of lm-eval's tasks, without importing it; others are libraries."""
    parts = module_name.split(".")
    if parts[:2] != ["lm_eval", "tasks"]:
        return None
    lm_eval = find_spec("lm_eval")
    if lm_eval is None or not lm_eval.submodule_search_locations:
        return None
    module_path = Path(next(iter(lm_eval.submodule_search_locations))).joinpath(*parts[1:])
    for file in (module_path.with_suffix(".py"), module_path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def executing_calls(module: Path) -> tuple[str, ...]:
    """Return the calls of a module, and of lm-eval's modules that it imports, that execute a text."""
    calls: dict[str, None] = {}
    pending = [module]
    visited: set[Path] = set()
    while pending:
        file = pending.pop()
        if file in visited:
            continue
        visited.add(file)
        tree = ast.parse(file.read_text("utf-8", "replace"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (called := _executing_name(node)):
                calls[f"{called} in {file.parent.name}/{file.name}"] = None
            pending.extend(_imported_files(node, file))
    return tuple(calls)


def _executing_name(call: ast.Call) -> str | None:
    """Return the name of a call that executes a text, or None."""
    function = call.func
    if any(
        isinstance(value, ast.Constant) and value.value in _EXECUTING_METRICS for value in call.args
    ):
        return str(next(value.value for value in call.args if isinstance(value, ast.Constant)))
    if isinstance(function, ast.Name):
        return function.id if function.id in _EXECUTING_NAMES else None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    beginnings = _EXECUTING_ATTRIBUTES.get(function.value.id, ())
    if any(function.attr.startswith(beginning) for beginning in beginnings):
        return f"{function.value.id}.{function.attr}"
    return None


def _imported_files(node: ast.AST, file: Path) -> Iterator[Path]:
    """Give the modules of lm-eval's tasks that an import statement names."""
    if isinstance(node, ast.ImportFrom) and node.level:
        folder = file.parents[node.level - 1]
        parts = (node.module or "").split(".") if node.module else []
        modules = [parts] if parts else [[alias.name] for alias in node.names]
        for module in modules:
            beside = folder.joinpath(*module).with_suffix(".py")
            if beside.is_file():
                yield beside
        return
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    for name in names:
        imported_file = _find_importable_file(name)
        if imported_file is not None:
            yield imported_file


# --- what a user's file may do ---------------------------------------------------------------------------------------

# Where documents come from: a stock function is kept for these as the stock task has them.
_DATA_KEYS = (
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "metadata",
)
# Functions at these keys read documents alone; at any other key they may read results.
_DOCUMENT_KEYS = frozenset(
    {"process_docs", "doc_to_text", "doc_to_target", "doc_to_choice", "fewshot_config"}
)
# Keys that a file may change although a stock function reads the results: names, splits, the words of the prompt.
_FREE_KEYS = frozenset(
    {
        "task",
        "task_alias",
        "tag",
        "group",
        "group_alias",
        "description",
        "num_fewshot",
        "fewshot_split",
        "fewshot_delimiter",
        "training_split",
        "validation_split",
        "test_split",
        "should_decontaminate",
        "task_list",
        "main_metric",
        "shots",
        UNSAFE,
    }
)
_DATASET_OPTIONS = frozenset(
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
    UNSAFE: "runs what models write",
    "custom_dataset": "has data that a function makes",
    "use_prompt": "takes its prompt from another file",
    "class": "is a Python class",
}


def apply_consent(
    definition: Mapping[str, Any], stock: Sequence[Definition], source: str
) -> Definition:
    """Return the definition of one task from a user's file, after merging, with its functions; or refuse it.

    ``stock`` are the definitions of lm-eval that it was made of.
    """
    try:
        if is_allowed(CODE):
            permitted: Definition = replace_functions(definition, lambda _, name: _import(name))
        else:
            _refuse_code(definition)
            permitted = _keep_stock_functions(definition, stock)
        repeats = permitted.get("repeats", 1)
        if not isinstance(repeats, int) or not 0 < repeats <= MOST_REPEATS:
            raise TaskError(f"repeats: {repeats!r} is no number up to {MOST_REPEATS}")
        if permitted.get("doc_to_image") is not None or permitted.get("doc_to_audio") is not None:
            raise TaskError("it asks about images or sound; only text tasks can be run")
    except PotentiaError as error:
        error.where = error.where or source
        raise
    return {**permitted, LIMITED: True}


def _import(function: Any) -> Any:
    """Return the function that a name stands for: code is allowed."""
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    if not isinstance(function, FunctionName):
        return function
    try:
        return _import_func_in_yml(function.name, function.folder)
    except Exception as error:  # the definition's own code may raise anything
        raise TaskError(
            f"!function {function.name} cannot be had: {type(error).__name__}: {error}"[:300]
        ) from error


def _refuse_code(definition: Mapping[str, Any]) -> None:
    """Refuse what would fetch and run code, or write anywhere, but for functions."""
    _refuse_fetched_metrics(definition)
    for key, does in _CODE_KEYS.items():
        if definition.get(key):
            raise TaskError(f"it {does}: {key}", hint=CONSENT_HINT)
    options = definition.get("dataset_kwargs") or {}
    if isinstance(options, Mapping):
        unknown = sorted(map(str, set(options) - _DATASET_OPTIONS))
    else:
        unknown = [repr(options)]
    if unknown:
        raise TaskError(
            f"dataset_kwargs: {', '.join(unknown)[:200]} could write or run something",
            hint=CONSENT_HINT,
        )


def _refuse_fetched_metrics(definition: Mapping[str, Any]) -> None:
    """Refuse a metric that is none of lm-eval's: the `evaluate` library would fetch and run it."""
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import metric_registry

    if definition.get("process_results") is not None:  # then metrics are names alone
        return
    for entry in as_list(definition.get("metric_list") or None):
        named = entry if isinstance(entry, Mapping) else {"metric": entry}
        metric = named.get("metric")
        if is_function(metric):
            continue
        if named.get("hf_evaluate") or str(metric) not in metric_registry:
            raise TaskError(
                f"the metric {metric!r} is none of lm-eval's, and would be fetched and run",
                hint=CONSENT_HINT,
            )


def _keep_stock_functions(definition: Mapping[str, Any], stock: Sequence[Definition]) -> Definition:
    """Return a definition whose functions are all those of one stock task, fed by that task alone."""
    functions = list(walk_functions(definition))
    if not functions:
        return dict(definition)
    changed: list[str] = []
    for candidate in stock:
        stock_functions = {
            (path, name): function for path, name, function in walk_functions(candidate)
        }
        if not all((path, name) in stock_functions for path, name, _ in functions):
            continue
        changed = _changed_keys(definition, candidate, functions)
        if not changed and not candidate.get(UNSAFE) and not find_executing_calls(candidate):
            return _with_functions(definition, stock_functions)
    unresolved = [name for _, name, value in functions if isinstance(value, FunctionName)]
    name = unresolved[0] if unresolved else functions[0][1]
    reason = f", and the file changes what reaches it: {', '.join(changed[:4])}" if changed else ""
    raise TaskError(
        f"it runs code that is not of the task it is made of: !function {name}{reason}",
        hint=CONSENT_HINT,
    )


def _with_functions(
    definition: Mapping[str, Any], functions: Mapping[tuple[Keys, str], Any]
) -> Definition:
    replaced: Definition = replace_functions(
        definition, lambda path, function: functions[path, full_name(function)]
    )
    return replaced


def _changed_keys(
    definition: Mapping[str, Any],
    stock: Mapping[str, Any],
    functions: Sequence[tuple[Keys, str, Any]],
) -> list[str]:
    """Return the keys by which a definition feeds the functions of a stock task with other things than that does."""
    function_keys = {path[0] for path, _, _ in functions}
    compared = set(_DATA_KEYS)
    if function_keys != {"process_docs"}:  # which reads the data alone
        compared.add("process_docs")
    if "fewshot_config" in function_keys:
        compared.add("fewshot_config")
    if not function_keys <= _DOCUMENT_KEYS:
        compared |= {str(key) for key in (*definition, *stock)} - _FREE_KEYS
    changed = [key for key in compared if _is_changed(definition.get(key), stock.get(key))]
    if _is_changed(_few_shot_samples(definition), _few_shot_samples(stock)):
        changed.append("fewshot_config.samples")
    return sorted(changed)


def _few_shot_samples(definition: Mapping[str, Any]) -> Any:
    settings = definition.get("fewshot_config")
    return settings.get("samples") if isinstance(settings, Mapping) else None


def _is_changed(value: Any, stock_value: Any) -> bool:
    named = replace_functions(value, lambda _, function: ("function", full_name(function)))
    stock_named = replace_functions(
        stock_value, lambda _, function: ("function", full_name(function))
    )
    return bool(named != stock_named)


# --- functions in definitions ----------------------------------------------------------------------------------------

Keys = tuple[str, ...]
"""The keys that lead to a value of a definition."""


def is_function(value: Any) -> bool:
    """Whether a value of a definition is a function, or names one."""
    return isinstance(value, FunctionName) or callable(value)


def walk_functions(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, str, Any]]:
    """Give all that a definition could call: the keys that lead there, its full name, the function."""
    if is_function(value):
        yield path, full_name(value), value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from walk_functions(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from walk_functions(inner, path)


def full_name(function: Any) -> str:
    """Return a function's name with that of its module."""
    if isinstance(function, FunctionName):
        return function.name
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def replace_functions(value: Any, give: Callable[[Keys, Any], Any], path: Keys = ()) -> Any:
    """Return a definition with what ``give`` returns for each of its functions."""
    if is_function(value):
        return give(path, value)
    if isinstance(value, Mapping):
        return {
            key: replace_functions(inner, give, (*path, str(key))) for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_functions(inner, give, path) for inner in value]
    return value

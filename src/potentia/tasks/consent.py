"""What a task definition may do without the user's consent (``--allow code``, or ``POTENTIA_ALLOW_CODE=1``).

A definition can name functions (``!function``), data that a function makes, metrics that are fetched and run, and
pickled data. In a user's file these need consent. The functions of a *stock* task, one that lm-eval brings along, are
not safe for that alone: some evaluate what they are given. So:

- A stock task that executes what a model writes needs consent under any name. Such a task says ``unsafe_code: true``
  somewhere in the files that it is made of, or its functions lie in a module that calls ``eval``, a shell or the like.
- A user's file may keep the functions of one stock task that it includes or is named after, on that task's own data. A
  function that reads results is kept only if everything that reaches it is the stock task's as well: filters,
  templates, generation settings, metrics.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from potentia.errors import PotentiaError, TaskError
from potentia.files import CODE, is_allowed
from potentia.tasks.data import UNTRUSTED, as_list

Definition = dict[str, Any]
"""A task's configuration as lm-eval reads it."""

UNSAFE = "unsafe_code"  # the key by which lm-eval marks a task that executes what a model writes
CONSENT_HINT = "read it, then allow it: --allow code, or POTENTIA_ALLOW_CODE=1 in the environment"
MAX_REPEATS = 1_000  # of one request


@dataclass(frozen=True)
class FunctionName:
    """A function that a definition names (``!function utils.process_docs``) and that was not imported."""

    name: str
    folder: Path  # that holds the definition; modules are looked for there first


# --- reading and merging ---------------------------------------------------------------------------------------------


def make_loader(folder: Path) -> type[yaml.SafeLoader]:
    """Return a safe YAML loader that reads ``!function`` as a ``FunctionName`` and imports nothing."""

    class DefinitionLoader(yaml.SafeLoader):
        """Safe YAML with the names of functions."""

    DefinitionLoader.add_constructor(
        "!function", lambda loader, node: FunctionName(str(node.value), folder)
    )
    return DefinitionLoader


def merge_definitions(*definitions: Mapping[str, object]) -> Definition:
    """Merge definitions; a later one overrides an earlier one, but what any of them marks as unsafe stays unsafe."""
    merged: Definition = {}
    for definition in definitions:
        merged.update(definition)
    if any(definition.get(UNSAFE) for definition in definitions):
        merged[UNSAFE] = True
    return merged


# --- stock tasks that execute what a model writes --------------------------------------------------------------------

# Functions that execute a text they are given, by their bare names,
_EXECUTING_NAMES = frozenset(
    {"eval", "exec", "compile", "__import__", "Popen", "parse_expr", "sympify"}
)
# and by their module and how their names begin; the empty beginning stands for all of a module.
_EXECUTING_ATTRIBUTES = {
    "os": ("system", "popen", "exec", "spawn", "posix_spawn"),
    "subprocess": ("",),
    "pickle": ("load", "Unpickler"),
    "marshal": ("load",),
}
_EXECUTING_METRICS = frozenset({"code_eval"})  # of the `evaluate` library: it runs programs


def check_stock_consent(definition_file: Path, task_name: str | None = None) -> None:
    """Raise for a definition of lm-eval's that would execute what a model writes, unless code is allowed.

    Nothing of the definition is imported for this.
    """
    if is_allowed(CODE):
        return
    definition = merge_definitions(*read_chain(definition_file))
    is_marked = bool(definition.get(UNSAFE))
    calls = find_executing_calls(definition)
    if not is_marked and not calls:
        return
    reasons = []
    if is_marked:
        reasons.append("lm-eval marks it unsafe_code")
    what_runs = calls or [f"!function {use.function_name}" for use in walk_functions(definition)]
    if what_runs:
        reasons.append(f"it would run {', '.join(what_runs[:3])}")
    raise TaskError(
        f"{task_name or definition.get('task')} executes what a model writes: {'; '.join(reasons)}",
        hint="a model can write any program; allow it only where that may run: --allow code, or "
        "POTENTIA_ALLOW_CODE=1 in the environment",
    )


def read_chain(definition_file: Path) -> list[Definition]:
    """Return a definition of lm-eval's after all that it includes, in the order to merge them; functions stay names."""
    return [dict(definition) for definition in _read_chain(definition_file.resolve(), ())]


@cache
def _read_chain(definition_file: Path, including_files: tuple[Path, ...]) -> tuple[Definition, ...]:
    if definition_file in including_files:
        raise TaskError("it includes itself", where=str(definition_file))
    definition = dict(_read_one_file(definition_file))
    chain: list[Definition] = []
    for include in as_list(definition.pop("include", None) or None):
        included_file = (definition_file.parent / str(include)).resolve()
        for included in _read_chain(included_file, (*including_files, definition_file)):
            chain.append({key: value for key, value in included.items() if key != "task_list"})
    return (*chain, definition)


@cache  # hundreds of tasks include the same file
def _read_one_file(definition_file: Path) -> Definition:
    """Return the definition in one file of lm-eval's, without what it includes."""
    definition = yaml.load(definition_file.read_bytes(), Loader=make_loader(definition_file.parent))
    if not isinstance(definition, dict):
        raise TaskError("a task definition holds keys and values", where=str(definition_file))
    return definition


def find_executing_calls(definition: Mapping[str, object]) -> list[str]:
    """Return the calls that execute a text, in the modules of a definition's functions: ``eval in ifeval/utils.py``."""
    calls: dict[str, None] = {}
    for use in walk_functions(definition):
        module_file = find_module_file(use.function)
        if module_file is None:
            continue
        for call in find_calls_in_module(module_file):
            calls[call] = None
    return list(calls)


def find_module_file(function: object) -> Path | None:
    """Return the Python file that holds a function or the function of a ``FunctionName``; None for a library's."""
    if not isinstance(function, FunctionName):
        module_name = getattr(function, "__module__", "") or ""
        return _find_tasks_module(module_name)
    module_name = function.name.rpartition(".")[0]
    file_beside = (function.folder / f"{module_name.replace('.', '/')}.py").resolve()
    return file_beside if file_beside.is_file() else _find_tasks_module(module_name)


def _find_tasks_module(module_name: str) -> Path | None:
    """Return the file of a module below ``lm_eval.tasks``, without importing it; None for any other module."""
    parts = module_name.split(".")
    if parts[:2] != ["lm_eval", "tasks"]:
        return None
    lm_eval = find_spec("lm_eval")
    if lm_eval is None or not lm_eval.submodule_search_locations:
        return None
    module_path = Path(next(iter(lm_eval.submodule_search_locations))).joinpath(*parts[1:])
    for candidate_file in (module_path.with_suffix(".py"), module_path / "__init__.py"):
        if candidate_file.is_file():
            return candidate_file
    return None


@cache
def find_calls_in_module(module_file: Path) -> tuple[str, ...]:
    """Return the calls that execute a text, in a module and in the modules of ``lm_eval.tasks`` that it imports."""
    calls: dict[str, None] = {}
    pending_files = [module_file]
    visited: set[Path] = set()
    while pending_files:
        source_file = pending_files.pop()
        if source_file in visited:
            continue
        visited.add(source_file)
        syntax_tree = ast.parse(source_file.read_text("utf-8", "replace"))
        for syntax_node in ast.walk(syntax_tree):
            pending_files.extend(_find_imported_files(syntax_node, source_file))
            called_name = None
            if isinstance(syntax_node, ast.Call):
                called_name = _name_executing_call(syntax_node)
            if called_name is not None:
                calls[f"{called_name} in {source_file.parent.name}/{source_file.name}"] = None
    return tuple(calls)


def _name_executing_call(call: ast.Call) -> str | None:
    """Return the name of a call that executes a text; None for any other call."""
    function = call.func
    for argument in call.args:
        if isinstance(argument, ast.Constant) and argument.value in _EXECUTING_METRICS:
            return str(argument.value)
    if isinstance(function, ast.Name):
        return function.id if function.id in _EXECUTING_NAMES else None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    beginnings = _EXECUTING_ATTRIBUTES.get(function.value.id, ())
    if any(function.attr.startswith(beginning) for beginning in beginnings):
        return f"{function.value.id}.{function.attr}"
    return None


def _find_imported_files(syntax_node: ast.AST, module_file: Path) -> Iterator[Path]:
    """Yield the files of ``lm_eval.tasks`` that an import statement names; nothing for another statement."""
    if isinstance(syntax_node, ast.ImportFrom) and syntax_node.level:  # from .utils import …
        folder = module_file.parents[syntax_node.level - 1]
        parts = (syntax_node.module or "").split(".") if syntax_node.module else []
        modules = [parts] if parts else [[alias.name] for alias in syntax_node.names]
        for module in modules:
            file_beside = folder.joinpath(*module).with_suffix(".py")
            if file_beside.is_file():
                yield file_beside
        return
    module_names: list[str] = []
    if isinstance(syntax_node, ast.ImportFrom) and syntax_node.module:
        module_names = [
            syntax_node.module,
            *(f"{syntax_node.module}.{alias.name}" for alias in syntax_node.names),
        ]
    elif isinstance(syntax_node, ast.Import):
        module_names = [alias.name for alias in syntax_node.names]
    for module_name in module_names:
        imported_file = _find_tasks_module(module_name)
        if imported_file is not None:
            yield imported_file


# --- what a user's file may do ---------------------------------------------------------------------------------------

# Where documents come from: a stock function is kept only with the stock task's own values here.
_DATA_KEYS = (
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "metadata",
)
# Functions at these keys read documents; at any other key they may read what a model wrote.
_DOCUMENT_KEYS = frozenset(
    {"process_docs", "doc_to_text", "doc_to_target", "doc_to_choice", "fewshot_config"}
)
# Keys that a file may change although a stock function reads results: names, splits, the words of the prompt.
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
# Options of ``datasets.load_dataset`` that neither write nor run anything.
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
# Keys that a user's file may not set without consent, and what such a task does, as an error says it.
_CODE_KEYS = {
    UNSAFE: "runs what models write",
    "custom_dataset": "has data that a function makes",
    "use_prompt": "takes its prompt from another file",
    "class": "is a Python class",
}


def apply_consent(
    definition: Mapping[str, object], stock: Sequence[Definition], source: str
) -> Definition:
    """Return the merged definition of one task from a user's file with the functions that it may run; or raise.

    ``stock`` are the definitions of lm-eval's that it was made of. The result is marked as ``UNTRUSTED``.
    """
    try:
        if is_allowed(CODE):
            permitted: Definition = replace_functions(
                definition, lambda _, function: _import_function(function)
            )
        else:
            _refuse_code(definition)
            permitted = _trust_only_stock_functions(definition, stock)
        repeats = permitted.get("repeats", 1)
        if not isinstance(repeats, int) or not 0 < repeats <= MAX_REPEATS:
            raise TaskError(f"repeats: {repeats!r} is not a number up to {MAX_REPEATS}")
        if permitted.get("doc_to_image") is not None or permitted.get("doc_to_audio") is not None:
            raise TaskError("it asks about images or sound; only text tasks can be run")
    except PotentiaError as error:
        error.where = error.where or source
        raise
    return {**permitted, UNTRUSTED: True}


def _import_function(function: object) -> Any:
    """Import the function of a ``FunctionName``, since code is allowed; return any other function as it is."""
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    if not isinstance(function, FunctionName):
        return function
    try:
        return _import_func_in_yml(function.name, function.folder)
    except Exception as error:  # the definition's own code may raise anything
        raise TaskError(
            f"!function {function.name} cannot be loaded: {type(error).__name__}: {error}"[:300]
        ) from error


def _refuse_code(definition: Mapping[str, object]) -> None:
    """Raise for everything but functions that would fetch and run code, or write files."""
    _refuse_fetched_metrics(definition)
    for key, description in _CODE_KEYS.items():
        if definition.get(key):
            raise TaskError(f"it {description}: {key}", hint=CONSENT_HINT)
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


def _refuse_fetched_metrics(definition: Mapping[str, object]) -> None:
    """Raise for a metric that is none of lm-eval's: the `evaluate` library would fetch and run it."""
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import metric_registry

    # process_results computes the metrics itself: their names are not looked up
    if definition.get("process_results") is not None:
        return
    for entry in as_list(definition.get("metric_list") or None):
        metric_entry = entry if isinstance(entry, Mapping) else {"metric": entry}
        metric = metric_entry.get("metric")
        if is_function(metric):
            continue
        if metric_entry.get("hf_evaluate") or str(metric) not in metric_registry:
            raise TaskError(
                f"the metric {metric!r} is not one of lm-eval's; it would be fetched and run",
                hint=CONSENT_HINT,
            )


def _trust_only_stock_functions(
    definition: Mapping[str, object], stock: Sequence[Definition]
) -> Definition:
    """Return a definition with the functions of one stock task, if that task has all that the definition names.

    Raise a ``TaskError`` for any other code, and for a function of lm-eval's that the definition feeds with other data
    or settings than the stock task does.
    """
    uses = list(walk_functions(definition))
    if not uses:
        return dict(definition)
    changed_input_keys: list[str] = []
    for candidate in stock:
        stock_functions = {
            (use.key_path, use.function_name): use.function for use in walk_functions(candidate)
        }
        if not all((use.key_path, use.function_name) in stock_functions for use in uses):
            continue
        changed_input_keys = _find_changed_input_keys(definition, candidate, uses)
        if changed_input_keys:
            continue
        if not candidate.get(UNSAFE) and not find_executing_calls(candidate):
            return _take_functions(definition, stock_functions)
    unresolved = [use.function_name for use in uses if isinstance(use.function, FunctionName)]
    function_name = unresolved[0] if unresolved else uses[0].function_name
    reason = ""
    if changed_input_keys:
        reason = f", and the file changes what reaches it: {', '.join(changed_input_keys[:4])}"
    raise TaskError(
        f"it runs code that is not of the task it is made of: !function {function_name}{reason}",
        hint=CONSENT_HINT,
    )


def _take_functions(
    definition: Mapping[str, object], stock_functions: Mapping[tuple[KeyPath, str], object]
) -> Definition:
    """Return a definition with a stock task's functions in place of its own of the same names."""
    replaced: Definition = replace_functions(
        definition, lambda key_path, function: stock_functions[key_path, full_name(function)]
    )
    return replaced


def _find_changed_input_keys(
    definition: Mapping[str, object],
    stock: Mapping[str, object],
    uses: Sequence[FunctionUse],
) -> list[str]:
    """Return the keys at which a definition differs from a stock task and that reach the functions it keeps of it."""
    function_keys = {use.key_path[0] for use in uses}
    compared_keys = set(_DATA_KEYS)
    if function_keys != {"process_docs"}:  # which reads the data and nothing else
        compared_keys.add("process_docs")
    if "fewshot_config" in function_keys:
        compared_keys.add("fewshot_config")
    if not function_keys <= _DOCUMENT_KEYS:
        compared_keys |= {str(key) for key in (*definition, *stock)} - _FREE_KEYS
    changed_keys = [
        key for key in compared_keys if _is_changed(definition.get(key), stock.get(key))
    ]
    if _is_changed(_read_few_shot_samples(definition), _read_few_shot_samples(stock)):
        changed_keys.append("fewshot_config.samples")
    return sorted(changed_keys)


def _read_few_shot_samples(definition: Mapping[str, object]) -> object:
    settings = definition.get("fewshot_config")
    return settings.get("samples") if isinstance(settings, Mapping) else None


def _is_changed(value: object, stock_value: object) -> bool:
    """Whether two parts of definitions differ; functions are compared by their names."""
    return bool(_name_functions(value) != _name_functions(stock_value))


def _name_functions(definition_part: object) -> Any:
    return replace_functions(definition_part, lambda _, function: ("function", full_name(function)))


# --- functions in definitions ----------------------------------------------------------------------------------------

KeyPath = tuple[str, ...]
"""The keys that lead to a value of a definition; positions in lists are left out."""


class FunctionUse(NamedTuple):
    """A place where a definition could call a function."""

    key_path: KeyPath
    function_name: str  # with its module
    function: Any  # the function, or its FunctionName


def is_function(value: object) -> bool:
    """Whether a value of a definition is a function, or names one."""
    return isinstance(value, FunctionName) or callable(value)


def walk_functions(definition_part: object, key_path: KeyPath = ()) -> Iterator[FunctionUse]:
    """Yield every function that a definition could call."""
    if is_function(definition_part):
        yield FunctionUse(key_path, full_name(definition_part), definition_part)
    elif isinstance(definition_part, Mapping):
        for member_key, inner in definition_part.items():
            yield from walk_functions(inner, (*key_path, str(member_key)))
    elif isinstance(definition_part, (list, tuple)):
        for inner in definition_part:
            yield from walk_functions(inner, key_path)


def full_name(function: object) -> str:
    """Return the name of a function, or of a ``FunctionName``, with its module."""
    if isinstance(function, FunctionName):
        return function.name
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def replace_functions(
    definition_part: object,
    find_replacement: Callable[[KeyPath, object], object],
    key_path: KeyPath = (),
) -> Any:
    """Return a definition in which ``find_replacement(key_path, function)`` takes the place of each function."""
    if is_function(definition_part):
        return find_replacement(key_path, definition_part)
    if isinstance(definition_part, Mapping):
        return {
            member_key: replace_functions(inner, find_replacement, (*key_path, str(member_key)))
            for member_key, inner in definition_part.items()
        }
    if isinstance(definition_part, (list, tuple)):
        return [replace_functions(inner, find_replacement, key_path) for inner in definition_part]
    return definition_part

"""The bridge to lm-eval: its own task objects on our data, so that prompts, filters and metrics are the harness's."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia import limited
from potentia.errors import TaskError
from potentia.files import CODE, is_allowed
from potentia.tasks.data import LIMITED, silence_libraries
from potentia.tasks.forms import OWN_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLED_ROWS = 8  # of splits that are not evaluated, for the constructor
MOST_REMEMBERED = 5_000  # documents whose texts are kept
# The public split behind each of ours, as the keys of a task's config.
SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}


def build_harness_task(config: Mapping[str, Any], data: Mapping[str, Dataset]) -> Any:
    """Make lm-eval's task object for a definition, on the splits at hand.

    A split that the definition names and the data lack is absent. The constructor lists all few-shot documents, so it
    sees a handful of the training rows; ours come later, from the split plan.
    """
    is_limited = bool(config.get(LIMITED))
    definition = _prepare_definition(config, data)
    evaluated = definition.get("test_split") or definition.get("validation_split")
    has_only_train = evaluated is None
    if has_only_train:  # lm-eval asks for a split to evaluate on
        evaluated = definition["test_split"] = definition.get("training_split")
    if evaluated is None:
        raise TaskError(
            f"{definition.get('task')} finds none of its splits here",
            hint=f"the data hold: {', '.join(data) or 'nothing'}",
        )
    sample = {}
    for name, split in data.items():
        is_whole = name == evaluated
        sample[name] = split if is_whole else split.select(range(min(SAMPLED_ROWS, len(split))))
    with silence_libraries():
        try:
            task = _bridged_class()(sample, definition, is_limited)
        except TaskError:
            raise
        except Exception as error:  # a definition's own code may raise anything
            problem = f"{type(error).__name__}: {error}"
            message = f"{definition.get('task')} cannot be built on these data: {problem}"
            raise TaskError(
                message.splitlines()[0],
                hint="the columns or labels may not be those that the task definition reads",
            ) from error
    if has_only_train:
        task.config.test_split = None
    task.dataset = dict(data)
    return task


def _prepare_definition(config: Mapping[str, Any], data: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return the definition without the splits that the data lack and without the keys that only an index needs."""
    definition = _without_absent_splits(config, data, (*SPLIT_KEYS.values(), "fewshot_split"))
    for key in ("tag", "group", "task_list", LIMITED, *OWN_KEYS):
        definition.pop(key, None)
    few_shot = definition.get("fewshot_config")
    if isinstance(few_shot, dict):
        definition["fewshot_config"] = _without_absent_splits(few_shot, data, ("split",))
    metadata = definition.get("metadata")
    if isinstance(metadata, dict):
        definition["metadata"] = dict(metadata)
    else:
        definition["metadata"] = {"_metadata": metadata}
    return definition


def _without_absent_splits(
    settings: Mapping[str, Any], data: Mapping[str, Dataset], keys: Iterable[str]
) -> dict[str, Any]:
    """Return settings in which a key that names a split that the data lack is None."""
    present = dict(settings)
    for key in keys:
        if settings.get(key) is not None and str(settings[key]) not in data:
            present[key] = None
    return present


# --- templates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RememberedTexts:
    """What was rendered of one document, by template. It holds the document, so that its id is not given again."""

    document: Mapping[str, Any]
    texts: dict[str, Any]


_remembered: dict[int, _RememberedTexts] = {}  # by the id of a document
_user_templates: set[str] = set()  # of definitions from users' files


def render_template(source: str, doc: Mapping[str, Any]) -> str:
    """Render a template as lm-eval does: here where it is lm-eval's, in a process with limits where it is a user's."""
    if source in _user_templates:
        return str(
            _make_once(doc, source, lambda: _within_limits(limited.render_template, source, doc))
        )
    return str(_make_once(doc, source, lambda: _compile_template(source).render(**doc)))


def _make_once(doc: Mapping[str, Any], key: str, make: Callable[[], Any]) -> Any:
    """Make something of a document once: its choices are asked for ten times, and again in prompts that show it."""
    remembered = _remembered.get(id(doc))
    if remembered is None or remembered.document is not doc:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        remembered = _remembered[id(doc)] = _RememberedTexts(doc, {})
    if key not in remembered.texts:
        remembered.texts[key] = make()
    return copy(remembered.texts[key])


@lru_cache(maxsize=512)
def _compile_template(source: str) -> Any:
    """Compile a prompt template once; lm-eval compiles it again for every document."""
    return sandboxed_environment().from_string(source)


@cache
def sandboxed_environment() -> Any:
    """Return lm-eval's environment of templates as a sandbox: a template reads its document and nothing else.

    Whatever lm-eval renders by itself is rendered here too from then on.
    """
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    harness_environment = utils.env
    environment = SandboxedEnvironment(
        undefined=harness_environment.undefined,
        keep_trailing_newline=harness_environment.keep_trailing_newline,
    )
    environment.filters.update(harness_environment.filters)
    utils.env = environment
    utils.apply_template = render_template
    return environment


def _walk_strings(value: Any) -> Iterator[str]:
    """Give every text in a definition."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _walk_strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _walk_strings(inner)


@cache
def _bridged_class() -> Any:
    """Derive a task class that takes its data from us."""
    from lm_eval.api.task import ConfigurableTask

    sandboxed_environment()

    class BridgedTask(ConfigurableTask):  # type: ignore[misc]
        """A harness task on given data."""

        def __init__(
            self, data: Mapping[str, Dataset], config: dict[str, Any], is_limited: bool
        ) -> None:
            self._given_data = data
            if is_limited:
                _user_templates.update(_walk_strings(config))
            super().__init__(config=config)
            if is_limited:
                _limit_patterns(self)

        def download(self, *_: Any, **__: Any) -> None:
            self.dataset = dict(self._given_data)

        def doc_to_prefix(self, doc: Mapping[str, Any]) -> Any:
            return super().doc_to_prefix(doc) or None

        def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
            source = self.config.doc_to_choice if doc_to_choice is None else doc_to_choice
            ask_harness = partial(super().doc_to_choice, doc, source)
            try:
                if not isinstance(source, str) or source in self.features:
                    return ask_harness()
                return _make_once(doc, f"choices {source}", ask_harness)
            except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
                problem = f"{self.config.task}: doc_to_choice gives no list of choices: {source!r}"
                raise TaskError(problem[:300]) from error

    return BridgedTask


# --- regular expressions ---------------------------------------------------------------------------------------------


class _LimitedPattern:
    """A compiled regular expression of a user's file, matched in a process with limits."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def findall(self, text: str) -> list[Any]:
        matches: list[Any] = _within_limits(limited.find_matches, self.pattern, text)
        return matches


def _within_limits(act: Callable[[str, Any], Any], source: str, value: Any) -> Any:
    """Do something with a user's template or pattern in the process with limits."""
    try:
        return act(source, value)
    except limited.LimitError as error:
        kind = "template" if act is limited.render_template else "regular expression"
        raise TaskError(f"the {kind} {source[:80]!r} cannot be used: {error}") from None


def _limit_patterns(task: Any) -> None:
    """Have the regular expressions of a task's filters and metrics matched in a process with limits."""
    for ensemble in task._filters:
        ensemble.filters = [partial(_make_limited_filter, make) for make in ensemble.filters]
    for name, settings in task._metric_fn_kwargs.items():
        patterns = settings.pop("regexes_to_ignore", None)
        if patterns is not None:
            metric = task._metric_fn_list[name]
            task._metric_fn_list[name] = partial(_call_without_matches, metric, list(patterns))


def _make_limited_filter(make: Callable[[], Any]) -> Any:
    """Make a filter of lm-eval whose regular expression is matched within limits."""
    made_filter = make()
    if hasattr(made_filter, "regex_pattern"):
        made_filter.regex = _LimitedPattern(made_filter.regex_pattern)
    if getattr(made_filter, "regexes_to_ignore", None) and not is_allowed(CODE):
        raise TaskError(
            "a filter with regexes_to_ignore needs --allow code; a metric may have them"
        )
    return made_filter


def _call_without_matches(metric: Callable[..., Any], patterns: list[str], **arguments: Any) -> Any:
    """Call a metric on texts without what its patterns match, as lm-eval's ``exact_match`` does."""
    for side in ("predictions", "references"):
        for pattern in patterns:
            arguments[side] = [
                _within_limits(limited.remove_matches, pattern, text) for text in arguments[side]
            ]
    return metric(**arguments)


# --- the fingerprint: changes with anything that can change a score, and with nothing else ---------------------------

# Keys of a definition that say where the data came from, not what is asked; the data themselves are hashed.
_ORIGIN_KEYS = {
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "tag",
    "group",
    "task_list",
    "metadata",
    LIMITED,  # who wrote it plays no part either
}
_FILE_KEYS = {"data_files", "data_dir"}  # where a definition names its files: a folder may be moved


def fingerprint_definition(
    config: Mapping[str, Any], documents: Iterable[tuple[str, int, Mapping[str, Any]]]
) -> str:
    """Hash a definition and its documents (split, id, content); the order of keys plays no part."""
    digest = hashlib.sha256()
    digest.update(canonical_json(describe_definition(config)).encode())
    for split, number, document in documents:
        digest.update(f"\n{split}:{number}:".encode())
        digest.update(canonical_json(document).encode())
    return digest.hexdigest()


def describe_definition(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition as plain values: functions by name and by the text of the file that holds them."""
    described = {}
    for key, value in config.items():
        if key not in _ORIGIN_KEYS and value is not None:
            described[key] = _describe_value(value)
    return described


def canonical_json(value: Any) -> str:
    """Write a value as JSON with sorted keys, the same in every process."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def _describe_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        described = {}
        for key, inner in value.items():
            if key not in _FILE_KEYS:
                described[str(key)] = _describe_value(inner)
        return described
    if isinstance(value, (list, tuple)):
        return [_describe_value(inner) for inner in value]
    return _describe_function(value) if callable(value) else value


def _describe_function(function: Any) -> Any:
    """Return what can change the results of a function: what it says itself, else its name, file and bound values."""
    parts = getattr(function, "fingerprint_parts", None)
    if parts is not None:
        return _describe_value(parts)
    arguments = getattr(function, "args", ())  # of a functools.partial
    keywords = getattr(function, "keywords", {})
    has_bound_values = any((arguments, keywords))
    return {
        "function": getattr(function, "__qualname__", type(function).__qualname__),
        "source": _hash_source(function),
        "bound": _describe_value([arguments, keywords]) if has_bound_values else None,
    }


def _hash_source(function: Any) -> str:
    """Hash the file that holds a function."""
    function = getattr(function, "func", function)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return ""
    return _hash_file(file) if file else ""


@lru_cache(maxsize=256)
def _hash_file(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""

"""The bridge to lm-eval (the harness): its own task objects, built on datasets that Potentia has read.

So prompts, filters and metrics are lm-eval's to the last character. Beside the bridge stand two things that every
definition goes through: its templates and regular expressions, which run within limits of time and memory if they are
a user's (*untrusted*), and its fingerprint, which changes with anything that can change a score.
"""

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
from potentia.tasks.data import UNTRUSTED, silence_libraries
from potentia.tasks.forms import OWN_KEYS

if TYPE_CHECKING:
    from datasets import Dataset
    from jinja2 import Template
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval.api.task import ConfigurableTask

SAMPLE_ROWS = 8  # of each split but the evaluated one, which lm-eval's constructor gets to see
CACHED_DOCUMENTS = 5_000  # whose rendered texts are kept at most
# The key of a definition that names the benchmark's train, validation or test split.
SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}


def build_harness_task(
    definition: Mapping[str, Any], datasets_by_split: Mapping[str, Dataset]
) -> ConfigurableTask:
    """Return lm-eval's task object for a definition, on these datasets by the benchmark's names of splits.

    A split that the definition names and the datasets lack counts as not named. lm-eval's constructor prepares the
    split that it evaluates on (test, else validation, else train), so that it gets that one whole. It also lists every
    document of the split that few-shot examples come from, so that of all other splits it gets only a few rows.
    Potentia sets the examples itself for each prompt.
    """
    harness_config = _prepare_config(definition, datasets_by_split)
    evaluated = harness_config.get("test_split") or harness_config.get("validation_split")
    has_only_train = evaluated is None
    if has_only_train:  # lm-eval needs a split to evaluate on
        evaluated = harness_config["test_split"] = harness_config.get("training_split")
    if evaluated is None:
        raise TaskError(
            f"{definition.get('task')} finds none of its splits here",
            hint=f"the data hold: {', '.join(datasets_by_split) or 'nothing'}",
        )
    small_datasets = {}
    for split_name, dataset in datasets_by_split.items():
        if split_name == evaluated:
            small_datasets[split_name] = dataset
        else:
            small_datasets[split_name] = dataset.select(range(min(SAMPLE_ROWS, len(dataset))))
    is_untrusted = bool(definition.get(UNTRUSTED))
    harness_task = _construct_task(harness_config, small_datasets, is_untrusted)
    if has_only_train:
        harness_task.config.test_split = None
    harness_task.dataset = dict(datasets_by_split)
    return harness_task


def _construct_task(
    harness_config: dict[str, object], datasets_by_split: Mapping[str, Dataset], is_untrusted: bool
) -> ConfigurableTask:
    """Call lm-eval's constructor; whatever it raises becomes a ``TaskError``."""
    with silence_libraries():
        try:
            return _derive_task_class()(datasets_by_split, harness_config, is_untrusted)
        except TaskError:
            raise
        except Exception as error:  # a definition's own code may raise anything
            problem = f"{type(error).__name__}: {error}"
            message = f"{harness_config.get('task')} cannot be built on these data: {problem}"
            raise TaskError(
                message.splitlines()[0],
                hint="the columns or labels may not be those that the task definition reads",
            ) from error


def _prepare_config(
    definition: Mapping[str, object], datasets_by_split: Mapping[str, Dataset]
) -> dict[str, object]:
    """Return a definition as lm-eval's constructor takes it: without absent splits, and without Potentia's own keys."""
    harness_config = _unset_absent_splits(
        definition, datasets_by_split, (*SPLIT_KEYS.values(), "fewshot_split")
    )
    for key in ("tag", "group", "task_list", UNTRUSTED, *OWN_KEYS):
        harness_config.pop(key, None)
    few_shot = harness_config.get("fewshot_config")
    if isinstance(few_shot, dict):
        harness_config["fewshot_config"] = _unset_absent_splits(
            few_shot, datasets_by_split, ("split",)
        )
    metadata = harness_config.get("metadata")
    if isinstance(metadata, dict):
        harness_config["metadata"] = dict(metadata)
    else:
        harness_config["metadata"] = {"_metadata": metadata}
    return harness_config


def _unset_absent_splits(
    settings: Mapping[str, object], datasets_by_split: Mapping[str, Dataset], keys: Iterable[str]
) -> dict[str, object]:
    """Return settings in which each of these keys is None if it names a split that the data lack."""
    present_settings = dict(settings)
    for key in keys:
        if settings.get(key) is not None and str(settings[key]) not in datasets_by_split:
            present_settings[key] = None
    return present_settings


# --- templates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DocumentCache:
    """What was rendered of one document, by template.

    It holds the document: as long as the entry lives, Python gives the document's id to no other object.
    """

    document: Mapping[str, object]
    value_by_template: dict[str, object]


_cache_by_document: dict[int, _DocumentCache] = {}  # by the id() of a document
_user_templates: set[str] = set()  # all strings in definitions from users' files


def render_template(source: str, document: Mapping[str, object]) -> str:
    """Render a template for a document as lm-eval does; a user's template in a process with limits.

    It takes the place of lm-eval's ``apply_template``.
    """

    def render() -> object:
        if source in _user_templates:
            return _run_in_limited_process(limited.render_template, source, document)
        return _compile_template(source).render(**document)

    return str(_compute_once(document, source, render))


def _compute_once(
    document: Mapping[str, object], template: str, compute: Callable[[], object]
) -> Any:
    """Return what a template makes of a document, from the cache where it can.

    lm-eval asks for a document's choices ten times, and again in every prompt that shows it as an example.
    """
    document_cache = _cache_by_document.get(id(document))
    if document_cache is None or document_cache.document is not document:
        if len(_cache_by_document) >= CACHED_DOCUMENTS:
            _cache_by_document.clear()
        document_cache = _DocumentCache(document, {})
        _cache_by_document[id(document)] = document_cache
    if template not in document_cache.value_by_template:
        document_cache.value_by_template[template] = compute()
    return copy(document_cache.value_by_template[template])


@lru_cache(maxsize=512)
def _compile_template(source: str) -> Template:
    """Compile a prompt template once; lm-eval compiles it again for every document."""
    return sandboxed_environment().from_string(source)


@cache
def sandboxed_environment() -> SandboxedEnvironment:
    """Return lm-eval's jinja environment as a sandbox: a template reads its document and nothing else.

    From then on lm-eval itself renders with ``render_template`` and this environment.
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


def _walk_strings(value: object) -> Iterator[str]:
    """Yield every string in a definition."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _walk_strings(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _walk_strings(member)


@cache
def _derive_task_class() -> type[ConfigurableTask]:
    """Return a subclass of lm-eval's task class that is given its datasets instead of downloading them."""
    from lm_eval.api.task import ConfigurableTask

    sandboxed_environment()

    class BridgedTask(ConfigurableTask):  # type: ignore[misc]
        """lm-eval's task on given datasets; a user's templates and patterns run within limits."""

        def __init__(
            self,
            datasets_by_split: Mapping[str, Dataset],
            config: dict[str, object],
            is_untrusted: bool,
        ) -> None:
            self._datasets_by_split = datasets_by_split
            if is_untrusted:
                _user_templates.update(_walk_strings(config))
            super().__init__(config=config)
            if is_untrusted:
                _limit_patterns(self)

        def download(self, *_: object, **__: object) -> None:
            self.dataset = dict(self._datasets_by_split)

        def doc_to_prefix(self, doc: Mapping[str, object]) -> Any:
            return super().doc_to_prefix(doc) or None

        def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
            source = self.config.doc_to_choice if doc_to_choice is None else doc_to_choice
            compute_choices = partial(super().doc_to_choice, doc, source)
            try:
                if not isinstance(source, str) or source in self.features:
                    return compute_choices()  # no template: a function, a list or a column
                return _compute_once(doc, f"choices {source}", compute_choices)
            except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
                problem = f"{self.config.task}: doc_to_choice gives no list of choices: {source!r}"
                raise TaskError(problem[:300]) from error

    return BridgedTask


# --- regular expressions ---------------------------------------------------------------------------------------------


class _LimitedPattern:
    """Stands for a compiled regular expression of a user's file; it is matched in a process with limits."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def findall(self, text: str) -> list[str | tuple[str, ...]]:
        matches: list[str | tuple[str, ...]] = _run_in_limited_process(
            limited.find_matches, self.pattern, text
        )
        return matches


def _run_in_limited_process(operation: Callable[[str, Any], Any], source: str, value: Any) -> Any:
    """Apply an operation of ``limited`` to a user's template or pattern; an excess of time or memory is a TaskError."""
    try:
        return operation(source, value)
    except limited.LimitError as error:
        kind = "template" if operation is limited.render_template else "regular expression"
        raise TaskError(f"the {kind} {source[:80]!r} cannot be used: {error}") from None


def _limit_patterns(task: ConfigurableTask) -> None:
    """Change a task so that the regular expressions of its filters and metrics are matched in a process with limits."""
    for ensemble in task._filters:
        ensemble.filters = [
            partial(_make_limited_filter, make_filter) for make_filter in ensemble.filters
        ]
    for metric_name, settings in task._metric_fn_kwargs.items():
        patterns = settings.pop("regexes_to_ignore", None)
        if patterns is not None:
            metric = task._metric_fn_list[metric_name]
            task._metric_fn_list[metric_name] = partial(
                _compute_ignoring_matches, metric, list(patterns)
            )


def _make_limited_filter(make_filter: Callable[[], Any]) -> object:
    """Return a filter of lm-eval's whose regular expression is matched within limits."""
    harness_filter = make_filter()
    if hasattr(harness_filter, "regex_pattern"):
        harness_filter.regex = _LimitedPattern(harness_filter.regex_pattern)
    if getattr(harness_filter, "regexes_to_ignore", None) and not is_allowed(CODE):
        raise TaskError(
            "a filter with regexes_to_ignore needs --allow code; a metric may have them"
        )
    return harness_filter


def _compute_ignoring_matches(
    metric: Callable[..., Any], patterns: list[str], **arguments: Any
) -> object:
    """Compute a metric of texts after removing what the patterns match, as lm-eval's ``exact_match`` does."""
    for argument_name in ("predictions", "references"):
        for pattern in patterns:
            arguments[argument_name] = [
                _run_in_limited_process(limited.remove_matches, pattern, text)
                for text in arguments[argument_name]
            ]
    return metric(**arguments)


# --- the fingerprint: changes with anything that can change a score, and with nothing else ---------------------------

# Keys of a definition that say where its data come from; not hashed, since the documents themselves are.
_ORIGIN_KEYS = {
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "tag",
    "group",
    "task_list",
    "metadata",
    UNTRUSTED,  # who wrote it plays no part either
}
_FILE_KEYS = {"data_files", "data_dir"}  # where a definition names its files: a folder may be moved


def fingerprint_definition(
    definition: Mapping[str, object], documents: Iterable[tuple[str, int, Mapping[str, object]]]
) -> str:
    """Return the hash of a definition and its documents (split, id, content); the order of keys plays no part."""
    digest = hashlib.sha256()
    digest.update(canonical_json(describe_definition(definition)).encode())
    for split, number, document in documents:
        digest.update(f"\n{split}:{number}:".encode())
        digest.update(canonical_json(document).encode())
    return digest.hexdigest()


def describe_definition(definition: Mapping[str, object]) -> dict[str, object]:
    """Return a definition as plain values, to be hashed: each function by its name and the hash of its file."""
    plain_definition = {}
    for key, value in definition.items():
        if key not in _ORIGIN_KEYS and value is not None:
            plain_definition[key] = _describe_value(value)
    return plain_definition


def canonical_json(value: object) -> str:
    """Return a value as JSON with sorted keys, the same in every process."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def _describe_value(value: object) -> object:
    if isinstance(value, Mapping):
        plain_members = {}
        for key, member in value.items():
            if key not in _FILE_KEYS:
                plain_members[str(key)] = _describe_value(member)
        return plain_members
    if isinstance(value, (list, tuple)):
        return [_describe_value(member) for member in value]
    return _describe_function(value) if callable(value) else value


def _describe_function(function: object) -> object:
    """Return what stands for a function in a fingerprint, as plain values.

    That is its attribute ``fingerprint_parts`` if it has one, else its name, the hash of the file that holds it, and
    the values bound to it. With ``fingerprint_parts`` an edit of the file that changes no score keeps stored results.
    """
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
    """Return the hash of the file that holds a function; empty if it has none."""
    function = getattr(function, "func", function)
    try:
        source_file = inspect.getsourcefile(function)
    except TypeError:
        return ""
    return _hash_file(source_file) if source_file else ""


@lru_cache(maxsize=256)
def _hash_file(source_file: str) -> str:
    try:
        return hashlib.sha256(Path(source_file).read_bytes()).hexdigest()
    except OSError:
        return ""

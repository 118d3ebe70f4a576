"""The bridge to lm-eval: its own task objects on our data, so that prompts, filters and metrics are the harness's."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
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

# The public split behind each of ours, as the keys of a task's config.
SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}


def build_harness_task(config: Mapping[str, Any], data: Mapping[str, Dataset]) -> Any:
    """Make lm-eval's task object for a definition, on the splits at hand.

    A split that the definition names and the data lack is absent. The constructor lists all few-shot documents, so it
    sees a handful of the training rows; ours come later, from the split plan.
    """
    limits = bool(config.get(LIMITED))
    config = _present(config, data)
    evaluated = config.get("test_split") or config.get("validation_split")
    only_train = evaluated is None
    if only_train:
        evaluated = config["test_split"] = config.get(
            "training_split"
        )  # lm-eval asks for a split to evaluate on
    if evaluated is None:
        raise TaskError(
            f"{config.get('task')} finds none of its splits here",
            hint=f"the data hold: {', '.join(data) or 'nothing'}",
        )
    sample = {
        name: split if name == evaluated else split.select(range(min(8, len(split))))
        for name, split in data.items()
    }
    with silence_libraries():
        try:
            task = _bridged()(sample, config, limits)
        except TaskError:
            raise
        except Exception as error:  # a definition's own code may raise anything
            raise TaskError(
                f"{config.get('task')} cannot be built on these data: {type(error).__name__}: {error}".splitlines()[
                    0
                ],
                hint="the columns or labels may not be those that the task definition reads",
            ) from error
    if only_train:
        task.config.test_split = None
    task.dataset = dict(data)
    return task


def _present(config: Mapping[str, Any], data: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return the definition without the splits that the data lack and without the keys that only an index needs."""

    def there(settings: Mapping[str, Any], *keys: str) -> dict[str, Any]:
        absent = {
            key: None
            for key in keys
            if settings.get(key) is not None and str(settings[key]) not in data
        }
        return {**settings, **absent}

    kept = there(config, *SPLIT_KEYS.values(), "fewshot_split")
    for key in ("tag", "group", "task_list", LIMITED, *OWN_KEYS):
        kept.pop(key, None)
    if isinstance(shots := kept.get("fewshot_config"), dict):
        kept["fewshot_config"] = there(shots, "split")
    metadata = kept.get("metadata")
    kept["metadata"] = dict(metadata) if isinstance(metadata, dict) else {"_metadata": metadata}
    return kept


REMEMBERED = 5_000  # documents whose texts are kept
_texts: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}  # by document
_users: set[str] = set()  # templates of definitions from users' files


def render_template(source: str, doc: Mapping[str, Any]) -> str:
    """Render a template as lm-eval does: here where it is lm-eval's, in a process with limits where it is a user's."""
    if source in _users:
        return str(_once(doc, source, lambda: _in_limits(limited.render_template, source, doc)))
    return str(_once(doc, source, lambda: _template(source).render(**doc)))


def _once(doc: Mapping[str, Any], what: str, make: Callable[[], Any]) -> Any:
    """Make something of a document once: its choices are asked for ten times, and again in prompts that show it."""
    held = _texts.get(id(doc))
    if held is None or held[0] is not doc:
        if len(_texts) >= REMEMBERED:
            _texts.clear()
        held = _texts[id(doc)] = doc, {}
    if what not in held[1]:
        held[1][what] = make()
    return copy(held[1][what])


@lru_cache(maxsize=512)
def _template(source: str) -> Any:
    """Compile a prompt template once; lm-eval compiles it again for every document."""
    return sandboxed_environment().from_string(source)


@cache
def sandboxed_environment() -> Any:
    """Return lm-eval's environment of templates as a sandbox: a template reads its document and nothing else."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    theirs = utils.env
    made = SandboxedEnvironment(
        undefined=theirs.undefined, keep_trailing_newline=theirs.keep_trailing_newline
    )
    made.filters.update(theirs.filters)
    utils.env, utils.apply_template = (
        made,
        render_template,
    )  # whatever lm-eval renders by itself is rendered here too
    return made


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


@cache
def _bridged() -> Any:
    """Derive a task class that takes its data from us."""
    from lm_eval.api.task import ConfigurableTask

    sandboxed_environment()

    class Bridged(ConfigurableTask):  # type: ignore[misc]
        """A harness task on given data."""

        def __init__(
            self, data: Mapping[str, Dataset], config: dict[str, Any], limits: bool
        ) -> None:
            self._given = data
            if limits:
                _users.update(_strings(config))
            super().__init__(config=config)
            if limits:
                _limit_patterns(self)

        def download(self, *_: Any, **__: Any) -> None:
            self.dataset = dict(self._given)

        def doc_to_prefix(self, doc: Mapping[str, Any]) -> Any:
            return super().doc_to_prefix(doc) or None

        def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
            source = self.config.doc_to_choice if doc_to_choice is None else doc_to_choice
            try:
                if not isinstance(source, str) or source in self.features:
                    return super().doc_to_choice(doc, source)
                return _once(
                    doc,
                    f"choices {source}",
                    lambda: super(Bridged, self).doc_to_choice(doc, source),
                )
            except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
                told = f"{self.config.task}: doc_to_choice gives no list of choices: {source!r}"
                raise TaskError(told[:300]) from error

    return Bridged


class _Pattern:
    """A compiled regular expression of a user's file, matched in a process with limits."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def findall(self, text: str) -> list[Any]:
        found: list[Any] = _in_limits(limited.find_matches, self.pattern, text)
        return found


def _in_limits(act: Callable[[str, Any], Any], source: str, given: Any) -> Any:
    try:
        return act(source, given)
    except limited.LimitError as error:
        what = "template" if act is limited.render_template else "regular expression"
        raise TaskError(f"the {what} {source[:80]!r} cannot be used: {error}") from None


def _limit_patterns(task: Any) -> None:
    """Have the regular expressions of a task's filters and metrics matched in a process with limits."""

    def made(make: Callable[[], Any]) -> Any:
        kept = make()
        if hasattr(kept, "regex_pattern"):
            kept.regex = _Pattern(kept.regex_pattern)
        if getattr(kept, "regexes_to_ignore", None) and not is_allowed(CODE):
            raise TaskError(
                "a filter with regexes_to_ignore needs --allow-code; a metric may have them"
            )
        return kept

    for ensemble in task._filters:
        ensemble.filters = [partial(made, make) for make in ensemble.filters]
    for name, settings in task._metric_fn_kwargs.items():
        patterns = settings.pop("regexes_to_ignore", None)
        if patterns is not None:
            task._metric_fn_list[name] = partial(
                _without, task._metric_fn_list[name], list(patterns)
            )


def _without(metric: Callable[..., Any], patterns: list[str], **given: Any) -> Any:
    """Call a metric on texts without what its patterns match, as lm-eval's ``exact_match`` does."""
    for side in ("predictions", "references"):
        for pattern in patterns:
            given[side] = [
                _in_limits(limited.remove_matches, pattern, text) for text in given[side]
            ]
    return metric(**given)


# --- the fingerprint: changes with anything that can change a score, and with nothing else ---------------------------

# Keys of a definition that say where the data came from, not what is asked; the data themselves are hashed.
_PLACE = {
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "custom_dataset",
    "tag",
    "group",
    "task_list",
    "metadata",
}
_PLACE |= {LIMITED}  # who wrote it plays no part either


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
    return {
        key: _described(value)
        for key, value in config.items()
        if key not in _PLACE and value is not None
    }


def canonical_json(value: Any) -> str:
    """Write a value as JSON with sorted keys, the same in every process."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


_FILES = {"data_files", "data_dir"}  # where a definition names its files: a folder may be moved


def _described(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _described(inner) for key, inner in value.items() if key not in _FILES}
    if isinstance(value, (list, tuple)):
        return [_described(inner) for inner in value]
    if callable(value):
        parts = getattr(value, "fingerprint_parts", None)
        if parts is not None:
            return _described(parts)
        name = getattr(value, "__qualname__", type(value).__qualname__)
        inside = getattr(value, "args", ()), getattr(value, "keywords", {})  # functools.partial
        return {
            "function": name,
            "source": _source(value),
            "bound": _described(list(inside)) if any(inside) else None,
        }
    return value


def _source(function: Any) -> str:
    function = getattr(function, "func", function)
    try:
        file = inspect.getsourcefile(function)
        return _file_hash(file) if file else ""
    except TypeError:
        return ""


@lru_cache(maxsize=256)
def _file_hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""

"""A study read from its file, and named by its content.

The file and the flags become one raw value, which is validated once.
Every problem is told at once, each with its line in the file (or its flag) and the nearest known name. A path in the
file is read from the file's own folder when it exists there; a path given as a flag, from the working directory.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from potentia.errors import StudyError
from potentia.facts import Kind
from potentia.files import read_yaml
from potentia.study.schema import Study
from potentia.values.protocol import (
    ADJUST,
    TRAIN_BEFORE_TEST,
    Protocol,
    TaskName,
    UnknownProtocolError,
)
from potentia.values.sampling import SamplePlan

FieldPath = tuple[str | int, ...]  # the way to a field of a study: ("models", 0, "path")


def read_study(path: str | Path | None, flags: Mapping[str, Any] | None = None) -> Study:
    """Read a study file, or none, with ``flags`` over it: a nested mapping of fields, in which None says nothing."""
    given_flags = _drop_unset(flags or {})
    if path is None:
        return make_study(given_flags, flags=given_flags)
    file = Path(path)
    raw, node = read_yaml(file, description="the study file", error=StudyError)
    if node is None or not isinstance(raw, dict):
        raise StudyError(
            "a study file holds `models:`, `tasks:` and so on at its top level", where=str(file)
        )
    if not all(isinstance(field, str) for field in raw):
        raise StudyError("a study's keys are words", where=str(file))
    # The same study, from whatever folder it is read.
    anchored = _anchor_paths(raw, (), file.parent.resolve())
    merged = _merge_flags(anchored, given_flags)
    lines = dict(_number_lines(node, ()))
    return make_study(merged, source=str(file), lines=lines, flags=given_flags)


def make_study(
    raw: Mapping[str, Any],
    *,
    source: str | None = None,
    lines: Mapping[FieldPath, int] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Study:
    """Validate a mapping as a Study; all its problems are told in one error."""
    try:
        study = Study.model_validate(dict(raw))
    except ValidationError as error:
        problems = [
            _describe_problem(item, source, lines or {}, flags or {})
            for item in _drop_consequences(error.errors())
        ]
        if len(problems) == 1:
            raise StudyError(problems[0]) from None
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise StudyError(f"{len(problems)} problems in the study\n{listed}") from None
    try:
        study.model_dump_json()
    except ValueError:  # a flag with bytes that are no text; no store could hold it
        raise StudyError("a name or path in the study is no Unicode text") from None
    return study


def _drop_consequences(items: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the problems without those lists that are too short only because a member of theirs is wrong."""
    faulty_parents: set[FieldPath] = set()
    for item in items:
        path = item["loc"]
        faulty_parents.update(path[:length] for length in range(len(path)))
    causes = []
    for item in items:
        if item["type"] != "too_short" or item["loc"] not in faulty_parents:
            causes.append(item)
    return causes


# --- the file --------------------------------------------------------------------------------------------------------


def _number_lines(node: yaml.Node, path: FieldPath) -> Iterator[tuple[FieldPath, int]]:
    """Give the line of every field in a file."""
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner_path = (*path, str(key.value))
            yield from _number_lines(value, inner_path)
            yield inner_path, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _number_lines(value, (*path, index))


# Where a study file holds paths; "*" is any member of a list. A model or a task may also be its path alone.
_PATH_FIELDS = {
    ("models", "*", "path"),
    ("models", "*", "adapter"),
    ("models", "*", "checkpoints"),
    ("models", "*", "checkpoints", "*", "path"),
    ("tasks", "*", "file"),
    ("adjust", "data"),
    ("treat", "data", "*"),
    ("data_dir",),
    ("facts",),
}
_RECORD_FIELDS = {("models", "*"): "path", ("tasks", "*"): "file"}


def _anchor_paths(value: Any, field_path: tuple[Any, ...], folder: Path) -> Any:
    """Put the file's folder before the relative paths that exist in it."""
    if isinstance(value, dict):
        return {
            key: _anchor_paths(inner, (*field_path, key), folder) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_anchor_paths(inner, (*field_path, "*"), folder) for inner in value]
    may_be_path = field_path in _PATH_FIELDS or field_path in _RECORD_FIELDS
    if isinstance(value, str) and may_be_path:
        return _anchor_path(value, field_path, folder)
    return value


def _anchor_path(value: str, field_path: tuple[Any, ...], folder: Path) -> Any:
    anchored = str(folder / value)
    bare_path = value
    if not _exists(folder / value):
        # A task file may carry a prompt form: tasks/own.yaml:blank_ppl.
        bare_path = TaskName(value).base
    is_relative = bool(bare_path) and not Path(bare_path).is_absolute()
    if not is_relative or not _exists(folder / bare_path) or anchored == value:
        return value
    if field_path not in _RECORD_FIELDS:
        return anchored
    # The name of a benchmark is no path because a folder has that name too.
    looks_like_path = "/" in value or Path(bare_path).suffix
    if not looks_like_path:
        return value
    return {"name": value, _RECORD_FIELDS[field_path]: anchored}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL in it: no path
        return False


# --- the flags -------------------------------------------------------------------------------------------------------


def _drop_unset(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, at every depth."""
    given_flags: dict[str, Any] = {}
    for field, value in flags.items():
        given_value = _drop_unset(value) if isinstance(value, Mapping) else value
        if given_value is not None and given_value != {}:
            given_flags[field] = given_value
    return given_flags


def _merge_flags(raw: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the file with the flags over them."""
    merged = dict(raw)
    for field, value in flags.items():
        file_value = merged.get(field)
        if isinstance(value, Mapping) and isinstance(file_value, dict):
            merged[field] = _merge_flags(file_value, value)
        elif not isinstance(value, Mapping) or file_value is None:
            merged[field] = value
        # else the file has no mapping where one belongs, and validation says so with its line
    return merged


# --- problems in words -----------------------------------------------------------------------------------------------


def _describe_problem(
    item: ErrorDetails,
    source: str | None,
    lines: Mapping[FieldPath, int],
    flags: Mapping[str, Any],
) -> str:
    """Return one sentence: the flag, or the file and its line, then the field and what is wrong with it."""
    path: FieldPath = tuple(item["loc"])
    location = _find_flag(path, flags)
    if location is None:
        line = _find_line(path, lines)
        location = ":".join(str(part) for part in (source, line) if part is not None)
    field_name = ".".join(str(part) for part in path) or "study"
    problem = f"{field_name}: {_describe_error(item, path)}"
    return f"{location}: {problem}" if location else problem


def _find_line(path: FieldPath, lines: Mapping[FieldPath, int]) -> int | None:
    """Return the line of a field, or of the nearest one around it that the file has."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _describe_error(item: ErrorDetails, path: FieldPath) -> str:
    if item["type"] == "missing":
        return "this key is missing"
    if item["type"] == "too_short":
        return "name at least one"
    if item["type"] == "extra_forbidden":
        return _describe_unknown_key(path)
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    error = (item.get("ctx") or {}).get("error")
    if isinstance(error, UnknownProtocolError) or not isinstance(value, (str, int, float)):
        return message  # which names the value already, or nothing could
    return f"{message} (it is {value!r})"


def _describe_unknown_key(path: FieldPath) -> str:
    known_keys = _fields_at(path[:-1])
    nearest = difflib.get_close_matches(str(path[-1]), known_keys, n=1, cutoff=0.5)
    if nearest:
        return f"unknown key; did you mean `{nearest[0]}`?"
    return f"unknown key; known here: {', '.join(known_keys)}"


def _find_flag(path: FieldPath, flags: Mapping[str, Any]) -> str | None:
    """Return the flag that gave the value of this field; None where none did."""
    flags_below: Any = flags
    for position, part in enumerate(path):
        if not isinstance(flags_below, Mapping) or part not in flags_below:
            return None
        flags_below = flags_below[part]
        if not isinstance(flags_below, Mapping):
            return _name_flag(path[: position + 1])
    return None


_FIELDS_WITH_FLAG = {
    "models",
    "tasks",
    "protocols",
    "drop_bad_rows",
    "data_dir",
    "store",
    "device",
}


def _name_flag(path: FieldPath) -> str:
    """Return how the command line gives a field: by a flag of its own, or by ``--set``."""
    if path[0] in _FIELDS_WITH_FLAG:
        return f"--{str(path[0]).replace('_', '-')}"
    return f"--set {'.'.join(map(str, path))}"


def _fields_at(path: FieldPath) -> list[str]:
    """Return the known keys of the record at this place of a study."""
    record: type[BaseModel] = Study
    for part in path:
        field = record.model_fields.get(str(part))
        if field is not None:
            record = _find_record(field.annotation) or record
    return sorted(record.model_fields)


def _find_record(annotation: Any) -> type[BaseModel] | None:
    """Return the first record that a type holds, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        record = _find_record(argument)
        if record is not None:
            return record
    return None


# --- content keys: all that can change a score, and nothing else ------------------------------------------------------

# Raise this when a change of the scoring code can change a score: older cells are then computed anew.
SCORING_VERSION = 1

# Fields that say where and how fast to compute, but not what.
_FIELDS_WITHOUT_EFFECT = {
    "probe",
    "store",
    "device",
    "shards",
    "token_budget",
    "name",
    "data_dir",
    "keep_adapters",
    "price",
}


def canonical(value: Any) -> Any:
    """Reduce to plain JSON values, so that key order, tuples against lists and 1 against 1.0 do not matter."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        included_names = [name for name, field in fields.items() if not field.exclude]
        return {name: canonical(getattr(value, name)) for name in included_names}
    if isinstance(value, dict):
        return {str(key): canonical(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(member) for member in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def content_key(**parts: Any) -> str:
    """Hash named parts into a key of 32 hexadecimal digits."""
    text = json.dumps(canonical(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def study_key(study: Study) -> str:
    """Name the study by its content and its name; where it runs does not matter."""
    return content_key(
        name=study.name,
        study=study.model_dump(mode="json", exclude=_FIELDS_WITHOUT_EFFECT, exclude_defaults=True),
    )


def cell_key(
    study: Study,
    model: str,
    task: str,
    protocol: Protocol,
    *,
    kind: Kind | None,
    shots: int | None = None,
    rates: Sequence[float] | None = None,
    auxiliary: str | None = None,
    seeds: int | None = None,
    samples: SamplePlan | None = None,
) -> str:
    """Name everything that can change this cell's score; model, task and auxiliary data by their fingerprints.

    ``kind`` is what decides, before the tokenizer does, whether the model may be asked through a chat template.
    ``shots`` are the examples before a question where they are not the protocol's, ``rates`` a model's own, ``seeds``
    the fine-tunings of this cell where they are not the study's, ``samples`` how its answers are sampled.
    """
    parts: dict[str, Any] = {
        "scoring": SCORING_VERSION,
        "model": model,
        "dtype": study.dtype,
        "chat": study.chat,
        "task": task,
        "protocol": protocol,
        "seed": study.seed,
    }
    if protocol in (TRAIN_BEFORE_TEST, ADJUST):
        parts |= {
            "tuning": study.tuning,
            "selection": study.selection,
            "seeds": seeds or study.seeds,
        }
    if shots is not None and shots != protocol.shots:
        parts["shots"] = shots
    if protocol == ADJUST and study.adjust is not None:
        parts["adjust"] = {
            "recipe": study.adjust.recipe,
            "tuning": study.adjust.tuning,
            "at_steps": study.adjust.at_steps,
            "every_rate": study.adjust.every_rate,
        }
        parts["adjust_data"] = auxiliary  # of its data the content counts
        parts["rates"] = rates
    if kind is not None and kind.value == "base" and study.chat != "never":
        parts["kind"] = "base"
    if samples is not None:
        parts["samples"] = samples.describe()
    return content_key(**parts)


def step_key(key: str, step: int) -> str:
    """Return the key of an adjust cell's score after some optimizer steps."""
    return content_key(cell=key, step=step)


def renamed(key: str, model: str, task: str) -> str:
    """Return the key of the copy of a cell under these names, where the store has it under others."""
    return content_key(cell=key, model=model, task=task)

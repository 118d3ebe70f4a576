"""Reading a study from its YAML file and the flags of the command line; the keys by which its results are stored.

Flags override the fields of the file, and the result is validated once. An error lists all problems, each with its line
in the file (or its flag) and the nearest known name. A relative path in the file is relative to the file's folder, if
it exists there; a path in a flag is relative to the working directory.

A key is a hash of everything that can change a score: of a study (``study_key``) or of one cell, that is model × task ×
protocol (``cell_key``).
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

from potentia.errors import InputError, StudyError
from potentia.facts import Kind
from potentia.files import read_yaml
from potentia.study.checkpoints import CheckpointsError
from potentia.study.schema import Study
from potentia.study.tuning import Tuning
from potentia.values.protocol import (
    ADJUST,
    TRAIN_BEFORE_TEST,
    Protocol,
    TaskName,
    UnknownProtocolError,
)
from potentia.values.sampling import SamplePlan

FieldPath = tuple[str | int, ...]
"""The keys and positions that lead to a field of a study: ("models", 0, "path")."""


def read_study(path: str | Path | None, flags: Mapping[str, Any] | None = None) -> Study:
    """Read a study file, or make a study of flags alone.

    Args:
        path: The YAML file; None for a study of flags alone.
        flags: A nested mapping of fields that override those of the file; a field that is None is left out.

    Example:
        >>> potentia.read_study("study.yaml", {"seed": 1})
    """
    set_flags = _drop_unset(flags or {})
    if path is None:
        return make_study(set_flags, flags=set_flags)
    file = Path(path)
    settings, node = read_yaml(file, description="the study file", error=StudyError)
    if node is None or not isinstance(settings, dict):
        raise StudyError(
            "a study file holds `models:`, `tasks:` and so on at its top level", where=str(file)
        )
    if not all(isinstance(field, str) for field in settings):
        raise StudyError(
            "a study's keys are words",
            where=str(file),
            hint="YAML reads on, off, yes, no and numbers as values: quote such a key",
        )
    # relative paths are relative to the study file, from whatever folder Potentia is started
    anchored = _anchor_paths(settings, (), file.parent.resolve())
    merged = _merge_flags(anchored, set_flags)
    lines = _find_field_lines(node)
    return make_study(merged, source=str(file), lines=lines, flags=set_flags)


def make_study(
    settings: Mapping[str, Any],
    *,
    source: str | None = None,
    lines: Mapping[FieldPath, int] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Study:
    """Validate a mapping as a study; an error lists all its problems.

    Args:
        settings: The fields of a study file, with the flags merged in.
        source: The file that they come from, for errors.
        lines: The line of each field in that file, for errors.
        flags: The fields that come from flags, for errors.

    Example:
        >>> potentia.make_study({"models": ["m"], "tasks": ["arc_easy"], "protocols": ["direct"]})
    """
    try:
        study = Study.model_validate(dict(settings))
    except ValidationError as error:
        problems = _drop_consequences(error.errors())
        descriptions = [
            _describe_problem(problem, source, lines or {}, flags or {}) for problem in problems
        ]
        if len(descriptions) == 1:
            raise StudyError(descriptions[0], hint=_find_hint(problems[0])) from None
        listed = "\n".join(f"  {description}" for description in descriptions)
        raise StudyError(f"{len(descriptions)} problems in the study\n{listed}") from None
    try:
        study.model_dump_json()
    except ValueError:  # a flag with bytes that are no text; no store could hold it
        raise StudyError("a name or path in the study is not Unicode text") from None
    return study


def _drop_consequences(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the problems except for lists that are too short only because a member of them is wrong."""
    faulty_parents: set[FieldPath] = set()
    for problem in problems:
        field_path = problem["loc"]
        faulty_parents.update(field_path[:length] for length in range(len(field_path)))
    causes = []
    for problem in problems:
        if problem["type"] != "too_short" or problem["loc"] not in faulty_parents:
            causes.append(problem)
    return causes


# --- the file --------------------------------------------------------------------------------------------------------


def _find_field_lines(root_node: yaml.Node) -> dict[FieldPath, int]:
    """Return the line, from 1, of every field in a file; of a field with a key it is the key's line."""
    lines: dict[FieldPath, int] = {(): root_node.start_mark.line + 1}
    for field_path, line in _walk_field_lines(root_node, ()):
        lines[field_path] = line
    return lines


def _walk_field_lines(
    yaml_node: yaml.Node, parent_path: FieldPath
) -> Iterator[tuple[FieldPath, int]]:
    """Yield the path and line of every field below a node."""
    if isinstance(yaml_node, yaml.MappingNode):
        for key_node, value_node in yaml_node.value:
            field_path = (*parent_path, str(key_node.value))
            yield field_path, key_node.start_mark.line + 1
            yield from _walk_field_lines(value_node, field_path)
    elif isinstance(yaml_node, yaml.SequenceNode):
        for position, value_node in enumerate(yaml_node.value):
            member_path = (*parent_path, position)
            yield member_path, value_node.start_mark.line + 1
            yield from _walk_field_lines(value_node, member_path)


# The fields of a study file that are paths; "*" is any member of a list.
_PATH_FIELDS = {
    ("models", "*", "path"),
    ("models", "*", "adapter"),
    ("models", "*", "checkpoints"),
    ("models", "*", "checkpoints", "*", "path"),
    ("tasks", "*", "file"),
    ("adjust", "data"),
    ("adjust", "data", "*"),
    ("treat", "data", "*"),
    ("data_dir",),
    ("facts",),
}
# Records that may be given as a path alone, and the field that it then becomes.
_RECORD_FIELDS = {("models", "*"): "path", ("tasks", "*"): "file"}


def _anchor_paths(value: Any, field_path: tuple[Any, ...], folder: Path) -> Any:
    """Return a part of a study file with its folder before the relative paths that exist in it.

    ``field_path`` leads to the part, with "*" for positions in lists.
    """
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
    """Return a path of a study file with its folder before it; a value that is no path there stays as it is.

    A model or task that is its path alone becomes a record, whose name is the path as written.
    """
    anchored = str(folder / value)
    bare_path = value
    if not _path_exists(folder / value):
        # a prompt form may follow a task file: tasks/own.yaml:blank_ppl
        bare_path = TaskName(value).base
    is_relative = bool(bare_path) and not Path(bare_path).is_absolute()
    if not is_relative or not _path_exists(folder / bare_path) or anchored == value:
        return value
    if field_path not in _RECORD_FIELDS:
        return anchored
    # a benchmark's name is no path just because there is a folder of that name
    looks_like_path = "/" in value or Path(bare_path).suffix
    if not looks_like_path:
        return value
    return {"name": value, _RECORD_FIELDS[field_path]: anchored}


def _path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL in it: no path
        return False


# --- the flags -------------------------------------------------------------------------------------------------------


def _drop_unset(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags without those that are None or empty, at every depth."""
    set_flags: dict[str, Any] = {}
    for field, value in flags.items():
        set_value = _drop_unset(value) if isinstance(value, Mapping) else value
        if set_value is not None and set_value != {}:
            set_flags[field] = set_value
    return set_flags


def _merge_flags(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the file, overridden by the flags."""
    merged = dict(settings)
    for field, value in flags.items():
        file_value = merged.get(field)
        if isinstance(value, Mapping) and isinstance(file_value, dict):
            merged[field] = _merge_flags(file_value, value)
        elif not isinstance(value, Mapping) or file_value is None:
            merged[field] = value
        # else the file has a value where a mapping belongs: it stays, so that validation reports it with its line
    return merged


# --- problems in words -----------------------------------------------------------------------------------------------


def _describe_problem(
    error_details: ErrorDetails,
    source: str | None,
    lines: Mapping[FieldPath, int],
    flags: Mapping[str, Any],
) -> str:
    """Return a problem as one sentence: the flag, or the file and line, then the field and what is wrong with it."""
    field_path: FieldPath = tuple(error_details["loc"])
    location = _find_flag(field_path, flags)
    if location == "--models" and isinstance(_find_cause(error_details), CheckpointsError):
        return f"--checkpoints: {_describe_error(error_details, field_path)}"
    if field_path == ("price",) and location is not None:
        return _describe_error(error_details, field_path)  # `select` has a flag of its own for it
    if location is None:
        line = _find_line(field_path, lines)
        location = ":".join(str(path_part) for path_part in (source, line) if path_part is not None)
    field_name = ".".join(str(path_part) for path_part in field_path) or "study"
    problem = f"{field_name}: {_describe_error(error_details, field_path)}"
    return f"{location}: {problem}" if location else problem


def _find_cause(problem: ErrorDetails) -> Exception | None:
    """Return the error that a validator of Potentia's raised; None if pydantic found the problem by itself."""
    cause: Exception | None = (problem.get("ctx") or {}).get("error")
    return cause


def _find_hint(problem: ErrorDetails) -> str | None:
    """Return how to fix a problem, if its message does not say it."""
    cause = _find_cause(problem)
    return cause.hint if isinstance(cause, (CheckpointsError, InputError)) else None


def _find_line(field_path: FieldPath, lines: Mapping[FieldPath, int]) -> int | None:
    """Return the line of a field, or of the innermost one around it that the file has."""
    for length in range(len(field_path), -1, -1):
        if field_path[:length] in lines:
            return lines[field_path[:length]]
    return None


def _describe_error(problem: ErrorDetails, field_path: FieldPath) -> str:
    if problem["type"] == "missing":
        return "this key is missing"
    if problem["type"] == "too_short":
        return "name at least one"
    if problem["type"] == "extra_forbidden":
        return _describe_unknown_key(field_path)
    cause = _find_cause(problem)
    if isinstance(cause, InputError):
        return cause.message
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = problem.get("input")
    names_value = isinstance(cause, (UnknownProtocolError, CheckpointsError))
    if names_value or not isinstance(value, (str, int, float)):
        return message  # it names the value already, or the value is too large to show
    return f"{message} (it is {value!r})"


def _describe_unknown_key(field_path: FieldPath) -> str:
    known_keys = _list_keys_at(field_path[:-1])
    nearest = difflib.get_close_matches(str(field_path[-1]), known_keys, n=1, cutoff=0.5)
    if nearest:
        return f"unknown key; did you mean `{nearest[0]}`?"
    return f"unknown key; known here: {', '.join(known_keys)}"


def _find_flag(field_path: FieldPath, flags: Mapping[str, Any]) -> str | None:
    """Return the flag that a field's value comes from; None if it comes from none."""
    flags_below: Any = flags
    for position, path_part in enumerate(field_path):
        if not isinstance(flags_below, Mapping) or path_part not in flags_below:
            return None
        flags_below = flags_below[path_part]
        if not isinstance(flags_below, Mapping):
            return _name_flag(field_path[: position + 1])
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


def _name_flag(field_path: FieldPath) -> str:
    """Return the flag of a field: its own, or ``--set FIELD``."""
    if field_path[0] in _FIELDS_WITH_FLAG:
        return f"--{str(field_path[0]).replace('_', '-')}"
    return f"--set {'.'.join(map(str, field_path))}"


def _list_keys_at(field_path: FieldPath) -> list[str]:
    """Return the keys that the record at this path of a study may have, sorted."""
    record: type[BaseModel] = Study
    for path_part in field_path:
        field = record.model_fields.get(str(path_part))
        if field is not None:
            record = _find_record_type(field.annotation) or record
    return sorted(record.model_fields)


def _find_record_type(annotation: Any) -> type[BaseModel] | None:
    """Return the first type of record in a type, at any depth: of ``tuple[ModelSpec, ...]`` it is ModelSpec."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        record = _find_record_type(argument)
        if record is not None:
            return record
    return None


# --- keys: all that can change a score, and nothing else --------------------------------------------------------------

# Raise this when a change of the scoring code can change a score: older results are then computed again.
SCORING_VERSION = 1

# Fields that say where and how fast to compute, but not what.
_FIELDS_OUTSIDE_KEY = {
    "probe",
    "store",
    "device",
    "shards",
    "token_budget",
    "name",
    "data_dir",
    "keep_adapters",
    "price",
    "note",
}


# Fields that were added later, with the values at which they are left out of a key: results are then the same as before
# there was such a field, and their stored keys stay valid.
_DEFAULTS_OUTSIDE_KEY = {(Tuning, "task_description"): True}


def _reduce_to_plain(value: Any) -> Any:
    """Return a value as plain JSON values such that equal values are written equally: (1.0,) as [1]."""
    if isinstance(value, BaseModel):
        included_names = [
            field_name
            for field_name, field in type(value).model_fields.items()
            if not field.exclude
        ]
        for (record_type, field_name), default in _DEFAULTS_OUTSIDE_KEY.items():
            if isinstance(value, record_type) and getattr(value, field_name) == default:
                included_names.remove(field_name)
        return {
            field_name: _reduce_to_plain(getattr(value, field_name))
            for field_name in included_names
        }
    if isinstance(value, dict):
        return {str(key): _reduce_to_plain(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [_reduce_to_plain(member) for member in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def content_key(**parts: Any) -> str:
    """Return a key of 32 hexadecimal digits: the hash of named parts, whatever their order."""
    text = json.dumps(
        _reduce_to_plain(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def study_key(study: Study) -> str:
    """Return the key of a study: of its name and of every field except those that say where and how fast to compute."""
    return content_key(
        name=study.name,
        study=study.model_dump(mode="json", exclude=_FIELDS_OUTSIDE_KEY, exclude_defaults=True),
    )


def cell_key(
    study: Study,
    model_fingerprint: str,
    task_fingerprint: str,
    protocol: Protocol,
    *,
    kind: Kind | None,
    shots: int | None = None,
    rates: Sequence[float] | None = None,
    auxiliary_fingerprint: str | None = None,
    seeds: int | None = None,
    samples: SamplePlan | None = None,
) -> str:
    """Return the key of a cell: of everything that can change its score.

    - ``kind``: base or instruct, as the study, the facts or the model's name say it; None if only the tokenizer can
      tell, or if the model has no chat template.
    - ``shots``: the examples before a question, if they are not the protocol's.
    - ``rates``: the model's own learning rates under ``adjust``, if it has any.
    - ``auxiliary_fingerprint``: of the content of the data of ``adjust``.
    - ``seeds``: the number of fine-tunings of this cell, if it is not the study's.
    - ``samples``: how its answers are sampled, if they are.
    """
    parts: dict[str, Any] = {
        "scoring": SCORING_VERSION,
        "model": model_fingerprint,
        "dtype": study.dtype,
        "chat": study.chat,
        "task": task_fingerprint,
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
        parts["adjust_data"] = auxiliary_fingerprint
        parts["rates"] = rates
    if kind is not None and kind.value == "base" and study.chat != "never":
        parts["kind"] = "base"
    if samples is not None:
        parts["samples"] = samples.describe()
    return content_key(**parts)


def step_key(key: str, step: int) -> str:
    """Return the key of a cell's score after so many optimizer steps of its fine-tuning."""
    return content_key(cell=key, step=step)


def renamed_cell_key(key: str, model: str, task: str) -> str:
    """Return the key of a copy of a cell under these names of model and task; the store has it under other names."""
    return content_key(cell=key, model=model, task=task)

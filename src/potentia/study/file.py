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

Place = tuple[str | int, ...]


def read_study(path: str | Path | None, flags: Mapping[str, Any] | None = None) -> Study:
    """Read a study file, or none, with ``flags`` over it: a nested mapping of fields, in which None says nothing."""
    given = _said(flags or {})
    if path is None:
        return make_study(given, flags=given)
    file = Path(path)
    raw, node = read_yaml(file, what="the study file", error=StudyError)
    if node is None or not isinstance(raw, dict):
        raise StudyError(
            "a study file holds `models:`, `tasks:` and so on at its top level", where=str(file)
        )
    if not all(isinstance(field, str) for field in raw):
        raise StudyError("a study's keys are words", where=str(file))
    merged = _merged(
        _anchored(raw, (), file.parent.resolve()), given
    )  # one study, from wherever it is read
    return make_study(merged, where=str(file), lines=dict(_lines(node, ())), flags=given)


def make_study(
    raw: Mapping[str, Any],
    *,
    where: str | None = None,
    lines: Mapping[Place, int] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Study:
    """Validate a mapping as a Study; all its problems are told in one error."""
    try:
        made = Study.model_validate(dict(raw))
    except ValidationError as error:
        found = error.errors()
        bad = {
            item["loc"][:n] for item in found for n in range(len(item["loc"]))
        }  # a list is short of what is wrong
        found = [item for item in found if item["type"] != "too_short" or item["loc"] not in bad]
        problems = [_problem(item, where, lines or {}, flags or {}) for item in found]
        if len(problems) == 1:
            raise StudyError(problems[0]) from None
        listed = "\n".join(f"  {p}" for p in problems)
        raise StudyError(f"{len(problems)} problems in the study\n{listed}") from None
    try:
        made.model_dump_json()
    except ValueError:  # a flag with bytes that are no text; no store could hold it
        raise StudyError("a name or path in the study is no Unicode text") from None
    return made


# --- the file --------------------------------------------------------------------------------------------------------


def _lines(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    """Give the line of every place in a file."""
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            yield from _lines(value, inner)
            yield inner, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*place, index))


# Where a study file holds paths; "*" is any place of a list. A model or a task may also be its path alone.
_PATHS = {
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
_ALONE = {("models", "*"): "path", ("tasks", "*"): "file"}


def _anchored(value: Any, place: tuple[Any, ...], folder: Path) -> Any:
    """Put the file's folder before the relative paths that exist in it."""
    if isinstance(value, dict):
        return {key: _anchored(inner, (*place, key), folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_anchored(inner, (*place, "*"), folder) for inner in value]
    return (
        _path(value, place, folder)
        if isinstance(value, str) and (place in _PATHS or place in _ALONE)
        else value
    )


def _path(value: str, place: tuple[Any, ...], folder: Path) -> Any:
    there = str(folder / value)
    # a task file may carry a prompt form: tasks/own.yaml:blank_ppl
    bare = value if _exists(folder / value) else TaskName(value).base
    if not bare or Path(bare).is_absolute() or not _exists(folder / bare) or there == value:
        return value
    if place not in _ALONE:
        return there
    # the name of a benchmark is no path because a folder has that name too
    return {"name": value, _ALONE[place]: there} if "/" in value or Path(bare).suffix else value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL in it: no path
        return False


# --- the flags -------------------------------------------------------------------------------------------------------


def _said(flags: Mapping[str, Any]) -> dict[str, Any]:
    said = {
        field: _said(value) if isinstance(value, Mapping) else value
        for field, value in flags.items()
    }
    return {field: value for field, value in said.items() if value is not None and value != {}}


def _merged(raw: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(raw)
    for field, value in flags.items():
        below = merged.get(field)
        if isinstance(value, Mapping) and isinstance(below, dict):
            merged[field] = _merged(below, value)
        elif not isinstance(value, Mapping) or below is None:
            merged[field] = value
        # else the file has no mapping where one belongs, and validation says so with its line
    return merged


# --- problems in words -----------------------------------------------------------------------------------------------


def _problem(
    item: Any, where: str | None, lines: Mapping[Place, int], flags: Mapping[str, Any]
) -> str:
    place: Place = tuple(item["loc"])
    spot = _flag(place, flags)
    if spot is None:
        line = next(
            (lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines), None
        )
        spot = ":".join(str(part) for part in (where, line) if part is not None)
    name = ".".join(str(part) for part in place) or "study"
    return f"{spot + ': ' if spot else ''}{name}: {_message(item, place)}"


def _message(item: Any, place: Place) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return "this key is missing"
    if item["type"] == "too_short":
        return "name at least one"
    if item["type"] == "extra_forbidden":
        known = _fields_at(place[:-1])
        nearest = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
        return f"unknown key; {f'did you mean `{nearest[0]}`?' if nearest else 'known here: ' + ', '.join(known)}"
    value = item.get("input")
    error = (item.get("ctx") or {}).get("error")
    if isinstance(error, UnknownProtocolError) or not isinstance(value, (str, int, float)):
        return message  # which names the value already, or nothing could
    return f"{message} (it is {value!r})"


def _flag(place: Place, flags: Mapping[str, Any]) -> str | None:
    """Return the flag that gave the value at this place; None where none did."""
    here: Any = flags
    for part in place:
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
        if not isinstance(here, Mapping):
            return f"--{str(part).replace('_', '-')}"
    return None


def _fields_at(place: Place) -> list[str]:
    """Return the known keys of the record at this place of a study."""
    record: type[BaseModel] = Study
    for part in place:
        field = record.model_fields.get(str(part))
        record = (_record_in(field.annotation) if field is not None else None) or record
    return sorted(record.model_fields)


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _record_in(arg))), None)


# --- content keys: all that can change a score, and nothing else ------------------------------------------------------

# Raise this when a change of the scoring code can change a score: older cells are then computed anew.
SCORING_VERSION = 1

# Fields that say where and how fast to compute, but not what.
_ELSEWHERE = {
    "probe",
    "store",
    "device",
    "shards",
    "token_budget",
    "name",
    "data_dir",
    "keep_adapters",
}


def canonical(value: Any) -> Any:
    """Reduce to plain JSON values, so that key order, tuples against lists and 1 against 1.0 do not matter."""
    if isinstance(value, BaseModel):
        return {
            k: canonical(getattr(value, k))
            for k, f in type(value).model_fields.items()
            if not f.exclude
        }
    if isinstance(value, dict):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
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
        study=study.model_dump(mode="json", exclude=_ELSEWHERE, exclude_defaults=True),
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
) -> str:
    """Name everything that can change this cell's score; model, task and auxiliary data by their fingerprints.

    ``kind`` is what decides, before the tokenizer does, whether the model may be asked through a chat template.
    ``shots`` are the examples before a question where they are not the protocol's, ``rates`` a model's own.
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
        parts |= {"tuning": study.tuning, "selection": study.selection, "seeds": study.seeds}
    if shots is not None and shots != protocol.shots:
        parts["shots"] = shots
    if protocol == ADJUST and study.adjust is not None:
        told = {
            name: getattr(study.adjust, name)
            for name in ("recipe", "tuning", "at_steps", "every_rate")
        }
        parts |= {
            "adjust": told,
            "adjust_data": auxiliary,
            "rates": rates,
        }  # of its data the content counts
    if kind is not None and kind.value == "base" and study.chat != "never":
        parts["kind"] = "base"
    return content_key(**parts)


def step_key(key: str, step: int) -> str:
    """Return the key of an adjust cell's score after some optimizer steps."""
    return content_key(cell=key, step=step)


def renamed(key: str, model: str, task: str) -> str:
    """Return the key of the copy of a cell under these names, where the store has it under others."""
    return content_key(cell=key, model=model, task=task)

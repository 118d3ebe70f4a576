"""Reading a study file: every problem at once, each with its line and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from potentia.errors import StudyError
from potentia.study.schema import Study

Place = tuple[str | int, ...]


def read_study(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read and validate a study file; ``overrides`` (from flags) replace its top-level fields."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"cannot read the study file: {error.strerror}", where=str(file)) from None
    except UnicodeDecodeError:
        raise StudyError("the study file is not UTF-8 text", where=str(file)) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise StudyError(f"not valid YAML: {getattr(error, 'problem', None) or error}", where=where) from None
    if not isinstance(raw, dict):
        raise StudyError("a study file holds `models:`, `tasks:` and so on at its top level", where=str(file))
    lines: dict[Place, int] = {}
    if node is not None:
        _lines(node, (), lines)
    raw = {**raw, **{k: v for k, v in (overrides or {}).items() if v is not None}}
    study = make_study(raw, where=str(file), lines=lines)
    return _anchored(study, file.parent)


def make_study(raw: Mapping[str, Any], *, where: str | None = None, lines: Mapping[Place, int] | None = None) -> Study:
    """Validate a mapping as a Study; all its problems are told in one error."""
    try:
        return Study.model_validate(dict(raw))
    except ValidationError as error:
        problems = [_problem(item, where, lines or {}) for item in error.errors()]
        if len(problems) == 1:
            raise StudyError(problems[0]) from None
        listed = "\n".join(f"  {p}" for p in problems)
        raise StudyError(f"{len(problems)} problems in the study\n{listed}") from None


def _anchored(study: Study, folder: Path) -> Study:
    """Read relative paths of a study file from the file's own folder when they exist there."""

    def anchor(value: str | None) -> str | None:
        # a task file may carry a prompt form: tasks/own.yaml:blank_ppl
        bare = value if value is None or (folder / value).exists() else value.partition(":")[0]
        if value is None or not bare or Path(bare).is_absolute() or not (folder / bare).exists():
            return value
        return str(folder / value)

    models = tuple(
        m.model_copy(
            update={
                "path": anchor(m.path),
                "checkpoints": tuple(c.model_copy(update={"path": anchor(c.path)}) for c in m.checkpoints),
            }
        )
        for m in study.models
    )
    tasks = tuple(t.model_copy(update={"file": anchor(t.file)}) for t in study.tasks)
    adjust = study.adjust and study.adjust.model_copy(update={"data": anchor(study.adjust.data)})
    return study.model_copy(
        update={
            "models": models,
            "tasks": tasks,
            "adjust": adjust,
            "data_dir": anchor(study.data_dir),
            "facts": anchor(study.facts),
        }
    )


def _lines(node: yaml.Node, place: Place, out: dict[Place, int]) -> None:
    out.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            out[inner] = key.start_mark.line + 1
            _lines(value, inner, out)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _lines(value, (*place, index), out)


def _problem(item: Any, where: str | None, lines: Mapping[Place, int]) -> str:
    place: Place = tuple(item["loc"])
    line = next((lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines), None)
    spot = ":".join(str(part) for part in (where, line) if part is not None)
    name = ".".join(str(part) for part in place) or "study"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(str(place[-1]), _fields_at(place[:-1]), n=1, cutoff=0.5)
        known = f"did you mean `{nearest[0]}`?" if nearest else f"known here: {', '.join(_fields_at(place[:-1]))}"
        message = f"unknown key; {known}"
    elif item["type"] == "missing":
        message = "this key is missing"
    elif "is no protocol" in message:
        pass  # it names the text already
    elif "input" in item and isinstance(item["input"], (str, int, float, bool)):
        message = f"{message} (it is {item['input']!r})"
    return f"{spot + ': ' if spot else ''}{name}: {message}"


def _fields_at(place: Place) -> list[str]:
    """Return the known keys of the record at this place of a study."""
    record: type[BaseModel] = Study
    for part in place:
        if isinstance(part, int) or part not in record.model_fields:
            continue
        inner = _record_in(record.model_fields[part].annotation)
        if inner is not None:
            record = inner
    return sorted(record.model_fields)


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _record_in(arg))), None)

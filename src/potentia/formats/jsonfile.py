"""JSON score files: read strictly, told apart by their keys, and the layout of the paper's published results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potentia.errors import DataError
from potentia.formats.assemble import Entry
from potentia.formats.metrics import metric_of
from potentia.formats.table import whole
from potentia.formats.tidy import number

_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


_HINT = 'scores are lm-eval results ({"results": …}) or {"train_before_test": {task: {model: value}}, …}'


def load_json(path: Path) -> Any:
    """Parse a file; every fault names its place, and a key given twice is one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise DataError(f"the key {name!r} is there twice in one object", where=str(path))
            found[name] = value
        return found

    try:
        return json.loads(whole(path).decode("utf-8-sig"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is no UTF-8 text", where=str(path), hint="save it as UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(error.doc.rstrip())
        hint = "the file ends too early: copy it again" if cut else None
        raise DataError(f"this is no JSON: {error.msg}", where=place, hint=hint) from None
    except DataError:
        raise
    except (RecursionError, ValueError) as error:
        raise DataError(f"this JSON cannot be read: {type(error).__name__}", where=str(path)) from None


def section(content: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return the object under ``name``; an absent one is empty, another type is an error."""
    value = content.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{name} is no object", where=where)
    return value


def paper_entries(content: dict[str, Any], where: str) -> Iterator[Entry]:
    """Give the scores of the layout in which the train-before-test paper publishes them."""
    protocols = [name for name in content if not name.endswith(_STDERR)]
    if not protocols:
        raise DataError("this is no score file", where=where, hint=_HINT)
    for name in content:
        if name.endswith(_STDERR) and name.removesuffix(_STDERR) not in content:
            raise DataError(f"there are standard errors {name!r} without scores", where=where)
    for name in protocols:
        tasks = section(content, name, where)
        spreads = section(content, name + _STDERR, where)
        for task in tasks:
            values = section(tasks, task, f"{where}, {name}")
            errors = section(spreads, task, f"{where}, {name}{_STDERR}")
            for model, value in values.items():
                place = f"{name}.{task}.{model}"
                if not task.strip() or not model.strip():
                    raise DataError("a task or model has no name", where=f"{where}, {place}")
                stderr = number(errors.get(model), f"{where}, {name}{_STDERR}.{task}.{model}")
                if stderr < 0:
                    raise DataError("the standard error is negative", where=f"{where}, {place}")
                yield Entry(
                    protocol=_PROTOCOLS.get(name, name),
                    model=model,
                    task=task,
                    value=_finite(value, f"{where}, {place}"),
                    stderr=stderr,
                    metric=metric_of(task),
                    place=place,
                )


def _finite(value: Any, where: str) -> float:
    if isinstance(value, str):
        raise DataError(f"the text {value[:40]!r} stands where a number should", where=where)
    return number(value, where, required=True)

"""Single scores on their way into matrices: every one is checked, duplicates and mixed directions are refused.

Fields of a tidy row are ``protocol, model, benchmark, score, stderr``; all others of ``FIELDS`` may follow. A cell
that was not measured is left out; what is not known is left empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from potentia.errors import DataError
from potentia.formats.columns import metric_of, usual_metric
from potentia.formats.layout import Row
from potentia.values.metric import (
    KINDS,
    METRIC_COLUMNS,
    ORIGIN_COLUMNS,
    SCALES,
    UNKNOWN,
    Metric,
    Origin,
    comparable,
    main_metric,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Score, ScoreMatrix

UNNAMED = Metric()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One score on its way into a matrix; ``place`` says where it was read."""

    protocol: str
    model: str
    task: str
    value: float
    stderr: float = math.nan
    n: float = math.nan
    metric: Metric = UNNAMED
    origin: Origin = UNKNOWN
    seeds: tuple[float, ...] = ()
    place: str = ""
    items: Mapping[int, float] | None = None  # the value of every document, by its fingerprint


def assemble(entries: Iterable[Entry], *, where: str) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol, names in order of appearance; refuse duplicates and mixed directions."""
    protocols: dict[str, dict[tuple[str, str], Entry]] = {}
    firsts: dict[str, Entry] = {}
    for entry in entries:
        _check_unicode(entry, where)
        cells = protocols.setdefault(entry.protocol, {})
        twin = cells.get((entry.model, entry.task))
        if twin is not None:
            message = (
                f"two {entry.protocol} scores of {entry.model} on {entry.task}{_at(twin, entry)}"
            )
            raise DataError(message, where=where, hint="keep one of them")
        first = firsts.setdefault(entry.task, entry)
        different = comparable(first, replace(entry, origin=Origin(data=entry.origin.data)))
        if different:
            raise DataError(
                f"the scores of {entry.task} cannot be compared: different {different[0]}{_at(first, entry)}",
                where=where,
                hint="use one metric (--metric NAME), or give the two different benchmark names",
            )
        cells[entry.model, entry.task] = entry
    if not protocols:
        raise DataError("there are no scores in it", where=where)
    return {Protocol(name): ScoreMatrix.of_cells(name, cells) for name, cells in protocols.items()}


def items_of(entries: Iterable[Entry]) -> dict[Protocol, dict[str, dict[str, Mapping[int, float]]]]:
    """Return protocol → task → model → documents of the entries that have items which make up their score."""
    found: dict[Protocol, dict[str, dict[str, Mapping[int, float]]]] = {}
    for entry in entries:
        if entry.items and abs(sum(entry.items.values()) / len(entry.items) - entry.value) < 1e-6:
            found.setdefault(Protocol(entry.protocol), {}).setdefault(entry.task, {})[
                entry.model
            ] = entry.items
    return found


def documents(pairs: Iterable[tuple[object, Any]]) -> dict[int, float]:
    """Return the value of every document by a number that names its content; a second one like it gets another."""
    found: dict[int, float] = {}
    for content, value in pairs:
        if isinstance(value, (int, float)):
            text = (
                content
                if isinstance(content, str)
                else json.dumps(content, sort_keys=True, default=str)
            )
            number = int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)
            while number in found:
                number += 1
            found[number] = float(value)
    return found


def _check_unicode(entry: Entry, where: str) -> None:
    for name in (entry.protocol, entry.model, entry.task):
        try:
            name.encode()
        except UnicodeEncodeError:  # JSON can spell half of a character
            at = f", {entry.place}" if entry.place else ""
            raise DataError(
                f"the name {name!r} holds half of a Unicode character", where=where + at
            ) from None


def _at(first: Entry, second: Entry) -> str:
    return f" ({first.place} and {second.place})" if first.place and second.place else ""


def entries(rows: Iterable[Row], *, where: str, metric: str | None) -> Iterator[Entry]:
    """Check each row and give its score; of several metrics of one benchmark the wanted or main one is taken."""
    cells: dict[tuple[str, str, str], list[tuple[str, str | None, Mapping[str, Any]]]] = {}
    metrics: dict[str, dict[str, None]] = {}
    for place, record in rows:
        at, name = f"{where}, {place}", str(record.get("metric") or "").strip() or None
        task = _name(record, "benchmark", at)
        cell = _name(record, "protocol", at, default="direct"), _name(record, "model", at), task
        cells.setdefault(cell, []).append((place, name, record))
        if name is not None:
            metrics.setdefault(task, {})[name] = None
    main = {
        task: metric or main_metric(known, usual_metric(task)) for task, known in metrics.items()
    }
    for (protocol, model, task), given in cells.items():
        wanted = [row for row in given if row[1] in (None, main.get(task))]
        if not wanted and metric is None:
            place, name, _ = given[0]
            raise DataError(
                f"{model} has {name} on {task}, where others have {main[task]}",
                where=f"{where}, {place}, column metric",
                hint=f"choose one metric for all: --metric {name}",
            )
        for place, name, record in wanted:
            at = f"{where}, {place}"
            value = number(record.get("score"), f"{at}, column score", required=True)
            error, size = (
                _at_least_zero(record.get(field), f"{at}, column {field}")
                for field in ("stderr", "n")
            )
            yield Entry(
                protocol,
                model,
                task,
                value,
                error,
                size,
                place=place,
                **told(record, task, name, at),
            )


def scored(
    place: str,
    model: Any,
    task: Any,
    value: Any,
    *,
    protocol: str,
    stderr: Any = None,
    n: Any = None,
    per: float = 1.0,
    at: str = "",
    what: str = "a number",
    **known: Any,
) -> Entry:
    """Return one score of another tool's file, checked; ``per`` 100 for per cent, ``at`` is where the value stands."""
    at = at or place
    if isinstance(value, str):
        raise DataError(f"the text {value[:40]!r} stands where {what} should", where=at)
    for name in (model, task):
        if not isinstance(name, str) or not name.strip():
            raise DataError("a task or model has no name", where=place)
    error = number(stderr, f"{at}_stderr") / per
    if error < 0:
        raise DataError("the standard error is negative", where=place)
    score, size = number(value, at, required=True) / per, number(n, f"{place}, number of documents")
    return Entry(
        protocol, model.strip(" \t"), task.strip(" \t"), score, error, size, place=place, **known
    )


def tidy_row(protocol: str, model: str, task: str, score: Score) -> dict[str, Any]:
    """Return a score as the fields of a row, with all that it knows; what is not known is None."""
    facts = {c.written_as: getattr(score.metric, c.field) for c in METRIC_COLUMNS}
    facts |= {c.written_as: getattr(score.origin, c.field) for c in ORIGIN_COLUMNS}
    return facts | {
        "protocol": protocol,
        "model": model,
        "benchmark": task,
        "score": score.value,
        "stderr": None if math.isnan(score.stderr) else score.stderr,
        "n": float(score.n) if score.n else None,
        "metric": score.metric.name or None,
        "seeds": ";".join(map(repr, score.seeds)) or None,
    }


def told(record: Mapping[str, Any], task: str, name: str | None, where: str) -> dict[str, Any]:
    """Return metric, origin and seeds as a row tells them; what it does not say is known of the name, or unknown."""
    made = metric_of(task, name, _direction(record.get("higher_is_better"), where))
    kind, scale = (
        _word(record, "metric_kind", KINDS, where),
        _word(record, "metric_scale", SCALES, where),
    )
    chance, shots = (
        None
        if math.isnan(value := number(record.get(field), f"{where}, column {field}"))
        else value
        for field in ("chance", "shots")
    )
    origin: dict[str, Any] = {c.field: _text(record, c.written_as) for c in ORIGIN_COLUMNS}
    seeds = re.split(r"[;\s]+", _text(record, "seeds") or "")  # semicolons between them
    return {
        "metric": replace(made, kind=kind or made.kind, scale=scale or made.scale, chance=chance),
        "origin": Origin(**origin | {"shots": None if shots is None else int(shots)}),
        "seeds": tuple(
            number(seed, f"{where}, column seeds", required=True) for seed in seeds if seed
        ),
    }


def _text(record: Mapping[str, Any], column: str) -> str | None:
    value = record.get(column)
    return None if value is None else str(value).strip() or None


def _word(record: Mapping[str, Any], name: str, known: tuple[T, ...], where: str) -> T | None:
    value = _text(record, name)
    found = next((word for word in known if word == value), None)
    if value is not None and found is None:
        raise DataError(
            f"{_short(value)} is none of {', '.join(map(str, known))}",
            where=f"{where}, column {name}",
        )
    return found


def _name(record: Mapping[str, Any], column: str, where: str, *, default: str | None = None) -> str:
    value = record.get(column)
    if isinstance(value, str) and value.strip():
        return value.strip(" \t")
    if default is not None and (value is None or isinstance(value, str)):
        return default
    raise DataError(f"the {column} {value!r} is no name", where=f"{where}, column {column}")


def number(value: Any, where: str, *, required: bool = False) -> float:
    """Read one number; empty, missing and NaN mean unknown, which a score may not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise DataError(f"{_short(value)} is no number", where=where)
    if value is None or (
        isinstance(value, str) and value.strip().casefold() in ("", "n/a", "na", "none", "null")
    ):
        value = math.nan
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise DataError(f"{_short(value)} is no number", where=where) from None
    if math.isinf(result):
        raise DataError("the number is infinite", where=where)
    if required and math.isnan(result):
        hint = "leave out what was not measured: a gap is no score"
        raise DataError("the score is missing or NaN", where=where, hint=hint)
    return result


def _at_least_zero(value: Any, where: str) -> float:
    result = number(value, where)
    if result < 0:
        raise DataError(f"{result:g} is negative", where=where)
    return result


def _direction(value: Any, where: str) -> bool | None:
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "false": False,
        "0": False,
        "no": False,
        "": None,
        "none": None,
    }
    word = str(value).strip().casefold()
    if word not in words:
        raise DataError(
            f"{_short(value)} is neither true nor false", where=f"{where}, column higher_is_better"
        )
    return words[word]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

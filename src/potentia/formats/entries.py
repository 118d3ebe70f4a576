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
from potentia.values.metric import KINDS, SCALES, UNKNOWN, Metric, Origin, comparable, main_metric
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


# --- entries to matrices ---------------------------------------------------------------------------------------------


def assemble(entries: Iterable[Entry], *, where: str) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol, names in order of appearance; refuse duplicates and mixed directions."""
    protocols: dict[str, dict[tuple[str, str], Entry]] = {}
    firsts: dict[str, Entry] = {}
    for entry in entries:
        for name in (entry.protocol, entry.model, entry.task):
            if not name.isascii():
                _check_unicode(name, entry.place, where)
        cells = protocols.setdefault(entry.protocol, {})
        twin = cells.get((entry.model, entry.task))
        if twin is not None:
            message = f"two {entry.protocol} scores of {entry.model} on {entry.task}{_at(twin, entry)}"
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
            found.setdefault(Protocol(entry.protocol), {}).setdefault(entry.task, {})[entry.model] = entry.items
    return found


def documents(pairs: Iterable[tuple[object, Any]]) -> dict[int, float]:
    """Return the value of every document by a number that names its content; a second one like it gets another."""
    found: dict[int, float] = {}
    for content, value in pairs:
        if isinstance(value, (int, float)):
            text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
            number = int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)
            while number in found:
                number += 1
            found[number] = float(value)
    return found


def _check_unicode(name: str, place: str, where: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON can spell half of a character
        at = f", {place}" if place else ""
        raise DataError(f"the name {name!r} holds half of a Unicode character", where=where + at) from None


def _at(first: Entry, second: Entry) -> str:
    return f" ({first.place} and {second.place})" if first.place and second.place else ""


# --- rows of a table and objects of a file to entries ----------------------------------------------------------------


def entries(rows: Iterable[Row], *, where: str, metric: str | None) -> Iterator[Entry]:
    """Check each row and give its score; of several metrics of one benchmark the wanted or main one is taken."""
    read = []
    metrics: dict[str, dict[str, None]] = {}
    for place, record in rows:
        task, name = _name(record, "benchmark", f"{where}, {place}"), str(record.get("metric") or "").strip() or None
        read.append((place, task, name, record))
        if name is not None:
            metrics.setdefault(task, {})[name] = None
    main = {task: metric or main_metric(known, usual_metric(task)) for task, known in metrics.items()}
    passed: dict[tuple[str, str, str], tuple[str, str]] = {}
    given: set[tuple[str, str, str]] = set()
    for place, task, name, record in read:
        at = f"{where}, {place}"
        protocol, model = _name(record, "protocol", at, default="direct"), _name(record, "model", at)
        if name is not None and name != main[task]:
            passed.setdefault((protocol, model, task), (place, name))
            continue
        given.add((protocol, model, task))
        yield Entry(
            protocol=protocol,
            model=model,
            task=task,
            value=number(record.get("score"), f"{at}, column score", required=True),
            stderr=_at_least_zero(record.get("stderr"), f"{at}, column stderr"),
            n=_at_least_zero(record.get("n"), f"{at}, column n"),
            place=place,
            **told(record, task, name, at),
        )
    for cell, (place, name) in passed.items():
        if metric is None and cell not in given:
            _, model, task = cell
            raise DataError(
                f"{model} has {name} on {task}, where others have {main[task]}",
                where=f"{where}, {place}, column metric",
                hint=f"choose one metric for all: --metric {name}",
            )


def scored(
    place: str,
    model: Any,
    task: Any,
    value: Any,
    *,
    stderr: Any = None,
    n: Any = None,
    per: float = 1.0,
    at: str = "",
    what: str = "a number",
    protocol: str,
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
    return Entry(protocol, model.strip(" \t"), task.strip(" \t"), score, error, size, place=place, **known)


def tidy_row(protocol: str, model: str, task: str, score: Score) -> dict[str, Any]:
    """Return a score as the fields of a row, with all that it knows; what is not known is None."""
    metric, origin = score.metric, score.origin
    return {
        "protocol": protocol,
        "model": model,
        "benchmark": task,
        "score": score.value,
        "stderr": None if math.isnan(score.stderr) else score.stderr,
        "n": float(score.n) if score.n else None,
        "metric": metric.name or None,
        "higher_is_better": metric.higher_is_better,
        "shots": origin.shots,
        "metric_kind": metric.kind,
        "metric_scale": metric.scale,
        "chance": metric.chance,
        "seeds": ";".join(map(repr, score.seeds)) or None,
        "data_fingerprint": origin.data,
        "recipe_fingerprint": origin.recipe,
        "model_fingerprint": origin.model,
        "source": origin.source,
        "path": origin.path,
    }


def told(record: Mapping[str, Any], task: str, name: str | None, where: str) -> dict[str, Any]:
    """Return metric, origin and seeds as a row tells them; what it does not say is known of the name, or unknown."""
    made = metric_of(task, name, _direction(record.get("higher_is_better"), where))
    kind, scale = _word(record, "metric_kind", KINDS, where), _word(record, "metric_scale", SCALES, where)
    chance, shots = (number(record.get(field), f"{where}, column {field}") for field in ("chance", "shots"))
    data, recipe, model, source, path = (
        str(record[field]).strip() or None if record.get(field) is not None else None
        for field in ("data_fingerprint", "recipe_fingerprint", "model_fingerprint", "source", "path")
    )
    seeds = re.split(r"[;\s]+", str(record.get("seeds") or "").strip())  # semicolons between them
    return {
        "metric": replace(
            made, kind=kind or made.kind, scale=scale or made.scale, chance=None if math.isnan(chance) else chance
        ),
        "origin": Origin(data, recipe, None if math.isnan(shots) else int(shots), model, source, path),
        "seeds": tuple(number(seed, f"{where}, column seeds", required=True) for seed in seeds if seed),
    }


# --- single fields ---------------------------------------------------------------------------------------------------


def _word(record: Mapping[str, Any], name: str, known: tuple[T, ...], where: str) -> T | None:
    value = str(record.get(name) or "").strip()
    if not value:
        return None
    found = next((word for word in known if word == value), None)
    if found is None:
        raise DataError(f"{_short(value)} is none of {', '.join(map(str, known))}", where=f"{where}, column {name}")
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
    if value is None or (isinstance(value, str) and value.strip().casefold() in ("", "n/a", "na", "none", "null")):
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
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    known = value if isinstance(value, bool) else words.get(str(value).strip().casefold())
    if known is None:
        raise DataError(f"{_short(value)} is neither true nor false", where=f"{where}, column higher_is_better")
    return known


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

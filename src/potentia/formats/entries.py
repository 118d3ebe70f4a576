"""Single scores on their way into matrices: every row is checked, duplicates and mixed directions are refused.

Fields of a tidy row are ``protocol, model, benchmark, score, stderr``; all others of ``FIELDS`` may follow. A cell
that was not measured is left out; what is not known is left empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from potentia.errors import DataError
from potentia.formats.columns import metric_of, usual_metric
from potentia.formats.layout import Row
from potentia.values.metric import KINDS, SCALES, UNKNOWN, Metric, Origin, comparable, main_metric
from potentia.values.protocol import Protocol
from potentia.values.scores import Score, ScoreMatrix

UNNAMED = Metric()


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
        for name in (entry.protocol, entry.model, entry.task):
            if not name.isascii():
                _check_unicode(name, entry.place, where)
        cells = protocols.setdefault(entry.protocol, {})
        twin = cells.get((entry.model, entry.task))
        if twin is not None:
            raise DataError(
                f"two {entry.protocol} scores of {entry.model} on {entry.task}{_at(twin, entry)}",
                where=where,
                hint="keep one of them",
            )
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
    return {Protocol(protocol): _matrix(protocol, cells) for protocol, cells in protocols.items()}


def items_of(entries: Iterable[Entry]) -> dict[Protocol, dict[str, dict[str, Mapping[int, float]]]]:
    """Return protocol → task → model → documents of the entries that have items which make up their score."""
    found: dict[Protocol, dict[str, dict[str, Mapping[int, float]]]] = {}
    for entry in entries:
        if entry.items and abs(sum(entry.items.values()) / len(entry.items) - entry.value) < 1e-6:
            found.setdefault(Protocol(entry.protocol), {}).setdefault(entry.task, {})[entry.model] = entry.items
    return found


def document(content: object, seen: Container[int] = ()) -> int:
    """Return a number that names a document by its content; a second document like it gets another."""
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
    number = int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)
    while number in seen:
        number += 1
    return number


def _check_unicode(name: str, place: str, where: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON can spell half of a character
        at = f", {place}" if place else ""
        raise DataError(f"the name {name!r} holds half of a Unicode character", where=where + at) from None


def _matrix(protocol: str, cells: dict[tuple[str, str], Entry]) -> ScoreMatrix:
    models = {model: i for i, model in enumerate(dict.fromkeys(model for model, _ in cells))}
    tasks = {task: j for j, task in enumerate(dict.fromkeys(task for _, task in cells))}
    values, stderr, n = (np.full((len(models), len(tasks)), np.nan) for _ in range(3))
    metrics = [UNNAMED] * len(tasks)
    origins, seeds = (np.full(values.shape, None, dtype=object) for _ in range(2))
    for (model, task), entry in cells.items():
        i, j = models[model], tasks[task]
        values[i, j], stderr[i, j], n[i, j] = entry.value, entry.stderr, entry.n
        metrics[j] = entry.metric.merged(metrics[j])
        origins[i, j] = entry.origin if entry.origin != UNKNOWN else None
        seeds[i, j] = entry.seeds or None
    return ScoreMatrix(
        Protocol(protocol), tuple(models), tuple(tasks), values, stderr, n, tuple(metrics),
        origins if any(origins.flat) else None, seeds if any(seeds.flat) else None,
    )  # fmt: skip


def _at(first: Entry, second: Entry) -> str:
    return f" ({first.place} and {second.place})" if first.place and second.place else ""


T = TypeVar("T")

_UNKNOWN = frozenset({"", "n/a", "na", "nan", "none", "null"})
_TRUE = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def entries(rows: Iterable[Row], *, where: str, metric: str | None) -> Iterator[Entry]:
    """Check each row and give its score; of several metrics of one benchmark the wanted or main one is taken."""
    read = []
    metrics: dict[str, dict[str, None]] = {}
    for place, record in rows:
        task, name = _text(record, "benchmark", where, place), _metric(record)
        read.append((place, task, name, record))
        if name is not None:
            metrics.setdefault(task, {})[name] = None
    main = {task: metric or main_metric(known, usual_metric(task)) for task, known in metrics.items()}
    passed: dict[tuple[str, str, str], tuple[str, str]] = {}
    given: set[tuple[str, str, str]] = set()
    for place, task, name, record in read:
        protocol = _text(record, "protocol", where, place, default="direct")
        model = _text(record, "model", where, place)
        if name is not None and name != main[task]:
            passed.setdefault((protocol, model, task), (place, name))
            continue
        given.add((protocol, model, task))
        yield Entry(
            protocol=protocol,
            model=model,
            task=task,
            value=number(record.get("score"), f"{where}, {place}, column score", required=True),
            stderr=_at_least_zero(record.get("stderr"), f"{where}, {place}, column stderr"),
            n=_at_least_zero(record.get("n"), f"{where}, {place}, column n"),
            metric=described(record, task, name, f"{where}, {place}"),
            origin=origin_of(record, f"{where}, {place}"),
            seeds=read_seeds(record.get("seeds"), f"{where}, {place}, column seeds"),
            place=place,
        )
    for cell, (place, name) in passed.items():
        if metric is None and cell not in given:
            _, model, task = cell
            raise DataError(
                f"{model} has {name} on {task}, where others have {main[task]}",
                where=f"{where}, {place}, column metric",
                hint=f"choose one metric for all: --metric {name}",
            )


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


def described(record: Mapping[str, Any], task: str, name: str | None, where: str) -> Metric:
    """Return the metric with what the row says of it; what it does not say is known of its name, or unknown."""
    made = metric_of(task, name, _direction(record.get("higher_is_better"), where))
    kind, scale = _word(record, "metric_kind", KINDS, where), _word(record, "metric_scale", SCALES, where)
    chance = number(record.get("chance"), f"{where}, column chance")
    return replace(
        made, kind=kind or made.kind, scale=scale or made.scale, chance=None if math.isnan(chance) else chance
    )


def origin_of(record: Mapping[str, Any], where: str) -> Origin:
    """Return where a row says that its score comes from."""
    shots = number(record.get("shots"), f"{where}, column shots")
    data, recipe, model, source, path = (
        str(record[name]).strip() or None if record.get(name) is not None else None
        for name in ("data_fingerprint", "recipe_fingerprint", "model_fingerprint", "source", "path")
    )
    return Origin(data, recipe, None if math.isnan(shots) else int(shots), model, source, path)


def read_seeds(value: Any, where: str) -> tuple[float, ...]:
    """Read the values with every seed, with semicolons between."""
    parts = [] if value is None else re.split(r"[;\s]+", str(value).strip())
    return tuple(number(part, where, required=True) for part in parts if part)


def _word(record: Mapping[str, Any], name: str, known: tuple[T, ...], where: str) -> T | None:
    value = record.get(name)
    if value is None or not str(value).strip():
        return None
    found = next((word for word in known if word == str(value).strip()), None)
    if found is None:
        raise DataError(f"{_short(value)} is none of {', '.join(map(str, known))}", where=f"{where}, column {name}")
    return found


def _metric(record: Mapping[str, Any]) -> str | None:
    value = record.get("metric")
    return str(value).strip() or None if value is not None else None


def _text(record: Mapping[str, Any], column: str, where: str, place: str, *, default: str | None = None) -> str:
    value = record.get(column)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip():
        if default is not None and isinstance(value, str):
            return default
        raise DataError(f"the {column} {value!r} is no name", where=f"{where}, {place}, column {column}")
    return value.strip(" \t")


def number(value: Any, where: str, *, required: bool = False) -> float:
    """Read one number; empty, missing and NaN mean unknown, which a score may not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise DataError(f"{_short(value)} is no number", where=where)
    if value is None or (isinstance(value, str) and value.strip().casefold() in _UNKNOWN):
        value = math.nan
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise DataError(f"{_short(value)} is no number", where=where) from None
    if math.isinf(result):
        raise DataError("the number is infinite", where=where)
    if required and math.isnan(result):
        raise DataError(
            "the score is missing or NaN", where=where, hint="leave out what was not measured: a gap is no score"
        )
    return result


def _at_least_zero(value: Any, where: str) -> float:
    result = number(value, where)
    if result < 0:
        raise DataError(f"{result:g} is negative", where=where)
    return result


def _direction(value: Any, where: str) -> bool | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    known = value if isinstance(value, bool) else _TRUE.get(str(value).strip().casefold())
    if known is None:
        raise DataError(f"{_short(value)} is neither true nor false", where=f"{where}, column higher_is_better")
    return known


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

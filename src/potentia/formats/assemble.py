"""From single scores to matrices: the one place that checks duplicates and directions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from potentia.errors import DataError
from potentia.values.metric import Metric
from potentia.values.origin import UNKNOWN, Origin, comparable
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

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

"""From single scores to matrices: the one place that checks duplicates and directions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from potentia.errors import DataError
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


@dataclass(frozen=True, slots=True)
class Entry:
    """One score on its way into a matrix; ``place`` says where it was read."""

    protocol: str
    model: str
    task: str
    value: float
    stderr: float = math.nan
    n: float = math.nan
    higher_is_better: bool = True
    place: str = ""
    metric: str = ""


def assemble(entries: Iterable[Entry], *, where: str) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol, names in order of appearance; refuse duplicates and mixed directions."""
    protocols: dict[str, dict[tuple[str, str], Entry]] = {}
    direction: dict[str, Entry] = {}
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
        first = direction.setdefault(entry.task, entry)
        if first.higher_is_better != entry.higher_is_better:
            raise DataError(
                f"{entry.task} is both higher-is-better and lower-is-better{_at(first, entry)}",
                where=where,
                hint="use one metric, or give the two metrics different benchmark names",
            )
        cells[entry.model, entry.task] = entry
    if not protocols:
        raise DataError("there are no scores in it", where=where)
    return {Protocol(protocol): _matrix(protocol, cells) for protocol, cells in protocols.items()}


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
    up, metrics = [True] * len(tasks), [""] * len(tasks)
    for (model, task), entry in cells.items():
        i, j = models[model], tasks[task]
        values[i, j], stderr[i, j], n[i, j] = entry.value, entry.stderr, entry.n
        up[j], metrics[j] = entry.higher_is_better, entry.metric
    return ScoreMatrix(Protocol(protocol), tuple(models), tuple(tasks), values, stderr, n, tuple(up), tuple(metrics))


def _at(first: Entry, second: Entry) -> str:
    return f" ({first.place} and {second.place})" if first.place and second.place else ""

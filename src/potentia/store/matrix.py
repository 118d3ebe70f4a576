"""From the rows of a query to a ScoreMatrix, by columns: 100,000 cells take well under a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import DataError
from potentia.store import schema as s
from potentia.values.metric import Metric
from potentia.values.origin import Origin
from potentia.values.protocol import Protocol
from potentia.values.scores import Objects, ScoreMatrix

METRIC = tuple(s.scores.c[name] for name in ("metric", "higher_is_better", "kind", "scale", "chance"))
ORIGIN = ("data", "recipe", "shots", "identity", "source", "path")  # columns of a cell, in the order of Origin
_UNKNOWN = (None,) * len(ORIGIN)


class Grid:
    """Rows of (model, task, value, stderr, n, *METRIC, seeds, *ORIGIN), on their way into a matrix."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows = rows
        names = [[row[place] for row in rows] for place in range(2)]
        self.models, self.tasks = map(_sorted, names)
        self._places = (_index(names[0], self.models), _index(names[1], self.tasks))

    def repeats(self) -> bool:
        """Say whether a model has a task twice."""
        flat = self._places[0] * len(self.tasks) + self._places[1]
        return len(np.unique(flat)) < len(flat)

    def matrix(self, protocol: str, where: str) -> ScoreMatrix:
        """Return the matrix; of repeated cells the last row stays."""
        values, stderr, n = (self._numbers(place) for place in (2, 3, 4))
        n[n <= 0] = np.nan  # an imported score may not say its n
        return ScoreMatrix(
            Protocol(protocol),
            self.models,
            self.tasks,
            values,
            stderr,
            n,
            self._metrics(where),
            self._objects(read_origin, slice(11, 17)),
            self._objects(read_seeds, slice(10, 11)),
        )

    def _numbers(self, column: int) -> npt.NDArray[np.float64]:
        part = np.full((len(self.models), len(self.tasks)), np.nan)
        part[self._places] = np.array([row[column] for row in self._rows], dtype=np.float64)  # None is NaN
        return part

    def _objects(self, read: Callable[..., Any], columns: slice) -> Objects | None:
        """Return one object per cell, equal ones made once; None where no cell has any."""
        given = [tuple(row[columns]) for row in self._rows]
        made = {parts: read(*parts) for parts in set(given)}
        if not any(made.values()):
            return None
        cells = np.empty(len(given), dtype=object)
        cells[:] = [made[parts] for parts in given]
        part = np.full((len(self.models), len(self.tasks)), None, dtype=object)
        part[self._places] = cells
        return part

    def _metrics(self, where: str) -> tuple[Metric, ...]:
        """Return the metric of every task; cells of a task that are of different ones are refused."""
        found: dict[str, Metric] = {}
        for task, *parts in dict.fromkeys((row[1], *row[5:10]) for row in self._rows):
            metric = read_metric(*parts)
            different = found.setdefault(task, metric).differences(metric)
            if different:
                what, one, two = different[0]
                hint = "choose one metric for all: --metric NAME"
                raise DataError(f"{task} has two kinds of scores: {what} {one} and {two}", where=where, hint=hint)
            found[task] = found[task].merged(metric)
        return tuple(found[task] for task in self.tasks)


def read_metric(name: str, up: Any, kind: Any = None, scale: Any = None, chance: float | None = None) -> Metric:
    """Return a metric of what its columns hold."""
    return Metric(name, bool(up), kind, scale, chance)


def read_origin(*columns: Any) -> Origin | None:
    """Return an origin of what its columns hold."""
    return Origin(*columns) if columns != _UNKNOWN else None


def read_seeds(text: str | None) -> tuple[float, ...] | None:
    """Return the values with every seed; None where there is one."""
    return tuple(json.loads(text)) if text else None


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name.casefold(), name)))


def _index(names: Sequence[str], known: Sequence[str]) -> npt.NDArray[np.intp]:
    index = {name: i for i, name in enumerate(known)}
    return np.fromiter(map(index.__getitem__, names), dtype=np.intp, count=len(names))

"""From the rows of a query to a ScoreMatrix, by columns: 100,000 cells take well under a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import DataError
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


class Grid:
    """Rows of (model, task, value, stderr, n, higher_is_better, metric), on their way into a matrix."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._columns = [[row[place] for row in rows] for place in range(7)]
        self.models, self.tasks = (_sorted(names) for names in self._columns[:2])
        self._places = (_index(self._columns[0], self.models), _index(self._columns[1], self.tasks))

    def repeats(self) -> bool:
        """Say whether a model has a task twice."""
        flat = self._places[0] * len(self.tasks) + self._places[1]
        return len(np.unique(flat)) < len(flat)

    def matrix(self, protocol: str, where: str) -> ScoreMatrix:
        """Return the matrix; of repeated cells the last row stays."""
        parts = []
        for column in self._columns[2:6]:
            part = np.full((len(self.models), len(self.tasks)), np.nan)
            part[self._places] = np.array(column, dtype=np.float64)  # None is NaN
            parts.append(part)
        values, stderr, n, up = parts
        best, worst = np.nanmax(up, axis=0), np.nanmin(up, axis=0)
        if (best != worst).any():
            mixed = self.tasks[int(np.flatnonzero(best != worst)[0])]
            message = f"{mixed} is both higher-is-better and lower-is-better"
            raise DataError(message, where=where, hint="choose one metric for all: --metric NAME")
        n[n <= 0] = np.nan  # an imported score may not say its n
        names = dict(zip(self._columns[1], self._columns[6], strict=True))
        metrics = tuple(names[task] for task in self.tasks)
        return ScoreMatrix(
            Protocol(protocol), self.models, self.tasks, values, stderr, n, tuple(bool(d) for d in best), metrics
        )


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name.casefold(), name)))


def _index(names: Sequence[str], known: Sequence[str]) -> npt.NDArray[np.intp]:
    index = {name: i for i, name in enumerate(known)}
    return np.fromiter(map(index.__getitem__, names), dtype=np.intp, count=len(names))

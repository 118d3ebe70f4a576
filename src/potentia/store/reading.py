"""What a store gives back: records of cells, and by columns a ScoreMatrix (100,000 cells in well under a second)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from potentia.errors import DataError, InputError, StoreError
from potentia.store import schema as s
from potentia.store.live import Leases
from potentia.store.records import CellRecord, ChoiceRecord, StudyRecord, load, load_values, loads, looks_whole
from potentia.values.metric import UNKNOWN, Metric, Origin
from potentia.values.protocol import Protocol
from potentia.values.scores import ItemOutcome, Objects, Score, ScoreMatrix

METRIC = ("metric", "higher_is_better", "kind", "scale", "chance")  # columns of a score, in the order of Metric
ORIGIN = ("data", "recipe", "shots", "identity", "source", "path")  # columns of a cell, in the order of Origin
CELL = ("key", "study", "model", "task", "protocol", "metric", "created", "seconds", "direct_value", "gain")
Studies = str | Sequence[str] | None  # one or several studies, by key or name
_Key = TypeVar("_Key", str, int)
_CHUNK = 500  # keys per statement, well under SQLite's limit of parameters


class Reading(Leases):
    """Everything that is asked of committed cells."""

    def studies(self) -> list[StudyRecord]:
        """Return all studies, the one opened last first."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(s.studies).order_by(s.studies.c.opened.desc())).mappings().all()
        return [StudyRecord(r["key"], r["name"], loads(r["spec"]), r["created"]) for r in rows]

    def has(self, cell_key: str) -> bool:
        """Say whether this cell is committed."""
        return bool(self.names([cell_key]))

    def names(self, cell_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return, for those of the keys that are committed, the model and task that the cell is named after."""
        found: dict[str, tuple[str, str]] = {}
        with self._reading() as connection:
            for chunk in chunks(cell_keys):
                query = sa.select(s.cells.c.key, s.cells.c.model, s.cells.c.task).where(s.cells.c.key.in_(chunk))
                found |= {key: (model, task) for key, model, task in connection.execute(query)}
        return found

    def linked(self, study: str) -> dict[str, str]:
        """Return the keys of the cells that a study has, each with its model; none where the study is not known."""
        c, linked = s.cells.c, s.study_cells.c
        query = sa.select(c.key, c.model).join_from(s.study_cells, s.cells).where(linked.study == study)
        with self._reading() as connection:
            return dict(connection.execute(query).all())

    def damaged(self, cell_keys: Sequence[str]) -> list[str]:
        """Return those of the committed cells whose items are missing or cut short."""
        found: list[str] = []
        with self._reading() as connection:
            for chunk in chunks(cell_keys):
                query = sa.select(s.cells.c.key).where(s.cells.c.key.in_(chunk), s.cells.c.item_count.is_not(None))
                found += [key for key in connection.execute(query).scalars() if not looks_whole(self.items_folder, key)]
        return found

    def cells(
        self, *, study: Studies = None, limit: int | None = None, offset: int = 0, **equal: str | None
    ) -> list[CellRecord]:
        """Return committed cells in the order of their making; ``limit`` and ``offset`` take a page of them.

        ``protocol``, ``model``, ``task`` and ``key`` narrow them.
        """
        with self._reading() as connection:
            wanted = self._wanted(connection, study=study, **equal)
            if limit is not None:
                page = sa.select(s.cells.c.id).where(*wanted).order_by(s.cells.c.id)
                wanted = [s.cells.c.id.in_(connection.execute(page.limit(limit).offset(offset)).scalars().all())]
            body = sa.select(s.cells, s.manifests.c.manifest, s.manifests.c.selection).join_from(s.cells, s.manifests)
            body = body.where(*wanted).order_by(s.cells.c.id)
            rows = connection.execute(body).mappings().all()
            parts = sa.select(s.scores).join_from(s.scores, s.cells).where(*wanted).order_by(s.scores.c.name)
            origins = {r["id"]: _origin(*(r[name] for name in ORIGIN)) or UNKNOWN for r in rows}
            scores: dict[int, dict[str, Score]] = {}
            for row in connection.execute(parts).mappings():
                scores.setdefault(row["cell"], {})[row["name"]] = _score(row, origins[row["cell"]])
        return [
            CellRecord(
                **{name: r[name] for name in CELL},
                scores=scores.get(r["id"], {}),
                manifest=loads(r["manifest"]),
                selection=loads(r["selection"]),
            )
            for r in rows
        ]

    def cell(self, cell_key: str) -> CellRecord | None:
        """Return one cell, or None where it is not committed."""
        found = self.cells(key=cell_key)
        return found[0] if found else None

    def choices(self, *, study: Studies = None, protocol: str | None = None) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell, without scores and manifests, in the same order."""
        c = s.cells.c
        body = sa.select(c.key, c.model, c.task, c.protocol, c.metric, s.manifests.c.selection)
        return [ChoiceRecord(*row) for row in self._each(body, s.manifests, study=study, protocol=protocol)]

    def cut_prompts(self, *, study: Studies = None) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
        """Return, by protocol and task, the models whose prompts were cut: how many, of how many requests."""
        c, text = s.cells.c, s.manifests.c.selection
        query = sa.select(c.protocol, c.task, c.model, text).where(text.contains('"cut_prompts"'))
        found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        for protocol, task, model, selection in self._each(query, s.manifests, study=study):
            cut, asked = loads(selection)["cut_prompts"]
            found.setdefault((protocol, task), {})[model] = cut, asked
        return found

    def probes(self, *, study: Studies = None, key: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """Return what the probe of every model and task recorded, the newest of several; none where none was made."""
        query = sa.select(s.cells.c.model, s.cells.c.task, s.probes.c.probe)
        return {(model, task): loads(text) for model, task, text in self._each(query, s.probes, study=study, key=key)}

    def _each(self, query: Any, beside: sa.Table, **which: Any) -> Sequence[Any]:
        """Return rows of cells and of a table beside them, in the order of their making."""
        with self._reading() as connection:
            query = query.join_from(s.cells, beside).where(*self._wanted(connection, **which))
            return connection.execute(query.order_by(s.cells.c.id)).all()

    def count(self, *, study: Studies = None, **equal: str | None) -> int:
        """Return how many cells are committed, without reading them."""
        return int(self._total(sa.func.count(s.cells.c.id), study=study, **equal))

    def seconds(self, *, study: Studies = None) -> float:
        """Return how long the committed cells took to compute, all together."""
        return self._total(sa.func.coalesce(sa.func.sum(s.cells.c.seconds), 0.0), study=study)

    def _total(self, what: Any, **which: Any) -> float:
        with self._reading() as connection:
            return float(connection.execute(sa.select(what).where(*self._wanted(connection, **which))).scalar_one())

    def items(self, cell_key: str) -> list[ItemOutcome]:
        """Return the per-item outcomes of a cell; an imported cell has none."""
        with self._reading() as connection:
            row = connection.execute(sa.select(s.cells.c.item_count).where(s.cells.c.key == cell_key)).first()
        if row is None:
            raise StoreError(f"no cell {cell_key!r} in this store", where=self.where)
        return [] if row[0] is None else load(self.items_folder, cell_key)

    def outcomes(self, *, study: Studies = None) -> Iterator[tuple[str, str, str, str | None, dict[int, float]]]:
        """Give (protocol, task, model, data, value by document) of every cell with items, the newest of several last.

        A file that is missing or cannot be read is passed over: the score still stands.
        """
        c = s.cells.c
        with self._reading() as connection:
            wanted = [*self._wanted(connection, study=study), c.item_count.is_not(None)]
            query = sa.select(c.protocol, c.task, c.model, c.data, c.key).where(*wanted).order_by(c.id)
            rows = connection.execute(query).all()
        for protocol, task, model, data, key in rows:
            values = load_values(self.items_folder, key)
            if values is not None:
                yield protocol, task, model, data, values

    def protocols(self, *, study: Studies = None) -> list[str]:
        """Return the protocols that have cells."""
        with self._reading() as connection:
            query = sa.select(s.cells.c.protocol).distinct().where(*self._wanted(connection, study=study))
            return sorted(connection.execute(query).scalars().all())

    def manifests_by_task(self, *, study: Studies = None) -> dict[str, dict[str, Any]]:
        """Return the manifest of the first cell of every task: how its documents were divided is the same in all."""
        c = s.cells.c
        with self._reading() as connection:
            first = sa.select(sa.func.min(c.id)).where(*self._wanted(connection, study=study)).group_by(c.task)
            query = sa.select(c.task, s.manifests.c.manifest).join_from(s.cells, s.manifests).where(c.id.in_(first))
            return {task: loads(text) for task, text in connection.execute(query)}

    def matrix(self, protocol: str, *, study: Studies = None, metric: str | None = None) -> ScoreMatrix:
        """Return models × tasks of one protocol, each sorted by name; missing cells are NaN.

        Without ``study`` all cells count; where several have the same model and task (another recipe, another import)
        the newest is taken. ``metric`` picks another than each cell's main metric.
        """
        c, p = s.cells.c, s.scores.c
        columns = [c.model, c.task, p.value, p.stderr, p.n, *(p[name] for name in METRIC), p.seeds]
        with self._reading() as connection:
            query = self._scored(sa.select(*columns, *(c[name] for name in ORIGIN)), metric)
            query = query.where(*self._wanted(connection, study=study, protocol=protocol))
            grid = Grid(connection.execute(query.order_by(c.id)).all())
        if not grid.models:
            what = f"{protocol} cells" + (f" with the metric {metric!r}" if metric else "")
            known = ", ".join(self.protocols(study=study))
            raise InputError(f"the store has no {what}", where=self.where, hint=f"protocols there: {known or 'none'}")
        return grid.matrix(protocol, self.where)

    def measures(
        self, *, study: Studies = None, metric: str | None = None
    ) -> list[tuple[str, str, str, Metric, Origin]]:
        """Return (study, protocol, task, metric, origin) as they occur among the cells, for ``comparable`` to judge.

        Of the origin only what may differ is there: data, recipe and examples in the prompt.
        """
        c, p, linked = s.cells.c, s.scores.c, s.study_cells.c
        columns = (linked.study, c.protocol, c.task, *(p[name] for name in METRIC[:-1]), c.data, c.recipe, c.shots)
        with self._reading() as connection:
            query = self._scored(sa.select(*columns).distinct(), metric).join(s.study_cells, linked.cell == c.id)
            wanted = self._wanted(connection, study=study)
            if study is not None:  # a cell may be of other studies too
                wanted.append(linked.study.in_(self._study_keys(connection, study)))
            rows = connection.execute(query.where(*wanted)).all()
        return [(r[0], r[1], r[2], _metric(*r[3:7]), Origin(*r[7:])) for r in rows]

    @staticmethod
    def _scored(query: Any, metric: str | None) -> Any:
        """Join cells with their scores by one metric, or by each cell's main one."""
        named = s.scores.c.name == (s.cells.c.metric if metric is None else metric)
        return query.join_from(s.cells, s.scores, sa.and_(s.scores.c.cell == s.cells.c.id, named))

    def _wanted(self, connection: sa.Connection, *, study: Studies = None, **equal: str | None) -> list[Any]:
        wanted: list[Any] = [s.cells.c[name] == value for name, value in equal.items() if value is not None]
        if study is not None:
            keys = self._study_keys(connection, study)
            wanted.append(s.cells.c.id.in_(sa.select(s.study_cells.c.cell).where(s.study_cells.c.study.in_(keys))))
        return wanted

    def _study_keys(self, connection: sa.Connection, study: Studies) -> list[str]:
        return [self._study_key(connection, name) for name in ((study,) if isinstance(study, str) else study or ())]


class Grid:
    """Rows of (model, task, value, stderr, n, *METRIC, seeds, *ORIGIN), on their way into a matrix."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows = rows
        names = [[row[place] for row in rows] for place in range(2)]
        self.models, self.tasks = map(_sorted, names)
        self._places = (_index(names[0], self.models), _index(names[1], self.tasks))

    def matrix(self, protocol: str, where: str) -> ScoreMatrix:
        """Return the matrix; of repeated cells the last row stays."""
        values, stderr, n = (self._numbers(place) for place in (2, 3, 4))
        n[n <= 0] = np.nan  # an imported score may not say its n
        origins, seeds = self._objects(_origin, slice(11, 17)), self._objects(_seeds, slice(10, 11))
        parts = (values, stderr, n, self._metrics(where), origins, seeds)
        return ScoreMatrix(Protocol(protocol), self.models, self.tasks, *parts)

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
            metric = _metric(*parts)
            different = found.setdefault(task, metric).differences(metric)
            if different:
                what, one, two = different[0]
                hint = "choose one metric for all: --metric NAME"
                raise DataError(f"{task} has two kinds of scores: {what} {one} and {two}", where=where, hint=hint)
            found[task] = found[task].merged(metric)
        return tuple(found[task] for task in self.tasks)


def chunks(keys: Sequence[_Key]) -> list[Sequence[_Key]]:
    """Divide keys into as many as one statement takes."""
    return [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]


def _metric(name: str, up: Any, kind: Any = None, scale: Any = None, chance: float | None = None) -> Metric:
    return Metric(name, bool(up), kind, scale, chance)


def _origin(*columns: Any) -> Origin | None:
    return Origin(*columns) if any(column is not None for column in columns) else None


def _seeds(text: str | None) -> tuple[float, ...] | None:
    return tuple(json.loads(text)) if text else None


def _score(row: Any, origin: Origin) -> Score:
    value, stderr = (math.nan if row[name] is None else row[name] for name in ("value", "stderr"))
    return Score(value, stderr, row["n"], _metric(*(row[name] for name in METRIC)), origin, _seeds(row["seeds"]) or ())


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name.casefold(), name)))


def _index(names: Sequence[str], known: Sequence[str]) -> npt.NDArray[np.intp]:
    index = {name: i for i, name in enumerate(known)}
    return np.fromiter(map(index.__getitem__, names), dtype=np.intp, count=len(names))

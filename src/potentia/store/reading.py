"""What a store gives back: records of cells, and a ScoreMatrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from potentia.errors import DataError, InputError, StoreError
from potentia.store import schema as s
from potentia.store.live import Leases, chunks, columns
from potentia.store.records import (
    CellRecord,
    ChoiceRecord,
    StudyRecord,
    load,
    load_values,
    loads,
    looks_whole,
)
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, Metric, Origin
from potentia.values.provenance import Provenance
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix
from potentia.values.selection import CutPrompts, ProbeResult

METRIC = tuple(column.stored_as for column in METRIC_COLUMNS)  # of a score
ORIGIN = tuple(column.stored_as for column in ORIGIN_COLUMNS)  # of a cell
CELL = [column.name for column in columns(s.cells, CellRecord)]
Studies = str | Sequence[str] | None  # one or several studies, by key or name
_SELECTION = sa.type_coerce(s.provenances.c.selection, sa.Text).label(
    "selection"
)  # as it is stored
_SCORE = (
    *(s.scores.c[name] for name in ("value", "stderr", "n", *METRIC)),
    sa.type_coerce(s.scores.c.seeds, sa.Text).label("seeds"),
    *(s.cells.c[name] for name in ORIGIN),
)


class Reading(Leases):
    """Everything that is asked of committed cells."""

    def studies(self) -> list[StudyRecord]:
        """Return all studies, the one opened last first."""
        query = sa.select(*columns(s.studies, StudyRecord)).order_by(s.studies.c.opened.desc())
        with self._reading() as connection:
            return [StudyRecord(**row) for row in connection.execute(query).mappings()]

    def has(self, cell_key: str) -> bool:
        """Say whether this cell is committed."""
        return bool(self.names([cell_key]))

    def names(self, cell_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return, for those of the keys that are committed, the model and task that the cell is named after."""
        c = s.cells.c
        return {
            key: (model, task)
            for key, model, task in self._of_keys(cell_keys, c.key, c.model, c.task)
        }

    def damaged(self, cell_keys: Sequence[str]) -> list[str]:
        """Return those of the committed cells whose items are missing or cut short."""
        found = self._of_keys(cell_keys, s.cells.c.key, s.cells.c.item_count)
        return [
            key
            for key, count in found
            if count is not None and not looks_whole(self.items_folder, key)
        ]

    def _of_keys(self, cell_keys: Sequence[str], *parts: Any) -> list[Any]:
        """Return parts of the cells with these keys that are committed."""
        with self._reading() as connection:
            queries = [
                sa.select(*parts).where(s.cells.c.key.in_(some)) for some in chunks(cell_keys)
            ]
            return [row for query in queries for row in connection.execute(query)]

    def linked(self, study: str) -> dict[str, str]:
        """Return the keys of the cells that a study has, each with its model; none where the study is not known."""
        c, linked = s.cells.c, s.study_cells.c
        query = (
            sa.select(c.key, c.model).join_from(s.study_cells, s.cells).where(linked.study == study)
        )
        with self._reading() as connection:
            return dict(connection.execute(query).all())

    def cells(
        self,
        *,
        study: Studies = None,
        limit: int | None = None,
        offset: int = 0,
        **equal: str | None,
    ) -> list[CellRecord]:
        """Return committed cells in the order of their making; ``limit`` and ``offset`` take a page of them.

        ``protocol``, ``model``, ``task`` and ``key`` narrow them.
        """
        with self._reading() as connection:
            wanted = self._wanted(connection, study=study, **equal)
            page = (
                sa.select(s.cells.c.id)
                .where(*wanted)
                .order_by(s.cells.c.id)
                .limit(limit)
                .offset(offset)
            )
            if limit is not None:
                wanted = [s.cells.c.id.in_(connection.execute(page).scalars().all())]
            body = sa.select(
                s.cells.c.id,
                *(s.cells.c[name] for name in CELL),
                *columns(s.provenances, CellRecord),
            )
            body = body.join_from(s.cells, s.provenances).where(*wanted).order_by(s.cells.c.id)
            rows = [dict(row) for row in connection.execute(body).mappings()]
            parts = (
                sa.select(s.scores.c.cell, s.scores.c.name, *_SCORE)
                .join_from(s.scores, s.cells)
                .where(*wanted)
            )
            scores: dict[int, dict[str, Score]] = {row["id"]: {} for row in rows}
            for cell, name, *score in connection.execute(parts.order_by(s.scores.c.name)):
                scores[cell][name] = _score(*score)
        return [CellRecord(scores=scores[row.pop("id")], **row) for row in rows]

    def cell(self, cell_key: str) -> CellRecord | None:
        """Return one cell, or None where it is not committed."""
        return next(iter(self.cells(key=cell_key)), None)

    def choices(self, *, study: Studies = None, protocol: str | None = None) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell, without scores and provenances, in the same order."""
        c = s.cells.c
        query = sa.select(c.key, c.model, c.task, c.protocol, c.metric, _SELECTION)
        rows = self._each(query.join_from(s.cells, s.provenances), study=study, protocol=protocol)
        return [ChoiceRecord(*row) for row in rows]

    def cut_prompts(self, *, study: Studies = None) -> dict[tuple[str, str], dict[str, CutPrompts]]:
        """Return, by protocol and task, the models whose prompts were cut: how many, of how many requests."""
        c = s.cells.c
        query = sa.select(c.protocol, c.task, c.model, s.provenances.c.selection).join_from(
            s.cells, s.provenances
        )
        query = query.where(_SELECTION.contains('"cut_prompts"'))
        found: dict[tuple[str, str], dict[str, CutPrompts]] = {}
        for protocol, task, model, selection in self._each(query, study=study):
            by_model = found.setdefault((protocol, task), {})
            by_model[model] = selection.cut_prompts
        return found

    def unknown_tokens(self, *, study: Studies = None) -> dict[tuple[str, str], float]:
        """Return, by task and model, a high share of tokens that the model's tokenizer does not know."""
        c = s.cells.c
        query = sa.select(c.task, c.model, s.provenances.c.selection).join_from(
            s.cells, s.provenances
        )
        query = query.where(_SELECTION.contains('"unknown_tokens"'))
        shares: dict[tuple[str, str], float] = {}
        for task, model, selection in self._each(query, study=study):
            shares[task, model] = selection.unknown_tokens
        return shares

    def probes(
        self, *, study: Studies = None, key: str | None = None
    ) -> dict[tuple[str, str], ProbeResult]:
        """Return what the probe of every model and task recorded, the newest of several; none where none was made."""
        query = sa.select(s.cells.c.model, s.cells.c.task, s.probes.c.probe).join_from(
            s.cells, s.probes
        )
        return {
            (model, task): probe for model, task, probe in self._each(query, study=study, key=key)
        }

    def count(self, *, study: Studies = None, **equal: str | None) -> int:
        """Return how many cells are committed, without reading them."""
        return int(self._total(sa.func.count(s.cells.c.id), study=study, **equal))

    def seconds(self, *, study: Studies = None) -> float:
        """Return how long the committed cells took to compute, all together."""
        return self._total(sa.func.coalesce(sa.func.sum(s.cells.c.seconds), 0.0), study=study)

    def _total(self, what: Any, **which: Any) -> float:
        with self._reading() as connection:
            return float(
                connection.execute(
                    sa.select(what).where(*self._wanted(connection, **which))
                ).scalar_one()
            )

    def items(
        self, cell_key: str, choose: Callable[[list[float]], list[int]] | None = None
    ) -> list[ItemOutcome]:
        """Return the per-item outcomes of a cell, of all or at the places that are chosen by their values.

        An imported cell has none.
        """
        found = self._of_keys([cell_key], s.cells.c.item_count)
        if not found:
            raise StoreError(f"no cell {cell_key!r} in this store", where=self.where)
        return [] if found[0][0] is None else load(self.items_folder, cell_key, choose)

    def outcomes(
        self, *, study: Studies = None
    ) -> Iterator[tuple[str, str, str, str | None, dict[int, float]]]:
        """Give (protocol, task, model, data, value by document) of every cell with items, the newest of several last.

        A file that is missing or cannot be read is passed over: the score still stands.
        """
        c = s.cells.c
        query = sa.select(c.key, c.protocol, c.task, c.model, c.data).where(
            c.item_count.is_not(None)
        )
        for key, *cell in self._each(query, study=study):
            values = load_values(self.items_folder, key)
            if values is not None:
                yield (*cell, values)

    def protocols(self, *, study: Studies = None) -> list[str]:
        """Return the protocols that have cells."""
        with self._reading() as connection:
            query = (
                sa.select(s.cells.c.protocol)
                .distinct()
                .where(*self._wanted(connection, study=study))
            )
            return sorted(connection.execute(query).scalars().all())

    def provenances_by_task(self, *, study: Studies = None) -> dict[str, Provenance]:
        """Return the provenance of the first cell of every task: how its documents were divided is the same in all."""
        c = s.cells.c
        with self._reading() as connection:
            first = (
                sa.select(sa.func.min(c.id))
                .where(*self._wanted(connection, study=study))
                .group_by(c.task)
            )
            query = (
                sa.select(c.task, s.provenances.c.provenance)
                .join_from(s.cells, s.provenances)
                .where(c.id.in_(first))
            )
            return dict(connection.execute(query).all())

    def matrix(
        self, protocol: str, *, study: Studies = None, metric: str | None = None
    ) -> ScoreMatrix:
        """Return models × tasks of one protocol, each sorted by name; missing cells are NaN.

        Without ``study`` all cells count; where several have the same model and task (another recipe, another import)
        the newest is taken. ``metric`` picks another than each cell's main metric.
        """
        query = self._scored(sa.select(s.cells.c.model, s.cells.c.task, *_SCORE), metric)
        rows = self._each(query, study=study, protocol=protocol)
        if not rows:
            what = f"{protocol} cells" + (f" with the metric {metric!r}" if metric else "")
            known = ", ".join(self.protocols(study=study))
            raise InputError(
                f"the store has no {what}",
                where=self.where,
                hint=f"protocols there: {known or 'none'}",
            )
        cells = {(model, task): _score(*score) for model, task, *score in rows}
        self._check_metrics(cells)
        by_name = [
            sorted(set(names), key=lambda name: (name.casefold(), name))
            for names in zip(*cells, strict=True)
        ]
        return ScoreMatrix.of_cells(protocol, cells, *by_name)

    def _check_metrics(self, cells: dict[tuple[str, str], Score]) -> None:
        """Refuse cells of a task that are of different metrics."""
        found: dict[str, Metric] = {}
        kinds = {(task, id(score.metric)): score.metric for (_, task), score in cells.items()}
        for (task, _), metric in kinds.items():
            for what, one, two in found.setdefault(task, metric).differences(metric):
                hint = "choose one metric for all: --metric NAME"
                raise DataError(
                    f"{task} has two kinds of scores: {what} {one} and {two}",
                    where=self.where,
                    hint=hint,
                )

    def measures(
        self, *, study: Studies = None, metric: str | None = None
    ) -> list[tuple[str, str, str, Metric, Origin]]:
        """Return (study, protocol, task, metric, origin) as they occur among the cells, for ``comparable`` to judge.

        Of the origin only what may differ is there: data, recipe and examples in the prompt.
        """
        c, p, linked = s.cells.c, s.scores.c, s.study_cells.c
        parts = (
            linked.study,
            c.protocol,
            c.task,
            *(p[name] for name in METRIC[:-1]),
            c.data,
            c.recipe,
            c.shots,
        )
        with self._reading() as connection:
            query = self._scored(sa.select(*parts).distinct(), metric).join(
                s.study_cells, linked.cell == c.id
            )
            wanted = self._wanted(connection, study=study)
            if study is not None:  # a cell may be of other studies too
                wanted.append(linked.study.in_(self._study_keys(connection, study)))
            rows = connection.execute(query.where(*wanted)).all()
        return [(r[0], r[1], r[2], Metric(*r[3:7]), Origin(*r[7:])) for r in rows]

    @staticmethod
    def _scored(query: Any, metric: str | None) -> Any:
        """Join cells with their scores by one metric, or by each cell's main one."""
        named = s.scores.c.name == (s.cells.c.metric if metric is None else metric)
        return query.join_from(s.cells, s.scores, sa.and_(s.scores.c.cell == s.cells.c.id, named))

    def _each(self, query: Any, **which: Any) -> Sequence[Any]:
        """Return what is asked of cells, in the order of their making."""
        with self._reading() as connection:
            return connection.execute(
                query.where(*self._wanted(connection, **which)).order_by(s.cells.c.id)
            ).all()

    def _wanted(
        self, connection: sa.Connection, *, study: Studies = None, **equal: str | None
    ) -> list[Any]:
        wanted: list[Any] = [
            s.cells.c[name] == value for name, value in equal.items() if value is not None
        ]
        if study is not None:
            keys = self._study_keys(connection, study)
            wanted.append(
                s.cells.c.id.in_(
                    sa.select(s.study_cells.c.cell).where(s.study_cells.c.study.in_(keys))
                )
            )
        return wanted

    def _study_keys(self, connection: sa.Connection, study: Studies) -> list[str]:
        return [
            self._study_key(connection, name)
            for name in ((study,) if isinstance(study, str) else study or ())
        ]


_metric, _origin = lru_cache(1_000)(Metric), lru_cache(10_000)(Origin)  # many scores have the same


def _score(
    value: float | None,
    stderr: float | None,
    n: int,
    name: str,
    up: bool,
    kind: Any,
    scale: Any,
    chance: float | None,
    seeds: str | None,
    *origin: Any,
) -> Score:
    """Make a score of its columns (``_SCORE``)."""
    value = math.nan if value is None else value
    stderr = math.nan if stderr is None else stderr
    every = tuple(loads(seeds)) if seeds else ()
    return Score(value, stderr, n, _metric(name, up, kind, scale, chance), _origin(*origin), every)

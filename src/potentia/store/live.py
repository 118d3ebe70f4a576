"""The part of the store that changes while a study runs: failures, lanes and their curves, events, progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from potentia.errors import StoreError
from potentia.store import schema as s
from potentia.store.database import WRITE, now, speaking, store_gone
from potentia.store.items import dumps, loads
from potentia.store.patience import Patient
from potentia.store.records import EpochRecord, EventRecord, FailureRecord, LaneRecord

_EVENT_LOCK = 0x706F74656E746961  # any fixed number: all writers of events wait for one another on PostgreSQL
_SAID = s.events.insert().returning(s.events.c.id)


class LiveStore(Patient):
    """Connections and transactions, and everything that a running study writes besides its cells."""

    def __init__(self, engine: sa.Engine, where: str, folder: Path) -> None:
        self._engine = engine
        self.where = where
        self.items_folder = folder
        self._studies: dict[str, str] = {}
        self._upserts: dict[tuple[str, ...], Any] = {}
        self._own: set[str] = set()  # leases
        self._file: tuple[Path, tuple[int, int]] | None = None  # of a SQLite store: its path, device and number

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        self._check_there()
        with speaking(self.where), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":  # all statements see one moment, as SQLite's do
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        self._check_there()
        with speaking(self.where), self._engine.connect() as plain:
            connection = plain.execution_options(**{WRITE: True})
            with connection.begin():
                yield connection

    def _check_there(self) -> None:
        """Refuse to go on with a file that was removed or replaced: SQLite would write on into nowhere."""
        if self._file is None:
            return
        path, known = self._file
        try:
            found = path.stat()
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != known:
            raise store_gone(self.where, "removed" if found is None else "replaced by another file")

    def _insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, in the dialect at hand."""
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)

    def _upsert(self, connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
        fields = (table.name, *row)
        if fields not in self._upserts:  # built once: a running row writes every second
            keys = [column.name for column in table.primary_key]
            insert = self._insert(table)
            update = {name: insert.excluded[name] for name in row if name not in keys}
            self._upserts[fields] = insert.on_conflict_do_update(index_elements=keys, set_=update)
        connection.execute(self._upserts[fields], dict(row))

    def _study_key(self, connection: sa.Connection, study: str) -> str:
        """Return the key of a study given by key or by name; a name means the one opened last."""
        if study in self._studies:
            return self._studies[study]
        named = (
            sa.select(s.studies.c.key)
            .where(sa.or_(s.studies.c.key == study, s.studies.c.name == study))
            .order_by(s.studies.c.key != study, s.studies.c.opened.desc())
        )
        key = connection.execute(named).scalars().first()
        if key is None:
            known = connection.execute(sa.select(s.studies.c.name).distinct()).scalars().all()
            raise StoreError(
                f"no study {study!r} in this store",
                where=self.where,
                hint="there are: " + ", ".join(sorted(known)) if known else "the store holds no study yet",
            )
        if key == study:
            self._studies[study] = key
        return str(key)

    # --- failures ---------------------------------------------------------------------------------------------------

    def fail_cell(
        self,
        study: str,
        model: str,
        task: str,
        protocol: str,
        reason: str,
        *,
        key: str | None = None,
        kind: str = "",
        hint: str | None = None,
    ) -> None:
        """Record why a cell has no score. ``key`` may be unknown: a model that cannot be loaded has none."""
        with self._writing() as connection:
            insert = self._insert(s.failures).values(
                study=self._study_key(connection, study),
                model=model,
                task=task,
                protocol=protocol,
                key=key,
                kind=kind,
                reason=reason,
                hint=hint,
                attempts=1,
                created=now(),
            )
            update = {name: insert.excluded[name] for name in ("key", "kind", "reason", "hint", "created")}
            update["attempts"] = s.failures.c.attempts + 1
            keys = [column.name for column in s.failures.primary_key]
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=update))

    def failures(self, *, study: str | None = None) -> list[FailureRecord]:
        """Return the cells that failed and have not been committed since."""
        with self._reading() as connection:
            query = sa.select(s.failures).order_by(s.failures.c.created)
            if study is not None:
                query = query.where(s.failures.c.study == self._study_key(connection, study))
            return [FailureRecord(**row) for row in connection.execute(query).mappings()]

    # --- lanes ------------------------------------------------------------------------------------------------------

    def save_lane(self, lane: LaneRecord) -> None:
        """Write a lane's state and its whole curve; a lane saved before is replaced."""
        row = asdict(lane)
        points = [{"lane": lane.key, **asdict(point)} for point in lane.epochs]
        del row["epochs"]
        with self._writing() as connection:
            row["study"] = self._study_key(connection, lane.study)
            self._upsert(connection, s.lanes, row)
            connection.execute(s.epochs.delete().where(s.epochs.c.lane == lane.key))
            if points:
                connection.execute(s.epochs.insert(), points)

    def lanes(
        self,
        *,
        cell: str | None = None,
        study: str | None = None,
        model: str | Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[LaneRecord]:
        """Return lanes with their curves: those of a cell, or of a study and of the cells it took over; or a page."""
        with self._reading() as connection:
            wanted = self._wanted_lanes(connection, cell=cell, study=study, model=model)
            order = (s.lanes.c.model, s.lanes.c.task, s.lanes.c.learning_rate, s.lanes.c.style, s.lanes.c.seed)
            if limit is not None:
                page = sa.select(s.lanes.c.key).where(*wanted).order_by(*order).limit(limit).offset(offset)
                wanted = [s.lanes.c.key.in_(connection.execute(page).scalars().all())]
            every = sa.select(*(column.label(column.key) for column in s.lanes.c))
            rows = connection.execute(every.where(*wanted).order_by(*order)).mappings().all()
            keys = sa.select(s.lanes.c.key).where(*wanted)
            curve = sa.select(s.epochs).where(s.epochs.c.lane.in_(keys)).order_by(s.epochs.c.epoch)
            curves: dict[str, list[EpochRecord]] = {}
            for point in connection.execute(curve).mappings():
                values = dict(point)
                curves.setdefault(values.pop("lane"), []).append(EpochRecord(**values))
        return [LaneRecord(**row, epochs=tuple(curves.get(row["key"], ()))) for row in rows]

    def count_lanes(self, *, study: str, model: str | None = None) -> int:
        """Return how many lanes a study has, without reading them."""
        with self._reading() as connection:
            wanted = self._wanted_lanes(connection, cell=None, study=study, model=model)
            return int(connection.execute(sa.select(sa.func.count()).select_from(s.lanes).where(*wanted)).scalar_one())

    def _wanted_lanes(
        self, connection: sa.Connection, *, cell: str | None, study: str | None, model: str | Sequence[str] | None
    ) -> list[Any]:
        wanted: list[Any] = []
        if cell is not None:
            wanted.append(s.lanes.c.cell == cell)
        if model is not None:
            wanted.append(s.lanes.c.model.in_([model] if isinstance(model, str) else model))
        if study is not None:
            key = self._study_key(connection, study)
            of_others = sa.and_(s.study_cells.c.study == key, s.cells.c.study != key)
            adopted = sa.select(s.cells.c.key).join_from(s.cells, s.study_cells).where(of_others)
            if connection.execute(adopted.limit(1)).first() is None:
                wanted.append(s.lanes.c.study == key)
            else:
                wanted.append(sa.or_(s.lanes.c.study == key, s.lanes.c.cell.in_(adopted)))
        return wanted

    # --- events and progress ----------------------------------------------------------------------------------------

    def event(self, study: str, kind: str, payload: Mapping[str, Any] | None = None) -> int:
        """Append to the study's log and return the entry's id."""
        with self._writing() as connection:
            return self._say(connection, study, kind, payload or {})

    def _say(self, connection: sa.Connection, study: str, kind: str, payload: Mapping[str, Any]) -> int:
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_EVENT_LOCK)))
        row = {
            "study": self._study_key(connection, study),
            "kind": kind,
            "payload": dumps(dict(payload)),
            "created": now(),
        }
        return int(connection.execute(_SAID, row).scalar_one())

    def events(self, study: str, *, after_id: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Return the entries after ``after_id``, oldest first: call again with the last id to follow the log."""
        with self._reading() as connection:
            key = self._study_key(connection, study)
            query = (
                sa.select(s.events)
                .where(s.events.c.study == key, s.events.c.id > after_id)
                .order_by(s.events.c.id)
                .limit(limit)
            )
            rows = connection.execute(query).mappings().all()
        return [EventRecord(**{**row, "payload": loads(row["payload"])}) for row in rows]

    def last_event(self, study: str, *, before: int = 0) -> int:
        """Return the id of the study's latest entry but ``before`` others: 0 where there are no more."""
        with self._reading() as connection:
            key = self._study_key(connection, study)
            ids = sa.select(s.events.c.id).where(s.events.c.study == key).order_by(s.events.c.id.desc())
            return int(connection.execute(ids.offset(before).limit(1)).scalar() or 0)

    def put_progress(self, study: str, row: str, payload: Mapping[str, Any]) -> None:
        """Replace the latest state of a running row (tokens per second, time left, lanes)."""
        with self._writing() as connection:
            key = self._study_key(connection, study)
            state = {"study": key, "row": row, "payload": dumps(dict(payload)), "updated": now()}
            self._upsert(connection, s.progress, state)

    def get_progress(self, study: str) -> dict[str, dict[str, Any]]:
        """Return the latest state of each row; ``updated`` says when it was written."""
        with self._reading() as connection:
            query = sa.select(s.progress).where(s.progress.c.study == self._study_key(connection, study))
            rows = connection.execute(query.order_by(s.progress.c.row)).mappings().all()
        return {row["row"]: {**loads(row["payload"]), "updated": row["updated"]} for row in rows}

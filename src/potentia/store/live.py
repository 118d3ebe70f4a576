"""The part of the store that changes while a study runs: failures, lanes and curves, events, progress; and leases.

The cells of a row belong to one process while it computes them. It claims them in one transaction, or hears who has
some of them, and says now and then that it is alive (its *beat*). What belongs to a process that is gone is anyone's:
on the machine where it ran that is seen at once, from another machine when no beat has come for a while. Time is the
database server's, so that clocks of several machines need not agree.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from potentia.errors import StoreError
from potentia.store import schema as s
from potentia.store.database import WRITE, Patient, identity, speaking, store_gone
from potentia.store.records import (
    EpochRecord,
    EventRecord,
    FailureRecord,
    LaneRecord,
    LeaseRecord,
    began,
    now,
    place,
)

_EVENT_LOCK = (
    0x706F74656E746961  # any fixed numbers: on PostgreSQL writers of events wait for one another,
)
_LEASE_LOCK = 0x706F74656E740002  # and so do those who claim cells
_SAID = s.events.insert().returning(s.events.c.id)
_CHUNK = 500  # keys per statement, well under SQLite's limit of parameters
_Key = TypeVar("_Key", str, int)


def chunks(keys: Sequence[_Key]) -> list[Sequence[_Key]]:
    """Divide keys into as many as one statement takes."""
    return [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]


def columns(table: sa.Table, record: type) -> list[sa.Column[Any]]:
    """Return the columns of a table that are fields of a record."""
    return [table.c[field.name] for field in fields(record) if field.name in table.c]


class LiveStore(Patient):
    """Connections and transactions, and everything that a running study writes besides its cells."""

    def __init__(self, engine: sa.Engine, where: str, folder: Path) -> None:
        self._engine = engine
        self.where = where
        self.items_folder = folder
        # beside the items: tuned adapters, what a resumed row needs, logs of runs
        self.adapters_folder, self.lanes_folder, self.logs_folder = (
            folder.with_name(f"{folder.name.removesuffix('.items')}.{what}")
            for what in ("adapters", "lanes", "logs")
        )
        self._studies: dict[str, str] = {}
        self._own: set[str] = set()  # leases
        self._file: tuple[Path, tuple[int, int]] | None = (
            None  # of a SQLite store: its path, and which file it is
        )

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        self._check_there()
        with speaking(self.where), self._engine.connect() as connection:
            if (
                connection.dialect.name == "postgresql"
            ):  # all statements see one moment, as SQLite's do
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
        if self._file is not None and identity(self._file[0]) != self._file[1]:
            raise store_gone(self.where, "replaced by another file")

    def _insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, in the dialect at hand."""
        from sqlalchemy.dialects import postgresql, sqlite

        return (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert(table)

    def _upsert(
        self, connection: sa.Connection, table: sa.Table, row: Mapping[str, Any], **other: Any
    ) -> None:
        """Insert a row, or update the one with its key; ``other`` says what a column that is there becomes."""
        keys = [column.name for column in table.primary_key]
        insert = self._insert(table)
        update = {name: insert.excluded[name] for name in row if name not in keys} | other
        connection.execute(
            insert.on_conflict_do_update(index_elements=keys, set_=update), dict(row)
        )

    def _lock(self, connection: sa.Connection, number: int) -> None:
        """Wait for others who write the same; a SQLite store has one writer at a time anyway."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))

    def _study_key(self, connection: sa.Connection, study: str) -> str:
        """Return the key of a study given by key or by name; a name means the one opened last."""
        if study in self._studies:
            return self._studies[study]
        c = s.studies.c
        named = sa.select(c.key).where(sa.or_(c.key == study, c.name == study))
        key = connection.execute(named.order_by(c.key != study, c.opened.desc())).scalars().first()
        if key is None:
            known = connection.execute(sa.select(c.name).distinct()).scalars().all()
            hint = (
                "there are: " + ", ".join(sorted(known))
                if known
                else "the store holds no study yet"
            )
            raise StoreError(f"no study {study!r} in this store", where=self.where, hint=hint)
        if key == study:
            self._studies[study] = key
        return str(key)

    # --- failures ---------------------------------------------------------------------------------------------------

    def fail_cell(
        self, study: str, model: str, task: str, protocol: str, reason: str, **more: Any
    ) -> None:
        """Record why a cell has no score; ``key``, ``kind`` and ``hint`` where they are known."""
        with self._writing() as connection:
            record = FailureRecord(
                self._study_key(connection, study), model, task, protocol, reason, **more
            )
            self._upsert(connection, s.failures, asdict(record), attempts=s.failures.c.attempts + 1)

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
        points = [{"lane": lane.key, **point} for point in row.pop("epochs")]
        with self._writing() as connection:
            self._upsert(
                connection, s.lanes, row | {"study": self._study_key(connection, lane.study)}
            )
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
        c = s.lanes.c
        with self._reading() as connection:
            every = sa.select(s.lanes).where(*self._wanted_lanes(connection, cell, study, model))
            page = (
                every.order_by(c.model, c.task, c.learning_rate, c.style, c.seed)
                .limit(limit)
                .offset(offset)
            )
            rows = connection.execute(page).mappings().all()
            curves: dict[str, list[EpochRecord]] = {row["key"]: [] for row in rows}
            for keys in chunks(list(curves)):
                curve = (
                    sa.select(s.epochs).where(s.epochs.c.lane.in_(keys)).order_by(s.epochs.c.epoch)
                )
                for point in connection.execute(curve).mappings():
                    values = dict(point)
                    curves[values.pop("lane")].append(EpochRecord(**values))
        return [LaneRecord(**row, epochs=tuple(curves[row["key"]])) for row in rows]

    def count_lanes(self, *, study: str, model: str | None = None) -> int:
        """Return how many lanes a study has, without reading them."""
        with self._reading() as connection:
            wanted = self._wanted_lanes(connection, None, study, model)
            return int(
                connection.execute(
                    sa.select(sa.func.count(s.lanes.c.key)).where(*wanted)
                ).scalar_one()
            )

    def _wanted_lanes(
        self,
        connection: sa.Connection,
        cell: str | None,
        study: str | None,
        model: str | Sequence[str] | None,
    ) -> list[Any]:
        c = s.lanes.c
        wanted: list[Any] = [c.cell == cell] if cell is not None else []
        if model is not None:
            wanted.append(c.model.in_([model] if isinstance(model, str) else model))
        if study is not None:
            key = self._study_key(connection, study)
            of_others = sa.and_(s.study_cells.c.study == key, s.cells.c.study != key)
            adopted = sa.select(s.cells.c.key).join_from(s.cells, s.study_cells).where(of_others)
            any_adopted = connection.execute(adopted.limit(1)).first() is not None
            wanted.append(
                sa.or_(c.study == key, c.cell.in_(adopted)) if any_adopted else c.study == key
            )
        return wanted

    # --- events and progress ----------------------------------------------------------------------------------------

    def event(self, study: str, kind: str, payload: Mapping[str, Any] | None = None) -> int:
        """Append to the study's log and return the entry's id."""
        with self._writing() as connection:
            return self._say(connection, study, kind, payload or {})

    def _say(
        self, connection: sa.Connection, study: str, kind: str, payload: Mapping[str, Any]
    ) -> int:
        self._lock(connection, _EVENT_LOCK)
        key = self._study_key(connection, study)
        said = {"study": key, "kind": kind, "payload": payload, "created": now()}
        return int(connection.execute(_SAID, said).scalar_one())

    def events(self, study: str, *, after_id: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Return the entries after ``after_id``, oldest first: call again with the last id to follow the log."""
        with self._reading() as connection:
            key = self._study_key(connection, study)
            query = sa.select(s.events).where(s.events.c.study == key, s.events.c.id > after_id)
            rows = connection.execute(query.order_by(s.events.c.id).limit(limit)).mappings()
            return [EventRecord(**row) for row in rows]

    def last_event(self, study: str, *, before: int = 0) -> int:
        """Return the id of the study's latest entry but ``before`` others: 0 where there are no more."""
        with self._reading() as connection:
            key = self._study_key(connection, study)
            ids = (
                sa.select(s.events.c.id)
                .where(s.events.c.study == key)
                .order_by(s.events.c.id.desc())
            )
            return int(connection.execute(ids.offset(before).limit(1)).scalar() or 0)

    def put_progress(self, study: str, row: str, payload: Mapping[str, Any]) -> None:
        """Replace the latest state of a running row (tokens per second, time left, lanes)."""
        with self._writing() as connection:
            state = {
                "study": self._study_key(connection, study),
                "row": row,
                "payload": payload,
                "updated": now(),
            }
            self._upsert(connection, s.progress, state)

    def get_progress(self, study: str) -> dict[str, dict[str, Any]]:
        """Return the latest state of each row; ``updated`` says when it was written."""
        c = s.progress.c
        with self._reading() as connection:
            query = sa.select(c.row, c.payload, c.updated).where(
                c.study == self._study_key(connection, study)
            )
            rows = connection.execute(query.order_by(c.row)).all()
        return {row: {**payload, "updated": updated} for row, payload, updated in rows}


class Leases(LiveStore):
    """Claiming cells, staying alive, letting go."""

    def claim(
        self, study: str, row: str, cell_keys: Sequence[str], *, run: str = ""
    ) -> LeaseRecord:
        """Claim cells for this process, or return the lease of one that has some of them.

        The lease is this call's own where its ``id`` was not known before: see :meth:`mine`.
        """
        keys = sorted(set(cell_keys))
        with self._writing() as connection:
            self._lock(connection, _LEASE_LOCK)
            moment = self._moment(connection)
            for lease in self._leases(connection):
                if lease.gone(moment):
                    connection.execute(s.leases.delete().where(s.leases.c.id == lease.id))
            held = sa.select(s.leases).join_from(s.claims, s.leases).limit(1)
            for some in chunks(keys):
                other = connection.execute(held.where(s.claims.c.cell.in_(some))).mappings().first()
                if other is not None:
                    return LeaseRecord(**other)
            made = LeaseRecord(
                id=f"{place()}#{os.getpid()}#{uuid.uuid4().hex}",
                study=self._study_key(connection, study),
                row=row,
                run=run,
                host=socket.gethostname(),
                place=place(),
                pid=os.getpid(),
                began=began(os.getpid()) or "",
                since=moment,
                beat=moment,
            )
            connection.execute(s.leases.insert(), asdict(made))
            if keys:
                connection.execute(
                    s.claims.insert(), [{"cell": key, "lease": made.id} for key in keys]
                )
            self._own.add(made.id)
            return made

    def mine(self, lease: LeaseRecord) -> bool:
        """Say whether a lease was given to this store object."""
        return lease.id in self._own

    def beat(self, lease: LeaseRecord) -> bool:
        """Say that the owner is alive; False where the lease was taken away."""
        with self._writing() as connection:
            update = (
                s.leases.update()
                .where(s.leases.c.id == lease.id)
                .values(beat=self._moment(connection))
            )
            return connection.execute(update).rowcount > 0

    def let_go(self, lease: LeaseRecord) -> None:
        """Give a lease back."""
        with self._writing() as connection:
            connection.execute(s.leases.delete().where(s.leases.c.id == lease.id))

    def leases(self, *, study: str | None = None) -> list[LeaseRecord]:
        """Return who computes what now."""
        with self._reading() as connection:
            key = self._study_key(connection, study) if study is not None else None
            moment = self._moment(connection)
            alive = [lease for lease in self._leases(connection) if lease.alive(moment)]
        return [lease for lease in alive if key in (None, lease.study)]

    @staticmethod
    def _leases(connection: sa.Connection) -> list[LeaseRecord]:
        found = connection.execute(sa.select(s.leases).order_by(s.leases.c.since)).mappings()
        return [LeaseRecord(**row) for row in found]

    @staticmethod
    def _moment(connection: sa.Connection) -> float:
        if connection.dialect.name == "postgresql":
            return float(
                connection.execute(
                    sa.text("SELECT extract(epoch FROM clock_timestamp())")
                ).scalar_one()
            )
        return time.time()

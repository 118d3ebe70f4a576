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
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from potentia.errors import StoreError
from potentia.store import schema as s
from potentia.store.database import WRITE, Patient, at_once, now, speaking, store_gone
from potentia.store.records import EpochRecord, EventRecord, FailureRecord, LaneRecord, dumps, loads

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

    def fail_cell(self, study: str, model: str, task: str, protocol: str, reason: str, **more: Any) -> None:
        """Record why a cell has no score; ``key``, ``kind`` and ``hint`` where they are known."""
        with self._writing() as connection:
            record = FailureRecord(self._study_key(connection, study), model, task, protocol, reason, **more)
            insert = self._insert(s.failures).values(**asdict(record))
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
        said = {"kind": kind, "payload": dumps(dict(payload)), "created": now()}
        return int(connection.execute(_SAID, {"study": self._study_key(connection, study), **said}).scalar_one())

    def events(self, study: str, *, after_id: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Return the entries after ``after_id``, oldest first: call again with the last id to follow the log."""
        with self._reading() as connection:
            key = self._study_key(connection, study)
            query = sa.select(s.events).where(s.events.c.study == key, s.events.c.id > after_id)
            query = query.order_by(s.events.c.id).limit(limit)
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


BEAT_SECONDS = 10.0
LEASE_SECONDS = 120.0  # without a beat; a server that restarts, or a busy machine, costs nobody his lease
_LEASE_LOCK = 0x706F74656E740002  # claims on PostgreSQL are made one after the other
_CHUNK = 500
_unchanged: dict[tuple[str, float], float] = {}  # beats of leases that look dead: since when this process knows them


@dataclass(frozen=True)
class LeaseRecord:
    """Who computes a row: a process of a host, as part of a run, since when (seconds of the epoch)."""

    id: str
    study: str
    row: str
    run: str
    host: str
    place: str
    pid: int
    began: str
    since: float
    beat: float

    @property
    def told(self) -> str:
        """Say who it is."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"

    def alive(self, moment: float) -> bool:
        """Say whether its process is there, or may be. A beat that is to come shows that a clock was set back."""
        if self.place == place():
            return began(self.pid) == self.began
        return abs(moment - self.beat) < LEASE_SECONDS

    def gone(self, moment: float) -> bool:
        """Say whether the lease may be taken: no clock that jumps takes it from a process that still beats.

        From another machine a beat that looks old must be seen to stay as it is, on a clock that does not jump.
        """
        if self.alive(moment) or self.place == place():
            return not self.alive(moment)
        since = _unchanged.setdefault((self.id, self.beat), time.monotonic())
        return time.monotonic() - since > 2 * BEAT_SECONDS


class Leases(LiveStore):
    """Claiming cells, staying alive, letting go."""

    def claim(self, study: str, row: str, cell_keys: Sequence[str], *, run: str = "") -> LeaseRecord:
        """Claim cells for this process, or return the lease of one that has some of them.

        The lease is this call's own where its ``id`` was not known before: see :meth:`mine`.
        """
        keys = sorted(set(cell_keys))
        with self._writing() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LEASE_LOCK)))
            moment = self._moment(connection)
            for lease in self._leases(connection):
                if lease.gone(moment):
                    connection.execute(s.leases.delete().where(s.leases.c.id == lease.id))
            for start in range(0, len(keys), _CHUNK):
                held = sa.select(s.leases).join_from(s.claims, s.leases)
                held = held.where(s.claims.c.cell.in_(keys[start : start + _CHUNK])).limit(1)
                other = connection.execute(held).mappings().first()
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
            connection.execute(s.leases.insert().values(**vars(made)))
            if keys:
                connection.execute(s.claims.insert(), [{"cell": key, "lease": made.id} for key in keys])
            self._own.add(made.id)
            return made

    def mine(self, lease: LeaseRecord) -> bool:
        """Say whether a lease was given to this store object."""
        return lease.id in self._own

    @at_once
    def beat(self, lease: LeaseRecord) -> bool:
        """Say that the owner is alive; False where the lease was taken away."""
        with self._writing() as connection:
            update = s.leases.update().where(s.leases.c.id == lease.id).values(beat=self._moment(connection))
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
            return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        return time.time()


@cache
def place() -> str:
    """Name where process numbers mean something: the machine since it was started, and its space of processes."""
    parts = [socket.gethostname()]
    for file in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(str(file.readlink()) if file.is_symlink() else file.read_text().strip())
        except OSError:
            continue
    return "/".join(parts)


def began(pid: int) -> str | None:
    """Return when a process of this machine began, in the kernel's count; None where there is no such process.

    A number is given again some day: with its beginning it names one process.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if told[0] in "ZX" else told[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""

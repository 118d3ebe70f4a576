"""Leases: the cells of a row belong to one process while it computes them.

A process claims the cells in one transaction, or learns who has some of them, and says now and then that it is alive
(its *beat*). What belongs to a process that is gone is anyone's: on the machine where it ran that is seen at once, from
another machine when no beat has come for a while. Time is the database server's, so that clocks of several machines
need not agree.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.database import Database, split_keys
from potentia.store.records import LeaseRecord, process_space, process_start
from potentia.store.waiting import PatientPart

_LEASE_LOCK = (
    0x706F74656E740002  # any fixed number: on PostgreSQL those who claim cells wait for one another
)


class Leases(PatientPart):
    """Claiming cells, staying alive, letting go."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database
        self._own_ids: set[str] = set()

    def claim(
        self, study: str, row: str, cell_keys: Sequence[str], *, run_id: str = ""
    ) -> LeaseRecord:
        """Claim cells for this process, or return the lease of one that has some of them; :meth:`is_mine` tells."""
        distinct_keys = sorted(set(cell_keys))
        with self.database.writing() as connection:
            self.database.wait_for_others(connection, _LEASE_LOCK)
            moment = _database_time(connection)
            for lease in _read_leases(connection):
                if lease.is_gone(moment):
                    connection.execute(schema.leases.delete().where(schema.leases.c.id == lease.id))
            holder = _find_holder(connection, distinct_keys)
            if holder is not None:
                return holder
            process_id = os.getpid()
            lease = LeaseRecord(
                id=f"{process_space()}#{process_id}#{uuid.uuid4().hex}",
                study=self.database.find_study_key(connection, study),
                row=row,
                run=run_id,
                host=socket.gethostname(),
                process_space=process_space(),
                pid=process_id,
                began=process_start(process_id) or "",
                since=moment,
                beat=moment,
            )
            connection.execute(schema.leases.insert(), asdict(lease))
            if distinct_keys:
                claims = [{"cell": cell_key, "lease": lease.id} for cell_key in distinct_keys]
                connection.execute(schema.claims.insert(), claims)
            self._own_ids.add(lease.id)
            return lease

    def is_mine(self, lease: LeaseRecord) -> bool:
        """Say whether a lease was given to this store object."""
        return lease.id in self._own_ids

    def beat(self, lease: LeaseRecord) -> bool:
        """Say that the owner is alive; False where the lease was taken away."""
        with self.database.writing() as connection:
            update = schema.leases.update().where(schema.leases.c.id == lease.id)
            result = connection.execute(update.values(beat=_database_time(connection)))
            return result.rowcount > 0

    def release(self, lease: LeaseRecord) -> None:
        """Give a lease back."""
        with self.database.writing() as connection:
            connection.execute(schema.leases.delete().where(schema.leases.c.id == lease.id))

    def read(self, *, study: str | None = None) -> list[LeaseRecord]:
        """Return who computes what now."""
        with self.database.reading() as connection:
            moment = _database_time(connection)
            live_leases = [lease for lease in _read_leases(connection) if lease.is_alive(moment)]
            if study is None:
                return live_leases
            study_key = self.database.find_study_key(connection, study)
            return [lease for lease in live_leases if lease.study == study_key]


def _find_holder(connection: sa.Connection, cell_keys: Sequence[str]) -> LeaseRecord | None:
    """Return the lease that holds one of these cells, where one does."""
    holders = sa.select(schema.leases).join_from(schema.claims, schema.leases).limit(1)
    for some_keys in split_keys(cell_keys):
        row = (
            connection.execute(holders.where(schema.claims.c.cell.in_(some_keys)))
            .mappings()
            .first()
        )
        if row is not None:
            return LeaseRecord(**row)
    return None


def _read_leases(connection: sa.Connection) -> list[LeaseRecord]:
    rows = connection.execute(sa.select(schema.leases).order_by(schema.leases.c.since)).mappings()
    return [LeaseRecord(**row) for row in rows]


def _database_time(connection: sa.Connection) -> float:
    """Return the time of the database server, in seconds of the epoch."""
    if connection.dialect.name != "postgresql":
        return time.time()
    query = sa.text("SELECT extract(epoch FROM clock_timestamp())")
    return float(connection.execute(query).scalar_one())

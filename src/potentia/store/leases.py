"""Leases: the cells of a row belong to one process while it computes them.

A process that is to compute cells claims them in one transaction, or hears who has some of them. It says now and then
that it is alive (its *beat*). What belongs to a process that is gone is anyone's: on the machine where it ran that is
seen at once, from another machine when no beat has come for a while. Time is the database server's, so that clocks of
several machines need not agree.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.live import LiveStore
from potentia.store.patience import at_once

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
        return (
            f"process {self.pid} on {self.host} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"
        )

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
            return [
                lease for lease in self._leases(connection) if lease.alive(moment) and key in (None, lease.study)
            ]  # fmt: skip

    @staticmethod
    def _leases(connection: sa.Connection) -> list[LeaseRecord]:
        return [
            LeaseRecord(**row) for row in connection.execute(sa.select(s.leases).order_by(s.leases.c.since)).mappings()
        ]

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

"""What the store holds, as plain values, and how they are written in its columns."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from potentia.errors import DataError, StoreError
from potentia.processes import is_process_alive
from potentia.values.fine_tuning import EpochResult, LaneStatus
from potentia.values.plain import PlainRecord
from potentia.values.provenance import NO_PROVENANCE, Provenance
from potentia.values.scores import Score
from potentia.values.selection import NO_SELECTION, ProbeResult, Selection

DAMAGED_HINT = "restore it from a copy, or run again into a new store"
Record = TypeVar("Record", bound=PlainRecord)


def now() -> str:
    """Return this moment in UTC, as ISO 8601 text that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@cache
def process_space() -> str:
    """Name where process numbers mean something: the machine since it was started, and its space of processes."""
    name_parts = [socket.gethostname()]
    for file in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            name_parts.append(
                str(file.readlink()) if file.is_symlink() else file.read_text().strip()
            )
        except OSError:
            continue
    return "/".join(name_parts)


# Fields of /proc/PID/stat, counted from the one behind the command's name (the third of proc(5)).
_STATE_FIELD = 0
_START_TIME_FIELD = 19
_DEAD_STATES = ("Z", "X")


def process_start(pid: int) -> str | None:
    """Return when a process of this machine began, in clock ticks since boot; None where there is no such process.

    Pids are reused: only a pid and its start time together name one process. '' stands for a process that is alive on
    a system that does not tell when it began (without /proc).
    """
    try:
        status_fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        is_dead = status_fields[_STATE_FIELD] in _DEAD_STATES
        return None if is_dead else status_fields[_START_TIME_FIELD]
    except OSError:  # no such process, or a system without /proc
        pass
    return "" if is_process_alive(pid) else None


def dump_json(value: object) -> str:
    """Write JSON text; arrays and numpy numbers become plain lists and numbers."""
    return json.dumps(value, default=_to_json_value, separators=(",", ":"))


def _to_json_value(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def load_json(text: str) -> Any:
    """Read JSON text that a store holds."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError("a record of this store is damaged", hint=DAMAGED_HINT) from error


class BoundedText(sa.types.TypeDecorator[str]):
    """A name. A store that someone else changed may hold one of any length, which no page or table can show."""

    impl = sa.Text
    cache_ok = True
    max_characters = 10_000

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        """Return the name; refuse one that Potentia never writes."""
        if value is None or (isinstance(value, str) and len(value) <= self.max_characters):
            return value
        raise StoreError("a name in the store is damaged", hint=DAMAGED_HINT)


class NumberColumn(sa.types.TypeDecorator[float]):
    """A number. SQLite keeps whatever is written into a column, text too."""

    impl = sa.Double
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> float | None:
        """Return the number; refuse anything else."""
        if value is None or isinstance(value, (int, float)):
            return value
        raise StoreError("a number in the store is damaged", hint=DAMAGED_HINT)


class Json(sa.TypeDecorator[Any]):
    """A structured value as text: nothing queries inside it, and text keeps NaN, which PostgreSQL's JSON refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, _: Any) -> str | None:
        """Write it."""
        if value is None:
            return None
        return dump_json(dict(value) if isinstance(value, Mapping) else value)

    def process_result_value(self, value: str | None, _: Any) -> Any:
        """Read it."""
        return None if value is None else load_json(value)


class PlainColumn(sa.TypeDecorator[Any]):
    """A record of ``values`` as text: it writes itself, and is read back with its types."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, record_type: type[PlainRecord]) -> None:
        super().__init__()
        self.record_type = record_type

    def process_bind_param(self, value: Any, _: Any) -> str | None:
        """Write it."""
        return None if value is None else dump_json(value.to_dict())

    def process_result_value(self, value: str | None, _: Any) -> Any:
        """Read it."""
        return None if value is None else read_record(self.record_type, value)


class EnumColumn(sa.TypeDecorator[Any]):
    """A member of an enum as its value."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, enum_type: type[Enum]) -> None:
        super().__init__()
        self.enum_type = enum_type

    def process_bind_param(self, value: Any, _: Any) -> str | None:
        """Write the value; one that is no member is refused."""
        return None if value is None else str(self.enum_type(value).value)

    def process_result_value(self, value: str | None, _: Any) -> Any:
        """Return the member."""
        if value is None:
            return None
        try:
            return self.enum_type(value)
        except ValueError:
            raise StoreError(f"{value!r} in the store is damaged", hint=DAMAGED_HINT) from None


def read_record(record_type: type[Record], text: str) -> Record:
    """Read a record of ``values`` from the text that a store holds."""
    try:
        return record_type.from_dict(load_json(text))
    except DataError as error:
        raise StoreError(
            f"a record of this store is damaged: {error.message}", hint=DAMAGED_HINT
        ) from error


@dataclass(frozen=True)
class StudyRecord:
    """A study as first opened. ``key`` is its content key; a changed study of the same name is another record."""

    key: str
    name: str
    spec: Mapping[str, Any]
    created: str = field(default_factory=now)

    def __post_init__(self) -> None:
        """Refuse a study that was not written by Potentia: what follows reads its keys."""
        if not isinstance(self.spec, Mapping):
            raise StoreError(f"the study {self.key[:100]} says nothing of itself that can be read")


@dataclass(frozen=True)
class CellRecord:
    """One model × task × protocol, finished. ``study`` is the key (or name) of the study that computed it.

    ``scores`` maps a metric's name to its score and ``metric`` names the main one. ``provenance`` says how the score
    was made, ``selection`` what validation chose. ``direct_value`` and ``gain`` are there when the model was tuned.
    ``probe`` says how much was left to learn of the task; ``store.provenance.read_probes`` gives it back.
    """

    key: str
    study: str
    model: str
    task: str
    protocol: str
    scores: Mapping[str, Score]
    metric: str
    provenance: Provenance = NO_PROVENANCE
    created: str = field(default_factory=now)
    seconds: float = 0.0
    selection: Selection = NO_SELECTION
    direct_value: float | None = None
    gain: float | None = None
    probe: ProbeResult | None = None

    @property
    def score(self) -> Score:
        """The score of the main metric."""
        return self.scores[self.metric]


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """What validation chose for one cell, and no more of it: a store of 200,000 cells gives them in seconds."""

    key: str
    model: str
    task: str
    protocol: str
    metric: str
    text: str  # the selection as it is stored

    @property
    def selection(self) -> Selection:
        """The selection of the cell, as ``CellRecord`` has it."""
        return read_record(Selection, self.text)


@dataclass(frozen=True)
class LaneRecord:
    """One fine-tuning as the store has it: what it trains, how far it is, its curve; ``note`` says why it failed."""

    key: str
    study: str
    model: str
    task: str
    learning_rate: float
    style: str = ""
    seed: int = 0
    status: LaneStatus = LaneStatus.TRAINING
    cell: str | None = None
    epochs: tuple[EpochResult, ...] = ()
    selected: bool = False
    note: str = ""
    updated: str = field(default_factory=now)


@dataclass(frozen=True)
class FailureRecord:
    """A cell that could not be scored, and why. Gone as soon as the cell is committed."""

    study: str
    model: str
    task: str
    protocol: str
    reason: str
    key: str | None = None
    kind: str = ""
    hint: str | None = None
    attempts: int = 1
    created: str = field(default_factory=now)


@dataclass(frozen=True)
class EventRecord:
    """One entry of a study's log; ids grow in the order in which entries become visible."""

    id: int
    study: str
    kind: str
    payload: Mapping[str, Any]
    created: str

    @property
    def time(self) -> float:
        """When it was, in seconds of the epoch."""
        return datetime.fromisoformat(self.created).timestamp()


BEAT_SECONDS = 10.0
# without a beat; a server that restarts, or a busy machine, costs nobody his lease
LEASE_SECONDS = 120.0
# beats of leases that look dead: since when this process knows them
_unchanged_since: dict[tuple[str, float], float] = {}


@dataclass(frozen=True)
class LeaseRecord:
    """Who computes a row: a process of a host, as part of a run, since when (seconds of the epoch)."""

    id: str
    study: str
    row: str
    run: str
    host: str
    process_space: str  # where its process number means something
    pid: int
    began: str
    since: float
    beat: float

    @property
    def owner(self) -> str:
        """The process that has the lease, in words."""
        start_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {start_time}"

    @property
    def _is_of_this_machine(self) -> bool:
        return self.process_space == process_space()

    def is_alive(self, moment: float) -> bool:
        """Say whether its process is there, or may be. A beat that is to come shows that a clock was set back."""
        if self._is_of_this_machine:
            return process_start(self.pid) == self.began
        return abs(moment - self.beat) < LEASE_SECONDS

    def is_gone(self, moment: float) -> bool:
        """Say whether the lease may be taken: no clock that jumps takes it from a process that still beats.

        From another machine a beat that looks old must be seen to stay as it is, on a clock that does not jump.
        """
        if self.is_alive(moment):
            return False
        if self._is_of_this_machine:
            return True
        unchanged_since = _unchanged_since.setdefault((self.id, self.beat), time.monotonic())
        return time.monotonic() - unchanged_since > 2 * BEAT_SECONDS

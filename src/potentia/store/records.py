"""What the store holds, as plain values; and per-item outcomes: one Parquet file per cell, beside the database.

A file is written under a temporary name and synced before the cell's transaction starts, and renamed inside it: a
committed cell always has whole items, and a process killed in between leaves nothing but a stray temporary file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from potentia.errors import DamagedItemsError, DataError, StoreError, first_line
from potentia.files import write_file
from potentia.values.plain import PlainRecord
from potentia.values.provenance import NO_PROVENANCE, Provenance
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import NO_SELECTION, ProbeResult, Selection

DAMAGED_HINT = "restore it from a copy, or run again into a new store"
Record = TypeVar("Record", bound=PlainRecord)


def now() -> str:
    """Return this moment in UTC, as ISO 8601 text that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


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
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state[0] in "ZX" else state[19]
    except OSError:  # no such process, or a system without /proc
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def dumps(value: Any) -> str:
    """Write JSON text; arrays and numpy numbers become plain lists and numbers."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value, key=str) if isinstance(value, (set, frozenset)) else str(value)


def loads(text: str) -> Any:
    """Read JSON text that a store holds."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError("a record of this store is damaged", hint=DAMAGED_HINT) from error


class Json(sa.TypeDecorator[Any]):
    """A structured value as text: nothing queries inside it, and text keeps NaN, which PostgreSQL's JSON refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, _: Any) -> str | None:
        """Write it."""
        return (
            None if value is None else dumps(dict(value) if isinstance(value, Mapping) else value)
        )

    def process_result_value(self, value: str | None, _: Any) -> Any:
        """Read it."""
        return None if value is None else loads(value)


class PlainColumn(sa.TypeDecorator[Any]):
    """A record of ``values`` as text: it writes itself, and is read back with its types."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, record_type: type[PlainRecord]) -> None:
        super().__init__()
        self.record_type = record_type

    def process_bind_param(self, value: Any, _: Any) -> str | None:
        """Write it."""
        return None if value is None else dumps(value.to_dict())

    def process_result_value(self, value: str | None, _: Any) -> Any:
        """Read it."""
        return None if value is None else read_record(self.record_type, value)


def read_record(record_type: type[Record], text: str) -> Record:
    """Read a record of ``values`` from the text that a store holds."""
    try:
        return record_type.from_dict(loads(text))
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


@dataclass(frozen=True)
class CellRecord:
    """One model × task × protocol, finished. ``study`` is the key (or name) of the study that computed it.

    ``scores`` maps a metric's name to its score and ``metric`` names the main one. ``provenance`` says how the score
    was made, ``selection`` what validation chose. ``direct_value`` and ``gain`` are there when the model was tuned.
    ``probe`` says how much was left to learn of the task; ``Store.probes`` gives it back.
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

    def names(self, field: str) -> bool:
        """Say whether the selection may have this field, without reading it."""
        return f'"{field}"' in self.text

    @property
    def selection(self) -> Selection:
        """The selection of the cell, as ``CellRecord`` has it."""
        return read_record(Selection, self.text)


@dataclass(frozen=True)
class EpochRecord:
    """One point of a lane's curve. Epoch 0 is the model before tuning.

    ``tokens`` were learned from in ``seconds``, which other lanes may have shared.
    """

    epoch: int
    train_loss: float | None = None
    value: float | None = None
    stderr: float | None = None
    seconds: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class LaneRecord:
    """One fine-tuning job: what it trains, where it stands and its curve so far.

    ``status`` is ``training``, ``done``, ``dropped`` (by the race), ``failed`` (``note`` says why) or ``interrupted``.
    """

    key: str
    study: str
    model: str
    task: str
    learning_rate: float
    style: str = ""
    seed: int = 0
    status: str = "training"
    cell: str | None = None
    epochs: tuple[EpochRecord, ...] = ()
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
    def moment(self) -> float:
        """When it was, in seconds of the epoch."""
        return datetime.fromisoformat(self.created).timestamp()


BEAT_SECONDS = 10.0
LEASE_SECONDS = (
    120.0  # without a beat; a server that restarts, or a busy machine, costs nobody his lease
)
_unchanged: dict[
    tuple[str, float], float
] = {}  # beats of leases that look dead: since when this process knows them


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
        if self.alive(moment):
            return False
        if self.place == place():
            return True
        since = _unchanged.setdefault((self.id, self.beat), time.monotonic())
        return time.monotonic() - since > 2 * BEAT_SECONDS


def items_path(folder: Path, key: str) -> Path:
    """Return where the items of the cell ``key`` are kept."""
    name = (
        key
        if re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,150}", key)
        else hashlib.sha256(key.encode()).hexdigest()
    )
    return folder / name[:2] / f"{name}.parquet"


def stage(folder: Path, key: str, items: Sequence[ItemOutcome]) -> Path:
    """Write the items under a temporary name, synced to disk, and return that name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "doc_id": pa.array([item.doc_id for item in items], pa.int64()),
            "value": pa.array([item.value for item in items], pa.float64()),
            "prediction": pa.array([_clean(item.prediction) for item in items], pa.string()),
            "gold": pa.array([_clean(item.gold) for item in items], pa.string()),
            "detail": pa.array([dumps(item.detail) for item in items], pa.string()),
        }
    )
    target = items_path(folder, key)
    staged = target.with_name(f".{target.stem}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_file(staged, buffer.getvalue(), synced=True)
    return staged


def publish(folder: Path, key: str, staged: Path) -> None:
    """Give staged items their final name, and sync the folder so that the name survives too."""
    target = items_path(folder, key)
    staged.replace(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


Choose = Callable[[list[float]], list[int]]  # places, by the values of all items


def load(folder: Path, key: str, choose: Choose | None = None) -> list[ItemOutcome]:
    """Read the items of a cell that has some, or those that are chosen by their values."""
    path = items_path(folder, key)
    try:
        columns = _columns(path, "doc_id", "value", "prediction", "gold", "detail", choose=choose)
        return [
            ItemOutcome(i, v, p, g, json.loads(d)) for i, v, p, g, d in zip(*columns, strict=True)
        ]
    except FileNotFoundError:
        hint = "keep the .items folder beside the database when you move it; or potentia store check --repair"
        raise DamagedItemsError(
            "the items of this cell are missing", where=str(path), hint=hint
        ) from None
    except _UNREADABLE as error:
        told = f"the items of this cell cannot be read: {first_line(error)}"
        hint = "potentia store check --repair; the next run of its study computes the cell anew, and replaces it"
        raise DamagedItemsError(told, where=str(path), hint=hint) from error


def load_values(folder: Path, key: str) -> dict[int, float] | None:
    """Read the value of every document of a cell, without the evidence; None where the file is missing or damaged."""
    try:
        return dict(zip(*_columns(items_path(folder, key), "doc_id", "value"), strict=True))
    except _UNREADABLE:
        return None


_UNREADABLE = (OSError, KeyError, ValueError, TypeError)


def _columns(path: Path, *names: str, choose: Choose | None = None) -> list[list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(
            path, columns=list(names), partitioning=None, page_checksum_verification=True
        )
        if choose is not None:
            table = table.take(choose(table["value"].to_pylist()))
        return [table.column(name).to_pylist() for name in names]
    except pa.ArrowException as error:  # not all of them are errors of value or type
        raise ValueError(str(error)) from error


def looks_whole(folder: Path, key: str) -> bool:
    """Say whether a cell's file is there and begins and ends as Parquet does: quick, and right for files cut short."""
    try:
        with items_path(folder, key).open("rb") as file:
            head = file.read(4)
            file.seek(-4, os.SEEK_END)
            return head == file.read(4) == b"PAR1" and file.tell() > 12
    except OSError:
        return False


def _clean(text: str) -> str:
    # A lone surrogate from a cut-off token is no Unicode text and no Parquet string.
    return str(text).encode("utf-8", "replace").decode("utf-8")

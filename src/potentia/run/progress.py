"""A run and its store: opened with patience, the log beside it, the board of a row, the count of cells that ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError, without_password
from potentia.study import content_key
from potentia.values.protocol import ADJUST, Protocol

if TYPE_CHECKING:
    from potentia.run.plan import Assignment, Row, StudyPlan
    from potentia.store import EventRecord, Store, StudyRecord


STORE_PATIENCE = (
    300.0  # seconds that a run waits for a store that is away; POTENTIA_STORE_PATIENCE sets another
)
FIRST_CONTACT = 30.0  # and for one that never answered: its address may be wrong
_reached: set[str] = set()


class Stopped(Exception):  # noqa: N818 - the user asked for it
    """The run was asked to stop; its state is in the workspace."""


def open_store(where: str, *, readonly: bool = False, create: bool = False) -> Store:
    """Open the store of a run, which is waited for while it is away; without ``create`` it is there already."""
    from potentia.store import Store

    return _patient(
        where, Store.open(where, readonly=readonly, create=create, patience=_patience(where))
    )


def find_store(where: str) -> Store | None:
    """Open the store of a run to read it; None where nothing was stored yet."""
    from potentia.store import Store

    store = Store.find(where, patience=_patience(where))
    return None if store is None else _patient(where, store)


def _patience(where: str) -> float:
    patience = _patience_asked_for()
    return patience if where in _reached else min(patience, FIRST_CONTACT)


def _patience_asked_for() -> float:
    """Return the seconds that a run waits for its store, as the environment says or as usual."""
    text = os.environ.get("POTENTIA_STORE_PATIENCE")
    if text is None:
        return STORE_PATIENCE
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise InputError(
            f"POTENTIA_STORE_PATIENCE is {text!r}", hint="give seconds: POTENTIA_STORE_PATIENCE=300"
        )
    return seconds


def _patient(where: str, store: Store) -> Store:
    _reached.add(where)
    store.patience = _patience(where)
    return store


def read_events(store: Store, study: str) -> Iterator[EventRecord]:
    """Go through all that a study has told so far, page by page; nothing where the store does not know it."""
    last = 0
    known = any(record.key == study for record in store.studies.read())
    while known and (page := store.events.read(study, after_id=last)):
        last = page[-1].id
        yield from page


class RunLog:
    """Appends lines to the log of a run on a store; a run without a name has none."""

    def __init__(self, store: Store, run: str) -> None:
        self.path = store.logs_folder / f"{run}.jsonl" if run else None

    def write(self, kind: str, **facts: Any) -> None:
        """Append one line, in one write: lines of several processes do not mix."""
        if self.path is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "kind": kind,
            **facts,
        }
        text = json.dumps(line, ensure_ascii=False, default=str) + "\n"
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(text.encode("utf-8", "replace"))


def name_lanes_folder(row: Row, kind: Protocol) -> str:
    """Name the folder of a row's lanes by the cells that they are for, whether these are done or not."""
    cells = [cell.copy_of or cell.key for cell in row.cells if cell.protocol == kind]
    return content_key(cells=sorted(cells))


def remove_lanes_folder(folder: Path) -> None:
    """Remove a folder of lanes, and the one it lies in where it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


OF_TRAINING = ("lanes_active", "lanes_waiting", "tokens_per_second")  # true while it goes on
BRIEF = 0.2  # seconds: phases that follow one another faster than anyone reads are not all written


class RowProgress:
    """What a running row tells the world: its latest state and a log of events, through the store.

    Every executor, the terminal view and the live board read the same records, so a row reports the same way whether it
    runs in this process, in a worker or on another machine.
    """

    def __init__(self, assignment: Assignment, store: Store, *, every: float = 1.0) -> None:
        self._store = store
        self._study = assignment.row.study_key
        self._every = every
        self._log = RunLog(store, assignment.run)
        self._row = assignment.model.name
        self._label = assignment.label  # parts of a row have a state each
        self._state: dict[str, Any] = {
            "phase": "waiting",
            "done": 0,
            "total": 0,
            "began": time.time(),
        }
        if self._label != self._row:
            self._state["model"] = self._row
        self._written, self._began = 0.0, time.monotonic()

    def phase(self, name: str, *, total: int = 0, **facts: Any) -> None:
        """Enter a phase of the row (load, direct arc_easy, tune, test …) with a known amount of work."""
        self._state.update(
            {"phase": name, "done": 0, "total": total, "rate": None, "left": None, **facts}
        )
        self._log.write("phase", row=self._label, phase=name, total=total)
        self._began = time.monotonic()
        self._write(force=self._began - self._written >= BRIEF)

    def advance(self, amount: int = 1) -> None:
        """Say that some of the phase's work is done."""
        self.reach(self._state["done"] + amount)

    def reach(self, done: int, *, before: int = 0, **facts: Any) -> None:
        """Say how much of the phase's work is done in all, and how much of that an earlier run had done."""
        spent = time.monotonic() - self._began
        rate = max(done - before, 0) / spent if spent > 0 else None
        total = self._state["total"]
        left = max(total - done, 0) / rate if rate and rate > 0 and total else None
        self._state.update({"done": done, "rate": rate, "left": left, **facts})
        self._write()

    def note(self, **facts: Any) -> None:
        """Add facts to the row's state without moving its progress."""
        self._state.update(facts)
        self._write()

    def event(self, kind: str, *, is_logged: bool = False, **payload: Any) -> None:
        """Append to the run's log, and to the study's unless it was logged there with what happened."""
        self._log.write(kind, row=self._row, **payload)
        if not is_logged:
            self._store.events.append(self._study, kind, {"row": self._row, **payload})

    def finish(self, phase: str) -> None:
        """Close the row's record."""
        self._log.write("row", row=self._label, ended=phase)
        now = {name: fact for name, fact in self._state.items() if name not in OF_TRAINING}
        self._state = now | {"phase": phase, "left": 0.0, "ended": time.time()}
        self._write(force=True)

    def _write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._written >= self._every:
            self._written = now
            self._state["at"] = time.time()
            self._store.events.save_progress(self._study, self._label, dict(self._state))


class CellCount:
    """The cells that a run has to do, and which of them have ended so far by the study's log."""

    def __init__(self, plan: StudyPlan) -> None:
        self.asked = {
            (row.model.name, cell.task, str(cell.protocol))
            for row in plan.rows
            for cell in row.pending
        }
        self.done: set[tuple[str, str, str]] = set()
        self.failed: set[tuple[str, str, str]] = set()
        self.ends: list[float] = []  # when it was heard of those that were computed

    @property
    def ended(self) -> int:
        """How many are done or failed."""
        return len(self.done | self.failed)

    def hear(self, event: EventRecord) -> bool:
        """Take an entry of the log; says whether a cell ended by it that was asked for."""
        facts = event.payload
        ended: Any = facts.get("done", ()) if event.kind == "found" else ()
        if event.kind in ("cell", "failure"):
            ended = [(facts["task"], facts["protocol"])]
        named = {(facts["row"], task, protocol) for task, protocol in ended} & self.asked
        new = named - self.done
        if event.kind == "failure":
            self.failed |= new
        else:
            self.done |= named
            self.failed -= named
        if event.kind != "found":
            self.ends += [time.time()] * len(
                new
            )  # by this clock: the one that wrote the log may be another
        return bool(new)


PACED = 40  # of the cells that ended, the last so many tell the pace


def estimate_seconds_left(began: float, ends: Iterable[float], todo: int) -> float | None:
    """Estimate how long so many cells take, by the moments at which others ended since; None where none did."""
    last = sorted(end for end in ends if end >= began)[-PACED - 1 :]
    since = last.pop(0) if len(last) > PACED else began
    return (time.time() - since) / len(last) * max(todo, 0) if last else None


# --- what a store holds, in numbers: for ``potentia status`` and the live board --------------------------------------

LEASE = ("row", "host", "pid", "since", "run")  # what is told of one
ALIVE_SECONDS = 60.0  # a running row writes its state about once a second


def read_store_status(where: str, study: str | None = None) -> dict[str, Any]:
    """Return studies with their counts, the failed cells with reasons, and the rows that run now."""
    from potentia.evidence import parse_study_record
    from potentia.store import Store

    with Store.open(where, readonly=True) as store:
        records = [r for r in store.studies.read() if study in (None, r.name, r.key)]
        failures = [asdict(f) for r in records for f in store.failures.read(study=r.key)]
        studies = []
        for record in records:
            progress = store.events.read_progress(record.key)
            leases = store.leases.read(study=record.key)
            running = {lease.row for lease in leases} | {
                row for row, state in progress.items() if is_running(state)
            }
            study_file = parse_study_record(record)
            studies.append(
                {
                    "name": record.name,
                    "key": record.key,
                    "created": record.created,
                    "models": len(study_file.rows()) if study_file else None,
                    "tasks": len(study_file.tasks) if study_file else None,
                    "asked": count_planned_cells(store, record),
                    "done": store.cells.count(study=record.key),
                    "failed": sum(f["study"] == record.key for f in failures),
                    "running": len(running),
                    "rows": progress,
                    "leases": [{name: getattr(lease, name) for name in LEASE} for lease in leases],
                }
            )
    return {"store": without_password(where), "studies": studies, "failures": failures}


def is_running(state: dict[str, Any]) -> bool:
    """Say whether a row's last word is recent and not its last."""
    return "ended" not in state and abs(time.time() - float(state.get("at", 0))) < ALIVE_SECONDS


def count_planned_cells(store: Store, record: StudyRecord) -> int | None:
    """Return how many cells the study asks for; None for imported scores.

    An adjustment that is scored on the way has a cell for each such step. Texts to predict have no few-shot cells;
    which tasks are texts is known as soon as one cell of each is there.
    """
    from potentia.evidence import parse_study_record

    study = parse_study_record(record)
    if study is None:
        return None
    steps = len(set(study.adjust.at_steps)) if study.adjust else 0
    tasks = [task.name for task in study.benchmarks()]
    shown = any(protocol.kind == "few_shot" for protocol in study.protocols)
    samples = (
        [store.cells.read(study=record.key, task=task, limit=1) for task in tasks] if shown else []
    )
    texts = {cells[0].task for cells in samples if cells and cells[0].score.metric.is_text}
    return sum(
        1 + (steps if protocol == ADJUST else 0)
        for row in study.rows()
        for protocol in study.protocols
        for task in tasks
        if study.asks(row.name, task, protocol)
        and not (protocol.kind == "few_shot" and task in texts)
    )

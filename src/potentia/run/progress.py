"""A run and its store: opening it with patience, the run's log, the progress of a row, the count of ended cells."""

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
from potentia.study import content_key, find_price
from potentia.values.protocol import ADJUST, Protocol

if TYPE_CHECKING:
    from potentia.run.plan import Assignment, Row, StudyPlan
    from potentia.store import EventRecord, LeaseRecord, Store, StudyRecord
    from potentia.study import Study


# Seconds that a run waits for a store that does not answer; POTENTIA_STORE_PATIENCE sets another number.
STORE_PATIENCE = 300.0
FIRST_CONTACT = 30.0  # seconds for a store that never answered: its address may be wrong
_reached: set[str] = set()


class Stopped(Exception):  # noqa: N818 - the user asked for it
    """The run was asked to stop; its state is in the workspace."""


def open_store(location: str, *, readonly: bool = False, create: bool = False) -> Store:
    """Open the store of a run and wait for it while it does not answer; without ``create`` it has to exist."""
    from potentia.store import Store

    patience = _choose_patience(location)
    store = Store.open(location, readonly=readonly, create=create, patience=patience)
    return _remember_contact(location, store)


def find_store(location: str) -> Store | None:
    """Open the store of a run to read it; None where nothing was stored yet."""
    from potentia.store import Store

    store = Store.find(location, patience=_choose_patience(location))
    if store is None:
        return None
    return _remember_contact(location, store)


def _choose_patience(location: str) -> float:
    """Return the seconds to wait for a store: fewer where it never answered."""
    patience = _read_patience_setting()
    if location in _reached:
        return patience
    return min(patience, FIRST_CONTACT)


def _read_patience_setting() -> float:
    """Return the seconds that a run waits for its store, from the environment or by default."""
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


def _remember_contact(location: str, store: Store) -> Store:
    """Return the store, which gets the full patience from now on."""
    _reached.add(location)
    store.patience = _choose_patience(location)
    return store


def read_events(store: Store, study: str) -> Iterator[EventRecord]:
    """Yield all events of a study so far, page by page; none where the store does not know the study."""
    if not any(record.key == study for record in store.studies.read()):
        return
    last_id = 0
    while page := store.events.read(study, after_id=last_id):
        last_id = page[-1].id
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

    def __init__(self, assignment: Assignment, store: Store, *, seconds: float = 1.0) -> None:
        self._store = store
        self._study = assignment.row.study_key
        self._every = seconds
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
        self._written = 0.0
        self._began = time.monotonic()

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
        elapsed = time.monotonic() - self._began
        total = self._state["total"]
        rate = None
        seconds_left = None
        if elapsed > 0:
            rate = max(done - before, 0) / elapsed
        if rate and total:
            seconds_left = max(total - done, 0) / rate
        self._state.update({"done": done, "rate": rate, "left": seconds_left, **facts})
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
        for name in OF_TRAINING:
            self._state.pop(name, None)
        self._state.update({"phase": phase, "left": 0.0, "ended": time.time()})
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
        """Take an entry of the log; return whether it ends a cell of this run that had not ended well before."""
        payload = event.payload
        ended: Any = ()
        if event.kind == "found":
            ended = payload.get("done", ())
        elif event.kind in ("cell", "failure"):
            ended = [(payload["task"], payload["protocol"])]
        ended_cells = {(payload["row"], task, protocol) for task, protocol in ended} & self.asked
        new_cells = ended_cells - self.done
        if event.kind == "failure":
            self.failed |= new_cells
        else:
            self.done |= ended_cells
            self.failed -= ended_cells
        if event.kind != "found":
            # By this machine's clock: the log may come from another machine.
            self.ends += [time.time()] * len(new_cells)
        return bool(new_cells)


PACED = 40  # of the cells that ended, the last so many tell the pace


def estimate_seconds_left(began: float, ends: Iterable[float], todo: int) -> float | None:
    """Estimate how long so many cells take, by the moments at which others ended since; None where none did."""
    last_ends = sorted(end for end in ends if end >= began)[-PACED - 1 :]
    since = began
    if len(last_ends) > PACED:
        since = last_ends.pop(0)
    if not last_ends:
        return None
    return (time.time() - since) / len(last_ends) * max(todo, 0)


# --- what a store holds, in numbers: for ``potentia status`` and the live board --------------------------------------

LEASE = ("row", "host", "pid", "since", "run")  # what is told of one
ALIVE_SECONDS = 60.0  # a running row writes its state about once a second


def read_store_status(location: str, study: str | None = None) -> dict[str, Any]:
    """Return studies with their counts, the failed cells with reasons, and the rows that run now."""
    from potentia.store import Store

    failures: list[dict[str, Any]] = []
    studies: list[dict[str, Any]] = []
    with Store.open(location, readonly=True) as store:
        for record in store.studies.read():
            if study in (None, record.name, record.key):
                study_failures = store.failures.read(study=record.key)
                failures += [asdict(failure) for failure in study_failures]
                studies.append(_describe_study(store, record, failed=len(study_failures)))
    return {"store": without_password(location), "studies": studies, "failures": failures}


def _describe_study(store: Store, record: StudyRecord, *, failed: int) -> dict[str, Any]:
    """Return a study's names and counts, the state of its rows, and who holds them."""
    from potentia.evidence import parse_study_record

    progress = store.events.read_progress(record.key)
    leases = store.leases.read(study=record.key)
    running_rows = {lease.row for lease in leases}
    running_rows |= {row for row, state in progress.items() if is_running(state)}
    study_file = parse_study_record(record)
    return {
        "name": record.name,
        "key": record.key,
        "created": record.created,
        "models": len(study_file.rows()) if study_file else None,
        "tasks": len(study_file.tasks) if study_file else None,
        "asked": count_planned_cells(store, record),
        "done": store.cells.count(study=record.key),
        "failed": failed,
        "running": len(running_rows),
        "cost": _describe_cost(store, record, study_file),
        "rows": progress,
        "leases": [_describe_lease(lease) for lease in leases],
    }


def _describe_cost(store: Store, record: StudyRecord, study: Study | None) -> str | None:
    """Return what the results of a study cost so far; None where no price is known."""
    if study is None:
        return None
    price = find_price(study.price, study.device)
    return None if price is None else price.format(store.cells.sum_seconds(study=record.key))


def _describe_lease(lease: LeaseRecord) -> dict[str, Any]:
    return {name: getattr(lease, name) for name in LEASE}


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
    tasks = [task.name for task in study.benchmarks()]
    steps = len(set(study.adjust.at_steps)) if study.adjust else 0
    texts: set[str] = set()
    if any(protocol.kind == "few_shot" for protocol in study.protocols):
        texts = _find_texts(store, record, tasks)
    planned = 0
    for row in study.rows():
        for protocol in study.protocols:
            cells_per_task = 1 + steps if protocol == ADJUST else 1
            for task in tasks:
                is_text_with_shots = protocol.kind == "few_shot" and task in texts
                if study.asks(row.name, task, protocol) and not is_text_with_shots:
                    planned += cells_per_task
    return planned


def _find_texts(store: Store, record: StudyRecord, tasks: Iterable[str]) -> set[str]:
    """Return the tasks that are texts to predict, by one stored cell of each."""
    texts = set()
    for task in tasks:
        for cell in store.cells.read(study=record.key, task=task, limit=1):
            if cell.score.metric.is_text:
                texts.add(cell.task)
    return texts

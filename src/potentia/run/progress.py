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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.study import content_key
from potentia.timing import ONE_TIME_WORK, measure_seconds_spent
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.run.plan import Assignment, Row, StudyPlan
    from potentia.store import EventRecord, Store


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
    seconds_text = os.environ.get("POTENTIA_STORE_PATIENCE")
    if seconds_text is None:
        return STORE_PATIENCE
    try:
        seconds = float(seconds_text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise InputError(
            f"POTENTIA_STORE_PATIENCE is {seconds_text!r}",
            hint="give seconds: POTENTIA_STORE_PATIENCE=300",
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

    def __init__(self, store: Store, run_id: str) -> None:
        self.path = store.logs_folder / f"{run_id}.jsonl" if run_id else None

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


def name_lanes_folder(row: Row, protocol_kind: Protocol) -> str:
    """Name the folder of a row's lanes by the cells that they are for, whether these are done or not."""
    cells = [cell.copy_of or cell.key for cell in row.cells if cell.protocol == protocol_kind]
    return content_key(cells=sorted(cells))


def remove_lanes_folder(folder: Path) -> None:
    """Remove a folder of lanes, and the one it lies in where it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


OF_TRAINING = ("lanes_active", "lanes_waiting", "tokens_per_second")  # true while it goes on
STEPS = "steps"  # the unit of a phase that fine-tunes
DOCUMENTS = "examples"  # the unit of all other phases
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
            "unit": DOCUMENTS,
            "began": time.time(),
        }
        if self._label != self._row:
            self._state["model"] = self._row
        self._written = 0.0
        self._began = time.monotonic()
        self._earlier_steps = 0  # of fine-tunings, in phases that ended
        self._earlier_resumed = 0  # of these, that an earlier run had made
        self._earlier_skipped = 0  # of fine-tunings that ended early

    def phase(self, phase_name: str, *, total: int = 0, **facts: Any) -> None:
        """Enter a phase of the row (loading, scoring arc_easy, tuning …) with a known amount of work."""
        self._earlier_steps = self._state.get("steps_done", 0)
        self._earlier_resumed = self._state.get("steps_resumed", 0)
        self._earlier_skipped = self._state.get("steps_skipped", 0)
        self._state.update(
            {
                "phase": phase_name,
                "done": 0,
                "total": total,
                "rate": None,
                "left": None,
                "unit": DOCUMENTS,
                "cell": None,
                **facts,
            }
        )
        self._log.write("phase", row=self._label, phase=phase_name, total=total)
        if self._state["unit"] == STEPS:
            self._state["steps_planned"] = self._earlier_steps + total
        self._began = time.monotonic()
        self._write(force=self._began - self._written >= BRIEF)

    def advance(self, amount: int = 1) -> None:
        """Say that some of the phase's work is done."""
        self.reach(self._state["done"] + amount)

    def reach(self, units_done: int, *, before: int = 0, skipped: int = 0, **facts: Any) -> None:
        """Say how much of the phase's work is done in all.

        Of what is done an earlier run may have done some ``before``; of what was planned some may be ``skipped``.
        """
        elapsed = time.monotonic() - self._began
        total = max(self._state["total"] - skipped, units_done) if self._state["total"] else 0
        units_per_second = None
        seconds_left = None
        if elapsed > 0:
            units_per_second = max(units_done - before, 0) / elapsed
        if units_per_second and total:
            seconds_left = max(total - units_done, 0) / units_per_second
        if self._state["unit"] == STEPS:
            self._state["steps_done"] = self._earlier_steps + units_done
            self._state["steps_resumed"] = self._earlier_resumed + before
            self._state["steps_skipped"] = self._earlier_skipped + skipped
        self._state.update(
            {"done": units_done, "rate": units_per_second, "left": seconds_left, **facts}
        )
        self._write()

    def note(self, **facts: Any) -> None:
        """Add facts to the row's state without moving its progress."""
        self._state.update(facts)
        self._write()

    def log_event(self, kind: str, *, is_logged: bool = False, **payload: Any) -> None:
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
            self._state["seconds_preparing"] = measure_seconds_spent(ONE_TIME_WORK)
            self._store.events.save_progress(self._study, self._label, dict(self._state))


CellName = tuple[str, str, str]  # model, task, protocol


def list_ended_cells(event: EventRecord) -> set[CellName]:
    """Return the cells that ended, well or not, by an entry of a study's log."""
    payload = event.payload
    if event.kind == "found":
        return {(payload["row"], task, protocol) for task, protocol in payload.get("done", ())}
    if event.kind in ("cell", "failure"):
        return {(payload["row"], payload["task"], payload["protocol"])}
    return set()


class CellCount:
    """The cells that a run has to do, and which of them have ended so far by the study's log."""

    def __init__(self, study_plan: StudyPlan) -> None:
        self.asked: set[tuple[str, str, str]] = set()
        for row in study_plan.rows:
            for cell in row.pending:
                self.asked.add((row.model.name, cell.task, str(cell.protocol)))
        self.done: set[tuple[str, str, str]] = set()
        self.failed: set[tuple[str, str, str]] = set()
        self.end_times: list[float] = []  # when it was heard of those that were computed

    @property
    def ended(self) -> int:
        """How many are done or failed."""
        return len(self.done | self.failed)

    def hear(self, event: EventRecord) -> bool:
        """Take an entry of the log; return whether it ends a cell of this run that had not ended well before.

        "cell" and "failure" are of a cell that was computed just now; "found" is of cells that another process had put
        into the store: they are done, but say nothing of this run's pace.
        """
        ended_cells = list_ended_cells(event) & self.asked
        new_cells = ended_cells - self.done
        if event.kind == "failure":
            self.failed |= new_cells
        else:
            self.done |= ended_cells
            self.failed -= ended_cells
        if event.kind != "found":
            # By this machine's clock: the log may come from another machine.
            self.end_times += [time.time()] * len(new_cells)
        return bool(new_cells)


PACED = 40  # of the cells that ended, the last so many tell the pace


def estimate_seconds_left(
    began: float, end_times: Iterable[float], cells_left: int
) -> float | None:
    """Estimate how long so many cells take, by the moments at which others ended since; None where none did."""
    last_ends = sorted(end_time for end_time in end_times if end_time >= began)[-PACED - 1 :]
    since = began
    if len(last_ends) > PACED:
        since = last_ends.pop(0)
    if not last_ends:
        return None
    return (time.time() - since) / len(last_ends) * max(cells_left, 0)

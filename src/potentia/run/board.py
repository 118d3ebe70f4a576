"""What a running row tells the world: its latest state and a log of events, through the store.

Every executor, the terminal view and the live board read the same records, so a row reports the same way whether it
runs in this process, in a worker or on another machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.store import Store


class Interrupted(Exception):  # noqa: N818 - not an error: the user asked to stop
    """The run was asked to stop; everything finished so far is saved."""


class Board:
    """The reporting end of one row."""

    def __init__(self, store: Store, study: str, row: str, *, every: float = 1.0) -> None:
        self._store = store
        self._study = study
        self._row = row
        self._every = every
        self._written = 0.0
        self._began = time.time()
        self._state: dict[str, Any] = {"phase": "waiting", "done": 0, "total": 0, "began": self._began}
        self._began = time.monotonic()

    def phase(self, name: str, *, total: int = 0, **facts: Any) -> None:
        """Enter a phase of the row (load, direct arc_easy, tune, test …) with a known amount of work."""
        self._state.update({"phase": name, "done": 0, "total": total, "rate": None, "left": None, **facts})
        self._began = time.monotonic()
        self._write(force=True)

    def advance(self, amount: int = 1) -> None:
        """Say that some of the phase's work is done."""
        self.reach(self._state["done"] + amount)

    def reach(self, done: int, *, before: int = 0, **facts: Any) -> None:
        """Say how much of the phase's work is done in all, and how much of that an earlier run had done."""
        spent = time.monotonic() - self._began
        rate = (done - before) / spent if spent > 0 else None
        total = self._state["total"]
        left = (total - done) / rate if rate and total else None
        self._state.update({"done": done, "rate": rate, "left": left, **facts})
        self._write()

    def note(self, **facts: Any) -> None:
        """Add facts to the row's state without moving its progress."""
        self._state.update(facts)
        self._write()

    def event(self, kind: str, **payload: Any) -> None:
        """Append to the study's log."""
        self._store.event(self._study, kind, {"row": self._row, **payload})

    def finish(self, phase: str) -> None:
        """Close the row's record."""
        self._state.update({"phase": phase, "left": 0.0, "ended": time.time()})
        self._write(force=True)

    def _write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._written >= self._every:
            self._written = now
            self._state["at"] = time.time()
            self._store.put_progress(self._study, self._row, dict(self._state))

"""Counting the cells of a study as they end, each once, whoever computes it: for terminal and notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from potentia.run.plan import StudyPlan

if TYPE_CHECKING:
    from potentia.store import EventRecord


class Count:
    """The cells that a run has to do, and which of them have ended so far by the study's log."""

    def __init__(self, plan: StudyPlan) -> None:
        self.asked = {
            (row.model.name, cell.task, str(cell.protocol)) for row in plan.rows for cell in row.pending
        }  # fmt: skip
        self.done: set[tuple[str, str, str]] = set()
        self.failed: set[tuple[str, str, str]] = set()
        self.made = 0  # of those that ended, by computing them

    @property
    def todo(self) -> int:
        """How many there are."""
        return len(self.asked)

    @property
    def ended(self) -> int:
        """How many are done or failed."""
        return len(self.done | self.failed)

    def hear(self, event: EventRecord) -> bool:
        """Take an entry of the log; says whether a cell ended by it that was asked for."""
        facts = event.payload
        if event.kind == "found":
            named = {(facts["row"], task, protocol) for task, protocol in facts.get("done", ())} & self.asked
        elif event.kind in ("cell", "failure"):
            named = {(facts["row"], facts["task"], facts["protocol"])} & self.asked
        else:
            return False
        if event.kind == "failure":
            new = named - self.done
            self.failed |= new
        else:
            new = named - self.done
            self.done |= named
            self.failed -= named
        if event.kind != "found":
            self.made += len(new)
        return bool(new)

"""The terminal view of a running study: a live table on a terminal, plain lines elsewhere. Reads the store alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from potentia.findings import clock
from potentia.run import StudyPlan
from potentia.store import Store

SHOWN = 18  # rows of the live table; the rest are counted


class View:
    """Draws the state of a study from its store."""

    def __init__(self, plan: StudyPlan, store: Store) -> None:
        self.plan = plan
        self.store = store
        self.key = plan.key
        self.began = time.monotonic()
        self.seen_event = 0
        while past := store.events(self.key, after_id=self.seen_event):
            self.seen_event = past[-1].id
        self.todo = sum(len(row.pending) for row in plan.rows)
        self.done = 0
        self.failed = 0

    def news(self) -> list[str]:
        """Return one line for each cell that ended since the last call."""
        lines = []
        for event in self.store.events(self.key, after_id=self.seen_event):
            self.seen_event = event.id
            facts = event.payload
            if event.kind == "found":
                self.done += facts["cells"]
            if event.kind not in ("cell", "failure"):
                continue
            if event.kind == "cell":
                self.done += 1
                told = f"{facts['value']:.4f} ± {facts['stderr'] or 0:.4f}"
            else:
                self.failed += 1
                told = f"failed: {facts['reason']}"
            count = f"[{self.done + self.failed}/{self.todo}]"
            lines.append(f"{count} {facts['row']} × {facts['task']} × {facts['protocol']}: {told}")
        return lines

    def __rich__(self) -> Group:
        self.news()
        progress = self.store.get_progress(self.key)
        ended = self.done + self.failed
        spent = time.monotonic() - self.began
        left = spent / ended * (self.todo - ended) if ended else None
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{escape(self.plan.study.name)}[/bold]",
            ProgressBar(total=max(self.todo, 1), completed=ended, width=30),
            f"{ended}/{self.todo} cells",
            f"[red]{self.failed} failed[/red]" if self.failed else "",
            f"{clock(spent)} spent",
            f"about {clock(left)} left" if left is not None else "",
        )
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("model", "now", "", "rate", "left", "validation so far"):
            table.add_column(name)
        pending = [row.model.name for row in self.plan.rows if row.pending]
        active = [name for name in pending if "ended" not in progress.get(name, {}) and name in progress]
        for name in active[:SHOWN]:
            table.add_row(*self._row(name, progress[name]))
        waiting = sum(name not in progress for name in pending)
        foot = f"[dim]{waiting} rows wait · Ctrl-C stops and saves[/dim]"
        return Group(head, table, foot)

    @staticmethod
    def _row(name: str, state: Mapping[str, Any]) -> tuple[Any, ...]:
        total, done, rate = state.get("total") or 0, state.get("done") or 0, state.get("rate")
        unit = state.get("unit", "docs")
        return (
            escape(name),
            escape(str(state.get("phase", ""))),
            ProgressBar(total=total, completed=min(done, total), width=16) if total else "",
            f"{state['tokens_per_second']:,.0f} tokens/s" if state.get("tokens_per_second") else
            (f"{rate:,.0f} {unit}/s" if rate else ""),
            clock(state["left"]) if state.get("left") is not None else "",
            escape(str(state.get("validation", ""))),
        )  # fmt: skip


@contextmanager
def watch(plan: StudyPlan, console: Console | None = None) -> Iterator[None]:
    """Show the study while it runs."""
    console = console or Console(stderr=True)
    with Store.open(plan.study.store) as store:
        view = View(plan, store)
        if console.is_terminal:
            with Live(view, console=console, refresh_per_second=2, transient=True):
                yield
            return
        over = threading.Event()

        def speak() -> None:
            while not over.wait(1.0):
                for line in view.news():
                    console.print(line, markup=False, highlight=False, soft_wrap=True)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for line in view.news():
                console.print(line, markup=False, highlight=False, soft_wrap=True)

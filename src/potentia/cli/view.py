"""The terminal view of a running study: a live table on a terminal, plain lines elsewhere. Reads the store alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from potentia.errors import StoreError
from potentia.run import CellCount, StudyPlan, estimate_seconds_left
from potentia.store import LeaseRecord, Store
from potentia.timing import format_duration, repeatedly
from potentia.timing import format_shares as shares

SHOWN = 18  # rows of the live table; the rest are counted
QUIET_SECONDS = 30.0  # after which a plain line says how far the study is
HALF_WIDTH = 1.96  # standard errors: ± is the half of a 95 % interval here as everywhere


class View:
    """Draws the state of a study from its store."""

    def __init__(self, plan: StudyPlan, store: Store) -> None:
        self.plan = plan
        self.store = store
        self.key = plan.key
        self.began = time.time()
        self.old = {name: state.get("at") for name, state in store.get_progress(plan.key).items()}
        self.seen_event = store.last_event(self.key)
        self.total = sum(len(row.cells) for row in plan.rows)
        self.before = self.total - sum(
            len(row.pending) for row in plan.rows
        )  # done when this run began
        self.count = CellCount(plan)
        self.tallies: list[str] = []  # where the time of each finished row went
        self.told: set[tuple[str, str]] = set()
        self.others: set[str] = set()  # leases of other runs that were told of
        self._drawn = Group()

    @property
    def ended(self) -> int:
        """The cells that are done or have failed, of all that the study asks for."""
        return self.before + self.count.ended

    @property
    def left(self) -> float | None:
        """Seconds to go, at the pace of this run; None before its first cell."""
        return estimate_seconds_left(self.began, self.count.ends, self.total - self.ended)

    def news(self) -> list[str]:
        """Return one line for each cell that ended since the last call; a model that fails is told once a reason."""
        lines = []
        for event in self.store.events(self.key, after_id=self.seen_event):
            self.seen_event = event.id
            if event.kind == "row":
                facts = event.payload
                self.tallies.append(
                    f"{facts['row']}: {format_duration(facts['seconds'])}, {shares(facts['tally'])}"
                )
                lines.append(self.tallies[-1])
            elif self.count.hear(event) and event.kind in ("cell", "failure"):
                lines += self._ending(event.kind, event.payload)
        for lease in self._others():
            if lease.id not in self.others:
                self.others.add(lease.id)
                lines.append(f"{lease.row} is run by {lease.told}; it is left to it")
        return lines

    def _ending(self, kind: str, facts: Mapping[str, Any]) -> list[str]:
        cell = f"[{self.ended}/{self.total}] {facts['row']} × {facts['task']} × {facts['protocol']}"
        if kind == "cell":
            error = f" ± {HALF_WIDTH * facts['stderr']:.4f}" if facts["stderr"] else ""
            more = (
                f" (may have more in it: {facts['may_have_more']})"
                if facts.get("may_have_more")
                else ""
            )
            return [f"{cell}: {facts['value']:.4f}{error}{more}"]
        once = (facts["row"], facts["reason"])
        known = once in self.told
        self.told.add(once)
        return [] if known else [f"{cell}: failed: {facts['reason']}"]

    def _others(self) -> list[LeaseRecord]:
        """Who else computes rows of this study now."""
        return [lease for lease in self.store.leases(study=self.key) if lease.run != self.plan.run]

    def state(self) -> str:
        """Say in one line how far the study is."""
        parts = [
            f"{self.ended}/{self.total} cells",
            f"{format_duration(time.time() - self.began)} spent",
        ]
        if self.count.failed:
            parts.insert(1, f"{len(self.count.failed)} failed")
        if (left := self.left) is not None:
            parts.append(f"about {format_duration(left)} left")
        for name, row in [(n, row) for n, row in self._rows().items() if "ended" not in row][:4]:
            share = (
                f" {min(row['done'], row['total']):,} of {row['total']:,}"
                if row.get("total")
                else ""
            )
            parts.append(f"{name}: {row.get('phase', '')}{share}")
        return " · ".join(parts)

    def _rows(self) -> dict[str, dict[str, Any]]:
        """The rows that this run has begun; what an earlier one left behind is no state of theirs."""
        progress = self.store.get_progress(self.key)
        names = {row.model.name for row in self.plan.rows if row.pending}
        fresh = {
            name: state for name, state in progress.items() if state.get("at") != self.old.get(name)
        }
        return {name: state for name, state in fresh.items() if state.get("model", name) in names}

    def __rich__(self) -> Group:
        try:
            self.news()
            self._drawn = self._draw()
        except StoreError as error:
            return Group(
                self._drawn, f"[yellow]the store is away: {escape(error.message)}[/yellow]"
            )
        return self._drawn

    def _draw(self) -> Group:
        rows, left = self._rows(), self.left
        others = {lease.row: lease.told for lease in self._others()}
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{escape(self.plan.study.name)}[/bold]",
            ProgressBar(total=max(self.total, 1), completed=self.ended, width=30),
            f"{self.ended}/{self.total} cells",
            f"[red]{len(self.count.failed)} failed[/red]" if self.count.failed else "",
            f"{format_duration(time.time() - self.began)} spent",
            f"about {format_duration(left)} left" if left is not None else "",
        )
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("model", "now", "", "rate", "left", "validation so far"):
            table.add_column(name)
        active = [(name, row) for name, row in rows.items() if "ended" not in row]
        for name, row in active[:SHOWN]:
            table.add_row(*self._row(name, row, others.get(name, "")))
        begun = {state.get("model", name) for name, state in rows.items()}
        waiting = sum(bool(row.pending) for row in self.plan.rows) - len(begun)
        foot = f"[dim]{waiting} rows wait · Ctrl-C stops and saves[/dim]"
        return Group(head, table, foot)

    @staticmethod
    def _row(name: str, state: Mapping[str, Any], other: str) -> tuple[Any, ...]:
        total, done, rate = state.get("total") or 0, state.get("done") or 0, state.get("rate")
        unit = state.get("unit", "docs")
        return (
            escape(name),
            escape(str(state.get("phase", ""))),
            ProgressBar(total=total, completed=min(done, total), width=16) if total else "",
            f"{state['tokens_per_second']:,.0f} tokens/s"
            if state.get("tokens_per_second")
            else (f"{rate:,.0f} {unit}/s" if rate else ""),
            format_duration(state["left"]) if state.get("left") is not None else "",
            escape(f"by {other}" if other else str(state.get("validation", ""))),
        )


@contextmanager
def watch(
    plan: StudyPlan, console: Console | None = None, *, quiet: float = QUIET_SECONDS
) -> Iterator[None]:
    """Show the study while it runs; without a terminal a line at least every ``quiet`` seconds."""
    console = console or Console(stderr=True)

    def say(*lines: str) -> None:
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    with Store.open(plan.study.store) as store:
        view = View(plan, store)
        if console.is_terminal:
            try:
                with Live(view, console=console, refresh_per_second=2, transient=True):
                    yield
            finally:
                view.news()
                say(*view.tallies)
            return
        last = time.monotonic()

        def speak() -> None:
            nonlocal last
            with suppress(StoreError, OSError):  # the store is away, or the terminal was closed
                lines = view.news()
                if not lines and time.monotonic() - last >= quiet:
                    lines = [view.state()]
                if lines:
                    say(*lines)
                    last = time.monotonic()

        with repeatedly(speak, min(1.0, quiet)):
            yield

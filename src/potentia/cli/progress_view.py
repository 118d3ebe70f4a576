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

from potentia.cli.output import error_console, is_verbose
from potentia.errors import StoreError
from potentia.run import CellCount, StudyPlan, estimate_seconds_left
from potentia.store import LeaseRecord, Store
from potentia.timing import format_duration, format_shares, repeatedly

MAX_ROWS_SHOWN = 18  # of the live table; the rest are counted
QUIET_SECONDS = 30.0  # after which a plain line says how far the study is


class ProgressView:
    """Draws the state of a running study from its store."""

    def __init__(self, plan: StudyPlan, store: Store) -> None:
        self.plan = plan
        self.store = store
        self.study_key = plan.key
        self.start_time = time.time()
        earlier_progress = store.events.read_progress(plan.key)
        self._earlier_timestamps = {
            name: state.get("at") for name, state in earlier_progress.items()
        }
        self._last_event = store.events.read_last_id(self.study_key)
        self.total_cells = sum(len(row.cells) for row in plan.rows)
        pending_cells = sum(len(row.pending) for row in plan.rows)
        self._finished_before = self.total_cells - pending_cells
        self.count = CellCount(plan)
        self.time_shares: list[str] = []  # where the time of each finished row went
        self._reported_failures: set[tuple[str, str]] = set()
        self._reported_leases: set[str] = set()  # of other runs
        self._drawn = Group()

    @property
    def ended_cells(self) -> int:
        """The cells that are done or have failed, of all that the study asks for."""
        return self._finished_before + self.count.ended

    @property
    def seconds_left(self) -> float | None:
        """Seconds to go, at the pace of this run; None before its first cell."""
        return estimate_seconds_left(
            self.start_time, self.count.ends, self.total_cells - self.ended_cells
        )

    def collect_news(self) -> list[str]:
        """Return one line for each cell that ended since the last call; a reason for failure once a model."""
        lines = []
        for event in self.store.events.read(self.study_key, after_id=self._last_event):
            self._last_event = event.id
            if event.kind == "row":
                row = event.payload
                shares = format_shares(row["tally"])
                line = f"{row['row']}: {format_duration(row['seconds'])}, {shares}"
                self.time_shares.append(line)
                if is_verbose():
                    lines.append(line)
            elif self.count.hear(event) and event.kind in ("cell", "failure"):
                lines += self._describe_ended_cell(event.kind, event.payload)
        for lease in self._leases_of_other_runs():
            if lease.id not in self._reported_leases:
                self._reported_leases.add(lease.id)
                lines.append(f"{lease.row} is run by {lease.owner}; it is left to it")
        return lines

    def _describe_ended_cell(self, kind: str, payload: Mapping[str, Any]) -> list[str]:
        position = f"[{self.ended_cells}/{self.total_cells}]"
        cell = f"{position} {payload['row']} × {payload['task']} × {payload['protocol']}"
        if kind == "failure":
            return self._describe_failure(cell, payload)
        line = f"{cell}: {payload['value']:.4f}"
        if payload.get("error"):
            line += f" {payload['error']}"
        if payload.get("may_have_more"):
            line += f" (may be too low: {payload['may_have_more']})"
        return [line]

    def _describe_failure(self, cell: str, payload: Mapping[str, Any]) -> list[str]:
        failure = (payload["row"], payload["reason"])
        if failure in self._reported_failures:
            return []
        self._reported_failures.add(failure)
        return [f"{cell}: failed: {payload['reason']}"]

    def _leases_of_other_runs(self) -> list[LeaseRecord]:
        """Return the rows of this study that other runs compute now."""
        leases = self.store.leases.read(study=self.study_key)
        return [lease for lease in leases if lease.run != self.plan.run]

    def describe_state(self) -> str:
        """Say in one line how far the study is."""
        parts = [f"{self.ended_cells}/{self.total_cells} results"]
        if self.count.failed:
            parts.append(f"{len(self.count.failed)} failed")
        parts.append(f"{format_duration(time.time() - self.start_time)} spent")
        seconds = self.seconds_left
        if seconds is not None:
            parts.append(f"about {format_duration(seconds)} left")
        for name, state in self._active_rows()[:4]:
            share = ""
            if state.get("total"):
                done = min(state["done"], state["total"])
                share = f" {done:,} of {state['total']:,}"
            parts.append(f"{name}: {state.get('phase', '')}{share}")
        return " · ".join(parts)

    def _started_rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows that this run has begun; the state that an earlier run left behind does not count."""
        pending_models = {row.model.name for row in self.plan.rows if row.pending}
        started = {}
        for name, state in self.store.events.read_progress(self.study_key).items():
            is_new = state.get("at") != self._earlier_timestamps.get(name)
            if is_new and state.get("model", name) in pending_models:
                started[name] = state
        return started

    def _active_rows(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (name, state) for name, state in self._started_rows().items() if "ended" not in state
        ]

    def __rich__(self) -> Group:
        try:
            self.collect_news()
            self._drawn = self._draw()
        except StoreError as error:
            return Group(
                self._drawn, f"[yellow]the store is away: {escape(error.message)}[/yellow]"
            )
        return self._drawn

    def _draw(self) -> Group:
        owner_by_row = {lease.row: lease.owner for lease in self._leases_of_other_runs()}
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("model", "now", "", "rate", "left", "validation so far"):
            table.add_column(name)
        for name, state in self._active_rows()[:MAX_ROWS_SHOWN]:
            table.add_row(*_table_row(name, state, owner_by_row.get(name, "")))
        started_models = {state.get("model", name) for name, state in self._started_rows().items()}
        pending_rows = sum(bool(row.pending) for row in self.plan.rows)
        waiting = pending_rows - len(started_models)
        footer = f"[dim]{waiting} rows wait · Ctrl-C stops and saves[/dim]"
        return Group(self._draw_header(), table, footer)

    def _draw_header(self) -> Table:
        failed = f"[red]{len(self.count.failed)} failed[/red]" if self.count.failed else ""
        seconds = self.seconds_left
        time_left = "" if seconds is None else f"about {format_duration(seconds)} left"
        header = Table.grid(padding=(0, 2))
        header.add_row(
            f"[bold]{escape(self.plan.study.name)}[/bold]",
            ProgressBar(total=max(self.total_cells, 1), completed=self.ended_cells, width=30),
            f"{self.ended_cells}/{self.total_cells} results",
            failed,
            f"{format_duration(time.time() - self.start_time)} spent",
            time_left,
        )
        return header


def _table_row(name: str, state: Mapping[str, Any], other_owner: str) -> tuple[Any, ...]:
    """Return the cells of one row of the live table."""
    total = state.get("total") or 0
    done = state.get("done") or 0
    bar: ProgressBar | str = ""
    if total:
        bar = ProgressBar(total=total, completed=min(done, total), width=16)
    rate = ""
    if state.get("tokens_per_second"):
        rate = f"{state['tokens_per_second']:,.0f} tokens/s"
    elif state.get("rate"):
        rate = f"{state['rate']:,.0f} {state.get('unit', 'docs')}/s"
    time_left = "" if state.get("left") is None else format_duration(state["left"])
    last = f"by {other_owner}" if other_owner else str(state.get("validation", ""))
    return (escape(name), escape(str(state.get("phase", ""))), bar, rate, time_left, escape(last))


@contextmanager
def watch_study(
    plan: StudyPlan, console: Console | None = None, *, quiet_seconds: float = QUIET_SECONDS
) -> Iterator[None]:
    """Show the study while it runs; without a terminal a line at least every ``quiet_seconds``."""
    target = console or error_console

    def print_lines(*lines: str) -> None:
        for line in lines:
            target.print(line, markup=False, highlight=False, soft_wrap=True)

    with Store.open(plan.study.store) as store:
        view = ProgressView(plan, store)
        if target.is_terminal:
            try:
                with Live(view, console=target, refresh_per_second=2, transient=True):
                    yield
            finally:
                view.collect_news()
                if is_verbose():
                    print_lines(*view.time_shares)
            return
        last_print = time.monotonic()

        def print_news() -> None:
            nonlocal last_print
            with suppress(StoreError, OSError):  # the store is away, or the terminal was closed
                lines = view.collect_news()
                if not lines and time.monotonic() - last_print >= quiet_seconds:
                    lines = [view.describe_state()]
                if lines:
                    print_lines(*lines)
                    last_print = time.monotonic()

        with repeatedly(print_news, min(1.0, quiet_seconds)):
            yield

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
from potentia.run import (
    PACED,
    CellCount,
    StudyPlan,
    WorkLeft,
    describe_time_left,
    estimate_seconds_left,
)
from potentia.store import LeaseRecord, Store
from potentia.timing import call_repeatedly, format_duration, format_shares
from potentia.values.findings import short_names
from potentia.values.protocol import Protocol, TaskName
from potentia.values.wording import format_count

MAX_ROWS_SHOWN = 18  # of the live table; the rest are counted
QUIET_SECONDS = 30.0  # after which a plain line says how far the study is


class ProgressView:
    """Draws the state of a running study from its store."""

    def __init__(
        self, study_plan: StudyPlan, store: Store, *, budget_end: float | None = None
    ) -> None:
        self.plan = study_plan
        self._budget_end = budget_end  # a moment, where the run has a budget
        self.store = store
        self.study_key = study_plan.key
        self.start_time = time.time()
        earlier_progress = store.events.read_progress(study_plan.key)
        self._earlier_timestamps = {
            row_label: state.get("at") for row_label, state in earlier_progress.items()
        }
        self._last_event = store.events.read_last_id(self.study_key)
        planned_cells = sum(len(row.cells) for row in study_plan.rows)
        pending_cells = sum(len(row.pending) for row in study_plan.rows)
        self.total_cells = planned_cells + study_plan.later_cells
        self._finished_before = planned_cells - pending_cells
        self.count = CellCount(study_plan)
        self._work_left = WorkLeft.count(study_plan)
        self.time_shares: list[str] = []  # where the time of each finished row went
        self.warnings: list[str] = []  # that memory may not suffice
        self._reported_failures: set[tuple[str, str]] = set()
        self._reported_leases: set[str] = set()  # of other runs
        self._drawn = Group()
        models = [row.model.name for row in study_plan.rows]
        self._short_names = dict(zip(models, short_names(models), strict=True))

    @property
    def ended_cells(self) -> int:
        """The cells that are done or have failed, of all that the study asks for."""
        return self._finished_before + self.count.ended

    @property
    def seconds_left(self) -> float | None:
        """Seconds to go, by the steps and cells that are done; None before there are any.

        The pace of many cells is that of the last ones.
        """
        if self._work_left is not None and len(self.count.end_times) <= PACED:
            ended = self.count.done | self.count.failed
            started_rows = self._started_rows()
            if started_rows:
                return self._work_left.estimate_seconds(ended, started_rows)
        return estimate_seconds_left(
            self.start_time, self.count.end_times, self.total_cells - self.ended_cells
        )

    def collect_news(self) -> list[str]:
        """Return the lines to print since the last call.

        A line per finished cell, a failure once per model and reason, memory warnings, rows that other runs took, and
        on request where the time of each row went.
        """
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
            elif event.kind == "memory":
                self.warnings.append(event.payload["text"])
                lines.append(event.payload["text"])
            elif self.count.hear(event) and event.kind in ("cell", "failure"):
                lines += self._describe_ended_cell(event.kind, event.payload)
        for lease in self._leases_of_other_runs():
            if lease.id not in self._reported_leases:
                self._reported_leases.add(lease.id)
                lines.append(
                    f"{lease.row} is being run by {lease.owner}, so this run leaves it out"
                )
        return lines

    def _describe_ended_cell(self, event_kind: str, payload: Mapping[str, Any]) -> list[str]:
        position = f"[{self.ended_cells}/{self.total_cells}]"
        task = TaskName(payload["task"])
        protocol = Protocol(payload["protocol"]).label
        model = self._short_names.get(payload["row"], payload["row"])
        cell = f"{position} {model} × {task.label}, {protocol}"
        if event_kind == "failure":
            return self._describe_failure(cell, payload)
        if self._tests_one_example(payload["task"]):
            return [f"{cell}: done"]  # such a score says nothing
        line = f"{cell}: {payload['value']:.3f}"
        if payload.get("error"):
            line += f" {payload['error']}"
        if payload.get("may_have_more"):
            line += f" (fine-tuning may not have reached its best: {payload['may_have_more']})"
        return [line]

    def _tests_one_example(self, task_name: str) -> bool:
        """Whether a task has one test example, as where a model is fine-tuned on all rows for use."""
        task = self.plan.tasks.by_name.get(task_name)
        return task is not None and len(task.documents("test")) == 1

    def _describe_failure(self, cell: str, payload: Mapping[str, Any]) -> list[str]:
        task = TaskName(payload["task"])
        # the folds of a task fail for one reason, with other numbers in it
        what = payload["reason"] if task.fold is None else task.whole
        failure = (payload["row"], what)
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
        time_left = self._describe_time_left()
        if time_left:
            parts.append(time_left)
        for row_label, state in self._active_rows()[:4]:
            share = ""
            if state.get("total"):
                units_done = min(state["done"], state["total"])
                share = f" {units_done:,} of {state['total']:,}"
            short_name = self._short_names.get(row_label, row_label)
            parts.append(f"{short_name}: {state.get('phase', '')}{share}")
        return " · ".join(parts)

    def _describe_time_left(self) -> str:
        budget_left = None
        if self._budget_end is not None:
            budget_left = self._budget_end - time.time()
        return describe_time_left(self.seconds_left, budget_left)

    def _started_rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows that this run has begun; the state that an earlier run left behind does not count."""
        pending_models = {row.model.name for row in self.plan.rows if row.pending}
        started = {}
        for row_label, state in self.store.events.read_progress(self.study_key).items():
            is_new = state.get("at") != self._earlier_timestamps.get(row_label)
            if is_new and state.get("model", row_label) in pending_models:
                started[row_label] = state
        return started

    def _active_rows(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (row_label, state)
            for row_label, state in self._started_rows().items()
            if "ended" not in state
        ]

    def __rich__(self) -> Group:
        try:
            self.collect_news()
            self._drawn = self._draw()
        except StoreError as error:
            return Group(
                self._drawn,
                f"[yellow]the store cannot be reached: {escape(error.message)}[/yellow]",
            )
        return self._drawn

    def _draw(self) -> Group:
        owner_by_row = {lease.row: lease.owner for lease in self._leases_of_other_runs()}
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for column_name in ("model", "now", "", "speed", "left", "validation so far"):
            table.add_column(column_name)
        for row_label, state in self._active_rows()[:MAX_ROWS_SHOWN]:
            short_name = self._short_names.get(row_label, row_label)
            table.add_row(*_table_row(short_name, state, owner_by_row.get(row_label, "")))
        started_models = {
            state.get("model", row_label) for row_label, state in self._started_rows().items()
        }
        pending_rows = sum(bool(row.pending) for row in self.plan.rows)
        waiting = pending_rows - len(started_models)
        footer = "[dim]Ctrl-C stops and saves[/dim]"
        if waiting > 0:
            footer = f"[dim]{format_count(waiting, 'model')} waiting · Ctrl-C stops and saves[/dim]"
        warnings = [f"[yellow]{escape(warning)}[/yellow]" for warning in self.warnings]
        return Group(self._draw_header(), table, *warnings, footer)

    def _draw_header(self) -> Table:
        failed = f"[red]{len(self.count.failed)} failed[/red]" if self.count.failed else ""
        header = Table.grid(padding=(0, 2))
        header.add_row(
            f"[bold]{escape(self.plan.study.name)}[/bold]",
            ProgressBar(total=max(self.total_cells, 1), completed=self.ended_cells, width=30),
            f"{self.ended_cells}/{self.total_cells} results",
            failed,
            f"{format_duration(time.time() - self.start_time)} spent",
            self._describe_time_left(),
        )
        return header


def _table_row(row_label: str, state: Mapping[str, Any], other_owner: str) -> tuple[Any, ...]:
    """Return the cells of one row of the live table."""
    total = state.get("total") or 0
    units_done = state.get("done") or 0
    progress_bar: ProgressBar | str = ""
    if total:
        progress_bar = ProgressBar(total=total, completed=min(units_done, total), width=16)
    speed_text = ""
    if state.get("tokens_per_second"):
        speed_text = f"{state['tokens_per_second']:,.0f} tokens/s"
    elif state.get("rate"):
        speed_text = f"{state['rate']:,.0f} {state.get('unit', 'examples')}/s"
    time_left = "" if state.get("left") is None else format_duration(state["left"])
    last_column = f"by {other_owner}" if other_owner else str(state.get("validation", ""))
    return (
        escape(row_label),
        escape(str(state.get("phase", ""))),
        progress_bar,
        speed_text,
        time_left,
        escape(last_column),
    )


@contextmanager
def watch_study(
    study_plan: StudyPlan,
    console: Console | None = None,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    budget_end: float | None = None,
) -> Iterator[None]:
    """Show the study while it runs; without a terminal a line at least every ``quiet_seconds``.

    The time left that is told never goes beyond ``budget_end``, a moment.
    """
    target = console or error_console

    def print_lines(*lines: str) -> None:
        for line in lines:
            target.print(line, markup=False, highlight=False, soft_wrap=True)

    with Store.open(study_plan.study.store) as store:
        view = ProgressView(study_plan, store, budget_end=budget_end)
        if target.is_terminal:
            try:
                with Live(view, console=target, refresh_per_second=2, transient=True):
                    yield
            finally:
                view.collect_news()  # what ended since the last refresh: the time shares want all rows
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

        with call_repeatedly(print_news, min(1.0, quiet_seconds)):
            yield

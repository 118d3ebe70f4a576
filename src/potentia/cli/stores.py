"""What a store holds and whether it is whole: ``status``, ``serve``, ``store``."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import potentia
from potentia.cli.adapters import discard_adapters, list_adapters
from potentia.cli.app import OrderedGroup, app
from potentia.cli.command import command
from potentia.cli.option_groups import (
    DEFAULT_STORE,
    CellOptions,
    OptionalText,
    OutputOptions,
    StoreArgument,
    Yes,
)
from potentia.cli.output import confirm, console, print_answer, print_lines, rows_as_dicts
from potentia.errors import InputError, without_password
from potentia.timing import format_duration
from potentia.values.findings import Table
from potentia.values.protocol import TaskName
from potentia.values.wording import format_count

if TYPE_CHECKING:
    from potentia.store import CellRecord, Problem, Store

store_group = typer.Typer(
    cls=OrderedGroup,
    help="Change a store: discard results or adapters, rename or delete studies.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(store_group, name="store")

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="The study: its name, or the beginning of its key.")
]
OneStudy = Annotated[
    OptionalText,
    typer.Option(metavar="NAME", help="Only this study: its name, or the beginning of its key."),
]
WATCH_SECONDS = 2.0  # between two looks of `status --watch`
MAX_CELLS_LISTED = 20
TOKEN = "POTENTIA_TOKEN"  # the environment variable with the token that the board asks for


@dataclass(frozen=True, kw_only=True)
class StatusOptions(OutputOptions):
    """The options of ``potentia status``."""

    store: StoreArgument = DEFAULT_STORE
    study: OneStudy = None
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Follow it until Ctrl-C; in a pipe, a line a change."),
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Read every result and say what is damaged; exit code 1 if anything is."
        ),
    ] = False
    repair: Annotated[
        bool, typer.Option("--repair", help="Have the next run replace what is damaged.")
    ] = False
    adapters: Annotated[
        bool, typer.Option("--adapters", help="List the adapters kept, and the disk they take.")
    ] = False

    def open_store(self) -> Store:
        """Open the store, to change it only where it is to be repaired."""
        if self.repair:
            return _open_existing(self.store)
        return potentia.store.Store.open(self.store, readonly=True)


@command(app, "status", StatusOptions)
def status(options: StatusOptions) -> None:
    """Say what a store holds: studies, results done and failed, what runs now, whether it is damaged.

    Examples:
      potentia status potentia.db --watch

      potentia status potentia.db --check --repair

      potentia status potentia.db --adapters
    """
    if options.check or options.repair:
        _check_store(options)
        return
    if options.adapters:
        list_adapters(options.store, options.study, options.as_json)
        return
    read_status = partial(potentia.run.read_store_status, options.store, options.study)
    state = read_status()
    if options.study is not None and not state["studies"]:
        raise InputError(
            f"no study {options.study!r}",
            where=options.store,
            hint=f"potentia status {shlex.quote(options.store)} shows them all",
        )
    if options.watch:
        _follow_status(read_status, as_json=options.as_json)
    else:
        print_answer(options.as_json, state, *_status_tables(state))


def _status_tables(state: dict[str, Any]) -> list[Table]:
    """Return the studies, the rows that run, and the cells that failed."""
    studies = state["studies"]
    counts = ("models", "tasks", "done", "asked", "failed", "running")
    table_rows = []
    for study in studies:
        table_rows.append(
            (study["name"], study["key"][:8], *(study[count_name] for count_name in counts))
        )
    column_names: tuple[str, ...] = ("study", "key", *counts[:2], "results done", *counts[3:])
    if any(study["left"] is not None for study in studies):
        column_names = (*column_names, "time left")
        table_rows = [
            (*row, "" if study["left"] is None else format_duration(study["left"]))
            for row, study in zip(table_rows, studies, strict=True)
        ]
    if any(study["cost"] for study in studies):
        column_names = (*column_names, "cost")
        table_rows = [(*row, study["cost"]) for row, study in zip(table_rows, studies, strict=True)]
    tables = [Table(f"Studies in {state['store']}", column_names, table_rows)]
    if any(study["running"] for study in studies):
        tables.append(running_rows_table(state))
    if state["failures"]:
        tables.append(_failed_cells_table(state["failures"]))
    return tables


def _failed_cells_table(failures: list[dict[str, Any]]) -> Table:
    """Return a row for each model and reason."""
    cells_by_failure: dict[tuple[str, str], list[str]] = defaultdict(list)
    for failure in failures:
        cell = f"{failure['task']} × {failure['protocol']}"
        cells_by_failure[failure["model"], failure["reason"]].append(cell)
    table_rows = []
    for (model, reason), cells in cells_by_failure.items():
        described = cells[0] if len(cells) == 1 else f"{len(cells)} results"
        table_rows.append((model, described, reason))
    return Table("Failed results", ("model", "results", "reason"), table_rows)


def running_rows_table(state: dict[str, Any]) -> Table:
    """Return the rows that run now: the phase, how far, how fast, how long still; which process runs it, since when."""
    table_rows = []
    for study in state["studies"]:
        lease_by_row = {lease["row"]: lease for lease in study["leases"]}
        for model in dict.fromkeys([*study["rows"], *lease_by_row]):
            row_state = study["rows"].get(model, {})
            lease = lease_by_row.get(model)
            if lease is not None or potentia.run.is_running(row_state):
                table_rows.append((study["name"], *_describe_running_row(model, row_state, lease)))
    column_names = ("study", "model", "now", "done", "tokens/s", "left", "by", "for")
    return Table("Models that run now", column_names, table_rows, digits=0)


def _describe_running_row(
    model_name: str, row_state: dict[str, Any], lease: dict[str, Any] | None
) -> tuple[Any, ...]:
    process = ""
    running_for = ""
    if lease is not None:
        process = f"process {lease['pid']} on {lease['host']}"
        running_for = format_duration(max(0.0, time.time() - lease["since"]))
    done = ""
    if row_state.get("total"):
        done = f"{row_state.get('done') or 0}/{row_state['total']}"
    time_left = ""
    if row_state.get("left") is not None:
        time_left = format_duration(row_state["left"])
    phase = str(row_state.get("phase", ""))
    tokens_per_second = row_state.get("tokens_per_second")
    return (model_name, phase, done, tokens_per_second, time_left, process, running_for)


def _follow_status(read_status: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    """Look at the store until interrupted: on a terminal in place, elsewhere a line for each study that changed."""
    line_by_study: dict[str, str] = {}
    try:
        while True:
            state = read_status()
            if console.is_terminal and not as_json:
                console.clear()
                print_answer(False, state, *_status_tables(state))
                now = time.strftime("%H:%M:%S")
                console.print(f"{now} · every {WATCH_SECONDS:g} s · Ctrl-C ends", style="dim")
            else:
                for study in state["studies"]:
                    line = _status_line(study, as_json=as_json)
                    if line_by_study.get(study["key"]) != line:
                        line_by_study[study["key"]] = line
                        print_lines(line)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return


def _status_line(study: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        field_names = ("name", "key", "done", "asked", "failed", "running")
        return json.dumps({field_name: study[field_name] for field_name in field_names})
    expected = "" if study["asked"] is None else f"/{study['asked']}"
    return (
        f"{study['name']}: {study['done']}{expected} results, {study['failed']} failed,"
        f" {study['running']} models running"
    )


# --- upkeep -----------------------------------------------------------------------------------------------------------


def _open_existing(store: str) -> Store:
    """Open a store that exists, to change it: none is made."""
    potentia.store.Store.open(store, readonly=True).close()
    return potentia.store.Store.open(store)


def _check_store(options: StatusOptions) -> None:
    """Read every result with its examples and say what is damaged; exit code 1 where something is."""
    with options.open_store() as store:
        problems = potentia.store.check_store(store)
        cell_count = store.cells.count()
        if options.repair:
            potentia.store.repair_store(store, problems)
    has_damage = any(problem.is_damage for problem in problems)
    table_rows = [
        (problem.kind, problem.description, problem.key or "", str(problem.path or ""))
        for problem in problems
    ]
    parts: list[str | Table] = [_describe_damage(problems, cell_count)]
    if table_rows:
        parts.append(Table("Problems", ("kind", "what", "result", "file"), table_rows))
    if has_damage and options.repair:
        parts.append("run the study again: it computes the damaged results again and replaces them")
    elif has_damage:
        parts.append("--repair helps")
    listed = rows_as_dicts(("kind", "what", "key", "path"), table_rows)
    answer = {"cells": cell_count, "repaired": options.repair, "problems": listed}
    print_answer(options.as_json, answer, *parts)
    raise typer.Exit(int(has_damage and not options.repair))


def _describe_damage(problems: Sequence[Problem], cell_count: int) -> str:
    """Say how many problems there are, and how many of the results are damaged."""
    damage_count = sum(problem.is_damage for problem in problems)
    damaged_results = {problem.key for problem in problems if problem.key is not None}
    if damage_count == 0:
        return f"{cell_count} results, none damaged"
    line = format_count(damage_count, "problem")
    if not damaged_results:
        return f"{line}; none of the {cell_count} results is damaged"
    verb = "is" if len(damaged_results) == 1 else "are"
    return f"{line}; {len(damaged_results)} of {cell_count} results {verb} damaged"


@dataclass(frozen=True, kw_only=True)
class DiscardOptions(CellOptions):
    """The options of ``potentia store discard``."""

    store: StoreArgument = DEFAULT_STORE
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Remove the adapters alone; the scores stay.")
    ] = False
    yes: Yes = False

    def selects(self, cell: CellRecord) -> bool:
        """Whether a cell is one of those to discard; a task is meant in all its forms."""
        task_names = {cell.task, TaskName(cell.task).base}
        return (
            cell.model in (self.models or [cell.model])
            and cell.protocol in (self.protocols or [cell.protocol])
            and not task_names.isdisjoint(self.tasks or task_names)
        )


@command(store_group, "discard", DiscardOptions)
def discard(options: DiscardOptions) -> None:
    """Discard results, with their examples and adapters: the next run of their study computes them again.

    Examples:
      potentia store discard potentia.db --model pythia-70m --task arc_easy --protocol direct --yes

      potentia store discard potentia.db --adapters
    """
    if options.adapters:
        discard_adapters(options)
        return
    if not (options.models or options.tasks or options.protocols):
        raise InputError("name the results to discard", hint="--model, --task or --protocol")
    with _open_existing(options.store) as store:
        study_keys = None
        if options.study:
            study_keys = [potentia.store.find_study(store, study).key for study in options.study]
        cells = [cell for cell in store.cells.read(study=study_keys) if options.selects(cell)]
        if not cells:
            raise InputError(
                "no such result",
                where=options.store,
                hint=f"potentia status {shlex.quote(options.store)}",
            )
        if not options.as_json:
            for cell in cells[:MAX_CELLS_LISTED]:
                print_lines(f"{cell.model} × {cell.task} × {cell.protocol} ({cell.key})")
        counted = f"{len(cells)} result" if len(cells) == 1 else f"{len(cells)} results"
        confirm(f"discard {counted}", is_confirmed=options.yes)
        store.cells.discard([cell.key for cell in cells])
    discarded = [(cell.model, cell.task, cell.protocol, cell.key) for cell in cells]
    print_answer(
        options.as_json,
        {"discarded": rows_as_dicts(("model", "task", "protocol", "key"), discarded)},
        f"{counted} discarded",
    )


StoreThatExists = Annotated[
    str, typer.Argument(metavar="STORE", help="The store: a file or a database URL.")
]


@dataclass(frozen=True, kw_only=True)
class RenameOptions(OutputOptions):
    """The options of ``potentia store rename``."""

    store: StoreThatExists
    study: StudyArgument
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")]


@command(store_group, "rename", RenameOptions)
def rename(options: RenameOptions) -> None:
    """Give a study another name; its file resumes it under the old name and the new one.

    Example: potentia store rename potentia.db study first-try
    """
    with _open_existing(options.store) as store:
        study = potentia.store.find_study(store, options.study)
        potentia.store.rename_study(store, study.key, options.name)
    print_answer(
        options.as_json,
        {"key": study.key, "before": study.name, "name": options.name},
        f"{study.name} ({study.key[:8]}) is called {options.name} now",
    )


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(OutputOptions):
    """The options of ``potentia store delete``."""

    store: StoreThatExists
    study: StudyArgument
    yes: Yes = False


@command(store_group, "delete", DeleteOptions)
def delete(options: DeleteOptions) -> None:
    """Delete a study with its results, examples and adapters; those that another study uses are kept.

    Example: potentia store delete potentia.db first-try --yes
    """
    with _open_existing(options.store) as store:
        study = potentia.store.find_study(store, options.study)
        state = potentia.run.read_store_status(options.store, study.key)
        running_rows = sum(study_state["running"] for study_state in state["studies"])
        if running_rows:
            raise InputError(
                f"{study.name} is running ({running_rows} models)",
                where=options.store,
                hint="stop it first: Ctrl-C",
            )
        own_cells, shared_cells = potentia.store.count_own_and_shared(store, study.key)
        question = f"delete {study.name} ({study.key[:8]}) with {own_cells} results"
        if shared_cells:
            question += f" ({shared_cells} more are used by other studies and stay)"
        confirm(question, is_confirmed=options.yes)
        removed = potentia.store.delete_study(store, study.key)
    line = f"deleted {removed.study} ({removed.key[:8]}) with {removed.cells} results"
    if removed.shared:
        line += f"; {removed.shared} that other studies use are still there"
    print_answer(options.as_json, removed, line)


# --- board -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServeOptions(OutputOptions):
    """The options of ``potentia serve``."""

    store: StoreArgument = DEFAULT_STORE
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; any but loopback asks for a token."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")
    ] = 8765


@command(app, "serve", ServeOptions)
def serve(options: ServeOptions) -> None:
    """Show running and finished studies in a browser: progress, learning curves, costs, failures, every finding.

    The board only reads. On 127.0.0.1 it needs no token; on any other address nothing is served without one: that in
    the environment variable POTENTIA_TOKEN, else one that is made up and printed.

    Examples:
      potentia serve potentia.db

      potentia serve postgresql+psycopg://user@host/potentia --host 0.0.0.0
    """
    from potentia.show.board.app import bind_listener, browser_address, choose_token
    from potentia.show.board.app import serve_board as run_server

    # What is wrong with the store is said before a server starts.
    potentia.store.Store.open(options.store, readonly=True).close()
    given_token = os.environ.get(TOKEN) or None
    token = choose_token(options.host, given_token)
    listener = bind_listener(options.host, options.port)
    port = listener.getsockname()[1]
    address_with_token = browser_address(options.host, port, token)
    shown_address = address_with_token
    if given_token is not None:  # who gave a token knows it
        shown_address = (
            f"{browser_address(options.host, port, None)} (it asks for the token you gave)"
        )
    print_lines(f"the board of {without_password(options.store)} is at {shown_address}")
    print_lines("it only reads; Ctrl-C stops it", style="dim")
    run_server(options.store, listener, token=token)

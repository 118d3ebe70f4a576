"""What a store holds and whether it is whole: ``status``, ``serve``, ``store``, ``track``."""

from __future__ import annotations

import json
import shlex
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer

import potentia
from potentia.cli.app import app
from potentia.cli.options import (
    CELLS,
    HISTORY,
    THE_STORE,
    YES,
    argument,
    command,
    flag,
    option,
    output,
)
from potentia.cli.output import agree, answer, console, dicts, history, say
from potentia.errors import InputError, MissingExtraError, without_password
from potentia.timing import format_duration
from potentia.values.findings import Table
from potentia.values.protocol import TaskName

store_group = typer.Typer(
    help="A store's upkeep: check it, discard cells, rename and delete studies."
)
app.add_typer(store_group, name="store")
A_STORE = THE_STORE._replace(default=...)
STUDY_NAME = argument("The study, by name or key.", "STUDY")
ONE_STUDY = option(
    "One study, by name or key; status shows all of them, else it is the one opened last."
)
EVERY = 2.0  # seconds between two looks of `status --watch`


@command(
    app,
    "status",
    store=THE_STORE,
    study=ONE_STUDY,
    watch=flag("--watch", "Follow it until Ctrl-C; in a pipe, a line a change."),
)
def status(asked: Any) -> None:
    """Say what a store holds: studies, cells done and failed, rows that run now.

    Example: potentia status potentia.db --watch
    """
    state = potentia.run.read_store_status(asked.store, asked.study)
    if asked.study is not None and not state["studies"]:
        hint = f"potentia status {shlex.quote(asked.store)} shows them all"
        raise InputError(f"no study {asked.study!r}", where=asked.store, hint=hint)
    if asked.watch:
        _follow(
            partial(potentia.run.read_store_status, asked.store, asked.study), as_json=asked.as_json
        )
    else:
        answer(asked.as_json, state, *_tables(state))


def _tables(state: dict[str, Any]) -> list[Table]:
    """Return the studies, the rows that run, and the cells that failed: a row for each model and reason."""
    names = ("models", "tasks", "done", "asked", "failed", "running")
    rows = tuple((s["name"], s["key"][:8], *(s[name] for name in names)) for s in state["studies"])
    columns = ("study", "key", "models", "tasks", "cells done", "asked", "failed", "running")
    tables = [Table(f"Studies in {state['store']}", columns, rows)]
    tables += [running(state)] if any(one["running"] for one in state["studies"]) else []
    failed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in state["failures"]:
        failed[one["model"], one["reason"]].append(f"{one['task']} × {one['protocol']}")
    listed = [
        (model, cells[0] if len(cells) == 1 else f"{len(cells)} cells", reason)
        for (model, reason), cells in failed.items()
    ]
    return tables + (
        [Table("Failed cells", ("model", "cells", "reason"), tuple(listed))] if listed else []
    )


def running(state: dict[str, Any]) -> Table:
    """Return the rows that run now: the phase, how far, how fast, how long still; which process runs it, since when."""
    rows = []
    for one in state["studies"]:
        leases = {lease["row"]: lease for lease in one["leases"]}
        for name in dict.fromkeys([*one["rows"], *leases]):
            row, lease = one["rows"].get(name, {}), leases.get(name)
            if lease is not None or potentia.run.is_running(row):
                who = f"process {lease['pid']} on {lease['host']}" if lease else ""
                since = format_duration(max(0.0, time.time() - lease["since"])) if lease else ""
                far = f"{row.get('done') or 0}/{row['total']}" if row.get("total") else ""
                left = format_duration(row["left"]) if row.get("left") is not None else ""
                rows.append(
                    (
                        one["name"],
                        name,
                        str(row.get("phase", "")),
                        far,
                        row.get("tokens_per_second"),
                        left,
                        who,
                        since,
                    )
                )
    columns = ("study", "model", "now", "done", "tokens/s", "left", "by", "for")
    return Table("Rows that run now", columns, tuple(rows), digits=0)


def _follow(look: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    """Look at the store until interrupted: on a terminal in place, elsewhere a line for each study that changed."""
    said: dict[str, str] = {}
    try:
        while True:
            state = look()
            if console.is_terminal and not as_json:
                console.clear()
                answer(False, state, *_tables(state))
                console.print(
                    f"{time.strftime('%H:%M:%S')} · every {EVERY:g} s · Ctrl-C ends", style="dim"
                )
            else:
                for one in state["studies"]:
                    line = _line(one, as_json=as_json)
                    if said.get(one["key"]) != line:
                        said[one["key"]] = line
                        say(line)
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def _line(one: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(
            {name: one[name] for name in ("name", "key", "done", "asked", "failed", "running")}
        )
    asked = f"/{one['asked']}" if one["asked"] is not None else ""
    return f"{one['name']}: {one['done']}{asked} cells, {one['failed']} failed, {one['running']} rows running"


def _there(store: str) -> potentia.store.Store:
    """Open a store that is there, to change it: none is made."""
    potentia.store.Store.open(store, readonly=True).close()
    return potentia.store.Store.open(store)


@command(
    store_group,
    "check",
    store=THE_STORE,
    repair=flag("--repair", "Have the next run replace broken cells."),
)
def check(asked: Any) -> None:
    """Read every cell with its items and say what is not whole; exit code 1 where something is not.

    Example:
      potentia store check potentia.db --repair
    """
    with (
        _there(asked.store)
        if asked.repair
        else potentia.store.Store.open(asked.store, readonly=True) as opened
    ):
        problems = potentia.store.check_store(opened)
        if asked.repair:
            potentia.store.repair_store(opened, problems)
        cells = opened.count()
    wrong = [problem for problem in problems if problem.kind != "lanes"]
    rows = tuple((p.kind, p.what, p.key or "", str(p.path or "")) for p in problems)
    told: list[str | Table] = [
        f"{len(wrong)} problems, {cells} cells are whole" if rows else f"{cells} cells, all whole"
    ]
    if rows:
        told.append(Table("Not as it should be", ("kind", "what", "cell", "file"), rows))
    if wrong:
        again = "run the study again: it computes the broken cells anew and replaces them"
        told.append(again if asked.repair else "--repair helps")
    found = dicts(("kind", "what", "key", "path"), rows)
    answer(asked.as_json, {"cells": cells, "repaired": asked.repair, "problems": found}, *told)
    raise typer.Exit(int(bool(wrong) and not asked.repair))


@command(store_group, "discard", False, store=THE_STORE, **CELLS, yes=YES)
def discard(asked: Any) -> None:
    """Discard cells, with their items and adapters: the next run of their study computes them anew.

    Example:
      potentia store discard potentia.db --model pythia-70m --task arc_easy --protocol direct --yes
    """
    if not (asked.models or asked.tasks or asked.protocols):
        raise InputError("name the cells to discard", hint="--model, --task or --protocol")
    with _there(asked.store) as opened:
        cells = [cell for cell in opened.cells(study=asked.study) if _wanted(cell, asked)]
        if not cells:
            raise InputError(
                "no such cell",
                where=asked.store,
                hint=f"potentia status {shlex.quote(asked.store)}",
            )
        say(*(f"{cell.model} × {cell.task} × {cell.protocol} ({cell.key})" for cell in cells[:20]))
        agree(f"discard {len(cells)} cells", yes=asked.yes)
        opened.discard([cell.key for cell in cells])
    say(f"{len(cells)} cells discarded")


def _wanted(cell: potentia.store.CellRecord, asked: Any) -> bool:
    tasks = {cell.task, TaskName(cell.task).base}
    return (
        cell.model in (asked.models or [cell.model])
        and cell.protocol in (asked.protocols or [cell.protocol])
        and not tasks.isdisjoint(asked.tasks or tasks)
    )


@command(
    store_group, "rename", store=A_STORE, study=STUDY_NAME, name=argument("Its new name.", "NAME")
)
def rename(asked: Any) -> None:
    """Give a study another name; its file goes on with it under the old name and the new one.

    Example: potentia store rename potentia.db study first-try
    """
    with _there(asked.store) as opened:
        record = potentia.store.find_study(opened, asked.study)
        potentia.store.rename_study(opened, record.key, asked.name)
    told = f"{record.name} ({record.key[:8]}) is called {asked.name} now"
    answer(asked.as_json, {"key": record.key, "before": record.name, "name": asked.name}, told)


@command(store_group, "delete", store=A_STORE, study=STUDY_NAME, yes=YES)
def delete(asked: Any) -> None:
    """Delete a study with the cells, items and adapters that are its alone; what another study uses stays.

    Example: potentia store delete potentia.db first-try --yes
    """
    with _there(asked.store) as opened:
        record = potentia.store.find_study(opened, asked.study)
        rows = sum(
            found["running"]
            for found in potentia.run.read_store_status(asked.store, record.key)["studies"]
        )
        if rows:
            raise InputError(
                f"{record.name} is running ({rows} rows)",
                where=asked.store,
                hint="stop it first: Ctrl-C",
            )
        alone, shared = potentia.store.count_shared(opened, record.key)
        stay = f" ({shared} more are used by other studies and stay)" if shared else ""
        agree(f"delete {record.name} ({record.key[:8]}) with {alone} cells{stay}", yes=asked.yes)
        done = potentia.store.delete_study(opened, record.key)
    stay = f"; {done.kept} that other studies use are still there" if done.kept else ""
    answer(
        asked.as_json, done, f"deleted {done.study} ({done.key[:8]}) with {done.cells} cells{stay}"
    )


@command(
    app,
    "serve",
    False,  # it prints nothing that a script would read
    store=THE_STORE,
    host=option("Address to listen on; any but loopback asks for a token.", str, "127.0.0.1"),
    port=option("Port; 0 takes a free one.", int, 8765, min=0, max=65535),
    token=option("Token to ask for; made up where one is needed.", envvar="POTENTIA_TOKEN"),
    history=HISTORY,
    open_browser=flag("--open", "Open the board in a browser."),
)
def serve(asked: Any) -> None:
    """Show running and finished studies in a browser: rows, lanes, curves, costs, failures, and every finding.

    The board only reads. On 127.0.0.1 it needs no token; on any other address nothing is served without one.

    Examples:
      potentia serve potentia.db

      potentia serve postgresql+psycopg://user@host/potentia --host 0.0.0.0 --token "$TOKEN"
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "the live board needs FastAPI", hint="pip install 'potentia[web]'"
        ) from error
    from potentia.show.board.app import address, bind, choose_token
    from potentia.show.board.app import serve as run_server

    potentia.store.Store.open(
        asked.store, readonly=True
    ).close()  # say at once what is wrong with it
    history(asked)
    token = choose_token(asked.host, asked.token)
    listener = bind(asked.host, asked.port)
    port = listener.getsockname()[1]
    place, known = address(asked.host, port, token), asked.token is not None  # a given one is known
    shown = (
        f"{address(asked.host, port, None)} (it asks for the token you gave)" if known else place
    )
    say(f"the board of {without_password(asked.store)} is at {shown}")
    say("it only reads; Ctrl-C stops it", style="dim")
    if asked.open_browser:
        typer.launch(place)
    run_server(asked.store, listener, token=token, history=tuple(asked.history or ()))


@command(
    app,
    "track",
    store=THE_STORE,
    to=option("tensorboard, wandb or mlflow.", str, "tensorboard"),
    study=ONE_STUDY,
    output=output("Where TensorBoard's files go.", Path("potentia-tracks")),
)
def track(asked: Any) -> None:
    """Send a study's learning curves and scores to TensorBoard, W&B or MLflow.

    Example: potentia track potentia.db --to tensorboard -o tracks
    """
    with potentia.store.Store.open(asked.store, readonly=True) as opened:
        names = [record.name for record in opened.studies()]
        if not names:
            raise InputError(
                "the store holds no study",
                where=asked.store,
                hint="run one first: potentia run STUDY",
            )
        chosen = asked.study or names[0]
        counts = potentia.integrations.send(opened, chosen, to=asked.to, folder=asked.output)
    told = f"{sum(counts.values())} values of {len(counts)} models of {chosen} sent to {asked.to}"
    answer(asked.as_json, {"study": chosen, "to": asked.to, "values": counts}, told)

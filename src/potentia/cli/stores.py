"""What a store holds and whether it is whole: ``status``, ``serve``, ``store``, ``studies``, ``track``."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.options import STORE, History, Json, StorePath, Study, Yes
from potentia.cli.output import agree, answer, console, dicts, print_json, print_table, say
from potentia.errors import InputError, MissingExtraError, without_password
from potentia.timing import clock
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.store import Store

store_group = typer.Typer(help="A store's health: check, repair, discard.", no_args_is_help=True)
studies = typer.Typer(help="The studies of a store: list, rename, delete.", no_args_is_help=True)
app.add_typer(store_group, name="store")
app.add_typer(studies, name="studies")

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The study, by name or key.")]
EVERY = 2.0  # seconds between two looks of `status --watch`


@app.command()
def status(
    store: StorePath = STORE,
    study: Annotated[str | None, typer.Option(help="Only this study (its name or key).")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until Ctrl-C; in a pipe, a line a change.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a store holds: studies, cells done and failed, rows that run now.

    Example: potentia status potentia.db --watch
    """
    from potentia.run import store_status

    if watch:
        _follow(lambda: store_status(store, study), as_json=as_json)
    elif as_json:
        print_json(store_status(store, study))
    else:
        _print_status(store_status(store, study))


def _print_status(state: dict[str, Any]) -> None:
    rows = tuple(
        (s["name"], s["key"][:8], s["models"], s["tasks"], s["done"], s["asked"], s["failed"], s["running"])
        for s in state["studies"]
    )
    columns = ("study", "key", "models", "tasks", "cells done", "asked", "failed", "running")
    print_table(Table(f"Studies in {state['store']}", columns, rows))
    if any(one["running"] for one in state["studies"]):
        print_table(running(state))
    if state["failures"]:
        print_table(Table("Failed cells", ("model", "cells", "reason"), tuple(_in_one(state["failures"]))))


def _in_one(failures: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Give one row for each model and reason, however many cells failed for it."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for f in failures:
        grouped.setdefault((f["model"], f["reason"]), []).append(f"{f['task']} × {f['protocol']}")
    for (model, reason), cells in grouped.items():
        yield model, cells[0] if len(cells) == 1 else f"{len(cells)} cells", reason


def running(state: dict[str, Any]) -> Table:
    """Return the rows that run now: the phase, how far, how fast, how long still; which process runs it, since when."""
    from potentia.run import is_running

    rows = []
    for one in state["studies"]:
        leases = {lease["row"]: lease for lease in one["leases"]}
        for name in dict.fromkeys([*one["rows"], *leases]):
            row, lease = one["rows"].get(name, {}), leases.get(name)
            if lease is not None or is_running(row):
                who = f"process {lease['pid']} on {lease['host']}" if lease else ""
                since = clock(max(0.0, time.time() - lease["since"])) if lease else ""
                far = f"{row.get('done') or 0}/{row['total']}" if row.get("total") else ""
                left = clock(row["left"]) if row.get("left") is not None else ""
                rows.append((one["name"], name, str(row.get("phase", "")), far, row.get("tokens_per_second"), left,
                             who, since))  # fmt: skip
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
                _print_status(state)
                console.print(f"{time.strftime('%H:%M:%S')} · every {EVERY:g} s · Ctrl-C ends", style="dim")
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
        return json.dumps({name: one[name] for name in ("name", "key", "done", "asked", "failed", "running")})
    asked = f"/{one['asked']}" if one["asked"] is not None else ""
    return f"{one['name']}: {one['done']}{asked} cells, {one['failed']} failed, {one['running']} rows running"


def _there(store: str, *, change: bool = True) -> Store:
    """Open a store that is there: none is made."""
    from potentia.store import Store

    looked_at = Store.open(store, readonly=True)
    if not change:
        return looked_at
    looked_at.close()
    return Store.open(store)


@store_group.command()
def check(
    store: StorePath = STORE,
    repair: Annotated[bool, typer.Option("--repair", help="Have the next run replace broken cells.")] = False,
    as_json: Json = False,
) -> None:
    """Read every cell with its items and say what is not whole; exit code 1 where something is not.

    Example:
      potentia store check potentia.db --repair
    """
    from potentia.store import check_store, repair_store

    with _there(store, change=repair) as opened:
        problems = check_store(opened)
        if repair:
            repair_store(opened, problems)
        cells = opened.count()
    wrong = [problem for problem in problems if problem.kind != "lanes"]
    rows = tuple((p.kind, p.what, p.key or "", str(p.path or "")) for p in problems)
    told: list[str | Table] = [f"{cells} cells, all whole"]
    if rows:
        table = Table("Not as it should be", ("kind", "what", "cell", "file"), rows)
        told = [f"{len(wrong)} problems, {cells} cells are whole", table]
    if wrong:
        again = "run the study again: it computes the broken cells anew and replaces them"
        told.append(again if repair else "--repair helps")
    found = dicts(("kind", "what", "key", "path"), rows)
    answer(as_json, {"cells": cells, "repaired": repair, "problems": found}, *told)
    raise typer.Exit(int(bool(wrong) and not repair))


@store_group.command()
def discard(
    store: StorePath,
    model: Annotated[str | None, typer.Option(help="Of this model.")] = None,
    task: Annotated[str | None, typer.Option(help="Of this task.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Of this protocol.")] = None,
    key: Annotated[str | None, typer.Option(help="The cell with this key.")] = None,
    study: Study = None,
    yes: Yes = False,
) -> None:
    """Discard cells, with their items and adapters: the next run of their study computes them anew.

    Example:
      potentia store discard potentia.db --model pythia-70m --task arc_easy --protocol direct --yes
    """
    if not (model or task or protocol or key):
        raise InputError("name the cells to discard", hint="--model, --task, --protocol or --key")
    with _there(store, change=True) as opened:
        cells = opened.cells(study=study, model=model, task=task, protocol=protocol, key=key)
        if not cells:
            raise InputError("no such cell", where=store, hint=f"potentia status {shlex.quote(store)}")
        say(*(f"{cell.model} × {cell.task} × {cell.protocol} ({cell.key})" for cell in cells[:20]))
        agree(f"discard {len(cells)} cells", yes=yes)
        opened.discard([cell.key for cell in cells])
    say(f"{len(cells)} cells discarded")


@studies.command("list")
def list_studies(store: StorePath = STORE, as_json: Json = False) -> None:
    """List the studies, the one opened last first, with their cells and how many of these other studies use too.

    Example: potentia studies list potentia.db
    """
    from potentia.store import Store, count_shared

    with Store.open(store, readonly=True) as opened:
        rows = [
            (r.name, r.key, r.created[:16].replace("T", " "), *count_shared(opened, r.key)) for r in opened.studies()
        ]
    where = without_password(store)
    table = Table(
        f"Studies in {where}",
        ("study", "key", "created", "cells of its own", "shared"),
        tuple((name, key[:8], when, own, shared) for name, key, when, own, shared in rows),
        note="Shared cells are used by other studies too: deleting one study leaves them.",
    )
    found = dicts(("name", "key", "created", "own", "shared"), rows)
    answer(as_json, {"store": where, "studies": found}, table)


@studies.command()
def rename(
    store: StorePath,
    study: StudyName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    as_json: Json = False,
) -> None:
    """Give a study another name; its file goes on with it under the old name and the new one.

    Example: potentia studies rename potentia.db study first-try
    """
    from potentia.store import find_study, rename_study

    with _there(store) as opened:
        record = find_study(opened, study)
        rename_study(opened, record.key, name)
    told = f"{record.name} ({record.key[:8]}) is called {name} now"
    answer(as_json, {"key": record.key, "before": record.name, "name": name}, told)


@studies.command()
def delete(
    store: StorePath,
    study: StudyName,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a study with the cells, items and adapters that are its alone; what another study uses stays.

    Example: potentia studies delete potentia.db first-try --yes
    """
    from potentia.run import store_status
    from potentia.store import count_shared, delete_study, find_study

    with _there(store) as opened:
        record = find_study(opened, study)
        rows = sum(found["running"] for found in store_status(store, record.key)["studies"])
        if rows:
            raise InputError(f"{record.name} is running ({rows} rows)", where=store, hint="stop it first: Ctrl-C")
        alone, shared = count_shared(opened, record.key)
        kept = f" ({shared} more are used by other studies and stay)" if shared else ""
        agree(f"delete {record.name} ({record.key[:8]}) with {alone} cells{kept}", yes=yes)
        done = delete_study(opened, record.key)
    kept = f"; {done.kept} that other studies use are still there" if done.kept else ""
    answer(as_json, done, f"deleted {done.study} ({done.key[:8]}) with {done.cells} cells{kept}")


@app.command()
def serve(
    store: StorePath = STORE,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks for a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(envvar="POTENTIA_TOKEN", help="Token to ask for; made up where one is needed.")
    ] = None,
    history: History = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the board in a browser.")] = False,
) -> None:
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
        raise MissingExtraError("the live board needs FastAPI", hint="pip install 'potentia[web]'") from error
    from potentia.show.board.app import address, bind, choose_token
    from potentia.show.board.app import serve as run_server
    from potentia.store import Store

    Store.open(store, readonly=True).close()  # say at once what is wrong with it
    if history:
        from potentia.evidence import read

        read(*history)
    asked = choose_token(host, token)
    listener = bind(host, port)
    place = address(host, listener.getsockname()[1], asked)
    shown = address(host, listener.getsockname()[1], None) if token is not None else place  # a given one is known
    given = " (it asks for the token you gave)" if token is not None else ""
    say(f"the board of {without_password(store)} is at {shown}{given}")
    say("it only reads; Ctrl-C stops it", style="dim")
    if open_browser:
        typer.launch(place)
    run_server(store, listener, token=asked, history=tuple(history or ()))


@app.command()
def track(
    store: StorePath,
    to: Annotated[str, typer.Option(help="tensorboard, wandb or mlflow.")] = "tensorboard",
    study: Annotated[str | None, typer.Option(help="Which study; the one opened last where absent.")] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where TensorBoard's files go.")] = Path(
        "potentia-tracks"
    ),
    as_json: Json = False,
) -> None:
    """Send a study's learning curves and scores to TensorBoard, W&B or MLflow.

    Example: potentia track potentia.db --to tensorboard -o tracks
    """
    from potentia.integrations import send
    from potentia.store import Store

    with Store.open(store, readonly=True) as opened:
        names = [record.name for record in opened.studies()]
        if not names:
            raise InputError("the store holds no study", where=store, hint="run one first: potentia run STUDY")
        chosen = study or names[0]
        counts = send(opened, chosen, to=to, folder=folder)
    told = f"{sum(counts.values())} values of {len(counts)} models of {chosen} sent to {to}"
    answer(as_json, {"study": chosen, "to": to, "values": counts}, told)

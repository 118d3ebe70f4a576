"""``potentia store``: is it whole, put right what is not, discard cells that are to be computed anew."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.markup import escape

from potentia.cli.app import app
from potentia.cli.output import Study, console, print_json, print_table
from potentia.errors import InputError
from potentia.values.findings import Table

store_group = typer.Typer(help="A store's health: check, repair, discard.", no_args_is_help=True)
app.add_typer(store_group, name="store")

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file or a database URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@store_group.command()
def check(
    store: StorePath = "potentia.db",
    repair: Annotated[bool, typer.Option("--repair", help="Have the next run replace broken cells.")] = False,
    as_json: Json = False,
) -> None:
    """Read every cell with its items and say what is not whole; exit code 1 where something is not.

    Example:
      potentia store check potentia.db --repair
    """
    from potentia.store import Store, check_store, repair_store

    with Store.open(store, readonly=not repair, create=False) as opened:
        problems = check_store(opened)
        if repair:
            repair_store(opened, problems)
        cells = opened.count()
    wrong = [problem for problem in problems if problem.kind != "lanes"]
    rows = tuple((p.kind, p.what, p.key or "", str(p.path or "")) for p in problems)
    if as_json:
        names = ("kind", "what", "key", "path")
        print_json({"cells": cells, "repaired": repair, "problems": [dict(zip(names, r, strict=True)) for r in rows]})
    elif rows:
        console.print(f"{len(wrong)} problems, {cells} cells are whole", soft_wrap=True)
        print_table(Table("Not as it should be", ("kind", "what", "cell", "file"), rows))
        if wrong:
            told = (
                "run the study again: it computes the broken cells anew and replaces them"
                if repair
                else "--repair helps"
            )
            console.print(told)
    else:
        console.print(f"{cells} cells, all whole")
    raise typer.Exit(int(bool(wrong) and not repair))


@store_group.command()
def discard(
    store: StorePath,
    model: Annotated[str | None, typer.Option(help="Of this model.")] = None,
    task: Annotated[str | None, typer.Option(help="Of this task.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Of this protocol.")] = None,
    key: Annotated[str | None, typer.Option(help="The cell with this key.")] = None,
    study: Study = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would go.")] = False,
) -> None:
    """Discard cells, with their items and adapters: the next run of their study computes them anew.

    Example:
      potentia store discard potentia.db --model pythia-70m --task arc_easy --protocol direct --yes
    """
    from potentia.store import Store

    if not (model or task or protocol or key):
        raise InputError("name the cells to discard", hint="--model, --task, --protocol or --key")
    with Store.open(store, readonly=not yes, create=False) as opened:
        cells = opened.cells(study=study, model=model, task=task, protocol=protocol, key=key)
        if not cells:
            raise InputError("no such cell", where=store, hint=f"potentia status {shlex.quote(store)}")
        if yes:
            opened.discard([cell.key for cell in cells])
    for cell in cells[:20]:
        name = f"{cell.model} × {cell.task} × {cell.protocol}"
        console.print(f"{'discarded' if yes else 'would discard'} {escape(name)} ({cell.key})", soft_wrap=True)
    if len(cells) > 20:
        console.print(f"… and {len(cells) - 20} more")
    if not yes:
        console.print("Nothing was changed; say --yes to do it.")

"""``potentia studies``: the studies of a store; list them, rename one, delete one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import console, print_json, print_table
from potentia.errors import InputError, without_password
from potentia.values.findings import Table

studies = typer.Typer(help="The studies of a store: list, rename, delete.", no_args_is_help=True)
app.add_typer(studies, name="studies")

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file or a database URL.")]
Name = Annotated[str, typer.Argument(metavar="STUDY", help="The study, by name or key.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@studies.command("list")
def list_command(store: StorePath = "potentia.db", as_json: Json = False) -> None:
    """List the studies, the one opened last first, with their cells and how many of these other studies use too.

    Example: potentia studies list potentia.db
    """
    from potentia.store import Store, count_shared

    with Store.open(store, readonly=True) as opened:
        rows = [
            (r.name, r.key, r.created[:16].replace("T", " "), *count_shared(opened, r.key)) for r in opened.studies()
        ]
    if as_json:
        names = ("name", "key", "created", "own", "shared")
        print_json({"store": without_password(store), "studies": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    print_table(
        Table(
            f"Studies in {without_password(store)}",
            ("study", "key", "created", "cells of its own", "shared"),
            tuple((name, key[:8], when, own, shared) for name, key, when, own, shared in rows),
            note="Shared cells are used by other studies too: deleting one study leaves them.",
        )
    )


@studies.command()
def rename(
    store: StorePath,
    study: Name,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    as_json: Json = False,
) -> None:
    """Give a study another name; its file goes on with it under the old name and the new one.

    Example: potentia studies rename potentia.db study first-try
    """
    from potentia.store import Store, find_study, rename_study

    with Store.open(_there(store)) as opened:
        record = find_study(opened, study)
        rename_study(opened, record.key, name)
    if as_json:
        print_json({"key": record.key, "before": record.name, "name": name})
        return
    console.print(f"{record.name} ({record.key[:8]}) is called {name} now", markup=False)


@studies.command()
def delete(
    store: StorePath,
    study: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a study with the cells, items and adapters that are its alone; what another study uses stays.

    Example: potentia studies delete potentia.db first-try --yes
    """
    from potentia.run import store_status
    from potentia.store import Store, count_shared, delete_study, find_study

    with Store.open(_there(store)) as opened:
        record = find_study(opened, study)
        running = sum(found["running"] for found in store_status(store, record.key)["studies"])
        if running:
            raise InputError(f"{record.name} is running ({running} rows)", where=store, hint="stop it first: Ctrl-C")
        alone, shared = count_shared(opened, record.key)
        what = f"{record.name} ({record.key[:8]}) with {alone} cells"
        if not yes:
            if not sys.stdin.isatty():
                raise InputError(f"this would delete {what}", where=store, hint="say that you mean it: --yes")
            kept = f" {shared} more are used by other studies and stay." if shared else ""
            typer.confirm(f"Delete {what}?{kept}", abort=True)
        done = delete_study(opened, record.key)
    if as_json:
        print_json(done)
        return
    kept = f"; {done.kept} that other studies use are still there" if done.kept else ""
    console.print(f"deleted {done.study} ({done.key[:8]}) with {done.cells} cells{kept}", markup=False)


def _there(store: str) -> str:
    """Refuse a store that is not there before one is made."""
    from potentia.store import Store

    with Store.open(store, readonly=True):
        return store

"""``potentia track``: results in an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import console, print_json


@app.command()
def track(
    store: Annotated[str, typer.Argument(help="The store: a file or a database URL.")],
    to: Annotated[str, typer.Option(help="tensorboard, wandb or mlflow.")] = "tensorboard",
    study: Annotated[str | None, typer.Option(help="Which study; the one opened last where absent.")] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where TensorBoard's files go.")] = Path(
        "potentia-tracks"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Send a study's learning curves and scores to TensorBoard, W&B or MLflow.

    Example: potentia track potentia.db --to tensorboard -o tracks
    """
    from potentia.errors import InputError
    from potentia.integrations import send
    from potentia.store import Store

    with Store.open(store, readonly=True) as opened:
        names = [record.name for record in opened.studies()]
        if not names:
            raise InputError("the store holds no study", where=store, hint="run one first: potentia run STUDY")
        chosen = study or names[0]
        counts = send(opened, chosen, to=to, folder=folder)
    if as_json:
        print_json({"study": chosen, "to": to, "values": counts})
    else:
        console.print(f"{sum(counts.values())} values of {len(counts)} models of {chosen} sent to {to}", markup=False)

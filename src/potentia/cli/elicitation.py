"""``potentia analyze elicitation``: whether more capacity than the recipe's ranks the models otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import errors, print_findings


@analyze.command()
def elicitation(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    models: Annotated[list[str] | None, typer.Option(help="Of the study; else all.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Of the study; else the first three.")] = None,
    rank: Annotated[int, typer.Option(min=1, help="The higher rank of adapters.")] = 64,
    store: Annotated[str | None, typer.Option(help="SQLite file or PostgreSQL URL; else the study's.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Tune some cells of a study by adapters of a higher rank and by all weights too, and compare the rankings.

    Each way searches its own learning rate. What the store has is not computed again.

    Example:
      potentia analyze elicitation study.yaml --tasks arc_easy boolq --rank 64
    """
    from potentia.run import elicit
    from potentia.study import read_study

    made = read_study(study, {"store": store})
    with errors.status("tuning in three ways …"):
        found = elicit(made, models=models or (), tasks=tasks or (), rank=rank, workers=workers)
    print_findings({"elicitation": found}, as_json=as_json)

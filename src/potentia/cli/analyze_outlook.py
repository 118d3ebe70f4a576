"""``potentia analyze outlook``: what a study will say once all of its cells are measured."""

from __future__ import annotations

from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import Figures, Formats, Metric, Study, draw_figures, print_findings, print_notes


@analyze.command("outlook")
def outlook(
    store: Annotated[str, typer.Argument(help="The store of a study that is not finished.")],
    history: Annotated[list[str] | None, typer.Option(help="Stores or score files of other models.")] = None,
    study: Study = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the cells that a study has not measured, and its final ranking: P(best), ranks with intervals.

    Report and board show the same. Predictions are in no other table.

    Example:
      potentia analyze outlook potentia.db
    """
    from potentia.analysis.planning import find_outlook
    from potentia.errors import InputError
    from potentia.evidence import read

    evidence = read(store, study=study, metric=metric)
    print_notes(evidence)
    found = find_outlook(evidence, history=read(*history) if history else None)
    if found is None:
        raise InputError(
            "every cell is measured: there is nothing to predict",
            where=store,
            hint=f"potentia analyze rankings {store}",
        )
    print_findings({"completion": found}, as_json=as_json)
    draw_figures([found], figures, format)

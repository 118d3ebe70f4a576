"""``potentia analyze checkpoints``: stability of benchmarks over the pretraining of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import (
    Figures,
    Formats,
    Map,
    Metric,
    Study,
    columns_of,
    draw_figures,
    print_findings,
    print_notes,
)
from potentia.errors import InputError


@analyze.command()
def checkpoints(
    scores: Annotated[str, typer.Argument(help="A store, or a score table; models named run@step need no --steps.")],
    steps: Annotated[Path | None, typer.Option(help="CSV with the columns model, series, step and/or tokens.")] = None,
    unit: Annotated[str | None, typer.Option(help="steps or tokens, where both are known.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Compare every method with this one, such as direct.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these benchmarks, in all their forms.")] = None,
    protocols: Annotated[list[str] | None, typer.Option(help="Only these protocols.")] = None,
    power: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="Share of pairs that a resolved gap tells apart.")
    ] = 0.8,
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Say how stably scores grow with pretraining: tau with steps, and the smallest gap each benchmark resolves.

    Examples:
      potentia analyze checkpoints potentia.db --baseline direct

      potentia analyze checkpoints scores.csv --steps steps.csv --tasks arc_easy --json
    """
    if unit not in (None, "steps", "tokens"):
        raise InputError(f"no unit {unit!r}", hint="--unit steps or --unit tokens")
    from potentia.analysis.base_models import find_stability, read_checkpoints
    from potentia.evidence import read

    evidence = read(scores, study=study, protocols=protocols, tasks=tasks, columns=columns_of(columns), metric=metric)
    print_notes(evidence)
    given = None
    if steps is not None:
        given, unit = read_checkpoints(steps, unit)
    finding = find_stability(evidence, given, unit=unit, baseline=baseline, power=power)
    print_findings({"stability": finding}, as_json=as_json)
    draw_figures([finding], figures, format)

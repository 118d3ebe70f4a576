"""``potentia analyze checkpoints``: stability of benchmarks over the pretraining of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from potentia.cli.app import analyze
from potentia.cli.output import print_findings
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
    study: Annotated[str | None, typer.Option(help="One study of the store.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Say how stably scores grow with pretraining: tau with steps, and the smallest gap each benchmark resolves.

    Examples:
      potentia analyze checkpoints potentia.db --baseline direct

      potentia analyze checkpoints scores.csv --steps steps.csv --tasks arc_easy --json
    """
    if unit not in (None, "steps", "tokens"):
        raise InputError(f"no unit {unit!r}", hint="--unit steps or --unit tokens")
    from potentia.analysis.base_models.lineage import read_checkpoints
    from potentia.analysis.base_models.stability import measure_stability
    from potentia.cli.selection import read_chosen

    matrices = read_chosen(scores, study=study, protocols=protocols, tasks=tasks)
    if steps is not None:
        found, unit = read_checkpoints(steps, unit)
    else:
        found, unit = _known(scores, study, matrices, unit)
    finding = measure_stability(matrices, found, unit=unit, baseline=baseline, power=power)
    print_findings([finding], as_json=as_json)


def _known(scores: str, study: str | None, matrices: dict[str, Any], unit: str | None) -> tuple[dict[str, Any], str]:
    """Return the checkpoints that the store's studies name, else those whose names say it."""
    from potentia.analysis.base_models.lineage import named_checkpoints
    from potentia.analysis.base_models.stability import Checkpoint
    from potentia.cli.selection import study_models

    models = list(dict.fromkeys(model for matrix in matrices.values() for model in matrix.models))
    found = named_checkpoints(models)
    rows = [row for row in study_models(scores, study) if row.series is not None and row.step is not None]
    if unit == "tokens":
        found = {row.name: Checkpoint(row.series, row.tokens) for row in rows if row.tokens is not None}
    else:
        found |= {row.name: Checkpoint(row.series, float(row.step)) for row in rows}
    if not found:
        raise InputError(
            f"no checkpoints are known in {scores}" + (" with their tokens" if unit == "tokens" else ""),
            hint="give --steps with a CSV file of the columns model, series, step (or tokens)",
        )
    return found, unit or "steps"

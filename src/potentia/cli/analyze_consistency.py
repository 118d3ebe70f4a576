"""``potentia analyze consistency``: base models against their instruct versions, and the ablation of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import print_findings


@analyze.command()
def consistency(
    scores: Annotated[str, typer.Argument(help="A store, or a score table, with base and instruct models.")],
    pairs: Annotated[
        Path | None, typer.Option(help="CSV with the columns base and instruct; else known facts.")
    ] = None,
    facts: Annotated[Path | None, typer.Option(help="CSV of model facts beside the built-in ones.")] = None,
    instruct_by: Annotated[
        str | None,
        typer.Option(help="Method that scores the instruct versions, or 'same'; else instruct, else direct."),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Compare every method with this one, such as instruct.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these benchmarks, in all their forms.")] = None,
    protocols: Annotated[list[str] | None, typer.Option(help="Only these protocols.")] = None,
    tolerance: Annotated[float, typer.Option(help="Gap that still counts as near best in the ablation.")] = 0.01,
    study: Annotated[str | None, typer.Option(help="One study of the store.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether better base models become better instruct models, by every method; rank the methods.

    Examples:
      potentia analyze consistency potentia.db --baseline instruct

      potentia analyze consistency scores.csv --pairs pairs.csv --instruct-by same --json
    """
    from potentia.analysis.base_models.ablation import compare_methods
    from potentia.analysis.base_models.consistency import measure_consistency
    from potentia.analysis.base_models.lineage import known_pairs, read_pairs
    from potentia.analysis.base_models.methods import columns
    from potentia.cli.selection import read_chosen, study_models
    from potentia.facts import models as known_models
    from potentia.findings import Finding

    matrices = read_chosen(scores, study=study, protocols=protocols, tasks=tasks)
    if pairs is not None:
        found = read_pairs(pairs)
    else:
        names = list(dict.fromkeys(model for matrix in matrices.values() for model in matrix.models))
        bases = {row.name: row.base_model for row in study_models(scores, study) if row.base_model}
        found = known_pairs(names, known_models(facts), bases)
    findings: dict[str, Finding] = {
        "consistency": measure_consistency(matrices, found, reference=instruct_by, baseline=baseline)
    }
    if len({column.method for column in columns(matrices)}) > 1:
        findings["ablation"] = compare_methods(matrices, models=list(found), tolerance=tolerance)
    print_findings(findings, as_json=as_json)

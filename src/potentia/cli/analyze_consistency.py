"""``potentia analyze consistency`` and ``ablation``: base models, their instruct versions, and the methods."""

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
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether better base models become better instruct models, by every method; rank the methods.

    Examples:
      potentia analyze consistency potentia.db --baseline instruct

      potentia analyze consistency scores.csv --pairs pairs.csv --instruct-by same --json
    """
    from potentia.analysis.base_models import find_consistency, read_pairs
    from potentia.evidence import read

    evidence = read(
        scores, study=study, protocols=protocols, tasks=tasks, facts=facts, columns=columns_of(columns), metric=metric
    )
    print_notes(evidence)
    found = find_consistency(
        evidence,
        read_pairs(pairs) if pairs is not None else None,
        instruct_by=instruct_by,
        baseline=baseline,
        tolerance=tolerance,
    ).named()
    print_findings(found, as_json=as_json)
    draw_figures(found.values(), figures, format)


@analyze.command()
def ablation(
    scores: Annotated[str, typer.Argument(help="A store, or a score table, with tasks in several forms.")],
    models: Annotated[
        list[str] | None, typer.Option(help="The models to compare on; else all but instruct ones.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="The methods to compare, as direct or iclip; else those that share most.")
    ] = None,
    facts: Annotated[Path | None, typer.Option(help="CSV of model facts beside the built-in ones.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these benchmarks, in all their forms.")] = None,
    protocols: Annotated[list[str] | None, typer.Option(help="Only these protocols.")] = None,
    tolerance: Annotated[float, typer.Option(help="Gap that still counts as near best.")] = 0.01,
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Rank the methods (protocols and prompt forms) in every cell of model and benchmark.

    Examples:
      potentia analyze ablation potentia.db --tasks gsm8k

      potentia analyze ablation scores.csv --models Llama-3.1-8B Qwen2.5-7B --json
    """
    from potentia.analysis.base_models import find_ablation
    from potentia.evidence import read

    evidence = read(
        scores, study=study, protocols=protocols, tasks=tasks, facts=facts, columns=columns_of(columns), metric=metric
    )
    print_notes(evidence)
    finding = find_ablation(evidence, models, methods=methods, tolerance=tolerance)
    print_findings({"ablation": finding}, as_json=as_json)
    draw_figures([finding], figures, format)

"""``potentia analyze rankings``: agreement, significance, alignment, components and aggregate rankings of scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import errors, print_findings
from potentia.errors import InputError


@analyze.command()
def rankings(
    sources: Annotated[list[str], typer.Argument(help="Stores, score tables or lm-eval results; several are joined.")],
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", "--protocols", help="Protocols to analyse; else all.")
    ] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Tasks to analyse; else all.")] = None,
    models: Annotated[list[str] | None, typer.Option(help="Models to analyse; else all.")] = None,
    align: Annotated[
        tuple[str, str] | None, typer.Option(help="Two tasks whose rankings to align; else those that agree least.")
    ] = None,
    exclude_flagged: Annotated[
        bool, typer.Option("--exclude-flagged", help="Leave out the tasks that the screening flags.")
    ] = False,
    gaps: Annotated[
        str, typer.Option(help="Missing cells in components: leave out models, leave out tasks, or fill the mean.")
    ] = "models",
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Rank intervals that hold for all models of a task together.")
    ] = False,
    use_items: Annotated[
        bool, typer.Option("--items/--no-items", help="Use stored items for paired tests and for the noise of scores.")
    ] = True,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="pdf, png, svg, html; several may be given.")] = None,
    facts: Annotated[Path | None, typer.Option(help="A CSV of facts on models of your own.")] = None,
    resamples: Annotated[int, typer.Option(min=20, help="Bootstrap resamples.")] = 1000,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    study: Annotated[str | None, typer.Option(help="One study of the store.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say how far the tasks rank the models alike, which differences are real, and who is best.

    Examples:
      potentia analyze rankings potentia.db

      potentia analyze rankings scores.csv --figures figures --format pdf html

      potentia analyze rankings scores.csv --protocols direct train_before_test --exclude-flagged --json
    """
    from potentia.analysis.rankings.components import GAPS
    from potentia.analysis.rankings.find import Options, analyze_rankings, merge_items, merge_scores
    from potentia.cli.selection import read_chosen
    from potentia.report import FORMATS, draw_all
    from potentia.report.findings import background_of, facts_table, study_records
    from potentia.report.outcomes import read_outcomes

    if gaps not in GAPS:
        raise InputError(f"no treatment of gaps {gaps!r}", hint=f"--gaps is one of: {', '.join(GAPS)}")
    formats = list(dict.fromkeys(format or ["pdf"]))
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"no figure format {name!r}", hint=f"--format takes: {', '.join(FORMATS)}")
    scores = merge_scores(
        [read_chosen(source, study=study, protocols=protocol, tasks=tasks, models=models) for source in sources]
    )
    known = facts_table([record for source in sources for record in study_records(source, study)], facts)
    options = Options(
        resamples=resamples,
        level=level,
        seed=seed,
        gaps=gaps,
        simultaneous=simultaneous,
        exclude_flagged=exclude_flagged,
        align=align,
    )
    items = [read_outcomes(source, study=study) for source in sources] if use_items else []
    background = background_of(scores, known)
    found = analyze_rankings(scores, background, options, merge_items(items))
    print_findings(found, as_json=as_json)
    if figures is not None:
        written = draw_all((chart for finding in found.values() for chart in finding.charts()), figures, formats)
        errors.print(f"{len(written)} figures in {figures}")

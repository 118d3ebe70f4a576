"""``potentia analyze rankings``: agreement, significance, alignment, components and aggregate rankings of scores."""

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
    TaskFacts,
    check_formats,
    columns_of,
    console,
    draw_figures,
    print_findings,
    print_notes,
    print_scoreboard,
    print_table,
    print_training,
    training_of,
)
from potentia.errors import InputError
from potentia.values.findings import telling

SHOWN = 20  # models of the score table


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
    resample: Annotated[
        str, typer.Option(help="What intervals draw: families or lineages of models where known, or models.")
    ] = "families",
    order: Annotated[
        str, typer.Option(help="Order of the tasks in heat maps: given, or train-size (the largest first).")
    ] = "given",
    figures: Figures = None,
    format: Formats = None,
    facts: Annotated[Path | None, typer.Option(help="A CSV of facts on models of your own.")] = None,
    task_facts: TaskFacts = None,
    resamples: Annotated[int, typer.Option(min=20, help="Bootstrap resamples.")] = 1000,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every table of every finding; else the scores and a summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say who is best and how sure that is, how far the tasks rank the models alike, and which differences are real.

    Examples:
      potentia analyze rankings potentia.db

      potentia analyze rankings scores.csv --all --figures figures --format pdf html

      potentia analyze rankings scores.csv --protocols direct train_before_test --exclude-flagged --json
    """
    from potentia.analysis.rankings import GAPS, Options, find_rankings, summarise
    from potentia.evidence import read

    if gaps not in GAPS:
        raise InputError(f"no treatment of gaps {gaps!r}", hint=f"--gaps is one of: {', '.join(GAPS)}")
    check_formats(format)
    evidence = read(
        *sources,
        study=study,
        facts=facts,
        protocols=protocol,
        tasks=tasks,
        models=models,
        columns=columns_of(columns),
        metric=metric,
        task_facts=task_facts,
    )
    print_notes(evidence)
    options = Options(
        resamples=resamples,
        level=level,
        seed=seed,
        gaps=gaps,
        simultaneous=simultaneous,
        exclude_flagged=exclude_flagged,
        align=align,
        use_items=use_items,
        resample=resample,
        order=order,
    )
    found = find_rankings(evidence, options)
    named = found.named()
    runs = None if as_json else training_of(evidence)
    if runs is not None:
        print_training(runs)
        console.print()
    if not as_json and (runs is None or everything):  # checkpoints of a run are no rivals
        print_scoreboard(found.scoreboard, most=None if everything else SHOWN)
    if as_json or everything:
        print_findings(named if as_json else {n: f for n, f in named.items() if n != "scoreboard"}, as_json=as_json)
    else:
        console.print()
        for table in filter(None, map(telling, summarise(found))):
            print_table(table)
        tables = sum(len(finding.tables()) for finding in named.values())
        console.print(f"All {tables} tables: --all. As a page: potentia report {sources[0]}", style="dim", markup=False)
    draw_figures(named.values(), figures, format)

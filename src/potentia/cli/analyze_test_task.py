"""``potentia analyze test-task``: adjust for training on the test task, and everything that follows from it."""

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
    draw_figures,
    errors,
    print_findings,
    print_notes,
)
from potentia.errors import InputError


@analyze.command("test-task")
def training_on_the_test_task(
    scores: Annotated[str, typer.Argument(help="A store, a score table, or a CSV of staged scores.")],
    facts: Annotated[Path | None, typer.Option(help="CSV of model facts beside the built-in ones.")] = None,
    before: Annotated[str | None, typer.Option(help="Protocol or stage before adjustment.")] = None,
    after: Annotated[str | None, typer.Option(help="Protocol or stage after adjustment.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Models trained in this month or later are the newer ones; else 2023-11.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Split by this column of the facts instead of by date.")] = None,
    value: Annotated[str | None, typer.Option(help="… where it has this value.")] = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Split each task by who saw its form: the facts' column exposure.")
    ] = False,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    families: Annotated[list[str] | None, typer.Option(help="Families to compare; else all with three models.")] = None,
    task_facts: TaskFacts = None,
    chance: Annotated[
        float | None, typer.Option(help="Score of guessing on the tasks for which nothing else tells it.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Stage of intermediate steps; else those of --after (adjust@STEP).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples per step of the adjustment; the study's own, else 64.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Take the better of both scores after adjustment, as the paper does.")
    ] = False,
    draws: Annotated[int, typer.Option(min=0, help="Wild cluster bootstrap samples; 0 for none.")] = 1999,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Ask what a group of models has more at equal compute, before and after all were tuned on the same task data.

    Examples:
      potentia analyze test-task potentia.db --before direct --after adjust --since 2023-11

      potentia analyze test-task scores.csv --facts models.csv --column language --value en+cn --json

      potentia analyze test-task potentia.db --metric brier_score --figures figures

      potentia analyze test-task lab/potentia.db --facts lab/facts.csv --exposed --chance 0.25
    """
    from potentia.analysis.test_task import SINCE, Options, find_test_task
    from potentia.evidence import read

    check_formats(format)
    evidence = read(
        scores,
        study=study,
        facts=facts,
        task_facts=task_facts,
        tasks=tasks,
        columns=columns_of(columns),
        metric=metric,
    )
    print_notes(evidence)
    options = Options(
        before=before,
        after=after,
        since=since or SINCE,
        column=column,
        value=value,
        exposed=exposed,
        families=tuple(families) if families else None,
        chance=chance,
        steps=steps,
        batch=batch,
        best=best,
        draws=draws,
        seed=seed,
    )
    made = find_test_task(evidence, options)
    found = made.named()
    divided = any(by.adjustment is not None for by in made.tasks.values())
    if not found or ((since or column) and not divided):  # what was asked for in so many words is not there
        hint = "give what is missing with --facts, --task-facts, --chance, --since or --column"
        raise InputError("; ".join(made.problems), where=evidence.source, hint=hint)
    for problem in made.problems:
        errors.print(problem, markup=False, soft_wrap=True)
    print_findings(found, as_json=as_json)
    draw_figures(found.values(), figures, format)

"""``potentia analyze few-tasks``: how many tasks, and which, tell the ranking of all."""

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

CAP = 50_000  # training examples of a task that count, as a study uses them at most


@analyze.command("few-tasks")
def few_tasks(
    scores: Annotated[str, typer.Argument(help="A store, or a score table, of models and tasks.")],
    protocol: Annotated[str | None, typer.Option(help="The protocol of the scores; else the one to rank by.")] = None,
    splits: Annotated[int, typer.Option(min=2, help="How often the models are divided.")] = 40,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Weigh tasks by their training examples.")] = True,
    task_facts: Annotated[Path | None, typer.Option(help="CSV of task facts: task, train_size …")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the divisions.")] = 0,
    study: Study = None,
    metric: Metric = None,
    columns: Map = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose tasks on half of the models and see how well they rank the others, against their cost.

    Example:
      potentia analyze few-tasks scores.csv --protocol train_before_test
    """
    from potentia.analysis.planning import find_task_curve
    from potentia.errors import InputError
    from potentia.evidence import read
    from potentia.values.protocol import Protocol

    evidence = read(scores, study=study, metric=metric, task_facts=task_facts, columns=columns_of(columns))
    print_notes(evidence)
    wanted = Protocol(protocol) if protocol else evidence.main
    if wanted is None or wanted not in evidence.scores:
        raise InputError(f"no scores of {wanted}", where=scores, hint=f"there are {', '.join(evidence.protocols)}")
    known = evidence.background
    sizes = {task: min(n, CAP) for task, n in known.train_examples.items()}
    found = find_task_curve(
        evidence.scores[wanted],
        costs=sizes if cost else None,
        lineages=known.lineages,
        splits=splits,
        seed=seed,
    )
    print_findings({"few_tasks": found}, as_json=as_json)
    draw_figures([found], figures, format)

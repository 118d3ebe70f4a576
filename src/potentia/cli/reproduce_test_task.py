"""``potentia reproduce test-task``: the numbers of "Training on the test task", ours beside the printed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import reproduce
from potentia.cli.output import errors, print_findings


@reproduce.command("test-task")
def training_on_the_test_task(
    scores: Annotated[Path, typer.Argument(help="The published scores: test_task_training_scores.csv.")],
    models: Annotated[Path, typer.Argument(help="The published facts: test_task_training_models.csv.")],
    draws: Annotated[int, typer.Option(min=0, help="Wild cluster bootstrap samples; 0 for none.")] = 1999,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and of the boosted trees.")] = 0,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="pdf, png, svg, html; several may be given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print every number of the paper that the published scores allow, beside the printed one.

    Example:
      potentia reproduce test-task test_task_training_scores.csv test_task_training_models.csv --figures figures
    """
    from potentia.analysis.test_task.cohort import Cohort
    from potentia.papers.test_task import reproduce_task_training
    from potentia.store.files.staged import StagedScores

    found = reproduce_task_training(StagedScores.read(scores), Cohort.read(models), draws=draws, seed=seed)
    print_findings({"test-task": found}, as_json=as_json)
    if figures is not None:
        from potentia.report import draw_all

        written = draw_all(found.charts(), figures, format or ["pdf"])
        errors.print(f"{len(written)} figures in {figures}")

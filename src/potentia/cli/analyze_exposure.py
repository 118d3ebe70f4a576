"""``potentia analyze exposure``: signs that a model saw a test before, by how much it has left to learn of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import (
    Figures,
    Formats,
    Study,
    check_formats,
    draw_figures,
    errors,
    print_findings,
    print_notes,
)


@analyze.command()
def exposure(
    scores: Annotated[str, typer.Argument(help="A store whose study was run with probes (`probe: true`).")],
    clean: Annotated[
        list[str] | None, typer.Option(help="Models that did not see these tests; of four other families or more.")
    ] = None,
    facts: Annotated[Path | None, typer.Option(help="CSV of model facts beside the built-in ones.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    study: Study = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Say where a model has less left to learn of a task than models of other families: it may have seen such text.

    Evidence, not proof; and a high value is no evidence of innocence.

    Examples:
      potentia analyze exposure potentia.db

      potentia analyze exposure potentia.db --clean SmolLM2-135M gemma-3-270m stories15M TinyLlama-1.1B
    """
    from potentia.analysis.test_task import find_exposure
    from potentia.evidence import read

    check_formats(format)
    evidence = read(scores, study=study, facts=facts, tasks=tasks)
    print_notes(evidence)
    found = find_exposure(evidence, clean=clean or ())
    for problem in found.left_out:
        errors.print(problem, markup=False, soft_wrap=True)
    if not as_json:
        for sentence in found.sentences():
            errors.print(sentence, markup=False, soft_wrap=True)
    print_findings({"signs": found}, as_json=as_json)
    draw_figures([found], figures, format)

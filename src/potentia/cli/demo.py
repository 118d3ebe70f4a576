"""``potentia demo``: the whole idea on embedded models, in minutes, without a network."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from potentia.cli.app import app
from potentia.cli.output import console, errors, print_json, print_table


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where models, scores and report go.")] = Path(
        "potentia-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models, tasks and epochs: about two minutes.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Rows at once; 0 means one per core, at most four.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Fine-tune and test every embedded model on every embedded task, then show what that changes.

    The models are tiny and ours; which test each family trained for is planted, so the truth is known.
    Run it again and it is done at once.

    Example: potentia demo --quick
    """
    from potentia.cli.view import watch
    from potentia.lab import demo_findings, demo_study
    from potentia.run import plan_study, run_study
    from potentia.show import write_report

    study = demo_study(folder, quick=quick)
    plan = plan_study(study)
    todo = sum(len(row.pending) for row in plan.rows)
    if todo and not as_json:
        console.print(
            f"[bold]Potentia demo[/bold]: {len(plan.rows)} tiny models × {len(study.tasks)} tasks, as they are "
            f"and after the same fine-tuning: {todo} cells to compute on this CPU."
        )
    result = run_study(plan, workers=workers or min(4, os.cpu_count() or 1), watch=watch)
    if result.interrupted:
        errors.print("[bold]Stopped.[/bold] Everything finished is saved.")
        errors.print(f"To go on: [bold]potentia demo -o {escape(str(folder))}[/bold]", soft_wrap=True)
        raise typer.Exit(130)
    finding = demo_findings(study)
    report = folder / "report.html"
    if result.computed or not report.exists():
        write_report(study.store, report, study=study.name)
    if as_json:
        print_json({**finding.to_dict(), "report": str(report), "failed": result.failed})
    else:
        _tell(finding, report, study.store)
    raise typer.Exit(result.exit_code)


def _tell(finding: Any, report: Path, store: str) -> None:
    for table in finding.tables():
        print_table(table)
    console.print(
        "The effect is planted: each family of these models saw some test forms in pretraining and not others. "
        "It shows the mechanism at work; it is no evidence about real models.",
        style="dim",
    )
    console.print(f"\nReport: [bold]{report.resolve().as_uri()}[/bold]")
    console.print(f"Live:   [bold]potentia serve {escape(shlex.quote(str(store)))}[/bold]")

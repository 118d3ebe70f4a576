"""The embedded models: ``demo``, the whole idea in minutes; ``zoo``, studies whose truth is known."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.options import Json
from potentia.cli.output import console, errors, print_json, print_table, say


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where models, scores and report go.")] = Path(
        "potentia-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models, tasks and epochs: about two minutes.")] = False,
    as_json: Json = False,
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
    result = run_study(plan, workers=min(4, os.cpu_count() or 1), watch=watch)
    if result.interrupted:
        errors.print("[bold]Stopped.[/bold] Everything finished is saved.")
        say(f"To go on: potentia demo -o {shlex.quote(str(folder))}{' --quick' if quick else ''}", to=errors)
        raise typer.Exit(130)
    finding = demo_findings(study)
    report = folder / "report.html"
    if result.computed or not report.exists():
        write_report(study.store, report, study=study.name)
    if as_json:
        print_json({**finding.to_dict(), "report": str(report), "failed": result.failed})
    else:
        for table in finding.tables():
            print_table(table)
        console.print(
            "The effect is planted: each family of these models saw some test forms in pretraining and not others. "
            "It shows the mechanism at work; it is no evidence about real models.",
            style="dim",
        )
        console.print()
        say(f"Report: {report.resolve().as_uri()}", f"Live:   potentia serve {shlex.quote(str(study.store))}")
    raise typer.Exit(result.exit_code)


@app.command()
def zoo(
    folder: Annotated[Path, typer.Argument(help="Where models, tasks, facts and study files go.")] = Path("lab"),
    treatment: Annotated[
        bool,
        typer.Option("--treatment", help="Also tune a random half on one test's form and write that study: a minute."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Lay out the embedded models, benchmarks and ready studies, to try every method where the truth is planted.

    Families of these tiny models saw different test forms in pretraining; two have kept their checkpoints, four have
    an instruct version, seven differ in seed or data alone. Nothing is downloaded.

    Example: potentia zoo lab
    """
    from potentia.lab import lay_out

    laboratory = lay_out(folder)
    commands = laboratory.commands()
    if treatment:
        from potentia.lab import lay_out_treatment

        with console.status("tuning a random half …"):
            treated = lay_out_treatment(folder)
        commands["treatment"] = treated.commands()
    if as_json:
        print_json(
            {"folder": str(folder), "models": laboratory.models, "tasks": laboratory.tasks,
             "facts": str(laboratory.facts), "store": str(laboratory.store), "commands": commands}
        )  # fmt: skip
        return
    say(
        f"{laboratory.models} models, {laboratory.tasks} benchmarks, {laboratory.facts.name} "
        f"and {len(laboratory.studies)} studies in {folder}\n"
    )
    for question, lines in commands.items():
        say(QUESTIONS[question], style="bold")
        say(*(f"  {line}" for line in lines), "")
    say("What each of them found here, and what the truth is: docs/laboratory.md", style="dim")


QUESTIONS = {
    "adjust": "What is having seen a test's form worth, and does the same tuning for all take it away?",
    "checkpoints": "Do scores grow with pretraining?",
    "consistency": "Does the better base model become the better instruct model?",
    "robustness": "Does the data move a task more than the seed does?",
    "treatment": "Tune a random half on the test's form: does θ appear, and vanish when all are tuned?",
}

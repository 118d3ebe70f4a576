"""``potentia zoo``: the embedded models with study files, where the truth behind every method is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import console, print_json


@app.command()
def zoo(
    folder: Annotated[Path, typer.Argument(help="Where models, tasks, facts and study files go.")] = Path("lab"),
    treatment: Annotated[
        bool,
        typer.Option("--treatment", help="Also tune a random half on one test's form and write that study: a minute."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written and what to run as JSON.")] = False,
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
            {
                "folder": str(folder),
                "models": laboratory.models,
                "tasks": laboratory.tasks,
                "facts": str(laboratory.facts),
                "store": str(laboratory.store),
                "commands": commands,
            }
        )
        return
    console.print(
        f"[bold]{laboratory.models}[/bold] models, [bold]{laboratory.tasks}[/bold] benchmarks, {laboratory.facts.name} "
        f"and {len(laboratory.studies)} studies in [bold]{folder}[/bold]\n"
    )
    for question, lines in commands.items():
        console.print(f"[bold]{QUESTIONS[question]}[/bold]", soft_wrap=True)
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
        console.print()
    console.print("What each of them found here, and what the truth is: docs/laboratory.md", style="dim")


QUESTIONS = {
    "adjust": "What is having seen a test's form worth, and does the same tuning for all take it away?",
    "checkpoints": "Do scores grow with pretraining?",
    "consistency": "Does the better base model become the better instruct model?",
    "robustness": "Does the data move a task more than the seed does?",
    "treatment": "Tune a random half on the test's form: does θ appear, and vanish when all are tuned?",
}

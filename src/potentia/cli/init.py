"""``potentia init``: a study file to start from, written from answers or flags."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.output import console, print_json
from potentia.errors import InputError
from potentia.files import write_file

FEW = 1_000  # documents of one's own; a tenth of fewer is a small test


@app.command()
def init(
    output: Annotated[Path, typer.Argument(help="The study file to write.")] = Path("study.yaml"),
    models: Annotated[list[str] | None, typer.Option("--models", "--model", help="Hub names or folders.")] = None,
    tasks: Annotated[list[str] | None, typer.Option("--tasks", "--task", help="Harness tasks, or name:form.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Your own data: files, a folder, or a dataset's name on the hub.")
    ] = None,
    protocols: Annotated[list[str] | None, typer.Option(help="direct, few_shot:K, train_before_test, adjust.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small caps and one learning rate, for a try.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a commented study file; what is not given is asked for on a terminal.

    Examples:
      potentia init study.yaml --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --tasks arc_easy openbookqa

      potentia init mine.yaml --models HuggingFaceTB/SmolLM2-135M --data my-questions.csv --quick
    """
    if output.exists() and not force:
        raise InputError(f"{output} is there already", hint="give another name, or --force")
    models = models or _ask("Models (hub names or folders, parted by spaces)", "--models")
    if not tasks and not data:
        told = _ask("Tasks of the harness, or files of your own, parted by spaces", "--tasks or --data")
        data = [name for name in told if Path(name).exists()]
        tasks = [name for name in told if name not in data]
    text = study_text(output, models, tasks or [], data or [], protocols or ["direct", "train_before_test"], quick)
    write_file(output, text)
    if as_json:
        print_json({"study": str(output)})
        return
    console.print(f"{output} is written. See what it would do, then run it:", markup=False, soft_wrap=True)
    here = shlex.quote(str(output))
    console.print(f"  potentia run {here} --dry-run\n  potentia run {here}", markup=False, soft_wrap=True)


def study_text(
    path: Path, models: list[str], tasks: list[str], data: list[str], protocols: list[str], quick: bool
) -> str:
    """Return the study as a file with comments; it is one that can be read."""
    from potentia.study import make_study

    entries: list[Any] = [*tasks, *(_own(one) for one in data)]
    body: dict[str, Any] = {"name": path.stem, "models": models, "tasks": entries, "protocols": protocols}
    if quick:
        body["caps"] = {"train": 400, "validation": 100, "test": 300}
        body["tuning"] = {"epochs": 2, "learning_rates": [1e-3]}
    make_study(body)
    lines = [
        f"# potentia run {shlex.quote(str(path))}",
        "#",
        "# All fields of a study file and their defaults: docs/study.md. What is not written has its default.",
        f"name: {_yaml(path.stem)}",
        "models:            # hub names, folders, GGUF files; with facts: {name: …, parameters: 135e6, tokens: 2e12}",
        *(f"  - {_yaml(model)}" for model in models),
        "tasks:             # harness tasks by name, the same in another form (arc_easy:cloze), or your own data",
        *(f"  - {_yaml(entry)}" for entry in entries),
        f"protocols: {_yaml(protocols)}   # direct, few_shot:5, train_before_test, adjust",
    ]
    if quick:
        lines += [
            "caps: {train: 400, validation: 100, test: 300}   # documents of each split at most, for a try",
            "tuning: {epochs: 2, learning_rates: [1.0e-03]}   # without it: three epochs or more, the rate searched",
        ]
    else:
        lines += [
            "# caps: {train: 50000, validation: 1000, test: 10000}",
            "# tuning: {recipe: fair}   # the same for all, its rate searched; or {recipe: paper}",
        ]
    lines += ["# selection: validation   # or tuned, or paper", "# store: potentia.db"]
    return "\n".join(lines) + "\n"


def _own(given: str) -> dict[str, Any]:
    """Describe data of one's own: where it is, and which of its columns is what."""
    from potentia.tasks import OwnData, guess_columns

    path = Path(given)
    if path.exists():
        own = OwnData(files=(given,))
        entry: dict[str, Any] = {"name": own.label, "file": given}
    elif given.count("/") == 1 and not path.suffix:
        own = OwnData(dataset=given)
        entry = {"name": own.label, "dataset": given}
    else:
        raise InputError(f"there is no {given}", hint="give a file, a folder, or a dataset of the hub as org/name")
    columns = guess_columns(own)
    few = (own.documents_in_one_split() or FEW) < FEW
    return entry | ({"columns": columns} if columns else {}) | ({"ratios": [6, 1, 3]} if few else {})


def _ask(question: str, flag: str) -> list[str]:
    if not sys.stdin.isatty():
        raise InputError(f"{flag} is missing", hint=f"give {flag}, or run this on a terminal to be asked")
    answer: str = typer.prompt(question)
    return answer.split()


def _yaml(value: Any) -> str:
    import yaml

    return (
        str(yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True))
        .removesuffix("...\n")
        .strip()
    )

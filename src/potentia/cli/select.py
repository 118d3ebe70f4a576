"""Which model for my data: ``potentia select``, and its answers: ``potentia predict``."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli import options
from potentia.cli.app import app
from potentia.cli.options import Json
from potentia.cli.output import columns_of, errors, print_classes, print_json, print_table, say
from potentia.errors import StudyError
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.analysis.planning import Choice
    from potentia.integrations.cards import ExportedAdapter


@app.command()
def select(
    data: Annotated[str, typer.Option(help="Your data: a jsonl, csv or parquet file, a folder of splits, or a task.")],
    models: Annotated[list[str], typer.Option("--models", "--model", help="The candidates: hub names or folders.")],
    budget: Annotated[str | None, typer.Option(help="Time for all of it: 30min, 2h …")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the store and the adapter.")] = Path(
        "selected"
    ),
    epochs: options.Epochs = None,
    learning_rates: options.LearningRates = None,
    train: options.Train = None,
    validation: options.Validation = None,
    test: options.Test = None,
    recipe: Annotated[Path | None, typer.Option(help="A study file whose tuning, caps and device to use.")] = None,
    data_dir: options.DataDir = None,
    device: options.Device = None,
    workers: Annotated[int, typer.Option(min=0, help="Models at once; 0 means one per GPU, or one.")] = 0,
    columns: options.Map = None,
    drop_bad_rows: options.DropBadRows = False,
    as_json: options.Json = False,
) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    from potentia.analysis.benchmark import find_classification
    from potentia.evidence import read
    from potentia.run import Race, read_budget
    from potentia.study import read_study

    if len(models) < 2:
        raise StudyError("one candidate leaves nothing to select", hint="give at least two --models")
    seconds = None
    if budget is not None:
        if budget.strip().endswith("%"):
            raise StudyError("a share of what is not known", hint="say the budget as a time: --budget 30min")
        seconds = read_budget(budget, 0.0)
    study = read_study(
        recipe,
        {
            "name": "select",
            "models": models,
            "tasks": [_entry(data, columns)],
            "protocols": ["direct", "train_before_test"],
            "store": str(output / "select.db"),
            "data_dir": str(data_dir) if data_dir else None,
            "device": device,
            "drop_bad_rows": drop_bad_rows or None,
            "tuning": {"epochs": epochs, "learning_rates": learning_rates},
            "caps": {"train": train, "validation": validation, "test": test},
        },
    )
    output.mkdir(parents=True, exist_ok=True)
    with errors.status("reading the data …") as status:
        note = partial(say, to=errors)
        tell = (lambda text: status.update(f"{text} …")) if errors.is_terminal else note
        race = Race(study, seconds, tell=tell, note=note, workers=workers)
        choice = race.run()
    adapter = _export(race, choice, output / "adapter")
    classes = find_classification(read(study.store, study=race.last), best=choice.best)
    if as_json:
        found = {**choice.to_dict(), "answer": choice.answer(), "store": study.store}
        found["adapter"] = {"folder": str(adapter.folder), "load": list(adapter.lines)}
        if classes:
            found["classes"] = {**classes[0].to_dict(), "sentences": classes[0].sentences()}
        print_json(found)
        return
    for table in choice.tables():
        print_table(table)
    for one in classes:
        print_classes(one)
    here = shlex.quote(str(adapter.folder))
    tuned = (adapter.folder / "adapter_config.json").exists()
    kept = f"Validation kept {choice.best} untuned: there is no adapter."
    say(f"{adapter.folder}: its adapter in PEFT's form, with its card." if tuned else kept)
    say(f"Predict: potentia predict {here} FILE.csv. A whole model: potentia adapters merge {here} -o FOLDER")


def _entry(data: str, columns: list[str] | None) -> str | dict[str, Any]:
    """Describe the data as a study does: a file under its short name, a task of the harness by its own."""
    path = Path(data).expanduser()
    if not path.exists():
        return data
    entry: dict[str, Any] = {"name": path.stem if path.is_file() else path.resolve().name, "file": data}
    return entry | ({"columns": columns_of(columns)} if columns else {})


def _export(race: Any, choice: Choice, folder: Path) -> ExportedAdapter:
    """Write the winner's adapter in the place of one of an earlier selection."""
    from potentia.integrations import export_adapter
    from potentia.store import Store

    with Store.open(race.study.store, readonly=True) as store:
        return export_adapter(store, race.final(store, choice.best), folder, replace=True)


SHOWN = 10  # rows of the printed table


@app.command()
def predict(
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="A folder that select or adapters export wrote.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows to predict: csv, jsonl, json or parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .json or .jsonl file to write.")] = Path(
        "predictions.csv"
    ),
    base: Annotated[str | None, typer.Option(help="Where the base model is now, if not where it was.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    drop_bad_rows: Annotated[
        bool, typer.Option("--drop-bad-rows", help="Leave rows that cannot be used without an answer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the rows of a file with a tuned model: the label and the probability of each.

    With --json they are printed, and no file is written.

    Examples:
      potentia predict selected/adapter new-tickets.csv -o predictions.csv
    """
    from rich.progress import Progress

    from potentia.integrations import predict as predicted

    with Progress(console=errors, transient=True) as bar:
        work = bar.add_task("predicting", total=None)
        found = predicted(
            adapter, file, base=base, device=device, drop_bad_rows=drop_bad_rows,
            progress=lambda amount: bar.update(work, advance=amount),
        )  # fmt: skip
    known = sum(gold is not None for gold in found.gold)
    if as_json:
        accuracy = found.accuracy if known else None
        print_json({"predictions": found.records(), "labelled": known, "accuracy": accuracy, "tested": found.tested})
        return
    found.write(output)
    shown = [row["predicted"] for row in found.records()[:SHOWN]]
    shares = [max(p.values(), default=math.nan) for p in found.probabilities[:SHOWN]]
    rows = tuple((n, label, share) for n, (label, share) in enumerate(zip(shown, shares, strict=True), start=1))
    note = f"{len(found.rows)} rows → {output}"
    print_table(Table("Predictions", ("row", "predicted", "probability"), rows, note=note))
    if known:
        tested = "" if found.tested is None else f" The test gave {found.tested:.3f} ({found.metric})."
        say(f"Accuracy {found.accuracy:.3f} on {known} labelled rows.{tested}")

"""Which model for my data: ``select``; its answers: ``predict``."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import potentia
from potentia.cli.app import app
from potentia.cli.command import command
from potentia.cli.option_groups import (
    BaseModel,
    ColumnMap,
    Device,
    DropBadRows,
    OptionalText,
    OutputOptions,
    StudyFields,
    UncheckedBase,
    Workers,
    describe_file,
    merge_settings,
    parse_fields,
    parse_pairs,
)
from potentia.cli.output import (
    error_console,
    print_answer,
    print_classification,
    print_lines,
    show_status,
)
from potentia.errors import StudyError
from potentia.extras import Extra
from potentia.values.findings import Table

MAX_PREDICTIONS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SelectOptions(OutputOptions):
    """The options of ``potentia select``."""

    data: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Your data: a jsonl, csv or parquet file, a folder of splits, or a task.",
        ),
    ]
    models: Annotated[
        list[str],
        typer.Option(
            "--models", "--model", metavar="MODEL", help="The candidates: hub names or folders."
        ),
    ]
    budget: Annotated[
        OptionalText, typer.Option(metavar="TIME", help="Time for all of it: 30min, 2h …")
    ] = None
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder of the store and the adapter."
        ),
    ] = Path("selected")
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A study file whose tuning, caps and device to use."),
    ] = None
    columns: ColumnMap = None
    drop_bad_rows: DropBadRows = None
    device: Device = None
    workers: Workers = 0
    fields: StudyFields = None

    def budget_seconds(self) -> float | None:
        """Return the budget in seconds; None where there is none."""
        if self.budget is None:
            return None
        if self.budget.strip().endswith("%"):
            raise StudyError(
                "a share of what is not known", hint="say the budget as a time: --budget 30min"
            )
        return potentia.run.parse_budget(self.budget, 0.0)

    def read_study(self) -> potentia.Study:
        """Return the study that compares the candidates on the data."""
        settings = {
            "name": "select",
            "protocols": ["direct", "train_before_test"],
            "store": str(self.output / "select.db"),
            "models": self.models,
            "tasks": [describe_data(self.data, self.columns)],
            "drop_bad_rows": self.drop_bad_rows,
            "device": self.device,
        }
        return potentia.study.read_study(
            self.study, merge_settings(settings, parse_fields(self.fields))
        )


@command(app, "select", SelectOptions, needs=Extra.RUN)
def select(options: SelectOptions) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    if len(options.models) < 2:
        raise StudyError(
            "one candidate leaves nothing to select", hint="give at least two --models"
        )
    budget_seconds = options.budget_seconds()
    study = options.read_study()
    options.output.mkdir(parents=True, exist_ok=True)
    with show_status("reading the data") as update_status:
        print_note = partial(print_lines, to=error_console)
        race = potentia.run.Race(
            study,
            budget_seconds,
            tell=update_status if error_console.is_terminal else print_note,
            note=print_note,
            workers=options.workers,
        )
        choice = race.run()
    with potentia.store.Store.open(study.store, readonly=True) as store:
        # An earlier selection's adapter in this folder is replaced.
        adapter = potentia.integrations.export_adapter(
            store, race.final(store, choice.best), options.output / "adapter", replace=True
        )
    evidence = potentia.evidence.read(study.store, study=race.last)
    classifications = potentia.analysis.benchmark.find_classification(evidence, best=choice.best)
    value: dict[str, Any] = {
        **choice.to_dict(),
        "answer": choice.answer(),
        "store": study.store,
        "adapter": {"folder": str(adapter.folder), "load": list(adapter.lines)},
    }
    if classifications:
        first = classifications[0]
        value["classes"] = {**first.to_dict(), "sentences": first.sentences()}
    print_answer(options.as_json, value, *choice.tables())
    if options.as_json:
        return
    for classification in classifications:
        print_classification(classification)
    _print_adapter(adapter.folder, choice.best)


def _print_adapter(folder: Path, model: str) -> None:
    """Say where the adapter is, if there is one, and how to use it."""
    if (folder / "adapter_config.json").exists():
        print_lines(f"{folder}: its adapter in PEFT's form, with its card.")
    else:
        print_lines(f"Validation kept {model} untuned: there is no adapter.")
    quoted_folder = shlex.quote(str(folder))
    print_lines(
        f"Predict: potentia predict {quoted_folder} FILE.csv."
        f" A whole model: potentia adapters export {quoted_folder} --merge -o FOLDER"
    )


def describe_data(data: str, column_pairs: list[str] | None) -> str | dict[str, Any]:
    """Describe the data as a study does: a file under its short name, a task of lm-eval by its own."""
    if not Path(data).expanduser().exists():
        return data
    return describe_file(data, column_pairs)


# --- predicting -------------------------------------------------------------------------------------------------------

AdapterFolder = Annotated[
    Path,
    typer.Argument(metavar="ADAPTER", help="A folder that select or adapters export wrote."),
]


@dataclass(frozen=True, kw_only=True)
class PredictOptions(OutputOptions):
    """The options of ``potentia predict``."""

    adapter: AdapterFolder
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rows to predict: csv, jsonl, json or parquet.")
    ]
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A .csv, .json or .jsonl file to write."
        ),
    ] = Path("predictions.csv")
    base: BaseModel = None
    unchecked_base: UncheckedBase = False
    device: Device = None
    columns: ColumnMap = None


@command(app, "predict", PredictOptions, needs=Extra.RUN)
def predict(options: PredictOptions) -> None:
    """Predict the rows of a file with a tuned model: the label and the probability of each.

    With --json they are printed, and no file is written. A row without a text has no answer.

    Example:
      potentia predict selected/adapter new-tickets.csv -o predictions.csv
    """
    from rich.progress import Progress

    with Progress(console=error_console, transient=True) as progress:
        progress_task = progress.add_task("predicting", total=None)
        predictions = potentia.integrations.predict(
            options.adapter,
            options.file,
            base=options.base,
            unchecked_base=options.unchecked_base,
            device=options.device or "auto",
            columns=parse_pairs(options.columns),
            progress=lambda amount: progress.update(progress_task, advance=amount),
        )
    print_lines(*predictions.notes, to=error_console)
    records = predictions.records()
    labelled = sum(gold is not None for gold in predictions.gold)
    value = {
        "predictions": records,
        "labelled": labelled,
        "accuracy": predictions.accuracy if labelled else None,
        "tested": predictions.tested,
    }
    rows = [
        (number, record["predicted"], record["probability"] or math.nan)
        for number, record in enumerate(records[:MAX_PREDICTIONS_SHOWN], start=1)
    ]
    note = f"{len(records)} rows → {options.output}"
    parts: list[str | Table] = [
        Table("Predictions", ("row", "predicted", "probability"), rows, note=note)
    ]
    if labelled:
        accuracy = f"Accuracy {predictions.accuracy:.3f} on {labelled} labelled rows."
        if predictions.tested is not None:
            accuracy += f" The test gave {predictions.tested:.3f} ({predictions.metric})."
        parts.append(accuracy)
    if not options.as_json:
        predictions.write(options.output)
    print_answer(options.as_json, value, *parts)

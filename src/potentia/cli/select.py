"""Which model for my data: ``select``; its answers: ``predict``."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    PriceOption,
    StudyFields,
    UncheckedBase,
    Workers,
    merge_settings,
    parse_fields,
    parse_pairs,
)
from potentia.cli.output import (
    console,
    error_console,
    print_answer,
    print_classification,
    print_json,
    print_lines,
    print_stopped,
    print_table,
)
from potentia.extras import Extra
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.selection import SelectedModel

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
        OptionalText, typer.Option(metavar="TIME", help="Wall time for all of it: 30min, 2h …")
    ] = None
    folds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=20,
            metavar="N",
            help="Test every row once, in N folds; 5 below 1,000 rows, else 1.",
        ),
    ] = None
    price: PriceOption = None
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder of the store and what is exported."
        ),
    ] = Path("selected")
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A study file whose tuning, caps and device to use."),
    ] = None
    columns: ColumnMap = None
    metric: Annotated[
        OptionalText,
        typer.Option(
            metavar="NAME",
            help="Score by acc or macro_f1; of written answers exact_match, token_f1, contains or rouge_l.",
        ),
    ] = None
    keep_spellings: Annotated[
        bool,
        typer.Option(
            "--keep-spellings", help="Keep labels apart that differ by case or blanks alone."
        ),
    ] = False
    drop_bad_rows: DropBadRows = None
    device: Device = None
    workers: Workers = 0
    fields: StudyFields = None

    def study_settings(self) -> dict[str, Any]:
        """Return what the options say of the study beside its data and models."""
        settings = {"drop_bad_rows": self.drop_bad_rows, "device": self.device}
        return merge_settings(settings, parse_fields(self.fields))


@command(app, "select", SelectOptions, needs=Extra.RUN)
def select(options: SelectOptions) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    from potentia.cli.progress_view import watch_study

    print_note = partial(print_lines, to=error_console)
    try:
        selected = potentia.selection.select(
            options.data,
            options.models,
            output=options.output,
            budget=options.budget,
            folds=options.folds,
            price=options.price,
            columns=parse_pairs(options.columns),
            metric=options.metric,
            merge_spellings=not options.keep_spellings,
            study=options.study,
            fields=options.study_settings(),
            workers=options.workers,
            tell=print_note,
            note=print_note,
            watch=watch_study,
        )
    except KeyboardInterrupt:
        print_stopped(str(options.output / "select.db"))
        raise typer.Exit(130) from None
    if options.as_json:
        print_json(_selection_as_json(selected))
        return
    _print_selection(selected, options.output)


def _selection_as_json(selected: SelectedModel) -> dict[str, Any]:
    choice = selected.choice
    value: dict[str, Any] = {
        **choice.to_dict(),
        "answer": choice.answer(),
        "use": selected.best,
        "store": selected.study.store,
        "adapter": {
            "folder": str(selected.adapter.folder),
            "load": list(selected.adapter.lines),
        },
        "predictor": str(selected.predictor.folder),
    }
    if choice.classification is not None:
        value["classes"] = {
            **choice.classification.to_dict(),
            "sentences": choice.classification.sentences(),
        }
    return value


def _print_selection(selected: SelectedModel, output: Path) -> None:
    """Print what to use, then the tables behind it, then what can be done with it."""
    choice = selected.choice
    first, *rest = choice.sentences()
    console.print()
    console.print(first, style="bold", markup=False)
    for sentence in rest:
        console.print(sentence, markup=False)
    console.print()
    for table in choice.tables():
        print_table(table)
    if choice.classification is not None:
        print_classification(choice.classification, sentences=False)
    console.print()
    _print_next_steps(selected, output)


def _print_next_steps(selected: SelectedModel, output: Path) -> None:
    """Say where things are and how to use them."""
    folder = shlex.quote(str(selected.predictor.folder))
    print_lines(f"Predict: potentia predict {folder} FILE.csv")
    has_adapter = (selected.adapter.folder / "adapter_config.json").exists()
    adapter = shlex.quote(str(selected.adapter.folder))
    if selected.predictor.folder == selected.adapter.folder:
        if not has_adapter:
            print_lines(
                f"Fine-tuning did not help {selected.choice.best} on validation, so the folder names the model alone."
            )
        else:
            print_lines(f"A whole model: potentia adapters export {adapter} --merge -o FOLDER")
    else:
        print_lines(f"The best candidate is in {adapter}.")
    print_lines(f"Report: potentia report {shlex.quote(str(output / 'select.db'))}")


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

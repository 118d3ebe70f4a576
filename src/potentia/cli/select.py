"""Which model for my data: ``select``; its answers: ``predict``."""

from __future__ import annotations

import math
import shlex
import time
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
    print_tables_and_sentences,
)
from potentia.extras import Extra
from potentia.values.baselines import Baseline
from potentia.values.findings import Table, short_names

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
            help="Test every row once, in N folds; by default 5 below 1,000 rows, else 1.",
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
            report=print_note,
            report_note=print_note,
            watch=partial(watch_study, budget_end=_find_budget_end(options.budget)),
        )
    except potentia.selection.ClassifierOnlyError as error:
        _print_classifier_alone(error, options)
        raise typer.Exit(1) from None  # results failed
    except KeyboardInterrupt:
        print_stopped(str(options.output / "select.db"))
        raise typer.Exit(130) from None
    if options.as_json:
        print_json(_selection_as_json(selected))
    else:
        _print_selection(selected, options.output)
    if selected.choice.failed:
        raise typer.Exit(1)


def _print_classifier_alone(
    error: potentia.selection.ClassifierOnlyError, options: SelectOptions
) -> None:
    """Say that no candidate gave a result, why, and what to use in their place."""
    if options.as_json:
        print_json(
            {
                "answer": error.answer,
                "use": Baseline.TFIDF.label,
                "accuracy": error.accuracy,
                "predictor": str(error.classifier),
                "problems": error.problems,
            }
        )
        return
    console.print()
    problems = zip(short_names(list(error.problems)), error.problems.values(), strict=True)
    sentences = [f"{name} failed: {problem}." for name, problem in problems]
    print_tables_and_sentences((), sentences, error.answer)
    console.print()
    print_lines(f"Predict: potentia predict {shlex.quote(str(error.classifier))} FILE.csv")


def _find_budget_end(budget: str | None) -> float | None:
    """Return the moment at which a budget that begins now is spent; None without one, or where it is no time."""
    if budget is None or budget.strip().endswith("%"):
        return None
    return time.time() + potentia.run.parse_budget(budget, 0.0)


def _selection_as_json(selected: SelectedModel) -> dict[str, Any]:
    choice = selected.choice
    adapter = {
        "folder": str(selected.adapter.folder),
        "load": list(selected.adapter.lines),  # lines of Python that load it
    }
    document: dict[str, Any] = {
        **choice.to_dict(),
        "answer": choice.answer(),
        "use": selected.best,
        "store": selected.study.store,
        "adapter": adapter,
        "predictor": str(selected.predictor.folder),
    }
    classification = choice.classification
    if classification is not None:
        document["classes"] = {
            **classification.to_dict(),
            "sentences": classification.sentences(),
        }
    return document


def _print_selection(selected: SelectedModel, output: Path) -> None:
    """Print what to use, then the tables behind it, then what can be done with it."""
    choice = selected.choice
    headline, *sentences = choice.sentences()
    console.print()
    print_tables_and_sentences((), sentences, headline)
    console.print()
    for table in choice.tables():
        print_table(table)
    if choice.classification is not None:
        print_classification(choice.classification, with_verdict=False)
    console.print()
    _print_next_steps(selected, output)


def _print_next_steps(selected: SelectedModel, output: Path) -> None:
    """Say where things are and how to use them."""
    folder = shlex.quote(str(selected.predictor.folder))
    if selected.predictor.answers_rows:
        print_lines(f"Predict: potentia predict {folder} FILE.csv")
    has_adapter = (selected.adapter.folder / "adapter_config.json").exists()
    adapter = shlex.quote(str(selected.adapter.folder))
    if selected.predictor.folder == selected.adapter.folder:
        if selected.choice.train_examples == 0:
            print_lines("No candidate was fine-tuned, so the folder names the model alone.")
        elif not has_adapter:
            (name,) = short_names([selected.choice.best])
            print_lines(
                f"Fine-tuning did not help {name} on validation, so the folder names the model alone."
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

    if not options.as_json:
        potentia.integrations.check_predictions_file(options.output)
    with Progress(console=error_console, transient=True) as progress:
        progress_task = progress.add_task("predicting", total=None)
        predictions = potentia.integrations.predict(
            options.adapter,
            options.file,
            base=options.base,
            device=options.device or "auto",
            columns=parse_pairs(options.columns),
            progress=lambda amount: progress.update(progress_task, advance=amount),
        )
    print_lines(*predictions.notes, to=error_console)
    records = predictions.records()
    labelled = sum(gold is not None for gold in predictions.gold)
    answer = {
        "predictions": records,
        "labelled": labelled,
        "accuracy": predictions.accuracy if labelled and not predictions.written else None,
        "score": predictions.score if labelled else None,
        "tested": predictions.tested,
        "metric": predictions.metric,
    }
    column_names = ["row", "predicted", "probability"]
    if predictions.threshold is not None:
        column_names.append("unsure")
    table_rows = []
    for row_number, record in enumerate(records[:MAX_PREDICTIONS_SHOWN], start=1):
        cells = [row_number, record["predicted"], record["probability"] or math.nan]
        if predictions.threshold is not None:
            cells.append("yes" if record["unsure"] else "")
        table_rows.append(cells)
    note = f"{len(records)} rows → {options.output}"
    if len(table_rows) < len(records):
        note = f"the first {len(table_rows)} of {note}"
    parts: list[str | Table] = [Table("Predictions", column_names, table_rows, note=note)]
    if labelled:
        sentence = f"Accuracy {predictions.accuracy:.3f} on {labelled} labelled rows."
        if predictions.written:
            sentence = (
                f"{predictions.metric} {predictions.score:.3f} on {labelled} rows with an answer."
            )
        if predictions.tested is not None:
            sentence += f" The test gave {predictions.tested:.3f} ({predictions.metric})."
        parts.append(sentence)
    if not options.as_json:
        predictions.write(options.output)
    print_answer(options.as_json, answer, *parts)

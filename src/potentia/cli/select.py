"""Which model for my data: ``select``; its answers: ``predict``; the tuned adapters of a store: ``adapters``."""

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
    DEFAULT_STORE,
    BaseModel,
    CellOptions,
    DataColumns,
    DataFolder,
    Device,
    DropBadRows,
    Epochs,
    JsonOption,
    LearningRates,
    OptionalText,
    OptionalTexts,
    ReadTasks,
    StoreArgument,
    StudyNames,
    TestCap,
    TrainCap,
    UncheckedBase,
    ValidationCap,
    Workers,
    Yes,
    describe_data,
    open_evidence,
    parse_pairs,
)
from potentia.cli.output import (
    confirm,
    error_console,
    print_answer,
    print_classification,
    print_lines,
    show_status,
)
from potentia.errors import InputError, StudyError
from potentia.extras import Extra
from potentia.values.findings import Table
from potentia.values.selection import NO_SELECTION

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store

MAX_PREDICTIONS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SelectOptions(JsonOption):
    """The options of ``potentia select``."""

    data: Annotated[
        str,
        typer.Option(
            help="Your data: a jsonl, csv or parquet file, a folder of splits, or a task."
        ),
    ]
    models: Annotated[
        list[str],
        typer.Option("--models", "--model", help="The candidates: hub names or folders."),
    ]
    budget: Annotated[OptionalText, typer.Option(help="Time for all of it: 30min, 2h …")] = None
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the store and the adapter.")
    ] = Path("selected")
    recipe: Annotated[
        Path | None, typer.Option(help="A study file whose tuning, caps and device to use.")
    ] = None
    workers: Workers = 0
    columns: DataColumns = None
    drop_bad_rows: DropBadRows = None
    data_dir: DataFolder = None
    device: Device = None
    epochs: Epochs = None
    learning_rates: LearningRates = None
    train: TrainCap = None
    validation: ValidationCap = None
    test: TestCap = None

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
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "device": self.device,
            "tuning": {"learning_rates": self.learning_rates, "epochs": self.epochs},
            "caps": {"train": self.train, "validation": self.validation, "test": self.test},
        }
        return potentia.study.read_study(self.recipe, settings)


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
        f" A whole model: potentia adapters merge {quoted_folder} -o FOLDER"
    )


# --- predicting -------------------------------------------------------------------------------------------------------

AdapterFolder = Annotated[
    Path,
    typer.Argument(metavar="ADAPTER", help="A folder that select or adapters export wrote."),
]


@dataclass(frozen=True, kw_only=True)
class PredictOptions(JsonOption):
    """The options of ``potentia predict``."""

    adapter: AdapterFolder
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rows to predict: csv, jsonl, json or parquet.")
    ]
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .csv, .json or .jsonl file to write.")
    ] = Path("predictions.csv")
    base: BaseModel = None
    unchecked_base: UncheckedBase = False
    device: Device = None
    columns: DataColumns = None


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


# --- adapters ---------------------------------------------------------------------------------------------------------

adapters = typer.Typer(
    help="Tuned adapters: list, export, merge, drop.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(adapters, name="adapters")

NewFolder = Annotated[
    Path,
    typer.Option("--output", "-o", help="The folder to write; it must not hold anything yet."),
]


@dataclass(frozen=True, kw_only=True)
class AdapterCellOptions(JsonOption):
    """Of which cells adapters are meant."""

    store: StoreArgument = DEFAULT_STORE
    study: StudyNames = None
    tasks: ReadTasks = None
    models: Annotated[
        OptionalTexts, typer.Option("--models", "--model", help="Only these models.")
    ] = None

    def cells_with_adapter(self, store: Store) -> list[CellRecord]:
        """Return the cells that are meant and whose adapter is in the store."""
        evidence = open_evidence(self.store, study=self.study, tasks=self.tasks, models=self.models)
        return _with_adapter(store, evidence)


def _with_adapter(store: Store, evidence: potentia.Evidence) -> list[CellRecord]:
    return [cell for cell in evidence.cells() if store.adapters.find(cell.key) is not None]


@command(adapters, "list", AdapterCellOptions)
def list_adapters(options: AdapterCellOptions) -> None:
    """List the kept adapters with what validation chose and the disk they take.

    Example:
      potentia adapters list potentia.db
    """
    with potentia.store.Store.open(options.store, readonly=True) as store:
        records = [_describe_adapter(store, cell) for cell in options.cells_with_adapter(store)]
    total_bytes = sum(record["bytes"] for record in records)
    columns = ("model", "task", "protocol", "learning rate", "epoch", "validation", "test", "MB")
    rows = []
    for record in records:
        cells = [record[name.replace(" ", "_")] for name in columns[:-1]]
        rows.append((*cells, round(record["bytes"] / 1e6, 2)))
    note = (
        f"{len(records)} adapters, {total_bytes / 1e6:,.1f} MB. "
        "Take one away: potentia adapters export. Set the disk free: potentia adapters drop."
    )
    print_answer(
        options.as_json,
        {"store": options.store, "adapters": records, "bytes": total_bytes},
        Table(f"Adapters in {options.store}", columns, rows, note=note),
    )


def _describe_adapter(store: Store, cell: CellRecord) -> dict[str, Any]:
    selection = cell.selection
    return {
        "model": cell.model,
        "task": cell.task,
        "protocol": cell.protocol,
        "learning_rate": f"{selection.learning_rate:g}" if selection.learning_rate else None,
        "epoch": selection.epoch,
        "validation": selection.validation,
        "test": cell.score.value,
        "bytes": _adapter_bytes(store, cell),
        "key": cell.key,
    }


def _adapter_bytes(store: Store, cell: CellRecord) -> int:
    """Return the bytes that a cell's adapter takes."""
    folder = store.adapters.find(cell.key)
    if folder is None:
        return 0
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True, kw_only=True)
class ExportAdapterOptions(CellOptions, JsonOption):
    """The options of ``potentia adapters export``."""

    store: StoreArgument = DEFAULT_STORE
    output: NewFolder

    def read_cells(self, *, notes: bool) -> potentia.Evidence:
        """Read the cells that are meant."""
        return open_evidence(
            self.store,
            notes=notes,
            study=self.study,
            protocols=self.protocols,
            tasks=self.tasks,
            models=self.models,
        )


@command(adapters, "export", ExportAdapterOptions)
def export(options: ExportAdapterOptions) -> None:
    """Write the tuned adapter of a cell in PEFT's form, with a model card: base, data, recipe, scores.

    Example:
      potentia adapters export potentia.db --model HuggingFaceTB/SmolLM2-135M --task arc_easy -o my-adapter
    """
    with potentia.store.Store.open(options.store, readonly=True) as store:
        cells = _with_adapter(store, options.read_cells(notes=True))
        cell = _only_cell(cells, options)
        exported = potentia.integrations.export_adapter(store, cell, options.output)
    print_answer(
        options.as_json,
        {"folder": str(exported.folder), "base": exported.base, "load": exported.lines},
        f"{exported.folder}: the adapter of {cell.model} on {cell.task}, with its card",
        "To use it:",
        *(f"  {line}" for line in exported.lines),
    )


def _only_cell(cells: list[CellRecord], options: ExportAdapterOptions) -> CellRecord:
    """Return the one cell that is meant; refuse none and several."""
    cell_by_names = {(cell.model, cell.task, cell.protocol): cell for cell in cells}
    if len(cell_by_names) == 1:
        return next(iter(cell_by_names.values()))
    if cell_by_names:
        listed = ", ".join([" × ".join(names) for names in cell_by_names][:3])
        message = f"{len(cell_by_names)} adapters are meant: {listed}"
    else:
        message = _why_no_adapter(options)
    raise InputError(
        message,
        where=options.store,
        hint="name one by --model, --task and --protocol;"
        f" potentia adapters list {shlex.quote(options.store)}",
    )


def _why_no_adapter(options: ExportAdapterOptions) -> str:
    """Say why there is no adapter to export."""
    evidence = options.read_cells(notes=False)
    tuned_cells = [cell for cell in evidence.cells() if cell.selection != NO_SELECTION]
    if not tuned_cells:
        return "no tuned cell of these"
    last = tuned_cells[-1]
    if last.selection.is_untuned:
        return f"validation kept the untuned model for {last.model} on {last.task}: there is no adapter"
    return f"the adapter of {last.model} on {last.task} was not kept (keep_adapters, full tuning, or it was dropped)"


@dataclass(frozen=True, kw_only=True)
class MergeOptions(JsonOption):
    """The options of ``potentia adapters merge``."""

    adapter: AdapterFolder
    output: NewFolder
    base: BaseModel = None
    unchecked_base: UncheckedBase = False


@command(adapters, "merge", MergeOptions, needs=Extra.RUN)
def merge(options: MergeOptions) -> None:
    """Merge an adapter into its base: a whole model that any tool loads.

    Example:
      potentia adapters merge my-adapter -o my-model
    """
    with error_console.status("merging …"):
        folder = potentia.integrations.merge_adapter_into_base(
            options.adapter,
            options.output,
            base=options.base,
            unchecked_base=options.unchecked_base,
        )
    print_answer(
        options.as_json,
        {"folder": str(folder)},
        f"{folder}: the whole model, with its tokenizer",
    )


@dataclass(frozen=True, kw_only=True)
class DropAdaptersOptions(AdapterCellOptions):
    """The options of ``potentia adapters drop``."""

    yes: Yes = False


@command(adapters, "drop", DropAdaptersOptions)
def drop(options: DropAdaptersOptions) -> None:
    """Remove kept adapters, of all cells or of some; the scores stay.

    Example:
      potentia adapters drop potentia.db --model HuggingFaceTB/SmolLM2-135M
    """
    with potentia.store.Store.open(options.store, readonly=True) as store:
        cells = options.cells_with_adapter(store)
        total_bytes = sum(_adapter_bytes(store, cell) for cell in cells)
        if cells:
            question = f"remove {len(cells)} adapters ({total_bytes / 1e6:,.1f} MB)"
            confirm(question, yes=options.yes)
        freed_bytes = sum(store.adapters.delete(cell.key) for cell in cells)
    print_answer(
        options.as_json,
        {"dropped": len(cells), "bytes": freed_bytes},
        f"{len(cells)} adapters removed, {freed_bytes / 1e6:,.1f} MB set free",
    )

"""The tuned adapters of a store: ``adapters export``, ``status --adapters``, ``store discard --adapters``."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import potentia
from potentia.cli.app import OrderedGroup, app
from potentia.cli.command import command
from potentia.cli.option_groups import (
    DEFAULT_STORE,
    BaseModel,
    OutputOptions,
    ReadModels,
    ReadProtocols,
    ReadTasks,
    StudyNames,
    open_evidence,
)
from potentia.cli.output import confirm, error_console, print_answer
from potentia.errors import InputError
from potentia.extras import Extra, require_extra
from potentia.values.findings import Table
from potentia.values.selection import NO_SELECTION
from potentia.values.wording import format_count

if TYPE_CHECKING:
    from potentia.cli.stores import DiscardOptions
    from potentia.integrations import ExportedAdapter
    from potentia.store import CellRecord, Store

adapters = typer.Typer(
    cls=OrderedGroup,
    help="Take a tuned adapter out of a store, or merge it into a whole model.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(adapters, name="adapters")


def _with_adapter(store: Store, cells: Iterable[CellRecord]) -> list[CellRecord]:
    return [cell for cell in cells if store.adapters.find(cell.key) is not None]


def list_adapters(store_name: str, study: str | None, as_json: bool) -> None:
    """List the kept adapters with what validation chose and the disk they take."""
    with potentia.store.Store.open(store_name, readonly=True) as store:
        cells = _with_adapter(store, open_evidence(store_name, study=study).cells())
        records = [_describe_adapter(store, cell) for cell in cells]
    total_bytes = sum(record["bytes"] for record in records)
    column_names = (
        "model",
        "task",
        "protocol",
        "learning rate",
        "epoch",
        "validation",
        "test",
        "MB",
    )
    table_rows = []
    for record in records:
        values = [record[column.replace(" ", "_")] for column in column_names[:-1]]
        table_rows.append((*values, round(record["bytes"] / 1e6, 2)))
    note = (
        f"{len(records)} adapters, {total_bytes / 1e6:,.1f} MB. "
        "Take one out: potentia adapters export. Free the disk: potentia store discard --adapters."
    )
    print_answer(
        as_json,
        {"store": store_name, "adapters": records, "bytes": total_bytes},
        Table(f"Adapters in {store_name}", column_names, table_rows, note=note),
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
class ExportAdapterOptions(OutputOptions):
    """The options of ``potentia adapters export``."""

    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A store, or the folder of an adapter that was exported before."
        ),
    ] = DEFAULT_STORE
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to write; it must not hold anything yet.",
        ),
    ]
    models: ReadModels = None
    tasks: ReadTasks = None
    protocols: ReadProtocols = None
    study: StudyNames = None
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge it into its base: a model that any tool loads.")
    ] = False
    base: BaseModel = None

    def read_cells(self, *, notes: bool) -> potentia.Evidence:
        """Read the results that are meant."""
        return open_evidence(
            self.source,
            notes=notes,
            study=self.study,
            protocols=self.protocols,
            tasks=self.tasks,
            models=self.models,
        )


@command(adapters, "export", ExportAdapterOptions)
def export(options: ExportAdapterOptions) -> None:
    """Write the tuned adapter of a result in PEFT's form, with a model card; --merge makes a whole model of it.

    Examples:
      potentia adapters export potentia.db --model HuggingFaceTB/SmolLM2-135M --task arc_easy -o my-adapter

      potentia adapters export my-adapter --merge -o my-model
    """
    if Path(options.source).expanduser().is_dir():
        if not options.merge:
            raise InputError(
                "this is a folder, not a store",
                where=options.source,
                hint="to make a whole model of its adapter, add --merge",
            )
        _merge(Path(options.source), options)
        return
    if options.merge:
        with tempfile.TemporaryDirectory() as folder:
            _export_adapter(options, Path(folder) / "adapter")
            _merge(Path(folder) / "adapter", options)
        return
    exported, cell = _export_adapter(options, options.output)
    print_answer(
        options.as_json,
        {"folder": str(exported.folder), "base": exported.base, "load": exported.lines},
        f"{exported.folder}: the adapter of {cell.model} on {cell.task}, with its card",
        "To use it:",
        *(f"  {line}" for line in exported.lines),
    )


def _export_adapter(
    options: ExportAdapterOptions, folder: Path
) -> tuple[ExportedAdapter, CellRecord]:
    """Write the one adapter that is meant."""
    with potentia.store.Store.open(options.source, readonly=True) as store:
        cells = _with_adapter(store, options.read_cells(notes=True).cells())
        cell = _only_cell(cells, options)
        return potentia.integrations.export_adapter(store, cell, folder), cell


def _merge(adapter: Path, options: ExportAdapterOptions) -> None:
    """Merge an adapter into its base."""
    require_extra(Extra.RUN, "merging an adapter")
    with error_console.status("merging …"):
        folder = potentia.integrations.merge_adapter_into_base(
            adapter,
            options.output,
            base=options.base,
        )
    print_answer(
        options.as_json,
        {"folder": str(folder)},
        f"{folder}: the whole model, with its tokenizer",
    )


def _only_cell(cells: list[CellRecord], options: ExportAdapterOptions) -> CellRecord:
    """Return the one cell that is meant; refuse none and several."""
    cell_by_names = {(cell.model, cell.task, cell.protocol): cell for cell in cells}
    if len(cell_by_names) == 1:
        return next(iter(cell_by_names.values()))
    if cell_by_names:
        listed = ", ".join([" × ".join(model_and_task) for model_and_task in cell_by_names][:3])
        message = f"{len(cell_by_names)} adapters are meant: {listed}"
    else:
        message = _why_no_adapter(options)
    raise InputError(
        message,
        where=options.source,
        hint="name one by --model, --task and --protocol;"
        f" potentia status {shlex.quote(options.source)} --adapters",
    )


def _why_no_adapter(options: ExportAdapterOptions) -> str:
    """Say why there is no adapter to export."""
    evidence = options.read_cells(notes=False)
    tuned_cells = [cell for cell in evidence.cells() if cell.selection != NO_SELECTION]
    if not tuned_cells:
        return "no fine-tuned result among these"
    last_cell = tuned_cells[-1]
    if last_cell.selection.is_untuned:
        return f"the untuned model was used for {last_cell.model} on {last_cell.task}: there is no adapter"
    return (
        f"the adapter of {last_cell.model} on {last_cell.task} was not kept"
        " (keep_adapters, full tuning, or it was dropped)"
    )


def discard_adapters(options: DiscardOptions) -> None:
    """Remove kept adapters, of all results or of some; the scores stay."""
    # Adapters are files beside the database: only these are changed.
    with potentia.store.Store.open(options.store, readonly=True) as store:
        evidence = open_evidence(
            options.store,
            study=options.study,
            protocols=options.protocols,
            tasks=options.tasks,
            models=options.models,
        )
        cells = _with_adapter(store, evidence.cells())
        total_bytes = sum(_adapter_bytes(store, cell) for cell in cells)
        if cells:
            question = f"remove {format_count(len(cells), 'adapter')} ({total_bytes / 1e6:,.1f} MB)"
            confirm(question, is_confirmed=options.yes)
        freed_bytes = sum(store.adapters.delete(cell.key) for cell in cells)
    print_answer(
        options.as_json,
        {"dropped": len(cells), "bytes": freed_bytes},
        f"{format_count(len(cells), 'adapter')} removed, {freed_bytes / 1e6:,.1f} MB set free",
    )

"""Which model for my data: ``select``; its answers: ``predict``; the tuned adapters of a store: ``adapters``."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import typer

import potentia
from potentia.cli import options as shared
from potentia.cli.app import app
from potentia.cli.options import argument, command, option, output, overrides, path, some
from potentia.cli.output import (
    agree,
    answer,
    columns_of,
    errors,
    opened,
    print_classes,
    say,
    status,
)
from potentia.errors import InputError, StudyError
from potentia.values.findings import Table
from potentia.values.selection import NO_SELECTION

OF_STUDY = (
    "drop_bad_rows",
    "data_dir",
    "device",
    "epochs",
    "learning_rates",
    "train",
    "validation",
    "test",
)


@command(
    app,
    "select",
    data=option(
        "Your data: a jsonl, csv or parquet file, a folder of splits, or a task.", str, ...
    ),
    models=option("The candidates: hub names or folders.", list[str], ..., "--models", "--model"),
    budget=option("Time for all of it: 30min, 2h …"),
    output=output("Folder of the store and the adapter.", Path("selected")),
    recipe=path("A study file whose tuning, caps and device to use."),
    workers=shared.WORKERS,
    columns=shared.READ["columns"],
    **{name: shared.STUDY[name] for name in OF_STUDY},
)
def select(asked: Any) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    if len(asked.models) < 2:
        raise StudyError(
            "one candidate leaves nothing to select", hint="give at least two --models"
        )
    if asked.budget is not None and asked.budget.strip().endswith("%"):
        raise StudyError(
            "a share of what is not known", hint="say the budget as a time: --budget 30min"
        )
    seconds = None if asked.budget is None else potentia.run.parse_budget(asked.budget, 0.0)
    fixed = {
        "name": "select",
        "protocols": ["direct", "train_before_test"],
        "store": str(asked.output / "select.db"),
    }
    study = potentia.study.read_study(
        asked.recipe, overrides(asked, tasks=[_entry(asked.data, asked.columns)], **fixed)
    )
    asked.output.mkdir(parents=True, exist_ok=True)
    with status("reading the data") as tell:
        note = partial(say, to=errors)
        heard = tell if errors.is_terminal else note
        race = potentia.run.Race(study, seconds, tell=heard, note=note, workers=asked.workers)
        choice = race.run()
    with potentia.store.Store.open(
        study.store, readonly=True
    ) as store:  # in the place of an earlier selection's
        final, place = race.final(store, choice.best), asked.output / "adapter"
        adapter = potentia.integrations.export_adapter(store, final, place, replace=True)
    classes = potentia.analysis.benchmark.find_classification(
        potentia.evidence.read(study.store, study=race.last), best=choice.best
    )
    found = {**choice.to_dict(), "answer": choice.answer(), "store": study.store}
    found["adapter"] = {"folder": str(adapter.folder), "load": list(adapter.lines)}
    if classes:
        found["classes"] = {**classes[0].to_dict(), "sentences": classes[0].sentences()}
    answer(asked.as_json, found, *choice.tables())
    if asked.as_json:
        return
    for one in classes:
        print_classes(one)
    here = shlex.quote(str(adapter.folder))
    tuned = (adapter.folder / "adapter_config.json").exists()
    untuned = f"Validation kept {choice.best} untuned: there is no adapter."
    say(f"{adapter.folder}: its adapter in PEFT's form, with its card." if tuned else untuned)
    say(
        f"Predict: potentia predict {here} FILE.csv. A whole model: potentia adapters merge {here} -o FOLDER"
    )


def _entry(data: str, columns: list[str] | None) -> str | dict[str, Any]:
    """Describe the data as a study does: a file under its short name, a task of the harness by its own."""
    path = Path(data).expanduser()
    if not path.exists():
        return data
    entry: dict[str, Any] = {
        "name": path.stem if path.is_file() else path.resolve().name,
        "file": data,
    }
    return entry | ({"columns": columns_of(columns)} if columns else {})


SHOWN = 10  # rows of the printed table
ADAPTER = argument("A folder that select or adapters export wrote.", "ADAPTER", Path)


@command(
    app,
    "predict",
    adapter=ADAPTER,
    file=argument("Rows to predict: csv, jsonl, json or parquet.", "FILE", Path),
    output=output("A .csv, .json or .jsonl file to write.", Path("predictions.csv")),
    base=shared.BASE,
    unchecked_base=shared.UNCHECKED_BASE,
    device=shared.STUDY["device"],
    drop_bad_rows=shared.STUDY["drop_bad_rows"],
)
def predict(asked: Any) -> None:
    """Predict the rows of a file with a tuned model: the label and the probability of each.

    With --json they are printed, and no file is written. A row that is left out has no answer.

    Example:
      potentia predict selected/adapter new-tickets.csv -o predictions.csv
    """
    from rich.progress import Progress

    with Progress(console=errors, transient=True) as bar:
        work = bar.add_task("predicting", total=None)
        found = potentia.integrations.predict(
            asked.adapter,
            asked.file,
            base=asked.base,
            unchecked_base=asked.unchecked_base,
            device=asked.device or "auto",
            drop_bad_rows=bool(asked.drop_bad_rows),
            progress=lambda amount: bar.update(work, advance=amount),
        )
    records, known = found.records(), sum(gold is not None for gold in found.gold)
    value = {
        "predictions": records,
        "labelled": known,
        "accuracy": found.accuracy if known else None,
    }
    rows = tuple(
        (n, row["predicted"], row["probability"] or math.nan)
        for n, row in enumerate(records[:SHOWN], 1)
    )
    note = f"{len(records)} rows → {asked.output}"
    told: list[str | Table] = [
        Table("Predictions", ("row", "predicted", "probability"), rows, note=note)
    ]
    if known:
        tested = (
            "" if found.tested is None else f" The test gave {found.tested:.3f} ({found.metric})."
        )
        told.append(f"Accuracy {found.accuracy:.3f} on {known} labelled rows.{tested}")
    if not asked.as_json:
        found.write(asked.output)
    answer(asked.as_json, {**value, "tested": found.tested}, *told)


adapters = typer.Typer(
    help="Tuned adapters: list, export, merge, drop.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(adapters, name="adapters")
FOLDER = output("The folder to write; it must not hold anything yet.")


@command(adapters, "list", store=shared.THE_STORE, **shared.KEPT)
def list_adapters(asked: Any) -> None:
    """List the kept adapters with what validation chose and the disk they take.

    Example:
      potentia adapters list potentia.db
    """
    with potentia.store.Store.open(asked.store, readonly=True) as store:
        rows = [
            {**_facts(cell), "bytes": _size(store, cell), "key": cell.key}
            for cell in _kept(store, asked)
        ]
    total = sum(row["bytes"] for row in rows)
    table = Table(
        f"Adapters in {asked.store}",
        ("model", "task", "protocol", "learning rate", "epoch", "validation", "test", "MB"),
        tuple((*list(row.values())[:-2], round(row["bytes"] / 1e6, 2)) for row in rows),
        note=f"{len(rows)} adapters, {total / 1e6:,.1f} MB. "
        "Take one away: potentia adapters export. Set the disk free: potentia adapters drop.",
    )
    answer(asked.as_json, {"store": asked.store, "adapters": rows, "bytes": total}, table)


@command(adapters, "export", store=shared.THE_STORE, output=FOLDER, **shared.CELLS)
def export(asked: Any) -> None:
    """Write the tuned adapter of a cell in PEFT's form, with a model card: base, data, recipe, scores.

    Example:
      potentia adapters export potentia.db --model HuggingFaceTB/SmolLM2-135M --task arc_easy -o my-adapter
    """
    with potentia.store.Store.open(asked.store, readonly=True) as store:
        cells = {(cell.model, cell.task, cell.protocol): cell for cell in _kept(store, asked)}
        if len(cells) != 1:
            several = [" × ".join(names) for names in cells]
            told = (
                f"{len(cells)} adapters are meant: {', '.join(several[:3])}"
                if cells
                else _why_none(asked)
            )
            hint = f"name one by --model, --task and --protocol; potentia adapters list {shlex.quote(asked.store)}"
            raise InputError(told, where=asked.store, hint=hint)
        (cell,) = cells.values()
        written = potentia.integrations.export_adapter(store, cell, asked.output)
    told = f"{written.folder}: the adapter of {cell.model} on {cell.task}, with its card"
    found = {"folder": str(written.folder), "base": written.base, "load": written.lines}
    answer(asked.as_json, found, told, "To use it:", *(f"  {line}" for line in written.lines))


@command(
    adapters,
    "merge",
    adapter=ADAPTER,
    output=FOLDER,
    base=shared.BASE,
    unchecked_base=shared.UNCHECKED_BASE,
)
def merge(asked: Any) -> None:
    """Merge an adapter into its base: a whole model that any tool loads.

    Example:
      potentia adapters merge my-adapter -o my-model
    """
    with errors.status("merging …"):
        folder = potentia.integrations.merge(
            asked.adapter, asked.output, base=asked.base, unchecked_base=asked.unchecked_base
        )
    answer(asked.as_json, {"folder": str(folder)}, f"{folder}: the whole model, with its tokenizer")


@command(adapters, "drop", store=shared.THE_STORE, **shared.KEPT, yes=shared.YES)
def drop(asked: Any) -> None:
    """Remove kept adapters, of all cells or of some; the scores stay.

    Example:
      potentia adapters drop potentia.db --model HuggingFaceTB/SmolLM2-135M
    """
    with potentia.store.Store.open(asked.store, readonly=True) as store:
        cells = _kept(store, asked)
        total = sum(_size(store, cell) for cell in cells)
        if cells:
            agree(f"remove {len(cells)} adapters ({total / 1e6:,.1f} MB)", yes=asked.yes)
        freed = sum(store.drop_adapter(cell.key) for cell in cells)
    told = f"{len(cells)} adapters removed, {freed / 1e6:,.1f} MB set free"
    answer(asked.as_json, {"dropped": len(cells), "bytes": freed}, told)


def _kept(store: potentia.Store, asked: Any) -> list[potentia.store.CellRecord]:
    """Return the cells whose adapter is kept, of those that were asked for."""
    names = [name for name in shared.CELLS if name in vars(asked)]
    cells = opened(asked.store, **some(asked, names)).cells()
    return [cell for cell in cells if store.adapter(cell.key) is not None]


def _size(store: potentia.Store, cell: potentia.store.CellRecord) -> int:
    """Return the bytes that a cell's adapter takes."""
    folder = store.adapter(cell.key)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder else 0


def _facts(cell: potentia.store.CellRecord) -> dict[str, Any]:
    chosen = cell.selection
    return {
        "model": cell.model,
        "task": cell.task,
        "protocol": cell.protocol,
        "learning_rate": f"{chosen.learning_rate:g}" if chosen.learning_rate else None,
        "epoch": chosen.epoch,
        "validation": chosen.validation,
        "test": cell.score.value,
    }


def _why_none(asked: Any) -> str:
    """Say why there is no adapter to export."""
    cells = [
        cell
        for cell in opened(asked.store, notes=False, **some(asked, shared.CELLS)).cells()
        if cell.selection != NO_SELECTION
    ]
    if not cells:
        return "no tuned cell of these"
    last = cells[-1]
    if last.selection.is_untuned:
        return f"validation kept the untuned model for {last.model} on {last.task}: there is no adapter"
    return f"the adapter of {last.model} on {last.task} was not kept (keep_adapters, full tuning, or it was dropped)"

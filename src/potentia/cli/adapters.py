"""``potentia adapters``: the tuned adapters that a store keeps; list them, take one away, drop them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potentia.cli.app import app
from potentia.cli.options import Json, StorePath, Study
from potentia.cli.output import answer, errors, opened
from potentia.errors import InputError
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store

adapters = typer.Typer(help="Tuned adapters: list, export, merge, drop.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(adapters, name="adapters")

Model = Annotated[str | None, typer.Option(help="Only of this model.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]
Folder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write; it must not hold anything yet.")]


@adapters.command("list")
def list_command(
    store: StorePath, study: Study = None, model: Model = None, task: Task = None, as_json: Json = False
) -> None:
    """List the kept adapters with what validation chose and the disk they take.

    Example:
      potentia adapters list potentia.db
    """
    from potentia.store import Store

    with Store.open(store, readonly=True) as kept_in:
        found = [(cell, _size(kept_in, cell)) for cell in _kept(kept_in, store, study, model, task)]
    total = sum(size for _, size in found)
    table = Table(
        f"Adapters in {store}",
        ("model", "task", "protocol", "learning rate", "epoch", "validation", "test", "MB"),
        tuple((*_facts(cell).values(), round(size / 1e6, 2)) for cell, size in found),
        note=f"{len(found)} adapters, {total / 1e6:,.1f} MB. "
        "Take one away: potentia adapters export. Set the disk free: potentia adapters drop.",
    )
    rows = [{**_facts(cell), "bytes": size, "key": cell.key} for cell, size in found]
    answer(as_json, {"store": store, "adapters": rows, "bytes": total}, table)


@adapters.command()
def export(
    store: StorePath,
    model: Annotated[str, typer.Option(help="Whose adapter.")],
    task: Annotated[str, typer.Option(help="The task it was tuned for.")],
    output: Folder,
    study: Study = None,
    protocol: Annotated[str, typer.Option(help="train_before_test or adjust.")] = "train_before_test",
    as_json: Json = False,
) -> None:
    """Write the tuned adapter of a cell in PEFT's form, with a model card: base, data, recipe, scores.

    Example:
      potentia adapters export potentia.db --model HuggingFaceTB/SmolLM2-135M --task arc_easy -o my-adapter
    """
    from potentia.integrations import export_adapter
    from potentia.store import Store

    with Store.open(store, readonly=True) as kept_in:
        cells = [c for c in _kept(kept_in, store, study, model, task) if c.protocol == protocol]
        if not cells:
            hint = f"potentia adapters list {shlex.quote(store)}"
            raise InputError(_why_none(store, study, model, task, protocol), where=store, hint=hint)
        written = export_adapter(kept_in, cells[-1], output)
    told = f"{written.folder}: the adapter of {model} on {task}, with its card"
    found = {"folder": str(written.folder), "base": written.base, "load": written.lines}
    answer(as_json, found, told, "To use it:", *(f"  {line}" for line in written.lines))


@adapters.command()
def merge(
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="A folder that select or adapters export wrote.")],
    output: Folder,
    base: Annotated[str | None, typer.Option(help="Where the base model is now, if not where it was.")] = None,
    as_json: Json = False,
) -> None:
    """Merge an adapter into its base: a whole model that any tool loads.

    Example:
      potentia adapters merge my-adapter -o my-model
    """
    from potentia.integrations import merge as merged

    with errors.status("merging …"):
        folder = merged(adapter, output, base=base)
    answer(as_json, {"folder": str(folder)}, f"{folder}: the whole model, with its tokenizer")


@adapters.command()
def drop(
    store: StorePath,
    study: Study = None,
    model: Model = None,
    task: Task = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove kept adapters, of all cells or of some; the scores stay.

    Example:
      potentia adapters drop potentia.db --model HuggingFaceTB/SmolLM2-135M
    """
    from potentia.store import Store

    with Store.open(store, readonly=True) as kept_in:
        cells = _kept(kept_in, store, study, model, task)
        total = sum(_size(kept_in, cell) for cell in cells)
        if cells and not yes and not as_json:
            typer.confirm(f"Remove {len(cells)} adapters ({total / 1e6:,.1f} MB)?", abort=True)
        freed = sum(kept_in.drop_adapter(cell.key) for cell in cells)
    told = f"{len(cells)} adapters removed, {freed / 1e6:,.1f} MB set free"
    answer(as_json, {"dropped": len(cells), "bytes": freed}, told)


def _kept(store: Store, where: str, study: list[str] | None, model: str | None, task: str | None) -> list[CellRecord]:
    """Return the cells whose adapter is kept, of one study or several."""
    wanted = (c for c in opened(where, study=study).cells() if model in (None, c.model) and task in (None, c.task))
    return [cell for cell in wanted if store.adapter(cell.key) is not None]


def _size(store: Store, cell: CellRecord) -> int:
    """Return the bytes that a cell's adapter takes."""
    folder = store.adapter(cell.key)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder else 0


def _facts(cell: CellRecord) -> dict[str, str | float | int | None]:
    chosen = cell.selection
    return {
        "model": cell.model,
        "task": cell.task,
        "protocol": cell.protocol,
        "learning_rate": f"{chosen['learning_rate']:g}" if chosen.get("learning_rate") else None,
        "epoch": chosen.get("epoch"),
        "validation": chosen.get("validation"),
        "test": cell.score.value,
    }


def _why_none(where: str, study: list[str] | None, model: str, task: str, protocol: str) -> str:
    """Say why a cell has no adapter to export."""
    every = opened(where, study=study, notes=False).cells()
    cells = [c for c in every if (c.model, c.task, c.protocol) == (model, task, protocol)]
    if not cells:
        return f"no {protocol} cell of {model} on {task}"
    if not cells[-1].selection.get("tuned", True):
        return f"validation kept the untuned model for {model} on {task}: there is no adapter"
    return f"the adapter of {model} on {task} was not kept (keep_adapters, full tuning, or it was dropped)"

"""Which model for my data: ``select``; its answers: ``predict``; the tuned adapters of a store: ``adapters``."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.options import JSON, READ, STORE, STUDY, Json, StorePath, Study, Yes, command, option, overrides, path
from potentia.cli.output import agree, answer, columns_of, errors, opened, print_classes, print_json, print_table, say
from potentia.errors import InputError, StudyError
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.analysis.planning import Choice
    from potentia.integrations.cards import ExportedAdapter
    from potentia.store import CellRecord, Store


@command(
    app,
    "select",
    data=option("Your data: a jsonl, csv or parquet file, a folder of splits, or a task.", str, ...),
    models=option("The candidates: hub names or folders.", list[str], ..., "--models", "--model"),
    budget=option("Time for all of it: 30min, 2h …"),
    output=option("Folder of the store and the adapter.", Path, Path("selected"), "--output", "-o"),
    recipe=path("A study file whose tuning, caps and device to use."),
    workers=option("Models at once; 0 means one per GPU, or one.", int, 0, min=0),
    columns=READ["columns"],
    **{
        name: STUDY[name]
        for name in ("drop_bad_rows", "data_dir", "device", "epochs", "learning_rates", "train", "validation", "test")
    },
    as_json=JSON,
)
def select(asked: Any) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    from potentia.analysis.benchmark import find_classification
    from potentia.evidence import read
    from potentia.run import Race, read_budget
    from potentia.study import read_study

    if len(asked.models) < 2:
        raise StudyError("one candidate leaves nothing to select", hint="give at least two --models")
    seconds = None
    if asked.budget is not None:
        if asked.budget.strip().endswith("%"):
            raise StudyError("a share of what is not known", hint="say the budget as a time: --budget 30min")
        seconds = read_budget(asked.budget, 0.0)
    fixed = {"name": "select", "protocols": ["direct", "train_before_test"], "store": str(asked.output / "select.db")}
    study = read_study(asked.recipe, overrides(asked, tasks=[_entry(asked.data, asked.columns)], **fixed))
    asked.output.mkdir(parents=True, exist_ok=True)
    with errors.status("reading the data …") as status:
        note = partial(say, to=errors)
        tell = (lambda text: status.update(f"{text} …")) if errors.is_terminal else note
        race = Race(study, seconds, tell=tell, note=note, workers=asked.workers)
        choice = race.run()
    adapter = _export(race, choice, asked.output / "adapter")
    classes = find_classification(read(study.store, study=race.last), best=choice.best)
    if asked.as_json:
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


adapters = typer.Typer(help="Tuned adapters: list, export, merge, drop.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(adapters, name="adapters")

Model = Annotated[str | None, typer.Option(help="Only of this model.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]
Folder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write; it must not hold anything yet.")]


@adapters.command("list")
def list_command(
    store: StorePath = STORE, study: Study = None, model: Model = None, task: Task = None, as_json: Json = False
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
    yes: Yes = False,
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
        if cells:
            agree(f"remove {len(cells)} adapters ({total / 1e6:,.1f} MB)", yes=yes)
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

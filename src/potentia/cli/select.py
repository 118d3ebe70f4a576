"""``potentia select``: which of these models is the best for my data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli.app import app
from potentia.cli.output import DropBadRows, Map, columns_of, console, errors, print_classes, print_json, print_table

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
    epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    learning_rates: Annotated[list[float] | None, typer.Option(help="The grid of learning rates.")] = None,
    train: Annotated[int | None, typer.Option(help="Use at most this many training documents.")] = None,
    validation: Annotated[int | None, typer.Option(help="Use at most this many validation documents.")] = None,
    test: Annotated[int | None, typer.Option(help="Use at most this many test documents.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A study file whose tuning, caps and device to use.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of benchmark splits, for work offline.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, orders and examples.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Models at once; 0 means one per GPU, or one.")] = 0,
    columns: Map = None,
    drop_bad_rows: DropBadRows = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find the best model for your data: tune all candidates alike, drop the weaker ones early, test the rest.

    Example:
      potentia select --data my.jsonl --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --budget 30min
    """
    from potentia.analysis.benchmark import find_classification
    from potentia.errors import StudyError
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
            "dtype": dtype,
            "seed": seed,
            "drop_bad_rows": drop_bad_rows or None,
            "tuning": {"epochs": epochs, "learning_rates": learning_rates},
            "caps": {"train": train, "validation": validation, "test": test},
        },
    )
    output.mkdir(parents=True, exist_ok=True)
    with errors.status("reading the data …") as status:
        race = Race(
            study,
            seconds,
            tell=lambda text: status.update(f"{text} …") if errors.is_terminal else errors.print(text, markup=False),
            note=lambda text: errors.print(text, markup=False, soft_wrap=True),
            workers=workers,
        )
        choice = race.run()
    adapter = _export(race, choice, output / "adapter")
    classes = find_classification(read(study.store, study=race.last))
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
    if (adapter.folder / "adapter_config.json").exists():
        console.print(f"{adapter.folder}: its adapter in PEFT's form, with its card.", markup=False, soft_wrap=True)
    else:
        console.print(f"Validation kept {choice.best} untuned: there is no adapter.", markup=False, soft_wrap=True)
    console.print(f"Predict: potentia predict {here} FILE.csv. A whole model: potentia adapters merge {here} -o FOLDER")


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

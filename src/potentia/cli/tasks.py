"""``potentia tasks``: the benchmarks that are known, and what one of them asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from potentia.cli.app import app
from potentia.cli.output import DropBadRows, Map, columns_of, console, print_json, print_table
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.tasks import Prompt, Task

tasks = typer.Typer(
    help="List benchmarks, or show what one of them asks.", invoke_without_command=True, rich_markup_mode="rich"
)
app.add_typer(tasks, name="tasks")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_LONG = 1_200  # characters of a prompt that a person reads at a glance


@tasks.callback(epilog="Example: [bold]potentia tasks[/bold] · [bold]potentia tasks show arc_easy[/bold]")
def listing(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="List every task name of the harness.")] = False,
    as_json: Json = False,
) -> None:
    """List the benchmarks of the papers, those they left out and why; with --all every name of the harness."""
    if context.invoked_subcommand is not None:
        return
    if everything:
        _list_all(as_json)
        return
    from potentia.facts import CATEGORIES, benchmarks

    known = benchmarks()
    if as_json:
        print_json(known)
        return
    meaning = ", ".join(f"{short} {long}" for short, long in CATEGORIES.items())
    paper = tuple((b.task, b.name, b.category, b.metric, b.train_size) for b in known if b.status == "paper")
    print_table(
        Table(
            "Benchmarks of train-before-test",
            ("task", "name", "category", "metric", "train"),
            paper,
            note=f"{meaning}. Train: documents of the public split.",
        )
    )
    left_out = tuple((b.task, b.name, b.metric, b.train_size, b.reason) for b in known if b.status == "excluded")
    print_table(Table("Left out there", ("task", "name", "metric", "train", "reason"), left_out))
    others = tuple((b.task, b.name, b.metric, b.reason) for b in known if b.status not in {"paper", "excluded"})
    print_table(Table("Others: MMLU and leaderboard v2", ("task", "name", "metric", "note"), others))


def _list_all(as_json: bool) -> None:
    from potentia.tasks import task_index

    names = task_index()
    if as_json:
        print_json({name: {"kind": entry.kind, "file": entry.path} for name, entry in sorted(names.items())})
        return
    for name, entry in sorted(names.items()):
        console.print(name if entry.kind == "task" else f"{name} ({entry.kind})", markup=False, soft_wrap=True)


@tasks.command(epilog="Example: [bold]potentia tasks show arc_easy --data-dir data/benchmarks[/bold]")
def show(
    name: Annotated[str, typer.Argument(help="A task of the harness, or a path to your own file or folder.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of datasets: <dataset>/<config>/<split>.parquet")
    ] = None,
    columns: Map = None,
    drop_bad_rows: DropBadRows = False,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Let your own task file run code (!function, fetched metrics)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a task: splits and their sizes, metric, three examples with the right answer marked, train/test overlap."""
    from potentia import consent
    from potentia import tasks as library

    if allow_code:
        consent.allow(consent.CODE)
    own = library.OwnData((name,), columns=columns_of(columns), drop_bad_rows=drop_bad_rows) if columns else None
    task = library.load(name, data_dir=data_dir, seed=seed, own=own, drop_bad_rows=drop_bad_rows)
    found = library.overlap(task)
    prompts = task.prompts(task.documents("test")[:3])
    if as_json:
        print_json(_described(task, found.to_dict(), prompts))
        return
    parts = [(split, getattr(task.plan, split)) for split in ("train", "validation", "test")]
    rows = tuple((split, part.used, part.available, part.origin) for split, part in parts)
    several = f" · {len(task.subtasks)} subtasks" if len(task.subtasks) > 1 else ""
    direction = "higher is better" if task.higher_is_better else "lower is better"
    console.print(f"[bold]{escape(task.name)}[/bold] · {task.kind}{several} · {escape(task.metric)} ({direction})")
    print_table(Table("Splits", ("split", "documents", "before the cap", "comes from"), rows))
    for note in task.notes:
        console.print(note, markup=False, soft_wrap=True)
    for number, prompt in enumerate(prompts, start=1):
        _print_prompt(number, prompt)
    shared = (
        ("the same question", found.train_exact, found.test_exact),
        ("a run of 13 words", found.train_ngram, found.test_ngram),
    )
    print_table(Table("Shared by train and test", ("what", "documents of train", "of test"), shared))
    console.print(f"[dim]fingerprint {task.fingerprint}[/dim]")


def _described(task: Task, overlap: dict[str, Any], prompts: list[Prompt]) -> dict[str, Any]:
    return {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "metrics": task.metrics,
        "higher_is_better": task.higher_is_better,
        "subtasks": task.subtasks,
        "fingerprint": task.fingerprint,
        "splits": task.plan.to_dict(),
        "labels": task.labels,
        "notes": task.notes,
        "examples": [
            {"id": p.doc_id, "prompt": p.text, "choices": p.choices, "gold": p.gold, "requests": p.requests}
            for p in prompts
        ],
        "overlap": overlap,
    }


def _print_prompt(number: int, prompt: Prompt) -> None:
    console.print(f"[bold]Example {number}[/bold] [dim](document {prompt.doc_id})[/dim]")
    contexts = {getattr(request, "context", "") for request in prompt.requests}
    if len(contexts) == 1:
        console.print(escape(_shortened(prompt.text)), soft_wrap=True)
    if prompt.choices:
        right = set(prompt.gold.split(" | "))
        for choice, request in zip(prompt.choices, prompt.requests, strict=False):
            shown = choice if len(contexts) == 1 else choice + getattr(request, "continuation", "")
            mark = "[bold green]→[/bold green]" if choice in right else " "
            console.print(f"  {mark} {escape(_shortened(shown))}", soft_wrap=True)
    elif prompt.gold:
        console.print(f"  [bold green]→[/bold green] {escape(_shortened(prompt.gold))}", soft_wrap=True)
    console.print()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} … {text[-_LONG // 2 :]}"

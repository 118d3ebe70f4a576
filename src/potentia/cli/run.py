"""``potentia run`` and ``potentia status``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from potentia.cli.app import app
from potentia.cli.output import (
    DropBadRows,
    console,
    errors,
    print_classes,
    print_json,
    print_notes,
    print_scoreboard,
    print_table,
    print_training,
    training_of,
)
from potentia.errors import without_password

if TYPE_CHECKING:
    from potentia.analysis.rankings import Scoreboard
    from potentia.evidence import Evidence

SHOWN = 20  # models of the final table


@app.command("eval", hidden=True)  # what other tools call it
@app.command()
def run(
    study: Annotated[Path | None, typer.Argument(help="The study file; or use the flags alone.")] = None,
    models: Annotated[list[str] | None, typer.Option("--models", "--model", help="Hub names or folders.")] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(help="Folders of checkpoint-390, step1000 …, or hub names with such revisions.")
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--tasks", "--task", help="Harness tasks, name:form, or files.")
    ] = None,
    protocols: Annotated[list[str] | None, typer.Option(help="direct, few_shot:K, train_before_test, adjust.")] = None,
    drop_bad_rows: DropBadRows = False,
    name: Annotated[str | None, typer.Option(help="The study's name.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of benchmark splits, for work offline.")] = None,
    store: Annotated[str | None, typer.Option(help="SQLite file or database URL.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, orders and examples.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Fine-tuning seeds per cell.")] = None,
    learning_rates: Annotated[list[float] | None, typer.Option(help="The grid of learning rates.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    train: Annotated[int | None, typer.Option(help="Use at most this many training documents.")] = None,
    validation: Annotated[int | None, typer.Option(help="Use at most this many validation documents.")] = None,
    test: Annotated[int | None, typer.Option(help="Use at most this many test documents.")] = None,
    selection: Annotated[str | None, typer.Option(help="validation, tuned (never untuned), or paper.")] = None,
    race: Annotated[bool | None, typer.Option("--race/--no-race", help="Drop learning rates that fall behind.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Rows at once; 0 fits them to the GPUs; one on a CPU.")] = 0,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of a row; 0 shares the machine evenly.")] = 0,
    split: Annotated[
        bool | None,
        typer.Option("--split/--no-split", help="Tasks of a row to several workers; by itself for long rows on GPUs."),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Run the cells that tell the most, wave by wave.")
    ] = False,
    budget: Annotated[str | None, typer.Option(help="With --adaptive: stop after 30min, 2gpu-hours, 25% …")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="With --adaptive: stop when this agreement is expected.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="With --adaptive: who is among the first so many.")] = None,
    history: Annotated[list[str] | None, typer.Option(help="With --adaptive: scores of other models.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Let your own task files run code (!function, fetched metrics)."),
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Load weights that are pickles (*.bin), which can run code.")
    ] = False,
    allow_missing_weights: Annotated[
        bool,
        typer.Option("--allow-missing-weights", help="Score models whose files lack weights, these filled at random."),
    ] = False,
) -> None:
    """Run a study: every model, every task, every protocol. Run it again to resume.

    Examples:
      potentia run examples/first.yaml

      potentia run --models HuggingFaceTB/SmolLM2-135M --tasks arc_easy boolq --protocols direct train_before_test
    """
    from potentia import consent
    from potentia.analysis.benchmark import find_classification
    from potentia.cli.view import watch
    from potentia.errors import StudyError
    from potentia.run import default_workers, plan_study, run_study
    from potentia.study import read_study

    if study is None and not ((models or checkpoints) and tasks):
        raise StudyError(
            "give a study file, or both --models and --tasks",
            hint="potentia run --models A B --tasks arc_easy boolq --protocols direct train_before_test",
        )
    flags = {
        "models": [*(models or ()), *(_series(folder) for folder in checkpoints or ())] or None,
        "tasks": tasks,
        "protocols": protocols,
        "name": name,
        "drop_bad_rows": drop_bad_rows or None,
        "data_dir": str(data_dir) if data_dir else None,
        "store": store,
        "device": device,
        "dtype": dtype,
        "seed": seed,
        "seeds": seeds,
        "selection": selection,
        "tuning": {"learning_rates": learning_rates, "epochs": epochs, "race": race},
        "caps": {"train": train, "validation": validation, "test": test},
    }
    for flag, what in (
        (allow_code, consent.CODE),
        (allow_pickle, consent.PICKLE),
        (allow_missing_weights, consent.MISSING_WEIGHTS),
    ):
        if flag:
            consent.allow(what)
    made = read_study(study, flags)
    with errors.status("reading tasks and models …"):
        plan = plan_study(made)
    if plan.outdated:
        errors.print(
            f"{len(plan.outdated)} cells of this study were made by another version of Potentia, or of files that have"
            " changed since; they are computed anew.",
            soft_wrap=True,
        )
    if plan.damaged:
        errors.print(
            f"The items of {len(plan.damaged)} cells are missing or damaged; the cells are computed anew.",
            soft_wrap=True,
        )
    for note in plan.notes():
        errors.print(note, soft_wrap=True, markup=False)
    if dry_run:
        show_plan(plan, as_json=as_json)
        return
    if adaptive or budget or confidence:
        from potentia.cli.plan import run_adaptive

        at_once = workers or default_workers(plan)
        result = run_adaptive(plan, budget, confidence, top, history or [], at_once, watch, as_json)
    else:
        result = run_study(
            plan,
            workers=workers or default_workers(plan),
            threads=threads,
            executor=executor,
            watch=watch,
            split=split,
        )
    found = None if result.interrupted else scores_of(made.store, result.study)
    place = without_password(made.store)
    if as_json:
        scores: dict[str, Any] = {}
        if found is not None:
            scores = {"scoreboard": found[1].to_dict(), "scores": score_rows(found[0])}
            runs = training_of(found[0])
            scores |= {} if runs is None else {"training": runs.to_dict()}
        print_json({**vars(result), "store": place, **scores})
    else:
        if found is not None and (runs := training_of(found[0])) is not None:
            print_training(runs)
        elif found is not None:
            print_scoreboard(found[1], most=SHOWN, hint=f"potentia analyze rankings {shlex.quote(place)} --all")
            for one in find_classification(found[0]):
                console.print()
                print_classes(one)
        if found is not None:
            print_notes(found[0])
        of_run = bool(plan.rows) and all(row.model.series is not None for row in plan.rows)
        report_result(result, place, again=" ".join(_command()), of_run=of_run)
    raise typer.Exit(result.exit_code)


def scores_of(store: str, study: str) -> tuple[Evidence, Scoreboard] | None:
    """Return a study's scores and their scoreboard; None where there is no score to show."""
    from potentia.analysis.rankings import find_scoreboard
    from potentia.errors import InputError
    from potentia.evidence import read

    try:
        evidence = read(store, study=study)
        return evidence, find_scoreboard(evidence)
    except InputError:  # every cell failed; the reasons are told
        return None


def score_rows(evidence: Evidence) -> list[dict[str, Any]]:
    """Return every score as one record, as ``potentia export`` writes it."""
    return [
        {"protocol": protocol, "model": model, "task": task, "metric": matrix.metrics[j].name or None,
         "value": matrix.values[i, j], "stderr": matrix.stderr[i, j], "n": matrix.n[i, j]}
        for protocol, matrix in evidence.scores.items()
        for i, model in enumerate(matrix.models)
        for j, task in enumerate(matrix.tasks)
        if matrix.values[i, j] == matrix.values[i, j]
    ]  # fmt: skip


def show_plan(plan: Any, *, as_json: bool) -> None:
    """Print rows, cells and the cost of what is left."""
    from potentia.values.findings import Table

    cost = plan.cost()
    rows = tuple(
        (row.model.name, len(row.cells), sum(c.done for c in row.cells), len(row.pending), row.problem or "")
        for row in plan.rows
    )
    if as_json:
        print_json(
            {
                "cost": cost,
                "rows": [dict(zip(("model", "cells", "done", "pending", "problem"), r, strict=True)) for r in rows],
            }
        )
        return
    print_table(
        Table(
            title=f"Plan of {plan.study.name}",
            columns=("model", "cells", "done", "to do", "problem"),
            rows=rows,
            note=(
                f"To do: {cost['cells']:,} cells, {cost['lanes']:,} fine-tuning lanes, about "
                f"{cost['train_tokens'] / 1e6:,.1f} M tokens to train on"
                f" and {cost['score_tokens'] / 1e6:,.1f} M to score."
            ),
        )
    )


def _series(where: str) -> dict[str, str]:
    """Describe a pretraining run by the folder or repository of its checkpoints."""
    path = Path(where).expanduser()
    name = path.resolve().name if path.is_dir() else where.rpartition("/")[2]
    return {"name": name, "path": where, "checkpoints": where}


def report_result(result: Any, store: str, *, again: str, of_run: bool = False) -> None:
    """Say how the run ended and what to do next."""
    if result.interrupted:
        errors.print(f"[bold]Stopped.[/bold] Everything finished is saved in {escape(store)}.", soft_wrap=True)
        errors.print(f"To go on: [bold]{escape(again)}[/bold]", soft_wrap=True)  # one line: it is there to be pasted
        return
    console.print(
        f"\n[bold]{result.computed}[/bold] cells computed, {result.reused} found in {escape(store)}, "
        + (f"[red]{result.failed} failed[/red]" if result.failed else "none failed")
    )
    shown = result.reasons[:10] if errors.is_terminal else []  # elsewhere the lines above have said them
    for reason in shown:
        errors.print(f"  [red]failed[/red] {escape(reason)}", soft_wrap=True)
    if result.reasons[len(shown) :]:
        more = f"… and {len(result.reasons) - len(shown)} more" if shown else "why"
        errors.print(f"  {more}: potentia status {escape(shlex.quote(store))}", soft_wrap=True)
    shown = escape(shlex.quote(store))
    question = "checkpoints" if of_run else "rankings"
    console.print(f"Next: [bold]potentia report {shown}[/bold] or [bold]potentia analyze {question} {shown}[/bold]")


def _command() -> list[str]:
    import sys

    return ["potentia", *(shlex.quote(without_password(a)) for a in sys.argv[1:])]


@app.command()
def status(
    store: Annotated[str, typer.Argument(help="The store: a file or a database URL.")] = "potentia.db",
    study: Annotated[str | None, typer.Option(help="Only this study (its name or key).")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until Ctrl-C; in a pipe, a line a change.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say what a store holds: studies, cells done and failed, rows that run now.

    Example: potentia status potentia.db --watch
    """
    from potentia.cli.follow import follow
    from potentia.run import store_status

    if watch:
        follow(store, study, _print_status, as_json=as_json)
        return
    state = store_status(store, study)
    if as_json:
        print_json(state)
    else:
        _print_status(state)


def _print_status(state: dict[str, Any]) -> None:
    from potentia.cli.follow import running
    from potentia.values.findings import Table

    print_table(
        Table(
            title=f"Studies in {state['store']}",
            columns=("study", "key", "models", "tasks", "cells done", "asked", "failed", "running"),
            rows=tuple(
                (s["name"], s["key"][:8], s["models"], s["tasks"], s["done"], s["asked"], s["failed"], s["running"])
                for s in state["studies"]
            ),
        )
    )
    if any(one["running"] for one in state["studies"]):
        print_table(running(state))
    if state["failures"]:
        print_table(Table("Failed cells", ("model", "cells", "reason"), tuple(_in_one(state["failures"]))))


def _in_one(failures: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Give one row for each model and reason, however many cells failed for it."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for f in failures:
        grouped.setdefault((f["model"], f["reason"]), []).append(f"{f['task']} × {f['protocol']}")
    for (model, reason), cells in grouped.items():
        yield model, cells[0] if len(cells) == 1 else f"{len(cells)} cells", reason

"""``potentia run``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from potentia.cli import options
from potentia.cli.app import app
from potentia.cli.output import (
    console,
    errors,
    print_classes,
    print_json,
    print_notes,
    print_scoreboard,
    print_training,
    say,
    training_of,
)
from potentia.errors import without_password

if TYPE_CHECKING:
    from potentia.analysis.rankings import Scoreboard
    from potentia.evidence import Evidence
    from potentia.run import RunResult, StudyPlan

SHOWN = 20  # models of the final table


@app.command("eval", hidden=True)  # what other tools call it
@app.command()
def run(
    study: Annotated[Path | None, typer.Argument(help="The study file; or use the flags alone.")] = None,
    models: options.Models = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(help="Folders of checkpoint-390, step1000 …, or hub names with such revisions.")
    ] = None,
    tasks: options.Tasks = None,
    protocols: options.Protocols = None,
    drop_bad_rows: options.DropBadRows = False,
    name: Annotated[str | None, typer.Option(help="The study's name.")] = None,
    data_dir: options.DataDir = None,
    store: options.StoreUrl = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    seed: options.Seed = None,
    seeds: Annotated[int | None, typer.Option(help="Fine-tuning seeds per cell.")] = None,
    learning_rates: options.LearningRates = None,
    epochs: options.Epochs = None,
    train: options.Train = None,
    validation: options.Validation = None,
    test: options.Test = None,
    workers: Annotated[int, typer.Option(min=0, help="Rows at once; 0 fits them to the GPUs; one on a CPU.")] = 0,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of a row; 0 shares the machine evenly.")] = 0,
    split: Annotated[
        bool | None,
        typer.Option("--split/--no-split", help="Tasks of a row to several workers; by itself for long rows on GPUs."),
    ] = None,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Run the cells that tell most, wave by wave.")] = False,
    budget: Annotated[str | None, typer.Option(help="With --adaptive: stop after 30min, 2gpu-hours, 25% …")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="With --adaptive: stop when this agreement is expected.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="With --adaptive: who is among the first so many.")] = None,
    history: options.History = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, run nothing.")] = False,
    allow_code: options.AllowCode = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Load weights that are pickles (*.bin), which can run code.")
    ] = False,
    allow_missing_weights: Annotated[
        bool,
        typer.Option("--allow-missing-weights", help="Score models whose files lack weights, these filled at random."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run a study: every model, every task, every protocol. Run it again to resume.

    Examples:
      potentia run examples/first.yaml

      potentia run --models HuggingFaceTB/SmolLM2-135M --tasks arc_easy boolq --protocols direct train_before_test
    """
    from potentia import processes
    from potentia.cli.plan import run_adaptive
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
        "tuning": {"learning_rates": learning_rates, "epochs": epochs},
        "caps": {"train": train, "validation": validation, "test": test},
    }
    allowed = {
        processes.CODE: allow_code, processes.PICKLE: allow_pickle, processes.MISSING_WEIGHTS: allow_missing_weights,
    }  # fmt: skip
    for what in (what for what, said in allowed.items() if said):
        processes.allow(what)
    made = read_study(study, flags)
    with errors.status("reading tasks and models …") as status:
        plan = plan_study(made, tell=lambda text: status.update(f"{text} …"))
    say(*_notes(plan), to=errors)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    at_once = workers or default_workers(plan)
    if adaptive or budget or confidence:
        result = run_adaptive(plan, budget, confidence, top, history or [], at_once, watch, as_json)
    else:
        result = run_study(plan, workers=at_once, threads=threads, executor=executor, watch=watch, split=split)
    found = None if result.interrupted else _scores_of(made.store, result.study)
    place = without_password(made.store)
    if as_json:
        print_json({**vars(result), "store": place, **(_as_json(*found) if found else {})})
    else:
        if found is not None:
            _print_scores(*found, place)
        of_run = bool(plan.rows) and all(row.model.series is not None for row in plan.rows)
        _report_result(result, place, "checkpoints" if of_run else "rankings")
    raise typer.Exit(result.exit_code)


def _notes(plan: StudyPlan) -> list[str]:
    """Say what is computed anew and why, and what is to be known of the tasks."""
    told = []
    if plan.outdated:
        told.append(
            f"{len(plan.outdated)} cells of this study were made by another version of Potentia, or of files that have"
            " changed since; they are computed anew."
        )
    if plan.damaged:
        told.append(f"The items of {len(plan.damaged)} cells are missing or damaged; the cells are computed anew.")
    return [*told, *plan.notes()]


def _scores_of(store: str, study: str) -> tuple[Evidence, Scoreboard] | None:
    """Return a study's scores and their scoreboard; None where there is no score to show."""
    from potentia.analysis.rankings import find_scoreboard
    from potentia.errors import InputError
    from potentia.evidence import read

    try:
        evidence = read(store, study=study)
        return evidence, find_scoreboard(evidence)
    except InputError:  # every cell failed; the reasons are told
        return None


def _as_json(evidence: Evidence, board: Scoreboard) -> dict[str, Any]:
    """Return the scoreboard, every score as one record, as ``potentia export`` writes it, and pretraining runs."""
    scores = [
        {"protocol": protocol, "model": model, "task": task, "metric": score.metric.name or None,
         "value": score.value, "stderr": score.stderr, "n": score.n}
        for protocol, matrix in evidence.scores.items()
        for model, task, score in matrix.scores()
    ]  # fmt: skip
    runs = training_of(evidence)
    return {"scoreboard": board.to_dict(), "scores": scores, **({"training": runs.to_dict()} if runs else {})}


def _print_scores(evidence: Evidence, board: Scoreboard, store: str) -> None:
    from potentia.analysis.benchmark import find_classification

    if (runs := training_of(evidence)) is not None:
        print_training(runs)
    else:
        print_scoreboard(board, most=SHOWN, hint=f"potentia analyze rankings {shlex.quote(store)} --all")
        for one in find_classification(evidence):
            console.print()
            print_classes(one)
    print_notes(evidence)


def _show_plan(plan: StudyPlan, *, as_json: bool) -> None:
    """Print rows, cells and the cost of what is left."""
    from potentia.cli.output import answer, dicts
    from potentia.cli.plan import short
    from potentia.values.findings import Table

    cost = plan.cost()
    rows = tuple(
        (row.model.name, len(row.cells), sum(c.done for c in row.cells), len(row.pending), row.problem or "")
        for row in plan.rows
    )
    note = (
        f"To do: {cost['cells']:,} cells, {cost['lanes']:,} fine-tuning lanes, about "
        f"{short(cost['train_tokens'])} tokens to train on and {short(cost['score_tokens'])} to score."
    )
    table = Table(f"Plan of {plan.study.name}", ("model", "cells", "done", "to do", "problem"), rows, note=note)
    found = dicts(("model", "cells", "done", "pending", "problem"), rows)
    answer(as_json, {"cost": cost, "rows": found}, table)


def _series(where: str) -> dict[str, str]:
    """Describe a pretraining run by the folder or repository of its checkpoints."""
    path = Path(where).expanduser()
    name = path.resolve().name if path.is_dir() else where.rpartition("/")[2]
    return {"name": name, "path": where, "checkpoints": where}


def _report_result(result: RunResult, store: str, question: str) -> None:
    """Say how the run ended and what to do next."""
    shown = escape(shlex.quote(store))
    if result.interrupted:
        again = " ".join(["potentia", *(shlex.quote(without_password(a)) for a in sys.argv[1:])])
        errors.print(f"[bold]Stopped.[/bold] Everything finished is saved in {escape(store)}.", soft_wrap=True)
        errors.print(f"To go on: [bold]{escape(again)}[/bold]", soft_wrap=True)  # one line: it is there to be pasted
        return
    console.print(
        f"\n[bold]{result.computed}[/bold] cells computed, {result.reused} found in {escape(store)}, "
        + (f"[red]{result.failed} failed[/red]" if result.failed else "none failed")
    )
    reasons = result.reasons[:10] if errors.is_terminal else []  # elsewhere the lines above have said them
    for reason in reasons:
        errors.print(f"  [red]failed[/red] {escape(reason)}", soft_wrap=True)
    if result.reasons[len(reasons) :]:
        more = f"… and {len(result.reasons) - len(reasons)} more" if reasons else "why"
        errors.print(f"  {more}: potentia status {shown}", soft_wrap=True)
    console.print(f"Next: [bold]potentia report {shown}[/bold] or [bold]potentia analyze {question} {shown}[/bold]")

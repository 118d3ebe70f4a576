"""``potentia plan``: what a study will cost, and which of its cells are worth their cost."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potentia.cli import options
from potentia.cli.app import app
from potentia.cli.output import errors, print_json, print_table, say
from potentia.errors import InputError, StudyError, without_password

if TYPE_CHECKING:
    from potentia.run import RunResult, StudyCost, StudyPlan
    from potentia.values.findings import Cell, Table


@app.command()
def plan(
    study: Annotated[Path | None, typer.Argument(help="The study file; or use the flags alone.")] = None,
    models: options.Models = None,
    tasks: options.Tasks = None,
    data_dir: options.DataDir = None,
    store: options.StoreUrl = None,
    device: options.Device = None,
    budget: Annotated[str | None, typer.Option(help="Choose cells for 30min, 2gpu-hours, 10% …")] = None,
    confidence: Annotated[float | None, typer.Option(help="Choose cells until this much is expected.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="What matters is who is among the first so many.")] = None,
    history: options.History = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The study file to write.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Time the engine on a few documents first.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Say what a study will cost; with a budget or a confidence, which cells to run, as a study of its own.

    Examples:
      potentia plan study.yaml

      potentia plan study.yaml --budget 2gpu-hours --history earlier.db -o first.yaml
    """
    from potentia.run import estimate_cost, plan_study, read_budget
    from potentia.study import read_study

    if budget is not None:
        read_budget(budget, 1.0)  # what cannot be read is said before anything is timed
    if study is None and not (models and tasks):
        raise StudyError("give a study file, or both --models and --tasks", hint="potentia plan study.yaml")
    folder = str(data_dir) if data_dir else None
    made = read_study(study, {"models": models, "tasks": tasks, "data_dir": folder, "store": store, "device": device})
    with errors.status("reading tasks and models …") as status:
        planned = plan_study(made, tell=lambda text: status.update(f"{text} …"))
        cost = estimate_cost(planned, calibrate=calibrate, tell=lambda text: status.update(f"{text} …"))
    chosen = None
    if budget is not None or confidence is not None:
        chosen = _choose(planned, cost, budget, confidence, top, history or [])
    if as_json:
        found = {"study": made.name, "device": cost.device, "times": cost.source or None, **_totals(planned, cost)}
        found |= {"cells": [vars(cell) for cell in cost.cells]}
        print_json(found | ({} if chosen is None else {"plan": chosen[0].to_dict(), "completion": chosen[1].to_dict()}))
    else:
        for table in cost_tables(planned, cost):
            print_table(table)
        if chosen is not None:
            for table in (*chosen[1].tables()[:1], *chosen[0].tables()):
                print_table(table)
    if chosen is not None:
        _write(planned, chosen[0].cells, output, as_json)


def _choose(
    planned: Any, cost: Any, budget: str | None, confidence: float | None, top: int | None, history: list[str]
) -> Any:
    from potentia.analysis.planning import choose_cells
    from potentia.evidence import read
    from potentia.run import complete_study, costs_of, grid_of, read_budget

    completion = complete_study(planned, history=read(*history) if history else None)
    costs = costs_of(grid_of(planned), cost)
    whole = float(sum(v for v in costs.values.ravel() if v == v))
    room = None if budget is None else read_budget(budget, whole)
    if room is not None and costs.unit != "seconds" and not str(budget).rstrip().endswith("%"):
        told = "no times are known, so a budget in time says nothing"
        raise InputError(told, hint="leave --calibrate on, or say 10%")
    return choose_cells(completion, costs, budget=room, confidence=confidence, top=top), completion


def _write(planned: Any, cells: Any, output: Path | None, as_json: bool) -> None:
    from potentia.run import proposed_study, study_text

    if output is None:
        return
    if output.exists():
        raise InputError("the file is there already", where=str(output), hint="give a new name with --output")
    study = proposed_study(planned.study, cells, name=f"{planned.study.name}-chosen")
    text = study_text(study, f"potentia run {shlex.quote(str(output))}")
    bare = without_password(text).replace(":***@", "@")  # PostgreSQL takes it from PGPASSWORD or ~/.pgpass
    from potentia.files import write_file

    write_file(output, bare)
    if bare != text:
        say("The password of the store is not in the file: have it in PGPASSWORD or ~/.pgpass.", to=errors)
    if not as_json:
        say(f"{output}: the chosen cells as a study. Next: potentia run {shlex.quote(str(output))}")


def run_adaptive(
    planned: StudyPlan,
    budget: str | None,
    confidence: float | None,
    top: int | None,
    history: list[str],
    workers: int,
    watch: Any,
    as_json: bool,
) -> RunResult:
    """Run a study by need and show what is known in the end; predictions stay apart from scores."""
    from potentia.evidence import read
    from potentia.run import AdaptiveRun

    run = AdaptiveRun(
        planned, budget=budget, confidence=confidence, top=top, history=read(*history) if history else None,
        workers=workers, watch=watch, tell=lambda text: errors.print(f"{text} …", style="dim"),
    )  # fmt: skip
    result, completion, following = run.run()
    if not as_json:
        print_table(completion.tables()[0])
        if confidence is not None and following is not None and following.now.value >= confidence:
            errors.print(f"The confidence asked for is reached: {following.now.value:.3f}.")
    return result


def _totals(planned: StudyPlan, cost: StudyCost) -> dict[str, Any]:
    left = cost.pending
    return {
        "cells_to_do": len(left),
        "cells_done": len(cost.cells) - len(left),
        "lanes": round(sum(cell.lanes for cell in left)),
        "train_tokens": sum(cell.train_tokens for cell in left),
        "score_tokens": sum(cell.score_tokens for cell in left),
        "flops": sum(cell.flops for cell in left),
        "seconds": cost.seconds(anew=True),
        "hours": cost.seconds(anew=True) / 3600,
        "problems": {row.model.name: row.problem for row in planned.rows if row.problem},
    }


def cost_tables(planned: StudyPlan, cost: StudyCost) -> list[Table]:
    """Return the cost by row and by task."""
    from potentia.run import tell_time
    from potentia.values.findings import Table

    total = _totals(planned, cost)
    rows: list[tuple[Cell, ...]] = []
    for row in planned.rows:
        own = [c for c in cost.cells if c.model == row.model.name]
        left = [c for c in own if not c.done]
        load = cost.loads[row.model.name] if left else 0.0
        rows.append(
            (
                row.model.name, len(own) - len(left), len(left), round(sum(c.lanes for c in left)),
                short(sum(c.train_tokens for c in left)), short(sum(c.score_tokens for c in left)),
                short(sum(c.flops for c in left)), short(cost.weights[row.model.name], "B"),
                tell_time(sum(c.seconds for c in left) + load), row.problem or "",
            )
        )  # fmt: skip
    whole = sum(c.seconds for c in cost.pending) or 1.0
    tasks = []
    for name in planned.tasks.benchmarks:
        left = [c for c in cost.pending if c.task == name]
        seconds = sum(c.seconds for c in left)
        share = seconds / whole if whole == whole else sum(c.flops for c in left) / max(total["flops"], 1.0)
        tasks.append((name, len(left), short(sum(c.train_tokens for c in left)), tell_time(seconds), f"{share:.0%}"))
    per_device = "GPU-hours" if cost.device == "cuda" else "hours of this machine"
    told = f"from {cost.source}" if cost.source else "times are not known: leave --calibrate on"
    note = (
        f"To do: {total['cells_to_do']:,} cells ({total['cells_done']:,} in the store), {total['lanes']:,} lanes, "
        f"{short(total['train_tokens'])} tokens to train on and {short(total['score_tokens'])} to score, "
        f"{short(total['flops'])} FLOPs, {tell_time(total['seconds'])} on {cost.device}"
        + (f" = {total['hours']:.3g} {per_device}" if total["hours"] == total["hours"] else "")
        + (f", {tell_time(cost.start)} of it before the first cell" if cost.start >= 1 and cost.pending else "")
        + f" ({told})."
    )
    columns: tuple[str, ...] = (
        "model", "in store", "to do", "lanes", "train", "score", "FLOPs", "weights", "time", "problem",
    )  # fmt: skip
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return [
        Table(f"Plan of {planned.study.name}", columns, tuple(rows), note=note),
        Table("By task", ("task", "to do", "train", "time", "share"), tuple(tasks)),
    ]


def short(value: float, unit: str = "") -> str:
    """Say a large number with a prefix: 3.2 M."""
    if value != value:
        return "?"
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()

"""``run``; ``plan``: what a study will cost, and which cells are worth it; ``analyze elicitation``, which tunes."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

import potentia
from potentia.cli import options as shared
from potentia.cli import output as out
from potentia.cli.app import analyze, app
from potentia.cli.options import argument, command, flag, many, option, output, overrides
from potentia.errors import InputError, StudyError, without_password
from potentia.values.findings import Cell, Table

SHOWN = 20  # models of the final table
FILE = argument("The study file; or use the flags alone.", "STUDY", Path | None, None)
CONSENT = {
    "allow_code": "CODE",
    "allow_pickle": "PICKLE",
    "allow_missing_weights": "MISSING_WEIGHTS",
}


@command(
    app,
    "run",
    study=FILE,
    **shared.STUDY,
    workers=shared.WORKERS,
    executor=option("local or ray.", str, "local"),
    threads=option("CPU threads of a row; 0 shares the machine evenly.", int, 0, min=0),
    split=flag(
        "--split/--no-split",
        "Tasks of a row to several workers; by itself for long rows on GPUs.",
        None,
    ),
    adaptive=flag(
        "--adaptive",
        "Run the cells that tell most, wave by wave; so with a budget or a confidence.",
    ),
    **shared.ADAPTIVE,
    allow_code=shared.ALLOW_CODE,
    allow_pickle=flag(
        "--allow-pickle", "Load weights that are pickles (*.bin), which can run code."
    ),
    allow_missing_weights=flag(
        "--allow-missing-weights", "Score models whose files lack weights, these filled at random."
    ),
)
def run(asked: Any) -> None:
    """Run a study: every model, every task, every protocol. Run it again to resume.

    Examples:
      potentia run examples/first.yaml

      potentia run --models HuggingFaceTB/SmolLM2-135M --tasks arc_easy boolq --protocols direct train_before_test
    """
    from potentia.cli.view import watch

    for name, what in CONSENT.items():
        if getattr(asked, name):
            potentia.files.allow(getattr(potentia.files, what))
    made = _asked_study(asked)
    adaptive = asked.adaptive or asked.budget or asked.confidence
    early = (
        0
        if adaptive or asked.executor != "local"
        else potentia.run.estimate_worker_count(made, asked.workers)
    )
    with potentia.run.WorkerProcesses(early, made) as crew:
        with out.status("reading tasks and models") as tell:
            plan = potentia.run.plan_study(made, tell=tell)
        out.say(*_notes(plan), to=out.errors)
        workers = asked.workers or potentia.run.choose_worker_count(plan)
        if adaptive:
            result = _run_adaptive(plan, asked, workers, watch)
        else:
            how = {"threads": asked.threads, "executor": asked.executor, "split": asked.split}
            result = potentia.run.run_study(plan, workers=workers, watch=watch, crew=crew, **how)
    found = None if result.interrupted else _scores_of(made.store, result.study)
    place = without_password(made.store)
    if asked.as_json:
        out.print_json({**vars(result), "store": place, **(_as_json(*found) if found else {})})
    else:
        if found is not None:
            _print_scores(*found, place)
        of_run = bool(plan.rows) and all(row.model.series is not None for row in plan.rows)
        _report_result(result, place, "checkpoints" if of_run else "rankings")
    raise typer.Exit(result.exit_code)


def _asked_study(asked: Any) -> potentia.Study:
    """Read the study file and what the flags say."""
    if asked.study is None and not ((asked.models or asked.checkpoints) and asked.tasks):
        raise StudyError(
            "give a study file, or both --models and --tasks",
            hint="potentia run --models A B --tasks arc_easy boolq --protocols direct train_before_test",
        )
    file = shlex.quote(str(asked.study))
    if asked.study is not None and asked.study.suffix in (".csv", ".db", ".parquet"):
        hint = f"scores are read by: potentia report {file}"
        raise StudyError("this is no study file", where=str(asked.study), hint=hint)
    if asked.study is not None and not asked.study.exists():
        raise StudyError(
            "there is no such file", where=str(asked.study), hint=f"potentia init {file} writes one"
        )
    return potentia.study.read_study(asked.study, overrides(asked))


def _run_adaptive(
    planned: potentia.run.StudyPlan, asked: Any, workers: int, watch: Any
) -> potentia.run.RunResult:
    """Run a study by need and show what is known in the end; predictions stay apart from scores."""
    run = potentia.run.AdaptiveRun(
        planned,
        budget=asked.budget,
        confidence=asked.confidence,
        top=asked.top,
        workers=workers,
        watch=watch,
        history=out.history(asked),
        tell=lambda text: out.errors.print(f"{text} …", style="dim"),
    )
    result, completion, following = run.run()
    if not asked.as_json:
        out.print_table(completion.tables()[0])
        if (
            asked.confidence is not None
            and following is not None
            and following.now.value >= asked.confidence
        ):
            out.errors.print(f"The confidence asked for is reached: {following.now.value:.3f}.")
    return result


def _notes(plan: potentia.run.StudyPlan) -> list[str]:
    """Say what is computed anew and why, and what is to be known of the tasks."""
    told = []
    if plan.outdated:
        told.append(
            f"{len(plan.outdated)} cells of this study were made by another version of Potentia, or of files that have"
            " changed since; they are computed anew."
        )
    if plan.damaged:
        told.append(
            f"The items of {len(plan.damaged)} cells are missing or damaged; the cells are computed anew."
        )
    return [*told, *plan.collect_notes()]


def _scores_of(
    store: str, study: str
) -> tuple[potentia.Evidence, potentia.analysis.rankings.Scoreboard] | None:
    """Return a study's scores and their scoreboard; None where there is no score to show."""
    try:
        evidence = potentia.evidence.read(store, study=study)
        return evidence, potentia.analysis.rankings.build_scoreboard(evidence)
    except InputError:  # every cell failed; the reasons are told
        return None


def _as_json(
    evidence: potentia.Evidence, board: potentia.analysis.rankings.Scoreboard
) -> dict[str, Any]:
    """Return the scoreboard, every score as one record, as ``potentia export`` writes it, and pretraining runs."""
    scores = [
        {
            "protocol": protocol,
            "model": model,
            "task": task,
            "metric": score.metric.name or None,
            "value": score.value,
            "stderr": score.stderr,
            "n": score.n,
        }
        for protocol, matrix in evidence.scores.items()
        for model, task, score in matrix.scores()
    ]
    runs = out.training_of(evidence)
    return {
        "scoreboard": board.to_dict(),
        "scores": scores,
        **({"training": runs.to_dict()} if runs else {}),
    }


def _print_scores(
    evidence: potentia.Evidence, board: potentia.analysis.rankings.Scoreboard, store: str
) -> None:
    if (runs := out.training_of(evidence)) is not None:
        out.print_told(runs.tables()[:1], runs.sentences(), runs.headline())
    else:
        out.print_scoreboard(
            board, most=SHOWN, hint=f"potentia analyze rankings {shlex.quote(store)} --all"
        )
        for one in potentia.analysis.benchmark.find_classification(evidence):
            out.console.print()
            out.print_classes(one)
    out.print_notes(evidence)


def _report_result(result: potentia.run.RunResult, store: str, question: str) -> None:
    """Say how the run ended and what to do next."""
    shown = escape(shlex.quote(store))
    if result.interrupted:
        again = " ".join(["potentia", *(shlex.quote(without_password(a)) for a in sys.argv[1:])])
        out.errors.print(
            f"[bold]Stopped.[/bold] Everything finished is saved in {escape(store)}.",
            soft_wrap=True,
        )
        out.errors.print(f"To go on: [bold]{escape(again)}[/bold]", soft_wrap=True)
        return
    out.console.print(
        f"\n[bold]{result.computed}[/bold] cells computed, {result.reused} found in {escape(store)}, "
        + (f"[red]{result.failed} failed[/red]" if result.failed else "none failed")
    )
    reasons = (
        result.reasons[:10] if out.errors.is_terminal else []
    )  # elsewhere the lines above have said them
    for reason in reasons:
        out.errors.print(f"  [red]failed[/red] {escape(reason)}", soft_wrap=True)
    if result.reasons[len(reasons) :]:
        more = f"… and {len(result.reasons) - len(reasons)} more" if reasons else "why"
        out.errors.print(f"  {more}: potentia status {shown}", soft_wrap=True)
    out.console.print(
        f"Next: [bold]potentia report {shown}[/bold] or [bold]potentia analyze {question} {shown}[/bold]"
    )


@command(
    app,
    "plan",
    study=FILE,
    **shared.STUDY,
    **shared.ADAPTIVE,
    output=output("The study file to write.", None, Path | None),
    calibrate=flag("--calibrate/--no-calibrate", "Time the engine on a few documents first.", True),
)
def plan(asked: Any) -> None:
    """Say what a study will cost; with a budget or a confidence, which cells to run, as a study of its own.

    Examples:
      potentia plan study.yaml

      potentia plan study.yaml --budget 2gpu-hours --history earlier.db -o first.yaml
    """
    if asked.budget is not None:
        potentia.run.parse_budget(
            asked.budget, 1.0
        )  # what cannot be read is said before anything is timed
    made = _asked_study(asked)
    with out.status("reading tasks and models") as tell:
        planned = potentia.run.plan_study(made, tell=tell)
        cost = potentia.run.estimate_cost(planned, calibrate=asked.calibrate, tell=tell)
    out.say(*_notes(planned), to=out.errors)
    told, tables = _tell_cost(planned, cost)
    cells = None
    if asked.budget is not None or asked.confidence is not None:
        chosen, completion = _choose(planned, cost, asked)
        told |= {"plan": chosen.to_dict(), "completion": completion.to_dict()}
        tables += [completion.tables()[0], *chosen.tables()]
        cells = chosen.cells
    out.answer(asked.as_json, told, *tables)
    if cells is not None and asked.output is not None:
        _write(planned, cells, asked.output, asked.as_json)


def _tell_cost(
    planned: potentia.run.StudyPlan, cost: potentia.run.StudyCost
) -> tuple[dict[str, Any], list[Table]]:
    """Return what a study will cost, for scripts and for people: by row and by task."""
    total = _sums(cost.cells)
    total |= {"cells_done": len(cost.cells) - total["cells_to_do"], "lanes": round(total["lanes"])}
    total |= {"seconds": cost.seconds, "hours": cost.seconds / 3600}
    problems = {row.model.name: row.problem for row in planned.rows if row.problem}
    columns = (
        "model",
        "in store",
        "to do",
        "lanes",
        "train",
        "score",
        "FLOPs",
        "weights",
        "time",
        "problem",
    )
    most = len(columns) - (not problems)
    by_row = tuple(_row_cost(row, cost)[:most] for row in planned.rows)
    by_task = tuple(_task_cost(name, cost) for name in planned.tasks.by_name)
    told = {
        "study": planned.study.name,
        "device": cost.device,
        "times": cost.source or None,
        **total,
    }
    return {**told, "problems": problems, "cells": cost.cells}, [
        Table(
            f"Plan of {planned.study.name}", columns[:most], by_row, note=_cost_note(cost, total)
        ),
        Table("By task", ("task", "to do", "train", "time", "share"), by_task),
    ]


def _choose(
    planned: potentia.run.StudyPlan, cost: potentia.run.StudyCost, asked: Any
) -> tuple[Any, Any]:
    """Choose the cells that are worth their cost, with what is expected of the whole study."""
    completion = potentia.run.complete_study(planned, history=out.history(asked))
    costs = potentia.run.price_grid(potentia.run.make_grid(planned), cost)
    room = potentia.run.convert_budget(asked.budget, costs, "leave --calibrate on, or say 10%")
    return potentia.analysis.planning.choose_cells(
        completion, costs, budget=room, confidence=asked.confidence, top=asked.top
    ), completion


def _write(planned: Any, cells: Any, output: Path, as_json: bool) -> None:
    """Write the chosen cells as a study of its own, without the password of its store."""
    if output.exists():
        raise InputError(
            "the file is there already", where=str(output), hint="give a new name with --output"
        )
    study = potentia.run.make_proposed_study(
        planned.study, cells, name=f"{planned.study.name}-chosen"
    )
    text = potentia.run.render_study(study, f"potentia run {shlex.quote(str(output))}")
    bare = without_password(text).replace(
        ":***@", "@"
    )  # PostgreSQL takes it from PGPASSWORD or ~/.pgpass
    potentia.files.write_file(output, bare)
    if bare != text:
        out.say(
            "The password of the store is not in the file: have it in PGPASSWORD or ~/.pgpass.",
            to=out.errors,
        )
    if not as_json:
        out.say(
            f"{output}: the chosen cells as a study. Next: potentia run {shlex.quote(str(output))}"
        )


AMOUNTS = ("lanes", "train_tokens", "score_tokens", "flops", "seconds")


def _sums(cells: Iterable[Any]) -> dict[str, Any]:
    """Add up what the cells that are not done will take."""
    left = [cell for cell in cells if not cell.finished]
    return {
        "cells_to_do": len(left),
        **{part: sum(getattr(cell, part) for cell in left) for part in AMOUNTS},
    }


def _row_cost(row: Any, cost: potentia.run.StudyCost) -> tuple[Cell, ...]:
    name = row.model.name
    own = [cell for cell in cost.cells if cell.model == name]
    left = _sums(own)
    todo = left["cells_to_do"]
    tokens = [short(left[part]) for part in ("train_tokens", "score_tokens", "flops")]
    time = potentia.run.format_time(left["seconds"] + (cost.loads[name] if todo else 0.0))
    weights = short(cost.weights[name], "B")
    return (
        name,
        len(own) - todo,
        todo,
        round(left["lanes"]),
        *tokens,
        weights,
        time,
        row.problem or "",
    )


def _task_cost(name: str, cost: potentia.run.StudyCost) -> tuple[Cell, ...]:
    whole, own = _sums(cost.cells), _sums(cell for cell in cost.cells if cell.task == name)
    by = "flops" if math.isnan(whole["seconds"]) else "seconds"
    share = own[by] / (whole[by] or 1.0)
    return (
        name,
        own["cells_to_do"],
        short(own["train_tokens"]),
        potentia.run.format_time(own["seconds"]),
        f"{share:.0%}",
    )


def _cost_note(cost: potentia.run.StudyCost, total: dict[str, Any]) -> str:
    time = f"{potentia.run.format_time(total['seconds'])} on {cost.device}"
    if not math.isnan(total["hours"]):
        time += f" = {total['hours']:.3g} {'GPU-hours' if cost.device == 'cuda' else 'hours of this machine'}"
    if cost.start >= 1 and cost.pending:
        time += f", {potentia.run.format_time(cost.start)} of it before the first cell"
    source = f"from {cost.source}" if cost.source else "times are not known: leave --calibrate on"
    return (
        f"To do: {total['cells_to_do']:,} cells ({total['cells_done']:,} in the store), {total['lanes']:,} lanes, "
        f"{short(total['train_tokens'])} tokens to train on and {short(total['score_tokens'])} to score, "
        f"{short(total['flops'])} FLOPs, {time} ({source})."
    )


def short(value: float, unit: str = "") -> str:
    """Say a large number with a prefix: 3.2 M."""
    if value != value:
        return "?"
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


@command(
    analyze,
    "elicitation",
    study=argument("The study file.", "STUDY", Path),
    models=many("Of the study; else all."),
    tasks=many("Of the study; else the first three."),
    rank=option("The higher rank of adapters.", int, 64, min=1),
    data_dir=shared.STUDY["data_dir"],
    store=shared.STUDY["store"],
    workers=shared.WORKERS,
)
def elicitation(asked: Any) -> None:
    """Tune some cells of a study by adapters of a higher rank and by all weights too, and compare the rankings.

    Each way searches its own learning rate. What the store has is not computed again.

    Example:
      potentia analyze elicitation study.yaml --tasks arc_easy boolq --rank 64
    """
    folder = str(asked.data_dir) if asked.data_dir else None
    made = potentia.study.read_study(asked.study, {"store": asked.store, "data_dir": folder})
    with out.errors.status("tuning in three ways …"):
        found = potentia.run.run_elicitation(
            made,
            models=asked.models or (),
            tasks=asked.tasks or (),
            rank=asked.rank,
            workers=asked.workers or 1,
        )
    out.print_findings({"elicitation": found}, as_json=asked.as_json)

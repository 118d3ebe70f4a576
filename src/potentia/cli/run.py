"""``run``: a study, what it will cost, and its file; ``papers elicitation``, which tunes."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

import potentia
from potentia.cli.app import app, papers
from potentia.cli.command import command
from potentia.cli.option_groups import (
    Allow,
    History,
    OptionalText,
    OutputOptions,
    StudyOptions,
    Workers,
    give_consent,
    read_history,
)
from potentia.cli.output import (
    console,
    error_console,
    find_pretraining_runs,
    is_quiet,
    print_answer,
    print_classification,
    print_findings,
    print_json,
    print_lines,
    print_notes,
    print_scoreboard,
    print_stopped,
    print_table,
    print_tables_and_sentences,
    show_status,
)
from potentia.cli.study_file import write_study_file
from potentia.errors import InputError, StudyError, without_password
from potentia.extras import Extra
from potentia.hub import check_model_folders
from potentia.values.findings import Table, TableValue
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.analysis.completion import Completion
    from potentia.analysis.planning import NextCells, StudyPower
    from potentia.analysis.rankings import Scoreboard
    from potentia.run import CellWork, Row, RunResult, StudyCost, StudyPlan

MAX_MODELS_SHOWN = 20  # of the final table
MAX_REASONS_SHOWN = 10
LEAST_HOURS = 0.1  # that a time is also written in

WatchStudy = Callable[["StudyPlan"], AbstractContextManager[None]]
StudyFile = Annotated[
    Path | None,
    typer.Argument(metavar="STUDY", help="The study file; the options alone will do, too."),
]


def _check_study_file(study_file: Path) -> None:
    """Refuse a file of scores, and a file that does not exist, with the command that helps."""
    quoted = shlex.quote(str(study_file))
    if study_file.suffix in (".csv", ".db", ".parquet"):
        raise StudyError(
            "this is not a study file",
            where=str(study_file),
            hint=f"scores are read by: potentia report {quoted}",
        )
    if not study_file.exists():
        raise StudyError(
            "there is no such file",
            where=str(study_file),
            hint=f"potentia run --save {quoted} --models … --tasks … writes one",
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions(StudyOptions):
    """The options of ``potentia run``."""

    study: StudyFile = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the study will cost, and run nothing.")
    ] = False
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the study to this file, and run nothing."),
    ] = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait for new checkpoints, until Ctrl-C.")
    ] = False
    budget: Annotated[
        OptionalText,
        typer.Option(
            metavar="TIME", help="Run the most informative part for 30min, 2gpu-hours, 10% …"
        ),
    ] = None
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="TAU", help="Stop at this expected agreement with the whole study, as 0.95."
        ),
    ] = None
    history: History = None
    workers: Workers = 0
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="Where models run: local, ray or slurm.")
    ] = "local"
    allow: Allow = None

    @property
    def is_adaptive(self) -> bool:
        """Whether a part of the study is chosen as it goes."""
        return bool(self.budget or self.confidence)

    def read_study(self) -> potentia.Study:
        """Read the study file and what the flags say."""
        has_models = bool(self.models or self.checkpoints)
        if self.study is None and not (has_models and self.tasks):
            raise StudyError(
                "give a study file, or both --models and --tasks",
                hint="potentia run --models A B --tasks arc_easy boolq"
                " --protocols direct train_before_test",
            )
        if self.study is not None:
            _check_study_file(self.study)
        study = potentia.study.read_study(self.study, self.study_settings())
        check_model_folders(row.path or row.name for row in study.rows())
        return study


@command(app, "run", RunOptions, needs=Extra.RUN)
def run(options: RunOptions) -> None:
    """Run a study: every model, every task, before and after the same fine-tuning. Run it again to resume.

    Examples:
      potentia run --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --tasks arc_easy boolq

      potentia run --models HuggingFaceTB/SmolLM2-135M --tasks my-questions.csv --save study.yaml

      potentia run study.yaml --dry-run

      potentia run study.yaml --budget 2gpu-hours

      potentia run --checkpoints out/ --tasks arc_easy --watch
    """
    give_consent(options.allow)
    if options.save is not None and not options.is_adaptive:
        write_study_file(options.save, options)
        return
    if options.dry_run or options.save is not None:
        _show_cost(options)
        return
    if options.watch:
        _follow_checkpoints(options)
        return
    result = _run_once(options)
    raise typer.Exit(result.exit_code)


def _run_once(options: RunOptions) -> RunResult:
    """Run what is not done yet of the study, and print the scores."""
    from potentia.cli.progress_view import watch_study

    study = options.read_study()
    early_workers = 0
    if options.executor == "local" and not options.is_adaptive:
        early_workers = potentia.run.estimate_worker_count(study, options.workers)
    with potentia.run.WorkerProcesses(early_workers, study) as processes:
        with show_status("reading tasks and models") as update_status:
            study_plan = potentia.run.plan_study(study, report=update_status)
        print_lines(*_plan_notes(study_plan), to=error_console)
        workers = options.workers or potentia.run.choose_worker_count(study_plan)
        if options.is_adaptive:
            result = _run_adaptive(study_plan, options, workers, watch_study)
        else:
            result = potentia.run.run_study(
                study_plan,
                workers=workers,
                watch=watch_study,
                processes=processes,
                executor=options.executor,
            )
    _print_result(study_plan, result, options.as_json)
    return result


WATCH_SECONDS = (
    10.0  # between two looks for new checkpoints; one that was written to since then waits
)


def _follow_checkpoints(options: RunOptions) -> None:
    """Run the study, and again whenever a checkpoint was added, until interrupted."""
    if not options.checkpoints:
        raise InputError(
            "--watch waits for checkpoints",
            hint="potentia run --checkpoints FOLDER --tasks … --watch",
        )
    finished: tuple[str, ...] = ()
    is_announced = False
    while True:
        checkpoints = _list_settled_checkpoints(options.checkpoints)
        if checkpoints and checkpoints != finished:
            result = _run_once(options)
            if result.interrupted:
                raise typer.Exit(result.exit_code)
            potentia.run.absorb_shorter_studies(options.read_study().store, result.study)
            finished = checkpoints
            is_announced = False
        if not is_announced:
            folders = ", ".join(options.checkpoints)
            print_lines(f"Waiting for new checkpoints in {folders}; Ctrl-C ends.", to=error_console)
            is_announced = True
        try:
            time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            return


def _list_settled_checkpoints(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the checkpoints of all sources; none while one of them is still being written."""
    checkpoint_names = []
    for source in sources:
        try:
            checkpoints = potentia.study.list_checkpoints_at(source)
        except ValueError:  # there is none yet
            continue
        for checkpoint in checkpoints:
            folder = checkpoint.get("path")
            if folder is not None and _is_being_written(Path(folder)):
                return ()
            checkpoint_names.append(f"{source} {checkpoint['step']}")
    return tuple(checkpoint_names)


def _is_being_written(folder: Path) -> bool:
    """Whether a file of the folder changed a moment ago."""
    changes = [file.stat().st_mtime for file in folder.rglob("*") if file.is_file()]
    return not changes or time.time() - max(changes) < WATCH_SECONDS


def _print_result(study_plan: StudyPlan, result: RunResult, as_json: bool) -> None:
    """Print the scores of a study that ended, and how the run ended."""
    store = without_password(study_plan.study.store)
    scores = None
    if not result.interrupted:
        scores = _read_scores(study_plan.study.store, result.study)
    if as_json:
        answer = {**result.to_dict(), "store": store}
        if scores is not None:
            answer |= _scores_as_json(*scores)
        print_json(answer)
        return
    if scores is not None:
        _print_scores(*scores, store)
    is_pretraining = bool(study_plan.rows) and all(
        row.model.series is not None for row in study_plan.rows
    )
    _print_next_steps(result, store, "checkpoints" if is_pretraining else "rankings")
    _print_spent(study_plan.study, result.study)


def _print_spent(study: potentia.Study, study_key: str) -> None:
    """Print what the results of a study cost, where a price is known."""
    with potentia.store.Store.open(study.store, readonly=True) as store:
        device = potentia.run.read_device(store, study_key)
        seconds = store.cells.sum_seconds(study=study_key)
    price = potentia.study.find_price(study.price, device or study.device)
    if price is None:
        return
    time = potentia.run.format_time(seconds)
    print_lines(
        f"The results of this study took {time} and cost {price.format(seconds)} ({price})."
    )


def _run_adaptive(
    study_plan: StudyPlan, options: RunOptions, workers: int, watch: WatchStudy
) -> RunResult:
    """Run the most informative cells first, to a budget or an expected τ, and show what is known in the end.

    Predictions stay apart from scores.
    """
    adaptive_run = potentia.run.AdaptiveRun(
        study_plan,
        budget=options.budget,
        confidence=options.confidence,
        workers=workers,
        watch=watch,
        history=read_history(options.history),
        report=lambda text: error_console.print(f"{text} …", style="dim"),
    )
    result, completion, next_cells = adaptive_run.run()
    if options.as_json:
        return result
    print_table(completion.tables()[0])
    if options.confidence is not None and next_cells is not None:
        expected = next_cells.now.value
        if expected >= options.confidence:
            error_console.print(f"The confidence asked for is reached: {expected:.3f}.")
    return result


def _plan_notes(study_plan: StudyPlan) -> list[str]:
    """Say what is computed anew and why, and what is to be known of the tasks."""
    notes = []
    if study_plan.outdated:
        notes.append(
            f"{len(study_plan.outdated)} results of this study were made by another version of Potentia,"
            " or of files that have changed since; they are computed again."
        )
    if study_plan.damaged:
        notes.append(
            f"The examples of {len(study_plan.damaged)} results are missing or damaged; these are computed again."
        )
    return [*notes, *study_plan.collect_notes()]


def _read_scores(store: str, study: str) -> tuple[potentia.Evidence, Scoreboard] | None:
    """Return a study's scores and their scoreboard; None where every cell failed."""
    try:
        evidence = potentia.evidence.read(store, study=study)
        return evidence, potentia.analysis.rankings.build_scoreboard(evidence)
    except InputError:  # the reasons were printed as the cells failed
        return None


def _scores_as_json(evidence: potentia.Evidence, scoreboard: Scoreboard) -> dict[str, Any]:
    """Return the scoreboard, every score as ``potentia export`` writes it, and pretraining runs."""
    scores = []
    for protocol, matrix in evidence.scores.items():
        for model, task, score in matrix.scores():
            scores.append(
                {
                    "protocol": protocol,
                    "model": model,
                    "task": task,
                    "metric": score.metric.name or None,
                    "value": score.value,
                    "stderr": score.stderr,
                    "n": score.n,
                }
            )
    scores_as_json: dict[str, Any] = {"scoreboard": scoreboard.to_dict(), "scores": scores}
    pretraining_runs = find_pretraining_runs(evidence)
    if pretraining_runs is not None:
        scores_as_json["training"] = pretraining_runs.to_dict()
    return scores_as_json


def _print_scores(evidence: potentia.Evidence, scoreboard: Scoreboard, store: str) -> None:
    """Print the score table, or the curves of pretraining runs, with what a reader must know of them."""
    pretraining_runs = find_pretraining_runs(evidence)
    if pretraining_runs is not None:
        print_tables_and_sentences(
            pretraining_runs.tables()[:1],
            pretraining_runs.sentences(),
            pretraining_runs.headline(),
        )
    else:
        all_models = f"potentia analyze rankings {shlex.quote(store)} --all"
        print_scoreboard(scoreboard, max_models=MAX_MODELS_SHOWN, hint=all_models)
        for classification in potentia.analysis.benchmark.find_classification(evidence):
            console.print()
            print_classification(classification)
    print_notes(evidence)


def _print_next_steps(result: RunResult, store: str, analysis_name: str) -> None:
    """Say how the run ended and what to do next."""
    if result.interrupted:
        print_stopped(store)
        return
    failed = f"[red]{result.failed} failed[/red]" if result.failed else "none failed"
    console.print(
        f"\n[bold]{result.computed}[/bold] results computed, {result.reused} found in {escape(store)}, {failed}"
    )
    quoted_store = escape(shlex.quote(store))
    _print_reasons(result.reasons, quoted_store)
    if is_quiet():
        return
    console.print(
        f"Next: [bold]potentia report {quoted_store}[/bold]"
        f" or [bold]potentia analyze {analysis_name} {quoted_store}[/bold]"
    )


def _print_reasons(reasons: list[str], quoted_store: str) -> None:
    """Print why cells failed; without a terminal the lines of progress have said it."""
    printed_reasons = reasons[:MAX_REASONS_SHOWN] if error_console.is_terminal else []
    for reason in printed_reasons:
        error_console.print(f"  [red]failed[/red] {escape(reason)}", soft_wrap=True)
    hidden = len(reasons) - len(printed_reasons)
    if hidden:
        heading = f"… and {hidden} more" if printed_reasons else "why"
        error_console.print(f"  {heading}: potentia status {quoted_store}", soft_wrap=True)


# --- what a study will cost -------------------------------------------------------------------------------------------


def _show_cost(options: RunOptions) -> None:
    """Say what a study will cost; with a budget or a confidence, which part to run, as a study file of its own."""
    # what cannot be read or written is refused before anything is timed
    if options.budget is not None:
        potentia.run.parse_budget(options.budget, 1.0)
    if options.save is not None:
        _refuse_existing_file(options.save)
    study = options.read_study()
    with show_status("reading tasks and models") as update_status:
        study_plan = potentia.run.plan_study(study, report=update_status)
        cost = potentia.run.estimate_cost(study_plan, report=update_status)
    print_lines(*_plan_notes(study_plan), to=error_console)
    answer = _cost_as_json(study_plan, cost)
    tables = _cost_tables(study_plan, cost)
    power = _estimate_power(study_plan)
    if power is not None:
        answer |= {"power": power.to_dict()}
        tables += power.tables()
    next_cells = None
    if options.is_adaptive:
        next_cells, completion = _choose_cells(study_plan, cost, options)
        answer |= {"plan": next_cells.to_dict(), "completion": completion.to_dict()}
        tables += [completion.tables()[0], *next_cells.tables()]
    print_answer(options.as_json, answer, *tables, *cost.shortages.values())
    if next_cells is not None and options.save is not None:
        write_chosen_study(study_plan, next_cells.cells, options.save, options.as_json)


def _estimate_power(study_plan: StudyPlan) -> StudyPower | None:
    """Return what differences the study can find; None where it has no task with a score to compare."""
    from potentia.values.clusters import Clusters  # loads numpy, which a help page does without

    sizes = {}
    for task_name, task in study_plan.tasks.by_name.items():
        documents = task.documents("test")
        is_control = TaskName(task_name).sighted is not None
        if task.kind == "corpus" or is_control or not documents:
            continue
        labels = {document.id: task.cluster_label(document) for document in documents}
        clusters = Clusters.of_examples(list(labels), labels)
        sizes[task_name] = potentia.analysis.planning.TestSize(len(documents), clusters.mean_size)
    if not sizes:
        return None
    study = study_plan.study
    return potentia.analysis.planning.estimate_study_power(sizes, seeds=study.seeds)


def _choose_cells(
    study_plan: StudyPlan, cost: StudyCost, options: RunOptions
) -> tuple[NextCells, Completion]:
    """Choose the cells that are worth their cost, with what is expected of the whole study."""
    completion = potentia.run.complete_study(study_plan, history=read_history(options.history))
    costs = potentia.run.estimate_grid_costs(potentia.run.make_grid(study_plan), cost)
    budget = potentia.run.convert_budget(options.budget, costs, "give a share: --budget 10%")
    next_cells = potentia.analysis.planning.choose_cells(
        completion, costs, budget=budget, confidence=options.confidence
    )
    return next_cells, completion


def _refuse_existing_file(output: Path) -> None:
    if output.exists():
        raise InputError(
            "the file exists already", where=str(output), hint="give a new name with --save"
        )


def write_chosen_study(
    study_plan: StudyPlan, cells: Sequence[tuple[str, str]], output: Path, as_json: bool
) -> None:
    """Write the chosen cells as a study of its own, without the password of its store."""
    _refuse_existing_file(output)
    study = potentia.run.make_proposed_study(
        study_plan.study, cells, study_name=f"{study_plan.study.name}-chosen"
    )
    run_command = f"potentia run {shlex.quote(str(output))}"
    text = potentia.run.render_study(study, run_command)
    # PostgreSQL takes the password from PGPASSWORD or ~/.pgpass.
    text_without_password = without_password(text).replace(":***@", "@")
    potentia.files.write_file(output, text_without_password)
    if text_without_password != text:
        print_lines(
            "The password of the store is not in the file: have it in PGPASSWORD or ~/.pgpass.",
            to=error_console,
        )
    if not as_json:
        print_lines(f"{output}: the chosen part as a study. Next: {run_command}")


@dataclass(frozen=True)
class CostSum:
    """What the cells that are not done will take."""

    cells: int
    lanes: float
    train_tokens: float
    score_tokens: float
    flops: float
    seconds: float

    @classmethod
    def of_pending(cls, cells: Iterable[CellWork]) -> CostSum:
        """Add up the cells that are not done."""
        pending = [cell for cell in cells if not cell.finished]
        return cls(
            cells=len(pending),
            lanes=sum(cell.lanes for cell in pending),
            train_tokens=sum(cell.train_tokens for cell in pending),
            score_tokens=sum(cell.score_tokens for cell in pending),
            flops=sum(cell.flops for cell in pending),
            seconds=sum(cell.seconds for cell in pending),
        )


def _cost_as_json(study_plan: StudyPlan, cost: StudyCost) -> dict[str, Any]:
    total = CostSum.of_pending(cost.cells)
    return {
        "study": study_plan.study.name,
        "device": cost.device,
        "times": cost.source or None,
        "cells_to_do": total.cells,
        "lanes": round(total.lanes),
        "train_tokens": total.train_tokens,
        "score_tokens": total.score_tokens,
        "flops": total.flops,
        "seconds": cost.seconds,
        "cells_done": len(cost.cells) - total.cells,
        "hours": cost.seconds / 3600,
        "cost": _cost_in_money(study_plan.study, cost),
        "problems": _problems(study_plan),
        "memory": cost.shortages,
        "cells": cost.cells,
    }


def _cost_in_money(study: potentia.Study, cost: StudyCost) -> float | None:
    """Return what a study will cost in money; None where no price is known."""
    price = potentia.study.find_price(study.price, cost.device)
    return None if price is None else price.of_seconds(cost.seconds)


def _problems(study_plan: StudyPlan) -> dict[str, str]:
    return {row.model.name: row.problem for row in study_plan.rows if row.problem}


def _cost_tables(study_plan: StudyPlan, cost: StudyCost) -> list[Table]:
    """Return what a study will cost, by row and by task."""
    column_names = [
        "model",
        "in store",
        "to do",
        "fine-tunings",
        "train",
        "score",
        "FLOPs",
        "weights",
        "time",
    ]
    table_rows = [_row_cost(row, cost) for row in study_plan.rows]
    if _problems(study_plan):
        column_names.append("problem")
        table_rows = [
            (*cells, row.problem or "")
            for cells, row in zip(table_rows, study_plan.rows, strict=True)
        ]
    title = f"Plan of {study_plan.study.name}"
    task_rows = [_task_cost(task_name, cost) for task_name in study_plan.tasks.by_name]
    return [
        Table(title, column_names, table_rows, note=_cost_note(cost, study_plan.study)),
        Table("By task", ("task", "to do", "train", "time", "share"), task_rows),
    ]


def _row_cost(row: Row, cost: StudyCost) -> tuple[TableValue, ...]:
    """Return what a row will cost, as a row of the table."""
    model_name = row.model.name
    cells = [cell for cell in cost.cells if cell.model == model_name]
    pending = CostSum.of_pending(cells)
    seconds = pending.seconds
    if pending.cells:
        seconds += cost.loads[model_name]
    return (
        model_name,
        len(cells) - pending.cells,
        pending.cells,
        round(pending.lanes),
        format_amount(pending.train_tokens),
        format_amount(pending.score_tokens),
        format_amount(pending.flops),
        format_amount(cost.weights[model_name], "B"),
        potentia.run.format_time(seconds),
    )


def _task_cost(task_name: str, cost: StudyCost) -> tuple[TableValue, ...]:
    """Return what a task will cost over all rows, and which share of the study that is."""
    total = CostSum.of_pending(cost.cells)
    pending = CostSum.of_pending(cell for cell in cost.cells if cell.task == task_name)
    if math.isnan(total.seconds):
        share = pending.flops / (total.flops or 1.0)
    else:
        share = pending.seconds / (total.seconds or 1.0)
    return (
        task_name,
        pending.cells,
        format_amount(pending.train_tokens),
        potentia.run.format_time(pending.seconds),
        f"{100 * share:.0f} %",
    )


def _cost_note(cost: StudyCost, study: potentia.Study) -> str:
    total = CostSum.of_pending(cost.cells)
    time = f"{potentia.run.format_time(cost.seconds)} on {cost.device}"
    hours = cost.seconds / 3600
    if not math.isnan(hours):
        hours_unit = "GPU-hours" if cost.device == "cuda" else "hours of this machine"
        if hours >= LEAST_HOURS:
            time += f" = {hours:.3g} {hours_unit}"
        price = potentia.study.find_price(study.price, cost.device)
        if price is not None:
            time += f" = {price.format(cost.seconds)}"
    if cost.start >= 1 and cost.pending:
        time += f", {potentia.run.format_time(cost.start)} of it before the first result"
    source = f"from {cost.source}" if cost.source else "times are not known"
    # how many learning rates a search asks for is an expectation, which rows round each for itself
    about = ""
    expectation = ""
    if not float(total.lanes).is_integer():
        about = "about "
        expectation = " (rows are rounded: a search tries more learning rates only where it has to)"
    return (
        f"To do: {total.cells:,} results ({len(cost.cells) - total.cells:,} in the store), "
        f"{about}{round(total.lanes):,} fine-tunings{expectation}, "
        f"{format_amount(total.train_tokens)} tokens to train on and {format_amount(total.score_tokens)} to score, "
        f"{format_amount(total.flops)} FLOPs, {time} ({source}). {potentia.run.describe_extra_work(cost.pending)}"
    ).rstrip()


_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_amount(value: float, unit: str = "") -> str:
    """Write a large number with a prefix: 3.2 M."""
    if math.isnan(value):
        return "?"
    for prefix_size, prefix in _PREFIXES:
        if value >= prefix_size:
            return f"{value / prefix_size:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


# --- elicitation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ElicitationOptions(OutputOptions):
    """The options of ``potentia papers elicitation``."""

    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")]


@command(papers, "elicitation", ElicitationOptions)
def elicitation(options: ElicitationOptions) -> None:
    """Fine-tune some results of a study again, with a higher rank and with all weights, and compare the rankings.

    It takes the first three tasks of the study. Each of the three ways searches its own learning rate. What the store
    has is not computed again.

    Example:
      potentia papers elicitation study.yaml
    """
    study = potentia.study.read_study(options.study)
    with error_console.status("tuning in three ways …"):
        finding = potentia.run.run_elicitation(study)
    print_findings({"elicitation": finding}, as_json=options.as_json)

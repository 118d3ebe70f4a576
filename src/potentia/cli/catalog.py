"""``tasks``: which benchmarks there are, and what one of them asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

import potentia
from potentia.cli.app import app
from potentia.cli.command import command
from potentia.cli.option_groups import (
    ColumnMap,
    DataFolder,
    OptionalText,
    OutputOptions,
    parse_pairs,
)
from potentia.cli.output import (
    console,
    print_answer,
    print_json,
    print_lines,
    print_table,
)
from potentia.extras import Extra
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.tasks import Overlap, Prompt, Task

MAX_PROMPT_CHARACTERS = 1_200  # that a person reads at a glance


@dataclass(frozen=True, kw_only=True)
class TaskOptions(OutputOptions):
    """The options of ``potentia tasks``."""

    name: Annotated[
        OptionalText,
        typer.Argument(
            metavar="[NAME]", help="A task of lm-eval, or a path to your own file or folder."
        ),
    ] = None
    everything: Annotated[bool, typer.Option("--all", help="List every task name of lm-eval.")] = (
        False
    )
    data_dir: DataFolder = None
    columns: ColumnMap = None

    def load_task(self, task_name: str) -> Task:
        """Load the task; own data with the columns that were mapped. Notes say which rows cannot be used."""
        own_data = None
        if self.columns:
            own_data = potentia.tasks.UserData(
                (task_name,), columns=parse_pairs(self.columns), drop_bad_rows=True
            )
        task = potentia.tasks.load(
            task_name, data_dir=self.data_dir, user_data=own_data, drop_bad_rows=True
        )
        if task.user_task is not None and task.user_task.bad_rows:
            task.notes.append("select and run stop at such rows unless --drop-bad-rows is given.")
        return task


@command(app, "tasks", TaskOptions, needs=Extra.RUN)
def tasks(options: TaskOptions) -> None:
    """List the benchmarks of the papers; with NAME show one: splits, metric, three examples, train/test overlap.

    Examples:
      potentia tasks

      potentia tasks arc_easy --data-dir data/benchmarks

      potentia tasks my-questions.csv
    """
    if options.name is not None:
        _show_task(options, options.name)
    elif options.everything:
        _list_all_task_names(options.as_json)
    else:
        _list_benchmarks(options.as_json)


def _list_benchmarks(as_json: bool) -> None:
    """List the benchmarks of the papers, those they left out and why."""
    benchmarks = potentia.facts.benchmarks()
    categories = ", ".join(f"{short} {long}" for short, long in potentia.facts.CATEGORIES.items())
    in_paper = []
    excluded = []
    unclassified = []
    for benchmark in benchmarks:
        if benchmark.status == "paper":
            in_paper.append(
                (
                    benchmark.task,
                    benchmark.name,
                    benchmark.category,
                    benchmark.metric,
                    benchmark.train_size,
                )
            )
        elif benchmark.status == "excluded":
            excluded.append(
                (
                    benchmark.task,
                    benchmark.name,
                    benchmark.metric,
                    benchmark.train_size,
                    benchmark.reason,
                )
            )
        else:
            unclassified.append(
                (benchmark.task, benchmark.name, benchmark.metric, benchmark.reason)
            )
    print_answer(
        as_json,
        benchmarks,
        Table(
            "Benchmarks of train-before-test",
            ("task", "name", "category", "metric", "train"),
            in_paper,
            note=f"{categories}. Train: examples of the public split.",
        ),
        Table("Left out there", ("task", "name", "metric", "train", "reason"), excluded),
        Table("Others: MMLU and leaderboard v2", ("task", "name", "metric", "note"), unclassified),
    )


def _list_all_task_names(as_json: bool) -> None:
    answer = {}
    lines = []
    for task_name, entry in sorted(potentia.tasks.task_index().items()):
        answer[task_name] = {"kind": entry.kind, "file": entry.path}
        lines.append(task_name if entry.kind == "task" else f"{task_name} ({entry.kind})")
    for task_name, file in potentia.tasks.shipped_tasks().items():
        answer.setdefault(task_name, {"kind": "task", "file": str(file)})
        lines.append(f"{task_name} (defined by Potentia)")
    print_answer(as_json, answer, *lines)


def _show_task(options: TaskOptions, task_name: str) -> None:
    """Show a task: splits and their sizes, metric, three examples with the right answer marked, train/test overlap."""
    task = options.load_task(task_name)
    overlap = potentia.tasks.measure_overlap(task)
    prompts = task.prompts(task.documents("test")[:3])
    if options.as_json:
        print_json(_task_as_json(task, overlap, prompts))
        return
    subtasks = f" · {len(task.subtasks)} subtasks" if len(task.subtasks) > 1 else ""
    direction = "higher is better" if task.higher_is_better else "lower is better"
    console.print(
        f"[bold]{escape(task.name)}[/bold] · {task.kind}{subtasks} · {escape(task.metric)} ({direction})"
    )
    splits = (
        ("train", task.split_plan.train),
        ("validation", task.split_plan.validation),
        ("test", task.split_plan.test),
    )
    one_split = "the one split" if task.user_task is None else "your file"
    table_rows = [
        (split_name, split.used, split.available, split.describe_origin(one_split))
        for split_name, split in splits
    ]
    print_table(Table("Splits", ("split", "examples", "before the cap", "comes from"), table_rows))
    print_lines(*task.notes)
    for prompt_number, prompt in enumerate(prompts, start=1):
        _print_prompt(prompt_number, prompt)
    same_question = "the same question"
    if prompts and prompts[0].choices and not task.labels:
        same_question += " and choices"
    shared = (
        (same_question, overlap.train_exact, overlap.test_exact),
        ("a run of 13 words", overlap.train_ngram, overlap.test_ngram),
    )
    print_table(
        Table("Shared by train and test", ("what", "training examples", "test examples"), shared)
    )
    print_lines(f"fingerprint {task.fingerprint}", style="dim")


def _task_as_json(task: Task, overlap: Overlap, prompts: list[Prompt]) -> dict[str, Any]:
    examples = [
        {
            "id": prompt.doc_id,
            "prompt": prompt.text,
            "choices": prompt.choices,
            "gold": prompt.gold,
            "requests": prompt.requests,
        }
        for prompt in prompts
    ]
    return {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "metrics": task.metrics,
        "higher_is_better": task.higher_is_better,
        "subtasks": task.subtasks,
        "fingerprint": task.fingerprint,
        "labels": task.labels,
        "notes": task.notes,
        "splits": task.split_plan.to_dict(),
        "examples": examples,
        "overlap": overlap.to_dict(),
    }


def _print_prompt(prompt_number: int, prompt: Prompt) -> None:
    """Print a prompt with its choices, the right one marked."""
    console.print(f"[bold]Example {prompt_number}[/bold] [dim](doc_id {prompt.doc_id})[/dim]")
    contexts = {getattr(request, "context", "") for request in prompt.requests}
    has_one_context = len(contexts) == 1
    if has_one_context:
        console.print(escape(_shorten(prompt.text)), soft_wrap=True)
    if prompt.choices:
        right_answers = set(prompt.gold.split(" | "))
        for choice, request in zip(prompt.choices, prompt.requests, strict=False):
            choice_text = choice
            if not has_one_context:
                choice_text += getattr(request, "continuation", "")
            mark = "[bold green]→[/bold green]" if choice in right_answers else " "
            console.print(f"  {mark} {escape(_shorten(choice_text))}", soft_wrap=True)
    elif prompt.gold:
        console.print(
            f"  [bold green]→[/bold green] {escape(_shorten(prompt.gold))}", soft_wrap=True
        )
    console.print()


def _shorten(text: str) -> str:
    if len(text) <= MAX_PROMPT_CHARACTERS:
        return text
    half_length = MAX_PROMPT_CHARACTERS // 2
    return f"{text[:half_length]} … {text[-half_length:]}"

"""What is known: ``models``, with a check of one, and ``tasks``."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import potentia
from potentia.cli.app import app
from potentia.cli.command import command
from potentia.cli.option_groups import (
    AllowCode,
    DataColumns,
    DataFolder,
    DataType,
    Device,
    DropBadRows,
    JsonOption,
    ModelFactsFile,
    OptionalText,
    OptionalTexts,
    parse_pairs,
)
from potentia.cli.output import (
    console,
    error_console,
    print_answer,
    print_json,
    print_lines,
    print_table,
)
from potentia.errors import InputError
from potentia.extras import Extra
from potentia.values.findings import Table
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.facts import ModelFacts, ModelTable
    from potentia.tasks import Overlap, Prompt, Task

MAX_PROMPT_CHARACTERS = 1_200  # that a person reads at a glance


class ListFirstGroup(TyperGroup):
    """A group of a list and a look at one of it: ``potentia models`` and ``potentia models smollm2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command before arguments that name none."""
        names_command = bool(args) and args[0] in (*self.commands, "-h", "--help")
        if not names_command:
            names_entry = bool(args) and not args[0].startswith("-")
            shows_entry = "show" in self.commands and names_entry
            args = ["show" if shows_entry else "list", *args]
        return super().parse_args(ctx, args)


models = typer.Typer(
    cls=ListFirstGroup,
    help="Look up what is known of models, or check one's computation.",
    rich_markup_mode="rich",
)
app.add_typer(models, name="models")


@dataclass(frozen=True, kw_only=True)
class ListModelsOptions(JsonOption):
    """The options of ``potentia models list``."""

    name: Annotated[
        OptionalText,
        typer.Argument(metavar="NAME", help="A model by any of its names, or a part of a name."),
    ] = None
    family: Annotated[OptionalText, typer.Option(help="Only this family, such as qwen.")] = None
    facts: ModelFactsFile = None


@command(models, "list", ListModelsOptions)
def list_models(options: ListModelsOptions) -> None:
    """List known models: parameters, training tokens, compute, date, and where the numbers come from.

    Examples:
      potentia models --family qwen

      potentia models smollm2

      potentia models gemma-2-2b --json
    """
    table = potentia.facts.models(extra_csv=options.facts)
    chosen = list(table)
    if options.name is not None:
        chosen = _find_models(table, options.name)
    if options.family is not None:
        family = options.family.strip().casefold()
        chosen = [model for model in chosen if model.family == family]
        if not chosen:
            raise InputError(
                f"no models of a family {options.family!r}",
                hint=f"families: {', '.join(table.families())}",
            )
    columns = ("model", "family", "kind", "N (B)", "D (B)", "FLOPs", "date", "language")
    rows = [_model_row(model) for model in chosen]
    note = "N parameters, D training tokens, FLOPs = 6·N·D. A dash: not published. More names, sources: --json."
    value = [{**vars(model), "flops": model.flops} for model in chosen]
    print_answer(options.as_json, value, Table(f"{len(chosen)} models", columns, rows, note=note))


def _model_row(model: ModelFacts) -> tuple[str | None, ...]:
    flops = None if model.flops is None else f"{model.flops:.2e}"
    return (
        model.repository or model.name,
        model.family,
        model.kind,
        _in_billions(model.parameters),
        _in_billions(model.tokens),
        flops,
        model.date,
        model.language,
    )


def _find_models(table: ModelTable, name: str) -> list[ModelFacts]:
    """Return the model of this name, else all whose names hold it."""
    exact = table.find(name)
    if exact is not None:
        return [exact]
    similar = table.search(name)
    if similar:
        return similar
    all_names = [alias for model in table for alias in model.names]
    close_names = get_close_matches(name, all_names, n=3)
    hint = "add it with --facts FILE.csv"
    if close_names:
        hint = f"did you mean {', '.join(close_names)}?"
    raise InputError(f"no facts about a model {name!r}", hint=hint)


def _in_billions(number: float | None) -> str | None:
    if number is None:
        return None
    return f"{number / 1e9:g}"


@dataclass(frozen=True, kw_only=True)
class CheckModelOptions(JsonOption):
    """The options of ``potentia models check``."""

    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file or a name of the Hub.")
    ]
    device: Device = None
    dtype: DataType = None
    targets: Annotated[
        OptionalTexts,
        typer.Option(help="Layers to adapt, by the ends of their names; else PEFT's default."),
    ] = None
    adapter: Annotated[str, typer.Option(help="lora or rslora.")] = "lora"
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that the model brings.")
    ] = False


@command(models, "check", CheckModelOptions, needs=Extra.RUN)
def check(options: CheckModelOptions) -> None:
    """Compare a model's scores, texts, gradients and updates here with plain transformers' and PEFT's.

    Exits with 1 where something is off by more than rounding.

    Examples:
      potentia models check ./my-model

      potentia models check ./my-model --dtype bfloat16 --json
    """
    from potentia.engine.comparison import compare_with_peft
    from potentia.engine.training import LoraConfig

    is_path = options.model.startswith((".", "/", "~"))
    if is_path and not Path(options.model).expanduser().exists():
        raise InputError(
            f"there is no folder or file {options.model}",
            hint="give a folder, a GGUF file or a Hub name",
        )
    with error_console.status(f"loading {options.model} …"):
        loaded = potentia.engine.load(
            options.model,
            trust_remote_code=options.trust_remote_code,
            device=options.device or "auto",
            dtype=options.dtype or "auto",
        )
    with error_console.status("comparing with transformers and PEFT …"):
        targets = tuple(options.targets or ()) or None
        adapter_config = LoraConfig(4, 8, 0.0, targets, options.adapter)
        comparisons = compare_with_peft(loaded, adapter_config)
    dtype = str(loaded.dtype).removeprefix("torch.")
    description = f"{type(loaded.model).__name__} in {dtype} on {loaded.device}"
    rows = [
        (
            comparison.what,
            f"{comparison.off:.2g}",
            f"{comparison.most:.2g}",
            "right" if comparison.right else "WRONG",
            comparison.way,
            comparison.note,
        )
        for comparison in comparisons
    ]
    columns = ("compared", "off by", "right up to", "verdict", "computed as", "unit")
    refusals = loaded.record.get("training", {}).get("not_taken", {})
    all_right = all(comparison.right for comparison in comparisons)
    value = {
        "model": options.model,
        "as": description,
        "right": all_right,
        "compared": [{**vars(comparison), "right": comparison.right} for comparison in comparisons],
        "record": loaded.record,
    }
    print_answer(
        options.as_json,
        value,
        Table(description, columns, rows),
        *(f"Not taken: {TrainingForm(form).words}: {reason}" for form, reason in refusals.items()),
    )
    raise typer.Exit(int(not all_right))


# --- tasks ------------------------------------------------------------------------------------------------------------

tasks = typer.Typer(
    cls=ListFirstGroup,
    help="List benchmarks, or show what one of them asks.",
    rich_markup_mode="rich",
)
app.add_typer(tasks, name="tasks")


@dataclass(frozen=True, kw_only=True)
class ListTasksOptions(JsonOption):
    """The options of ``potentia tasks list``."""

    everything: Annotated[
        bool, typer.Option("--all", help="List every task name of the harness.")
    ] = False


@command(tasks, "list", ListTasksOptions, needs=Extra.RUN)
def list_tasks(options: ListTasksOptions) -> None:
    """List the benchmarks of the papers, those they left out and why; with --all every name of the harness.

    Example:
      potentia tasks
    """
    if options.everything:
        _list_all_task_names(options.as_json)
        return
    benchmarks = potentia.facts.benchmarks()
    categories = ", ".join(f"{short} {long}" for short, long in potentia.facts.CATEGORIES.items())
    in_paper = []
    excluded = []
    others = []
    for known in benchmarks:
        if known.status == "paper":
            in_paper.append(
                (known.task, known.name, known.category, known.metric, known.train_size)
            )
        elif known.status == "excluded":
            excluded.append((known.task, known.name, known.metric, known.train_size, known.reason))
        else:
            others.append((known.task, known.name, known.metric, known.reason))
    print_answer(
        options.as_json,
        benchmarks,
        Table(
            "Benchmarks of train-before-test",
            ("task", "name", "category", "metric", "train"),
            in_paper,
            note=f"{categories}. Train: documents of the public split.",
        ),
        Table("Left out there", ("task", "name", "metric", "train", "reason"), excluded),
        Table("Others: MMLU and leaderboard v2", ("task", "name", "metric", "note"), others),
    )


def _list_all_task_names(as_json: bool) -> None:
    value = {}
    lines = []
    for name, entry in sorted(potentia.tasks.task_index().items()):
        value[name] = {"kind": entry.kind, "file": entry.path}
        lines.append(name if entry.kind == "task" else f"{name} ({entry.kind})")
    print_answer(as_json, value, *lines)


@dataclass(frozen=True, kw_only=True)
class ShowTaskOptions(JsonOption):
    """The options of ``potentia tasks show``."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A task of the harness, or a path to your own file or folder."
        ),
    ]
    data_dir: DataFolder = None
    columns: DataColumns = None
    drop_bad_rows: DropBadRows = None
    allow_code: AllowCode = False

    def load_task(self) -> Task:
        """Load the task; own data with the columns that were mapped."""
        own_data = None
        if self.columns:
            own_data = potentia.tasks.UserData(
                (self.name,),
                columns=parse_pairs(self.columns),
                drop_bad_rows=bool(self.drop_bad_rows),
            )
        return potentia.tasks.load(
            self.name,
            data_dir=self.data_dir,
            own=own_data,
            drop_bad_rows=bool(self.drop_bad_rows),
        )


@command(tasks, "show", ShowTaskOptions, needs=Extra.RUN)
def show(options: ShowTaskOptions) -> None:
    """Show a task: splits and their sizes, metric, three examples with the right answer marked, train/test overlap.

    Example:
      potentia tasks show arc_easy --data-dir data/benchmarks
    """
    if options.allow_code:
        potentia.files.allow(potentia.files.CODE)
    task = options.load_task()
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
        ("train", task.plan.train),
        ("validation", task.plan.validation),
        ("test", task.plan.test),
    )
    rows = [(name, split.used, split.available, split.origin) for name, split in splits]
    print_table(Table("Splits", ("split", "documents", "before the cap", "comes from"), rows))
    print_lines(*task.notes)
    for number, prompt in enumerate(prompts, start=1):
        _print_prompt(number, prompt)
    shared = (
        ("the same question", overlap.train_exact, overlap.test_exact),
        ("a run of 13 words", overlap.train_ngram, overlap.test_ngram),
    )
    print_table(
        Table("Shared by train and test", ("what", "documents of train", "of test"), shared)
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
        "splits": task.plan.to_dict(),
        "examples": examples,
        "overlap": overlap.to_dict(),
    }


def _print_prompt(number: int, prompt: Prompt) -> None:
    """Print a prompt with its choices, the right one marked."""
    console.print(f"[bold]Example {number}[/bold] [dim](document {prompt.doc_id})[/dim]")
    contexts = {getattr(request, "context", "") for request in prompt.requests}
    has_one_context = len(contexts) == 1
    if has_one_context:
        console.print(escape(_shorten(prompt.text)), soft_wrap=True)
    if prompt.choices:
        right_answers = set(prompt.gold.split(" | "))
        for choice, request in zip(prompt.choices, prompt.requests, strict=False):
            shown = choice
            if not has_one_context:
                shown += getattr(request, "continuation", "")
            mark = "[bold green]→[/bold green]" if choice in right_answers else " "
            console.print(f"  {mark} {escape(_shorten(shown))}", soft_wrap=True)
    elif prompt.gold:
        console.print(
            f"  [bold green]→[/bold green] {escape(_shorten(prompt.gold))}", soft_wrap=True
        )
    console.print()


def _shorten(text: str) -> str:
    if len(text) <= MAX_PROMPT_CHARACTERS:
        return text
    half = MAX_PROMPT_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"

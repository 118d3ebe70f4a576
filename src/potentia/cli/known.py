"""What is known: ``models``, with a check of one, and ``tasks``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import potentia
from potentia.cli.app import app
from potentia.cli.options import ALLOW_CODE, READ, STUDY, argument, command, flag, many, option
from potentia.cli.output import answer, columns_of, console, errors, print_json, print_table, say
from potentia.errors import InputError
from potentia.values.findings import Table


class _ListFirst(TyperGroup):
    """A group of a list and a look at one of it: ``potentia models`` and ``potentia models smollm2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command before arguments that name none."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            one = "show" in self.commands and args and not args[0].startswith("-")
            args = ["show" if one else "list", *args]
        return super().parse_args(ctx, args)


models = typer.Typer(
    cls=_ListFirst,
    help="Look up what is known of models, or check one's computation.",
    rich_markup_mode="rich",
)
app.add_typer(models, name="models")


@command(
    models,
    "list",
    name=argument("A model by any of its names, or a part of a name.", "NAME", str | None, None),
    family=option("Only this family, such as qwen."),
    facts=READ["facts"],
)
def list_models(asked: Any) -> None:
    """List known models: parameters, training tokens, compute, date, and where the numbers come from.

    Examples:
      potentia models --family qwen

      potentia models smollm2

      potentia models gemma-2-2b --json
    """
    table = potentia.facts.models(extra_csv=asked.facts)
    chosen = list(table) if asked.name is None else _named(table, asked.name)
    if asked.family is not None:
        chosen = [model for model in chosen if model.family == asked.family.strip().casefold()]
        if not chosen:
            raise InputError(
                f"no models of a family {asked.family!r}",
                hint=f"families: {', '.join(table.families())}",
            )
    rows = tuple(
        (
            m.repository or m.name,
            m.family,
            m.kind,
            _billions(m.parameters),
            _billions(m.tokens),
            None if m.flops is None else f"{m.flops:.2e}",
            m.date,
            m.language,
        )
        for m in chosen
    )
    columns = ("model", "family", "kind", "N (B)", "D (B)", "FLOPs", "date", "language")
    note = "N parameters, D training tokens, FLOPs = 6·N·D. A dash: not published. More names, sources: --json."
    shown = Table(f"{len(chosen)} models", columns, rows, note=note)
    answer(asked.as_json, [{**vars(m), "flops": m.flops} for m in chosen], shown)


def _named(table: potentia.facts.ModelTable, name: str) -> list[potentia.facts.ModelFacts]:
    """Return the model of this name, else all whose names hold it."""
    exact = table.find(name)
    found = [exact] if exact is not None else table.search(name)
    if not found:
        near = get_close_matches(name, [alias for model in table for alias in model.names], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "add it with --facts FILE.csv"
        raise InputError(f"no facts about a model {name!r}", hint=hint)
    return found


def _billions(number: float | None) -> str | None:
    return None if number is None else f"{number / 1e9:g}"


@command(
    models,
    "check",
    model=argument("A folder, a GGUF file or a name of the Hub.", "MODEL"),
    device=STUDY["device"],
    dtype=STUDY["dtype"],
    targets=many("Layers to adapt, by the ends of their names; else PEFT's default."),
    adapter=option("lora or rslora.", str, "lora"),
    trust_remote_code=flag("--trust-remote-code", "Run the code that the model brings."),
)
def check(asked: Any) -> None:
    """Compare a model's scores, texts, gradients and updates here with plain transformers' and PEFT's.

    Exits with 1 where something is off by more than rounding.

    Examples:
      potentia models check ./my-model

      potentia models check ./my-model --dtype bfloat16 --json
    """
    from potentia.engine.training import LoraConfig, beside_peft

    if asked.model.startswith((".", "/", "~")) and not Path(asked.model).expanduser().exists():
        raise InputError(
            f"there is no folder or file {asked.model}",
            hint="give a folder, a GGUF file or a Hub name",
        )
    with errors.status(f"loading {asked.model} …"):
        how = {"device": asked.device or "auto", "dtype": asked.dtype or "auto"}
        loaded = potentia.engine.load(asked.model, trust_remote_code=asked.trust_remote_code, **how)
    with errors.status("comparing with transformers and PEFT …"):
        found = beside_peft(
            loaded, LoraConfig(4, 8, 0.0, tuple(asked.targets or ()) or None, asked.adapter)
        )
    named = f"{type(loaded.model).__name__} in {str(loaded.dtype).removeprefix('torch.')} on {loaded.device}"
    rows = tuple(
        (
            one.what,
            f"{one.off:.2g}",
            f"{one.most:.2g}",
            "right" if one.right else "WRONG",
            one.way,
            one.note,
        )
        for one in found
    )
    table = Table(
        named, ("compared", "off by", "right up to", "verdict", "computed as", "unit"), rows
    )
    refused = loaded.record.get("training", {}).get("not_taken", {})
    right = all(one.right for one in found)
    compared = [{**vars(one), "right": one.right} for one in found]
    value = {
        "model": asked.model,
        "as": named,
        "right": right,
        "compared": compared,
        "record": loaded.record,
    }
    answer(
        asked.as_json,
        value,
        table,
        *(f"Not taken: {form}: {reason}" for form, reason in refused.items()),
    )
    raise typer.Exit(int(not right))


tasks = typer.Typer(
    cls=_ListFirst, help="List benchmarks, or show what one of them asks.", rich_markup_mode="rich"
)
app.add_typer(tasks, name="tasks")

_LONG = 1_200  # characters of a prompt that a person reads at a glance


@command(tasks, "list", everything=flag("--all", "List every task name of the harness."))
def list_tasks(asked: Any) -> None:
    """List the benchmarks of the papers, those they left out and why; with --all every name of the harness.

    Example:
      potentia tasks
    """
    if asked.everything:
        names = sorted(potentia.tasks.task_index().items())
        found = {name: {"kind": entry.kind, "file": entry.path} for name, entry in names}
        told = (name if entry.kind == "task" else f"{name} ({entry.kind})" for name, entry in names)
        answer(asked.as_json, found, *told)
        return
    known = potentia.facts.benchmarks()
    meaning = ", ".join(f"{short} {long}" for short, long in potentia.facts.CATEGORIES.items())
    paper = tuple(
        (b.task, b.name, b.category, b.metric, b.train_size) for b in known if b.status == "paper"
    )
    note = f"{meaning}. Train: documents of the public split."
    left_out = tuple(
        (b.task, b.name, b.metric, b.train_size, b.reason) for b in known if b.status == "excluded"
    )
    others = tuple(
        (b.task, b.name, b.metric, b.reason) for b in known if b.status not in {"paper", "excluded"}
    )
    answer(
        asked.as_json,
        known,
        Table(
            "Benchmarks of train-before-test",
            ("task", "name", "category", "metric", "train"),
            paper,
            note=note,
        ),
        Table("Left out there", ("task", "name", "metric", "train", "reason"), left_out),
        Table("Others: MMLU and leaderboard v2", ("task", "name", "metric", "note"), others),
    )


@command(
    tasks,
    "show",
    name=argument("A task of the harness, or a path to your own file or folder.", "NAME"),
    data_dir=STUDY["data_dir"],
    columns=READ["columns"],
    drop_bad_rows=STUDY["drop_bad_rows"],
    allow_code=ALLOW_CODE,
)
def show(asked: Any) -> None:
    """Show a task: splits and their sizes, metric, three examples with the right answer marked, train/test overlap.

    Example:
      potentia tasks show arc_easy --data-dir data/benchmarks
    """
    if asked.allow_code:
        potentia.files.allow(potentia.files.CODE)
    name, drop = asked.name, asked.drop_bad_rows
    own = (
        potentia.tasks.OwnData((name,), columns=columns_of(asked.columns), drop_bad_rows=drop)
        if asked.columns
        else None
    )
    task = potentia.tasks.load(name, data_dir=asked.data_dir, own=own, drop_bad_rows=drop)
    found = potentia.tasks.overlap(task)
    prompts = task.prompts(task.documents("test")[:3])
    if asked.as_json:
        print_json(_described(task, found.to_dict(), prompts))
        return
    parts = [(split, getattr(task.plan, split)) for split in ("train", "validation", "test")]
    rows = tuple((split, part.used, part.available, part.origin) for split, part in parts)
    several = f" · {len(task.subtasks)} subtasks" if len(task.subtasks) > 1 else ""
    direction = "higher is better" if task.higher_is_better else "lower is better"
    console.print(
        f"[bold]{escape(task.name)}[/bold] · {task.kind}{several} · {escape(task.metric)} ({direction})"
    )
    print_table(Table("Splits", ("split", "documents", "before the cap", "comes from"), rows))
    say(*task.notes)
    for number, prompt in enumerate(prompts, start=1):
        _print_prompt(number, prompt)
    shared = (
        ("the same question", found.train_exact, found.test_exact),
        ("a run of 13 words", found.train_ngram, found.test_ngram),
    )
    print_table(
        Table("Shared by train and test", ("what", "documents of train", "of test"), shared)
    )
    say(f"fingerprint {task.fingerprint}", style="dim")


def _described(
    task: potentia.tasks.Task, overlap: dict[str, Any], prompts: list[potentia.tasks.Prompt]
) -> dict[str, Any]:
    plain = (
        "name",
        "kind",
        "metric",
        "metrics",
        "higher_is_better",
        "subtasks",
        "fingerprint",
        "labels",
        "notes",
    )
    return {name: getattr(task, name) for name in plain} | {
        "splits": task.plan.to_dict(),
        "examples": [
            {
                "id": p.doc_id,
                "prompt": p.text,
                "choices": p.choices,
                "gold": p.gold,
                "requests": p.requests,
            }
            for p in prompts
        ],
        "overlap": overlap,
    }


def _print_prompt(number: int, prompt: potentia.tasks.Prompt) -> None:
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
        console.print(
            f"  [bold green]→[/bold green] {escape(_shortened(prompt.gold))}", soft_wrap=True
        )
    console.print()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} … {text[-_LONG // 2 :]}"

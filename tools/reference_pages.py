"""Write the pages of the site that are read off the code: the command line, the public names, the examples.

They are made whenever the site is built (``make docs``) and kept nowhere, so they cannot fall behind.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRIVATE = re.compile(r"\bpotentia\.[\w.]*\.(?=[A-Z])|<factory>")
GROUPS = {
    "Run a study": (
        "evaluate",
        "select",
        "Result",
        "read_study",
        "make_study",
        "Study",
        "plan_study",
        "run_study",
    ),
    "Read scores": (
        "read",
        "Evidence",
        "Store",
        "ScoreMatrix",
        "Score",
        "ItemOutcome",
        "Protocol",
        "write_scores",
    ),
    "Find": (
        "rankings",
        "RankingOptions",
        "compare",
        "benchmark",
        "checkpoints",
        "exposure",
        "find_rankings",
        "find_test_task",
        "TestTaskOptions",
        "find_stability",
        "find_consistency",
        "find_ablation",
        "find_proxies",
        "ProxyOptions",
        "read_checkpoints",
        "read_pairs",
        "Finding",
    ),
    "Show": ("report", "write_report", "make_report", "ReportOptions", "draw"),
    "Reproduce": ("reproduce_train_before_test", "reproduce_task_training"),
    "Errors": ("PotentiaError", "InputError"),
}


# --- the command line -------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the reference of every command: what it does, its arguments and options, its example."""
    import typer

    from potentia.cli.app import app

    parts = [
        "# Command line\n",
        "Every command with its options, as `potentia COMMAND --help` prints them. Options of several values take them"
        " after one flag: `--tasks arc_easy boolq`. Exit codes: 0 all is well, 1 some cells failed, 2 bad input, 130"
        " interrupted.\n",
    ]
    for name, command in commands(typer.main.get_command(app), "potentia"):
        parts.append(f"## {name}\n\n{_help(command.help or '')}\n\n{_parameters(command)}")
    return "\n".join(parts)


def commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """Return every command that does something, under its whole name."""
    inner = getattr(command, "commands", None)
    if not inner:
        return [(name, command)]
    own = [(name, command)] if getattr(command, "invoke_without_command", False) else []
    return own + [
        found
        for key, part in inner.items()
        if not part.hidden
        for found in commands(part, f"{name} {key}")
    ]


def _help(text: str) -> str:
    """Write a command's help as Markdown: what follows "Example:" is code."""
    text = inspect.cleandoc(re.sub(r"\[/?[a-z ]*\]", "", text)).replace("\b\n", "")
    before, _, examples = [*re.split(r"(?m)^(Examples?:)", text, maxsplit=1), "", ""][:3]
    lines = [line.strip() for line in examples.strip().splitlines() if line.strip()]
    return _escape(before.strip()) + ("\n\n```bash\n" + "\n".join(lines) + "\n```" if lines else "")


def _parameters(command: Any) -> str:
    rows = []
    hints = typing.get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        option = parameter.param_type_name == "option"
        flags = [*parameter.opts, *parameter.secondary_opts] if option else [parameter.name.upper()]
        default = parameter.default
        shown = (
            ""
            if default in (None, False, ()) or callable(default) or not option
            else f"`{default}`"
        )
        needed = "needed" if parameter.required else shown
        kind = "" if getattr(parameter, "is_flag", False) else _kind(hints.get(parameter.name, str))
        named = ", ".join(f"`{flag}`" for flag in flags)
        rows.append(f"| {named} | {kind} | {needed} | {_cell(parameter.help or '')} |")
    return (
        "" if not rows else "| | takes | default | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _kind(annotation: Any) -> str:
    """Say in words what an option takes."""
    words = {str: "text", int: "whole number", float: "number", Path: "path"}
    inner = [part for part in typing.get_args(annotation) if part is not type(None)]
    if typing.get_origin(annotation) is list:
        return f"{_kind(inner[0])}, several"
    return (
        _kind(inner[0]) if inner else words.get(annotation, getattr(annotation, "__name__", "text"))
    )


# --- from Python ------------------------------------------------------------------------------------------------------


def api_page() -> str:
    """Return the reference of every name that ``import potentia`` offers, by what it is for."""
    import potentia

    names = {name for name in dir(potentia) if not name.startswith("_")}
    names = {name for name in names if not inspect.ismodule(getattr(potentia, name))}
    grouped = dict(GROUPS)
    rest = tuple(sorted(names - {name for group in GROUPS.values() for name in group}))
    if rest:
        grouped["More"] = rest
    parts = [
        "# Python\n",
        "Everything here is there after `import potentia`, and is loaded when first used. The rooms"
        " `potentia.analysis`, `potentia.engine`, `potentia.facts` and `potentia.tasks` hold more.\n",
    ]
    for title, group in grouped.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(potentia, name)) for name in group if name in names]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    if not inspect.isclass(value):
        return f"### {name}\n\n```python\n{_signature(f'potentia.{name}', value)}\n```\n\n{_prose(value)}\n"
    lines = [f"### {name}\n", _prose(value), ""]
    if dataclasses.is_dataclass(value) and not issubclass(value, Exception):
        lines += _fields(value)
    for member, what in vars(value).items():
        if (
            member.startswith("_")
            or not (doc := _prose(_plain(what)))
            or member in getattr(value, "model_fields", {})
        ):
            continue
        is_call = (
            callable(_plain(what))
            and not isinstance(what, property)
            and not hasattr(what, "attrname")
        )
        shown = " ".join(_signature(member, _plain(what)).split()) if is_call else member
        lines.append(f"- `{shown}`: {doc.splitlines()[0]}")
    return "\n".join(lines) + "\n"


def _plain(member: Any) -> Any:
    """Return the function behind a property, a class method or a cached property."""
    return (
        getattr(member, "fget", None)
        or getattr(member, "__func__", None)
        or getattr(member, "func", None)
        or member
    )


def _fields(record: type) -> list[str]:
    rows = []
    for field in dataclasses.fields(record):
        if field.name.startswith("_"):
            continue
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append(f"| `{field.name}` | `{_cell(_type(field.type))}` | {default} |")
    return ["| field | type | default |", "|---|---|---|", *rows, ""] if rows else []


class _Written(str):
    """An annotation as it is written, without the quotes that a text would get."""

    def __repr__(self) -> str:
        return PRIVATE.sub("", self)


def _signature(name: str, call: Any) -> str:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return f"{name}(…)"
    empty = inspect.Parameter.empty
    values = [p for key, p in signature.parameters.items() if key not in ("self", "cls")]
    values = [
        p if p.annotation is empty else p.replace(annotation=_Written(_type(p.annotation)))
        for p in values
    ]
    arrow = (
        ""
        if signature.return_annotation is empty
        else f" -> {_Written(_type(signature.return_annotation))!r}"
    )
    text = PRIVATE.sub("", f"{name}({', '.join(map(str, _starred(values)))}){arrow}")
    if len(text) <= 84:
        return text
    return PRIVATE.sub(
        "", "\n".join([f"{name}(", *(f"    {p}," for p in _starred(values)), f"){arrow}"])
    )


def _starred(parameters: list[inspect.Parameter]) -> list[Any]:
    """Put the bare star before the first parameter that is given by name alone."""
    made: list[Any] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(
            str(p).startswith("*") for p in made
        ):
            made.append("*")
        made.append(parameter)
    return made


def _type(annotation: Any) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def _prose(value: Any) -> str:
    """Return a docstring as Markdown: its own words, code in single ticks."""
    text = inspect.cleandoc(value.__doc__ or "") if value.__doc__ else ""
    if text.startswith(getattr(value, "__name__", "") + "("):  # made by dataclass
        return ""
    return text.replace("``", "`")


# --- the examples -----------------------------------------------------------------------------------------------------


def examples_page() -> str:
    """Return every example study, whole; each opens with its command."""
    parts = [
        "# Examples\n",
        "Studies of the folder `examples/`, each with its command in the first line.\n",
    ]
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        parts.append(
            f"## {file.stem}\n\n`examples/{file.name}`\n\n```yaml\n{file.read_text('utf-8').strip()}\n```\n"
        )
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escape(text: str) -> str:
    return textwrap.dedent(text).replace("<", "&lt;")

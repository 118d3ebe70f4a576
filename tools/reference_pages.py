"""Write the pages of the site that are read off the code: the command line and the examples.

They are made whenever the site is built (``make docs``) and stored nowhere, so they cannot fall behind. The page on
Python is made by ``python_reference``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# --- the command line -------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the reference of every command: what it does, its arguments and options, its example."""
    import typer

    from potentia.cli.app import app

    parts = [
        "# Command line\n",
        "Every command with its options, as `potentia COMMAND --help` prints them. Options of several values take them"
        " after one flag: `--tasks arc_easy boolq`. Exit codes: 0 all is well, 1 some results failed, 2 bad input, 130"
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
    own_command = [(name, command)] if getattr(command, "invoke_without_command", False) else []
    return own_command + [
        inner_command
        for key, part in inner.items()
        if not part.hidden
        for inner_command in commands(part, f"{name} {key}")
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
        shown_default = (
            ""
            if default in (None, False, ()) or callable(default) or not option
            else f"`{default}`"
        )
        needed = "needed" if parameter.required else shown_default
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

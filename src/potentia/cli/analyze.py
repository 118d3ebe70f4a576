"""How an ``analyze`` command is made: one builder gives each the same sources, options, output and figures.

A command is a function from evidence and what was asked to findings, under ``@analysis`` with its own options. What all
of them take (which study, which tasks, facts, figures, JSON …) is in ``READ`` and ``OUT``, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potentia.cli import options as given_by_all
from potentia.cli.app import analyze
from potentia.cli.output import check_formats, console, draw_figures, opened, print_findings, print_json, print_notes

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.values.findings import Finding

    Find = Callable[[Evidence, Any], Mapping[str, Finding]]


class Option(NamedTuple):
    """One option of a command: its type, with what typer knows of it, and what it is where nobody gives it."""

    kind: Any
    default: Any = None


def option(help: str, kind: Any = str | None, default: Any = None, *names: str, **limits: Any) -> Option:
    """Describe an option; without a type it is one text, or nothing. ``default=...`` makes it required."""
    empty = inspect.Parameter.empty if default is ... else default
    return Option(Annotated[kind, typer.Option(*names, help=help, **limits)], empty)


def flag(name: str, help: str, default: bool = False) -> Option:
    """Describe a switch, such as ``--best`` or ``--items/--no-items``."""
    return option(help, bool, default, name)


def many(help: str, *names: str, kind: Any = str, **limits: Any) -> Option:
    """Describe an option that takes several values."""
    return option(help, list[kind] | None, None, *names, **limits)


def path(help: str) -> Option:
    """Describe an option that takes a file."""
    return option(help, Path | None)


# What is read, in the words of `potentia.evidence.read`; then what comes out.
READ = {
    "study": Option(given_by_all.Study),
    "protocols": Option(given_by_all.OnlyProtocols),
    "tasks": Option(given_by_all.OnlyTasks),
    "models": Option(given_by_all.OnlyModels),
    "facts": Option(given_by_all.Facts),
    "task_facts": Option(given_by_all.TaskFacts),
    "columns": Option(given_by_all.Map),
    "lower": Option(given_by_all.Lower),
    "scale": Option(given_by_all.Scale),
    "kind": Option(given_by_all.Kind),
    "apart": Option(given_by_all.Apart, False),
    "metric": Option(given_by_all.Metric),
}
OUT = {
    "figures": Option(given_by_all.Figures),
    "format": Option(given_by_all.Formats),
    "no_titles": Option(given_by_all.NoTitles, False),
    "as_json": Option(given_by_all.Json, False),
}
SOURCES = Annotated[list[str], typer.Argument(help="Stores, score tables or lm-eval results; several are joined.")]


def analysis(
    name: str,
    *,
    show: Callable[[Mapping[str, Finding], Evidence, Any], None] | None = None,
    first: Mapping[str, Any] | None = None,
    **own: Option,
) -> Callable[[Find], Find]:
    """Make ``potentia analyze NAME`` of a function; its docstring is the help, ``show`` prints in a way of its own.

    The function gets the evidence and a namespace with its own options, ``sources``, and the arguments ``first`` that
    stand before them. An option of its own with the name of a common one takes that one's place, and is not read by.
    """

    def register(find: Find) -> Find:
        options = {**own, **{key: made for key, made in (READ | OUT).items() if key not in own}}
        if "protocol" in own:  # else the singular is accepted too
            options["protocols"] = many("Only these protocols.", "--protocols")

        def command(sources: list[str], **given: Any) -> None:
            asked = SimpleNamespace(sources=sources, **given)
            formats = check_formats(asked.format, tables=True)
            evidence = opened(*sources, notes=False, **{key: given[key] for key in READ if key not in own})
            groups = []
            for number, group in enumerate((evidence, *evidence.apart), start=1):
                if evidence.apart and not asked.as_json:
                    console.print(f"{number}. {group.name}", style="bold", markup=False)
                print_notes(group)
                found = find(group, asked)
                if asked.as_json:
                    told = {name: finding.to_dict() for name, finding in found.items()}
                    groups.append({"source": group.name, "notes": group.notes, "findings": told})
                elif show is not None:
                    show(found, group, asked)
                else:
                    print_findings(found, as_json=False)
                folder = asked.figures / f"group-{number}" if asked.figures and evidence.apart else asked.figures
                draw_figures(found.values(), folder, formats, titles=not asked.no_titles)
            if asked.as_json:
                print_json({"apart": groups} if asked.apart else groups[0]["findings"])

        whole = {**{key: Option(kind, inspect.Parameter.empty) for key, kind in (first or {}).items()},
                 "sources": Option(SOURCES, inspect.Parameter.empty), **options}  # fmt: skip
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=made.default, annotation=made.kind)
                for key, made in whole.items()
            ]
        )
        command.__annotations__ = {key: made.kind for key, made in whole.items()}
        command.__doc__ = find.__doc__
        command.__name__ = name.replace("-", "_")
        analyze.command(name)(command)
        return find

    return register

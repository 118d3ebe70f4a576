"""How an ``analyze`` command is made: one builder gives each the same sources, options, output and figures.

A command is a function from evidence and what was asked to findings, under ``@analysis`` with its own options. What all
of them take (which study, which tasks, facts, figures, JSON …) is in ``COMMON``, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from potentia.cli.app import analyze
from potentia.cli.output import (
    check_formats,
    columns_of,
    console,
    draw_figures,
    errors,
    print_findings,
    print_json,
    print_notes,
)

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.values.findings import Finding

    Find = Callable[[Evidence, Any], Mapping[str, Finding]]


class Option(NamedTuple):
    """One option of a command: its type, and what typer knows of it."""

    kind: Any
    info: Any


def option(help: str, kind: Any = str | None, default: Any = None, *names: str, **limits: Any) -> Option:
    """Describe an option; without a type it is one text, or nothing. ``default=...`` makes it required."""
    return Option(kind, typer.Option(default, *names, help=help, **limits))


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
    "study": many("Studies of the store, by name or key, or all; else the one opened last."),
    "protocols": many("Only these protocols.", "--protocols", "--protocol"),
    "tasks": many("Only these tasks, in all their forms."),
    "models": many("Only these models."),
    "facts": path("A CSV of facts on models of your own."),
    "task_facts": path("A CSV of facts on tasks: task, category, train_size, chance."),
    "columns": many("Say which column of a table is what, as score=Accuracy.", "--map", metavar="FIELD=COLUMN"),
    "lower": many("Columns of a table that are better when lower.", "--lower", metavar="COLUMN"),
    "scale": many("The scale of a column: share, percent, range or unbounded.", "--scale", metavar="COLUMN=SCALE"),
    "kind": many("What a column is of: task, or text to predict.", "--kind", metavar="COLUMN=KIND"),
    "apart": flag("--apart", "Show scores that cannot be compared apart, group by group, instead of refusing them."),
    "metric": option("The metric of the scores, such as acc or brier_score; else each task's own."),
}
PAIRS = {"columns": "--map", "scale": "--scale", "kind": "--kind"}  # options that say name=what
OUT = {
    "figures": option("Draw the figures, or write the tables, into this folder.", Path | None),
    "format": many("Of figures pdf, png, svg; of tables csv, latex; several may be given."),
    "no_titles": flag("--no-titles", "Draw the figures without title and caption."),
    "as_json": flag("--json", "Print the findings as JSON."),
}
COMMON = {**READ, **OUT}


def analysis(
    name: str, *, show: Callable[[Mapping[str, Finding], Evidence, Any], None] | None = None, **own: Option
) -> Callable[[Find], Find]:
    """Make ``potentia analyze NAME`` of a function; its docstring is the help, ``show`` prints in a way of its own.

    The function gets the evidence and a namespace with its own options and ``sources``. An option of its own with the
    name of a common one takes that one's place, and is not read by.
    """

    def register(find: Find) -> Find:
        options = {**own, **{key: made for key, made in COMMON.items() if key not in own}}
        if "protocol" in own:  # else the singular is accepted too
            options["protocols"] = many("Only these protocols.", "--protocols")

        def command(sources: list[str], **given: Any) -> None:
            from potentia.evidence import read

            asked = SimpleNamespace(sources=sources, **given)
            formats = check_formats(asked.format, tables=True)
            reading = {key: given[key] for key in READ if key not in own}
            pairs = {key: columns_of(reading[key], name) for key, name in PAIRS.items() if key in reading}
            evidence = read(*sources, **{**reading, **pairs, "lower": reading.get("lower") or ()})
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

        words = typer.Argument(help="Stores, score tables or lm-eval results; several are joined.")
        kinds = {"sources": list[str], **{key: made.kind for key, made in options.items()}}
        defaults = {"sources": words, **{key: made.info for key, made in options.items()}}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=kind)
                for key, kind in kinds.items()
            ]
        )
        command.__annotations__ = kinds
        command.__doc__ = find.__doc__
        command.__name__ = name.replace("-", "_")
        analyze.command(name)(command)
        return find

    return register


def tell(problems: Any) -> None:
    """Say what could not be analysed, beside the findings."""
    for problem in problems:
        errors.print(problem, markup=False, soft_wrap=True)

"""How commands speak: tables for people, JSON for scripts, errors that name the fix."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import potentia
from potentia.errors import InputError, PotentiaError, without_password
from potentia.values.findings import Finding, Table, jsonable, on_one_scale, telling, written


class Voice(Console):
    """A console that breaks lines on a terminal alone, and shows no password: in a pipe a line is as long as it is."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as Rich does."""
        if not self.is_terminal:
            how.setdefault("soft_wrap", True)
        super().print(*(without_password(o) if isinstance(o, str) else o for o in objects), **how)


console = Voice(highlight=False)
errors = Voice(stderr=True, highlight=False)


def say(*lines: str, style: str | None = None, to: Voice | None = None) -> None:
    """Print lines as they are: no markup, no line broken, so that a command in them can be pasted."""
    for line in lines:
        (to or console).print(line, style=style, markup=False, soft_wrap=True)


def answer(as_json: bool, value: Any, *told: str | Table) -> None:
    """Print a value as JSON, or else what is told of it."""
    if as_json:
        print_json(value)
        return
    for one in told:
        print_table(one) if isinstance(one, Table) else say(one)


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None]]:
    """Say what is going on, on a terminal; gives who is told what goes on now."""
    with errors.status(f"{what} …") as shown:
        yield lambda text: shown.update(f"{text} …")


def agree(what: str, *, yes: bool) -> None:
    """Go on where the user said --yes, or says so now; where there is no terminal to ask, --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"this would {what}", hint="say that you mean it: --yes")
    typer.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True)


def dicts(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table as objects."""
    return [dict(zip(names, row, strict=True)) for row in rows]


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(
        without_password(json.dumps(jsonable(value), indent=2, ensure_ascii=False)) + "\n"
    )


def print_table(table: Table, *, to: Voice | None = None) -> None:
    """Print one table; numbers are right-aligned, missing values shown as a dash. In a pipe no line is broken."""
    out = to or console
    numeric = [
        any(isinstance(row[k], (int, float)) for row in table.rows)
        for k in range(len(table.columns))
    ]
    rows = [[without_password(written(cell, table.digits)) for cell in row] for row in table.rows]
    if not out.is_terminal:
        for line in (
            table.title,
            *_lines(list(table.columns), rows, numeric),
            *([table.note] if table.note else []),
        ):
            out.print(line, markup=False)
    else:
        drawn = RichTable(
            title=escape(without_password(table.title)),
            title_justify="left",
            title_style="bold",
            header_style="bold",
            box=None,
        )
        for name, right in zip(table.columns, numeric, strict=True):
            drawn.add_column(escape(name), justify="right" if right else "left", overflow="fold")
        for row in rows:
            drawn.add_row(*map(escape, row))
        out.print(drawn)
        if table.note:
            out.print(f"[dim]{escape(table.note)}[/dim]")
    out.print()


def _lines(columns: list[str], rows: list[list[str]], right: list[bool]) -> list[str]:
    """Lay out a table as plain text, as wide as it is: another program reads it, or a file keeps it."""
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    lines = []
    for row in (columns, *rows):
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        lines.append(
            "  ".join(
                gap + c if r else c + gap for c, gap, r in zip(row, gaps, right, strict=True)
            ).rstrip()
        )
    return lines


def print_findings(findings: Mapping[str, Finding], *, as_json: bool = False) -> None:
    """Print findings as tables, each with its headline, or all of them as one JSON object keyed by name."""
    if as_json:
        print_json({name: finding.to_dict() for name, finding in findings.items()})
        return
    for finding in findings.values():
        headline = getattr(finding, "headline", str)  # of some
        print_told(filter(None, map(telling, finding.tables())), (), headline())


def print_scoreboard(
    board: potentia.analysis.rankings.Scoreboard, *, most: int | None = None, hint: str = "--all"
) -> None:
    """Print the score table, then who is first and how sure that is; ``hint`` says where the rest of a long one is."""
    for table in board.tables():
        rest = 0 if most is None else len(table.rows) - most
        more = f"… and {rest} more models ({hint}). "
        print_table(
            replace(table, rows=table.rows[:most], note=more + table.note) if rest > 0 else table
        )
    if len(board.standings) > 1:
        print_told((), board.certainty(), board.headline())


def print_classes(found: potentia.analysis.benchmark.Classification) -> None:
    """Print models beside what needs no language model, the classes of the best, and what to distrust."""
    print_told(found.tables()[: 3 if len(found.labels) <= 8 else 2], found.sentences())


def print_told(tables: Iterable[Table], sentences: Iterable[str], headline: str = "") -> None:
    """Print tables, then the headline and what people read; a terminal breaks the lines."""
    for table in tables:
        print_table(table)
    if headline:
        console.print(headline, style="bold", markup=False)
    for sentence in sentences:
        console.print(sentence, markup=False)


def training_of(evidence: potentia.Evidence) -> potentia.analysis.checkpoints.Training | None:
    """Return the pretraining runs of a study that is of checkpoints alone."""
    try:
        found = potentia.analysis.checkpoints.find_training(evidence)
    except InputError:
        return None
    return found if found.whole else None


def print_notes(evidence: potentia.Evidence) -> None:
    """Say what a reader must know of the evidence: which study it is, how a table was read, what was left out."""
    if evidence.reading is not None:
        for table in evidence.reading.tables():
            print_table(table, to=errors)
    say(*evidence.notes, style="dim", to=errors)


def opened(*sources: Any, notes: bool = True, **asked: Any) -> potentia.Evidence:
    """Read scores as a command was asked to, and say what is to be known of them; pairs such as --map are read."""
    for name, option in PAIRS.items():
        if name in asked:
            asked[name] = columns_of(asked[name], option)
    evidence = potentia.evidence.read(*sources, **asked)
    if notes:
        print_notes(evidence)
    return evidence


def history(asked: Any) -> potentia.Evidence | None:
    """Read what ``--history`` names: scores of other models."""
    return potentia.evidence.read(*asked.history) if asked.history else None


PAIRS = {"columns": "--map", "scale": "--scale", "kind": "--kind"}  # options that say name=what


def columns_of(pairs: list[str] | None, option: str = "--map") -> dict[str, str]:
    """Read what ``--map field=column`` and its like say; a column's name may hold = too."""
    found = {}
    for pair in pairs or ():
        left, _, right = pair.partition("=") if option == "--map" else pair.rpartition("=")
        if not left or not right:
            such = {"--map": "COLUMN", "--scale": "percent", "--kind": "text"}[option]
            hint = f"such as {option} {left or right or 'score'}={such}"
            raise InputError(
                f"{option} takes two names with = between, not {left or right!r}", hint=hint
            )
        found[left.strip()] = right
    return found


TABLES = ("csv", "latex")


def check_formats(asked: Any) -> list[str]:
    """Return the formats asked for, pdf where none is; refuse what cannot be drawn before anything is."""
    known, chosen = (*potentia.show.FORMATS, *TABLES), list(dict.fromkeys(asked.format or ["pdf"]))
    if wrong := [name for name in chosen if name not in known]:
        raise InputError(
            f"no figure format {wrong[0]!r}", hint=f"--format takes: {', '.join(known)}"
        )
    return chosen


def draw_figures(findings: Iterable[Finding], folder: Path | None, asked: Any) -> list[Path]:
    """Draw every chart of the findings where a folder is given, write their tables, say so, and return the files."""
    if folder is None:
        return []
    found, formats = list(findings), check_formats(asked)
    files: list[Path] = []
    if figures := [name for name in formats if name not in TABLES]:
        charts = on_one_scale(
            chart for finding in found for chart in finding.charts() if chart.tells
        )
        files = potentia.show.draw_all(charts, folder, figures, titles=not asked.no_titles)
        say(f"{len(files)} figures in {folder}", to=errors)
    if tables := [name for name in formats if name in TABLES]:
        every = [
            table
            for finding in found
            for table in map(telling, finding.tables())
            if table is not None
        ]
        made = potentia.formats.write_tables(every, folder, tables)
        say(f"{len(made)} tables in {folder}", to=errors)
        files += made
    return files


def print_error(error: PotentiaError) -> None:
    """Print an error as: what is wrong, where, and the hint on a line of its own."""
    place = f"{error.where}: " if error.where else ""
    errors.print(f"[bold red]error:[/bold red] {escape(place + error.message)}", soft_wrap=True)
    if error.hint:
        errors.print(f"  [bold]hint:[/bold] {escape(error.hint)}", soft_wrap=True)

"""How commands print: tables for people, JSON for scripts, errors that name the fix."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import potentia
from potentia.errors import InputError, PotentiaError, without_password
from potentia.extras import Extra, is_installed
from potentia.values.findings import (
    Finding,
    Table,
    drop_empty_columns,
    format_cell,
    put_on_one_scale,
    to_json_values,
)
from potentia.values.wording import set_signs, set_signs_of_cell


class Verbosity(Enum):
    """How much is printed beside the answer."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class SafeConsole(Console):
    """A console that shows no password, and that breaks lines on a terminal alone.

    In a pipe a line is as long as it is, so that another program can read it.
    """

    verbosity = Verbosity.NORMAL

    def print(self, *objects: Any, **rich_options: Any) -> None:
        """Print as Rich does."""
        if not self.is_terminal:
            rich_options.setdefault("soft_wrap", True)
        cleaned = []
        for printed in objects:
            cleaned.append(without_password(printed) if isinstance(printed, str) else printed)
        super().print(*cleaned, **rich_options)


console = SafeConsole(highlight=False)
error_console = SafeConsole(stderr=True, highlight=False)


def set_verbosity(verbosity: Verbosity) -> None:
    """Say how much commands print beside the answer; with ``--quiet`` only errors go to standard error."""
    error_console.quiet = verbosity is Verbosity.QUIET
    error_console.verbosity = verbosity


def is_quiet() -> bool:
    """Whether the user asked for the answer alone."""
    return error_console.verbosity is Verbosity.QUIET


def is_verbose() -> bool:
    """Whether the user asked for where the time went."""
    return error_console.verbosity is Verbosity.VERBOSE


def print_lines(*lines: str, style: str | None = None, to: SafeConsole | None = None) -> None:
    """Print lines as they are: no markup, no line broken, so that a command in them can be pasted."""
    target = to or console
    for line in lines:
        target.print(line, style=style, markup=False, soft_wrap=True)


def print_answer(as_json: bool, value: Any, *parts: str | Table) -> None:
    """Print a value as JSON, or else the lines and tables that describe it."""
    if as_json:
        print_json(value)
        return
    for part in parts:
        if isinstance(part, Table):
            print_table(part)
        else:
            print_lines(part)


@contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is going on; gives a function that replaces the text."""
    with error_console.status(f"{text} …") as spinner:
        yield lambda new_text: spinner.update(f"{new_text} …")


def confirm(action: str, *, is_confirmed: bool) -> None:
    """Go on where the user gave --yes or agrees now; where there is no terminal to ask, --yes is needed."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise InputError(f"this would {action}", hint="say that you mean it: --yes")
    typer.confirm(f"{action[:1].upper()}{action[1:]}?", abort=True)


def rows_as_dicts(
    column_names: Sequence[str], rows: Iterable[Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the rows of a table as objects."""
    return [dict(zip(column_names, row, strict=True)) for row in rows]


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    json_text = json.dumps(to_json_values(value), indent=2, ensure_ascii=False)
    sys.stdout.write(without_password(json_text) + "\n")


# --- tables -----------------------------------------------------------------------------------------------------------


def print_table(table: Table, *, to: SafeConsole | None = None) -> None:
    """Print one table: numbers on the right, a dash for a missing value. In a pipe no line is broken."""
    target = to or console
    is_numeric = []
    for column in range(len(table.columns)):
        is_numeric.append(any(isinstance(row[column], (int, float)) for row in table.rows))
    rows = [_format_row(row, table.digits) for row in table.rows]
    if target.is_terminal:
        _print_rich_table(table, rows, is_numeric, target)
    else:
        lines = [set_signs(table.title), *_align_columns(list(table.columns), rows, is_numeric)]
        if table.note:
            lines.append(set_signs(table.note))
        for line in lines:
            target.print(line, markup=False)
    target.print()


def _format_row(row: Sequence[Any], digits: int) -> list[str]:
    return [without_password(set_signs_of_cell(format_cell(cell, digits))) for cell in row]


def _print_rich_table(
    table: Table, rows: list[list[str]], is_numeric: list[bool], target: SafeConsole
) -> None:
    drawn = RichTable(
        title=escape(without_password(set_signs(table.title))),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
    )
    for column, numeric in zip(table.columns, is_numeric, strict=True):
        drawn.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(escape, row))
    target.print(drawn)
    if table.note:
        target.print(f"[dim]{escape(set_signs(table.note))}[/dim]")


def _align_columns(columns: list[str], rows: list[list[str]], is_numeric: list[bool]) -> list[str]:
    """Lay out a table as plain text, as wide as it is: another program reads it, or a file keeps it."""
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    lines = []
    for row in (columns, *rows):
        padded = []
        for cell, width, numeric in zip(row, widths, is_numeric, strict=True):
            padding = " " * (width - cell_len(cell))
            padded.append(padding + cell if numeric else cell + padding)
        lines.append("  ".join(padded).rstrip())
    return lines


# --- findings ---------------------------------------------------------------------------------------------------------


def print_findings(
    findings: Mapping[str, Finding], *, answer: Sequence[str] = (), as_json: bool = False
) -> None:
    """Print findings as tables, each with its headline, or all of them as one JSON object keyed by name.

    Where there is an ``answer`` to what was asked it comes first, in the place of the headlines. With ``--quiet`` there
    are sentences alone; findings that have none answer by their tables.
    """
    if as_json:
        print_json({finding_name: finding.to_dict() for finding_name, finding in findings.items()})
        return
    if is_quiet():
        sentences = list(answer) or list_sentences(findings.values())
        if sentences:
            print_tables_and_sentences((), sentences)
            return
    if answer:
        first, *others = answer
        print_tables_and_sentences((), others, first)
        console.print()
    for finding in findings.values():
        headline = ""
        if not answer and hasattr(finding, "headline"):
            headline = finding.headline()
        print_tables_and_sentences(informative_tables(finding), (), headline)


def list_sentences(findings: Iterable[Finding]) -> list[str]:
    """Return what findings say in words: the headline of each, then its sentences."""
    sentences: list[str] = []
    for finding in findings:
        if hasattr(finding, "headline"):
            sentences.append(finding.headline())
        if hasattr(finding, "sentences"):
            sentences += finding.sentences()
    return [sentence for sentence in sentences if sentence]


def informative_tables(*findings: Finding) -> list[Table]:
    """Return the tables of findings without columns that say nothing, and without empty tables."""
    tables = []
    for finding in findings:
        for table in finding.tables():
            informative = drop_empty_columns(table)
            if informative is not None:
                tables.append(informative)
    return tables


def print_scoreboard(
    scoreboard: potentia.analysis.rankings.Scoreboard,
    *,
    max_models: int | None = None,
    hint: str = "--all",
) -> None:
    """Print the score table, then who is first and how sure that is; ``hint`` says where the rest of a long one is."""
    for table in scoreboard.tables():
        hidden = 0 if max_models is None else len(table.rows) - max_models
        if hidden > 0:
            table_note = f"… and {hidden} more models ({hint}). {table.note}"
            table = replace(table, rows=table.rows[:max_models], note=table_note)
        print_table(table)
    if len(scoreboard.standings) > 1:
        print_tables_and_sentences((), scoreboard.certainty(), scoreboard.headline())


def print_classification(
    finding: potentia.analysis.benchmark.Classification, *, with_verdict: bool = True
) -> None:
    """Print models beside what needs no fine-tuning, the classes of the best, and what to distrust.

    ``with_verdict`` is False where whether the best model beats what needs no fine-tuning was said before.
    """
    tables = finding.tables()
    has_few_labels = len(finding.labels) <= 8
    printed_tables = tables[:3] if has_few_labels else tables[:2]
    sentences = finding.sentences()
    # the verdict is the first sentence; where no baseline was measured, there is none
    skips_verdict = finding.verdict is not None and not with_verdict
    if skips_verdict:
        sentences = sentences[1:]
    print_tables_and_sentences(printed_tables, sentences)


def print_stopped(store: str) -> None:
    """Say that everything finished is saved, and how to go on."""
    words = (shlex.quote(without_password(word)) for word in sys.argv[1:])
    same_command = " ".join(["potentia", *words])
    error_console.print(
        f"[bold]Stopped.[/bold] Everything finished is saved in {escape(store)}.", soft_wrap=True
    )
    error_console.print(f"To go on: [bold]{escape(same_command)}[/bold]", soft_wrap=True)


def print_tables_and_sentences(
    tables: Iterable[Table], sentences: Iterable[str], headline: str = ""
) -> None:
    """Print tables, then the headline and the sentences; a terminal breaks the lines."""
    for table in tables:
        print_table(table)
    if headline:
        console.print(set_signs(headline), style="bold", markup=False)
    for sentence in sentences:
        console.print(set_signs(sentence), markup=False)


def find_pretraining_runs(
    evidence: potentia.Evidence,
) -> potentia.analysis.checkpoints.Training | None:
    """Return the pretraining runs of a study that is of checkpoints alone; None for any other study."""
    try:
        training = potentia.analysis.checkpoints.find_training(evidence)
    except InputError:
        return None
    return training if training.whole else None


def print_notes(evidence: potentia.Evidence) -> None:
    """Print what a reader must know of the evidence: which study it is, how a table was read, what was left out."""
    if evidence.table_layout is not None:
        for table in evidence.table_layout.tables():
            print_table(table, to=error_console)
    print_lines(*map(set_signs, evidence.notes), style="dim", to=error_console)


# --- figures ----------------------------------------------------------------------------------------------------------

TABLE_FORMATS = ("csv", "tex")


@dataclass(frozen=True)
class FigureTarget:
    """A folder of figures or tables, and their format."""

    folder: Path
    format: str

    @classmethod
    def from_text(cls, text: str) -> FigureTarget:
        """Read one value of ``--figures``: a folder, whose suffix names the format."""
        path = Path(text)
        format_name = path.suffix.removeprefix(".").lower()
        if not format_name:
            return cls(path, _choose_figure_format())
        known_formats = (*potentia.show.FORMATS, *TABLE_FORMATS)
        if format_name not in known_formats:
            raise InputError(
                f"no figure format {format_name!r}",
                hint=f"--figures {path.stem} or {path.stem}.SUFFIX; suffixes: {', '.join(known_formats)}",
            )
        if format_name not in TABLE_FORMATS:
            potentia.show.check_figure_format(format_name)
        return cls(path.with_suffix(""), format_name)


def _choose_figure_format() -> str:
    """Return the format of figures that name none: PNG, or SVG with a note where nothing converts it."""
    if is_installed("vl_convert"):
        return "png"
    command = Extra.FIGURES.install_command
    print_lines(f"figures are drawn as SVG; for PNG and PDF: {command}", to=error_console)
    return "svg"


def read_figure_targets(figures: Sequence[str] | None) -> list[FigureTarget]:
    """Return where figures and tables go; refuse what cannot be drawn before anything is computed."""
    return [FigureTarget.from_text(text) for text in figures or ()]


def draw_figures(
    findings: Iterable[Finding], targets: Sequence[FigureTarget], *, subfolder: str = ""
) -> list[Path]:
    """Draw the charts of findings and write their tables into the folders; return the files.

    PDF is for a paper, which has its own captions: these figures have neither title nor caption.
    """
    all_findings = list(findings)
    files: list[Path] = []
    for target in targets:
        folder = target.folder / subfolder if subfolder else target.folder
        if target.format in TABLE_FORMATS:
            table_format = "latex" if target.format == "tex" else target.format
            tables = informative_tables(*all_findings)
            written = potentia.formats.write_tables(tables, folder, [table_format])
            print_lines(f"{len(written)} tables in {folder}", to=error_console)
        else:
            all_charts = itertools.chain.from_iterable(finding.charts() for finding in all_findings)
            charts = put_on_one_scale(chart for chart in all_charts if chart.has_content)
            with_titles = target.format != "pdf"
            written = potentia.show.draw_all(charts, folder, [target.format], titles=with_titles)
            print_lines(f"{len(written)} figures in {folder}", to=error_console)
        files += written
    return files


def print_error(error: PotentiaError) -> None:
    """Print an error as: what is wrong, where, and the hint on a line of its own; ``--quiet`` hides no error."""
    error_console.quiet = False
    location = f"{error.where}: " if error.where else ""
    error_console.print(
        f"[bold red]error:[/bold red] {escape(location + error.message)}", soft_wrap=True
    )
    if error.hint:
        error_console.print(f"  [bold]hint:[/bold] {escape(error.hint)}", soft_wrap=True)

"""Pages from templates: escaping, drawings, tables that need no script, and data that is unpacked by need.

A report of hundreds of models holds more numbers than anyone looks at. In the one-file report a large value is packed
(gzip in base64) and unpacked when its figure or table comes into view; on the board it is fetched then.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from markupsafe import Markup

from potentia.analysis.rankings import describe_preparation
from potentia.show.drawing import inline_svg
from potentia.timing import format_duration
from potentia.values.findings import (
    Chart,
    Finding,
    Table,
    TableValue,
    drop_empty_columns,
    format_cell,
    make_slug,
    put_on_one_scale,
    to_json_values,
)
from potentia.values.protocol import Protocol
from potentia.values.wording import format_count, set_signs, set_signs_of_cell

SCRIPTS = ("theme.js", "tables.js", "charts.js", "evidence.js", "cells.js", "live.js")
STYLES = ("report.css", "chart.css")
WIDE_DRAWING = 580  # pixels; a wider drawing has a row of its own
MAX_FIGURES_SHOWN = 6  # of a section of findings; the rest is folded
MAX_TABLE_ROWS = 300  # of a table in the page
LARGE_JSON = 6_000  # characters, from which on a value is packed


@dataclass(frozen=True)
class Section:
    """What a section says, as values: a lead, charts, tables; with a ``template`` of its own where it needs one."""

    id: str
    title: str  # in the navigation
    lead: str = ""
    charts: Sequence[Chart] = ()
    folded_charts: Sequence[Chart] = ()  # folded away
    more_title: str = "More figures"
    tables: Sequence[Table] = ()  # folded away
    table: Table | None = None  # in view
    problems: tuple[str, ...] = ()  # what could not be analysed, and why
    template: str = "findings.html"
    context: Mapping[str, Any] = field(default_factory=dict)  # of the template
    heading: str = ""  # a few words beside the title

    def html(self, page_data: PageData) -> str:
        """Write the section; ``page_data`` takes the values that are unpacked by need."""
        informative_tables = []
        for table in self.tables:
            informative = drop_empty_columns(table)
            if informative is not None:
                informative_tables.append(informative)
        return render(
            self.template,
            section=self,
            table=None if self.table is None else drop_empty_columns(self.table),
            figures=make_figures(self.charts),
            more=make_figures(self.folded_charts),
            tables=informative_tables,
            page_data=page_data,
            **self.context,
        )


def of_findings(
    section_id: str,
    title: str,
    lead: str,
    findings: Iterable[Finding | None],
    *,
    heading: str = "",
) -> Section | None:
    """Show findings in a row, with their problems; charts beyond the first ``MAX_FIGURES_SHOWN`` are folded."""
    present_findings = [finding for finding in findings if finding is not None]
    if not present_findings:
        return None
    charts = charts_of(present_findings)
    problems: list[str] = []
    for finding in present_findings:
        problems += getattr(finding, "problems", ())
    return Section(
        section_id,
        title,
        lead,
        charts=charts[:MAX_FIGURES_SHOWN],
        folded_charts=charts[MAX_FIGURES_SHOWN:],
        tables=tables_of(present_findings),
        problems=tuple(problems),
        heading=heading,
    )


def charts_of(findings: Iterable[Finding]) -> list[Chart]:
    """Return the charts of findings, one after the other."""
    return list(itertools.chain.from_iterable(finding.charts() for finding in findings))


def tables_of(findings: Iterable[Finding]) -> list[Table]:
    """Return the tables of findings, one after the other."""
    return list(itertools.chain.from_iterable(finding.tables() for finding in findings))


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def environment() -> Any:
    """Return the templates' environment: everything is escaped but what a filter returns as ``Markup``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("potentia.show", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        clock=format_duration,
        embed=embed,
        setting=format_setting,
        whole=keep_names_whole,
        prose=format_prose,
        protocol=lambda name: Protocol(name).label,
        phrase=lambda name: Protocol(name).phrase,
        describe_scores=describe_scores,
        table=html_table,
        split_first_sentence=split_first_sentence,
    )
    templates.globals.update(count=format_count)
    return templates


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    return str(environment().get_template(template).render(**context))


@cache
def asset(file_name: str) -> str:
    """Return one of our own scripts or style sheets."""
    return (
        resources.files("potentia.show").joinpath("assets", file_name).read_text(encoding="utf-8")
    )


# --- words ------------------------------------------------------------------------------------------------------------


def keep_numbers_with_units(sentence: str) -> str:
    """Keep a number with its sign: 95 %, 0.61 ± 0.02, −0.006."""
    return _keep_together(set_signs(sentence))


def _keep_together(text: str) -> str:
    """Let no line end between a number and its unit or its error."""
    return text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def split_first_sentence(text: str) -> list[str]:
    """Return the first sentence of a text and, where there is more, the rest as one text."""
    return re.split(r"(?<=[\w)]\.) ", keep_numbers_with_units(text), maxsplit=1)


def describe_scores(protocol_name: str) -> str:
    """Say in a caption which scores are meant: those after the same fine-tuning, before it, or by 5-shot."""
    protocol = Protocol(protocol_name)
    if protocol.kind == "direct":
        return "before fine-tuning"
    if protocol.tuned:
        return describe_preparation(protocol)
    return f"by {protocol.label}"


def format_percent(share: float) -> str:
    """Write a share: 73 %."""
    return f"{100 * share:.0f}\u00a0%"


def format_chance(probability: float) -> str:
    """Write a probability: never 100 %."""
    if probability > 0.995:
        return "over 99\u00a0%"
    return format_percent(probability)


def format_setting(setting: object) -> str:
    """Write one field of a recipe: yes or no, 32 instead of 32.0, lists in a row, and default where nothing was set."""
    if setting is None:
        return "default"
    if isinstance(setting, (list, tuple)):
        return ", ".join(map(format_setting, setting))
    if isinstance(setting, float):
        return f"{setting:g}"
    if isinstance(setting, bool):
        return format_cell(setting)
    return str(setting)


def _tag_every_second(texts: Sequence[str], start_tag: str) -> Markup:
    """Join texts, every second one inside a tag."""
    end_tag = start_tag.split()[0]
    parts = []
    for text_number, text in enumerate(texts):
        if text_number % 2:
            parts.append(f"<{start_tag}>{escape(text)}</{end_tag}>")
        else:
            parts.append(escape(text))
    return Markup("".join(parts))


def keep_names_whole(text: str, whole_names: Iterable[str]) -> Markup:
    """Write a sentence so that no model's name is broken between two lines."""
    longest_first = sorted(set(whole_names), key=len, reverse=True)
    texts = [text]
    if longest_first:
        alternatives = "|".join(map(re.escape, longest_first))
        texts = re.split(rf"(?<!\w)({alternatives})(?!\w)", text)  # a model may be called "a"
    return _tag_every_second(texts, 'span class="whole"')


def format_prose(text: str) -> Markup:
    """Write a sentence in which `this` is code; only what is no code gets its signs set."""
    texts = text.split("`")
    texts[::2] = map(keep_numbers_with_units, texts[::2])
    return _tag_every_second(texts, "code")


# --- figures and tables -----------------------------------------------------------------------------------------------


def make_figures(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return what the figure template needs of every chart that has something to see: words, and the drawing."""
    groups: dict[object, list[Chart]] = {}  # what is compared stands side by side
    for figure_number, chart in enumerate(
        put_on_one_scale(chart for chart in charts if chart.has_content)
    ):
        group = (type(chart), chart.group) if chart.group else figure_number
        groups.setdefault(group, []).append(chart)
    figures = []
    for group_charts in groups.values():
        for figure_number, chart in enumerate(group_charts):
            svg, width = inline_svg(chart)
            layout = ""
            if width > WIDE_DRAWING:
                layout = "wide"
            elif chart.group and figure_number % 2 == 0:
                layout = "left"
            figures.append({"chart": chart, "svg": Markup(svg), "place": layout})
    return figures


def html_table(table: Table) -> Markup:
    """Return a table as HTML, of at most ``MAX_TABLE_ROWS`` rows; a note below says how many more there are."""
    classes = []
    for column in range(len(table.columns)):
        is_numeric = any(isinstance(row[column], (int, float)) for row in table.rows)
        classes.append(" class=num" if is_numeric else "")
    head = "".join(
        f"<th scope=col{class_}>{escape(name)}</th>"
        for name, class_ in zip(table.columns, classes, strict=True)
    )
    rows = []
    for row in table.rows[:MAX_TABLE_ROWS]:
        cells = [
            _html_cell(cell, table.digits, class_)
            for cell, class_ in zip(row, classes, strict=True)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    table_note = table.note
    hidden_rows = len(table.rows) - MAX_TABLE_ROWS
    if hidden_rows > 0:
        table_note = (
            f"{hidden_rows:,} more rows: `potentia analyze … --figures tables.csv`. {table_note}"
        )
    caption = f"<p class=caption>{format_prose(table_note)}</p>" if table_note else ""
    return Markup(
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{caption}"
    )


def _html_cell(cell: TableValue, digits: int, class_: str) -> str:
    """Write one cell as the command line does, thousands apart.

    A number that is shown in fewer digits carries six (``data-v``), for sorting and for the CSV; so does one with a
    minus sign, which a spreadsheet would not read.
    """
    cell_text = _format_cell(cell, digits)
    full_text = cell_text
    if isinstance(cell, float) and math.isfinite(cell):
        full_text = f"{cell:.6g}"
    cell_text = _keep_together(set_signs_of_cell(cell_text))
    sort_attribute = "" if full_text == cell_text else f' data-v="{full_text}"'
    return f"<td{class_}{sort_attribute}>{escape(cell_text)}</td>"


def _format_cell(cell: TableValue, digits: int) -> str:
    if type(cell) is int:
        return f"{cell:,}"
    if isinstance(cell, float) and not math.isfinite(cell):
        return "–"
    return format_cell(cell, digits)


# --- data -------------------------------------------------------------------------------------------------------------


class PageData:
    """Takes the values of a page and returns the elements that carry them.

    ``board_url`` is where the board serves the page; it is empty in a file.
    """

    def __init__(self, board_url: str = "") -> None:
        self.board_url = board_url
        self.packed_values: dict[str, bytes] = {}  # by name, for the board to serve

    def script(self, value: Any, name: str, *, kind: str = "", label: str = "") -> Markup:
        """Return the element with this id (or class, where ``kind`` is given) that carries the value."""
        json_text = to_json(value)
        attributes = f'class="{escape(kind)}"' if kind else f'id="{escape(name)}"'
        if label:
            attributes += f' data-label="{escape(label)}"'
        if len(json_text) < LARGE_JSON:
            return Markup(f'<script type="application/json" {attributes}>{embed(value)}</script>')
        packed = gzip.compress(json_text.encode("utf-8"), compresslevel=6, mtime=0)
        if self.board_url:
            source = escape(f"{self.board_url}/data/{self._add_packed_value(name, packed)}")
            return Markup(
                f'<script type="application/json" {attributes} data-from="{source}"></script>'
            )
        encoded = base64.b64encode(packed).decode("ascii")
        return Markup(f'<script type="text/plain" {attributes} data-packed>{encoded}</script>')

    def _add_packed_value(self, name: str, packed: bytes) -> str:
        """Add a packed value for the board to serve, and return its name there, which no other value has."""
        address = make_slug(name)
        namesakes = 0
        for other in self.packed_values:
            if other == address or other.startswith(f"{address}."):
                namesakes += 1
        if namesakes:
            address = f"{address}.{namesakes + 1}"
        self.packed_values[address] = packed
        return address


def to_json(value: Any) -> str:
    """Write a value as JSON; arrays, dataclasses and NaN become what JSON can hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(
            to_json_values(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )


def embed(value: Any) -> Markup:
    """Write a value as JSON that is safe inside a ``script`` element: no ``<`` survives, so no tag can end it."""
    json_text = to_json(value)
    for character in "<>&\u2028\u2029":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    return Markup(json_text)

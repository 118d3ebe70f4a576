"""Pages from templates: escaping, drawings, tables that need no script, and data that is unpacked by need.

A report of hundreds of models holds more numbers than anyone looks at. In the one-file report a large value is packed
(gzip in base64) and unpacked when its figure or table comes into view; on the board it is fetched then.
"""

from __future__ import annotations

import base64
import gzip
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

from potentia.show.drawing import inline_svg
from potentia.timing import format_duration
from potentia.values.findings import (
    Cell,
    Chart,
    Finding,
    Table,
    drop_empty_columns,
    format_cell,
    jsonable,
    on_one_scale,
    slug,
)
from potentia.values.protocol import Protocol

SCRIPTS = ("theme.js", "tables.js", "charts.js", "evidence.js", "cells.js", "live.js")
STYLES = ("report.css", "chart.css")
WIDE_DRAWING = 580  # pixels; a wider drawing has a row of its own
MAX_FIGURES_SHOWN = 6  # of a section of findings; the rest is folded
MAX_TABLE_ROWS = 300  # of a table in the page
NAME_TAIL = 9  # letters at the end of a name that are never cut
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

    def html(self, parts: Parts) -> str:
        """Write the section; ``parts`` takes its data."""
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
            parts=parts,
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
    """Show findings one after the other, with their problems; some have a chart for every task, and most are folded."""
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
    return [chart for finding in findings for chart in finding.charts()]


def tables_of(findings: Iterable[Finding]) -> list[Table]:
    """Return the tables of findings, one after the other."""
    return [table for finding in findings for table in finding.tables()]


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def environment() -> Any:
    """Return the templates' environment: everything is escaped unless it was made by ``embed``."""
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
        named=cut_in_middle,
        prose=format_prose,
        protocol=lambda name: Protocol(name).label,
        table=html_table,
        sentences=lambda text: re.split(r"(?<=[\w)]\.) ", text, maxsplit=1),
    )
    templates.globals.update(count=count)
    return templates


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    return str(environment().get_template(template).render(**context))


@cache
def asset(name: str) -> str:
    """Return one of our own scripts or style sheets."""
    return resources.files("potentia.show").joinpath("assets", name).read_text(encoding="utf-8")


# --- words ------------------------------------------------------------------------------------------------------------


def unbroken(sentence: str) -> str:
    """Keep a number with its sign: 95 %, 0.61 ± 0.02, −0.006."""
    sentence = re.sub(r"(?<![\w.-])-(?=\d)", "−", sentence)
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def percent(share: float) -> str:
    """Write a share: 73 %."""
    return f"{100 * share:.0f}\u00a0%"


def chance(probability: float) -> str:
    """Write a probability: never 100 %."""
    if probability > 0.995:
        return "over 99\u00a0%"
    return percent(probability)


def format_setting(value: object) -> str:
    """Write one field of a recipe: yes or no, 32 instead of 32.0, lists in a row, and default where nothing was set."""
    if value is None:
        return "default"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_setting, value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return format_cell(value)
    return str(value)


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: 1 model, 61 models."""
    noun = singular
    if number != 1:
        noun = plural or f"{singular}s"
    return f"{number:,} {noun}"


def _tag_every_second(texts: Sequence[str], start_tag: str) -> Markup:
    """Join texts, every second one inside a tag."""
    end_tag = start_tag.split()[0]
    parts = []
    for number, text in enumerate(texts):
        if number % 2:
            parts.append(f"<{start_tag}>{escape(text)}</{end_tag}>")
        else:
            parts.append(escape(text))
    return Markup("".join(parts))


def keep_names_whole(text: str, names: Iterable[str]) -> Markup:
    """Write a sentence so that no model's name is broken between two lines."""
    longest_first = sorted(set(names), key=len, reverse=True)
    texts = [text]
    if longest_first:
        alternatives = "|".join(map(re.escape, longest_first))
        texts = re.split(rf"(?<!\w)({alternatives})(?!\w)", text)  # a model may be called "a"
    return _tag_every_second(texts, 'span class="whole"')


def format_prose(text: str) -> Markup:
    """Write a sentence in which `this` is code."""
    return _tag_every_second(text.split("`"), "code")


def cut_in_middle(name: str) -> Markup:
    """Write a name that is cut in its middle where there is no room: its end tells it from its sisters."""
    return Markup('<span class="cut"><span>{}</span><span>{}</span></span>').format(
        name[:-NAME_TAIL], name[-NAME_TAIL:]
    )


# --- figures and tables -----------------------------------------------------------------------------------------------


def make_figures(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return what the figure template needs of every chart that has something to see: words, and the drawing."""
    groups: dict[object, list[Chart]] = {}  # what is compared stands side by side
    for number, chart in enumerate(on_one_scale(chart for chart in charts if chart.has_content)):
        group = (type(chart), chart.group) if chart.group else number
        groups.setdefault(group, []).append(chart)
    figures = []
    for group_charts in groups.values():
        for number, chart in enumerate(group_charts):
            svg, width = inline_svg(chart)
            layout = ""
            if width > WIDE_DRAWING:
                layout = "wide"
            elif chart.group and number % 2 == 0:
                layout = "left"
            figures.append({"chart": chart, "svg": Markup(svg), "place": layout})
    return figures


def html_table(table: Table) -> Markup:
    """Return a table as HTML; a number that is shown in fewer digits carries six, for sorting and for the CSV."""
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
    note = table.note
    hidden_rows = len(table.rows) - MAX_TABLE_ROWS
    if hidden_rows > 0:
        note = f"{hidden_rows:,} more rows: `potentia analyze … --figures tables.csv`. {note}"
    caption = f"<p class=caption>{format_prose(note)}</p>" if note else ""
    return Markup(
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{caption}"
    )


def _html_cell(cell: Cell, digits: int, class_: str) -> str:
    """Write one cell as the command line does, thousands apart."""
    text = _format_cell(cell, digits)
    full_text = text
    if isinstance(cell, float) and math.isfinite(cell):
        full_text = f"{cell:.6g}"
    value = "" if full_text == text else f' data-v="{full_text}"'
    return f"<td{class_}{value}>{escape(text)}</td>"


def _format_cell(cell: Cell, digits: int) -> str:
    if type(cell) is int:
        return f"{cell:,}"
    if isinstance(cell, float) and not math.isfinite(cell):
        return "–"
    return format_cell(cell, digits)


# --- data -------------------------------------------------------------------------------------------------------------


class Parts:
    """Takes the values of a page and returns the elements that carry them; ``live`` is the board's address."""

    def __init__(self, live: str = "") -> None:
        self.live = live
        self.kept: dict[str, bytes] = {}  # name → packed JSON, for the board to serve

    def script(self, value: Any, name: str, *, kind: str = "", label: str = "") -> Markup:
        """Return the element with this id (or class, where ``kind`` is given) that carries the value."""
        text = to_json(value)
        attributes = f'class="{escape(kind)}"' if kind else f'id="{escape(name)}"'
        if label:
            attributes += f' data-label="{escape(label)}"'
        if len(text) < LARGE_JSON:
            return Markup(f'<script type="application/json" {attributes}>{embed(value)}</script>')
        packed = gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)
        if self.live:
            source = escape(f"{self.live}/data/{self._keep(name, packed)}")
            return Markup(
                f'<script type="application/json" {attributes} data-from="{source}"></script>'
            )
        encoded = base64.b64encode(packed).decode("ascii")
        return Markup(f'<script type="text/plain" {attributes} data-packed>{encoded}</script>')

    def _keep(self, name: str, packed: bytes) -> str:
        """Keep a packed value for the board under a name of its own, and return that name."""
        key = slug(name)
        namesakes = sum(
            kept_name == key or kept_name.startswith(f"{key}.") for kept_name in self.kept
        )
        if namesakes:
            key = f"{key}.{namesakes + 1}"
        self.kept[key] = packed
        return key


def to_json(value: Any) -> str:
    """Write a value as JSON; arrays, dataclasses and NaN become what JSON can hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(
            jsonable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )


def embed(value: Any) -> Markup:
    """Write a value as JSON that is safe inside a ``script`` element: no ``<`` survives, so no tag can end it."""
    text = to_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)

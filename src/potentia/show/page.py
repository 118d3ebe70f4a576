"""Pages from templates: escaping, drawings, tables that need no script, and data that is unpacked by need.

A report of hundreds of models holds more numbers than anyone looks at. In the one-file report a large value is packed
(gzip in base64) and unpacked when its figure or table comes into view; on the board it is fetched then. A chart is
drawn once: into the page, as a file for a paper, or for a notebook, with or without its title.
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
from pathlib import Path
from typing import Any

from markupsafe import Markup

from potentia.errors import InputError
from potentia.files import write_file
from potentia.show.charts import draw_chart
from potentia.show.svg import LINE, Sheet, wrapped
from potentia.timing import format_duration
from potentia.values.findings import (
    Cell,
    Chart,
    Finding,
    Table,
    draws,
    jsonable,
    on_one_scale,
    slug,
    telling,
    written,
)
from potentia.values.protocol import Protocol

FORMATS = ("pdf", "png", "svg")
MARGIN = 14.0
HEADING = 14.0  # letters of the title


@dataclass(frozen=True)
class Drawing:
    """A chart as a picture, which a notebook shows by itself."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it as PDF, PNG or SVG, by the file's ending."""
        path = Path(path)
        write_file(path, _converted(self.svg, path.suffix.lstrip(".").lower()))
        return path


@draws
def drawing(chart: Chart) -> Drawing:
    """Return the picture of a chart."""
    return Drawing(_alone(chart, titles=True))


def draw(chart: Chart, format: str = "pdf", *, titles: bool = True) -> bytes:
    """Return the chart as PDF, PNG or SVG."""
    return _converted(_alone(chart, titles=titles), format)


def draw_all(
    charts: Iterable[Chart], folder: Path, formats: Sequence[str] = ("pdf",), *, titles: bool = True
) -> list[Path]:
    """Write every chart into a folder in every format, and return the files."""
    for format in formats:
        _check(format)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in charts:
        svg = _alone(chart, titles=titles)
        for format in formats:
            path = folder / f"{chart.name}.{format}"
            write_file(path, _converted(svg, format))
            files.append(path)
    return files


def inline_svg(chart: Chart) -> tuple[str, float]:
    """Return the drawing as the page holds it, which has title and colours, and its width."""
    sheet, width, height = draw_chart(chart)
    label = escape(f"{chart.title}. {chart.caption}".strip(" ."))
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" style="--w: {width:.0f}px"'  # noqa: E501
    return (
        f'<svg class="chart" {size} role="img" aria-label="{label}">{"".join(sheet.parts)}</svg>',
        width,
    )


def _alone(chart: Chart, *, titles: bool) -> str:
    """Return the drawing as a file of its own: on white, with the page's light colours."""
    sheet, width, height = draw_chart(chart)
    head, y = Sheet(), 0.0
    if titles:
        for line in wrapped(chart.title, width, HEADING + 1):
            head.text(0, y + LINE / 2, line, "heading")
            y += LINE + 1
        for line in wrapped(chart.caption, width):
            head.text(0, y + LINE / 2, line, "muted")
            y += LINE - 2
        y += 10 if y else 0
    width, height = width + 2 * MARGIN, height + y + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>{escape(chart.title)}</title><style>{_light_style()}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/><g transform="translate({MARGIN:g} {MARGIN:g})">'
        f'{"".join(head.parts)}<g transform="translate(0 {y:g})">{"".join(sheet.parts)}</g></g></svg>'
    )


@cache
def _light_style() -> str:
    """Return the style of charts with the light colours of the page in the place of its variables."""
    folder = resources.files("potentia.show").joinpath("assets")
    root = (
        folder.joinpath("report.css").read_text("utf-8").partition(":root {")[2].partition("}")[0]
    )
    colours = dict(re.findall(r"--([\w-]+):\s*([^;]+);", root))
    style = folder.joinpath("chart.css").read_text("utf-8")
    return re.sub(
        r"var\(--([\w-]+)\)", lambda found: colours[found[1]], re.sub(r"/\*.*?\*/\s*", "", style)
    )


def _check(format: str) -> None:
    if format not in FORMATS:
        raise InputError(f"no figure format {format!r}", hint=f"one of: {', '.join(FORMATS)}")


def _converted(svg: str, format: str) -> bytes:
    _check(format)
    if format == "svg":
        return svg.encode("utf-8")
    import vl_convert

    made: bytes = (
        vl_convert.svg_to_pdf(svg) if format == "pdf" else vl_convert.svg_to_png(svg, scale=2)
    )
    return made


SCRIPTS = ("theme.js", "tables.js", "charts.js", "evidence.js", "cells.js", "live.js")
STYLES = ("report.css", "chart.css")
WIDE = 580  # pixels; a wider drawing has a row of its own
MOST_FIGURES = 6  # in view, of a section of findings
MOST_ROWS = 300  # of a table in the page
TAIL = 9  # letters at the end of a name that are never cut
LARGE = 6_000  # characters of JSON, from which on a value is packed


@dataclass(frozen=True)
class Section:
    """What a section says, as values: a lead, charts, tables; with a ``template`` of its own where it needs one."""

    id: str
    title: str  # in the navigation
    lead: str = ""
    charts: Sequence[Chart] = ()
    more: Sequence[Chart] = ()  # folded away
    more_title: str = "More figures"
    tables: Sequence[Table] = ()  # folded away
    table: Table | None = None  # in view
    problems: tuple[str, ...] = ()  # what could not be analysed, and why
    template: str = "findings.html"
    context: Mapping[str, Any] = field(default_factory=dict)  # of the template
    heading: str = ""  # else the title

    def html(self, parts: Parts) -> str:
        """Write the section; ``parts`` takes its data."""
        return render(
            self.template,
            section=self,
            table=telling(self.table) if self.table is not None else None,
            figures=figures(self.charts),
            more=figures(self.more),
            tables=[table for table in map(telling, self.tables) if table is not None],
            parts=parts,
            **self.context,
        )


def of_findings(
    id: str, title: str, lead: str, found: Iterable[Finding | None], *, heading: str = ""
) -> Section | None:
    """Show findings one after the other, with their problems; some have a chart for every task, and most are folded."""
    known = [finding for finding in found if finding is not None]
    if not known:
        return None
    charts, problems = (
        charts_of(known),
        tuple(p for finding in known for p in getattr(finding, "problems", ())),
    )
    shown, folded = charts[:MOST_FIGURES], charts[MOST_FIGURES:]
    return Section(
        id, title, lead, shown, folded, tables=tables_of(known), problems=problems, heading=heading
    )


def charts_of(found: Iterable[Finding]) -> list[Chart]:
    """Return the charts of findings, one after the other."""
    return [chart for finding in found for chart in finding.charts()]


def tables_of(found: Iterable[Finding]) -> list[Table]:
    """Return the tables of findings, one after the other."""
    return [table for finding in found for table in finding.tables()]


@cache
def environment() -> Any:
    """Return the templates' environment: everything is escaped unless it was made by ``embed``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("potentia.show", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        clock=format_duration, embed=embed, setting=setting, whole=whole, named=named, prose=prose
    )
    made.filters.update(protocol=lambda name: Protocol(name).label, table=html_table)
    made.filters.update(sentences=lambda text: re.split(r"(?<=[\w)]\.) ", text, maxsplit=1))
    made.globals.update(count=count)
    return made


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    return str(environment().get_template(template).render(**context))


@cache
def asset(name: str) -> str:
    """Return one of our own scripts or style sheets."""
    return resources.files("potentia.show").joinpath("assets", name).read_text(encoding="utf-8")


def unbroken(sentence: str) -> str:
    """Keep a number with its sign: 95 %, 0.61 ± 0.02."""
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def percent(share: float) -> str:
    """Write a share: 73 %."""
    return f"{100 * share:.0f}\u00a0%"


def chance(probability: float) -> str:
    """Write a probability: never 100 %."""
    return percent(probability) if probability <= 0.995 else "over 99\u00a0%"


def setting(value: object) -> str:
    """Write one field of a recipe: yes or no, 32 instead of 32.0, lists in a row, and default where nothing was set."""
    if value is None:
        return "default"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value))
    return (
        f"{value:g}"
        if isinstance(value, float)
        else written(value)
        if isinstance(value, bool)
        else str(value)
    )


def count(n: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: 1 model, 61 models."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


def _tagged(parts: Sequence[str], tag: str) -> Markup:
    """Join texts, every second one inside a tag."""
    marked = (
        f"<{tag}>{escape(p)}</{tag.split()[0]}>" if k % 2 else escape(p)
        for k, p in enumerate(parts)
    )
    return Markup("".join(marked))


def whole(text: str, names: Iterable[str]) -> Markup:
    """Write a sentence so that no model's name is broken between two lines."""
    known = "|".join(map(re.escape, sorted(set(names), key=len, reverse=True)))
    parts = (
        re.split(rf"(?<!\w)({known})(?!\w)", text) if known else [text]
    )  # a model may be called "a"
    return _tagged(parts, 'span class="whole"')


def prose(text: str) -> Markup:
    """Write a sentence in which `this` is code."""
    return _tagged(text.split("`"), "code")


def named(name: str) -> Markup:
    """Write a name that is cut in its middle where there is no room: its end tells it from its sisters."""
    return Markup('<span class="cut"><span>{}</span><span>{}</span></span>').format(
        name[:-TAIL], name[-TAIL:]
    )


def figures(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return what the figure template needs of every chart that has something to see: words, and the drawing."""
    groups: dict[object, list[Chart]] = {}  # what is compared stands side by side
    for k, chart in enumerate(on_one_scale(chart for chart in charts if chart.tells)):
        groups.setdefault((type(chart), chart.group) if chart.group else k, []).append(chart)
    made = []
    for group in groups.values():
        for k, chart in enumerate(group):
            svg, width = inline_svg(chart)
            place = "wide" if width > WIDE else "left" if chart.group and k % 2 == 0 else ""
            made.append({"chart": chart, "svg": Markup(svg), "place": place})
    return made


def html_table(table: Table) -> Markup:
    """Return a table as HTML; a number that is shown in fewer digits carries six, for sorting and for the CSV."""
    numeric = [
        any(isinstance(row[k], (int, float)) for row in table.rows)
        for k in range(len(table.columns))
    ]
    marks = [" class=num" if right else "" for right in numeric]
    head = "".join(
        f"<th scope=col{mark}>{escape(name)}</th>"
        for name, mark in zip(table.columns, marks, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(cell, table.digits, mark) for cell, mark in zip(row, marks, strict=True))}</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    rest, note = len(table.rows) - MOST_ROWS, table.note
    if rest > 0:
        note = f"{rest:,} more rows: `potentia analyze … --figures tables --format csv`. {note}"
    below = f"<p class=caption>{prose(note)}</p>" if note else ""
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}")


def _cell(cell: Cell, digits: int, mark: str) -> str:
    """Write one cell as the command line does, thousands apart."""
    known = not isinstance(cell, float) or math.isfinite(cell)
    text = f"{cell:,}" if type(cell) is int else written(cell, digits) if known else "–"
    full = f"{cell:.6g}" if isinstance(cell, float) and known else text
    return f"<td{mark}" + (f' data-v="{full}"' if full != text else "") + f">{escape(text)}</td>"


class Parts:
    """Takes the values of a page and returns the elements that carry them; ``live`` is the board's address."""

    def __init__(self, live: str = "") -> None:
        self.live = live
        self.kept: dict[str, bytes] = {}  # name → packed JSON, for the board to serve

    def script(self, value: Any, name: str, *, kind: str = "", label: str = "") -> Markup:
        """Return the element with this id (or class, where ``kind`` is given) that carries the value."""
        text = to_json(value)
        mark = f'class="{escape(kind)}"' if kind else f'id="{escape(name)}"'
        mark += f' data-label="{escape(label)}"' if label else ""
        if len(text) < LARGE:
            return Markup(f'<script type="application/json" {mark}>{embed(value)}</script>')
        packed = gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)
        if self.live:
            key = slug(name)
            taken = sum(known == key or known.startswith(f"{key}.") for known in self.kept)
            key = f"{key}.{taken + 1}" if taken else key
            self.kept[key] = packed
            where = escape(f"{self.live}/data/{key}")
            return Markup(f'<script type="application/json" {mark} data-from="{where}"></script>')
        base = base64.b64encode(packed).decode("ascii")
        return Markup(f'<script type="text/plain" {mark} data-packed>{base}</script>')


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

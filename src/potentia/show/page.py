"""Pages from templates: escaping, embedded data, figures, and tables that need no script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from potentia.show.draw import inline_svg
from potentia.show.parts import harmless, to_json
from potentia.show.wording import count, number, setting
from potentia.values.findings import Cell, Chart, Table, clock, on_one_scale
from potentia.values.protocol import Protocol

SCRIPTS = ("theme.js", "tables.js", "charts.js", "evidence.js", "cells.js", "live.js")
STYLES = ("report.css", "chart.css")
WIDE = 580  # pixels; a wider drawing has a row of its own
MOST_ROWS = 300  # of a table in the page
TAIL = 9  # letters at the end of a name that are never cut


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
        number=number,
        clock=clock,
        protocol=lambda name: Protocol(name).label,
        embed=embed,
        setting=setting,
        whole=whole,
        named=named,
    )
    made.globals.update(count=count, is_number=lambda value: isinstance(value, (int, float)))
    return made


def whole(text: str, names: Iterable[str]) -> Any:
    """Write a sentence so that no model's name is broken between two lines."""
    from markupsafe import Markup, escape

    known = sorted(set(names), key=len, reverse=True)
    if not known:
        return escape(text)
    parts = re.split(r"(?<!\w)(" + "|".join(map(re.escape, known)) + r")(?!\w)", text)  # a model may be called "a"
    return Markup("").join(
        Markup('<span class="whole">{}</span>').format(part) if k % 2 else escape(part) for k, part in enumerate(parts)
    )


def named(name: str) -> Any:
    """Write a name that is cut in its middle where there is no room: its end tells it from its sisters."""
    from markupsafe import Markup

    return Markup('<span class="cut"><span>{}</span><span>{}</span></span>').format(name[:-TAIL], name[-TAIL:])


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    text: str = environment().get_template(template).render(**context)
    return text


def embed(value: Any) -> Any:
    """Write a value as JSON that is safe inside a ``script`` element."""
    from markupsafe import Markup

    return Markup(harmless(to_json(value)))


@cache
def asset(name: str) -> str:
    """Return one of our own scripts or style sheets."""
    return resources.files("potentia.show").joinpath("assets", name).read_text(encoding="utf-8")


def figures(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return what the figure template needs of every chart that has something to see: words, and the drawing."""
    from markupsafe import Markup

    made = []
    members: Counter[object] = Counter()
    for chart in on_one_scale(chart for chart in charts if chart.tells):
        svg, width = inline_svg(chart)
        words = {"id": chart.name, "title": chart.title, "caption": chart.caption}
        group = (type(chart), chart.group)
        left = bool(chart.group) and members[group] % 2 == 0  # what is compared stands side by side
        members[group] += 1
        made.append({**words, "svg": Markup(svg), "place": "wide" if width > WIDE else "left" if left else ""})
    return made


def html_table(table: Table) -> Any:
    """Return a table as HTML; a number that is shown in fewer digits carries six, for sorting and for the CSV."""
    from markupsafe import Markup

    numeric = [any(isinstance(row[k], (int, float)) for row in table.rows) for k in range(len(table.columns))]
    head = "".join(
        f"<th scope=col{' class=num' if right else ''}>{escape(name)}</th>"
        for name, right in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(cell, table.digits, right) for cell, right in zip(row, numeric, strict=True))}</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    rest = len(table.rows) - MOST_ROWS
    note = table.note
    if rest > 0:
        note = f"{rest:,} more rows: potentia analyze … --figures tables --format csv. {note}"
    below = f"<p class=caption>{escape(note)}</p>" if note else ""
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}")


def _cell(cell: Cell, digits: int, right: bool) -> str:
    text = number(cell, digits)
    full = f"{cell:.6g}" if isinstance(cell, float) and text != "–" else ""
    kept = f' data-v="{full}"' if full and full != text else ""
    return f"<td{' class=num' if right else ''}{kept}>{escape(text)}</td>"

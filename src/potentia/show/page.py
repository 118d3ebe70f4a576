"""Pages from templates: escaping, figures, tables that need no script, and data that is unpacked by need.

A report of hundreds of models holds more numbers than anyone looks at. In the one-file report a large value is packed
(gzip in base64) and unpacked when its figure or table comes into view; on the board it is fetched then.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from potentia.show.draw import inline_svg
from potentia.values.findings import Cell, Chart, Table, clock, jsonable, on_one_scale, slug, written
from potentia.values.protocol import Protocol

SCRIPTS = ("theme.js", "tables.js", "charts.js", "evidence.js", "cells.js", "live.js")
STYLES = ("report.css", "chart.css")
WIDE = 580  # pixels; a wider drawing has a row of its own
MOST_ROWS = 300  # of a table in the page
TAIL = 9  # letters at the end of a name that are never cut
LARGE = 6_000  # characters of JSON, from which on a value is packed


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
        clock=clock,
        protocol=lambda name: Protocol(name).label,
        embed=embed,
        setting=setting,
        whole=whole,
        named=named,
        sentences=lambda text: re.split(r"(?<=[\w)]\.) ", text, maxsplit=1),
        table=html_table,
    )
    made.globals.update(count=count)
    return made


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    text: str = environment().get_template(template).render(**context)
    return text


@cache
def asset(name: str) -> str:
    """Return one of our own scripts or style sheets."""
    return resources.files("potentia.show").joinpath("assets", name).read_text(encoding="utf-8")


# --- words and numbers -----------------------------------------------------------------------------------------------


def number(value: Cell, digits: int = 3) -> str:
    """Write one cell of a table as the command line does, thousands apart."""
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    return f"{value:,}" if type(value) is int else written(value, digits)


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
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value))
    return written(value) if isinstance(value, bool) else str(value)


def count(n: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: 1 model, 61 models."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


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


# --- figures and tables ----------------------------------------------------------------------------------------------


def figures(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return what the figure template needs of every chart that has something to see: words, and the drawing."""
    from markupsafe import Markup

    groups: dict[object, list[Chart]] = {}  # what is compared stands side by side
    for k, chart in enumerate(on_one_scale(chart for chart in charts if chart.tells)):
        groups.setdefault((type(chart), chart.group) if chart.group else k, []).append(chart)
    made = []
    for group in groups.values():
        for k, chart in enumerate(group):
            svg, width = inline_svg(chart)
            place = "wide" if width > WIDE else "left" if chart.group and k % 2 == 0 else ""
            words = {"id": chart.name, "title": chart.title, "caption": chart.caption}
            made.append({**words, "svg": Markup(svg), "place": place})
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
    rest, note = len(table.rows) - MOST_ROWS, table.note
    if rest > 0:
        note = f"{rest:,} more rows: potentia analyze … --figures tables --format csv. {note}"
    below = f"<p class=caption>{escape(note)}</p>" if note else ""
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}")


def _cell(cell: Cell, digits: int, right: bool) -> str:
    text = number(cell, digits)
    full = f"{cell:.6g}" if isinstance(cell, float) and text != "–" else ""
    kept = f' data-v="{full}"' if full and full != text else ""
    return f"<td{' class=num' if right else ''}{kept}>{escape(text)}</td>"


# --- data ------------------------------------------------------------------------------------------------------------


class Parts:
    """Takes the values of a page and returns the elements that carry them; ``live`` is the board's address."""

    def __init__(self, live: str = "") -> None:
        self.live = live
        self.kept: dict[str, bytes] = {}  # name → packed JSON, for the board to serve

    def script(self, value: Any, name: str, *, kind: str = "", label: str = "") -> Any:
        """Return the element with this id (or class, where ``kind`` is given) that carries the value."""
        from markupsafe import Markup

        text = to_json(value)
        mark = Markup('class="{}"').format(kind) if kind else Markup('id="{}"').format(name)
        mark += Markup(' data-label="{}"').format(label) if label else Markup("")
        if len(text) < LARGE:
            return Markup('<script type="application/json" {}>{}</script>').format(mark, embed(value))
        packed = gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)
        if self.live:
            key = slug(name)
            taken = sum(known == key or known.startswith(f"{key}.") for known in self.kept)
            key = f"{key}.{taken + 1}" if taken else key
            self.kept[key] = packed
            where = f"{self.live}/data/{key}"
            return Markup('<script type="application/json" {} data-from="{}"></script>').format(mark, where)
        base = base64.b64encode(packed).decode("ascii")
        return Markup('<script type="text/plain" {} data-packed>{}</script>').format(mark, base)


def to_json(value: Any) -> str:
    """Write a value as JSON; arrays, dataclasses and NaN become what JSON can hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(jsonable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def embed(value: Any) -> Any:
    """Write a value as JSON that is safe inside a ``script`` element: no ``<`` survives, so no tag can end it."""
    from markupsafe import Markup

    text = to_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)

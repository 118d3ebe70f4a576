"""Pages from templates: escaping, embedded data, figures with their table and downloads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from potentia.show.chart_tables import chart_table
from potentia.show.draw import interactive
from potentia.show.parts import harmless, to_json
from potentia.show.plotly_figures import LETTER, TALL
from potentia.show.wording import count, number, setting
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Plot, Table, clock, slug
from potentia.values.protocol import Protocol

SCRIPTS = ("theme.js", "tables.js", "charts.js", "matrix.js", "bumps.js", "evidence.js", "cells.js", "live.js")

WRITTEN = 14  # columns of a heat map whose squares have room for a number; more are read by hover or in the table


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


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    text: str = environment().get_template(template).render(**context)
    return text


def _label(protocol: str) -> str:
    return Protocol(protocol).label


def embed(value: Any) -> Any:
    """Write a value as JSON that is safe inside a ``script`` element."""
    from markupsafe import Markup

    return Markup(harmless(to_json(value)))


@cache
def asset(name: str) -> str:
    """Return one of our own scripts or the style sheet."""
    return resources.files("potentia.show").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """Return plotly.js as the installed plotly package carries it."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def figure(chart: Chart, *, name: str | None = None, wide: bool = False) -> dict[str, Any]:
    """Return what the figure template needs: words, the plotly figure, and the table behind it."""
    drawn = interactive(chart)
    layout = drawn["layout"]
    if isinstance(chart, Heatmap):
        for trace in drawn["data"]:
            if len(chart.columns) > WRITTEN:
                trace.pop("texttemplate", None)
            trace["showscale"] = "texttemplate" not in trace and len(chart.rows) <= TALL  # numbers need no scale
            layout["height"] -= 0 if trace["showscale"] else 50
    if isinstance(chart, Bars) and wide and not chart.horizontal and LETTER * sum(map(len, chart.labels)) < 900:
        layout["xaxis"]["tickangle"] = 0
        layout["height"] = min(layout["height"], 380)
    layout.pop("title", None)  # the page has the title and the caption in text
    layout.pop("template", None)  # and the colours of its theme
    layout["margin"] = {"t": 30, "r": 16, "l": 48, "b": 40}
    if not isinstance(chart, Heatmap):
        layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"}
    layout["height"] = max(260, round(float(layout.get("height", 420)) - 54))
    data: dict[str, Any] = {
        "kind": type(chart).__name__.lower(),
        "figure": drawn,
        "minWidth": _least_width(chart),
        "table": table_payload(chart_table(chart)),
    }
    return {
        "id": slug(name or chart.name),
        "name": slug(name or chart.name),
        "title": chart.title,
        "caption": chart.caption,
        "wide": wide,
        "long": False,
        "height": layout["height"],
        "data": data,
    }


def table_payload(table: Table) -> dict[str, Any]:
    """Return a table as plain values; six significant digits are enough for anyone."""
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [[_six(cell) for cell in row] for row in table.rows],
        "digits": table.digits,
        "note": table.note,
    }


def _six(cell: Any) -> Any:
    return float(f"{cell:.6g}") if isinstance(cell, float) and cell == cell and abs(cell) != float("inf") else cell


def _least_width(chart: Chart) -> int:
    """Return the pixels below which labels would collide; a narrower screen scrolls the figure in its box."""
    if isinstance(chart, Heatmap):
        written = chart.digits is not None and len(chart.columns) <= WRITTEN
        return 150 + (32 if written else 12) * len(chart.columns)
    if isinstance(chart, Bars) and not chart.horizontal:
        return max(300, 60 + 20 * len(chart.labels))
    if isinstance(chart, Bump):
        return 460
    return 460 if isinstance(chart, Plot) and len(chart.points) > 6 else 320

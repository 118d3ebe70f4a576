"""Figures in rows: those that are compared side by side and equally high, the others in pairs, none beside a hole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from potentia.show.page import figure
from potentia.values.findings import Bars, Chart, Heatmap, on_one_scale

HALF = 30  # columns of a heat map that half of the page has room for; twice that, where rows name them too
BARS = 14  # groups of bars
LONGEST = 1_600  # pixels; a longer figure scrolls in its box


def arrange(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """Return the figures of a section, in reading order, each with its width and height."""
    made: list[dict[str, Any]] = []
    for row in rows_of(on_one_scale(trimmed(chart) for chart in charts if chart.tells)):
        figures = [figure(chart, wide=len(row) == 1) for chart in row]
        height = max(f["height"] for f in figures)
        for f in figures:
            f["height"] = f["data"]["figure"]["layout"]["height"] = height
            f["long"] = height > LONGEST
        made += figures
    return made


def trimmed(chart: Chart) -> Chart:
    """Leave out the rows and columns of a heat map in which there is no number."""
    if not isinstance(chart, Heatmap):
        return chart
    known = np.isfinite(np.asarray(chart.values, dtype=np.float64))
    rows, columns = np.atleast_1d(known.any(axis=1)), np.atleast_1d(known.any(axis=0))
    if rows.all() and columns.all():
        return chart
    return replace(
        chart,
        rows=tuple(name for name, there in zip(chart.rows, rows, strict=True) if there),
        columns=tuple(name for name, there in zip(chart.columns, columns, strict=True) if there),
        values=np.asarray(chart.values)[np.ix_(rows, columns)],
    )


def rows_of(charts: Sequence[Chart]) -> list[list[Chart]]:
    """Put charts into rows of two, or of one where it needs the room or has no companion."""
    rows: list[list[Chart]] = []
    alone: list[Chart] = []  # waits for a companion
    for group in _groups(charts):
        if any(needs_room(chart) for chart in group):
            rows += [[chart] for chart in group]
            continue
        pairs, odd = divmod(len(group), 2)
        rows += [list(group[2 * k : 2 * k + 2]) for k in range(pairs)]
        if odd:
            alone.append(group[-1])
        if len(alone) == 2:
            rows.append(alone)
            alone = []
    return [*rows, *([alone] if alone else [])]


def _groups(charts: Sequence[Chart]) -> list[list[Chart]]:
    """Return charts that are compared together, where the first of them stood."""
    found: dict[object, list[Chart]] = {}
    for place, chart in enumerate(charts):
        found.setdefault((type(chart), chart.group) if chart.group else place, []).append(chart)
    return list(found.values())


def needs_room(chart: Chart) -> bool:
    """Say whether half of the page is too narrow for the names."""
    if isinstance(chart, Heatmap):
        return len(chart.columns) > (2 * HALF if chart.columns == chart.rows else HALF)
    return isinstance(chart, Bars) and len(chart.labels) > BARS and not chart.horizontal

"""The numbers of a chart as a table: what a reader of the figure can open, copy and download."""

from __future__ import annotations

import numpy as np

from potentia.errors import InputError
from potentia.values.findings import Bars, Bump, Cell, Chart, Heatmap, Plot, Table

Row = tuple[Cell, ...]


def chart_table(chart: Chart) -> Table:
    """Return every number that the chart shows."""
    if isinstance(chart, Heatmap):
        return _heatmap(chart)
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Plot):
        return _plot(chart)
    if isinstance(chart, Bump):
        return _bump(chart)
    raise InputError(f"no table for a {type(chart).__name__}")


def _heatmap(chart: Heatmap) -> Table:
    values = np.asarray(chart.values, dtype=np.float64)
    rows: list[Row] = [(name, *(float(v) for v in values[k])) for k, name in enumerate(chart.rows)]
    return Table(chart.title, ("", *chart.columns), tuple(rows))


def _bars(chart: Bars) -> Table:
    columns = [""]
    for name in chart.series:
        columns.append(name)
        if name in chart.low and name in chart.high:
            columns += ["low", "high"]
    rows: list[Row] = []
    for k, label in enumerate(chart.labels):
        row: list[Cell] = [label]
        for name, values in chart.series.items():
            row.append(float(values[k]))
            if name in chart.low and name in chart.high:
                row += [float(chart.low[name][k]), float(chart.high[name][k])]
        rows.append(tuple(row))
    return Table(chart.title, tuple(columns), tuple(rows))


def _plot(chart: Plot) -> Table:
    bounded = any(p.low for p in chart.points) or any(line.low for line in chart.lines)
    rows: list[Row] = []
    for points in chart.points:
        for k, (x, y) in enumerate(zip(points.x, points.y, strict=True)):
            bounds = (points.low[k], points.high[k]) if points.low else (None, None)
            label = points.labels[k] if points.labels else ""
            rows.append((points.name, label, float(x), float(y), *(bounds if bounded else ())))
    for line in chart.lines:
        step = max(1, len(line.x) // 25)  # a curve is drawn from hundreds of points; some of them tell its course
        for k in range(0, len(line.x), step):
            bounds = (line.low[k], line.high[k]) if line.low else (None, None)
            rows.append((line.name, "(line)", float(line.x[k]), float(line.y[k]), *(bounds if bounded else ())))
    columns = ("series", "point", chart.x_label or "x", chart.y_label or "y", *(("low", "high") if bounded else ()))
    return Table(chart.title, columns, tuple(rows))


def _bump(chart: Bump) -> Table:
    ranks = np.asarray(chart.ranks)
    order = np.argsort(ranks[:, 0], kind="stable").tolist()
    grouped = bool(chart.groups) and any(chart.groups)
    rows: list[Row] = [
        (chart.models[k], *((chart.groups[k],) if grouped else ()), *(int(r) for r in ranks[k])) for k in order
    ]
    return Table(chart.title, ("model", *(("family",) if grouped else ()), *chart.columns), tuple(rows))

"""Interactive figures: every chart type as a plotly figure, a plain dictionary that needs no plotly to build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from potentia.errors import InputError
from potentia.show.palette import DASHES, MARKERS, SEQUENTIAL_STOPS, by_position, colour, round_of
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, jsonable, short_names

Trace = dict[str, Any]
LINE = 17  # pixels that one line of text takes
LETTER = 6.4  # pixels that one letter takes, about
TALL = 30  # rows of a heat map, from which on its columns are named above
MANY = 16  # names on an axis, from which on they are written small


def figure(chart: Chart) -> dict[str, Any]:
    """Return ``{"data": …, "layout": …}`` for plotly.js, with the title and caption of the chart."""
    builder = _BUILDERS.get(type(chart))
    if builder is None:
        raise InputError(f"no drawing for a {type(chart).__name__}")
    chart = _plain(chart)
    traces, layout = builder(chart)
    layout = {
        "title": {"text": chart.title, "subtitle": {"text": chart.caption}, "x": 0.01, "xanchor": "left"},
        "template": _TEMPLATE,
        "margin": {"t": 78, "r": 24, "l": 60, "b": 50},
        "hoverlabel": {"align": "left"},
        **layout,
    }
    built: dict[str, Any] = jsonable({"data": traces, "layout": layout})
    return built


_TEMPLATE: dict[str, Any] = {
    "layout": {
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1b1b1b"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {"gridcolor": "#e6e6e6", "zerolinecolor": "#999999", "automargin": True},
        "yaxis": {"gridcolor": "#e6e6e6", "zerolinecolor": "#999999", "automargin": True},
    }
}


def _plain(value: Any) -> Any:
    """Write every text of a chart so that plotly, which reads a little HTML in its texts, shows it as it is."""
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")
    if isinstance(value, tuple):
        return tuple(map(_plain, value)) if value and isinstance(value[0], (str, Points, Line)) else value
    if isinstance(value, dict):
        return {_plain(name): values for name, values in value.items()}
    if isinstance(value, (Chart, Points, Line)):
        return replace(
            value,
            **{
                f.name: _plain(getattr(value, f.name))
                for f in fields(value)
                if f.name != "name" or not isinstance(value, Chart)
            },
        )
    return value


def _names(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis of names, in smaller letters where there are many."""
    small = {"tickfont": {"size": 10}} if len(names) > MANY else {}
    return {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False, "zeroline": False, **small}


def _room(names: Sequence[str]) -> int:
    return int(LETTER * max(map(len, names), default=0)) + 20


def _heatmap(chart: Heatmap) -> tuple[list[Trace], dict[str, Any]]:
    values = np.asarray(chart.values, dtype=np.float64)
    rows, columns = short_names(chart.rows), short_names(chart.columns)
    trace: Trace = {
        "type": "heatmap",
        "z": values,
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "customdata": [[[r, c] for c in chart.columns] for r in chart.rows],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<br>%{z:.3f}<extra></extra>",
        "colorscale": "PuOr" if chart.diverging else [list(stop) for stop in SEQUENTIAL_STOPS],
        "reversescale": chart.fewer,
        "meta": "diverging" if chart.diverging else "sequential",
        "colorbar": {
            "title": {"text": chart.unit, "side": "top"},
            "thickness": 8,
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "len": 0.5,
            "ypad": 4,
        },
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
    }
    if chart.low is not None and chart.high is not None and not chart.diverging:
        trace |= {"zmin": chart.low, "zmax": chart.high}
    if chart.diverging:
        trace["zmid"] = chart.centre
        if chart.low is not None and chart.high is not None:
            reach = max(abs(chart.high - chart.centre), abs(chart.low - chart.centre))
            trace |= {"zmin": chart.centre - reach, "zmax": chart.centre + reach}
    if chart.digits is not None:
        trace |= {"texttemplate": f"%{{z:.{chart.digits}f}}", "textfont": {"size": 10}}
    layout = {
        "height": 190 + (LINE if len(rows) > MANY else 1.3 * LINE) * len(rows) + _room(columns),
        "xaxis": {
            **_names(columns),
            "tickangle": -90,
            "side": "top" if len(rows) > TALL else "bottom",
            "showticklabels": len(columns) <= TALL or rows != columns,  # else the rows name them, in the same order
        },
        "yaxis": {**_names(rows), "autorange": "reversed"},
    }
    return [trace], layout


def _bars(chart: Bars) -> tuple[list[Trace], dict[str, Any]]:
    labels = short_names(chart.labels)
    at = list(range(len(labels)))
    traces = []
    for place, (name, values) in enumerate(chart.series.items()):
        along, across = ("x", "y") if chart.horizontal else ("y", "x")
        trace: Trace = {
            "type": "bar",
            "name": name,
            along: values,
            across: at,
            "customdata": list(chart.labels),
            "marker": {"color": colour(place), "pattern": {"shape": "" if round_of(place) == 0 else "/"}},
            "orientation": "h" if chart.horizontal else "v",
            "hovertemplate": f"%{{customdata}}<br>%{{{along}:.3f}}<extra>{name}</extra>",
        }
        if name in chart.low and name in chart.high:
            trace[f"error_{along}"] = _whiskers(values, chart.low[name], chart.high[name])
        traces.append(trace)
    names = _names(labels)
    slanted = len(labels) > 6 or LETTER * sum(len(label) + 3 for label in labels) > 400
    if chart.horizontal:
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": chart.y_label}, **_span(chart.y_range)},
            "yaxis": {**names, "autorange": "reversed"},
            "height": 150 + LINE * max(1.0, 0.7 * len(traces)) * len(labels),
        }
    else:
        layout = {
            "xaxis": {**names, "tickangle": -60 if slanted else 0},
            "yaxis": {"title": {"text": chart.y_label}, **_span(chart.y_range)},
            "height": 380 + (_room(labels) if slanted else 0),
        }
    return traces, {**layout, "barmode": "group", "showlegend": len(traces) > 1}


def _whiskers(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    middle = np.asarray(values, dtype=np.float64)
    return {
        "type": "data",
        "symmetric": False,
        "array": np.maximum(np.asarray(high, dtype=np.float64) - middle, 0.0),
        "arrayminus": np.maximum(middle - np.asarray(low, dtype=np.float64), 0.0),
        "thickness": 1,
        "width": 2,
    }


def _plot(chart: Plot) -> tuple[list[Trace], dict[str, Any]]:
    first = chart.points[0] if chart.points else None
    if first is not None and all(p.labels == first.labels and by_position(p.x, p.labels) for p in chart.points):
        return _dots(chart, first)
    places = [place if p.hue is None else p.hue for place, p in enumerate(chart.points)]
    traces = [_scatter(points, place) for place, points in zip(places, chart.points, strict=True)]
    twins = {p.name: place for place, p in zip(places, chart.points, strict=True)}  # a line may belong to its points
    for place, line in enumerate(chart.lines):
        paint = colour(place) if not chart.points or place else "#333333"
        if line.name in twins:
            paint = colour(twins[line.name])
        if line.low and line.high:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": [*line.x, *reversed(line.x)],
                    "y": [*line.high, *reversed(line.low)],
                    "fill": "toself",
                    "fillcolor": _pale(paint),
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
        dash = "dash" if line.dashed else DASHES[round_of(place) % len(DASHES)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": line.name,
                "showlegend": line.name not in twins,
                "x": list(line.x),
                "y": list(line.y),
                "line": {"color": paint, "width": 1.6, "dash": dash},
            }
        )
    drawn: list[Points | Line] = [*chart.points, *chart.lines]
    return traces, {
        "xaxis": {
            "title": {"text": chart.x_label},
            **(_logarithmic([x for part in drawn for x in part.x]) if chart.log_x else {}),
            **_span(chart.x_range, log=chart.log_x),
        },
        "yaxis": {
            "title": {"text": chart.y_label},
            **(_logarithmic([y for part in drawn for y in part.y]) if chart.log_y else {}),
            **_span(chart.y_range, log=chart.log_y),
        },
        "height": 480,
    }


def _span(ends: tuple[float, float] | None, *, log: bool = False) -> dict[str, Any]:
    return {} if ends is None else {"range": [float(np.log10(x)) if log else x for x in ends], "autorange": False}


def _logarithmic(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis; over less than two powers of ten it is marked at 1, 2 and 5."""
    known = [value for value in values if value > 0]
    narrow = bool(known) and max(known) < 100 * min(known)
    return {"type": "log", "exponentformat": "power", "dtick": "D2" if narrow else 1}


def _scatter(points: Points, place: int) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": points.name,
        "x": list(points.x),
        "y": list(points.y),
        "text": list(points.labels),
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra>%{fullData.name}</extra>",
        "marker": {"color": colour(place), "size": 7, "symbol": MARKERS[round_of(place) % len(MARKERS)]},
    }
    if points.low and points.high:
        trace["error_y"] = {**_whiskers(points.y, points.low, points.high), "color": _pale(colour(place), 0.6)}
    return trace


def _dots(chart: Plot, first: Points) -> tuple[list[Trace], dict[str, Any]]:
    """Points in a row, one per name: lying, so that every name has a line of its own."""
    traces: list[Trace] = []
    if chart.joined:
        across = [value for k in range(len(first.x)) for value in (*(p.y[k] for p in chart.points), None)]
        traces.append({"type": "scatter", "mode": "lines", "x": across, "hoverinfo": "skip", "showlegend": False,
                       "y": [value for at in first.x for value in (*(at for _ in chart.points), None)],
                       "line": {"color": "#8a8f98", "width": 1.5}})  # fmt: skip
    for place, points in enumerate(chart.points):
        trace = _scatter(points, place)
        trace |= {"x": list(points.y), "y": list(points.x), "hovertemplate": "%{text}<br>%{x:.4g}<extra></extra>"}
        if "error_y" in trace:
            trace["error_x"] = trace.pop("error_y")
        traces.append(trace)
    layout = {
        "xaxis": {"title": {"text": chart.y_label}, **_span(chart.y_range)},
        "yaxis": {**_names(short_names(first.labels)), "tickvals": list(first.x), "range": [len(first.x) + 0.7, 0.3]},
        "height": 150 + LINE * len(first.x),
        "showlegend": len(traces) > 1,
    }
    return traces, layout


def _bump(chart: Bump) -> tuple[list[Trace], dict[str, Any]]:
    ranks = np.asarray(chart.ranks, dtype=np.float64)
    names = short_names(chart.models)
    groups = list(dict.fromkeys(chart.groups)) if chart.groups else [""]
    seen: set[str] = set()
    traces: list[Trace] = []
    columns = list(range(len(chart.columns)))
    for k, model in enumerate(chart.models):
        group = chart.groups[k] if chart.groups else ""
        place = groups.index(group)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": group or "other",
                "legendgroup": group,
                "showlegend": len(groups) > 1 and group not in seen,
                "x": columns,
                "y": ranks[k],
                "customdata": list(chart.columns),
                "hovertemplate": f"{model}<br>%{{customdata}}: rank %{{y}}<extra>{group}</extra>",
                "line": {"color": colour(place), "width": 1.6, "dash": DASHES[round_of(place) % len(DASHES)]},
                "marker": {"size": 5},
            }
        )
        seen.add(group)
    left, right = np.argsort(ranks[:, 0], kind="stable"), np.argsort(ranks[:, -1], kind="stable")
    side = {
        "range": [len(names) + 0.7, 0.3],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 10},
    }
    layout = {
        "xaxis": {"tickvals": columns, "ticktext": list(chart.columns), "showgrid": False, "zeroline": False},
        "yaxis": {
            **side,
            "tickvals": ranks[left, 0],
            "ticktext": [f"{names[k]}  {ranks[k, 0]:g}" for k in left],
        },
        "yaxis2": {
            **side,
            "overlaying": "y",
            "side": "right",
            "matches": "y",
            "tickvals": ranks[right, -1],
            "ticktext": [f"{ranks[k, -1]:g}  {names[k]}" for k in right],
        },
        "legend": {
            "orientation": "h",
            "y": -40 / (LINE * max(len(names), 8)),
            "yanchor": "top",
            "x": 0.5,
            "xanchor": "center",
        },
        "height": 200 + LINE * len(names),
    }
    # An axis is drawn only where a trace uses it; an invisible one carries the names on the right.
    traces.append(
        {"type": "scatter", "x": [columns[-1]], "y": [1], "yaxis": "y2", "mode": "markers", "hoverinfo": "skip",
         "marker": {"opacity": 0}, "showlegend": False}
    )  # fmt: skip
    return traces, layout


def _pale(paint: str, alpha: float = 0.15) -> str:
    red, green, blue = (int(paint[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


_BUILDERS: dict[type[Chart], Callable[[Any], tuple[list[Trace], dict[str, Any]]]] = {
    Heatmap: _heatmap,
    Bars: _bars,
    Plot: _plot,
    Bump: _bump,
}

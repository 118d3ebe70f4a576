"""Figures for papers: every chart type drawn with matplotlib, sized by its labels so that none collide."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from potentia.errors import InputError
from potentia.show.palette import DIVERGING, SEQUENTIAL, by_position, colour, round_of
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names

FONT = 7.0  # points
LINE = 0.145  # inches that one line of text takes
LETTER = 0.058  # inches that one letter takes, about
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "X")
STYLE: dict[Any, Any] = {
    "font.size": FONT,
    "axes.titlesize": FONT + 2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "potentia",
    "figure.dpi": 200,
    "savefig.dpi": 200,
}


def render(chart: Chart, format: str) -> bytes:
    """Return the chart as a file of the format (pdf, png, svg); the same chart gives the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawer = _DRAWERS.get(type(chart))
    if drawer is None:
        raise InputError(f"no drawing for a {type(chart).__name__}")
    with matplotlib.rc_context(STYLE):
        figure = drawer(chart)
        canvas: Any = FigureCanvasAgg(figure)
        # Measured once here; bbox_inches="tight" would draw the whole figure a second time to find out.
        box = figure.get_tightbbox(canvas.get_renderer()).padded(0.08)
        undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(format, {})
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, bbox_inches=box, metadata=undated)
    return buffer.getvalue()


def _canvas(chart: Chart, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure whose axes take exactly width × height inches; titles and labels lie outside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    letters = max(40, int(width / LETTER))
    title = "\n".join(textwrap.wrap(chart.title, letters))
    caption = "\n".join(textwrap.wrap(chart.caption, int(letters * 1.1)))
    lines = caption.count("\n") + 1 if caption else 0
    axes.set_title(title, loc="left", fontweight="bold", pad=8 + lines * (FONT + 1.5))
    if caption:
        axes.annotate(
            caption, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", va="bottom", color="#444444"
        )
    return figure, axes


# --- heat map ------------------------------------------------------------------------------------------------------


def _heatmap(chart: Heatmap) -> Any:
    values = np.asarray(chart.values, dtype=np.float64)
    rows, columns = short_names(chart.rows), short_names(chart.columns)
    written = chart.digits is not None
    widest = max((len(_number(v, chart.digits)) for v in values.ravel()), default=1) if written else 1
    cell = max(0.2, widest * 0.062 + 0.05)
    figure, axes = _canvas(chart, max(cell * len(columns), 0.6), max(0.2 * len(rows), 0.4))
    low, high = _limits(chart, values)
    axes.set_facecolor("#eeeeee")
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=_colours(chart), vmin=low, vmax=high,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if written:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                axes.text(
                    j, i, _number(value, chart.digits), ha="center", va="center", fontsize=FONT - 1,
                    color="white" if dark else "black", in_layout=False,
                )  # fmt: skip
    bar = figure.colorbar(image, ax=axes, pad=0.0, fraction=0.0, cax=_beside(figure, axes))
    bar.set_label(chart.unit)
    bar.outline.set_visible(False)
    return figure


def _colours(chart: Heatmap) -> str:
    return DIVERGING if chart.diverging else SEQUENTIAL + ("_r" if chart.fewer else "")


def _beside(figure: Any, axes: Any) -> Any:
    """Return axes for the colour bar, a fixed distance to the right whatever the figure's size."""
    width, height = figure.get_size_inches()
    return figure.add_axes((1.0 + 0.1 / width, 1.0 - min(1.0, 1.6 / height), 0.09 / width, min(1.0, 1.6 / height)))


def _limits(chart: Heatmap, values: Any) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low = chart.low if chart.low is not None else (float(finite.min()) if finite.size else 0.0)
    high = chart.high if chart.high is not None else (float(finite.max()) if finite.size else 1.0)
    if chart.diverging:
        reach = max(abs(high - chart.centre), abs(low - chart.centre)) or 1.0
        return chart.centre - reach, chart.centre + reach
    return (low, high) if high > low else (low, low + 1.0)


def _number(value: float, digits: int | None) -> str:
    text = f"{value:.{digits or 0}f}"
    return text.lstrip("-") if float(text) == 0 else text


# --- bars ----------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> Any:
    labels = short_names(chart.labels)
    count, series = len(labels), list(chart.series)
    thickness = 0.1 if len(series) > 1 else 0.13
    length = max(1.5, count * (thickness * len(series) + 0.06))
    figure, axes = _canvas(chart, *((4.0, length) if chart.horizontal else (length, 2.2)))
    share = 0.8 / max(1, len(series))
    for place, name in enumerate(series):
        at = np.arange(count) + (place - (len(series) - 1) / 2) * share
        values = np.asarray(chart.series[name], dtype=np.float64)
        hatch = "" if round_of(place) == 0 else "////"
        paint = {"color": colour(place), "label": name, "hatch": hatch}
        if chart.horizontal:
            axes.barh(at, values, height=share, **paint)
        else:
            axes.bar(at, values, width=share, **paint)
        if name in chart.low and name in chart.high:
            error = _whiskers(values, chart.low[name], chart.high[name])
            style = {"fmt": "none", "ecolor": "#333333", "elinewidth": 0.7, "capsize": 1.2}
            if chart.horizontal:
                axes.errorbar(values, at, xerr=error, **style)
            else:
                axes.errorbar(at, values, yerr=error, **style)
    flat = not chart.horizontal and count <= 8 and max(map(len, labels), default=0) * LETTER < length / max(1, count)
    if chart.horizontal:
        axes.set_yticks(range(count), labels)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlabel(chart.y_label)
        axes.axvline(0, color="#333333", linewidth=0.6)
    else:
        axes.set_xticks(range(count), labels, rotation=0 if flat else 90)
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylabel(chart.y_label)
        axes.axhline(0, color="#333333", linewidth=0.6)
    if chart.y_range is not None:
        (axes.set_xlim if chart.horizontal else axes.set_ylim)(*chart.y_range)
    if len(series) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _whiskers(values: Any, low: Sequence[float], high: Sequence[float]) -> Any:
    below = np.maximum(values - np.asarray(low, dtype=np.float64), 0.0)
    above = np.maximum(np.asarray(high, dtype=np.float64) - values, 0.0)
    return np.nan_to_num(np.stack([below, above]))


# --- points and lines ----------------------------------------------------------------------------------------------


def _plot(chart: Plot) -> Any:
    first = chart.points[0] if chart.points else None
    if first is not None and all(p.labels == first.labels and by_position(p.x, p.labels) for p in chart.points):
        return _dots(chart, first)
    figure, axes = _canvas(chart, 5.0, 3.6)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    if chart.x_range is not None:
        axes.set_xlim(*chart.x_range)
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    places = [place if p.hue is None else p.hue for place, p in enumerate(chart.points)]
    for place, points in zip(places, chart.points, strict=True):
        marker = MARKERS[round_of(place) % len(MARKERS)]
        if points.low and points.high:
            error = _whiskers(np.asarray(points.y, dtype=np.float64), points.low, points.high)
            axes.errorbar(points.x, points.y, yerr=error, fmt="none", ecolor=colour(place), elinewidth=0.6, alpha=0.7)
        axes.scatter(points.x, points.y, s=13, color=colour(place), marker=marker, label=points.name, zorder=3)
    twins = {p.name: place for place, p in zip(places, chart.points, strict=True)}  # a line may belong to its points
    for place, line in enumerate(chart.lines):
        if line.name in twins:
            _line(axes, line, twins[line.name], alone=True, label=None)
        else:
            _line(axes, line, place, alone=not chart.points, label=line.name)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if len(chart.points) + len(chart.lines) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    _label_points(figure, axes, chart.points, chart.lines)
    return figure


def _line(axes: Any, line: Line, place: int, *, alone: bool, label: str | None) -> None:
    paint = colour(place) if alone else ("#333333" if place == 0 else colour(place))
    dash = "--" if line.dashed else DASHES[round_of(place) % len(DASHES)]
    axes.plot(line.x, line.y, color=paint, linestyle=dash, linewidth=1.1, label=label)
    if line.low and line.high:
        axes.fill_between(line.x, line.low, line.high, color=paint, alpha=0.15, linewidth=0)


def _dots(chart: Plot, first: Points) -> Any:
    """Points in a row, one per name: drawn lying, so that every name has its own line of text."""
    labels = short_names(first.labels)
    figure, axes = _canvas(chart, 4.0, max(1.2, LINE * len(labels)))
    if chart.joined:
        ends = np.array([points.y for points in chart.points], dtype=np.float64)
        axes.hlines(first.x, ends.min(axis=0), ends.max(axis=0), color="#bbbbbb", linewidth=1.0, zorder=1)
    for place, points in enumerate(chart.points):
        apart = 0.0 if chart.joined else 0.25 * (place - (len(chart.points) - 1) / 2)
        at = np.asarray(points.x, dtype=np.float64) + apart
        if points.low and points.high:
            error = _whiskers(np.asarray(points.y, dtype=np.float64), points.low, points.high)
            axes.errorbar(points.y, at, xerr=error, fmt="none", ecolor=colour(place), elinewidth=0.9, alpha=0.6)
        axes.scatter(points.y, at, s=10, color=colour(place), label=points.name, zorder=3)
    axes.set_yticks(range(1, len(labels) + 1), labels)
    axes.set_ylim(len(labels) + 0.7, 0.3)
    axes.set_xlabel(chart.y_label)
    if chart.y_range is not None:
        axes.set_xlim(*chart.y_range)
    axes.grid(axis="x", linewidth=0.3, color="#cccccc")
    if len(chart.points) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _label_points(figure: Any, axes: Any, sets: Sequence[Points], lines: Sequence[Line]) -> None:
    """Name as many points as fit: each label takes the first free place around its point, or is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    if not any(points.labels for points in sets):
        return
    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    every = [name for points in sets for name in points.labels]
    short = dict(zip(every, short_names(every), strict=True))
    scale = figure.dpi / 72.0
    axes.autoscale_view()
    spots = [axes.transData.transform((x, y)) for p in sets for x, y in zip(p.x, p.y, strict=True)]
    taken = [Bbox.from_bounds(x - 2.2 * scale, y - 2.2 * scale, 4.4 * scale, 4.4 * scale) for x, y in spots]
    for line in lines:
        ends = axes.transData.transform(np.column_stack([line.x, line.y]))
        for (x0, y0), (x1, y1) in itertools.pairwise(ends):
            for t in np.linspace(0.0, 1.0, max(2, int(np.hypot(x1 - x0, y1 - y0) / (2 * scale)))):
                taken.append(Bbox.from_bounds(x0 + t * (x1 - x0) - 0.5, y0 + t * (y1 - y0) - 0.5, 1.0, 1.0))
    frame = axes.get_window_extent(renderer)
    around = [(4, 0, "left", "center"), (-4, 0, "right", "center"), (0, 4, "center", "bottom"),
              (0, -4, "center", "top"), (3, 3, "left", "bottom"), (-3, 3, "right", "bottom"),
              (3, -3, "left", "top"), (-3, -3, "right", "top")]  # fmt: skip
    for points in sets:
        for x, y, name in zip(points.x, points.y, points.labels, strict=False):
            for right, up, ha, va in around:
                text = axes.annotate(
                    short[name], (x, y), (right, up), textcoords="offset points", ha=ha, va=va, fontsize=FONT - 2
                )
                box = text.get_window_extent(renderer)
                inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
                if inside and not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    break
                text.remove()


# --- bump chart ----------------------------------------------------------------------------------------------------


def _bump(chart: Bump) -> Any:
    ranks = np.asarray(chart.ranks, dtype=np.float64)
    names = short_names(chart.models)
    count, columns = ranks.shape
    places = np.stack([_distinct(ranks[:, j]) for j in range(columns)], axis=1)
    figure, axes = _canvas(chart, 2.4 * max(1, columns - 1), max(1.2, LINE * count))
    groups = list(dict.fromkeys(chart.groups)) if chart.groups else [""]
    for k in range(count):
        place = groups.index(chart.groups[k]) if chart.groups else 0
        moved = np.ptp(places[k]) > 0 if np.isfinite(places[k]).all() else True
        axes.plot(
            range(columns), places[k], color=colour(place), linestyle=DASHES[round_of(place) % len(DASHES)],
            linewidth=1.2 if moved else 0.7, marker="o", markersize=2.2, alpha=0.95 if moved else 0.6,
        )  # fmt: skip
        for j, (x, ha) in {0: (-0.03, "right"), columns - 1: (columns - 1 + 0.03, "left")}.items():
            if np.isfinite(places[k, j]):
                shown = f"{names[k]}  {ranks[k, j]:g}" if ha == "right" else f"{ranks[k, j]:g}  {names[k]}"
                axes.text(x, places[k, j], shown, ha=ha, va="center", fontsize=FONT - 1, color="#222222")
    axes.set_xlim(0, max(1, columns - 1))
    axes.set_ylim(count + 0.7, 0.3)
    axes.set_xticks(range(columns), chart.columns, fontweight="bold")
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(groups) > 1:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], color=colour(g), linestyle=DASHES[round_of(g) % len(DASHES)], label=name or "other")
            for g, name in enumerate(groups)
        ]
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.3 / (LINE * max(count, 8))),
            ncols=min(3, len(groups)), frameon=False,
        )  # fmt: skip
    return figure


def _distinct(ranks: Any) -> Any:
    """Return a place of its own for every model, in the order of the ranks: shared ranks would share a line."""
    places = np.full(len(ranks), np.nan)
    known = np.flatnonzero(np.isfinite(ranks))
    places[known[np.argsort(ranks[known], kind="stable")]] = np.arange(1, len(known) + 1)
    return places


_DRAWERS: dict[type[Chart], Callable[[Any], Any]] = {Heatmap: _heatmap, Bars: _bars, Plot: _plot, Bump: _bump}

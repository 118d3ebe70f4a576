"""Every kind of chart, drawn once: the same drawing for page, print, PDF, SVG, PNG and notebook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from potentia.errors import InputError
from potentia.show.svg import DASHES, FONT, HUES, LINE, Scale, Sheet, cut, make_scale, widest, width_of
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names

HALF = 520.0  # pixels of a figure on half of the page
TALL = 30  # rows of a heat map, from which on its columns are named above
TIPS = 2_500  # squares of a heat map that are each told by the pointer
WRITTEN = 16  # columns of a heat map whose squares have room for a number
OPAQUE = 0.62  # of the darkest square, so that a number in it stays readable


class Drawn(NamedTuple):
    """The inside of a drawing, and its size."""

    sheet: Sheet
    width: float
    height: float


_DRAWERS: dict[type[Chart], Callable[[Any], Drawn]] = {}
Drawer = TypeVar("Drawer", bound=Callable[[Any], Drawn])


def draws_kind(kind: type[Chart]) -> Callable[[Drawer], Drawer]:
    """Register the function that draws this kind of chart."""

    def register(drawer: Drawer) -> Drawer:
        _DRAWERS[kind] = drawer
        return drawer

    return register


def draw_chart(chart: Chart) -> Drawn:
    """Draw a chart without its title."""
    drawer = _DRAWERS.get(type(chart))
    if drawer is None:
        raise InputError(f"no drawing for a {type(chart).__name__}")
    return drawer(chart)


def _names(names: Sequence[str]) -> list[str]:
    return cut(short_names(names))


def _known(values: Any) -> list[float]:
    return [float(v) for v in np.asarray(values, dtype=np.float64).ravel() if math.isfinite(v)]


def _told(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3f}"


def _ends(points: Points, k: int) -> tuple[float, float]:
    """Return the ends of a point's interval; NaN where there is none."""
    return (points.low[k], points.high[k]) if points.low and points.high else (math.nan, math.nan)


def _span(name: str, value: float, low: float, high: float) -> str:
    return f"{name}: {_told(value)}" + (f" ({_told(low)} to {_told(high)})" if math.isfinite(low + high) else "")


def _legend(sheet: Sheet, entries: Sequence[tuple[str, int, str]], left: float, width: float) -> float:
    """Write the names of series (name, place, mark or line) in rows, and return the height that they take."""
    x, y = left, LINE / 2
    for name, place, kind in entries:
        room = width_of(name) + 34
        if x > left and x + room > left + width:
            x, y = left, y + LINE
        if kind == "line":
            sheet.line(x, y, x + 16, y, f"s{place % HUES}", DASHES[place // HUES % len(DASHES)])
        elif kind == "fit":
            sheet.line(x, y, x + 16, y, "fit")
        else:
            sheet.marker(x + 8, y, place)
        sheet.text(x + 21, y, name)
        x += room
    return y + LINE / 2 + 8 if entries else 4.0


def _axis_below(sheet: Sheet, scale: Scale, top: float, bottom: float, label: str) -> float:
    """Draw an axis below, its grid and its label; return where the drawing ends."""
    for value, text in scale.marks:
        at = scale(value)
        sheet.line(at, top, at, bottom, "zero" if value == 0 and not scale.log else "grid")
        sheet.text(at, bottom + 11, text, "muted", "middle")
    if label:
        sheet.text((scale.start + scale.end) / 2, bottom + 28, label, "muted", "middle")
    return bottom + (38 if label else 22)


# --- heat map --------------------------------------------------------------------------------------------------------


@draws_kind(Heatmap)
def _heatmap(chart: Heatmap) -> Drawn:
    chart = _trimmed(chart)
    values = np.asarray(chart.values, dtype=np.float64)
    rows, columns = _names(chart.rows), _names(chart.columns)
    sheet = Sheet()
    written = chart.digits is not None and len(columns) <= WRITTEN
    number = widest([f"{v:.{chart.digits or 0}f}" for v in _known(values)[:400]], FONT - 1) + 6 if written else 13.0
    left = widest(rows) + 8
    wide = min(max(number, (HALF - left) / max(1, len(columns))), 64.0)
    high = LINE if written or len(rows) <= TALL else 12.0
    named = len(columns) <= TALL or rows != columns  # else the rows name them, in the same order
    flat = named and widest(columns) <= wide - 4
    room = 0.0 if not named else LINE if flat else widest(columns) + 10
    above = len(rows) > TALL
    top = _colour_bar(sheet, chart, left) + (room if above else 0.0)
    bottom = top + high * len(rows)
    for i, name in enumerate(rows):
        sheet.text(left - 6, top + (i + 0.5) * high, name, anchor="end", tip=chart.rows[i])
    for j, name in enumerate(columns if named else ()):
        x, y = left + (j + 0.5) * wide, top - 6 if above else bottom + 6
        if flat:
            sheet.text(x, y + (-4 if above else 5), name, anchor="middle", tip=chart.columns[j])
        else:
            sheet.text(x, y, name, anchor="start" if above else "end", turn=-90, tip=chart.columns[j])
    shares = _shares(chart, values)
    tips = values.size <= TIPS
    for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
        share = float(shares[i, j])
        tip = f"{chart.rows[i]}, {chart.columns[j]}: {_told(float(values[i, j]))}" if tips else ""
        opacity = f"{max(0.02, abs(share) * (OPAQUE if written else 1.0)):.2f}"
        sheet.add("rect", tip, x=left + j * wide, y=top + i * high, width=wide - 1, height=high - 1,
                  class_="down" if share < 0 else "up", fill_opacity=opacity)  # fmt: skip
    if written:
        for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
            text = f"{values[i, j]:.{chart.digits}f}"
            text = text.lstrip("-") if float(text) == 0 else text
            sheet.text(left + (j + 0.5) * wide, top + (i + 0.5) * high, text, "number", "middle")
    return Drawn(sheet, left + wide * len(columns) + 4, bottom + (4.0 if above else room + 6))


def _trimmed(chart: Heatmap) -> Heatmap:
    """Leave out the rows and columns in which there is no number."""
    values = np.asarray(chart.values, dtype=np.float64).reshape(len(chart.rows), len(chart.columns))
    rows, columns = (np.flatnonzero(np.isfinite(values).any(axis=axis)) for axis in (1, 0))
    return replace(
        chart,
        rows=tuple(chart.rows[i] for i in rows),
        columns=tuple(chart.columns[j] for j in columns),
        values=values[np.ix_(rows, columns)],
    )


def _limits(chart: Heatmap, values: Any) -> tuple[float, float, bool]:
    """Return where the colours end, and whether they part at the centre: numbers below zero have another colour."""
    known = _known(values)
    low = chart.low if chart.low is not None else min(known, default=0.0)
    high = chart.high if chart.high is not None else max(known, default=1.0)
    if chart.diverging or low < chart.centre < high:
        reach = max(abs(high - chart.centre), abs(low - chart.centre)) or 1.0
        return chart.centre - reach, chart.centre + reach, True
    return low, (high if high > low else low + 1.0), False


def _shares(chart: Heatmap, values: Any) -> Any:
    """Return how strong each square's colour is, from 0 to 1; below zero in the other colour."""
    low, high, parted = _limits(chart, values)
    if parted:
        return np.clip((values - chart.centre) / (high - chart.centre), -1, 1)
    share = np.clip((values - low) / (high - low), 0, 1)
    return 0.04 + 0.96 * (1 - share if chart.fewer else share)


def _colour_bar(sheet: Sheet, chart: Heatmap, left: float) -> float:
    """Say what the colours mean, where the squares hold no numbers."""
    if chart.digits is not None and len(chart.columns) <= WRITTEN:
        return 4.0
    low, high, _ = _limits(chart, chart.values)
    ends = (f"{low:.3g}", f"{high:.3g}")
    x = left + width_of(ends[0]) + 4
    sheet.text(left, 9, ends[0], "muted")
    steps = np.linspace(low, high, 21)
    for k, share in enumerate(_shares(chart, steps)):
        sheet.add("rect", x=x + 5 * k, y=4.0, width=5, height=10, class_="down" if share < 0 else "up",
                  fill_opacity=f"{abs(float(share)):.2f}")  # fmt: skip
    sheet.text(x + 110, 9, f"{ends[1]}  {chart.unit}".rstrip(), "muted")
    return 24.0


# --- bars and dots: a line of text for every name --------------------------------------------------------------------


@draws_kind(Bars)
def _bars(chart: Bars) -> Drawn:
    series = [
        Points(name, (), values, chart.labels, low=chart.low.get(name, ()), high=chart.high.get(name, ()))
        for name, values in chart.series.items()
    ]
    return _named_rows(chart, series, 9.0 if len(series) > 1 else 11.0, bars=True)


def _named_rows(
    chart: Bars | Plot, series: Sequence[Points], step: float, *, bars: bool = False, joined: bool = False
) -> Drawn:
    """Draw a bar or a dot of every series beside every name on the left, ``step`` apart, with a scale below."""
    labels, several = series[0].labels, len(series) > 1
    names, high = _names(labels), max(LINE, step * len(series) + 6)
    reach = [v for one in series for part in (one.y, one.low, one.high) for v in _known(part)]
    legend = [(one.name, k, "mark") for k, one in enumerate(series)] if several else ()
    sheet, scale, top = _rows(names, labels, [0.0, *reach] if bars else reach, chart.y_range, high, legend)
    end = _axis_below(sheet, scale, top, top + high * len(labels), chart.y_label)
    for i, label in enumerate(labels):
        y = top + (i + 0.5) * high
        known = [scale.inside(one.y[i]) for one in series if math.isfinite(one.y[i])]
        if joined and len(known) > 1:
            sheet.line(min(known), y, max(known), y, "join")
        for k, one in enumerate(series):
            if not math.isfinite(one.y[i]):
                continue
            at, x = y + (k - (len(series) - 1) / 2) * step, scale.inside(one.y[i])
            low, up = _ends(one, i)
            tip = _span(f"{label}, {one.name}" if several else label, one.y[i], low, up)
            if bars:
                ends = sorted((scale.inside(0.0), x))
                sheet.add("rect", tip, x=ends[0], y=at - step / 2, width=max(1.0, ends[1] - ends[0]), height=step - 1,
                          class_=f"f{k % HUES}")  # fmt: skip
            if math.isfinite(low + up):
                sheet.line(scale.inside(low), at, scale.inside(up), at, "whisker" if bars else f"s{k % HUES} reach")
            if not bars:
                sheet.marker(x, at, k, tip)
    return Drawn(sheet, HALF, end)


def _rows(
    names: Sequence[str],
    full: Sequence[str],
    values: Sequence[float],
    span: tuple[float, float] | None,
    high: float,
    legend: Sequence[tuple[str, int, str]],
) -> tuple[Sheet, Scale, float]:
    """Begin a drawing with names on the left and a scale to their right."""
    sheet, left = Sheet(), min(widest(names), 0.5 * HALF) + 10
    top = _legend(sheet, legend, left, HALF - left)
    for i, name in enumerate(names):
        sheet.text(left - 8, top + (i + 0.5) * high, name, anchor="end", tip=full[i])
    return sheet, make_scale(values, left, HALF - 16, span=span), top


# --- points and lines ------------------------------------------------------------------------------------------------


@draws_kind(Plot)
def _plot(chart: Plot) -> Drawn:
    first = chart.points[0] if chart.points else None
    if first is not None and all(p.labels == first.labels and by_position(p.x, p.labels) for p in chart.points):
        return _named_rows(chart, chart.points, 0.0 if chart.joined else 8.0, joined=chart.joined)
    sheet = Sheet()
    places = {p.name: k if p.hue is None else p.hue for k, p in enumerate(chart.points)}
    fit = chart.lines[0].name if chart.points and chart.lines and chart.lines[0].name not in places else None
    legend = [(name, place, "mark") for name, place in places.items()]
    legend += [  # other lines belong to their points
        (line.name, k, "fit" if line.name == fit else "line")
        for k, line in enumerate(chart.lines)
        if line.name not in places
    ]
    drawn: list[Points | Line] = [*chart.points, *chart.lines]
    ups = [v for part in drawn for values in (part.y, part.low, part.high) for v in _known(values)]
    probe = make_scale(ups, 0, 1, span=chart.y_range, log=chart.log_y)
    left = widest(text for _, text in probe.marks) + (30 if chart.y_label else 12)
    top = _legend(sheet, legend if len(legend) > 1 else (), left, HALF - left)
    bottom = top + 300
    down = make_scale(ups, bottom, top, span=chart.y_range, log=chart.log_y)
    along = make_scale(
        [v for part in drawn for v in _known(part.x)], left, HALF - 16, span=chart.x_range, log=chart.log_x
    )
    for value, text in down.marks:
        sheet.line(left, down(value), HALF - 16, down(value), "zero" if value == 0 and not down.log else "grid")
        sheet.text(left - 6, down(value), text, "muted", "end")
    if chart.y_label:
        sheet.text(10, (top + bottom) / 2, chart.y_label, "muted", "middle", turn=-90)
    end = _axis_below(sheet, along, top, bottom, chart.x_label)
    for k, line in enumerate(chart.lines):
        _line(sheet, line, places.get(line.name, k), along, down, fit=line.name == fit and k == 0)
    spots = []
    for points in chart.points:
        for k, (x, y) in enumerate(zip(points.x, points.y, strict=True)):
            at = (along(x), down(y))
            if not all(map(math.isfinite, at)):
                continue
            low, up = _ends(points, k)
            if math.isfinite(low + up):
                sheet.line(at[0], down.inside(low), at[0], down.inside(up), f"s{places[points.name] % HUES} reach")
            label = points.labels[k] if points.labels else ""
            tip = _span(f"{label}, {points.name}" if label else points.name, y, low, up)
            sheet.marker(*at, places[points.name], tip)
            spots.append((*at, label))
    _label_points(sheet, spots, chart.lines, along, down)
    return Drawn(sheet, HALF, end)


def _line(sheet: Sheet, line: Line, place: int, along: Scale, down: Scale, *, fit: bool) -> None:
    hue = "fit" if fit else f"s{place % HUES}"
    if line.low and line.high:
        edge = [*zip(line.x, line.high, strict=True), *reversed([*zip(line.x, line.low, strict=True)])]
        kind = "shadow" if fit else f"f{place % HUES}"
        sheet.path([(along(x), down.inside(y)) for x, y in edge], f"band {kind}")
    dash = "6 4" if line.dashed else DASHES[place // HUES % len(DASHES)]
    sheet.path([(along(x), down(y)) for x, y in zip(line.x, line.y, strict=True)], hue, dash, line.name)


def by_position(x: Sequence[float], labels: Sequence[str]) -> bool:
    """Say whether labelled points merely stand in a row (x is 1, 2, … n), so that the labels belong on the axis."""
    return len(labels) == len(x) > 0 and all(value == place for place, value in enumerate(x, 1))


def _label_points(
    sheet: Sheet, spots: Sequence[tuple[float, float, str]], lines: Sequence[Line], along: Scale, down: Scale
) -> None:
    """Name as many points as fit: each label takes the first free place around its point, or is left out."""
    size = FONT - 2
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in spots]
    for line in lines:
        ends = [(along(x), down(y)) for x, y in zip(line.x, line.y, strict=True)]
        for (x0, y0), (x1, y1) in itertools.pairwise(ends):
            if math.isfinite(x0 + y0 + x1 + y1):
                steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 4))
                taken += [(x0 + (x1 - x0) * t / steps, y0 + (y1 - y0) * t / steps) * 2 for t in range(steps + 1)]
    labels = [label for _, _, label in spots]
    named = dict(zip(labels, _names(labels), strict=True))
    for x, y, label in spots:
        if not label:
            continue
        wide = width_of(named[label], size)
        for left, top in ((x + 6, y - 5), (x - 6 - wide, y - 5), (x - wide / 2, y - 16), (x - wide / 2, y + 6)):
            box = (left, top, left + wide, top + 10)
            inside = box[0] >= along.start and box[2] <= along.end and box[1] >= down.end and box[3] <= down.start
            if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                sheet.text(left, top + 5, named[label], "small")
                break


# --- bump chart ------------------------------------------------------------------------------------------------------


@draws_kind(Bump)
def _bump(chart: Bump) -> Drawn:
    ranks = np.asarray(chart.ranks, dtype=np.float64)
    count, columns = ranks.shape
    names = cut(short_names(chart.models), 26)
    places = np.stack([_distinct(ranks[:, j]) for j in range(columns)], axis=1)
    groups = list(dict.fromkeys(chart.groups)) if chart.groups else [""]
    sheet = Sheet()
    ends = [f"{name}  {rank:g}" for j in (0, -1) for name, rank in zip(names, ranks[:, j], strict=True)]
    side = widest(ends) + 12
    gap = max(150.0, widest(chart.columns) + 20, (HALF - 2 * side) / max(1, columns - 1))
    width = 2 * side + gap * max(1, columns - 1)
    top = _legend(sheet, [(g or "other", k, "line") for k, g in enumerate(groups)] if len(groups) > 1 else (), 4, width)
    for j, column in enumerate(chart.columns):
        sheet.text(side + j * gap, top + 8, column, "strong", "middle")
    top += 24
    for k, model in enumerate(chart.models):
        hue = groups.index(chart.groups[k]) if chart.groups else 0
        at = [(side + j * gap, top + (places[k, j] - 0.5) * LINE) for j in range(columns)]
        told = ", ".join(f"{c} {r:g}" for c, r in zip(chart.columns, ranks[k], strict=True) if math.isfinite(r))
        sheet.parts.append('<g class="track">')
        sheet.path(at, f"s{hue % HUES} track", DASHES[hue // HUES % len(DASHES)], f"{model}: rank {told}")
        for x, y in at:
            if math.isfinite(y):
                sheet.add("circle", cx=x, cy=y, r=2.6, class_=f"f{hue % HUES}")
        for (x, y), rank, anchor in ((at[0], ranks[k, 0], "end"), (at[-1], ranks[k, -1], "start")):
            if math.isfinite(y):
                text = f"{names[k]}  {rank:g}" if anchor == "end" else f"{rank:g}  {names[k]}"
                sheet.text(x + (-8 if anchor == "end" else 8), y, text, anchor=anchor, tip=model)
        sheet.parts.append("</g>")
    return Drawn(sheet, width, top + LINE * count + 4)


def _distinct(ranks: Any) -> Any:
    """Return a place of its own for every model, in the order of the ranks: shared ranks would share a line."""
    places = np.full(len(ranks), np.nan)
    known = np.flatnonzero(np.isfinite(ranks))
    places[known[np.argsort(ranks[known], kind="stable")]] = np.arange(1, len(known) + 1)
    return places

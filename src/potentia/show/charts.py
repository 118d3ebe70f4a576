"""Every kind of chart, drawn once: the same drawing for page, print, PDF, SVG, PNG and notebook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from potentia.errors import InputError
from potentia.show.svg import (
    DASHES,
    FONT,
    HUES,
    LINE,
    Scale,
    Sheet,
    cut,
    make_scale,
    widest,
    width_of,
)
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names

HALF = 520.0  # pixels of a figure on half of the page
TALL = 30  # rows of a heat map, from which on its columns are named above
TIPS = 2_500  # squares of a heat map that are each told by the pointer
WRITTEN = 16  # columns of a heat map whose squares have room for a number
OPAQUE = 0.62  # of the darkest square, so that a number in it stays readable
HIGH = 300.0  # pixels of the axis of a plot


class Drawn(NamedTuple):
    """The inside of a drawing, and its size."""

    sheet: Sheet
    width: float
    height: float


@singledispatch
def draw_chart(chart: Chart) -> Drawn:
    """Draw a chart without its title; each kind is registered below."""
    raise InputError(f"no drawing for a {type(chart).__name__}")


def _names(names: Sequence[str]) -> list[str]:
    return cut(short_names(names))


def _known(values: Any) -> list[float]:
    return [float(v) for v in np.asarray(values, dtype=np.float64).ravel() if math.isfinite(v)]


def _told(value: float) -> str:
    return (
        "–" if not math.isfinite(value) else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3f}"
    )


class _Mark(NamedTuple):
    """One value of a series, with its interval and what the pointer shows; NaN ends where there is none."""

    value: float
    low: float
    high: float
    tip: str

    @property
    def spans(self) -> bool:
        """Whether its interval is known."""
        return math.isfinite(self.low + self.high)


def _mark(points: Points, k: int, name: str) -> _Mark:
    value = points.y[k]
    low, high = (
        (points.low[k], points.high[k]) if points.low and points.high else (math.nan, math.nan)
    )
    span = f" ({_told(low)} to {_told(high)})" if math.isfinite(low + high) else ""
    return _Mark(value, low, high, f"{name}: {_told(value)}{span}")


def _legend(
    sheet: Sheet, entries: Sequence[tuple[str, int, str]], left: float, width: float
) -> float:
    """Write the names of series (name, place, mark or line) in rows, and return the height that they take."""
    if len(entries) < 2:
        return 4.0
    x, y = left, LINE / 2
    for name, place, kind in entries:
        room = width_of(name) + 34
        if x > left and x + room > left + width:
            x, y = left, y + LINE
        if kind == "mark":
            sheet.marker(x + 8, y, place)
        else:
            hue = "fit" if kind == "fit" else f"s{place % HUES}"
            sheet.line(
                x, y, x + 16, y, hue, "" if kind == "fit" else _dash(place, dashed=kind == "dashed")
            )
        sheet.text(x + 21, y, name)
        x += room
    return y + LINE / 2 + 8


def _dash(place: int, *, dashed: bool = False) -> str:
    """Return the dashes of the n-th series, which tell it from one of the same colour."""
    return "6 4" if dashed else DASHES[place // HUES % len(DASHES)]


def _axis_below(sheet: Sheet, scale: Scale, top: float, bottom: float, label: str) -> float:
    """Draw an axis below, its grid and its label; return where the drawing ends."""
    for value, text in scale.marks:
        at = scale(value)
        sheet.line(at, top, at, bottom, "zero" if value == 0 and not scale.log else "grid")
        sheet.text(at, bottom + 11, text, "muted", "middle")
    if label:
        sheet.text((scale.start + scale.end) / 2, bottom + 28, label, "muted", "middle")
    return bottom + (38 if label else 22)


@draw_chart.register
def _heatmap(chart: Heatmap) -> Drawn:
    chart = _trimmed(chart)
    rows, columns = _names(chart.rows), _names(chart.columns)
    sheet, left, above = Sheet(), widest(rows) + 8, len(rows) > TALL
    written = chart.digits is not None and len(columns) <= WRITTEN
    number = (
        widest((f"{v:.{chart.digits}f}" for v in _known(chart.values)[:400]), FONT - 1) + 6
        if written
        else 13.0
    )
    wide = min(max(number, (HALF - left) / max(1, len(columns))), 64.0)
    high = LINE if written or not above else 12.0
    shown = (
        columns if len(columns) <= TALL or rows != columns else []
    )  # else the rows name them, in the same order
    flat = widest(shown) <= wide - 4
    room = 0.0 if not shown else LINE if flat else widest(shown) + 10
    right = 0.0 if written else _colour_bar(sheet, chart, left)
    top = (4.0 if written else 24.0) + (room if above else 0.0)
    bottom = top + high * len(rows)
    for i, name in enumerate(rows):
        sheet.text(left - 6, top + (i + 0.5) * high, name, anchor="end", tip=chart.rows[i])
    y, side = (top - 6, "start") if above else (bottom + 6, "end")
    turn, anchor, off = (0, "middle", -4 if above else 5) if flat else (-90, side, 0)
    for j, name in enumerate(shown):
        sheet.text(
            left + (j + 0.5) * wide, y + off, name, anchor=anchor, turn=turn, tip=chart.columns[j]
        )
    _squares(sheet, chart, left, top, wide, high, written=written)
    return Drawn(
        sheet, max(right, left + wide * len(columns)) + 4, bottom + (4.0 if above else room + 6)
    )


def _squares(
    sheet: Sheet,
    chart: Heatmap,
    left: float,
    top: float,
    wide: float,
    high: float,
    *,
    written: bool,
) -> None:
    """Draw every known value as a square of its colour, then the numbers over them."""
    values, shares = chart.values, _shares(chart, chart.values)
    tips, strongest = values.size <= TIPS, OPAQUE if written else 1.0
    known = np.argwhere(np.isfinite(values)).tolist()
    for i, j in known:
        share = float(shares[i, j])
        tip = f"{chart.rows[i]}, {chart.columns[j]}: {_told(float(values[i, j]))}" if tips else ""
        sheet.add(
            "rect",
            tip,
            x=left + j * wide,
            y=top + i * high,
            width=wide - 1,
            height=high - 1,
            class_="down" if share < 0 else "up",
            fill_opacity=f"{max(0.02, abs(share) * strongest):.2f}",
        )
    for i, j in known if written else ():
        text = f"{values[i, j]:z.{chart.digits}f}"
        sheet.text(left + (j + 0.5) * wide, top + (i + 0.5) * high, text, "number", "middle")


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


def _limits(chart: Heatmap) -> tuple[float, float, bool]:
    """Return where the colours end, and whether they part at the centre: numbers below zero have another colour."""
    known = _known(chart.values)
    low = chart.low if chart.low is not None else min(known, default=0.0)
    high = chart.high if chart.high is not None else max(known, default=1.0)
    if chart.diverging or low < chart.centre < high:
        reach = max(abs(high - chart.centre), abs(low - chart.centre)) or 1.0
        return chart.centre - reach, chart.centre + reach, True
    return low, (high if high > low else low + 1.0), False


def _shares(chart: Heatmap, values: Any) -> Any:
    """Return how strong each value's colour is, from 0 to 1; below zero in the other colour."""
    low, high, parted = _limits(chart)
    if parted:
        return np.clip((values - chart.centre) / (high - chart.centre), -1, 1)
    share = np.clip((values - low) / (high - low), 0, 1)
    return 0.04 + 0.96 * (1 - share if chart.fewer else share)


def _colour_bar(sheet: Sheet, chart: Heatmap, left: float) -> float:
    """Say what the colours mean, where the squares hold no numbers; return how far to the right that reaches."""
    low, high, _ = _limits(chart)
    x = left + width_of(f"{low:.3g}") + 4
    sheet.text(left, 9, f"{low:.3g}", "muted")
    for k, share in enumerate(_shares(chart, np.linspace(low, high, 21))):
        sheet.add(
            "rect",
            x=x + 5 * k,
            y=4.0,
            width=5,
            height=10,
            class_="down" if share < 0 else "up",
            fill_opacity=f"{abs(float(share)):.2f}",
        )
    end = f"{high:.3g}  {chart.unit}".rstrip()
    sheet.text(x + 110, 9, end, "muted")
    return x + 110 + width_of(end)


@draw_chart.register
def _bars(chart: Bars) -> Drawn:
    series = [
        Points(
            name,
            (),
            values,
            chart.labels,
            low=chart.low.get(name, ()),
            high=chart.high.get(name, ()),
        )
        for name, values in chart.series.items()
    ]
    return _named_rows(chart, series, 9.0 if len(series) > 1 else 11.0, bars=True)


def _named_rows(
    chart: Bars | Plot,
    series: Sequence[Points],
    step: float,
    *,
    bars: bool = False,
    joined: bool = False,
) -> Drawn:
    """Draw a bar or a dot of every series beside every name on the left, ``step`` apart, with a scale below."""
    labels, high = series[0].labels, max(LINE, step * len(series) + 6)
    names, sheet = _names(labels), Sheet()
    left = min(widest(names), 0.5 * HALF) + 10
    top = _legend(sheet, [(one.name, k, "mark") for k, one in enumerate(series)], left, HALF - left)
    reach = [v for one in series for part in (one.y, one.low, one.high) for v in _known(part)]
    scale = make_scale([0.0, *reach] if bars else reach, left, HALF - 16, span=chart.y_range)
    for i, name in enumerate(names):
        sheet.text(left - 8, top + (i + 0.5) * high, name, anchor="end", tip=labels[i])
    end = _axis_below(sheet, scale, top, top + high * len(labels), chart.y_label)
    for i, label in enumerate(labels):
        y = top + (i + 0.5) * high
        marks = [
            _mark(one, i, f"{label}, {one.name}" if len(series) > 1 else label) for one in series
        ]
        known = [scale.inside(mark.value) for mark in marks if math.isfinite(mark.value)]
        if joined and len(known) > 1:
            sheet.line(min(known), y, max(known), y, "join")
        for k, mark in enumerate(marks):
            if math.isfinite(mark.value):
                at = y + (k - (len(series) - 1) / 2) * step
                _bar(sheet, scale, mark, at, k, step) if bars else _dot(sheet, scale, mark, at, k)
    return Drawn(sheet, HALF, end)


def _bar(sheet: Sheet, scale: Scale, mark: _Mark, y: float, k: int, step: float) -> None:
    start, end = sorted((scale.inside(0.0), scale.inside(mark.value)))
    sheet.add(
        "rect",
        mark.tip,
        x=start,
        y=y - step / 2,
        width=max(1.0, end - start),
        height=step - 1,
        class_=f"f{k % HUES}",
    )
    if mark.spans:
        sheet.line(scale.inside(mark.low), y, scale.inside(mark.high), y, "whisker")


def _dot(sheet: Sheet, scale: Scale, mark: _Mark, y: float, k: int) -> None:
    if mark.spans:
        sheet.line(scale.inside(mark.low), y, scale.inside(mark.high), y, f"s{k % HUES} reach")
    sheet.marker(scale.inside(mark.value), y, k, mark.tip)


@dataclass
class _Axes:
    """A sheet with its scales, and the room that is taken."""

    sheet: Sheet
    along: Scale
    down: Scale
    taken: list[tuple[float, ...]] = field(default_factory=list)  # left, top, right, bottom

    def at(self, part: Points | Line) -> list[tuple[float, float]]:
        """Return the places of all its points; NaN for those that are not on the axes."""
        return [(self.along(x), self.down(y)) for x, y in zip(part.x, part.y, strict=True)]

    def free(self, box: tuple[float, ...]) -> bool:
        """Say whether a box lies on the axes and over nothing."""
        left, top, right, bottom = box
        if (
            left < self.along.start
            or right > self.along.end
            or top < self.down.end
            or bottom > self.down.start
        ):
            return False
        return not any(
            left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in self.taken
        )


@draw_chart.register
def _plot(chart: Plot) -> Drawn:
    if chart.points and all(
        p.labels == chart.points[0].labels and by_position(p.x, p.labels) for p in chart.points
    ):
        return _named_rows(chart, chart.points, 0.0 if chart.joined else 8.0, joined=chart.joined)
    places = {p.name: k if p.hue is None else p.hue for k, p in enumerate(chart.points)}
    fit = (
        chart.lines[0].name
        if chart.points and chart.lines and chart.lines[0].name not in places
        else None
    )
    legend = [(name, place, "mark") for name, place in places.items()]
    legend += [  # other lines belong to their points
        (line.name, k, "fit" if line.name == fit else "dashed" if line.dashed else "line")
        for k, line in enumerate(chart.lines)
        if line.name not in places
    ]
    axes, end = _axes(chart, legend)
    for k, line in enumerate(chart.lines):
        _line(axes, line, places.get(line.name, k), fit=line.name == fit and k == 0)
    spots = [spot for points in chart.points for spot in _spots(axes, points, places[points.name])]
    _label_points(axes, spots, chart.lines)
    return Drawn(axes.sheet, HALF, end)


def _axes(chart: Plot, legend: Sequence[tuple[str, int, str]]) -> tuple[_Axes, float]:
    """Draw both axes and the legend; return where the drawing ends, too."""
    drawn: list[Points | Line] = [*chart.points, *chart.lines]
    ups = [v for part in drawn for values in (part.y, part.low, part.high) for v in _known(values)]
    probe = make_scale(ups, 0, 1, span=chart.y_range, log=chart.log_y)
    sheet, left, right = (
        Sheet(),
        widest(text for _, text in probe.marks) + (30 if chart.y_label else 12),
        HALF - 16,
    )
    top = _legend(sheet, legend, left, HALF - left)
    down = replace(probe, start=top + HIGH, end=top)
    across = [v for part in drawn for v in _known(part.x)]
    along = make_scale(across, left, right, span=chart.x_range, log=chart.log_x)
    for value, text in down.marks:
        sheet.line(
            left, down(value), right, down(value), "zero" if value == 0 and not down.log else "grid"
        )
        sheet.text(left - 6, down(value), text, "muted", "end")
    if chart.y_label:
        sheet.text(10, top + HIGH / 2, chart.y_label, "muted", "middle", turn=-90)
    return _Axes(sheet, along, down), _axis_below(sheet, along, top, top + HIGH, chart.x_label)


def _line(axes: _Axes, line: Line, place: int, *, fit: bool) -> None:
    hue, shade = ("fit", "shadow") if fit else (f"s{place % HUES}", f"f{place % HUES}")
    if line.low and line.high:
        edge = [
            *zip(line.x, line.high, strict=True),
            *reversed([*zip(line.x, line.low, strict=True)]),
        ]
        axes.sheet.path([(axes.along(x), axes.down.inside(y)) for x, y in edge], f"band {shade}")
    axes.sheet.path(axes.at(line), hue, _dash(place, dashed=line.dashed), line.name)


def _spots(axes: _Axes, points: Points, place: int) -> Iterator[tuple[float, float, str]]:
    """Draw the points that are on the axes, and give their places and labels."""
    for k, (x, y) in enumerate(axes.at(points)):
        if math.isfinite(x + y):
            label = points.labels[k] if points.labels else ""
            mark = _mark(points, k, f"{label}, {points.name}" if label else points.name)
            if mark.spans:
                ends = axes.down.inside(mark.low), axes.down.inside(mark.high)
                axes.sheet.line(x, ends[0], x, ends[1], f"s{place % HUES} reach")
            axes.sheet.marker(x, y, place, mark.tip)
            yield x, y, label


def by_position(x: Sequence[float], labels: Sequence[str]) -> bool:
    """Say whether labelled points merely stand in a row (x is 1, 2, … n), so that the labels belong on the axis."""
    return len(labels) == len(x) > 0 and all(value == place for place, value in enumerate(x, 1))


def _label_points(
    axes: _Axes, spots: Sequence[tuple[float, float, str]], lines: Sequence[Line]
) -> None:
    """Name as many points as fit: each label takes the first free place around its point, or is left out."""
    axes.taken += [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in spots]
    for (x0, y0), (x1, y1) in itertools.chain.from_iterable(
        itertools.pairwise(axes.at(line)) for line in lines
    ):
        if math.isfinite(x0 + y0 + x1 + y1):
            steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 4))
            axes.taken += [
                (x0 + (x1 - x0) * t / steps, y0 + (y1 - y0) * t / steps) * 2
                for t in range(steps + 1)
            ]
    labels = [label for _, _, label in spots]
    named = dict(zip(labels, _names(labels), strict=True))
    for x, y, label in spots:
        wide = width_of(named[label], FONT - 2)
        around = (
            (x + 6, y - 5),
            (x - 6 - wide, y - 5),
            (x - wide / 2, y - 16),
            (x - wide / 2, y + 6),
        )
        boxes = ((left, top, left + wide, top + 10) for left, top in around if label)
        if (box := next(filter(axes.free, boxes), None)) is not None:
            axes.taken.append(box)
            axes.sheet.text(box[0], box[1] + 5, named[label], "small")


@draw_chart.register
def _bump(chart: Bump) -> Drawn:
    ranks = np.asarray(chart.ranks, dtype=np.float64)
    count, columns = ranks.shape
    names = cut(short_names(chart.models), 26)
    places = np.stack([_distinct(ranks[:, j]) for j in range(columns)], axis=1)
    groups = list(dict.fromkeys(chart.groups)) if chart.groups else [""]
    side = (
        widest(
            f"{name}  {rank:g}"
            for j in (0, -1)
            for name, rank in zip(names, ranks[:, j], strict=True)
        )
        + 12
    )
    gap = max(150.0, widest(chart.columns) + 20, (HALF - 2 * side) / max(1, columns - 1))
    width = 2 * side + gap * max(1, columns - 1)
    sheet = Sheet()
    top = _legend(
        sheet, [(group or "other", k, "line") for k, group in enumerate(groups)], 4, width
    )
    for j, column in enumerate(chart.columns):
        sheet.text(side + j * gap, top + 8, column, "strong", "middle")
    top += 24
    for k, model in enumerate(chart.models):
        at = [(side + j * gap, top + (places[k, j] - 0.5) * LINE) for j in range(columns)]
        told = ", ".join(
            f"{c} {r:g}" for c, r in zip(chart.columns, ranks[k], strict=True) if math.isfinite(r)
        )
        hue = groups.index(chart.groups[k]) if chart.groups else 0
        _track(sheet, at, hue, f"{model}: rank {told}")
        for place, anchor, side_x in ((0, "end", -8), (-1, "start", 8)):
            (x, y), rank = at[place], f"{ranks[k, place]:g}"
            if math.isfinite(y):
                text = "  ".join((names[k], rank) if anchor == "end" else (rank, names[k]))
                sheet.text(x + side_x, y, text, anchor=anchor, tip=model)
        sheet.parts.append("</g>")
    return Drawn(sheet, width, top + LINE * count + 4)


def _track(sheet: Sheet, at: Sequence[tuple[float, float]], hue: int, tip: str) -> None:
    """Begin the group of one model: its line and its dots."""
    sheet.parts.append('<g class="track">')
    sheet.path(at, f"s{hue % HUES} track", _dash(hue), tip)
    for x, y in at:
        if math.isfinite(y):
            sheet.add("circle", cx=x, cy=y, r=2.6, class_=f"f{hue % HUES}")


def _distinct(ranks: Any) -> Any:
    """Return a place of its own for every model, in the order of the ranks: shared ranks would share a line."""
    places = np.full(len(ranks), np.nan)
    known = np.flatnonzero(np.isfinite(ranks))
    places[known[np.argsort(ranks[known], kind="stable")]] = np.arange(1, len(known) + 1)
    return places

"""Every kind of chart, drawn once: the same drawing for page, print, PDF, SVG, PNG and notebook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from potentia.errors import InputError
from potentia.show.svg import (
    COLORS,
    DASHES,
    FONT_SIZE,
    LINE_HEIGHT,
    Scale,
    Sheet,
    estimate_width,
    make_scale,
    shorten_names,
    widest_text,
)
from potentia.values.findings import Bars, Bump, Chart, Heatmap, Line, Plot, Points, short_names
from potentia.values.scores import Floats
from potentia.values.wording import set_signs

HALF_PAGE = 520.0  # pixels of a figure on half of the page
WHOLE_PAGE = 1080.0
PLOT_HEIGHT = 300.0  # pixels of the axis of a plot
RIGHT_MARGIN = 16
SIDE_ROOM = 0.03  # of the range of x, left free beside the first and the last point
LABEL_SIZE = FONT_SIZE - 2  # of the names of points
MAX_BUMP_NAME_LETTERS = 26


class Drawn(NamedTuple):
    """The inside of a drawing, and its size."""

    sheet: Sheet
    width: float
    height: float


@singledispatch
def draw_chart(chart: Chart) -> Drawn:
    """Draw a chart without its title; each kind is registered below."""
    raise InputError(f"no drawing for a {type(chart).__name__}")


# --- what charts share ------------------------------------------------------------------------------------------------


class LegendKind(NamedTuple):
    """How a legend shows a series: by its mark, or by a line that may be dashed or a fit over all points."""

    is_mark: bool = False
    is_dashed: bool = False
    is_fit: bool = False


class LegendEntry(NamedTuple):
    """One series of a legend: its name, and its number, which chooses color, mark and dash."""

    name: str
    series: int
    kind: LegendKind


class ShownValue(NamedTuple):
    """One value of a series, with its interval and what the pointer shows; NaN ends where there is none."""

    value: float
    low: float
    high: float
    tip: str

    @property
    def has_interval(self) -> bool:
        """Whether its interval is known."""
        return math.isfinite(self.low + self.high)


def _display_names(full_names: Sequence[str]) -> list[str]:
    return shorten_names(short_names(full_names))


def _finite_values(values: Any) -> list[float]:
    flat_values = np.asarray(values, dtype=np.float64).ravel()
    return [float(value) for value in flat_values if math.isfinite(value)]


def _format_value(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    number = f"{value:.4g}" if abs(value) >= 100 else f"{value:z.3f}"
    return set_signs(number)


def _shown_value(points: Points, index: int, point_name: str) -> ShownValue:
    value = points.y[index]
    low = math.nan
    high = math.nan
    if points.low and points.high:
        low = points.low[index]
        high = points.high[index]
    tooltip = f"{point_name}: {_format_value(value)}"
    if math.isfinite(low + high):
        tooltip += f" ({_format_value(low)} to {_format_value(high)})"
    return ShownValue(value, low, high, tooltip)


def _draw_legend(
    sheet: Sheet, entries: Sequence[LegendEntry], left_edge: float, width: float
) -> float:
    """Write the names of series in rows, and return the height that they take."""
    if len(entries) < 2:
        return 4.0
    x = left_edge
    y = LINE_HEIGHT / 2
    for entry_name, series, kind in entries:
        entry_width = estimate_width(entry_name) + 34
        if x > left_edge and x + entry_width > left_edge + width:
            x = left_edge
            y += LINE_HEIGHT
        if kind.is_mark:
            sheet.marker(x + 8, y, series)
        elif kind.is_fit:
            sheet.line(x, y, x + 16, y, "fit")
        else:
            dash_pattern = _dash_of(series, dashed=kind.is_dashed)
            sheet.line(x, y, x + 16, y, f"s{series % COLORS}", dash_pattern)
        sheet.text(x + 21, y, entry_name)
        x += entry_width
    return y + LINE_HEIGHT / 2 + 8


def _dash_of(series: int, *, dashed: bool = False) -> str:
    """Return the dashes of the n-th series, which tell it from one of the same colour."""
    if dashed:
        return "6 4"
    return DASHES[series // COLORS % len(DASHES)]


def _grid_class(value: float, scale: Scale) -> str:
    return "zero" if value == 0 and not scale.log else "grid"


def _draw_axis_below(sheet: Sheet, scale: Scale, top: float, bottom: float, label: str) -> float:
    """Draw an axis below, its grid and its label; return where the drawing ends."""
    for tick_value, tick_label in scale.marks:
        x = scale(tick_value)
        sheet.line(x, top, x, bottom, _grid_class(tick_value, scale))
        sheet.text(x, bottom + 11, tick_label, "muted", "middle")
    if not label:
        return bottom + 22
    sheet.text((scale.start + scale.end) / 2, bottom + 28, label, "muted", "middle")
    return bottom + 38


# --- heat maps --------------------------------------------------------------------------------------------------------

TALL_HEATMAP = 30  # rows, from which on the columns are named above
MAX_TIPS = 2_500  # squares that each have a tip for the pointer
MAX_COLUMNS_WITH_NUMBERS = 16  # whose squares have room for a number
MAX_NUMBERS_MEASURED = 400  # to find out how wide a number is
OPACITY_UNDER_NUMBERS = 0.62  # of the darkest square, so that a number in it stays readable
COLOR_BAR_STEPS = 21


class SquareGrid(NamedTuple):
    """Where the squares of a heat map lie, and whether numbers are written into them."""

    left: float
    top: float
    width: float
    height: float
    has_numbers: bool

    def middle_of_column(self, column: int) -> float:
        """Return the middle of a column."""
        return self.left + (column + 0.5) * self.width

    def middle_of_row(self, row: int) -> float:
        """Return the middle of a row."""
        return self.top + (row + 0.5) * self.height


@draw_chart.register
def _draw_heatmap(chart: Heatmap) -> Drawn:
    chart = _drop_empty_rows_and_columns(chart)
    rows = _display_names(chart.rows)
    columns = _display_names(chart.columns)
    sheet = Sheet()
    left_edge = widest_text(rows) + 8
    names_above = len(rows) > TALL_HEATMAP
    has_numbers = chart.digits is not None and len(columns) <= MAX_COLUMNS_WITH_NUMBERS
    square_width = min(
        max(_min_square_width(chart, has_numbers), (HALF_PAGE - left_edge) / max(1, len(columns))),
        64.0,
    )
    square_height = LINE_HEIGHT if has_numbers or not names_above else 12.0
    # Where there are many, and the rows name the same in the same order, columns have no names.
    shown_columns = columns
    if len(columns) > TALL_HEATMAP and rows == columns:
        shown_columns = []
    names_fit_flat = widest_text(shown_columns) <= square_width - 4
    names_height = _height_of_column_names(shown_columns, flat=names_fit_flat)
    color_bar_end = 0.0
    top = 4.0
    if not has_numbers:
        color_bar_end = _draw_color_bar(sheet, chart, left_edge)
        top = 24.0
    if names_above:
        top += names_height
    grid = SquareGrid(left_edge, top, square_width, square_height, has_numbers)
    bottom = top + square_height * len(rows)
    for row, row_name in enumerate(rows):
        sheet.text(
            left_edge - 6, grid.middle_of_row(row), row_name, anchor="end", tooltip=chart.rows[row]
        )
    names_y = top - 6 if names_above else bottom + 6
    for column, row_name in enumerate(shown_columns):
        x = grid.middle_of_column(column)
        tooltip = chart.columns[column]
        if names_fit_flat:
            offset = -4 if names_above else 5
            sheet.text(x, names_y + offset, row_name, anchor="middle", tooltip=tooltip)
        else:
            anchor = "start" if names_above else "end"
            sheet.text(x, names_y, row_name, anchor=anchor, turn=-90, tooltip=tooltip)
    _draw_squares(sheet, chart, grid)
    width = max(color_bar_end, left_edge + square_width * len(columns)) + 4
    height = bottom + (4.0 if names_above else names_height + 6)
    return Drawn(sheet, width, height)


def _min_square_width(chart: Heatmap, has_numbers: bool) -> float:
    """Return how wide a square must be for the number in it."""
    if not has_numbers:
        return 13.0
    values = _finite_values(chart.values)[:MAX_NUMBERS_MEASURED]
    numbers = (f"{value:.{chart.digits}f}" for value in values)
    return widest_text(numbers, FONT_SIZE - 1) + 6


def _height_of_column_names(names: Sequence[str], *, flat: bool) -> float:
    if not names:
        return 0.0
    return LINE_HEIGHT if flat else widest_text(names) + 10


def _draw_squares(sheet: Sheet, chart: Heatmap, grid: SquareGrid) -> None:
    """Draw every known value as a square of its colour, then the numbers over them."""
    values = chart.values
    shares = _color_shares(chart, values)
    has_tips = values.size <= MAX_TIPS
    strongest = OPACITY_UNDER_NUMBERS if grid.has_numbers else 1.0
    cells = np.argwhere(np.isfinite(values)).tolist()
    for row, column in cells:
        share = float(shares[row, column])
        tooltip = ""
        if has_tips:
            value = _format_value(float(values[row, column]))
            tooltip = f"{chart.rows[row]}, {chart.columns[column]}: {value}"
        sheet.add(
            "rect",
            tooltip,
            x=grid.left + column * grid.width,
            y=grid.top + row * grid.height,
            width=grid.width - 1,
            height=grid.height - 1,
            class_="down" if share < 0 else "up",
            fill_opacity=f"{max(0.02, abs(share) * strongest):.2f}",
        )
    if not grid.has_numbers:
        return
    for row, column in cells:
        shown_number = f"{values[row, column]:z.{chart.digits}f}"
        x = grid.middle_of_column(column)
        sheet.text(x, grid.middle_of_row(row), shown_number, "number", "middle")


def _drop_empty_rows_and_columns(chart: Heatmap) -> Heatmap:
    """Leave out the rows and columns in which there is no number."""
    values = np.asarray(chart.values, dtype=np.float64).reshape(len(chart.rows), len(chart.columns))
    is_known = np.isfinite(values)
    rows = np.flatnonzero(is_known.any(axis=1))
    columns = np.flatnonzero(is_known.any(axis=0))
    return replace(
        chart,
        rows=tuple(chart.rows[row] for row in rows),
        columns=tuple(chart.columns[column] for column in columns),
        values=values[np.ix_(rows, columns)],
    )


class ColorRange(NamedTuple):
    """Where the colours end, and whether they part at the centre: numbers below it have another colour."""

    low: float
    high: float
    is_diverging: bool


def _color_range(chart: Heatmap) -> ColorRange:
    values = _finite_values(chart.values)
    low = min(values, default=0.0) if chart.low is None else chart.low
    high = max(values, default=1.0) if chart.high is None else chart.high
    if chart.diverging or low < chart.centre < high:
        reach = max(abs(high - chart.centre), abs(low - chart.centre)) or 1.0
        return ColorRange(chart.centre - reach, chart.centre + reach, is_diverging=True)
    if high <= low:
        high = low + 1.0
    return ColorRange(low, high, is_diverging=False)


def _color_shares(chart: Heatmap, values: Floats) -> Floats:
    """Return how strong each value's colour is, from 0 to 1; below zero in the other colour."""
    low, high, is_diverging = _color_range(chart)
    if is_diverging:
        signed: Floats = np.clip((values - chart.centre) / (high - chart.centre), -1, 1)
        return signed
    share: Floats = np.clip((values - low) / (high - low), 0, 1)
    if chart.fewer:
        share = 1 - share
    return 0.04 + 0.96 * share


def _draw_color_bar(sheet: Sheet, chart: Heatmap, left_edge: float) -> float:
    """Say what the colours mean, where the squares hold no numbers; return how far to the right that reaches."""
    low, high, _ = _color_range(chart)
    low_text = set_signs(f"{low:.3g}")
    x = left_edge + estimate_width(low_text) + 6
    sheet.text(left_edge, 9, low_text, "muted")
    shares = _color_shares(chart, np.linspace(low, high, COLOR_BAR_STEPS))
    for step, share in enumerate(shares):
        sheet.add(
            "rect",
            x=x + 5 * step,
            y=4.0,
            width=5,
            height=10,
            class_="down" if share < 0 else "up",
            fill_opacity=f"{abs(float(share)):.2f}",
        )
    end_text = f"{high:.3g}  {chart.unit}".rstrip()
    sheet.text(x + 110, 9, end_text, "muted")
    return x + 110 + estimate_width(end_text)


# --- bars and dots beside names ---------------------------------------------------------------------------------------


@draw_chart.register
def _draw_bars(chart: Bars) -> Drawn:
    series = [
        Points(
            series_name,
            (),
            values,
            chart.labels,
            low=chart.low.get(series_name, ()),
            high=chart.high.get(series_name, ()),
        )
        for series_name, values in chart.series.items()
    ]
    series_step = 9.0 if len(series) > 1 else 11.0
    return _draw_named_rows(chart, series, series_step, are_bars=True)


def _draw_named_rows(
    chart: Bars | Plot,
    series: Sequence[Points],
    series_step: float,
    *,
    are_bars: bool = False,
    joined: bool = False,
) -> Drawn:
    """Draw a bar or a dot of every series beside every name on the left, ``series_step`` apart, with a scale below."""
    labels = series[0].labels
    row_height = max(LINE_HEIGHT, series_step * len(series) + 6)
    names = _display_names(labels)
    sheet = Sheet()
    left_edge = min(widest_text(names), 0.5 * HALF_PAGE) + 10
    entries = [
        LegendEntry(points.name, series_number, LegendKind(is_mark=True))
        for series_number, points in enumerate(series)
    ]
    top = _draw_legend(sheet, entries, left_edge, HALF_PAGE - left_edge)
    values = _values_and_ends(series)
    if are_bars:
        values = [0.0, *values]
    scale = make_scale(values, left_edge, HALF_PAGE - RIGHT_MARGIN, span=chart.y_range)
    for row, row_name in enumerate(names):
        sheet.text(
            left_edge - 8,
            top + (row + 0.5) * row_height,
            row_name,
            anchor="end",
            tooltip=labels[row],
        )
    end = _draw_axis_below(sheet, scale, top, top + row_height * len(labels), chart.y_label)
    for row, label in enumerate(labels):
        y = top + (row + 0.5) * row_height
        shown_values = []
        for points in series:
            row_name = f"{label}, {points.name}" if len(series) > 1 else label
            shown_values.append(_shown_value(points, row, row_name))
        if joined:
            _join_dots(sheet, scale, shown_values, y)
        for series_number, shown_value in enumerate(shown_values):
            if not math.isfinite(shown_value.value):
                continue
            series_y = y + (series_number - (len(series) - 1) / 2) * series_step
            if are_bars:
                _draw_bar(sheet, scale, shown_value, series_y, series_number, series_step)
            else:
                _draw_dot(sheet, scale, shown_value, series_y, series_number)
    return Drawn(sheet, HALF_PAGE, end)


def _values_and_ends(parts: Iterable[Points | Line]) -> list[float]:
    """Return all known values of series with the ends of their intervals."""
    values = []
    for series in parts:
        for numbers in (series.y, series.low, series.high):
            values += _finite_values(numbers)
    return values


def _join_dots(sheet: Sheet, scale: Scale, shown_values: Sequence[ShownValue], y: float) -> None:
    """Draw a line between the dots of one name, as a dumbbell."""
    positions = [
        scale.inside(shown_value.value)
        for shown_value in shown_values
        if math.isfinite(shown_value.value)
    ]
    if len(positions) > 1:
        sheet.line(min(positions), y, max(positions), y, "join")


def _draw_bar(
    sheet: Sheet, scale: Scale, shown_value: ShownValue, y: float, series: int, series_step: float
) -> None:
    start, end = sorted((scale.inside(0.0), scale.inside(shown_value.value)))
    sheet.add(
        "rect",
        shown_value.tip,
        x=start,
        y=y - series_step / 2,
        width=max(1.0, end - start),
        height=series_step - 1,
        class_=f"f{series % COLORS}",
    )
    if shown_value.has_interval:
        sheet.line(scale.inside(shown_value.low), y, scale.inside(shown_value.high), y, "whisker")


def _draw_dot(sheet: Sheet, scale: Scale, shown_value: ShownValue, y: float, series: int) -> None:
    if shown_value.has_interval:
        color = f"s{series % COLORS} reach"
        sheet.line(scale.inside(shown_value.low), y, scale.inside(shown_value.high), y, color)
    sheet.marker(scale.inside(shown_value.value), y, series, shown_value.tip)


# --- plots ------------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A rectangle on the sheet."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other_box: Box) -> bool:
        """Whether two rectangles share room."""
        across = self.left < other_box.right and other_box.left < self.right
        along = self.top < other_box.bottom and other_box.top < self.bottom
        return across and along


class LabelledPoint(NamedTuple):
    """A point on the axes with its label."""

    x: float
    y: float
    label: str


@dataclass
class Axes:
    """A sheet with its scales, and the room that is taken."""

    sheet: Sheet
    x_scale: Scale
    y_scale: Scale
    taken: list[Box] = field(default_factory=list)

    def positions_of(self, points_or_line: Points | Line) -> list[tuple[float, float]]:
        """Return the positions of all its points; NaN for those that are not on the axes."""
        return [
            (self.x_scale(x), self.y_scale(y))
            for x, y in zip(points_or_line.x, points_or_line.y, strict=True)
        ]

    def is_free(self, box: Box) -> bool:
        """Whether a box lies on the axes and over nothing."""
        is_beside = box.left < self.x_scale.start or box.right > self.x_scale.end
        is_beyond = box.top < self.y_scale.end or box.bottom > self.y_scale.start
        if is_beside or is_beyond:
            return False
        return not any(box.overlaps(taken_box) for taken_box in self.taken)


@draw_chart.register
def _draw_plot(chart: Plot) -> Drawn:
    if _has_labels_on_axis(chart):
        series_step = 0.0 if chart.joined else 8.0
        return _draw_named_rows(chart, chart.points, series_step, joined=chart.joined)
    series_of_points = {}
    for series_number, points in enumerate(chart.points):
        series_of_points[points.name] = series_number if points.hue is None else points.hue
    # A first line that no points are named after is a fit over all of them.
    fit_name = None
    if chart.points and chart.lines and chart.lines[0].name not in series_of_points:
        fit_name = chart.lines[0].name
    entries = [
        LegendEntry(series_name, series, LegendKind(is_mark=True))
        for series_name, series in series_of_points.items()
    ]
    for series_number, line in enumerate(chart.lines):
        if line.name not in series_of_points:  # other lines belong to their points
            legend_kind = LegendKind(is_fit=line.name == fit_name, is_dashed=line.dashed)
            entries.append(LegendEntry(line.name, series_number, legend_kind))
    axes, end = _draw_axes(chart, entries)
    for series_number, line in enumerate(chart.lines):
        is_fit = line.name == fit_name and series_number == 0
        _draw_line(axes, line, series_of_points.get(line.name, series_number), is_fit=is_fit)
    points_of_series = [
        list(_draw_points(axes, points, series_of_points[points.name])) for points in chart.points
    ]
    if chart.lines:
        labelled_points = _order_curve_points(points_of_series)
    else:
        labelled_points = list(itertools.chain.from_iterable(points_of_series))
    _label_points(axes, labelled_points, chart.lines)
    return Drawn(axes.sheet, _plot_width(chart), end)


def _plot_width(chart: Plot) -> float:
    return WHOLE_PAGE if chart.wide else HALF_PAGE


def _has_labels_on_axis(chart: Plot) -> bool:
    """Whether all points merely stand in a row under the same labels."""
    if not chart.points:
        return False
    first_labels = chart.points[0].labels
    return all(
        points.labels == first_labels and stand_in_row(tuple(points.x), points.labels)
        for points in chart.points
    )


def stand_in_row(x: Sequence[float], labels: Sequence[str]) -> bool:
    """Whether labelled points merely stand in a row (x is 1, 2, … n), so that the labels belong on the axis."""
    if len(labels) != len(x) or not x:
        return False
    return all(value == expected for expected, value in enumerate(x, start=1))


def _draw_axes(chart: Plot, entries: Sequence[LegendEntry]) -> tuple[Axes, float]:
    """Draw both axes and the legend; return where the drawing ends, too."""
    parts: list[Points | Line] = [*chart.points, *chart.lines]
    values = _values_and_ends(parts)
    unplaced = make_scale(values, 0, 1, span=chart.y_range, is_logarithmic=chart.log_y)
    sheet = Sheet()
    left_edge = widest_text(text for _, text in unplaced.marks) + (30 if chart.y_label else 12)
    right = _plot_width(chart) - RIGHT_MARGIN
    top = _draw_legend(sheet, entries, left_edge, _plot_width(chart) - left_edge)
    bottom = top + PLOT_HEIGHT
    y_scale = replace(unplaced, start=bottom, end=top)
    x_values: list[float] = []
    for points_or_line in parts:
        x_values.extend(_finite_values(points_or_line.x))
    x_span = chart.x_range
    if x_span is None and not chart.log_x:
        x_span = _pad_span(x_values)
    x_scale = make_scale(x_values, left_edge, right, span=x_span, is_logarithmic=chart.log_x)
    for value, text in y_scale.marks:
        y = y_scale(value)
        sheet.line(left_edge, y, right, y, _grid_class(value, y_scale))
        sheet.text(left_edge - 6, y, text, "muted", "end")
    if chart.y_label:
        sheet.text(10, top + PLOT_HEIGHT / 2, chart.y_label, "muted", "middle", turn=-90)
    end = _draw_axis_below(sheet, x_scale, top, bottom, chart.x_label)
    return Axes(sheet, x_scale, y_scale), end


def _pad_span(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the range of values with a little room at both ends; None where there is no range."""
    if len(set(values)) < 2:
        return None
    room = SIDE_ROOM * (max(values) - min(values))
    return min(values) - room, max(values) + room


def _draw_line(axes: Axes, line: Line, series: int, *, is_fit: bool) -> None:
    """Draw a curve and its band."""
    line_class = "fit" if is_fit else f"s{series % COLORS}"
    band_class = "shadow" if is_fit else f"f{series % COLORS}"
    if line.low and line.high:
        upper_edge = list(zip(line.x, line.high, strict=True))
        lower_edge = list(zip(line.x, line.low, strict=True))
        band_edge = [*upper_edge, *reversed(lower_edge)]
        points = [(axes.x_scale(x), axes.y_scale.inside(y)) for x, y in band_edge]
        axes.sheet.path(points, f"band {band_class}")
    dash_pattern = _dash_of(series, dashed=line.dashed)
    axes.sheet.path(axes.positions_of(line), line_class, dash_pattern, line.name)


def _draw_points(axes: Axes, points: Points, series: int) -> Iterator[LabelledPoint]:
    """Draw the points that are on the axes, and yield their positions and labels."""
    for index, (x, y) in enumerate(axes.positions_of(points)):
        if not math.isfinite(x + y):
            continue
        label = points.labels[index] if points.labels else ""
        point_name = f"{label}, {points.name}" if label else points.name
        shown_value = _shown_value(points, index, point_name)
        if shown_value.has_interval:
            low = axes.y_scale.inside(shown_value.low)
            high = axes.y_scale.inside(shown_value.high)
            axes.sheet.line(x, low, x, high, f"s{series % COLORS} reach")
        axes.sheet.marker(x, y, series, shown_value.tip)
        yield LabelledPoint(x, y, label)


def _order_curve_points(points_of_series: Sequence[Sequence[LabelledPoint]]) -> list[LabelledPoint]:
    """Return the points of curves in the order in which they are named: the ends first, and each name once.

    The last curve is the main one; what stands at the same step of another has the same name.
    """
    ends: list[LabelledPoint] = []
    between: list[LabelledPoint] = []
    for points in reversed(points_of_series):
        ends += [*points[-1:], *points[:1]]
        between += points[1:-1]
    point_by_label: dict[str, LabelledPoint] = {}
    for point in (*ends, *between):
        point_by_label.setdefault(point.label, point)
    return list(point_by_label.values())


def _label_points(axes: Axes, points: Sequence[LabelledPoint], lines: Sequence[Line]) -> None:
    """Name as many points as fit: each label takes the first free place around its point, or is left out."""
    axes.taken += [Box(x - 4, y - 4, x + 4, y + 4) for x, y, _ in points]
    for line in lines:
        for start, end in itertools.pairwise(axes.positions_of(line)):
            axes.taken += _boxes_along(start, end)
    labels = [point.label for point in points]
    name_by_label = dict(zip(labels, _display_names(labels), strict=True))
    for point in points:
        if not point.label:
            continue
        label = name_by_label[point.label]
        for box in _boxes_around(point, estimate_width(label, LABEL_SIZE)):
            if axes.is_free(box):
                axes.taken.append(box)
                axes.sheet.text(box.left, box.top + 5, label, "small")
                break


def _boxes_along(start: tuple[float, float], line_end: tuple[float, float]) -> list[Box]:
    """Return points four pixels apart along a line, as boxes without width."""
    (x0, y0), (x1, y1) = start, line_end
    if not math.isfinite(x0 + y0 + x1 + y1):
        return []
    steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 4))
    boxes = []
    for step in range(steps + 1):
        x = x0 + (x1 - x0) * step / steps
        y = y0 + (y1 - y0) * step / steps
        boxes.append(Box(x, y, x, y))
    return boxes


def _boxes_around(point: LabelledPoint, width: float) -> list[Box]:
    """Return where a label of this width may stand: right, left, above, below its point."""
    corners = (
        (point.x + 6, point.y - 5),
        (point.x - 6 - width, point.y - 5),
        (point.x - width / 2, point.y - 16),
        (point.x - width / 2, point.y + 6),
    )
    return [Box(left_edge, top, left_edge + width, top + 10) for left_edge, top in corners]


# --- ranks in columns -------------------------------------------------------------------------------------------------


@draw_chart.register
def _draw_bump(chart: Bump) -> Drawn:
    ranks = np.asarray(chart.ranks, dtype=np.float64)
    model_count, column_count = ranks.shape
    names = shorten_names(short_names(chart.models), MAX_BUMP_NAME_LETTERS)
    lines = np.stack(
        [_line_of_each_model(ranks[:, column]) for column in range(column_count)], axis=1
    )
    groups = list(dict.fromkeys(chart.groups)) if chart.groups else [""]
    side_texts = []
    for column in (0, -1):
        for name, rank in zip(names, ranks[:, column], strict=True):
            side_texts.append(f"{name}  {rank:g}")
    side = widest_text(side_texts) + 12
    gap_count = max(1, column_count - 1)
    column_gap = max(150.0, widest_text(chart.columns) + 20, (HALF_PAGE - 2 * side) / gap_count)
    width = 2 * side + column_gap * gap_count
    sheet = Sheet()
    entries = [
        LegendEntry(group or "other", series_number, LegendKind())
        for series_number, group in enumerate(groups)
    ]
    top = _draw_legend(sheet, entries, 4, width)
    for column, name in enumerate(chart.columns):
        sheet.text(side + column * column_gap, top + 8, name, "strong", "middle")
    top += 24
    for row, model in enumerate(chart.models):
        positions = [
            (side + column * column_gap, top + (lines[row, column] - 0.5) * LINE_HEIGHT)
            for column in range(column_count)
        ]
        known_ranks = [
            f"{name} {rank:g}"
            for name, rank in zip(chart.columns, ranks[row], strict=True)
            if math.isfinite(rank)
        ]
        series = groups.index(chart.groups[row]) if chart.groups else 0
        tooltip = f"{model}: rank {', '.join(known_ranks)}"
        sheet.parts.append('<g class="track">')
        if chart.best_ranks is not None and chart.worst_ranks is not None:
            column_positions = [x for x, _ in positions]
            _shade_possible_ranks(
                sheet, chart, row, column_positions=column_positions, top=top, series=series
            )
            tooltip += _describe_possible_ranks(chart, row)
        _draw_track(sheet, positions, series, tooltip)
        first_x, first_y = positions[0]
        if math.isfinite(first_y):
            text = f"{names[row]}  {ranks[row, 0]:g}"
            sheet.text(first_x - 8, first_y, text, anchor="end", tooltip=model)
        last_x, last_y = positions[-1]
        if math.isfinite(last_y):
            text = f"{ranks[row, -1]:g}  {names[row]}"
            sheet.text(last_x + 8, last_y, text, anchor="start", tooltip=model)
        sheet.parts.append("</g>")
    return Drawn(sheet, width, top + LINE_HEIGHT * model_count + 4)


def _shade_possible_ranks(
    sheet: Sheet,
    chart: Bump,
    row: int,
    *,
    column_positions: Sequence[float],
    top: float,
    series: int,
) -> None:
    """Shade the area between the best and the worst rank that a model may have in each column."""
    upper_edge = [
        (x, top + (float(rank) - 1) * LINE_HEIGHT)
        for x, rank in zip(column_positions, chart.best_ranks[row], strict=True)
    ]
    lower_edge = [
        (x, top + float(rank) * LINE_HEIGHT)
        for x, rank in zip(column_positions, chart.worst_ranks[row], strict=True)
    ]
    sheet.path([*upper_edge, *reversed(lower_edge)], f"possible f{series % COLORS}")


def _describe_possible_ranks(chart: Bump, row: int) -> str:
    """Say which ranks a model may have in each column."""
    ranges = [
        f"{best:g} to {worst:g}"
        for best, worst in zip(chart.best_ranks[row], chart.worst_ranks[row], strict=True)
    ]
    return f"; possible {', '.join(ranges)}"


def _draw_track(
    sheet: Sheet, positions: Sequence[tuple[float, float]], series: int, tooltip: str
) -> None:
    """Draw one model: its line and its dots."""
    sheet.path(positions, f"s{series % COLORS} track", _dash_of(series), tooltip)
    for x, y in positions:
        if math.isfinite(y):
            sheet.add("circle", cx=x, cy=y, r=2.6, class_=f"f{series % COLORS}")


def _line_of_each_model(ranks: Floats) -> Floats:
    """Return a line of its own for every model, in the order of the ranks: shared ranks would share a line."""
    lines = np.full(len(ranks), np.nan)
    measured = np.flatnonzero(np.isfinite(ranks))
    order = measured[np.argsort(ranks[measured], kind="stable")]
    lines[order] = np.arange(1, len(measured) + 1)
    return lines

"""What an analysis returns: tables for people, plain values for scripts, charts for the report.

An analysis is a pure function from one or two ``ScoreMatrix`` to a ``Finding``. The finding names its tables and its
charts as data; ``potentia.show`` alone knows how to draw them, so the numbers that a figure shows are the numbers that
the command line prints.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from potentia.extras import Extra, require_extra

if TYPE_CHECKING:
    import pandas as pd

Cell = str | int | float | None
T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A titled table. Numbers stay numbers; ``digits`` says how many decimals a person wants to see.

    Rows may be any iterables; an estimate among their cells becomes three: its value, its low and its high end.
    """

    title: str
    columns: Any  # their names, a tuple once made
    rows: Any  # tuples of cells once made
    note: str = ""
    digits: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(_plain_cells(row)) for row in self.rows))

    def __str__(self) -> str:
        """Return the table as a terminal shows it: title, columns under each other, note."""
        text_rows = [list(self.columns), *self._format_rows()]
        widths = []
        for position in range(len(self.columns)):
            widths.append(max(len(row[position]) for row in text_rows))
        lines = [self.title]
        for row in text_rows:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame; numbers stay numbers."""
        require_extra(Extra.PANDAS, "a pandas table")
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = ""
        for row in self._format_rows():
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
            rows += f"<tr>{cells}</tr>"
        note = ""
        if self.note:
            note = f"<p><small>{escape(self.note)}</small></p>"
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"

    def _format_rows(self) -> list[list[str]]:
        """Return every cell as text, row by row."""
        return [[format_cell(cell, self.digits) for cell in row] for row in self.rows]


def _plain_cells(row: Iterable[Any]) -> Iterator[Cell]:
    """Give the cells of a row as plain values; an estimate becomes three cells."""
    for cell in row:
        if hasattr(cell, "low"):
            yield from (cell.value, cell.low, cell.high)
        elif type(cell).__module__ == "numpy":
            yield cell.item()
        else:
            yield cell


def format_cell(cell: Cell, digits: int = 3) -> str:
    """Return one cell as a person reads it: a dash where nothing is known."""
    if cell is None or _is_nan(cell):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:z.{digits}f}"
    return str(cell)


def _is_nan(cell: Cell) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


MAX_REPR = 200  # characters of a finding in a notebook or a log


def _shorten_value(value: Any) -> str:
    """Return a value in a few characters: texts and numbers as they are, a collection by its size."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return f"{value:.4g}" if isinstance(value, float) else repr(value)
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"<{' × '.join(map(str, shape))}>"
    if isinstance(value, (Mapping, tuple, list, set, frozenset)):
        return f"<{len(value)}>"
    return type(value).__name__


@dataclass(frozen=True)
class Finding:
    """The base of every finding: a frozen dataclass whose fields are plain values or numpy arrays."""

    def __init_subclass__(cls, **class_options: Any) -> None:
        super().__init_subclass__(**class_options)
        if (
            "__repr__" not in cls.__dict__
        ):  # else the decorator would make one that prints every array
            cls.__repr__ = Finding.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the kind of finding and its fields in short: the size of a collection, not its contents."""
        shown_names = [shown.name for shown in dataclasses.fields(self) if shown.repr]
        parts = [f"{name}={_shorten_value(getattr(self, name))}" for name in shown_names]
        text = f"{type(self).__name__}({', '.join(parts)})"
        return text if len(text) <= MAX_REPR else f"{text[: MAX_REPR - 2]}…)"

    def tables(self) -> Sequence[Table]:
        """Return the tables that a person reads."""
        return ()

    def charts(self) -> Sequence[Chart]:
        """Return the pictures of this finding, as data."""
        return ()

    def __str__(self) -> str:
        """Return the answer as a terminal prints it: the tables, not the arrays behind them."""
        tables = [drop_empty_columns(table) for table in self.tables()]
        text = "\n\n".join(str(table) for table in tables if table is not None)
        return text or repr(self)

    def to_dict(self) -> dict[str, Any]:
        """Return every field that is shown (``repr``) as JSON-ready values; NaN becomes None."""
        shown_names = [field.name for field in dataclasses.fields(self) if field.repr]
        return {name: jsonable(getattr(self, name)) for name in shown_names}

    def to_frame(self, table: int | str = 0) -> pd.DataFrame:
        """Return one of the tables, by number or title, as a pandas DataFrame; numbers stay numbers.

        >>> potentia.rankings("scores.csv").to_frame()  # doctest: +SKIP
        """
        tables = list(self.tables())
        titles = [available.title for available in tables]
        position = titles.index(table) if table in titles else table
        if not isinstance(position, int) or position >= len(tables):
            listed_titles = ", ".join(titles) or "none"
            raise LookupError(f"no table {table!r}; there are: {listed_titles}")
        return tables[position].to_frame()

    def plot(self, chart: int | str = 0) -> Any:
        """Return one of the charts, by number or name, as a picture: a notebook shows it, ``save`` writes it."""
        charts = list(self.charts())
        chart_names = [available.name for available in charts]
        position = chart
        if chart in chart_names:
            position = chart_names.index(chart)
        if not isinstance(position, int) or position >= len(charts):
            listed_names = ", ".join(chart_names) or "none"
            raise LookupError(f"no chart {chart!r}; there are: {listed_names}")
        if not _DRAWING_FUNCTIONS:
            raise LookupError("charts are drawn by potentia.show: import it first")
        draw = _DRAWING_FUNCTIONS[-1]
        return draw(charts[position])

    def _repr_html_(self) -> str:
        """Return the tables as a notebook shows them."""
        return "".join(table._repr_html_() for table in self.tables())


@dataclass(frozen=True)
class Findings(Finding):
    """Several findings as one, each under a name of its own."""

    def named(self) -> dict[str, Finding]:
        """Return every finding by its name, in reading order: the fields that are there and are findings."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, Finding)}

    def tables(self) -> Sequence[Table]:
        """Return the tables of all findings."""
        tables: list[Table] = []
        for finding in self.named().values():
            tables.extend(finding.tables())
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return the charts of all findings."""
        charts: list[Chart] = []
        for finding in self.named().values():
            charts.extend(finding.charts())
        return charts

    def to_dict(self) -> dict[str, Any]:
        """Return every finding by its name."""
        return {name: finding.to_dict() for name, finding in self.named().items()}


def drop_empty_columns(table: Table) -> Table | None:
    """Return the table without its empty columns; None where a single column, or none, has content."""
    filled_positions = []
    for position in range(len(table.columns)):
        if any(_is_filled(row[position]) for row in table.rows):
            filled_positions.append(position)
    if len(filled_positions) == len(table.columns):
        return table
    if len(filled_positions) < 2:
        return None
    columns = select_positions(table.columns, filled_positions)
    rows = tuple(select_positions(row, filled_positions) for row in table.rows)
    return dataclasses.replace(table, columns=columns, rows=rows)


def _is_filled(cell: Cell) -> bool:
    return cell not in (None, "", "–") and not _is_nan(cell)


def format_mean(value: float) -> str:
    """Return a mean as a caption writes it; of too few numbers there is none."""
    if not math.isfinite(value):
        return "mean not defined"
    return f"mean {value:.2f}"


def jsonable(value: Any) -> Any:
    """Turn dataclasses, arrays, numpy scalars and non-finite floats into what ``json.dumps`` takes."""
    if isinstance(value, Finding):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: jsonable(getattr(value, name)) for name in names}
    # An array or one of its scalars; numpy itself is not loaded for this.
    if type(value).__module__ == "numpy":
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): jsonable(content) for key, content in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(member) for member in value]
    return value


def select_positions(values: Sequence[T], positions: Iterable[int]) -> tuple[T, ...]:
    """Return the values at these positions, in this order."""
    return tuple(values[position] for position in positions)


def slug(text: str) -> str:
    """Return a name that can stand in an address, an id and a file name."""
    dashed = re.sub("[^A-Za-z0-9_-]", "-", text)
    return re.sub("-{2,}", "-", dashed).strip("-") or "figure"


def short_names(names: Sequence[str]) -> list[str]:
    """Leave out the organisation of ``organisation/model`` where the rest still tells the names apart."""
    short_by_name = {name: name.rpartition("/")[2] or name for name in names}
    uses_of_short_name = Counter(
        short_by_name.values()
    )  # each name counts once, however often it stands there
    chosen = []
    for name in names:
        short = short_by_name[name]
        chosen.append(short if uses_of_short_name[short] == 1 else name)
    return chosen


UNEVEN_SIDES = 1.5  # times as far to the one side as to the other: ± would mislead


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval."""

    value: float
    low: float
    high: float
    level: float = 0.95

    @classmethod
    def around(cls, value: float, half: float, level: float = 0.95) -> Interval:
        """Return the interval that reaches ``half`` to either side of the value."""
        return cls(
            value=float(value), low=float(value - half), high=float(value + half), level=level
        )

    def format(self, *, digits: int = 3, sign: bool = False) -> str | None:
        """Write the value with its interval: 0.612 ± 0.021, or 0.000 (0.000 to 0.019) where the sides differ much."""
        if not math.isfinite(self.value):
            return None
        number = f"{self.value:+.{digits}f}" if sign else f"{self.value:.{digits}f}"
        error = self.format_error(digits=digits)
        return number if error is None else f"{number} {error}"

    def format_error(self, *, digits: int = 3) -> str | None:
        """Write how far it reaches: ± 0.021, or (0.000 to 0.019); None where that is not known."""
        if not math.isfinite(self.low):
            return None
        below = self.value - self.low
        above = self.high - self.value
        if max(below, above) > UNEVEN_SIDES * min(below, above) + 10**-digits:
            return f"({self.low:.{digits}f} to {self.high:.{digits}f})"
        return f"± {(below + above) / 2:.{digits}f}"


# --- charts: what to draw, never how -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """The base of every chart: a title, a caption that says what to see, and a name fit for files and addresses.

    Charts of one ``group`` are there to be compared: they stand side by side, on one scale (``on_one_scale``).
    """

    name: str
    title: str
    caption: str
    group: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", slug(self.name))

    @property
    def has_content(self) -> bool:
        """Whether there is anything to see: a picture of one number, or of none, is not drawn."""
        return True

    def shared_scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the fields that put the charts of a group, all of this kind, on one scale."""
        return {}


@dataclass(frozen=True)
class Heatmap(Chart):
    """A matrix of numbers: the more, the darker; of ranks, the ``fewer``.

    ``diverging`` centres the colours on ``centre``; ``digits`` writes values into cells.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Any  # (rows, columns)
    low: float | None = None
    high: float | None = None
    diverging: bool = False
    centre: float = 0.0
    digits: int | None = 2
    unit: str = ""
    fewer: bool = False

    @property
    def has_content(self) -> bool:
        """Whether two squares at least have a number."""
        return len(_known_numbers(self.values)) > 1

    def shared_scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the ends of the colours."""
        lows: list[float] = []
        highs: list[float] = []
        for heatmap in group:
            numbers = _known_numbers(heatmap.values)
            lows.extend(numbers if heatmap.low is None else [heatmap.low])
            highs.extend(numbers if heatmap.high is None else [heatmap.high])
        if not lows or not highs:
            return {}
        return {"low": min(lows), "high": max(highs)}


@dataclass(frozen=True)
class Bars(Chart):
    """Grouped bars, lying: one label per group, one series per colour, optional intervals."""

    labels: Any  # names, a tuple once made
    series: Any  # numbers by name, or estimates (``value``, ``low``, ``high``), whose ends then go to low and high
    low: dict[str, tuple[float, ...]] = field(default_factory=dict)
    high: dict[str, tuple[float, ...]] = field(default_factory=dict)
    y_label: str = ""
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        series = self.series
        if _has_estimates(series):
            object.__setattr__(self, "low", _parts_by_name(series, "low"))
            object.__setattr__(self, "high", _parts_by_name(series, "high"))
        object.__setattr__(self, "series", _parts_by_name(series, "value"))
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def has_content(self) -> bool:
        """Whether there are two bars to compare."""
        return len(_known_numbers(self.series.values())) > 1

    def shared_scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the axis of all bars and their intervals."""
        value_rows: list[Iterable[float]] = []
        for bars in group:
            value_rows.extend(bars.series.values())
            value_rows.extend(bars.low.values())
            value_rows.extend(bars.high.values())
        values = [0.0, *_known_numbers(value_rows)]
        return _padded_range("y_range", values, logarithmic=False)


def _has_estimates(series: Mapping[str, Iterable[Any]]) -> bool:
    """Whether any value of the series is an estimate with an interval."""
    all_values = itertools.chain.from_iterable(series.values())
    return any(hasattr(value, "low") for value in all_values)


def _parts_by_name(series: Mapping[str, Iterable[Any]], part: str) -> dict[str, tuple[float, ...]]:
    """Return one part of every estimate (``value``, ``low`` or ``high``); a plain number is all its parts."""
    parts_by_name = {}
    for name, values in series.items():
        parts_by_name[name] = tuple(float(getattr(value, part, value)) for value in values)
    return parts_by_name


@dataclass(frozen=True)
class Points:
    """One named set of points of a scatter; ``labels`` name the points."""

    name: str
    x: Any  # numbers, as any sequence or array; a tuple once made
    y: Any
    labels: tuple[str, ...] = ()
    low: Any = ()
    high: Any = ()
    hue: int | None = None  # the number of its colour; where None, its position in the chart

    def __post_init__(self) -> None:
        _convert_numbers(self)


@dataclass(frozen=True)
class Line:
    """One named curve with an optional band."""

    name: str
    x: Any  # as of points
    y: Any
    low: Any = ()
    high: Any = ()
    dashed: bool = False

    def __post_init__(self) -> None:
        _convert_numbers(self)


def _convert_numbers(drawn: Points | Line) -> None:
    """Turn the coordinates into tuples of Python floats."""
    for coordinate in ("x", "y", "low", "high"):
        numbers = tuple(float(number) for number in getattr(drawn, coordinate))
        object.__setattr__(drawn, coordinate, numbers)


@dataclass(frozen=True)
class Plot(Chart):
    """Points and lines on common axes; ``joined`` ties the points of one label to each other, as a dumbbell."""

    points: tuple[Points, ...] = ()
    lines: tuple[Line, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    joined: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None

    @property
    def has_content(self) -> bool:
        """Whether there are two points to compare, or a line."""
        heights = _known_numbers(points.y for points in self.points)
        return bool(self.lines) or len(heights) > 1

    def shared_scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the axes of all points and lines."""
        x_rows: list[Iterable[float]] = []
        y_rows: list[Iterable[float]] = []
        for plot in group:
            for drawn in (*plot.points, *plot.lines):
                x_rows.append(drawn.x)
                y_rows.extend((drawn.y, drawn.low, drawn.high))
        x_range = _padded_range("x_range", _known_numbers(x_rows), logarithmic=self.log_x)
        y_range = _padded_range("y_range", _known_numbers(y_rows), logarithmic=self.log_y)
        return x_range | y_range


@dataclass(frozen=True)
class Bump(Chart):
    """Ranks of the same models in two or more columns, joined by lines; ``groups`` colours them (family)."""

    models: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: Any  # (models, columns), 1 is best
    groups: tuple[str, ...] = ()

    @property
    def has_content(self) -> bool:
        """Whether there are two models to order."""
        return len(self.models) > 1


# The functions that draw charts: a package above this one registers its own.
_DRAWING_FUNCTIONS: list[Callable[[Chart], Any]] = []


def register_drawing(drawing: Callable[[Chart], Any]) -> Callable[[Chart], Any]:
    """Register the function that makes a picture of a chart, for ``Finding.plot``."""
    _DRAWING_FUNCTIONS.append(drawing)
    return drawing


def on_one_scale(charts: Iterable[Chart]) -> list[Chart]:
    """Give the charts of each group the same colours and axes, so that what looks the same is the same."""
    all_charts = list(charts)
    members_by_group: dict[tuple[type[Chart], str], list[Chart]] = {}
    for chart in all_charts:
        members_by_group.setdefault((type(chart), chart.group), []).append(chart)
    scale_by_group: dict[tuple[type[Chart], str], dict[str, Any]] = {}
    for (chart_type, group), members in members_by_group.items():
        if group and len(members) > 1:
            scale_by_group[chart_type, group] = members[0].shared_scale(members)
    scaled_charts = []
    for chart in all_charts:
        scale = scale_by_group.get((type(chart), chart.group), {})
        scaled_charts.append(dataclasses.replace(chart, **scale))
    return scaled_charts


def _padded_range(name: str, values: Sequence[float], *, logarithmic: bool) -> dict[str, Any]:
    """Return the range of the values under this name, with a little room at its ends; none where it cannot be drawn."""
    if not values or (logarithmic and min(values) <= 0):
        return {}
    low = min(values)
    high = max(values)
    if logarithmic:
        low = math.log10(low)
        high = math.log10(high)
    room = 0.06 * ((high - low) or 1.0)
    # An axis that starts at zero goes on starting there.
    if low:
        low -= room
    high += room
    if logarithmic:
        return {name: (10**low, 10**high)}
    return {name: (low, high)}


def _known_numbers(rows: Iterable[Iterable[Any]]) -> list[float]:
    """Return the numbers of all rows that are not NaN."""
    numbers: list[float] = []
    for row in rows:
        numbers.extend(float(value) for value in row if not math.isnan(float(value)))
    return numbers

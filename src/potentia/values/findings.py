"""What an analysis returns, a ``Finding``: tables for people, plain values for scripts, charts for the report.

A finding gives its tables and charts as data. Only ``potentia.show`` draws them, so the numbers that a figure shows are
the numbers that the command line prints.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from potentia.errors import suggest_names
from potentia.extras import Extra, require_extra
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST
from potentia.values.wording import set_signs_of_cell

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    Numbers = Sequence[float] | npt.NDArray[np.floating | np.integer]
    NumberGrid = npt.NDArray[np.float64]
    RankGrid = npt.NDArray[np.float64] | npt.NDArray[np.signedinteger]

TableValue = str | int | float | None
"""A value in a table; None is an unknown one."""

T = TypeVar("T")

SPELLED_SIGNS = {"τ": "tau", "σ": "sigma", "Δ": "difference", "%": "percent", "²": "2", "×": "by"}
FRAME_NAMES = {protocol.label: str(protocol) for protocol in (DIRECT, TRAIN_BEFORE_TEST)}


class ValuedText(str):
    """A text in a table with the values that it shows: people read "0.612 ± 0.021", ``to_frame`` gives the numbers.

    The part called ``value`` gets the name of the column, another one that name with its own behind it.

    >>> ValuedText("1 (1–3)", value=1, low=1, high=3).parts
    {'value': 1, 'low': 1, 'high': 3}
    """

    parts: Mapping[str, TableValue]

    def __new__(cls, text: str, **parts: TableValue) -> Self:
        """Return the text with its values by the names of its parts."""
        valued_text = super().__new__(cls, text)
        valued_text.parts = parts
        return valued_text

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_valued_text, (str(self), dict(self.parts))


def _restore_valued_text(text: str, parts: Mapping[str, TableValue]) -> ValuedText:
    return ValuedText(text, **parts)


@dataclass(frozen=True)
class Table:
    """A titled table. Rows are given as any iterables; an estimate in a row becomes three values: value, low, high."""

    title: str
    columns: Any  # the names of the columns; a tuple after __post_init__
    rows: Any  # a tuple of tuples after __post_init__
    note: str = ""
    digits: int = 3  # decimals that people see; the numbers are not rounded
    # what a DataFrame calls a column, where not by its name in snake case; "" leaves the names of its parts alone
    frame_names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(_walk_values(row)) for row in self.rows))

    def __str__(self) -> str:
        """Return the table as text with aligned columns, its title above and its note below."""
        text_rows = [list(self.columns), *self._format_rows()]
        widths = []
        for position in range(len(self.columns)):
            widths.append(max(len(row[position]) for row in text_rows))
        lines = [self.title]
        for row in text_rows:
            padded_cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(padded_cells).rstrip())
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame: names in snake case, and the values that a text shows as numbers."""
        require_extra(Extra.PANDAS, "a pandas table")
        import pandas as pd

        return pd.DataFrame(self._frame_columns())

    def _frame_columns(self) -> dict[str, list[TableValue]]:
        """Return the values of every column of the DataFrame by its name; a text with parts gives a column for each."""
        columns: dict[str, list[TableValue]] = {}
        preceding_name = ""
        for position, shown_name in enumerate(self.columns):
            cells = [row[position] for row in self.rows]
            name = self.frame_names.get(shown_name, make_frame_name(shown_name))
            is_end = name in ("low", "high")
            if is_end and self.columns.count(shown_name) > 1:
                name = f"{preceding_name}_{name}"
            if not is_end:
                preceding_name = name
            for part_name, values in _split_into_parts(cells).items():
                part_column = name if part_name == "value" else f"{name}_{part_name}".lstrip("_")
                columns[_make_unique(part_column, columns)] = values
        return columns

    def _repr_html_(self) -> str:
        """Return the table as HTML, which a notebook shows."""
        from html import escape

        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        rows = ""
        for row in self._format_rows():
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
            rows += f"<tr>{cells}</tr>"
        note_html = ""
        if self.note:
            note_html = f"<p><small>{escape(self.note)}</small></p>"
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note_html}"

    def _format_rows(self) -> list[list[str]]:
        """Return every cell as text, row by row."""
        text_rows = []
        for row in self.rows:
            text_rows.append([set_signs_of_cell(format_cell(cell, self.digits)) for cell in row])
        return text_rows


def make_frame_name(shown_name: str) -> str:
    """Return the name of a column in plain snake case: P(first) becomes p_first."""
    if shown_name in FRAME_NAMES:
        return FRAME_NAMES[shown_name]
    spelled = "".join(SPELLED_SIGNS.get(letter, letter) for letter in shown_name)
    return re.sub(r"\W+", "_", spelled).strip("_").lower() or "name"


def _make_unique(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: with a number behind it where it is."""
    if name not in taken:
        return name
    return next(
        f"{name}_{number}" for number in itertools.count(2) if f"{name}_{number}" not in taken
    )


def _split_into_parts(cells: Sequence[TableValue]) -> dict[str, list[TableValue]]:
    """Return the values of a column by their parts: ``value`` alone where no cell is a text with parts."""
    part_names: dict[str, None] = {}
    for cell in cells:
        if isinstance(cell, ValuedText):
            part_names |= dict.fromkeys(cell.parts)
    if not part_names:
        return {"value": [cell if _is_filled(cell) else None for cell in cells]}
    values_by_part: dict[str, list[TableValue]] = {}
    for part_name in part_names:
        values_by_part[part_name] = [_read_part(cell, part_name) for cell in cells]
    return values_by_part


def _read_part(cell: TableValue, part_name: str) -> TableValue:
    """Return one part of a cell; a plain number is its own value, and other texts have none."""
    if isinstance(cell, ValuedText):
        return cell.parts.get(part_name)
    if part_name == "value" and not isinstance(cell, str):
        return cell
    return None


def _walk_values(row: Iterable[Any]) -> Iterator[TableValue]:
    """Yield the values of a row as plain Python values; an estimate gives its value, its low and its high end."""
    for cell in row:
        if hasattr(cell, "low"):
            yield from (cell.value, cell.low, cell.high)
        elif type(cell).__module__ == "numpy":
            yield cell.item()
        else:
            yield cell


def format_cell(cell: TableValue, digits: int = 3) -> str:
    """Return one value of a table as people read it; a dash for an unknown one."""
    if cell is None or _is_nan(cell):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:z.{digits}f}"
    return str(cell)


def _is_nan(cell: TableValue) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


MAX_REPR_LENGTH = 200  # characters


def _shorten_value(value: object) -> str:
    """Return a value in a few characters: a number to four digits, a collection by its size, any other by its type."""
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

    def __init_subclass__(cls, **class_options: object) -> None:
        super().__init_subclass__(**class_options)
        # without one of its own, @dataclass would give the subclass a __repr__ that prints whole arrays
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Finding.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the name of the class with its fields in short: of a collection its size, not its contents."""
        shown_names = [
            shown_field.name for shown_field in dataclasses.fields(self) if shown_field.repr
        ]
        parts = [
            f"{field_name}={_shorten_value(getattr(self, field_name))}"
            for field_name in shown_names
        ]
        text = f"{type(self).__name__}({', '.join(parts)})"
        return text if len(text) <= MAX_REPR_LENGTH else f"{text[: MAX_REPR_LENGTH - 2]}…)"

    def tables(self) -> Sequence[Table]:
        """Return the tables that people read."""
        return ()

    def charts(self) -> Sequence[Chart]:
        """Return the charts of this finding, as data."""
        return ()

    def __str__(self) -> str:
        """Return the tables as text, without empty columns; the ``repr`` of a finding without tables."""
        tables = [drop_empty_columns(table) for table in self.tables()]
        text = "\n\n".join(str(table) for table in tables if table is not None)
        return text or repr(self)

    def to_dict(self) -> dict[str, Any]:
        """Return every field except those declared with ``repr=False``, as JSON values; NaN becomes None."""
        shown_names = [field.name for field in dataclasses.fields(self) if field.repr]
        return {field_name: to_json_values(getattr(self, field_name)) for field_name in shown_names}

    def to_frame(self, table: int | str = 0) -> pd.DataFrame:
        """Return one of the tables, by number or title, as a pandas DataFrame.

        Columns have names in snake case; what a cell shows as text, such as 0.612 ± 0.021, becomes numbers.

        >>> potentia.rankings("scores.csv").to_frame()  # doctest: +SKIP
        """
        tables = list(self.tables())
        titles = [available.title for available in tables]
        position = _find_position(table, titles)
        if position is None:
            raise LookupError(f"no table {table!r}; {suggest_names(str(table), titles)}")
        return tables[position].to_frame()

    def plot(self, chart: int | str = 0) -> object:
        """Return one of the charts, by number or name, as a picture: a notebook shows it, ``save`` writes it."""
        charts = list(self.charts())
        chart_names = [available.name for available in charts]
        position = _find_position(chart, chart_names)
        if position is None:
            raise LookupError(f"no chart {chart!r}; {suggest_names(str(chart), chart_names)}")
        if not _DRAWING_FUNCTIONS:
            raise LookupError("charts are drawn by potentia.show: import it first")
        draw_chart = _DRAWING_FUNCTIONS[-1]  # the one that was registered last
        return draw_chart(charts[position])

    def _repr_html_(self) -> str:
        """Return the tables as HTML, which a notebook shows."""
        return "".join(table._repr_html_() for table in self.tables())


def _find_position(number_or_name: int | str, names: Sequence[str]) -> int | None:
    """Return the position of the table or chart with this number or name; None if there is none."""
    if isinstance(number_or_name, str) and number_or_name in names:
        return names.index(number_or_name)
    if isinstance(number_or_name, int) and number_or_name < len(names):
        return number_or_name
    return None


@dataclass(frozen=True)
class Findings(Finding):
    """Several findings as one: a subclass has a field for each."""

    def findings_by_name(self) -> dict[str, Finding]:
        """Return the fields that are findings, by name and in order; all other fields are left out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            field_name: finding
            for field_name, finding in fields.items()
            if isinstance(finding, Finding)
        }

    def tables(self) -> Sequence[Table]:
        """Return the tables of all findings."""
        tables: list[Table] = []
        for finding in self.findings_by_name().values():
            tables.extend(finding.tables())
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return the charts of all findings."""
        charts: list[Chart] = []
        for finding in self.findings_by_name().values():
            charts.extend(finding.charts())
        return charts

    def to_dict(self) -> dict[str, Any]:
        """Return every finding by its name."""
        return {
            finding_name: finding.to_dict()
            for finding_name, finding in self.findings_by_name().items()
        }


def drop_empty_columns(table: Table) -> Table | None:
    """Return the table without its empty columns; None if fewer than two columns have content."""
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


def _is_filled(cell: TableValue) -> bool:
    return cell not in (None, "", "–") and not _is_nan(cell)


def format_mean(value: float) -> str:
    """Return a mean as captions write it, also where it is not defined (NaN)."""
    if not math.isfinite(value):
        return "mean not defined"
    return f"mean {value:.2f}"


def to_json_values(value: Any) -> Any:
    """Return dataclasses, arrays, numpy scalars and containers of them as JSON values; NaN and infinity become None.

    A value of any other type is returned as it is.
    """
    if isinstance(value, Finding):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        field_names = [field.name for field in dataclasses.fields(value)]
        return {
            field_name: to_json_values(getattr(value, field_name)) for field_name in field_names
        }
    # An array or one of its scalars; numpy itself is not loaded for this.
    if type(value).__module__ == "numpy":
        return to_json_values(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_json_values(content) for key, content in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_values(member) for member in value]
    return value


def select_positions(values: Sequence[T], positions: Iterable[int]) -> tuple[T, ...]:
    """Return the values at these positions, in this order."""
    return tuple(values[position] for position in positions)


def make_slug(text: str) -> str:
    """Return a text as a name for an address, an HTML id and a file: letters, digits, ``_`` and ``-`` alone."""
    dashed = re.sub("[^A-Za-z0-9_-]", "-", text)
    return re.sub("-{2,}", "-", dashed).strip("-") or "figure"


def short_names(names: Sequence[str]) -> list[str]:
    """Return each name without its organisation (``organisation/model``), unless two names would be the same then."""
    short_by_name = {full_name: full_name.rpartition("/")[2] or full_name for full_name in names}
    # a dictionary's values: each full name counts once, however often it is among the names
    uses_of_short_name = Counter(short_by_name.values())
    chosen_names = []
    for full_name in names:
        short_name = short_by_name[full_name]
        is_distinct = uses_of_short_name[short_name] == 1
        chosen_names.append(short_name if is_distinct else full_name)
    return chosen_names


# If an interval reaches more than so many times as far to one side as to the other, ± would mislead.
MAX_SIDE_RATIO = 1.5


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval."""

    value: float
    low: float
    high: float
    level: float = 0.95

    @classmethod
    def around(cls, value: float, half_width: float, level: float = 0.95) -> Interval:
        """Return the interval that reaches ``half_width`` to either side of the value."""
        return cls(
            value=float(value),
            low=float(value - half_width),
            high=float(value + half_width),
            level=level,
        )

    def format(self, *, digits: int = 3, sign: bool = False) -> str | None:
        """Return the value with its interval: 0.612 ± 0.021, or 0.000 (0.000 to 0.019) if its sides differ much.

        None if the value is not known.
        """
        if not math.isfinite(self.value):
            return None
        text = f"{self.value:+.{digits}f}" if sign else f"{self.value:.{digits}f}"
        error = self.format_error(digits=digits)
        if error is not None:
            text = f"{text} {error}"
        return ValuedText(text, value=self.value, low=self.low, high=self.high)

    def format_error(self, *, digits: int = 3) -> str | None:
        """Return the interval without the value: ± 0.021, or (0.000 to 0.019); None if it is not known."""
        if not math.isfinite(self.low):
            return None
        if not self.has_even_sides(digits=digits):
            return f"({self.low:.{digits}f} to {self.high:.{digits}f})"
        return f"± {(self.high - self.low) / 2:.{digits}f}"

    def has_even_sides(self, *, digits: int = 3) -> bool:
        """Whether the interval reaches about as far below the value as above, so that one ± describes it."""
        below = self.value - self.low
        above = self.high - self.value
        rounding: float = 10**-digits
        return max(below, above) <= MAX_SIDE_RATIO * min(below, above) + rounding


# --- charts: what to draw, never how -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """The base of every chart."""

    name: str  # fit for files and addresses
    title: str
    caption: str  # says what to see in it
    # charts of one group are shown side by side, on one scale (``put_on_one_scale``); empty for a chart alone
    group: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", make_slug(self.name))

    @property
    def has_content(self) -> bool:
        """Whether there is anything to see; a chart of a single number, or of none, is not drawn."""
        return True

    @classmethod
    def find_shared_scale(cls, charts: Sequence[Self]) -> dict[str, Any]:
        """Return the fields, with their new values, that put charts of this type on one scale."""
        return {}


@dataclass(frozen=True)
class Heatmap(Chart):
    """A matrix of numbers as coloured squares: the larger, the darker."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NumberGrid  # (rows, columns)
    low: float | None = None  # the ends of the colours; None takes those of the values
    high: float | None = None
    diverging: bool = False  # whether there are two colours, which meet at the centre
    centre: float = 0.0
    digits: int | None = 2  # decimals of the numbers in the squares; None writes none
    unit: str = ""
    fewer: bool = False  # of ranks: the smaller, the darker

    @property
    def has_content(self) -> bool:
        """Whether at least two squares have a number."""
        return len(_list_numbers(self.values)) > 1

    @classmethod
    def find_shared_scale(cls, charts: Sequence[Self]) -> dict[str, Any]:
        """Return the ends of the colours that suit all heatmaps."""
        lows: list[float] = []
        highs: list[float] = []
        for heatmap in charts:
            numbers = _list_numbers(heatmap.values)
            lows.extend(numbers if heatmap.low is None else [heatmap.low])
            highs.extend(numbers if heatmap.high is None else [heatmap.high])
        if not lows or not highs:
            return {}
        return {"low": min(lows), "high": max(highs)}


@dataclass(frozen=True)
class Bars(Chart):
    """Horizontal bars in groups: one label per group, one series per colour, with intervals if there are any.

    A series is given as numbers, or as estimates (``value``, ``low``, ``high``), whose ends then go to low and high.
    """

    labels: Any  # names; a tuple after __post_init__
    series: Any  # values by the name of their series; tuples of numbers after __post_init__
    low: dict[str, tuple[float, ...]] = field(default_factory=dict)
    high: dict[str, tuple[float, ...]] = field(default_factory=dict)
    y_label: str = ""
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        series = self.series
        if _has_estimates(series):
            object.__setattr__(self, "low", _read_parts(series, "low"))
            object.__setattr__(self, "high", _read_parts(series, "high"))
        object.__setattr__(self, "series", _read_parts(series, "value"))
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def has_content(self) -> bool:
        """Whether there are two bars to compare."""
        return len(_list_numbers(self.series.values())) > 1

    @classmethod
    def find_shared_scale(cls, charts: Sequence[Self]) -> dict[str, Any]:
        """Return a range of values with every bar, both ends of its interval, and 0, where bars begin."""
        value_rows: list[Iterable[float]] = []
        for bar_chart in charts:
            value_rows.extend(bar_chart.series.values())
            value_rows.extend(bar_chart.low.values())
            value_rows.extend(bar_chart.high.values())
        values = [0.0, *_list_numbers(value_rows)]
        return _make_axis_range("y_range", values, logarithmic=False)


def _has_estimates(series: Mapping[str, Iterable[object]]) -> bool:
    """Whether any value of the series is an estimate with an interval."""
    all_values = itertools.chain.from_iterable(series.values())
    return any(hasattr(value, "low") for value in all_values)


def _read_parts(series: Mapping[str, Iterable[Any]], part: str) -> dict[str, tuple[float, ...]]:
    """Return ``value``, ``low`` or ``high`` of every estimate, by series; of a plain number it is the number."""
    parts_by_name = {}
    for series_name, values in series.items():
        parts_by_name[series_name] = tuple(float(getattr(value, part, value)) for value in values)
    return parts_by_name


@dataclass(frozen=True)
class Points:
    """One named set of points of a scatter; ``labels`` name the points."""

    name: str
    x: Numbers  # tuples after __post_init__
    y: Numbers
    labels: tuple[str, ...] = ()
    low: Numbers = ()
    high: Numbers = ()
    hue: int | None = None  # the number of its colour; None takes its position in the chart

    def __post_init__(self) -> None:
        _convert_numbers(self)


@dataclass(frozen=True)
class Line:
    """One named curve with an optional band around it (``low``, ``high``)."""

    name: str
    x: Numbers  # tuples after __post_init__
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    dashed: bool = False

    def __post_init__(self) -> None:
        _convert_numbers(self)


def _convert_numbers(points_or_line: Points | Line) -> None:
    """Turn the coordinates into tuples of Python floats."""
    for coordinate in ("x", "y", "low", "high"):
        numbers = tuple(float(number) for number in getattr(points_or_line, coordinate))
        object.__setattr__(points_or_line, coordinate, numbers)


@dataclass(frozen=True)
class Plot(Chart):
    """Points and lines on common axes."""

    points: tuple[Points, ...] = ()
    lines: tuple[Line, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    joined: bool = False  # whether a line joins the points of one label, as a dumbbell
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    wide: bool = False  # whether it takes the whole width of the page

    @property
    def has_content(self) -> bool:
        """Whether there are two points to compare, or a line."""
        heights = _list_numbers(points.y for points in self.points)
        return bool(self.lines) or len(heights) > 1

    @classmethod
    def find_shared_scale(cls, charts: Sequence[Self]) -> dict[str, Any]:
        """Return ranges of both axes with all points and lines; the first plot says whether they are logarithmic."""
        x_rows: list[Iterable[float]] = []
        y_rows: list[Iterable[float]] = []
        for plot in charts:
            points_and_lines: tuple[Points | Line, ...] = (*plot.points, *plot.lines)
            for points_or_line in points_and_lines:
                x_rows.append(points_or_line.x)
                y_rows.extend((points_or_line.y, points_or_line.low, points_or_line.high))
        x_values = _list_numbers(x_rows)
        y_values = _list_numbers(y_rows)
        x_range = _make_axis_range("x_range", x_values, logarithmic=charts[0].log_x)
        y_range = _make_axis_range("y_range", y_values, logarithmic=charts[0].log_y)
        return x_range | y_range


@dataclass(frozen=True)
class Bump(Chart):
    """Ranks of the same models in two or more columns, joined by lines."""

    models: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: RankGrid  # (models, columns), 1 is best
    groups: tuple[str, ...] = ()  # of each model, such as its family: it decides the colour
    # (models, columns), the best and worst rank that is possible, shaded behind the lines; None if not known
    best_ranks: Any = None
    worst_ranks: Any = None

    @property
    def has_content(self) -> bool:
        """Whether there are two models to order."""
        return len(self.models) > 1


# The functions that draw charts. This package knows none: ``potentia.show`` registers its own.
_DRAWING_FUNCTIONS: list[Callable[[Chart], object]] = []


def register_drawing(draw_chart: Callable[[Chart], object]) -> Callable[[Chart], object]:
    """Register the function that makes a picture of a chart, for ``Finding.plot``."""
    _DRAWING_FUNCTIONS.append(draw_chart)
    return draw_chart


def put_on_one_scale(charts: Iterable[Chart]) -> list[Chart]:
    """Return charts such that those of one type and group have the same colours and axes.

    So what looks the same is the same. Ranges that were set on such charts before are replaced.
    """
    all_charts = list(charts)
    charts_by_group: dict[tuple[type[Chart], str], list[Chart]] = {}
    for chart in all_charts:
        charts_by_group.setdefault((type(chart), chart.group), []).append(chart)
    scale_by_group: dict[tuple[type[Chart], str], dict[str, Any]] = {}
    for (chart_type, group), group_charts in charts_by_group.items():
        if group and len(group_charts) > 1:
            scale_by_group[chart_type, group] = chart_type.find_shared_scale(group_charts)
    scaled_charts = []
    for chart in all_charts:
        scale = scale_by_group.get((type(chart), chart.group), {})
        scaled_charts.append(dataclasses.replace(chart, **scale))
    return scaled_charts


def _make_axis_range(
    axis_name: str, values: Sequence[float], *, logarithmic: bool
) -> dict[str, Any]:
    """Return ``{axis_name: (low, high)}`` with a little room around the values; empty if no axis can hold them."""
    if not values or (logarithmic and min(values) <= 0):
        return {}
    low_end = min(values)
    high_end = max(values)
    if logarithmic:
        low_end = math.log10(low_end)
        high_end = math.log10(high_end)
    margin = 0.06 * ((high_end - low_end) or 1.0)
    # an axis that starts at 0 gets no room below it
    if low_end:
        low_end -= margin
    high_end += margin
    if logarithmic:
        return {axis_name: (10**low_end, 10**high_end)}
    return {axis_name: (low_end, high_end)}


def _list_numbers(rows: Iterable[Iterable[Any]]) -> list[float]:
    """Return the numbers of all rows, without NaN."""
    numbers: list[float] = []
    for row in rows:
        numbers.extend(float(value) for value in row if not math.isnan(float(value)))
    return numbers

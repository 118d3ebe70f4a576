"""What an analysis returns: tables for people, plain values for scripts, charts for the report.

An analysis is a pure function from one or two ``ScoreMatrix`` to a ``Finding``. The finding names its tables and its
charts as data; ``potentia.show`` alone knows how to draw them, so the numbers that a figure shows are the numbers that
the command line prints.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
        object.__setattr__(self, "rows", tuple(tuple(_cells(row)) for row in self.rows))

    def __str__(self) -> str:
        """Return the table as a terminal shows it: title, columns under each other, note."""
        rows = [
            list(self.columns),
            *([written(cell, self.digits) for cell in row] for row in self.rows),
        ]
        widths = [max(len(row[k]) for row in rows) for k in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{escape(written(cell, self.digits))}</td>" for cell in row)
            + "</tr>"
            for row in self.rows
        )
        note = f"<p><small>{escape(self.note)}</small></p>" if self.note else ""
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _cells(row: Iterable[Any]) -> Iterator[Cell]:
    for cell in row:
        if hasattr(cell, "low"):
            yield from (cell.value, cell.low, cell.high)
        else:
            yield cell.item() if type(cell).__module__ == "numpy" else cell


def written(cell: Cell, digits: int = 3) -> str:
    """Write one cell as a person reads it: a dash where nothing is known."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:z.{digits}f}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True)
class Finding:
    """The base of every finding: a frozen dataclass whose fields are plain values or numpy arrays."""

    def tables(self) -> Sequence[Table]:
        """Return the tables that a person reads."""
        return ()

    def charts(self) -> Sequence[Chart]:
        """Return the pictures of this finding, as data."""
        return ()

    def __str__(self) -> str:
        """Return the answer as a terminal prints it: the tables, not the arrays behind them."""
        return "\n\n".join(
            str(table) for table in filter(None, map(telling, self.tables()))
        ) or repr(self)

    def to_dict(self) -> dict[str, Any]:
        """Return every field that is shown (``repr``) as JSON-ready values; NaN becomes None."""
        return {f.name: jsonable(getattr(self, f.name)) for f in dataclasses.fields(self) if f.repr}

    def plot(self, chart: int | str = 0) -> Any:
        """Return one of the charts, by number or name, as a picture: a notebook shows it, ``save`` writes it."""
        charts = list(self.charts())
        known = [c.name for c in charts]
        place = known.index(chart) if chart in known else chart
        if not isinstance(place, int) or place >= len(charts):
            raise LookupError(f"no chart {chart!r}; there are: {', '.join(known) or 'none'}")
        if not _DRAWING:
            raise LookupError("charts are drawn by potentia.show: import it first")
        return _DRAWING[-1](charts[place])

    def _repr_html_(self) -> str:
        """Return the tables as a notebook shows them."""
        return "".join(table._repr_html_() for table in self.tables())


@dataclass(frozen=True)
class Findings(Finding):
    """Several findings as one, each under a name of its own."""

    def named(self) -> dict[str, Finding]:
        """Return every finding by its name, in reading order: the fields that are there and are findings."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, Finding)}

    def tables(self) -> Sequence[Table]:
        """Return the tables of all findings."""
        return [table for finding in self.named().values() for table in finding.tables()]

    def charts(self) -> Sequence[Chart]:
        """Return the charts of all findings."""
        return [chart for finding in self.named().values() for chart in finding.charts()]

    def to_dict(self) -> dict[str, Any]:
        """Return every finding by its name."""
        return {name: finding.to_dict() for name, finding in self.named().items()}


def telling(table: Table) -> Table | None:
    """Return the table without the columns that say nothing; None where nothing but names is left."""
    kept = [k for k in range(len(table.columns)) if any(_says(row[k]) for row in table.rows)]
    if len(kept) == len(table.columns):
        return table
    if len(kept) < 2:
        return None
    rows = tuple(tuple(row[k] for k in kept) for row in table.rows)
    return dataclasses.replace(table, columns=tuple(table.columns[k] for k in kept), rows=rows)


def _says(cell: Cell) -> bool:
    return cell not in (None, "", "–") and not (isinstance(cell, float) and math.isnan(cell))


def mean_in_words(value: float) -> str:
    """Write a mean for a caption; of too few numbers there is none."""
    return f"mean {value:.2f}" if math.isfinite(value) else "mean not defined"


def jsonable(value: Any) -> Any:
    """Turn dataclasses, arrays, numpy scalars and non-finite floats into what ``json.dumps`` takes."""
    if isinstance(value, Finding):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if (
        type(value).__module__ == "numpy"
    ):  # an array or one of its scalars; numpy itself is not loaded for this
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(v) for v in value]
    return value


def picked(values: Sequence[T], places: Iterable[int]) -> tuple[T, ...]:
    """Return the values at these places, in this order."""
    return tuple(values[k] for k in places)


def slug(text: str) -> str:
    """Return a name that can stand in an address, an id and a file name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text)
    return re.sub("-{2,}", "-", kept).strip("-") or "figure"


def short_names(names: Sequence[str]) -> list[str]:
    """Leave out the organisation of ``organisation/model`` where the rest still tells the names apart."""
    short = [name.rpartition("/")[2] or name for name in names]
    times = Counter(short)
    given = Counter(names)
    return [s if times[s] == 1 or given[n] > 1 else n for s, n in zip(short, names, strict=True)]


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval."""

    value: float
    low: float
    high: float
    level: float = 0.95

    @classmethod
    def around(cls, value: float, half: float, level: float = 0.95) -> Interval:
        """Return the interval that reaches as far to both sides."""
        return cls(float(value), float(value - half), float(value + half), level)


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
    def tells(self) -> bool:
        """Whether there is anything to see: a picture of one number, or of none, is not drawn."""
        return True

    def scale(self, group: Sequence[Any]) -> dict[str, Any]:
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
    def tells(self) -> bool:
        """Whether two squares at least have a number."""
        return len(_numbers(self.values)) > 1

    def scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the ends of the colours."""
        lows = [
            x for one in group for x in (_numbers(one.values) if one.low is None else [one.low])
        ]
        highs = [
            x for one in group for x in (_numbers(one.values) if one.high is None else [one.high])
        ]
        return {"low": min(lows), "high": max(highs)} if lows and highs else {}


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
        estimates = any(hasattr(x, "low") for of in self.series.values() for x in of)
        for place, part in (("low", "low"), ("high", "high"), ("series", "value"))[
            0 if estimates else 2 :
        ]:
            by = {
                name: tuple(float(getattr(x, part, x)) for x in of)
                for name, of in self.series.items()
            }
            object.__setattr__(self, place, by)
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def tells(self) -> bool:
        """Whether there are two bars to compare."""
        return len(_numbers(self.series.values())) > 1

    def scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the axis of all bars and their intervals."""
        parts = [
            values
            for one in group
            for part in (one.series, one.low, one.high)
            for values in part.values()
        ]
        return _range("y_range", [0.0, *_numbers(parts)], False)


@dataclass(frozen=True)
class Points:
    """One named set of points of a scatter; ``labels`` name the points."""

    name: str
    x: Any  # numbers, as any sequence or array; a tuple once made
    y: Any
    labels: tuple[str, ...] = ()
    low: Any = ()
    high: Any = ()
    hue: int | None = None  # its place among the colours; else its own among the points

    def __post_init__(self) -> None:
        _plain_numbers(self)


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
        _plain_numbers(self)


def _plain_numbers(drawn: Points | Line) -> None:
    for part in ("x", "y", "low", "high"):
        object.__setattr__(drawn, part, tuple(map(float, getattr(drawn, part))))


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
    def tells(self) -> bool:
        """Whether there are two points to compare, or a line."""
        return bool(self.lines) or len(_numbers(points.y for points in self.points)) > 1

    def scale(self, group: Sequence[Any]) -> dict[str, Any]:
        """Return the axes of all points and lines."""
        drawn = [part for one in group for part in (*one.points, *one.lines)]
        across = _numbers(part.x for part in drawn)
        up = _numbers(values for part in drawn for values in (part.y, part.low, part.high))
        return _range("x_range", across, self.log_x) | _range("y_range", up, self.log_y)


@dataclass(frozen=True)
class Bump(Chart):
    """Ranks of the same models in two or more columns, joined by lines; ``groups`` colours them (family)."""

    models: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: Any  # (models, columns), 1 is best
    groups: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether there are two models to order."""
        return len(self.models) > 1


_DRAWING: list[Callable[[Chart], Any]] = []  # who draws charts: a room above this one


def draws(drawing: Callable[[Chart], Any]) -> Callable[[Chart], Any]:
    """Register the function that makes a picture of a chart, for ``Finding.plot``."""
    _DRAWING.append(drawing)
    return drawing


def on_one_scale(charts: Iterable[Chart]) -> list[Chart]:
    """Give the charts of each group the same colours and axes, so that what looks the same is the same."""
    every = list(charts)
    groups: dict[tuple[type[Chart], str], list[Chart]] = {}
    for chart in every:
        groups.setdefault((type(chart), chart.group), []).append(chart)
    scales = {
        key: members[0].scale(members)
        for key, members in groups.items()
        if key[1] and len(members) > 1
    }
    return [
        dataclasses.replace(chart, **scales.get((type(chart), chart.group), {})) for chart in every
    ]


def _range(name: str, values: Sequence[float], logarithmic: bool) -> dict[str, Any]:
    """Return a range with a little room at its ends."""
    if not values or (logarithmic and min(values) <= 0):
        return {}
    low, high = (math.log10(f(values)) if logarithmic else f(values) for f in (min, max))
    room = 0.06 * ((high - low) or 1.0)
    low, high = (low - room if low else low), high + room
    return {name: (10**low, 10**high) if logarithmic else (low, high)}


def _numbers(rows: Any) -> list[float]:
    return [float(x) for row in rows for x in row if _says(float(x))]

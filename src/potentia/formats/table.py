"""Tables as people have them: comma, semicolon, tab or bar between columns, Markdown, Parquet, JSON records.

A table here is a header and rows that know where they stand; what the columns mean is for ``layout`` to say.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from potentia import limited
from potentia.errors import DataError, first_line
from potentia.extras import Extra, require_extra
from potentia.files import LARGEST_DATA, read_text, unescape_formula
from potentia.values.protocol import Protocol

DELIMITERS = (",", ";", "\t", "|")
MOST_ROWS = 10_000_000
MOST_COLUMNS = 10_000
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+\s*%?(?:\s*±\s*\d+(?:,\d+)?\s*%?)?")
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+\s*%?")
_MARKDOWN_RULE = re.compile(r":?-+:?")  # a field of the line below a Markdown table's header

PlacedRow = tuple[str, tuple[object, ...]]  # where it stands ("line 7"), and one value per column


@dataclass(frozen=True)
class RawTable:
    """A header, and every row with its place ("line 7") and one value per column."""

    source: str
    columns: tuple[str, ...]
    rows: tuple[PlacedRow, ...]

    def column(self, column_name: str) -> list[object]:
        """Return the values of one column."""
        position = self.columns.index(column_name)
        return [values[position] for _, values in self.rows]

    def records(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Give the place of every row, and its values by column."""
        for location, values in self.rows:
            yield location, dict(zip(self.columns, values, strict=True))


def read_text_table(table_path: Path) -> RawTable:
    """Read a table of text; the delimiter follows from the header."""
    text = read_text(table_path)
    header = next((line for line in text.splitlines() if line.strip()), "")
    if not header:
        raise DataError("the file is empty", where=str(table_path))
    if header.lstrip().startswith("|") or table_path.suffix.casefold() in (".md", ".markdown"):
        return _read_markdown_tables(table_path, text)
    # The delimiter that parts the header into most columns; a comma where several do.
    delimiter = max(
        DELIMITERS, key=lambda delimiter_mark: (header.count(delimiter_mark), delimiter_mark == ",")
    )
    return _read_delimited(table_path, text, delimiter)


def _read_delimited(table_path: Path, text: str, delimiter: str) -> RawTable:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None) or []
        rows: list[tuple[str, tuple[str, ...]]] = []
        footers: list[str] = []  # places of lines of text below the table, which end it
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            location = f"line {reader.line_num}"
            if len(fields) == 1 and len(header) > 2:
                footers.append(location)
                continue
            if footers:
                raise _ragged_row_error(table_path, footers[0], 1, columns=len(header))
            if len(fields) != len(header):
                raise _ragged_row_error(table_path, location, len(fields), columns=len(header))
            rows.append((location, tuple(map(unescape_formula, fields))))
    except csv.Error as error:
        location = f"{table_path}, line {reader.line_num}"
        raise DataError(f"this is not valid CSV: {error}", where=location) from None
    if len(header) > 2:
        while rows and _is_footer(rows[-1][1]):
            rows.pop()
    return _make_table(str(table_path), header, _with_decimal_points(rows))


def _is_footer(values: Sequence[str]) -> bool:
    """Say whether a row is a line of text below the table whose other columns were filled up."""
    return bool(values[0].strip()) and not any(map(str.strip, values[1:]))


def _ragged_row_error(table_path: Path, location: str, fields: int, *, columns: int) -> DataError:
    field_count = "1 field" if fields == 1 else f"{fields} fields"
    return DataError(
        f"{field_count} where the header has {columns}", where=f"{table_path}, {location}"
    )


def _with_decimal_points(rows: Sequence[tuple[str, tuple[str, ...]]]) -> Sequence[PlacedRow]:
    """Write decimal commas as points, where no number of the table has a point already."""
    for _, values in rows:
        if any(_DECIMAL_POINT.fullmatch(value.strip()) for value in values):
            return rows
    return [(location, tuple(map(_with_decimal_point, values))) for location, values in rows]


def _with_decimal_point(value: str) -> str:
    return value.replace(",", ".") if _DECIMAL_COMMA.fullmatch(value.strip()) else value


def _read_markdown_tables(table_path: Path, text: str) -> RawTable:
    """Read the tables of a Markdown file as one; a heading that names a protocol says it of the table below."""
    records: list[tuple[str, Mapping[str, object]]] = []
    heading = ""
    header: list[str] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            if line.startswith("#"):
                heading = line.lstrip("# ").strip()
            if not line.strip():
                header = []
            continue
        fields = _split_markdown_row(line)
        if not header:
            header = fields
        elif not all(map(_MARKDOWN_RULE.fullmatch, fields)):
            location = f"line {line_number}"
            if len(fields) != len(header):
                raise _ragged_row_error(table_path, location, len(fields), columns=len(header))
            record = {"protocol": heading} if Protocol(heading).kind != "other" else {}
            record |= dict(zip(header, fields, strict=True))
            records.append((location, record))
    return _table_of_records(str(table_path), records)


def _split_markdown_row(line: str) -> list[str]:
    fields = re.split(r"(?<!\\)\|", line.strip()[1:].removesuffix("|"))
    return [field.strip().replace("\\|", "|") for field in fields]


def read_parquet_table(table_path: Path) -> RawTable:
    """Read a Parquet file."""
    require_extra(Extra.PARQUET, "reading a Parquet file", otherwise="save it as CSV")
    import pyarrow as pa

    try:
        table = limited.read_parquet(str(table_path.resolve()))
        if table.nbytes > LARGEST_DATA or table.num_rows > MOST_ROWS:
            raise DataError(f"{table.num_rows:,} rows: too large for scores", where=str(table_path))
        header = [str(column_name) for column_name in table.column_names]
        columns = [table.column(position).to_pylist() for position in range(table.num_columns)]
    except DataError:
        raise
    except (limited.LimitError, pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = first_line(error)
        raise DataError(
            f"this is not a whole Parquet file: {reason}", where=str(table_path)
        ) from None
    rows = [
        (f"row {row_number}", row) for row_number, row in enumerate(zip(*columns, strict=True), 1)
    ]
    return _make_table(str(table_path), header, rows)


def table_from_json(records: Iterable[object], source: str) -> RawTable:
    """Take a list of JSON objects as a table; a key that some lack is empty there."""
    placed: list[tuple[str, Mapping[str, object]]] = []
    for record_number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise _no_list_of_objects(source)
        placed.append((f"entry {record_number}", record))
    if not placed:
        raise _no_list_of_objects(source)
    return _table_of_records(source, placed)


def _no_list_of_objects(source: str) -> DataError:
    hint = "each entry is an object with the same keys"
    return DataError("this is not a list of objects", where=source, hint=hint)


def _table_of_records(source: str, records: Sequence[tuple[str, Mapping[str, object]]]) -> RawTable:
    """Return objects as a table; a key that some lack is empty there."""
    distinct_columns: dict[str, None] = {}
    for _, record in records:
        distinct_columns |= dict.fromkeys(record)
    columns = list(distinct_columns)
    rows = [(location, tuple(map(record.get, columns))) for location, record in records]
    return _make_table(source, columns, rows)


def _make_table(source: str, header: Sequence[object], rows: Sequence[PlacedRow]) -> RawTable:
    column_names = [str(column_name).strip() for column_name in header]
    if len(column_names) > MOST_COLUMNS:
        raise DataError(f"{len(column_names):,} columns, more than {MOST_COLUMNS:,}", where=source)
    for column_name in column_names:
        try:
            column_name.encode()
        except UnicodeEncodeError:  # JSON can spell half of a character
            message = f"the column {column_name!r} holds half of a Unicode character"
            raise DataError(message, where=source) from None
    repeated = sorted(
        column_name for column_name, count in Counter(column_names).items() if count > 1
    )
    if repeated:
        raise DataError(f"the column {', '.join(repeated)!r} appears twice", where=source)
    return RawTable(source, tuple(column_names), tuple(rows))

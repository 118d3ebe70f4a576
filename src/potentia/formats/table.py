"""Tables as people have them: comma, semicolon, tab or bar between columns, Markdown, Parquet, JSON records.

A table here is a header and rows that know where they stand; what the columns mean is for ``layout`` to say.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potentia import limited
from potentia.errors import DataError, first_line
from potentia.files import LARGEST_DATA, read_text, unescape_formula
from potentia.values.protocol import Protocol

DELIMITERS = (",", ";", "\t", "|")
MOST_ROWS = 10_000_000
MOST_COLUMNS = 10_000


@dataclass(frozen=True)
class RawTable:
    """A header, and every row with its place ("line 7") and one value per column."""

    where: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Any, ...]], ...]

    def column(self, name: str) -> list[Any]:
        """Return the values of one column."""
        place = self.columns.index(name)
        return [values[place] for _, values in self.rows]

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give the place of every row, and its values by column."""
        for at, values in self.rows:
            yield at, dict(zip(self.columns, values, strict=True))


def read_text_table(path: Path) -> RawTable:
    """Read a table of text; the delimiter follows from the header."""
    text = read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise DataError("the file is empty", where=str(path))
    if first.lstrip().startswith("|") or path.suffix.casefold() in (".md", ".markdown"):
        return _markdown(path, text)
    most = max(
        DELIMITERS, key=lambda mark: (first.count(mark), mark == ",")
    )  # parts the header into most columns
    return _delimited(path, text, most)


def _delimited(path: Path, text: str, delimiter: str) -> RawTable:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None) or []
        rows, footers = [], list[str]()  # places of lines of text below the table, which end it
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            place = f"line {reader.line_num}"
            if len(fields) == 1 < len(header) - 1:
                footers.append(place)
                continue
            if footers:
                raise _ragged(path, footers[0], 1, len(header))
            if len(fields) != len(header):
                raise _ragged(path, place, len(fields), len(header))
            rows.append(
                (
                    place,
                    tuple(map(unescape_formula, fields)),
                )
            )
    except csv.Error as error:
        raise DataError(
            f"this is no CSV: {error}", where=f"{path}, line {reader.line_num}"
        ) from None
    while (
        rows
        and len(header) > 2
        and rows[-1][1][0].strip()
        and not any(map(str.strip, rows[-1][1][1:]))
    ):
        rows.pop()  # a footer whose line was filled up
    return _table(str(path), header, _with_points(rows))


def _ragged(path: Path, place: str, fields: int, columns: int) -> DataError:
    some = "1 field" if fields == 1 else f"{fields} fields"
    return DataError(f"{some} where the header has {columns}", where=f"{path}, {place}")


_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+\s*%?(?:\s*±\s*\d+(?:,\d+)?\s*%?)?")


def _with_points(rows: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[Any, ...]]]:
    """Write decimal commas as points, where no number of the table has a point already."""
    cells = [cell.strip() for _, values in rows for cell in values]
    if any(re.fullmatch(r"[-+]?\d*\.\d+\s*%?", cell) for cell in cells):
        return list(rows)
    return [
        (
            at,
            tuple(
                v.replace(",", ".") if _DECIMAL_COMMA.fullmatch(v.strip()) else v for v in values
            ),
        )
        for at, values in rows
    ]


def _markdown(path: Path, text: str) -> RawTable:
    """Read the tables of a Markdown file as one; a heading that names a protocol says it of the table below."""
    records: list[tuple[str, dict[str, Any]]] = []
    heading, header = "", list[str]()
    for n, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            heading = line.lstrip("# ").strip() if line.startswith("#") else heading
            header = header if line.strip() else []
            continue
        fields = [
            c.strip().replace("\\|", "|")
            for c in re.split(r"(?<!\\)\|", line.strip()[1:].removesuffix("|"))
        ]
        if not header:
            header = fields
        elif not all(re.fullmatch(r":?-+:?", field) for field in fields):
            if len(fields) != len(header):
                raise _ragged(path, f"line {n}", len(fields), len(header))
            said = {"protocol": heading} if Protocol(heading).kind != "other" else {}
            records.append((f"line {n}", {**said, **dict(zip(header, fields, strict=True))}))
    return _of_records(str(path), records)


def _of_records(where: str, records: Sequence[tuple[str, Mapping[Any, Any]]]) -> RawTable:
    """Return objects as a table; a key that some lack is empty there."""
    columns = list(dict.fromkeys(key for _, record in records for key in record))
    return _table(
        where, columns, [(at, tuple(record.get(c) for c in columns)) for at, record in records]
    )


def read_parquet_table(path: Path) -> RawTable:
    """Read a Parquet file."""
    import pyarrow as pa

    try:
        table = limited.read_parquet(str(path.resolve()))
        if table.nbytes > LARGEST_DATA or table.num_rows > MOST_ROWS:
            raise DataError(f"{table.num_rows:,} rows: too large for scores", where=str(path))
        columns = [str(name) for name in table.column_names]
        values = [table.column(place).to_pylist() for place in range(table.num_columns)]
    except DataError:
        raise
    except (limited.LimitError, pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(
            f"this is no whole Parquet file: {first_line(error)}", where=str(path)
        ) from None
    rows = [(f"row {i}", row) for i, row in enumerate(zip(*values, strict=True), 1)]
    return _table(str(path), columns, rows)


def records_table(records: Iterable[Any], where: str) -> RawTable:
    """Take a list of JSON objects as a table; a key that some lack is empty there."""
    given = list(records)
    if not all(isinstance(record, dict) for record in given) or not given:
        raise DataError(
            "this is no list of objects",
            where=where,
            hint="each entry is an object with the same keys",
        )
    return _of_records(where, [(f"entry {i}", record) for i, record in enumerate(given, 1)])


def json_lines(path: Path) -> Iterator[Any]:
    """Give the value of every line of a JSONL file."""
    for n, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", type(error).__name__)
                raise DataError(f"this is no JSON: {reason}", where=f"{path}, line {n}") from None


def _table(where: str, header: Sequence[Any], rows: list[tuple[str, tuple[Any, ...]]]) -> RawTable:
    names = [str(name).strip() for name in header]
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{len(names):,} columns, more than {MOST_COLUMNS:,}", where=where)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"the column {', '.join(twice)!r} is there twice", where=where)
    return RawTable(where, tuple(names), tuple(rows))


def safe_name(name: str) -> str:
    """Return a name for a folder, as lm-eval makes it; different names stay different."""
    plain = re.sub(r"[^0-9A-Za-z._-]", "_", name.replace("/", "__")).strip(".") or "_"
    if plain == name.replace("/", "__") and len(plain) <= 120:
        return plain
    return f"{plain[:100]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def load_json(path: Path) -> Any:
    """Parse a file; every fault names its place, and a key given twice is one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise DataError(f"the key {name!r} is there twice in one object", where=str(path))
            found[name] = value
        return found

    try:
        return json.loads(read_text(path), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(error.doc.rstrip())
        hint = "the file ends too early: copy it again" if cut else None
        raise DataError(f"this is no JSON: {error.msg}", where=place, hint=hint) from None
    except DataError:
        raise
    except (RecursionError, ValueError) as error:
        raise DataError(
            f"this JSON cannot be read: {type(error).__name__}", where=str(path)
        ) from None


def inner(content: Any, *names: str) -> dict[str, Any]:
    """Return the object under these names; empty where there is none."""
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def section(content: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return the object under ``name``; an absent one is empty, another type is an error."""
    value = content.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{name} is no object", where=where)
    return value

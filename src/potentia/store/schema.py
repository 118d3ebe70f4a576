"""The tables, the same on SQLite and PostgreSQL. A store whose tables are of another version is refused.

A table of records has a column for every field. Provenances have their own table, so that reading a matrix touches
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text

from potentia.store.records import (
    BoundedText,
    EnumColumn,
    EventRecord,
    FailureRecord,
    Json,
    LaneRecord,
    LeaseRecord,
    NumberColumn,
    PlainColumn,
    StudyRecord,
)
from potentia.values.fine_tuning import EpochResult
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, ScoreColumn
from potentia.values.provenance import Provenance
from potentia.values.selection import ProbeResult, Selection

SCHEMA_VERSION = 6
WRITE_OPTION = "potentia_write"  # execution option of a transaction that will write
metadata = sa.MetaData()


_NUMBER = BigInteger().with_variant(
    Integer, "sqlite"
)  # SQLite's own row number, PostgreSQL's bigserial
_FLAG = Boolean(create_constraint=False)
ColumnType = type[sa.types.TypeEngine[Any]] | sa.types.TypeEngine[Any]
_TYPES: dict[type, ColumnType] = {
    str: Text,
    int: BigInteger,
    float: NumberColumn,
    bool: _FLAG,
}  # all else is JSON


def _make_table(
    name: str, *columns: Column[Any] | Index, record: type | None = None, **options: Any
) -> Table:
    """Return a table of these columns, and of a record's other fields; what may be None may be NULL."""
    declared = {column.name for column in columns}
    field_types = get_type_hints(record) if record is not None else {}
    for field_name, field_type in field_types.items():
        if field_name in declared or get_origin(field_type) is tuple:
            continue
        union_members = (field_type,)
        if isinstance(field_type, UnionType):
            union_members = get_args(field_type)
        column_type = _column_type(union_members[0])
        columns += (Column(field_name, column_type, nullable=NoneType in union_members),)
    return Table(name, metadata, *columns, **options)


def _column_type(value_type: Any) -> ColumnType:
    """Return the type of a column that holds such values."""
    if isinstance(value_type, type) and issubclass(value_type, Enum):
        return EnumColumn(value_type)
    return _TYPES.get(value_type, Json)


def _make_columns(
    column_type: ColumnType, *column_names: str, nullable: bool = False
) -> list[Column[Any]]:
    """Return several columns of one type."""
    return [Column(column_name, column_type, nullable=nullable) for column_name in column_names]


def _fact_columns(facts: Iterable[ScoreColumn]) -> list[Column[Any]]:
    """Return a column for each fact that travels with a score."""
    return [
        Column(fact.stored_as, _TYPES[fact.kind], nullable=fact.may_be_unknown) for fact in facts
    ]


def _key_columns(*column_names: str) -> list[Column[str]]:
    return [Column(column_name, Text, primary_key=True) for column_name in column_names]


def _study_column(**options: Any) -> Column[str]:
    """Return the study that a row belongs to, and goes with."""
    return Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), **options)


def _cell_column() -> Column[int]:
    """Return the column of the cell that a row belongs to; the row is deleted with its cell."""
    return Column(
        "cell",
        _NUMBER,
        ForeignKey("cells.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    )


# What a store says of itself: where its items lie.
settings = _make_table("settings", *_key_columns("name"), *_make_columns(Text, "value"))
schema_version = _make_table(
    "schema_version", Column("version", Integer, primary_key=True, autoincrement=False)
)
studies = _make_table(
    "studies",
    *_key_columns("key"),
    Column("name", BoundedText, nullable=False, index=True),
    *_make_columns(Text, "opened"),
    record=StudyRecord,
)

# Content keys are random text. They are stored once, and all else hangs on a growing number: rows are then appended
# instead of scattered over every page, which is worth a factor of five in writing.
cells = _make_table(
    "cells",
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False, unique=True),
    Column("study", Text, ForeignKey("studies.key"), nullable=False),
    *_make_columns(BoundedText, "model", "task", "protocol", "metric"),
    *_make_columns(Text, "created"),
    *_make_columns(NumberColumn, "seconds"),
    *_make_columns(NumberColumn, "direct_value", "gain", nullable=True),
    Column("item_count", Integer),  # rows of the Parquet file, NULL where the cell has none
    *_fact_columns(ORIGIN_COLUMNS),  # the origin of its scores, NULL where unknown
    Index("cells_by_model", "model", "task", "protocol"),
)

scores = _make_table(
    "scores",
    _cell_column(),
    *_key_columns("name"),
    *_make_columns(NumberColumn, "value", "stderr", nullable=True),  # NULL is NaN: unknown
    Column("n", BigInteger, nullable=False),
    *_fact_columns(METRIC_COLUMNS),  # what it is of, NULL where unknown
    Column("seeds", Json),  # the value with every seed; NULL where there is one
    sqlite_with_rowid=False,
)

provenances = _make_table(
    "provenances",
    _cell_column(),
    Column("provenance", PlainColumn(Provenance), nullable=False),
    Column("selection", PlainColumn(Selection), nullable=False),
)

# What a short fine-tuning before the row's own said of the model and the task.
probes = _make_table(
    "probes", _cell_column(), Column("probe", PlainColumn(ProbeResult), nullable=False)
)

# A cell belongs to every study that asked for it: content keys let a study reuse what another has computed.
study_cells = _make_table(
    "study_cells", _study_column(primary_key=True), _cell_column(), sqlite_with_rowid=False
)

failures = _make_table(
    "failures",
    _study_column(primary_key=True),
    *_key_columns("model", "task", "protocol"),
    Column("key", Text, index=True),
    record=FailureRecord,
)

# A lane names its cell by key, which is known before the cell is committed: no foreign key.
lanes = _make_table(
    "lanes",
    *_key_columns("key"),
    _study_column(nullable=False, index=True),
    Column("cell", Text, index=True),
    record=LaneRecord,
)
epochs = _make_table(
    "epochs",
    Column("lane", Text, ForeignKey("lanes.key", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    record=EpochResult,
)

events = _make_table(
    "events",
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    _study_column(nullable=False),
    Index("events_by_study", "study", "id"),
    record=EventRecord,
    sqlite_autoincrement=True,  # an id is never given twice
)
progress = _make_table(
    "progress",
    _study_column(primary_key=True),
    *_key_columns("row"),
    *_make_columns(Json, "payload"),
    *_make_columns(Text, "updated"),
)

# Who computes a row now (see store/leases.py), and the cells that are his meanwhile.
leases = _make_table(
    "leases", *_key_columns("id"), _study_column(nullable=False), record=LeaseRecord
)
claims = _make_table(
    "claims",
    *_key_columns("cell"),
    Column("lease", Text, ForeignKey("leases.id", ondelete="CASCADE"), nullable=False, index=True),
)

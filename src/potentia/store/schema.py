"""The tables, the same on SQLite and PostgreSQL. A store whose tables are of another version is refused.

A table of records has a column for every field. Provenances have their own table, so that reading a matrix touches
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text

from potentia.store.records import (
    EpochRecord,
    EventRecord,
    FailureRecord,
    Json,
    LaneRecord,
    LeaseRecord,
    PlainColumn,
    StudyRecord,
)
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, ScoreColumn
from potentia.values.provenance import Provenance
from potentia.values.selection import ProbeResult, Selection

SCHEMA_VERSION = 5
metadata = sa.MetaData()


_NUMBER = BigInteger().with_variant(
    Integer, "sqlite"
)  # SQLite's own row number, PostgreSQL's bigserial
_FLAG = Boolean(create_constraint=False)
_TYPES: dict[Any, Any] = {
    str: Text,
    int: BigInteger,
    float: Double,
    bool: _FLAG,
}  # all else is JSON


def _table(name: str, *columns: Any, of: type | None = None, **how: Any) -> Table:
    """Return a table of these columns, and of a record's other fields; what may be None may be NULL."""
    given = {column.name for column in columns}
    for field, hint in (get_type_hints(of) if of is not None else {}).items():
        if field not in given and get_origin(hint) is not tuple:
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            columns += (Column(field, _TYPES.get(kinds[0], Json), nullable=NoneType in kinds),)
    return Table(name, metadata, *columns, **how)


def _some(kind: Any, *names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names]


def _fact_columns(facts: Iterable[ScoreColumn]) -> list[Column[Any]]:
    """Return a column for each fact that travels with a score."""
    return [
        Column(fact.stored_as, _TYPES[fact.kind], nullable=fact.may_be_unknown) for fact in facts
    ]


def _key(*names: str) -> list[Column[str]]:
    return [Column(name, Text, primary_key=True) for name in names]


def _study(**how: Any) -> Column[str]:
    """Return the study that a row belongs to, and goes with."""
    return Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), **how)


def _cell() -> Column[int]:
    """Return the cell that a row belongs to, and goes with."""
    return Column(
        "cell",
        _NUMBER,
        ForeignKey("cells.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    )


# What a store says of itself: where its items lie.
settings = _table("settings", *_key("name"), *_some(Text, "value"))
schema_version = _table(
    "schema_version", Column("version", Integer, primary_key=True, autoincrement=False)
)
studies = _table(
    "studies",
    *_key("key"),
    Column("name", Text, nullable=False, index=True),
    *_some(Text, "opened"),
    of=StudyRecord,
)

# Content keys are random text. They are stored once, and all else hangs on a growing number: rows are then appended
# instead of scattered over every page, which is worth a factor of five in writing.
cells = _table(
    "cells",
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False, unique=True),
    Column("study", Text, ForeignKey("studies.key"), nullable=False),
    *_some(Text, "model", "task", "protocol", "metric", "created"),
    *_some(Double, "seconds"),
    *_some(Double, "direct_value", "gain", nullable=True),
    Column("item_count", Integer),  # rows of the Parquet file, NULL where the cell has none
    *_fact_columns(ORIGIN_COLUMNS),  # the origin of its scores, NULL where unknown
    Index("cells_by_model", "model", "task", "protocol"),
)

scores = _table(
    "scores",
    _cell(),
    *_key("name"),
    *_some(Double, "value", "stderr", nullable=True),  # NULL is NaN: unknown
    Column("n", BigInteger, nullable=False),
    *_fact_columns(METRIC_COLUMNS),  # what it is of, NULL where unknown
    Column("seeds", Json),  # the value with every seed; NULL where there is one
    sqlite_with_rowid=False,
)

provenances = _table(
    "provenances",
    _cell(),
    Column("provenance", PlainColumn(Provenance), nullable=False),
    Column("selection", PlainColumn(Selection), nullable=False),
)

# What a short fine-tuning before the row's own said of the model and the task (see run/probe.py).
probes = _table("probes", _cell(), Column("probe", PlainColumn(ProbeResult), nullable=False))

# A cell belongs to every study that asked for it: content keys let a study reuse what another has computed.
study_cells = _table("study_cells", _study(primary_key=True), _cell(), sqlite_with_rowid=False)

failures = _table(
    "failures",
    _study(primary_key=True),
    *_key("model", "task", "protocol"),
    Column("key", Text, index=True),
    of=FailureRecord,
)

# A lane names its cell by key, which is known before the cell is committed: no foreign key.
lanes = _table(
    "lanes",
    *_key("key"),
    _study(nullable=False, index=True),
    Column("cell", Text, index=True),
    of=LaneRecord,
)
epochs = _table(
    "epochs",
    Column("lane", Text, ForeignKey("lanes.key", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    of=EpochRecord,
)

events = _table(
    "events",
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    _study(nullable=False),
    Index("events_by_study", "study", "id"),
    of=EventRecord,
    sqlite_autoincrement=True,  # an id is never given twice
)
progress = _table(
    "progress",
    _study(primary_key=True),
    *_key("row"),
    *_some(Json, "payload"),
    *_some(Text, "updated"),
)

# Who computes a row now (see store/live.py), and the cells that are his meanwhile.
leases = _table("leases", *_key("id"), _study(nullable=False), of=LeaseRecord)
claims = _table(
    "claims",
    *_key("cell"),
    Column("lease", Text, ForeignKey("leases.id", ondelete="CASCADE"), nullable=False, index=True),
)

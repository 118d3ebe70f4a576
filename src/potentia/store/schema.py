"""The tables, the same on SQLite and PostgreSQL. A store whose tables are of another version is refused.

Structured values (specs, manifests, payloads) are kept as JSON text: nothing queries inside them, and text keeps NaN,
which PostgreSQL's own JSON types refuse. Manifests have their own table, so that reading a matrix touches none of them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text

SCHEMA_VERSION = 4

metadata = sa.MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite's own row number, PostgreSQL's bigserial
_FLAG = Boolean(create_constraint=False)


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def _study(**how: Any) -> Column[str]:
    """Return the study that a row belongs to, and goes with."""
    return Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), **how)


def _cell() -> Column[int]:
    """Return the cell that a row belongs to, and goes with."""
    return Column("cell", _NUMBER, ForeignKey("cells.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)


# What a store says of itself: where its items lie.
settings = Table("settings", metadata, Column("name", Text, primary_key=True), *_texts("value"))

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

studies = Table(
    "studies",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False, index=True),
    *_texts("spec", "created", "opened"),
)

# Content keys are random text. They are stored once, and all else hangs on a growing number: rows are then appended
# instead of scattered over every page, which is worth a factor of five in writing.
cells = Table(
    "cells",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False, unique=True),
    Column("study", Text, ForeignKey("studies.key"), nullable=False),
    *_texts("model", "task", "protocol", "metric", "created"),
    Column("seconds", Double, nullable=False),
    Column("direct_value", Double),
    Column("gain", Double),
    Column("item_count", Integer),  # rows of the Parquet file, NULL where the cell has none
    Column("data", Text),  # these six: the origin of its scores (values/metric.py), NULL where unknown
    Column("recipe", Text),
    Column("shots", Integer),
    Column("identity", Text),
    Column("source", Text),
    Column("path", Text),
    Index("cells_by_model", "model", "task", "protocol"),
)

scores = Table(
    "scores",
    metadata,
    _cell(),
    Column("name", Text, primary_key=True),
    *_texts("metric"),
    Column("value", Double),  # NULL is NaN
    Column("stderr", Double),  # NULL is NaN: unknown
    Column("n", BigInteger, nullable=False),
    Column("higher_is_better", _FLAG, nullable=False),
    Column("kind", Text),  # of the metric: task or text; NULL where unknown, as scale and chance
    Column("scale", Text),
    Column("chance", Double),
    Column("seeds", Text),  # the value with every seed, as JSON; NULL where there is one
    sqlite_with_rowid=False,
)

manifests = Table("manifests", metadata, _cell(), *_texts("manifest", "selection"))

# What a short fine-tuning before the row's own said of the model and the task (see run/probe.py).
probes = Table("probes", metadata, _cell(), *_texts("probe"))

# A cell belongs to every study that asked for it: content keys let a study reuse what another has computed.
study_cells = Table("study_cells", metadata, _study(primary_key=True), _cell(), sqlite_with_rowid=False)

failures = Table(
    "failures",
    metadata,
    _study(primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("model", "task", "protocol")),
    Column("key", Text, index=True),
    *_texts("kind", "reason"),
    Column("hint", Text),
    Column("attempts", Integer, nullable=False),
    *_texts("created"),
)

lanes = Table(
    "lanes",
    metadata,
    Column("key", Text, primary_key=True),
    _study(nullable=False, index=True),
    Column("cell", Text, index=True),  # the cell's key, known before it is committed: no foreign key
    *_texts("model", "task"),
    Column("learning_rate", Double, nullable=False),
    *_texts("style"),  # plain or chat
    Column("seed", BigInteger, nullable=False),
    *_texts("status"),
    Column("selected", _FLAG, nullable=False),
    *_texts("note", "updated"),
)

epochs = Table(
    "epochs",
    metadata,
    Column("lane", Text, ForeignKey("lanes.key", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    *(Column(name, Double) for name in ("train_loss", "value", "stderr")),
    Column("seconds", Double, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    _study(nullable=False),
    *_texts("kind", "payload", "created"),
    Index("events_by_study", "study", "id"),
    sqlite_autoincrement=True,  # an id is never given twice
)

progress = Table(
    "progress", metadata, _study(primary_key=True), Column("row", Text, primary_key=True), *_texts("payload", "updated")
)

# Who computes a row now (see store/live.py), and the cells that are his meanwhile.
leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    _study(nullable=False),
    *_texts("row", "run", "host", "place"),
    Column("pid", BigInteger, nullable=False),
    *_texts("began"),
    Column("since", Double, nullable=False),
    Column("beat", Double, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("cell", Text, primary_key=True),
    Column("lease", Text, ForeignKey("leases.id", ondelete="CASCADE"), nullable=False, index=True),
)

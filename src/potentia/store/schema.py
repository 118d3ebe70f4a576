"""The tables, the same on SQLite and PostgreSQL. A store whose tables are of another version is refused.

Structured values (specs, manifests, payloads) are kept as JSON text: nothing queries inside them, and text keeps NaN,
which PostgreSQL's own JSON types refuse. Manifests have their own table, so that reading a matrix touches none of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text

SCHEMA_VERSION = 4

metadata = sa.MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite's own row number, PostgreSQL's bigserial

# What a store says of itself: where its items lie.
settings = Table("settings", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

studies = Table(
    "studies",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False, index=True),
    Column("spec", Text, nullable=False),
    Column("created", Text, nullable=False),
    Column("opened", Text, nullable=False),
)

# Content keys are random text. They are stored once, and all else hangs on a growing number: rows are then appended
# instead of scattered over every page, which is worth a factor of five in writing.
cells = Table(
    "cells",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False, unique=True),
    Column("study", Text, ForeignKey("studies.key"), nullable=False),
    Column("model", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("created", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("direct_value", Double),
    Column("gain", Double),
    Column("item_count", Integer),  # rows of the Parquet file, NULL where the cell has none
    Column("data", Text),  # these six: the origin of its scores (values/origin.py), NULL where unknown
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
    Column("cell", _NUMBER, ForeignKey("cells.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("metric", Text, nullable=False),
    Column("value", Double),  # NULL is NaN
    Column("stderr", Double),  # NULL is NaN: unknown
    Column("n", BigInteger, nullable=False),
    Column("higher_is_better", Boolean(create_constraint=False), nullable=False),
    Column("kind", Text),  # of the metric: task or text; NULL where unknown, as scale and chance
    Column("scale", Text),
    Column("chance", Double),
    Column("seeds", Text),  # the value with every seed, as JSON; NULL where there is one
    sqlite_with_rowid=False,
)

manifests = Table(
    "manifests",
    metadata,
    Column("cell", _NUMBER, ForeignKey("cells.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("manifest", Text, nullable=False),
    Column("selection", Text, nullable=False),
)

# What a short fine-tuning before the row's own said of the model and the task (see run/probe.py).
probes = Table(
    "probes",
    metadata,
    Column("cell", _NUMBER, ForeignKey("cells.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("probe", Text, nullable=False),
)

# A cell belongs to every study that asked for it: content keys let a study reuse what another has computed.
study_cells = Table(
    "study_cells",
    metadata,
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), primary_key=True),
    Column("cell", _NUMBER, ForeignKey("cells.id", ondelete="CASCADE"), primary_key=True),
    sqlite_with_rowid=False,
)

failures = Table(
    "failures",
    metadata,
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("task", Text, primary_key=True),
    Column("protocol", Text, primary_key=True),
    Column("key", Text, index=True),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("hint", Text),
    Column("attempts", Integer, nullable=False),
    Column("created", Text, nullable=False),
)

lanes = Table(
    "lanes",
    metadata,
    Column("key", Text, primary_key=True),
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("cell", Text, index=True),  # the cell's key, known before it is committed: no foreign key
    Column("model", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("learning_rate", Double, nullable=False),
    Column("style", Text, nullable=False),  # plain or chat
    Column("seed", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("selected", Boolean(create_constraint=False), nullable=False),
    Column("note", Text, nullable=False),
    Column("updated", Text, nullable=False),
)

epochs = Table(
    "epochs",
    metadata,
    Column("lane", Text, ForeignKey("lanes.key", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("train_loss", Double),
    Column("value", Double),
    Column("stderr", Double),
    Column("seconds", Double, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("created", Text, nullable=False),
    Index("events_by_study", "study", "id"),
    sqlite_autoincrement=True,  # an id is never given twice
)

progress = Table(
    "progress",
    metadata,
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), primary_key=True),
    Column("row", Text, primary_key=True),
    Column("payload", Text, nullable=False),
    Column("updated", Text, nullable=False),
)

# Who computes a row now (see store/leases.py), and the cells that are his meanwhile.
leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("study", Text, ForeignKey("studies.key", ondelete="CASCADE"), nullable=False),
    Column("row", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("began", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("beat", Double, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("cell", Text, primary_key=True),
    Column("lease", Text, ForeignKey("leases.id", ondelete="CASCADE"), nullable=False, index=True),
)

"""What queries of cells share: which cells are asked for, and how a score is made of its columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.database import Database, record_columns
from potentia.store.records import CellRecord, load_json
from potentia.values.metric import (
    METRIC_COLUMNS,
    ORIGIN_COLUMNS,
    Metric,
    MetricKind,
    MetricScale,
    Origin,
)
from potentia.values.scores import Score

StudyFilter = str | Sequence[str] | None  # one or several studies, by key or name
METRIC_COLUMN_NAMES = tuple(column.stored_as for column in METRIC_COLUMNS)  # of a score
ORIGIN_COLUMN_NAMES = tuple(column.stored_as for column in ORIGIN_COLUMNS)  # of a cell
CELL_COLUMN_NAMES = [column.name for column in record_columns(schema.cells, CellRecord)]
SCORE_COLUMNS = (
    *(schema.scores.c[name] for name in ("value", "stderr", "n", *METRIC_COLUMN_NAMES)),
    sa.type_coerce(schema.scores.c.seeds, sa.Text).label("seeds"),
    *(schema.cells.c[name] for name in ORIGIN_COLUMN_NAMES),
)
# Many scores have the same metric and the same origin.
_make_metric = lru_cache(1_000)(Metric)
_make_origin = lru_cache(10_000)(Origin)


def cell_conditions(
    database: Database,
    connection: sa.Connection,
    *,
    study: StudyFilter = None,
    **column_values: str | None,
) -> list[sa.ColumnElement[bool]]:
    """Return the WHERE conditions of the cells that are asked for."""
    conditions: list[sa.ColumnElement[bool]] = []
    for column_name, value in column_values.items():
        if value is not None:
            conditions.append(schema.cells.c[column_name] == value)
    if study is not None:
        study_keys = database.find_study_keys(connection, study)
        linked_cells = sa.select(schema.study_cells.c.cell).where(
            schema.study_cells.c.study.in_(study_keys)
        )
        conditions.append(schema.cells.c.id.in_(linked_cells))
    return conditions


def execute_on_cells(
    database: Database,
    query: sa.Select[*tuple[Any, ...]],
    *,
    study: StudyFilter = None,
    **column_values: str | None,
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """Return what a query gives of the cells that are asked for, in the order of their making."""
    with database.reading() as connection:
        conditions = cell_conditions(database, connection, study=study, **column_values)
        return connection.execute(query.where(*conditions).order_by(schema.cells.c.id)).all()


def score_from_columns(
    value: float | None,
    stderr: float | None,
    example_count: int,
    metric_name: str,
    higher_is_better: bool,
    metric_kind: MetricKind | None,
    scale: MetricScale | None,
    chance: float | None,
    seeds: str | None,
    *origin_columns: object,
) -> Score:
    """Make a score of its columns (``SCORE_COLUMNS``); NULL is NaN."""
    return Score(
        value=math.nan if value is None else value,
        stderr=math.nan if stderr is None else stderr,
        n=example_count,
        metric=_make_metric(metric_name, higher_is_better, metric_kind, scale, chance),
        origin=_make_origin(*origin_columns),
        seeds=tuple(load_json(seeds)) if seeds else (),
    )

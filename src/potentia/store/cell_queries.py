"""What queries of cells share: which cells are asked for, and how a score is made of its columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.database import Database, record_columns
from potentia.store.records import CellRecord, load_json
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, Metric, Origin
from potentia.values.scores import Score

StudyFilter = str | Sequence[str] | None  # one or several studies, by key or name
METRIC_NAMES = tuple(column.stored_as for column in METRIC_COLUMNS)  # of a score
ORIGIN_NAMES = tuple(column.stored_as for column in ORIGIN_COLUMNS)  # of a cell
CELL_COLUMNS = [column.name for column in record_columns(s.cells, CellRecord)]
SCORE_COLUMNS = (
    *(s.scores.c[name] for name in ("value", "stderr", "n", *METRIC_NAMES)),
    sa.type_coerce(s.scores.c.seeds, sa.Text).label("seeds"),
    *(s.cells.c[name] for name in ORIGIN_NAMES),
)
# Many scores have the same metric and the same origin.
_make_metric = lru_cache(1_000)(Metric)
_make_origin = lru_cache(10_000)(Origin)


def cell_conditions(
    database: Database,
    connection: sa.Connection,
    *,
    study: StudyFilter = None,
    **equal: str | None,
) -> list[Any]:
    """Return the WHERE conditions of the cells that are asked for."""
    conditions: list[Any] = []
    for name, value in equal.items():
        if value is not None:
            conditions.append(s.cells.c[name] == value)
    if study is not None:
        keys = database.find_study_keys(connection, study)
        links = sa.select(s.study_cells.c.cell).where(s.study_cells.c.study.in_(keys))
        conditions.append(s.cells.c.id.in_(links))
    return conditions


def execute_on_cells(
    database: Database, query: Any, *, study: StudyFilter = None, **equal: str | None
) -> Sequence[Any]:
    """Return what a query gives of the cells that are asked for, in the order of their making."""
    with database.reading() as connection:
        conditions = cell_conditions(database, connection, study=study, **equal)
        return connection.execute(query.where(*conditions).order_by(s.cells.c.id)).all()


def score_from_columns(
    value: float | None,
    stderr: float | None,
    n: int,
    name: str,
    higher_is_better: bool,
    kind: Any,
    scale: Any,
    chance: float | None,
    seeds: str | None,
    *origin: Any,
) -> Score:
    """Make a score of its columns (``SCORE_COLUMNS``); NULL is NaN."""
    return Score(
        value=math.nan if value is None else value,
        stderr=math.nan if stderr is None else stderr,
        n=n,
        metric=_make_metric(name, higher_is_better, kind, scale, chance),
        origin=_make_origin(*origin),
        seeds=tuple(load_json(seeds)) if seeds else (),
    )

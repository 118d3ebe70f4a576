"""The fine-tunings of a store: each with its settings, its state and its curve so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.database import Database, split_keys
from potentia.store.records import EpochRecord, LaneRecord
from potentia.store.waiting import PatientPart


class Lanes(PatientPart):
    """The lanes of a store."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def save(self, lane: LaneRecord) -> None:
        """Write a lane's state and its whole curve; a lane saved before is replaced."""
        row = asdict(lane)
        points = [{"lane": lane.key, **point} for point in row.pop("epochs")]
        with self.database.writing() as connection:
            row["study"] = self.database.find_study_key(connection, lane.study)
            self.database.upsert(connection, s.lanes, row)
            connection.execute(s.epochs.delete().where(s.epochs.c.lane == lane.key))
            if points:
                connection.execute(s.epochs.insert(), points)

    def read(
        self,
        *,
        cell: str | None = None,
        study: str | None = None,
        model: str | Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[LaneRecord]:
        """Return lanes with their curves: those of a cell, or of a study and of the cells it took over; or a page."""
        c = s.lanes.c
        with self.database.reading() as connection:
            conditions = self._conditions(connection, cell=cell, study=study, model=model)
            query = sa.select(s.lanes).where(*conditions)
            query = query.order_by(c.model, c.task, c.learning_rate, c.style, c.seed)
            rows = connection.execute(query.limit(limit).offset(offset)).mappings().all()
            curves = self._read_curves(connection, [row["key"] for row in rows])
        return [LaneRecord(**row, epochs=tuple(curves[row["key"]])) for row in rows]

    def count(self, *, study: str, model: str | None = None) -> int:
        """Return how many lanes a study has, without reading them."""
        with self.database.reading() as connection:
            conditions = self._conditions(connection, study=study, model=model)
            query = sa.select(sa.func.count(s.lanes.c.key)).where(*conditions)
            return int(connection.execute(query).scalar_one())

    def _read_curves(
        self, connection: sa.Connection, lane_keys: Sequence[str]
    ) -> dict[str, list[EpochRecord]]:
        """Return the points of each lane's curve, in the order of the epochs."""
        curves: dict[str, list[EpochRecord]] = {key: [] for key in lane_keys}
        for some_keys in split_keys(lane_keys):
            query = sa.select(s.epochs).where(s.epochs.c.lane.in_(some_keys))
            for row in connection.execute(query.order_by(s.epochs.c.epoch)).mappings():
                values = dict(row)
                curve = curves[values.pop("lane")]
                curve.append(EpochRecord(**values))
        return curves

    def _conditions(
        self,
        connection: sa.Connection,
        *,
        cell: str | None = None,
        study: str | None = None,
        model: str | Sequence[str] | None = None,
    ) -> list[Any]:
        """Return the WHERE conditions of the lanes that are asked for."""
        c = s.lanes.c
        conditions: list[Any] = []
        if cell is not None:
            conditions.append(c.cell == cell)
        if model is not None:
            models = [model] if isinstance(model, str) else model
            conditions.append(c.model.in_(models))
        if study is not None:
            key = self.database.find_study_key(connection, study)
            is_of_others = sa.and_(s.study_cells.c.study == key, s.cells.c.study != key)
            adopted = sa.select(s.cells.c.key).join_from(s.cells, s.study_cells).where(is_of_others)
            is_of_study: Any = c.study == key
            if connection.execute(adopted.limit(1)).first() is not None:
                is_of_study = sa.or_(is_of_study, c.cell.in_(adopted))
            conditions.append(is_of_study)
        return conditions

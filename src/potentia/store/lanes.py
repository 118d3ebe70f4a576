"""The fine-tunings of a store: each with its settings, its state and its curve so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.database import Database, split_keys
from potentia.store.records import LaneRecord
from potentia.store.waiting import PatientPart
from potentia.values.fine_tuning import EpochResult


class Lanes(PatientPart):
    """The lanes of a store; a lane is one fine-tuning run."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def save(self, lane: LaneRecord) -> None:
        """Write a lane's state and its whole curve; a lane saved before is replaced."""
        row = asdict(lane)
        points = [{"lane": lane.key, **epoch_point} for epoch_point in row.pop("epochs")]
        with self.database.writing() as connection:
            row["study"] = self.database.find_study_key(connection, lane.study)
            self.database.upsert(connection, schema.lanes, row)
            connection.execute(schema.epochs.delete().where(schema.epochs.c.lane == lane.key))
            if points:
                connection.execute(schema.epochs.insert(), points)

    def read(
        self,
        *,
        cell: str | None = None,
        study: str | None = None,
        model: str | Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[LaneRecord]:
        """Return lanes with their curves, sorted by model, task and settings.

        ``cell``, ``study`` (with the cells that it took over) and ``model`` narrow them; with no filter: all.
        ``limit`` and ``offset`` take a page.
        """
        lane_columns = schema.lanes.c
        with self.database.reading() as connection:
            conditions = self._conditions(connection, cell=cell, study=study, model=model)
            query = sa.select(schema.lanes).where(*conditions)
            query = query.order_by(
                lane_columns.model,
                lane_columns.task,
                lane_columns.learning_rate,
                lane_columns.style,
                lane_columns.seed,
            )
            rows = connection.execute(query.limit(limit).offset(offset)).mappings().all()
            curves = self._read_curves(connection, [row["key"] for row in rows])
        return [LaneRecord(**row, epochs=tuple(curves[row["key"]])) for row in rows]

    def count(self, *, study: str, model: str | None = None) -> int:
        """Return how many lanes a study has, without reading them."""
        with self.database.reading() as connection:
            conditions = self._conditions(connection, study=study, model=model)
            query = sa.select(sa.func.count(schema.lanes.c.key)).where(*conditions)
            return int(connection.execute(query).scalar_one())

    def _read_curves(
        self, connection: sa.Connection, lane_keys: Sequence[str]
    ) -> dict[str, list[EpochResult]]:
        """Return the points of each lane's curve, in the order of the epochs."""
        curves: dict[str, list[EpochResult]] = {lane_key: [] for lane_key in lane_keys}
        for some_keys in split_keys(lane_keys):
            query = sa.select(schema.epochs).where(schema.epochs.c.lane.in_(some_keys))
            for row in connection.execute(query.order_by(schema.epochs.c.epoch)).mappings():
                values = dict(row)
                curve = curves[values.pop("lane")]
                curve.append(EpochResult(**values))
        return curves

    def _conditions(
        self,
        connection: sa.Connection,
        *,
        cell: str | None = None,
        study: str | None = None,
        model: str | Sequence[str] | None = None,
    ) -> list[sa.ColumnElement[bool]]:
        """Return the WHERE conditions of the lanes that are asked for."""
        lane_columns = schema.lanes.c
        conditions: list[sa.ColumnElement[bool]] = []
        if cell is not None:
            conditions.append(lane_columns.cell == cell)
        if model is not None:
            models = [model] if isinstance(model, str) else model
            conditions.append(lane_columns.model.in_(models))
        if study is not None:
            study_key = self.database.find_study_key(connection, study)
            is_adopted = sa.and_(
                schema.study_cells.c.study == study_key, schema.cells.c.study != study_key
            )
            adopted_cells = (
                sa.select(schema.cells.c.key)
                .join_from(schema.cells, schema.study_cells)
                .where(is_adopted)
            )
            is_of_study: sa.ColumnElement[bool] = lane_columns.study == study_key
            if connection.execute(adopted_cells.limit(1)).first() is not None:
                is_of_study = sa.or_(is_of_study, lane_columns.cell.in_(adopted_cells))
            conditions.append(is_of_study)
        return conditions

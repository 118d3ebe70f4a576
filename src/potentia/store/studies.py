"""The studies of a store: opened by content key, listed with the one opened last first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.database import Database, record_columns
from potentia.store.records import StudyRecord, now
from potentia.store.waiting import PatientPart


class Studies(PatientPart):
    """The studies that a store holds."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def open(self, name: str, key: str, spec: Mapping[str, Any]) -> StudyRecord:
        """Get the study with this key, or create it."""
        with self.database.writing() as connection:
            moment = now()
            row = {"key": key, "name": name, "spec": spec, "created": moment, "opened": moment}
            insert = self.database.insert_into(s.studies).on_conflict_do_update(
                index_elements=["key"], set_={"opened": moment}
            )
            connection.execute(insert, row)
            query = sa.select(*record_columns(s.studies, StudyRecord)).where(s.studies.c.key == key)
            return StudyRecord(**connection.execute(query).mappings().one())

    def read(self) -> list[StudyRecord]:
        """Return all studies, the one opened last first."""
        query = sa.select(*record_columns(s.studies, StudyRecord))
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(s.studies.c.opened.desc())).mappings()
            return [StudyRecord(**row) for row in rows]

"""The log of a study, entry by entry, and the latest state of its running rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.database import Database
from potentia.store.records import EventRecord, now
from potentia.store.waiting import PatientPart

_EVENT_LOCK = (
    0x706F74656E746961  # any fixed number: on PostgreSQL writers of events wait for one another
)
_INSERT_EVENT = schema.events.insert().returning(schema.events.c.id)


def append_event(
    database: Database,
    connection: sa.Connection,
    study: str,
    kind: str,
    payload: Mapping[str, object],
) -> int:
    """Append to a study's log within a transaction that is open, and return the entry's id."""
    database.wait_for_others(connection, _EVENT_LOCK)
    study_key = database.find_study_key(connection, study)
    row = {"study": study_key, "kind": kind, "payload": payload, "created": now()}
    return int(connection.execute(_INSERT_EVENT, row).scalar_one())


class Events(PatientPart):
    """The logs of a store's studies, and the progress of their rows."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def append(self, study: str, kind: str, payload: Mapping[str, object] | None = None) -> int:
        """Append to the study's log and return the entry's id."""
        with self.database.writing() as connection:
            return append_event(self.database, connection, study, kind, payload or {})

    def read(self, study: str, *, after_id: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Return the entries after ``after_id``, oldest first: call again with the last id to follow the log."""
        event_columns = schema.events.c
        with self.database.reading() as connection:
            study_key = self.database.find_study_key(connection, study)
            query = sa.select(schema.events).where(
                event_columns.study == study_key, event_columns.id > after_id
            )
            rows = connection.execute(query.order_by(event_columns.id).limit(limit)).mappings()
            return [EventRecord(**row) for row in rows]

    def read_latest(self, study: str, kind: str) -> EventRecord | None:
        """Return the study's latest entry of one kind; None where there is none."""
        event_columns = schema.events.c
        with self.database.reading() as connection:
            study_key = self.database.find_study_key(connection, study)
            newest_first = (
                sa.select(schema.events)
                .where(event_columns.study == study_key, event_columns.kind == kind)
                .order_by(event_columns.id.desc())
            )
            row = connection.execute(newest_first.limit(1)).mappings().first()
        return None if row is None else EventRecord(**row)

    def read_last_id(self, study: str, *, before: int = 0) -> int:
        """Return the id of the study's latest entry but ``before`` others: 0 where there are no more."""
        event_columns = schema.events.c
        with self.database.reading() as connection:
            study_key = self.database.find_study_key(connection, study)
            newest_first = (
                sa.select(event_columns.id)
                .where(event_columns.study == study_key)
                .order_by(event_columns.id.desc())
            )
            return int(connection.execute(newest_first.offset(before).limit(1)).scalar() or 0)

    def save_progress(self, study: str, row: str, payload: Mapping[str, object]) -> None:
        """Replace the latest state of a running row (tokens per second, time left, lanes)."""
        with self.database.writing() as connection:
            progress_row = {
                "study": self.database.find_study_key(connection, study),
                "row": row,
                "payload": payload,
                "updated": now(),
            }
            self.database.upsert(connection, schema.progress, progress_row)

    def read_progress(self, study: str) -> dict[str, dict[str, Any]]:
        """Return the latest state of each row; ``updated`` says when it was written."""
        progress_columns = schema.progress.c
        with self.database.reading() as connection:
            study_key = self.database.find_study_key(connection, study)
            query = (
                sa.select(progress_columns.row, progress_columns.payload, progress_columns.updated)
                .where(progress_columns.study == study_key)
                .order_by(progress_columns.row)
            )
            rows = connection.execute(query).all()
        return {row: {**payload, "updated": updated} for row, payload, updated in rows}

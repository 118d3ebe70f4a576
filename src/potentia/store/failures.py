"""Cells that could not be scored, with the reason, until they are committed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.database import Database
from potentia.store.records import FailureRecord
from potentia.store.waiting import PatientPart


class Failures(PatientPart):
    """The cells of a store that failed and have not been committed since."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def record(
        self, study: str, model: str, task: str, protocol: str, reason: str, **details: Any
    ) -> None:
        """Record why a cell has no score; ``key``, ``kind`` and ``hint`` where they are known."""
        with self.database.writing() as connection:
            failure = FailureRecord(
                study=self.database.find_study_key(connection, study),
                model=model,
                task=task,
                protocol=protocol,
                reason=reason,
                **details,
            )
            attempts = s.failures.c.attempts + 1
            self.database.upsert(connection, s.failures, asdict(failure), attempts=attempts)

    def read(self, *, study: str | None = None) -> list[FailureRecord]:
        """Return the cells that failed and have not been committed since."""
        query = sa.select(s.failures).order_by(s.failures.c.created)
        with self.database.reading() as connection:
            if study is not None:
                key = self.database.find_study_key(connection, study)
                query = query.where(s.failures.c.study == key)
            return [FailureRecord(**row) for row in connection.execute(query).mappings()]

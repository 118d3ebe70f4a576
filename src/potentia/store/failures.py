"""Cells that could not be scored, with the reason, until they are committed."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.database import Database
from potentia.store.records import FailureRecord
from potentia.store.waiting import PatientPart


class Failures(PatientPart):
    """The cells of a store that failed and have not been committed since."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def record(
        self,
        study: str,
        model: str,
        task: str,
        protocol: str,
        reason: str,
        *,
        key: str | None = None,
        kind: str = "",
        hint: str | None = None,
    ) -> None:
        """Record why a cell has no score; ``key``, ``kind`` and ``hint`` where they are known."""
        with self.database.writing() as connection:
            failure = FailureRecord(
                study=self.database.find_study_key(connection, study),
                model=model,
                task=task,
                protocol=protocol,
                reason=reason,
                key=key,
                kind=kind,
                hint=hint,
            )
            attempts = schema.failures.c.attempts + 1
            self.database.upsert(connection, schema.failures, asdict(failure), attempts=attempts)

    def read(self, *, study: str | None = None) -> list[FailureRecord]:
        """Return the cells that failed and have not been committed since."""
        query = sa.select(schema.failures).order_by(schema.failures.c.created)
        with self.database.reading() as connection:
            if study is not None:
                study_key = self.database.find_study_key(connection, study)
                query = query.where(schema.failures.c.study == study_key)
            return [FailureRecord(**row) for row in connection.execute(query).mappings()]

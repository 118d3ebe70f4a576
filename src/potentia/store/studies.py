"""The studies of a store: opened by content key, listed with the one opened last first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from potentia.errors import DataError
from potentia.store import schema
from potentia.store.database import Database, record_columns
from potentia.store.records import StudyRecord, now
from potentia.store.waiting import PatientPart

SHORTEST_KEY = 4  # characters of a key that are taken for its beginning
SHOWN_KEY = 8  # characters of a key that tables and hints show


def match_studies(records: Sequence[StudyRecord], name_or_key: str) -> list[StudyRecord]:
    """Return the studies with this key, else those of this name, else those whose key begins so."""
    matches = [record for record in records if record.key == name_or_key]
    if not matches:
        matches = [record for record in records if record.name == name_or_key]
    if not matches and len(name_or_key) >= SHORTEST_KEY:
        matches = [record for record in records if record.key.startswith(name_or_key)]
    return matches


def choose_study(records: Sequence[StudyRecord], name_or_key: str, *, where: str) -> StudyRecord:
    """Return the study of this name or key (or its first characters); what several have is refused."""
    matches = match_studies(records, name_or_key)
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = ", ".join(
            f"{record.key[:SHOWN_KEY]} ({record.name}, of {record.created[:10]})"
            for record in matches
        )
        shares_name = matches[0].name == name_or_key
        relation = "are called" if shares_name else "have a key that begins with"
        raise DataError(
            f"{len(matches)} studies {relation} {name_or_key!r}",
            where=where,
            hint=f"give a key: {choices}",
        )
    hint = f"there are: {list_studies(records)}" if records else "it is empty"
    raise DataError(f"no study {name_or_key!r}", where=where, hint=hint)


def name_study(record: StudyRecord, among: Sequence[StudyRecord]) -> str:
    """Return what ``--study`` takes for it alone: its name, or the beginning of its key where others share that."""
    has_namesakes = any(other.name == record.name and other.key != record.key for other in among)
    return record.key[:SHOWN_KEY] if has_namesakes else record.name


def list_studies(records: Sequence[StudyRecord], among: Sequence[StudyRecord] | None = None) -> str:
    """Return the names of studies; where several of ``among`` share one, each with the beginning of its key."""
    labels = []
    for record in records:
        label = name_study(record, among or records)
        labels.append(label if label == record.name else f"{record.name} ({label})")
    return ", ".join(labels)


class Studies(PatientPart):
    """The studies that a store holds."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def open(self, study_name: str, key: str, settings: Mapping[str, object]) -> StudyRecord:
        """Get the study with this key, or create it."""
        with self.database.writing() as connection:
            moment = now()
            row = {
                "key": key,
                "name": study_name,
                "spec": settings,
                "created": moment,
                "opened": moment,
            }
            insert = self.database.insert_into(schema.studies).on_conflict_do_update(
                index_elements=["key"], set_={"opened": moment}
            )
            connection.execute(insert, row)
            query = sa.select(*record_columns(schema.studies, StudyRecord)).where(
                schema.studies.c.key == key
            )
            return StudyRecord(**connection.execute(query).mappings().one())

    def read(self) -> list[StudyRecord]:
        """Return all studies, the one opened last first."""
        query = sa.select(*record_columns(schema.studies, StudyRecord))
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(schema.studies.c.opened.desc())).mappings()
            return [StudyRecord(**row) for row in rows]

    def find_latest(self, name: str) -> StudyRecord | None:
        """Return the study of a name that was opened last; None where there is none."""
        return next((record for record in self.read() if record.name == name), None)

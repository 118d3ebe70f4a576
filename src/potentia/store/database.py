"""The database behind a store: transactions, and what every part of the store asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from potentia.errors import StoreError, suggest_names
from potentia.store import schema
from potentia.store.error_translation import store_removed_error, translated_errors
from potentia.store.waiting import never_stop

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

_KEYS_PER_STATEMENT = 500  # well under SQLite's limit of parameters
Key = TypeVar("Key", str, int)


def split_keys(keys: Sequence[Key]) -> list[Sequence[Key]]:
    """Divide keys into as many as one statement takes."""
    starts = range(0, len(keys), _KEYS_PER_STATEMENT)
    return [keys[start : start + _KEYS_PER_STATEMENT] for start in starts]


def record_columns(table: sa.Table, record: type) -> list[sa.Column[Any]]:
    """Return the columns of a table that are fields of a record."""
    return [table.c[field.name] for field in fields(record) if field.name in table.c]


def file_identity(path: Path) -> tuple[int, int]:
    """Return which file this is, by device and number."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise store_removed_error(str(path)) from None
    return status.st_dev, status.st_ino


class Database:
    """Transactions on the tables of one store, with the folders that lie beside its items."""

    def __init__(self, engine: sa.Engine, location: str, items_folder: Path) -> None:
        self.engine = engine
        self.where = location  # as a person calls it, without a password
        self.items_folder = items_folder
        self.adapters_folder = self._folder_beside("adapters")
        self.lanes_folder = self._folder_beside("lanes")  # what a resumed row needs
        self.logs_folder = self._folder_beside("logs")
        self.patience = 0.0  # seconds to wait while the store is away
        self.stop: Callable[[], bool] = never_stop  # or until this says so
        self._study_keys: dict[str, str] = {}
        self._file: tuple[Path, tuple[int, int]] | None = None

    def _folder_beside(self, folder_name: str) -> Path:
        store_name = self.items_folder.name.removesuffix(".items")
        return self.items_folder.with_name(f"{store_name}.{folder_name}")

    def watch_file(self, path: Path) -> None:
        """Remember which file a SQLite store is, so that another one in its place is noticed."""
        self._file = path, file_identity(path)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that reads; all its statements see one moment."""
        self._check_file()
        with translated_errors(self.where), self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":  # as SQLite does by itself
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that writes: wholly, or not at all."""
        self._check_file()
        with translated_errors(self.where), self.engine.connect() as plain_connection:
            connection = plain_connection.execution_options(**{schema.WRITE_OPTION: True})
            with connection.begin():
                yield connection

    def _check_file(self) -> None:
        """Refuse to go on with a file that was removed or replaced: SQLite would write on into nowhere."""
        if self._file is None:
            return
        watched_file, identity = self._file
        if file_identity(watched_file) != identity:
            raise store_removed_error(self.where, "replaced by another file")

    def insert_into(self, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that knows ON CONFLICT, in the dialect at hand."""
        from sqlalchemy.dialects import postgresql, sqlite

        if self.engine.dialect.name == "postgresql":
            return postgresql.insert(table)
        return sqlite.insert(table)

    def upsert(
        self,
        connection: sa.Connection,
        table: sa.Table,
        row: Mapping[str, object],
        **changes: object,
    ) -> None:
        """Insert a row, or update the one with its key; ``changes`` says what a column that is there becomes."""
        key_columns = [column.name for column in table.primary_key]
        insert = self.insert_into(table)
        updated_columns = {
            column_name: insert.excluded[column_name]
            for column_name in row
            if column_name not in key_columns
        }
        statement = insert.on_conflict_do_update(
            index_elements=key_columns, set_=updated_columns | changes
        )
        connection.execute(statement, dict(row))

    def wait_for_others(self, connection: sa.Connection, lock_number: int) -> None:
        """Wait for others who write the same; a SQLite store has one writer at a time anyway."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock_number)))

    def find_study_key(self, connection: sa.Connection, study: str) -> str:
        """Return the key of a study given by key or by name; a name means the one opened last."""
        if study in self._study_keys:
            return self._study_keys[study]
        study_columns = schema.studies.c
        matching_studies = sa.select(study_columns.key).where(
            sa.or_(study_columns.key == study, study_columns.name == study)
        )
        newest_first = matching_studies.order_by(
            study_columns.key != study, study_columns.opened.desc()
        )
        key = connection.execute(newest_first).scalars().first()
        if key is None:
            study_names = (
                connection.execute(sa.select(study_columns.name).distinct()).scalars().all()
            )
            hint = "the store holds no study yet"
            if study_names:
                hint = suggest_names(study, sorted(study_names))
            raise StoreError(f"no study {study!r} in this store", where=self.where, hint=hint)
        if key == study:
            self._study_keys[study] = key
        return str(key)

    def find_study_keys(
        self, connection: sa.Connection, studies: str | Sequence[str] | None
    ) -> list[str]:
        """Return the keys of one or several studies given by key or by name."""
        study_names = (studies,) if isinstance(studies, str) else studies or ()
        return [self.find_study_key(connection, study_name) for study_name in study_names]

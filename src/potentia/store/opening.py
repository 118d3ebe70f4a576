"""Opening a store: SQLite in WAL mode by path, PostgreSQL by URL; its tables, their version, its items' folder."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, make_url

from potentia.errors import (
    EmptyStoreError,
    MissingExtraError,
    NoStoreError,
    StoreError,
    first_line,
)
from potentia.extras import Extra, require_extra
from potentia.processes import can_lock
from potentia.store import schema
from potentia.store.error_translation import BUSY_SECONDS, is_lock_error, translated_errors

if TYPE_CHECKING:
    import psycopg

# PostgreSQL gives up waiting for a lock, a statement of a run, and a client that fell silent inside a transaction.
_TIMEOUTS = {"lock_timeout": 20, "idle_in_transaction_session_timeout": 60}
_STATEMENT_TIMEOUT = {"statement_timeout": 120}
_TCP_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,  # milliseconds
}


@dataclass(frozen=True)
class StoreLocation:
    """Where a store lies: its database, the file of a SQLite one, and the folder of its items where it is named."""

    url: URL
    file: Path | None
    items_folder: Path | None = None


def locate_store(location_text: str | Path) -> StoreLocation:
    """Read the path of a SQLite file or a database URL."""
    location = str(location_text)
    if "://" not in location:
        if not location.strip():
            raise NoStoreError(
                "the store has no name", hint="give a file such as potentia.db, or a database URL"
            )
        return _locate_file(location)
    try:
        url = make_url(location)
    except (exc.ArgumentError, ValueError) as error:
        example = "for example potentia.db or postgresql+psycopg://user@host/name"
        raise NoStoreError("this is not a database URL", where=location, hint=example) from error
    items_folder = None
    if url.query.get("items"):
        items_folder = Path(str(url.query["items"])).expanduser().resolve()
    url = url.difference_update_query(["items"])
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise NoStoreError(
                "a store in memory cannot be shared or resumed", where=location, hint="give a file"
            )
        return _locate_file(url.database, items_folder)
    if url.get_backend_name() != "postgresql":
        raise NoStoreError(
            f"stores live in SQLite or PostgreSQL, not in {url.get_backend_name()}", where=location
        )
    return StoreLocation(url, None, items_folder)


def _locate_file(location: str, items_folder: Path | None = None) -> StoreLocation:
    path = Path(location).expanduser().resolve()  # a link to a store is that store, with its items
    return StoreLocation(URL.create("sqlite", database=str(path)), path, items_folder)


# --- engines ----------------------------------------------------------------------------------------------------------


def make_engine(location: StoreLocation, *, readonly: bool) -> sa.Engine:
    """Make the engine. Opens nothing yet."""
    if location.file is None:
        return _make_postgres_engine(location.url, readonly=readonly)
    return _make_sqlite_engine(location.url, location.file, readonly=readonly)


def _make_postgres_engine(url: URL, *, readonly: bool) -> sa.Engine:
    options = {
        option_name: value
        for option_name, value in _TCP_OPTIONS.items()
        if option_name not in url.query
    }
    require_extra(Extra.POSTGRES, "a store on PostgreSQL")
    try:
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=options)
    except (ImportError, exc.NoSuchModuleError) as error:  # psycopg without PostgreSQL's library
        raise MissingExtraError(
            f"psycopg cannot be loaded: {first_line(error)}", hint=Extra.POSTGRES.install_command
        ) from error
    timeouts = _TIMEOUTS if readonly else _TIMEOUTS | _STATEMENT_TIMEOUT
    event.listen(engine, "connect", lambda connection, _: _set_timeouts(connection, timeouts))
    return engine


def _make_sqlite_engine(url: URL, database_file: Path, *, readonly: bool) -> sa.Engine:
    has_log = database_file.with_name(database_file.name + "-wal").exists()
    has_locks = _has_locks(database_file.parent)
    if not has_locks and (has_log or not readonly):
        raise StoreError(
            "this file system has no locks, and a store needs them",
            where=str(database_file),
            hint="keep the store on a local disk (--store), or in PostgreSQL",
        )
    if readonly:
        access_mode = _reading_mode(database_file, has_log=has_log, has_locks=has_locks)
        url = URL.create(
            "sqlite", database=f"{database_file.as_uri()}?{access_mode}", query={"uri": "true"}
        )
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _configure_readonly_sqlite if readonly else _configure_sqlite)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _set_timeouts(connection: psycopg.Connection, timeouts: dict[str, int]) -> None:
    for setting, seconds in timeouts.items():
        connection.execute(f"SET {setting} = '{seconds}s'")
    connection.commit()


@cache
def _has_locks(folder: Path) -> bool:
    """Say whether files there can be locked. SQLite takes a file system that knows no locks for a busy store."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return can_lock(file)
    except OSError:  # no file can be made there, which is no matter of locks
        return True


def _reading_mode(database_file: Path, *, has_log: bool, has_locks: bool) -> str:
    """Return how to open a SQLite file so that reading leaves nothing behind."""
    if has_log:  # it is read, and stays
        return "mode=ro"
    # A WAL database in a folder that cannot be written opens only as immutable, safe when no log waits beside it.
    if not has_locks or not os.access(database_file.parent, os.W_OK):
        return "immutable=1"
    # A connection that may write takes the log it makes away again when it closes; it is told not to write below.
    return "mode=rw" if os.access(database_file, os.W_OK) else "mode=ro"


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = (
        None  # the driver starts no transactions by itself; _begin_transaction does
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = FULL")  # a committed cell survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    # 64 MiB: content keys are random, so their pages are all touched
    connection.execute("PRAGMA cache_size = -65536")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch SQLite to write-ahead logging.

    Its busy timeout does not cover two processes that do so with one new file, so this tries again here.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_lock_error(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _configure_readonly_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")


def _begin_transaction(connection: sa.Connection) -> None:
    # IMMEDIATE takes the write lock at once: a read that later turns into a write could fail instead of waiting.
    will_write = connection.get_execution_options().get(schema.WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if will_write else "BEGIN")


# --- tables -----------------------------------------------------------------------------------------------------------

_CREATION_LOCK = 0x706F74656E740001  # guards the creation of the tables on PostgreSQL
_ANY_ITEMS = sa.select(schema.cells.c.id).where(schema.cells.c.item_count.is_not(None)).limit(1)


def prepare_store(
    location: StoreLocation, location_text: str, *, readonly: bool
) -> tuple[sa.Engine, Path]:
    """Return the engine of a store whose tables are there, and the folder of its items."""
    with translated_errors(location_text):
        if location.file is not None and not readonly:
            location.file.parent.mkdir(parents=True, exist_ok=True)
        engine = make_engine(location, readonly=readonly)
        with engine.connect() as plain_connection:
            connection = plain_connection.execution_options(**{schema.WRITE_OPTION: not readonly})
            with connection.begin():
                if not readonly:
                    _create_tables(connection)
                _check_version(connection, location_text)
                return engine, _find_items_folder(connection, location, readonly=readonly)


def _find_items_folder(
    connection: sa.Connection, location: StoreLocation, *, readonly: bool
) -> Path:
    """Return where the items lie; a folder that is not beside the store is recorded, to be found from elsewhere."""
    recorded = read_recorded_items_folder(connection)
    beside = None
    if location.file is not None:
        beside = location.file.with_name(location.file.name + ".items")
    folder = location.items_folder or recorded or beside or Path("potentia.items").resolve()
    is_settled = recorded is not None
    if not is_settled:  # items that lie in a folder which is not here now
        is_settled = bool(connection.execute(_ANY_ITEMS).first()) and not folder.is_dir()
    if not is_settled and folder != beside and not readonly:
        connection.execute(schema.settings.insert().values(name="items", value=str(folder)))
    return folder


def read_recorded_items_folder(connection: sa.Connection) -> Path | None:
    """Return where the items of this store lie, as it says itself."""
    query = sa.select(schema.settings.c.value).where(schema.settings.c.name == "items")
    folder = connection.execute(query).scalar()
    return Path(folder) if folder else None


def _create_tables(connection: sa.Connection) -> None:
    """Make the tables in an empty database."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    if not sa.inspect(connection).get_table_names():
        schema.metadata.create_all(connection)
        connection.execute(schema.schema_version.insert().values(version=schema.SCHEMA_VERSION))


# What a database computes when it is read or written, and a store never has: a stranger's may compute without end.
_VIEWS_TRIGGERS_AND_GENERATED_COLUMNS = """
SELECT type || ' ' || name FROM sqlite_master WHERE type IN ('view', 'trigger')
UNION ALL
SELECT 'computed column ' || tables.name || '.' || columns.name
FROM sqlite_master AS tables JOIN pragma_table_xinfo(tables.name) AS columns
WHERE tables.type = 'table' AND columns.hidden IN (2, 3)
"""


def _refuse_views_triggers_and_generated_columns(
    connection: sa.Connection, location_text: str
) -> None:
    """Refuse an SQLite file with views, triggers or generated columns: such a store was made by someone else."""
    computed = connection.execute(sa.text(_VIEWS_TRIGGERS_AND_GENERATED_COLUMNS)).scalars().first()
    if computed is not None:
        raise StoreError(
            f"the store holds a {str(computed)[:100]}, which Potentia never makes",
            where=location_text,
            hint="do not trust this file: ask for one that was not changed",
        )


def _check_version(connection: sa.Connection, location_text: str) -> None:
    """Refuse an empty database, one of something else, and a store of another version.

    An SQLite file with views, triggers or generated columns is refused too: Potentia makes none, and reading a
    stranger's could run without end.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        raise EmptyStoreError(
            "nothing was stored here yet",
            where=location_text,
            hint="check the path, or run a study first",
        )
    if schema.schema_version.name not in tables:
        raise NoStoreError(
            "this database holds other tables and is not a Potentia store",
            where=location_text,
            hint="name another store",
        )
    if connection.dialect.name == "sqlite":
        _refuse_views_triggers_and_generated_columns(connection, location_text)
    version = connection.execute(sa.select(schema.schema_version.c.version)).scalar_one_or_none()
    if version is None:
        raise StoreError(
            "the store has no schema version", where=location_text, hint="restore it from a copy"
        )
    if version == schema.SCHEMA_VERSION:
        return
    hint = "run the study again into a new store, or read this one with the Potentia that made it"
    if version > schema.SCHEMA_VERSION:
        hint = "upgrade Potentia: pip install --upgrade potentia"
    message = f"the store has schema version {version}, this Potentia reads and writes version"
    raise StoreError(f"{message} {schema.SCHEMA_VERSION}", where=location_text, hint=hint)

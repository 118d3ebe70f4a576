"""Opening: SQLite in WAL mode by path, PostgreSQL by URL; versions and migrations; errors turned into words."""

from __future__ import annotations

import errno
import fcntl
import functools
import inspect
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, make_url

from potentia.errors import (
    EmptyStoreError,
    MissingExtraError,
    NoStoreError,
    StoreAwayError,
    StoreError,
)
from potentia.store import schema as s

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
QUIET = 3.0  # seconds of waiting of which nothing is said


def wait_for(
    act: Callable[[], Any], patience: float, stop: Callable[[], bool] = lambda: False
) -> Any:
    """Act; while the store is away try again, after pauses that grow, until the patience (seconds) ends."""
    pause, began, said = FIRST_PAUSE, None, False
    while True:
        try:
            return act()
        except StoreAwayError as error:
            moment = time.monotonic()
            began = moment if began is None else began
            if error.waited or moment + pause > began + patience or stop():
                error.waited = True  # whoever called is not to wait again
                raise
            if moment - began > QUIET and not said:
                told = "%s does not answer (%s): waiting for up to %.0f s"
                logging.getLogger("potentia").warning(told, error.where, error.message, patience)
                said = True
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


_AT_ONCE = {"beat"}  # methods that do not wait: their caller asks again by itself


class Patient:
    """Something whose public methods wait while the store is away, as long as it has patience."""

    patience = 0.0  # seconds to wait while the store is away
    stop: Callable[[], bool] = staticmethod(lambda: False)  # or until this says so

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            plain = inspect.isfunction(method) and not inspect.isgeneratorfunction(method)
            if plain and not name.startswith("_") and name not in _AT_ONCE:
                setattr(cls, name, _waiting(method))


def _waiting(method: Any) -> Any:
    @functools.wraps(method)
    def waiting(self: Patient, *arguments: Any, **options: Any) -> Any:
        return wait_for(lambda: method(self, *arguments, **options), self.patience, self.stop)

    return waiting


BUSY_SECONDS = 30
# PostgreSQL gives up waiting for a lock, a statement of a run, and a client that fell silent inside a transaction.
_TIMEOUTS = {"lock_timeout": 20, "idle_in_transaction_session_timeout": 60}
_STATEMENT = {"statement_timeout": 120}
_TCP = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
}
_TCP |= {"tcp_user_timeout": 40_000}  # milliseconds
WRITE = "potentia_write"  # execution option: this transaction will write


def locate(where: str | Path) -> tuple[URL, Path | None, Path | None]:
    """Return the database's URL, its file where it is one, and the folder of its items where it is named."""
    text = str(where)
    if "://" not in text:
        if not text.strip():
            raise NoStoreError(
                "the store has no name", hint="give a file such as potentia.db, or a database URL"
            )
        path = Path(text).expanduser().resolve()  # a link to a store is that store, with its items
        return URL.create("sqlite", database=str(path)), path, None
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        example = "for example potentia.db or postgresql+psycopg://user@host/name"
        raise NoStoreError("this is no database URL", where=text, hint=example) from error
    items = Path(str(url.query["items"])).expanduser().resolve() if url.query.get("items") else None
    url = url.difference_update_query(["items"])
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise NoStoreError(
                "a store in memory cannot be shared or resumed", where=text, hint="give a file"
            )
        path = Path(url.database).expanduser().resolve()
        return URL.create("sqlite", database=str(path)), path, items
    if url.get_backend_name() != "postgresql":
        raise NoStoreError(
            f"stores live in SQLite or PostgreSQL, not in {url.get_backend_name()}", where=text
        )
    return url, None, items


def connect(url: URL, path: Path | None, *, readonly: bool) -> sa.Engine:
    """Make the engine. Opens nothing yet."""
    if path is None:
        try:
            options = {name: value for name, value in _TCP.items() if name not in url.query}
            engine = sa.create_engine(url, pool_pre_ping=True, connect_args=options)
        except (ImportError, exc.NoSuchModuleError) as error:
            raise MissingExtraError(
                "PostgreSQL stores need psycopg", hint="pip install 'potentia[postgres]'"
            ) from error
        limits = _TIMEOUTS if readonly else _TIMEOUTS | _STATEMENT
        event.listen(engine, "connect", lambda connection, _: _limit(connection, limits))
        return engine
    log, locks = path.with_name(path.name + "-wal").exists(), _has_locks(path.parent)
    if not locks and (log or not readonly):
        hint = "keep the store on a local disk (--store), or in PostgreSQL"
        raise StoreError(
            "this file system has no locks, and a store needs them", where=str(path), hint=hint
        )
    if readonly:
        url = URL.create(
            "sqlite",
            database=f"{path.as_uri()}?{_reading(path, log, locks)}",
            query={"uri": "true"},
        )
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _configure_readonly if readonly else _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _limit(connection: Any, limits: dict[str, int]) -> None:
    for name, seconds in limits.items():
        connection.execute(f"SET {name} = '{seconds}s'")
    connection.commit()


@cache
def _has_locks(folder: Path) -> bool:
    """Say whether files there can be locked. SQLite takes a file system that knows no locks for a busy store."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _reading(path: Path, log: bool, locks: bool) -> str:
    """Return how to open a SQLite file so that reading leaves nothing behind."""
    if log:  # it is read, and stays
        return "mode=ro"
    # A WAL database in a folder that cannot be written opens only as immutable, safe when no log waits beside it.
    if not locks or not os.access(path.parent, os.W_OK):
        return "immutable=1"
    # A connection that may write takes the log it makes away again when it closes; it is told not to write below.
    return "mode=rw" if os.access(path, os.W_OK) else "mode=ro"


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transactions by itself; _begin does
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    _keep_a_log(connection)
    connection.execute("PRAGMA synchronous = FULL")  # a committed cell survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(
        "PRAGMA cache_size = -65536"
    )  # 64 MiB: content keys are random, so their pages are all touched


def _keep_a_log(connection: Any) -> None:
    """Have the store write ahead. SQLite does not wait by itself where two make a new file so at one moment."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)


def _configure_readonly(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")


def _begin(connection: sa.Connection) -> None:
    # IMMEDIATE takes the write lock at once: a read that later turns into a write could fail instead of waiting.
    writing = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def speaking(where: str) -> Iterator[None]:
    """Turn errors of the database and of the file system into a StoreError that names the fix."""
    try:
        yield
    except exc.DBAPIError as error:
        raise _in_words(str(error.orig), where, away=_is_away(error)) from error
    except exc.SQLAlchemyError as error:  # what is left of a connection that was lost
        unwritable = isinstance(getattr(error, "orig", None), ValueError)
        raise _in_words(str(error), where, away="://" in where and not unwritable) from error
    except UnicodeDecodeError as error:
        raise _in_words("malformed text", where, away=False) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and "://" not in where and not Path(where).exists():
            raise store_gone(where) from error
        raise StoreError(error.strerror or str(error), where=where, hint=_os_hint(error)) from error


def store_gone(where: str, how: str = "removed") -> StoreError:
    """Return the error of a store that somebody took away under a run."""
    hint = "put it back, or run the same command again: what was in it is computed anew"
    return StoreError(f"the store was {how} while it was in use", where=where, hint=hint)


def identity(path: Path) -> tuple[int, int]:
    """Return which file this is, by device and number."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise store_gone(str(path)) from None
    return found.st_dev, found.st_ino


FULL = "free some space, then run the same command again: finished cells are kept"


def _os_hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FULL
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "the place cannot be written: give another one with --store"
    return "check the path and its permissions"


_HINTS = (
    ("database or disk is full", FULL),
    (
        "disk i/o error",
        "the disk is full or failing; free some space, then run the same command again",
    ),
    (
        "readonly database",
        "the store cannot be written: check its permissions, or give another one with --store",
    ),
    (
        "unable to open database",
        "check that the folder exists and can be written, or give another one with --store",
    ),
    (
        "database is locked",
        f"another process held the store for more than {BUSY_SECONDS} s; run the command again",
    ),
    ("file is not a database", "the file is something else: give another one with --store"),
    (
        "malformed",
        "the file is damaged: restore a copy, or save what is left with sqlite3's .recover",
    ),
    ("no such table", "the file is no Potentia store"),
    ("does not exist", "create the database first, for example: createdb potentia"),
    ("authentication failed", "check user and password in the URL"),
    ("connection", "check that the server runs and the URL is right"),
)


def _in_words(message: str, where: str, *, away: bool) -> StoreError:
    first = message.strip().splitlines()[0] if message.strip() else "the database failed"
    hint = next((hint for sign, hint in _HINTS if sign in message.lower()), None)
    return (StoreAwayError if away else StoreError)(first, where=where, hint=hint)


_FINAL = ("does not exist", "authentication", "no pg_hba.conf", "could not translate", "invalid")


def _is_away(error: exc.DBAPIError) -> bool:
    """Say whether the same may work a little later: the server is not there, or a lock was held too long."""
    told = str(error.orig).lower()
    if type(error.orig).__module__.startswith("psycopg"):
        lost = error.connection_invalidated or isinstance(error, exc.OperationalError)
        return lost and not any(sign in told for sign in _FINAL)
    return "database is locked" in told


# --- what is there ---------------------------------------------------------------------------------------------------

_LOCK = 0x706F74656E740001  # guards the creation of the tables on PostgreSQL
_ANY_ITEMS = sa.select(s.cells.c.id).where(s.cells.c.item_count.is_not(None)).limit(1)


def prepare(
    url: URL, path: Path | None, where: str, named: Path | None, readonly: bool
) -> tuple[sa.Engine, Path]:
    """Return the engine of a store whose tables are there, and the folder of its items."""
    with speaking(where):
        if path is not None and not readonly:
            path.parent.mkdir(parents=True, exist_ok=True)
        engine = connect(url, path, readonly=readonly)
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITE: not readonly})
            with connection.begin():
                if not readonly:
                    _create(connection)
                _check_version(connection, where)
                return engine, _items_folder(connection, path, named, readonly)


def _items_folder(
    connection: sa.Connection, path: Path | None, named: Path | None, readonly: bool
) -> Path:
    """Return where the items lie, and have the store say so where that is not beside it: from elsewhere it is found."""
    recorded = recorded_items(connection)
    beside = path.with_name(path.name + ".items") if path is not None else None
    folder = named or recorded or beside or Path("potentia.items").resolve()
    known = recorded is not None or (connection.execute(_ANY_ITEMS).first() and not folder.is_dir())
    if not known and folder != beside and not readonly:
        connection.execute(s.settings.insert().values(name="items", value=str(folder)))
    return folder


def recorded_items(connection: sa.Connection) -> Path | None:
    """Return where the items of this store lie, as it says itself."""
    place = connection.execute(
        sa.select(s.settings.c.value).where(s.settings.c.name == "items")
    ).scalar()
    return Path(place) if place else None


def _create(connection: sa.Connection) -> None:
    """Make the tables in an empty database."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if not sa.inspect(connection).get_table_names():
        s.metadata.create_all(connection)
        connection.execute(s.schema_version.insert().values(version=s.SCHEMA_VERSION))


# What a database computes when it is read or written, and a store never has: a stranger's may compute without end.
_COMPUTED_CONTENT = """
SELECT type || ' ' || name FROM sqlite_master WHERE type IN ('view', 'trigger')
UNION ALL
SELECT 'computed column ' || tables.name || '.' || columns.name
FROM sqlite_master AS tables JOIN pragma_table_xinfo(tables.name) AS columns
WHERE tables.type = 'table' AND columns.hidden IN (2, 3)
"""


def _refuse_computed_content(connection: sa.Connection, where: str) -> None:
    """Refuse an SQLite file with views, triggers or computed columns: such a store was made by someone else."""
    computed = connection.execute(sa.text(_COMPUTED_CONTENT)).scalars().first()
    if computed is not None:
        raise StoreError(
            f"the store holds a {str(computed)[:100]}, which Potentia never makes",
            where=where,
            hint="do not trust this file: ask for one that was not changed",
        )


def _check_version(connection: sa.Connection, where: str) -> None:
    """Refuse an empty database, one of something else, and a store of another version."""
    present = sa.inspect(connection).get_table_names()
    if not present:
        raise EmptyStoreError(
            "nothing was stored here yet", where=where, hint="check the path, or run a study first"
        )
    if s.schema_version.name not in present:
        what, hint = (
            "this database holds other tables and is not a Potentia store",
            "give another one with --store",
        )
        raise NoStoreError(what, where=where, hint=hint)
    if connection.dialect.name == "sqlite":
        _refuse_computed_content(connection, where)
    version = connection.execute(sa.select(s.schema_version.c.version)).scalar_one_or_none()
    if version is None:
        raise StoreError(
            "the store has no schema version", where=where, hint="restore it from a copy"
        )
    if version != s.SCHEMA_VERSION:
        what = f"the store has schema version {version}, this Potentia reads and writes version {s.SCHEMA_VERSION}"
        hint = (
            "run the study again into a new store, or read this one with the Potentia that made it"
        )
        if version > s.SCHEMA_VERSION:
            hint = "upgrade Potentia: pip install --upgrade potentia"
        raise StoreError(what, where=where, hint=hint)

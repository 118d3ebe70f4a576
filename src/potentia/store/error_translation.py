"""Errors of the database and of the file system, turned into words that name the fix."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import exc

from potentia.errors import DISK_FULL_HINT, StoreAwayError, StoreError

BUSY_SECONDS = 30  # that SQLite waits for a lock
_HINT_BY_SQLITE_CODE = {
    sqlite3.SQLITE_FULL: DISK_FULL_HINT,
    sqlite3.SQLITE_IOERR: "the disk is full or failing; free some space, then run the same command again",
    sqlite3.SQLITE_READONLY: "the store cannot be written: check its permissions, or name another store",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and can be written, or name another store",
    sqlite3.SQLITE_BUSY: f"another process held the store for more than {BUSY_SECONDS} s; run the command again",
    sqlite3.SQLITE_NOTADB: "this file is no store; potentia report reads scores in any file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a copy, or save what is left with sqlite3's .recover",
}
_PRIMARY_CODE_BITS = 0xFF  # the bits of SQLite's extended error codes that say which kind it is
# Errors without a code: a missing table of SQLite's, and failed connections to PostgreSQL (psycopg has text alone).
_HINT_BY_WORDS = {
    "no such table": "the file is not a Potentia store",
    "malformed": _HINT_BY_SQLITE_CODE[sqlite3.SQLITE_CORRUPT],
    "does not exist": "create the database first, for example: createdb potentia",
    "authentication failed": "check user and password in the URL",
    "connection": "check that the server runs and the URL is right",
}
_FINAL_CONNECTION_WORDS = (
    "does not exist",
    "authentication",
    "no pg_hba.conf",
    "could not translate",
    "invalid",
)


@contextmanager
def translated_errors(location: str) -> Iterator[None]:
    """Turn errors of the database and of the file system into a StoreError that names the fix."""
    try:
        yield
    except exc.DBAPIError as error:
        raise _store_error(error.orig, location, is_away=_is_away(error)) from error
    except exc.SQLAlchemyError as error:  # what is left of a connection that was lost
        is_unwritable = isinstance(getattr(error, "orig", None), ValueError)
        is_away = "://" in location and not is_unwritable
        raise _store_error(error, location, is_away=is_away) from error
    except UnicodeDecodeError as error:
        hint = _HINT_BY_SQLITE_CODE[sqlite3.SQLITE_CORRUPT]
        raise StoreError("malformed text", where=location, hint=hint) from error
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and "://" not in location and not Path(location).exists():
            raise store_removed_error(location) from error
        raise StoreError(
            error.strerror or str(error), where=location, hint=_os_hint(error)
        ) from error


def store_removed_error(location: str, cause: str = "removed") -> StoreError:
    """Return the error of a store that somebody took away under a run."""
    hint = "put it back, or run the same command again: what was in it is computed again"
    return StoreError(f"the store was {cause} while it was in use", where=location, hint=hint)


def _os_hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DISK_FULL_HINT
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "the folder cannot be written: name another store"
    return "check the path and its permissions"


def _store_error(error: BaseException | None, location: str, *, is_away: bool) -> StoreError:
    lines = str(error).strip().splitlines() or ["the database failed"]
    error_type = StoreAwayError if is_away else StoreError
    return error_type(lines[0], where=location, hint=_find_hint(error))


def _find_hint(error: BaseException | None) -> str | None:
    """Return what to do about an error of the database; None where nothing is known of it."""
    code = _sqlite_code(error)
    if code in _HINT_BY_SQLITE_CODE:
        return _HINT_BY_SQLITE_CODE[code]
    message = str(error).lower()
    hints = (hint for words, hint in _HINT_BY_WORDS.items() if words in message)
    return next(hints, None)


def is_lock_error(error: BaseException | None) -> bool:
    """Whether SQLite gave up because another process holds a lock."""
    return _sqlite_code(error) == sqlite3.SQLITE_BUSY


def _sqlite_code(error: BaseException | None) -> int | None:
    """Return the kind of an error of SQLite's; None for any other error."""
    extended_code = getattr(error, "sqlite_errorcode", None)
    return None if extended_code is None else extended_code & _PRIMARY_CODE_BITS


def _is_away(error: exc.DBAPIError) -> bool:
    """Whether the same may work a little later: the server is not there, or a lock was held too long."""
    if not type(error.orig).__module__.startswith("psycopg"):
        return is_lock_error(error.orig)
    is_lost = error.connection_invalidated or isinstance(error, exc.OperationalError)
    # a server that answers says by a code what is wrong; libpq, which could not connect, by words alone
    if getattr(error.orig, "sqlstate", None) is not None:
        return is_lost
    message = str(error.orig).lower()
    return is_lost and not any(words in message for words in _FINAL_CONNECTION_WORDS)

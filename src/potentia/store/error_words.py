"""Errors of the database and of the file system, turned into words that name the fix."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import exc

from potentia.errors import StoreAwayError, StoreError

BUSY_SECONDS = 30  # that SQLite waits for a lock
DISK_FULL_HINT = "free some space, then run the same command again: finished cells are kept"
_HINTS = (
    ("database or disk is full", DISK_FULL_HINT),
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
# What PostgreSQL says of errors that waiting does not mend; psycopg has no finer type for them.
_FINAL_SIGNS = (
    "does not exist",
    "authentication",
    "no pg_hba.conf",
    "could not translate",
    "invalid",
)


@contextmanager
def errors_in_words(location: str) -> Iterator[None]:
    """Turn errors of the database and of the file system into a StoreError that names the fix."""
    try:
        yield
    except exc.DBAPIError as error:
        raise _store_error(str(error.orig), location, is_away=_is_away(error)) from error
    except exc.SQLAlchemyError as error:  # what is left of a connection that was lost
        is_unwritable = isinstance(getattr(error, "orig", None), ValueError)
        is_away = "://" in location and not is_unwritable
        raise _store_error(str(error), location, is_away=is_away) from error
    except UnicodeDecodeError as error:
        raise _store_error("malformed text", location, is_away=False) from error
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and "://" not in location and not Path(location).exists():
            raise store_gone(location) from error
        raise StoreError(
            error.strerror or str(error), where=location, hint=_os_hint(error)
        ) from error


def store_gone(location: str, cause: str = "removed") -> StoreError:
    """Return the error of a store that somebody took away under a run."""
    hint = "put it back, or run the same command again: what was in it is computed anew"
    return StoreError(f"the store was {cause} while it was in use", where=location, hint=hint)


def _os_hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DISK_FULL_HINT
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "the place cannot be written: give another one with --store"
    return "check the path and its permissions"


def _store_error(message: str, location: str, *, is_away: bool) -> StoreError:
    lines = message.strip().splitlines() or ["the database failed"]
    hint = next((hint for sign, hint in _HINTS if sign in message.lower()), None)
    error_type = StoreAwayError if is_away else StoreError
    return error_type(lines[0], where=location, hint=hint)


def _is_away(error: exc.DBAPIError) -> bool:
    """Say whether the same may work a little later: the server is not there, or a lock was held too long."""
    message = str(error.orig).lower()
    if type(error.orig).__module__.startswith("psycopg"):
        is_lost = error.connection_invalidated or isinstance(error, exc.OperationalError)
        return is_lost and not any(sign in message for sign in _FINAL_SIGNS)
    return "database is locked" in message

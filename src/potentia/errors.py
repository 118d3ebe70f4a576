"""The one family of errors: what is wrong, where, and what to do about it."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(:/{1,2}[^:/@\s]*:)[^\s'\"<>]*@|([?&]\w*password=)[^&\s'\"<>]*", re.IGNORECASE
)


def without_password(text: str) -> str:
    """Return a text as it may be shown, with a store's name in it: the password of every URL is left out."""
    if ":/" not in text:  # a URL that was taken for a path has one slash
        return text
    return _SECRET.sub(_hide_password, text)


def _hide_password(secret: re.Match[str]) -> str:
    if secret[1]:
        return f"{secret[1]}***@"
    return f"{secret[2]}***"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # what asks a program to end


class PotentiaError(Exception):
    """An error meant for a person: a sentence, the place, and a hint that names the fix."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(without_password(message))
        self.message = without_password(message)
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  hint: {self.hint}" if self.hint else ""
        return without_password(f"{place}{self.message}{advice}")


class InputError(PotentiaError, ValueError):
    """Something the user gave cannot be used; the command line exits with code 2."""


class StudyError(InputError):
    """A study file or its flags are wrong."""


class TaskError(InputError):
    """A task, its data or its splits cannot be used."""


class DataError(InputError):
    """A score file cannot be read: names the file and the place in it."""


class ModelError(PotentiaError, RuntimeError):
    """A model cannot be loaded or scored; the cells that need it are recorded as failed."""


class TuningError(PotentiaError, RuntimeError):
    """A fine-tuning lane failed (diverged, or left the model unchanged)."""


class StoreError(PotentiaError, RuntimeError):
    """The result store cannot be opened, read or written."""


class StoreAwayError(StoreError):
    """The store does not answer now, and may again: a server that restarts, a lock that another holds."""

    waited = False  # whether it was waited for


class DamagedItemsError(StoreError):
    """The items of a cell are missing or cannot be read; the cell can be computed anew."""


class NoStoreError(StoreError, InputError):
    """What was given is no store: a missing file, a folder, a URL of another kind."""


class EmptyStoreError(NoStoreError):
    """A place for a store, in which nothing was stored yet."""


class MissingExtraError(PotentiaError, ImportError):
    """An optional part is not installed; the hint names the extra."""

"""All errors of Potentia: each says what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_SECRET = re.compile(
    r"(:/{1,2}[^:/@\s]*:)[^\s'\"<>]*@|([?&]\w*password=)[^&\s'\"<>]*", re.IGNORECASE
)


DISK_FULL_HINT = "free some space, then run the same command again: finished results are kept"


def without_password(text: str) -> str:
    """Return a text with the passwords of all URLs in it, such as a store's address, replaced by ``***``."""
    if ":/" not in text:  # a URL that was read as a path has only one slash
        return text
    return _SECRET.sub(_hide_password, text)


def _hide_password(secret: re.Match[str]) -> str:
    if secret[1]:
        return f"{secret[1]}***@"
    return f"{secret[2]}***"


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message; the name of its type if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


MAX_SUGGESTIONS = 12  # names that a hint lists
SIMILAR = 0.6  # from which on a name is one that the user may have meant


def suggest_names(typed_name: str, available: Iterable[str]) -> str:
    """Return a hint for a name that is not there: the names like it, then what there is, the nearest first.

    A list that is cut says how many names there are and ends with "…".

    >>> suggest_names("bolq", ["mnli", "boolq"])
    'did you mean boolq? There are: boolq, mnli'
    """
    names = list(dict.fromkeys(available))
    if not names:
        return "there are none"
    similarity = {name: _measure_similarity(typed_name, name) for name in names}
    nearest_first = sorted(names, key=lambda name: -similarity[name])
    similar = [name for name in nearest_first[:3] if similarity[name] >= SIMILAR]
    listed_names = nearest_first if similar else names
    count = f" {len(names):,}" if len(names) > MAX_SUGGESTIONS else ""
    listed = f"here are{count}: {list_names(listed_names)}"
    if not similar:
        return f"t{listed}"
    return f"did you mean {' or '.join(similar)}? T{listed}"


def list_names(names: Sequence[str], limit: int = MAX_SUGGESTIONS) -> str:
    """Return names in a line; a list that is cut ends with "…"."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])}, …"
    return ", ".join(names)


def _measure_similarity(typed_name: str, name: str) -> float:
    """Return how alike two names are, from 0 to 1; a name counts with and without its organisation."""
    typed = typed_name.casefold()
    forms = {name.casefold(), name.casefold().rpartition("/")[2]}
    return max(difflib.SequenceMatcher(None, typed, form).ratio() for form in forms)


INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # exceptions that ask a program to end


class PotentiaError(Exception):
    """An error meant for a person: a sentence, the place, and a hint that names the fix."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(without_password(message))
        self.message = without_password(message)
        self.where = where
        self.hint = hint
        if hint and hint in message:  # nothing is said twice
            self.hint = None

    def __str__(self) -> str:
        location_prefix = f"{self.where}: " if self.where else ""
        hint_line = f"\n  hint: {self.hint}" if self.hint else ""
        return without_password(f"{location_prefix}{self.message}{hint_line}")


class InputError(PotentiaError, ValueError):
    """Something the user gave cannot be used; the command line exits with code 2."""


class StudyError(InputError):
    """A study file or its flags are wrong."""


class TaskError(InputError):
    """A task, its data or its splits cannot be used."""


class DataError(InputError):
    """A file of scores or facts cannot be read; the error names the place in it."""


class ModelError(PotentiaError, RuntimeError):
    """A model cannot be loaded or scored; the cells that need it are recorded as failed."""


class TuningError(PotentiaError, RuntimeError):
    """A fine-tuning failed: it diverged, or left the model unchanged."""


class StoreError(PotentiaError, RuntimeError):
    """The result store cannot be opened, read or written."""


class StoreAwayError(StoreError):
    """The store does not answer now but may later: its server restarts, or another process holds a lock."""

    waited = False  # set where the error is raised after waiting for the store


class DamagedItemsError(StoreError):
    """The outcomes by example of a result are missing or cannot be read; the result can be computed again."""


class NoStoreError(StoreError, InputError):
    """There is no store at a path or URL: a missing file, a folder, a URL of another kind."""


class EmptyStoreError(NoStoreError):
    """Nothing was stored yet at a place that could hold a store."""


class MissingExtraError(PotentiaError, ImportError):
    """A package of an optional extra is not installed; the hint is the command that installs it."""

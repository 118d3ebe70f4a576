"""Patience: a store that is away for a while (a server that restarts, a lock held long) is waited for.

Every public method of a store waits by construction: a method is one transaction, or made of such, and may be tried
again, since what was committed before the answer got lost is found there.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from potentia.errors import StoreAwayError

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
QUIET = 3.0  # seconds of waiting of which nothing is said
_Method = TypeVar("_Method", bound=Callable[..., Any])


def wait_for(act: Callable[[], Any], patience: float, stop: Callable[[], bool] = lambda: False) -> Any:
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


def at_once(method: _Method) -> _Method:
    """Mark a method that does not wait: its caller asks again by itself."""
    method.at_once = True  # type: ignore[attr-defined]
    return method


class Patient:
    """Something whose public methods wait while the store is away, as long as it has patience."""

    patience = 0.0  # seconds to wait while the store is away
    stop: Callable[[], bool] = staticmethod(lambda: False)  # or until this says so

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            plain = inspect.isfunction(method) and not inspect.isgeneratorfunction(method)
            if plain and not name.startswith("_") and not hasattr(method, "at_once"):
                setattr(cls, name, _waiting(method))


def _waiting(method: Any) -> Any:
    @functools.wraps(method)
    def waiting(self: Patient, *arguments: Any, **options: Any) -> Any:
        return wait_for(lambda: method(self, *arguments, **options), self.patience, self.stop)

    return waiting

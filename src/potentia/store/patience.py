"""Patience: a store that is away for a while (a server that restarts, a lock held long) is waited for."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from potentia.errors import StoreAwayError

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_Method = TypeVar("_Method", bound=Callable[..., Any])


def wait_for(act: Callable[[], Any], patience: float, stop: Callable[[], bool] = lambda: False) -> Any:
    """Act; while the store is away try again, after pauses that grow, until the patience (seconds) ends."""
    pause, end = FIRST_PAUSE, None
    while True:
        try:
            return act()
        except StoreAwayError as error:
            moment = time.monotonic()
            end = moment + patience if end is None else end
            if error.waited or moment + pause > end or stop():
                error.waited = True  # whoever called is not to wait again
                raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def patient(method: _Method) -> _Method:
    """Let a method of a store wait while the store is away, as long as the store object has patience.

    The method is one transaction and may be tried again: what was committed before the answer got lost is found there.
    """

    @functools.wraps(method)
    def waiting(self: Any, *arguments: Any, **options: Any) -> Any:
        return wait_for(lambda: method(self, *arguments, **options), self.patience, self.stop)

    return waiting  # type: ignore[return-value]

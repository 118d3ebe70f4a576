"""Waiting for a store that does not answer now: a server that restarts, a lock that another process holds."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from potentia.errors import StoreAwayError

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0
QUIET_SECONDS = 3.0  # of waiting before anything is said
_METHODS_WITHOUT_WAIT = {"beat"}  # their caller asks again by itself
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class HasPatience(Protocol):
    """What knows how long to wait for the store."""

    patience: float  # seconds
    stop: Callable[[], bool]  # or until this says so


def never_stop() -> bool:
    """Return False: nothing ends the waiting but the patience."""
    return False


def wait_for(
    operation: Callable[[], Result], patience: float, should_stop: Callable[[], bool] = never_stop
) -> Result:
    """Act; while the store is away try again, after pauses that grow, until the patience (seconds) ends."""
    pause_seconds = FIRST_PAUSE
    waiting_since: float | None = None
    has_warned = False
    while True:
        try:
            return operation()
        except StoreAwayError as error:
            moment = time.monotonic()
            if waiting_since is None:
                waiting_since = moment
            if error.waited or moment + pause_seconds > waiting_since + patience or should_stop():
                error.waited = True  # the caller is not to wait again
                raise
            if moment - waiting_since > QUIET_SECONDS and not has_warned:
                logging.getLogger("potentia").warning(
                    "%s does not answer (%s): waiting for up to %.0f s",
                    error.where,
                    error.message,
                    patience,
                )
                has_warned = True
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE)


class PatientPart:
    """A part of the store whose public methods wait while the store is away, as long as its database has patience."""

    database: HasPatience

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for method_name, method in list(vars(cls).items()):
            is_plain = inspect.isfunction(method) and not inspect.isgeneratorfunction(method)
            if (
                is_plain
                and not method_name.startswith("_")
                and method_name not in _METHODS_WITHOUT_WAIT
            ):
                setattr(cls, method_name, _with_waiting(method))


def _with_waiting(
    method: Callable[Concatenate[PatientPart, Arguments], Result],
) -> Callable[Concatenate[PatientPart, Arguments], Result]:
    @functools.wraps(method)
    def wait_for_method(
        self: PatientPart, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        operation = functools.partial(method, self, *arguments, **options)
        return wait_for(operation, self.database.patience, self.database.stop)

    return wait_for_method

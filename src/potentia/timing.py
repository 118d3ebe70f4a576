"""Where the time of a row (one model's job) goes: seconds by kind of work, each second counted once.

Code says of which kind its work is by ``spending(KIND)``, wherever it is. Work inside work of another kind (tokenising
while a fine-tuning is validated) counts for its own kind alone. Without a ``TimeTally`` that runs, nothing is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

OTHER_WORK = "other"  # the kind of all work that no code names
ONE_TIME_WORK = ("check", "compile", "load")  # what a row does once, whatever is asked of its model
_running_tally: ContextVar[TimeTally | None] = ContextVar("tally", default=None)


class TimeTally:
    """The seconds of one row, by kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._kinds = [OTHER_WORK]  # of the work that is done now; the innermost is the last
        self._counted_until = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside the block."""
        self._counted_until = time.perf_counter()
        token = _running_tally.set(self)
        try:
            yield
        finally:
            self._count()
            _running_tally.reset(token)

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Count the time inside the block for this kind of work."""
        self._count()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._count()
            self._kinds.pop()

    def _count(self) -> None:
        """Add the time since the last count to the innermost kind."""
        moment = time.perf_counter()
        kind = self._kinds[-1]
        self.seconds[kind] = self.seconds.get(kind, 0.0) + moment - self._counted_until
        self._counted_until = moment

    def measure(self, kinds: Collection[str]) -> float:
        """Return the seconds until now that these kinds of work took."""
        self._count()
        return sum(self.seconds.get(kind, 0.0) for kind in kinds)

    @property
    def total(self) -> float:
        """The seconds of all kinds together."""
        return sum(self.seconds.values())


@contextmanager
def spending(kind: str) -> Iterator[None]:
    """Count the time inside the block for this kind of work, if a tally runs."""
    tally = _running_tally.get()
    if tally is None:
        yield
    else:
        with tally.spending(kind):
            yield


def measure_seconds_spent(kinds: Collection[str]) -> float:
    """Return the seconds that the running tally has counted for these kinds of work; 0 where no tally runs."""
    tally = _running_tally.get()
    if tally is None:
        return 0.0
    return tally.measure(kinds)


def format_shares(seconds: Mapping[str, float]) -> str:
    """Return each kind of work with its share of the time, the largest first: ``train 61%, load 20%``.

    Kinds under one per cent are left out.
    """
    total = sum(seconds.values()) or 1.0
    seconds_by_kind = sorted(seconds.items(), key=lambda entry: -entry[1])
    shares = []
    for kind, kind_seconds in seconds_by_kind:
        share = kind_seconds / total
        if share >= 0.01:
            shares.append(f"{kind} {share:.0%}")
    return ", ".join(shares)


def format_duration(seconds: float) -> str:
    """Return a duration as people write it: 42 s, 3:05 min, 2:10 h."""
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{total_seconds} s"
    minutes, remaining_seconds = divmod(total_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{remaining_seconds:02d} min"


@contextmanager
def call_repeatedly(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """While the context is open, call a function every so many seconds in a thread, and once more at the end."""
    has_ended = threading.Event()

    def loop() -> None:
        while not has_ended.wait(seconds):
            action()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        action()

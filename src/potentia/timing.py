"""Where the time of a row goes: seconds by kind of work, each second counted once.

A piece of work says what kind it is by :func:`spending`, wherever it is done; work inside work of another kind (texts
tokenised while a lane is validated) counts for its own kind alone. Without a tally under way nothing is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

REST = "other"
_under_way: ContextVar[TimeTally | None] = ContextVar("tally", default=None)


class TimeTally:
    """The seconds of one row."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._kinds = [REST]
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is done inside the block."""
        self._since = time.perf_counter()
        token = _under_way.set(self)
        try:
            yield
        finally:
            self._count()
            _under_way.reset(token)

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Count for ``kind`` inside the block."""
        self._count()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._count()
            self._kinds.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._kinds[-1]] = self.seconds.get(self._kinds[-1], 0.0) + now - self._since
        self._since = now

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())


@contextmanager
def spending(kind: str) -> Iterator[None]:
    """Say that what is done inside the block is of this kind."""
    tally = _under_way.get()
    if tally is None:
        yield
    else:
        with tally.spending(kind):
            yield


def format_shares(seconds: Mapping[str, float]) -> str:
    """Say which kinds of work took what share, the largest first; what is under a hundredth is left out."""
    total = sum(seconds.values()) or 1.0
    kinds = sorted(seconds.items(), key=lambda entry: -entry[1])
    return ", ".join(
        f"{kind} {share:.0%}" for kind, spent in kinds if (share := spent / total) >= 0.01
    )


def format_duration(seconds: float) -> str:
    """Write a duration as people do: 42 s, 3:05 min, 2:10 h."""
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{total_seconds} s"
    minutes, remaining_seconds = divmod(total_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{remaining_seconds:02d} min"


@contextmanager
def repeatedly(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something every so many seconds beside what runs here, and once more at the end."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        act()

"""Times as ratios: a busy or slow machine makes nothing too slow that is compared with work done beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1_500.0  # seconds after which a wait counts as endless; a busy machine is slow


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def loop_seconds() -> float:
    """Return the processor seconds of a million turns of a Python loop here and now: a fiftieth of a second or so."""
    return min(processor_seconds(_count_a_million) for _ in range(3))


def _count_a_million() -> int:
    total = 0
    for number in range(1_000_000):
        total += number & 1
    return total

"""Work that is spread over processes for so many minutes, and written line by line as it is done."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

GRACE = 30.0  # seconds that work under way is given at the end


def write_lines(
    work: Callable[[Any], str], todo: Iterable[Any], path: str, *, workers: int, minutes: float
) -> None:
    """Do one unit after the other until the time is over; add a line to the file for each."""
    end = time.monotonic() + 60 * minutes
    units = iter(todo)
    with Path(path).open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        flying: set[Future[str]] = set()
        while time.monotonic() < end + GRACE:
            flying |= _started(
                pool, work, units, 2 * workers - len(flying) if time.monotonic() < end else 0
            )
            if not flying:
                return
            done, flying = wait(
                flying,
                timeout=max(end + GRACE - time.monotonic(), 0.0),
                return_when=FIRST_COMPLETED,
            )
            for future in done:
                if (error := future.exception()) is not None:
                    traceback.print_exception(error)
                else:
                    print(future.result(), file=file, flush=True)
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list((pool._processes or {}).values()):
            process.terminate()


def _started(
    pool: ProcessPoolExecutor, work: Callable[[Any], str], units: Iterator[Any], max_started: int
) -> set[Future[str]]:
    return {pool.submit(work, unit) for _, unit in zip(range(max_started), units, strict=False)}

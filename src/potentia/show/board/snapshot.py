"""Snapshots: a study's sections and findings, made in a process of their own and kept until there is more to say.

Findings take seconds to compute. They are made in one niced worker, never while serving a request that an older
snapshot can answer. A new one is due by cells or by time: as soon as the study has a quarter more cells, and every two
minutes at least where there is anything new; readers of a long run take a twentieth of a core.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from potentia.errors import PotentiaError, StoreError
from potentia.evidence import read
from potentia.processes import exit_with_parent
from potentia.show import ReportOptions, build_sections, make_answer, make_report
from potentia.show.page import Parts
from potentia.values.findings import jsonable

LEAST_SECONDS = 5.0  # between two snapshots of a study
SHARE = 20  # and this many times as long as the last one took, where little is new
OLDEST = 120.0  # seconds: no longer than this, unless a snapshot takes half of it
GROWN = 1.25  # times as many cells: due at once


@dataclass(frozen=True)
class Snapshot:
    """What the pages and the API say of a study at one moment."""

    study: str
    stamp: tuple[int, int]  # cells and failures it knows
    seconds: float
    made: float = field(default_factory=time.time)  # when
    sections: tuple[tuple[str, str, str], ...] = ()  # id, title, HTML
    parts: dict[str, bytes] = field(
        default_factory=dict
    )  # name → packed JSON that the pages fetch by need
    problem: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)  # name → JSON
    scores: dict[str, str] = field(default_factory=dict)  # protocol → JSON

    def section(self, name: str) -> str | None:
        """Return the HTML of a section."""
        return next((html for id, _, html in self.sections if id == name), None)


def make_snapshot(
    where: str, study: str, stamp: tuple[int, int], history: tuple[str, ...] = ()
) -> Snapshot:
    """Read a study and compute everything; runs in the worker."""
    began = time.monotonic()
    try:
        options = ReportOptions(history=read(*history)) if history else None
        data = make_report(read(where, study=study), items=0, options=options)
        parts = Parts(f"/studies/{study}")
        sections = build_sections(data, parts)
    except PotentiaError as error:
        return Snapshot(study, stamp, time.monotonic() - began, problem=error.message)
    return Snapshot(
        study=study,
        stamp=stamp,
        seconds=time.monotonic() - began,
        sections=tuple(sections),
        parts=parts.kept,
        problem=data.problem,
        answer=jsonable(make_answer(data)),
        findings={name: json.dumps(finding.to_dict()) for name, finding in data.named().items()},
        scores={
            name: json.dumps(jsonable(matrix)) for name, matrix in data.evidence.scores.items()
        },
    )


def _settle() -> None:
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server stops its worker itself
    exit_with_parent()


class Snapshots:
    """The latest snapshot of each study; a newer one is made in the background.

    Everything is computed by one niced process, or by the ``executor`` given; where it was killed there is a new one.
    """

    def __init__(
        self,
        where: str,
        executor: Executor | None = None,
        make: Callable[[str, str, tuple[int, int]], Snapshot] = make_snapshot,
    ) -> None:
        self.where, self.stopped = where, False
        self._executor, self._make = executor, make
        self._latest: dict[str, Snapshot] = {}
        self._making: dict[str, asyncio.Future[Snapshot]] = {}
        self._not_before: dict[str, float] = {}

    def close(self) -> None:
        """Stop the worker."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def get(self, study: str, stamp: tuple[int, int]) -> Snapshot:
        """Return the latest snapshot, at once where there is one; the first is waited for."""
        known = self.peek(study, stamp)
        if known is not None:
            return known
        making = self._making[study]
        while not making.done():
            await asyncio.wait({making}, timeout=0.5)
            if self.stopped:
                raise StoreError("the board is stopping")
        try:
            return making.result()
        except Exception as error:
            raise StoreError(
                f"the findings could not be made: {error}", hint="try again in a moment"
            ) from error

    def peek(self, study: str, stamp: tuple[int, int]) -> Snapshot | None:
        """Return the latest snapshot, or None while the first is being made; sees to it that a newer one will come."""
        known = self._latest.get(study)
        if known is not None and (known.stamp == stamp or not self._due(study, known, stamp)):
            return known
        if study not in self._making:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    1, mp_context=get_context("spawn"), initializer=_settle
                )
            task = asyncio.get_running_loop().run_in_executor(
                self._executor, self._make, self.where, study, stamp
            )
            self._making[study] = task
            task.add_done_callback(lambda done: self._keep(study, done))
        return known

    def _due(self, study: str, known: Snapshot, stamp: tuple[int, int]) -> bool:
        if time.monotonic() < self._not_before.get(study, 0.0):
            return False
        rest = 2 * known.seconds  # the worker never does this alone
        grown = sum(stamp) >= GROWN * sum(known.stamp)
        wait = rest if grown else min(SHARE * known.seconds, max(OLDEST, rest))
        return time.time() - known.made >= wait

    def _keep(self, study: str, done: asyncio.Future[Snapshot]) -> None:
        self._making.pop(study, None)
        self._not_before[study] = time.monotonic() + LEAST_SECONDS
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            self._latest[study] = done.result()
        elif isinstance(error, BrokenExecutor):
            self._executor = None  # killed: the next snapshot gets another

"""Snapshots: a study's sections and findings, made in a process of their own and kept until there is more to say.

Findings take seconds to compute. They are made in one niced worker, never while serving a request that an older
snapshot can answer. A new one is due when the study has a quarter more cells and twice the last snapshot's time has
passed; else, where anything is new, after twenty times that time, but after two minutes at the latest (or twice its
time, if that is more). So a study takes a third of the worker's time at most, and far less where snapshots are quick.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from potentia.errors import PotentiaError, StoreError
from potentia.evidence import read
from potentia.processes import exit_with_parent, lower_priority
from potentia.show import ReportOptions, build_sections, make_answer, make_report
from potentia.show.page import PageData
from potentia.values.findings import to_json_values

MIN_PAUSE_SECONDS = 5.0  # between two snapshots of a study, however quick they are
# A snapshot that takes this many times its own time to wait for the next takes a third of the worker's time.
MIN_WAIT_RATIO = 2
WAIT_RATIO = 20  # the wait, in times of the last snapshot, where little is new
MAX_WAIT_SECONDS = (
    120.0  # the longest wait where anything is new, if ``MIN_WAIT_RATIO`` does not ask for more
)
GROWTH = 1.25  # with this many times as many cells, the wait is the shortest


@dataclass(frozen=True)
class StudySnapshot:
    """What the pages and the API say of a study at one moment."""

    study: str
    # How many cells and failures the study had when the snapshot was asked for: another stamp means that something is
    # new. The snapshot may know more, as it is made a moment later.
    stamp: tuple[int, int]
    seconds: float
    made: float = field(default_factory=time.time)  # seconds since 1970
    sections: tuple[tuple[str, str, str], ...] = ()  # id, title, HTML
    # name → packed JSON that the pages fetch by need
    packed_values: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)  # name → JSON
    scores: dict[str, str] = field(default_factory=dict)  # protocol → JSON

    def section(self, section_name: str) -> str | None:
        """Return the HTML of a section."""
        for section_id, _, html in self.sections:
            if section_id == section_name:
                return html
        return None


def make_snapshot(
    location: str, study: str, stamp: tuple[int, int], history: tuple[str, ...] = ()
) -> StudySnapshot:
    """Read a study and compute everything; runs in the worker."""
    began = time.monotonic()
    try:
        options = ReportOptions(history=read(*history)) if history else None
        report_data = make_report(read(location, study=study), items=0, options=options)
        page_data = PageData(f"/studies/{study}")
        sections = build_sections(report_data, page_data)
    except PotentiaError as error:
        return StudySnapshot(study, stamp, time.monotonic() - began, problem=error.message)
    return StudySnapshot(
        study=study,
        stamp=stamp,
        seconds=time.monotonic() - began,
        sections=tuple(sections),
        packed_values=page_data.packed_values,
        problem=report_data.problem,
        answer=to_json_values(make_answer(report_data)),
        findings={
            finding_name: json.dumps(finding.to_dict())
            for finding_name, finding in report_data.findings_by_name().items()
        },
        scores={
            protocol: json.dumps(to_json_values(matrix))
            for protocol, matrix in report_data.evidence.scores.items()
        },
    )


def _prepare_worker() -> None:
    lower_priority()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server stops its worker itself
    exit_with_parent()


class SnapshotCache:
    """The latest snapshot of each study; a newer one is made in the background.

    Everything is computed by one niced process, or by the ``executor`` given; where it was killed there is a new one.
    """

    def __init__(
        self,
        location: str,
        executor: Executor | None = None,
        snapshot_maker: Callable[[str, str, tuple[int, int]], StudySnapshot] = make_snapshot,
    ) -> None:
        self.location = location
        self._is_stopping = False  # whether requests that wait for a first snapshot give up
        self._executor = executor
        self._snapshot_maker = snapshot_maker  # runs later, in the worker
        self._latest: dict[str, StudySnapshot] = {}
        self._pending: dict[str, asyncio.Future[StudySnapshot]] = {}
        self._not_before: dict[str, float] = {}

    def stop_waiting(self) -> None:
        """Let every request that waits for a study's first snapshot end with an error: the board is stopping."""
        self._is_stopping = True

    def close(self) -> None:
        """Stop the worker."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def get(self, study: str, stamp: tuple[int, int]) -> StudySnapshot:
        """Return the latest snapshot, at once where there is one; the first is waited for."""
        latest = self.get_latest(study, stamp)
        if latest is not None:
            return latest
        pending = self._pending[study]
        while not pending.done():
            await asyncio.wait({pending}, timeout=0.5)
            if self._is_stopping:
                raise StoreError("the board is stopping")
        try:
            return pending.result()
        except Exception as error:
            raise StoreError(
                f"the findings could not be made: {error}", hint="try again in a moment"
            ) from error

    def get_latest(self, study: str, stamp: tuple[int, int]) -> StudySnapshot | None:
        """Return the latest snapshot, or None while the first is being made; sees to it that a newer one will come."""
        latest = self._latest.get(study)
        if latest is not None and latest.stamp == stamp:
            return latest
        is_due = latest is None or self._is_due(study, latest, stamp)
        if is_due and study not in self._pending:
            self._start_snapshot(study, stamp)
        return latest

    def _start_snapshot(self, study: str, stamp: tuple[int, int]) -> None:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=_prepare_worker
            )
        pending = asyncio.get_running_loop().run_in_executor(
            self._executor, self._snapshot_maker, self.location, study, stamp
        )
        self._pending[study] = pending
        pending.add_done_callback(lambda finished: self._store_snapshot(study, finished))

    def _is_due(self, study: str, latest: StudySnapshot, stamp: tuple[int, int]) -> bool:
        if time.monotonic() < self._not_before.get(study, 0.0):
            return False
        shortest_wait = MIN_WAIT_RATIO * latest.seconds
        if sum(stamp) >= GROWTH * sum(latest.stamp):
            required_wait = shortest_wait
        else:
            required_wait = min(WAIT_RATIO * latest.seconds, max(MAX_WAIT_SECONDS, shortest_wait))
        return time.time() - latest.made >= required_wait

    def _store_snapshot(self, study: str, finished: asyncio.Future[StudySnapshot]) -> None:
        self._pending.pop(study, None)
        self._not_before[study] = time.monotonic() + MIN_PAUSE_SECONDS
        if finished.cancelled():
            return
        error = finished.exception()
        if error is None:
            self._latest[study] = finished.result()
        elif isinstance(error, BrokenExecutor):
            self._executor = None  # killed: the next snapshot gets another

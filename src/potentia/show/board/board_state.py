"""What the board knows: the store it reads, the latest findings of each study, and what runs now."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from potentia.errors import StoreError
from potentia.run import (
    PACED,
    WORK_EVENT,
    StudyClock,
    count_planned_cells,
    estimate_seconds_left,
    is_running,
)
from potentia.show import lane_payload
from potentia.store import CellRecord, Store, StudyRecord, match_studies
from potentia.values.findings import to_json_values
from potentia.values.fine_tuning import LaneStatus
from potentia.values.scores import ItemOutcome

if TYPE_CHECKING:
    from potentia.show.board.snapshot import SnapshotCache, StudySnapshot

MOST_HEADLINES = 6  # studies of the home page whose leader is shown: each costs its findings
LOOK_SECONDS = 1.0  # seconds between two looks at the store, however many ask
HEARTBEAT_SECONDS = 15.0  # seconds after which a silent stream says that it is there
RECENT_EVENTS = 40  # events sent to a new listener
MOST_ROWS = 60  # rows sent in full
MOST_LANES = 24  # lanes of a running row whose curves are sent
MOST_ROWS_WITH_LANES = 8
ROW_FIELDS = (
    "phase",
    "done",
    "total",
    "unit",
    "rate",
    "left",
    "tokens_per_second",
    "validation",
    "best",
    "began",
    "ended",
    "at",
    "lanes_active",
    "lanes_waiting",
)

T = TypeVar("T")


@dataclass(frozen=True)
class StudyCounts:
    """How far a study is; ``asked`` is None for imported scores."""

    key: str
    name: str
    created: str
    asked: int | None
    done: int
    failed: int
    running: int
    seconds: float


@dataclass(frozen=True)
class StudyOverview(StudyCounts):
    """A study as the home page shows it: also the seconds left, and who leads, maybe of a part of the results."""

    left: float | None
    headline: str
    so_far: bool


class BoardState:
    """Everything that pages and API share. Reads the store, never writes it."""

    def __init__(self, store: Store, snapshots: SnapshotCache) -> None:
        self.store = store
        self.snapshots = snapshots
        self._watches: dict[str, StudyWatch] = {}
        self._cache: dict[str, tuple[float, Any]] = {}  # name → when it was read, and what
        self.items = lru_cache(maxsize=4)(self._read_items)

    def stop(self) -> None:
        """End what waits: streams, and pages whose findings are being made."""
        self.snapshots.stop_waiting()
        for watch in list(self._watches.values()):
            watch.stopped = True

    def close(self) -> None:
        """Let the store and the worker go."""
        self.snapshots.close()
        self.store.close()

    def _read_cached(self, cache_key: str, read: Callable[[], T]) -> T:
        """Return what is read, as of a second ago at most."""
        read_at, value = self._cache.get(cache_key, (-LOOK_SECONDS, None))
        if time.monotonic() - read_at > LOOK_SECONDS:
            value = read()
            self._cache[cache_key] = (time.monotonic(), value)
        return cast(T, value)

    def studies(self) -> list[StudyRecord]:
        """Return the studies."""
        return self._read_cached("studies", self.store.studies.read)

    def study_counts(self) -> list[StudyCounts]:
        """Return every study with its counts."""

        def count_every_study() -> list[StudyCounts]:
            return [self.watch(record.key).count_cells() for record in self.studies()]

        return self._read_cached("study counts", count_every_study)

    def count_results(self, study_key: str) -> tuple[int, int]:
        """Return how many cells and failures a study has."""

        def count() -> tuple[int, int]:
            return (
                self.store.cells.count(study=study_key),
                len(self.store.failures.read(study=study_key)),
            )

        return self._read_cached(f"results of {study_key}", count)

    async def study_overviews(self) -> list[StudyOverview]:
        """Return every study with its counts, the time left of what runs, and who leads in the studies opened last."""
        overviews = []
        for position, counts in enumerate(await run_in_threadpool(self.study_counts)):
            seconds_left = None
            headline = ""
            is_partial = False
            if counts.running:
                state = await run_in_threadpool(self.watch(counts.key).current_state)
                seconds_left = state["left"]
            if position < MOST_HEADLINES and counts.done:
                # The page never waits for findings; the next one has them.
                snapshot = await self.latest_snapshot(counts.key)
                if snapshot is not None:
                    headline = str(snapshot.answer.get("headline", ""))
                    is_partial = snapshot.stamp[0] < (counts.asked or counts.done)
            overview = StudyOverview(
                **asdict(counts), left=seconds_left, headline=headline, so_far=is_partial
            )
            overviews.append(overview)
        return overviews

    def require_study(self, study_name: str) -> StudyRecord:
        """Return the study with this key or name, or answer 404; one that began this second is looked for anew."""
        matches = match_studies(self.studies(), study_name)
        if not matches:
            matches = match_studies(self.store.studies.read(), study_name)
        record = matches[0] if matches else None
        return require_or_404(record, "there is no such study")

    def watch(self, study_name: str) -> StudyWatch:
        """Return the watch of a study; all its listeners share one."""
        record = self.require_study(study_name)
        if record.key not in self._watches:
            self._watches[record.key] = StudyWatch(self.store, record)
        return self._watches[record.key]

    async def snapshot(self, study_key: str) -> StudySnapshot:
        """Return the study's latest snapshot; the first is waited for."""
        return await self.snapshots.get(
            study_key, await run_in_threadpool(self.count_results, study_key)
        )

    async def latest_snapshot(self, study_key: str) -> StudySnapshot | None:
        """Return the study's latest snapshot, or None while the first is being made."""
        stamp = await run_in_threadpool(self.count_results, study_key)
        return self.snapshots.get_latest(study_key, stamp)

    async def begin_first_snapshot(self) -> None:
        """Begin the first snapshot of the study opened last, before anyone asks."""
        records = await run_in_threadpool(self.studies)
        if records:
            await self.latest_snapshot(records[0].key)

    def require_cell(self, cell_key: str) -> CellRecord:
        """Return one cell, or answer 404."""
        cell = None if "\0" in cell_key else self.store.cells.get(cell_key)
        return require_or_404(cell, "there is no such result")

    def _read_items(self, cell_key: str) -> list[ItemOutcome]:
        try:
            return self.store.cells.read_items(cell_key)
        except StoreError as error:  # the items folder was left behind
            raise HTTPException(404, error.message) from error


def require_or_404(value: T | None, otherwise: str = "there is nothing of that name") -> T:
    """Return a value that is there, or answer 404."""
    if value is None:
        raise HTTPException(404, otherwise)
    return value


class StudyWatch:
    """The state of one study, read once a second and sent to any number of listeners."""

    def __init__(self, store: Store, record: StudyRecord) -> None:
        self.store = store
        self.record = record
        self.stopped = False
        self._events: deque[dict[str, Any]] = deque(maxlen=RECENT_EVENTS)
        self._clock = StudyClock(store, record.key)
        self._end_times: deque[float] = deque(maxlen=PACED + 1)  # at which cells ended
        self._last_event = store.events.read_last_id(record.key, before=RECENT_EVENTS)
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._sent_state = ""
        self._planned_cells: tuple[int, int | None] = (-1, None)  # as of so many finished cells
        self._lock = threading.Lock()
        self._last_look: tuple[float, dict[str, Any]] = (-LOOK_SECONDS, {})

    def count_cells(self) -> StudyCounts:
        """Return how far the study is, from a few short queries."""
        study_key = self.record.key
        finished = self.store.cells.count(study=study_key)
        if finished != self._planned_cells[0]:
            self._planned_cells = (finished, count_planned_cells(self.store, self.record))
        return StudyCounts(
            key=study_key,
            name=self.record.name,
            created=self.record.created,
            asked=self._planned_cells[1],
            done=finished,
            failed=len(self.store.failures.read(study=study_key)),
            running=sum(map(is_running, self.store.events.read_progress(study_key).values())),
            seconds=self.store.cells.sum_seconds(study=study_key),
        )

    def current_state(self) -> dict[str, Any]:
        """Return the state, read from the store no more than once a second however many ask."""
        with self._lock:
            looked_at, state = self._last_look
            if time.monotonic() - looked_at >= 0.9 * LOOK_SECONDS:
                state = self._read_state()
                self._last_look = (time.monotonic(), state)
            return state

    def _read_state(self) -> dict[str, Any]:
        """Read rows, lanes of running rows, counts and recent events from the store."""
        study_key = self.record.key
        self._read_new_events()
        progress = self.store.events.read_progress(study_key)
        rows = [_row_payload(model, row_progress) for model, row_progress in progress.items()]
        rows.sort(key=lambda row: (not row["running"], -(row["at"] or 0)))
        running_rows = [row["name"] for row in rows if row["running"]]
        start_times = [float(progress[model].get("began", math.inf)) for model in running_rows]
        counts = self.count_cells()
        pending = (counts.asked or 0) - counts.done - counts.failed
        lanes = {}
        for model in running_rows[:MOST_ROWS_WITH_LANES]:
            lanes[model] = self._read_lanes(progress[model].get("model", model))
        began = min(start_times, default=math.inf)
        state = {
            **asdict(counts),
            "study": study_key,
            "running": len(running_rows),
            "rows_total": len(rows),
            "left": self._estimate_seconds_left(running_rows, began, pending),
            "rows": rows[:MOST_ROWS],
            "lanes": lanes,
            "events": list(self._events)[::-1],
        }
        return cast(dict[str, Any], to_json_values(state))

    def _estimate_seconds_left(
        self, running_rows: list[str], began: float, pending: int
    ) -> float | None:
        """Return the seconds to go by the work under way, or by ended cells where there are very many."""
        if not running_rows:
            return None
        seconds_left = None
        if len(self._end_times) <= PACED:
            seconds_left = self._clock.estimate_seconds()
        if seconds_left is None:
            seconds_left = estimate_seconds_left(began, self._end_times, pending)
        return seconds_left

    def _read_new_events(self) -> None:
        while events := self.store.events.read(self.record.key, after_id=self._last_event):
            self._last_event = events[-1].id
            for event in events[-RECENT_EVENTS:]:
                if event.kind == WORK_EVENT:  # of use to the clock alone
                    continue
                payload = {"id": event.id, "kind": event.kind, "at": event.time, **event.payload}
                payload.pop("traceback", None)
                self._events.append(payload)
            for event in events:
                if event.kind in ("cell", "failure"):
                    self._end_times.append(event.time)

    def _read_lanes(self, model: str) -> list[dict[str, Any]]:
        lanes = self.store.lanes.read(study=self.record.key, model=model)
        lanes.sort(
            key=lambda lane: (lane.status != LaneStatus.TRAINING, lane.task, lane.learning_rate)
        )
        return [lane_payload(lane) for lane in lanes[:MOST_LANES]]

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: the state at once, then whenever it changes."""
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow_study())
        if self._sent_state:
            queue.put_nowait(self._sent_state)
        last_sent = time.monotonic()
        try:
            while not self.stopped:
                try:
                    state = await asyncio.wait_for(queue.get(), LOOK_SECONDS)
                    yield f"event: state\ndata: {state}\n\n"
                    last_sent = time.monotonic()
                except TimeoutError:
                    if time.monotonic() - last_sent > HEARTBEAT_SECONDS:
                        last_sent = time.monotonic()
                        yield ": still here\n\n"
        finally:
            self._listeners.discard(queue)

    async def _follow_study(self) -> None:
        """Look at the store once a second and send every change, as long as anyone listens."""
        while self._listeners:
            try:
                state = json.dumps(await asyncio.to_thread(self.current_state))
            except Exception:  # the store is busy or gone for a moment: look again
                await asyncio.sleep(5 * LOOK_SECONDS)
                continue
            if state != self._sent_state:
                self._sent_state = state
                for queue in list(self._listeners):
                    if queue.full():
                        queue.get_nowait()  # a slow reader gets the newest state, not a backlog
                    queue.put_nowait(state)
            await asyncio.sleep(LOOK_SECONDS)
        self._task = None


def _row_payload(model: str, progress: dict[str, Any]) -> dict[str, Any]:
    fields = {field: progress.get(field) for field in ROW_FIELDS}
    return {"name": model, "running": is_running(progress), **fields}

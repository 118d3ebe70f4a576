"""What the board knows: the store it reads, the latest findings of each study, and what runs now."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from potentia.errors import StoreError
from potentia.evidence import find_study
from potentia.run import PACED, count_planned_cells, estimate_seconds_left, is_running
from potentia.show import lane_payload
from potentia.store import CellRecord, Store, StudyRecord
from potentia.values.findings import jsonable
from potentia.values.scores import ItemOutcome

if TYPE_CHECKING:
    from potentia.show.board.snapshot import Snapshot, Snapshots

LED = 6  # studies of the home page whose leader is told: each costs its findings
EVERY = 1.0  # seconds between two looks at the store, however many ask
BEAT = 15.0  # seconds after which a silent stream says that it is there
RECENT = 40  # events told to a new listener
MOST_ROWS = 60  # rows told in full
MOST_LANES = 24  # lanes of a running row whose curves are told
ROW = (
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


class Desk:
    """Everything that pages and API share. Reads the store, never writes it."""

    def __init__(self, store: Store, snapshots: Snapshots) -> None:
        self.store, self.snapshots = store, snapshots
        self._watches: dict[str, Watch] = {}
        self._read: dict[str, tuple[float, Any]] = {}  # name → when, and what was read
        self.items = lru_cache(maxsize=4)(self._items)

    def stop(self) -> None:
        """End what waits: streams, and pages whose findings are being made."""
        self.snapshots.stopped = True
        for watch in list(self._watches.values()):
            watch.stopped = True

    def close(self) -> None:
        """Let the store and the worker go."""
        self.snapshots.close()
        self.store.close()

    def _fresh(self, name: str, read: Callable[[], T]) -> T:
        """Return what is read, as of a second ago at most."""
        at, known = self._read.get(name, (-EVERY, None))
        if time.monotonic() - at > EVERY:
            known = read()
            self._read[name] = (time.monotonic(), known)
        return cast(T, known)

    def studies(self) -> list[StudyRecord]:
        """Return the studies."""
        return self._fresh("studies", self.store.studies)

    def summaries(self) -> list[dict[str, Any]]:
        """Return every study with its counts."""
        return self._fresh(
            "summaries", lambda: [self.watch(record.key).counts() for record in self.studies()]
        )

    def stamp(self, key: str) -> tuple[int, int]:
        """Return how many cells and failures a study has."""
        return self._fresh(
            f"stamp {key}",
            lambda: (self.store.count(study=key), len(self.store.failures(study=key))),
        )

    async def overview(self) -> list[dict[str, Any]]:
        """Return the summaries with the time left of what runs, and who leads in the studies opened last."""
        told = []
        for place, summary in enumerate(await run_in_threadpool(self.summaries)):
            key, left, headline, behind = summary["key"], None, "", False
            if summary["running"]:
                left = (await run_in_threadpool(self.watch(key).look))["left"]
            if place < LED and summary["done"]:
                made = await self.peek(
                    key
                )  # the page never waits for findings; the next one has them
                if made is not None:
                    headline = str(made.answer.get("headline", ""))
                    behind = made.stamp[0] < (summary["asked"] or summary["done"])
            told.append({**summary, "left": left, "headline": headline, "so_far": behind})
        return told

    def study(self, name: str) -> StudyRecord:
        """Return the study with this key or name, or answer 404; one that began this second is looked for anew."""
        found = find_study(self.studies(), name) or find_study(self.store.studies(), name)
        return there(found, "there is no such study")

    def watch(self, name: str) -> Watch:
        """Return the watch of a study; all its listeners share one."""
        record = self.study(name)
        if record.key not in self._watches:
            self._watches[record.key] = Watch(self.store, record)
        return self._watches[record.key]

    async def snapshot(self, key: str) -> Snapshot:
        """Return the study's latest snapshot."""
        return await self.snapshots.get(key, await run_in_threadpool(self.stamp, key))

    async def peek(self, key: str) -> Snapshot | None:
        """Return the study's latest snapshot, or None while the first is being made."""
        return self.snapshots.peek(key, await run_in_threadpool(self.stamp, key))

    async def warm(self) -> None:
        """Begin the first snapshot of the study opened last, before anyone asks."""
        if records := await run_in_threadpool(self.studies):
            await self.peek(records[0].key)

    def cell(self, key: str) -> CellRecord:
        """Return one cell, or answer 404."""
        return there(None if "\0" in key else self.store.cell(key), "there is no such cell")

    def _items(self, key: str) -> list[ItemOutcome]:
        try:
            return self.store.items(key)
        except StoreError as error:  # the items folder was left behind
            raise HTTPException(404, error.message) from error


def there(found: T | None, otherwise: str = "there is nothing of that name") -> T:
    """Return what was found, or answer 404."""
    if found is None:
        raise HTTPException(404, otherwise)
    return found


class Watch:
    """The state of one study, read once a second and told to any number of listeners."""

    def __init__(self, store: Store, record: StudyRecord) -> None:
        self.store, self.record = store, record
        self.stopped = False
        self._events: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._ends: deque[float] = deque(maxlen=PACED + 1)  # the moments at which cells ended
        self._last_event = store.last_event(record.key, before=RECENT)
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._state = ""
        self._asked: tuple[int, int | None] = (-1, None)  # as of so many cells
        self._lock = threading.Lock()
        self._seen: tuple[float, dict[str, Any]] = (-EVERY, {})

    def counts(self) -> dict[str, Any]:
        """Return how far the study is, from a few short queries."""
        key = self.record.key
        done = self.store.count(study=key)
        if done != self._asked[0]:
            self._asked = done, count_planned_cells(self.store, self.record)
        return {
            "key": key,
            "name": self.record.name,
            "created": self.record.created,
            "asked": self._asked[1],
            "done": done,
            "failed": len(self.store.failures(study=key)),
            "running": sum(map(is_running, self.store.get_progress(key).values())),
            "seconds": self.store.seconds(study=key),
        }

    def look(self) -> dict[str, Any]:
        """Return the state, read from the store no more than once a second however many ask."""
        with self._lock:
            at, seen = self._seen
            if time.monotonic() - at >= 0.9 * EVERY:
                seen = self._read()
                self._seen = (time.monotonic(), seen)
            return seen

    def _read(self) -> dict[str, Any]:
        """Read rows, lanes of running rows, counts and recent events from the store."""
        key = self.record.key
        while news := self.store.events(key, after_id=self._last_event):
            self._last_event = news[-1].id
            for event in news[-RECENT:]:
                said = {k: v for k, v in event.payload.items() if k != "traceback"}
                self._events.append(
                    {"id": event.id, "kind": event.kind, "at": event.moment, **said}
                )
            self._ends.extend(event.moment for event in news if event.kind in ("cell", "failure"))
        progress = self.store.get_progress(key)
        rows: list[dict[str, Any]] = [
            {"name": name, "running": is_running(state), **{k: state.get(k) for k in ROW}}
            for name, state in progress.items()
        ]
        rows.sort(key=lambda row: (not row["running"], -(row["at"] or 0)))
        running = [row["name"] for row in rows if row["running"]]
        counts = self.counts()
        began = min(
            (float(progress[name].get("began", math.inf)) for name in running), default=math.inf
        )
        todo = (counts["asked"] or 0) - counts["done"] - counts["failed"]
        told: dict[str, Any] = {
            **counts,
            "study": key,
            "running": len(running),
            "rows_total": len(rows),
            "left": estimate_seconds_left(began, self._ends, todo),
            "rows": rows[:MOST_ROWS],
            "lanes": {name: self._lanes(progress[name].get("model", name)) for name in running[:8]},
            "events": list(self._events)[::-1],
        }
        return cast(dict[str, Any], jsonable(told))

    def _lanes(self, model: str) -> list[dict[str, Any]]:
        lanes = self.store.lanes(study=self.record.key, model=model)
        lanes.sort(key=lambda lane: (lane.status != "training", lane.task, lane.learning_rate))
        return [lane_payload(lane) for lane in lanes[:MOST_LANES]]

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: the state at once, then whenever it changes."""
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        if self._state:
            queue.put_nowait(self._state)
        told = time.monotonic()
        try:
            while not self.stopped:
                try:
                    yield f"event: state\ndata: {await asyncio.wait_for(queue.get(), EVERY)}\n\n"
                    told = time.monotonic()
                except TimeoutError:
                    if time.monotonic() - told > BEAT:
                        told = time.monotonic()
                        yield ": still here\n\n"
        finally:
            self._listeners.discard(queue)

    async def _follow(self) -> None:
        while self._listeners:
            try:
                state = json.dumps(await asyncio.to_thread(self.look))
            except Exception:  # the store is busy or gone for a moment: look again
                await asyncio.sleep(5 * EVERY)
                continue
            if state != self._state:
                self._state = state
                for queue in list(self._listeners):
                    if queue.full():
                        queue.get_nowait()  # a slow reader gets the newest state, not a backlog
                    queue.put_nowait(state)
            await asyncio.sleep(EVERY)
        self._task = None

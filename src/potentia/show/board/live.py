"""What runs now: one reader per study asks the store once a second and tells everyone who listens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from potentia.run import asked_cells, is_running
from potentia.show import lane_payload
from potentia.store import Store, StudyRecord
from potentia.values.findings import jsonable

EVERY = 1.0  # seconds between two looks at the store
BEAT = 15.0  # seconds after which a silent stream says that it is there
RECENT = 40  # events told to a new listener
MOST_ROWS = 60  # rows told in full
MOST_LANES = 24  # lanes of a running row whose curves are told


def study_summary(store: Store, record: StudyRecord) -> dict[str, Any]:
    """Return a study with its counts, from a few short queries."""
    progress = store.get_progress(record.key)
    return {
        "key": record.key,
        "name": record.name,
        "created": record.created,
        "asked": asked_cells(store, record),
        "done": store.count(study=record.key),
        "failed": len(store.failures(study=record.key)),
        "running": sum(is_running(state) for state in progress.values()),
        "seconds": store.seconds(study=record.key),
    }


class Watch:
    """The state of one study, followed by any number of listeners."""

    def __init__(self, store: Store, record: StudyRecord) -> None:
        self.store = store
        self.record = record
        self.asked = asked_cells(store, record)
        self._events: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._last_event = store.last_event(record.key, before=RECENT)
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._state = ""
        self._done = -1
        self._lock = threading.Lock()
        self._seen: tuple[float, dict[str, Any]] = (-EVERY, {})
        self.stopped = False

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
            self._events.extend(_brief(asdict(event)) for event in news[-RECENT:])
        progress = self.store.get_progress(key)
        rows = [_row(name, state) for name, state in progress.items()]
        rows.sort(key=lambda row: (not row["running"], -(row["at"] or 0)))
        running = [row["name"] for row in rows if row["running"]]
        done = self.store.count(study=key)
        if done != self._done:
            self._done, self.asked = done, asked_cells(self.store, self.record)
        failed = len(self.store.failures(study=key))
        state: dict[str, Any] = jsonable(
            {
                "study": key,
                "name": self.record.name,
                "asked": self.asked,
                "done": done,
                "failed": failed,
                "running": len(running),
                "rows_total": len(rows),
                "seconds": self.store.seconds(study=key),
                "left": self._left(progress, done, failed) if running else None,
                "rows": rows[:MOST_ROWS],
                "lanes": {name: self._lanes(progress[name].get("model", name)) for name in running[:8]},
                "events": list(self._events)[::-1],
            }
        )
        return state

    def _lanes(self, model: str) -> list[dict[str, Any]]:
        lanes = self.store.lanes(study=self.record.key, model=model)
        lanes.sort(key=lambda lane: (lane.status != "training", lane.task, lane.learning_rate))
        return [lane_payload(lane) for lane in lanes[:MOST_LANES]]

    def _left(self, progress: dict[str, dict[str, Any]], done: int, failed: int) -> float | None:
        """Estimate the seconds left from the pace of the cells that the rows running now have finished."""
        began = min((float(s["began"]) for s in progress.values() if is_running(s) and s.get("began")), default=None)
        if began is None or self.asked is None:
            return None
        times = sorted(event["at"] for event in self._events if event["at"] >= began)
        todo = self.asked - done - failed
        if not times or todo <= 0:
            return None
        since = times[0] if len(times) == RECENT else began  # only the last events are kept
        return (time.time() - since) / len(times) * todo

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


def _row(name: str, state: dict[str, Any]) -> dict[str, Any]:
    wanted = ("phase", "done", "total", "unit", "rate", "left", "tokens_per_second", "validation", "best", "began",
              "ended", "at", "lanes_active", "lanes_waiting")  # fmt: skip
    return {"name": name, "running": is_running(state), **{key: state.get(key) for key in wanted}}


def _brief(event: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    payload = {k: v for k, v in event["payload"].items() if k != "traceback"}
    when = datetime.fromisoformat(event["created"]).timestamp()
    return {"id": event["id"], "kind": event["kind"], "at": when, **payload}

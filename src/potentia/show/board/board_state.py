"""The board's desk: the store it reads, the snapshots it keeps, the studies it watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import HTTPException, Response
from starlette.concurrency import run_in_threadpool

from potentia.errors import StoreError
from potentia.show.board.live import Watch, study_summary
from potentia.show.board.snapshot import Snapshot, Snapshots, Worker, make_snapshot
from potentia.store import CellRecord, Store, StudyRecord
from potentia.values.scores import ItemOutcome

if TYPE_CHECKING:
    from concurrent.futures import Executor

LED = 6  # studies of the home page whose leader is told: each costs its findings
FRESH = 1.0  # seconds for which a count is believed

T = TypeVar("T")


class Desk:
    """Everything that pages and API share. Reads the store, never writes it."""

    def __init__(self, where: str, *, executor: Executor | None = None, history: tuple[str, ...] = ()) -> None:
        self.where = where
        self.store = Store.open(where, readonly=True)
        self.worker = Worker(executor)
        self.snapshots = Snapshots(where, self.worker, partial(make_snapshot, history=history))
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
        self.worker.close()
        self.store.close()

    def _fresh(self, name: str, read: Callable[[], T]) -> T:
        """Return what is read, as of a second ago at most."""
        at, known = self._read.get(name, (-FRESH, None))
        if time.monotonic() - at > FRESH:
            known = read()
            self._read[name] = (time.monotonic(), known)
        return cast(T, known)

    def studies(self) -> list[StudyRecord]:
        """Return the studies."""
        return self._fresh("studies", self.store.studies)

    def summaries(self) -> list[dict[str, Any]]:
        """Return every study with its counts."""
        return self._fresh("summaries", lambda: [study_summary(self.store, record) for record in self.studies()])

    def stamp(self, key: str) -> tuple[int, int]:
        """Return how many cells and failures a study has."""

        def counts() -> tuple[int, int]:
            return self.store.count(study=key), len(self.store.failures(study=key))

        return self._fresh(f"stamp {key}", counts)

    async def overview(self) -> list[dict[str, Any]]:
        """Return the summaries with the time left of what runs, and who leads in the studies opened last."""
        told = []
        for place, summary in enumerate(await run_in_threadpool(self.summaries)):
            key, left, headline, behind = summary["key"], None, "", False
            if summary["running"]:
                left = (await run_in_threadpool(self.watch(key).look))["left"]
            if place < LED and summary["done"]:
                made = await self.peek(key)  # the page never waits for findings; the next one has them
                if made is not None:
                    headline = str(made.answer.get("headline", ""))
                    behind = made.stamp[0] < (summary["asked"] or summary["done"])
            told.append({**summary, "left": left, "headline": headline, "so_far": behind})
        return told

    def study(self, name: str) -> StudyRecord:
        """Return the study with this key or name, or answer 404."""
        records = self.studies()
        found = next((r for r in records if r.key == name), None) or next((r for r in records if r.name == name), None)
        if found is None:
            raise HTTPException(404, "there is no such study")
        return found

    def watch(self, name: str) -> Watch:
        """Return the watch of a study; all its listeners share one."""
        record = self.study(name)
        return self._watches.setdefault(record.key, Watch(self.store, record))

    async def snapshot(self, key: str) -> Snapshot:
        """Return the study's latest snapshot."""
        return await self.snapshots.get(key, await run_in_threadpool(self.stamp, key))

    async def peek(self, key: str) -> Snapshot | None:
        """Return the study's latest snapshot, or None while the first is being made."""
        return self.snapshots.peek(key, await run_in_threadpool(self.stamp, key))

    async def warm(self) -> None:
        """Begin the first snapshot of the study opened last, before anyone asks."""
        records = await run_in_threadpool(self.studies)
        if records:
            await self.peek(records[0].key)

    def cell(self, key: str) -> CellRecord:
        """Return one cell, or answer 404."""
        found = None if "\0" in key else self.store.cell(key)
        if found is None:
            raise HTTPException(404, "there is no such cell")
        return found

    def cell_of(self, study: str, model: str, task: str, protocol: str) -> CellRecord:
        """Return the cell of a model, a task and a protocol, or answer 404."""
        known = not any("\0" in part for part in (model, task, protocol))
        found = self.store.cells(study=study, model=model, task=task, protocol=protocol, limit=1) if known else []
        if not found:
            raise HTTPException(404, "there is no such cell")
        return found[0]

    def _items(self, key: str) -> list[ItemOutcome]:
        try:
            return self.store.items(key)
        except StoreError as error:  # the items folder was left behind
            raise HTTPException(404, error.message) from error


def json_text(text: str | None) -> Any:
    """Answer with JSON made earlier, or 404."""
    if text is None:
        raise HTTPException(404, "there is nothing of that name")
    return Response(text, media_type="application/json")

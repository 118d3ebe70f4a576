"""Whose turn it is: rows that wait, those that another process has, and the lease of a row under way."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from potentia.errors import StoreError
from potentia.run.plan import RowPlan

if TYPE_CHECKING:
    from potentia.store import LeaseRecord, Store

AGAIN_SECONDS = 1.0  # after which a row that another process has is asked for again


class Turns:
    """Rows in order; one that another process has comes back at the end, after the others."""

    def __init__(self, rows: Iterable[RowPlan]) -> None:
        self._ready = deque(rows)
        self._held: deque[tuple[float, RowPlan]] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._held)

    def take(self, own: Collection[str] = ()) -> RowPlan | None:
        """Return the next row to try, one of these first, or None while all that are left are held by others."""
        if not self._ready and self._held and self._held[0][0] <= time.monotonic():
            self._ready.append(self._held.popleft()[1])
        row = next((row for row in self._ready if row.model.name in own), self._ready[0] if self._ready else None)
        if row is not None:
            self._ready.remove(row)
        return row

    def held(self, row: RowPlan) -> None:
        """Put a row back that another process has."""
        self._held.append((time.monotonic() + AGAIN_SECONDS, row))

    def clear(self) -> None:
        """Forget what waits."""
        self._ready.clear()
        self._held.clear()


class Keeper:
    """Says that a row's process is alive while the row runs, and hears when the lease was taken away."""

    def __init__(self, store: Store, lease: LeaseRecord) -> None:
        self.store, self.lease = store, lease
        self.lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name=f"lease of {lease.row}")

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        try:
            self.store.let_go(self.lease)
        except StoreError:
            return  # the store is away: the lease ends with this process

    def _beat(self) -> None:
        from potentia.store import BEAT_SECONDS

        while not self._over.wait(BEAT_SECONDS) and not self.lost:
            try:
                self.lost = not self.store.beat(self.lease)
            except StoreError:
                continue  # the row hears of it too, and decides

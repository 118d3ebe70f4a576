"""Passes and updates of lanes as captured graphs: a step of small lanes is hundreds of launches, a graph is one.

A pass is laid out in a bucket of static sizes (``layout``) and runs as ``static`` says. The first pass of a bucket runs
operation by operation, which also readies every kernel; the second is captured while it is queued, and from then on the
graph is replayed. Graphs share one pool of memory, since only one runs at a time, and the ones used longest ago are let
go. Where the arithmetic of a pass outlasts its launches, nothing is captured. What a model does that cannot be captured
is said once, and its passes run uncaptured.

Nothing here waits for the device: while a step runs, the host lays out the next one and sends it from pinned memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potentia.engine.memory import out_of_memory
from potentia.engine.tune.layout import Bucket, Ints32, StaticInputs, lay
from potentia.engine.tune.passes import Lesson, cut_end_to_end
from potentia.engine.tune.planner import PassPlan
from potentia.engine.tune.static import StaticPass
from potentia.engine.tune.steps import COLUMNS, Moments, Standing, Table, apply_update

log = logging.getLogger(__name__)

MOST_GRAPHS = 12
LAUNCH_BOUND = 2e13  # parameters × tokens under which launches can outlast the arithmetic


class Post:
    """Sends arrays to the device from pinned memory, without waiting for what was sent before."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def send(self, count: int, fill: Callable[[Ints32], None], into: Tensor) -> None:
        """Let ``fill`` write ``count`` 32-bit numbers, and copy them ``into`` a tensor."""
        if self.device.type != "cuda":
            array = np.empty(count, np.int32)
            fill(array)
            into.copy_(torch.from_numpy(array))
            return
        memory = self._free(count)
        fill(memory.numpy()[:count])
        into.copy_(memory[:count], non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._sent.append((memory, arrived))

    def _free(self, count: int) -> Tensor:
        while self._sent and self._sent[0][1].query():  # type: ignore[no-untyped-call]
            memory, _ = self._sent.popleft()
            if memory.numel() >= count:
                return memory
        if len(self._sent) > 64:  # the host is far ahead
            self._sent[0][1].synchronize()
            return self._free(count)
        return torch.empty(count + count // 4, dtype=torch.int32, pin_memory=True)


@dataclass
class _Shelf:
    inputs: StaticInputs
    graph: torch.cuda.CUDAGraph | None = None
    uses: int = 0


class StaticSteps:
    """Steps of lanes through static passes: gradients of a step's rows, then the update of all lanes."""

    def __init__(self, static: StaticPass, optimizer: Moments, standing: Standing) -> None:
        self.static, self.optimizer, self.standing = static, optimizer, standing
        self.bank = static.bank
        self.device = self.bank.device
        self.parameters = sum(p.numel() for p in static.split.model.parameters())
        self.capturing = self.device.type == "cuda"
        self.captured = self.replayed = 0
        self._post, self._settings_post = Post(self.device), Post(self.device)
        self._shelves: OrderedDict[Bucket, _Shelf] = OrderedDict()
        self._pool: Any = None
        self._table = torch.zeros(self.bank.slots, COLUMNS, device=self.device)
        self._update_graph: torch.cuda.CUDAGraph | None = None
        self._updates = 0

    # ---- gradients ------------------------------------------------------------------------------------------------

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank, and its losses into the pass's."""
        for chosen in cut_end_to_end(rows, plan):
            row = lay(chosen)
            worth = self.capturing and not plan.checkpointing and len(row.ids) * self.parameters < LAUNCH_BOUND
            bucket = Bucket.holding(len(row.ids), len(row.targets), self.bank.slots, few=worth)
            shelf = self._shelf(bucket) if worth else _Shelf(StaticInputs.on(self.device, bucket))

            def fill(array: Ints32, row: Any = row, bucket: Bucket = bucket) -> None:
                row.fill(bucket, array)

            self._post.send(bucket.size, fill, shelf.inputs.buffer)
            if worth:
                self._run(shelf)
            else:
                self.static(shelf.inputs, recompute=plan.checkpointing)

    def _shelf(self, bucket: Bucket) -> _Shelf:
        if bucket not in self._shelves:
            while len(self._shelves) >= MOST_GRAPHS:
                self._shelves.popitem(last=False)
            self._shelves[bucket] = _Shelf(StaticInputs.on(self.device, bucket))
        self._shelves.move_to_end(bucket)
        return self._shelves[bucket]

    def _run(self, shelf: _Shelf) -> None:
        if shelf.graph is None and shelf.uses > 0 and self.capturing:
            shelf.graph = self._capture(lambda: self.static(shelf.inputs))
        shelf.uses += 1
        if shelf.graph is None:
            self.static(shelf.inputs)
        else:
            self.replayed += 1
            shelf.graph.replay()

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture what ``work`` queues, or say once why that cannot be done."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # what passes kept for themselves is the pool's now
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            self.capturing = False
            self.release()
            torch.cuda.synchronize(self.device)
            if out_of_memory(error):
                log.warning("no memory for captured passes: they run one operation at a time")
            else:
                log.warning("passes cannot be captured (%s): they run one operation at a time", str(error)[:200])
            return None
        self.captured += 1
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def clear(self) -> None:
        """Forget a step that was begun: its gradients and losses."""
        self.bank.grads.zero_()
        self.static.losses.zero_()

    def release(self) -> None:
        """Let go of all graphs and their memory."""
        self._shelves.clear()
        self._update_graph, self._pool = None, None

    # ---- the update -----------------------------------------------------------------------------------------------

    def update(self, table: Table) -> None:
        """Update the lanes that ``table`` (slots, 11) names, by the gradients added since the last update."""
        flat = self._table.view(torch.int32).view(-1)
        self._settings_post.send(table.size, lambda array: np.copyto(array, table.view(np.int32).ravel()), flat)
        if self._update_graph is None and self._updates > 0 and self.capturing:
            self._update_graph = self._capture(self._update)
        self._updates += 1
        if self._update_graph is None:
            self._update()
        else:
            self._update_graph.replay()

    def _update(self) -> None:
        apply_update(self.bank, self.optimizer, self.standing, self.static.losses, self._table)
        self.static.losses.zero_()

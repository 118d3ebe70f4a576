"""Steps of lanes through packed passes, captured as graphs where launching their kernels is what takes the time."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import GRAIN, STRETCH, Bucket, PackedInputs, lay_out_rows
from potentia.engine.models.device_layout import may_give_back, out_of_memory
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates, UpdateTable, apply_update
from potentia.engine.steps.padded_pass import copy_into
from potentia.engine.steps.pass_plan import PassPlan, divide_into_packed_passes

log = logging.getLogger(__name__)

MOST_GRAPHS = 16
LAUNCH_BOUND = 2e13  # parameters × tokens under which launches can outlast the arithmetic
FILLED_FREE = (
    3e11  # parameters × tokens: what a millisecond or two fill up is cheaper than one more graph
)
MOST_FILLED = 1024  # tokens
# parameters × tokens under which a pass is a chain of short kernels: where processes share the GPU each would wait
# behind the long ones of others (one lane of 135M: 10 ms a step alone, 91 beside five rows), so these are foreground
HURRIED = 2e12


@dataclass
class _Piece:
    """Work that runs operation by operation at first, which readies every kernel, and is captured later."""

    inputs: PackedInputs | None = None
    hurried: bool = False
    graph: torch.cuda.CUDAGraph | None = None
    uses: int = 0


class PackedSteps:
    """Steps of lanes through static passes: a step of small lanes is hundreds of launches, a captured graph is one.

    The second pass is captured while it is queued, and from then on replayed; a pass of another bucket at once,
    since its kernels are ready and its memory is the graphs' own. Graphs share one pool, which is as large as the
    largest of them needs: that comes first. Those used longest ago are let go. Where the arithmetic of a pass
    outlasts its launches, nothing is captured. Nothing here waits for the device.
    """

    def __init__(self, static: PackedPass, states: LaneStates) -> None:
        self.static, self.states, self.losses = static, states, static.losses
        self.bank = static.bank
        self.device = self.bank.device
        self.parameters = sum(p.numel() for p in static.split.model.parameters())
        self.grain = 1 << int(np.log2(np.clip(FILLED_FREE / self.parameters, GRAIN, MOST_FILLED)))
        self.capturing = self.device.type == "cuda"
        self.captured = self.replayed = 0
        self._passes: OrderedDict[Bucket, _Piece] = OrderedDict()
        self._pool: Any = None
        self.most_graphs = MOST_GRAPHS
        self.most_tokens = 0  # of a step that is to come, where that is known
        may_give_back(self)
        self._table = torch.zeros(self.bank.slots, UPDATE_COLUMNS, device=self.device)
        self._updating = _Piece()

    def divide_rows(self, rows: Sequence[TrainingRow], plan: PassPlan) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""
        return divide_into_packed_passes(rows, plan)

    def add_gradients(self, rows: Sequence[TrainingRow], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank, and its losses into the pass's."""
        for chosen in self.divide_rows(rows, plan):
            row = lay_out_rows(chosen)
            tokens = len(row.ids)
            worth = (
                self.capturing
                and not plan.checkpointing
                and tokens * self.parameters < LAUNCH_BOUND
            )
            if worth and not any(
                piece.graph for piece in self._passes.values()
            ):  # all will have its memory
                passes = max(1, -(-self.most_tokens // plan.token_budget))
                longest = max(len(lesson.ids) for lesson in chosen)
                tokens = max(
                    tokens,
                    -(-self.most_tokens // passes) + STRETCH * self.bank.slots // passes + longest,
                )
            bucket = Bucket.holding(
                tokens, len(row.targets), self.bank.slots, few=worth, grain=self.grain
            )
            if worth:
                piece = self._pass(bucket)
                assert piece.inputs is not None
                copy_into(row.filled(bucket), piece.inputs.buffer)
                self._run(piece, partial(self.static, piece.inputs))
            else:
                inputs = PackedInputs.on(self.device, bucket)
                copy_into(row.filled(bucket), inputs.buffer)
                self.static(inputs, recompute=plan.checkpointing)

    def update(self, table: UpdateTable) -> None:
        """Update the lanes that ``table`` (slots, 11) names, by the gradients added since the last update."""
        copy_into(table, self._table)
        self._run(self._updating, self._update)

    def _update(self) -> None:
        apply_update(self.bank, self.states, self.losses, self._table)
        self.losses.zero_()

    def clear(self) -> None:
        """Forget a step that was begun: its gradients and losses."""
        self.bank.grads.zero_()
        self.losses.zero_()

    # ---- graphs ---------------------------------------------------------------------------------------------------

    def _pass(self, bucket: Bucket) -> _Piece:
        if bucket not in self._passes:
            if self._passes and bucket.tokens > max(other.tokens for other in self._passes):
                self.release()  # no memory of theirs is large enough for it
            while len(self._passes) >= self.most_graphs:
                self._passes.popitem(last=False)
            hurried = bucket.tokens * self.parameters < HURRIED
            self._passes[bucket] = _Piece(PackedInputs.on(self.device, bucket), hurried)
        self._passes.move_to_end(bucket)
        return self._passes[bucket]

    def _run(self, piece: _Piece, work: Callable[[], None]) -> None:
        at_once = (
            self.captured > 0 and self.most_graphs > 1
        )  # one that the next pass throws out is not worth it
        if piece.graph is None and self.capturing and (piece.uses > 0 or at_once):
            piece.graph = self._capture(piece, work)
        piece.uses += 1
        self.replayed += piece.graph is not None
        work() if piece.graph is None else piece.graph.replay()

    def _capture(self, piece: _Piece, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture what ``work`` queues, or say once why that cannot be done; kernels keep their stream's priority.

        A pass that finds no memory is an error, as it would be uncaptured: passes are made smaller then. What cannot be
        captured at once may be later: a kernel that is new has to be loaded.
        """
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # what passes kept for themselves is the pool's now
        if not any(piece.graph is not None for piece in (*self._passes.values(), self._updating)):
            self._pool = None  # it went with the last of its graphs
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self.device, priority=-1) if piece.hurried else None  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                work()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            torch.cuda.synchronize(self.device)
            if out_of_memory(error) and piece.inputs is not None:
                raise
            if piece.uses > 0 and not out_of_memory(error):
                self.capturing = False
                self.release()
                log.warning(
                    "passes cannot be captured (%s): they run one operation at a time",
                    str(error)[:200],
                )
            return None
        self.captured += 1
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def give_back(self) -> bool:
        """Let go of all graphs for somebody who lacks memory, and keep half as many from now on."""
        count = sum(piece.graph is not None for piece in self._passes.values())
        if count:
            self.most_graphs = max(1, count // 2)
        self.release()
        return count > 0

    def release(self) -> None:
        """Let go of all graphs and their memory."""
        self._passes.clear()
        self._updating.graph, self._pool = None, None

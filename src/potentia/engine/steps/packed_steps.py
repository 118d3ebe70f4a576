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
from potentia.engine.layers.row_layout import (
    GRAIN,
    STRETCH,
    Bucket,
    PackedInputs,
    PackedRows,
    lay_out_rows,
)
from potentia.engine.models.device_layout import may_give_back, out_of_memory
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates, UpdateTable, apply_update
from potentia.engine.steps.padded_pass import copy_into
from potentia.engine.steps.pass_plan import (
    PassPlan,
    check_every_row_once,
    divide_into_packed_passes,
)

log = logging.getLogger(__name__)

MOST_GRAPHS = 16
LAUNCH_BOUND = 2e13  # parameters × tokens under which launches can outlast the arithmetic
# parameters × tokens that fill up a bucket in a millisecond or two, which is cheaper than one more graph
CHEAP_FILLING = 3e11
MOST_FILLING = 1024  # tokens
# parameters × tokens under which a pass is a chain of short kernels: where processes share the GPU each would wait
# behind the long ones of others (one lane of 135M: 10 ms a step alone, 91 beside five rows), so these are foreground
FOREGROUND_BOUND = 2e12


@dataclass
class _CapturedWork:
    """Work that runs operation by operation at first, which readies every kernel, and is captured later."""

    inputs: PackedInputs | None = None
    in_foreground: bool = False
    graph: torch.cuda.CUDAGraph | None = None
    uses: int = 0


class PackedSteps:
    """Steps of lanes through static passes: a step of small lanes is hundreds of launches, a captured graph is one.

    The second pass is captured while it is queued, and from then on replayed; a pass of another bucket at once,
    since its kernels are ready and its memory is the graphs' own. Graphs share one pool, which is as large as the
    largest of them needs: that comes first. Those used longest ago are let go. Where the arithmetic of a pass
    outlasts its launches, nothing is captured. Nothing here waits for the device.
    """

    def __init__(self, packed_pass: PackedPass, states: LaneStates) -> None:
        self.packed_pass = packed_pass
        self.states = states
        self.losses = packed_pass.losses
        self.bank = packed_pass.bank
        self.device = self.bank.device
        model = packed_pass.split.model
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.bucket_grain = _choose_bucket_grain(self.parameters)
        self.capturing = self.device.type == "cuda" and not packed_pass.mixes_tokens
        self.captured = 0
        self.replayed = 0
        self.most_graphs = MOST_GRAPHS
        self.most_tokens = 0  # of a step that is to come, where that is known
        self._passes: OrderedDict[Bucket, _CapturedWork] = OrderedDict()
        self._pool: Any = None
        self._table = torch.zeros(self.bank.slots, UPDATE_COLUMNS, device=self.device)
        self._updating = _CapturedWork()
        may_give_back(self)

    def divide_rows(self, rows: Sequence[TrainingRow], plan: PassPlan) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""
        passes = divide_into_packed_passes(rows, plan)
        check_every_row_once(rows, passes)
        return passes

    def add_gradients(self, rows: Sequence[TrainingRow], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank, and its losses into the pass's."""
        for pass_rows in self.divide_rows(rows, plan):
            packed = lay_out_rows(pass_rows)
            is_worth_capturing = self.capturing and not plan.checkpointing
            if len(packed.ids) * self.parameters >= LAUNCH_BOUND:
                is_worth_capturing = False
            if is_worth_capturing:
                self._run_captured_pass(packed, pass_rows, plan)
            else:
                self._run_single_pass(packed, plan)

    def _run_captured_pass(
        self, packed: PackedRows, pass_rows: Sequence[TrainingRow], plan: PassPlan
    ) -> None:
        """Run a pass through the graph of its bucket."""
        tokens = len(packed.ids)
        has_graphs = any(work.graph for work in self._passes.values())
        if not has_graphs:  # the first graph's memory is all graphs' memory
            tokens = max(tokens, self._tokens_of_largest_pass(pass_rows, plan))
        bucket = Bucket.holding(
            tokens, len(packed.targets), self.bank.slots, coarse=True, grain=self.bucket_grain
        )
        work = self._work_of_bucket(bucket)
        assert work.inputs is not None
        copy_into(packed.filled(bucket), work.inputs.buffer)
        self._run(work, partial(self.packed_pass, work.inputs))

    def _run_single_pass(self, packed: PackedRows, plan: PassPlan) -> None:
        """Run a pass operation by operation, in the least bucket that holds it."""
        bucket = Bucket.holding(
            len(packed.ids),
            len(packed.targets),
            self.bank.slots,
            coarse=False,
            grain=self.bucket_grain,
        )
        inputs = PackedInputs.on(self.device, bucket)
        copy_into(packed.filled(bucket), inputs.buffer)
        if self.packed_pass.mixes_tokens:
            inputs.group_rows_of(packed)
        self.packed_pass(inputs, recompute=plan.checkpointing)

    def _tokens_of_largest_pass(self, pass_rows: Sequence[TrainingRow], plan: PassPlan) -> int:
        """Return how many tokens the largest pass of the steps to come may have."""
        passes = max(1, -(-self.most_tokens // plan.token_budget))
        longest_row = max(len(row.ids) for row in pass_rows)
        filling = STRETCH * self.bank.slots // passes
        return -(-self.most_tokens // passes) + filling + longest_row

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

    def _work_of_bucket(self, bucket: Bucket) -> _CapturedWork:
        """Return the work of a bucket, the latest used from now on; it takes the place of one used longest ago."""
        if bucket not in self._passes:
            if self._passes and bucket.tokens > max(other.tokens for other in self._passes):
                self.release()  # no memory of theirs is large enough for it
            while len(self._passes) >= self.most_graphs:
                self._passes.popitem(last=False)
            in_foreground = bucket.tokens * self.parameters < FOREGROUND_BOUND
            self._passes[bucket] = _CapturedWork(
                PackedInputs.on(self.device, bucket), in_foreground
            )
        self._passes.move_to_end(bucket)
        return self._passes[bucket]

    def _run(self, captured: _CapturedWork, work: Callable[[], None]) -> None:
        # a graph that the next pass throws out is not worth capturing at once
        captures_at_once = self.captured > 0 and self.most_graphs > 1
        is_ready = captured.uses > 0 or captures_at_once
        if captured.graph is None and self.capturing and is_ready:
            captured.graph = self._capture(captured, work)
        captured.uses += 1
        if captured.graph is None:
            work()
        else:
            self.replayed += 1
            captured.graph.replay()

    def _capture(
        self, captured: _CapturedWork, work: Callable[[], None]
    ) -> torch.cuda.CUDAGraph | None:
        """Capture what ``work`` queues, or say once why that cannot be done; kernels keep their stream's priority.

        A pass that finds no memory is an error, as it would be uncaptured: passes are made smaller then. What cannot be
        captured at once may be later: a kernel that is new has to be loaded.
        """
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # what passes kept for themselves is the pool's now
        if not any(other.graph is not None for other in (*self._passes.values(), self._updating)):
            self._pool = None  # it went with the last of its graphs
        graph = torch.cuda.CUDAGraph()
        stream = None
        if captured.in_foreground:
            stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                work()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            torch.cuda.synchronize(self.device)
            if out_of_memory(error) and captured.inputs is not None:
                raise
            if captured.uses > 0 and not out_of_memory(error):
                self._stop_capturing(error)
            return None
        self.captured += 1
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def _stop_capturing(self, error: Exception) -> None:
        """Capture nothing from now on, and say why."""
        self.capturing = False
        self.release()
        log.warning(
            "passes cannot be captured (%s): they run one operation at a time", str(error)[:200]
        )

    def give_back(self) -> bool:
        """Let go of all graphs for somebody who lacks memory, and keep half as many from now on."""
        count = sum(work.graph is not None for work in self._passes.values())
        if count:
            self.most_graphs = max(1, count // 2)
        self.release()
        return count > 0

    def release(self) -> None:
        """Let go of all graphs and their memory."""
        self._passes.clear()
        self._updating.graph = None
        self._pool = None


def _choose_bucket_grain(parameters: int) -> int:
    """Return how coarse buckets are: the power of two of tokens that cost little to fill up."""
    tokens = np.clip(CHEAP_FILLING / parameters, GRAIN, MOST_FILLING)
    return 1 << int(np.log2(tokens))

"""Training steps of lanes through packed passes, captured as CUDA graphs where launching kernels takes the time.

A packed pass computes rows of many lanes (fine-tunings) laid end to end. They lie in a *bucket*: a buffer of fixed
sizes, the same for all passes of about as many tokens, so that a pass's kernels can be captured once and replayed for
other rows.
"""

from __future__ import annotations

import logging
import math
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
from potentia.engine.models.device_layout import is_out_of_memory, may_give_back
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates, UpdateTable, apply_update
from potentia.engine.steps.padded_pass import copy_into
from potentia.engine.steps.pass_plan import (
    PassPlan,
    check_every_row_once,
    divide_into_packed_passes,
)

log = logging.getLogger(__name__)

MOST_GRAPHS = 16  # that are held at once
LAUNCH_BOUND = 2e13  # parameters × tokens under which launches can outlast the arithmetic
# parameters × tokens of padding that take a millisecond or two to compute, which is cheaper than one more graph
CHEAP_FILLING = 3e11
MOST_FILLING = 1024  # tokens of padding at the end of a bucket
# parameters × tokens under which a pass is a chain of short kernels. Where processes share the GPU, each of these would
# wait behind the long kernels of others (one lane of 135M: 10 ms a step alone, 91 beside five other processes), so such
# passes run at a higher priority.
FOREGROUND_BOUND = 2e12


@dataclass
class _CapturedWork:
    """A pass over one bucket, or the update: it runs operation by operation at first, and is captured later.

    The first run compiles and loads every kernel, which cannot be done while a graph is captured.
    """

    inputs: PackedInputs | None = None  # None for the update
    in_foreground: bool = False  # whether it runs at a higher priority than other processes' work
    graph: torch.cuda.CUDAGraph | None = None
    uses: int = 0


class PackedStepper:
    """Makes steps through packed passes. Hundreds of kernel launches a step become one where a graph is captured.

    The first bucket runs uncaptured once; its second pass is captured, and later ones replay the graph. From then on,
    new buckets are captured at their first pass, as all kernels are loaded. The graphs share one memory pool as large
    as the largest of them needs, so the largest bucket comes first. When there are too many, the graph used longest ago
    is dropped. Nothing is captured where the arithmetic of a pass outlasts its launches. Only capturing waits for the
    device.
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
        self.may_capture = self.device.type == "cuda" and packed_pass.can_be_captured
        self.capture_count = 0
        self.replay_count = 0
        self.graph_limit = MOST_GRAPHS
        self.largest_step_tokens = 0  # of the steps to come; 0 where nobody has said
        self._passes: OrderedDict[Bucket, _CapturedWork] = OrderedDict()
        self._pool: Any = None
        self._table = torch.zeros(self.bank.slots, UPDATE_COLUMNS, device=self.device)
        self._updating = _CapturedWork()
        may_give_back(self)

    def divide_rows(
        self, rows: Sequence[TrainingRow], pass_plan: PassPlan
    ) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""
        passes = divide_into_packed_passes(rows, pass_plan)
        check_every_row_once(rows, passes)
        return passes

    def add_gradients(self, rows: Sequence[TrainingRow], pass_plan: PassPlan) -> None:
        """Add a step's gradients to the bank's and its losses to ``losses``. The rows come slot by slot."""
        for pass_rows in self.divide_rows(rows, pass_plan):
            packed = lay_out_rows(pass_rows)
            # a pass that recomputes activations is not captured
            is_worth_capturing = self.may_capture and not pass_plan.checkpointing
            if len(packed.ids) * self.parameters >= LAUNCH_BOUND:
                is_worth_capturing = False
            if is_worth_capturing:
                self._run_captured_pass(packed, pass_rows, pass_plan)
            else:
                self._run_single_pass(packed, pass_plan)

    def _run_captured_pass(
        self, packed: PackedRows, pass_rows: Sequence[TrainingRow], pass_plan: PassPlan
    ) -> None:
        """Run a pass through the graph of its bucket, which may have to be captured first."""
        tokens = len(packed.ids)
        has_graphs = any(captured_pass.graph for captured_pass in self._passes.values())
        if not has_graphs:  # later graphs use the memory of this one, so it has to be the largest
            tokens = max(tokens, self._estimate_largest_pass(pass_rows, pass_plan))
        bucket = Bucket.holding(
            tokens, len(packed.targets), self.bank.slots, coarse=True, grain=self.bucket_grain
        )
        captured_pass = self._work_of_bucket(bucket)
        assert captured_pass.inputs is not None
        copy_into(packed.filled(bucket), captured_pass.inputs.buffer)
        self._run(captured_pass, partial(self.packed_pass, captured_pass.inputs))

    def _run_single_pass(self, packed: PackedRows, pass_plan: PassPlan) -> None:
        """Run a pass operation by operation, in the smallest bucket that holds it."""
        bucket = Bucket.holding(
            len(packed.ids),
            len(packed.targets),
            self.bank.slots,
            coarse=False,
            grain=self.bucket_grain,
        )
        inputs = PackedInputs.on(self.device, bucket)
        copy_into(packed.filled(bucket), inputs.buffer)
        if self.packed_pass.scans_tokens:
            inputs.group_rows_of(packed)
        self.packed_pass(inputs, recompute=pass_plan.checkpointing)

    def _estimate_largest_pass(self, pass_rows: Sequence[TrainingRow], pass_plan: PassPlan) -> int:
        """Return how many tokens the largest pass of the steps to come may have.

        Passes of a step are about equally large; one may be larger by a row, and its lanes are filled up to stretches.
        """
        pass_count = max(1, math.ceil(self.largest_step_tokens / pass_plan.token_budget))
        longest_row = max(len(row.ids) for row in pass_rows)
        filling = STRETCH * self.bank.slots // pass_count
        return math.ceil(self.largest_step_tokens / pass_count) + filling + longest_row

    def update(self, table: UpdateTable) -> None:
        """Update lanes by the gradients added since the last update, as ``table`` says (see ``lane_states``)."""
        copy_into(table, self._table)
        self._run(self._updating, self._update)

    def _update(self) -> None:
        apply_update(self.bank, self.states, self.losses, self._table)
        self.losses.zero_()

    def clear(self) -> None:
        """Drop the gradients and losses of a step that was begun."""
        self.bank.grads.zero_()
        self.losses.zero_()

    # ---- graphs ---------------------------------------------------------------------------------------------------

    def _work_of_bucket(self, bucket: Bucket) -> _CapturedWork:
        """Return a bucket's work, made anew for a new bucket; where there are too many, drop that used longest ago."""
        if bucket not in self._passes:
            largest_tokens = max((held.tokens for held in self._passes), default=bucket.tokens)
            if bucket.tokens > largest_tokens:
                self.release()  # the graphs' shared memory is too small for this bucket
            while len(self._passes) >= self.graph_limit:
                self._passes.popitem(last=False)
            in_foreground = bucket.tokens * self.parameters < FOREGROUND_BOUND
            self._passes[bucket] = _CapturedWork(
                PackedInputs.on(self.device, bucket), in_foreground
            )
        self._passes.move_to_end(bucket)
        return self._passes[bucket]

    def _run(self, captured: _CapturedWork, work: Callable[[], None]) -> None:
        """Replay the graph of some work, or do the work and capture it where that is possible by now."""
        # kernels are loaded once anything was captured; but the next pass would drop a graph that is the only one
        captures_at_once = self.capture_count > 0 and self.graph_limit > 1
        is_ready = captured.uses > 0 or captures_at_once
        if captured.graph is None and self.may_capture and is_ready:
            captured.graph = self._capture(captured, work)
        captured.uses += 1
        if captured.graph is None:
            work()
        else:
            self.replay_count += 1
            captured.graph.replay()

    def _capture(
        self, captured: _CapturedWork, work: Callable[[], None]
    ) -> torch.cuda.CUDAGraph | None:
        """Capture the kernels that ``work`` launches, at their stream's priority; return None where that fails.

        Work that failed at its first use may be captured at its second, when its kernels are loaded; work that fails
        later ends all capturing. A pass that runs out of memory is an error, as it would be uncaptured: the caller then
        makes passes smaller.
        """
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the pool needs the memory that uncaptured passes left cached
        held_work = (*self._passes.values(), self._updating)
        if not any(held.graph is not None for held in held_work):
            self._pool = None  # torch freed it with the last of its graphs
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
            log.debug("work that could not be captured", exc_info=error)
            torch.cuda.synchronize(self.device)
            if is_out_of_memory(error) and captured.inputs is not None:
                raise
            if captured.uses > 0 and not is_out_of_memory(error):
                self._stop_capturing(error)
            return None
        self.capture_count += 1
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def _stop_capturing(self, error: Exception) -> None:
        """Capture nothing from now on, and log why."""
        self.may_capture = False
        self.release()
        log.warning(
            "passes cannot be captured (%s): they run one operation at a time", str(error)[:200]
        )

    def give_back(self) -> bool:
        """Free all graphs because memory ran out, and hold half as many from now on; return whether there were any."""
        graph_count = sum(
            captured_pass.graph is not None for captured_pass in self._passes.values()
        )
        if graph_count:
            self.graph_limit = max(1, graph_count // 2)
        self.release()
        return graph_count > 0

    def release(self) -> None:
        """Free all graphs and their memory."""
        self._passes.clear()
        self._updating.graph = None
        self._pool = None


def _choose_bucket_grain(parameters: int) -> int:
    """Return the number of tokens that bucket sizes are multiples of: a power of two whose padding costs little."""
    padding_tokens = np.clip(CHEAP_FILLING / parameters, GRAIN, MOST_FILLING)
    return 1 << int(np.log2(padding_tokens))

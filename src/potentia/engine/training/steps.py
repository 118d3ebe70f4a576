"""A step of all lanes: the gradients of its rows, by one of two ways to make passes, then AdamW for all lanes at once.

Passes come as they are, or in static sizes (``static``); which of them a run takes, ``check`` decides. The update is
torch's AdamW with settings of its own for every lane: decay, first and second moment, bias corrections, after clipping
each lane's gradient to its own norm as ``clip_grad_norm_`` does, so a lane equals an adapter trained alone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.layers.packed_pass import Blocks, StaticPass
from potentia.engine.layers.row_layout import GRAIN, STRETCH, Bucket, StaticInputs, lay
from potentia.engine.models.device_layout import may_give_back, out_of_memory
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import operations
from potentia.engine.training.adapters import AdapterBank
from potentia.engine.training.passes import (
    HAND,
    LONG,
    SHARED,
    PassPlan,
    cut_end_to_end,
    divided,
    run_step,
    send,
    to_device,
)
from potentia.engine.training.schedule import Lesson, Schedule

Table = npt.NDArray[np.float32]
COLUMNS = 11  # of an update's table: nine settings, whether the lane takes a step, whether it is its first


class LaneStates:
    """What lanes have beside their adapters, by slot: AdamW's moments, and how they stand.

    Losses are summed since a lane's epoch began; ``unsound`` lanes had a loss or gradient that was no number.
    """

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.first, self.second = (torch.zeros(slots, width, device=device) for _ in range(2))
        self.loss_sums, self.first_losses = (
            torch.zeros(slots + 1, device=device) for _ in range(2)
        )
        self.unsound = torch.zeros(slots + 1, dtype=torch.bool, device=device)

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new lane."""
        for part in (self.first, self.second, self.loss_sums, self.unsound):
            part[slot].zero_()


def settings_row(schedule: Schedule, step: int, total: int) -> list[float]:
    """Return the nine numbers of the update number ``step`` (from 0).

    They are lr, 1 − lr·decay, 1 − β1, β2, 1 − β2, lr/(1 − β1^t), √(1 − β2^t), ε and the norm to clip to.
    """
    lr = schedule.learning_rate * schedule.factor(step, total)
    b1, b2 = schedule.betas
    t = step + 1
    clip = schedule.clip if schedule.clip > 0 else float("inf")
    size, root = lr / (1.0 - b1**t), (1.0 - b2**t) ** 0.5
    return [
        lr,
        1.0 - lr * schedule.weight_decay,
        1.0 - b1,
        b2,
        1.0 - b2,
        size,
        root,
        schedule.eps,
        clip,
    ]


@torch.no_grad()
def apply_update(bank: AdapterBank, states: LaneStates, losses: Tensor, table: Tensor) -> None:
    """Update the lanes that ``table`` (slots, 11) names by the bank's gradients, clear these, and note how lanes stand.

    A lane whose gradient is not finite is left untouched.
    """
    n = bank.slots
    norms = torch.linalg.vector_norm(bank.grads[:n], dim=1)
    active, first = table[:, 9] != 0, table[:, 10] != 0
    states.unsound[:n] |= active & ~(torch.isfinite(norms) & torch.isfinite(losses[:n]))
    states.loss_sums[:n] += torch.where(active, losses[:n], 0.0)
    states.first_losses[:n].copy_(torch.where(first, losses[:n], states.first_losses[:n]))
    operations(bank.device).update_(
        bank.weights, states.first, states.second, bank.grads, bank.work, bank.factors, table, norms
    )


class PlainSteps:
    """Passes as they come, one operation at a time."""

    def __init__(
        self, split: SplitModel, bank: AdapterBank, states: LaneStates, form: str = SHARED
    ) -> None:
        self.split, self.bank, self.states, self.form = split, bank, states, form
        self.losses = torch.zeros(
            bank.slots + 1, device=bank.device
        )  # of the step under way, by slot

    def divide_rows(self, rows: Sequence[Lesson], plan: PassPlan) -> list[list[Lesson]]:
        """Return the rows of every pass of a step."""
        return [chosen for chosen, _ in divided(rows, plan, self.form)]

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank. Rows come slot by slot."""
        self.losses = run_step(self.split, self.bank, rows, plan, self.form)

    def update(self, table: Table) -> None:
        """Update the lanes that ``table`` (slots, 11) names, by the gradients added since the last update."""
        apply_update(self.bank, self.states, self.losses, to_device(table, self.bank.device))

    def clear(self) -> None:
        """Forget a step that was begun."""
        self.bank.grads.zero_()

    def release(self) -> None:
        """Nothing is kept."""


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

    inputs: StaticInputs | None = None
    hurried: bool = False
    graph: torch.cuda.CUDAGraph | None = None
    uses: int = 0


class StaticSteps:
    """Steps of lanes through static passes: a step of small lanes is hundreds of launches, a captured graph is one.

    The second pass is captured while it is queued, and from then on replayed; a pass of another bucket at once,
    since its kernels are ready and its memory is the graphs' own. Graphs share one pool, which is as large as the
    largest of them needs: that comes first. Those used longest ago are let go. Where the arithmetic of a pass
    outlasts its launches, nothing is captured. Nothing here waits for the device.
    """

    def __init__(self, static: StaticPass, states: LaneStates) -> None:
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
        self._table = torch.zeros(self.bank.slots, COLUMNS, device=self.device)
        self._updating = _Piece()

    def divide_rows(self, rows: Sequence[Lesson], plan: PassPlan) -> list[list[Lesson]]:
        """Return the rows of every pass of a step."""
        return cut_end_to_end(rows, plan)

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank, and its losses into the pass's."""
        for chosen in self.divide_rows(rows, plan):
            row = lay(chosen)
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
                send(row.filled(bucket), piece.inputs.buffer)
                self._run(piece, partial(self.static, piece.inputs))
            else:
                inputs = StaticInputs.on(self.device, bucket)
                send(row.filled(bucket), inputs.buffer)
                self.static(inputs, recompute=plan.checkpointing)

    def update(self, table: Table) -> None:
        """Update the lanes that ``table`` (slots, 11) names, by the gradients added since the last update."""
        send(table, self._table)
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
            self._passes[bucket] = _Piece(StaticInputs.on(self.device, bucket), hurried)
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


Steps = PlainSteps | StaticSteps


def steps_in(
    form: str,
    split: SplitModel,
    bank: AdapterBank,
    states: LaneStates,
    blocks: Blocks | None = None,
) -> Steps:
    """Make steps in a form; ``blocks`` are the hand-written layers, where they are made already."""
    if form not in (HAND, LONG):
        return PlainSteps(split, bank, states, form)
    if form == HAND and blocks is None:
        blocks = Blocks.of(split.model)
    return StaticSteps(StaticPass(split, bank, blocks if form == HAND else None), states)

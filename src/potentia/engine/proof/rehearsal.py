"""The rehearsal of a run's first step: the real plan, all slots, all passes, before the first real update.

The check of a form (``training_check``) looks at six rows in three slots and one pass. What it cannot see is what only
the real step has: many slots, several passes, full batches, the run's own table of learning rates, a slot that
another lane had before. So the first step is made twice as it will be made, with made-up adapters in the lanes that
are compared, and is compared with code that is not ours:

* the **rows** of every lane with its examples: every text of the batch whole or cut by the rule, the prompt without
  loss, the last token (the end of text) with it;
* the **losses and gradients** of some lanes, among them the one in the last slot, with the model's own code and
  transformers' loss on exactly their rows, and with PEFT's own factor (α/r or α/√r);
* two **updates**, by gradients below the clip and above it, with torch's AdamW at the rate of transformers' schedule;
* **every lane** has a gradient and moves, and nothing else does.

A lane that begins is put into a slot full of another's moments, as lanes that join later are. Afterwards everything is
as it was: the run goes on with the same numbers to the last bit as one that was not rehearsed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.proof.handover_check import find_start_fault
from potentia.engine.proof.plan_check import find_rate_fault, find_row_fault
from potentia.engine.proof.reference import (
    Gradients,
    reference_gradients,
    reference_learning_rate,
    transformers_loss,
)
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.tolerance import (
    DRAWS,
    FEW_ROWS,
    MULTIPLE,
    UPDATE,
    WHOLE_BITS,
    Distance,
    is_whole,
    slots_distance,
)
from potentia.engine.steps.lane_states import update_settings

log = logging.getLogger(__name__)

MOST_COMPARED = 4  # lanes, where two do not meet all passes
LEFT_OVER = 0.5  # what a lane before left in a slot's moments, for the rehearsal
BELOW_CLIP = 0.5  # of the norm that gradients are clipped to
SECOND_GRADIENT = -0.6  # of the first: moments of two equal gradients would hide both betas
MOST_SCALED = 1000.0  # times: a norm that gradients are never clipped to is not tried


class TrainingSteps(Protocol):
    """How a run computes gradients and updates."""

    losses: Tensor

    def divide_rows(self, rows: Sequence[TrainingRow], plan: Any) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""

    def update(self, table: npt.NDArray[np.float32]) -> None:
        """Update the lanes that a table names."""

    def clear(self) -> None:
        """Forget gradients."""


class RehearsedLane(Protocol):
    """A lane as the rehearsal needs it: what it learns, where it stands, and its slot."""

    spec: LaneSpec
    step: int
    slot: int | None
    status: str
    tokens: int
    began: float

    @property
    def epochs(self) -> Sequence[Any]:
        """The epochs that ended."""


class RehearsedRun(Protocol):
    """A run of lanes as the rehearsal needs it: the functions that its real steps call."""

    bank: AdapterBank
    states: Any

    @property
    def steps(self) -> TrainingSteps:
        """How gradients and updates are computed."""

    @property
    def model(self) -> nn.Module:
        """The model that is tuned."""

    @property
    def token_limit(self) -> int:
        """The longest text that the model reads."""

    @property
    def pass_plan(self) -> Any:
        """How steps are packed into passes."""

    def put_into_slot(self, lane: Any, slot: int) -> None:
        """Begin a lane in a slot."""

    def saved_adapter(self, lane: Any) -> Tensor | None:
        """Return the adapter that was saved at the end of a lane's last epoch."""

    def next_rows(self, lanes: Sequence[Any]) -> list[TrainingRow]:
        """Return the rows of the next step."""

    def compute_gradients(self, rows: Sequence[TrainingRow]) -> None:
        """Add the gradients of a step."""

    def update_table(self, lanes: Sequence[Any]) -> npt.NDArray[np.float32]:
        """Return the settings of the next update."""


@dataclass
class RehearsalResult:
    """What a rehearsal found: a refusal, or None, and plain values for the record."""

    refusal: Refusal | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class RehearsalFailedError(Exception):
    """The first step of a run is not the reference's; nothing was trained."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def rehearse_first_step(
    run: RehearsedRun, lanes: Sequence[RehearsedLane], *, without_dropout: bool
) -> RehearsalResult:
    """Make the first step of a run twice, compare it with the reference, and leave everything as it was.

    ``lanes`` are in training, by slot. Dropout is left out where a form lets the model decide the order of tokens.
    """
    began = time.monotonic()
    result = RehearsalResult()
    for draw in range(DRAWS):
        with _state_restored(run, lanes), _dropout_of(run.bank, without_dropout):
            rehearsal = _Rehearsal(run, lanes, draw)
            result = RehearsalResult(rehearsal.find_refusal(), rehearsal.facts)
        if result.refusal is None or not result.refusal.retry:
            break
    result.facts["seconds"] = round(time.monotonic() - began, 3)
    return result


def _dropout_of(bank: AdapterBank, without_dropout: bool) -> AbstractContextManager[None]:
    return bank.without_dropout() if without_dropout else nullcontext()


@contextmanager
def _state_restored(run: RehearsedRun, lanes: Sequence[RehearsedLane]) -> Iterator[None]:
    """Put back adapters, moments and counters after the block; copies wait in the host's memory."""
    tensors = {"weights": run.bank.weights, **vars(run.states)}
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    counters = [(lane.step, lane.slot, lane.status, lane.tokens, lane.began) for lane in lanes]
    try:
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.copy_(copies[name])
        for lane, values in zip(lanes, counters, strict=True):
            lane.step, lane.slot, lane.status, lane.tokens, lane.began = values
        run.steps.clear()
        run.bank.refresh_work()


class _Rehearsal:
    """One rehearsal: the lanes of a run, those that are compared, and the adapters made up for these."""

    def __init__(self, run: RehearsedRun, lanes: Sequence[RehearsedLane], draw: int) -> None:
        self.run, self.bank, self.lanes = run, run.bank, lanes
        self.draw = draw
        self.facts: dict[str, Any] = {"lanes": len(lanes)}

    def find_refusal(self) -> Refusal | None:
        """Return what is wrong with the run's first step, or None."""
        fault = self._find_resume_fault() or find_schedule_fault(self.lanes)
        if fault is not None:
            return Refusal(fault)
        for lane in self.lanes:
            if lane.step == 0:
                fault = self._find_fault_in_used_slot(lane)
                if fault is not None:
                    return Refusal(f"a lane does not begin anew: {fault}")
        rows = self.run.next_rows(self.lanes)
        fault = find_row_fault(self.lanes, rows, self.run.token_limit)
        if fault is not None:
            return Refusal(fault)
        passes = self.run.steps.divide_rows(rows, self.run.pass_plan)
        self.compared = choose_compared_lanes(self.lanes, passes)
        self.facts |= {"passes": len(passes), "slots": [lane.slot for lane in self.compared]}
        self._make_up_adapters()
        return self._compare_two_steps(rows)

    def _find_resume_fault(self) -> str | None:
        """Return what a lane that a snapshot brought back lacks, or None."""
        for lane in self.lanes:
            slot = _slot_of(lane)
            if len(lane.epochs) != lane.step // lane.spec.steps_per_epoch:
                return f"a lane resumed at step {lane.step} has {len(lane.epochs)} epochs behind it"
            has_learned = lane.step > lane.spec.schedule.warmup_steps
            if has_learned and not bool(self.run.states.second[slot].any()):
                return f"a lane resumed at step {lane.step} has no moments"
            if lane.step > 0 and lane.step % lane.spec.steps_per_epoch == 0:
                saved = self.run.saved_adapter(lane)
                if saved is None or not torch.equal(saved, self.bank.weights[slot].cpu()):
                    return (
                        f"a lane resumed at step {lane.step} has not the adapter of its last epoch"
                    )
        return None

    def _find_fault_in_used_slot(self, lane: RehearsedLane) -> str | None:
        """Begin a lane in its slot as if another had used the slot before, and return what is left of that one."""
        slot = _slot_of(lane)
        for part in (self.bank.weights, *vars(self.run.states).values()):
            part[slot] = LEFT_OVER
        self.run.put_into_slot(lane, slot)
        return find_start_fault(self.bank, self.run.states, slot)

    def _make_up_adapters(self) -> None:
        """Give the compared lanes adapters that change what the model computes: a fresh one changes nothing."""
        stream = torch.Generator().manual_seed(1 + self.draw)
        for lane in self.compared:
            row = self.bank.made_up_row(lane.spec.seed, stream)
            self.bank.weights[_slot_of(lane)].copy_(row)
        self.bank.refresh_work()

    def _compare_two_steps(self, rows: Sequence[TrainingRow]) -> Refusal | None:
        """Make two steps of the same rows, and compare gradients and updates with the reference's."""
        bank, steps = self.bank, self.run.steps
        compared_rows = self._rows_of_compared_lanes(rows)
        reference = self._reference(compared_rows)
        if reference is None:
            return None
        slots = [_slot_of(lane) for lane in self.compared if self._is_finite(reference, lane)]
        optimizers = [_ReferenceOptimizer(self.run, self._lane_in(slot)) for slot in slots]
        starts = bank.weights[slots].clone()
        all_starts = bank.weights.to("cpu", copy=True)
        bank.grads.fill_(LEFT_OVER)  # what a step that ran out of memory leaves
        steps.clear()
        for number in range(2):
            moved = bank.weights[slots].clone()
            self._put_adapters(slots, starts)
            self.run.compute_gradients(rows)
            refusal = self._compare_gradients(compared_rows, reference, slots)
            refusal = refusal or self._find_idle_lane(rows)
            if refusal is not None:
                return refusal
            self._put_adapters(slots, moved)
            self._scale_gradients(is_second=number == 1)
            for optimizer in optimizers:
                optimizer.step(bank.grads[optimizer.slot])
            steps.update(self.run.update_table(self.lanes))
            if bool(bank.grads.any()):
                return Refusal("gradients of a step are left for the next")
            if number == 0:
                for lane in self.lanes:
                    lane.step += 1
        return self._compare_updates(optimizers, starts, all_starts)

    def _rows_of_compared_lanes(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        slots = {_slot_of(lane) for lane in self.compared}
        return [row for row in rows if row.slot in slots]

    def _reference(self, rows: Sequence[TrainingRow]) -> Gradients | None:
        """Return the reference's losses and gradients; None, with a warning, where it has no memory for a row."""
        try:
            return reference_gradients(self.run.model, self.bank, rows, loss=transformers_loss)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
        log.warning(
            "%s: no memory to rehearse the first step: it is trained as the check of a few rows says",
            type(self.run.model).__name__,
        )
        self.facts["skipped"] = "no memory"
        return None

    def _lane_in(self, slot: int) -> RehearsedLane:
        return next(lane for lane in self.lanes if lane.slot == slot)

    @staticmethod
    def _is_finite(reference: Gradients, lane: RehearsedLane) -> bool:
        """Return whether the model's own code gives numbers for a lane; the run itself reports one that has none."""
        losses, gradients = reference
        slot = _slot_of(lane)
        return bool(torch.isfinite(losses[slot]) & torch.isfinite(gradients[slot]).all())

    def _put_adapters(self, slots: Sequence[int], rows: Tensor) -> None:
        for slot, row in zip(slots, rows, strict=True):
            self.bank.weights[slot].copy_(row)
        self.bank.refresh_work(slots)

    def _compare_gradients(
        self, rows: Sequence[TrainingRow], reference: Gradients, slots: Sequence[int]
    ) -> Refusal | None:
        """Return how losses and gradients of the compared lanes differ from the reference's, or None."""
        if not slots:
            return None
        ours = self.run.steps.losses, self.bank.grads
        distance = slots_distance(self.bank, ours, reference, slots)
        self.facts["distance"] = distance.as_dict()
        allowed = self._base_tolerance()
        if not distance.within(allowed) and not is_whole(self.bank.dtype):
            allowed = self._measured_tolerance(rows, reference, slots)
        if distance.within(allowed):
            return None
        return Refusal(
            f"the first step of all lanes: {distance.compared_with(allowed)}", retry=True
        )

    def _base_tolerance(self) -> Distance:
        return WHOLE_BITS if is_whole(self.bank.dtype) else FEW_ROWS

    def _measured_tolerance(
        self, rows: Sequence[TrainingRow], reference: Gradients, slots: Sequence[int]
    ) -> Distance:
        """Return a multiple of how far the model's own 16 bits are from themselves on rows of another shape."""
        padded = reference_gradients(
            self.run.model, self.bank, rows, padding=5, loss=transformers_loss
        )
        return slots_distance(self.bank, padded, reference, slots).times(MULTIPLE, FEW_ROWS)

    def _find_idle_lane(self, rows: Sequence[TrainingRow]) -> Refusal | None:
        """Refuse a step in which some lane has targets and no gradient."""
        norms = torch.linalg.vector_norm(self.bank.grads, dim=1).tolist()
        learning = {row.slot for row in rows if row.first_target < len(row.ids)}
        idle = [slot for slot in learning if norms[slot] == 0]
        if idle:
            return Refusal(
                f"the first step has no gradient for {len(idle)} of its lanes", retry=True
            )
        return None

    def _scale_gradients(self, *, is_second: bool) -> None:
        """Bring every lane's first gradient below the norm that it is clipped to, and its second one above it.

        Clipping hides the size of gradients from AdamW, and small ones hide the clipping. The second gradients have
        the other direction, for moments of two equal ones would hide both betas, and a size of their own in every
        lane, for lanes that are clipped by the norm of another would look right if all were alike.
        """
        for lane in self.lanes:
            slot = _slot_of(lane)
            gradient = self.bank.grads[slot]
            norm = float(torch.linalg.vector_norm(gradient))
            clip = lane.spec.schedule.clip
            share = 1.0
            is_clipped = 0 < clip < MOST_SCALED * norm and math.isfinite(norm)
            if is_clipped:
                share = BELOW_CLIP * clip / norm
            if is_second:
                share *= SECOND_GRADIENT
                if is_clipped:
                    share *= 4 + slot % 5
            gradient.mul_(share)

    def _compare_updates(
        self, optimizers: Sequence[_ReferenceOptimizer], starts: Tensor, all_starts: Tensor
    ) -> Refusal | None:
        """Return how adapters after two updates differ from AdamW's, or None; every lane must have moved."""
        worst = 0.0
        for optimizer, start in zip(optimizers, starts, strict=True):
            worst = max(worst, optimizer.distance_from(self.bank, start))
        self.facts["update"] = float(f"{worst:.2e}")
        if not worst <= UPDATE:
            return Refusal(f"its first two updates are off by {worst:.1e} from AdamW's")
        return self._find_wrong_movement(all_starts)

    def _find_wrong_movement(self, starts: Tensor) -> Refusal | None:
        """Refuse updates that leave a lane where it was, or move a slot without a lane."""
        moving = {_slot_of(lane) for lane in self.lanes if _has_learning_rate(lane)}
        for slot in range(self.bank.slots + 1):
            stayed = torch.equal(self.bank.weights[slot].cpu(), starts[slot])
            if slot in moving and stayed:
                return Refusal(f"the lane in slot {slot} of {self.bank.slots} is not updated")
            if not stayed and all(slot != lane.slot for lane in self.lanes):
                return Refusal(f"slot {slot} of {self.bank.slots} has no lane and is updated")
        return None


def _slot_of(lane: RehearsedLane) -> int:
    assert lane.slot is not None
    return lane.slot


def _has_learning_rate(lane: RehearsedLane) -> bool:
    """Return whether one of the two rehearsed updates moves a lane, which has the second of them behind it."""
    rate = reference_learning_rate(lane.spec.schedule, lane.spec.total_steps)
    return max(rate(lane.step - 1), rate(lane.step)) > 0


class _ReferenceOptimizer:
    """torch's AdamW for one lane, with transformers' learning rate, from the moments that a snapshot brought."""

    def __init__(self, run: RehearsedRun, lane: RehearsedLane) -> None:
        self.slot = _slot_of(lane)
        self.schedule = lane.spec.schedule
        self.rate: Callable[[int], float] = reference_learning_rate(
            self.schedule, lane.spec.total_steps
        )
        self.updates = lane.step
        self.leaf = run.bank.weights[self.slot].clone().requires_grad_()
        self.optimizer = torch.optim.AdamW(
            [self.leaf],
            lr=0.0,
            betas=self.schedule.betas,
            eps=self.schedule.eps,
            weight_decay=self.schedule.weight_decay,
            foreach=False,
        )
        if lane.step > 0:
            self.optimizer.state[self.leaf] = {
                "step": torch.tensor(float(lane.step)),
                "exp_avg": run.states.first[self.slot].clone(),
                "exp_avg_sq": run.states.second[self.slot].clone(),
            }

    def step(self, gradient: Tensor) -> None:
        """Make the next update by a gradient."""
        self.leaf.grad = gradient.clone()
        clip = self.schedule.clip if self.schedule.clip > 0 else math.inf
        nn.utils.clip_grad_norm_([self.leaf], clip)
        self.optimizer.param_groups[0]["lr"] = self.rate(self.updates)
        with torch.enable_grad():
            self.optimizer.step()
        self.updates += 1

    def distance_from(self, bank: AdapterBank, start: Tensor) -> float:
        """Return how far the bank's adapter, and the copy of it that passes use, are off, of the movement."""
        wanted = self.leaf.detach()
        if not bool(torch.isfinite(wanted).all()):  # such a learning rate ends the lane soon enough
            return 0.0
        moved = float(torch.linalg.vector_norm(wanted - start))
        error = float(torch.linalg.vector_norm(bank.weights[self.slot] - wanted))
        used = bank.weights[self.slot] * bank.factors
        stale = float(torch.linalg.vector_norm(bank.work[self.slot] - used))
        rounding = float(torch.linalg.vector_norm(used.to(bank.work.dtype) - used))
        error += max(0.0, stale - MULTIPLE * rounding)
        return error / moved if moved > 0 else error


def choose_compared_lanes(
    lanes: Sequence[RehearsedLane], passes: Sequence[Sequence[TrainingRow]]
) -> list[RehearsedLane]:
    """Choose the lane in the last slot, another one, and more where some pass has rows of neither."""
    slots_by_pass = [{row.slot for row in rows} for rows in passes]
    compared = [lanes[-1]]
    others = list(lanes[:-1])
    while others and len(compared) < MOST_COMPARED:
        seen = {lane.slot for lane in compared}
        unmet = [slots for slots in slots_by_pass if not slots & seen]
        if len(compared) >= 2 and not unmet:
            break
        best = max(others, key=lambda lane: sum(lane.slot in slots for slots in unmet))
        compared.append(best)
        others.remove(best)
    return compared


def find_schedule_fault(lanes: Sequence[RehearsedLane]) -> str | None:
    """Return how a lane's learning rates, now and later, differ from those of transformers' schedule, or None."""
    schedules = {(lane.spec.schedule, lane.spec.total_steps) for lane in lanes}
    for schedule, total in schedules:
        steps = {0, 1, schedule.warmup_steps, total // 2, total - 1}
        for step in sorted(step for step in steps if step < total):
            rate = update_settings(schedule, step, total).learning_rate
            fault = find_rate_fault(schedule, step, total, rate)
            if fault is not None:
                return fault
    return None

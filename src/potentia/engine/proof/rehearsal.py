"""The rehearsal of a run's first step: made in full before the first real update, and compared with other code.

A run trains many lanes (fine-tunings) at once, each in a slot of adapters, in passes through the model. The check of a
training form (``training_check``) sees six rows in three slots and one pass. It cannot see what only a real step has:
many slots, several passes, full batches, the run's own table of learning rates, a slot that another lane had before. So
the rehearsal makes two updates with the rows of the run's first step, exactly as the run will make them, except that
some lanes get made-up adapters (a fresh one changes nothing). Where these disagree with the reference and rounding may
be the cause, it is repeated with other made-up adapters. It compares with code that is not Potentia's:

* the **rows** of every lane with its examples: every text of the batch is whole or cut by the rule, the prompt has no
  loss, the last token (the end of text) has one;
* the **losses and gradients** of some lanes, among them the one in the last slot, with the model's own code and
  transformers' loss on exactly their rows, and with PEFT's own factor (α/r or α/√r);
* two **updates** with torch's AdamW at the rates of transformers' schedule, one by gradients below the norm they are
  clipped to, one by gradients above it;
* **every lane** has a gradient and moves, and no other slot does.

A lane that begins is put into a slot that is full of another's moments, as may happen to lanes that join later. In the
end everything is put back: the run goes on with the same numbers, to the last bit, as one that was not rehearsed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.proof.constants import SHAPE_PADDING
from potentia.engine.proof.handover_check import find_start_fault
from potentia.engine.proof.ladder import try_draws
from potentia.engine.proof.plan_check import find_rate_fault, find_row_fault
from potentia.engine.proof.reference import (
    Gradients,
    reference_gradients,
    reference_learning_rate,
    transformers_loss,
)
from potentia.engine.proof.reference_updates import ReferenceAdamW, choose_gradient_factor
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.tolerance import (
    FLOAT32_TOLERANCE,
    HALF_FROM_HALF,
    LANE_ROUNDING_FACTOR,
    NOISE_LIMIT,
    ROUNDING_FACTOR,
    UPDATE_TOLERANCE,
    Distance,
    is_full_precision,
    measure_slots_distance,
)
from potentia.engine.steps.lane_states import LaneStates, settings_of_update
from potentia.values.engine_records import RehearsalFacts
from potentia.values.fine_tuning import LaneStatus

log = logging.getLogger(__name__)

COMPARED_LANES = 4  # lanes that are compared where two have no rows in some pass
# the value that fills a slot or the gradients, as if a lane before had left it there
LEFT_OVER = 0.5
LANE_COUNTERS = ("step", "slot", "status", "tokens", "epoch_began")  # that a rehearsal changes


class RehearsedStepper(Protocol):
    """The code that makes a run's steps, as the rehearsal needs it."""

    losses: Tensor  # of the step under way, by slot

    def divide_rows(self, rows: Sequence[TrainingRow], pass_plan: Any) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""

    def update(self, table: npt.NDArray[np.float32]) -> None:
        """Update lanes by the gradients that were added, as the table says."""

    def clear(self) -> None:
        """Drop the gradients and losses of a step."""


class RehearsedLane(Protocol):
    """A lane as the rehearsal needs it: what it learns, where it stands, and its slot."""

    spec: LaneSpec
    step: int
    slot: int | None
    status: LaneStatus
    tokens: int
    epoch_began: float

    @property
    def epochs(self) -> Sequence[Any]:
        """The epochs that ended."""


class RehearsedRun(Protocol):
    """A run of lanes as the rehearsal needs it: the functions that its real steps call."""

    bank: AdapterBank
    states: LaneStates

    @property
    def stepper(self) -> RehearsedStepper:
        """What computes gradients and updates."""

    @property
    def model(self) -> nn.Module:
        """The model that is tuned."""

    @property
    def token_limit(self) -> int:
        """The longest text that the model reads, in tokens."""

    @property
    def pass_plan(self) -> Any:
        """How steps are divided into passes."""

    def put_into_slot(self, lane: Any, slot: int) -> None:
        """Begin a lane in a slot."""

    def saved_adapter(self, lane: Any) -> Tensor | None:
        """Return the adapter that was saved at the end of a lane's last epoch."""

    def next_rows(self, lanes: Sequence[Any]) -> list[TrainingRow]:
        """Return the rows of the next step, slot by slot."""

    def compute_gradients(self, rows: Sequence[TrainingRow]) -> None:
        """Add a step's gradients to the bank's."""

    def update_table(self, lanes: Sequence[Any]) -> npt.NDArray[np.float32]:
        """Return the settings of the next update of each lane, by slot."""


@dataclass(frozen=True)
class RehearsalResult:
    """The result of a rehearsal: why the step is refused, or None, and what results record."""

    refusal: Refusal | None = None
    facts: RehearsalFacts = field(default_factory=RehearsalFacts)


class RehearsalFailedError(Exception):
    """The first step of a run differs from the reference; nothing was trained."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def rehearse_first_step(
    rehearsed_run: RehearsedRun,
    lanes: Sequence[RehearsedLane],
    *,
    without_dropout: bool,
    reference_rounding: float | None = None,
) -> RehearsalResult:
    """Make two updates with the rows of a run's first step, compare them with the reference, and put everything back.

    One is by gradients below the norm that they are clipped to, one by gradients above it. Where a refusal allows it,
    this is repeated with other made-up adapters.

    Args:
        rehearsed_run: the run, before its first step.
        lanes: those in training, in the order of their slots.
        without_dropout: leave dropout out, for forms in which the model itself decides the order of its tokens.
        reference_rounding: how far the reference in 16 bits was from float32 in the check of the training form, as a
            share of a lane's gradient.
    """
    began = time.monotonic()
    facts = RehearsalFacts()

    def rehearse(draw_number: int) -> Refusal | None:
        nonlocal facts
        with (
            _state_restored(rehearsed_run, lanes),
            _dropout_of(rehearsed_run.bank, without_dropout),
        ):
            rehearsal = _Rehearsal(rehearsed_run, lanes, draw_number, reference_rounding)
            refusal = rehearsal.find_refusal()
            facts = rehearsal.facts
            return refusal

    refusal = try_draws(rehearse)
    seconds = round(time.monotonic() - began, 3)
    return RehearsalResult(refusal, replace(facts, seconds=seconds))


def _dropout_of(adapter_bank: AdapterBank, without_dropout: bool) -> AbstractContextManager[None]:
    return adapter_bank.without_dropout() if without_dropout else nullcontext()


@contextmanager
def _state_restored(rehearsed_run: RehearsedRun, lanes: Sequence[RehearsedLane]) -> Iterator[None]:
    """Put back adapters, states and counters of lanes after the block; the copies lie in the host's memory.

    Zeros are not copied, but made again: before a run's first step the moments, two thirds of all, are zero.
    """
    tensors = {"weights": rehearsed_run.bank.weights, **rehearsed_run.states.named_tensors()}
    copies = {
        tensor_name: tensor.to("cpu", copy=True)
        for tensor_name, tensor in tensors.items()
        if bool(tensor.any())
    }
    counters = [{name: getattr(lane, name) for name in LANE_COUNTERS} for lane in lanes]
    try:
        yield
    finally:
        for tensor_name, tensor in tensors.items():
            if tensor_name in copies:
                tensor.copy_(copies[tensor_name])
            else:
                tensor.zero_()
        for lane, values in zip(lanes, counters, strict=True):
            for name, value in values.items():
                setattr(lane, name, value)
        rehearsed_run.stepper.clear()
        rehearsed_run.bank.refresh_work()


class _Rehearsal:
    """One rehearsal: the lanes of a run, those that are compared, and the adapters made up for these."""

    def __init__(
        self,
        rehearsed_run: RehearsedRun,
        lanes: Sequence[RehearsedLane],
        draw_number: int,
        reference_rounding: float | None,
    ) -> None:
        self.run = rehearsed_run
        self.bank = rehearsed_run.bank
        self.lanes = lanes
        self.draw_number = draw_number
        self.reference_rounding = reference_rounding
        self._padded_gradients: Gradients | None = None  # the reference's on padded rows
        self.facts = RehearsalFacts(lanes=len(lanes))

    def find_refusal(self) -> Refusal | None:
        """Return what is wrong with the run's first step, or None."""
        fault = self._find_resume_fault() or find_schedule_fault(self.lanes)
        if fault is not None:
            return Refusal(fault)
        for lane in self.lanes:
            if lane.step == 0:
                fault = self._find_fault_in_used_slot(lane)
                if fault is not None:
                    return Refusal(f"a fine-tuning does not start fresh: {fault}")
        rows = self.run.next_rows(self.lanes)
        fault = find_row_fault(self.lanes, rows, self.run.token_limit)
        if fault is not None:
            return Refusal(fault)
        passes = self.run.stepper.divide_rows(rows, self.run.pass_plan)
        self.compared = choose_compared_lanes(self.lanes, passes)
        compared_slots = tuple(_slot_of(lane) for lane in self.compared)
        self.facts = replace(self.facts, passes=len(passes), slots=compared_slots)
        self._make_up_adapters()
        return self._compare_two_steps(rows)

    def _find_resume_fault(self) -> str | None:
        """Return what is missing from a lane that a snapshot brought back, or None."""
        for lane in self.lanes:
            slot = _slot_of(lane)
            if len(lane.epochs) != lane.step // lane.spec.steps_per_epoch:
                return f"a fine-tuning resumed at step {lane.step} has {len(lane.epochs)} epochs behind it"
            has_learned = lane.step > lane.spec.schedule.warmup_steps
            if has_learned and not bool(self.run.states.second_moments[slot].any()):
                return f"a fine-tuning resumed at step {lane.step} has no moments"
            if lane.step > 0 and lane.step % lane.spec.steps_per_epoch == 0:
                saved = self.run.saved_adapter(lane)
                if saved is None or not torch.equal(saved, self.bank.weights[slot].cpu()):
                    return f"a fine-tuning resumed at step {lane.step} does not have the adapter of its last epoch"
        return None

    def _find_fault_in_used_slot(self, lane: RehearsedLane) -> str | None:
        """Begin a lane in its slot as if another had used the slot, and return what is left of that one, or None."""
        slot = _slot_of(lane)
        for part in (self.bank.weights, *self.run.states.named_tensors().values()):
            part[slot] = LEFT_OVER
        self.run.put_into_slot(lane, slot)
        return find_start_fault(self.bank, self.run.states, slot)

    def _make_up_adapters(self) -> None:
        """Give the compared lanes adapters that change what the model computes: a fresh one changes nothing."""
        stream = torch.Generator().manual_seed(1 + self.draw_number)
        for lane in self.compared:
            row = self.bank.made_up_row(lane.spec.seed, stream)
            self.bank.weights[_slot_of(lane)].copy_(row)
        self.bank.refresh_work()

    def _compare_two_steps(self, rows: Sequence[TrainingRow]) -> Refusal | None:
        """Make two steps with the same rows, and return how gradients or updates differ from the reference, or None.

        Gradients are computed with the made-up adapters both times, as the reference has them for these alone.
        """
        adapter_bank = self.bank
        stepper = self.run.stepper
        compared_rows = self._rows_of_compared_lanes(rows)
        reference = self._reference(compared_rows)
        if reference is None:
            return None
        slots = [_slot_of(lane) for lane in self.compared if self._is_finite(reference, lane)]
        references = [_ReferenceUpdates(self.run, self._lane_in(slot)) for slot in slots]
        starts = adapter_bank.weights[slots].clone()
        start_checksums = _checksums_of_slots(adapter_bank)
        adapter_bank.grads.fill_(LEFT_OVER)  # as a step may leave them that ran out of memory
        stepper.clear()
        for number in range(2):
            updated = adapter_bank.weights[slots].clone()
            self._put_adapters(slots, starts)
            self.run.compute_gradients(rows)
            refusal = self._compare_gradients(compared_rows, reference, slots)
            if refusal is None:
                refusal = self._find_idle_lane(rows)
            if refusal is not None:
                return refusal
            self._put_adapters(slots, updated)
            self._scale_gradients(is_second=number == 1)
            for updates in references:
                updates.make_update(adapter_bank.grads[updates.slot])
            stepper.update(self.run.update_table(self.lanes))
            if bool(adapter_bank.grads.any()):
                return Refusal("gradients of a step are left for the next")
            if number == 0:
                for lane in self.lanes:
                    lane.step += 1
        return self._compare_updates(references, start_checksums)

    def _rows_of_compared_lanes(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        slots = {_slot_of(lane) for lane in self.compared}
        return [row for row in rows if row.slot in slots]

    def _reference(self, rows: Sequence[TrainingRow]) -> Gradients | None:
        """Return the reference's losses and gradients; None, with a warning, where memory does not hold a row."""
        try:
            return reference_gradients(self.run.model, self.bank, rows, loss=transformers_loss)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        log.warning(
            "%s: no memory to rehearse the first step: it is trained as the check of a few rows says",
            type(self.run.model).__name__,
        )
        self.facts = replace(self.facts, lacked_memory=True)
        return None

    def _lane_in(self, slot: int) -> RehearsedLane:
        return next(lane for lane in self.lanes if lane.slot == slot)

    @staticmethod
    def _is_finite(reference: Gradients, lane: RehearsedLane) -> bool:
        """Whether the reference's loss and gradient of a lane are finite; the run itself reports a lane without."""
        losses, gradients = reference
        slot = _slot_of(lane)
        return bool(torch.isfinite(losses[slot]) & torch.isfinite(gradients[slot]).all())

    def _put_adapters(self, slots: Sequence[int], rows: Tensor) -> None:
        """Put adapters, rows of the bank, into these slots."""
        for slot, row in zip(slots, rows, strict=True):
            self.bank.weights[slot].copy_(row)
        self.bank.refresh_work(slots)

    def _compare_gradients(
        self, rows: Sequence[TrainingRow], reference: Gradients, slots: Sequence[int]
    ) -> Refusal | None:
        """Return how losses and gradients of the compared lanes differ from the reference's, or None."""
        if not slots:
            return None
        our_gradients = self.run.stepper.losses, self.bank.grads
        distance = measure_slots_distance(self.bank, our_gradients, reference, slots)
        self.facts = replace(self.facts, gradients=distance.to_record())
        allowed = self._tolerance()
        if not distance.is_within(allowed) and not is_full_precision(self.bank.dtype):
            allowed = self._measured_tolerance(rows, reference, slots, allowed)
        if distance.is_within(allowed):
            return None
        return Refusal(
            f"the first step of all fine-tunings: {distance.describe_excess(allowed)}", retry=True
        )

    def _tolerance(self) -> Distance:
        """Return how far a step may be from the reference, which computes in the model's own dtype here.

        In 16 bits a lane's gradient may be 1.5 times as far from float32's as the reference is. So it may be 2.5 times
        as far from the reference as that is from float32's.
        """
        if is_full_precision(self.bank.dtype):
            return FLOAT32_TOLERANCE
        lane = (1 + LANE_ROUNDING_FACTOR) * (self.reference_rounding or 0.0)
        return HALF_FROM_HALF._replace(lane=min(max(HALF_FROM_HALF.lane, lane), NOISE_LIMIT.lane))

    def _measured_tolerance(
        self,
        rows: Sequence[TrainingRow],
        reference: Gradients,
        slots: Sequence[int],
        least: Distance,
    ) -> Distance:
        """Return a tolerance measured on this model: how far padding alone moves the reference's gradients, times 3.

        Padding changes no exact result, but the order in which 16 bits round. ``least`` is the smallest tolerance.
        """
        if self._padded_gradients is None:
            self._padded_gradients = reference_gradients(
                self.run.model, self.bank, rows, padding=SHAPE_PADDING, loss=transformers_loss
            )
        own_rounding = measure_slots_distance(self.bank, self._padded_gradients, reference, slots)
        return own_rounding.scale(ROUNDING_FACTOR).at_least(least)

    def _find_idle_lane(self, rows: Sequence[TrainingRow]) -> Refusal | None:
        """Return a refusal if some lane has targets but no gradient, or None."""
        norms = torch.linalg.vector_norm(self.bank.grads, dim=1).tolist()
        slots_with_targets = {row.slot for row in rows if row.first_target < len(row.ids)}
        idle_slots = [slot for slot in slots_with_targets if norms[slot] == 0]
        if not idle_slots:
            return None
        return Refusal(
            f"the first step has no gradient for {len(idle_slots)} of its fine-tunings", retry=True
        )

    def _scale_gradients(self, *, is_second: bool) -> None:
        """Scale every lane's gradient: the first below the norm that it is clipped to, the second above it."""
        for lane in self.lanes:
            slot = _slot_of(lane)
            gradient = self.bank.grads[slot]
            gradient_norm = float(torch.linalg.vector_norm(gradient))
            schedule = lane.spec.schedule
            factor = choose_gradient_factor(schedule, gradient_norm, is_second=is_second, slot=slot)
            gradient.mul_(factor)

    def _compare_updates(
        self, references: Sequence[_ReferenceUpdates], start_checksums: Sequence[int]
    ) -> Refusal | None:
        """Return how adapters after two updates differ from AdamW's, or None.

        ``start_checksums`` are those of the adapters of all slots before.
        """
        errors = [updates.optimizer.measure_error() for updates in references]
        largest_distance = max(errors, default=0.0)
        self.facts = replace(self.facts, update=float(f"{largest_distance:.2e}"))
        if not largest_distance <= UPDATE_TOLERANCE:
            return Refusal(f"its first two updates are off by {largest_distance:.1e} from AdamW's")
        return self._find_wrong_movement(start_checksums)

    def _find_wrong_movement(self, start_checksums: Sequence[int]) -> Refusal | None:
        """Return a refusal if updates leave a lane where it was, or move a slot without a lane, or None."""
        lane_slots = {_slot_of(lane) for lane in self.lanes}
        learning_slots = {_slot_of(lane) for lane in self.lanes if _has_learning_rate(lane)}
        for slot, checksum in enumerate(_checksums_of_slots(self.bank)):
            has_moved = checksum != start_checksums[slot]
            if slot in learning_slots and not has_moved:
                return Refusal(
                    f"the fine-tuning in slot {slot} of {self.bank.slots} is not updated"
                )
            if has_moved and slot not in lane_slots:
                return Refusal(
                    f"slot {slot} of {self.bank.slots} has no fine-tuning and is updated"
                )
        return None


def _checksums_of_slots(adapter_bank: AdapterBank) -> list[int]:
    """Return a checksum of the adapter in every slot, made where the adapters lie; other places, another checksum."""
    odd_factors = torch.arange(1, 2 * adapter_bank.width, 2, device=adapter_bank.device)
    checksums = []
    for slot in range(adapter_bank.slots + 1):
        bits = adapter_bank.weights[slot].view(torch.int32).to(torch.int64)
        checksums.append(int((bits * odd_factors).sum()))  # integers: the sum has no order
    return checksums


def _slot_of(lane: RehearsedLane) -> int:
    assert lane.slot is not None
    return lane.slot


def _has_learning_rate(lane: RehearsedLane) -> bool:
    """Whether one of the two rehearsed updates has a learning rate; the lane's step is that of the second one."""
    learning_rate = reference_learning_rate(lane.spec.schedule, lane.spec.total_steps)
    return max(learning_rate(lane.step - 1), learning_rate(lane.step)) > 0


class _ReferenceUpdates:
    """The updates of one lane by torch's AdamW and transformers' learning rate, from the moments that the lane has."""

    def __init__(self, rehearsed_run: RehearsedRun, lane: RehearsedLane) -> None:
        self.slot = _slot_of(lane)
        self.step = lane.step
        schedule = lane.spec.schedule
        self.learning_rate = reference_learning_rate(schedule, lane.spec.total_steps)
        self.optimizer = ReferenceAdamW(rehearsed_run.bank, self.slot, schedule)
        if lane.step > 0:
            self.optimizer.resume(rehearsed_run.states, lane.step)

    def make_update(self, gradient: Tensor) -> None:
        """Make the next update by a gradient."""
        self.optimizer.step(gradient, self.learning_rate(self.step))
        self.step += 1


def choose_compared_lanes(
    lanes: Sequence[RehearsedLane], passes: Sequence[Sequence[TrainingRow]]
) -> list[RehearsedLane]:
    """Choose the lane in the last slot, another one, and up to two more where some pass has rows of neither."""
    slots_by_pass = [{row.slot for row in rows} for rows in passes]
    compared = [lanes[-1]]
    candidates = list(lanes[:-1])
    while candidates and len(compared) < COMPARED_LANES:
        compared_slots = {lane.slot for lane in compared}
        uncovered_passes = [slots for slots in slots_by_pass if not slots & compared_slots]
        if len(compared) >= 2 and not uncovered_passes:
            break
        best_lane = max(
            candidates, key=lambda lane: sum(lane.slot in slots for slots in uncovered_passes)
        )
        compared.append(best_lane)
        candidates.remove(best_lane)
    return compared


def find_schedule_fault(lanes: Sequence[RehearsedLane]) -> str | None:
    """Return how a lane's learning rate, at a few of its steps, differs from transformers' schedule, or None."""
    schedules = {(lane.spec.schedule, lane.spec.total_steps) for lane in lanes}
    for schedule, total_steps in schedules:
        steps = {0, 1, schedule.warmup_steps, total_steps // 2, total_steps - 1}
        for step in sorted(step for step in steps if step < total_steps):
            learning_rate = settings_of_update(schedule, step, total_steps).learning_rate
            fault = find_rate_fault(schedule, step, total_steps, learning_rate)
            if fault is not None:
                return fault
    return None

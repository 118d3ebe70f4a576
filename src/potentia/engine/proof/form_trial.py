"""Trials of training forms on one network: a model, or its float32 copy, with made-up adapters in three slots.

A trial computes the losses and gradients of a few real rows in the form and by the reference, and measures how far
apart they are. How far apart they may be in 16 bits is measured, too: a small multiple of the distance from float32
that the model's own rounding makes (``tolerance``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.models.float32_copy import TrialModel
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import Operations, choosing, compared_kernels, plain_operations
from potentia.engine.operations.compared import ComparedKernels
from potentia.engine.proof.constants import SHAPE_PADDING, TRIAL_SLOTS
from potentia.engine.proof.reference import (
    Gradients,
    embeddings_moved_by_last_bit,
    reference_gradients,
)
from potentia.engine.proof.reference_updates import ReferenceAdamW, choose_gradient_factor
from potentia.engine.proof.refusal import ABSENT, Refusal
from potentia.engine.proof.tolerance import (
    FLOAT32_TOLERANCE,
    HALF_FROM_FLOAT32,
    HALF_FROM_HALF,
    LANE_ROUNDING_FACTOR,
    NOISE_DRAWS,
    NOISE_LIMIT,
    ROUNDING_FACTOR,
    UPDATE_TOLERANCE,
    Distance,
    is_full_precision,
    measure_slots_distance,
)
from potentia.engine.proof.training_rows import choose_training_rows
from potentia.engine.proof.training_steps import make_stepper
from potentia.engine.steps.lane_states import LaneStates, apply_update, settings_of_update
from potentia.engine.steps.pass_plan import (
    MEMORY_HINT,
    UNLIMITED_TOKENS,
    PassPlan,
    row_too_long_error,
)
from potentia.errors import TuningError
from potentia.values.engine_records import FormRecord
from potentia.values.recipe import LoraConfig, Schedule
from potentia.values.training_form import TrainingForm

# of a row that plain attention has memory for: it keeps tokens × tokens numbers
LONGEST_PLAIN_ROW = 2048
SHORTEST_ROW = 32  # tokens: where such rows do not fit in memory, the check gives up
TRIED_LEARNING_RATE = 1e-3  # of the updates that are compared
COMPARED_UPDATES = 2
TRIED_STEPS = 8  # of the schedule whose first updates are compared


@dataclass(frozen=True)
class TrialSettings:
    """What a check is made for."""

    lora: LoraConfig  # the shape of the adapters
    specs: Sequence[LaneSpec]  # lanes whose examples the trial rows are taken from
    limit: int | None = None  # the longest text that the model reads, in tokens
    recompute: bool = False  # whether activations are recomputed in the backward pass
    few_rows: bool = False  # whether one row of each of two lanes is enough


@dataclass(frozen=True)
class ReferenceRows:
    """A draw of trial rows, with the reference's losses and gradients."""

    rows: list[TrainingRow]
    gradients: Gradients


@dataclass(frozen=True)
class FormComparison:
    """The result of comparing a form with the reference: why it is refused, or None, and what was measured."""

    refusal: Refusal | None
    record: FormRecord


class FormTrial:
    """Tries forms on one network: holds adapters, trial rows, and the reference's gradients.

    The trial of a model in 16 bits may be given ``float32_trial``, the trial of its copy, with whose rows and reference
    it then compares.
    """

    def __init__(
        self,
        trial_model: TrialModel,
        settings: TrialSettings,
        *,
        float32_trial: FormTrial | None = None,
    ) -> None:
        self.model = trial_model.model
        self.settings = settings
        self.float32_trial = float32_trial
        self.is_float32_copy = (
            trial_model.is_float32_copy
        )  # of a model in 16 bits, which is what runs
        self.has_all_blocks = trial_model.has_all_blocks
        self.split = SplitModel(self.model)
        self.bank = AdapterBank(self.model, settings.lora, TRIAL_SLOTS)
        if float32_trial is None:
            self.bank.make_up_adapters()
        else:
            self.bank.weights.copy_(float32_trial.bank.weights)
            self.bank.refresh_work()
        self.longest = settings.limit  # tokens of the longest trial row
        self.fused_layers: FusedLayers | None = None  # made when the fused form is tried
        self._copied_block_count: int | None = None  # where the copy does not have all blocks
        if not trial_model.has_all_blocks:
            self._copied_block_count = trial_model.block_count
        # by draw, with dropout and without
        self._references: dict[tuple[int, bool], ReferenceRows] = {}

    def compare(self, training_form: TrainingForm, draw_number: int) -> FormComparison:
        """Compare a form with the reference on one draw of rows; an error that the form raises is a refusal."""
        if training_form is TrainingForm.FUSED and self.fused_layers is None:
            self.fused_layers = FusedLayers.of(self.model)
            if self.fused_layers is None:
                return FormComparison(ABSENT, FormRecord())
        with self._no_dropout_for_one_lane(training_form):
            reference = self.compute_reference(draw_number)
            record = self._begin_record(reference)
            tried_operations = self._choose_operations(reference.rows)
            try:
                with choosing(tried_operations):
                    comparison = self._compare_gradients(training_form, reference, record)
                    # updates are compared on the model itself, whose adapters have the dtype of the run
                    if comparison.refusal is None and not self.is_float32_copy:
                        comparison = self._compare_updates(reference, comparison.record)
                if isinstance(tried_operations, ComparedKernels):
                    shares = tried_operations.check_distances()
                    record = replace(comparison.record, kernels=shares)
                    comparison = replace(comparison, record=record)
            except Exception as error:  # whatever it is, the form is not taken
                return FormComparison(Refusal.from_error(error), record)
        return comparison

    @contextmanager
    def _no_dropout_for_one_lane(self, training_form: TrainingForm) -> Iterator[None]:
        """Switch dropout off inside the block where the form is that of one lane a pass.

        Dropout is drawn by a token's place in its row, and there the model's own forward may reorder the tokens.
        """
        with ExitStack() as stack:
            if training_form is TrainingForm.ONE_LANE:
                stack.enter_context(self.bank.without_dropout())
                if self.float32_trial is not None:
                    stack.enter_context(self.float32_trial.bank.without_dropout())
            yield

    # ---- the reference --------------------------------------------------------------------------------------------

    def compute_reference(self, draw_number: int = 0) -> ReferenceRows:
        """Return a draw of trial rows, and the reference's losses and gradients on them, computed once.

        Rows are shorter where memory does not hold the longest.
        """
        if self.float32_trial is not None:
            return self.float32_trial.compute_reference(draw_number)
        key = draw_number, self.bank.lora.dropout > 0
        while key not in self._references:
            rows = choose_training_rows(self.settings.specs, self.longest, draw_number)
            if self.settings.few_rows:
                rows = [row for row in rows if row.batch_index == 0][:2]
            try:
                reference = reference_gradients(self.model, self.bank, rows)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shorten_rows(rows, error)
                continue
            _, gradients = reference
            if not bool(gradients.any()):
                raise TuningError(
                    "no adapter changes what the model computes", hint="check `targets`"
                )
            self._references[key] = ReferenceRows(rows, reference)
        return self._references[key]

    def _shorten_rows(self, rows: Sequence[TrainingRow], error: Exception) -> None:
        """Let later trial rows be half as long; raise an error where they are short already."""
        longest = max(len(row.ids) for row in rows)
        if longest <= SHORTEST_ROW:
            raise row_too_long_error(rows, MEMORY_HINT) from error
        self.longest = longest // 2

    def _begin_record(self, reference: ReferenceRows) -> FormRecord:
        """Return the record of a comparison with the rows that it is made on, without distances yet."""
        return FormRecord(
            few_rows=self.settings.few_rows,
            rows=tuple(len(row.ids) for row in reference.rows),
            dtype=str(self.bank.dtype).removeprefix("torch."),
            blocks=self._copied_block_count,
        )

    # ---- comparing ------------------------------------------------------------------------------------------------

    def _choose_operations(self, rows: Sequence[TrainingRow]) -> Operations | None:
        """Choose the operations that a form is tried with.

        None, the device's own, for rows that are too long for plain attention.
        A copy computes by plain operations; with the model itself, its kernels are compared with the plain ones.
        """
        if max(len(row.ids) for row in rows) > LONGEST_PLAIN_ROW:
            return None
        if self.is_float32_copy:
            return plain_operations()
        return compared_kernels(self.bank.device, self.bank.dtype)

    def _compare_gradients(
        self, training_form: TrainingForm, reference: ReferenceRows, record: FormRecord
    ) -> FormComparison:
        """Refuse a form whose losses or gradients are too far from the reference's."""
        allowed, record = self._choose_tolerance(reference, record)
        rows = reference.rows
        distance = self._measure_form(training_form, rows, reference)
        if self.float32_trial is None:
            record = replace(record, gradients=distance.to_record())
        else:
            record = replace(record, gradients_in_16_bits=distance.to_record())
        if not distance.is_within(allowed) and is_full_precision(self.bank.dtype):
            noise = self._measure_noise(reference)
            allowed = noise.scale(ROUNDING_FACTOR).at_least(FLOAT32_TOLERANCE).at_most(NOISE_LIMIT)
            record = replace(record, reference_noise=noise.to_record())
        refusal: Refusal | None = None
        if not distance.is_within(allowed):
            refusal = Refusal(distance.describe_excess(allowed), retry=True)
        elif training_form is TrainingForm.PADDED and self.float32_trial is None:
            reversed_distance = self._measure_form(training_form, rows[::-1], reference)
            if not reversed_distance.is_within(allowed):
                reason = f"losses and gradients depend on the order of rows: {reversed_distance}"
                refusal = Refusal(reason, retry=True)
        return FormComparison(refusal, record)

    def _choose_tolerance(
        self, reference: ReferenceRows, record: FormRecord
    ) -> tuple[Distance, FormRecord]:
        """Choose how far a form may be from the reference: in 16 bits, a multiple of the model's own rounding.

        That rounding is its distance from float32 where the reference is in float32, else what padding of the rows
        changes. It is added to the record where it is one from float32.
        """
        if is_full_precision(self.bank.dtype):
            return FLOAT32_TOLERANCE, record
        padding = SHAPE_PADDING if self.float32_trial is None else 0
        model_gradients = reference_gradients(
            self.model, self.bank, reference.rows, padding=padding
        )
        rounding = self.measure_distance(model_gradients, reference)
        if self.float32_trial is None:
            return rounding.scale(ROUNDING_FACTOR).at_least(HALF_FROM_HALF), record
        lane = max(LANE_ROUNDING_FACTOR * rounding.lane, HALF_FROM_FLOAT32.lane)
        allowed = rounding.scale(ROUNDING_FACTOR).at_least(HALF_FROM_FLOAT32)._replace(lane=lane)
        return allowed, replace(record, reference_rounding=rounding.to_record())

    def _measure_noise(self, reference: ReferenceRows) -> Distance:
        """Measure how far the reference in float32 moves when the embeddings move by their last bit.

        Some models magnify rounding: attention that is nearly a hard choice of one token (as random weights of Gemma 4
        make it) turns it into another choice.
        """
        noise = Distance(loss=0.0, lane=0.0, layer=0.0)
        for seed in range(NOISE_DRAWS):
            with embeddings_moved_by_last_bit(self.model, seed):
                moved_gradients = reference_gradients(self.model, self.bank, reference.rows)
            noise = self.measure_distance(moved_gradients, reference).at_least(noise)
        return noise

    def _measure_form(
        self,
        training_form: TrainingForm,
        rows: Sequence[TrainingRow],
        reference: ReferenceRows,
    ) -> Distance:
        our_gradients = self.compute_form_gradients(training_form, rows)
        return self.measure_distance(our_gradients, reference)

    def measure_distance(self, our_gradients: Gradients, reference: ReferenceRows) -> Distance:
        """Measure how far losses and gradients of all slots are from the reference's."""
        slots = range(self.bank.slots)
        return measure_slots_distance(self.bank, our_gradients, reference.gradients, slots)

    def compute_form_gradients(
        self, training_form: TrainingForm, rows: Sequence[TrainingRow]
    ) -> Gradients:
        """Compute losses and gradients of these rows in a form, all in one pass if it may."""
        states = LaneStates(self.bank.slots, self.bank.width, self.bank.device)
        stepper = make_stepper(training_form, self.split, self.bank, states, self.fused_layers)
        one_pass = PassPlan(
            slots=self.bank.slots,
            token_budget=UNLIMITED_TOKENS,
            pass_price=UNLIMITED_TOKENS,
            checkpointing=self.settings.recompute,
        )
        stepper.clear()
        stepper.add_gradients(rows, one_pass)
        losses = stepper.losses.clone()
        gradients = self.bank.grads.clone()
        stepper.clear()
        return losses, gradients

    def _compare_updates(self, reference: ReferenceRows, record: FormRecord) -> FormComparison:
        """Refuse updates that are not AdamW's."""
        schedule = self.settings.specs[0].schedule
        error = measure_update_error(self.bank, reference.gradients, schedule)
        refusal: Refusal | None = None
        if not error <= UPDATE_TOLERANCE:
            refusal = Refusal(f"its updates are off by {error:.1e} from AdamW's")
        return FormComparison(refusal, replace(record, update=error))


def measure_update_error(
    adapter_bank: AdapterBank, reference: Gradients, schedule: Schedule
) -> float:
    """Measure how far two updates of every lane are from torch's AdamW, as a share of AdamW's movement.

    Both get the reference's gradients, scaled. The bank's adapters are put back.
    """
    _, reference_gradients = reference
    slots = range(adapter_bank.slots)
    start = adapter_bank.weights.clone()
    states = LaneStates(len(slots), adapter_bank.width, adapter_bank.device)
    losses = torch.zeros(len(slots) + 1, device=adapter_bank.device)
    optimizers = [ReferenceAdamW(adapter_bank, slot, schedule) for slot in slots]
    tried_schedule = replace(schedule, warmup_steps=0, learning_rate=TRIED_LEARNING_RATE)
    try:
        for step in range(COMPARED_UPDATES):
            settings = settings_of_update(tried_schedule, step, TRIED_STEPS)
            for slot, optimizer in zip(slots, optimizers, strict=True):
                gradient = reference_gradients[slot]
                gradient_norm = float(torch.linalg.vector_norm(gradient))
                factor = choose_gradient_factor(schedule, gradient_norm, is_second=step == 1)
                adapter_bank.grads[slot].copy_(gradient * factor)
                optimizer.step(gradient * factor, settings.learning_rate)
            takes_step = 1.0
            is_first_step = step == 0
            settings_row = [*settings, takes_step, is_first_step]
            table = torch.tensor([settings_row] * len(slots), device=adapter_bank.device)
            apply_update(adapter_bank, states, losses, table)
        return max(optimizer.measure_error() for optimizer in optimizers)
    finally:
        adapter_bank.grads.zero_()
        adapter_bank.weights.copy_(start)
        adapter_bank.refresh_work()

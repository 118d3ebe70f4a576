"""Training steps of lanes through padded passes, one operation at a time.

A *stepper* is the code that makes the steps of one training form: it divides a step's rows into passes, adds up the
gradients of all lanes (fine-tunings), and updates all lanes. ``packed_steps`` has the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.models.split_model import SplitModel
from potentia.engine.steps.lane_states import LaneStates, UpdateTable, apply_update
from potentia.engine.steps.padded_pass import compute_step_gradients, to_device
from potentia.engine.steps.pass_plan import PassPlan, divide_rows
from potentia.values.training_form import TrainingForm


class PaddedStepper:
    """Makes steps through padded passes: of all lanes together, or of one lane at a time, as the form asks."""

    def __init__(
        self,
        split: SplitModel,
        adapter_bank: AdapterBank,
        states: LaneStates,
        training_form: TrainingForm,
    ) -> None:
        self.split = split
        self.bank = adapter_bank
        self.states = states
        self.form = training_form
        # of the step under way, by slot
        self.losses = torch.zeros(adapter_bank.slots + 1, device=adapter_bank.device)

    def divide_rows(
        self, rows: Sequence[TrainingRow], pass_plan: PassPlan
    ) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""
        return [pass_rows for pass_rows, _ in divide_rows(rows, pass_plan, self.form)]

    def add_gradients(self, rows: Sequence[TrainingRow], pass_plan: PassPlan) -> None:
        """Add a step's gradients to the bank's. The rows, one batch of every lane, come slot by slot."""
        self.losses = compute_step_gradients(self.split, self.bank, rows, pass_plan, self.form)

    def update(self, table: UpdateTable) -> None:
        """Update lanes by the gradients added since the last update, as ``table`` says (see ``lane_states``)."""
        apply_update(self.bank, self.states, self.losses, to_device(table, self.bank.device))

    def clear(self) -> None:
        """Drop the gradients of a step that was begun."""
        self.bank.grads.zero_()

    def release(self) -> None:
        """Do nothing: there are no graphs whose memory could be freed."""

"""Steps of lanes through padded passes, one operation at a time."""

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


class PaddedSteps:
    """Padded passes as they come: of all lanes, or of one lane at a time."""

    def __init__(
        self, split: SplitModel, bank: AdapterBank, states: LaneStates, form: TrainingForm
    ) -> None:
        self.split = split
        self.bank = bank
        self.states = states
        self.form = form
        self.losses = torch.zeros(
            bank.slots + 1, device=bank.device
        )  # of the step under way, by slot

    def divide_rows(self, rows: Sequence[TrainingRow], plan: PassPlan) -> list[list[TrainingRow]]:
        """Return the rows of every pass of a step."""
        return [chosen for chosen, _ in divide_rows(rows, plan, self.form)]

    def add_gradients(self, rows: Sequence[TrainingRow], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank. Rows come slot by slot."""
        self.losses = compute_step_gradients(self.split, self.bank, rows, plan, self.form)

    def update(self, table: UpdateTable) -> None:
        """Update the lanes that a table names, by the gradients added since the last update."""
        apply_update(self.bank, self.states, self.losses, to_device(table, self.bank.device))

    def clear(self) -> None:
        """Forget a step that was begun."""
        self.bank.grads.zero_()

    def release(self) -> None:
        """Let go of nothing: nothing is held."""

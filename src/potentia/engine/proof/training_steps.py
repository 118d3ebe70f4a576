"""The steps of every training form; the slowest form is the reference itself."""

from __future__ import annotations

from collections.abc import Sequence

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.recomputation import recomputed_activations
from potentia.engine.models.split_model import SplitModel
from potentia.engine.proof.reference import reference_gradients
from potentia.engine.steps.lane_states import LaneStates
from potentia.engine.steps.packed_steps import PackedSteps
from potentia.engine.steps.padded_steps import PaddedSteps
from potentia.engine.steps.pass_plan import PassPlan
from potentia.values.training_form import TrainingForm


class ReferenceSteps(PaddedSteps):
    """Every row alone through the model's own code."""

    def add_gradients(self, rows: Sequence[TrainingRow], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank."""
        with recomputed_activations(self.split.model, plan.checkpointing):
            self.losses, gradients = reference_gradients(self.split.model, self.bank, rows)
        self.bank.grads += gradients


TrainingSteps = PaddedSteps | PackedSteps


def make_steps(
    form: TrainingForm,
    split: SplitModel,
    bank: AdapterBank,
    states: LaneStates,
    fused_layers: FusedLayers | None = None,
) -> TrainingSteps:
    """Make the steps of a form; ``fused_layers`` are given where they are made already."""
    if form is TrainingForm.ONE_ROW:
        return ReferenceSteps(split, bank, states, form)
    if not form.is_packed:
        return PaddedSteps(split, bank, states, form)
    if form is TrainingForm.FUSED and fused_layers is None:
        fused_layers = FusedLayers.of(split.model)
    if form is TrainingForm.PACKED:
        fused_layers = None
    return PackedSteps(PackedPass(split, bank, fused_layers), states)

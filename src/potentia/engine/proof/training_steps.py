"""The stepper of every training form: the code that adds up a step's gradients and updates all lanes.

The slowest form, one row a pass, is the reference itself, so this module stands beside the reference.
"""

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
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.steps.padded_steps import PaddedStepper
from potentia.engine.steps.pass_plan import PassPlan
from potentia.values.training_form import TrainingForm


class ReferenceStepper(PaddedStepper):
    """Makes steps by the reference: every row alone through the model's own code."""

    def add_gradients(self, rows: Sequence[TrainingRow], pass_plan: PassPlan) -> None:
        """Add a step's gradients to the bank's."""
        with recomputed_activations(self.split.model, pass_plan.checkpointing):
            self.losses, gradients = reference_gradients(self.split.model, self.bank, rows)
        self.bank.grads += gradients


TrainingStepper = PaddedStepper | PackedStepper


def make_stepper(
    training_form: TrainingForm,
    split: SplitModel,
    adapter_bank: AdapterBank,
    states: LaneStates,
    fused_layers: FusedLayers | None = None,
) -> TrainingStepper:
    """Make the stepper of a training form; the fused form uses ``fused_layers`` if there are some already."""
    if training_form is TrainingForm.ONE_ROW:
        return ReferenceStepper(split, adapter_bank, states, training_form)
    if not training_form.is_packed:
        return PaddedStepper(split, adapter_bank, states, training_form)
    if training_form is TrainingForm.FUSED and fused_layers is None:
        fused_layers = FusedLayers.of(split.model)
    if training_form is TrainingForm.PACKED:
        fused_layers = None
    return PackedStepper(PackedPass(split, adapter_bank, fused_layers), states)

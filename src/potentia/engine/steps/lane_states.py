"""What lanes have beside their adapters, and the update of all lanes at once.

The update is torch's AdamW with settings of its own for every lane: decay, first and second moment, bias corrections,
after clipping each lane's gradient to its own norm as ``clip_grad_norm_`` does. So a lane equals an adapter trained
alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.lane_spec import Schedule
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.operations import operations

UpdateTable = npt.NDArray[np.float32]  # (slots, UPDATE_COLUMNS)


class UpdateSettings(NamedTuple):
    """The nine numbers of one lane's update, in the order in which the operations read them."""

    learning_rate: float
    weight_kept: float  # 1 − learning rate · decay
    one_less_beta1: float
    beta2: float
    one_less_beta2: float
    step_size: float  # learning rate / (1 − β1^t)
    second_correction: float  # √(1 − β2^t)
    epsilon: float
    clip: float  # the norm that the gradient is clipped to


UPDATE_COLUMNS = (
    len(UpdateSettings._fields) + 2
)  # whether a lane takes a step, whether it is its first


def update_settings(schedule: Schedule, step: int, total_steps: int) -> UpdateSettings:
    """Return the numbers of the update number ``step`` (from 0)."""
    learning_rate = schedule.learning_rate * schedule.rate_share(step, total_steps)
    beta1, beta2 = schedule.betas
    count = step + 1
    return UpdateSettings(
        learning_rate=learning_rate,
        weight_kept=1.0 - learning_rate * schedule.weight_decay,
        one_less_beta1=1.0 - beta1,
        beta2=beta2,
        one_less_beta2=1.0 - beta2,
        step_size=learning_rate / (1.0 - beta1**count),
        second_correction=(1.0 - beta2**count) ** 0.5,
        epsilon=schedule.eps,
        clip=schedule.clip if schedule.clip > 0 else math.inf,
    )


class LaneStates:
    """What lanes have beside their adapters, by slot: AdamW's moments, and how they stand.

    Losses are summed since a lane's epoch began; ``unsound`` lanes had a loss or gradient that was no number.
    """

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.first = torch.zeros(slots, width, device=device)
        self.second = torch.zeros(slots, width, device=device)
        self.loss_sums = torch.zeros(slots + 1, device=device)
        self.first_losses = torch.zeros(slots + 1, device=device)
        self.unsound = torch.zeros(slots + 1, dtype=torch.bool, device=device)

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new lane."""
        for part in (self.first, self.second, self.loss_sums, self.unsound):
            part[slot].zero_()


@torch.no_grad()
def apply_update(bank: AdapterBank, states: LaneStates, losses: Tensor, table: Tensor) -> None:
    """Update the lanes that ``table`` names by the bank's gradients, clear these, and note how lanes stand.

    A lane whose gradient is not finite is left untouched.
    """
    count = bank.slots
    norms = torch.linalg.vector_norm(bank.grads[:count], dim=1)
    takes_step = table[:, -2] != 0
    is_first_step = table[:, -1] != 0
    lane_losses = losses[:count]
    is_sound = torch.isfinite(norms) & torch.isfinite(lane_losses)
    states.unsound[:count] |= takes_step & ~is_sound
    states.loss_sums[:count] += torch.where(takes_step, lane_losses, 0.0)
    first_losses = states.first_losses[:count]
    first_losses.copy_(torch.where(is_first_step, lane_losses, first_losses))
    operations(bank.device).update_(
        bank.weights, states.first, states.second, bank.grads, bank.work, bank.factors, table, norms
    )

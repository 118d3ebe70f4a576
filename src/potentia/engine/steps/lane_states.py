"""The state of lanes in training (AdamW's moments, losses), and the update of all lanes at once.

A lane is one fine-tuning, and its adapter lies in a slot of the adapter bank; everything here is stacked by slot. The
update is torch's AdamW, after each lane's gradient is clipped by its own norm as ``clip_grad_norm_`` does it. Every
lane has its own learning rate, decay, betas and bias corrections, so its adapter becomes what it would become alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.operations import operations
from potentia.values.recipe import Schedule

UpdateTable = npt.NDArray[np.float32]  # (slots, UPDATE_COLUMNS)


class UpdateSettings(NamedTuple):
    """The nine numbers of one lane's update, in the order in which the operations read them.

    β1 and β2 are AdamW's betas; t counts the lane's updates from 1.
    """

    learning_rate: float
    weight_kept: float  # 1 − learning rate · weight decay
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    step_size: float  # learning rate / (1 − β1^t)
    second_correction: float  # √(1 − β2^t)
    epsilon: float
    max_norm: float  # that the gradient is clipped to; infinite where it is not clipped


# the columns of an update's table: the nine numbers, whether the lane takes a step, and whether it is its first
UPDATE_COLUMNS = len(UpdateSettings._fields) + 2


def settings_of_update(schedule: Schedule, step: int, total_steps: int) -> UpdateSettings:
    """Return the numbers of a lane's update number ``step`` (from 0)."""
    learning_rate = schedule.learning_rate * schedule.rate_share(step, total_steps)
    beta1, beta2 = schedule.betas
    count = step + 1
    return UpdateSettings(
        learning_rate=learning_rate,
        weight_kept=1.0 - learning_rate * schedule.weight_decay,
        one_minus_beta1=1.0 - beta1,
        beta2=beta2,
        one_minus_beta2=1.0 - beta2,
        step_size=learning_rate / (1.0 - beta1**count),
        second_correction=(1.0 - beta2**count) ** 0.5,
        epsilon=schedule.eps,
        max_norm=schedule.clip if schedule.clip > 0 else math.inf,
    )


# the tensors of LaneStates as snapshots name them
STATE_NAMES = ("first", "second", "loss_sums", "first_losses", "unsound")


class LaneStates:
    """What lanes have beside their adapters, by slot: AdamW's moments of ``width`` parameters, and their losses.

    ``loss_sums`` add up the losses since the lane's epoch began, ``first_losses`` are those of its first update, and
    ``non_finite`` marks lanes with a loss or gradient that was infinite or not a number.
    """

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.first_moments = torch.zeros(slots, width, device=device)
        self.second_moments = torch.zeros(slots, width, device=device)
        self.loss_sums = torch.zeros(slots + 1, device=device)
        self.first_losses = torch.zeros(slots + 1, device=device)
        self.non_finite = torch.zeros(slots + 1, dtype=torch.bool, device=device)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return all tensors by their names in snapshots."""
        tensors = (
            self.first_moments,
            self.second_moments,
            self.loss_sums,
            self.first_losses,
            self.non_finite,
        )
        return dict(zip(STATE_NAMES, tensors, strict=True))

    def reset(self, slot: int) -> None:
        """Clear a slot for a new lane; its first loss is overwritten by its first update."""
        for part in (self.first_moments, self.second_moments, self.loss_sums, self.non_finite):
            part[slot].zero_()


@torch.no_grad()
def apply_update(
    adapter_bank: AdapterBank, states: LaneStates, losses: Tensor, table: Tensor
) -> None:
    """Update lanes by the gradients in the adapter bank, add up their losses, and clear the gradients.

    ``losses`` are those of the step, by slot; ``table`` (slots, :data:`UPDATE_COLUMNS`) says which lanes take a step,
    and how. A lane whose gradient is not finite is marked and keeps its adapter.
    """
    count = adapter_bank.slots
    norms = torch.linalg.vector_norm(adapter_bank.grads[:count], dim=1)
    takes_step = table[:, -2] != 0
    is_first_step = table[:, -1] != 0
    lane_losses = losses[:count]
    is_finite = torch.isfinite(norms) & torch.isfinite(lane_losses)
    states.non_finite[:count] |= takes_step & ~is_finite
    states.loss_sums[:count] += torch.where(takes_step, lane_losses, 0.0)
    first_losses = states.first_losses[:count]
    first_losses.copy_(torch.where(is_first_step, lane_losses, first_losses))
    operations(adapter_bank.device).update_(
        adapter_bank.weights,
        states.first_moments,
        states.second_moments,
        adapter_bank.grads,
        adapter_bank.work,
        adapter_bank.scales,
        table,
        norms,
    )

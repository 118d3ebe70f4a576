"""Updates of adapters as torch's AdamW makes them, which the updates of all lanes at once are compared with.

Two things may hide a fault. Clipping hides a gradient's size from AdamW, so one gradient lies below the norm that it is
clipped to, and another above it. Equal gradients hide AdamW's betas, so the second one points the other way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.proof.tolerance import working_copy_error
from potentia.engine.steps.lane_states import LaneStates
from potentia.values.recipe import Schedule

# norms that the gradients of two updates are scaled to, as shares of the norm that they are clipped to
BELOW_CLIP = 0.5
ABOVE_CLIP = -1.2
SECOND_UNCLIPPED = -0.6  # the factor on the second gradient where nothing is clipped
# gradients are not made so many times larger to reach the norm they are clipped to
LARGEST_GRADIENT_FACTOR = 1000.0


def choose_gradient_factor(
    schedule: Schedule, gradient_norm: float, *, is_second: bool, slot: int = 0
) -> float:
    """Return the factor on the gradient of the first or the second update that is compared.

    The second one differs from slot to slot: if all gradients were alike, a lane that is clipped by another's norm
    would look right.
    """
    is_within_reach = 0 < schedule.clip < LARGEST_GRADIENT_FACTOR * gradient_norm
    if not (is_within_reach and math.isfinite(gradient_norm)):
        return SECOND_UNCLIPPED if is_second else 1.0
    share_of_clip = BELOW_CLIP
    if is_second:
        share_of_clip = ABOVE_CLIP * (1 + slot % 5 / 4)
    return share_of_clip * schedule.clip / gradient_norm


class ReferenceAdamW:
    """The adapter in one slot of a bank, as torch's AdamW updates it; the bank's own is left alone."""

    def __init__(self, adapter_bank: AdapterBank, slot: int, schedule: Schedule) -> None:
        self.bank = adapter_bank
        self.slot = slot
        self.schedule = schedule
        self.start = adapter_bank.weights[slot].clone()
        self.adapter = self.start.clone().requires_grad_()
        self.optimizer = torch.optim.AdamW(
            [self.adapter],
            lr=0.0,
            betas=schedule.betas,
            eps=schedule.eps,
            weight_decay=schedule.weight_decay,
            foreach=False,
        )

    def resume(self, states: LaneStates, step: int) -> None:
        """Go on from the moments that a lane has in its slot after so many updates."""
        self.optimizer.state[self.adapter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": states.first_moments[self.slot].clone(),
            "exp_avg_sq": states.second_moments[self.slot].clone(),
        }

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Make an update by a gradient, which is clipped."""
        self.adapter.grad = gradient.clone()
        clip_norm = self.schedule.clip if self.schedule.clip > 0 else math.inf
        nn.utils.clip_grad_norm_([self.adapter], clip_norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        with torch.enable_grad():
            self.optimizer.step()

    def measure_error(self) -> float:
        """Return how far the bank's adapter is from this one, as a share of this one's movement.

        An error of the working copy, which passes multiply with, adds to the distance. An update by a learning rate
        that leads to infinite numbers counts as right: the run itself fails with it.
        """
        expected = self.adapter.detach()
        if not bool(torch.isfinite(expected).all()):
            return 0.0
        moved = float(torch.linalg.vector_norm(expected - self.start))
        error = float(torch.linalg.vector_norm(self.bank.weights[self.slot] - expected))
        error += working_copy_error(self.bank, [self.slot])
        if not math.isfinite(error):
            return math.inf
        return error / moved if moved > 0 else error

"""Adam for stacks: one flat tensor, one learning rate per model, no host synchronisation (so a graph can hold it)."""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.98, 1e-8
CLIP = 1.0


class Adam:
    """Moments of a flat (models, parameters) tensor; gradients are clipped to norm 1 model by model."""

    def __init__(self, flat: Tensor) -> None:
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)
        self.step = torch.zeros((), device=flat.device)

    @torch.no_grad()
    def update(self, flat: Tensor, grad: Tensor, rate: Tensor, decay: float = 0.0) -> None:
        """Move ``flat`` in place; ``rate`` has one entry per model."""
        grad = grad * (CLIP / (grad.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1.0)
        self.step += 1
        self.first.lerp_(grad, 1 - BETA1)
        self.second.lerp_(grad * grad, 1 - BETA2)
        mean = self.first / (1 - BETA1**self.step)
        scale = (self.second / (1 - BETA2**self.step)).sqrt().add(EPS)
        flat.sub_(rate[:, None] * (mean / scale + decay * flat))

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that make up the optimiser's memory."""
        return self.first, self.second, self.step

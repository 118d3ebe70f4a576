"""AdamW for all lanes at once: one row of a matrix per lane, each with its own step count, rate, decay and clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from potentia.engine.tune.schedule import Schedule


class LaneAdamW:
    """The update of torch's AdamW with per-row settings; a row with a gradient that is not finite is left untouched.

    The order of operations is torch's own (decay, first and second moment, bias corrections), after clipping each row's
    gradient to its own norm as ``clip_grad_norm_`` does, so a row equals an adapter trained alone.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.first = torch.zeros(rows, width, device=device)
        self.second = torch.zeros(rows, width, device=device)

    def reset(self, row: int) -> None:
        """Forget a row's moments."""
        self.first[row].zero_()
        self.second[row].zero_()

    def step(self, weights: Tensor, grads: Tensor, rows: Tensor, settings: Tensor) -> Tensor:
        """Update ``rows`` of ``weights``; returns each one's gradient norm before clipping. Clears ``grads``.

        ``settings`` (n, 9) on the device: lr, 1 − lr·decay, 1 − β1, β2, 1 − β2, lr/(1 − β1^t), √(1 − β2^t), ε, clip.
        """
        _, keep, one_b1, b2, one_b2, size, root, eps, clip = settings.unsqueeze(2).unbind(1)
        n = self.first.shape[0]
        whole = rows.shape[0] == n
        if whole:
            g, w, m, v = grads[:n], weights[:n], self.first, self.second
        else:
            g, w, m, v = (part.index_select(0, rows) for part in (grads, weights, self.first, self.second))
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        sound = torch.isfinite(norm)
        g = torch.where(sound, g * (clip / (norm + 1e-6)).clamp_(max=1.0), 0.0)
        new_m = torch.where(sound, m + (g - m) * one_b1, m)
        new_v = torch.where(sound, v * b2 + g * g * one_b2, v)
        new_w = torch.where(sound, w * keep - size * (new_m / (new_v.sqrt() / root + eps)), w)
        for part, new in ((weights, new_w), (self.first, new_m), (self.second, new_v)):
            if whole:
                part[:n].copy_(new)
            else:
                part.index_copy_(0, rows, new)
        grads.zero_()
        norms: Tensor = norm.squeeze(1)
        return norms


def settings_row(schedule: Schedule, step: int, total: int) -> list[float]:
    """Return the nine numbers :meth:`LaneAdamW.step` needs for the update number ``step`` (from 0)."""
    lr = schedule.learning_rate * schedule.factor(step, total)
    b1, b2 = schedule.betas
    t = step + 1
    clip = schedule.clip if schedule.clip > 0 else float("inf")
    return [
        lr,
        1.0 - lr * schedule.weight_decay,
        1.0 - b1,
        b2,
        1.0 - b2,
        lr / (1.0 - b1**t),
        (1.0 - b2**t) ** 0.5,
        schedule.eps,
        clip,
    ]

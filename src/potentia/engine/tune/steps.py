"""A step of all lanes: the gradients of its rows, by one of two ways to make passes, then AdamW for all lanes at once.

Passes come as they are, or in static sizes (``captured``); which of them a run takes, ``check`` decides. The update is
torch's AdamW with settings of its own for every lane: decay, first and second moment, bias corrections, after clipping
each lane's gradient to its own norm as ``clip_grad_norm_`` does, so a lane equals an adapter trained alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.operations import operations
from potentia.engine.split import SplitModel
from potentia.engine.tune.adapters import AdapterBank
from potentia.engine.tune.passes import SHARED, Lesson, run_step, to_device
from potentia.engine.tune.planner import PassPlan
from potentia.engine.tune.schedule import Schedule

Table = npt.NDArray[np.float32]
COLUMNS = 11  # of an update's table: nine settings, whether the lane takes a step, whether it is its first


@dataclass
class Standing:
    """How the lanes stand, by slot: losses summed since their epoch began, their first losses, and unsound values."""

    loss_sums: Tensor
    first_losses: Tensor
    unsound: Tensor

    @classmethod
    def of(cls, slots: int, device: torch.device) -> Standing:
        """All lanes new."""
        zeros = torch.zeros(slots + 1, device=device)
        return cls(zeros, zeros.clone(), torch.zeros(slots + 1, dtype=torch.bool, device=device))


class Steps(Protocol):
    """One way to make steps."""

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank. Rows come slot by slot."""

    def update(self, table: Table) -> None:
        """Update the lanes that ``table`` (slots, 11) names, by the gradients added since the last update."""

    def clear(self) -> None:
        """Forget a step that was begun."""

    def release(self) -> None:
        """Let go of memory that is kept between steps."""


class Moments:
    """AdamW's two moments of every lane, a row for each."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.first = torch.zeros(rows, width, device=device)
        self.second = torch.zeros(rows, width, device=device)

    def reset(self, row: int) -> None:
        """Forget a row's moments."""
        self.first[row].zero_()
        self.second[row].zero_()


def settings_row(schedule: Schedule, step: int, total: int) -> list[float]:
    """Return the nine numbers of the update number ``step`` (from 0).

    They are lr, 1 − lr·decay, 1 − β1, β2, 1 − β2, lr/(1 − β1^t), √(1 − β2^t), ε and the norm to clip to.
    """
    lr = schedule.learning_rate * schedule.factor(step, total)
    b1, b2 = schedule.betas
    t = step + 1
    clip = schedule.clip if schedule.clip > 0 else float("inf")
    size, root = lr / (1.0 - b1**t), (1.0 - b2**t) ** 0.5
    return [lr, 1.0 - lr * schedule.weight_decay, 1.0 - b1, b2, 1.0 - b2, size, root, schedule.eps, clip]


@torch.no_grad()
def apply_update(bank: AdapterBank, moments: Moments, standing: Standing, losses: Tensor, table: Tensor) -> None:
    """Update the lanes that ``table`` (slots, 11) names by the bank's gradients, clear these, and note how lanes stand.

    A lane whose gradient is not finite is left untouched.
    """
    n = bank.slots
    norms = torch.linalg.vector_norm(bank.grads[:n], dim=1)
    active, first = table[:, 9] != 0, table[:, 10] != 0
    standing.unsound[:n] |= active & ~(torch.isfinite(norms) & torch.isfinite(losses[:n]))
    standing.loss_sums[:n] += torch.where(active, losses[:n], 0.0)
    standing.first_losses[:n].copy_(torch.where(first, losses[:n], standing.first_losses[:n]))
    operations(bank.device).update_(
        bank.weights, moments.first, moments.second, bank.grads, bank.work, bank.factors, table, norms
    )
    bank.measure()


class PlainSteps:
    """Passes as they come, one operation at a time."""

    def __init__(
        self, split: SplitModel, bank: AdapterBank, moments: Moments, standing: Standing, form: str = SHARED
    ) -> None:
        self.split, self.bank, self.moments, self.standing, self.form = split, bank, moments, standing, form
        self.losses: Tensor | None = None

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank."""
        self.losses = run_step(self.split, self.bank, rows, plan, self.form)

    def update(self, table: Table) -> None:
        """Update the lanes that take part."""
        assert self.losses is not None
        apply_update(self.bank, self.moments, self.standing, self.losses, to_device(table, self.bank.device))

    def clear(self) -> None:
        """Forget a step that was begun."""
        self.bank.grads.zero_()

    def release(self) -> None:
        """Nothing is kept."""

"""A step of all lanes, in one of two ways: passes as they come, or static passes; and which of them a run takes.

Both add the gradients of a step's rows and then update every lane that takes part. Static passes need a model whose
gradients agree with the plain ones on rows like the real ones; a model without them says so once and runs as it comes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.tune.adapters import AdapterBank
from potentia.engine.tune.optimizer import LaneAdamW
from potentia.engine.tune.passes import Lesson, run_step, to_device
from potentia.engine.tune.planner import PassPlan
from potentia.engine.windows import horizons

if TYPE_CHECKING:
    from potentia.engine.tune.lanes import LaneTrainer

log = logging.getLogger(__name__)

Table = npt.NDArray[np.float32]
COLUMNS = 11  # of an update's table: nine settings, whether the lane takes a step, whether it is its first
TRIED_TOKENS = 512


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


class PlainSteps:
    """Passes as they come, one operation at a time."""

    def __init__(self, trainer: LaneTrainer, bank: AdapterBank, optimizer: LaneAdamW, standing: Standing) -> None:
        self.trainer, self.bank, self.optimizer, self.standing = trainer, bank, optimizer, standing
        self.losses: Tensor | None = None

    def gradients(self, rows: Sequence[Lesson], plan: PassPlan) -> None:
        """Add the gradients of one step of every lane into the bank."""
        self.losses = run_step(self.trainer.split, self.bank, rows, plan, self.trainer.fast)

    def update(self, table: Table) -> None:
        """Update the lanes that take part."""
        losses, standing = self.losses, self.standing
        assert losses is not None
        slots = np.flatnonzero(table[:, 9])
        index = to_device(slots, self.bank.device)
        settings = to_device(np.ascontiguousarray(table[slots, :9]), self.bank.device)
        norms = self.optimizer.step(self.bank.weights, self.bank.grads, index, settings)
        standing.unsound[index] |= ~torch.isfinite(norms) | ~torch.isfinite(losses[index])
        standing.loss_sums += losses
        for slot in np.flatnonzero(table[:, 10]):
            standing.first_losses[slot] = losses[slot]
        self.bank.refresh()

    def clear(self) -> None:
        """Forget a step that was begun."""
        self.bank.grads.zero_()

    def release(self) -> None:
        """Nothing is kept."""


def choose_steps(
    trainer: LaneTrainer,
    bank: AdapterBank,
    optimizer: LaneAdamW,
    standing: Standing,
    rows: Sequence[Lesson],
    longest: int,
) -> Steps:
    """Take static passes where they are wanted and give the plain passes' gradients on some of these rows."""
    if trainer.static and trainer.plan is not None and not trainer.plan.divides:
        from potentia.engine.tune.captured import StaticSteps
        from potentia.engine.tune.static import find_static, past_windows, sample

        tried = sample(rows, TRIED_TOKENS) + past_windows(rows, horizons(trainer.model.config, longest), longest)
        blocks = trainer.blocks if not _beyond_window(trainer.model.config, longest) else None
        found, reason = find_static(trainer.split, bank, trainer.fast, blocks, tried)
        if found is not None:
            if reason:
                log.info("static passes: %s", reason)
            return StaticSteps(found, optimizer, standing)
        log.warning("static passes are not used, lanes take longer: %s", reason)
    return PlainSteps(trainer, bank, optimizer, standing)


def _beyond_window(config: object, longest: int) -> bool:
    """Say whether rows are longer than what some layer looks back."""
    config = getattr(config, "text_config", None) or config
    window = getattr(config, "sliding_window", None)
    return window is not None and getattr(config, "use_sliding_window", True) is not False and longest > window

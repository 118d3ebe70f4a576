"""A recipe (how every model is fine-tuned) in numbers: the shape of its adapters, and its schedule.

``Tuning``, a study's settings of the fine-tuning, takes its defaults from here and makes both. The engine trains by
them and knows no study.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from potentia.errors import InputError

Decay = Literal["linear", "cosine", "constant", "late"]  # how the learning rate falls
LATE_SHARE = 0.2  # of the updates, over which a rate falls that falls late
Loss = Literal["text", "completion"]  # taken over the whole text, or over the answer alone


@dataclass(frozen=True)
class LoraConfig:
    """The shape of a low-rank adapter; a field without a default is one in which recipes differ.

    ``targets`` are endings of module names, as in PEFT. ``None`` means PEFT's default for the architecture; where PEFT
    has none, and with the only target ``"all-linear"``, it is every linear layer but the head.
    """

    r: int = 8  # rank
    alpha: float = 32
    dropout: float = field(kw_only=True)
    targets: tuple[str, ...] | None = field(kw_only=True)
    kind: str = (
        "lora"  # the adapter method (engine/layers/adapter_methods.py), which decides the scale
    )

    def __post_init__(self) -> None:
        if self.r < 1:
            raise InputError(f"LoRA rank must be at least 1, not {self.r}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"LoRA dropout must lie in [0, 1), not {self.dropout}")


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn, with the conventions of transformers' Trainer.

    A field without a default is one in which recipes differ. The learning rate rises linearly from zero over
    ``warmup_steps``, then falls along ``decay`` to ``floor``, a share of its peak; a rate that falls ``late`` stays at
    its peak until the last fifth of the updates, and falls linearly from there. The loss is the mean over all target
    tokens of the effective batch. Examples longer than ``max_tokens`` are cut: a prompt loses its beginning, a document
    its end.
    """

    epochs: int = 5
    batch: int = 8
    learning_rate: float = field(kw_only=True)
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 1.0
    decay: Decay = "linear"
    warmup_steps: int = 0
    floor: float = 0.0
    loss: Loss = field(kw_only=True)
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or self.max_tokens < 2:
            raise InputError("epochs and batch must be at least 1 and max_tokens at least 2")
        if self.decay not in get_args(Decay):
            raise InputError(
                f"unknown decay {self.decay!r}", hint="use linear, cosine, constant or late"
            )
        if self.loss not in get_args(Loss):
            raise InputError(f"unknown loss {self.loss!r}", hint="use text or completion")

    def steps_per_epoch(self, examples: int) -> int:
        """Return the number of updates in an epoch; its last batch may be smaller and is an update too."""
        return math.ceil(examples / self.batch)

    def total_steps(self, examples: int) -> int:
        """Return the number of updates of a fine-tuning with this many examples."""
        return self.epochs * self.steps_per_epoch(examples)

    def count_decay_steps(self, total: int) -> int:
        """Return the number of updates, of ``total``, over which the learning rate falls."""
        if self.decay == "late":
            return max(1, round(LATE_SHARE * total))
        return max(1, total - self.warmup_steps)

    def rate_share(self, step: int, total: int) -> float:
        """Return the learning rate of the update number ``step`` (from 0) of ``total``, as a share of its peak."""
        if step < self.warmup_steps:
            return step / max(1, self.warmup_steps)
        if self.decay == "constant":
            return 1.0
        decay_steps = self.count_decay_steps(total)
        first_decay_step = self.warmup_steps
        if self.decay == "late":
            first_decay_step = max(self.warmup_steps, total - decay_steps)
        progress = min(1.0, max(0, step - first_decay_step) / decay_steps)
        if self.decay == "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * progress))
        else:
            share = 1.0 - progress
        return self.floor + (1.0 - self.floor) * share

"""Full fine-tuning: all weights of one model, one job at a time (``method: full``).

The recipe of "Training on the test task" (appendix B.2): AdamW with β 0.9 and 0.95, weight decay on matrices
alone (norms and biases are spared, as Trainer does), linear warm-up, cosine to a floor, clipping, batch 64. Weights
in half precision are updated through float32 masters. The base's own dropout stays off, as in lanes. The loss is the
mean over all target tokens of the effective batch, whatever the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.examples import TokenisedExamples
from potentia.engine.head import SplitModel
from potentia.engine.passes import Row, assemble, backpropagate, out_of_memory, recomputing
from potentia.engine.planner import Plan, make_plan, pack, token_bytes
from potentia.engine.schedule import LaneSpec, Schedule, data_order
from potentia.errors import TuningError

TEST_TASK_RECIPE = Schedule(
    epochs=3,
    batch=64,
    learning_rate=2e-5,
    weight_decay=0.1,
    betas=(0.9, 0.95),
    clip=1.0,
    decay="cosine",
    warmup_steps=50,
    floor=0.1,
    max_tokens=600,
)


@dataclass(frozen=True)
class FullStep:
    """One update: its number (from 1), its loss and its gradient's norm before clipping."""

    step: int
    loss: float
    norm: float


class FullTrainer:
    """Tunes all weights of a loaded model, and puts the original ones back when closed."""

    def __init__(self, loaded: Any, *, token_budget: int | None = None) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        self.limit: int | None = getattr(loaded, "max_length", None)
        self.split = SplitModel(self.model)
        self.token_budget = token_budget
        self.plan: Plan | None = None
        self._parameters = list(self.model.parameters())  # a tied weight appears once
        self._originals = [parameter.detach().to("cpu", copy=True) for parameter in self._parameters]
        self._flags = [parameter.requires_grad for parameter in self._parameters]
        self._was_training = self.model.training
        self.model.eval()

    def __enter__(self) -> FullTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put the original weights back."""
        with torch.no_grad():
            for parameter, original, flag in zip(self._parameters, self._originals, self._flags, strict=True):
                parameter.copy_(original)
                parameter.requires_grad_(flag)
                parameter.grad = None
        self.model.train(self._was_training)

    def save(self, folder: Path) -> None:
        """Write the weights as they are now, in the model's own format."""
        self.model.save_pretrained(str(folder))  # type: ignore[operator]

    def train(
        self,
        examples: TokenisedExamples,
        schedule: Schedule = TEST_TASK_RECIPE,
        *,
        seed: int = 0,
        checkpoints: Collection[int] = (),
        on_checkpoint: Callable[[FullStep], None] | None = None,
        on_step: Callable[[FullStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[FullStep]:
        """Tune from the weights as they are; after the updates in ``checkpoints`` the caller may score the model."""
        spec = LaneSpec("full", examples, schedule, seed=seed)
        self.plan = self._plan(spec)
        for parameter in self._parameters:
            parameter.requires_grad_(True)
            parameter.grad = None
        masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self._parameters]
        optimizer = _adamw(masters, schedule)
        done: list[FullStep] = []
        while len(done) < spec.total_steps and not (stop is not None and stop()):
            step = len(done)
            loss = self._gradients(self._rows(spec, step))
            for master, parameter in zip(masters, self._parameters, strict=True):
                if master is not parameter and parameter.grad is not None:
                    master.grad, parameter.grad = parameter.grad.float(), None
            norm = float(nn.utils.clip_grad_norm_(masters, schedule.clip if schedule.clip > 0 else math.inf))
            if not math.isfinite(norm) or not math.isfinite(loss):
                raise TuningError(f"full tuning diverged at step {step + 1}: loss {loss:.3g}, gradient norm {norm:.3g}")
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate * schedule.factor(step, spec.total_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for master, parameter in zip(masters, self._parameters, strict=True):
                    if master is not parameter:
                        parameter.copy_(master)
            done.append(FullStep(step + 1, loss, norm))
            if on_step is not None:
                on_step(done[-1])
            if on_checkpoint is not None and step + 1 in checkpoints:
                on_checkpoint(done[-1])
        return done

    def _plan(self, spec: LaneSpec) -> Plan:
        first = self._parameters[0]
        memory = None
        size = sum(p.numel() for p in self._parameters)
        if first.device.type == "cuda":  # weights, gradients, masters and two moments stay on the device
            whole = torch.cuda.get_device_properties(first.device).total_memory
            memory = max(1, whole - size * (2 * first.element_size() + 12))
        config = getattr(self.model.config, "text_config", None) or self.model.config
        return make_plan(
            lanes=1,
            tokens_per_step=1.0,
            parameters=size,
            memory=memory,
            token_bytes=2 * token_bytes(config, first.element_size()),
            token_budget=self.token_budget,
        )

    def _rows(self, spec: LaneSpec, step: int) -> list[Row]:
        epoch, at = divmod(step, spec.steps_per_epoch)
        batch = spec.schedule.batch
        chosen = data_order(spec.seed, epoch, len(spec.examples))[at * batch : (at + 1) * batch]
        texts = [spec.text(int(i), self.limit) for i in chosen]
        weight = 1.0 / max(1, sum(len(ids) - first for ids, first in texts))
        return [Row(ids, first, 0, spec.seed, step, place, weight) for place, (ids, first) in enumerate(texts)]

    def _gradients(self, rows: list[Row]) -> float:
        """Add up the gradients of one effective batch, in smaller passes where memory runs out."""
        while True:
            assert self.plan is not None
            try:
                return self._passes(rows, self.plan)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                smaller = self.plan.smaller()
                if not out_of_memory(error):
                    raise
                if smaller is None:
                    raise TuningError(
                        "one example does not fit in memory beside the optimizer's state",
                        hint="lower max_tokens, or use method: lora",
                    ) from error
            self.plan = replace(smaller)
            for parameter in self._parameters:
                parameter.grad = None
            if self._parameters[0].device.type == "cuda":
                torch.cuda.empty_cache()

    def _passes(self, rows: list[Row], plan: Plan) -> float:
        device = self._parameters[0].device
        total = torch.zeros((), device=device)
        with recomputing(self.model, plan.checkpointing):
            for chosen, length in pack([len(row.ids) for row in rows], plan):
                batch = assemble([rows[i] for i in chosen], length, device, dropout=False)
                values = backpropagate(self.split, batch)
                total += (values * batch.weights).sum()
        return float(total)


def _adamw(parameters: list[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps)

"""Full fine-tuning: all weights of one model, one job at a time (``method: full``).

The recipe of "Training on the test task" (appendix B.2): AdamW with β 0.9 and 0.95, weight decay on matrices
alone (norms and biases are spared, as Trainer does), linear warm-up, cosine to a floor, clipping, batch 64. Losses and
gradients are first compared with those of each row alone through the model's own code (``check``). Weights
in half precision are updated through float32 masters. The base's own dropout stays off, as in lanes. The loss is the
mean over all target tokens of the effective batch, whatever the micro-batches.

With a ``workspace``, weights and moments are saved now and then, when asked to stop and at the end; the same call goes
on from there, on a CPU bit for bit as if it had not been interrupted. A job whose state exceeds :data:`MOST_BYTES` is
not saved and starts over.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.quantised import is_quantised
from potentia.engine.split import SplitModel
from potentia.engine.spread import out_of_memory, room_for_passes
from potentia.engine.tune.check import check_full
from potentia.engine.tune.checkpoint_file import Snapshots
from potentia.engine.tune.examples import TokenisedExamples
from potentia.engine.tune.passes import (
    LANE,
    ROW,
    SHARED,
    Lesson,
    PassPlan,
    assemble,
    backpropagate,
    divided,
    make_plan,
    recomputing,
    token_bytes,
)
from potentia.engine.tune.schedule import LaneSpec, Schedule, data_order
from potentia.engine.twin import twin
from potentia.errors import TuningError
from potentia.timing import spending

MOST_BYTES = 16 << 30
SNAPSHOT_SECONDS = 30.0


@dataclass(frozen=True)
class FullStep:
    """One update: its number (from 1), its loss, its gradient's norm before clipping, the tokens learned from."""

    step: int
    loss: float
    norm: float
    tokens: int = 0


class DivergedError(TuningError):
    """The loss or its gradient is no number any more."""


class FullTrainer:
    """Tunes all weights of a loaded model, and puts the original ones back when closed."""

    def __init__(self, loaded: Any, *, token_budget: int | None = None, workspace: Path | None = None) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        if is_quantised(self.model):
            raise TuningError("quantised weights cannot be tuned themselves", hint="use method: lora")
        self.limit: int | None = getattr(loaded, "max_length", None)
        self.split = SplitModel(self.model)
        self.token_budget, self.workspace = token_budget, workspace
        self.fingerprint: str = getattr(loaded, "fingerprint", "")
        self.plan: PassPlan | None = None
        self.record: dict[str, Any] = getattr(loaded, "record", {})  # how tuning was checked, for manifests
        self.form, self._checked = SHARED, 0  # what the check found, up to which length
        self._divides: tuple[int, ...] = ()
        self.steps: list[FullStep] = []  # of the job under way
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
        self.put(self._originals)
        for parameter, flag in zip(self._parameters, self._flags, strict=True):
            parameter.requires_grad_(flag)
        self.model.train(self._was_training)

    def weights(self) -> list[Tensor]:
        """Return the weights as they are now; they change with the next step."""
        return [parameter.detach() for parameter in self._parameters]

    @torch.no_grad()
    def put(self, weights: Sequence[Tensor] | None = None) -> None:
        """Put these weights into the model, the original ones by default."""
        for parameter, value in zip(self._parameters, weights or self._originals, strict=True):
            parameter.copy_(value)
            parameter.grad = None

    def save(self, folder: Path) -> None:
        """Write the weights as they are now, in the model's own format."""
        self.model.save_pretrained(str(folder))  # type: ignore[operator]

    def train(
        self,
        examples: TokenisedExamples,
        schedule: Schedule,
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
        optimizer = adamw(masters, schedule)
        saved = self._saved(spec, masters, optimizer)
        done = self.steps = saved.restore() if saved is not None else []
        self._put(masters)
        while len(done) < spec.total_steps:
            if stop is not None and stop():
                break
            step = len(done)
            rows = self._rows(spec, step)
            loss = self._gradients(rows)
            for master, parameter in zip(masters, self._parameters, strict=True):
                if master is not parameter and parameter.grad is not None:
                    master.grad, parameter.grad = parameter.grad.float(), None
            norm = float(nn.utils.clip_grad_norm_(masters, schedule.clip if schedule.clip > 0 else math.inf))
            if not math.isfinite(norm) or not math.isfinite(loss):
                told = f"full tuning diverged at step {step + 1}: loss {loss:.3g}, gradient norm {norm:.3g}"
                raise DivergedError(told)
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate * schedule.factor(step, spec.total_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self._put(masters)
            done.append(FullStep(step + 1, loss, norm, sum(len(row.ids) for row in rows)))
            if on_step is not None:
                on_step(done[-1])
            if on_checkpoint is not None and step + 1 in checkpoints:
                on_checkpoint(done[-1])
            if saved is not None:
                saved.save(done)
        if saved is not None:
            saved.save(done, now=True)
        return done

    @torch.no_grad()
    def _put(self, masters: list[Tensor]) -> None:
        for master, parameter in zip(masters, self._parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def _saved(self, spec: LaneSpec, masters: list[Tensor], optimizer: torch.optim.AdamW) -> _Saved | None:
        if self.workspace is None or sum(12 * master.numel() for master in masters) > MOST_BYTES:
            return None
        name = hashlib.sha256(f"full 1\n{self.fingerprint}\n{spec.fingerprint()}".encode()).hexdigest()[:24]
        return _Saved(Snapshots(self.workspace / name), masters, optimizer)

    def _plan(self, spec: LaneSpec) -> PassPlan:
        first = self._parameters[0]
        size = sum(p.numel() for p in self._parameters)
        # weights, gradients, masters and two moments stay on the device
        room = room_for_passes(self.model, more=first.element_size() + 12)
        memory = None if room is None else max(1, room)
        config = getattr(self.model.config, "text_config", None) or self.model.config
        plan = make_plan(
            lanes=1,
            tokens_per_step=1.0,
            parameters=size,
            memory=memory,
            token_bytes=2 * token_bytes(config, first.element_size()),
            token_budget=self.token_budget,
        )
        return replace(plan, divides=self._check(spec, (SHARED, LANE, ROW)))

    def _check(self, spec: LaneSpec, forms: Sequence[str]) -> tuple[int, ...]:
        """Find the first form whose losses and gradients are the model's own; returns lengths that keep rows apart."""
        longest = min(self.limit or 1 << 30, spec.longest)
        if self._checked >= longest and self.form in forms:
            return self._divides
        with spending("check"), twin(self.model) as judge:
            found = check_full(judge.model, spec, self.limit, forms)
        self.form, self._divides, self._checked = found.form, found.divides, longest
        self.record["training"] = found.as_dict()
        return found.divides

    def _rows(self, spec: LaneSpec, step: int) -> list[Lesson]:
        epoch, at = divmod(step, spec.steps_per_epoch)
        batch = spec.schedule.batch
        chosen = data_order(spec.seed, epoch, len(spec.examples))[at * batch : (at + 1) * batch]
        texts = [spec.text(int(i), self.limit) for i in chosen]
        weight = 1.0 / max(1, sum(len(ids) - first for ids, first in texts))
        return [Lesson(ids, first, 0, spec.seed, step, place, weight) for place, (ids, first) in enumerate(texts)]

    def _gradients(self, rows: list[Lesson]) -> float:
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

    def _passes(self, rows: list[Lesson], plan: PassPlan) -> float:
        device = self._parameters[0].device
        total = torch.zeros((), device=device)
        with recomputing(self.model, plan.checkpointing):
            for chosen, length in divided(rows, plan, self.form):
                batch = assemble(chosen, length, device, dropout=False)
                values = backpropagate(self.split, batch, whole=self.form != SHARED)
                total += (values * batch.weights).sum()
        return float(total)


class _Saved:
    """The state of a job on disk: weights, both moments, and what each step gave."""

    def __init__(self, snapshots: Snapshots, masters: list[Tensor], optimizer: torch.optim.AdamW) -> None:
        self.snapshots, self.masters, self.optimizer = snapshots, masters, optimizer
        self._steps, self._at, self._took = 0, time.monotonic(), 0.0

    def save(self, done: list[FullStep], *, now: bool = False) -> None:
        """Save the state; unless asked to at once, not more often than pays."""
        began = time.monotonic()
        if len(done) == self._steps or (not now and began - self._at < max(SNAPSHOT_SECONDS, 20 * self._took)):
            return
        tensors: dict[str, Tensor] = {}
        for place, master in enumerate(self.masters):
            state = self.optimizer.state[master]
            tensors |= {f"weight-{place}": master} | {f"{part}-{place}": state[part] for part in _MOMENTS if state}
        self.snapshots.save(tensors, {"steps": [astuple(step) for step in done]})
        self._steps, self._at = len(done), time.monotonic()
        self._took = self._at - began

    @torch.no_grad()
    def restore(self) -> list[FullStep]:
        """Put the newest whole state back; returns the steps it has behind it."""
        found = self.snapshots.latest()
        if found is None:
            return []
        tensors, facts = found
        done = [FullStep(*step) for step in facts["steps"]]
        for place, master in enumerate(self.masters):
            master.copy_(tensors[f"weight-{place}"])
            if f"{_MOMENTS[0]}-{place}" in tensors:
                moments = {part: tensors[f"{part}-{place}"].to(master.device) for part in _MOMENTS}
                self.optimizer.state[master] = {"step": torch.tensor(float(len(done))), **moments}
        self._steps = len(done)
        return done


_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(parameters: list[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """Return the optimizer of a job: weight decay on matrices alone."""
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps)

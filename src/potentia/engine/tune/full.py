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
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from potentia.engine.quantised import is_quantised
from potentia.engine.split import SplitModel
from potentia.engine.spread import out_of_memory, room_for_passes
from potentia.engine.tune.check import DRAWS, WHOLE_BITS, Distance, Verdict, trial_rows
from potentia.engine.tune.checkpoint_file import Snapshots
from potentia.engine.tune.judge import Gradients, own_loss
from potentia.engine.tune.passes import (
    LANE,
    ROW,
    SHARED,
    PassPlan,
    assemble,
    backpropagate,
    divided,
    make_plan,
    recomputing,
    token_bytes,
)
from potentia.engine.tune.schedule import LaneSpec, Lesson, Schedule, TokenisedExamples
from potentia.engine.twin import twin
from potentia.errors import TuningError
from potentia.timing import spending

log = logging.getLogger(__name__)

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
    """Tunes all weights of a loaded model, and puts the original ones back when closed.

    With ``shards`` a job has so many processes; the model has its weights at checkpoints and at the steps in ``looks``.
    """

    def __init__(
        self,
        loaded: Any,
        *,
        token_budget: int | None = None,
        workspace: Path | None = None,
        shards: int = 1,
        looks: Collection[int] = (),
    ) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        if is_quantised(self.model):
            raise TuningError("quantised weights cannot be tuned themselves", hint="use method: lora")
        self.limit: int | None = getattr(loaded, "max_length", None)
        self.split = SplitModel(self.model)
        self.token_budget, self.workspace, self.shards, self.looks = token_budget, workspace, shards, looks
        self.fingerprint: str = getattr(loaded, "fingerprint", "")
        self.plan: PassPlan | None = None
        self.record: dict[str, Any] = getattr(loaded, "record", {})  # how tuning was checked, for manifests
        self.form, self._checked = SHARED, 0  # what the check found, up to which length
        self.steps: list[FullStep] = []  # of the job under way
        self.parameters = list(self.model.parameters())  # a tied weight appears once
        self._originals = [parameter.detach().to("cpu", copy=True) for parameter in self.parameters]
        self._flags = [parameter.requires_grad for parameter in self.parameters]
        self._was_training = self.model.training
        self.model.eval()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put the original weights back."""
        self.put(self._originals)
        for parameter, flag in zip(self.parameters, self._flags, strict=True):
            parameter.requires_grad_(flag)
        self.model.train(self._was_training)

    def weights(self) -> list[Tensor]:
        """Return the weights as they are now; they change with the next step."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def put(self, weights: Sequence[Tensor] | None = None) -> None:
        """Put these weights into the model, the original ones by default."""
        for parameter, value in zip(self.parameters, weights or self._originals, strict=True):
            parameter.copy_(value)
            parameter.grad = None

    def save(self, folder: Path) -> None:
        """Write the weights as they are now, in the model's own format."""
        self.model.save_pretrained(str(folder))  # type: ignore[operator]

    def tune(
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
        from potentia.engine.tune.sharded import Shards

        spec = LaneSpec("full", examples, schedule, seed=seed)
        looks = {*self.looks, *checkpoints}
        with Shards(self, spec) if self.shards > 1 else nullcontext(_Job(self, spec)) as job:
            done = self.steps = job.restore()
            while len(done) < spec.total_steps and not (stop is not None and stop()):
                step = len(done)
                rows = spec.rows(step, self.limit)
                rate = schedule.learning_rate * schedule.factor(step, spec.total_steps)
                loss, norm = job.step(rows, rate)
                if not math.isfinite(norm) or not math.isfinite(loss):
                    told = f"full tuning diverged at step {step + 1}: loss {loss:.3g}, gradient norm {norm:.3g}"
                    raise DivergedError(told)
                done.append(FullStep(step + 1, loss, norm, sum(len(row.ids) for row in rows)))
                if step + 1 in looks:
                    job.show()
                if on_step is not None:
                    on_step(done[-1])
                if on_checkpoint is not None and step + 1 in checkpoints:
                    on_checkpoint(done[-1])
                job.save(done)
            job.show()
            job.save(done, now=True)
        return done

    def _plan(self, spec: LaneSpec) -> PassPlan:
        """Choose passes that fit, and the form that is the model's own."""
        first = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
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
        self._check(spec, (SHARED, LANE, ROW))
        return plan

    def _check(self, spec: LaneSpec, forms: Sequence[str]) -> None:
        """Find the first form whose losses and gradients are the model's own."""
        longest = min(self.limit or 1 << 30, spec.longest)
        if self._checked >= longest and self.form in forms:
            return
        with spending("check"), twin(self.model) as judge:
            found = check_full(judge.model, spec, self.limit, forms)
        self.form, self._checked = found.form, longest
        self.record["training"] = found.as_dict()


class _Job:
    """A job in this process: masters, the optimizer, and its state on disk (weights, both moments, the steps)."""

    def __init__(self, trainer: FullTrainer, spec: LaneSpec) -> None:
        self.trainer, self.schedule = trainer, spec.schedule
        self.parameters = trainer.parameters
        trainer.plan = trainer._plan(spec)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
            parameter.grad = None
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters]
        self.optimizer = adamw(self.masters, spec.schedule)
        folder = None
        if trainer.workspace is not None and sum(12 * master.numel() for master in self.masters) <= MOST_BYTES:
            name = hashlib.sha256(f"full 1\n{trainer.fingerprint}\n{spec.fingerprint()}".encode()).hexdigest()[:24]
            folder = trainer.workspace / name
        self.snapshots = Snapshots(folder, SNAPSHOT_SECONDS)
        self._steps = 0  # that are saved

    def step(self, rows: list[Lesson], rate: float) -> tuple[float, float]:
        """Make one update; returns its loss and its gradient's norm, and makes none where these are no numbers."""
        loss = self._gradients(rows)
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.float(), None
        norm = clipped_norm(self.masters, self.schedule)
        if math.isfinite(norm) and math.isfinite(loss):
            update(self.optimizer, rate)
            self._put()
        return loss, norm

    @torch.no_grad()
    def _put(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def show(self) -> None:
        """The model has its weights after every step."""

    def _gradients(self, rows: list[Lesson]) -> float:
        """Add up the gradients of one effective batch, in smaller passes where memory runs out."""
        while True:
            assert self.trainer.plan is not None
            try:
                return self._passes(rows, self.trainer.plan)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                smaller = self.trainer.plan.smaller()
                if not out_of_memory(error):
                    raise
                if smaller is None:
                    raise TuningError(
                        "one example does not fit in memory beside the optimizer's state",
                        hint="lower max_tokens, or use method: lora",
                    ) from error
            self.trainer.plan = smaller
            for parameter in self.parameters:
                parameter.grad = None
            if self.parameters[0].device.type == "cuda":
                torch.cuda.empty_cache()

    def _passes(self, rows: list[Lesson], plan: PassPlan) -> float:
        device = self.parameters[0].device
        total = torch.zeros((), device=device)
        with recomputing(self.trainer.model, plan.checkpointing):
            for chosen, length in divided(rows, plan, self.trainer.form):
                batch = assemble(chosen, length, device, dropout=False)
                values = backpropagate(self.trainer.split, batch, whole=self.trainer.form != SHARED)
                total += (values * batch.weights).sum()
        return float(total)

    def save(self, done: list[FullStep], *, now: bool = False) -> None:
        """Save the state; unless asked to at once, not more often than pays."""
        if len(done) == self._steps or not self.snapshots.due(now=now):
            return
        tensors: dict[str, Tensor] = {}
        for place, master in enumerate(self.masters):
            state = self.optimizer.state[master]
            tensors |= {f"weight-{place}": master} | {f"{part}-{place}": state[part] for part in _MOMENTS if state}
        self.snapshots.save(tensors, {"steps": [astuple(step) for step in done]})
        self._steps = len(done)

    @torch.no_grad()
    def restore(self) -> list[FullStep]:
        """Put the newest whole state back; returns the steps it has behind it."""
        found = self.snapshots.latest()
        if found is None:
            self._put()
            return []
        tensors, facts = found
        done = [FullStep(*step) for step in facts["steps"]]
        for place, master in enumerate(self.masters):
            master.copy_(tensors[f"weight-{place}"])
            if f"{_MOMENTS[0]}-{place}" in tensors:
                moments = {part: tensors[f"{part}-{place}"].to(master.device) for part in _MOMENTS}
                self.optimizer.state[master] = {"step": torch.tensor(float(len(done))), **moments}
        self._steps = len(done)
        self._put()
        return done


_MOMENTS = ("exp_avg", "exp_avg_sq")


def check_full(model: nn.Module, spec: LaneSpec, limit: int | None, forms: Sequence[str]) -> Verdict:
    """Find the first form of full tuning whose loss and gradients of all weights are those of each row alone."""
    began = time.monotonic()
    split, verdict, told = SplitModel(model), Verdict(), ""
    device = next(model.parameters()).device

    def own(rows: Sequence[Lesson]) -> Iterator[Tensor]:
        for row in rows:
            loss = own_loss(model, row, device)
            torch.autograd.backward(loss)
            yield loss.detach()

    def in_passes(rows: Sequence[Lesson], form: str) -> Iterator[Tensor]:
        plan = PassPlan(1, 1 << 40, 1 << 40)
        for chosen, length in divided(rows, plan, form):
            batch = assemble(chosen, length, device, dropout=False)
            yield (backpropagate(split, batch, whole=form != SHARED) * batch.weights).sum()

    def off(rows: Sequence[Lesson], form: str) -> Distance:
        loss, slope = _full_gradients(model, own(rows))
        ours, found = _full_gradients(model, in_passes(rows, form))
        gap = float(torch.linalg.vector_norm(found - slope) / torch.linalg.vector_norm(slope))
        return Distance(float((ours - loss).abs() / loss.abs()), gap, gap)

    for form in forms:
        for draw in range(DRAWS):
            rows = [replace(row, slot=0) for row in trial_rows([spec], limit, draw)]
            distance = off(rows, form)
            if distance.within(WHOLE_BITS):
                verdict.form = form
                verdict.facts |= {"distance": distance.as_dict(), "seconds": round(time.monotonic() - began, 3)}
                return verdict
            told = str(distance)
        log.warning("%s: full tuning is not run as %s: %s", type(model).__name__, form, told)
    raise TuningError(f"{type(model).__name__} cannot be tuned here: {told}", hint="potentia models check MODEL")


def _full_gradients(model: nn.Module, losses: Iterator[Tensor]) -> Gradients:
    """Return the sum of losses, and the gradient of all weights that computing them leaves, as one row."""
    parameters = list(model.parameters())
    asked = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
            parameter.grad = None
        loss = torch.stack(list(losses)).sum()
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return loss, torch.cat([slope.float().flatten() for slope in slopes])
    finally:
        for parameter, flag in zip(parameters, asked, strict=True):
            parameter.grad = None
            parameter.requires_grad_(flag)


def clipped_norm(parameters: list[Tensor], schedule: Schedule) -> float:
    """Clip the gradients' norm; returns what it was."""
    norm: Any = nn.utils.clip_grad_norm_(parameters, schedule.clip if schedule.clip > 0 else math.inf)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Make a step at a learning rate, and let the gradients go."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def adamw(parameters: list[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """Return the optimizer of a job: weight decay on matrices alone."""
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps)

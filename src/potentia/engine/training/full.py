"""One job of full fine-tuning in this process: all weights, masters, the optimizer, and its state on disk.

AdamW has weight decay on matrices alone (norms and biases are spared, as Trainer does). Weights in half precision are
updated through float32 masters. The base's own dropout stays off, as in lanes. The loss is the mean over all target
tokens of the effective batch, whatever the micro-batches. Losses and gradients of a form are first compared with those
of each row alone through the model's own code (:func:`check_full`). A job whose state exceeds :data:`MOST_BYTES` is not
saved and starts over.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, Schedule, TrainingRow
from potentia.engine.layers.recomputation import recomputed_activations
from potentia.engine.models.split_model import SplitModel, asking
from potentia.engine.proof.reference import Gradients, reference_loss
from potentia.engine.proof.tolerance import DRAWS, WHOLE_BITS, Distance
from potentia.engine.proof.training_check import TrainingVerdict, choose_trial_rows
from potentia.engine.steps.padded_pass import assemble_batch, backpropagate
from potentia.engine.steps.pass_plan import PassPlan, divide_rows
from potentia.engine.training.snapshot import Snapshots
from potentia.engine.training.trainer import Trainer
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 30
SNAPSHOT_SECONDS = 30.0
MOMENTS = ("exp_avg", "exp_avg_sq")


class FullStep(NamedTuple):
    """One update: its loss, its gradient's norm before clipping, and the tokens learned from."""

    loss: float
    norm: float
    tokens: int

    @property
    def sound(self) -> bool:
        """Whether loss and gradient are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class FullTuningJob:
    """A job: its masters, its optimizer, and what is saved of it (weights, both moments, the steps)."""

    def __init__(
        self, trainer: Trainer, spec: LaneSpec, form: TrainingForm, folder: Path | None
    ) -> None:
        self.trainer, self.schedule, self.form = trainer, spec.schedule, form
        self.parameters = list(trainer.model.parameters())
        trainer.model.zero_grad()
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters
        ]
        self.optimizer = make_adamw(self.masters, spec.schedule)
        small = sum(12 * master.numel() for master in self.masters) <= MOST_BYTES
        self.snapshots = Snapshots(folder if small else None, SNAPSHOT_SECONDS)
        self._saved = 0  # steps

    def step(self, rows: list[TrainingRow], rate: float) -> FullStep:
        """Make one update, or none where loss or gradient are no numbers."""
        loss = self._gradients(rows)
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.float(), None
        made = FullStep(
            loss, clip_gradients(self.masters, self.schedule), sum(len(row.ids) for row in rows)
        )
        if made.sound:
            make_update(self.optimizer, rate)
            self._put()
        return made

    @torch.no_grad()
    def _put(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def show(self) -> None:
        """The model has its weights after every step."""

    def _gradients(self, rows: list[TrainingRow]) -> float:
        def compute(plan: PassPlan) -> float:
            with recomputed_activations(self.trainer.model, plan.checkpointing):
                return float(sum(run_passes(self.trainer.split, rows, plan, self.form)))

        hint = "lower max_tokens, or use method: lora"
        return self.trainer.run_in_passes(rows, compute, self.trainer.model.zero_grad, hint)

    def save(self, done: Sequence[FullStep], *, now: bool = False) -> None:
        """Save the state; unless asked to at once, not more often than pays."""
        if len(done) == self._saved or not self.snapshots.due(now=now):
            return
        tensors: dict[str, Tensor] = {}
        for place, master in enumerate(self.masters):
            state = self.optimizer.state[master]
            tensors |= {f"weight-{place}": master} | {
                f"{part}-{place}": state[part] for part in MOMENTS if state
            }
        self.snapshots.save(tensors, {"steps": done})
        self._saved = len(done)

    @torch.no_grad()
    def restore(self) -> list[FullStep]:
        """Put the newest whole state back; returns the steps it has behind it."""
        tensors, facts = self.snapshots.latest() or ({}, {"steps": []})
        done = [FullStep(*step) for step in facts["steps"]]
        for place, master in enumerate(self.masters if tensors else ()):
            master.copy_(tensors[f"weight-{place}"])
            if f"{MOMENTS[0]}-{place}" in tensors:
                moments = {part: tensors[f"{part}-{place}"].to(master.device) for part in MOMENTS}
                self.optimizer.state[master] = {"step": torch.tensor(float(len(done))), **moments}
        self._saved = len(done)
        self._put()
        return done


def run_passes(
    split: SplitModel, rows: Sequence[TrainingRow], plan: PassPlan, form: TrainingForm
) -> Iterator[Tensor]:
    """Run rows forward and backward in passes; yields the loss of each."""
    device = next(split.model.parameters()).device
    for chosen, length in divide_rows(rows, plan, form):
        batch = assemble_batch(chosen, length, device, dropout=False)
        yield (backpropagate(split, batch, whole=form != TrainingForm.PADDED) * batch.weights).sum()


def check_full(
    model: nn.Module, spec: LaneSpec, limit: int | None, forms: Sequence[TrainingForm]
) -> TrainingVerdict:
    """Find the first form of full tuning whose loss and gradients of all weights are those of each row alone."""
    began = time.monotonic()
    split, plan, told = SplitModel(model), PassPlan(1, 1 << 40, 1 << 40), ""
    for form in forms:
        for draw in range(DRAWS):
            rows = [replace(row, slot=0) for row in choose_trial_rows([spec], limit, draw)]
            own = _full_gradients(model, _own(model, rows))
            distance = _full_distance(
                _full_gradients(model, run_passes(split, rows, plan, form)), own
            )
            if distance.within(WHOLE_BITS):
                recomputes = False
                with suppress(Exception), recomputed_activations(model, True):
                    again = _full_gradients(model, run_passes(split, rows, plan, form))
                    recomputes = _full_distance(again, own).within(WHOLE_BITS)
                facts = {
                    "distance": distance.as_dict(),
                    "seconds": round(time.monotonic() - began, 3),
                }
                return TrainingVerdict(form, recomputes=recomputes, facts=facts)
            told = str(distance)
        log.warning("%s: full tuning is not run as %s: %s", type(model).__name__, form.words, told)
    raise TuningError(
        f"{type(model).__name__} cannot be tuned here: {told}", hint="potentia models check MODEL"
    )


def _full_distance(ours: Gradients, own: Gradients) -> Distance:
    (loss, found), (own_loss, slope) = ours, own
    gap = float(torch.linalg.vector_norm(found - slope) / torch.linalg.vector_norm(slope))
    return Distance(float((loss - own_loss).abs() / own_loss.abs()), gap, gap)


def _own(model: nn.Module, rows: Sequence[TrainingRow]) -> Iterator[Tensor]:
    """Run each row alone through the model's own code, forward and backward; yields its loss."""
    device = next(model.parameters()).device
    for row in rows:
        loss = reference_loss(model, row, device)
        torch.autograd.backward(loss)
        yield loss.detach()


def _full_gradients(model: nn.Module, losses: Iterator[Tensor]) -> Gradients:
    """Return the sum of losses, and the gradient of all weights that computing them leaves, as one row."""
    with asking(model, True):
        model.zero_grad()
        loss = torch.stack(list(losses)).sum()
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        model.zero_grad()
    return loss, torch.cat([slope.float().flatten() for slope in slopes])


def clip_gradients(parameters: list[Tensor], schedule: Schedule) -> float:
    """Clip the gradients' norm; returns what it was."""
    norm: Any = nn.utils.clip_grad_norm_(
        parameters, schedule.clip if schedule.clip > 0 else math.inf
    )
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def make_update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Make a step at a learning rate, and let the gradients go."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_adamw(parameters: list[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """Return the optimizer of a job: weight decay on matrices alone."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": schedule.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps
    )

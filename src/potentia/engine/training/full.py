"""One job of full fine-tuning in this process: all weights, masters, the optimizer, and its state on disk.

AdamW has weight decay on matrices alone (norms and biases are spared, as Trainer does). Weights in half precision are
updated through float32 masters. The base's own dropout stays off, as in lanes. The loss is the mean over all target
tokens of the effective batch, however it is divided into passes. Losses and gradients of a form are first compared
with those of each row alone through the model's own code (:func:`check_full`). A job whose state exceeds
:data:`MOST_BYTES` is not saved and starts over.
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
        self.trainer = trainer
        self.schedule = spec.schedule
        self.form = form
        self.parameters = list(trainer.model.parameters())
        trainer.model.zero_grad()
        self.masters = [_master_of(parameter) for parameter in self.parameters]
        self.optimizer = make_adamw(self.masters, spec.schedule)
        state_bytes = sum(12 * master.numel() for master in self.masters)
        is_saved = state_bytes <= MOST_BYTES
        self.snapshots = Snapshots(folder if is_saved else None, SNAPSHOT_SECONDS)
        self._saved_steps = 0

    def step(self, rows: list[TrainingRow], rate: float) -> FullStep:
        """Make one update, or none where loss or gradient are no numbers."""
        loss = self.compute_gradients(rows)
        norm = math.nan
        if math.isfinite(loss):
            norm = self.update(rate)
        return FullStep(loss=loss, norm=norm, tokens=sum(len(row.ids) for row in rows))

    def update(self, rate: float) -> float:
        """Update all weights by their gradients, unless these are no numbers; return the gradients' norm."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None
        norm = clip_gradients(self.masters, self.schedule)
        if math.isfinite(norm):
            make_update(self.optimizer, rate)
            self.copy_masters_to_model()
        return norm

    @torch.no_grad()
    def copy_masters_to_model(self) -> None:
        """Give the model the weights that the optimizer updates."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def show(self) -> None:
        """Do nothing: the model has its weights after every step."""

    def compute_gradients(self, rows: list[TrainingRow]) -> float:
        """Add the gradients of a step, and return its loss."""

        def compute(plan: PassPlan) -> float:
            with recomputed_activations(self.trainer.model, plan.checkpointing):
                return float(sum(run_passes(self.trainer.split, rows, plan, self.form)))

        hint = "lower max_tokens, or use method: lora"
        return self.trainer.run_in_passes(rows, compute, self.trainer.model.zero_grad, hint)

    def save(self, done: Sequence[FullStep], *, now: bool = False) -> None:
        """Save the state; unless asked to at once, not more often than pays."""
        if len(done) == self._saved_steps or not self.snapshots.due(now=now):
            return
        tensors: dict[str, Tensor] = {}
        for number, master in enumerate(self.masters):
            tensors[f"weight-{number}"] = master
            moments = self.optimizer.state[master]
            if moments:  # a weight that had no gradient yet has none
                for name in MOMENTS:
                    tensors[f"{name}-{number}"] = moments[name]
        self.snapshots.save(tensors, {"steps": done})
        self._saved_steps = len(done)

    @torch.no_grad()
    def restore(self) -> list[FullStep]:
        """Put the newest saved state back, and return the steps that led to it."""
        done: list[FullStep] = []
        snapshot = self.snapshots.latest()
        if snapshot is not None:
            tensors, facts = snapshot
            done = [FullStep(*step) for step in facts["steps"]]
            self._restore_weights(tensors, len(done))
        self._saved_steps = len(done)
        self.copy_masters_to_model()
        return done

    def _restore_weights(self, tensors: dict[str, Tensor], step_count: int) -> None:
        """Put saved weights into the masters, and saved moments into the optimizer."""
        for number, master in enumerate(self.masters):
            master.copy_(tensors[f"weight-{number}"])
            if f"{MOMENTS[0]}-{number}" not in tensors:
                continue
            state: dict[str, Tensor] = {"step": torch.tensor(float(step_count))}
            for name in MOMENTS:
                state[name] = tensors[f"{name}-{number}"].to(master.device)
            self.optimizer.state[master] = state


def _master_of(parameter: Tensor) -> Tensor:
    """Return the float32 weight that the optimizer updates: a parameter itself, or a copy of one in 16 bits."""
    if parameter.dtype == torch.float32:
        return parameter
    return parameter.detach().float()


def run_passes(
    split: SplitModel, rows: Sequence[TrainingRow], plan: PassPlan, form: TrainingForm
) -> Iterator[Tensor]:
    """Run rows forward and backward in passes, and yield the loss of each pass."""
    device = next(split.model.parameters()).device
    for pass_rows, length in divide_rows(rows, plan, form):
        batch = assemble_batch(pass_rows, length, device, dropout=False)
        losses = backpropagate(split, batch, all_positions=form != TrainingForm.PADDED)
        yield (losses * batch.weights).sum()


def check_full(
    model: nn.Module, spec: LaneSpec, limit: int | None, forms: Sequence[TrainingForm]
) -> TrainingVerdict:
    """Find the first form of full tuning whose loss and gradients of all weights are those of each row alone."""
    began = time.monotonic()
    split = SplitModel(model)
    reason = ""
    for form in forms:
        for draw in range(DRAWS):
            trial_rows = choose_trial_rows([spec], limit, draw)
            rows = [replace(row, slot=0) for row in trial_rows]
            reference = _compute_full_gradients(model, _run_rows_alone(model, rows))
            distance = _form_distance(split, rows, form, reference)
            if distance.within(WHOLE_BITS):
                recomputes = _may_recompute(split, rows, form, reference)
                seconds = round(time.monotonic() - began, 3)
                facts = {"distance": distance.as_dict(), "seconds": seconds}
                return TrainingVerdict(form, recomputes=recomputes, facts=facts)
            reason = str(distance)
        log.warning(
            "%s: full tuning is not run as %s: %s", type(model).__name__, form.words, reason
        )
    raise TuningError(
        f"{type(model).__name__} cannot be tuned here: {reason}", hint="potentia doctor MODEL"
    )


def _form_distance(
    split: SplitModel, rows: Sequence[TrainingRow], form: TrainingForm, reference: Gradients
) -> Distance:
    """Return how far loss and gradients of rows in one form are from the reference's."""
    unlimited = PassPlan(1, 1 << 40, 1 << 40)
    passes = run_passes(split, rows, unlimited, form)
    return _full_distance(_compute_full_gradients(split.model, passes), reference)


def _may_recompute(
    split: SplitModel, rows: Sequence[TrainingRow], form: TrainingForm, reference: Gradients
) -> bool:
    """Return whether gradients are the reference's with activations computed again; a model that cannot says no."""
    with suppress(Exception), recomputed_activations(split.model, True):
        return _form_distance(split, rows, form, reference).within(WHOLE_BITS)
    return False


def _full_distance(ours: Gradients, reference: Gradients) -> Distance:
    our_loss, our_gradient = ours
    reference_loss_sum, reference_gradient = reference
    loss_distance = (our_loss - reference_loss_sum).abs() / reference_loss_sum.abs()
    gap = torch.linalg.vector_norm(our_gradient - reference_gradient)
    gradient_distance = float(gap / torch.linalg.vector_norm(reference_gradient))
    return Distance(float(loss_distance), gradient_distance, gradient_distance)


def _run_rows_alone(model: nn.Module, rows: Sequence[TrainingRow]) -> Iterator[Tensor]:
    """Run each row alone through the model's own code, forward and backward, and yield its loss."""
    device = next(model.parameters()).device
    for row in rows:
        loss = reference_loss(model, row, device)
        torch.autograd.backward(loss)
        yield loss.detach()


def _compute_full_gradients(model: nn.Module, losses: Iterator[Tensor]) -> Gradients:
    """Return the sum of losses, and the gradient of all weights that computing them leaves, as one row."""
    with asking(model, True):
        model.zero_grad()
        loss = torch.stack(list(losses)).sum()
        gradients = [_gradient_of(parameter) for parameter in model.parameters()]
        model.zero_grad()
    return loss, torch.cat([gradient.float().flatten() for gradient in gradients])


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return a weight's gradient; zeros where no pass used the weight."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad


def clip_gradients(parameters: list[Tensor], schedule: Schedule) -> float:
    """Clip the gradients' norm, and return what it was before."""
    max_norm = schedule.clip if schedule.clip > 0 else math.inf
    norm: Any = nn.utils.clip_grad_norm_(parameters, max_norm)
    if hasattr(norm, "full_tensor"):  # a part of it in every process
        norm = norm.full_tensor()
    return float(norm)


def make_update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Make a step at a learning rate, and release the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_adamw(parameters: list[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """Return the optimizer of a job: weight decay on matrices alone."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    undecayed = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps
    )

"""One job of full fine-tuning in this process: all weights of a model, its optimizer, and the job's state on disk.

AdamW decays matrices alone, not norms and biases, as transformers' Trainer does. A weight in half precision is updated
through its *master*, a copy in float32. The model's own dropout stays off. The loss is the mean over all target tokens
of the effective batch, however the batch is divided into passes. The passes are run in one of three forms: padded rows
together (the head at targets alone), padded rows through the model's own forward, or each row alone. :func:`check_full`
chooses the first that agrees with the reference. A job whose state exceeds :data:`MOST_BYTES` is not saved; when it is
interrupted it starts over.
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

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.layers.recomputation import recomputed_activations
from potentia.engine.models.split_model import SplitModel, requiring_gradients
from potentia.engine.proof.ladder import try_draws
from potentia.engine.proof.reference import Gradients, reference_loss
from potentia.engine.proof.refusal import Refusal, cannot_tune_error
from potentia.engine.proof.tolerance import FLOAT32_TOLERANCE, Distance
from potentia.engine.proof.training_check import TrainingFormCheck
from potentia.engine.proof.training_rows import choose_training_rows
from potentia.engine.steps.padded_pass import assemble_batch, backpropagate
from potentia.engine.steps.pass_plan import UNLIMITED_TOKENS, PassPlan, divide_rows
from potentia.engine.training.snapshot import Snapshots
from potentia.engine.training.trainer import Trainer
from potentia.values.engine_records import FormRecord, TrainingFacts
from potentia.values.recipe import Schedule
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 30  # of a job's state that is saved
STATE_BYTES = 12  # of one parameter: its master and AdamW's two moments in float32
SNAPSHOT_SECONDS = 30.0  # between two snapshots: the work that a kill may cost
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names for its moments


class FullStep(NamedTuple):
    """One update of all weights."""

    loss: float
    gradient_norm: float  # before clipping; not a number where the loss is none
    tokens: int  # of the step's rows, prompts included

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are finite; the weights were updated only then."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class FullTuningJob:
    """One full fine-tuning under way: the weights that the optimizer updates (masters), the optimizer, snapshots."""

    def __init__(
        self,
        trainer: Trainer,
        lane_spec: LaneSpec,
        training_form: TrainingForm,
        folder: Path | None,
    ) -> None:
        self.trainer = trainer
        self.schedule = lane_spec.schedule
        self.form = training_form
        self.parameters = list(trainer.model.parameters())
        trainer.model.zero_grad()
        self.masters = [_make_master(parameter) for parameter in self.parameters]
        self.optimizer = make_adamw(self.masters, lane_spec.schedule)
        state_bytes = sum(STATE_BYTES * master.numel() for master in self.masters)
        is_saved = state_bytes <= MOST_BYTES
        self.snapshots = Snapshots(folder if is_saved else None, SNAPSHOT_SECONDS)
        self._saved_steps = 0

    def step(self, rows: list[TrainingRow], learning_rate: float) -> FullStep:
        """Make one update by a batch of rows; where loss or gradient are not finite, leave the weights as they are."""
        loss = self.compute_gradients(rows)
        gradient_norm = math.nan
        if math.isfinite(loss):
            gradient_norm = self.update(learning_rate)
        tokens = sum(len(row.ids) for row in rows)
        return FullStep(loss=loss, gradient_norm=gradient_norm, tokens=tokens)

    def update(self, learning_rate: float) -> float:
        """Update all weights by their gradients, if these are finite; return the gradients' norm."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None
        gradient_norm = clip_gradients(self.masters, self.schedule)
        if math.isfinite(gradient_norm):
            step_optimizer(self.optimizer, learning_rate)
            self.copy_masters_to_model()
        return gradient_norm

    @torch.no_grad()
    def copy_masters_to_model(self) -> None:
        """Round the masters to the model's weights in half precision; weights in float32 are their own masters."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def publish_weights(self) -> None:
        """Do nothing: the model that is scored has its weights after every step."""

    def compute_gradients(self, rows: list[TrainingRow]) -> float:
        """Compute a step's gradients into the parameters' ``grad``, and return the loss."""

        def compute(pass_plan: PassPlan) -> float:
            with recomputed_activations(self.trainer.model, pass_plan.checkpointing):
                return float(sum(run_passes(self.trainer.split, rows, pass_plan, self.form)))

        hint = "lower max_tokens, or use method: lora"
        return self.trainer.run_in_passes(rows, compute, self.trainer.model.zero_grad, hint)

    def save(self, done_steps: Sequence[FullStep], *, now: bool = False) -> None:
        """Save the state, if the last snapshot is old enough or ``now`` asks for one at once."""
        if len(done_steps) == self._saved_steps or not self.snapshots.is_due(now=now):
            return
        tensors: dict[str, Tensor] = {}
        for number, master in enumerate(self.masters):
            tensors[f"weight-{number}"] = master
            moments = self.optimizer.state[master]
            if moments:  # a weight that had no gradient yet has none
                for moment_name in MOMENTS:
                    tensors[f"{moment_name}-{number}"] = moments[moment_name]
                tensors[f"step-{number}"] = moments["step"]
        self.snapshots.save(tensors, {"steps": done_steps})
        self._saved_steps = len(done_steps)

    @torch.no_grad()
    def restore(self) -> list[FullStep]:
        """Put the newest saved state back, and return the steps that led to it; none where nothing is saved."""
        done_steps: list[FullStep] = []
        snapshot = self.snapshots.read_latest()
        if snapshot is not None:
            done_steps = [FullStep(*step) for step in snapshot.facts["steps"]]
            self._restore_weights(snapshot.tensors, len(done_steps))
        self._saved_steps = len(done_steps)
        self.copy_masters_to_model()
        return done_steps

    def _restore_weights(self, tensors: dict[str, Tensor], step_count: int) -> None:
        """Put saved weights into the masters, and saved moments into the optimizer.

        A weight's own count of steps is lower than the job's if it had no gradient in some steps. Snapshots of older
        versions do not have it.
        """
        for number, master in enumerate(self.masters):
            master.copy_(tensors[f"weight-{number}"])
            if f"{MOMENTS[0]}-{number}" not in tensors:
                continue
            job_steps = torch.tensor(float(step_count))
            state: dict[str, Tensor] = {"step": tensors.get(f"step-{number}", job_steps)}
            for moment_name in MOMENTS:
                state[moment_name] = tensors[f"{moment_name}-{number}"].to(master.device)
            self.optimizer.state[master] = state


def _make_master(parameter: Tensor) -> Tensor:
    """Return the float32 weight that the optimizer updates: the parameter itself, or a copy of one in 16 bits."""
    if parameter.dtype == torch.float32:
        return parameter
    return parameter.detach().float()


def run_passes(
    split: SplitModel, rows: Sequence[TrainingRow], pass_plan: PassPlan, training_form: TrainingForm
) -> Iterator[Tensor]:
    """Run rows forward and backward in passes, and yield each pass's share of the loss; gradients add up."""
    device = next(split.model.parameters()).device
    for pass_rows, length in divide_rows(rows, pass_plan, training_form):
        batch = assemble_batch(pass_rows, length, device, dropout=False)
        losses = backpropagate(split, batch, all_positions=training_form != TrainingForm.PADDED)
        yield (losses * batch.weights).sum()


def check_full(
    model: nn.Module, lane_spec: LaneSpec, limit: int | None, forms: Sequence[TrainingForm]
) -> TrainingFormCheck:
    """Choose the first form whose loss and gradients of all weights are the reference's: each row alone.

    Each form is tried on a few draws of rows (``proof.ladder``), in float32. A form that raises an error is not taken;
    where the reference raises one, the model cannot be tuned.
    """
    began = time.monotonic()
    refusal = Refusal("no form is left")
    for training_form in forms:
        trial = _FullTrial(model, lane_spec, limit, training_form)
        refusal_of_form = try_draws(trial.compare)
        if refusal_of_form is None:
            may_recompute = trial.may_recompute()
            facts = TrainingFacts(
                form=training_form,
                distances=trial.record,
                check_seconds=round(time.monotonic() - began, 3),
            )
            return TrainingFormCheck(training_form, may_recompute=may_recompute, facts=facts)
        refusal = refusal_of_form
        log.warning(
            "%s: full tuning is not run as %s: %s",
            type(model).__name__,
            training_form.words,
            refusal.reason,
        )
    raise cannot_tune_error(model, refusal)


class _FullTrial:
    """The trial of a form of full tuning: on real rows, with the gradients of all weights."""

    def __init__(
        self,
        model: nn.Module,
        lane_spec: LaneSpec,
        limit: int | None,
        training_form: TrainingForm,
    ) -> None:
        self.model = model
        self.split = SplitModel(model)
        self.spec = lane_spec
        self.limit = limit
        self.form = training_form
        self.record = FormRecord()

    def compare(self, draw_number: int) -> Refusal | None:
        """Compare with the reference on a draw of rows.

        The reference is computed again for every form: its gradients of all weights are as large as the model.
        """
        self.rows = [
            replace(row, slot=0)
            for row in choose_training_rows([self.spec], self.limit, draw_number)
        ]
        self.reference = _compute_full_gradients(self.model, _run_rows_alone(self.model, self.rows))
        try:
            distance = self._measure_distance()
        except Exception as error:  # whatever the model raises, the form is not taken
            return Refusal.from_error(error)
        self.record = FormRecord(
            rows=tuple(len(row.ids) for row in self.rows), gradients=distance.to_record()
        )
        if distance.is_within(FLOAT32_TOLERANCE):
            return None
        return Refusal(str(distance), retry=True)

    def may_recompute(self) -> bool:
        """Whether gradients are right with activations recomputed; an error of the model means no."""
        with suppress(Exception), recomputed_activations(self.model, True):
            return self._measure_distance().is_within(FLOAT32_TOLERANCE)
        return False

    def _measure_distance(self) -> Distance:
        """Measure how far the form's loss and gradients are from the reference's, with all rows in one pass."""
        one_pass = PassPlan(slots=1, token_budget=UNLIMITED_TOKENS, pass_price=UNLIMITED_TOKENS)
        passes = run_passes(self.split, self.rows, one_pass, self.form)
        return _gradients_distance(_compute_full_gradients(self.model, passes), self.reference)


def _gradients_distance(our_gradients: Gradients, reference: Gradients) -> Distance:
    """Return how far a loss and the gradient of all weights are from the reference's.

    There is one gradient, so the shares of lane and layer are the same. Where the reference is zero they are infinite
    or not a number, which no tolerance allows.
    """
    our_loss, our_gradient = our_gradients
    reference_loss_sum, reference_gradient = reference
    loss_distance = (our_loss - reference_loss_sum).abs() / reference_loss_sum.abs()
    gradient_gap = torch.linalg.vector_norm(our_gradient - reference_gradient)
    gradient_distance = float(gradient_gap / torch.linalg.vector_norm(reference_gradient))
    return Distance(loss=float(loss_distance), lane=gradient_distance, layer=gradient_distance)


def _run_rows_alone(model: nn.Module, rows: Sequence[TrainingRow]) -> Iterator[Tensor]:
    """Run each row alone through the model's own code, forward and backward, and yield its share of the loss."""
    device = next(model.parameters()).device
    for row in rows:
        loss = reference_loss(model, row, device)
        torch.autograd.backward(loss)
        yield loss.detach()


def _compute_full_gradients(model: nn.Module, losses: Iterator[Tensor]) -> Gradients:
    """Return the sum of losses, and the gradients of all weights end to end that computing the losses leaves.

    ``losses`` computes as it is read.
    """
    with requiring_gradients(model, True):
        model.zero_grad()
        try:
            loss = torch.stack(list(losses)).sum()
            gradients = [_read_gradient(parameter) for parameter in model.parameters()]
        finally:
            model.zero_grad()
    return loss, torch.cat([gradient.float().flatten() for gradient in gradients])


def _read_gradient(parameter: nn.Parameter) -> Tensor:
    """Return a weight's gradient; zeros where no pass used the weight."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad


def clip_gradients(parameters: Sequence[Tensor], schedule: Schedule) -> float:
    """Clip the norm of all gradients together, and return what it was before."""
    max_norm = schedule.clip if schedule.clip > 0 else math.inf
    gradient_norm: Any = nn.utils.clip_grad_norm_(parameters, max_norm)
    if hasattr(gradient_norm, "full_tensor"):  # a DTensor, of which every process has a part
        gradient_norm = gradient_norm.full_tensor()
    return float(gradient_norm)


def step_optimizer(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Make an update at a learning rate, and free the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_adamw(parameters: Sequence[Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """Return the optimizer of a job; its weight decay is on matrices alone."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    norms_and_biases = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": norms_and_biases, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=schedule.learning_rate, betas=schedule.betas, eps=schedule.eps
    )

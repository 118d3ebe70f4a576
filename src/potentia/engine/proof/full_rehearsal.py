"""The rehearsal of a full fine-tuning's first step: made before the first real update, and compared with other code.

As for adapters (``rehearsal``), the first step is made twice, with its real rows in its real passes. Loss and gradients
of all weights are compared with the reference: each row alone through the model's own code and transformers' loss.
Then two updates are compared with AdamW's formula in float64. The first gradient lies below the norm that gradients are
clipped to; the second lies above it and has the other direction. Equal gradients would hide AdamW's betas, and small
ones would hide the clipping. In the end weights and moments are put back, so that the job goes on as if it had not been
rehearsed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.proof.constants import SHAPE_PADDING
from potentia.engine.proof.plan_check import count_steps
from potentia.engine.proof.reference import reference_learning_rate, transformers_loss
from potentia.engine.proof.reference_updates import choose_gradient_factor
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.rehearsal import RehearsalResult
from potentia.engine.proof.tolerance import (
    FLOAT32_TOLERANCE,
    HALF_FROM_HALF,
    ROUNDING_FACTOR,
    UPDATE_TOLERANCE,
    Distance,
    is_full_precision,
)
from potentia.values.engine_records import RehearsalFacts
from potentia.values.recipe import Schedule

log = logging.getLogger(__name__)

# times its size: a weight that moves so far is lost, and the job itself reports it
DIVERGED = 100.0
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names for its moments


class RehearsedJob(Protocol):
    """A job of full fine-tuning as the rehearsal needs it: the functions that its real steps call."""

    masters: list[Tensor]  # the weights in float32, which the optimizer updates
    optimizer: torch.optim.AdamW
    schedule: Schedule

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The weights of the model, one for each master."""

    def compute_gradients(self, rows: list[TrainingRow]) -> float:
        """Compute a step's gradients into the parameters' ``grad``, and return the loss."""

    def update(self, learning_rate: float) -> float:
        """Update all weights by their gradients, and return the gradients' norm."""

    def copy_masters_to_model(self) -> None:
        """Put the masters' values into the model's weights."""


@dataclass(frozen=True)
class StepGradients:
    """The loss of a step, and the gradient of every weight, in float32 in the host's memory."""

    loss: float
    by_weight: list[Tensor]

    @property
    def norm(self) -> float:
        """The norm of all gradients together."""
        squares = [float(gradient.double().square().sum()) for gradient in self.by_weight]
        return math.sqrt(sum(squares))

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def rehearse_full_step(
    tuning_job: RehearsedJob,
    model: nn.Module,
    lane_spec: LaneSpec,
    step: int,
    rows: list[TrainingRow],
) -> RehearsalResult:
    """Make the next step of a job twice, compare it with the reference, and put everything back.

    ``step`` is its number (from 0), ``rows`` are its examples.
    """
    began = time.monotonic()
    with _job_restored(tuning_job, model):
        rehearsal = _FullRehearsal(tuning_job, model, lane_spec, step)
        refusal = rehearsal.find_refusal(rows)
    seconds = round(time.monotonic() - began, 3)
    return RehearsalResult(refusal, replace(rehearsal.facts, seconds=seconds))


@contextmanager
def _job_restored(tuning_job: RehearsedJob, model: nn.Module) -> Iterator[None]:
    """Put weights and moments back after the block; the copies lie in the host's memory."""
    weights = [master.detach().to("cpu", copy=True) for master in tuning_job.masters]
    states = [_copy_state(tuning_job.optimizer.state[master]) for master in tuning_job.masters]
    try:
        yield
    finally:
        tuning_job.optimizer.state.clear()
        with torch.no_grad():
            for master, weight, state in zip(tuning_job.masters, weights, states, strict=True):
                master.copy_(weight)
                master.grad = None
                if state:
                    moments = {
                        moment_name: state[moment_name].to(master.device) for moment_name in MOMENTS
                    }
                    tuning_job.optimizer.state[master] = {"step": state["step"], **moments}
        tuning_job.copy_masters_to_model()
        model.zero_grad()


def _copy_state(state: dict[str, Any]) -> dict[str, Tensor]:
    return {
        moment_name: value.detach().to("cpu", copy=True) for moment_name, value in state.items()
    }


def reference_step_gradients(
    model: nn.Module, rows: Sequence[TrainingRow], *, padding: int = 0
) -> StepGradients | None:
    """Return the reference's loss and gradients: the sums over rows, each alone through the model's own code.

    Return None, with a warning, where memory does not hold a row.
    """
    device = next(model.parameters()).device
    model.zero_grad()
    total = 0.0
    try:
        for row in rows:
            loss = transformers_loss(model, row, device, padding=padding)
            torch.autograd.backward(loss)
            total += float(loss.detach())
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        model.zero_grad()
        log.warning(
            "%s: no memory to rehearse the first step of full fine-tuning", type(model).__name__
        )
        return None
    gradients = StepGradients(total, _copy_gradients(list(model.parameters())))
    model.zero_grad()
    return gradients


def _copy_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the weights' gradients, in float32 in the host's memory; zeros where no pass used a weight."""
    copies: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            copies.append(torch.zeros(parameter.shape))
        else:
            copies.append(parameter.grad.detach().float().to("cpu", copy=True))
    return copies


def find_sharded_fault(
    reference: StepGradients | None, loss: float, gradient_norm: float, dtype: torch.dtype
) -> str | None:
    """Return how the loss and gradient norm of several processes differ from the reference's, or None.

    The gradients lie in other processes, which report one loss and one norm of a step.
    """
    if reference is None or not reference.is_finite:
        return None
    loss_gap = abs(loss - reference.loss) / max(abs(reference.loss), 1e-6)
    norm_gap = abs(gradient_norm - reference.norm) / max(reference.norm, 1e-12)
    allowed = FLOAT32_TOLERANCE if is_full_precision(dtype) else HALF_FROM_HALF
    if loss_gap <= allowed.loss and norm_gap <= allowed.lane:
        return None
    return f"the first step of all processes: loss off by {loss_gap:.1e}, gradient norm by {norm_gap:.1e}"


def _count_updates(tuning_job: RehearsedJob, master: Tensor) -> int:
    """Return how many updates a weight has had; a weight without a gradient in a step has none there."""
    state = tuning_job.optimizer.state.get(master, {})
    return int(state["step"]) if state else 0


class _FullRehearsal:
    """One rehearsal of a job that has made ``step`` updates."""

    def __init__(
        self, tuning_job: RehearsedJob, model: nn.Module, lane_spec: LaneSpec, step: int
    ) -> None:
        self.job = tuning_job
        self.model = model
        self.spec = lane_spec
        self.step = step
        self.facts = RehearsalFacts()

    def find_refusal(self, rows: list[TrainingRow]) -> Refusal | None:
        """Return what is wrong with the next step, or None."""
        updates = max(_count_updates(self.job, master) for master in self.job.masters)
        if updates != self.step:
            return Refusal(
                f"the first step of full fine-tuning: the optimizer has made {updates} updates, not {self.step}"
            )
        reference = self._reference_gradients(rows)
        if reference is None:
            self.facts = replace(self.facts, lacked_memory=True)
            return None
        if not reference.is_finite:  # the job itself reports a loss that is not finite
            return None
        first_gradients = self._compute_job_gradients(rows)
        refusal = self._compare_gradients(rows, first_gradients, reference)
        if refusal is not None:
            return refusal
        return self._compare_updates(rows, first_gradients)

    def _reference_gradients(
        self, rows: Sequence[TrainingRow], padding: int = 0
    ) -> StepGradients | None:
        return reference_step_gradients(self.model, rows, padding=padding)

    def _compute_job_gradients(self, rows: list[TrainingRow]) -> StepGradients:
        """Return loss and gradients as the job computes them; the gradients also stay on the weights for its update."""
        loss = self.job.compute_gradients(rows)
        return StepGradients(loss, _copy_gradients(self.job.parameters))

    def _compare_gradients(
        self, rows: Sequence[TrainingRow], our_gradients: StepGradients, reference: StepGradients
    ) -> Refusal | None:
        """Return how loss and gradients of the job differ from the reference's by too much, or None.

        In 16 bits the tolerance may be measured: how far padding moves the reference's gradients, which are computed on
        the same weights, so the job's gradients are set aside meanwhile.
        """
        distance = measure_gradients_distance(our_gradients, reference)
        self.facts = replace(self.facts, gradients=distance.to_record())
        allowed = FLOAT32_TOLERANCE
        if not is_full_precision(self.job.parameters[0].dtype):
            allowed = HALF_FROM_HALF
            if not distance.is_within(allowed):
                job_gradients = [parameter.grad for parameter in self.job.parameters]
                padded = self._reference_gradients(rows, padding=SHAPE_PADDING)
                for parameter, gradient in zip(self.job.parameters, job_gradients, strict=True):
                    parameter.grad = gradient
                if padded is not None:
                    own_rounding = measure_gradients_distance(padded, reference)
                    allowed = own_rounding.scale(ROUNDING_FACTOR).at_least(HALF_FROM_HALF)
        if distance.is_within(allowed):
            return None
        return Refusal(
            f"the first step of full fine-tuning: {distance.describe_excess(allowed)}", retry=True
        )

    def _compare_updates(
        self, rows: list[TrainingRow], first_gradients: StepGradients
    ) -> Refusal | None:
        """Make two updates, and return how some weights then differ from AdamW's formula, or None."""
        learning_rate = reference_learning_rate(self.spec.schedule, count_steps(self.spec))
        weights = [
            _ReferenceWeight.of_job(self.job, number)
            for number in choose_compared_weights(self.job.masters)
        ]
        gradients = first_gradients
        for number in range(2):
            factor = choose_gradient_factor(
                self.spec.schedule, gradients.norm, is_second=number == 1
            )
            for parameter in self.job.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            # of the scaled gradients, which the job clips: in 16 bits they are rounded
            gradient_norm = StepGradients(0.0, _copy_gradients(self.job.parameters)).norm
            for weight in weights:
                gradient = self.job.parameters[weight.number].grad
                weight.update(gradient, gradient_norm, learning_rate(self.step + number))
            self.job.update(learning_rate(self.step + number))
            if number == 0:
                gradients = self._compute_job_gradients(rows)
                if not gradients.is_finite:  # the job itself fails with such a learning rate
                    return None
        errors = [weight.measure_error(self.job.masters[weight.number]) for weight in weights]
        largest_error = max(errors)
        self.facts = replace(self.facts, update=float(f"{largest_error:.2e}"))
        if largest_error <= 1.0:
            return None
        return Refusal(
            f"the first two updates of full fine-tuning are {largest_error:.1f} times as far from AdamW's as "
            "rounding is"
        )


class _ReferenceWeight:
    """One weight of the model, updated by AdamW's formula in float64."""

    def __init__(
        self,
        number: int,
        start: Tensor,
        moments: Sequence[Tensor],
        schedule: Schedule,
        step: int,
    ) -> None:
        self.number = number  # its place among the model's parameters
        self.start = start
        self.value = start.clone()
        self.first_moment, self.second_moment = moments
        self.schedule = schedule
        self.step = step  # its updates so far

    @classmethod
    def of_job(cls, tuning_job: RehearsedJob, number: int) -> _ReferenceWeight:
        """Return a weight with its moments as a job has them; those of a weight that had no gradient yet are zero."""
        master = tuning_job.masters[number]
        start = master.detach().double().cpu().clone()
        state = tuning_job.optimizer.state[master]
        moments = []
        for moment_name in MOMENTS:
            moment = (
                state[moment_name].double().cpu()
                if moment_name in state
                else torch.zeros_like(start)
            )
            moments.append(moment)
        updates = _count_updates(tuning_job, master)
        return cls(number, start, moments, tuning_job.schedule, updates)

    def update(self, gradient: Tensor | None, gradient_norm: float, learning_rate: float) -> None:
        """Make the next update; ``gradient_norm`` is of all weights' gradients together, by which they are clipped."""
        if gradient is None:
            return
        self.step += 1
        clipped = gradient.double().cpu()
        if self.schedule.clip > 0:
            clipped = clipped * min(1.0, self.schedule.clip / (gradient_norm + 1e-6))
        beta1, beta2 = self.schedule.betas
        self.first_moment = beta1 * self.first_moment + (1 - beta1) * clipped
        self.second_moment = beta2 * self.second_moment + (1 - beta2) * clipped.square()
        mean = self.first_moment / (1 - beta1**self.step)
        denominator = (self.second_moment / (1 - beta2**self.step)).sqrt() + self.schedule.eps
        if self.value.dim() >= 2:  # norms and biases do not decay
            self.value = self.value * (1 - learning_rate * self.schedule.weight_decay)
        self.value = self.value - learning_rate * mean / denominator

    def measure_error(self, master: Tensor) -> float:
        """Return how far the job's weight is from this one, as a multiple of what rounding in float32 may make."""
        moved = float(torch.linalg.vector_norm(self.value - self.start))
        weight_size = float(torch.linalg.vector_norm(self.start)) + self.start.numel() ** 0.5
        if not moved <= DIVERGED * weight_size:
            return 0.0
        error = float(torch.linalg.vector_norm(master.detach().double().cpu() - self.value))
        rounding = torch.finfo(torch.float32).eps * float(torch.linalg.vector_norm(self.value))
        return error / max(UPDATE_TOLERANCE * moved + rounding, 1e-30)


def choose_compared_weights(masters: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the first and the last matrix, and of the first and the last vector."""
    matrices = [number for number, master in enumerate(masters) if master.dim() >= 2]
    vectors = [number for number, master in enumerate(masters) if master.dim() < 2]
    chosen = {*matrices[:1], *matrices[-1:], *vectors[:1], *vectors[-1:]}
    return sorted(chosen)


def measure_gradients_distance(our_gradients: StepGradients, reference: StepGradients) -> Distance:
    """Return how far loss, all gradients together and the worst weight's gradient are from the reference's."""
    loss_gap = abs(our_gradients.loss - reference.loss) / max(abs(reference.loss), 1e-6)
    gaps: list[float] = []
    sizes: list[float] = []
    for gradient, expected in zip(our_gradients.by_weight, reference.by_weight, strict=True):
        gaps.append(float(torch.linalg.vector_norm(gradient.double() - expected.double())))
        sizes.append(float(torch.linalg.vector_norm(expected.double())))
    total_gap = math.hypot(*gaps)
    total_size = math.hypot(*sizes)
    # a weight with hardly any gradient has hardly more than rounding: count it as a tenth of an average one
    least_size = 0.1 * total_size / math.sqrt(len(sizes))
    weight_shares = [
        gap / max(size, least_size, 1e-12) for gap, size in zip(gaps, sizes, strict=True)
    ]
    return Distance(
        loss=loss_gap, lane=total_gap / max(total_size, 1e-12), layer=max(weight_shares)
    )

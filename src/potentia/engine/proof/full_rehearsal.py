"""The rehearsal of a full fine-tuning's first step: the real rows in the real passes, before the first real update.

As for lanes (``rehearsal``), the first step is made twice and is compared with code that is not ours: loss and
gradients of all weights with each row alone through the model's own code and transformers' loss, then two updates with
AdamW's formula in float64. The first update's gradient lies below the norm that gradients are clipped to, the second
one's above it and in the other direction: equal gradients would hide both betas, and small ones the clipping. Weights
and moments are put back afterwards, so that the job goes on as one that was not rehearsed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, Schedule, TrainingRow
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.proof.plan_check import count_steps
from potentia.engine.proof.reference import reference_learning_rate, transformers_loss
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.rehearsal import RehearsalResult
from potentia.engine.proof.tolerance import (
    FEW_ROWS,
    MULTIPLE,
    UPDATE,
    WHOLE_BITS,
    Distance,
    is_whole,
)

log = logging.getLogger(__name__)

BELOW_CLIP = 0.5  # of the norm that gradients are clipped to
ABOVE_CLIP = -3.0
WITHOUT_CLIP = -0.6  # of the first gradient, where nothing is clipped
MOST_SCALED = 1000.0  # times: a norm that gradients are never clipped to is not tried
DIVERGED = (
    100.0  # times its size: a weight that moves so far is lost, and the job itself reports it
)
MOMENTS = ("exp_avg", "exp_avg_sq")


class RehearsedJob(Protocol):
    """A job of full fine-tuning as the rehearsal needs it: the functions that its real steps call."""

    masters: list[Tensor]
    optimizer: torch.optim.AdamW
    schedule: Schedule

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The weights of the model, one for each master."""

    def compute_gradients(self, rows: list[TrainingRow]) -> float:
        """Add the gradients of a step, and return its loss."""

    def update(self, rate: float) -> float:
        """Update all weights by their gradients, and return the gradients' norm."""

    def copy_masters_to_model(self) -> None:
        """Give the model the weights that the optimizer updates."""


@dataclass(frozen=True)
class StepGradients:
    """The loss of a step, and the gradient of every weight in float32, in the host's memory."""

    loss: float
    by_weight: list[Tensor]

    @property
    def norm(self) -> float:
        """The norm of all gradients together."""
        squares = [float(gradient.double().square().sum()) for gradient in self.by_weight]
        return math.sqrt(sum(squares))

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def rehearse_full_step(
    job: RehearsedJob, model: nn.Module, spec: LaneSpec, step: int, rows: list[TrainingRow]
) -> RehearsalResult:
    """Make the next two steps of a job, compare them with the reference, and leave everything as it was."""
    began = time.monotonic()
    with _job_restored(job, model):
        rehearsal = _FullRehearsal(job, model, spec, step)
        result = RehearsalResult(rehearsal.find_refusal(rows), rehearsal.facts)
    result.facts["seconds"] = round(time.monotonic() - began, 3)
    return result


@contextmanager
def _job_restored(job: RehearsedJob, model: nn.Module) -> Iterator[None]:
    """Put weights and moments back after the block; copies wait in the host's memory."""
    weights = [master.detach().to("cpu", copy=True) for master in job.masters]
    states = [_copy_state(job.optimizer.state[master]) for master in job.masters]
    try:
        yield
    finally:
        job.optimizer.state.clear()
        with torch.no_grad():
            for master, weight, state in zip(job.masters, weights, states, strict=True):
                master.copy_(weight)
                master.grad = None
                if state:
                    moments = {name: state[name].to(master.device) for name in MOMENTS}
                    job.optimizer.state[master] = {"step": state["step"], **moments}
        job.copy_masters_to_model()
        model.zero_grad()


def _copy_state(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def reference_step_gradients(
    model: nn.Module, rows: Sequence[TrainingRow], *, padding: int = 0
) -> StepGradients | None:
    """Return loss and gradients of each row alone; None, with a warning, where there is no memory for a row."""
    device = next(model.parameters()).device
    model.zero_grad()
    total = 0.0
    try:
        for row in rows:
            loss = transformers_loss(model, row, device, padding=padding)
            torch.autograd.backward(loss)
            total += float(loss.detach())
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not out_of_memory(error):
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
    copies: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            copies.append(torch.zeros(parameter.shape))
        else:
            copies.append(parameter.grad.detach().float().to("cpu", copy=True))
    return copies


def find_sharded_fault(
    reference: StepGradients | None, loss: float, norm: float, dtype: torch.dtype
) -> str | None:
    """Return how loss and gradient norm of several processes differ from those of each row alone, or None.

    The weights lie in other processes: one loss and one norm are what they tell of a step.
    """
    if reference is None or not reference.is_finite:
        return None
    loss_gap = abs(loss - reference.loss) / max(abs(reference.loss), 1e-6)
    norm_gap = abs(norm - reference.norm) / max(reference.norm, 1e-12)
    allowed = WHOLE_BITS if is_whole(dtype) else FEW_ROWS
    if loss_gap <= allowed.loss and norm_gap <= allowed.lane:
        return None
    return f"the first step of all processes: loss off by {loss_gap:.1e}, gradient norm by {norm_gap:.1e}"


class _FullRehearsal:
    """One rehearsal of a job that has so many updates behind it."""

    def __init__(self, job: RehearsedJob, model: nn.Module, spec: LaneSpec, step: int) -> None:
        self.job = job
        self.model = model
        self.spec = spec
        self.step = step
        self.facts: dict[str, Any] = {}

    def find_refusal(self, rows: list[TrainingRow]) -> Refusal | None:
        """Return what is wrong with the next two steps, or None."""
        reference = self._reference_gradients(rows)
        if reference is None:
            self.facts["skipped"] = "no memory"
            return None
        if not reference.is_finite:  # the job itself reports a loss that is no number
            return None
        first = self._job_gradients(rows)
        refusal = self._compare_gradients(rows, first, reference)
        if refusal is not None:
            return refusal
        return self._compare_updates(rows, first)

    def _reference_gradients(
        self, rows: Sequence[TrainingRow], padding: int = 0
    ) -> StepGradients | None:
        return reference_step_gradients(self.model, rows, padding=padding)

    def _job_gradients(self, rows: list[TrainingRow]) -> StepGradients:
        """Return loss and gradients of a step as the job computes them; the gradients stay for its update."""
        loss = self.job.compute_gradients(rows)
        return StepGradients(loss, _copy_gradients(self.job.parameters))

    def _compare_gradients(
        self, rows: Sequence[TrainingRow], ours: StepGradients, reference: StepGradients
    ) -> Refusal | None:
        """Return how loss and gradients of the job differ from the reference's, or None."""
        distance = gradients_distance(ours, reference)
        self.facts["distance"] = distance.as_dict()
        allowed = WHOLE_BITS
        if not is_whole(self.job.parameters[0].dtype):
            allowed = FEW_ROWS
            if not distance.within(allowed):
                kept = [parameter.grad for parameter in self.job.parameters]
                padded = self._reference_gradients(rows, padding=5)
                for parameter, gradient in zip(self.job.parameters, kept, strict=True):
                    parameter.grad = gradient
                if padded is not None:
                    allowed = gradients_distance(padded, reference).times(MULTIPLE, FEW_ROWS)
        if distance.within(allowed):
            return None
        return Refusal(
            f"the first step of full fine-tuning: {distance.compared_with(allowed)}", retry=True
        )

    def _compare_updates(self, rows: list[TrainingRow], first: StepGradients) -> Refusal | None:
        """Return how some weights after two updates differ from AdamW's, or None."""
        rate = reference_learning_rate(self.spec.schedule, count_steps(self.spec))
        weights = [
            _ReferenceWeight.of_job(self.job, number, self.step)
            for number in choose_compared_weights(self.job.masters)
        ]
        gradients = first
        for number in range(2):
            factor = self._scale_of_gradients(gradients.norm, number)
            for parameter in self.job.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            # 16 bits round the products: what the job clips is what it has now
            norm = StepGradients(0.0, _copy_gradients(self.job.parameters)).norm
            for weight in weights:
                gradient = self.job.parameters[weight.number].grad
                weight.update(gradient, norm, rate(self.step + number))
            self.job.update(rate(self.step + number))
            if number == 0:
                gradients = self._job_gradients(rows)
                if not gradients.is_finite:  # such a learning rate ends the job soon enough
                    return None
        shares = [weight.error_share(self.job.masters[weight.number]) for weight in weights]
        self.facts["update"] = float(f"{max(shares):.2e}")
        if max(shares) <= 1.0:
            return None
        return Refusal(
            f"the first two updates of full fine-tuning are {max(shares):.1f} times as far from AdamW's as rounding is"
        )

    def _scale_of_gradients(self, norm: float, number: int) -> float:
        """Return the factor on gradients that brings them below the clip, or above it and into the other direction."""
        clip = self.spec.schedule.clip
        is_within_reach = 0 < clip < MOST_SCALED * norm
        if not is_within_reach:
            return (1.0, WITHOUT_CLIP)[number]
        return (BELOW_CLIP, ABOVE_CLIP)[number] * clip / norm


class _ReferenceWeight:
    """One weight under AdamW's formula in float64."""

    def __init__(
        self, number: int, start: Tensor, moments: tuple[Tensor, Tensor], spec: Schedule, step: int
    ) -> None:
        self.number = number
        self.start = start
        self.value = start.clone()
        self.first, self.second = moments
        self.schedule = spec
        self.step = step

    @classmethod
    def of_job(cls, job: RehearsedJob, number: int, step: int) -> _ReferenceWeight:
        """Take a weight and its moments from a job; a weight that had no gradient yet has empty moments."""
        master = job.masters[number]
        start = master.detach().double().cpu().clone()
        state = job.optimizer.state[master]
        first, second = (
            state[name].double().cpu() if name in state else torch.zeros_like(start)
            for name in MOMENTS
        )
        return cls(number, start, (first, second), job.schedule, step)

    def update(self, gradient: Tensor | None, norm: float, rate: float) -> None:
        """Make the next update by a gradient, which is a part of gradients of this norm."""
        if gradient is None:
            return
        self.step += 1
        slope = gradient.double().cpu()
        if self.schedule.clip > 0:
            slope = slope * min(1.0, self.schedule.clip / (norm + 1e-6))
        beta1, beta2 = self.schedule.betas
        self.first = beta1 * self.first + (1 - beta1) * slope
        self.second = beta2 * self.second + (1 - beta2) * slope.square()
        mean = self.first / (1 - beta1**self.step)
        size = (self.second / (1 - beta2**self.step)).sqrt() + self.schedule.eps
        if self.value.dim() >= 2:  # norms and biases do not decay
            self.value = self.value * (1 - rate * self.schedule.weight_decay)
        self.value = self.value - rate * mean / size

    def error_share(self, master: Tensor) -> float:
        """Return how far a weight is off, as a share of what rounding in float32 may make."""
        moved = float(torch.linalg.vector_norm(self.value - self.start))
        size = float(torch.linalg.vector_norm(self.start)) + self.start.numel() ** 0.5
        if not moved <= DIVERGED * size:
            return 0.0
        error = float(torch.linalg.vector_norm(master.detach().double().cpu() - self.value))
        rounding = torch.finfo(torch.float32).eps * float(torch.linalg.vector_norm(self.value))
        return error / max(UPDATE * moved + rounding, 1e-30)


def choose_compared_weights(masters: Sequence[Tensor]) -> list[int]:
    """Choose the first and the last matrix, and the first and the last vector."""
    matrices = [number for number, master in enumerate(masters) if master.dim() >= 2]
    vectors = [number for number, master in enumerate(masters) if master.dim() < 2]
    chosen = {*matrices[:1], *matrices[-1:], *vectors[:1], *vectors[-1:]}
    return sorted(chosen)


def gradients_distance(ours: StepGradients, reference: StepGradients) -> Distance:
    """Return how far loss, all gradients together and one weight's gradient are from the reference's."""
    loss_gap = abs(ours.loss - reference.loss) / max(abs(reference.loss), 1e-6)
    gaps: list[float] = []
    sizes: list[float] = []
    for gradient, wanted in zip(ours.by_weight, reference.by_weight, strict=True):
        gaps.append(float(torch.linalg.vector_norm(gradient.double() - wanted.double())))
        sizes.append(float(torch.linalg.vector_norm(wanted.double())))
    total_size = math.hypot(*sizes)
    least = (
        0.1 * total_size / math.sqrt(len(sizes))
    )  # a weight with hardly any gradient is rounding
    worst = max(gap / max(size, least, 1e-12) for gap, size in zip(gaps, sizes, strict=True))
    return Distance(loss_gap, math.hypot(*gaps) / max(total_size, 1e-12), worst)

"""What both trainers share: a loaded model, the plan of its passes, and the functions that a training calls.

``lanes`` trains adapters, many at once, and ``full_lanes`` all weights. To both a fine-tuning is a *lane*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.device_layout import (
    give_back,
    is_out_of_memory,
    on_stream,
    room_for_passes,
)
from potentia.engine.models.loading import LoadedModel, context_length
from potentia.engine.models.quantization import count_parameters
from potentia.engine.models.split_model import SplitModel
from potentia.engine.steps.pass_plan import (
    PassPlan,
    Workload,
    estimate_token_bytes,
    make_plan,
    row_too_long_error,
)
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.errors import InputError
from potentia.values.engine_records import TrainingFacts
from potentia.values.fine_tuning import LaneStatus

StepResult = TypeVar("StepResult")
# takes the epochs that ended, and returns the keys of the lanes to drop
OnEpoch = Callable[[list[LaneEpoch]], Collection[str] | None]


def ignore_event(_: object) -> None:
    """Do nothing: the default listener."""


def never_stop() -> bool:
    """Return False: by default nobody asks the training to stop."""
    return False


@dataclass(frozen=True)
class TrainingListener:
    """The functions that a training calls."""

    on_epoch: OnEpoch = ignore_event  # at ends of epochs
    on_step: Callable[[StepInfo], None] = ignore_event  # after every step
    # when a run is resumed, with the epochs that it had finished
    on_resume: Callable[[list[LaneEpoch]], None] = ignore_event
    stop: Callable[[], bool] = never_stop  # before every step: whether to stop


class Trainer:
    """Fine-tunes a loaded model; when closed, it leaves the model as it was.

    ``token_budget`` is the number of padded tokens of one pass, chosen from the model's size by default. ``workspace``
    is the folder for states and snapshots; without one they stay in memory, and an interrupted run starts over.
    """

    def __init__(
        self, loaded: LoadedModel | nn.Module, token_budget: int | None, workspace: Path | None
    ) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        self.split = SplitModel(self.model)
        max_length: int | None = getattr(loaded, "max_length", None)
        # the longest text that the model reads, in tokens
        self.limit: int = max_length or context_length(self.model.config, None)
        self.fingerprint: str = getattr(loaded, "fingerprint", "")
        self._loaded = loaded if isinstance(loaded, LoadedModel) else None
        # how the training was checked and run
        self.training_facts = TrainingFacts()
        self.token_budget = token_budget
        self.workspace = workspace
        self.plan: PassPlan | None = None
        # whether gradients are right with recomputed activations, as the check found; needed where memory runs out
        self.may_recompute = False
        self._was_training = self.model.training
        self.model.eval()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put the model back into the mode it was in, training or evaluation."""
        self.model.train(self._was_training)

    def record_training(self, training_facts: TrainingFacts) -> None:
        """Note how the training was checked and run; results record it with the model."""
        self.training_facts = training_facts
        if self._loaded is not None:
            self._loaded.record = replace(self._loaded.record, training=training_facts)

    def train(
        self,
        specs: Sequence[LaneSpec],
        *,
        on_epoch: OnEpoch | None = None,
        on_step: Callable[[StepInfo], None] | None = None,
        on_resume: Callable[[list[LaneEpoch]], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Lane]:
        """Train every lane to its end, or until ``stop`` returns True before a step; return the lanes by their keys.

        ``on_epoch`` takes the epochs that ended with a step. It may score these lanes as they are then, and returns the
        keys of lanes to drop. A run that resumes calls ``on_resume`` with the finished epochs before its first step.
        """
        lanes = {spec.key: Lane(spec) for spec in specs}
        if len(lanes) < len(specs):
            raise InputError("two fine-tunings have the same key")
        listener = TrainingListener(
            on_epoch=on_epoch or ignore_event,
            on_step=on_step or ignore_event,
            on_resume=on_resume or ignore_event,
            stop=stop or never_stop,
        )
        for lane in lanes.values():
            _fail_excessive_learning_rate(lane)
        self._train_lanes({key: lane for key, lane in lanes.items() if not lane.is_over}, listener)
        for lane in lanes.values():
            if not lane.is_over:
                lane.status = LaneStatus.INTERRUPTED
        return lanes

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        """Train lanes until they are over or the listener asks to stop."""
        raise NotImplementedError

    def plan_passes(
        self,
        lanes: int,
        tokens_per_step: float,
        *,
        reserved_bytes: int = 0,
        parameters: int = 0,
        known_activation_bytes: int = 0,
        lane_bytes: int = 0,
    ) -> PassPlan:
        """Choose how steps are divided into passes that fit beside the model's weights.

        Args:
            lanes: how many fine-tunings train at once, if they fit.
            tokens_per_step: of one lane, on average.
            reserved_bytes: needed beside each weight, for its gradient and the optimizer.
            parameters: those that every token is multiplied with; all of the model's by default.
            known_activation_bytes: of one token; estimated from the model's config by default.
            lane_bytes: of a lane's adapter and its optimizer.
        """
        config = getattr(self.model.config, "text_config", None) or self.model.config
        activation_bytes = known_activation_bytes
        if not activation_bytes:
            element_size = next(self.model.parameters()).element_size()
            activation_bytes = estimate_token_bytes(config, element_size)
        workload = Workload(
            lanes=lanes,
            tokens_per_step=tokens_per_step,
            parameters=parameters or count_parameters(self.model),
            token_bytes=2 * activation_bytes if reserved_bytes else activation_bytes,
            lane_bytes=lane_bytes,
        )
        memory = room_for_passes(self.model, reserved_bytes=reserved_bytes)
        return make_plan(workload, memory=memory, token_budget=self.token_budget)

    def run_in_passes(
        self,
        rows: Sequence[TrainingRow],
        compute: Callable[[PassPlan], StepResult],
        clear: Callable[[], None],
        hint: str,
    ) -> StepResult:
        """Compute a step's gradients, again and in smaller passes when memory runs out; the batch stays the same.

        The first time that memory runs out, what is held for speed alone is freed; if there was any, the passes stay
        as large as they are. ``clear`` drops what a failed attempt left. ``hint`` is for the error when not even one
        row fits.
        """
        device = next(self.model.parameters()).device
        ran_out_before = False
        while True:
            assert self.plan is not None
            try:
                with on_stream(device, 0):
                    return compute(self.plan)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                smaller_plan = self.plan.shrink(may_recompute=self.may_recompute)
                if smaller_plan is None and ran_out_before:
                    raise row_too_long_error(rows, hint) from error
            clear()
            has_freed_memory = give_back(device)
            keeps_plan = has_freed_memory and not ran_out_before
            if smaller_plan is not None and not keeps_plan:
                self.plan = smaller_plan
            ran_out_before = True


def _fail_excessive_learning_rate(lane: Lane) -> None:
    """Mark a lane as failed if its learning rate is too large for AdamW's numbers, which are float32."""
    schedule = lane.spec.schedule
    largest_step = schedule.learning_rate / (1.0 - schedule.betas[0])
    # a learning rate that is not a number passes here, and fails at its first step
    if not largest_step > torch.finfo(torch.float32).max:
        return
    lane.status = LaneStatus.FAILED
    lane.reason = f"a learning rate of {schedule.learning_rate:g} is too large: use one below 1"

"""What all trainers share: a loaded model, the plan of its passes, and listeners for steps and epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.device_layout import (
    give_back,
    on_stream,
    out_of_memory,
    room_for_passes,
)
from potentia.engine.models.loading import context_length
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

StepResult = TypeVar("StepResult")
# gets the epochs that ended, and returns the keys of the lanes to drop
OnEpoch = Callable[[list[LaneEpoch]], Collection[str] | None]


def ignore_event(_: Any) -> None:
    """Do nothing: the listener of those who did not ask for an event."""


def never_stop() -> bool:
    """Return False: nobody asked the training to stop."""
    return False


@dataclass(frozen=True)
class TrainingListener:
    """Functions that a training calls: at ends of epochs, after steps, with the epochs of a resumed run, to stop."""

    on_epoch: OnEpoch = ignore_event
    on_step: Callable[[StepInfo], None] = ignore_event
    on_recall: Callable[[list[LaneEpoch]], None] = ignore_event
    stop: Callable[[], bool] = never_stop


class Trainer:
    """Tunes a loaded model, and leaves it as it was when closed.

    ``token_budget`` bounds the padded tokens of one pass (chosen from the model's size otherwise). ``workspace`` is
    where states and snapshots go; without one they stay in memory and an interrupted run starts over.
    """

    def __init__(self, loaded: Any, token_budget: int | None, workspace: Path | None) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        self.split = SplitModel(self.model)
        max_length: int | None = getattr(loaded, "max_length", None)
        self.limit: int = max_length or context_length(self.model.config, None)
        self.fingerprint: str = getattr(loaded, "fingerprint", "")
        # how tuning was checked and run, for manifests
        self.record: dict[str, Any] = getattr(loaded, "record", {})
        self.token_budget = token_budget
        self.workspace = workspace
        self.plan: PassPlan | None = None
        # whether activations may be computed again where memory runs out: the check decides
        self.may_recompute = False
        self._was_training = self.model.training
        self.model.eval()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the model as it was."""
        self.model.train(self._was_training)

    def train(
        self,
        specs: Sequence[LaneSpec],
        *,
        on_epoch: OnEpoch | None = None,
        on_step: Callable[[StepInfo], None] | None = None,
        on_recall: Callable[[list[LaneEpoch]], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Lane]:
        """Train every lane to its end.

        ``on_epoch`` gets the lanes whose epoch ended at this step, may score them as they are then, and answers with
        the keys of those to drop. A resumed run calls ``on_recall`` with the epochs of its snapshot, before its first
        step. ``stop`` is asked before every step.
        """
        lanes = {spec.key: Lane(spec) for spec in specs}
        if len(lanes) < len(specs):
            raise InputError("two lanes have the same key")
        listener = TrainingListener(
            on_epoch=on_epoch or ignore_event,
            on_step=on_step or ignore_event,
            on_recall=on_recall or ignore_event,
            stop=stop or never_stop,
        )
        for lane in lanes.values():
            _fail_excessive_rate(lane)
        self._train_lanes({key: lane for key, lane in lanes.items() if not lane.is_over}, listener)
        return {key: lane.mark_ended() for key, lane in lanes.items()}

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        """Train lanes until they are over or the listener stops them."""
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
        """Choose passes that fit beside the weights and ``more`` bytes for each weight.

        ``parameters`` are those that every token meets, and ``kept`` the bytes of a token's activations, where known;
        ``lane_bytes`` are those of a lane's adapter and its optimizer.
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
        """Compute a step's gradients, in smaller passes where memory runs out; effective batches stay as they are.

        The first time, memory that is held for speed alone is released; if there was any, the plan stays as it is.
        """
        device = next(self.model.parameters()).device
        ran_out_before = False
        while True:
            assert self.plan is not None
            try:
                with on_stream(device, 0):
                    return compute(self.plan)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                smaller_plan = self.plan.smaller(recompute=self.may_recompute)
                if smaller_plan is None and ran_out_before:
                    raise row_too_long_error(rows, hint) from error
            clear()
            has_released_memory = give_back(device)
            may_try_again = has_released_memory and not ran_out_before
            if smaller_plan is not None and not may_try_again:
                self.plan = smaller_plan
            ran_out_before = True


def _fail_excessive_rate(lane: Lane) -> None:
    """Fail a lane whose learning rate is too large for AdamW's numbers, which are float32."""
    schedule = lane.spec.schedule
    largest_step = schedule.learning_rate / (1.0 - schedule.betas[0])
    if not largest_step > torch.finfo(torch.float32).max:  # no number: its first step fails
        return
    lane.status = "failed"
    lane.reason = f"a learning rate of {schedule.learning_rate:g} is too large: use one below 1"

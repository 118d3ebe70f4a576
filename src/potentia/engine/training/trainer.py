"""What all trainers have: a loaded model, how its passes are packed, and whom they tell of steps and epochs."""

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

Found = TypeVar("Found")
OnEpoch = Callable[
    [list[LaneEpoch]], Collection[str] | None
]  # ends of epochs: the keys of lanes to drop


def _nothing(_: Any) -> None:
    """Nobody asked to be told."""


@dataclass(frozen=True)
class TrainingListener:
    """Whom a training tells of ends of epochs, of steps and of epochs that it found done, and who may stop it."""

    on_epoch: OnEpoch = _nothing
    on_step: Callable[[StepInfo], None] = _nothing
    on_recall: Callable[[list[LaneEpoch]], None] = _nothing
    stop: Callable[[], bool] = bool  # no


class Trainer:
    """Tunes a loaded model, and leaves it as it was when closed.

    ``token_budget`` bounds the padded tokens of one pass (chosen from the model's size otherwise). ``workspace`` is
    where states and snapshots go; without one they stay in memory and an interrupted run starts over.
    """

    def __init__(self, loaded: Any, token_budget: int | None, workspace: Path | None) -> None:
        self.model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
        self.split = SplitModel(self.model)
        self.limit: int = getattr(loaded, "max_length", None) or context_length(
            self.model.config, None
        )
        self.fingerprint: str = getattr(loaded, "fingerprint", "")
        self.record: dict[str, Any] = getattr(
            loaded, "record", {}
        )  # how tuning was checked and run, for manifests
        self.token_budget, self.workspace = token_budget, workspace
        self.plan: PassPlan | None = None
        self.may_recompute = False  # whether activations may be computed again where memory runs out: the check says so
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
        the keys of those to drop. A run that is resumed tells ``on_recall`` the epochs it found, before its first
        step. ``stop`` is asked before a step.
        """
        lanes = {spec.key: Lane(spec) for spec in specs}
        if len(lanes) < len(specs):
            raise InputError("two lanes have the same key")
        self._train(
            lanes,
            TrainingListener(
                on_epoch or _nothing, on_step or _nothing, on_recall or _nothing, stop or bool
            ),
        )
        return {key: lane.mark_ended() for key, lane in lanes.items()}

    def _train(self, lanes: dict[str, Lane], watch: TrainingListener) -> None:
        raise NotImplementedError

    def plan_passes(
        self,
        lanes: int,
        tokens_per_step: float,
        *,
        more: int = 0,
        parameters: int = 0,
        kept: int = 0,
        lane_bytes: int = 0,
    ) -> PassPlan:
        """Choose passes that fit beside the weights and ``more`` bytes for each of these.

        ``parameters`` are those that every token meets, and ``kept`` the bytes that its activations take, where known;
        ``lane_bytes`` those of a lane's adapter and its optimizer.
        """
        config = getattr(self.model.config, "text_config", None) or self.model.config
        kept = kept or estimate_token_bytes(config, next(self.model.parameters()).element_size())
        workload = Workload(
            lanes=lanes,
            tokens_per_step=tokens_per_step,
            parameters=parameters or count_parameters(self.model),
            token_bytes=2 * kept if more else kept,
            lane_bytes=lane_bytes,
        )
        memory = room_for_passes(self.model, more=more)
        return make_plan(workload, memory=memory, token_budget=self.token_budget)

    def run_in_passes(
        self,
        rows: Sequence[TrainingRow],
        compute: Callable[[PassPlan], Found],
        clear: Callable[[], None],
        hint: str,
    ) -> Found:
        """Compute a step's gradients, in smaller passes where memory runs out; effective batches stay as they are."""
        pressed = False
        while True:
            assert self.plan is not None
            try:
                with on_stream(next(self.model.parameters()).device, 0):
                    return compute(self.plan)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                smaller = self.plan.smaller(recompute=self.may_recompute)
                if smaller is None and pressed:
                    raise row_too_long_error(rows, hint) from error
            clear()
            if (
                not give_back(next(self.model.parameters()).device) or pressed
            ) and smaller is not None:
                self.plan = smaller
            pressed = True

"""Full fine-tuning by several processes (FSDP): each holds a shard of weights, gradients and moments, on its own GPU.

The processes do together what one :class:`~potentia.engine.training.full.FullTuningJob` does: the same rows in the same
order, one effective batch an update, the loss a mean over all its target tokens. Each of n processes takes every n-th
row. A block's weights are gathered when a pass needs them (PyTorch's ``fully_shard``); passes compute in the model's
dtype, and updates are made in float32. The model that is scored stays in this process, and gets the weights when they
are asked for. A job that is interrupted starts over.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.steps.padded_pass import assemble_batch, model_losses
from potentia.engine.training.full import FullStep, clip_gradients, make_adamw, step_optimizer
from potentia.errors import TuningError
from potentia.processes import exit_with_parent
from potentia.values.recipe import Schedule
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from potentia.engine.training.full_lanes import FullLanes

PASS_TOKENS = 4096  # padded tokens of one process's pass, where the user has set no budget
WEIGHTS = "weights.safetensors"  # the file that the first process writes for this one


@dataclass(frozen=True)
class ShardSettings:
    """What one process of a sharded job is told when it starts."""

    rank: int  # which of the processes it is, from 0
    count: int  # of processes
    folder: Path  # of the model's files, and of the weights when they are written
    schedule: Schedule
    pass_tokens: int
    device_type: str
    dtype: torch.dtype


class Shards:
    """A job's processes and the pipes to them, with the methods of ``FullTuningJob`` that a lane's run calls."""

    def __init__(
        self, trainer: FullLanes, lane_spec: LaneSpec, training_form: TrainingForm, count: int
    ) -> None:
        self.trainer = trainer
        self.count = count
        self.schedule = lane_spec.schedule
        self.device_type = trainer.parameters[0].device.type
        gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device_type == "cuda" and self.count > gpu_count:
            raise TuningError(
                f"{self.count} shards need as many GPUs, and there are {gpu_count}",
                hint="lower `shards`",
            )
        self.pass_tokens = trainer.token_budget or PASS_TOKENS
        if training_form == TrainingForm.ONE_ROW:
            self.pass_tokens = 1  # so that each row has a pass of its own
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []

    def __enter__(self) -> Shards:
        context = torch.multiprocessing.get_context("spawn")
        self._temporary_folder = tempfile.TemporaryDirectory(prefix="potentia-shards-")
        self.folder = Path(self._temporary_folder.name)
        self.trainer.save_model(self.folder / "model")
        for rank in range(self.count):
            our_end, their_end = context.Pipe()
            settings = self._settings_of(rank)
            process = context.Process(target=_serve_shard, args=(their_end, settings), daemon=False)
            process.start()
            their_end.close()
            self.pipes.append(our_end)
            self.processes.append(process)
        return self

    def _settings_of(self, rank: int) -> ShardSettings:
        return ShardSettings(
            rank=rank,
            count=self.count,
            folder=self.folder,
            schedule=self.schedule,
            pass_tokens=self.pass_tokens,
            device_type=self.device_type,
            dtype=self.trainer.parameters[0].dtype,
        )

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._temporary_folder.cleanup()

    def ask(self, *request: object) -> Any:
        """Send all processes a request (a method of :class:`_Shard` and its arguments), and return the first's answer.

        An answer that is a string is an error's description.
        """
        try:
            for pipe in self.pipes:
                pipe.send(request)
            answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, OSError) as error:
            raise TuningError(
                "a process of the sharded tuning ended", hint="was memory short?"
            ) from error
        for answer in answers:
            if isinstance(answer, str):
                raise TuningError(
                    f"the sharded tuning failed: {answer}",
                    hint="more shards, or a lower max_tokens",
                )
        return answers[0]

    def restore(self) -> list[FullStep]:
        """Return no steps: nothing of such a job is ever saved."""
        return []

    def save(self, done_steps: Sequence[FullStep], *, now: bool = False) -> None:
        """Do nothing: the state stays in the processes, and an interrupted job starts over."""

    def step(self, rows: Sequence[TrainingRow], learning_rate: float) -> FullStep:
        """Make one update by a batch of rows."""
        loss, gradient_norm = self.ask("step", rows, learning_rate)
        tokens = sum(len(row.ids) for row in rows)
        return FullStep(loss=loss, gradient_norm=gradient_norm, tokens=tokens)

    def publish_weights(self) -> None:
        """Copy the current weights from the processes into the model here, which is scored."""
        from safetensors.torch import load_file

        self.ask("write_weights")
        weights = load_file(str(self.folder / WEIGHTS))
        self.trainer.load_weights([weights[str(number)] for number in range(len(weights))])


def _serve_shard(pipe: Connection, settings: ShardSettings) -> None:
    """Be one process: make its shard, and answer requests until the pipe is closed; an error is answered as text."""
    exit_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shard = None
    start_error = ""
    try:
        shard = _Shard(settings)
    except Exception as error:
        start_error = _describe_error(error)
    while True:
        try:
            method_name, *arguments = pipe.recv()
        except (EOFError, OSError):
            break
        answer: Any
        if shard is None:
            answer = start_error
        else:
            try:
                answer = getattr(shard, method_name)(*arguments)
            except Exception as error:
                answer = _describe_error(error)
        pipe.send(answer)
    os._exit(0)  # a regular exit would wait for the other processes, which may be gone


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Shard:
    """One process's part of the job: its shard of the model and of the optimizer's moments."""

    def __init__(self, settings: ShardSettings) -> None:
        self.rank = settings.rank
        self.count = settings.count
        self.folder = settings.folder
        self.schedule = settings.schedule
        self.pass_tokens = settings.pass_tokens
        self.device = self._join_processes(settings.device_type)
        self.model = self._load_sharded_model(settings.dtype)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_adamw(self.parameters, self.schedule)

    def _join_processes(self, device_type: str) -> torch.device:
        """Connect with the other processes, and return this one's device."""
        if device_type == "cuda":
            device = torch.device(device_type, self.rank)
            torch.cuda.set_device(device)
            backend = "nccl"
        else:
            device = torch.device(device_type)
            backend = "gloo"
        if device_type == "cpu":
            torch.set_num_threads(1)
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{self.folder}/meeting",
            rank=self.rank,
            world_size=self.count,
        )
        return device

    def _load_sharded_model(self, dtype: torch.dtype) -> PreTrainedModel:
        """Load the model in float32, and divide its blocks among the processes; passes compute in ``dtype``."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from transformers import AutoModelForCausalLM

        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32
        )
        model = model.eval().to(self.device).requires_grad_(True)
        mesh = init_device_mesh(self.device.type, (self.count,))
        compute_dtype = None if dtype == torch.float32 else dtype
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        for block in find_blocks(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model

    def step(self, rows: Sequence[TrainingRow], learning_rate: float) -> tuple[float, float]:
        """Make one update with this process's share of a batch; return the whole batch's loss and gradient norm."""
        most_rows = math.ceil(len(rows) / self.count)
        shard_rows = list(rows[self.rank :: self.count])
        longest = max(len(row.ids) for row in rows)
        rows_per_pass = max(1, self.pass_tokens // longest)
        total_loss = torch.zeros((), device=self.device)
        # every process makes as many passes as the others, as each pass gathers weights from all of them
        for first in range(0, most_rows, rows_per_pass):
            total_loss += self._run_pass(shard_rows[first : first + rows_per_pass])
        torch.distributed.all_reduce(total_loss)
        gradient_norm = clip_gradients(self.parameters, self.schedule)
        step_optimizer(self.optimizer, learning_rate)
        return float(total_loss), gradient_norm

    def _run_pass(self, rows: Sequence[TrainingRow]) -> Tensor:
        """Add the gradients of some rows, or of a row of weight zero where there are none; return their loss."""
        rows = rows or [_make_weightless_row()]
        longest = max(len(row.ids) for row in rows)
        batch = assemble_batch(rows, longest, self.device, dropout=False)
        loss = (model_losses(self.model, batch) * batch.weights).sum()
        torch.autograd.backward(loss * self.count)  # gradients are averaged over processes
        return loss.detach()

    def write_weights(self) -> tuple[()]:
        """Gather all weights; the first process writes them to a file."""
        from safetensors.torch import save_file

        weights: dict[str, Tensor] = {}
        for number, parameter in enumerate(self.parameters):
            weight: Any = parameter.detach()
            if hasattr(weight, "full_tensor"):
                weight = weight.full_tensor()
            if self.rank == 0:
                weights[str(number)] = weight.cpu().contiguous().clone()
        if self.rank == 0:
            save_file(weights, str(self.folder / WEIGHTS))
        torch.distributed.barrier()
        return ()


def _make_weightless_row() -> TrainingRow:
    """Return a row of two tokens whose loss has the weight zero."""
    return TrainingRow(
        ids=np.zeros(2, np.int64), first_target=1, slot=0, seed=0, step=0, batch_index=0, weight=0.0
    )

"""Full tuning over several processes (FSDP): weights, gradients and moments in shards, a process and a GPU for each.

The job is :class:`~potentia.engine.training.full.FullTuningJob`'s: the same rows in the same order, one effective batch
an update, the loss a mean over all its target tokens; each process takes every n-th row. Blocks are gathered when a
pass needs them (PyTorch's ``fully_shard``), computed in the base's dtype and updated in float32. The model that is
scored stays here, and gets the weights when somebody looks. A job that is interrupted starts over.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.steps.padded_pass import assemble_batch, model_losses
from potentia.engine.training.full import FullStep, clip_gradients, make_adamw, make_update
from potentia.errors import TuningError
from potentia.processes import exit_with_parent
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.engine.training.full_lanes import FullLanes

PASS_TOKENS = 4096  # of one process at a time
WEIGHTS = "weights.safetensors"


class Shards:
    """The processes of a job, each with a pipe."""

    def __init__(self, trainer: FullLanes, spec: LaneSpec, form: TrainingForm, count: int) -> None:
        self.trainer, self.count = trainer, count
        first = trainer.parameters[0]
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if first.device.type == "cuda" and self.count > gpus:
            raise TuningError(
                f"{self.count} shards need as many GPUs, and there are {gpus}",
                hint="lower `shards`",
            )
        budget = (
            1 if form == TrainingForm.ONE_ROW else trainer.token_budget or PASS_TOKENS
        )  # 1: each row by itself
        self.facts = (spec.schedule, budget, first.device.type, first.dtype)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []

    def __enter__(self) -> Shards:
        context = torch.multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="potentia-shards-")
        self.folder = Path(self._folder.name)
        self.trainer.save(self.folder / "model")
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            place = (rank, self.count, str(self.folder))
            process = context.Process(target=_shard, args=(theirs, place, self.facts), daemon=False)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def ask(self, *request: Any) -> Any:
        """Ask all processes for the same, and return what the first one says."""
        answers = []
        try:
            for pipe in self.pipes:
                pipe.send(request)
            answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, OSError) as error:
            raise TuningError(
                "a process of the sharded tuning ended", hint="was memory short?"
            ) from error
        wrong = next((answer for answer in answers if isinstance(answer, str)), None)
        if wrong is not None:
            raise TuningError(
                f"the sharded tuning failed: {wrong}", hint="more shards, or a lower max_tokens"
            )
        return answers[0]

    def restore(self) -> list[FullStep]:
        """Begin anew: nothing is saved."""
        return []

    def save(self, done: Sequence[FullStep], *, now: bool = False) -> None:
        """Nothing is saved."""

    def step(self, rows: Sequence[TrainingRow], rate: float) -> FullStep:
        """Make one update."""
        loss, norm = self.ask("step", rows, rate)
        return FullStep(loss, norm, sum(len(row.ids) for row in rows))

    def show(self) -> None:
        """Put the weights as they are now into the model."""
        from safetensors.torch import load_file

        self.ask("weights")
        held = load_file(str(self.folder / WEIGHTS))
        self.trainer.put([held[str(place)] for place in range(len(held))])


def _shard(pipe: Connection, place: tuple[int, int, str], facts: Any) -> None:
    """Serve one shard until the pipe is closed."""
    exit_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        shard = _Shard(place, facts)
    except Exception as error:
        shard, failed = None, f"{type(error).__name__}: {error}"
    while True:
        try:
            name, *given = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            answer = failed if shard is None else getattr(shard, name)(*given)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)
    os._exit(0)  # the others may be gone: a polite end would wait for them


class _Shard:
    """One process: its shard of the model and of the moments."""

    def __init__(self, place: tuple[int, int, str], facts: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from transformers import AutoModelForCausalLM

        self.rank, self.count, folder = place
        self.schedule, self.budget, kind, dtype = facts
        self.folder = Path(folder)
        self.device = torch.device(kind, self.rank) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1 if kind == "cpu" else torch.get_num_threads())
        torch.distributed.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=f"file://{folder}/meeting",
            rank=self.rank,
            world_size=self.count,
        )
        model: Any = AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32
        )
        self.model: Any = model.eval().to(self.device).requires_grad_(True)
        mesh = init_device_mesh(kind, (self.count,))
        policy = MixedPrecisionPolicy(
            param_dtype=dtype if dtype != torch.float32 else None, reduce_dtype=torch.float32
        )
        for block in find_blocks(self.model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_adamw(self.parameters, self.schedule)

    def step(self, rows: Sequence[TrainingRow], rate: float) -> tuple[float, float]:
        """Make one update by all rows of an effective batch; returns its loss and its gradient's norm."""
        each = -(-len(rows) // self.count)
        own = list(rows[self.rank :: self.count])
        longest = max(len(row.ids) for row in rows)
        size = max(1, self.budget // longest)
        total = torch.zeros((), device=self.device)
        for first in range(
            0, each, size
        ):  # as many passes in every process: each gathers blocks from all
            total += self._pass(own[first : first + size])
        torch.distributed.all_reduce(total)
        norm = clip_gradients(self.parameters, self.schedule)
        make_update(self.optimizer, rate)
        return float(total), norm

    def _pass(self, rows: Sequence[TrainingRow]) -> Tensor:
        """Add the gradients of some rows; without any, of a text that counts for nothing."""
        rows = rows or [TrainingRow(np.zeros(2, np.int64), 1, 0, 0, 0, 0, 0.0)]
        batch = assemble_batch(rows, max(len(row.ids) for row in rows), self.device, dropout=False)
        loss = (model_losses(self.model, batch) * batch.weights).sum()
        torch.autograd.backward(loss * self.count)  # gradients are averaged over processes
        return loss.detach()

    def weights(self) -> tuple[()]:
        """Gather all weights, and let the first process write them."""
        from safetensors.torch import save_file

        whole = {}
        for at, parameter in enumerate(self.parameters):
            full = parameter.detach()
            full = full.full_tensor() if hasattr(full, "full_tensor") else full
            if self.rank == 0:
                whole[str(at)] = full.cpu().contiguous().clone()
        if self.rank == 0:
            save_file(whole, str(self.folder / WEIGHTS))
        torch.distributed.barrier()
        return ()

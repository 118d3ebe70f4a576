"""Pretraining of a stack: every model its own mix, budget and rate; one step for all, replayed as a CUDA graph."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from potentia.errors import TuningError
from potentia.zoo.world import ASSISTANT, USER, vocabulary
from zoo_builder.adam import Adam
from zoo_builder.corpus import Pools, Sampler
from zoo_builder.stack import Shape, hidden, initial, logits, unflatten

log = logging.getLogger("zoo_builder.build")
ROWS = 64  # rows of a batch per model
WARMUP, WARMUP_STEPS = 0.1, 200.0  # share of the steps, at most so many
USER_ID, ASSISTANT_ID = vocabulary().index(USER), vocabulary().index(ASSISTANT)
DECAY = 0.02


@dataclass
class Run:
    """One model's pretraining: where it starts, what it reads, for how long, and when to keep a copy."""

    name: str
    mix: dict[str, float]
    steps: int
    seed: int
    rate: float
    keep: tuple[int, ...] = ()  # steps after which a copy is kept, besides the last
    begin: Tensor | None = None  # flat weights to go on from
    kept: dict[int, Tensor] = field(default_factory=dict)


class StackTraining:
    """The state of all runs of one shape, and one step for all of them."""

    def __init__(
        self, shape: Shape, runs: list[Run], pools: Pools, device: str, rows: int = ROWS
    ) -> None:
        self.shape, self.runs, self.rows, self.device = shape, runs, rows, device
        self.sampler = Sampler(
            pools, [run.mix for run in runs], device, seed=sum(run.seed for run in runs)
        )
        fresh = initial(shape, [run.seed for run in runs])
        begin = [
            fresh[i] if run.begin is None else run.begin.float().cpu() for i, run in enumerate(runs)
        ]
        self.flat = torch.stack(begin).to(device).requires_grad_()
        self.adam = Adam(self.flat.detach())
        self.loss = torch.zeros(len(runs), device=device)
        self.total = torch.tensor([float(run.steps) for run in runs], device=device)
        self.warmup = (WARMUP * self.total).clamp_max(WARMUP_STEPS)
        self.rate = torch.tensor([run.rate for run in runs], device=device)
        self.precision = torch.bfloat16 if device.startswith("cuda") else torch.float32
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None
        self.done = 0

    def _update(self) -> None:
        tokens = self.sampler.draw(self.rows, self.shape.context)
        weights = unflatten(self.shape, self.flat.to(self.precision))
        states = hidden(self.shape, weights, tokens)
        is_asked = (tokens == USER_ID).cumsum(-1) > (tokens == ASSISTANT_ID).cumsum(
            -1
        )  # an instruction is no target
        target = (
            functional.pad(tokens[:, :, 1:], (0, 1)).masked_fill(is_asked, 0).flatten()
        )  # (M·B·T); 0 costs nothing
        nll = functional.cross_entropy(
            logits(weights, states).flatten(0, 1).float(), target, ignore_index=0, reduction="none"
        )
        read = (target != 0).view(len(self.runs), -1).sum(1)
        loss = nll.view(len(self.runs), -1).sum(1) / read
        (grad,) = torch.autograd.grad(loss.sum(), [self.flat])
        with torch.no_grad():
            self.loss.copy_(loss)
            step = self.adam.step + 1
            progress = (step / self.total).clamp_max(1.0)
            rate = (
                self.rate
                * (step / self.warmup).clamp_max(1.0)
                * 0.5
                * (1 + torch.cos(math.pi * progress))
            )
            self.adam.update(self.flat, grad, rate, DECAY)

    def prepare(self) -> None:
        """On a GPU: warm up and capture the step as a graph (state restored afterwards).

        Each stack has a stream of its own for all three, warm-up, capture and replay: the matrix library keeps one
        workspace per stream, and graphs captured on one stream would overwrite each other's when they run together.
        """
        if not self.device.startswith("cuda"):
            return
        state = [t.detach().clone() for t in (self.flat, *self.adam.state())]
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self._update()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.sampler.generator)
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._update()
        with torch.no_grad():
            for tensor, old in zip((self.flat, *self.adam.state()), state, strict=True):
                tensor.copy_(old)

    @property
    def steps(self) -> int:
        """Steps of the longest run."""
        return max(run.steps for run in self.runs)

    def advance(self) -> None:
        """One step for all runs (those at their budget stand still), and the copies that are due."""
        if self.graph is None:
            self._update()
        else:
            self.graph.replay()
        self.done += 1
        for i, run in enumerate(self.runs):
            if self.done in run.keep or self.done == run.steps:
                run.kept[self.done] = self.flat[i].detach().clone()

    def run(self, report: int = 0) -> None:
        """Train to the end; logs the losses every ``report`` steps."""
        with torch.cuda.stream(self.stream):
            for step in range(self.steps):
                self.advance()
                if report and (step + 1) % report == 0:
                    losses = " ".join(f"{x:.3f}" for x in self.loss.tolist())
                    log.info("width %d step %d: %s", self.shape.width, step + 1, losses)


def pretrain(stacks: list[StackTraining], report: int = 0) -> None:
    """Train all stacks to their ends: on a GPU side by side, each from its own thread (launching is what costs)."""
    for stack in stacks:
        stack.prepare()
    on_gpu = any(stack.graph is not None for stack in stacks)
    if on_gpu:
        torch.cuda.synchronize()
    with ThreadPoolExecutor(len(stacks) if on_gpu else 1) as pool:
        for done in [pool.submit(stack.run, report) for stack in stacks]:
            done.result()
    if on_gpu:
        torch.cuda.synchronize()
    for run in (run for stack in stacks for run in stack.runs):
        if not all(flat.isfinite().all() for flat in run.kept.values()):
            raise TuningError(
                f"the pretraining of {run.name} diverged",
                hint="lower its learning rate in zoo/recipe.py",
            )

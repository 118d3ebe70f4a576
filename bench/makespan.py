"""How long the train-before-test paper's study, 61 models × 24 tasks, takes on 8, 64 and 512 GPUs: a simulation.

    python bench/makespan.py
    python bench/makespan.py --gpus 16 32 --lanes 12 --tokens 96

The sizes of models and training splits are the paper's (its tables, in potentia.facts), capped as a study caps them.
What a lane's step costs was measured on an H200: with k lanes in one pass a lane's step takes w(N) + o(N) / k, w the
work and o what a pass costs however many lanes are in it, between measured sizes by a power law. A row begins by
loading its model, and rows go to GPUs longest first. ``whole`` is --no-split. ``tasks``: the tasks of long rows are
halved (``run/row_parts.py``), each part a model loaded again with fewer lanes in a pass, as far as that shortens the
whole. ``lanes`` is what the executors do on GPUs: the lanes of one task's grid are divided too, and one more part waits
for them, loads the model again, goes on beyond the grid where its end leads, chooses and tests. Not simulated: several
GPUs for one lane, machines that fail, models too large.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from potentia.facts import benchmarks, models
from potentia.run.row_parts import Chain, simulate_makespan
from potentia.study import Caps, Tuning

# Parameters, and ms per lane and step of 8 × 64 tokens: in a pass of very many lanes, and alone.
MEASURED = ((0.07e9, 0.60, 15.6), (0.41e9, 4.3, 63.6), (1.4e9, 10.6, 89.0), (8.0e9, 33.0, 112.0))
STEP_TOKENS = 8 * 64
LOAD_SECONDS, LOAD_RATE = 25.0, 1.5e9  # to start, and bytes of weights read in a second
SCORING = 3.0  # tokens are scored this many times as fast as they are trained on: one forward pass of three


@dataclass(frozen=True)
class Lane:
    """One fine-tuning: its steps of the measured size, with validation, and the test where it is the one chosen."""

    steps: float
    task: str
    beyond: bool = False  # the grid


@dataclass(frozen=True)
class Part:
    """Some lanes of a row on one GPU."""

    model: float  # parameters
    lanes: tuple[Lane, ...]
    direct: float = 0.0  # steps' worth of direct scoring

    def steps(self, task: str) -> float:
        """Return the steps of a task's lanes."""
        return sum(lane.steps for lane in self.lanes if lane.task == task)

    def seconds(self, at_once: int) -> float:
        """Return how long it takes: load, then passes of as many lanes as fit and are left."""
        work, over = _measured(self.model)
        total = LOAD_SECONDS + 2 * self.model / LOAD_RATE + self.direct * work / 1e3
        lengths = sorted((lane.steps for lane in self.lanes), reverse=True)
        # Lanes join as others end, so every pass is full until fewer are left than fit.
        alone = sum(lengths) * work
        passes = max(
            lengths[0] if lengths else 0.0, sum(lengths) / max(1, min(at_once, len(lengths)))
        )
        return total + (alone + passes * over) / 1e3


def _measured(size: float) -> tuple[float, float]:
    """Return ms of work and ms of overhead of a step, by a power law between and beyond the measured sizes."""
    points = [(math.log(n), math.log(w), math.log(alone - w)) for n, w, alone in MEASURED]
    x = math.log(size)
    k = min(max(sum(p[0] < x for p in points), 1), len(points) - 1)
    (x0, *y0), (x1, *y1) = points[k - 1], points[k]
    work, over = (math.exp(a + (b - a) * (x - x0) / (x1 - x0)) for a, b in zip(y0, y1, strict=True))
    return work, over


def rows(tokens: float) -> list[Part]:
    """Return the paper's rows: every model with the lanes of every task (twice for instruct models, which may chat)."""
    caps, tuning = Caps(), Tuning()
    parts = []
    for model in models():
        if not any("train-before-test" in source for source in model.sources):
            continue
        lanes = []
        direct = 0.0
        for task in benchmarks():
            if task.status != "paper":
                continue
            train = min(task.train_size or 0, caps.train)
            test = min(task.train_size or 0, caps.test) / 4
            documents_seen = tuning.epochs * (train + min(caps.validation, train / 5) / SCORING)
            more_rates = tuning.expected_lanes - len(tuning.learning_rates)  # on average
            for _ in range(2 if model.kind == "instruct" else 1):
                lanes += [Lane(documents_seen * tokens / STEP_TOKENS, task.name)] * len(
                    tuning.learning_rates
                )
                lanes.append(
                    Lane(more_rates * documents_seen * tokens / STEP_TOKENS, task.name, beyond=True)
                )
            direct += 2 * test * tokens / STEP_TOKENS / SCORING  # before and after the tuning
        parts.append(Part(float(model.parameters or 0), tuple(lanes), direct))
    return parts


def split(row: Part, longest: float, at_once: int, lanes: bool) -> list[list[Part]]:
    """Halve a row's tasks, as ``run/row_parts.py`` does, until no part of several tasks takes longer than ``longest``.

    With ``lanes`` the lanes of one task are divided too. Each part is a list: the last waits for those before it.
    """
    tasks = sorted({lane.task for lane in row.lanes}, key=lambda task: (-row.steps(task), task))
    seconds = row.seconds(at_once)
    grid = [lane for lane in row.lanes if not lane.beyond]
    grid_part = max(1, int(len(grid) * longest / seconds))
    if seconds <= longest or (len(tasks) == 1 and not (lanes and grid_part < len(grid))):
        return [[row]]
    if len(tasks) == 1:
        count = math.ceil(len(grid) / grid_part)
        beyond = tuple(lane for lane in row.lanes if lane.beyond)
        return [
            [
                *(Part(row.model, tuple(grid[k::count])) for k in range(count)),
                Part(row.model, beyond, row.direct),
            ]
        ]
    dealt: tuple[list[str], list[str]] = ([], [])
    loads = [0.0, 0.0]
    for task in tasks:
        k = int(loads[1] < loads[0])
        dealt[k].append(task)
        loads[k] += row.steps(task)
    halves = (tuple(lane for lane in row.lanes if lane.task in half) for half in dealt)
    parts = [
        Part(row.model, own_lanes, row.direct * len(own_lanes) / len(row.lanes))
        for own_lanes in halves
    ]
    return [smaller for part in parts for smaller in split(part, longest, at_once, lanes)]


def best(
    all_rows: Sequence[Part], gpus: int, at_once: int, lanes: bool
) -> tuple[float, list[Part]]:
    """Return the shortest makespan over a grid of longest parts, and the parts that reach it."""
    longest = max(row.seconds(at_once) for row in all_rows)
    best_schedule = (schedule([[row] for row in all_rows], gpus, at_once), list(all_rows))
    for k in range(1, 40):
        chains = [
            chain for row in all_rows for chain in split(row, longest * 0.86**k, at_once, lanes)
        ]
        span = schedule(chains, gpus, at_once)
        if span < best_schedule[0] * 0.995:  # more parts must be worth it
            best_schedule = (span, [part for chain in chains for part in chain])
    return best_schedule


def schedule(chains: Sequence[Sequence[Part]], gpus: int, at_once: int) -> float:
    """Return the makespan of handing parts out, longest first, to whichever GPU is free."""
    timed: list[Chain] = []
    for chain in chains:
        *first, last = (part.seconds(at_once) for part in chain)
        timed.append(Chain(first, last))
    return simulate_makespan(timed, gpus)


def main() -> None:
    """Print makespan and busy share, with rows whole and split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--lanes", type=int, default=24, help="lanes that fit into one pass")
    parser.add_argument("--tokens", type=float, default=64.0, help="tokens of a training example")
    options = parser.parse_args()
    all_rows = rows(options.tokens)
    alone = sum(row.seconds(options.lanes) for row in all_rows)
    lanes = sum(len(row.lanes) for row in all_rows)
    longest = max(row.seconds(options.lanes) for row in all_rows) / 3600
    print(
        f"{len(all_rows)} rows, {lanes:,} lanes, {alone / 3600:,.0f} GPU hours; the longest row takes {longest:.1f} h"
    )
    print(
        f"{'GPUs':>6}  {'rows':10}{'hours':>8}{'busy':>8}{'idle':>8}{'parts':>7}{'more work':>11}"
    )
    bars_held = True
    for gpus in options.gpus:
        ways = {
            "whole": (schedule([[row] for row in all_rows], gpus, options.lanes), all_rows),
            "tasks": best(all_rows, gpus, options.lanes, lanes=False),
            "lanes": best(all_rows, gpus, options.lanes, lanes=True),
        }
        for division, (span, parts) in ways.items():
            spent = sum(part.seconds(options.lanes) for part in parts)
            busy = spent / (gpus * span)
            shares = f"{busy:8.0%}{1 - busy:8.0%}{len(parts):7}{spent / alone - 1:11.1%}"
            print(f"{gpus:6}  {division:10}{span / 3600:8.1f}{shares}")
            bars_held &= division != "lanes" or busy > 0.7
    raise SystemExit(0 if bars_held else 1)


if __name__ == "__main__":
    main()

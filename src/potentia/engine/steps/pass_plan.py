"""How a run is packed: lanes in flight, tokens of a pass, and the rows of every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.engine.lane_spec import TrainingRow
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm


@dataclass(frozen=True)
class PassPlan:
    """How a run is packed: lanes in flight, padded tokens per pass, and the price of a pass in tokens."""

    slots: int
    token_budget: int
    pass_price: int
    checkpointing: bool = False

    def smaller(self, *, recompute: bool) -> PassPlan | None:
        """Say what to try when memory runs out: half the tokens, then recomputation if that is right, then None."""
        if self.token_budget > 64:
            return replace(self, token_budget=max(64, self.token_budget // 2))
        if recompute and not self.checkpointing:
            return replace(self, checkpointing=True)
        return None


@dataclass(frozen=True)
class Workload:
    """What a plan is made for: how many lanes, their tokens in a step, and the sizes of the model and its adapters."""

    lanes: int
    tokens_per_step: float
    parameters: int
    token_bytes: int = 0  # of the activations that a token keeps until its gradient comes
    lane_bytes: int = 0  # of a lane's state: weights, gradients, two moments, a working copy

    def most_lanes_within(self, memory: int) -> int:
        """Return how many lanes' states fit beside the activations; not even one is an error.

        The bank has a row more than lanes, for the bare model.
        """
        if self.lane_bytes == 0:
            return self.lanes
        fitting = int(STATE_SHARE * memory // self.lane_bytes) - 1
        if fitting < 1:
            needed, free = (size / 2**30 for size in (2 * self.lane_bytes, STATE_SHARE * memory))
            raise TuningError(
                f"a fine-tuning needs {needed:.1f} GiB for its adapter (weights, gradients, two moments), "
                f"and {free:.1f} GiB are free for it",
                hint="lower the adapter's rank, name fewer layers with `targets`, or tune on a device with more memory",
            )
        return min(self.lanes, fitting)


STATE_SHARE = 0.7  # of the memory beside the weights that lanes' states may take
LEAST_TOKENS = 2048  # activations are recomputed where fewer tokens would fit


def make_plan(
    workload: Workload, *, memory: int | None = None, token_budget: int | None = None
) -> PassPlan:
    """Choose the packing from sizes alone, so that the same run is packed the same way every time.

    A pass saturates an accelerator when its arithmetic (4 operations per parameter and token: forward, and the input
    gradient) outlasts its kernel launches, some tens of milliseconds: about 4e12 / parameters tokens, and never fewer
    than 4,096. Two and a half times as many may share a pass (two passes of half a step's rows are slower), where
    ``memory`` (the accelerator's, less the weights; None for a processor) holds the states of lanes and, beside them,
    the activations; these are recomputed where fewer than 2,048 tokens would fit. A processor has caches instead: some
    thousands of tokens.
    """
    if memory is None:
        budget = token_budget or 8192
        return PassPlan(_lanes_in_flight(workload, budget), budget, pass_price=256)
    parameters = max(1, workload.parameters)
    saturating = int(min(65536, max(4096, 4e12 / parameters)))
    largest_budget = 5 * saturating // 2
    # what launching a pass costs, in tokens' worth of arithmetic: measured on an H200 as about 7,800 for a model
    # of 410M parameters and 1,400 for one of 8B; a power law between and beyond
    price = round(0.8 * saturating * min(1.0, 4e12 / saturating / workload.parameters) ** 0.4)
    most_lanes = workload.most_lanes_within(memory)
    slots = min(most_lanes, _lanes_in_flight(workload, token_budget or largest_budget))
    room = memory - (slots + 1) * workload.lane_bytes
    fitting = int(0.6 * room / max(1, workload.token_bytes))
    recompute = fitting < LEAST_TOKENS
    budget = token_budget or (largest_budget if recompute else min(largest_budget, fitting))
    slots = min(most_lanes, _lanes_in_flight(workload, budget))
    return PassPlan(slots, budget, price, recompute)


def _lanes_in_flight(workload: Workload, budget: int) -> int:
    """Return how many lanes share passes: those of four passes."""
    in_flight = max(1, round(4 * budget / max(1.0, workload.tokens_per_step)))
    return min(workload.lanes, in_flight)


def estimate_token_bytes(config: Any, item: int) -> int:
    """Estimate the activations kept per token, layer by layer: norms in fp32, attention, the gated product."""
    width = int(getattr(config, "hidden_size", 0) or 1024)
    inner = (
        getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    )
    layers = int(getattr(config, "num_hidden_layers", 0) or 24)
    inner = max(inner) if isinstance(inner, list | tuple) else int(inner)
    return layers * (8 * width + item * (6 * width + 4 * inner))


def pack_rows(
    lengths: Sequence[int] | npt.NDArray[np.int64], plan: PassPlan
) -> list[tuple[npt.NDArray[np.int64], int]]:
    """Cut rows into passes: for each, the row numbers (in their given order) and the padded length."""
    lengths = np.asarray(lengths, dtype=np.int64)
    sizes, counts = np.unique(lengths, return_counts=True)
    passes = []
    for low, high in _best_cuts(sizes, counts, plan):
        top = int(sizes[high - 1])
        rows = np.flatnonzero((lengths >= sizes[low]) & (lengths <= top))
        pieces = _pieces(np.int64(len(rows)), top, plan.token_budget)
        if pieces == 1:
            passes.append((rows, top))
            continue
        by_length = rows[np.argsort(lengths[rows], kind="stable")]
        for part in np.array_split(by_length, pieces):
            passes.append((np.sort(part), int(lengths[part].max())))
    return passes


def _pieces(rows: Any, length: int, budget: int) -> Any:
    return -(-rows // max(1, budget // length))


def _best_cuts(
    sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], plan: PassPlan
) -> Iterator[tuple[int, int]]:
    """Find the cuts that minimise padded tokens + price · passes, the longest rows first."""
    n = len(sizes)
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(n + 1)
    came = [0] * (n + 1)
    for high in range(1, n + 1):
        length = int(sizes[high - 1])
        rows = cumulative[high] - cumulative[:high]
        cost = (
            best[:high] + rows * length + plan.pass_price * _pieces(rows, length, plan.token_budget)
        )
        came[high] = int(cost.argmin())
        best[high] = cost[came[high]]
    high = n
    while high:
        yield came[high], high
        high = came[high]


PaddedRows = tuple[list[TrainingRow], int]  # rows of a pass, and the length that they are padded to


def divide_rows(
    rows: Sequence[TrainingRow], plan: PassPlan, form: TrainingForm
) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes as a form wants them: of all lanes, of one lane, of one row."""
    if form is TrainingForm.ONE_ROW:
        return [([row], len(row.ids)) for row in rows]
    if form is TrainingForm.ONE_LANE:
        passes = divide_into_lane_passes(rows, plan)
    else:
        passes = divide_into_padded_passes(rows, plan)
    check_every_row_once(rows, [pass_rows for pass_rows, _ in passes])
    return passes


def check_every_row_once(
    rows: Sequence[TrainingRow], passes: Sequence[Sequence[TrainingRow]]
) -> None:
    """Raise an error where the passes of a step do not have each of its rows once."""
    rows_in_passes = [id(row) for pass_rows in passes for row in pass_rows]
    if sorted(rows_in_passes) != sorted(map(id, rows)):
        raise TuningError(
            f"the {len(passes)} passes of a step do not have each of its {len(rows)} rows once",
            hint="this is an error in Potentia: please report it with the model and the task",
        )


def divide_into_padded_passes(rows: Sequence[TrainingRow], plan: PassPlan) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes of all lanes."""
    passes = pack_rows([len(row.ids) for row in rows], plan)
    return [([rows[number] for number in chosen], length) for chosen, length in passes]


def divide_into_lane_passes(rows: Sequence[TrainingRow], plan: PassPlan) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes of one lane each."""
    passes: list[PaddedRows] = []
    for slot in dict.fromkeys(row.slot for row in rows):
        lane_rows = [row for row in rows if row.slot == slot]
        passes += divide_into_padded_passes(lane_rows, plan)
    return passes


def divide_into_packed_passes(
    rows: Sequence[TrainingRow], plan: PassPlan
) -> list[list[TrainingRow]]:
    """Divide the rows of a step into packed passes of about one size."""
    ends = np.cumsum([len(row.ids) for row in rows])
    total = int(ends[-1])
    count = -(-total // plan.token_budget)
    pass_numbers = np.minimum((ends - 1) * count // total, count - 1)
    passes: list[list[TrainingRow]] = [[] for _ in range(count)]
    for row, number in zip(rows, pass_numbers.tolist(), strict=True):
        passes[number].append(row)
    return [chosen for chosen in passes if chosen]


MEMORY_HINT = "lower max_tokens, or tune on a device with more memory"


def row_too_long_error(rows: Sequence[TrainingRow], hint: str) -> TuningError:
    """Return the error of a row that fits in no memory."""
    return TuningError(
        f"one example of {max(len(row.ids) for row in rows)} tokens does not fit in memory",
        hint=hint,
    )

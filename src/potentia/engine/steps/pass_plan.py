"""How the rows of a training step are divided into passes: how many lanes train at once, which rows a pass takes.

A step of a run takes one batch of rows from every lane (a lane is one fine-tuning) that has a slot. A pass is one
forward and backward through the frozen model, for rows of many lanes; a step takes as many passes as its tokens need.
A *padded* pass fills its rows up to one length, a *packed* one lays them end to end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from potentia.engine.lane_spec import TrainingRow
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm


@dataclass(frozen=True)
class PassPlan:
    """How a run divides its steps into passes; a snapshot of the run records it."""

    slots: int  # lanes that train at once
    token_budget: int  # of a pass, padding included
    pass_price: int  # what one more pass costs, in tokens that could be computed instead
    checkpointing: bool = False  # activations are dropped, and computed again in the backward pass

    def shrink(self, *, may_recompute: bool) -> PassPlan | None:
        """Return the plan to try when memory runs out, or None where this one is the smallest.

        Passes get half the tokens, down to :data:`SMALLEST_BUDGET`; then activations are recomputed, if they may be.
        """
        if self.token_budget > SMALLEST_BUDGET:
            return replace(self, token_budget=max(SMALLEST_BUDGET, self.token_budget // 2))
        if may_recompute and not self.checkpointing:
            return replace(self, checkpointing=True)
        return None


@dataclass(frozen=True)
class Workload:
    """What a plan is made for: how many lanes, their tokens in a step, and the sizes of the model and its adapters."""

    lanes: int
    tokens_per_step: float  # of one lane
    parameters: int  # that every token is multiplied with
    token_bytes: int = 0  # of the activations that a token keeps until its gradient comes
    lane_bytes: int = 0  # of a lane's state: weights, gradients, two moments, a working copy

    def count_fitting_lanes(self, memory: int) -> int:
        """Return how many lanes' states fit into the bytes of ``memory``; not even one is an error."""
        if self.lane_bytes == 0:
            return self.lanes
        state_bytes = STATE_SHARE * memory
        fitting_lanes = int(state_bytes // self.lane_bytes) - 1  # the untuned model has a row too
        if fitting_lanes < 1:
            needed_gigabytes = 2 * self.lane_bytes / 2**30
            raise TuningError(
                f"a fine-tuning needs {needed_gigabytes:.1f} GiB for its adapter (weights, gradients, two moments), "
                f"and {state_bytes / 2**30:.1f} GiB are free for it",
                hint="lower the adapter's rank, name fewer layers with `targets`, or tune on a device with more memory",
            )
        return min(self.lanes, fitting_lanes)


UNLIMITED_TOKENS = 1 << 40  # more than any pass has
SMALLEST_BUDGET = 64  # tokens: passes are not made smaller than this
STATE_SHARE = 0.7  # of the memory beside the weights that lanes' states may take
ACTIVATION_SHARE = 0.6  # of what is free beside weights and states that activations may take
LEAST_TOKENS = 2048  # of a pass: activations are recomputed where fewer would fit
PROCESSOR_BUDGET = 8192  # tokens of a pass on a processor
PROCESSOR_PRICE = 256  # of a pass on a processor, in tokens
SATURATING_WORK = 4e12  # parameters × tokens whose arithmetic outlasts a pass's kernel launches
PASSES_IN_FLIGHT = 4  # passes that the lanes of a step fill


def make_plan(
    workload: Workload, *, memory: int | None = None, token_budget: int | None = None
) -> PassPlan:
    """Choose the plan from sizes alone, so that the same run is divided the same way every time.

    ``memory`` is the accelerator's in bytes, less the weights; None for a processor. ``token_budget`` is the user's.

    A pass keeps an accelerator busy when its arithmetic (4 operations per parameter and token: forward, and the input
    gradient) outlasts its kernel launches, some tens of milliseconds: about 4e12 / parameters tokens, and never fewer
    than 4,096. A pass may have two and a half times as many, since two passes of half a step's rows are slower, where
    memory holds the lanes' states and the activations beside them. Where fewer than 2,048 tokens would fit, activations
    are recomputed. A processor has caches instead: some thousands of tokens.
    """
    if memory is None:
        budget = token_budget or PROCESSOR_BUDGET
        slots = _count_lanes_in_flight(workload, budget)
        return PassPlan(slots, budget, pass_price=PROCESSOR_PRICE)
    parameters = max(1, workload.parameters)
    saturating_tokens = int(min(65536, max(4096, SATURATING_WORK / parameters)))
    largest_budget = 5 * saturating_tokens // 2
    # what launching a pass costs, in tokens' worth of arithmetic: measured on an H200 as about 7,800 for a model
    # of 410M parameters and 1,400 for one of 8B; a power law between and beyond
    busy_share = min(1.0, SATURATING_WORK / saturating_tokens / workload.parameters)
    pass_price = round(0.8 * saturating_tokens * busy_share**0.4)
    most_lanes = workload.count_fitting_lanes(memory)
    slots = min(most_lanes, _count_lanes_in_flight(workload, token_budget or largest_budget))
    free_bytes = memory - (slots + 1) * workload.lane_bytes
    fitting_tokens = int(ACTIVATION_SHARE * free_bytes / max(1, workload.token_bytes))
    recomputes = fitting_tokens < LEAST_TOKENS
    if token_budget:
        budget = token_budget
    elif recomputes:
        budget = largest_budget
    else:
        budget = min(largest_budget, fitting_tokens)
    slots = min(most_lanes, _count_lanes_in_flight(workload, budget))
    return PassPlan(slots, budget, pass_price, checkpointing=recomputes)


def _count_lanes_in_flight(workload: Workload, budget: int) -> int:
    """Return how many lanes train at once: as many as fill four passes with a step."""
    step_tokens = max(1.0, workload.tokens_per_step)
    in_flight = max(1, round(PASSES_IN_FLIGHT * budget / step_tokens))
    return min(workload.lanes, in_flight)


def estimate_token_bytes(config: object, element_bytes: int) -> int:
    """Estimate from a model's config the bytes of activations that a token keeps until its gradient comes.

    Each layer keeps norms in float32, attention and the gated product.
    """
    width = int(getattr(config, "hidden_size", 0) or 1024)
    inner = (
        getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    )
    layers = int(getattr(config, "num_hidden_layers", 0) or 24)
    inner = max(inner) if isinstance(inner, list | tuple) else int(inner)
    return layers * (8 * width + element_bytes * (6 * width + 4 * inner))


def choose_padded_passes(
    lengths: Sequence[int] | npt.NDArray[np.int64], pass_plan: PassPlan
) -> list[tuple[npt.NDArray[np.int64], int]]:
    """Divide rows, given by their lengths, into padded passes: for each, the rows' numbers and the padded length.

    Rows of similar length share a pass. Within a pass they keep their order.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    sizes, counts = np.unique(lengths, return_counts=True)
    passes = []
    for low, high in _find_best_cuts(sizes, counts, pass_plan):
        longest = int(sizes[high - 1])
        rows = np.flatnonzero((lengths >= sizes[low]) & (lengths <= longest))
        pass_count = int(_count_passes(np.array(len(rows)), longest, pass_plan.token_budget))
        if pass_count == 1:
            passes.append((rows, longest))
            continue
        by_length = rows[np.argsort(lengths[rows], kind="stable")]
        for pass_rows in np.array_split(by_length, pass_count):
            passes.append((np.sort(pass_rows), int(lengths[pass_rows].max())))
    return passes


def _count_passes(
    rows: npt.NDArray[np.int64], length: int, token_budget: int
) -> npt.NDArray[np.int64]:
    """Return how many passes are needed for each of some numbers of rows, all of one length."""
    rows_per_pass = max(1, token_budget // length)
    return -(-rows // rows_per_pass)


def _find_best_cuts(
    sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], pass_plan: PassPlan
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ``sizes`` that share passes, as (first, one past the last), the longest rows first.

    ``sizes`` are the different lengths of rows, ascending, and ``counts`` how many rows have each. The ranges are those
    with the least padded tokens + price · passes, found by dynamic programming over the ranges' ends.
    """
    size_count = len(sizes)
    rows_below = np.concatenate([[0], np.cumsum(counts)])
    least_cost = np.zeros(size_count + 1)  # of the rows below each size
    best_low = [0] * (size_count + 1)  # where the last of their ranges begins
    for high in range(1, size_count + 1):
        length = int(sizes[high - 1])
        rows = rows_below[high] - rows_below[:high]
        passes = _count_passes(rows, length, pass_plan.token_budget)
        cost = least_cost[:high] + rows * length + pass_plan.pass_price * passes
        best_low[high] = int(cost.argmin())
        least_cost[high] = cost[best_low[high]]
    high = size_count
    while high:
        yield best_low[high], high
        high = best_low[high]


PaddedRows = tuple[list[TrainingRow], int]  # rows of a pass, and the length they are padded to


def divide_rows(
    rows: Sequence[TrainingRow], pass_plan: PassPlan, training_form: TrainingForm
) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes: of all lanes, of one lane or of one row, as the form asks."""
    if training_form is TrainingForm.ONE_ROW:
        return [([row], len(row.ids)) for row in rows]
    if training_form is TrainingForm.ONE_LANE:
        passes = divide_into_lane_passes(rows, pass_plan)
    else:
        passes = divide_into_padded_passes(rows, pass_plan)
    check_every_row_once(rows, [pass_rows for pass_rows, _ in passes])
    return passes


def check_every_row_once(
    rows: Sequence[TrainingRow], passes: Sequence[Sequence[TrainingRow]]
) -> None:
    """Raise an error unless the passes of a step have each of its rows exactly once."""
    rows_in_passes = [id(row) for row in itertools.chain.from_iterable(passes)]
    if sorted(rows_in_passes) != sorted(map(id, rows)):
        raise TuningError(
            f"the {len(passes)} passes of a step do not have each of its {len(rows)} rows once",
            hint="this is an error in Potentia: please report it with the model and the task",
        )


def divide_into_padded_passes(rows: Sequence[TrainingRow], pass_plan: PassPlan) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes, whichever lanes they are of."""
    passes: list[PaddedRows] = []
    for row_numbers, length in choose_padded_passes([len(row.ids) for row in rows], pass_plan):
        passes.append(([rows[number] for number in row_numbers], length))
    return passes


def divide_into_lane_passes(rows: Sequence[TrainingRow], pass_plan: PassPlan) -> list[PaddedRows]:
    """Divide the rows of a step into padded passes of one lane each."""
    passes: list[PaddedRows] = []
    for slot in dict.fromkeys(row.slot for row in rows):
        lane_rows = [row for row in rows if row.slot == slot]
        passes += divide_into_padded_passes(lane_rows, pass_plan)
    return passes


def divide_into_packed_passes(
    rows: Sequence[TrainingRow], pass_plan: PassPlan
) -> list[list[TrainingRow]]:
    """Divide the rows of a step, in their order, into packed passes of about the same number of tokens."""
    ends = np.cumsum([len(row.ids) for row in rows])
    total_tokens = int(ends[-1])
    pass_count = math.ceil(total_tokens / pass_plan.token_budget)
    pass_numbers = np.minimum((ends - 1) * pass_count // total_tokens, pass_count - 1)
    passes: list[list[TrainingRow]] = [[] for _ in range(pass_count)]
    for row, pass_number in zip(rows, pass_numbers.tolist(), strict=True):
        passes[pass_number].append(row)
    return [pass_rows for pass_rows in passes if pass_rows]  # a long row may leave a pass empty


MEMORY_HINT = "lower max_tokens, or tune on a device with more memory"


def row_too_long_error(rows: Sequence[TrainingRow], hint: str) -> TuningError:
    """Return the error for a step whose longest row does not fit in memory even by itself."""
    longest = max(len(row.ids) for row in rows)
    return TuningError(f"one example of {longest} tokens does not fit in memory", hint=hint)

"""One step of training as passes: rows of all lanes gathered, packed, run forward and backward, gradients added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from potentia.engine.models.device_layout import find_blocks, pinned
from potentia.engine.models.split_model import SplitModel, computing
from potentia.engine.operations.dropout import token_keys
from potentia.engine.proof.reference import reference_gradients
from potentia.engine.training.adapters import AdapterBank
from potentia.engine.training.schedule import Lesson
from potentia.errors import TuningError


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
    most = 5 * saturating // 2
    # what launching a pass costs, in tokens' worth of arithmetic: measured on an H200 as about 7,800 for a model
    # of 410M parameters and 1,400 for one of 8B; a power law between and beyond
    price = round(0.8 * saturating * min(1.0, 4e12 / saturating / workload.parameters) ** 0.4)
    most_lanes = workload.most_lanes_within(memory)
    slots = min(most_lanes, _lanes_in_flight(workload, token_budget or most))
    room = memory - (slots + 1) * workload.lane_bytes
    fitting = int(0.6 * room / max(1, workload.token_bytes))
    recompute = fitting < LEAST_TOKENS
    budget = token_budget or (most if recompute else min(most, fitting))
    slots = min(most_lanes, _lanes_in_flight(workload, budget))
    return PassPlan(slots, budget, price, recompute)


def _lanes_in_flight(workload: Workload, budget: int) -> int:
    """Return how many lanes share passes: those of four passes."""
    in_flight = max(1, round(4 * budget / max(1.0, workload.tokens_per_step)))
    return min(workload.lanes, in_flight)


def token_bytes(config: Any, item: int) -> int:
    """Estimate the activations kept per token, layer by layer: norms in fp32, attention, the gated product."""
    width = int(getattr(config, "hidden_size", 0) or 1024)
    inner = (
        getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    )
    layers = int(getattr(config, "num_hidden_layers", 0) or 24)
    inner = max(inner) if isinstance(inner, list | tuple) else int(inner)
    return layers * (8 * width + item * (6 * width + 4 * inner))


def pack(
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


# the forms of training: long rows of all lanes through layers written out by hand or the model's own; or the model's
# own layers on padded rows, of all lanes, of one lane, or each by itself
HAND, LONG = "hand-written layers", "long rows"
SHARED, LANE, ROW = "shared passes", "one lane a pass", "one row a pass"


@dataclass(frozen=True)
class Batch:
    """One pass on the device: rows padded to one length (R, T)."""

    ids: Tensor
    owners: Tensor  # of each row
    keys: Tensor | None  # dropout key of each token
    positions: Tensor  # into the flattened tokens
    targets: Tensor
    target_owners: Tensor
    weights: Tensor


def assemble(rows: Sequence[Lesson], length: int, device: torch.device, dropout: bool) -> Batch:
    """Lay rows out as a right-padded batch, with the positions whose next token is a target."""
    count = len(rows)
    ids = np.zeros((count, length), np.int64)
    lengths = np.array([len(row.ids) for row in rows])
    firsts, owners, seeds, steps, order = (
        np.array([getattr(row, name) for row in rows])
        for name in ("first_target", "slot", "seed", "step", "place")
    )
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = row.ids
    columns = np.arange(length)
    who, where = np.nonzero((columns >= firsts[:, None]) & (columns < lengths[:, None]))
    weights = np.fromiter((row.weight for row in rows), np.float32, count)[who]
    arrays = [
        ids.ravel(),
        owners,
        who * length + where - 1,
        ids[who, where],
        owners[who],
    ]  # sent in one transfer
    sent = torch.split(to_device(np.concatenate(arrays), device), [array.size for array in arrays])
    tokens, whose, positions, targets, target_owners = sent
    drawn = token_keys(seeds[:, None], steps[:, None], order[:, None], columns) if dropout else None
    keys = to_device(drawn, device) if drawn is not None else None
    tokens = tokens.view(count, length)
    return Batch(tokens, whose, keys, positions, targets, target_owners, to_device(weights, device))


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    on_gpu = device.type == "cuda"
    return (
        pinned(values).to(device, non_blocking=True)
        if on_gpu
        else torch.from_numpy(values).to(device)
    )


def send(values: npt.NDArray[Any], into: Tensor) -> None:
    """Copy an array into a tensor without waiting for the device; torch keeps the pinned copy until it has arrived."""
    into.copy_(pinned(values) if into.is_cuda else torch.from_numpy(values), non_blocking=True)


def run_step(
    split: SplitModel, bank: AdapterBank, rows: Sequence[Lesson], plan: PassPlan, form: str = SHARED
) -> Tensor:
    """Add the gradients of one step of every lane into the bank; returns each slot's loss (mean over its targets).

    Rows must come slot by slot. Within a pass they keep that order, so a lane's gradients are added in one fixed order.
    """
    if form == ROW:
        with recomputing(split.model, plan.checkpointing):
            losses, found = reference_gradients(split.model, bank, rows)
        bank.grads += found
        return losses
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    dropout, alone = bank.lora.dropout > 0, form != SHARED
    with usual_attention(bank.device), recomputing(split.model, plan.checkpointing):
        for chosen, length in divided(rows, plan, form):
            batch = assemble(chosen, length, bank.device, dropout)
            with bank.training_rows(batch.owners, batch.keys, alone=alone):
                values = backpropagate(split, batch, whole=alone)
            losses.index_add_(0, batch.target_owners, values * batch.weights)
    return losses


def divided(rows: Sequence[Lesson], plan: PassPlan, form: str) -> list[tuple[list[Lesson], int]]:
    """Divide the rows of a step into passes as a form wants them: of all lanes, of one lane, or each by itself."""
    if form == ROW:
        return [([row], len(row.ids)) for row in rows]
    if form == LANE:
        lanes = [
            [row for row in rows if row.slot == slot]
            for slot in dict.fromkeys(row.slot for row in rows)
        ]
        return [one for lane in lanes for one in cut(lane, plan)]
    return cut(rows, plan)


def cut(rows: Sequence[Lesson], plan: PassPlan) -> list[tuple[list[Lesson], int]]:
    """Divide rows into padded passes: the rows of each, and the length that they are padded to."""
    return [
        ([rows[i] for i in chosen], length)
        for chosen, length in pack([len(row.ids) for row in rows], plan)
    ]


def cut_end_to_end(rows: Sequence[Lesson], plan: PassPlan) -> list[list[Lesson]]:
    """Divide rows into long rows of about one size."""
    ends = np.cumsum([len(row.ids) for row in rows])
    passes = -(-int(ends[-1]) // plan.token_budget)
    which = np.minimum((ends - 1) * passes // int(ends[-1]), passes - 1)
    parts = (
        [rows[i] for i in np.flatnonzero(which == number).tolist()] for number in range(passes)
    )
    return [part for part in parts if part]


def backpropagate(split: SplitModel, batch: Batch, *, whole: bool = False) -> Tensor:
    """Run one pass forward and backward; returns the loss at each target.

    Without ``whole`` the head runs at targets alone; with it the model's own forward makes all logits.
    """
    if not whole:
        return split.backward(
            split.hidden(batch.ids), batch.positions, batch.targets, batch.weights
        )
    values = own_losses(split.model, batch)
    torch.autograd.backward((values * batch.weights).sum())
    return values.detach()


def own_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss at each target by the model's own forward."""
    logits = model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)
    picked = logits.index_select(0, batch.positions).float()
    return nn.functional.cross_entropy(picked, batch.targets, reduction="none")


LARGER = "lower max_tokens, or tune on a device with more memory"


def too_long(rows: Sequence[Lesson], hint: str) -> TuningError:
    """Return the error of a row that fits in no memory."""
    return TuningError(
        f"one example of {max(len(row.ids) for row in rows)} tokens does not fit in memory",
        hint=hint,
    )


def usual_attention(device: torch.device) -> AbstractContextManager[None]:
    """Leave attention aside that compiles a plan for every new shape: lanes bring new shapes all the time."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )


def recomputing(model: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """Recompute each block in the backward pass instead of keeping its activations.

    The blocks' forwards are wrapped, and their modes left alone: a block in training mode would drop out again.
    """
    if not wanted:
        return nullcontext()
    from transformers.modeling_layers import GradientCheckpointingLayer

    # those that transformers would recompute
    blocks = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    again = partial(partial, checkpoint, use_reentrant=False, preserve_rng_state=False)
    return computing({block: again(block.forward) for block in blocks or find_blocks(model)})

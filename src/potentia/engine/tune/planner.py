"""Packing: which rows of which lanes share a pass, and how many lanes train at a time.

The rows of one step, those of all active lanes, are sorted by length and cut into passes of one padded length each.
More passes waste fewer padded tokens but cost a fixed time each (kernel launches); the cut that minimises their sum
is found by dynamic programming over the distinct lengths. A pass never exceeds the token budget; the effective batch
of a lane is untouched by any of this, because gradients of all passes of a step are added before the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class PassPlan:
    """How a run is packed: lanes in flight, padded tokens per pass, and the price of a pass in tokens.

    Where launches are ``overlapped`` with the device's work, a step takes the longer of the two, not their sum. Rows on
    two sides of a length in ``divides`` never share a pass.
    """

    slots: int
    token_budget: int
    pass_price: int
    overlapped: bool = False
    checkpointing: bool = False
    divides: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: dict[str, Any]) -> PassPlan:
        """Read a plan back from a snapshot."""
        return cls(**{**record, "divides": tuple(record.get("divides", ()))})

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the price to try: launches hidden behind the device's work should weigh less."""
        return (0.02, 0.06, 0.15, 0.4, 1.0) if self.overlapped else (1.0,)

    def smaller(self) -> PassPlan | None:
        """Say what to try when memory runs out: half the tokens, then recomputation, then nothing (None)."""
        if self.token_budget > 64:
            return replace(self, token_budget=max(64, self.token_budget // 2))
        if not self.checkpointing:
            return replace(self, checkpointing=True)
        return None


def make_plan(
    *,
    lanes: int,
    tokens_per_step: float,
    parameters: int,
    memory: int | None = None,
    token_bytes: int = 0,
    token_budget: int | None = None,
) -> PassPlan:
    """Choose the packing from sizes alone, so that the same run is packed the same way every time.

    A pass saturates an accelerator when its arithmetic (4 operations per parameter and token: forward, and the input
    gradient) outlasts its kernel launches, some tens of milliseconds: about 4e12 / parameters tokens, and never fewer
    than 4,096. Twice that many may share a pass, where ``memory`` (the accelerator's, less the weights; None for a
    processor) holds their activations; activations are recomputed where fewer than 2,048 tokens would fit. A processor
    has caches instead: some thousands of tokens.
    """
    recompute = False
    if memory is not None:
        saturating = int(min(65536, max(4096, 4e12 / max(1, parameters))))
        fitting = int(0.6 * memory / max(1, token_bytes))
        recompute = fitting < 2048
        budget = 2 * saturating if recompute else min(2 * saturating, fitting)
        # what launching a pass costs, in tokens' worth of arithmetic: measured on an H200 as about 7,800 for a model
        # of 410M parameters and 1,400 for one of 8B; a power law between and beyond
        price = round(0.8 * saturating * min(1.0, 4e12 / saturating / parameters) ** 0.4)
    else:
        budget, price = 8192, 256
    budget = token_budget or budget
    in_flight = max(1, round(4 * budget / max(1.0, tokens_per_step)))
    return PassPlan(
        slots=min(lanes, in_flight),
        token_budget=budget,
        pass_price=price,
        overlapped=memory is not None,
        checkpointing=recompute,
    )


def token_bytes(config: Any, item: int) -> int:
    """Estimate the activations kept per token, layer by layer: norms in fp32, attention, the gated product."""
    width = int(getattr(config, "hidden_size", 0) or 1024)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    layers = int(getattr(config, "num_hidden_layers", 0) or 24)
    inner = max(inner) if isinstance(inner, list | tuple) else int(inner)
    return layers * (8 * width + item * (6 * width + 4 * inner))


def pack(lengths: Sequence[int] | npt.NDArray[np.int64], plan: PassPlan) -> list[tuple[npt.NDArray[np.int64], int]]:
    """Cut rows into passes: for each, the row numbers (in their given order) and the padded length."""
    lengths = np.asarray(lengths, dtype=np.int64)
    sizes, counts = np.unique(lengths, return_counts=True)
    tried = [_best_cuts(sizes, counts, plan.token_budget, plan.pass_price * share) for share in plan.shares]
    _, _, cuts = min(tried, key=lambda found: _time(found[0], found[1], plan))
    passes = []
    for low, high in cuts:
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


def _time(passes: float, tokens: float, plan: PassPlan) -> float:
    launching = passes * plan.pass_price
    return max(launching, tokens) + 0.05 * (launching + tokens) if plan.overlapped else launching + tokens


def _pieces(rows: Any, length: int, budget: int) -> Any:
    return -(-rows // max(1, budget // length))


def _best_cuts(
    sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], budget: int, price: float
) -> tuple[float, float, list[tuple[int, int]]]:
    """Return the number of passes, the padded tokens and the cuts that minimise tokens + price · passes."""
    n = len(sizes)
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(n + 1)
    came = [0] * (n + 1)
    for high in range(1, n + 1):
        length = int(sizes[high - 1])
        rows = cumulative[high] - cumulative[:high]
        cost = best[:high] + rows * length + price * _pieces(rows, length, budget)
        came[high] = int(cost.argmin())
        best[high] = cost[came[high]]
    cuts, high = [], n
    passes = tokens = 0.0
    while high:
        low = came[high]
        rows = cumulative[high] - cumulative[low]
        passes += _pieces(rows, int(sizes[high - 1]), budget)
        tokens += rows * sizes[high - 1]
        cuts.append((low, high))
        high = low
    return passes, tokens, cuts[::-1]

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

_FEW = 24  # distinct lengths that are told apart one by one; more are rounded up to _GRAIN
_GRAIN = 8


@dataclass(frozen=True)
class Plan:
    """How a run is packed: lanes in flight, padded tokens per pass, and the price of a pass in tokens."""

    slots: int
    token_budget: int
    pass_price: int
    checkpointing: bool = False

    def smaller(self) -> Plan | None:
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
) -> Plan:
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
        price = saturating // 4
    else:
        budget, price = 8192, 256
    budget = token_budget or budget
    in_flight = max(1, round(4 * budget / max(1.0, tokens_per_step)))
    return Plan(slots=min(lanes, in_flight), token_budget=budget, pass_price=price, checkpointing=recompute)


def token_bytes(config: Any, item: int) -> int:
    """Estimate the activations kept per token, layer by layer: norms in fp32, attention, the gated product."""
    width = int(getattr(config, "hidden_size", 0) or 1024)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    layers = int(getattr(config, "num_hidden_layers", 0) or 24)
    inner = max(inner) if isinstance(inner, list | tuple) else int(inner)
    return layers * (8 * width + item * (6 * width + 4 * inner))


def pack(lengths: Sequence[int] | npt.NDArray[np.int64], plan: Plan) -> list[tuple[npt.NDArray[np.int64], int]]:
    """Cut rows into passes: for each, the row numbers (in their given order) and the padded length."""
    lengths = np.asarray(lengths, dtype=np.int64)
    grain = 1 if len(np.unique(lengths)) <= _FEW else _GRAIN
    padded = -(-lengths // grain) * grain
    sizes, counts = np.unique(padded, return_counts=True)
    cuts = _best_cuts(sizes, counts, plan)
    passes = []
    for low, high in cuts:
        top = int(sizes[high - 1])
        rows = np.flatnonzero((padded >= sizes[low]) & (padded <= top))
        longest = int(lengths[rows].max())
        pieces = _pieces(len(rows), top, plan.token_budget)
        if pieces == 1:
            passes.append((rows, longest))
            continue
        by_length = rows[np.argsort(lengths[rows], kind="stable")]
        for part in np.array_split(by_length, pieces):
            passes.append((np.sort(part), int(lengths[part].max())))
    return passes


def _pieces(rows: int, length: int, budget: int) -> int:
    per_pass = max(1, budget // length)
    return -(-rows // per_pass)


def _best_cuts(sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], plan: Plan) -> list[tuple[int, int]]:
    n = len(sizes)
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    best = [0.0] + [float("inf")] * n
    came = [0] * (n + 1)
    for high in range(1, n + 1):
        length = int(sizes[high - 1])
        for low in range(high):
            rows = int(cumulative[high] - cumulative[low])
            cost = best[low] + rows * length + plan.pass_price * _pieces(rows, length, plan.token_budget)
            if cost < best[high]:
                best[high], came[high] = cost, low
    cuts, high = [], n
    while high:
        cuts.append((came[high], high))
        high = came[high]
    return cuts[::-1]

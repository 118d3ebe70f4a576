"""Padding-free passes: the rows of a pass laid end to end, and attention that keeps them apart.

All of a model but attention treats tokens one by one, so rows of any lengths can stand in one long row. Attention is
run on the rows spread out into a few groups of similar length, padded within a group only, and collected again: it is
a small part of the arithmetic, and the only part that sees padding. Each lane begins at a multiple of :data:`STRETCH`
tokens, so that the long row divides into stretches of one lane each, and adapters apply to stretches as they do to
rows.

Whether a model can be run so is found by trying: its hidden states must be those of the padded layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.split import SplitModel
from potentia.engine.tune.planner import PassPlan, pack
from potentia.engine.windows import horizons

STRETCH = 32
_NAME = "potentia_packed"
_GROUPS = PassPlan(slots=1, token_budget=1 << 40, pass_price=4096)  # a group costs launches in every layer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """Where tokens of a long row go: spread by ``index`` into groups of (rows, length), collected by ``inverse``."""

    index: Tensor  # (sum of rows × length,)
    inverse: Tensor  # (N,)
    groups: tuple[tuple[int, int], ...]


def spread_plan(lengths: Sequence[int]) -> tuple[Ints, Ints, tuple[tuple[int, int], ...]]:
    """Plan the groups for rows of these lengths, laid end to end: index, inverse and shapes, as in :class:`Packing`."""
    sizes = np.asarray(lengths, np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    index, groups = [], []
    inverse = np.zeros(int(starts[-1]), np.int64)
    placed = 0
    for rows, length in pack(sizes, _GROUPS):
        offsets = np.minimum(np.arange(length), sizes[rows][:, None] - 1)  # padding repeats the row's last token
        spread = starts[rows][:, None] + offsets
        real = np.arange(length) < sizes[rows][:, None]
        inverse[spread[real]] = placed + np.flatnonzero(real.ravel())
        index.append(spread.ravel())
        groups.append((len(rows), length))
        placed += spread.size
    return np.concatenate(index), inverse, tuple(groups)


class _Spread(torch.autograd.Function):
    """Tokens (N, …) to padded places. Padding gets no gradient under a causal mask, so the way back is a gather too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return x.index_select(0, packing.index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.packing.inverse), None


class _Collect(torch.autograd.Function):
    """Padded places back to tokens; on the way back padding gets zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return x.index_select(0, packing.inverse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        packing = ctx.packing
        out = grads[0].new_zeros(packing.index.shape[0], *grads[0].shape[1:])
        return out.index_copy_(0, packing.inverse, grads[0]), None


class _Current:
    packing: Packing | None = None


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend within each row of the packing under way; ``query`` (1, H, N, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    packing = _Current.packing
    assert packing is not None
    if options.get("softcap") is not None or options.get("s_aux") is not None:  # small scores would not show it
        raise NotImplementedError("attention with soft caps or sinks")
    window = options.get("sliding_window")
    options = {} if options.get("scaling") is None else {"scaling": options["scaling"]}
    spread: list[Tensor] = [
        _Spread.apply(part.transpose(1, 2).squeeze(0), packing)  # type: ignore[no-untyped-call]
        for part in (query, key, value)
    ]
    outs, begin = [], 0
    for rows, length in packing.groups:
        span = slice(begin, begin + rows * length)
        begin += rows * length
        q, k, v = (part[span].view(rows, length, *part.shape[1:]).transpose(1, 2) for part in spread)
        mask = None
        if window is not None and length > window:
            places = torch.arange(length, device=q.device)
            back = places[:, None] - places
            mask = ((back >= 0) & (back < window))[None, None]
        out, _ = sdpa_attention_forward(module, q, k, v, mask, is_causal=True, **options)
        outs.append(out.reshape(rows * length, *out.shape[2:]))
    collected: Tensor = _Collect.apply(torch.cat(outs) if len(outs) > 1 else outs[0], packing)  # type: ignore[no-untyped-call]
    return collected.unsqueeze(0), None


@contextmanager
def packed_attention(model: nn.Module, packing: Packing) -> Iterator[None]:
    """Let the model attend within the rows of ``packing`` inside the block."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attend)
    configs = {id(c): c for module in model.modules() if (c := getattr(module, "config", None)) is not None}
    before = [(config, getattr(config, "_attn_implementation", None)) for config in configs.values()]
    _Current.packing = packing
    try:
        for config, _ in before:
            config._attn_implementation = _NAME
        yield
    finally:
        _Current.packing = None
        for config, name in before:
            config._attn_implementation = name


def can_pack(split: SplitModel, longest: int) -> bool:
    """Try both layouts on random rows, some past every window that rows can cross; say whether they agree."""
    reached = [min(longest, 2 * horizon) for horizon in horizons(split.model.config, longest)]
    return all(_agrees(split, [7, 3, length, length - 2]) for length in (12, *reached))


@torch.no_grad()
def _agrees(split: SplitModel, lengths: list[int]) -> bool:
    """Compare the hidden states of both layouts, whole rows and their last quarters, to the dtype's rounding."""
    first = next(split.model.parameters())
    stream = np.random.default_rng(0)
    ids = torch.from_numpy(stream.integers(0, split.vocabulary, (len(lengths), max(lengths)))).to(first.device)
    index, inverse, groups = spread_plan(lengths)
    packing = Packing(torch.from_numpy(index).to(first.device), torch.from_numpy(inverse).to(first.device), groups)
    rows = torch.cat([ids[i, :n] for i, n in enumerate(lengths)]).unsqueeze(0)
    places = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0).to(first.device)
    try:
        wanted = split.hidden(ids)
        with packed_attention(split.model, packing):
            found = split.hidden(rows, places)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError):
        return False
    most = 1e-4 if first.dtype == torch.float32 else 2e-2
    for row, ours in enumerate(torch.split(found[0].float(), lengths)):
        own = wanted[row, : lengths[row]].float()
        for part in (slice(None), slice(3 * lengths[row] // 4, None)):
            if not float((ours[part] - own[part]).norm()) < most * float(own[part].norm()):
                return False
    return True

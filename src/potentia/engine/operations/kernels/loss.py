"""Cross-entropy and its gradient in two readings of the logits, whose rounding alone is the model's dtype."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _loss(logits_ptr, targets_ptr, weights_ptr, values_ptr, slope_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    weight = tl.load(weights_ptr + row)
    most = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * width + at, mask=at < width, other=-1e30).to(tl.float32)
        new = tl.maximum(most, x)
        total = total * tl.exp(most - new) + tl.where(at < width, tl.exp(x - new), 0.0)
        most = new
    top = tl.max(most, axis=0)
    size = tl.sum(total * tl.exp(most - top), axis=0)
    hit = tl.load(logits_ptr + row * width + target).to(tl.float32)
    tl.store(values_ptr + row, top + tl.log(size) - hit)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * width + at, mask=at < width, other=-1e30).to(tl.float32)
        share = tl.exp(x - top) / size
        slope = (share - tl.where(at == target, 1.0, 0.0)) * weight
        tl.store(slope_ptr + row * width + at, slope.to(slope_ptr.dtype.element_ty), mask=at < width)


def loss(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross-entropies (N,) of logits (N, V) at the targets, and the gradient of their weighted sum."""
    logits = logits.contiguous()
    rows, width = logits.shape
    values, slope = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    block = min(4096, triton.next_power_of_2(width))
    _loss[(rows,)](logits, targets, weights, values, slope, width, BLOCK=block, num_warps=8)
    return values, slope

"""The gated product silu(gate) · up of a feed-forward block, and its gradient in place."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gate(both_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(both_ptr + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(both_ptr + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (g * tl.sigmoid(g) * u).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate_back(both_ptr, slope_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate_at, up_at = both_ptr + row * 2 * width + at, both_ptr + row * 2 * width + width + at
    g = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up_at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(slope_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(g)
    silu = g * open_
    tl.store(gate_at, (slope * u * (open_ + silu * (1.0 - open_))).to(both_ptr.dtype.element_ty), mask=inside)
    tl.store(up_at, (slope * silu).to(both_ptr.dtype.element_ty), mask=inside)


def gate(both: Tensor) -> Tensor:
    """Return silu(g) · u (N, f) of ``both`` (N, 2f), g in its first half and u in its second."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    _gate[(rows, triton.cdiv(width, BLOCK))](both, out, width, BLOCK=BLOCK)
    return out


def gate_back_(both: Tensor, slope: Tensor) -> Tensor:
    """Replace ``both`` by its gradient, given the product's."""
    rows, width = slope.shape
    _gate_back[(rows, triton.cdiv(width, BLOCK))](both, slope, width, BLOCK=BLOCK)
    return both

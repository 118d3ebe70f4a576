"""Root-mean-square norms, with the residual sum before them and the residual gradient after them in the same pass."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(x_ptr, add_ptr, gain_ptr, sum_ptr, out_ptr, scale_ptr, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(add_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
        kept = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * width + at, kept, mask=inside)
        x = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    gain = tl.load(gain_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (x * scale * gain).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _norm_back(dy_ptr, x_ptr, gain_ptr, scale_ptr, add_ptr, out_ptr, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    gain = tl.load(gain_ptr + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(dy_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32) * gain
    scale = tl.load(scale_ptr + row)
    unit = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32) * scale
    along = tl.sum(slope * unit, axis=0) / width
    dx = (slope - unit * along) * scale
    if ADD:
        dx += tl.load(add_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, dx.to(out_ptr.dtype.element_ty), mask=inside)


def _sizes(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}


def norm(x: Tensor, gain: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm of rows (N, d) times the gain, and each row's factor."""
    rows, width = x.shape
    out, scale = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    _norm[(rows,)](x, x, gain, x, out, scale, width, epsilon, ADD=False, **_sizes(width))
    return out, scale


def add_norm(x: Tensor, add: Tensor, gain: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + add, its norm and its factors."""
    rows, width = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    _norm[(rows,)](x, add, gain, total, out, scale, width, epsilon, ADD=True, **_sizes(width))
    return total, out, scale


def norm_back(dy: Tensor, x: Tensor, gain: Tensor, scale: Tensor, add: Tensor | None) -> Tensor:
    """Return the gradient at a norm's input, plus ``add`` where given."""
    rows, width = x.shape
    out = torch.empty_like(x)
    other = dy if add is None else add
    _norm_back[(rows,)](dy, x, gain, scale, other, out, width, ADD=add is not None, **_sizes(width))
    return out

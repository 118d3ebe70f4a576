"""Rotary positions, turned in place: queries and keys of a token in one go."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(
    x_ptr, cos_ptr, sin_ptr, stride, angles, heads, HALF: tl.constexpr, HEADS: tl.constexpr, WIDE: tl.constexpr,
    BACK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDE)
    h = tl.arange(0, HEADS)
    cos = tl.load(cos_ptr + token * angles + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * angles + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    if BACK:
        sin = -sin
    inside = (h < heads)[:, None] & (d < HALF)[None, :]
    one_at = x_ptr + token * stride + h[:, None] * (2 * HALF) + d[None, :]
    one = tl.load(one_at, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(one_at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(one_at, (one * cos - two * sin).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(one_at + HALF, (two * cos + one * sin).to(x_ptr.dtype.element_ty), mask=inside)


def rotate_(x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Turn the first ``heads`` heads of ``x`` (N, …) by the tokens' angles (N, head), or back by them."""
    half = head // 2
    wide, most = triton.next_power_of_2(half), triton.next_power_of_2(heads)
    _rotate[(x.shape[0],)](
        x, cos, sin, x.stride(0), cos.stride(0), heads, HALF=half, HEADS=most, WIDE=wide, BACK=back,
        num_warps=max(1, min(8, most * wide // 256)),
    )  # fmt: skip
    return x

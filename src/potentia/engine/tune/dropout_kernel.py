"""The Triton form of :class:`~potentia.engine.tune.dropout.Dropout`: hash, mask, scale and add in one pass."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kernel(
    x_ptr, add_ptr, out_ptr, keys_ptr, layer_mix, width, threshold, scale, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0)
    base = token.to(tl.int64) * width
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    key = tl.load(keys_ptr + token).to(tl.uint32) * 2 + layer_mix.to(tl.uint32)
    h = (at >> 1).to(tl.uint32) ^ key
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    h = h ^ (h >> 16)
    half = tl.where((at & 1) == 1, h >> 16, h & 0xFFFF)
    # the signed 16-bit reading used by the tensor form: add 2^15 modulo 2^16
    draw = ((half + 32768) & 0xFFFF).to(tl.int32)
    x = tl.load(x_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(draw >= threshold, x * scale, 0.0)
    if ADD:
        y += tl.load(add_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + base + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def fused_drop(x: Tensor, keys: Tensor, layer: int, p: float, add: Tensor | None = None) -> Tensor:
    """Dropout of ``x`` (…, D) by the hash of token key, layer and element; plus ``add`` where given."""
    x = x.contiguous()
    width = x.shape[-1]
    out = torch.empty_like(x)
    mix = (layer * 0x9E3779B9) & 0xFFFFFFFF
    mix = mix - (1 << 32) if mix >= (1 << 31) else mix
    block = min(2048, triton.next_power_of_2(width))
    other = add.contiguous() if add is not None else x
    _kernel[(x.numel() // width, triton.cdiv(width, block))](
        x, other, out, keys, mix, width, round(p * 65536), 1.0 / (1.0 - p), ADD=add is not None, BLOCK=block
    )
    return out

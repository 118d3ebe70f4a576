"""What is done element by element or row by row: norms, rotation, gates, losses, updates, dropout."""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations import Gain
from potentia.engine.operations.kernels.launch import launch
from potentia.engine.operations.plain import GELU

BLOCK = 1024


# ---- root-mean-square norms, with the residual sum before them and the residual gradient after them in one pass ----


@triton.jit
def _norm(
    x_ptr,
    add_ptr,
    gain_ptr,
    sum_ptr,
    out_ptr,
    scale_ptr,
    stride,
    out_stride,
    parts,
    width,
    eps,
    offset,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    here = (row // parts) * stride + (row % parts) * width + at
    x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(add_ptr + here, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + here, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    gain = tl.load(gain_ptr + at, mask=inside, other=0.0).to(tl.float32) + offset
    out_at = (row // parts) * out_stride + (row % parts) * width + at
    tl.store(out_ptr + out_at, (x * scale * gain).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _norm_back(
    dy_ptr,
    x_ptr,
    gain_ptr,
    scale_ptr,
    add_ptr,
    out_ptr,
    dy_stride,
    stride,
    out_stride,
    parts,
    width,
    offset,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    token, column = row // parts, (row % parts) * width + at
    gain = tl.load(gain_ptr + at, mask=inside, other=0.0).to(tl.float32) + offset
    slope = (
        tl.load(dy_ptr + token * dy_stride + column, mask=inside, other=0.0).to(tl.float32) * gain
    )
    scale = tl.load(scale_ptr + row)
    unit = tl.load(x_ptr + token * stride + column, mask=inside, other=0.0).to(tl.float32) * scale
    along = tl.sum(slope * unit, axis=0) / width
    dx = (slope - unit * along) * scale
    if ADD:
        dx += tl.load(add_ptr + token * out_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * out_stride + column, dx.to(out_ptr.dtype.element_ty), mask=inside)


def _sizes(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}


def norm(x: Tensor, gain: Gain, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    width = gain.weight.shape[0]
    rows, parts = x.shape[0], x.shape[1] // width
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if into is None else into
    scale = torch.empty(rows * parts, dtype=torch.float32, device=x.device)
    launch(
        _norm,
        (rows * parts,),
        x,
        x,
        gain.weight,
        x,
        out,
        scale,
        x.stride(0),
        out.stride(0),
        parts,
        width,
        gain.epsilon,
        gain.offset,
        ADD=False,
        **_sizes(width),
    )
    return out, scale


def add_norm(x: Tensor, add: Tensor, gain: Gain) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    launch(
        _norm,
        (rows,),
        x,
        add,
        gain.weight,
        total,
        out,
        scale,
        width,
        width,
        1,
        width,
        gain.epsilon,
        gain.offset,
        ADD=True,
        **_sizes(width),
    )
    return total, out, scale


def norm_back(
    dy: Tensor,
    x: Tensor,
    gain: Gain,
    scale: Tensor,
    add: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    width = gain.weight.shape[0]
    rows, parts = x.shape[0], x.shape[1] // width
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if into is None else into
    launch(
        _norm_back,
        (rows * parts,),
        dy,
        x,
        gain.weight,
        scale,
        dy if add is None else add,
        out,
        dy.stride(0),
        x.stride(0),
        out.stride(0),
        parts,
        width,
        gain.offset,
        ADD=add is not None,
        **_sizes(width),
    )
    return out


# ---- rotary positions, turned in place: queries and keys of a token in one go ----


@triton.jit
def _rotate(
    x_ptr,
    cos_ptr,
    sin_ptr,
    stride,
    angles,
    heads,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    BACK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDE)
    h = tl.arange(0, HEADS)
    cos = tl.load(cos_ptr + token * angles + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * angles + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    if BACK:
        sin = -sin
    inside = (h < heads)[:, None] & (d < HALF)[None, :]
    one_at = x_ptr + token * stride + h[:, None] * HEAD + d[None, :]
    first = tl.load(one_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(one_at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(one_at, (first * cos - second * sin).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(one_at + HALF, (second * cos + first * sin).to(x_ptr.dtype.element_ty), mask=inside)


def rotate_(
    x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False
) -> Tensor:
    half = min(head, cos.shape[1]) // 2  # numbers beyond the angles are not turned
    wide, head_block = triton.next_power_of_2(half), triton.next_power_of_2(heads)
    launch(
        _rotate,
        (x.shape[0],),
        x,
        cos,
        sin,
        x.stride(0),
        cos.stride(0),
        heads,
        HEAD=head,
        HALF=half,
        HEADS=head_block,
        WIDE=wide,
        BACK=back,
        num_warps=max(1, min(8, head_block * wide // 256)),
    )
    return x


# ---- the gated product silu(gate) · up, or gelu(gate) · up, of a feed-forward block, and its gradient in place ----


@triton.jit
def _gate(both_ptr, out_ptr, width, A: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(both_ptr + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(both_ptr + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    s = g
    if A > 0:
        s = A * (g + B * g * g * g)
    tl.store(
        out_ptr + row * width + at,
        (g * tl.sigmoid(s) * u).to(out_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def _gate_back(
    both_ptr,
    slope_ptr,
    width,
    A: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate_at, up_at = both_ptr + row * 2 * width + at, both_ptr + row * 2 * width + width + at
    g = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up_at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(slope_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    s = g
    if A > 0:
        s = A * (g + B * g * g * g)
    open_ = tl.sigmoid(s)
    gated = g * open_
    steep = gated * (1.0 - open_)
    if A > 0:
        steep *= A * (1.0 + 3.0 * B * g * g)
    tl.store(gate_at, (slope * u * (open_ + steep)).to(both_ptr.dtype.element_ty), mask=inside)
    tl.store(up_at, (slope * gated).to(both_ptr.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(
            slope_ptr + row * width + at, (gated * u).to(slope_ptr.dtype.element_ty), mask=inside
        )


def _kind(gelu: bool) -> dict[str, float]:
    a, b = GELU if gelu else (0, 0)
    return {"A": a, "B": b, "BLOCK": BLOCK}


def gate(both: Tensor, gelu: bool = False) -> Tensor:
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    launch(_gate, (rows, triton.cdiv(width, BLOCK)), both, out, width, **_kind(gelu))
    return out


def gate_back_(both: Tensor, slope: Tensor, gelu: bool = False, keep: bool = True) -> None:
    rows, width = slope.shape
    launch(
        _gate_back, (rows, triton.cdiv(width, BLOCK)), both, slope, width, **_kind(gelu), KEEP=keep
    )


# ---- cross-entropy and its gradient in two readings of the logits, whose rounding alone is the model's dtype ----


@triton.jit
def _loss(logits_ptr, targets_ptr, weights_ptr, values_ptr, slope_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    weight = tl.load(weights_ptr + row)
    maximum = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * width + at, mask=at < width, other=-1e30).to(tl.float32)
        new = tl.maximum(maximum, x)
        total = total * tl.exp(maximum - new) + tl.where(at < width, tl.exp(x - new), 0.0)
        maximum = new
    top = tl.max(maximum, axis=0)
    size = tl.sum(total * tl.exp(maximum - top), axis=0)
    hit = tl.load(logits_ptr + row * width + target).to(tl.float32)
    tl.store(values_ptr + row, top + tl.log(size) - hit)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * width + at, mask=at < width, other=-1e30).to(tl.float32)
        share = tl.exp(x - top) / size
        slope = (share - tl.where(at == target, 1.0, 0.0)) * weight
        tl.store(
            slope_ptr + row * width + at, slope.to(slope_ptr.dtype.element_ty), mask=at < width
        )


def loss(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.contiguous()
    rows, width = logits.shape
    values, slope = (
        torch.empty(rows, dtype=torch.float32, device=logits.device),
        torch.empty_like(logits),
    )
    block = min(4096, triton.next_power_of_2(width))
    launch(_loss, (rows,), logits, targets, weights, values, slope, width, BLOCK=block, num_warps=8)
    return values, slope


# ---- the step of AdamW of all lanes, each element of weights and moments read and written once ----


@triton.jit
def _update(
    weights_ptr,
    first_ptr,
    second_ptr,
    grads_ptr,
    work_ptr,
    factors_ptr,
    settings_ptr,
    norms_ptr,
    width,
    columns,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    spot = lane.to(tl.int64) * width + at
    norm = tl.load(norms_ptr + lane)
    g = tl.load(grads_ptr + spot, mask=inside, other=0.0)
    sound = (norm - norm) == 0.0  # not so for infinities and NaN
    mine = settings_ptr + lane * columns
    if (tl.load(mine + 9) != 0.0) & sound:
        keep, one_b1 = tl.load(mine + 1), tl.load(mine + 2)
        b2, one_b2 = tl.load(mine + 3), tl.load(mine + 4)
        size, root = tl.load(mine + 5), tl.load(mine + 6)
        eps, clip = tl.load(mine + 7), tl.load(mine + 8)
        g = g * tl.minimum(clip / (norm + 1e-6), 1.0)
        m = tl.load(first_ptr + spot, mask=inside, other=0.0)
        v = tl.load(second_ptr + spot, mask=inside, other=0.0)
        w = tl.load(weights_ptr + spot, mask=inside, other=0.0)
        m = m + (g - m) * one_b1
        v = v * b2 + g * g * one_b2
        w = w * keep - size * (m / (tl.sqrt(v) / root + eps))
        tl.store(first_ptr + spot, m, mask=inside)
        tl.store(second_ptr + spot, v, mask=inside)
        tl.store(weights_ptr + spot, w, mask=inside)
        factor = tl.load(factors_ptr + at, mask=inside, other=0.0)
        tl.store(work_ptr + spot, (w * factor).to(work_ptr.dtype.element_ty), mask=inside)


def update_(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    grads: Tensor,
    work: Tensor,
    factors: Tensor,
    settings: Tensor,
    norms: Tensor,
) -> None:
    rows, width = first.shape
    launch(
        _update,
        (triton.cdiv(width, BLOCK), rows),  # CUDA allows 65,535 blocks in the second dimension
        weights,
        first,
        second,
        grads,
        work,
        factors,
        settings,
        norms,
        width,
        settings.stride(0),
        BLOCK=BLOCK,
    )
    # not in the kernel: a store that waits for no load may overtake the load of another thread
    grads[:rows].zero_()


# ---- dropout as operations.dropout draws it: hash, mask, scale and add in one pass ----


@triton.jit
def draw(at, key):
    """The 16-bit draw of elements by their tokens' keys: a signed reading, so 2^15 is added modulo 2^16."""
    h = (at >> 1).to(tl.uint32) ^ key
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    h = h ^ (h >> 16)
    half = tl.where((at & 1) == 1, h >> 16, h & 0xFFFF)
    return ((half + 32768) & 0xFFFF).to(tl.int32)


@triton.jit
def _drop(
    x_ptr,
    add_ptr,
    out_ptr,
    keys_ptr,
    mix,
    width,
    threshold,
    scale,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    base = token.to(tl.int64) * width
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    key = tl.load(keys_ptr + token).to(tl.uint32) * 2 + mix.to(tl.uint32)
    x = tl.load(x_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(draw(at, key) >= threshold, x * scale, 0.0)
    if ADD:
        y += tl.load(add_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + base + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def fused_drop(x: Tensor, keys: Tensor, mix: int, p: float, add: Tensor | None = None) -> Tensor:
    """Dropout of ``x`` (…, D) by the hash of token key, layer and element; plus ``add`` where given."""
    x = x.contiguous()
    width = x.shape[-1]
    out = torch.empty_like(x)
    block = min(2048, triton.next_power_of_2(width))
    added = add.contiguous() if add is not None else x
    launch(
        _drop,
        (x.numel() // width, triton.cdiv(width, block)),
        x,
        added,
        out,
        keys,
        mix,
        width,
        round(p * 65536),
        1.0 / (1.0 - p),
        ADD=add is not None,
        BLOCK=block,
    )
    return out

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
from potentia.engine.operations.plain import GELU_CUBIC, GELU_SLOPE

# elements that a program treats at a time, where a row is cut into pieces
BLOCK = 1024


# ---- root-mean-square norms, with the residual sum before them and the residual gradient after them in one pass ----
#
# A token's row may hold several stretches that are normed each by itself, as the heads of queries: one program each.


@triton.jit
def _stretch_columns(program, stretches, width, offsets):
    """Return the columns of a program's stretch in its token's row."""
    return (program % stretches) * width + offsets


@triton.jit
def _load_gain(gain_ptr, offsets, exists, offset):
    """Load what a norm multiplies by, in float32: some models keep it less one."""
    return tl.load(gain_ptr + offsets, mask=exists, other=0.0).to(tl.float32) + offset


@triton.jit
def _norm_kernel(
    x_ptr,
    add_ptr,
    gain_ptr,
    sum_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    out_stride,
    stretches,
    width,
    epsilon,
    gain_offset,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute out = s · x ∘ gain, s = (mean x² + ε)^(−½), for one of a token's stretches of x.

    ``stretches`` is how many a token's row has: its heads, for the norm of queries or keys, else 1. If ADD, x is first
    replaced by x + add, which is stored too.
    """
    program = tl.program_id(0).to(tl.int64)
    token = program // stretches
    offsets = tl.arange(0, BLOCK)
    exists = offsets < width
    columns = _stretch_columns(program, stretches, width, offsets)
    x_at = token * x_stride + columns
    x = tl.load(x_ptr + x_at, mask=exists, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(add_ptr + x_at, mask=exists, other=0.0).to(tl.float32)
        rounded_sum = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + x_at, rounded_sum, mask=exists)
        x = rounded_sum.to(tl.float32)
    mean_square = tl.sum(x * x, axis=0) / width
    scale = tl.rsqrt(mean_square + epsilon)
    gain = _load_gain(gain_ptr, offsets, exists, gain_offset)
    normed = (x * scale * gain).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * out_stride + columns, normed, mask=exists)
    tl.store(scale_ptr + program, scale)


@triton.jit
def _norm_gradient_kernel(
    dy_ptr,
    x_ptr,
    gain_ptr,
    scale_ptr,
    add_ptr,
    out_ptr,
    dy_stride,
    x_stride,
    out_stride,
    stretches,
    width,
    gain_offset,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute dx = s · (g − u · mean(g ∘ u)), g = dy ∘ gain, u = s · x; with ADD, plus add."""
    program = tl.program_id(0).to(tl.int64)
    token = program // stretches
    offsets = tl.arange(0, BLOCK)
    exists = offsets < width
    columns = _stretch_columns(program, stretches, width, offsets)
    gain = _load_gain(gain_ptr, offsets, exists, gain_offset)
    dy = tl.load(dy_ptr + token * dy_stride + columns, mask=exists, other=0.0).to(tl.float32)
    unit_gradient = dy * gain
    scale = tl.load(scale_ptr + program)
    x = tl.load(x_ptr + token * x_stride + columns, mask=exists, other=0.0).to(tl.float32)
    unit = x * scale
    along = tl.sum(unit_gradient * unit, axis=0) / width
    dx = (unit_gradient - unit * along) * scale
    out_at = token * out_stride + columns
    if ADD:
        dx += tl.load(add_ptr + out_at, mask=exists, other=0.0).to(tl.float32)
    tl.store(out_ptr + out_at, dx.to(out_ptr.dtype.element_ty), mask=exists)


def _choose_norm_sizes(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}


def _new_like(x: Tensor) -> Tensor:
    """Return a contiguous tensor of the same shape, whatever its strides."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def norm(x: Tensor, gain: Gain, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    width = gain.weight.shape[0]
    tokens = x.shape[0]
    stretches = x.shape[1] // width
    output = _new_like(x) if into is None else into
    scale = torch.empty(tokens * stretches, dtype=torch.float32, device=x.device)
    unused = x
    launch(
        _norm_kernel,
        (tokens * stretches,),
        x,
        unused,
        gain.weight,
        unused,
        output,
        scale,
        x.stride(0),
        output.stride(0),
        stretches,
        width,
        gain.epsilon,
        gain.offset,
        ADD=False,
        **_choose_norm_sizes(width),
    )
    return output, scale


def add_norm(x: Tensor, add: Tensor, gain: Gain) -> tuple[Tensor, Tensor, Tensor]:
    tokens, width = x.shape
    total = torch.empty_like(x)
    output = torch.empty_like(x)
    scale = torch.empty(tokens, dtype=torch.float32, device=x.device)
    stretches = 1
    launch(
        _norm_kernel,
        (tokens,),
        x,
        add,
        gain.weight,
        total,
        output,
        scale,
        width,
        width,
        stretches,
        width,
        gain.epsilon,
        gain.offset,
        ADD=True,
        **_choose_norm_sizes(width),
    )
    return total, output, scale


def norm_back(
    dy: Tensor,
    x: Tensor,
    gain: Gain,
    scale: Tensor,
    add: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    width = gain.weight.shape[0]
    stretches = x.shape[1] // width
    output = _new_like(x) if into is None else into
    launch(
        _norm_gradient_kernel,
        (x.shape[0] * stretches,),
        dy,
        x,
        gain.weight,
        scale,
        dy if add is None else add,
        output,
        dy.stride(0),
        x.stride(0),
        output.stride(0),
        stretches,
        width,
        gain.offset,
        ADD=add is not None,
        **_choose_norm_sizes(width),
    )
    return output


# ---- rotary positions, turned in place: queries and keys of a token in one go ----


@triton.jit
def _rotate_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    x_stride,
    angle_stride,
    head_count,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    BACK: tl.constexpr,
):
    """Turn each pair (a, b) of a head, HALF numbers apart, to (a cos − b sin, b cos + a sin), or back.

    HEADS and WIDE are the number of heads and HALF, rounded up to powers of two.
    """
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, WIDE)
    heads = tl.arange(0, HEADS)
    angles_at = token * angle_stride + pairs
    cos = tl.load(cos_ptr + angles_at, mask=pairs < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angles_at, mask=pairs < HALF, other=0.0).to(tl.float32)[None, :]
    if BACK:
        sin = -sin
    exists = (heads < head_count)[:, None] & (pairs < HALF)[None, :]
    first_at = x_ptr + token * x_stride + heads[:, None] * HEAD + pairs[None, :]
    second_at = first_at + HALF
    first = tl.load(first_at, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=exists, other=0.0).to(tl.float32)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    tl.store(first_at, turned_first.to(x_ptr.dtype.element_ty), mask=exists)
    tl.store(second_at, turned_second.to(x_ptr.dtype.element_ty), mask=exists)


def rotate_(
    x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False
) -> Tensor:
    half = min(head, cos.shape[1]) // 2  # numbers beyond the angles are not turned
    padded_half = triton.next_power_of_2(half)
    padded_heads = triton.next_power_of_2(heads)
    launch(
        _rotate_kernel,
        (x.shape[0],),
        x,
        cos,
        sin,
        x.stride(0),
        cos.stride(0),
        heads,
        HEAD=head,
        HALF=half,
        HEADS=padded_heads,
        WIDE=padded_half,
        BACK=back,
        num_warps=max(1, min(8, padded_heads * padded_half // 256)),
    )
    return x


# ---- the gated product silu(gate) · up, or gelu(gate) · up, of a feed-forward block, and its gradient in place ----


@triton.jit
def _open_gate(gate, SLOPE: tl.constexpr, CUBIC: tl.constexpr):
    """Return what a gate is multiplied by: sigmoid(g), or sigmoid(SLOPE · (g + CUBIC · g³)) for gelu."""
    argument = gate
    if SLOPE > 0:
        argument = SLOPE * (gate + CUBIC * gate * gate * gate)
    return tl.sigmoid(argument)


@triton.jit
def _gate_kernel(
    gates_ptr, out_ptr, width, SLOPE: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute g · open(g) · u of a piece of a token's gates: g in the first half of its row, u in the second."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < width
    gate_at = gates_ptr + token * 2 * width + columns
    gate = tl.load(gate_at, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(gate_at + width, mask=exists, other=0.0).to(tl.float32)
    product = gate * _open_gate(gate, SLOPE, CUBIC) * up
    out_at = out_ptr + token * width + columns
    tl.store(out_at, product.to(out_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _gate_gradient_kernel(
    gates_ptr,
    gradient_ptr,
    width,
    SLOPE: tl.constexpr,
    CUBIC: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Replace gates by their gradient and, with KEEP, the product's gradient by the product."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < width
    gate_at = gates_ptr + token * 2 * width + columns
    up_at = gate_at + width
    product_at = gradient_ptr + token * width + columns
    gate = tl.load(gate_at, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(up_at, mask=exists, other=0.0).to(tl.float32)
    gradient = tl.load(product_at, mask=exists, other=0.0).to(tl.float32)
    opened = _open_gate(gate, SLOPE, CUBIC)
    gated = gate * opened
    # d(g · open(g)) / dg = open(g) + g · open'(g), open' = open · (1 − open) · argument'
    steepness = gated * (1.0 - opened)
    if SLOPE > 0:
        steepness *= SLOPE * (1.0 + 3.0 * CUBIC * gate * gate)
    gate_gradient = gradient * up * (opened + steepness)
    up_gradient = gradient * gated
    tl.store(gate_at, gate_gradient.to(gates_ptr.dtype.element_ty), mask=exists)
    tl.store(up_at, up_gradient.to(gates_ptr.dtype.element_ty), mask=exists)
    if KEEP:
        tl.store(product_at, (gated * up).to(gradient_ptr.dtype.element_ty), mask=exists)


def _choose_gate_options(gelu: bool) -> dict[str, float]:
    if gelu:
        return {"SLOPE": GELU_SLOPE, "CUBIC": GELU_CUBIC, "BLOCK": BLOCK}
    return {"SLOPE": 0, "CUBIC": 0, "BLOCK": BLOCK}


def gate(gates: Tensor, gelu: bool = False) -> Tensor:
    tokens = gates.shape[0]
    width = gates.shape[1] // 2
    output = gates.new_empty(tokens, width)
    grid = (tokens, triton.cdiv(width, BLOCK))
    launch(_gate_kernel, grid, gates, output, width, **_choose_gate_options(gelu))
    return output


def gate_back_(gates: Tensor, gradient: Tensor, gelu: bool = False, keep: bool = True) -> None:
    tokens, width = gradient.shape
    grid = (tokens, triton.cdiv(width, BLOCK))
    options = _choose_gate_options(gelu)
    launch(_gate_gradient_kernel, grid, gates, gradient, width, **options, KEEP=keep)


# ---- cross-entropy and its gradient in two readings of the logits, whose rounding alone is the model's dtype ----


@triton.jit
def _load_logits(logits_row, columns, width):
    """Load a piece of a token's logits in float32: very small ones beyond their end."""
    return tl.load(logits_row + columns, mask=columns < width, other=-1e30).to(tl.float32)


@triton.jit
def _loss_kernel(
    logits_ptr, targets_ptr, weights_ptr, losses_ptr, gradient_ptr, width, BLOCK: tl.constexpr
):
    """Compute −log softmax(logits)[target] of a token, and weight · (softmax(logits) − one-hot of the target)."""
    token = tl.program_id(0).to(tl.int64)
    logits_row = logits_ptr + token * width
    target = tl.load(targets_ptr + token)
    weight = tl.load(weights_ptr + token)
    # column by column of the pieces; joined below
    maxima = tl.full((BLOCK,), -1e30, tl.float32)
    totals = tl.zeros((BLOCK,), tl.float32)
    for piece_start in range(0, width, BLOCK):
        columns = piece_start + tl.arange(0, BLOCK)
        logits = _load_logits(logits_row, columns, width)
        new_maxima = tl.maximum(maxima, logits)
        shares = tl.where(columns < width, tl.exp(logits - new_maxima), 0.0)
        totals = totals * tl.exp(maxima - new_maxima) + shares
        maxima = new_maxima
    maximum = tl.max(maxima, axis=0)
    total = tl.sum(totals * tl.exp(maxima - maximum), axis=0)
    target_logit = tl.load(logits_row + target).to(tl.float32)
    tl.store(losses_ptr + token, maximum + tl.log(total) - target_logit)
    for piece_start in range(0, width, BLOCK):
        columns = piece_start + tl.arange(0, BLOCK)
        logits = _load_logits(logits_row, columns, width)
        share = tl.exp(logits - maximum) / total
        is_target = tl.where(columns == target, 1.0, 0.0)
        gradient = (share - is_target) * weight
        gradient_at = gradient_ptr + token * width + columns
        tl.store(gradient_at, gradient.to(gradient_ptr.dtype.element_ty), mask=columns < width)


def loss(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.contiguous()
    tokens, width = logits.shape
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    gradient = torch.empty_like(logits)
    launch(
        _loss_kernel,
        (tokens,),
        logits,
        targets,
        weights,
        losses,
        gradient,
        width,
        BLOCK=min(4096, triton.next_power_of_2(width)),
        num_warps=8,
    )
    return losses, gradient


# ---- the step of AdamW of all lanes, each element of weights and moments read and written once ----


@triton.jit
def _update_kernel(
    weights_ptr,
    first_ptr,
    second_ptr,
    grads_ptr,
    work_ptr,
    scales_ptr,
    settings_ptr,
    norms_ptr,
    width,
    settings_stride,
    BLOCK: tl.constexpr,
):
    """Take a lane's step on a piece of its numbers, where the lane is active and its gradient finite; see ``plain``."""
    lane = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < width
    elements = lane.to(tl.int64) * width + columns
    norm = tl.load(norms_ptr + lane)
    gradient = tl.load(grads_ptr + elements, mask=exists, other=0.0)
    is_finite = (norm - norm) == 0.0  # not so for infinities and NaN
    settings = settings_ptr + lane * settings_stride
    is_active = tl.load(settings + 9) != 0.0
    if is_active & is_finite:
        decay = tl.load(settings + 1)
        one_minus_beta1 = tl.load(settings + 2)
        beta2 = tl.load(settings + 3)
        one_minus_beta2 = tl.load(settings + 4)
        step_size = tl.load(settings + 5)
        second_root = tl.load(settings + 6)
        epsilon = tl.load(settings + 7)
        max_norm = tl.load(settings + 8)
        gradient = gradient * tl.minimum(max_norm / (norm + 1e-6), 1.0)
        first = tl.load(first_ptr + elements, mask=exists, other=0.0)
        second = tl.load(second_ptr + elements, mask=exists, other=0.0)
        weights = tl.load(weights_ptr + elements, mask=exists, other=0.0)
        first = first + (gradient - first) * one_minus_beta1
        second = second * beta2 + gradient * gradient * one_minus_beta2
        direction = first / (tl.sqrt(second) / second_root + epsilon)
        weights = weights * decay - step_size * direction
        tl.store(first_ptr + elements, first, mask=exists)
        tl.store(second_ptr + elements, second, mask=exists)
        tl.store(weights_ptr + elements, weights, mask=exists)
        scales = tl.load(scales_ptr + columns, mask=exists, other=0.0)
        working_copy = (weights * scales).to(work_ptr.dtype.element_ty)
        tl.store(work_ptr + elements, working_copy, mask=exists)


def update_(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    grads: Tensor,
    working_copy: Tensor,
    scales: Tensor,
    settings: Tensor,
    norms: Tensor,
) -> None:
    lanes, width = first.shape
    launch(
        _update_kernel,
        (triton.cdiv(width, BLOCK), lanes),  # CUDA allows 65,535 blocks in the second dimension
        weights,
        first,
        second,
        grads,
        working_copy,
        scales,
        settings,
        norms,
        width,
        settings.stride(0),
        BLOCK=BLOCK,
    )
    # not in the kernel: a store that waits for no load may overtake the load of another thread
    grads[:lanes].zero_()


# ---- dropout as operations.dropout draws it: hash, mask, scale and add in one pass ----


@triton.jit
def draw(columns, key):
    """Return the 16-bit draw of elements by their tokens' keys: a signed reading, so 2^15 is added modulo 2^16."""
    mixed = (columns >> 1).to(tl.uint32) ^ key
    mixed = mixed ^ (mixed >> 16)
    mixed = mixed * 0x85EBCA6B
    mixed = mixed ^ (mixed >> 13)
    mixed = mixed * 0xC2B2AE35
    mixed = mixed ^ (mixed >> 16)
    half = tl.where((columns & 1) == 1, mixed >> 16, mixed & 0xFFFF)
    return ((half + 32768) & 0xFFFF).to(tl.int32)


@triton.jit
def _drop_kernel(
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
    """Scale the elements of a piece of a token's row that survive, zero the others; with ADD, plus add."""
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < width
    elements = token.to(tl.int64) * width + columns
    key = tl.load(keys_ptr + token).to(tl.uint32) * 2 + mix.to(tl.uint32)
    x = tl.load(x_ptr + elements, mask=exists, other=0.0).to(tl.float32)
    is_kept = draw(columns, key) >= threshold
    out = tl.where(is_kept, x * scale, 0.0)
    if ADD:
        out += tl.load(add_ptr + elements, mask=exists, other=0.0).to(tl.float32)
    tl.store(out_ptr + elements, out.to(out_ptr.dtype.element_ty), mask=exists)


def fused_drop(x: Tensor, keys: Tensor, mix: int, p: float, add: Tensor | None = None) -> Tensor:
    """Dropout of ``x`` (…, D) by the hash of token key, layer and element; plus ``add`` where given."""
    x = x.contiguous()
    width = x.shape[-1]
    output = torch.empty_like(x)
    block = min(2048, triton.next_power_of_2(width))
    added = x if add is None else add.contiguous()
    launch(
        _drop_kernel,
        (x.numel() // width, triton.cdiv(width, block)),
        x,
        added,
        output,
        keys,
        mix,
        width,
        round(p * 65536),
        1.0 / (1.0 - p),
        ADD=add is not None,
        BLOCK=block,
    )
    return output

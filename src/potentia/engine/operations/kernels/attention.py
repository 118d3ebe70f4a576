"""Causal attention within the rows of one long row: token i sees tokens ``first[i]`` … i, and no table of rows exists.

Tiles of 64 tokens cover a lane from end to end, whatever rows they hold: short rows share a tile, and a tile looks no
further back than the first token of its first row. So rows of fifty tokens cost what they need, where kernels that give
every row tiles of 128 tokens of its own spend most of their time on nothing. A tile never reads beyond its lane: zero
times infinity is not zero, and what is not finite in one lane must not spoil another. No sum runs across programs:
results do not depend on timing. At the end: one new token a seat, to what the seat kept.

With queries q, keys k, values v and scores s = scale · q kᵀ, where a query sees a key, the forward kernel computes ::

    p = exp(s − lse),  lse = log Σ exp(s),  out = p v

by the online softmax: running maxima and sums, in base 2 because a GPU's exponential is. Backward, from d out: ::

    δ = Σ out ∘ d out,  ds = p ∘ (d out vᵀ − δ),  dq = scale · ds k,  dk = scale · dsᵀ q,  dv = pᵀ d out

Names of dimensions: N tokens, H query heads, K key heads, D numbers of a head. The numbers of a head lie side by side,
so a tensor (N, H, D) is known by two strides, that of tokens and that of heads.
"""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations import TILE, RowBounds
from potentia.engine.operations.kernels.launch import launch

LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)
# stands for −∞ among scores: differences of two of them are numbers
UNSEEN = tl.constexpr(-1e30)
UNSEEN_BELOW = tl.constexpr(-1e29)


@triton.jit
def find_tokens(tiles_ptr, program, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return a program's first token and the end of its lane, for programs of BLOCK of a tile's tokens each."""
    part = program % (TILE // BLOCK)
    tile = program // (TILE // BLOCK)
    return tl.load(tiles_ptr + 2 * tile) + part * BLOCK, tl.load(tiles_ptr + 2 * tile + 1)


@triton.jit
def _tile_pointers(head_ptr, tokens, token_stride, numbers):
    """Return where the numbers of one head lie, for some tokens (BLOCK, WIDE)."""
    return head_ptr + tokens[:, None].to(tl.int64) * token_stride + numbers[None, :]


@triton.jit
def _tile_mask(tokens, lane_end, numbers, HEAD: tl.constexpr):
    """Return which of a tile's numbers exist (BLOCK, WIDE): WIDE is HEAD rounded up to a power of two."""
    return (tokens < lane_end)[:, None] & (numbers < HEAD)[None, :]


@triton.jit
def _load_tile(head_ptr, tokens, lane_end, token_stride, numbers, HEAD: tl.constexpr):
    pointers = _tile_pointers(head_ptr, tokens, token_stride, numbers)
    return tl.load(pointers, mask=_tile_mask(tokens, lane_end, numbers, HEAD), other=0.0)


@triton.jit
def _store_tile(head_ptr, values, tokens, lane_end, token_stride, numbers, HEAD: tl.constexpr):
    pointers = _tile_pointers(head_ptr, tokens, token_stride, numbers)
    rounded = values.to(head_ptr.dtype.element_ty)
    tl.store(pointers, rounded, mask=_tile_mask(tokens, lane_end, numbers, HEAD))


@triton.jit
def _first_seen(first_ptr, queries, lane_end, look_back):
    """Return the first token that each query sees: the first of its row, or of its window where that is nearer."""
    row_starts = tl.load(first_ptr + queries, mask=queries < lane_end, other=lane_end)
    return tl.maximum(row_starts, queries - look_back)


@triton.jit
def _add_to_softmax(maximum, total, out, scores, values, PRECISION: tl.constexpr):
    """Add a block of scores (queries, keys) and their values to the online softmax; returns its three parts.

    ``maximum`` (queries,) is the largest score so far, ``total`` the sum of 2^(score − maximum), ``out`` that sum
    with each term times its value.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    shares = tl.exp2(scores - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(shares, axis=1)
    shrunk_out = out * shrink[:, None]
    out = tl.dot(shares.to(values.dtype), values, shrunk_out, input_precision=PRECISION)
    return new_maximum, total, out


@triton.jit
def _attend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    first_ptr,
    tiles_ptr,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    out_token_stride,
    out_head_stride,
    token_count,
    queries_per_key,
    scale_log2,
    look_back,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the outputs of a block of queries in one head; ``scale_log2`` is the scale for scores in base 2."""
    start, lane_end = find_tokens(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < lane_end:
        head = tl.program_id(1)
        key_head = head // queries_per_key
        numbers = tl.arange(0, WIDE)
        queries = start + tl.arange(0, BLOCK)
        first_seen = _first_seen(first_ptr, queries, lane_end, look_back)
        q = _load_tile(
            q_ptr + head * q_head_stride, queries, lane_end, q_token_stride, numbers, HEAD
        )
        maximum = tl.full((BLOCK,), UNSEEN, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        out = tl.zeros((BLOCK, WIDE), tl.float32)
        keys_begin = tl.min(first_seen, axis=0)
        keys_end = tl.minimum(start + BLOCK, lane_end)
        for block_start in range(keys_begin, keys_end, BLOCK):
            keys = block_start + tl.arange(0, BLOCK)
            k = _load_tile(
                k_ptr + key_head * k_head_stride, keys, lane_end, k_token_stride, numbers, HEAD
            )
            v = _load_tile(
                v_ptr + key_head * v_head_stride, keys, lane_end, v_token_stride, numbers, HEAD
            )
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
            is_seen = (keys[None, :] <= queries[:, None]) & (keys[None, :] >= first_seen[:, None])
            scores = tl.where(is_seen, scores, UNSEEN)
            maximum, total, out = _add_to_softmax(maximum, total, out, scores, v, PRECISION)
        # every token sees itself: one whose scores are all −∞ is not sound, and must not look so
        is_sound = (maximum > UNSEEN_BELOW)[:, None]
        out = tl.where(is_sound, out / total[:, None], float("nan"))
        _store_tile(
            out_ptr + head * out_head_stride,
            out,
            queries,
            lane_end,
            out_token_stride,
            numbers,
            HEAD,
        )
        log_sums = (maximum + tl.log2(total)) * LOG_2  # natural, as the plain form's
        lse_row = lse_ptr + head.to(tl.int64) * token_count
        tl.store(lse_row + queries, log_sums, mask=queries < lane_end)


@triton.jit
def _query_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    first_ptr,
    tiles_ptr,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    out_token_stride,
    out_head_stride,
    dout_token_stride,
    dout_head_stride,
    dq_token_stride,
    dq_head_stride,
    token_count,
    queries_per_key,
    scale_log2,
    scale,
    look_back,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dq of a block of queries in one head, and δ, which the next kernel reads."""
    start, lane_end = find_tokens(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < lane_end:
        head = tl.program_id(1)
        key_head = head // queries_per_key
        numbers = tl.arange(0, WIDE)
        queries = start + tl.arange(0, BLOCK)
        first_seen = _first_seen(first_ptr, queries, lane_end, look_back)
        q = _load_tile(
            q_ptr + head * q_head_stride, queries, lane_end, q_token_stride, numbers, HEAD
        )
        dout = _load_tile(
            dout_ptr + head * dout_head_stride, queries, lane_end, dout_token_stride, numbers, HEAD
        )
        out = _load_tile(
            out_ptr + head * out_head_stride, queries, lane_end, out_token_stride, numbers, HEAD
        )
        head_row = head.to(tl.int64) * token_count
        log_sums = tl.load(lse_ptr + head_row + queries, mask=queries < lane_end, other=0.0)
        log_sums *= LOG2_E
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
        tl.store(delta_ptr + head_row + queries, delta, mask=queries < lane_end)
        dq = tl.zeros((BLOCK, WIDE), tl.float32)
        keys_begin = tl.min(first_seen, axis=0)
        keys_end = tl.minimum(start + BLOCK, lane_end)
        for block_start in range(keys_begin, keys_end, BLOCK):
            keys = block_start + tl.arange(0, BLOCK)
            k = _load_tile(
                k_ptr + key_head * k_head_stride, keys, lane_end, k_token_stride, numbers, HEAD
            )
            v = _load_tile(
                v_ptr + key_head * v_head_stride, keys, lane_end, v_token_stride, numbers, HEAD
            )
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
            is_seen = (keys[None, :] <= queries[:, None]) & (keys[None, :] >= first_seen[:, None])
            shares = tl.where(is_seen, tl.exp2(scores - log_sums[:, None]), 0.0)
            share_gradient = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
            score_gradient = shares * (share_gradient - delta[:, None])
            dq = tl.dot(score_gradient.to(k.dtype), k, dq, input_precision=PRECISION)
        _store_tile(
            dq_ptr + head * dq_head_stride,
            dq * scale,
            queries,
            lane_end,
            dq_token_stride,
            numbers,
            HEAD,
        )


@triton.jit
def _key_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    first_ptr,
    last_ptr,
    tiles_ptr,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    dout_token_stride,
    dout_head_stride,
    dk_token_stride,
    dk_head_stride,
    dv_token_stride,
    dv_head_stride,
    token_count,
    queries_per_key,
    scale_log2,
    scale,
    look_back,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dk and dv of a block of keys in one key head, summed over its query heads one after the other."""
    start, lane_end = find_tokens(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < lane_end:
        key_head = tl.program_id(1)
        numbers = tl.arange(0, WIDE)
        keys = start + tl.arange(0, BLOCK)
        k = _load_tile(
            k_ptr + key_head * k_head_stride, keys, lane_end, k_token_stride, numbers, HEAD
        )
        v = _load_tile(
            v_ptr + key_head * v_head_stride, keys, lane_end, v_token_stride, numbers, HEAD
        )
        row_ends = tl.load(last_ptr + keys, mask=keys < lane_end, other=0)
        queries_end = tl.max(tl.minimum(row_ends, keys + look_back + 1), axis=0)
        queries_end = tl.minimum(queries_end, lane_end)
        dk = tl.zeros((BLOCK, WIDE), tl.float32)
        dv = tl.zeros((BLOCK, WIDE), tl.float32)
        for member in range(0, queries_per_key):
            head = key_head * queries_per_key + member
            for block_start in range(start, queries_end, BLOCK):
                queries = block_start + tl.arange(0, BLOCK)
                first_seen = _first_seen(first_ptr, queries, lane_end, look_back)
                q = _load_tile(
                    q_ptr + head * q_head_stride, queries, lane_end, q_token_stride, numbers, HEAD
                )
                dout = _load_tile(
                    dout_ptr + head * dout_head_stride,
                    queries,
                    lane_end,
                    dout_token_stride,
                    numbers,
                    HEAD,
                )
                head_row = head.to(tl.int64) * token_count
                log_sums = tl.load(lse_ptr + head_row + queries, mask=queries < lane_end, other=0.0)
                log_sums *= LOG2_E
                delta = tl.load(delta_ptr + head_row + queries, mask=queries < lane_end, other=0.0)
                # (keys, queries)
                scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2
                is_seen = (keys[:, None] <= queries[None, :]) & (
                    keys[:, None] >= first_seen[None, :]
                )
                shares = tl.where(is_seen, tl.exp2(scores - log_sums[None, :]), 0.0)
                dv = tl.dot(shares.to(dout.dtype), dout, dv, input_precision=PRECISION)
                share_gradient = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
                score_gradient = shares * (share_gradient - delta[None, :])
                dk = tl.dot(score_gradient.to(q.dtype), q, dk, input_precision=PRECISION)
        _store_tile(
            dk_ptr + key_head * dk_head_stride,
            dk * scale,
            keys,
            lane_end,
            dk_token_stride,
            numbers,
            HEAD,
        )
        _store_tile(
            dv_ptr + key_head * dv_head_stride, dv, keys, lane_end, dv_token_stride, numbers, HEAD
        )


def _padded_head_width(head_width: int) -> int:
    """Return the power of two that holds a head, and is no less than a matrix unit takes."""
    return max(16, triton.next_power_of_2(head_width))


def _dot_precision(dtype: torch.dtype) -> str:
    """Return the precision of products: float32 is multiplied in full, 16 bits do not care."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _choose_block(dtype: torch.dtype, padded_width: int) -> int:
    """Return how many tokens a program treats at a time: as many as its registers and shared memory hold."""
    if dtype == torch.float32:
        return 32 if padded_width <= 64 else 16
    if padded_width <= 128:
        return 64
    # Gemma 4 has heads of 512: blocks of 32 would take 134 KB of shared memory, and cards for desktops have 99
    return 32 if padded_width <= 256 else 16


def _choose_sizes(q: Tensor) -> dict[str, object]:
    """Return the compile-time sizes of the kernels for queries like these."""
    head_width = q.shape[2]
    padded_width = _padded_head_width(head_width)
    return {
        "HEAD": head_width,
        "WIDE": padded_width,
        "BLOCK": _choose_block(q.dtype, padded_width),
        "TILE": TILE,
        "PRECISION": _dot_precision(q.dtype),
        # measured on an H200: eight warps for heads of 128 take 1.7 times as long
        "num_warps": 4,
        "num_stages": 1 if padded_width <= 128 else 2,
    }


def _strides_of(*tensors: Tensor) -> list[int]:
    """Return the strides of tokens and of heads, tensor by tensor."""
    strides: list[int] = []
    for tensor in tensors:
        assert tensor.stride(2) == 1
        strides += tensor.stride()[:2]
    return strides


def _count_programs(rows: RowBounds, sizes: dict[str, object]) -> int:
    blocks_per_tile = TILE // sizes["BLOCK"]
    return rows.tiles.shape[0] * blocks_per_tile


def _tokens_back(window: int | None, tokens: int) -> int:
    """Return how many tokens before itself a token sees: all, where there is no window."""
    return tokens if window is None else window - 1


def attend(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    tokens, heads, head_width = q.shape
    out = torch.empty(tokens, heads, head_width, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    sizes = _choose_sizes(q)
    launch(
        _attend_kernel,
        (_count_programs(rows, sizes), heads),
        q,
        k,
        v,
        out,
        lse,
        rows.first,
        rows.tiles,
        *_strides_of(q, k, v, out),
        tokens,
        heads // k.shape[1],
        scale * LOG2_E.value,
        _tokens_back(window, tokens),
        **sizes,
    )
    return out, lse


def attend_back(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rows: RowBounds,
    scale: float,
    window: int | None,
    into: tuple[Tensor, Tensor, Tensor],
) -> None:
    dq, dk, dv = into
    tokens, heads, _ = q.shape
    key_heads = k.shape[1]
    sizes = _choose_sizes(q)
    programs = _count_programs(rows, sizes)
    look_back = _tokens_back(window, tokens)
    delta = torch.empty_like(lse)
    launch(
        _query_gradient_kernel,
        (programs, heads),
        q,
        k,
        v,
        out,
        dout,
        lse,
        delta,
        dq,
        rows.first,
        rows.tiles,
        *_strides_of(q, k, v, out, dout, dq),
        tokens,
        heads // key_heads,
        scale * LOG2_E.value,
        scale,
        look_back,
        **sizes,
    )
    launch(
        _key_gradient_kernel,
        (programs, key_heads),
        q,
        k,
        v,
        dout,
        lse,
        delta,
        dk,
        dv,
        rows.first,
        rows.last,
        rows.tiles,
        *_strides_of(q, k, v, dout, dk, dv),
        tokens,
        heads // key_heads,
        scale * LOG2_E.value,
        scale,
        look_back,
        **sizes,
    )


@triton.jit
def _attend_cached_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lengths_ptr,
    q_seat_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    out_seat_stride,
    out_head_stride,
    capacity,
    queries_per_key,
    scale_log2,
    window,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute one seat's outputs in the query heads of one key head: GROUP is their number, rounded up."""
    seat = tl.program_id(0)
    key_head = tl.program_id(1)
    length = tl.load(lengths_ptr + seat)
    numbers = tl.arange(0, WIDE)
    members = tl.arange(0, GROUP)
    heads = key_head * queries_per_key + members
    exists = (members < queries_per_key)[:, None] & (numbers < HEAD)[None, :]
    q_row = q_ptr + seat.to(tl.int64) * q_seat_stride
    q = tl.load(q_row + heads[:, None] * q_head_stride + numbers[None, :], mask=exists, other=0.0)
    maximum = tl.full((GROUP,), UNSEEN, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    out = tl.zeros((GROUP, WIDE), tl.float32)
    first_seen = tl.maximum(length - window, 0)
    first_of_seat = seat.to(tl.int64) * capacity
    for block_start in range(first_seen, length, BLOCK):
        keys = block_start + tl.arange(0, BLOCK)
        exists_key = (keys < length)[:, None] & (numbers < HEAD)[None, :]
        rows = (first_of_seat + keys)[:, None]
        k_at = k_ptr + rows * k_token_stride + key_head * k_head_stride + numbers[None, :]
        v_at = v_ptr + rows * v_token_stride + key_head * v_head_stride + numbers[None, :]
        k = tl.load(k_at, mask=exists_key, other=0.0)
        v = tl.load(v_at, mask=exists_key, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        scores = tl.where((keys < length)[None, :], scores, UNSEEN)
        maximum, total, out = _add_to_softmax(maximum, total, out, scores, v, PRECISION)
    outputs = (out / total[:, None]).to(out_ptr.dtype.element_ty)
    out_row = out_ptr + seat.to(tl.int64) * out_seat_stride
    tl.store(out_row + heads[:, None] * out_head_stride + numbers[None, :], outputs, mask=exists)


def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    capacity: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Return the outputs (seats, heads, d) of decode attention, as ``Operations.attend_cached`` describes it.

    ``q`` is (seats, heads, d), one query each; ``k`` and ``v`` are (seats · capacity, kv_heads, d); ``lengths`` are the
    cached tokens of each seat, the current one included; with ``window`` None a query sees all of them.
    """
    seats, heads, head_width = q.shape
    key_heads = k.shape[1]
    queries_per_key = heads // key_heads
    out = torch.empty(seats, heads, head_width, dtype=q.dtype, device=q.device)
    padded_width = _padded_head_width(head_width)
    is_narrow = padded_width <= 128 and q.dtype != torch.float32
    launch(
        _attend_cached_kernel,
        (seats, key_heads),
        q,
        k,
        v,
        out,
        lengths,
        *_strides_of(q, k, v, out),
        capacity,
        queries_per_key,
        scale * LOG2_E.value,
        capacity if window is None else window,
        HEAD=head_width,
        WIDE=padded_width,
        GROUP=max(16, triton.next_power_of_2(queries_per_key)),
        BLOCK=64 if is_narrow else 32,
        PRECISION=_dot_precision(q.dtype),
        num_warps=4,
        num_stages=3,
    )
    return out

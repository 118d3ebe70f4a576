"""Causal attention within the rows of one long row: token i sees tokens ``first[i]`` … i, and no table of rows exists.

Tiles of 64 tokens cover a lane from end to end, whatever rows they hold: short rows share a tile, and a tile looks no
further back than the first token of its first row. So rows of fifty tokens cost what they need, where kernels that give
every row tiles of 128 tokens of its own spend most of their time on nothing. A tile never reads beyond its lane: zero
times infinity is not zero, and what is not finite in one lane must not spoil another. No sum runs across programs:
results do not depend on timing. At the end: one new token a seat, to what the seat kept.
"""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations import TILE, Rows
from potentia.engine.operations.kernels.launch import launch

_LOG2E = 1.4426950408889634


@triton.jit
def _tile(ptr, tokens, stop, stride, d, HEAD: tl.constexpr):
    at = ptr + tokens[:, None].to(tl.int64) * stride + d[None, :]
    return tl.load(at, mask=(tokens < stop)[:, None] & (d < HEAD)[None, :], other=0.0)


@triton.jit
def _keep(ptr, value, tokens, stop, stride, d, HEAD: tl.constexpr):
    at = ptr + tokens[:, None].to(tl.int64) * stride + d[None, :]
    tl.store(
        at, value.to(ptr.dtype.element_ty), mask=(tokens < stop)[:, None] & (d < HEAD)[None, :]
    )


@triton.jit
def place(tiles_ptr, number, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return a program's first token and its lane's end."""
    part = number % (TILE // BLOCK)
    tile = number // (TILE // BLOCK)
    return tl.load(tiles_ptr + 2 * tile) + part * BLOCK, tl.load(tiles_ptr + 2 * tile + 1)


@triton.jit
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    first_ptr,
    tiles_ptr,
    qn,
    qh,
    kn,
    kh,
    vn,
    vh,
    on,
    oh,
    tokens,
    group,
    scale,
    window,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, stop = place(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < stop:
        head = tl.program_id(1)
        d = tl.arange(0, WIDE)
        m = start + tl.arange(0, BLOCK)
        begin = tl.maximum(tl.load(first_ptr + m, mask=m < stop, other=stop), m - window)
        q = _tile(q_ptr + head * qh, m, stop, qn, d, HEAD)
        maximum = tl.full((BLOCK,), -1e30, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        out = tl.zeros((BLOCK, WIDE), tl.float32)
        for at in range(tl.min(begin, axis=0), tl.minimum(start + BLOCK, stop), BLOCK):
            n = at + tl.arange(0, BLOCK)
            k = _tile(k_ptr + (head // group) * kh, n, stop, kn, d, HEAD)
            v = _tile(v_ptr + (head // group) * vh, n, stop, vn, d, HEAD)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            s = tl.where((n[None, :] <= m[:, None]) & (n[None, :] >= begin[:, None]), s, -1e30)
            new = tl.maximum(maximum, tl.max(s, axis=1))
            p = tl.exp2(s - new[:, None])
            shrink = tl.exp2(maximum - new)
            total = total * shrink + tl.sum(p, axis=1)
            out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
            maximum = new
        # every token sees itself: one whose scores are all −∞ is not sound, and must not look so
        out = tl.where((maximum > -1e29)[:, None], out / total[:, None], float("nan"))
        _keep(out_ptr + head * oh, out, m, stop, on, d, HEAD)
        log_sum = (maximum + tl.log2(total)) * 0.6931471805599453  # natural, as the plain form's
        tl.store(lse_ptr + head.to(tl.int64) * tokens + m, log_sum, mask=m < stop)


@triton.jit
def _back_queries(
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
    qn,
    qh,
    kn,
    kh,
    vn,
    vh,
    on,
    oh,
    gn,
    gh,
    dn,
    dh,
    tokens,
    group,
    scale,
    factor,
    window,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, stop = place(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < stop:
        head = tl.program_id(1)
        d = tl.arange(0, WIDE)
        m = start + tl.arange(0, BLOCK)
        begin = tl.maximum(tl.load(first_ptr + m, mask=m < stop, other=stop), m - window)
        q = _tile(q_ptr + head * qh, m, stop, qn, d, HEAD)
        dout = _tile(dout_ptr + head * gh, m, stop, gn, d, HEAD)
        out = _tile(out_ptr + head * oh, m, stop, on, d, HEAD)
        lse = tl.load(lse_ptr + head.to(tl.int64) * tokens + m, mask=m < stop, other=0.0)
        lse *= 1.4426950408889634  # to base 2
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
        tl.store(delta_ptr + head.to(tl.int64) * tokens + m, delta, mask=m < stop)
        dq = tl.zeros((BLOCK, WIDE), tl.float32)
        for at in range(tl.min(begin, axis=0), tl.minimum(start + BLOCK, stop), BLOCK):
            n = at + tl.arange(0, BLOCK)
            k = _tile(k_ptr + (head // group) * kh, n, stop, kn, d, HEAD)
            v = _tile(v_ptr + (head // group) * vh, n, stop, vn, d, HEAD)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            sees = (n[None, :] <= m[:, None]) & (n[None, :] >= begin[:, None])
            p = tl.where(sees, tl.exp2(s - lse[:, None]), 0.0)
            dp = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
            ds = p * (dp - delta[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
        _keep(dq_ptr + head * dh, dq * factor, m, stop, dn, d, HEAD)


@triton.jit
def _back_keys(
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
    qn,
    qh,
    kn,
    kh,
    vn,
    vh,
    gn,
    gh,
    dkn,
    dkh,
    dvn,
    dvh,
    tokens,
    group,
    scale,
    factor,
    window,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, stop = place(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    if start < stop:
        key_head = tl.program_id(1)
        d = tl.arange(0, WIDE)
        n = start + tl.arange(0, BLOCK)
        k = _tile(k_ptr + key_head * kh, n, stop, kn, d, HEAD)
        v = _tile(v_ptr + key_head * vh, n, stop, vn, d, HEAD)
        far = tl.max(
            tl.minimum(tl.load(last_ptr + n, mask=n < stop, other=0), n + window + 1), axis=0
        )
        far = tl.minimum(far, stop)
        dk = tl.zeros((BLOCK, WIDE), tl.float32)
        dv = tl.zeros((BLOCK, WIDE), tl.float32)
        for member in range(0, group):
            head = key_head * group + member
            for at in range(start, far, BLOCK):
                m = at + tl.arange(0, BLOCK)
                begin = tl.maximum(tl.load(first_ptr + m, mask=m < stop, other=stop), m - window)
                q = _tile(q_ptr + head * qh, m, stop, qn, d, HEAD)
                dout = _tile(dout_ptr + head * gh, m, stop, gn, d, HEAD)
                lse = tl.load(lse_ptr + head.to(tl.int64) * tokens + m, mask=m < stop, other=0.0)
                lse *= 1.4426950408889634  # to base 2
                delta = tl.load(
                    delta_ptr + head.to(tl.int64) * tokens + m, mask=m < stop, other=0.0
                )
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # (keys, queries)
                sees = (n[:, None] <= m[None, :]) & (n[:, None] >= begin[None, :])
                p = tl.where(sees, tl.exp2(s - lse[None, :]), 0.0)
                dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision=PRECISION)
                dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
                ds = p * (dp - delta[None, :])
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        _keep(dk_ptr + key_head * dkh, dk * factor, n, stop, dkn, d, HEAD)
        _keep(dv_ptr + key_head * dvh, dv, n, stop, dvn, d, HEAD)


def _sizes(q: Tensor) -> dict[str, object]:
    head = q.shape[2]
    wide = max(16, triton.next_power_of_2(head))
    block = 64 if wide <= 128 else 32
    if q.dtype == torch.float32:  # twice the registers
        block = 32 if wide <= 64 else 16
    return {
        "HEAD": head,
        "WIDE": wide,
        "BLOCK": block,
        "TILE": TILE,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": 4,
        "num_stages": 1
        if wide <= 128
        else 2,  # measured on an H200: eight warps for 128 take 1.7 times as long
    }


def _strides(*parts: Tensor) -> list[int]:
    for part in parts:
        assert part.stride(2) == 1
    return [step for part in parts for step in part.stride()[:2]]


def attend(
    q: Tensor, k: Tensor, v: Tensor, rows: Rows, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    tokens, heads, head = q.shape
    out = torch.empty(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    sizes = _sizes(q)
    launch(
        _forward,
        (rows.tiles.shape[0] * (TILE // sizes["BLOCK"]), heads),
        q,
        k,
        v,
        out,
        lse,
        rows.first,
        rows.tiles,
        *_strides(q, k, v, out),
        tokens,
        heads // k.shape[1],
        scale * _LOG2E,
        tokens if window is None else window - 1,
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
    rows: Rows,
    scale: float,
    window: int | None,
    into: tuple[Tensor, Tensor, Tensor],
) -> None:
    dq, dk, dv = into
    tokens, heads, _ = q.shape
    key_heads = k.shape[1]
    sizes = _sizes(q)
    programs = rows.tiles.shape[0] * (TILE // sizes["BLOCK"])
    far = tokens if window is None else window - 1
    delta = torch.empty_like(lse)
    launch(
        _back_queries,
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
        *_strides(q, k, v, out, dout, dq),
        tokens,
        heads // key_heads,
        scale * _LOG2E,
        scale,
        far,
        **sizes,
    )
    launch(
        _back_keys,
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
        *_strides(q, k, v, dout, dk, dv),
        tokens,
        heads // key_heads,
        scale * _LOG2E,
        scale,
        far,
        **sizes,
    )


@triton.jit
def _cached(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lengths_ptr,
    qn,
    qh,
    kn,
    kh,
    vn,
    vh,
    on,
    oh,
    room,
    group,
    scale,
    window,
    HEAD: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    seat = tl.program_id(0)
    key_head = tl.program_id(1)
    end = tl.load(lengths_ptr + seat)
    d = tl.arange(0, WIDE)
    g = tl.arange(0, GROUP)
    head = key_head * group + g
    inside = (g < group)[:, None] & (d < HEAD)[None, :]
    q = tl.load(
        q_ptr + seat.to(tl.int64) * qn + head[:, None] * qh + d[None, :], mask=inside, other=0.0
    )
    maximum = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    out = tl.zeros((GROUP, WIDE), tl.float32)
    begin = tl.maximum(end - window, 0)
    base = seat.to(tl.int64) * room
    for at in range(begin, end, BLOCK):
        n = at + tl.arange(0, BLOCK)
        inside_keys = (n < end)[:, None] & (d < HEAD)[None, :]
        rows = (base + n)[:, None]
        k = tl.load(k_ptr + rows * kn + key_head * kh + d[None, :], mask=inside_keys, other=0.0)
        v = tl.load(v_ptr + rows * vn + key_head * vh + d[None, :], mask=inside_keys, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        s = tl.where((n < end)[None, :], s, -1e30)
        new = tl.maximum(maximum, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(maximum - new)
        total = total * shrink + tl.sum(p, axis=1)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
        maximum = new
    spot = out_ptr + seat.to(tl.int64) * on + head[:, None] * oh + d[None, :]
    tl.store(spot, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def attend_cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, room: int, scale: float, window: int | None
) -> Tensor:
    seats, heads, head = q.shape
    key_heads = k.shape[1]
    out = torch.empty(seats, heads, head, dtype=q.dtype, device=q.device)
    wide = max(16, triton.next_power_of_2(head))
    steps = [step for part in (q, k, v, out) for step in part.stride()[:2]]
    launch(
        _cached,
        (seats, key_heads),
        q,
        k,
        v,
        out,
        lengths,
        *steps,
        room,
        heads // key_heads,
        scale * _LOG2E,
        room if window is None else window,
        HEAD=head,
        WIDE=wide,
        GROUP=max(16, triton.next_power_of_2(heads // key_heads)),
        BLOCK=64 if wide <= 128 and q.dtype != torch.float32 else 32,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    return out

"""Causal attention within the rows of one long row: token i sees tokens ``first[i]`` … i, and no table of rows exists.

Tiles cover the long row from end to end, whatever rows they hold: short rows share a tile, and a tile looks no further
back than the first token of its first row. So rows of fifty tokens cost what they need, where kernels that give every
row tiles of 128 tokens of its own spend most of their time on nothing. No sum runs across programs: results do not
depend on timing.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2E = 1.4426950408889634


@triton.jit
def _tile(ptr, tokens, stride, d, HEAD: tl.constexpr, WIDE: tl.constexpr):
    at = ptr + tokens[:, None].to(tl.int64) * stride + d[None, :]
    if HEAD == WIDE:
        return tl.load(at)
    return tl.load(at, mask=(d < HEAD)[None, :], other=0.0)


@triton.jit
def _keep(ptr, value, tokens, stride, d, HEAD: tl.constexpr, WIDE: tl.constexpr):
    at = ptr + tokens[:, None].to(tl.int64) * stride + d[None, :]
    if HEAD == WIDE:
        tl.store(at, value.to(ptr.dtype.element_ty))
    else:
        tl.store(at, value.to(ptr.dtype.element_ty), mask=(d < HEAD)[None, :])


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, first_ptr, qn, qh, kn, kh, vn, vh, on, oh, tokens, group, scale, window,
    HEAD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, WIDE)
    m = tile * BLOCK + tl.arange(0, BLOCK)
    begin = tl.maximum(tl.load(first_ptr + m), m - window)
    low = tl.min(begin, axis=0) // BLOCK * BLOCK
    q = _tile(q_ptr + head * qh, m, qn, d, HEAD, WIDE)
    most = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    out = tl.zeros((BLOCK, WIDE), tl.float32)
    for start in range(low, (tile + 1) * BLOCK, BLOCK):
        n = start + tl.arange(0, BLOCK)
        k = _tile(k_ptr + (head // group) * kh, n, kn, d, HEAD, WIDE)
        v = _tile(v_ptr + (head // group) * vh, n, vn, d, HEAD, WIDE)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        s = tl.where((n[None, :] <= m[:, None]) & (n[None, :] >= begin[:, None]), s, -1e30)
        new = tl.maximum(most, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink + tl.sum(p, axis=1)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
        most = new
    _keep(out_ptr + head * oh, out / total[:, None], m, on, d, HEAD, WIDE)
    tl.store(lse_ptr + head * tokens + m, most + tl.log2(total))


@triton.jit
def _back_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, first_ptr,
    qn, qh, kn, kh, vn, vh, on, oh, gn, gh, dn, dh, tokens, group, scale, factor, window,
    HEAD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, WIDE)
    m = tile * BLOCK + tl.arange(0, BLOCK)
    begin = tl.maximum(tl.load(first_ptr + m), m - window)
    low = tl.min(begin, axis=0) // BLOCK * BLOCK
    q = _tile(q_ptr + head * qh, m, qn, d, HEAD, WIDE)
    dout = _tile(dout_ptr + head * gh, m, gn, d, HEAD, WIDE)
    out = _tile(out_ptr + head * oh, m, on, d, HEAD, WIDE)
    lse = tl.load(lse_ptr + head * tokens + m)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    tl.store(delta_ptr + head * tokens + m, delta)
    dq = tl.zeros((BLOCK, WIDE), tl.float32)
    for start in range(low, (tile + 1) * BLOCK, BLOCK):
        n = start + tl.arange(0, BLOCK)
        k = _tile(k_ptr + (head // group) * kh, n, kn, d, HEAD, WIDE)
        v = _tile(v_ptr + (head // group) * vh, n, vn, d, HEAD, WIDE)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        sees = (n[None, :] <= m[:, None]) & (n[None, :] >= begin[:, None])
        p = tl.where(sees, tl.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    _keep(dq_ptr + head * dh, dq * factor, m, dn, d, HEAD, WIDE)


@triton.jit
def _back_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, first_ptr, last_ptr,
    qn, qh, kn, kh, vn, vh, gn, gh, dkn, dkh, dvn, dvh, tokens, group, scale, factor, window,
    HEAD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    kept = tl.program_id(1)
    d = tl.arange(0, WIDE)
    n = tile * BLOCK + tl.arange(0, BLOCK)
    k = _tile(k_ptr + kept * kh, n, kn, d, HEAD, WIDE)
    v = _tile(v_ptr + kept * vh, n, vn, d, HEAD, WIDE)
    end = tl.max(tl.minimum(tl.load(last_ptr + n), n + window + 1), axis=0)
    dk = tl.zeros((BLOCK, WIDE), tl.float32)
    dv = tl.zeros((BLOCK, WIDE), tl.float32)
    for member in range(0, group):
        head = kept * group + member
        for start in range(tile * BLOCK, end, BLOCK):
            m = start + tl.arange(0, BLOCK)
            begin = tl.maximum(tl.load(first_ptr + m), m - window)
            q = _tile(q_ptr + head * qh, m, qn, d, HEAD, WIDE)
            dout = _tile(dout_ptr + head * gh, m, gn, d, HEAD, WIDE)
            lse = tl.load(lse_ptr + head * tokens + m)
            delta = tl.load(delta_ptr + head * tokens + m)
            s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # (keys, queries)
            sees = (n[:, None] <= m[None, :]) & (n[:, None] >= begin[None, :])
            p = tl.where(sees, tl.exp2(s - lse[None, :]), 0.0)
            dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision=PRECISION)
            dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    _keep(dk_ptr + kept * dkh, dk * factor, n, dkn, d, HEAD, WIDE)
    _keep(dv_ptr + kept * dvh, dv, n, dvn, d, HEAD, WIDE)


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
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": 4 if wide <= 64 else 8,
        "num_stages": 2,
    }


def _strides(*parts: Tensor) -> list[int]:
    for part in parts:
        assert part.stride(2) == 1
    return [step for part in parts for step in part.stride()[:2]]


def attend(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return the answers (N, H, d) to queries (N, H, d) on keys and values (N, K, d), and their log-sums (H, N)."""
    tokens, heads, head = q.shape
    out = torch.empty(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    sizes = _sizes(q)
    _forward[(tokens // sizes["BLOCK"], heads)](
        q, k, v, out, lse, first, *_strides(q, k, v, out), tokens, heads // k.shape[1], scale * _LOG2E,
        tokens if window is None else window - 1, **sizes,
    )  # fmt: skip
    return out, lse


def attend_back(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, first: Tensor, last: Tensor,
    scale: float, window: int | None, into: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Write the gradients of queries, keys and values ``into`` three tensors of their shapes."""
    dq, dk, dv = into
    tokens, heads, _ = q.shape
    kept = k.shape[1]
    sizes = _sizes(q)
    far = tokens if window is None else window - 1
    delta = torch.empty_like(lse)
    _back_queries[(tokens // sizes["BLOCK"], heads)](
        q, k, v, out, dout, lse, delta, dq, first, *_strides(q, k, v, out, dout, dq), tokens, heads // kept,
        scale * _LOG2E, scale, far, **sizes,
    )  # fmt: skip
    _back_keys[(tokens // sizes["BLOCK"], kept)](
        q, k, v, dout, lse, delta, dk, dv, first, last, *_strides(q, k, v, dout, dk, dv), tokens, heads // kept,
        scale * _LOG2E, scale, far, **sizes,
    )  # fmt: skip

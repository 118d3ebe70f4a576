"""Attention of one new token a seat to the keys and values that the seat kept: a reading of memory, once."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2E = 1.4426950408889634


@triton.jit
def _cached(
    q_ptr, k_ptr, v_ptr, out_ptr, lengths_ptr, qn, qh, kn, kh, vn, vh, on, oh, room, group, scale, window,
    HEAD: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    seat = tl.program_id(0)
    kept = tl.program_id(1)
    end = tl.load(lengths_ptr + seat)
    d = tl.arange(0, WIDE)
    g = tl.arange(0, GROUP)
    head = kept * group + g
    inside = (g < group)[:, None] & (d < HEAD)[None, :]
    q = tl.load(q_ptr + seat.to(tl.int64) * qn + head[:, None] * qh + d[None, :], mask=inside, other=0.0)
    most = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    out = tl.zeros((GROUP, WIDE), tl.float32)
    begin = tl.maximum(end - window, 0)
    base = seat.to(tl.int64) * room
    for at in range(begin, end, BLOCK):
        n = at + tl.arange(0, BLOCK)
        there = (n < end)[:, None] & (d < HEAD)[None, :]
        rows = (base + n)[:, None]
        k = tl.load(k_ptr + rows * kn + kept * kh + d[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + rows * vn + kept * vh + d[None, :], mask=there, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        s = tl.where((n < end)[None, :], s, -1e30)
        new = tl.maximum(most, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink + tl.sum(p, axis=1)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
        most = new
    spot = out_ptr + seat.to(tl.int64) * on + head[:, None] * oh + d[None, :]
    tl.store(spot, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def attend_cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, room: int, scale: float, window: int | None
) -> Tensor:
    """Return the answers (R, H, d) of one token a seat to the seat's first ``lengths`` tokens.

    Keys and values (R · room, K, d) hold the seats one after the other, ``room`` tokens each.
    """
    seats, heads, head = q.shape
    kept = k.shape[1]
    out = torch.empty(seats, heads, head, dtype=q.dtype, device=q.device)
    wide = max(16, triton.next_power_of_2(head))
    steps = [step for part in (q, k, v, out) for step in part.stride()[:2]]
    _cached[(seats, kept)](
        q, k, v, out, lengths, *steps, room, heads // kept, scale * _LOG2E, room if window is None else window,
        HEAD=head, WIDE=wide, GROUP=max(16, triton.next_power_of_2(heads // kept)),
        BLOCK=64 if wide <= 128 and q.dtype != torch.float32 else 32,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4, num_stages=3,
    )  # fmt: skip
    return out

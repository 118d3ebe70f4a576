"""The optimizer's step of all lanes, each element of weights and moments read and written once."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _update(
    weights_ptr, first_ptr, second_ptr, grads_ptr, work_ptr, factors_ptr, settings_ptr, norms_ptr, width, columns,
    BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
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
    weights: Tensor, first: Tensor, second: Tensor, grads: Tensor, work: Tensor, factors: Tensor, settings: Tensor,
    norms: Tensor,
) -> None:  # fmt: skip
    """Update the rows that are active and sound, with their working copies, and clear all gradients (n rows).

    ``settings`` (n, 10 or more): the nine numbers of :func:`~potentia.engine.tune.optimizer.settings_row`, and
    whether the lane takes part in this step.
    """
    rows, width = first.shape
    _update[(rows, triton.cdiv(width, BLOCK))](
        weights, first, second, grads, work, factors, settings, norms, width, settings.stride(0), BLOCK=BLOCK
    )
    # not in the kernel: a store that waits for no load may overtake the load of another thread
    grads[:rows].zero_()

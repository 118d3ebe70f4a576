"""The operations of a static pass in plain tensor operations: what ``kernels`` must equal, and what a processor runs.

Every function here has a namesake there. They work on tokens of one long row (N, …), compute no gradient of a base
weight, and leave nothing to autograd: forward and backward are two functions.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potentia.engine.operations.dropout import keep_mask

if TYPE_CHECKING:
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations import Gain, RowBounds


def norm(x: Tensor, gain: Gain, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the norm of stretches (N, k · d), each times the gain (d,), and the stretches' factors (N · k,)."""
    wide = x.float().reshape(x.shape[0], -1, gain.weight.shape[0])
    scale = torch.rsqrt(wide.square().mean(dim=-1) + gain.epsilon)
    out = (wide * scale.unsqueeze(-1) * _factors(gain)).flatten(1).to(x.dtype)
    return out if into is None else into.copy_(out), scale.flatten()


def add_norm(x: Tensor, add: Tensor, gain: Gain) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + add, its norm and its factors."""
    total = x + add
    return total, *norm(total, gain)


def norm_back(
    dy: Tensor,
    x: Tensor,
    gain: Gain,
    scale: Tensor,
    add: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """Return the gradient at a norm's input, plus ``add`` where given."""
    sizes = x.shape[0], -1, gain.weight.shape[0]
    slope, factor = dy.float().reshape(sizes) * _factors(gain), scale.view(x.shape[0], -1, 1)
    unit = x.float().reshape(sizes) * factor
    dx = ((slope - unit * (slope * unit).mean(dim=-1, keepdim=True)) * factor).flatten(1)
    out = (dx if add is None else dx + add.float()).to(x.dtype)
    return out if into is None else into.copy_(out)


def _factors(gain: Gain) -> Tensor:
    return gain.weight.float() + gain.offset if gain.offset else gain.weight.float()


def rotate_(
    x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False
) -> Tensor:
    """Turn the first ``heads`` heads of ``x`` (N, …) by the tokens' angles (N, angles), or back by them.

    Where there are fewer angles than numbers in a head, only the head's first numbers are turned.
    """
    half = min(head, cos.shape[1]) // 2
    by_head = x[:, : heads * head].view(x.shape[0], heads, head)
    first_half = by_head[:, :, :half]
    second_half = by_head[:, :, half : 2 * half]
    cosines = cos[:, None, :half].float()
    sines = sin[:, None, :half].float()
    if back:
        sines = -sines
    first = first_half.float()
    second = second_half.float()
    turned_first = first * cosines - second * sines
    turned_second = second * cosines + first * sines
    first_half.copy_(turned_first)
    second_half.copy_(turned_second)
    return x


GELU = (
    2 * (2 / math.pi) ** 0.5,
    0.044715,
)  # gelu by tanh is g · sigmoid(a (g + b g³)); silu is g · sigmoid(g)


def gate(both: Tensor, gelu: bool = False) -> Tensor:
    """Return silu(g) · u, or gelu(g) · u (N, f), of ``both`` (N, 2f), g in its first half and u in its second."""
    g, u = both.float().chunk(2, dim=1)
    opened = (
        torch.nn.functional.gelu(g, approximate="tanh") if gelu else torch.nn.functional.silu(g)
    )
    return (opened * u).to(both.dtype)


def gate_back_(both: Tensor, slope: Tensor, gelu: bool = False, keep: bool = True) -> None:
    """Replace ``both`` by its gradient, given the product's, and that by the product, where it is to be kept."""
    g, u = both.float().chunk(2, dim=1)
    wide, product = slope.float(), gate(both, gelu) if keep else slope
    a, b = GELU
    opened = torch.sigmoid(a * (g + b * g**3) if gelu else g)
    gated = g * opened
    steep = gated * (1 - opened) * (a * (1 + 3 * b * g * g) if gelu else 1.0)
    both.copy_(torch.cat([wide * u * (opened + steep), wide * gated], dim=1))
    slope.copy_(product)


def attend(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return the answers (N, H, d) to queries (N, H, d) on keys and values (N, K, d), and their log-sums (H, N)."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log_sums = torch.empty(q.shape[1::-1], device=q.device)
    for span in _lane_spans(rows):
        scores, unseen = _scores(q, k, rows.first, span, scale, window)
        log_sums[:, span] = torch.logsumexp(scores, dim=-1)
        shares = torch.exp(scores - log_sums[:, span].unsqueeze(-1)).masked_fill(unseen, 0.0)
        values = v[span].repeat_interleave(group, dim=1).float()
        out[span] = torch.einsum("hmn,nhd->mhd", shares, values).to(q.dtype)
    return out, log_sums


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
    """Write the gradients of queries, keys and values ``into`` three tensors of their shapes.

    Shares are what scores are of the log-sums: these may hold more than the tokens' scores (attention sinks).
    """
    key_heads = k.shape[1]
    group = q.shape[1] // key_heads
    query_gradient, key_gradient, value_gradient = into
    for span in _lane_spans(rows):
        scores, unseen = _scores(q, k, rows.first, span, scale, window)
        shares = torch.exp(scores - lse[:, span].unsqueeze(-1)).masked_fill(unseen, 0.0)
        answer_gradient = dout[span].float()
        keys = k[span].repeat_interleave(group, dim=1).float()
        values = v[span].repeat_interleave(group, dim=1).float()
        share_gradient = torch.einsum("mhd,nhd->hmn", answer_gradient, values)
        along = (shares * share_gradient).sum(dim=-1, keepdim=True)
        score_gradient = shares * (share_gradient - along) * scale
        query_gradient[span] = torch.einsum("hmn,nhd->mhd", score_gradient, keys).to(q.dtype)
        of_keys = torch.einsum("hmn,mhd->nhd", score_gradient, q[span].float())
        of_values = torch.einsum("hmn,mhd->nhd", shares, answer_gradient)
        key_gradient[span] = _sum_groups(of_keys, key_heads).to(k.dtype)
        value_gradient[span] = _sum_groups(of_values, key_heads).to(v.dtype)


def _sum_groups(by_query_head: Tensor, key_heads: int) -> Tensor:
    """Return the sums (n, K, d) over the query heads (n, H, d) that share a key head."""
    tokens, _, width = by_query_head.shape
    return by_query_head.view(tokens, key_heads, -1, width).sum(dim=2)


def _lane_spans(rows: RowBounds) -> list[slice]:
    """The stretches of tokens that tiles never look beyond."""
    ends = sorted({stop for _, stop in rows.tiles.tolist()} | {0})
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _scores(
    q: Tensor, k: Tensor, first: Tensor, span: slice, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return scaled products (H, n, n) in a lane, −∞ where a token does not see another, and where that is (n, n)."""
    at = torch.arange(span.start, span.stop, device=q.device)
    unseen = (at > at[:, None]) | (at < first[span, None])
    if window is not None:
        unseen |= at <= at[:, None] - window
    keys = k[span].repeat_interleave(q.shape[1] // k.shape[1], dim=1).float()
    products = torch.einsum("mhd,nhd->hmn", q[span].float(), keys) * scale
    return products.masked_fill(unseen, float("-inf")), unseen


def attend_cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, room: int, scale: float, window: int | None
) -> Tensor:
    """Return the answers (R, H, d) of one token a seat to the seat's first ``lengths`` tokens.

    Keys and values (R · room, K, d) hold the seats one after the other, ``room`` tokens each.
    """
    seats, heads, _ = q.shape
    group = heads // k.shape[1]
    keys, values = (
        part[: seats * room]
        .view(seats, room, *part.shape[1:])
        .repeat_interleave(group, dim=2)
        .float()
        for part in (k, v)
    )
    at = torch.arange(room, device=q.device)
    unseen = at >= lengths[:, None]
    if window is not None:
        unseen |= at < lengths[:, None] - window
    scores = torch.einsum("rhd,rnhd->rhn", q.float(), keys) * scale
    shares = torch.softmax(scores.masked_fill(unseen[:, None], float("-inf")), dim=-1)
    return torch.einsum(
        "rhn,rnhd->rhd", shares, values.masked_fill(unseen[:, :, None, None], 0.0)
    ).to(q.dtype)


def add_adapter_outputs(x: Tensor, y: Tensor, group: AdapterGroup, route: LaneRoute) -> Tensor:
    """Add every site's adapter product to its columns of ``y`` (N, …), in place; returns the inner values (S, N, r)."""
    h = x.new_empty(len(group.sites), x.shape[0], route.bank.lora.r)
    lines = x.view(-1, route.stretch, x.shape[1])  # (stretches, 16, d)
    for number, (site, columns) in enumerate(group.parts()):
        a, b = (
            part.index_select(0, route.owners) for part in route.bank.views(route.bank.work, site)
        )
        dropped = _kept(x, site.index, route).view_as(lines)
        h[number] = torch.bmm(dropped, a).view(-1, route.bank.lora.r)
        y[:, columns] += torch.bmm(h[number].view(lines.shape[0], route.stretch, -1), b).view(
            x.shape[0], -1
        )
    return h


def backpropagate_adapters(
    dy: Tensor, dx: Tensor | None, group: AdapterGroup, route: LaneRoute
) -> Tensor:
    """Add the adapters' share to ``dx`` (where given) in place; returns the gradients of the inner values (S, N, r)."""
    dh = dy.new_empty(len(group.sites), dy.shape[0], route.bank.lora.r)
    for number, (site, columns) in enumerate(group.parts()):
        a, b = (
            part.index_select(0, route.owners) for part in route.bank.views(route.bank.work, site)
        )
        slope = torch.bmm(dy[:, columns].reshape(a.shape[0], route.stretch, -1), b.transpose(1, 2))
        dh[number] = slope.view(dy.shape[0], -1)
        if dx is not None:
            dx += _kept(torch.bmm(slope, a.transpose(1, 2)).view_as(dx), site.index, route)
    return dh


def sum_adapter_gradients(
    x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group: AdapterGroup, route: LaneRoute
) -> None:
    """Add the adapters' own gradients to the lanes' sums."""
    for number, (site, columns) in enumerate(group.parts()):
        dropped = _kept(x, site.index, route)
        sums_a, sums_b = route.bank.views(route.bank.grads, site)
        for slot, begin, end in route.spans.tolist():
            if begin < end:
                sums_a[slot] += (
                    dropped[begin:end].t() @ dh[number, begin:end]
                ).float() * route.bank.scale
                sums_b[slot] += (h[number, begin:end].t() @ dy[begin:end, columns]).float()


def _kept(x: Tensor, layer: int, route: LaneRoute) -> Tensor:
    if route.keys is None:
        return x
    return x * keep_mask(route.keys, layer, x.shape[1], route.bank.lora.dropout).to(x.dtype).mul_(
        1.0 / (1.0 - route.bank.lora.dropout)
    )


def loss(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross-entropies (N,) of logits (N, V) at the targets, and the gradient of their weighted sum.

    That gradient is softmax minus one-hot: written out, it needs one array instead of four.
    """
    slope = torch.log_softmax(logits.float(), dim=-1)
    target_columns = targets.long().unsqueeze(1)
    values = -slope.gather(1, target_columns).squeeze(1)
    slope.exp_().scatter_add_(1, target_columns, slope.new_full(target_columns.shape, -1.0)).mul_(
        weights.unsqueeze(1)
    )
    return values, slope.to(logits.dtype)


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
    """Update the rows that are active and sound, with their working copies, and clear all gradients (n rows).

    ``settings`` (n, 10 or more): the nine numbers of :func:`~potentia.engine.training.optimizer.update_settings`, and
    whether the lane takes part in this step.
    """
    _, keep, one_b1, b2, one_b2, size, root, eps, clip, active = (
        settings[:, :10].unsqueeze(2).unbind(1)
    )
    n = first.shape[0]
    norm = norms.unsqueeze(1)
    moving = (active != 0) & torch.isfinite(norm)
    g = torch.where(moving, grads[:n] * (clip / (norm + 1e-6)).clamp_(max=1.0), 0.0)
    m = torch.where(moving, first + (g - first) * one_b1, first)
    v = torch.where(moving, second * b2 + g * g * one_b2, second)
    w = torch.where(moving, weights[:n] * keep - size * (m / (v.sqrt() / root + eps)), weights[:n])
    for part, new in ((first, m), (second, v), (weights[:n], w), (work[:n], w * factors)):
        part.copy_(new)
    grads[:n].zero_()

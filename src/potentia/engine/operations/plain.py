"""The operations of a packed pass in plain tensor operations: what ``kernels`` must equal, and what a processor runs.

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
    from potentia.engine.layers.adapter_bank import AdapterSite
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations import Gain, RowBounds
    from potentia.engine.operations.grouped import RowGroups


def compiling(kind: str, /) -> None:
    """Return None: plain operations have nothing to compile."""
    return None


def norm(x: Tensor, gain: Gain, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the norm of stretches (N, k · d), each times the gain (d,), and the stretches' factors (N · k,).

    Of a stretch x it is s · x ∘ gain, with the factor s = (mean x² + ε)^(−½).
    """
    stretches = _view_stretches(x, gain)
    scale = torch.rsqrt(stretches.square().mean(dim=-1) + gain.epsilon)
    normed = stretches * scale.unsqueeze(-1) * _read_factors(gain)
    output = normed.flatten(1).to(x.dtype)
    if into is not None:
        output = into.copy_(output)
    return output, scale.flatten()


def add_norm(x: Tensor, add: Tensor, gain: Gain) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + add, its norm and its factors."""
    total = x + add
    normed, scale = norm(total, gain)
    return total, normed, scale


def norm_back(
    dy: Tensor,
    x: Tensor,
    gain: Gain,
    scale: Tensor,
    add: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """Return the gradient at a norm's input, plus ``add`` where given.

    It is s · (g − u · mean(g ∘ u)), with g = dy ∘ gain and u = s · x.
    """
    factor = scale.view(x.shape[0], -1, 1)
    normed = _view_stretches(x, gain) * factor
    unit_gradient = _view_stretches(dy, gain) * _read_factors(gain)
    along = (unit_gradient * normed).mean(dim=-1, keepdim=True)
    dx = ((unit_gradient - normed * along) * factor).flatten(1)
    if add is not None:
        dx = dx + add.float()
    input_gradient = dx.to(x.dtype)
    return input_gradient if into is None else into.copy_(input_gradient)


def _view_stretches(x: Tensor, gain: Gain) -> Tensor:
    """Return rows (N, k · d) in float32 as stretches (N, k, d) of a gain's width."""
    return x.float().reshape(x.shape[0], -1, gain.weight.shape[0])


def _read_factors(gain: Gain) -> Tensor:
    """Return what a norm multiplies by, in float32."""
    weight = gain.weight.float()
    return weight + gain.offset if gain.offset else weight


def rotate_(
    x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False
) -> Tensor:
    """Turn the first ``heads`` heads of ``x`` (N, …) by the tokens' angles (N, angles), or back by them.

    Where there are fewer angles than numbers in a head, only the head's first numbers are turned.
    """
    half_width = min(head, cos.shape[1]) // 2
    by_head = x[:, : heads * head].view(x.shape[0], heads, head)
    first_half = by_head[:, :, :half_width]
    second_half = by_head[:, :, half_width : 2 * half_width]
    cosines = cos[:, None, :half_width].float()
    sines = sin[:, None, :half_width].float()
    if back:
        sines = -sines
    first = first_half.float()
    second = second_half.float()
    turned_first = first * cosines - second * sines
    turned_second = second * cosines + first * sines
    first_half.copy_(turned_first)
    second_half.copy_(turned_second)
    return x


# gelu by tanh is g · sigmoid(SLOPE · (g + CUBIC · g³)); silu is g · sigmoid(g)
GELU_SLOPE = 2 * (2 / math.pi) ** 0.5
GELU_CUBIC = 0.044715


def gate(gates: Tensor, gelu: bool = False) -> Tensor:
    """Return silu(g) · u, or gelu(g) · u (N, f), of ``gates`` (N, 2f), g in its first half and u in its second."""
    opening, up_branch = gates.float().chunk(2, dim=1)
    if gelu:
        opened = torch.nn.functional.gelu(opening, approximate="tanh")
    else:
        opened = torch.nn.functional.silu(opening)
    return (opened * up_branch).to(gates.dtype)


def gate_back_(gates: Tensor, gradient: Tensor, gelu: bool = False, keep: bool = True) -> None:
    """Replace ``gates`` by their gradient, given the product's, and that by the product, where it is to be kept.

    With g · σ(a) for the gate's opening, its derivative is σ(a) + g · σ(a) · (1 − σ(a)) · a′.
    """
    opening, up_branch = gates.float().chunk(2, dim=1)
    product_gradient = gradient.float()
    product = gate(gates, gelu) if keep else None
    if gelu:
        argument = GELU_SLOPE * (opening + GELU_CUBIC * opening**3)
        argument_slope = GELU_SLOPE * (1 + 3 * GELU_CUBIC * opening * opening)
    else:
        argument = opening
        argument_slope = torch.ones_like(opening)
    sigmoid = torch.sigmoid(argument)
    gated = opening * sigmoid
    steepness = gated * (1 - sigmoid) * argument_slope
    opening_gradient = product_gradient * up_branch * (sigmoid + steepness)
    up_gradient = product_gradient * gated
    gates.copy_(torch.cat([opening_gradient, up_gradient], dim=1))
    if product is not None:
        gradient.copy_(product)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, position_ids: Tensor) -> Tensor:
    """Return each channel's convolution (N, C) with its filter of ``weight`` (C, K), within rows.

    A token's output is the sum of weight[K − 1 − j] · x of the token j before it, where its row reaches so far back;
    ``position_ids`` (N,) says how many tokens of its row come before a token.
    """
    tap_count = weight.shape[1]
    convolved = x.float() * weight[:, -1].float()
    if bias is not None:
        convolved += bias.float()
    for shift in range(1, tap_count):
        earlier = x[:-shift].float() * weight[:, tap_count - 1 - shift].float()
        is_in_row = (position_ids[shift:] >= shift).unsqueeze(1)
        convolved[shift:] += earlier.masked_fill(~is_in_row, 0.0)
    return convolved.to(x.dtype)


def convolve_back(dy: Tensor, weight: Tensor, position_ids: Tensor) -> Tensor:
    """Return the gradient at the input (N, C) of a convolution, given its result's."""
    tap_count = weight.shape[1]
    gradient = dy.float() * weight[:, -1].float()
    for shift in range(1, tap_count):
        later = dy[shift:].float() * weight[:, tap_count - 1 - shift].float()
        is_in_row = (position_ids[shift:] >= shift).unsqueeze(1)
        gradient[:-shift] += later.masked_fill(~is_in_row, 0.0)
    return gradient.to(dy.dtype)


def attend(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return the outputs (N, H, d) of queries (N, H, d) on keys and values (N, K, d), and their log-sums (H, N)."""
    group = q.shape[1] // k.shape[1]
    attended = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log_sums = torch.empty(q.shape[1::-1], device=q.device)
    for lane_span in _lane_spans(rows):
        scores, unseen = _scores(q, k, rows.first, lane_span, scale, window)
        log_sums[:, lane_span] = torch.logsumexp(scores, dim=-1)
        shares = torch.exp(scores - log_sums[:, lane_span].unsqueeze(-1)).masked_fill(unseen, 0.0)
        values = v[lane_span].repeat_interleave(group, dim=1).float()
        attended[lane_span] = torch.einsum("hmn,nhd->mhd", shares, values).to(q.dtype)
    return attended, log_sums


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
    for lane_span in _lane_spans(rows):
        scores, unseen = _scores(q, k, rows.first, lane_span, scale, window)
        shares = torch.exp(scores - lse[:, lane_span].unsqueeze(-1)).masked_fill(unseen, 0.0)
        output_gradient = dout[lane_span].float()
        keys = k[lane_span].repeat_interleave(group, dim=1).float()
        values = v[lane_span].repeat_interleave(group, dim=1).float()
        share_gradient = torch.einsum("mhd,nhd->hmn", output_gradient, values)
        along = (shares * share_gradient).sum(dim=-1, keepdim=True)
        score_gradient = shares * (share_gradient - along) * scale
        query_gradient[lane_span] = torch.einsum("hmn,nhd->mhd", score_gradient, keys).to(q.dtype)
        of_keys = torch.einsum("hmn,mhd->nhd", score_gradient, q[lane_span].float())
        of_values = torch.einsum("hmn,mhd->nhd", shares, output_gradient)
        key_gradient[lane_span] = _sum_groups(of_keys, key_heads).to(k.dtype)
        value_gradient[lane_span] = _sum_groups(of_values, key_heads).to(v.dtype)


def _sum_groups(by_query_head: Tensor, key_heads: int) -> Tensor:
    """Return the sums (n, K, d) over the query heads (n, H, d) that share a key head."""
    tokens, _, width = by_query_head.shape
    return by_query_head.view(tokens, key_heads, -1, width).sum(dim=2)


def _lane_spans(rows: RowBounds) -> list[slice]:
    """The stretches of tokens that tiles never look beyond."""
    ends = sorted({stop for _, stop in rows.tiles.tolist()} | {0})
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _scores(
    q: Tensor, k: Tensor, first: Tensor, lane_span: slice, scale: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return scaled products (H, n, n) in a lane, −∞ where a token does not see another, and where that is (n, n)."""
    keys_at = torch.arange(lane_span.start, lane_span.stop, device=q.device)
    queries_at = keys_at[:, None]
    unseen = (keys_at > queries_at) | (keys_at < first[lane_span, None])
    if window is not None:
        unseen |= keys_at <= queries_at - window
    keys = k[lane_span].repeat_interleave(q.shape[1] // k.shape[1], dim=1).float()
    products = torch.einsum("mhd,nhd->hmn", q[lane_span].float(), keys) * scale
    return products.masked_fill(unseen, float("-inf")), unseen


def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    capacity: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Return the outputs (R, H, d) of decode attention: one query a seat (R, H, d) on its first ``lengths`` tokens.

    Keys and values (R · capacity, K, d) hold the seats one after the other, ``capacity`` tokens each. A query sees the
    last ``window`` of its seat's tokens, the current one included; all where that is None.
    """
    group = q.shape[1] // k.shape[1]
    keys = _view_seats(k, q.shape[0], capacity, group)
    values = _view_seats(v, q.shape[0], capacity, group)
    positions = torch.arange(capacity, device=q.device)
    unseen = positions >= lengths[:, None]
    if window is not None:
        unseen |= positions < lengths[:, None] - window
    scores = torch.einsum("rhd,rnhd->rhn", q.float(), keys) * scale
    shares = torch.softmax(scores.masked_fill(unseen[:, None], float("-inf")), dim=-1)
    seen_values = values.masked_fill(unseen[:, :, None, None], 0.0)
    return torch.einsum("rhn,rnhd->rhd", shares, seen_values).to(q.dtype)


def _view_seats(cached: Tensor, seats: int, capacity: int, group: int) -> Tensor:
    """Return the seats' keys or values (R, capacity, H, d) in float32, one for every query head."""
    by_seat = cached[: seats * capacity].view(seats, capacity, *cached.shape[1:])
    return by_seat.repeat_interleave(group, dim=2).float()


def add_adapter_outputs(x: Tensor, y: Tensor, group: AdapterGroup, route: LaneRoute) -> Tensor:
    """Add every site's adapter product to its columns of ``y`` (N, …), in place; returns the inner values (S, N, r).

    The inner values are h = drop(x) A, the product is h B.
    """
    tokens, width = x.shape
    lora_rank = route.bank.lora.r
    inner = x.new_empty(len(group.sites), tokens, lora_rank)
    for number, (adapter_site, columns) in enumerate(group.parts()):
        lora_a, lora_b = _stretch_factors(adapter_site, route)
        dropped = _drop(x, adapter_site.index, route)
        by_stretch = dropped.view(-1, route.stretch, width)  # (stretches, 16, d)
        inner[number] = torch.bmm(by_stretch, lora_a).view(tokens, lora_rank)
        products = torch.bmm(inner[number].view(-1, route.stretch, lora_rank), lora_b)
        y[:, columns] += products.view(tokens, -1)
    return inner


def _stretch_factors(adapter_site: AdapterSite, route: LaneRoute) -> tuple[Tensor, Tensor]:
    """Return A (stretches, d, r) and B (stretches, r, f) of the lane that owns each stretch."""
    lora_a, lora_b = route.bank.views(route.bank.work, adapter_site)
    return lora_a.index_select(0, route.owners), lora_b.index_select(0, route.owners)


def backpropagate_adapters(
    dy: Tensor, dx: Tensor | None, group: AdapterGroup, route: LaneRoute
) -> Tensor:
    """Add the adapters' share to ``dx`` (where given) in place; returns the gradients of the inner values (S, N, r)."""
    tokens = dy.shape[0]
    inner_gradient = dy.new_empty(len(group.sites), tokens, route.bank.lora.r)
    for number, (adapter_site, columns) in enumerate(group.parts()):
        lora_a, lora_b = _stretch_factors(adapter_site, route)
        output_gradient = dy[:, columns].reshape(lora_a.shape[0], route.stretch, -1)
        site_gradient = torch.bmm(output_gradient, lora_b.transpose(1, 2))
        inner_gradient[number] = site_gradient.view(tokens, -1)
        if dx is not None:
            input_gradient = torch.bmm(site_gradient, lora_a.transpose(1, 2)).view_as(dx)
            dx += _drop(input_gradient, adapter_site.index, route)
    return inner_gradient


def sum_adapter_gradients(
    x: Tensor,
    dy: Tensor,
    inner: Tensor,
    inner_gradient: Tensor,
    group: AdapterGroup,
    route: LaneRoute,
) -> None:
    """Add the adapters' own gradients, dA = scale · drop(x)ᵀ dh and dB = hᵀ dy, to the lanes' sums."""
    for number, (adapter_site, columns) in enumerate(group.parts()):
        dropped = _drop(x, adapter_site.index, route)
        sums_a, sums_b = route.bank.views(route.bank.grads, adapter_site)
        for slot, begin, end in route.spans.tolist():
            if begin == end:
                continue
            lane = slice(begin, end)
            product_a = dropped[lane].t() @ inner_gradient[number, lane]
            product_b = inner[number, lane].t() @ dy[lane, columns]
            sums_a[slot] += product_a.float() * route.bank.scale
            sums_b[slot] += product_b.float()


def _drop(x: Tensor, layer: int, route: LaneRoute) -> Tensor:
    """Return ``x`` after a layer's dropout; itself where nothing is dropped."""
    if route.keys is None:
        return x
    probability = route.bank.lora.dropout
    is_kept = keep_mask(route.keys, layer, x.shape[1], probability)
    factors = is_kept.to(x.dtype).mul_(1.0 / (1.0 - probability))
    return x * factors


def group_inner_values(x: Tensor, factors: Tensor, groups: RowGroups) -> Tensor:
    """Return x Fᵀ (S, r) of rows x (S, d), each with the factors F (r, d) of its group, of ``factors`` (G, r, d)."""
    inner = x.new_zeros(x.shape[0], factors.shape[1])
    for group, begin, end in groups.filled():
        torch.mm(x[begin:end], factors[group].t(), out=inner[begin:end])
    return inner


def add_group_outputs_(inner: Tensor, factors: Tensor, y: Tensor, groups: RowGroups) -> None:
    """Add h F to ``y`` (S, d), of rows h of ``inner`` (S, r), each with the factors F (r, d) of its group."""
    for group, begin, end in groups.filled():
        y[begin:end] += inner[begin:end] @ factors[group]


def group_gradients(inner: Tensor, x: Tensor, groups: RowGroups) -> Tensor:
    """Return hᵀ x (G, r, d) of every group's rows h of ``inner`` (S, r) and x (S, d), in float32."""
    gradients = torch.zeros(len(groups.ends), inner.shape[1], x.shape[1], device=x.device)
    for group, begin, end in groups.filled():
        gradients[group] = inner[begin:end].t().float() @ x[begin:end].float()
    return gradients


def loss(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross-entropies (N,) of logits (N, V) at the targets, and the gradient of their weighted sum.

    That gradient is softmax minus one-hot: written out, it needs one array instead of four.
    """
    target_columns = targets.long().unsqueeze(1)
    log_shares = torch.log_softmax(logits.float(), dim=-1)
    losses = -log_shares.gather(1, target_columns).squeeze(1)
    gradient = log_shares.exp_()
    minus_one = gradient.new_full(target_columns.shape, -1.0)
    gradient.scatter_add_(1, target_columns, minus_one)
    gradient.mul_(weights.unsqueeze(1))
    return losses, gradient.to(logits.dtype)


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
    """Update the rows that are active and sound, with their working copies, and clear all gradients (n rows).

    ``settings`` (n, 10 or more): the nine numbers of :func:`~potentia.engine.steps.lane_states.settings_of_update`, and
    whether the lane takes part in this step.
    """
    (
        _,
        decay,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        step_size,
        second_root,
        epsilon,
        max_norm,
        active,
    ) = settings[:, :10].unsqueeze(2).unbind(1)
    lanes = first.shape[0]
    lane_weights = weights[:lanes]
    norm = norms.unsqueeze(1)
    moving = (active != 0) & torch.isfinite(norm)
    clipping = (max_norm / (norm + 1e-6)).clamp_(max=1.0)
    gradient = torch.where(moving, grads[:lanes] * clipping, 0.0)
    new_first = first + (gradient - first) * one_minus_beta1
    new_second = second * beta2 + gradient * gradient * one_minus_beta2
    direction = new_first / (new_second.sqrt() / second_root + epsilon)
    new_weights = lane_weights * decay - step_size * direction
    first.copy_(torch.where(moving, new_first, first))
    second.copy_(torch.where(moving, new_second, second))
    lane_weights.copy_(torch.where(moving, new_weights, lane_weights))
    working_copy[:lanes].copy_(lane_weights * scales)
    grads[:lanes].zero_()

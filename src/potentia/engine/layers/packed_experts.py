"""Experts kept as stacked weights in a packed pass: grouped products over (expert, slot) on sorted tokens.

Every token of the long row is paired with each expert that its router chose. Pairs are sorted by expert, and within an
expert by slot, so that one order serves both products of y = x W_e + (x A_ke) B_ke: the base's runs over groups of one
expert, the adapters' over groups of one expert and one slot k. No weight of a slot is ever written out. The backward
pass adds the adapters' gradients, group by group, to the bank's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.row_layout import PackedRun
from potentia.engine.operations.grouped import RowGroups

if TYPE_CHECKING:
    from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
    from potentia.engine.layers.lane_layers import AdaptedStack

ALIGNMENT = 16  # bytes that torch's grouped product wants strides to be multiples of
MOST_GROUPS = 1023  # that torch's grouped product takes: it has a thread for each
# GPUs that have the kernel; torch answers others by a loop on the host
KERNEL_GENERATIONS = (9, 10)


@dataclass(frozen=True)
class SortedPairs:
    """The pairs of tokens and experts of a pass, sorted by expert and slot."""

    order: Tensor  # (S,) the pair at each sorted position
    experts: Tensor  # (S,) of the sorted pairs
    expert_ends: Tensor  # (E,) one past the last pair of each expert
    groups: RowGroups  # pairs of one expert and one slot, E · (K + 1) groups


def compute_experts(packed_run: PackedRun, stack: AdaptedStack, *arguments: Any) -> Tensor:
    """Compute a module of experts on the tokens (N, d) of a pass, given each token's experts (N, k) and weights."""
    module: Any = stack.module
    _refuse_other_kinds(module)
    hidden, chosen, weights = _read_routing(arguments)
    tokens, active = chosen.shape
    if tokens != packed_run.route.owners.shape[0] * packed_run.route.stretch:
        raise NotImplementedError("experts that are given other tokens than the pass has")
    pairs = _sort_pairs(packed_run, module.num_experts, chosen)
    sites = {stacked.parameter: stacked.site for stacked in stack.weights}
    first = "gate_up_proj" if module.has_gate else "up_proj"
    inputs = hidden[pairs.order // active]
    inner = _multiply(packed_run, module, first, sites, inputs, pairs)
    activated = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outputs = _multiply(packed_run, module, "down_proj", sites, activated, pairs)
    weighted = outputs * weights.reshape(-1)[pairs.order].unsqueeze(-1)
    sorted_positions = torch.empty_like(pairs.order)
    sorted_positions[pairs.order] = torch.arange(len(pairs.order), device=pairs.order.device)
    by_token = weighted[sorted_positions].view(tokens, active, -1)
    return by_token.sum(dim=1).to(hidden.dtype)


def _read_routing(arguments: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a pass's tokens, the experts that each chose and their weights, as standard modules are given them."""
    hidden, chosen, weights = arguments
    return hidden, chosen, weights


def _refuse_other_kinds(module: Any) -> None:
    """Refuse modules that do not say how their experts are laid out, as transformers' standard ones do."""
    needed_names = ("num_experts", "has_gate", "is_transposed", "has_bias")
    says_its_layout = all(hasattr(module, name) for name in needed_names)
    has_norm = getattr(module, "has_post_expert_norm", False)
    if not says_its_layout or has_norm or getattr(module, "_is_expert_parallel", False):
        raise NotImplementedError(f"experts of another kind: {type(module).__name__}")


def _sort_pairs(packed_run: PackedRun, experts: int, chosen: Tensor) -> SortedPairs:
    """Sort the pairs of tokens and experts by expert, and by slot within an expert."""
    slots = packed_run.route.bank.slots + 1
    owners = packed_run.route.owners.long().repeat_interleave(packed_run.route.stretch)
    groups = (chosen.long() * slots + owners[:, None]).reshape(-1)
    sorted_groups, order = torch.sort(groups, stable=True)
    bounds = torch.arange(1, experts * slots + 1, device=groups.device)
    group_ends = torch.searchsorted(sorted_groups, bounds).to(torch.int32)
    return SortedPairs(
        order=order,
        experts=sorted_groups // slots,
        expert_ends=group_ends[slots - 1 :: slots].contiguous(),
        groups=RowGroups.from_ends(group_ends, len(order)),
    )


def _multiply(
    packed_run: PackedRun,
    module: Any,
    parameter: str,
    sites: dict[str, AdapterSite],
    x: Tensor,
    pairs: SortedPairs,
) -> Tensor:
    """Multiply sorted tokens with an expert's projection, its slots' adapters included."""
    stacked: Tensor = getattr(module, parameter)
    weight = stacked if module.is_transposed else stacked.transpose(1, 2)  # (E, in, out)
    adapter_site = sites.get(parameter)
    output: Tensor = _ExpertProduct.apply(  # type: ignore[no-untyped-call]
        x, packed_run.route.bank.anchor, weight, packed_run, adapter_site, pairs
    )
    if module.has_bias:
        output = output + getattr(module, f"{parameter}_bias")[pairs.experts]
    return output


class _ExpertProduct(torch.autograd.Function):
    """x W_e + (x A_ke) B_ke on sorted tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Tensor,
        packed_run: PackedRun,
        adapter_site: AdapterSite | None,
        pairs: SortedPairs,
    ) -> Tensor:
        output = grouped_product(x, weight, pairs.expert_ends)
        ctx.held = weight, packed_run, adapter_site, pairs
        if adapter_site is None:
            return output
        lora_a, lora_b = _group_factors(packed_run.route.bank, adapter_site)
        inner = packed_run.operations.group_inner_values(x, lora_a, pairs.groups)
        packed_run.operations.add_group_outputs_(inner, lora_b, output, pairs.groups)
        ctx.save_for_backward(x, inner)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, packed_run, adapter_site, pairs = ctx.held
        operations = packed_run.operations
        output_gradient = gradients[0].contiguous()
        input_gradient = grouped_product(output_gradient, weight.transpose(1, 2), pairs.expert_ends)
        if adapter_site is not None:
            x, inner = ctx.saved_tensors
            adapter_bank = packed_run.route.bank
            lora_a, lora_b = _group_factors(adapter_bank, adapter_site)
            inner_gradient = operations.group_inner_values(output_gradient, lora_b, pairs.groups)
            operations.add_group_outputs_(inner_gradient, lora_a, input_gradient, pairs.groups)
            a_gradients = operations.group_gradients(inner_gradient, x, pairs.groups)
            b_gradients = operations.group_gradients(inner, output_gradient, pairs.groups)
            _add_gradients(adapter_bank, adapter_site, a_gradients, b_gradients)
        return input_gradient, None, None, None, None, None


def _group_factors(adapter_bank: AdapterBank, adapter_site: AdapterSite) -> tuple[Tensor, Tensor]:
    """Return A (G, r, in) and B (G, r, out) of all groups: expert by expert, and slot by slot within an expert."""
    lora_a, lora_b = adapter_bank.views(adapter_bank.work, adapter_site)
    slots = lora_a.shape[0]
    expert_rank = adapter_site.rank // adapter_site.experts
    by_expert = lora_a.transpose(1, 2).view(
        slots, adapter_site.experts, expert_rank, adapter_site.fan_in
    )
    a_groups = by_expert.transpose(0, 1).reshape(-1, expert_rank, adapter_site.fan_in)
    b_groups = lora_b.view(slots, expert_rank, adapter_site.experts, adapter_site.fan_out).permute(
        2, 0, 1, 3
    )
    return a_groups, b_groups.reshape(-1, expert_rank, adapter_site.fan_out)


def _add_gradients(
    adapter_bank: AdapterBank, adapter_site: AdapterSite, a_gradients: Tensor, b_gradients: Tensor
) -> None:
    """Add gradients of A (G, r, in) and B (G, r, out) to the bank's, in the order that PEFT numbers columns."""
    a_sums, b_sums = adapter_bank.views(adapter_bank.grads, adapter_site)
    slots = a_sums.shape[0]
    expert_rank = adapter_site.rank // adapter_site.experts
    a_by_slot = a_gradients.view(adapter_site.experts, slots, expert_rank, adapter_site.fan_in)
    a_by_slot = a_by_slot.permute(1, 3, 0, 2).reshape(a_sums.shape)
    a_sums.add_(a_by_slot, alpha=adapter_site.scale)
    b_by_slot = b_gradients.view(adapter_site.experts, slots, expert_rank, adapter_site.fan_out)
    if adapter_site.projections > 1:
        b_by_slot = b_by_slot * adapter_site.block_mask(b_by_slot.device).to(b_by_slot.dtype)
    b_sums.add_(b_by_slot.permute(1, 2, 0, 3).reshape(b_sums.shape))


# ---- grouped products -----------------------------------------------------------------------------------------------


def multiplies_without_host(adapter_bank: AdapterBank) -> bool:
    """Return whether the GPU multiplies all stacked experts of a bank without asking the host for group sizes."""
    stacked_sites = [site for site in adapter_bank.sites if site.experts]
    if not stacked_sites:
        return True
    if not _has_kernel(adapter_bank.device, adapter_bank.dtype):
        return False
    alignment = ALIGNMENT // adapter_bank.dtype.itemsize
    widths = [math.gcd(site.fan_in, site.fan_out) for site in stacked_sites]
    return all(width % alignment == 0 for width in widths)


def grouped_product(
    x: Tensor, weights: Tensor, group_ends: Tensor, most_groups: int = MOST_GROUPS
) -> Tensor:
    """Multiply groups of rows of x (S, in), each with its own matrix of ``weights`` (G, in, out)."""
    if len(group_ends) <= most_groups:
        return _multiply_groups(x, weights, group_ends)
    rows = torch.arange(x.shape[0], device=x.device)
    no_matrix = weights.new_zeros(1, *weights.shape[1:])
    output = x.new_zeros(x.shape[0], weights.shape[2])
    for groups, part_ends in _divide_groups(group_ends, most_groups):
        matrices = torch.cat([no_matrix, weights[groups]])
        product = _multiply_groups(x, matrices, part_ends)
        in_part = (rows >= part_ends[0]) & (rows < part_ends[-1])
        output = torch.where(in_part[:, None], product, output)
    return output


def _divide_groups(group_ends: Tensor, most_groups: int) -> Iterator[tuple[slice, Tensor]]:
    """Divide groups into parts that the kernel takes; a part's first end is where its own groups begin.

    Rows before a part are a group of their own, whose product is thrown away. So the host need not know where parts
    begin, and a GPU can replay the pass.
    """
    count = len(group_ends)
    first_begin = group_ends.new_zeros(1)
    for first in range(0, count, most_groups - 1):
        groups = slice(first, min(count, first + most_groups - 1))
        begin = group_ends[first - 1 : first] if first else first_begin
        yield groups, torch.cat([begin, group_ends[groups]])


def _multiply_groups(x: Tensor, weights: Tensor, group_ends: Tensor) -> Tensor:
    if _has_grouped_product(x, weights):
        return nn.functional.grouped_mm(x, weights, offs=group_ends)
    output = x.new_zeros(x.shape[0], weights.shape[2])
    for group, (begin, end) in _filled_groups(group_ends):
        torch.mm(x[begin:end], weights[group], out=output[begin:end])
    return output


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch has a kernel of grouped products for a device and dtype."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    if not hasattr(nn.functional, "grouped_mm"):
        return False
    generation, _ = torch.cuda.get_device_capability(device)
    return generation in KERNEL_GENERATIONS


def _has_grouped_product(x: Tensor, other: Tensor) -> bool:
    """Return whether torch's own grouped product takes these: its kernel is there, and widths are aligned."""
    if not _has_kernel(x.device, x.dtype):
        return False
    widths = (x.shape[-1], other.shape[-1], other.shape[-2] if other.dim() == 3 else 0)
    return all(width * x.element_size() % ALIGNMENT == 0 for width in widths)


def _filled_groups(ends_of_groups: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Return the groups that have rows: their numbers, and their first rows and ends."""
    group_ends = ends_of_groups.tolist()
    group_begins = [0, *group_ends[:-1]]
    spans = enumerate(zip(group_begins, group_ends, strict=True))
    return [(group, (begin, end)) for group, (begin, end) in spans if end > begin]

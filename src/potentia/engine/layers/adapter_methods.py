"""Adapter methods: what an adapter is in a layer, how it computes and learns, and how PEFT names it.

To add a method, write a class here, register it in :data:`ADAPTER_METHODS` or as an extension, and let
``engine/proof/reference.py`` compute it by plain hooks where PEFT's factor is not all that differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from potentia.engine.layers.lane_layers import add_adapter_share, backpropagate_adapter_share
from potentia.errors import InputError
from potentia.extensions import ExtensionKind, has_extension, load_extension

if TYPE_CHECKING:
    from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite


class LowRankAdapter:
    """LoRA: y = x W + b + s · dropout(x) A B, where s is α/r."""

    peft_options: dict[str, Any] = {}  # noqa: RUF012 - read only
    peft_alpha_factor: float = 1  # PEFT's α is so many times ours: with it, its factor is our scale

    def scale(self, rank: float, alpha: float) -> float:
        """Return the factor on an adapter's output; the proof compares it with PEFT's."""
        return alpha / rank

    def count_numbers(self, fan_in: int, fan_out: int, rank: int) -> int:
        """Return how many numbers an adapter has in a layer."""
        return (fan_in + fan_out) * rank

    def draw_start(
        self,
        adapter_bank: AdapterBank,
        row: Tensor,
        adapter_site: AdapterSite,
        stream: torch.Generator,
    ) -> None:
        """Draw its numbers in a layer of a new row (1, P) as PEFT does: A uniform in ±1/√d, B zero."""
        lora_a, _ = adapter_bank.views(row, adapter_site)
        for columns in torch.split(
            lora_a, adapter_site.projection_rank, dim=2
        ):  # an expert's projection at a time
            columns.copy_(
                (torch.rand(columns.shape, generator=stream) * 2 - 1) * adapter_site.fan_in**-0.5
            )

    def peft_parts(
        self, adapter_bank: AdapterBank, row: Tensor, adapter_site: AdapterSite
    ) -> dict[str, Tensor]:
        """View its numbers in a layer of a row (1, P) by the names and in the shapes that PEFT gives them."""
        lora_a, lora_b = adapter_bank.views(row, adapter_site)
        if adapter_site.is_turned_in_peft:
            return turn_factors(lora_a[0], lora_b[0], adapter_site.experts)
        return {"lora_A.weight": lora_a[0].t(), "lora_B.weight": lora_b[0].t()}

    def join_parts(
        self, parts: Sequence[Mapping[str, Tensor]], sites: Sequence[AdapterSite]
    ) -> dict[str, Tensor]:
        """Join the adapters of a layer's projections to the one that PEFT has: B is zero outside their own blocks."""
        blocks = [part["lora_B.weight"] for part in parts]
        return {
            "lora_A.weight": torch.cat([part["lora_A.weight"] for part in parts]),
            "lora_B.weight": lay_out_blocks(blocks, sites),
        }

    def forward(
        self,
        ctx: Any,
        x: Tensor,
        adapter_bank: AdapterBank,
        adapter_site: AdapterSite,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Compute a layer, each row with its slot's adapter; without ``weight``, the adapters' share alone."""
        ctx.base = weight
        shape = (*x.shape[:-1], adapter_site.fan_out)
        if weight is None:
            share = x.new_zeros(shape, dtype=adapter_bank.dtype)
            flat_share = share.view(-1, adapter_site.fan_out)
            add_adapter_share(
                ctx, x.to(adapter_bank.dtype), adapter_bank, adapter_site, into=flat_share
            )
            return share
        output = x.new_empty(shape)  # no view of another tensor: those may not be written into
        flat_input = x.reshape(-1, x.shape[-1])
        flat_output = output.view(-1, adapter_site.fan_out)
        if bias is None:
            torch.mm(flat_input, weight, out=flat_output)
        else:
            torch.addmm(bias, flat_input, weight, out=flat_output)
        add_adapter_share(ctx, x, adapter_bank, adapter_site, into=flat_output)
        return output

    def backward(self, ctx: Any, grad_output: Tensor) -> Tensor | None:
        """Add the adapters' gradients to the bank's; return the input's."""
        return backpropagate_adapter_share(ctx, grad_output, ctx.base)


def turn_factors(lora_a: Tensor, lora_b: Tensor, experts: int) -> dict[str, Tensor]:
    """Return PEFT's factors of a stacked parameter whose outputs it takes for inputs: A is B there, and B is A.

    PEFT numbers the ranks of its A expert by expert, and those of its B rank by rank; ours lie in the same way.
    """
    expert_rank = lora_b.shape[0] // experts
    by_rank = lora_b.view(expert_rank, experts, -1)
    by_expert = lora_a.reshape(lora_a.shape[0], experts, expert_rank)
    return {
        "lora_A.weight": by_rank.transpose(0, 1).reshape(lora_b.shape),
        "lora_B.weight": by_expert.transpose(1, 2).reshape(lora_a.shape),
    }


def lay_out_blocks(blocks: Sequence[Tensor], sites: Sequence[AdapterSite]) -> Tensor:
    """Return B (out, ranks) of a layer: each projection's block (its outputs, r) in its own rows and columns.

    Each of several sites of a layer says by ``columns`` which of the layer's outputs are its own, which are rows of B.
    """
    outputs = sum(site.fan_out for site in sites)
    joined = torch.zeros(outputs, sum(site.rank for site in sites))
    first_rank = 0
    for block, adapter_site in zip(blocks, sites, strict=True):
        joined[list(adapter_site.columns or ()), first_rank : first_rank + adapter_site.rank] = (
            block
        )
        first_rank += adapter_site.rank
    return joined


class RankStabilizedAdapter(LowRankAdapter):
    """rsLoRA: LoRA with a factor of α/√r."""

    peft_options = {"use_rslora": True}  # noqa: RUF012 - read only

    def scale(self, rank: float, alpha: float) -> float:
        """Return the factor on an adapter's output."""
        return alpha / math.sqrt(rank)


ADAPTER_METHODS: dict[str, LowRankAdapter] = {
    "lora": LowRankAdapter(),
    "rslora": RankStabilizedAdapter(),
}


def find_adapter_method(method_name: str) -> LowRankAdapter:
    """Return the adapter method of a name; an unknown one is an error."""
    if method_name in ADAPTER_METHODS:
        return ADAPTER_METHODS[method_name]
    if has_extension(ExtensionKind.ADAPTER_METHOD, method_name):
        registered: type[LowRankAdapter] = load_extension(ExtensionKind.ADAPTER_METHOD, method_name)
        return registered()
    method_names = " or ".join(ADAPTER_METHODS)
    raise InputError(f"unknown adapter {method_name!r}", hint=f"use {method_names}")

"""Adapter methods: what an adapter is in a layer, how it computes and learns, and how PEFT names it.

To add a method, write a class here, register it in :data:`ADAPTER_METHODS`, let ``engine/proof/reference.py`` compute
it by plain hooks, and name it in the study's ``method``.
"""

from __future__ import annotations

import math
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

    def scale(self, rank: float, alpha: float) -> float:
        """Return the factor on an adapter's output."""
        return alpha / rank

    def count_numbers(self, fan_in: int, fan_out: int, rank: int) -> int:
        """Return how many numbers an adapter has in a layer."""
        return (fan_in + fan_out) * rank

    def draw_start(
        self, bank: AdapterBank, row: Tensor, site: AdapterSite, stream: torch.Generator
    ) -> None:
        """Draw its numbers in a layer of a new row (1, P) as PEFT does: A uniform in ±1/√d, B zero."""
        a, _ = bank.views(row, site)
        a.copy_((torch.rand(a.shape, generator=stream) * 2 - 1) * site.fan_in**-0.5)

    def peft_parts(self, bank: AdapterBank, row: Tensor, site: AdapterSite) -> dict[str, Tensor]:
        """View its numbers in a layer of a row (1, P) by the names and in the shapes that PEFT gives them."""
        a, b = bank.views(row, site)
        return {"lora_A.weight": a[0].t(), "lora_B.weight": b[0].t()}

    def forward(
        self,
        ctx: Any,
        x: Tensor,
        bank: AdapterBank,
        site: AdapterSite,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Compute a layer, each row with its slot's adapter; without ``weight``, the adapters' share alone."""
        ctx.base = weight
        shape = (*x.shape[:-1], site.fan_out)
        if weight is None:
            share = x.new_zeros(shape, dtype=bank.dtype)
            flat_share = share.view(-1, site.fan_out)
            add_adapter_share(ctx, x.to(bank.dtype), bank, site, into=flat_share)
            return share
        output = x.new_empty(shape)  # no view of another tensor: those may not be written into
        flat_input = x.reshape(-1, x.shape[-1])
        flat_output = output.view(-1, site.fan_out)
        if bias is None:
            torch.mm(flat_input, weight, out=flat_output)
        else:
            torch.addmm(bias, flat_input, weight, out=flat_output)
        add_adapter_share(ctx, x, bank, site, into=flat_output)
        return output

    def backward(self, ctx: Any, slope: Tensor) -> Tensor | None:
        """Add the adapters' gradients to the bank's; return the input's."""
        return backpropagate_adapter_share(ctx, slope, ctx.base)


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


def find_adapter_method(name: str) -> LowRankAdapter:
    """Return the adapter method of a name; an unknown one is an error."""
    if name in ADAPTER_METHODS:
        return ADAPTER_METHODS[name]
    if has_extension(ExtensionKind.ADAPTER_METHOD, name):
        registered: type[LowRankAdapter] = load_extension(ExtensionKind.ADAPTER_METHOD, name)
        return registered()
    method_names = " or ".join(ADAPTER_METHODS)
    raise InputError(f"unknown adapter {name!r}", hint=f"use {method_names}")

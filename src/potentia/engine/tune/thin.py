"""What the thin products of a long row need to know: whose stretch is whose, and where adapters lie in a lane's row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potentia.engine.tune.adapters import AdapterBank, Site
from potentia.engine.tune.dropout import layer_mix

STRETCH = 16  # tokens of a lane are filled up to a multiple of this, the least that a matrix unit takes


@dataclass(frozen=True)
class Route:
    """The lanes of one long row: the owner of every stretch, each slot's span of tokens, the tokens' dropout keys."""

    bank: AdapterBank
    owners: Tensor  # (N / 16,) slots; the bank's last row is the bare model
    spans: Tensor  # (slots, 2) first token of the slot and one past its last
    keys: Tensor | None  # (N,)
    stretch: int = STRETCH

    @property
    def work(self) -> Tensor:
        """The adapters to multiply with, a row per slot."""
        return self.bank.work

    @property
    def grads(self) -> Tensor:
        """The sums of their gradients."""
        return self.bank.grads

    @property
    def rank(self) -> int:
        """The adapters' rank."""
        return self.bank.lora.r

    @property
    def dropout(self) -> float:
        """The share of inputs dropped."""
        return self.bank.lora.dropout

    @property
    def scale(self) -> float:
        """The factor α/r, already in the working copy of A."""
        return self.bank.lora.scale

    def views(self, flat: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """View one layer's A and B of all slots."""
        return self.bank.views(flat, site)


class ThinGroup:
    """The adapted layers that read the same input and write side by side into the same output."""

    def __init__(self, sites: Sequence[tuple[Site, int]], rank: int, device: torch.device) -> None:
        self.sites = tuple(site for site, _ in sites)
        self.columns = tuple(column for _, column in sites)
        self.widest = max(site.fan_out for site in self.sites)
        rows = [
            [site.offset, site.offset + site.fan_in * rank, column, site.fan_out, layer_mix(site.index)]
            for site, column in sites
        ]
        self.table = torch.tensor(rows, dtype=torch.int32, device=device)  # (S, 5)

    def parts(self) -> Iterator[tuple[Site, slice]]:
        """Each site with its columns of the output."""
        for site, column in zip(self.sites, self.columns, strict=True):
            yield site, slice(column, column + site.fan_out)

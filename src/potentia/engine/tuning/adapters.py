"""Many low-rank adapters on one frozen model: stacked weights, the linear layer that uses them, and the way in and out.

An :class:`AdapterBank` holds the adapters of K slots as rows of one matrix (K + 1, P); the last row stays zero and
stands for the bare model. Each adapted layer sees views A (K, d, r) and B (K, r, o) of it. A forward pass names the
slot of every row of its batch; the base product runs once on all rows, the adapters as batched products of gathered A
and B. Weights of the base are frozen, so the backward pass computes input gradients through the base and adds the
adapters' gradients, row by row in order, straight into a second (K + 1, P) matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.tuning.dropout import Dropout
from potentia.engine.tuning.schedule import LoraConfig
from potentia.errors import TuningError


def target_modules(model: nn.Module, lora: LoraConfig) -> tuple[str, ...]:
    """Find which layers get an adapter: the user's choice, else PEFT's for the architecture, else all linear ones."""
    if lora.targets is not None:
        return lora.targets
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    found = DEFAULTS.get(getattr(model.config, "model_type", ""))
    if found is None:
        return ("all-linear",)
    return (found,) if isinstance(found, str) else tuple(found)


def adapted_layers(model: nn.Module, targets: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    """Return the layers, by name, that ``targets`` select, under PEFT's rules for names."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()  # type: ignore[operator]
    chosen: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if targets == ("all-linear",):
            if module is head or not isinstance(module, nn.Linear | Conv1D):
                continue
        elif len(targets) == 1 and not targets[0].replace("_", "").replace(".", "").isalnum():
            if not re.fullmatch(targets[0], name):
                continue
        elif not any(name == target or name.endswith("." + target) for target in targets):
            continue
        if not isinstance(module, nn.Linear | Conv1D):
            raise TuningError(f"layer {name} is a {type(module).__name__}: adapters fit Linear and Conv1D layers only")
        chosen.append((name, module))
    if not chosen:
        raise TuningError(
            f"no layer of {type(model).__name__} is named {', '.join(targets)}",
            hint="name the layers with `targets`, or use targets: [all-linear]",
        )
    return chosen


@dataclass(frozen=True)
class Site:
    """One adapted layer: its name, its place in the flat row, and its widths."""

    name: str
    index: int
    fan_in: int
    fan_out: int
    offset: int


GATHERED_BYTES = 2 << 30


class Routing:
    """Which slot each row of the pass under way uses, and the rows' dropout keys (training only)."""

    def __init__(self) -> None:
        self.owners: Tensor | None = None
        self.keys: Tensor | None = None
        self.gathered: Tensor | None = None  # (R, P): the rows' adapters, gathered once for all layers of a pass
        self.single = False
        self.long_row: Callable[[Tensor, Site, Tensor, Tensor | None], Tensor] | None = None  # static passes' products


class AdapterBank:
    """The adapters of up to ``slots`` lanes on ``model``; wraps its layers while installed and leaves no trace."""

    def __init__(self, model: nn.Module, lora: LoraConfig, slots: int) -> None:
        self.model, self.lora, self.slots = model, lora, slots
        self.targets = target_modules(model, lora)
        layers = adapted_layers(model, self.targets)
        self.sites: list[Site] = []
        offset = 0
        for index, (name, module) in enumerate(layers):
            fan_in, fan_out = _widths(module)
            self.sites.append(Site(name, index, fan_in, fan_out, offset))
            offset += (fan_in + fan_out) * lora.r
        first = layers[0][1].weight
        assert isinstance(first, Tensor)
        self.device, self.dtype = first.device, first.dtype
        self.width = offset
        self.weights = torch.zeros(slots + 1, offset, dtype=torch.float32, device=self.device)
        self.grads = torch.zeros_like(self.weights)
        self.work = torch.zeros_like(self.weights, dtype=self.dtype)
        self.factors = torch.ones(offset, device=self.device)
        for site in self.sites:
            self.factors[site.offset : site.offset + site.fan_in * lora.r] = lora.scale
        self.anchor = torch.zeros((), requires_grad=True, device=self.device)
        self.routing = Routing()
        self._layers = [module for _, module in layers]
        self._frozen = [(p, p.requires_grad) for p in model.parameters()]
        for parameter, _ in self._frozen:
            parameter.requires_grad_(False)
        self._before = [module.__dict__.get("forward") for module in self._layers]
        for site, module in zip(self.sites, self._layers, strict=True):
            module.forward = _LaneForward(self, site, module)

    def close(self) -> None:
        """Take the adapters off: the model computes, and asks for gradients, as it did before."""
        for module, before in zip(self._layers, self._before, strict=True):
            module.__dict__.pop("forward", None)
            if before is not None:
                module.forward = before
        for parameter, flag in self._frozen:
            parameter.requires_grad_(flag)
        self._layers, self._before, self._frozen = [], [], []

    def refresh(self) -> None:
        """Bring the copy that passes multiply with up to date: in the base's dtype, A already scaled by α/r."""
        self.work.copy_(self.weights * self.factors)

    def views(self, flat: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """View one layer's A (K + 1, d, r) and B (K + 1, r, o) inside a flat (K + 1, P) matrix."""
        r, cut = self.lora.r, site.offset + site.fan_in * self.lora.r
        stop = cut + r * site.fan_out
        rows = flat.shape[0]
        return flat[:, site.offset : cut].view(rows, site.fan_in, r), flat[:, cut:stop].view(rows, r, site.fan_out)

    def fresh(self, seed: int) -> Tensor:
        """Draw a new adapter's flat row from the seed alone: A uniform in ±1/√d as PEFT draws it, B zero."""
        row = torch.zeros(1, self.width)
        stream = torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        for site in self.sites:
            a, _ = self.views(row, site)
            bound = site.fan_in**-0.5
            a.copy_((torch.rand(a.shape, generator=stream) * 2 - 1) * bound)
        return row[0]

    def state(self, row: Tensor) -> dict[str, Tensor]:
        """Return a flat row as PEFT's state dict."""
        row = row.detach().cpu().float().unsqueeze(0)
        out: dict[str, Tensor] = {}
        for site in self.sites:
            a, b = self.views(row, site)
            out[f"base_model.model.{site.name}.lora_A.weight"] = a[0].t().contiguous()
            out[f"base_model.model.{site.name}.lora_B.weight"] = b[0].t().contiguous()
        return out

    def flat(self, state: dict[str, Tensor]) -> Tensor:
        """PEFT's state dict as a flat row."""
        row = torch.zeros(1, self.width)
        for site in self.sites:
            a, b = self.views(row, site)
            try:
                a.copy_(state[f"base_model.model.{site.name}.lora_A.weight"].t().unsqueeze(0))
                b.copy_(state[f"base_model.model.{site.name}.lora_B.weight"].t().unsqueeze(0))
            except (KeyError, RuntimeError) as error:
                raise TuningError(f"the adapter does not fit layer {site.name}: {error}") from error
        return row[0]

    def gathered(self, site: Site) -> tuple[Tensor, Tensor]:
        """Return A (R, d, r) and B (R, r, o) of one layer for every row of the pass under way."""
        if self.routing.gathered is not None:
            return self.views(self.routing.gathered, site)
        assert self.routing.owners is not None
        a, b = self.views(self.work, site)
        return a.index_select(0, self.routing.owners), b.index_select(0, self.routing.owners)

    def route(self, row_owners: Tensor | None) -> None:
        """Name the slot of every row of the next forward pass; −1 is the bare model, None switches adapters off."""
        self.routing.keys = self.routing.gathered = None
        if row_owners is None:
            self.routing.owners = None
            return
        owners = row_owners.to(self.device, torch.int64)
        owners = torch.where(owners < 0, self.slots, owners)
        # one owner for all rows needs no gathering; asking a GPU would wait for it
        self.routing.single = owners.device.type == "cpu" and bool((owners == owners[0]).all())
        self.routing.owners = owners

    @contextmanager
    def training_rows(self, owners: Tensor, keys: Tensor | None) -> Iterator[None]:
        """Route one pass of training: its rows' slots and dropout keys."""
        routing = self.routing
        routing.owners, routing.keys, routing.single = owners, keys, False
        if owners.shape[0] * self.width * self.work.element_size() <= GATHERED_BYTES:
            routing.gathered = self.work.index_select(0, owners)
        try:
            yield
        finally:
            routing.owners = routing.keys = routing.gathered = None


def _widths(module: nn.Module) -> tuple[int, int]:
    weight = module.weight
    assert isinstance(weight, Tensor)
    a, b = weight.shape
    return (b, a) if isinstance(module, nn.Linear) else (a, b)


class _LaneForward:
    """The forward of an adapted layer, set on the instance for as long as the bank is installed."""

    def __init__(self, bank: AdapterBank, site: Site, module: nn.Module) -> None:
        self.bank, self.site = bank, site
        self.own = module.forward
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        self.weight = weight.t() if isinstance(module, nn.Linear) else weight  # (d, o)
        self.bias = bias if isinstance(bias, Tensor) else None

    def __call__(self, x: Tensor) -> Tensor:
        routing = self.bank.routing
        if routing.long_row is not None:
            return routing.long_row(x, self.site, self.weight, self.bias)
        if routing.owners is None:
            return self.own(x)  # type: ignore[no-any-return]
        rows = routing.owners.shape[0]  # of the batch, or, in a packed pass, stretches of equal length of its one row
        shape = x.shape
        tokens = x.numel() // (rows * shape[-1])
        if (len(shape) == 3 and shape[0] not in (1, rows)) or rows * tokens * shape[-1] != x.numel():
            raise TuningError(
                f"layer {self.site.name} got {tuple(shape)} for {rows} rows: the adapter of a row is unknown"
            )
        y: Tensor = _LaneLinear.apply(  # type: ignore[no-untyped-call]
            x.reshape(rows, tokens, shape[-1]), self.bank.anchor, self.bank, self.site, self.weight, self.bias
        )
        return y.view(*shape[:-1], y.shape[-1])


class _LaneLinear(torch.autograd.Function):
    """y = x W + b + s · dropout(x) A_k B_k, where k is the slot of the row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, bank: AdapterBank, site: Site, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        routing, lora = bank.routing, bank.lora
        owners = routing.owners
        assert owners is not None
        rows, tokens, width = x.shape
        flat = x.reshape(rows * tokens, width)
        y = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
        y = y.view(rows, tokens, -1)
        if routing.single:
            a, b = (part[owners[0]] for part in bank.views(bank.work, site))
            return y.view(rows * tokens, -1).addmm_(flat @ a, b).view(rows, tokens, -1)
        a, b = bank.gathered(site)
        dropout = None if routing.keys is None else Dropout(routing.keys, site.index, lora.dropout)
        kept = x if dropout is None else dropout(x)
        h = torch.bmm(kept, a)  # scaled, because A is
        y.baddbmm_(h, b)
        ctx.save_for_backward(x, h)
        ctx.held = bank, site, weight, owners, dropout
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, h = ctx.saved_tensors
        bank, site, weight, owners, dropout = ctx.held
        lora = bank.lora
        dy = grads[0].contiguous()  # (R, T, o)
        rows, tokens, width = x.shape
        a, b = bank.gathered(site)
        da, db = bank.views(bank.grads, site)
        dh = torch.bmm(dy, b.transpose(1, 2))  # (R, T, r)
        kept = x if dropout is None else dropout(x)
        db.index_add_(0, owners, torch.bmm(h.transpose(1, 2), dy).float())
        da.index_add_(0, owners, torch.bmm(kept.transpose(1, 2), dh).float(), alpha=lora.scale)
        if not ctx.needs_input_grad[0]:
            return (None,) * 6
        dx = (dy.view(rows * tokens, -1) @ weight.t()).view(rows, tokens, width)
        if dropout is None:
            dx.baddbmm_(dh, a.transpose(1, 2))
        else:
            dx = dropout(torch.bmm(dh, a.transpose(1, 2)), add=dx)
        return dx, None, None, None, None, None

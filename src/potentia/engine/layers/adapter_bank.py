"""Many low-rank adapters on one frozen model: stacked weights, the layers that use them, and the way in and out.

An :class:`AdapterBank` holds the adapters of K slots as rows of one matrix (K + 1, P); the last row stays zero and
stands for the bare model. Each adapted layer sees views A (K, d, r) and B (K, r, o) of it. A forward pass names the
slot of every row of its batch; the base product runs once on all rows, the adapters as batched products of gathered A
and B. Weights of the base are frozen, so the backward pass computes input gradients through the base and adds the
adapters' gradients, row by row in order, straight into a second (K + 1, P) matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LoraConfig
from potentia.engine.layers.adapter_methods import find_adapter_method
from potentia.engine.layers.adapter_targets import AdapterTargets, StackedParameter, find_targets
from potentia.engine.layers.lane_layers import AdaptedLinear, AdaptedStack
from potentia.engine.models.installed_adapters import installed_on, note_installed
from potentia.engine.models.split_model import asking, computing

GATHERED_BYTES = 2 << 30  # of adapters that are gathered once for all layers of a pass
MADE_UP_SIZE = 0.1  # of a layer's input, about, that an adapter made up for a trial adds


@dataclass(frozen=True)
class AdapterSite:
    """One adapted layer: its name, where it lies in the flat row, its widths, and the columns between them.

    A stacked parameter has the columns of all its ``experts``; ``out_first`` says that it is (experts, out, in).
    """

    name: str
    index: int
    fan_in: int
    fan_out: int
    offset: int
    size: int
    rank: int
    scale: float
    experts: int = 0
    out_first: bool = True


PackedLinear = Callable[[Tensor, AdapterSite, Tensor, Tensor | None], Tensor]


def bank_on(model: nn.Module) -> AdapterBank | None:
    """Return the adapter bank that a model wears now."""
    adapters = installed_on(model)
    return adapters if isinstance(adapters, AdapterBank) else None


class PassRouting:
    """Which slot each row of the pass under way uses, and the rows' dropout keys (training only)."""

    def __init__(self) -> None:
        self.owners: Tensor | None = None
        self.keys: Tensor | None = None
        self.gathered: Tensor | None = None  # (R, P): the rows' adapters, for all layers of a pass
        self.single = False  # whether all rows have one owner
        self.packed_linear: PackedLinear | None = None  # a linear layer in a packed pass
        self.count = 0  # tokens in the pass


class AdapterBank:
    """The adapters of up to ``slots`` lanes on ``model``; wraps its layers while installed and leaves no trace."""

    def __init__(self, model: nn.Module, lora: LoraConfig, slots: int) -> None:
        self.model = model
        self.lora = lora
        self.slots = slots
        self.method = find_adapter_method(lora.kind)
        self.scale = self.method.scale(lora.r, lora.alpha)
        self.routing = PassRouting()
        targets = find_targets(model, lora)
        self.targets = targets.names
        self._config = targets.config
        self.sites = _lay_out_sites(targets, lora)
        self.width = sum(site.size for site in self.sites)
        first = _first_floating_parameter(model)
        self.device = first.device
        self.dtype = first.dtype
        self.weights = torch.zeros(slots + 1, self.width, dtype=torch.float32, device=self.device)
        self.grads = torch.zeros_like(self.weights)
        self.work = torch.zeros_like(self.weights, dtype=self.dtype)
        self.factors = torch.ones(self.width, device=self.device)
        for site in self.sites:
            self.factors[site.offset : site.offset + site.fan_in * site.rank] = site.scale
        self.anchor = torch.zeros((), requires_grad=True, device=self.device)
        self.stacked_at: dict[int, tuple[str, str]] = {}  # site → module's and parameter's name
        self._forwards = self._make_forwards(targets)
        self._frozen = ExitStack()
        self._frozen.enter_context(asking(model, False))
        self._wearing = ExitStack()
        self._put_on()
        note_installed(self)

    def _make_forwards(self, targets: AdapterTargets) -> dict[nn.Module, Any]:
        """Make the forward of every adapted module."""
        forwards: dict[nn.Module, Any] = {}
        plain_sites = self.sites[: len(targets.layers)]
        for site, (_, module) in zip(plain_sites, targets.layers, strict=True):
            forwards[module] = AdaptedLinear(self, site, module)
        names = {module: name for name, module in self.model.named_modules()}
        stacked_sites = self.sites[len(targets.layers) :]
        for stacked, site in zip(targets.stacked, stacked_sites, strict=True):
            forward = forwards.setdefault(stacked.module, AdaptedStack(self, stacked.module))
            forward.sites.append((site, stacked.parameter))
            self.stacked_at[site.index] = names[stacked.module], stacked.parameter
        return forwards

    # ---- on and off the model ---------------------------------------------------------------------

    def _put_on(self) -> None:
        self._wearing.enter_context(computing(self._forwards))
        embedding = self.model.get_input_embeddings()  # type: ignore[operator]
        hook = embedding.register_forward_pre_hook(self._count_tokens)
        self._wearing.callback(hook.remove)
        self.worn = True

    def _take_off(self) -> None:
        self._wearing.close()
        self.worn = False

    def _count_tokens(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.routing.count = inputs[0].numel()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model be as it was without adapters inside the block."""
        was_worn = self.worn
        self._take_off()
        try:
            yield
        finally:
            if was_worn:
                self._put_on()

    def close(self) -> None:
        """Take the adapters off: the model computes, and asks for gradients, as it did before."""
        self._take_off()
        self._frozen.close()
        self._forwards = {}

    # ---- numbers ----------------------------------------------------------------------------------

    def views(self, flat: Tensor, site: AdapterSite) -> tuple[Tensor, Tensor]:
        """View one layer's A (K + 1, d, r) and B (K + 1, r, o) inside a flat (K + 1, P) matrix."""
        middle = site.offset + site.fan_in * site.rank
        end = middle + site.rank * site.fan_out
        rows = flat.shape[0]
        a = flat[:, site.offset : middle].view(rows, site.rank, site.fan_in)
        b = flat[:, middle:end].view(rows, site.rank, site.fan_out)
        return a.transpose(1, 2), b  # both lie as (r, width)

    def refresh_work(self, slots: Iterable[int] | None = None) -> None:
        """Bring the copies that passes multiply with up to date: in the base's dtype, A already scaled by α/r."""
        rows = range(self.slots + 1) if slots is None else slots
        for slot in rows:  # one at a time: all of them are a gigabyte
            self.work[slot].copy_(self.weights[slot] * self.factors)

    def fresh_row(self, seed: int) -> Tensor:
        """Draw a new adapter's flat row from the seed alone, as PEFT draws it."""
        row = torch.zeros(1, self.width)
        stream = torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        for site in self.sites:
            self.method.draw_start(self, row, site, stream)
        return row[0]

    def peft_state(self, row: Tensor) -> dict[str, Tensor]:
        """Return a flat row as PEFT's state dict."""
        row = row.detach().cpu().float().unsqueeze(0)
        state: dict[str, Tensor] = {}
        for site in self.sites:
            for name, part in self.method.peft_parts(self, row, site).items():
                key = f"base_model.model.{site.name}.{name}"
                state[key] = part.clone(memory_format=torch.contiguous_format)
        return state

    def peft_config(self, *, inference: bool = True) -> Any:
        """Return PEFT's config of such an adapter."""
        config = copy.deepcopy(self._config)
        config.inference_mode = inference
        return config

    # ---- trials -----------------------------------------------------------------------------------

    @torch.no_grad()
    def make_up_adapters(self, slots: int | None = None) -> None:
        """Give slots an adapter of their own that changes what the model computes: trials are made with these."""
        stream = torch.Generator().manual_seed(0)
        for slot in range(self.slots if slots is None else slots):
            self.weights[slot].copy_(self.made_up_row(slot, stream))
        self.refresh_work()

    def made_up_row(self, seed: int, stream: torch.Generator) -> Tensor:
        """Draw an adapter's flat row that changes what the model computes: a fresh one has a B of zeros."""
        row = self.fresh_row(seed)
        for site in self.sites:
            _, b = self.views(row[None], site)
            size = MADE_UP_SIZE / (site.scale * max(1, site.rank) ** 0.5)
            b.copy_(torch.randn(b.shape, generator=stream) * size)
        return row

    @contextmanager
    def made_up_adapters(self, max_slots: int) -> Iterator[int]:
        """Multiply with adapters made up for a trial, in so many slots, inside the block; the real ones are kept."""
        count = min(max_slots, self.slots)
        real_rows = self.weights[:count].clone()
        try:
            self.make_up_adapters(count)
            yield count
        finally:
            self.weights[:count].copy_(real_rows)
            self.refresh_work()

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Drop nothing inside the block."""
        lora = self.lora
        self.lora = replace(lora, dropout=0.0)
        try:
            yield
        finally:
            self.lora = lora

    # ---- routing ----------------------------------------------------------------------------------

    def gather_factors(self, site: AdapterSite) -> tuple[Tensor, Tensor]:
        """Return A (R, d, r) and B (R, r, o) of one layer for every row of the pass under way."""
        if self.routing.gathered is not None:
            return self.views(self.routing.gathered, site)
        assert self.routing.owners is not None
        a, b = self.views(self.work, site)
        return a.index_select(0, self.routing.owners), b.index_select(0, self.routing.owners)

    def route(self, row_owners: Tensor | None) -> None:
        """Name the slot of every row of the next forward pass; −1 is the bare model, None switches adapters off."""
        self.routing.keys = None
        self.routing.gathered = None
        if row_owners is None:
            self.routing.owners = None
            return
        owners = row_owners.to(self.device, torch.int64)
        owners = torch.where(owners < 0, self.slots, owners)
        # one owner for all rows needs no gathering; asking a GPU would wait for it
        self.routing.single = owners.device.type == "cpu" and bool((owners == owners[0]).all())
        self.routing.owners = owners

    @contextmanager
    def route_training_rows(
        self, owners: Tensor, keys: Tensor | None, *, alone: bool = False
    ) -> Iterator[None]:
        """Route one pass of training: its rows' slots and dropout keys. All rows are one lane's where it is ``alone``.

        One lane's tokens are one group whatever order a model gives them.
        """
        routing = self.routing
        routing.owners = owners[:1] if alone else owners
        routing.keys = keys
        routing.single = False
        rows = routing.owners.shape[0]
        if rows * self.width * self.work.element_size() <= GATHERED_BYTES:
            routing.gathered = self.work.index_select(0, routing.owners)
        try:
            yield
        finally:
            routing.owners = None
            routing.keys = None
            routing.gathered = None


def lane_state_bytes(model: nn.Module, lora: LoraConfig) -> int:
    """Return the bytes of one lane's state: weights, gradients and two moments in float32, and the copy passes use."""
    sites = _lay_out_sites(find_targets(model, lora), lora)
    width = sum(site.size for site in sites)
    dtype = _first_floating_parameter(model).dtype
    return width * (4 * torch.float32.itemsize + dtype.itemsize)


def _first_floating_parameter(model: nn.Module) -> nn.Parameter:
    return next(parameter for parameter in model.parameters() if parameter.is_floating_point())


def _lay_out_sites(targets: AdapterTargets, lora: LoraConfig) -> list[AdapterSite]:
    """Lay the adapters of all layers side by side in a row."""
    method = find_adapter_method(lora.kind)
    scale = method.scale(lora.r, lora.alpha)
    sites: list[AdapterSite] = []
    offset = 0
    for name, module in targets.layers:
        fan_in, fan_out = _layer_widths(module)
        size = method.count_numbers(fan_in, fan_out, lora.r)
        site = AdapterSite(
            name=name,
            index=len(sites),
            fan_in=fan_in,
            fan_out=fan_out,
            offset=offset,
            size=size,
            rank=lora.r,
            scale=scale,
        )
        sites.append(site)
        offset += size
    for stacked in targets.stacked:
        site = _stacked_site(stacked, len(sites), offset)
        sites.append(site)
        offset += site.size
    return sites


def _layer_widths(module: nn.Module) -> tuple[int, int]:
    """Return how many numbers go into a linear layer and come out of it."""
    if isinstance(module, nn.Linear):  # a quantised weight may be packed
        return module.in_features, module.out_features
    weight = module.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0]), int(weight.shape[1])


def _stacked_site(stacked: StackedParameter, index: int, offset: int) -> AdapterSite:
    """Read a stacked parameter's sizes as PEFT does: (experts, out, in), or (experts, in, out) where it says so."""
    shape = tuple(getattr(stacked.module, stacked.parameter).shape)
    experts, rows, columns = shape if len(shape) == 3 else (1, *shape)
    out_first = len(shape) == 2 or not getattr(stacked.module, "is_transposed", False)
    fan_in, fan_out = (columns, rows) if out_first else (rows, columns)
    rank = stacked.rank * experts
    return AdapterSite(
        name=stacked.name,
        index=index,
        fan_in=fan_in,
        fan_out=fan_out,
        offset=offset,
        size=(fan_in + fan_out) * rank,
        rank=rank,
        scale=stacked.scale,
        experts=experts,
        out_first=out_first,
    )

"""Many low-rank adapters on one frozen model: stacked weights, the layers that use them, and the way in and out.

An :class:`AdapterBank` holds the adapters of K slots as rows of one matrix (K + 1, P); the last row stays zero and
stands for the bare model. Each adapted layer sees views A (K, d, r) and B (K, r, o) of it. A forward pass names the
slot of every row of its batch; the base product runs once on all rows, the adapters as batched products of gathered A
and B. Weights of the base are frozen, so the backward pass computes input gradients through the base and adds the
adapters' gradients, row by row in order, straight into a second (K + 1, P) matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_methods import find_adapter_method, lay_out_blocks
from potentia.engine.layers.adapter_targets import (
    AdapterTargets,
    StackedParameter,
    find_targets,
    reads_out_first,
)
from potentia.engine.layers.fused_projections import Columns
from potentia.engine.layers.lane_layers import AdaptedLinear, AdaptedStack, StackedWeight
from potentia.engine.models.installed_adapters import installed_on, note_installed
from potentia.engine.models.split_model import computing, requiring_gradients
from potentia.values.recipe import LoraConfig

GATHERED_BYTES = 2 << 30  # of adapters that are gathered once for all layers of a pass
MADE_UP_SIZE = 0.1  # of a layer's input, about, that an adapter made up for a trial adds


@dataclass(frozen=True)
class AdapterSite:
    """One adapted layer: its name, where its numbers lie in the flat row, its widths, and the rank between them.

    A stacked parameter has one adapter whose rank is that of all its ``experts`` together; ``out_first`` says that the
    parameter is (experts, out, in). It may hold several ``projections``, whose outputs lie side by side or, where
    ``interleaved``, alternate; each has an equal share of an expert's rank, and B is zero outside the projections' own
    blocks.

    A linear layer that holds several projections has as many sites of its name, each for
    ``columns``: the indices of the layer's outputs that are this projection's; None where the layer is one projection.
    """

    name: str
    index: int
    fan_in: int
    fan_out: int
    offset: int
    size: int
    rank: int  # of all experts and projections together
    scale: float
    experts: int = 0
    out_first: bool = True
    projections: int = 1
    interleaved: bool = False
    columns: Columns | None = None
    # whether PEFT takes a stacked parameter's outputs for its inputs: in its files, A and B change places
    is_turned_in_peft: bool = False

    @property
    def projection_rank(self) -> int:
        """The rank of one projection's adapter."""
        return self.rank // (max(1, self.experts) * self.projections)

    def block_mask(self, device: torch.device | None = None) -> Tensor:
        """Return 1 where B of an expert (rank, out) belongs to one projection on both sides, else 0."""
        ranks = torch.arange(self.projections * self.projection_rank, device=device)
        projection_of_rank = ranks // self.projection_rank
        outputs = torch.arange(self.fan_out, device=device)
        projection_of_output = outputs // (self.fan_out // self.projections)
        if self.interleaved:
            projection_of_output = outputs % self.projections
        return (projection_of_rank[:, None] == projection_of_output).float()


PackedExperts = Callable[..., Tensor]
# of an input, the layer's sites, its weight and its bias
PackedLinear = Callable[[Tensor, Sequence[AdapterSite], Tensor, Tensor | None], Tensor]


def bank_on(model: nn.Module) -> AdapterBank | None:
    """Return the adapter bank that is installed on a model now."""
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
        self.packed_experts: PackedExperts | None = None  # a module of experts in a packed pass
        self.count = 0  # tokens in the pass

    @contextmanager
    def narrowed(self, first: int, end: int) -> Iterator[None]:
        """Let a pass be of some of its rows alone inside the block."""
        assert self.owners is not None
        rows = self.owners.shape[0]
        if (first, end) == (0, rows):
            yield
            return
        all_rows = self.owners, self.keys, self.gathered, self.count
        self.owners = self.owners[first:end]
        if self.keys is not None:
            self.keys = self.keys.view(rows, -1)[first:end].reshape(-1)
        if self.gathered is not None:
            self.gathered = self.gathered[first:end]
        self.count = self.count * (end - first) // rows
        try:
            yield
        finally:
            self.owners, self.keys, self.gathered, self.count = all_rows


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
        self.names_in_files = targets.names_in_files
        self.sites = _lay_out_sites(targets, lora)
        self.width = sum(site.size for site in self.sites)
        first = _first_floating_parameter(model)
        self.device = first.device
        self.dtype = first.dtype
        self.weights = torch.zeros(slots + 1, self.width, dtype=torch.float32, device=self.device)
        self.grads = torch.zeros_like(self.weights)
        self.work = torch.zeros_like(self.weights, dtype=self.dtype)
        # (P,): what each number is multiplied by for ``work``: α/r in A, 1 in B
        self.scales = torch.ones(self.width, device=self.device)
        for adapter_site in self.sites:
            self.scales[
                adapter_site.offset : adapter_site.offset + adapter_site.fan_in * adapter_site.rank
            ] = adapter_site.scale
        # requires grad so that autograd calls our backward passes although all weights are frozen
        self.anchor = torch.zeros((), requires_grad=True, device=self.device)
        self._draw_order = _order_of_draws(model, self.sites, targets)
        self._drawn_row: tuple[int, Tensor] | None = None  # the last fresh row, by its seed
        self.stacked_at: dict[int, tuple[str, str]] = {}  # site → module's and parameter's name
        self._frozen = ExitStack()
        # Before the forwards are made, which hold transposed weights: autograd would record the transpose of a weight
        # that requires grad, on this stream. Backward passes would then wait for this stream, and those that a CUDA
        # graph captures may not.
        self._frozen.enter_context(requiring_gradients(model, False))
        self._forwards = self._make_forwards(targets)
        self._installation = ExitStack()
        self._install()
        note_installed(self)

    def _make_forwards(self, targets: AdapterTargets) -> dict[nn.Module, Any]:
        """Make the forward of every adapted module."""
        forwards: dict[nn.Module, Any] = {}
        sites_by_layer = group_by_layer(self.sites)
        for layer_name, module in targets.layers:
            forwards[module] = AdaptedLinear(self, sites_by_layer[layer_name], module)
        names = {module: layer_name for layer_name, module in self.model.named_modules()}
        stacked_sites = [site for site in self.sites if site.experts]
        for stacked, adapter_site in zip(targets.stacked, stacked_sites, strict=True):
            forward = forwards.setdefault(stacked.scope, AdaptedStack(self, stacked.scope))
            forward.weights.append(StackedWeight(adapter_site, stacked.module, stacked.parameter))
            self.stacked_at[adapter_site.index] = names[stacked.module], stacked.parameter
        return forwards

    # ---- on and off the model ---------------------------------------------------------------------

    def _install(self) -> None:
        self._installation.enter_context(computing(self._forwards))
        embedding = self.model.get_input_embeddings()  # type: ignore[operator]
        hook = embedding.register_forward_pre_hook(self._count_tokens)
        self._installation.callback(hook.remove)
        self.is_installed = True

    def _uninstall(self) -> None:
        self._installation.close()
        self.is_installed = False

    def _count_tokens(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.routing.count = inputs[0].numel()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model be as it was without adapters inside the block."""
        was_installed = self.is_installed
        self._uninstall()
        try:
            yield
        finally:
            if was_installed:
                self._install()

    def close(self) -> None:
        """Take the adapters off: the model computes, and asks for gradients, as it did before."""
        self._uninstall()
        self._frozen.close()
        self._forwards = {}

    # ---- numbers ----------------------------------------------------------------------------------

    def views(self, flat_rows: Tensor, adapter_site: AdapterSite) -> tuple[Tensor, Tensor]:
        """View one layer's A (K + 1, d, r) and B (K + 1, r, o) inside a flat (K + 1, P) matrix."""
        middle = adapter_site.offset + adapter_site.fan_in * adapter_site.rank
        end = middle + adapter_site.rank * adapter_site.fan_out
        rows = flat_rows.shape[0]
        lora_a = flat_rows[:, adapter_site.offset : middle].view(
            rows, adapter_site.rank, adapter_site.fan_in
        )
        lora_b = flat_rows[:, middle:end].view(rows, adapter_site.rank, adapter_site.fan_out)
        return lora_a.transpose(1, 2), lora_b  # both lie as (r, width)

    def refresh_work(self, slots: Iterable[int] | None = None) -> None:
        """Bring the copies that passes multiply with up to date: in the base's dtype, A already scaled by α/r."""
        rows = range(self.slots + 1) if slots is None else slots
        for slot in rows:  # one at a time: all of them are a gigabyte
            self.work[slot].copy_(self.weights[slot] * self.scales)

    def fresh_row(self, seed: int) -> Tensor:
        """Draw a new adapter's flat row from the seed alone, as PEFT draws it.

        The last one is kept: lanes of a row have one seed, and each begins twice, once in the rehearsal.
        """
        if self._drawn_row is not None and self._drawn_row[0] == seed:
            return self._drawn_row[1].clone()
        row = torch.zeros(1, self.width)
        stream = torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        for adapter_site in self._draw_order:
            self.method.draw_start(self, row, adapter_site, stream)
        self._drawn_row = seed, row[0].clone()
        return row[0]

    def peft_state(self, row: Tensor) -> dict[str, Tensor]:
        """Return a flat row as PEFT's state dict."""
        row = row.detach().cpu().float().unsqueeze(0)
        state: dict[str, Tensor] = {}
        for layer_name, sites in group_by_layer(self.sites).items():
            parts = [self.method.peft_parts(self, row, site) for site in sites]
            joined = parts[0] if len(sites) == 1 else self.method.join_parts(parts, sites)
            for tensor_name, part in joined.items():
                key = f"base_model.model.{layer_name}.{tensor_name}"
                state[key] = part.clone(memory_format=torch.contiguous_format)
        return state

    def name_for_files(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return PEFT's state dict under the names that PEFT finds again when it reads a file."""
        renamed: dict[str, Tensor] = {}
        for key, tensor in state.items():
            layer_name, lora, tensor_name = key.removeprefix("base_model.model.").partition(
                ".lora_"
            )
            file_name = self.names_in_files.get(layer_name, layer_name)
            renamed[f"base_model.model.{file_name}{lora}{tensor_name}"] = tensor
        return renamed

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
        for adapter_site in self.sites:
            _, lora_b = self.views(row[None], adapter_site)
            weight_size = MADE_UP_SIZE / (adapter_site.scale * max(1, adapter_site.rank) ** 0.5)
            lora_b.copy_(torch.randn(lora_b.shape, generator=stream) * weight_size)
            if adapter_site.projections > 1:
                by_expert = lora_b.view(-1, adapter_site.experts, adapter_site.fan_out)
                by_expert.mul_(adapter_site.block_mask()[:, None])
        return row

    def block_masks(self) -> dict[str, Tensor]:
        """Return masks of the B's that hold several projections, by their names in PEFT's state."""
        masks: dict[str, Tensor] = {}
        for adapter_site in self.sites:
            if adapter_site.projections == 1:
                continue
            key = f"base_model.model.{adapter_site.name}.lora_B.weight"
            mask = adapter_site.block_mask()  # (rank of an expert, out)
            if adapter_site.is_turned_in_peft:
                key = f"base_model.model.{adapter_site.name}.lora_A.weight"
                masks[key] = mask.repeat(adapter_site.experts, 1)
            else:
                masks[key] = mask.repeat_interleave(adapter_site.experts, dim=0).t()
        for layer_name, sites in group_by_layer(self.sites).items():
            if len(sites) > 1:
                blocks = [torch.ones(site.fan_out, site.rank) for site in sites]
                key = f"base_model.model.{layer_name}.lora_B.weight"
                masks[key] = lay_out_blocks(blocks, sites)
        return masks

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

    def gather_factors(self, adapter_site: AdapterSite) -> tuple[Tensor, Tensor]:
        """Return A (R, d, r) and B (R, r, o) of one layer for every row of the pass under way."""
        if self.routing.gathered is not None:
            return self.views(self.routing.gathered, adapter_site)
        assert self.routing.owners is not None
        lora_a, lora_b = self.views(self.work, adapter_site)
        return lora_a.index_select(0, self.routing.owners), lora_b.index_select(
            0, self.routing.owners
        )

    def route(self, row_owners: Tensor | None) -> None:
        """Say which adapter every row of the next forward pass is computed with.

        A row's owner is the slot of the bank that holds its adapter, or −1 for a row of the untuned model among rows
        with adapters. None stands for no adapters at all: the layers then skip them.
        """
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
    for layer_name, module in targets.layers:
        fan_in, fan_out = _layer_widths(module)
        projections: Sequence[Columns | None] = targets.fused.get(layer_name, (None,))
        for columns in projections:
            part_width = fan_out if columns is None else len(columns)
            adapter_site = AdapterSite(
                name=layer_name,
                index=len(sites),
                fan_in=fan_in,
                fan_out=part_width,
                offset=offset,
                size=method.count_numbers(fan_in, part_width, lora.r),
                rank=lora.r,
                scale=scale,
                columns=columns,
            )
            sites.append(adapter_site)
            offset += adapter_site.size
    for stacked in targets.stacked:
        adapter_site = _stacked_site(stacked, len(sites), offset)
        sites.append(adapter_site)
        offset += adapter_site.size
    return sites


def _layer_widths(module: nn.Module) -> tuple[int, int]:
    """Return how many numbers go into a linear layer and come out of it."""
    if isinstance(module, nn.Linear):  # a quantised weight may be packed
        return module.in_features, module.out_features
    weight = module.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0]), int(weight.shape[1])


def _stacked_site(stacked: StackedParameter, index: int, offset: int) -> AdapterSite:
    """Read a stacked parameter's sizes: (experts, out, in), or (experts, in, out)."""
    shape = tuple(getattr(stacked.module, stacked.parameter).shape)
    experts, rows, columns = shape if len(shape) == 3 else (1, *shape)
    fan_in, fan_out = (columns, rows) if stacked.out_first else (rows, columns)
    total_rank = stacked.rank * experts
    return AdapterSite(
        name=stacked.name,
        index=index,
        fan_in=fan_in,
        fan_out=fan_out,
        offset=offset,
        size=(fan_in + fan_out) * total_rank,
        rank=total_rank,
        scale=stacked.scale,
        experts=experts,
        out_first=stacked.out_first,
        projections=stacked.projections,
        interleaved=stacked.interleaved,
        is_turned_in_peft=stacked.out_first != reads_out_first(stacked.module, stacked.parameter),
    )


def _order_of_draws(
    model: nn.Module, sites: list[AdapterSite], targets: AdapterTargets
) -> list[AdapterSite]:
    """Order sites as their modules come in the model: experts draw what a dense layer in their place would."""
    positions = {module: number for number, module in enumerate(model.modules())}
    layer_positions: dict[str, int] = {}
    latest = 0
    for (
        layer_name,
        module,
    ) in targets.layers:  # a fused layer draws before those that the model names first
        latest = max(latest, positions[module])
        layer_positions[layer_name] = latest
    places = [layer_positions[site.name] for site in sites if not site.experts]
    places += [positions[stacked.module] for stacked in targets.stacked]
    order = sorted(range(len(sites)), key=lambda index: places[index])
    return [sites[index] for index in order]


# ---- sites of one layer ---------------------------------------------------------------------------------------------


def group_by_layer(sites: Iterable[AdapterSite]) -> dict[str, list[AdapterSite]]:
    """Return the sites of each layer by its name: several where a layer holds several projections."""
    sites_by_layer: dict[str, list[AdapterSite]] = {}
    for adapter_site in sites:
        sites_by_layer.setdefault(adapter_site.name, []).append(adapter_site)
    return sites_by_layer

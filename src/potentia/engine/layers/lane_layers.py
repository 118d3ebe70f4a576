"""The layers that lanes train: a linear layer, and a module of stacked parameters, each with an adapter per row.

What an adapter adds is its method's affair (``adapter_methods``). Low-rank methods compute
y = x W + b + s · dropout(x) A_k B_k, where k is the slot of the row; the base product runs once on all rows, the
adapters as batched products. A layer that is more than ``nn.Linear`` (quantised, scaled) keeps its own forward, and the
adapters' share is added. The module of stacked parameters runs once for each slot, on that slot's tokens, with
W + s · B_k A_k in place of W, as PEFT does; packed passes multiply all slots' tokens at once (``packed_experts``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from potentia.engine.layers.trial_runs import using_weight
from potentia.engine.models.device_layout import move_beside
from potentia.engine.operations.dropout import Dropout
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite, PassRouting


def tokens_per_row(x: Tensor, routing: PassRouting, layer_name: str) -> tuple[int, int]:
    """Divide the tokens in ``x`` (…, d) among the rows of the pass: return the number of rows, and tokens of each.

    Rows keep their order in whatever shape a model gives its tokens; tokens picked from several rows have lost it.
    """
    assert routing.owners is not None
    rows = routing.owners.shape[0]
    count = x.numel() // x.shape[-1]
    is_divided_by_row = x.dim() > 2 and x.shape[0] == rows
    has_all_tokens = is_divided_by_row or count == routing.count
    if rows > 1 and (not has_all_tokens or count % rows):
        raise TuningError(
            f"layer {layer_name} got {tuple(x.shape)} for {rows} rows: whose adapter to use is unknown",
            hint="name other layers with `targets`, such as those of attention",
        )
    return rows, count // rows


# ---- linear layers --------------------------------------------------------------------------------


class AdaptedLinear:
    """The forward of an adapted linear layer, set on the instance for as long as the bank is installed.

    A layer that holds several projections has a site for each of them.
    """

    def __init__(
        self, adapter_bank: AdapterBank, sites: Sequence[AdapterSite], module: nn.Module
    ) -> None:
        self.bank = adapter_bank
        self.sites = tuple(sites)
        self.own_forward = module.forward
        self.weight = plain_weight(module)
        bias = module.bias
        self.bias = bias if isinstance(bias, Tensor) else None
        self.output_order = find_output_order(self.sites, adapter_bank.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the layer, each row with the adapter of its slot."""
        routing = self.bank.routing
        if routing.packed_linear is not None:
            if self.weight is None:
                raise NotImplementedError(f"layer {self.sites[0].name} is more than linear")
            return routing.packed_linear(x, self.sites, self.weight, self.bias)
        if routing.owners is None:
            return self.own_forward(x)  # type: ignore[no-any-return]
        if self.weight is not None and len(self.sites) == 1:
            return self._add_adapters(x, self.sites[0], self.weight, self.bias)
        base_output: Tensor = self.own_forward(x)
        shares = [self._add_adapters(x, site, None, None) for site in self.sites]
        share = torch.cat(shares, dim=-1) if len(shares) > 1 else shares[0]
        if self.output_order is not None:
            share = share.index_select(-1, move_beside(self.output_order, share))
        return base_output + share.to(base_output.dtype)

    def _add_adapters(
        self, x: Tensor, adapter_site: AdapterSite, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        output: Tensor = _AdaptedProduct.apply(
            x, self.bank.anchor, self.bank, adapter_site, weight, bias
        )  # type: ignore[no-untyped-call]
        return output


def find_output_order(sites: Sequence[AdapterSite], device: torch.device) -> Tensor | None:
    """Return where a layer's outputs lie among those of its projections side by side; None where they lie so."""
    columns = itertools.chain.from_iterable(site.columns or () for site in sites)
    side_by_side = torch.tensor(list(columns), dtype=torch.int64)
    if torch.equal(side_by_side, torch.arange(len(side_by_side))):
        return None
    return torch.argsort(side_by_side).to(device)


def plain_weight(module: nn.Module) -> Tensor | None:
    """Return a linear layer's weight (d, o); None where the layer is more than linear, or somebody's own."""
    if type(module) not in (nn.Linear, Conv1D) or "forward" in module.__dict__:
        return None
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.t() if isinstance(module, nn.Linear) else weight


class _AdaptedProduct(torch.autograd.Function):
    """A layer with its lanes' adapters; without its weight, the adapters' share of its output."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        adapter_bank: AdapterBank,
        adapter_site: AdapterSite,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.bank = adapter_bank
        return adapter_bank.method.forward(ctx, x, adapter_bank, adapter_site, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.bank.method.backward(ctx, grads[0]), None, None, None, None, None


def add_adapter_share(
    ctx: Any, x: Tensor, adapter_bank: AdapterBank, adapter_site: AdapterSite, *, into: Tensor
) -> None:
    """Add the adapters' outputs to ``into`` (N, o), and keep what the backward pass needs."""
    routing = adapter_bank.routing
    owners = routing.owners
    assert owners is not None
    if routing.single:
        lora_a, lora_b = (
            move_beside(part[owners[0]], x)
            for part in adapter_bank.views(adapter_bank.work, adapter_site)
        )
        into.addmm_(x.reshape(-1, x.shape[-1]) @ lora_a, lora_b)
        return
    rows, tokens = tokens_per_row(x, routing, adapter_site.name)
    by_row = x.reshape(rows, tokens, x.shape[-1])
    lora_a, lora_b = (move_beside(part, x) for part in adapter_bank.gather_factors(adapter_site))
    dropout = _make_dropout(adapter_bank, adapter_site, rows, tokens, x)
    dropped = by_row if dropout is None else dropout(by_row)
    inner = torch.bmm(dropped, lora_a)  # scaled, because A is
    into.view(rows, tokens, -1).baddbmm_(inner, lora_b)
    ctx.save_for_backward(by_row, inner)
    ctx.held = adapter_bank, adapter_site, owners, dropout, x.shape


def _make_dropout(
    adapter_bank: AdapterBank, adapter_site: AdapterSite, rows: int, tokens: int, x: Tensor
) -> Dropout | None:
    """Return a layer's dropout in the pass under way; a layer that sees fewer tokens of each row takes the first keys.

    A layer that sees tokens more than once (experts) goes round.
    """
    keys = adapter_bank.routing.keys
    if keys is None:
        return None
    if keys.numel() != rows * tokens:
        row_keys = keys.view(rows, -1)
        columns = torch.arange(tokens, device=keys.device) % row_keys.shape[1]
        keys = row_keys[:, columns].contiguous()
    return Dropout(move_beside(keys, x), adapter_site.index, adapter_bank.lora.dropout)


def backpropagate_adapter_share(
    ctx: Any, grad_output: Tensor, base_weight: Tensor | None
) -> Tensor | None:
    """Add the adapters' gradients to the bank; return the input's, also through ``base_weight`` (d, o)."""
    by_row, inner = ctx.saved_tensors
    adapter_bank, adapter_site, owners, dropout, shape = ctx.held
    rows, tokens, width = by_row.shape
    grad_output = grad_output.to(by_row.dtype).reshape(rows, tokens, -1).contiguous()  # (R, T, o)
    lora_a, lora_b = (
        move_beside(part, grad_output) for part in adapter_bank.gather_factors(adapter_site)
    )
    grad_inner = torch.bmm(grad_output, lora_b.transpose(1, 2))  # (R, T, r)
    dropped = by_row if dropout is None else dropout(by_row)
    add_factor_gradients(
        adapter_bank, adapter_site, owners, dropped, inner, grad_output, grad_inner
    )
    if not ctx.needs_input_grad[0]:
        return None
    if base_weight is None:
        grad_input = torch.bmm(grad_inner, lora_a.transpose(1, 2))
        if dropout is not None:
            grad_input = dropout(grad_input)
        return grad_input.view(shape)
    grad_input = (grad_output.view(rows * tokens, -1) @ base_weight.t()).view(rows, tokens, width)
    if dropout is None:
        grad_input.baddbmm_(grad_inner, lora_a.transpose(1, 2))
    else:
        grad_input = dropout(torch.bmm(grad_inner, lora_a.transpose(1, 2)), add=grad_input)
    return grad_input.view(shape)


def add_factor_gradients(
    adapter_bank: AdapterBank,
    adapter_site: AdapterSite,
    owners: Tensor,
    dropped: Tensor,
    inner: Tensor,
    grad_output: Tensor,
    grad_inner: Tensor,
) -> None:
    """Add the gradients of A and B to the bank's, row by row in order."""
    a_sums, b_sums = adapter_bank.views(adapter_bank.grads, adapter_site)
    b_gradients = torch.bmm(inner.transpose(1, 2), grad_output).float()
    b_sums.index_add_(0, owners, move_beside(b_gradients, b_sums))
    a_sums = a_sums.transpose(1, 2)  # as it lies
    a_gradients = torch.bmm(grad_inner.transpose(1, 2), dropped).float()
    a_sums.index_add_(0, owners, move_beside(a_gradients, a_sums), alpha=adapter_site.scale)


# ---- stacked parameters ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StackedWeight:
    """A stacked parameter that has adapters."""

    site: AdapterSite
    module: nn.Module
    parameter: str

    @property
    def experts(self) -> int:
        """How many experts the parameter holds."""
        return self.module.get_parameter(self.parameter).shape[0]


class AdaptedStack:
    """The forward of a module with adapted stacked parameters in it: once for each slot, on the slot's own rows.

    The parameters are the module's, or those of modules inside it that are given their tokens in another order.
    """

    def __init__(self, adapter_bank: AdapterBank, module: nn.Module) -> None:
        self.bank = adapter_bank
        self.module = module
        self.own_forward = module.forward
        self.weights: list[StackedWeight] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Compute the module slot by slot."""
        routing = self.bank.routing
        has_all_experts = self._has_all_experts(arguments, options)
        if routing.packed_experts is not None:
            if has_all_experts:
                raise NotImplementedError("experts that are given every token, in a packed pass")
            return routing.packed_experts(self, *arguments, *options.values())
        if routing.owners is None:
            return self.own_forward(*arguments, **options)
        if has_all_experts:
            return self._compute_all_experts(arguments[0], routing.owners.tolist())
        tokens = _find_first_tensor((*arguments, *options.values()))
        rows, _ = tokens_per_row(tokens, routing, self.weights[0].site.name)
        row_count = tokens.shape[0]
        outputs: list[Any] = []
        end = 0
        for slot, slot_rows in itertools.groupby(routing.owners.tolist()):
            first, end = end, end + len(list(slot_rows))
            row_span = slice(first * row_count // rows, end * row_count // rows)
            if end - first == rows:
                row_span = slice(0, row_count)
            slot_arguments = _cut_to_span(arguments, row_span, row_count)
            slot_options = {
                key: _cut_to_span(value, row_span, row_count) for key, value in options.items()
            }
            with self._weights_of_slot(slot), routing.narrowed(first, end):
                outputs.append(self.own_forward(*slot_arguments, **slot_options))
        return _join_outputs(outputs)

    def _has_all_experts(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
        """Return whether a module is given all tokens of the pass once for every expert, expert by expert (Llama 4)."""
        if len(arguments) != 1 or options or self.weights[0].site.experts <= 1:
            return False
        tokens: Tensor = arguments[0]
        experts = self.weights[0].experts
        return tokens.dim() == 2 and tokens.shape[0] == experts * self.bank.routing.count

    def _compute_all_experts(self, x: Tensor, owners: Sequence[int]) -> Tensor:
        """Compute a module that is given tokens expert by expert: each slot's tokens of every expert."""
        by_expert = x.view(self.weights[0].experts, -1, x.shape[1])
        tokens_of_row = by_expert.shape[1] // len(owners)
        outputs: list[Tensor] = []
        begin = 0
        for slot, slot_rows in itertools.groupby(owners):
            end = begin + len(list(slot_rows)) * tokens_of_row
            slot_tokens = by_expert[:, begin:end].reshape(-1, x.shape[1])
            with self._weights_of_slot(slot):
                output = self.own_forward(slot_tokens)
            outputs.append(output.view(by_expert.shape[0], end - begin, -1))
            begin = end
        joined = torch.cat(outputs, dim=1)
        return joined.reshape(-1, joined.shape[2])

    @contextmanager
    def _weights_of_slot(self, slot: int) -> Iterator[None]:
        """Let the parameters have the slot's adapters inside the block."""
        with ExitStack() as stack:
            if slot < self.bank.slots:
                for stacked in self.weights:
                    original = stacked.module.get_parameter(stacked.parameter)
                    tuned = _StackedWeight.apply(
                        self.bank.anchor, self.bank, stacked.site, slot, original
                    )  # type: ignore[no-untyped-call]
                    stack.enter_context(using_weight(stacked.module, stacked.parameter, tuned))
            yield


class _StackedWeight(torch.autograd.Function):
    """W + s · B_k A_k for each expert, laid out as PEFT lays out its factors."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        adapter_bank: AdapterBank,
        adapter_site: AdapterSite,
        slot: int,
        weight: Tensor,
    ) -> Tensor:
        lora_a, lora_b = (
            move_beside(part, weight) for part in _expert_factors(adapter_bank, adapter_site, slot)
        )
        change = torch.bmm(lora_b, lora_a)  # (E, o, i), scaled, because A is
        ctx.held = adapter_bank, adapter_site, slot
        if not adapter_site.out_first:
            change = change.transpose(1, 2)
        return weight + change.view_as(weight).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        adapter_bank, adapter_site, slot = ctx.held
        lora_a, lora_b = (
            move_beside(part, grads[0])
            for part in _expert_factors(adapter_bank, adapter_site, slot)
        )
        widths = (
            (adapter_site.fan_out, adapter_site.fan_in)
            if adapter_site.out_first
            else (adapter_site.fan_in, adapter_site.fan_out)
        )
        grad_weight = grads[0].view(adapter_site.experts, *widths)
        if not adapter_site.out_first:
            grad_weight = grad_weight.transpose(1, 2)
        grad_weight = grad_weight.to(lora_a.dtype)  # (E, o, i)
        b_gradients = torch.bmm(grad_weight, lora_a.transpose(1, 2))  # (E, o, r)
        a_gradients = torch.bmm(lora_b.transpose(1, 2), grad_weight)  # (E, r, i)
        a_sums, b_sums = (
            part[slot] for part in adapter_bank.views(adapter_bank.grads, adapter_site)
        )
        a_gradients = a_gradients.permute(2, 0, 1).reshape(a_sums.shape).float()
        a_sums.add_(move_beside(a_gradients, a_sums), alpha=adapter_site.scale)
        if adapter_site.projections > 1:
            b_gradients = b_gradients * move_beside(adapter_site.block_mask().t(), b_gradients)
        b_gradients = b_gradients.permute(2, 0, 1).reshape(b_sums.shape).float()
        b_sums.add_(move_beside(b_gradients, b_sums))
        return None, None, None, None, None


def _expert_factors(
    adapter_bank: AdapterBank, adapter_site: AdapterSite, slot: int
) -> tuple[Tensor, Tensor]:
    """Return A (E, r, i) and B (E, o, r): PEFT numbers A's columns expert by expert, B's rank by rank."""
    lora_a, lora_b = (part[slot] for part in adapter_bank.views(adapter_bank.work, adapter_site))
    expert_rank = adapter_site.rank // adapter_site.experts
    lora_a = lora_a.view(adapter_site.fan_in, adapter_site.experts, expert_rank).permute(1, 2, 0)
    lora_b = lora_b.view(expert_rank, adapter_site.experts, adapter_site.fan_out).permute(1, 2, 0)
    return lora_a, lora_b


def _find_first_tensor(values: Iterable[Any]) -> Tensor:
    """Return the first tensor among a module's arguments: its tokens."""
    for value in values:
        if isinstance(value, Tensor):
            return value
    raise TuningError("a module with adapted weights was called without tokens")


def _cut_to_span(value: Any, row_span: slice, row_count: int) -> Any:
    """Return a slot's part of an argument that has an entry for every token, or for every row."""
    if isinstance(value, tuple):
        return tuple(_cut_to_span(part, row_span, row_count) for part in value)
    if isinstance(value, Tensor) and value.dim() and value.shape[0] == row_count:
        return value[row_span]
    return value


def _join_outputs(outputs: list[Any]) -> Any:
    """Join the outputs of all slots: tensors, or tuples of them."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple(_join_outputs(list(parts)) for parts in zip(*outputs, strict=True))
    return torch.cat(outputs) if isinstance(outputs[0], Tensor) else outputs[0]

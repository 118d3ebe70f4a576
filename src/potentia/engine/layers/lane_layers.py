"""The layers that lanes train: a linear layer, and a module of stacked parameters, each with an adapter per row.

What an adapter adds is its method's affair (``adapter_methods``). Low-rank methods compute
y = x W + b + s · dropout(x) A_k B_k, where k is the slot of the row; the base product runs once on all rows, the
adapters as batched products. A layer that is more than ``nn.Linear`` (quantised, scaled) keeps its own forward, and the
adapters' share is added. Stacked parameters have no such form: their module runs once for each slot, on that slot's
tokens, with W + s · B_k A_k in place of W, as PEFT does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from potentia.engine.models.device_layout import beside
from potentia.engine.operations.dropout import Dropout
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite, PassRouting


def tokens_per_row(x: Tensor, routing: PassRouting, name: str) -> tuple[int, int]:
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
            f"layer {name} got {tuple(x.shape)} for {rows} rows: whose adapter to use is unknown",
            hint="name other layers with `targets`, such as those of attention",
        )
    return rows, count // rows


# ---- linear layers --------------------------------------------------------------------------------


class AdaptedLinear:
    """The forward of an adapted linear layer, set on the instance for as long as the bank is installed."""

    def __init__(self, bank: AdapterBank, site: AdapterSite, module: nn.Module) -> None:
        self.bank = bank
        self.site = site
        self.own_forward = module.forward
        self.weight = plain_weight(module)
        bias = module.bias
        self.bias = bias if isinstance(bias, Tensor) else None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the layer, each row with the adapter of its slot."""
        routing = self.bank.routing
        if routing.packed_linear is not None:
            if self.weight is None:
                raise NotImplementedError(f"layer {self.site.name} is more than linear")
            return routing.packed_linear(x, self.site, self.weight, self.bias)
        if routing.owners is None:
            return self.own_forward(x)  # type: ignore[no-any-return]
        output: Tensor = _AdaptedProduct.apply(
            x, self.bank.anchor, self.bank, self.site, self.weight, self.bias
        )  # type: ignore[no-untyped-call]
        if self.weight is not None:
            return output
        base_output: Tensor = self.own_forward(x)
        return base_output + output.to(base_output.dtype)


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
        bank: AdapterBank,
        site: AdapterSite,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.bank = bank
        return bank.method.forward(ctx, x, bank, site, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.bank.method.backward(ctx, grads[0]), None, None, None, None, None


def add_adapter_share(
    ctx: Any, x: Tensor, bank: AdapterBank, site: AdapterSite, *, into: Tensor
) -> None:
    """Add the adapters' outputs to ``into`` (N, o), and keep what the backward pass needs."""
    routing = bank.routing
    owners = routing.owners
    assert owners is not None
    if routing.single:
        a, b = (beside(part[owners[0]], x) for part in bank.views(bank.work, site))
        into.addmm_(x.reshape(-1, x.shape[-1]) @ a, b)
        return
    rows, tokens = tokens_per_row(x, routing, site.name)
    by_row = x.reshape(rows, tokens, x.shape[-1])
    a, b = (beside(part, x) for part in bank.gather_factors(site))
    dropout = _make_dropout(bank, site, rows, tokens, x)
    dropped = by_row if dropout is None else dropout(by_row)
    inner = torch.bmm(dropped, a)  # scaled, because A is
    into.view(rows, tokens, -1).baddbmm_(inner, b)
    ctx.save_for_backward(by_row, inner)
    ctx.held = bank, site, owners, dropout, x.shape


def _make_dropout(
    bank: AdapterBank, site: AdapterSite, rows: int, tokens: int, x: Tensor
) -> Dropout | None:
    """Return a layer's dropout in the pass under way; a layer that sees fewer tokens of each row takes the first keys.

    A layer that sees tokens more than once (experts) goes round.
    """
    keys = bank.routing.keys
    if keys is None:
        return None
    if keys.numel() != rows * tokens:
        row_keys = keys.view(rows, -1)
        columns = torch.arange(tokens, device=keys.device) % row_keys.shape[1]
        keys = row_keys[:, columns].contiguous()
    return Dropout(beside(keys, x), site.index, bank.lora.dropout)


def backpropagate_adapter_share(ctx: Any, slope: Tensor, base: Tensor | None) -> Tensor | None:
    """Add the adapters' gradients to the bank; return the input's, through the adapters and ``base`` (d, o)."""
    by_row, inner = ctx.saved_tensors
    bank, site, owners, dropout, shape = ctx.held
    rows, tokens, width = by_row.shape
    output_slope = slope.to(by_row.dtype).reshape(rows, tokens, -1).contiguous()  # (R, T, o)
    a, b = (beside(part, output_slope) for part in bank.gather_factors(site))
    inner_slope = torch.bmm(output_slope, b.transpose(1, 2))  # (R, T, r)
    dropped = by_row if dropout is None else dropout(by_row)
    add_factor_gradients(bank, site, owners, dropped, inner, output_slope, inner_slope)
    if not ctx.needs_input_grad[0]:
        return None
    if base is None:
        input_slope = torch.bmm(inner_slope, a.transpose(1, 2))
        if dropout is not None:
            input_slope = dropout(input_slope)
        return input_slope.view(shape)
    input_slope = (output_slope.view(rows * tokens, -1) @ base.t()).view(rows, tokens, width)
    if dropout is None:
        input_slope.baddbmm_(inner_slope, a.transpose(1, 2))
    else:
        input_slope = dropout(torch.bmm(inner_slope, a.transpose(1, 2)), add=input_slope)
    return input_slope.view(shape)


def add_factor_gradients(
    bank: AdapterBank,
    site: AdapterSite,
    owners: Tensor,
    dropped: Tensor,
    inner: Tensor,
    output_slope: Tensor,
    inner_slope: Tensor,
) -> None:
    """Add the gradients of A and B to the bank's, row by row in order."""
    a_sums, b_sums = bank.views(bank.grads, site)
    b_gradients = torch.bmm(inner.transpose(1, 2), output_slope).float()
    b_sums.index_add_(0, owners, beside(b_gradients, b_sums))
    a_sums = a_sums.transpose(1, 2)  # as it lies
    a_gradients = torch.bmm(inner_slope.transpose(1, 2), dropped).float()
    a_sums.index_add_(0, owners, beside(a_gradients, a_sums), alpha=site.scale)


# ---- stacked parameters ---------------------------------------------------------------------------


class AdaptedStack:
    """The forward of a module whose stacked parameters are adapted: once for each slot, on its own tokens."""

    def __init__(self, bank: AdapterBank, module: nn.Module) -> None:
        self.bank = bank
        self.module = module
        self.own_forward = module.forward
        self.sites: list[tuple[AdapterSite, str]] = []  # with the names of their parameters

    def __call__(self, x: Tensor, *arguments: Any, **options: Any) -> Any:
        """Compute the module slot by slot."""
        name = self.sites[0][0].name
        if self.bank.routing.packed_linear is not None:
            raise NotImplementedError(f"layer {name} is a stack of parameters")
        owners = self.bank.routing.owners
        if owners is None:
            return self.own_forward(x, *arguments, **options)
        rows, _ = tokens_per_row(x, self.bank.routing, name)
        size = x.shape[0]
        outputs: list[Any] = []
        last = 0
        for slot, slot_rows in itertools.groupby(owners.tolist()):
            first, last = last, last + len(list(slot_rows))
            span = slice(first * size // rows, last * size // rows)
            if last - first == rows:
                span = slice(0, size)
            slot_arguments = [_cut_to_span(value, span, size) for value in arguments]
            slot_options = {key: _cut_to_span(value, span, size) for key, value in options.items()}
            with self._weights_of_slot(slot):
                outputs.append(self.own_forward(x[span], *slot_arguments, **slot_options))
        return _join_outputs(outputs)

    @contextmanager
    def _weights_of_slot(self, slot: int) -> Iterator[None]:
        """Put the slot's weights in the place of the module's own."""
        parameters = self.module._parameters
        originals = {name: parameters[name] for _, name in self.sites}
        try:
            if slot < self.bank.slots:
                for site, name in self.sites:
                    tuned = _StackedWeight.apply(
                        self.bank.anchor, self.bank, site, slot, originals[name]
                    )  # type: ignore[no-untyped-call]
                    del parameters[name]
                    self.module.__dict__[name] = tuned
            yield
        finally:
            for name, original in originals.items():
                self.module.__dict__.pop(name, None)
                parameters[name] = original


class _StackedWeight(torch.autograd.Function):
    """W + s · B_k A_k for each expert, laid out as PEFT lays out its factors."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, bank: AdapterBank, site: AdapterSite, slot: int, weight: Tensor
    ) -> Tensor:
        a, b = (beside(part, weight) for part in _expert_factors(bank, site, slot))
        change = torch.bmm(b, a)  # (E, o, i), scaled, because A is
        ctx.held = bank, site, slot
        if not site.out_first:
            change = change.transpose(1, 2)
        return weight + change.view_as(weight).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        bank, site, slot = ctx.held
        a, b = (beside(part, grads[0]) for part in _expert_factors(bank, site, slot))
        widths = (site.fan_out, site.fan_in) if site.out_first else (site.fan_in, site.fan_out)
        slope = grads[0].view(site.experts, *widths)
        if not site.out_first:
            slope = slope.transpose(1, 2)
        slope = slope.to(a.dtype)  # (E, o, i)
        b_gradients = torch.bmm(slope, a.transpose(1, 2))  # (E, o, r)
        a_gradients = torch.bmm(b.transpose(1, 2), slope)  # (E, r, i)
        a_sums, b_sums = (part[slot] for part in bank.views(bank.grads, site))
        a_gradients = a_gradients.permute(2, 0, 1).reshape(a_sums.shape).float()
        a_sums.add_(beside(a_gradients, a_sums), alpha=site.scale)
        b_gradients = b_gradients.permute(2, 0, 1).reshape(b_sums.shape).float()
        b_sums.add_(beside(b_gradients, b_sums))
        return None, None, None, None, None


def _expert_factors(bank: AdapterBank, site: AdapterSite, slot: int) -> tuple[Tensor, Tensor]:
    """Return A (E, r, i) and B (E, o, r): PEFT numbers A's columns expert by expert, B's rank by rank."""
    a, b = (part[slot] for part in bank.views(bank.work, site))
    rank = site.rank // site.experts
    a = a.view(site.fan_in, site.experts, rank).permute(1, 2, 0)
    b = b.view(rank, site.experts, site.fan_out).permute(1, 2, 0)
    return a, b


def _cut_to_span(value: Any, span: slice, size: int) -> Any:
    """Return a slot's part of an argument that has an entry for every token."""
    if isinstance(value, Tensor) and value.dim() and value.shape[0] == size:
        return value[span]
    return value


def _join_outputs(outputs: list[Any]) -> Any:
    """Join the outputs of all slots: tensors, or tuples of them."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple(_join_outputs(list(parts)) for parts in zip(*outputs, strict=True))
    return torch.cat(outputs) if isinstance(outputs[0], Tensor) else outputs[0]

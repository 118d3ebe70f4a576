"""The layers that lanes train: a linear layer, and a module of stacked parameters, each with an adapter per row.

A linear layer computes y = x W + b + s · dropout(x) A_k B_k, where k is the slot of the row; the base product runs
once on all rows, the adapters as batched products. A layer that is more than ``nn.Linear`` (quantised, scaled) keeps
its own forward, and the adapters' share is added. Stacked parameters have no such form: their module runs once for
each slot, on that slot's tokens, with W + s · B_k A_k in place of W, as PEFT does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from potentia.engine.spread import beside
from potentia.engine.tune.dropout import Dropout
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.tune.adapters import AdapterBank, Routing, Site


def grouped(x: Tensor, routing: Routing, name: str) -> tuple[int, int]:
    """Divide the tokens in ``x`` (…, d) among the rows of the pass: how many rows, and tokens of each.

    Rows keep their order in whatever shape a model gives its tokens; tokens picked from several rows have lost it.
    """
    assert routing.owners is not None
    rows, count = routing.owners.shape[0], x.numel() // x.shape[-1]
    by_row = x.dim() > 2 and x.shape[0] == rows
    if rows > 1 and ((not by_row and count != routing.count) or count % rows):
        raise TuningError(
            f"layer {name} got {tuple(x.shape)} for {rows} rows: whose adapter to use is unknown",
            hint="name other layers with `targets`, such as those of attention",
        )
    return rows, count // rows


class LaneForward:
    """The forward of an adapted linear layer, set on the instance for as long as the bank is installed."""

    def __init__(self, bank: AdapterBank, site: Site, module: nn.Module) -> None:
        self.bank, self.site = bank, site
        self.own = module.forward
        weight, bias = module.weight, module.bias
        self.plain = type(module) in (nn.Linear, Conv1D) and "forward" not in module.__dict__
        self.weight: Tensor | None = None
        self.bias = bias if isinstance(bias, Tensor) else None
        if self.plain:
            assert isinstance(weight, Tensor)
            self.weight = weight.t() if isinstance(module, nn.Linear) else weight  # (d, o)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the layer, each row with the adapter of its slot."""
        routing = self.bank.routing
        if routing.long_row is not None:
            if self.weight is None:
                raise NotImplementedError(f"layer {self.site.name} is more than linear")
            return routing.long_row(x, self.site, self.weight, self.bias)
        if routing.owners is None:
            return self.own(x)  # type: ignore[no-any-return]
        if self.plain:
            return _LaneLinear.apply(  # type: ignore[no-any-return, no-untyped-call]
                x, self.bank.anchor, self.bank, self.site, self.weight, self.bias
            )
        share: Tensor = _LaneShare.apply(x, self.bank.anchor, self.bank, self.site)  # type: ignore[no-untyped-call]
        out: Tensor = self.own(x)
        return out + share.to(out.dtype)


class _LaneLinear(torch.autograd.Function):
    """y = x W + b + s · dropout(x) A_k B_k. Takes and gives the layer's own shapes: the model may write into y."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, bank: AdapterBank, site: Site, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        out = x.new_empty(*x.shape[:-1], site.fan_out)  # no view of another tensor: those may not be written into
        flat, y = x.reshape(-1, x.shape[-1]), out.view(-1, site.fan_out)
        torch.mm(flat, weight, out=y) if bias is None else torch.addmm(bias, flat, weight, out=y)
        _share(ctx, x, bank, site, into=y)
        ctx.base = weight
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _share_back(ctx, grads[0], ctx.base), None, None, None, None, None


class _LaneShare(torch.autograd.Function):
    """s · dropout(x) A_k B_k alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, bank: AdapterBank, site: Site) -> Tensor:
        out = x.new_zeros(*x.shape[:-1], site.fan_out, dtype=bank.dtype)
        _share(ctx, x.to(bank.dtype), bank, site, into=out.view(-1, site.fan_out))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _share_back(ctx, grads[0], None), None, None, None


def _share(ctx: Any, x: Tensor, bank: AdapterBank, site: Site, *, into: Tensor) -> None:
    """Add the adapters' outputs to ``into`` (N, o), and keep what the way back needs."""
    routing, lora = bank.routing, bank.lora
    owners = routing.owners
    assert owners is not None
    if routing.single:
        a, b = (beside(part[owners[0]], x) for part in bank.views(bank.work, site))
        into.addmm_(x.reshape(-1, x.shape[-1]) @ a, b)
        return
    rows, tokens = grouped(x, routing, site.name)
    parts = x.reshape(rows, tokens, x.shape[-1])
    a, b = (beside(part, x) for part in bank.gathered(site))
    keys = None if routing.keys is None else beside(_keys(routing.keys, rows, tokens), x)
    dropout = None if keys is None else Dropout(keys, site.index, lora.dropout)
    kept = parts if dropout is None else dropout(parts)
    h = torch.bmm(kept, a)  # scaled, because A is
    into.view(rows, tokens, -1).baddbmm_(h, b)
    ctx.save_for_backward(parts, h)
    ctx.held = bank, site, owners, dropout, x.shape


def _keys(keys: Tensor, rows: int, tokens: int) -> Tensor:
    """Return the dropout keys of a layer's tokens; a layer that sees fewer of each row takes those of its first.

    A layer that sees tokens more than once (experts) goes round.
    """
    if keys.numel() == rows * tokens:
        return keys
    own = keys.view(rows, -1)
    return own[:, torch.arange(tokens, device=keys.device) % own.shape[1]].contiguous()


def _share_back(ctx: Any, slope: Tensor, base: Tensor | None) -> Tensor | None:
    """Add the adapters' gradients to the bank; returns the input's, through the adapters and ``base`` (d, o)."""
    parts, h = ctx.saved_tensors
    bank, site, owners, dropout, shape = ctx.held
    rows, tokens, width = parts.shape
    dy = slope.to(parts.dtype).reshape(rows, tokens, -1).contiguous()  # (R, T, o)
    a, b = (beside(part, dy) for part in bank.gathered(site))
    da, db = bank.views(bank.grads, site)
    dh = torch.bmm(dy, b.transpose(1, 2))  # (R, T, r)
    kept = parts if dropout is None else dropout(parts)
    db.index_add_(0, owners, beside(torch.bmm(h.transpose(1, 2), dy).float(), db))
    da.index_add_(0, owners, beside(torch.bmm(kept.transpose(1, 2), dh).float(), da), alpha=bank.lora.scale)
    if not ctx.needs_input_grad[0]:
        return None
    if base is None:
        dx = torch.bmm(dh, a.transpose(1, 2))
        return (dx if dropout is None else dropout(dx)).view(shape)
    dx = (dy.view(rows * tokens, -1) @ base.t()).view(rows, tokens, width)
    if dropout is None:
        dx.baddbmm_(dh, a.transpose(1, 2))
    else:
        dx = dropout(torch.bmm(dh, a.transpose(1, 2)), add=dx)
    return dx.view(shape)


class StackedForward:
    """The forward of a module whose stacked parameters are adapted: once for each slot, on its own tokens."""

    def __init__(self, bank: AdapterBank, module: nn.Module, sites: list[tuple[Site, str]]) -> None:
        self.bank, self.module, self.sites = bank, module, sites
        self.own = module.forward

    def __call__(self, x: Tensor, *more: Any, **options: Any) -> Any:
        """Compute the module slot by slot."""
        owners = self.bank.routing.owners
        if self.bank.routing.long_row is not None:
            raise NotImplementedError(f"layer {self.sites[0][0].name} is a stack of parameters")
        if owners is None:
            return self.own(x, *more, **options)
        rows, _ = grouped(x, self.bank.routing, self.sites[0][0].name)
        size = x.shape[0]
        answers: list[Any] = []
        for slot, first, last in _runs(owners.tolist()):
            whole = last - first == rows
            span = slice(0, size) if whole else slice(first * size // rows, last * size // rows)
            part = [_cut(value, span, size) for value in more]
            named = {name: _cut(value, span, size) for name, value in options.items()}
            with self._using(slot):
                answers.append(self.own(x[span], *part, **named))
        return _join(answers)

    @contextmanager
    def _using(self, slot: int) -> Iterator[None]:
        """Put the slot's weights in the place of the module's own."""
        parameters = self.module._parameters
        kept = {name: parameters[name] for _, name in self.sites}
        try:
            if slot < self.bank.slots:
                for site, name in self.sites:
                    tuned = _StackedWeight.apply(self.bank.anchor, self.bank, site, slot, kept[name])  # type: ignore[no-untyped-call]
                    del parameters[name]
                    self.module.__dict__[name] = tuned
            yield
        finally:
            for name, own in kept.items():
                self.module.__dict__.pop(name, None)
                parameters[name] = own


class _StackedWeight(torch.autograd.Function):
    """W + s · B_k A_k for each expert, laid out as PEFT lays out its factors."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, bank: AdapterBank, site: Site, slot: int, weight: Tensor) -> Tensor:
        a, b = (beside(part, weight) for part in _factors(bank, site, slot))
        delta = torch.bmm(b, a)  # (E, o, i), scaled, because A is
        ctx.held = bank, site, slot
        delta = (delta if site.out_first else delta.transpose(1, 2)).view_as(weight)
        return weight + delta.to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        bank, site, slot = ctx.held
        a, b = (beside(part, grads[0]) for part in _factors(bank, site, slot))
        slope = grads[0].view(
            site.experts, *((site.fan_out, site.fan_in) if site.out_first else (site.fan_in, site.fan_out))
        )
        slope = (slope if site.out_first else slope.transpose(1, 2)).to(a.dtype)  # (E, o, i)
        db, da = torch.bmm(slope, a.transpose(1, 2)), torch.bmm(b.transpose(1, 2), slope)  # (E, o, r), (E, r, i)
        into_a, into_b = (part[slot] for part in bank.views(bank.grads, site))
        into_a.add_(beside(da.permute(2, 0, 1).reshape(into_a.shape).float(), into_a), alpha=site.scale)
        into_b.add_(beside(db.permute(2, 0, 1).reshape(into_b.shape).float(), into_b))
        return None, None, None, None, None


def _factors(bank: AdapterBank, site: Site, slot: int) -> tuple[Tensor, Tensor]:
    """Return A (E, r, i) and B (E, o, r): PEFT numbers A's columns expert by expert, B's rank by rank."""
    a, b = (part[slot] for part in bank.views(bank.work, site))
    each = site.rank // site.experts
    return (
        a.view(site.fan_in, site.experts, each).permute(1, 2, 0),
        b.view(each, site.experts, site.fan_out).permute(1, 2, 0),
    )


def _runs(owners: list[int]) -> Iterator[tuple[int, int, int]]:
    """Cut rows into stretches of one slot: (slot, first row, one past the last)."""
    first = 0
    for place in range(1, len(owners) + 1):
        if place == len(owners) or owners[place] != owners[first]:
            yield owners[first], first, place
            first = place


def _cut(value: Any, span: slice, size: int) -> Any:
    return value[span] if isinstance(value, Tensor) and value.dim() and value.shape[0] == size else value


def _join(answers: list[Any]) -> Any:
    if len(answers) == 1:
        return answers[0]
    if isinstance(answers[0], tuple):
        return tuple(_join(list(parts)) for parts in zip(*answers, strict=True))
    return torch.cat(answers) if isinstance(answers[0], Tensor) else answers[0]

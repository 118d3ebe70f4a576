"""The layers that lanes train: a linear layer, and a module of stacked parameters, each with an adapter per row.

What an adapter adds is its kind's affair (:class:`LowRankAdapter`: LoRA, rsLoRA): its numbers, forward, backward and
PEFT's names of its parts. Low-rank kinds compute y = x W + b + s · dropout(x) A_k B_k, where k is the slot of the row;
the base product runs once on all rows, the adapters as batched products. A layer that is more than ``nn.Linear``
(quantised, scaled) keeps its own forward, and the adapters' share is added. Stacked parameters have no such form: their
module runs once for each slot, on that slot's tokens, with W + s · B_k A_k in place of W, as PEFT does.
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


class AdaptedLinear:
    """The forward of an adapted linear layer, set on the instance for as long as the bank is installed."""

    def __init__(self, bank: AdapterBank, site: AdapterSite, module: nn.Module) -> None:
        self.bank, self.site = bank, site
        self.own = module.forward
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
            return self.own(x)  # type: ignore[no-any-return]
        out: Tensor = _Adapted.apply(
            x, self.bank.anchor, self.bank, self.site, self.weight, self.bias
        )  # type: ignore[no-untyped-call]
        if self.weight is not None:
            return out
        whole: Tensor = self.own(x)
        return whole + out.to(whole.dtype)


def plain_weight(module: nn.Module) -> Tensor | None:
    """Return a linear layer's weight (d, o); None where the layer is more than linear, or somebody's own."""
    if type(module) not in (nn.Linear, Conv1D) or "forward" in module.__dict__:
        return None
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.t() if isinstance(module, nn.Linear) else weight


class _Adapted(torch.autograd.Function):
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
        return bank.adapter.forward(ctx, x, bank, site, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.bank.adapter.backward(ctx, grads[0]), None, None, None, None, None


class LowRankAdapter:
    """One kind of adapter: its numbers in a layer, how it computes and learns, and what PEFT calls its parts.

    This is LoRA and rsLoRA: y = x W + b + s · dropout(x) A B, where s is α/r or α/√r.
    """

    def size(self, fan_in: int, fan_out: int, rank: int) -> int:
        """Return how many numbers it has in a layer."""
        return (fan_in + fan_out) * rank

    def start(
        self, bank: AdapterBank, row: Tensor, site: AdapterSite, stream: torch.Generator
    ) -> None:
        """Draw its numbers in a layer of a new row (1, P) as PEFT does: A uniform in ±1/√d, B zero."""
        a, _ = bank.views(row, site)
        a.copy_((torch.rand(a.shape, generator=stream) * 2 - 1) * site.fan_in**-0.5)

    def parts(self, bank: AdapterBank, row: Tensor, site: AdapterSite) -> dict[str, Tensor]:
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
            out = x.new_zeros(shape, dtype=bank.dtype)
            _share(ctx, x.to(bank.dtype), bank, site, into=out.view(-1, site.fan_out))
            return out
        out = x.new_empty(shape)  # no view of another tensor: those may not be written into
        flat, y = x.reshape(-1, x.shape[-1]), out.view(-1, site.fan_out)
        torch.mm(flat, weight, out=y) if bias is None else torch.addmm(bias, flat, weight, out=y)
        _share(ctx, x, bank, site, into=y)
        return out

    def backward(self, ctx: Any, slope: Tensor) -> Tensor | None:
        """Add the adapters' gradients to the bank's; returns the input's."""
        return _share_back(ctx, slope, ctx.base)


ADAPTERS: dict[str, LowRankAdapter] = {"lora": LowRankAdapter(), "rslora": LowRankAdapter()}


def _share(ctx: Any, x: Tensor, bank: AdapterBank, site: AdapterSite, *, into: Tensor) -> None:
    """Add the adapters' outputs to ``into`` (N, o), and keep what the way back needs."""
    routing = bank.routing
    owners = routing.owners
    assert owners is not None
    if routing.single:
        a, b = (beside(part[owners[0]], x) for part in bank.views(bank.work, site))
        into.addmm_(x.reshape(-1, x.shape[-1]) @ a, b)
        return
    rows, tokens = tokens_per_row(x, routing, site.name)
    parts = x.reshape(rows, tokens, x.shape[-1])
    a, b = (beside(part, x) for part in bank.gather_factors(site))
    dropout = _dropout(bank, site, rows, tokens, x)
    kept = parts if dropout is None else dropout(parts)
    h = torch.bmm(kept, a)  # scaled, because A is
    into.view(rows, tokens, -1).baddbmm_(h, b)
    ctx.save_for_backward(parts, h)
    ctx.held = bank, site, owners, dropout, x.shape


def _dropout(
    bank: AdapterBank, site: AdapterSite, rows: int, tokens: int, x: Tensor
) -> Dropout | None:
    """Return a layer's dropout in the pass under way; a layer that sees fewer tokens of each row takes the first keys.

    A layer that sees tokens more than once (experts) goes round.
    """
    keys = bank.routing.keys
    if keys is None:
        return None
    if keys.numel() != rows * tokens:
        own = keys.view(rows, -1)
        keys = own[:, torch.arange(tokens, device=keys.device) % own.shape[1]].contiguous()
    return Dropout(beside(keys, x), site.index, bank.lora.dropout)


def _share_back(ctx: Any, slope: Tensor, base: Tensor | None) -> Tensor | None:
    """Add the adapters' gradients to the bank; returns the input's, through the adapters and ``base`` (d, o)."""
    parts, h = ctx.saved_tensors
    bank, site, owners, dropout, shape = ctx.held
    rows, tokens, width = parts.shape
    dy = slope.to(parts.dtype).reshape(rows, tokens, -1).contiguous()  # (R, T, o)
    a, b = (beside(part, dy) for part in bank.gathered(site))
    dh = torch.bmm(dy, b.transpose(1, 2))  # (R, T, r)
    _add_gradients(bank, site, owners, parts if dropout is None else dropout(parts), h, dy, dh)
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


def _add_gradients(
    bank: AdapterBank,
    site: AdapterSite,
    owners: Tensor,
    kept: Tensor,
    h: Tensor,
    dy: Tensor,
    dh: Tensor,
) -> None:
    """Add the gradients of A and B, row by row in order."""
    da, db = bank.views(bank.grads, site)
    db.index_add_(0, owners, beside(torch.bmm(h.transpose(1, 2), dy).float(), db))
    da = da.transpose(1, 2)  # as it lies
    da.index_add_(
        0, owners, beside(torch.bmm(dh.transpose(1, 2), kept).float(), da), alpha=bank.lora.scale
    )


class AdaptedStack:
    """The forward of a module whose stacked parameters are adapted: once for each slot, on its own tokens."""

    def __init__(self, bank: AdapterBank, module: nn.Module) -> None:
        self.bank, self.module, self.own = bank, module, module.forward
        self.sites: list[tuple[AdapterSite, str]] = []  # with the names of their parameters

    def __call__(self, x: Tensor, *more: Any, **options: Any) -> Any:
        """Compute the module slot by slot."""
        owners = self.bank.routing.owners
        if self.bank.routing.packed_linear is not None:
            raise NotImplementedError(f"layer {self.sites[0][0].name} is a stack of parameters")
        if owners is None:
            return self.own(x, *more, **options)
        rows, _ = tokens_per_row(x, self.bank.routing, self.sites[0][0].name)
        size = x.shape[0]
        answers: list[Any] = []
        last = 0
        for slot, stretch in itertools.groupby(owners.tolist()):
            first, last = last, last + len(list(stretch))
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
                    tuned = _StackedWeight.apply(
                        self.bank.anchor, self.bank, site, slot, kept[name]
                    )  # type: ignore[no-untyped-call]
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
    def forward(
        ctx: Any, anchor: Tensor, bank: AdapterBank, site: AdapterSite, slot: int, weight: Tensor
    ) -> Tensor:
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
            site.experts,
            *((site.fan_out, site.fan_in) if site.out_first else (site.fan_in, site.fan_out)),
        )
        slope = (slope if site.out_first else slope.transpose(1, 2)).to(a.dtype)  # (E, o, i)
        db, da = (
            torch.bmm(slope, a.transpose(1, 2)),
            torch.bmm(b.transpose(1, 2), slope),
        )  # (E, o, r), (E, r, i)
        into_a, into_b = (part[slot] for part in bank.views(bank.grads, site))
        into_a.add_(
            beside(da.permute(2, 0, 1).reshape(into_a.shape).float(), into_a), alpha=site.scale
        )
        into_b.add_(beside(db.permute(2, 0, 1).reshape(into_b.shape).float(), into_b))
        return None, None, None, None, None


def _factors(bank: AdapterBank, site: AdapterSite, slot: int) -> tuple[Tensor, Tensor]:
    """Return A (E, r, i) and B (E, o, r): PEFT numbers A's columns expert by expert, B's rank by rank."""
    a, b = (part[slot] for part in bank.views(bank.work, site))
    each = site.rank // site.experts
    return (
        a.view(site.fan_in, site.experts, each).permute(1, 2, 0),
        b.view(each, site.experts, site.fan_out).permute(1, 2, 0),
    )


def _cut(value: Any, span: slice, size: int) -> Any:
    return (
        value[span]
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == size
        else value
    )


def _join(answers: list[Any]) -> Any:
    if len(answers) == 1:
        return answers[0]
    if isinstance(answers[0], tuple):
        return tuple(_join(list(parts)) for parts in zip(*answers, strict=True))
    return torch.cat(answers) if isinstance(answers[0], Tensor) else answers[0]

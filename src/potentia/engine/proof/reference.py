"""The judge: rows alone through the model's own forward, cross-entropy and autograd, with adapters put on by hooks.

Nothing here is fast and nothing is shared with the forms that are compared with it (``check``); where no form is right,
lanes are trained by the judge itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.layers.lane_layers import plain_weight
from potentia.engine.models.device_layout import beside
from potentia.engine.operations.dropout import keep_mask, token_keys
from potentia.engine.training.adapters import AdapterBank, Site

if TYPE_CHECKING:
    from potentia.engine.training.schedule import Lesson

Gradients = tuple[Tensor, Tensor]  # losses by slot, and gradients (slots + 1, P)


def own_gradients(
    model: nn.Module, bank: AdapterBank, rows: Sequence[Lesson], *, padding: int = 0
) -> Gradients:
    """Return losses and gradients of each row alone through the model's own forward, cross-entropy and autograd."""
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    grads = torch.zeros_like(bank.weights)
    with bank.suspended(), torch.enable_grad():
        for row in rows:
            # a leaf a layer: the gradient of a slice of one long leaf would be as long as all of it
            spans = [slice(site.offset, site.offset + site.size) for site in bank.sites]
            leaves = [
                bank.weights[row.slot, span].detach().clone().requires_grad_() for span in spans
            ]
            with _plain_adapters(
                bank, leaves, row
            ):  # also on the way back, where a block may be computed again
                loss = own_loss(model, row, bank.device, padding=padding)
                slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
            for span, slope in zip(spans, slopes, strict=True):
                if slope is not None:
                    grads[row.slot, span] += slope
            losses[row.slot] += loss.detach()
    return losses, grads


def own_loss(model: nn.Module, row: Lesson, device: torch.device, *, padding: int = 0) -> Tensor:
    """Return a row's share of its lane's loss by the model's own forward on the row alone."""
    ids = torch.from_numpy(np.concatenate([row.ids, np.zeros(padding, np.int64)])).to(device)
    logits = model(input_ids=ids[None], use_cache=False).logits[
        0, row.first_target - 1 : len(row.ids) - 1
    ]
    wanted = ids[row.first_target : len(row.ids)]
    return nn.functional.cross_entropy(logits.float(), wanted, reduction="sum") * row.weight


@contextmanager
def _plain_adapters(bank: AdapterBank, leaves: Sequence[Tensor], row: Lesson) -> Iterator[None]:
    """Put one lane's adapters on by hooks, as PEFT computes them: y + s · dropout(x) A B."""
    modules = dict(bank.model.named_modules())
    with ExitStack() as stack:
        for site, leaf in zip(bank.sites, leaves, strict=True):
            alone = replace(site, offset=0)
            a, b = (part[0] for part in bank.views(leaf[None], alone))
            if site.experts:
                name, parameter = bank.stacked_at[site.index]
                stack.enter_context(_stacked(modules[name], parameter, site, a, b))
            else:
                m = bank.magnitudes(leaf[None], alone)[0] if bank.lora.kind == "dora" else None
                stack.callback(
                    modules[site.name].register_forward_hook(_hook(bank, site, a, b, m, row)).remove
                )
        yield


def _hook(
    bank: AdapterBank, site: Site, a: Tensor, b: Tensor, m: Tensor | None, row: Lesson
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """Return a hook that adds a layer's adapter to its output: s · x A B, where x is dropped out.

    DoRA's, with m, is (g − 1) · x W + g · s · x A B, where g = m / ‖W + s · A B‖.
    """
    weight = plain_weight(bank.model.get_submodule(site.name)) if m is not None else None
    gains: Tensor | None = None
    if m is not None and weight is not None:
        norms = torch.linalg.norm(
            weight.float() + beside((a @ b).detach() * site.scale, weight), dim=0
        )
        gains = beside(m, weight) / norms

    def add(_: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        x = _dropped(inputs[0].to(bank.dtype), bank, site, row)
        share = x @ beside(a.to(x.dtype), x) @ beside(b.to(x.dtype), x) * site.scale
        if gains is not None and weight is not None:
            g = gains.to(x.dtype)
            share = (g - 1) * (x @ weight) + g * share
        return out + share.to(out.dtype)

    return add


def _dropped(x: Tensor, bank: AdapterBank, site: Site, row: Lesson) -> Tensor:
    p = bank.lora.dropout
    if p == 0:
        return x
    seed, step, place = (np.array([value]) for value in (row.seed, row.step, row.place))
    order = np.arange(x.numel() // x.shape[-1]) % len(row.ids)
    keys = beside(torch.from_numpy(token_keys(seed, step, place, order)).to(bank.device), x)
    return x * keep_mask(keys, site.index, x.shape[-1], p).view_as(x).to(x.dtype) / (1 - p)


@contextmanager
def _stacked(module: nn.Module, name: str, site: Site, a: Tensor, b: Tensor) -> Iterator[None]:
    """Put W + s · B A in the place of a stacked parameter: experts side by side in A's columns, apart in B's rows."""
    own = module._parameters[name]
    assert own is not None
    each = site.rank // site.experts
    a, b = (beside(part.to(own.dtype), own) for part in (a, b))
    a, b = a.view(site.fan_in, site.experts, each), b.view(each, site.experts, site.fan_out)
    order = "ier,reo->eoi" if site.out_first else "ier,reo->eio"
    tuned = own + torch.einsum(order, a, b).reshape(own.shape) * site.scale
    del module._parameters[name]
    module.__dict__[name] = tuned
    try:
        yield
    finally:
        module.__dict__.pop(name, None)
        module._parameters[name] = own

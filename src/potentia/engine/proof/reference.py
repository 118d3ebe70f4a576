"""The reference: rows alone through the model's own forward, cross-entropy and autograd, with adapters put on by hooks.

Nothing here is fast, and nothing is shared with the forms that are compared with it: the adapters' factor is PEFT's,
the schedule of learning rates transformers'. Where no form is right, lanes are trained by the reference itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.models.device_layout import beside
from potentia.engine.operations.dropout import keep_mask, token_keys

if TYPE_CHECKING:
    from potentia.engine.lane_spec import Schedule, TrainingRow

Gradients = tuple[Tensor, Tensor]  # losses by slot, and gradients (slots + 1, P)
RowLoss = Callable[..., Tensor]
NO_TARGET = -100  # transformers' label of a token without a loss


def reference_gradients(
    model: nn.Module,
    bank: AdapterBank,
    rows: Sequence[TrainingRow],
    *,
    padding: int = 0,
    loss: RowLoss | None = None,
) -> Gradients:
    """Return losses and gradients of each row alone through the model's own forward, cross-entropy and autograd."""
    compute_loss = loss or reference_loss
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    gradients = torch.zeros_like(bank.weights)
    # a leaf a layer: the gradient of a slice of one long leaf would be as long as all of it
    scales = site_scales(bank)
    spans = [slice(site.offset, site.offset + site.size) for site in bank.sites]
    with bank.suspended(), torch.enable_grad():
        for row in rows:
            leaves = [
                bank.weights[row.slot, span].detach().clone().requires_grad_() for span in spans
            ]
            # adapters stay on during the backward pass, in which a block may be computed again
            with _adapters_by_hooks(bank, scales, leaves, row):
                row_loss = compute_loss(model, row, bank.device, padding=padding)
                slopes = torch.autograd.grad(row_loss, leaves, allow_unused=True)
            for span, slope in zip(spans, slopes, strict=True):
                if slope is not None:
                    gradients[row.slot, span] += slope
            losses[row.slot] += row_loss.detach()
    return losses, gradients


def reference_loss(
    model: nn.Module, row: TrainingRow, device: torch.device, *, padding: int = 0
) -> Tensor:
    """Return a row's share of its lane's loss by the model's own forward on the row alone."""
    ids = _padded_ids(row, device, padding)
    logits = model(input_ids=ids[None], use_cache=False).logits
    predictions = logits[0, row.first_target - 1 : len(row.ids) - 1]
    targets = ids[row.first_target : len(row.ids)]
    return nn.functional.cross_entropy(predictions.float(), targets, reduction="sum") * row.weight


def transformers_loss(
    model: nn.Module, row: TrainingRow, device: torch.device, *, padding: int = 0
) -> Tensor:
    """Return the same share by transformers' own loss, which shifts labels and leaves the prompt out itself."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    ids = _padded_ids(row, device, padding)
    labels = ids.clone()
    labels[: row.first_target] = NO_TARGET
    labels[len(row.ids) :] = NO_TARGET
    logits = model(input_ids=ids[None], use_cache=False).logits
    begin = row.first_target - 1  # logits of the prompt, which may be long, need no float32
    targets = torch.tensor(1.0 / row.weight, device=device)
    loss: Tensor = ForCausalLMLoss(
        logits[:, begin:].contiguous(),
        labels[None, begin:],
        vocab_size=logits.shape[-1],
        num_items_in_batch=targets,
    )
    return loss


def _padded_ids(row: TrainingRow, device: torch.device, padding: int) -> Tensor:
    return torch.from_numpy(np.concatenate([row.ids, np.zeros(padding, np.int64)])).to(device)


# ---- adapters ------------------------------------------------------------------------------------


@cache
def peft_scale(rank: int, alpha: float, rank_stabilized: bool) -> float:
    """Return the factor that PEFT puts on the output of an adapter."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # PEFT says int and takes any number
        use_rslora=rank_stabilized,
        target_modules=["layer"],
    )
    holder = nn.ModuleDict({"layer": nn.Linear(1, 1)})
    with torch.random.fork_rng(devices=[]):  # PEFT draws the new adapter's numbers
        inject_adapter_in_model(config, holder)
    layer: Any = holder["layer"]
    return float(layer.scaling["default"])


def site_scales(bank: AdapterBank) -> list[float]:
    """Return PEFT's factor of every adapter site, by the rank and α that PEFT's config gives it."""
    config = bank.peft_config()
    return [_site_scale(config, bank, site) for site in bank.sites]


def _site_scale(config: Any, bank: AdapterBank, site: AdapterSite) -> float:
    rank, alpha = config.r, config.lora_alpha
    if site.experts:
        from peft.utils.other import get_pattern_key

        name = ".".join(bank.stacked_at[site.index])
        rank = config.rank_pattern.get(get_pattern_key(config.rank_pattern, name), rank)
        alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, name), alpha)
    return peft_scale(int(rank), alpha, bool(config.use_rslora))


@contextmanager
def _adapters_by_hooks(
    bank: AdapterBank, scales: Sequence[float], leaves: Sequence[Tensor], row: TrainingRow
) -> Iterator[None]:
    """Put one lane's adapters on by hooks, as PEFT computes them: y + s · dropout(x) A B."""
    modules = dict(bank.model.named_modules())
    with ExitStack() as stack:
        for site, scale, leaf in zip(bank.sites, scales, leaves, strict=True):
            alone = replace(site, offset=0, scale=scale)
            a, b = (part[0] for part in bank.views(leaf[None], alone))
            if site.experts:
                name, parameter = bank.stacked_at[site.index]
                stack.enter_context(_stacked_adapter(modules[name], parameter, alone, a, b))
            else:
                hook = modules[site.name].register_forward_hook(
                    _add_adapter(bank, alone, a, b, row)
                )
                stack.callback(hook.remove)
        yield


def _add_adapter(
    bank: AdapterBank, site: AdapterSite, a: Tensor, b: Tensor, row: TrainingRow
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """Return a hook that adds a layer's adapter to its output: s · x A B, where x is dropped out."""

    def add(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x = _dropped(inputs[0].to(bank.dtype), bank, site, row)
        share = x @ beside(a.to(x.dtype), x) @ beside(b.to(x.dtype), x) * site.scale
        return output + share.to(output.dtype)

    return add


def _dropped(x: Tensor, bank: AdapterBank, site: AdapterSite, row: TrainingRow) -> Tensor:
    """Return a layer's input with the elements dropped that a lane's dropout drops in this row."""
    p = bank.lora.dropout
    if p == 0:
        return x
    seed, step, batch_index = (np.array([value]) for value in (row.seed, row.step, row.batch_index))
    order = np.arange(x.numel() // x.shape[-1]) % len(row.ids)
    keys = beside(torch.from_numpy(token_keys(seed, step, batch_index, order)).to(bank.device), x)
    return x * keep_mask(keys, site.index, x.shape[-1], p).view_as(x).to(x.dtype) / (1 - p)


@contextmanager
def _stacked_adapter(
    module: nn.Module, name: str, site: AdapterSite, a: Tensor, b: Tensor
) -> Iterator[None]:
    """Put W + s · B A in the place of a stacked parameter: experts side by side in A's columns, apart in B's rows."""
    base = module._parameters[name]
    assert base is not None
    rank = site.rank // site.experts
    a, b = (beside(part.to(base.dtype), base) for part in (a, b))
    a = a.view(site.fan_in, site.experts, rank)
    b = b.view(rank, site.experts, site.fan_out)
    order = "ier,reo->eoi" if site.out_first else "ier,reo->eio"
    tuned = base + torch.einsum(order, a, b).reshape(base.shape) * site.scale
    del module._parameters[name]
    module.__dict__[name] = tuned
    try:
        yield
    finally:
        module.__dict__.pop(name, None)
        module._parameters[name] = base


# ---- learning rates ------------------------------------------------------------------------------


@cache
def reference_learning_rate(schedule: Schedule, total_steps: int) -> Callable[[int], float]:
    """Return the learning rate of every update by transformers' own schedule.

    transformers has no floor for all of its schedules: what lies above ``floor`` falls as transformers says.
    """
    from transformers import get_scheduler

    name = "constant_with_warmup" if schedule.decay == "constant" else schedule.decay
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=schedule.learning_rate)
    scheduler = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=schedule.warmup_steps,
        num_training_steps=total_steps,
    )
    share_at: Callable[[int], float] = scheduler.lr_lambdas[0]

    def learning_rate(step: int) -> float:
        share = share_at(step)
        if schedule.decay != "constant" and step >= schedule.warmup_steps:
            share = schedule.floor + share * (1.0 - schedule.floor)
        return schedule.learning_rate * share

    return learning_rate


@contextmanager
def embeddings_moved_by_last_bit(model: nn.Module, seed: int) -> Iterator[None]:
    """Let every number of the input embeddings be one last bit larger or smaller inside the block, at random."""
    stream = torch.Generator().manual_seed(seed)

    def move(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        upward = torch.rand(embedded.shape, generator=stream).to(embedded.device) < 0.5
        infinity = torch.full_like(embedded, torch.inf)
        return torch.nextafter(embedded, torch.where(upward, infinity, -infinity))

    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    hook = embedding.register_forward_hook(move)
    try:
        yield
    finally:
        hook.remove()

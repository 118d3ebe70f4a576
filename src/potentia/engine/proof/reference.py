"""The reference that training is compared with: each row alone through the model's own code.

A row is one example of a lane (a fine-tuning). The reference computes it with the model's own forward, cross-entropy
and autograd; hooks add the lane's adapter. Nothing here is fast, and nothing is shared with the training forms that are
compared with it: the adapters' scale is PEFT's, the schedule of learning rates is transformers'. Where no faster form
agrees with it, lanes are trained by the reference itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.models.device_layout import move_beside
from potentia.engine.operations.dropout import keep_mask, token_keys
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.lane_spec import Schedule, TrainingRow

# losses by slot, and the gradients of P parameters by slot (slots + 1, P); the last slot is the untuned model's
Gradients = tuple[Tensor, Tensor]
RowLoss = Callable[..., Tensor]  # reference_loss, or another function with its parameters
NO_TARGET = -100  # transformers' label for a token without a loss
SCALE_TOLERANCE = 1e-6  # how far an adapter's scale may be from PEFT's, as a share


def reference_gradients(
    model: nn.Module,
    adapter_bank: AdapterBank,
    rows: Sequence[TrainingRow],
    *,
    padding: int = 0,
    loss: RowLoss | None = None,
) -> Gradients:
    """Return the losses and adapter gradients of rows, each computed alone and added up by slot.

    ``padding`` tokens after each row change its shape and nothing else. ``loss`` computes a row's loss; by default
    :func:`reference_loss`.
    """
    compute_loss = loss or reference_loss
    losses = torch.zeros(adapter_bank.slots + 1, device=adapter_bank.device)
    gradients = torch.zeros_like(adapter_bank.weights)
    scales = peft_site_scales(adapter_bank)
    spans = [slice(site.offset, site.offset + site.size) for site in adapter_bank.sites]
    with adapter_bank.suspended(), torch.enable_grad():
        for row in rows:
            # a tensor for each site: the gradient of a slice of one long tensor would be as long as all of it
            site_weights = [
                adapter_bank.weights[row.slot, span].detach().clone().requires_grad_()
                for span in spans
            ]
            # adapters stay on during the backward pass, in which a block may be computed again
            with _adapters_by_hooks(adapter_bank, scales, site_weights, row):
                row_loss = compute_loss(model, row, adapter_bank.device, padding=padding)
                site_gradients = torch.autograd.grad(row_loss, site_weights, allow_unused=True)
            for span, site_gradient in zip(spans, site_gradients, strict=True):
                if site_gradient is not None:
                    gradients[row.slot, span] += site_gradient
            losses[row.slot] += row_loss.detach()
    return losses, gradients


def reference_loss(
    model: nn.Module, row: TrainingRow, device: torch.device, *, padding: int = 0
) -> Tensor:
    """Return a row's share of its lane's loss, by the model's own forward on the row alone."""
    token_ids = _pad_row(row, device, padding)
    logits = model(input_ids=token_ids[None], use_cache=False).logits
    predictions = logits[0, row.first_target - 1 : len(row.ids) - 1]
    targets = token_ids[row.first_target : len(row.ids)]
    return nn.functional.cross_entropy(predictions.float(), targets, reduction="sum") * row.weight


def transformers_loss(
    model: nn.Module, row: TrainingRow, device: torch.device, *, padding: int = 0
) -> Tensor:
    """Return a row's share of its lane's loss by transformers' own function, which shifts labels itself."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    token_ids = _pad_row(row, device, padding)
    labels = token_ids.clone()
    labels[: row.first_target] = NO_TARGET
    labels[len(row.ids) :] = NO_TARGET
    logits = model(input_ids=token_ids[None], use_cache=False).logits
    # the function turns all logits into float32: leave those of the prompt out, which may be long
    begin = row.first_target - 1
    target_count = torch.tensor(1.0 / row.weight, device=device)
    loss: Tensor = ForCausalLMLoss(
        logits[:, begin:].contiguous(),
        labels[None, begin:],
        vocab_size=logits.shape[-1],
        num_items_in_batch=target_count,
    )
    return loss


def _pad_row(row: TrainingRow, device: torch.device, padding: int) -> Tensor:
    """Return a row's tokens on the device, with ``padding`` tokens of any kind after them."""
    return torch.from_numpy(np.concatenate([row.ids, np.zeros(padding, np.int64)])).to(device)


# ---- adapters ------------------------------------------------------------------------------------


@cache
def peft_scale(rank: int, alpha: float, rank_stabilized: bool) -> float:
    """Return the scale that PEFT multiplies an adapter's output with, read from a layer that PEFT makes."""
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


def peft_site_scales(adapter_bank: AdapterBank) -> list[float]:
    """Return PEFT's scale for every adapter site, by the rank and α that PEFT's config gives the site."""
    config = adapter_bank.peft_config()
    return [_peft_site_scale(config, adapter_bank, site) for site in adapter_bank.sites]


def check_scales(adapter_bank: AdapterBank) -> None:
    """Raise an error where an adapter method's scale is not PEFT's: PEFT would compute something else."""
    for adapter_site, scale in zip(adapter_bank.sites, peft_site_scales(adapter_bank), strict=True):
        if not math.isclose(adapter_site.scale, scale, rel_tol=SCALE_TOLERANCE):
            raise TuningError(
                f"the adapter method {adapter_bank.lora.kind!r} scales the adapter of {adapter_site.name} by "
                f"{adapter_site.scale:g}, PEFT by {scale:g}",
                hint="give its class the peft_options or the peft_alpha_factor with which PEFT does the same",
            )


def _peft_site_scale(config: Any, adapter_bank: AdapterBank, adapter_site: AdapterSite) -> float:
    from peft.utils.other import get_pattern_key

    site_name = adapter_site.name
    if adapter_site.experts:
        site_name = ".".join(adapter_bank.stacked_at[adapter_site.index])
    rank_key = get_pattern_key(config.rank_pattern, site_name)
    alpha_key = get_pattern_key(config.alpha_pattern, site_name)
    site_rank = config.rank_pattern.get(rank_key, config.r)
    alpha = config.alpha_pattern.get(alpha_key, config.lora_alpha)
    return peft_scale(int(site_rank), alpha, bool(config.use_rslora))


@contextmanager
def _adapters_by_hooks(
    adapter_bank: AdapterBank,
    scales: Sequence[float],
    site_weights: Sequence[Tensor],
    row: TrainingRow,
) -> Iterator[None]:
    """Add one lane's adapters inside the block, as PEFT computes them: y + s · dropout(x) A B.

    ``site_weights`` are the adapter's weights, one flat tensor for each site.
    """
    modules = dict(adapter_bank.model.named_modules())
    with ExitStack() as stack:
        for adapter_site, scale, flat_weights in zip(
            adapter_bank.sites, scales, site_weights, strict=True
        ):
            # the site within its own tensor, with PEFT's scale
            own_site = replace(adapter_site, offset=0, scale=scale)
            lora_a, lora_b = (part[0] for part in adapter_bank.views(flat_weights[None], own_site))
            if adapter_site.experts:
                module_name, parameter_name = adapter_bank.stacked_at[adapter_site.index]
                stack.enter_context(
                    _adapted_parameter(
                        modules[module_name], parameter_name, own_site, lora_a, lora_b
                    )
                )
            else:
                hook = modules[adapter_site.name].register_forward_hook(
                    _make_adapter_hook(adapter_bank, own_site, lora_a, lora_b, row)
                )
                stack.callback(hook.remove)
        yield


def _make_adapter_hook(
    adapter_bank: AdapterBank,
    adapter_site: AdapterSite,
    lora_a: Tensor,
    lora_b: Tensor,
    row: TrainingRow,
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """Return a forward hook that adds an adapter's output to a layer's: s · dropout(x) A B.

    Where the layer holds several projections, the adapter adds to its own output columns alone.
    """

    def add_adapter_output(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        layer_input = inputs[0].to(adapter_bank.dtype)
        x = _apply_dropout(layer_input, adapter_bank, adapter_site, row)
        low_rank = x @ move_beside(lora_a.to(x.dtype), x)
        product = low_rank @ move_beside(lora_b.to(x.dtype), x)
        adapter_output = (product * adapter_site.scale).to(output.dtype)
        if adapter_site.columns is None:
            return output + adapter_output
        columns = move_beside(torch.tensor(adapter_site.columns), output)
        return output.index_add(-1, columns, adapter_output)

    return add_adapter_output


def _apply_dropout(
    x: Tensor, adapter_bank: AdapterBank, adapter_site: AdapterSite, row: TrainingRow
) -> Tensor:
    """Return a layer's input after the dropout of this row, which depends on lane, step, row, token and layer."""
    dropout_rate = adapter_bank.lora.dropout
    if dropout_rate == 0:
        return x
    seed, step, batch_index = (np.array([value]) for value in (row.seed, row.step, row.batch_index))
    features = x.shape[-1]
    token_numbers = np.arange(x.numel() // features) % len(row.ids)
    keys = torch.from_numpy(token_keys(seed, step, batch_index, token_numbers))
    keys = move_beside(keys.to(adapter_bank.device), x)
    mask = keep_mask(keys, adapter_site.index, features, dropout_rate)
    return x * mask.view_as(x).to(x.dtype) / (1 - dropout_rate)


@contextmanager
def _adapted_parameter(
    module: nn.Module,
    parameter_name: str,
    adapter_site: AdapterSite,
    lora_a: Tensor,
    lora_b: Tensor,
) -> Iterator[None]:
    """Replace a parameter W, which holds all experts of a layer, by W + s · B A inside the block.

    An expert's part of A are columns beside those of the other experts, its part of B are rows.
    """
    base_weight = module._parameters[parameter_name]
    assert base_weight is not None
    expert_rank = adapter_site.rank // adapter_site.experts
    lora_a, lora_b = (
        move_beside(part.to(base_weight.dtype), base_weight) for part in (lora_a, lora_b)
    )
    lora_a = lora_a.view(adapter_site.fan_in, adapter_site.experts, expert_rank)
    lora_b = lora_b.view(expert_rank, adapter_site.experts, adapter_site.fan_out)
    if adapter_site.projections > 1:
        lora_b = lora_b * move_beside(adapter_site.block_mask().to(lora_b.dtype), lora_b)[:, None]
    # e experts, i inputs, o outputs, r the rank of one expert
    equation = "ier,reo->eoi" if adapter_site.out_first else "ier,reo->eio"
    products = torch.einsum(equation, lora_a, lora_b).reshape(base_weight.shape)
    adapted_weight = base_weight + products * adapter_site.scale
    parameter_names = list(module._parameters)
    del module._parameters[parameter_name]
    module.__dict__[parameter_name] = adapted_weight
    try:
        yield
    finally:
        module.__dict__.pop(parameter_name, None)
        module._parameters[parameter_name] = base_weight
        # restore the parameters' order, in which PEFT nests its wrappers
        for name in parameter_names:
            module._parameters[name] = module._parameters.pop(name)


# ---- learning rates ------------------------------------------------------------------------------


@cache
def reference_learning_rate(schedule: Schedule, total_steps: int) -> Callable[[int], float]:
    """Return a function that gives the learning rate of each update (from 0) by transformers' own schedule.

    Not all of transformers' schedules can end above zero, so the floor is added here: only the part of the rate above
    it falls as transformers says.
    """
    from transformers import get_scheduler

    scheduler_names = {"constant": "constant_with_warmup", "late": "warmup_stable_decay"}
    scheduler_options = {}
    if schedule.decay == "late":
        decay_steps = schedule.count_decay_steps(total_steps)
        scheduler_options = {"num_decay_steps": decay_steps, "decay_type": "linear"}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=schedule.learning_rate)
    scheduler = get_scheduler(
        scheduler_names.get(schedule.decay, schedule.decay),
        optimizer,
        num_warmup_steps=schedule.warmup_steps,
        num_training_steps=total_steps,
        scheduler_specific_kwargs=scheduler_options,
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
    """Move every number of the input embeddings up or down by its last bit, at random, inside the block."""
    stream = torch.Generator().manual_seed(seed)

    def move_last_bit(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        upward = torch.rand(embedded.shape, generator=stream).to(embedded.device) < 0.5
        infinity = torch.full_like(embedded, torch.inf)
        return torch.nextafter(embedded, torch.where(upward, infinity, -infinity))

    embedding: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    hook = embedding.register_forward_hook(move_last_bit)
    try:
        yield
    finally:
        hook.remove()

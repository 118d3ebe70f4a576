"""A float32 copy of a model, to judge structure by: what 16 bits hide, 32 show.

The copy is whole where memory holds it; else it has two blocks of each kind, and all that is not a block: what is wrong
with the size of a block's answer, a norm after it hides, and another block shows. Kinds are told apart by their
classes, sizes and plain settings, so that a layer that is unlike the others is in the copy too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from potentia.engine.models.device_layout import find_blocks, free_memory, is_spread
from potentia.engine.models.installed_adapters import installed_on
from potentia.engine.models.quantization import is_quantised
from potentia.engine.models.split_model import built_alike, configs_of

SHARE = 0.5  # of the free memory that a copy may take
EACH = 2  # blocks of a kind
PROCESSOR_BYTES = 8 << 30
OF_ONE = ("layer_idx", "layer_id", "training", "name_or_path")  # settings that tell no kinds apart


@dataclass(frozen=True)
class Float32Copy:
    """The model to judge by: itself where it is in float32, else a copy with so many of its blocks."""

    model: nn.Module
    blocks: int
    of: int
    copied: bool

    @property
    def whole(self) -> bool:
        """Whether no block was left out."""
        return self.blocks == self.of


@contextmanager
def open_float32_copy(model: nn.Module, *, whole: bool = True) -> Iterator[Float32Copy]:
    """Give a float32 copy of a model for as long as the block lasts; quantised and spread models are their own.

    Without ``whole`` a copy has two blocks of each kind.
    """
    first = next(p for p in model.parameters() if p.is_floating_point())
    if first.dtype in (torch.float32, torch.float64) or is_quantised(model) or is_spread(model):
        yield Float32Copy(model, 1, 1, copied=False)
        return
    made = _copied(
        model, whole and 4 * sum(p.numel() for p in model.parameters()) <= _free(first.device)
    )
    try:
        yield made
    finally:
        del made
        if first.device.type == "cuda":
            torch.cuda.empty_cache()


def _copied(model: nn.Module, whole: bool) -> Float32Copy:
    blocks = _block_list(model)
    kept = dict(blocks._modules)
    chosen = list(range(len(kept)))
    if not whole and kept:
        places: dict[Any, list[int]] = {}
        for place, block in enumerate(blocks):
            places.setdefault(block_kind(block), []).append(place)
        chosen = sorted(place for alike in places.values() for place in alike[:EACH])
    for module in model.modules():  # what a pass left there to go back through cannot be copied
        own = vars(module)
        own |= {
            n: value.detach()
            for n, value in own.items()
            if isinstance(value, torch.Tensor) and value.grad_fn
        }
    bank = installed_on(model)
    with bank.suspended() if bank is not None else nullcontext():
        try:
            blocks._modules = {str(n): kept[str(place)] for n, place in enumerate(chosen)}
            made = copy.deepcopy(model)
        finally:
            blocks._modules = kept
    built_alike(made, model)
    for config in (
        configs_of(made) if len(chosen) < len(kept) else ()
    ):  # which say of each block what it is
        own = vars(config)
        own |= {name: len(chosen) for name, value in own.items() if name == "num_hidden_layers"}
        lists = {
            name: value
            for name, value in own.items()
            if isinstance(value, list) and len(value) == len(kept)
        }
        own |= {name: [value[place] for place in chosen] for name, value in lists.items()}
    return Float32Copy(made.float().eval().requires_grad_(False), len(chosen), len(kept), True)


def _block_list(model: nn.Module) -> nn.ModuleList:
    """Return the model's list of blocks; an empty one where it has none."""
    lists: list[nn.ModuleList] = [
        module for module in model.modules() if isinstance(module, nn.ModuleList)
    ]
    if not lists:
        return nn.ModuleList()
    found = find_blocks(model)
    return next(one for one in lists if len(one) == len(found) and one[0] is found[0])


def block_kind(block: nn.Module) -> tuple[Any, ...]:
    """Tell blocks, or models, apart: classes, sizes and plain settings of all their parts."""
    parts = []
    for name, module in block.named_modules():
        plain = sorted(
            (key, value)
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str | None) and key not in OF_ONE
        )
        shapes = tuple(tuple(p.shape) for p in module.parameters(recurse=False))
        parts.append((name, type(module), repr(plain), shapes))
    return tuple(parts)


def _free(device: torch.device) -> float:
    return SHARE * free_memory(device) if device.type == "cuda" else PROCESSOR_BYTES

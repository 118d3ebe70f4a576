"""A float32 copy of a model, to compare structure with: what 16 bits hide, 32 show.

The copy is complete where memory holds it; else it has two blocks of each kind, and all that is not a block: what is
wrong with the size of a block's answer, a norm after it hides, and another block shows. Kinds are told apart by their
classes, sizes and plain settings, so that a layer that is unlike the others is in the copy too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from potentia.engine.models.device_layout import find_blocks, free_memory, is_spread
from potentia.engine.models.installed_adapters import installed_on
from potentia.engine.models.quantization import is_quantised
from potentia.engine.models.scan_kernels import patch_scans_to_run_plainly_in_float32
from potentia.engine.models.split_model import configs_of, note_built_alike

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MEMORY_SHARE = 0.5  # of the free memory that a copy may take
BLOCKS_OF_A_KIND = 2
PROCESSOR_BYTES = 8 << 30
FLOAT32_BYTES = 4
# settings that differ between blocks of one kind
SETTINGS_OF_ONE_BLOCK = ("layer_idx", "layer_id", "training", "name_or_path")


@dataclass(frozen=True)
class TrialModel:
    """The model that a trial runs: a float32 copy with so many of the model's blocks, or the model itself."""

    model: nn.Module
    is_float32_copy: bool
    block_count: int  # of the copy; 1 where it is the model itself, whose blocks nobody counts
    model_block_count: int

    @classmethod
    def itself(cls, model: nn.Module) -> TrialModel:
        """Return the model itself, which has all its blocks."""
        return cls(model=model, is_float32_copy=False, block_count=1, model_block_count=1)

    @property
    def has_all_blocks(self) -> bool:
        """Whether no block was left out."""
        return self.block_count == self.model_block_count


@contextmanager
def open_trial_model(model: nn.Module, *, all_blocks: bool = True) -> Iterator[TrialModel]:
    """Give a float32 copy of a model inside the ``with``; without ``all_blocks``, with two blocks of each kind.

    A model that is precise already (float32, float64), quantised or spread over devices is given itself.
    """
    first_weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    is_precise = first_weight.dtype in (torch.float32, torch.float64)
    if is_precise or is_quantised(model) or is_spread(model):
        yield TrialModel.itself(model)
        return
    copy_bytes = FLOAT32_BYTES * sum(weight.numel() for weight in model.parameters())
    trial_model = _copy_in_float32(
        model, all_blocks=all_blocks and copy_bytes <= _free_bytes(first_weight.device)
    )
    try:
        yield trial_model
    finally:
        del trial_model
        if first_weight.device.type == "cuda":
            torch.cuda.empty_cache()


def _copy_in_float32(model: nn.Module, *, all_blocks: bool) -> TrialModel:
    """Return a copy in float32 of the complete model, or of two blocks of each kind."""
    block_list = _find_block_list(model)
    block_count = len(block_list)
    if all_blocks:
        chosen = list(range(block_count))
    else:
        chosen = _choose_blocks(block_list)
    _detach_results(model)
    patch_scans_to_run_plainly_in_float32(model)
    copied_model = _copy_with_blocks(model, block_list, chosen)
    note_built_alike(copied_model, model)
    if len(chosen) < block_count:
        for config in configs_of(copied_model):
            _keep_settings_of_blocks(config, chosen, block_count)
    return TrialModel(
        model=copied_model.float().eval().requires_grad_(False),
        is_float32_copy=True,
        block_count=len(chosen),
        model_block_count=block_count,
    )


def _choose_blocks(block_list: nn.ModuleList) -> list[int]:
    """Return the indices of the first blocks of each kind, in the model's order."""
    indices_by_kind: dict[tuple[object, ...], list[int]] = {}
    for index, block in enumerate(block_list):
        indices_by_kind.setdefault(block_kind(block), []).append(index)
    chosen: list[int] = []
    for indices in indices_by_kind.values():
        chosen.extend(indices[:BLOCKS_OF_A_KIND])
    return sorted(chosen)


def _detach_results(model: nn.Module) -> None:
    """Detach what a pass left on the modules to go back through: such tensors cannot be copied."""
    for module in model.modules():
        attributes = vars(module)
        for attribute_name, value in list(attributes.items()):
            if isinstance(value, torch.Tensor) and value.grad_fn:
                attributes[attribute_name] = value.detach()


def _copy_with_blocks(
    model: nn.Module, block_list: nn.ModuleList, chosen: Sequence[int]
) -> nn.Module:
    """Copy a model with the chosen blocks alone and without the adapters that are installed on it."""
    adapter_bank = installed_on(model)
    if adapter_bank is None:
        return _copy_shortened(model, block_list, chosen)
    with adapter_bank.suspended():
        return _copy_shortened(model, block_list, chosen)


def _copy_shortened(
    model: nn.Module, block_list: nn.ModuleList, chosen: Sequence[int]
) -> nn.Module:
    """Copy a model while its list of blocks holds the chosen ones alone."""
    all_blocks = dict(block_list._modules)
    try:
        block_list._modules = {
            str(position): all_blocks[str(index)] for position, index in enumerate(chosen)
        }
        return copy.deepcopy(model)
    finally:
        block_list._modules = all_blocks


def _keep_settings_of_blocks(
    config: PreTrainedConfig, chosen: Sequence[int], block_count: int
) -> None:
    """Shorten the settings in which a config says of each block what it is."""
    settings = vars(config)
    for setting_name, value in list(settings.items()):
        if setting_name == "num_hidden_layers":
            settings[setting_name] = len(chosen)
        elif isinstance(value, list) and len(value) == block_count:
            settings[setting_name] = [value[index] for index in chosen]


def _find_block_list(model: nn.Module) -> nn.ModuleList:
    """Return the model's list of blocks; an empty one where it has none."""
    module_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not module_lists:
        return nn.ModuleList()
    blocks = find_blocks(model)
    for module_list in module_lists:
        if len(module_list) == len(blocks) and module_list[0] is blocks[0]:
            return module_list
    raise AssertionError("the blocks come from one of the model's lists")


def block_kind(block: nn.Module) -> tuple[object, ...]:
    """Return what tells blocks, or models, apart: classes, sizes and plain settings of all their parts."""
    parts = []
    for module_name, module in block.named_modules():
        settings = sorted(
            (setting, value)
            for setting, value in vars(module).items()
            if _is_setting_of_kind(setting, value)
        )
        shapes = tuple(tuple(weight.shape) for weight in module.parameters(recurse=False))
        parts.append((module_name, type(module), repr(settings), shapes))
    return tuple(parts)


def _is_setting_of_kind(setting_name: str, value: object) -> bool:
    """Tell whether an attribute of a module is a plain setting that blocks of one kind share."""
    return (
        isinstance(value, bool | int | float | str | None)
        and setting_name not in SETTINGS_OF_ONE_BLOCK
    )


def _free_bytes(device: torch.device) -> float:
    """Return the memory that a copy may take on a device."""
    if device.type == "cuda":
        return MEMORY_SHARE * free_memory(device)
    return PROCESSOR_BYTES

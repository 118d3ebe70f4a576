"""What PEFT does with the names of layers: which it adapts, as layers or as parameters, and their names in files.

PEFT's rules differ by architecture. It takes some names for stacked experts, refuses some layers of state-space
models, and changes the names of some weights when it reads a file. An adapter trained here has to be one that PEFT
reads back, so its rules are asked and not written down again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from potentia.engine.layers.adapter_methods import find_adapter_method
from potentia.errors import TuningError
from potentia.values.recipe import LoraConfig


def new_peft_config(model: nn.Module, lora: LoraConfig, chosen: str | list[str]) -> Any:
    """Return PEFT's config of an adapter, with names as they are given."""
    from peft import LoraConfig as PeftConfig

    method = find_adapter_method(lora.kind)
    return PeftConfig(
        r=lora.r,
        lora_alpha=method.peft_alpha_factor * lora.alpha,  # type: ignore[arg-type]  # PEFT says int and takes any number
        lora_dropout=lora.dropout,
        target_modules=chosen,
        task_type="CAUSAL_LM",
        base_model_name_or_path=getattr(model.config, "_name_or_path", None) or None,
        **method.peft_options,
    )


def make_peft_config(model: nn.Module, lora: LoraConfig, chosen: str | list[str]) -> Any:
    """Return PEFT's config of an adapter, with names turned into the ones of this version's modules and parameters."""
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers

    config = new_peft_config(model, lora, chosen)
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a PEFT that knows no stacked experts
        return _maybe_include_all_linear_layers(config, model)
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError as error:
        raise TuningError(
            str(error), hint="name all parts of a fused layer, or none of them"
        ) from error
    return _maybe_include_all_linear_layers(config, model)


# ---- layers that PEFT takes for others ------------------------------------------------------------------------------


def names_taken_for_experts(
    model: nn.Module, lora: LoraConfig, layer_names: Iterable[str]
) -> set[str]:
    """Return the dense layers whose names PEFT takes for its experts': it reads them back as parameters alone."""
    is_taken_by_ending: dict[str, bool] = {}
    names: set[str] = set()
    for layer_name in layer_names:
        ending = layer_name.rpartition(".")[2]
        if ending not in is_taken_by_ending:
            is_taken_by_ending[ending] = _is_taken_for_experts(model, lora, ending)
        if is_taken_by_ending[ending]:
            names.add(layer_name)
    return names


def is_refused_as_layer(model: nn.Module, config: Any, layer_name: str) -> bool:
    """Return whether PEFT refuses a layer of this name in this architecture, as a parameter too.

    Kernels of state-space models read the weights of some layers without calling the layer.
    """
    try:
        from peft.tuners.tuners_utils import _check_lora_target_modules_mamba
    except ImportError:
        return False
    try:
        _check_lora_target_modules_mamba(config, model, layer_name.rpartition(".")[2])
    except ValueError:
        return True
    return False


def _is_taken_for_experts(model: nn.Module, lora: LoraConfig, ending: str) -> bool:
    """Return whether PEFT takes layers of this name for experts."""
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a PEFT that knows no stacked experts
        return False
    config = new_peft_config(model, lora, [ending])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # one of two that lie in one matrix
        return True
    return ending not in (config.target_modules or ())


# ---- names in files -------------------------------------------------------------------------------------------------


def find_names_in_files(
    model: nn.Module, config: Any, layer_names: Iterable[str]
) -> dict[str, str | None]:
    """Return the names under which PEFT finds the adapters of layers in a file, where they are not the layers' own.

    On reading, PEFT turns names of the hub's files into those of transformers, and some of transformers' into others
    (``shared_experts.`` of Laguna into ``shared_experts..``). None stands for a layer that it finds under no name.
    """
    names_in_files: dict[str, str | None] = {}
    for layer_name in _names_changed_by_reading(model, config, list(layer_names)):
        earlier_names = _guess_earlier_names(model, layer_name)
        names_in_files[layer_name] = next(
            (name for name in earlier_names if _read_name(model, config, name) == layer_name), None
        )
    return names_in_files


def _names_changed_by_reading(
    model: nn.Module, config: Any, layer_names: Sequence[str]
) -> list[str]:
    """Return the layers whose names PEFT changes on reading."""
    key_by_name = {layer_name: _adapter_key(layer_name) for layer_name in layer_names}
    keys_read = _read_keys(model, config, list(key_by_name.values()))
    return [layer_name for layer_name, key in key_by_name.items() if key not in keys_read]


def _read_name(model: nn.Module, config: Any, name_in_file: str) -> str | None:
    """Return the layer that PEFT takes a name in a file for."""
    keys = _read_keys(model, config, [_adapter_key(name_in_file)])
    if len(keys) != 1:
        return None
    return keys[0].removeprefix(_KEY_BEFORE).removesuffix(_KEY_AFTER)


_KEY_BEFORE = "base_model.model."
_KEY_AFTER = ".lora_A.weight"


def _adapter_key(layer_name: str) -> str:
    return f"{_KEY_BEFORE}{layer_name}{_KEY_AFTER}"


def _read_keys(model: nn.Module, config: Any, keys: Sequence[str]) -> list[str]:
    """Return what PEFT turns keys of a file into."""
    try:
        from peft.utils.transformers_weight_conversion import (
            convert_peft_adapter_state_dict_for_transformers,
        )
    except ImportError:  # a PEFT that renames nothing
        return list(keys)
    try:
        return list(
            convert_peft_adapter_state_dict_for_transformers(
                model, config, {key: torch.zeros(1, 1) for key in keys}
            )
        )
    except (RuntimeError, ValueError, KeyError, TypeError):  # made for tensors of other shapes
        return list(keys)


def _guess_earlier_names(model: nn.Module, layer_name: str) -> Iterator[str]:
    """Return names that transformers may turn into a layer's, by its renamings for this architecture."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    config: Any = model.config
    for entry in get_checkpoint_conversion_mapping(config.model_type) or ():
        for source, target in zip(entry.source_patterns, entry.target_patterns, strict=False):
            if target in layer_name:
                yield layer_name.replace(target, source)

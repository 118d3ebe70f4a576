"""Scans of hybrid models (delta rules, state spaces) by an installed package's kernels; in float32 by torch.

Where flash-linear-attention or mamba-ssm is installed, transformers computes such scans by its Triton kernels. They are
made for 16 bits, and compile for more than a minute where numbers are new to them. What is computed in float32 here is
what other things are compared with, so it goes through transformers' plain functions.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

# functions of transformers' modules, and the module whose kernels transformers takes for them
KERNEL_MODULES = {
    "torch_chunk_gated_delta_rule": "fla.ops.gated_delta_rule",
    "chunk_kimi_delta_attention": "fla.ops.kda",
    "mamba2_chunk_scan": "mamba_ssm.ops.triton.ssd_combined",
}
FLOATS_OF_KERNELS = (torch.bfloat16, torch.float16)


def has_scan_kernels(function_name: str, device: torch.device) -> bool:
    """Return whether transformers computes a scan on a device by an installed package's kernels."""
    module_name = KERNEL_MODULES.get(function_name)
    return device.type == "cuda" and module_name is not None and _can_import(module_name)


@functools.cache
def _can_import(module_name: str) -> bool:
    try:
        importlib.import_module(module_name)
    except Exception:  # what cannot be imported, transformers does without
        return False
    return True


def modules_of_layers(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules that define a model's layers."""
    names = {type(module).__module__ for module in model.modules()}
    return [sys.modules[module_name] for module_name in sorted(names) if module_name in sys.modules]


def patch_scans_to_run_plainly_in_float32(model: nn.Module) -> None:
    """Let the scans of a model's layers go through torch where their numbers are float32; for good, in this process."""
    device = next(model.parameters()).device
    for module in modules_of_layers(model):
        for module_name in KERNEL_MODULES:
            function = getattr(module, module_name, None)
            is_replaced = hasattr(function, "scans_float32_plainly")
            if function is not None and not is_replaced and has_scan_kernels(module_name, device):
                setattr(module, module_name, _choose_by_dtype(function))


def _choose_by_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a scan that takes the kernels for 16 bits, and the plain function for others."""
    plain_function = inspect.unwrap(function)

    @functools.wraps(function)
    def scan(*arguments: Any, **options: Any) -> Any:
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
        if tensors[0].dtype in FLOATS_OF_KERNELS:
            return function(*arguments, **options)
        return plain_function(*arguments, **options)

    vars(scan)["scans_float32_plainly"] = True
    return scan

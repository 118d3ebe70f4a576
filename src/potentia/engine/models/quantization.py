"""Weights of 8 or 4 bits: a model too large for its device, kept small by bitsandbytes and computed with as it is.

``4bit`` is QLoRA's (NF4 in blocks of 64, scales quantised too), ``8bit`` one scale for each output. Embeddings and
head keep their dtype. A layer computes y = x Wᵀ + b with W unpacked to the dtype of x for as long as it is needed, in
every pass: bitsandbytes' own 8-bit product rounds a row by the outliers of all rows beside it, so that lanes would
meet, and its own 4-bit product on some processors gives no gradient after a pass without one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from potentia.errors import ModelError
from potentia.extras import Extra, require_extra

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

BITS = {"8bit": 8, "4bit": 4}


def quantization_settings(quantise: str, dtype: torch.dtype) -> object:
    """Say in transformers' words how weights are kept."""
    require_extra(Extra.QUANTISE, f"quantise: {quantise}")
    from transformers import BitsAndBytesConfig

    if quantise == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def refuse_quantised_weights(config: PreTrainedConfig, quantise: str) -> None:
    """Refuse to quantise weights that lie quantised already."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return
    if isinstance(settings, dict):
        method = settings.get("quant_method")
    else:
        method = getattr(settings, "quant_method", None)
    method_name = getattr(method, "value", method) or "in their files"
    raise ModelError(
        f"its weights are quantised already ({method_name})",
        hint=f"drop `quantise: {quantise}`, or give the model unquantised",
    )


def quantise_model(
    model: PreTrainedModel, quantise: str, dtype: torch.dtype, device_map: dict[str, torch.device]
) -> PreTrainedModel:
    """Return a model in memory with its linear layers quantised, as if it had been loaded so from its files."""
    return type(model).from_pretrained(
        None,
        config=model.config,
        state_dict=model.state_dict(),
        quantization_config=quantization_settings(quantise, dtype),
        dtype=dtype,
        device_map=device_map,
    )


def compute_plainly(model: nn.Module) -> int:
    """Let every quantised layer of bitsandbytes compute with its unpacked weights, and return how many there are."""
    layers = [module for module in model.modules() if _find_unpacker(module) is not None]
    for layer in layers:
        layer.forward = partial(_compute_frozen_layer, layer)
    return len(layers)


def is_quantised(model: nn.Module) -> bool:
    """Tell whether some weights of a model are no plain numbers."""
    return any(not parameter.is_floating_point() for parameter in model.parameters())


def count_parameters(model: nn.Module) -> int:
    """Count the weights of a model, those that lie two in a byte as two."""
    return sum(_count_numbers(parameter) for parameter in model.parameters())


def _count_numbers(parameter: nn.Parameter) -> int:
    """Count the numbers that a weight stands for; a packed one knows its shape before packing."""
    packing = getattr(parameter, "quant_state", None)
    shape = getattr(packing, "shape", None) or parameter.shape
    return int(torch.Size(shape).numel())


def _compute_frozen_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the answer of a quantised layer, computed with its unpacked weights."""
    return _FrozenLinear.apply(x, layer)  # type: ignore[no-any-return, no-untyped-call]


class _FrozenLinear(torch.autograd.Function):
    """y = x Wᵀ + b of a layer that does not learn; W is unpacked again on the way back instead of kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        ctx.dtype = x.dtype
        bias = None
        if isinstance(layer.bias, Tensor):
            bias = layer.bias.to(x.dtype)
        return nn.functional.linear(x, unpacked(layer, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype) @ unpacked(ctx.layer, ctx.dtype), None


def unpacked(layer: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return the weights (out, in) of a quantised layer as numbers."""
    unpack = _find_unpacker(layer)
    assert unpack is not None
    return unpack(layer).to(dtype)


def _find_unpacker(module: nn.Module) -> Callable[[object], Tensor] | None:
    """Return what unpacks the weights of a layer of bitsandbytes; None for any other module."""
    if not type(module).__module__.startswith("bitsandbytes."):
        return None
    weight: Any = getattr(module, "weight", None)
    if getattr(weight, "quant_state", None) is not None or hasattr(weight, "quant_type"):
        return _unpack_4bit
    if hasattr(weight, "SCB"):
        return _unpack_8bit
    return None


def _unpack_4bit(layer: Any) -> Tensor:
    """Return the weights of a 4-bit layer."""
    from bitsandbytes.functional import dequantize_4bit

    weights: Tensor = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weights


def _unpack_8bit(layer: Any) -> Tensor:
    """Return the weights of an 8-bit layer: whole numbers times one scale for each output."""
    scale = layer.weight.SCB
    if scale is None:
        scale = layer.state.SCB
    scale = scale.to(layer.weight.device)  # stays behind where the layer is moved
    weights: Tensor = layer.weight.data.float() * (scale.float() / 127.0).unsqueeze(1)
    return weights

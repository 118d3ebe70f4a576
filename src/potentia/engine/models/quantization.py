"""Weights of 8 or 4 bits: a model too large for its device, kept small by bitsandbytes and computed with as it is.

``4bit`` is QLoRA's (NF4 in blocks of 64, scales quantised too), ``8bit`` one scale for each output. Embeddings and
head keep their dtype. A layer computes y = x Wᵀ + b with W unpacked to the dtype of x for as long as it is needed, in
every pass: bitsandbytes' own 8-bit product rounds a row by the outliers of all rows beside it, so that lanes would
meet, and its own 4-bit product on some processors gives no gradient after a pass without one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from potentia.errors import MissingExtraError, ModelError

BITS = {"8bit": 8, "4bit": 4}


def quantization_settings(quantise: str, dtype: torch.dtype) -> Any:
    """Say in transformers' words how weights are kept."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"quantise: {quantise} needs bitsandbytes", hint="pip install 'potentia[quantise]'"
        ) from error
    from transformers import BitsAndBytesConfig

    if quantise == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def refuse_quantised_weights(config: Any, quantise: str) -> None:
    """Refuse to quantise weights that lie quantised already."""
    said = getattr(config, "quantization_config", None)
    if said is not None:
        method = (
            said.get("quant_method")
            if isinstance(said, dict)
            else getattr(said, "quant_method", None)
        )
        raise ModelError(
            f"its weights are quantised already ({getattr(method, 'value', method) or 'in their files'})",
            hint=f"drop `quantise: {quantise}`, or give the model unquantised",
        )


def quantise_model(model: Any, quantise: str, dtype: torch.dtype, place: Any) -> Any:
    """Return a model in memory with its linear layers quantised, as if it had been loaded so from its files."""
    return type(model).from_pretrained(
        None,
        config=model.config,
        state_dict=model.state_dict(),
        quantization_config=quantization_settings(quantise, dtype),
        dtype=dtype,
        device_map=place,
    )


def compute_plainly(model: nn.Module) -> int:
    """Let every quantised layer of bitsandbytes compute with its unpacked weights; returns how many there are."""
    found = [module for module in model.modules() if _unpacker(module) is not None]
    for module in found:
        module.forward = partial(_forward, module)
    return len(found)


def is_quantised(model: nn.Module) -> bool:
    """Tell whether some weights of a model are no plain numbers."""
    return any(not parameter.is_floating_point() for parameter in model.parameters())


def count_parameters(model: nn.Module) -> int:
    """Count the weights of a model, those that lie two in a byte as two."""
    shapes = (
        getattr(getattr(p, "quant_state", None), "shape", None) or p.shape
        for p in model.parameters()
    )
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def _forward(module: nn.Module, x: Tensor) -> Tensor:
    return _Frozen.apply(x, module)  # type: ignore[no-any-return, no-untyped-call]


class _Frozen(torch.autograd.Function):
    """y = x Wᵀ + b of a layer that does not learn; W is unpacked again on the way back instead of kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module, ctx.dtype = module, x.dtype
        bias = module.bias.to(x.dtype) if isinstance(module.bias, Tensor) else None
        return nn.functional.linear(x, unpacked(module, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].to(ctx.dtype) @ unpacked(ctx.module, ctx.dtype), None


def unpacked(module: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return the weights (out, in) of a quantised layer as numbers."""
    unpack = _unpacker(module)
    assert unpack is not None
    weights: Tensor = unpack(module)
    return weights.to(dtype)


def _unpacker(module: nn.Module) -> Any:
    if not type(module).__module__.startswith("bitsandbytes."):
        return None
    weight: Any = getattr(module, "weight", None)
    if getattr(weight, "quant_state", None) is not None or hasattr(weight, "quant_type"):
        return _four
    return _eight if hasattr(weight, "SCB") else None


def _four(module: Any) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    weights: Tensor = dequantize_4bit(module.weight.data, module.weight.quant_state)
    return weights


def _eight(module: Any) -> Tensor:
    scale = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
    scale = scale.to(module.weight.device)  # stays behind where the layer is moved
    weights: Tensor = module.weight.data.float() * (scale.float() / 127.0).unsqueeze(1)
    return weights

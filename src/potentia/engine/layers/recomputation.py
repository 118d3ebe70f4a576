"""How a pass runs through the model's layers: which attention, and which activations are computed again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from potentia.engine.models.device_layout import find_blocks
from potentia.engine.models.split_model import computing


def standard_attention(device: torch.device) -> AbstractContextManager[None]:
    """Leave attention aside that compiles a plan for every new shape: lanes bring new shapes all the time."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )


def recomputed_activations(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Recompute each block in the backward pass instead of keeping its activations.

    The blocks' forwards are wrapped, and their modes left alone: a block in training mode would drop out again.
    """
    if not enabled:
        return nullcontext()
    from transformers.modeling_layers import GradientCheckpointingLayer

    # those that transformers would recompute
    blocks = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    again = partial(partial, checkpoint, use_reentrant=False, preserve_rng_state=False)
    return computing({block: again(block.forward) for block in blocks or find_blocks(model)})

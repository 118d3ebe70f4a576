"""The form of the operations of static passes: Triton kernels where they run, plain tensor operations elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def operations(device: torch.device) -> Any:
    """Return the module with the operations for a device (see ``plain`` and ``kernels``)."""
    from potentia.engine.operations import plain

    found = _kernels() if device.type == "cuda" else None
    return plain if found is None else found


@cache
def _kernels() -> Any:
    """Return the kernels, or None where Triton is not installed."""
    try:
        from potentia.engine.operations import kernels
    except ImportError:
        return None
    return kernels

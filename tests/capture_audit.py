"""Watches the operations of a piece of work for what a GPU cannot capture, on any device."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# tensors made of the host's numbers; numbers read by the host; sizes that depend on numbers
_FORBIDDEN = {
    aten.lift_fresh,
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
}


class Audit(TorchDispatchMode):
    """Notes every such operation, and every result of ``most`` elements or more, with the line that asked for it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.count = most, 0
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note what is wrong with it."""
        self.count += 1
        out = func(*args, **(kwargs or {}))
        large = isinstance(out, torch.Tensor) and out.numel() >= self.most
        if func.overloadpacket in _FORBIDDEN or large:
            lines = [
                line
                for line in traceback.format_stack()[:-1]
                if "potentia" in line or "transformers" in line
            ]
            if not any(
                "operations/plain.py" in line for line in lines
            ):  # a GPU runs kernels instead
                self.found.append(f"{func}: {lines[-1].strip()}")
        return out

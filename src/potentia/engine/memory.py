"""Telling an error that means "too much at once" from one that means "wrong"."""

from __future__ import annotations

import torch

_SAYINGS = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on either kind of device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(saying in text for saying in _SAYINGS)

"""Which adapters are installed on a model now: a copy of it is made without them."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn


class InstalledAdapters(Protocol):
    """Adapters on the layers of a model."""

    model: nn.Module
    is_installed: bool

    def suspended(self) -> AbstractContextManager[None]:
        """Let the model be as it was without adapters inside the block."""


_INSTALLED: weakref.WeakValueDictionary[int, InstalledAdapters] = weakref.WeakValueDictionary()


def note_installed(adapters: InstalledAdapters) -> None:
    """Note that a model has adapters, for as long as these exist."""
    _INSTALLED[id(adapters.model)] = adapters


def installed_on(model: nn.Module) -> InstalledAdapters | None:
    """Return the adapters that are installed on a model now."""
    adapters = _INSTALLED.get(id(model))
    if adapters is None or adapters.model is not model or not adapters.is_installed:
        return None
    return adapters

"""Importing the names of a package when they are first used, so that the package itself loads at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_later(package: str, module_of_name: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports each name from its module on first use.

    A name whose module has the same name stands for the module itself.
    """

    def find_name(name: str) -> Any:
        module_name = module_of_name.get(name)
        if module_name is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{module_name}")
        return module if module_name == name else getattr(module, name)

    return find_name

"""The store of a run: opened here and nowhere else in this package, so that every call waits while it is away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potentia.store import Store

STORE_PATIENCE = 300.0  # seconds that a run waits for a store that is away; POTENTIA_STORE_PATIENCE sets another
FIRST_CONTACT = 30.0  # and for one that never answered: its address may be wrong
_reached: set[str] = set()


def opened(where: str, *, readonly: bool = False, create: bool = False) -> Store:
    """Open the store of a run, which is waited for while it is away; without ``create`` it is there already."""
    from potentia.store import Store

    return _patient(where, Store.open(where, readonly=readonly, create=create, patience=_patience(where)))


def find_store(where: str) -> Store | None:
    """Open the store of a run to read it; None where nothing was stored yet."""
    from potentia.store import Store

    store = Store.find(where, patience=_patience(where))
    return None if store is None else _patient(where, store)


def _patience(where: str) -> float:
    patience = float(os.environ.get("POTENTIA_STORE_PATIENCE", STORE_PATIENCE))
    return patience if where in _reached else min(patience, FIRST_CONTACT)


def _patient(where: str, store: Store) -> Store:
    _reached.add(where)
    store.patience = _patience(where)
    return store

"""One cell under several names: what the same files and documents give is computed once, whatever they are called.

A cell is found by its content, but read by the names of its model and task. Where a study calls them otherwise (the
last checkpoint ``run@12000`` has the files of the finished model ``run``), it gets a copy under its own names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from potentia.study import content_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potentia.store import Store


def named_key(store: Store, key: str, model: str, task: str) -> str:
    """Return the key of the cell under these names: its own, unless the store has it under others."""
    return key if store.named(key) in (None, (model, task)) else content_key(cell=key, model=model, task=task)


def step_key(key: str, step: int) -> str:
    """Return the key of an adjust cell's score after some optimizer steps."""
    return content_key(cell=key, step=step)


def take_over(store: Store, study: str, key: str, model: str, task: str, steps: Sequence[int] = ()) -> str:
    """Give the study its own copy where the store has the cell under other names; return the key to go by.

    ``steps`` are those at which an adjust cell was scored on its way.
    """
    own = named_key(store, key, model, task)
    if own == key or store.has(own):
        return own
    for source, copy in [(step_key(key, s), step_key(own, s)) for s in steps] + [(key, own)]:
        cell = store.cell(source)
        if cell is not None:
            record = replace(cell, key=copy, study=study, model=model, task=task)
            store.commit_cell(record, items=store.items(source) or None)
    return own

"""Studies on the shelf: renamed and taken away.

A cell belongs to every study that asked for it. A study that is deleted takes along what is its alone, and leaves the
cells, curves, items and adapters of those that another study uses.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import sqlalchemy as sa

from potentia.errors import InputError
from potentia.store import schema as s
from potentia.store.items import dumps, items_path
from potentia.store.reading import chunks
from potentia.store.records import StudyRecord
from potentia.store.store import Store

LEAST = 6  # characters of a key that are taken for one


@dataclass(frozen=True)
class Removed:
    """What went with a study, and what stays because another uses it."""

    study: str
    key: str
    cells: int
    kept: int


def find_study(store: Store, name: str) -> StudyRecord:
    """Return the study of this name or key (or its first characters); a name that several have is refused."""
    there = store.studies()
    found = [r for r in there if r.key == name] or [r for r in there if r.name == name]
    found = found or [r for r in there if len(name) >= LEAST and r.key.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(f"{r.key[:8]} of {r.created[:10]}" for r in found)
        raise InputError(f"{len(found)} studies are called {name!r}", where=store.where, hint=f"give a key: {keys}")
    names = ", ".join(dict.fromkeys(r.name for r in there))
    raise InputError(f"no study {name!r}", where=store.where, hint=f"there are: {names}" if names else "it is empty")


def rename_study(store: Store, key: str, name: str) -> None:
    """Give a study another name. Its key stays, so that its cells and its file find each other under both names."""
    if not name.strip():
        raise InputError("a study needs a name")
    with store._writing() as connection:
        here = s.studies.c.key == key
        spec = json.loads(connection.execute(sa.select(s.studies.c.spec).where(here)).scalar_one())
        if "name" in spec:
            spec["name"] = name
        connection.execute(s.studies.update().where(here).values(name=name, spec=dumps(spec)))


def count_shared(store: Store, key: str) -> tuple[int, int]:
    """Return how many cells are this study's alone, and how many another uses too."""
    with store._reading() as connection:
        alone, shared = _divided(connection, key)
    return len(alone), len(shared)


def delete_study(store: Store, key: str) -> Removed:
    """Take a study away, in one transaction, with all that no other study uses."""
    with store._writing() as connection:
        name = connection.execute(sa.select(s.studies.c.name).where(s.studies.c.key == key)).scalar_one()
        alone, shared = _divided(connection, key)
        lanes = s.lanes.c
        for number, (cell, heir) in shared.items():
            connection.execute(
                s.cells.update().where(s.cells.c.id == number, s.cells.c.study == key).values(study=heir)
            )
            connection.execute(s.lanes.update().where(lanes.cell == cell, lanes.study == key).values(study=heir))
        for some in chunks(list(alone)):
            connection.execute(s.cells.delete().where(s.cells.c.id.in_(some)))
        connection.execute(s.studies.delete().where(s.studies.c.key == key))  # and what hangs on it
    for cell in alone.values():  # after the transaction: files without a cell harm nobody, a cell without files does
        items_path(store.items_folder, cell).unlink(missing_ok=True)
        shutil.rmtree(store.adapters_folder / cell, ignore_errors=True)
    return Removed(str(name), key, len(alone), len(shared))


def _divided(connection: sa.Connection, key: str) -> tuple[dict[int, str], dict[int, tuple[str, str]]]:
    """Return the cells that only this study has, and those of others, each with its key and the study it goes to."""
    c, linked = s.cells.c, s.study_cells.c
    mine = sa.or_(c.study == key, c.id.in_(sa.select(linked.cell).where(linked.study == key)))
    own = dict(connection.execute(sa.select(c.id, c.key).where(mine)).tuples().all())
    others = sa.select(linked.cell, sa.func.min(linked.study)).where(linked.study != key).group_by(linked.cell)
    heirs = dict(connection.execute(others.where(linked.cell.in_(sa.select(c.id).where(mine)))).tuples().all())
    alone = {number: cell for number, cell in own.items() if number not in heirs}
    return alone, {number: (own[number], heir) for number, heir in heirs.items()}

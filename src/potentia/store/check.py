"""The health of a store: every cell whole, its items readable, nothing beside it that belongs to no cell."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from potentia.errors import StoreError
from potentia.store import schema as s
from potentia.store.items import items_path

if TYPE_CHECKING:
    from potentia.store.store import Store

Kind = Literal["database", "cell", "items", "stray", "lanes"]


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be: of the cell ``key``, or a file or folder at ``path``."""

    kind: Kind
    what: str
    key: str | None = None
    path: Path | None = None


def check_store(store: Store) -> list[Problem]:
    """Read everything once and say what is wrong."""
    found: list[Problem] = []
    with store._reading() as connection:
        if connection.dialect.name == "sqlite":
            told = connection.execute(sa.text("PRAGMA integrity_check")).scalars().all()
            found += [Problem("database", line) for line in told if line != "ok"]
            lost = connection.execute(sa.text("PRAGMA foreign_key_check")).all()
            found += [Problem("database", f"a row of {row[0]} belongs to no row of {row[2]}") for row in lost]
        c = s.cells.c
        rows = connection.execute(sa.select(c.id, c.key, c.model, c.task, c.protocol, c.metric, c.item_count)).all()
        main = sa.select(c.id).join_from(
            s.cells, s.scores, sa.and_(s.scores.c.cell == c.id, s.scores.c.name == c.metric)
        )
        scored = set(connection.execute(main).scalars())
        told_how = set(connection.execute(sa.select(s.manifests.c.cell)).scalars())
    for row in rows:
        place = f"{row.model} × {row.task} × {row.protocol}"
        if row.id not in scored or row.id not in told_how:
            found.append(Problem("cell", f"{place}: its score or manifest is missing", row.key))
        elif row.item_count is not None:
            try:
                count = len(store.items(row.key))
                if count != row.item_count:
                    found.append(Problem("items", f"{place}: {count} items instead of {row.item_count}", row.key))
            except StoreError as error:
                found.append(Problem("items", f"{place}: {error.message}", row.key))
    found += [Problem("database", told) for told in _unreadable(store)]
    known = {items_path(store.items_folder, row.key) for row in rows}
    for path in sorted(store.items_folder.glob("*/*")):
        if path not in known:
            found.append(Problem("stray", "belongs to no cell", path=path))
    found += [Problem("stray", "half written", path=path) for path in sorted(store.adapters_folder.glob(".*.tmp"))]
    if store.lanes_folder.is_dir():
        what = "lanes of a run that did not end; the same run would go on from them"
        found += [Problem("lanes", what, path=path) for path in sorted(store.lanes_folder.iterdir())]
    return found


def _unreadable(store: Store) -> Iterator[str]:
    """Read every record as commands read them, and say what cannot be read."""
    readings: dict[str, Callable[[], object]] = {"studies": store.studies, "failures": store.failures}
    try:
        keys = [record.key for record in store.studies()]
    except StoreError:
        keys = []
    for key in keys:
        readings[f"cells of {key}"] = partial(store.cells, study=key)
        readings[f"lanes of {key}"] = partial(store.lanes, study=key)
        readings[f"progress of {key}"] = partial(store.get_progress, key)
        readings[f"events of {key}"] = partial(store.events, key, limit=10**9)
    for what, read in readings.items():
        try:
            read()
        except (StoreError, ValueError, TypeError, KeyError) as error:
            yield f"{what}: {error}"[:300]


def repair_store(store: Store, problems: list[Problem]) -> None:
    """Remove what belongs to no cell, and mark cells whose items are damaged: the next run replaces them.

    Their scores stay until then. A cell without a score or manifest has nothing to keep. Lanes stay: a run can go on
    from them. A store that is in use is not repaired.
    """
    busy = store.leases()
    if busy:
        raise StoreError(
            f"{busy[0].row} is run by {busy[0].told}", where=store.where, hint="repair the store when nothing runs"
        )
    store.discard([p.key for p in problems if p.key is not None and p.kind == "cell"])
    for problem in problems:
        if problem.kind == "items" and problem.key is not None:
            path = items_path(store.items_folder, problem.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")  # as a run sees at once
        if problem.kind == "stray" and problem.path is not None:
            if problem.path.is_dir():
                shutil.rmtree(problem.path, ignore_errors=True)
            else:
                problem.path.unlink(missing_ok=True)

"""The upkeep of a store: is every cell whole and its items readable; studies renamed and taken away.

A cell belongs to every study that asked for it. A study that is deleted takes along what is its alone, and leaves the
cells, curves, items and adapters of those that another study uses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from potentia.errors import InputError, StoreError
from potentia.files import remove_path, write_file
from potentia.store import schema as s
from potentia.store.live import chunks
from potentia.store.records import StudyRecord, items_path
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
    with store._reading() as connection:
        found = [Problem("database", words) for words in _inconsistent(connection)]
        c, main = (
            s.cells.c,
            sa.and_(s.scores.c.cell == s.cells.c.id, s.scores.c.name == s.cells.c.metric),
        )
        whole = sa.and_(s.scores.c.cell.is_not(None), s.provenances.c.cell.is_not(None)).label(
            "whole"
        )
        query = sa.select(c.key, c.model, c.task, c.protocol, c.item_count, whole)
        query = query.outerjoin_from(s.cells, s.scores, main).outerjoin(
            s.provenances, s.provenances.c.cell == c.id
        )
        rows = connection.execute(query.order_by(c.id)).all()
    found += [problem for row in rows for problem in _of_cell(store, row)]
    found += [Problem("database", words) for words in _unreadable(store)]
    known = {items_path(store.items_folder, row.key) for row in rows}
    strays = [path for path in sorted(store.items_folder.glob("*/*")) if path not in known]
    found += [Problem("stray", "belongs to no cell", path=path) for path in strays]
    found += [
        Problem("stray", "half written", path=path)
        for path in sorted(store.adapters_folder.glob(".*.tmp"))
    ]
    what = "lanes of a run that did not end; the same run would go on from them"
    return found + [
        Problem("lanes", what, path=path) for path in sorted(store.lanes_folder.glob("*"))
    ]


def _inconsistent(connection: sa.Connection) -> list[str]:
    """Return what SQLite itself finds wrong."""
    if connection.dialect.name != "sqlite":
        return []
    words = connection.execute(sa.text("PRAGMA integrity_check")).scalars().all()
    lost = connection.execute(sa.text("PRAGMA foreign_key_check")).all()
    return [
        *(line for line in words if line != "ok"),
        *(f"a row of {r[0]} belongs to no row of {r[2]}" for r in lost),
    ]


def _of_cell(store: Store, row: Any) -> Iterator[Problem]:
    place = f"{row.model} × {row.task} × {row.protocol}"
    if not row.whole:
        yield Problem("cell", f"{place}: its score or provenance is missing", row.key)
    elif row.item_count is not None:
        try:
            count = len(store.items(row.key))
        except StoreError as error:
            yield Problem("items", f"{place}: {error.message}", row.key)
        else:
            if count != row.item_count:
                yield Problem(
                    "items", f"{place}: {count} items instead of {row.item_count}", row.key
                )


def _unreadable(store: Store) -> Iterator[str]:
    """Read every record as commands read them, and say what cannot be read."""
    readings: dict[str, Callable[[], object]] = {
        "studies": store.studies,
        "failures": store.failures,
    }
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

    Their scores stay until then. A cell without a score or provenance has nothing to keep. Lanes stay: a run can go on
    from them. A store that is in use is not repaired.
    """
    busy = store.leases()
    if busy:
        raise StoreError(
            f"{busy[0].row} is run by {busy[0].told}",
            where=store.where,
            hint="repair the store when nothing runs",
        )
    store.discard([p.key for p in problems if p.key is not None and p.kind == "cell"])
    for problem in problems:
        if problem.kind == "items" and problem.key is not None:
            write_file(items_path(store.items_folder, problem.key), b"")  # as a run sees at once
        if problem.kind == "stray" and problem.path is not None:
            remove_path(problem.path)


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
    begins = [r for r in there if len(name) >= LEAST and r.key.startswith(name)]
    found = [r for r in there if r.key == name] or [r for r in there if r.name == name] or begins
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(f"{r.key[:8]} of {r.created[:10]}" for r in found)
        raise InputError(
            f"{len(found)} studies are called {name!r}",
            where=store.where,
            hint=f"give a key: {keys}",
        )
    names = ", ".join(dict.fromkeys(r.name for r in there))
    raise InputError(
        f"no study {name!r}",
        where=store.where,
        hint=f"there are: {names}" if names else "it is empty",
    )


def rename_study(store: Store, key: str, name: str) -> None:
    """Give a study another name. Its key stays, so that its cells and its file find each other under both names."""
    if not name.strip():
        raise InputError("a study needs a name")
    with store._writing() as connection:
        here = s.studies.c.key == key
        spec = connection.execute(sa.select(s.studies.c.spec).where(here)).scalar_one()
        spec |= {"name": name} if "name" in spec else {}
        connection.execute(s.studies.update().where(here).values(name=name, spec=spec))


def count_shared(store: Store, key: str) -> tuple[int, int]:
    """Return how many cells are this study's alone, and how many another uses too."""
    with store._reading() as connection:
        alone, shared = _divided(connection, key)
    return len(alone), len(shared)


def delete_study(store: Store, key: str) -> Removed:
    """Take a study away, in one transaction, with all that no other study uses."""
    with store._writing() as connection:
        name = connection.execute(
            sa.select(s.studies.c.name).where(s.studies.c.key == key)
        ).scalar_one()
        alone, shared = _divided(connection, key)
        lanes = s.lanes.c
        for number, (cell, heir) in shared.items():
            connection.execute(
                s.cells.update()
                .where(s.cells.c.id == number, s.cells.c.study == key)
                .values(study=heir)
            )
            connection.execute(
                s.lanes.update().where(lanes.cell == cell, lanes.study == key).values(study=heir)
            )
        for some in chunks(list(alone)):
            connection.execute(s.cells.delete().where(s.cells.c.id.in_(some)))
        connection.execute(s.studies.delete().where(s.studies.c.key == key))  # and what hangs on it
    for cell in (
        alone.values()
    ):  # after the transaction: files without a cell harm nobody, a cell without files does
        items_path(store.items_folder, cell).unlink(missing_ok=True)
        shutil.rmtree(store.adapters_folder / cell, ignore_errors=True)
    return Removed(str(name), key, len(alone), len(shared))


def _divided(
    connection: sa.Connection, key: str
) -> tuple[dict[int, str], dict[int, tuple[str, str]]]:
    """Return the cells that only this study has, and those of others, each with its key and the study it goes to."""
    c, linked = s.cells.c, s.study_cells.c
    mine = sa.or_(c.study == key, c.id.in_(sa.select(linked.cell).where(linked.study == key)))
    own = dict(connection.execute(sa.select(c.id, c.key).where(mine)).all())
    others = (
        sa.select(linked.cell, sa.func.min(linked.study))
        .where(linked.study != key)
        .group_by(linked.cell)
    )
    heirs = dict(
        connection.execute(others.where(linked.cell.in_(sa.select(c.id).where(mine)))).all()
    )
    alone = {number: cell for number, cell in own.items() if number not in heirs}
    return alone, {number: (own[number], heir) for number, heir in heirs.items()}

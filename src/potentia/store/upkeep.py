"""The upkeep of a store: is every cell whole and its items readable; studies renamed and taken away.

A cell belongs to every study that asked for it. A study that is deleted takes along what is its alone, and leaves the
cells, curves, items and adapters of those that another study uses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from potentia.errors import InputError, StoreError
from potentia.files import remove_path, write_file
from potentia.store import schema as s
from potentia.store.database import split_keys
from potentia.store.items import items_path
from potentia.store.records import StudyRecord
from potentia.store.store import Store

SHORTEST_KEY = 6  # characters of a key that are taken for one


class ProblemKind(StrEnum):
    """What part of a store is not as it should be."""

    DATABASE = "database"
    CELL = "cell"
    ITEMS = "items"
    STRAY_FILE = "stray"
    LANES = "lanes"


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be: of the cell ``key``, or a file or folder at ``path``."""

    kind: ProblemKind
    description: str
    key: str | None = None
    path: Path | None = None


def check_store(store: Store) -> list[Problem]:
    """Read everything once and say what is wrong."""
    with store.database.reading() as connection:
        problems = [
            Problem(ProblemKind.DATABASE, words) for words in _find_inconsistencies(connection)
        ]
        cell_rows = _read_cell_rows(connection)
    for row in cell_rows:
        problems += _check_cell(store, row)
    problems += [Problem(ProblemKind.DATABASE, words) for words in _find_unreadable(store)]
    item_files = {items_path(store.items_folder, row.key) for row in cell_rows}
    for path in sorted(store.items_folder.glob("*/*")):
        if path not in item_files:
            problems.append(Problem(ProblemKind.STRAY_FILE, "belongs to no cell", path=path))
    for path in sorted(store.adapters_folder.glob(".*.tmp")):
        problems.append(Problem(ProblemKind.STRAY_FILE, "half written", path=path))
    description = "lanes of a run that did not end; the same run would go on from them"
    for path in sorted(store.lanes_folder.glob("*")):
        problems.append(Problem(ProblemKind.LANES, description, path=path))
    return problems


def _read_cell_rows(connection: sa.Connection) -> list[Any]:
    """Return the names of every cell, and whether it has its main score and its provenance."""
    c = s.cells.c
    is_main = sa.and_(s.scores.c.cell == c.id, s.scores.c.name == c.metric)
    is_whole = sa.and_(s.scores.c.cell.is_not(None), s.provenances.c.cell.is_not(None))
    query = sa.select(c.key, c.model, c.task, c.protocol, c.item_count, is_whole.label("is_whole"))
    query = query.outerjoin_from(s.cells, s.scores, is_main)
    query = query.outerjoin(s.provenances, s.provenances.c.cell == c.id)
    return list(connection.execute(query.order_by(c.id)).all())


def _find_inconsistencies(connection: sa.Connection) -> list[str]:
    """Return what SQLite itself finds wrong."""
    if connection.dialect.name != "sqlite":
        return []
    lines = connection.execute(sa.text("PRAGMA integrity_check")).scalars().all()
    orphans = connection.execute(sa.text("PRAGMA foreign_key_check")).all()
    return [
        *(line for line in lines if line != "ok"),
        *(f"a row of {orphan[0]} belongs to no row of {orphan[2]}" for orphan in orphans),
    ]


def _check_cell(store: Store, row: Any) -> Iterator[Problem]:
    name = f"{row.model} × {row.task} × {row.protocol}"
    if not row.is_whole:
        yield Problem(ProblemKind.CELL, f"{name}: its score or provenance is missing", row.key)
        return
    if row.item_count is None:
        return
    try:
        count = len(store.cells.read_items(row.key))
    except StoreError as error:
        yield Problem(ProblemKind.ITEMS, f"{name}: {error.message}", row.key)
        return
    if count != row.item_count:
        words = f"{name}: {count} items instead of {row.item_count}"
        yield Problem(ProblemKind.ITEMS, words, row.key)


def _find_unreadable(store: Store) -> Iterator[str]:
    """Read every record as commands read them, and say what cannot be read."""
    readings: dict[str, Callable[[], object]] = {
        "studies": store.studies.read,
        "failures": store.failures.read,
    }
    try:
        keys = [record.key for record in store.studies.read()]
    except StoreError:
        keys = []
    for key in keys:
        readings[f"cells of {key}"] = partial(store.cells.read, study=key)
        readings[f"lanes of {key}"] = partial(store.lanes.read, study=key)
        readings[f"progress of {key}"] = partial(store.events.read_progress, key)
        readings[f"events of {key}"] = partial(store.events.read, key, limit=10**9)
    for name, read in readings.items():
        try:
            read()
        except (StoreError, ValueError, TypeError, KeyError) as error:
            yield f"{name}: {error}"[:300]


def repair_store(store: Store, problems: list[Problem]) -> None:
    """Remove what belongs to no cell, and mark cells whose items are damaged: the next run replaces them.

    Their scores stay until then. A cell without a score or provenance has nothing to keep. Lanes stay: a run can go on
    from them. A store that is in use is not repaired.
    """
    leases = store.leases.read()
    if leases:
        raise StoreError(
            f"{leases[0].row} is run by {leases[0].owner}",
            where=store.where,
            hint="repair the store when nothing runs",
        )
    broken_cells = [problem for problem in problems if problem.kind is ProblemKind.CELL]
    store.cells.discard([problem.key for problem in broken_cells if problem.key is not None])
    for problem in problems:
        if problem.kind is ProblemKind.ITEMS and problem.key is not None:
            # an empty file: a run sees at once that the items are damaged
            write_file(items_path(store.items_folder, problem.key), b"")
        if problem.kind is ProblemKind.STRAY_FILE and problem.path is not None:
            remove_path(problem.path)


@dataclass(frozen=True)
class DeletedStudy:
    """What went with a study, and what stays because another uses it."""

    study: str
    key: str
    cells: int  # that are deleted
    still_used: int  # that another study uses


def find_study(store: Store, name: str) -> StudyRecord:
    """Return the study of this name or key (or its first characters); a name that several have is refused."""
    studies = store.studies.read()
    matches = [study for study in studies if study.key == name]
    if not matches:
        matches = [study for study in studies if study.name == name]
    if not matches and len(name) >= SHORTEST_KEY:
        matches = [study for study in studies if study.key.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        keys = ", ".join(f"{study.key[:8]} of {study.created[:10]}" for study in matches)
        raise InputError(
            f"{len(matches)} studies are called {name!r}",
            where=store.where,
            hint=f"give a key: {keys}",
        )
    names = ", ".join(dict.fromkeys(study.name for study in studies))
    hint = f"there are: {names}" if names else "it is empty"
    raise InputError(f"no study {name!r}", where=store.where, hint=hint)


def rename_study(store: Store, key: str, name: str) -> None:
    """Give a study another name. Its key stays, so that its cells and its file find each other under both names."""
    if not name.strip():
        raise InputError("a study needs a name")
    is_study = s.studies.c.key == key
    with store.database.writing() as connection:
        spec = connection.execute(sa.select(s.studies.c.spec).where(is_study)).scalar_one()
        if "name" in spec:
            spec["name"] = name
        connection.execute(s.studies.update().where(is_study).values(name=name, spec=spec))


def count_shared(store: Store, key: str) -> tuple[int, int]:
    """Return how many cells are this study's alone, and how many another uses too."""
    with store.database.reading() as connection:
        cells = _divide_cells(connection, key)
    return len(cells.alone), len(cells.shared)


def delete_study(store: Store, key: str) -> DeletedStudy:
    """Take a study away, in one transaction, with all that no other study uses."""
    with store.database.writing() as connection:
        query = sa.select(s.studies.c.name).where(s.studies.c.key == key)
        name = str(connection.execute(query).scalar_one())
        cells = _divide_cells(connection, key)
        for number, cell in cells.shared.items():
            own_cell = s.cells.update().where(s.cells.c.id == number, s.cells.c.study == key)
            connection.execute(own_cell.values(study=cell.heir))
            lanes = s.lanes.update().where(s.lanes.c.cell == cell.key, s.lanes.c.study == key)
            connection.execute(lanes.values(study=cell.heir))
        for some_numbers in split_keys(list(cells.alone)):
            connection.execute(s.cells.delete().where(s.cells.c.id.in_(some_numbers)))
        connection.execute(s.studies.delete().where(s.studies.c.key == key))  # and what hangs on it
    # after the transaction: files without a cell harm nobody, a cell without files does
    for cell_key in cells.alone.values():
        items_path(store.items_folder, cell_key).unlink(missing_ok=True)
        shutil.rmtree(store.adapters_folder / cell_key, ignore_errors=True)
    return DeletedStudy(study=name, key=key, cells=len(cells.alone), still_used=len(cells.shared))


@dataclass(frozen=True)
class _SharedCell:
    key: str
    heir: str  # the study that it goes to


@dataclass(frozen=True)
class _DividedCells:
    """The cells of a study by number: the keys of those that are its alone, and those of others too."""

    alone: dict[int, str]
    shared: dict[int, _SharedCell]


def _divide_cells(connection: sa.Connection, study_key: str) -> _DividedCells:
    c = s.cells.c
    link = s.study_cells.c
    linked = sa.select(link.cell).where(link.study == study_key)
    is_of_study = sa.or_(c.study == study_key, c.id.in_(linked))
    key_of_cell: dict[int, str] = {}
    key_of_cell.update(connection.execute(sa.select(c.id, c.key).where(is_of_study)).all())
    other_studies = sa.select(link.cell, sa.func.min(link.study)).where(link.study != study_key)
    other_studies = other_studies.where(link.cell.in_(sa.select(c.id).where(is_of_study)))
    heirs: dict[int, str] = {}
    heirs.update(connection.execute(other_studies.group_by(link.cell)).all())
    return _DividedCells(
        alone={number: key for number, key in key_of_cell.items() if number not in heirs},
        shared={n: _SharedCell(key_of_cell[n], heir) for n, heir in heirs.items()},
    )

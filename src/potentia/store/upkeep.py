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
from potentia.store import schema
from potentia.store.database import split_keys
from potentia.store.items import items_path
from potentia.store.records import StudyRecord
from potentia.store.store import Store
from potentia.store.studies import choose_study


class ProblemKind(StrEnum):
    """What part of a store a problem is in."""

    DATABASE = "database"
    CELL = "cell"
    ITEMS = "items"
    STRAY_FILE = "stray"
    LANES = "lanes"  # no fault: an interrupted run can resume from them


@dataclass(frozen=True)
class Problem:
    """Something that a check of a store lists: about the cell ``key``, or a file or folder at ``path``.

    All but the lanes of an interrupted run is damage.
    """

    kind: ProblemKind
    description: str
    key: str | None = None
    path: Path | None = None

    @property
    def is_damage(self) -> bool:
        """Whether something is wrong; the lanes of an interrupted run are listed, but nothing is wrong with them."""
        return self.kind is not ProblemKind.LANES


def check_store(store: Store) -> list[Problem]:
    """Read everything once and return what is wrong, and the lanes that an interrupted run can resume from."""
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
            problems.append(Problem(ProblemKind.STRAY_FILE, "belongs to no result", path=path))
    for path in sorted(store.adapters_folder.glob(".*.tmp")):
        problems.append(Problem(ProblemKind.STRAY_FILE, "half written", path=path))
    description = "fine-tunings of a run that was stopped; the same command resumes from them"
    for path in sorted(store.lanes_folder.glob("*")):
        problems.append(Problem(ProblemKind.LANES, description, path=path))
    return problems


def _read_cell_rows(connection: sa.Connection) -> list[sa.Row[*tuple[Any, ...]]]:
    """Return the names of every cell, and whether it has its main score and its provenance."""
    cell_columns = schema.cells.c
    is_main = sa.and_(
        schema.scores.c.cell == cell_columns.id, schema.scores.c.name == cell_columns.metric
    )
    is_whole = sa.and_(schema.scores.c.cell.is_not(None), schema.provenances.c.cell.is_not(None))
    query = sa.select(
        cell_columns.key,
        cell_columns.model,
        cell_columns.task,
        cell_columns.protocol,
        cell_columns.item_count,
        is_whole.label("is_whole"),
    )
    query = query.outerjoin_from(schema.cells, schema.scores, is_main)
    query = query.outerjoin(schema.provenances, schema.provenances.c.cell == cell_columns.id)
    return list(connection.execute(query.order_by(cell_columns.id)).all())


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


def _check_cell(store: Store, cell_row: sa.Row[*tuple[Any, ...]]) -> Iterator[Problem]:
    cell_name = f"{cell_row.model} × {cell_row.task} × {cell_row.protocol}"
    if not cell_row.is_whole:
        yield Problem(
            ProblemKind.CELL, f"{cell_name}: its score or provenance is missing", cell_row.key
        )
        return
    if cell_row.item_count is None:
        return
    try:
        readable_items = len(store.cells.read_items(cell_row.key))
    except StoreError as error:
        yield Problem(ProblemKind.ITEMS, f"{cell_name}: {error.message}", cell_row.key)
        return
    if readable_items != cell_row.item_count:
        description = f"{cell_name}: {readable_items} examples instead of {cell_row.item_count}"
        yield Problem(ProblemKind.ITEMS, description, cell_row.key)


def _find_unreadable(store: Store) -> Iterator[str]:
    """Read every record as commands read them, and say what cannot be read."""
    readings: dict[str, Callable[[], object]] = {
        "studies": store.studies.read,
        "failures": store.failures.read,
    }
    try:
        study_keys = [record.key for record in store.studies.read()]
    except StoreError:
        study_keys = []
    for study_key in study_keys:
        readings[f"cells of {study_key}"] = partial(store.cells.read, study=study_key)
        readings[f"lanes of {study_key}"] = partial(store.lanes.read, study=study_key)
        readings[f"progress of {study_key}"] = partial(store.events.read_progress, study_key)
        readings[f"events of {study_key}"] = partial(store.events.read, study_key, limit=10**9)
    for record_kind, read_records in readings.items():
        try:
            read_records()
        except (StoreError, ValueError, TypeError, KeyError) as error:
            yield f"{record_kind}: {error}"[:300]


def repair_store(store: Store, problems: list[Problem]) -> None:
    """Remove what belongs to no result, and mark cells whose items are damaged: the next run replaces them.

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
    shared: int  # that another study uses too


def find_study(store: Store, name_or_key: str) -> StudyRecord:
    """Return the study of this name or key (or its first characters); a name that several have is refused."""
    return choose_study(store.studies.read(), name_or_key, where=store.where)


def rename_study(store: Store, key: str, new_name: str) -> None:
    """Give a study another name. Its key stays, so that its cells and its file find each other under both names."""
    if not new_name.strip():
        raise InputError("a study needs a name")
    is_study = schema.studies.c.key == key
    with store.database.writing() as connection:
        settings = connection.execute(sa.select(schema.studies.c.spec).where(is_study)).scalar_one()
        if "name" in settings:
            settings["name"] = new_name
        connection.execute(
            schema.studies.update().where(is_study).values(name=new_name, spec=settings)
        )


def count_own_and_shared(store: Store, key: str) -> tuple[int, int]:
    """Return how many cells are this study's alone, and how many another uses too."""
    with store.database.reading() as connection:
        study_cells = _separate_shared_cells(connection, key)
    return len(study_cells.alone), len(study_cells.shared)


def delete_study(store: Store, key: str) -> DeletedStudy:
    """Take a study away, in one transaction, with all that no other study uses."""
    with store.database.writing() as connection:
        query = sa.select(schema.studies.c.name).where(schema.studies.c.key == key)
        study_name = str(connection.execute(query).scalar_one())
        study_cells = _separate_shared_cells(connection, key)
        for cell_id, cell in study_cells.shared.items():
            own_cell = schema.cells.update().where(
                schema.cells.c.id == cell_id, schema.cells.c.study == key
            )
            connection.execute(own_cell.values(study=cell.heir))
            own_lanes = schema.lanes.update().where(
                schema.lanes.c.cell == cell.key, schema.lanes.c.study == key
            )
            connection.execute(own_lanes.values(study=cell.heir))
        for some_ids in split_keys(list(study_cells.alone)):
            connection.execute(schema.cells.delete().where(schema.cells.c.id.in_(some_ids)))
        # ON DELETE CASCADE: its links, failures, lanes, events, progress and leases
        connection.execute(schema.studies.delete().where(schema.studies.c.key == key))
    # after the transaction: files without a cell harm nobody, a cell without files does
    for cell_key in study_cells.alone.values():
        items_path(store.items_folder, cell_key).unlink(missing_ok=True)
        shutil.rmtree(store.adapters_folder / cell_key, ignore_errors=True)
    return DeletedStudy(
        study=study_name,
        key=key,
        cells=len(study_cells.alone),
        shared=len(study_cells.shared),
    )


def absorb_study(store: Store, earlier_key: str, later_key: str) -> None:
    """Let a study take over the results, learning curves and log of an earlier one, which it replaces.

    Failures of the earlier study go: what still fails is recorded in the later one.
    """
    link_columns = schema.study_cells.c
    progress_columns = schema.progress.c
    own_rows = sa.select(progress_columns.row).where(progress_columns.study == later_key)
    is_older_state = sa.and_(
        progress_columns.study == earlier_key, progress_columns.row.in_(own_rows)
    )
    with store.database.writing() as connection:
        earlier_cells = sa.select(link_columns.cell).where(link_columns.study == earlier_key)
        links = [
            {"study": later_key, "cell": cell_id}
            for cell_id in connection.execute(earlier_cells).scalars()
        ]
        if links:
            insert = store.database.insert_into(schema.study_cells).on_conflict_do_nothing()
            connection.execute(insert, links)
        connection.execute(schema.progress.delete().where(is_older_state))
        for table in (schema.cells, schema.lanes, schema.events, schema.progress):
            is_earlier = table.c.study == earlier_key
            connection.execute(table.update().where(is_earlier).values(study=later_key))
        connection.execute(schema.studies.delete().where(schema.studies.c.key == earlier_key))


@dataclass(frozen=True)
class _SharedCell:
    key: str
    heir: str  # the study that it goes to


@dataclass(frozen=True)
class _StudyCells:
    """The cells of a study by database id: the keys of those that are its alone, and those of others too."""

    alone: dict[int, str]
    shared: dict[int, _SharedCell]


def _separate_shared_cells(connection: sa.Connection, study_key: str) -> _StudyCells:
    """Separate the cells that a study shares from those that are its alone; of several heirs the first key is taken."""
    cell_columns = schema.cells.c
    link_columns = schema.study_cells.c
    linked_cells = sa.select(link_columns.cell).where(link_columns.study == study_key)
    is_of_study = sa.or_(cell_columns.study == study_key, cell_columns.id.in_(linked_cells))
    key_by_cell: dict[int, str] = {}
    key_by_cell.update(
        connection.execute(sa.select(cell_columns.id, cell_columns.key).where(is_of_study)).all()
    )
    other_studies = sa.select(link_columns.cell, sa.func.min(link_columns.study)).where(
        link_columns.study != study_key
    )
    other_studies = other_studies.where(
        link_columns.cell.in_(sa.select(cell_columns.id).where(is_of_study))
    )
    heir_by_cell: dict[int, str] = {}
    heir_by_cell.update(connection.execute(other_studies.group_by(link_columns.cell)).all())
    shared_cells: dict[int, _SharedCell] = {}
    for cell_id, heir in heir_by_cell.items():
        shared_cells[cell_id] = _SharedCell(key_by_cell[cell_id], heir)
    cells_alone: dict[int, str] = {}
    for cell_id, cell_key in key_by_cell.items():
        if cell_id not in shared_cells:
            cells_alone[cell_id] = cell_key
    return _StudyCells(alone=cells_alone, shared=shared_cells)

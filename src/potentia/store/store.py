"""The result store: cells committed in one transaction each, read back as records or as a ScoreMatrix."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from potentia.errors import EmptyStoreError, NoStoreError, StoreError, without_password
from potentia.files import atomic_folder, remove_path
from potentia.store import schema as s
from potentia.store.database import (
    identity,
    locate,
    prepare,
    recorded_items,
    speaking,
    store_gone,
    wait_for,
)
from potentia.store.live import chunks, columns
from potentia.store.reading import CELL, METRIC, ORIGIN, Reading
from potentia.store.records import (
    CellRecord,
    StudyRecord,
    dumps,
    items_path,
    looks_whole,
    now,
    publish,
    stage,
)
from potentia.values.scores import ItemOutcome

ADAPTER_NOTE = "potentia.json"
_ANY_FAILURE = sa.select(s.failures.c.study).limit(1)


class Store(Reading):
    """Studies, cells and scores in SQLite (a file) or PostgreSQL (a URL); items as Parquet in a folder beside it.

    Several processes may write at once. The first writer of a key wins; what is committed is whole and stays.
    """

    _opened: tuple[str, bool]

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        readonly: bool = False,
        create: bool = True,
        patience: float = 0.0,
    ) -> Store:
        """Open or create a store: the path of a SQLite file, or a URL such as ``postgresql+psycopg://host/name``.

        Items lie in ``<file>.items/``; for PostgreSQL in ``?items=FOLDER`` of the URL, or where the store says that
        they lie, which is ``./potentia.items`` of where it was made. ``readonly`` neither creates nor changes anything.
        Without ``create`` a store that is not there is an error. A store with ``patience`` waits so many seconds, here
        and later, while a server is away.
        """
        url, path, items = locate(where)
        name = (
            str(path)
            if path is not None
            else without_password(url.render_as_string(hide_password=False))
        )
        if path is not None and path.is_dir():
            raise NoStoreError(
                "this is a folder", where=name, hint="give a file, for example potentia.db"
            )
        if path is not None and not path.exists():
            if readonly:
                raise NoStoreError(
                    "there is no such store",
                    where=name,
                    hint="check the path, or run a study first",
                )
            if not create:
                raise store_gone(name)
        engine, folder = wait_for(lambda: prepare(url, path, name, items, readonly), patience)
        store = cls(engine, name, folder)
        store.patience = patience
        store._opened = (str(where), readonly)
        if path is not None and not readonly:
            store._file = path, identity(path)
        return store

    @classmethod
    def find(cls, where: str | Path, *, patience: float = 0.0) -> Store | None:
        """Open a store to read it; None where nothing was stored yet. Creates and changes nothing."""
        _, path, _ = locate(where)
        if (
            path is not None
            and not path.is_dir()
            and (not path.exists() or path.stat().st_size == 0)
        ):
            return None
        try:
            return cls.open(where, readonly=True, patience=patience)
        except EmptyStoreError:
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        where, readonly = self._opened
        return partial(Store.open, readonly=readonly), (where,)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; the store can still be used and opens them again."""
        self._engine.dispose()

    # --- studies ----------------------------------------------------------------------------------------------------

    def study(self, name: str, key: str, spec: Mapping[str, Any]) -> StudyRecord:
        """Get the study with this key, or create it."""
        with self._writing() as connection:
            moment = now()
            row = {"key": key, "name": name, "spec": spec, "created": moment, "opened": moment}
            insert = self._insert(s.studies).on_conflict_do_update(
                index_elements=["key"], set_={"opened": moment}
            )
            connection.execute(insert, row)
            found = sa.select(*columns(s.studies, StudyRecord)).where(s.studies.c.key == key)
            return StudyRecord(**connection.execute(found).mappings().one())

    # --- writing cells ----------------------------------------------------------------------------------------------

    def commit_cell(
        self,
        cell: CellRecord,
        *,
        items: Sequence[ItemOutcome] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> bool:
        """Commit one cell with scores, provenance and items, and an ``event`` of the kind "cell", wholly or not at all.

        Returns False when the key was committed before: the first writer wins, the cell is only added to the study, and
        nothing is said of it. A cell whose items are missing or cut short is replaced, in this one transaction.
        """
        _check(cell)
        with speaking(self.where):
            staged = stage(self.items_folder, cell.key, items) if items is not None else None
        try:
            with self._writing() as connection:
                count = len(items) if items is not None else None
                fresh = self._put(connection, [cell], count)
                if (
                    not fresh
                    and staged is not None
                    and not looks_whole(self.items_folder, cell.key)
                ):
                    fresh = self._renew(connection, cell, count)
                if fresh and staged is not None:
                    publish(self.items_folder, cell.key, staged)
                if (
                    fresh and event is not None
                ):  # last: on PostgreSQL writers of events wait for one another
                    self._say(connection, cell.study, "cell", event)
            return bool(fresh)
        finally:
            if staged is not None:
                staged.unlink(missing_ok=True)

    def copy_cell(self, source: str, key: str, *, study: str, model: str, task: str) -> None:
        """Commit a copy of a cell, with its items and adapter, under another key and names; one that is there stays."""
        cell = self.cell(source)
        if cell is not None and not self.has(key):
            if (kept := self.adapter(source)) is not None:
                with (
                    speaking(self.where),
                    atomic_folder(self.adapters_folder / key, replace=True) as draft,
                ):
                    shutil.copytree(kept, draft, dirs_exist_ok=True)
            probe = next(iter(self.probes(key=source).values()), None)
            copy = replace(cell, key=key, study=study, model=model, task=task, probe=probe)
            self.commit_cell(copy, items=self.items(source) or None)

    def commit_cells(self, cells: Sequence[CellRecord]) -> int:
        """Commit a batch of cells without items in one transaction; returns how many were new."""
        for cell in cells:
            _check(cell)
        with self._writing() as connection:
            return self._put(connection, cells)

    def release(self, study: str, cell_keys: Sequence[str]) -> None:
        """Take cells out of a study that does not ask for them any more; they stay in the store."""
        with self._writing() as connection:
            for some in chunks(list(self._numbers(connection, cell_keys).values())):
                here = s.study_cells.delete().where(
                    s.study_cells.c.study == study, s.study_cells.c.cell.in_(some)
                )
                connection.execute(here)

    def discard(self, cell_keys: Sequence[str]) -> None:
        """Forget cells wholly, with items and adapters: whoever asks for them computes them anew."""
        with self._writing() as connection:
            for chunk in chunks(cell_keys):
                connection.execute(s.cells.delete().where(s.cells.c.key.in_(chunk)))
        for key in cell_keys:
            items_path(self.items_folder, key).unlink(missing_ok=True)
            self.drop_adapter(key)

    def check_items(self, cell_keys: Sequence[str]) -> None:
        """Refuse to go on where the items of these cells are all missing and their folder is empty: it is another."""
        there = any(items_path(self.items_folder, key).exists() for key in cell_keys)
        if there or next(self.items_folder.glob("*/*.parquet"), None) is not None:
            return
        with self._reading() as connection:
            recorded = recorded_items(connection)
        if recorded not in (None, self.items_folder):
            why = f"the store was made with its items in {recorded}: leave out items=, or name that folder"
        else:
            why = "bring the folder back, or name it: ?items=FOLDER in the URL; to compute anew: potentia store discard"
        words = (
            f"the items of all {len(cell_keys)} finished cells are missing in {self.items_folder}"
        )
        raise StoreError(words, where=self.where, hint=why)

    def adopt(self, study: str, cell_keys: Iterable[str]) -> int:
        """Add committed cells of other studies to this one, which asks for the same keys; returns how many it has."""
        keys = list(dict.fromkeys(cell_keys))
        with self._writing() as connection:
            key = self._study_key(connection, study)
            found = self._numbers(connection, keys)
            self._link(connection, {(key, number) for number in found.values()})
            return len(found)

    def _put(
        self, connection: sa.Connection, cells: Sequence[CellRecord], items: int | None = None
    ) -> int:
        """Write the cells whose keys are free, and add all to their studies; returns how many were new."""
        studies = {
            name: self._study_key(connection, name) for name in {cell.study for cell in cells}
        }
        unique = {cell.key: cell for cell in reversed(cells)}  # the first of a key counts
        rows = [
            {name: getattr(cell, name) for name in CELL}
            | {"study": studies[cell.study], "item_count": items}
            | dict(zip(ORIGIN, astuple(cell.score.origin), strict=True))
            for cell in reversed(unique.values())
        ]
        claim = (
            self._insert(s.cells).on_conflict_do_nothing().returning(s.cells.c.key, s.cells.c.id)
        )
        fresh = dict(connection.execute(claim, rows).all()) if rows else {}
        self._describe(connection, [(number, unique[key]) for key, number in fresh.items()])
        numbers = fresh | self._numbers(connection, [key for key in unique if key not in fresh])
        self._link(connection, {(studies[cell.study], numbers[cell.key]) for cell in cells})
        return len(fresh)

    @staticmethod
    def _describe(connection: sa.Connection, new: Sequence[tuple[int, CellRecord]]) -> None:
        """Write what belongs to new cells: scores, provenance, probes."""
        scores = [row for number, cell in new for row in _score_rows(number, cell)]
        bodies = [
            {"cell": n, "provenance": cell.provenance, "selection": cell.selection}
            for n, cell in new
        ]
        probes = [{"cell": n, "probe": cell.probe} for n, cell in new if cell.probe is not None]
        for table, parts in ((s.scores, scores), (s.provenances, bodies), (s.probes, probes)):
            if parts:
                connection.execute(table.insert(), parts)

    def _renew(self, connection: sa.Connection, cell: CellRecord, count: int | None) -> int:
        """Put a cell in the place of one whose items are damaged, in every study that has it."""
        (number,) = self._numbers(connection, [cell.key]).values()
        links = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == number)
        studies = list(connection.execute(links).scalars())
        connection.execute(s.cells.delete().where(s.cells.c.id == number))
        fresh = self._put(connection, [cell], count)
        (number,) = self._numbers(connection, [cell.key]).values()
        self._link(connection, {(study, number) for study in studies})
        return fresh

    @staticmethod
    def _numbers(connection: sa.Connection, keys: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the cells that are committed."""
        found: dict[str, int] = {}
        for chunk in chunks(keys):
            query = sa.select(s.cells.c.key, s.cells.c.id).where(s.cells.c.key.in_(chunk))
            found.update(connection.execute(query).all())
        return found

    def _link(self, connection: sa.Connection, pairs: Collection[tuple[str, int]]) -> None:
        """Add cells to studies, and forget the failures that they heal."""
        if not pairs:
            return
        rows = [{"study": study, "cell": number} for study, number in sorted(pairs)]
        connection.execute(self._insert(s.study_cells).on_conflict_do_nothing(), rows)
        if connection.execute(_ANY_FAILURE).first() is None:
            return
        f, c = s.failures.c, s.cells.c
        for chunk in chunks([number for _, number in pairs]):
            asked = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == c.id)
            same = sa.and_(
                f.model == c.model, f.task == c.task, f.protocol == c.protocol, f.study.in_(asked)
            )
            healed = sa.exists().where(c.id.in_(chunk), sa.or_(f.key == c.key, same))
            connection.execute(s.failures.delete().where(healed))

    # --- adapters ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Remove what killed writers left half written of cells that have been committed since."""
        left = [*self.items_folder.glob("*/.*.tmp"), *self.adapters_folder.glob(".*.tmp")]
        if not left:
            return
        cells = {path: path.name.lstrip(".").split(".")[0] for path in left}
        whole = self.names(list(dict.fromkeys(cells.values())))
        for path in (path for path, key in cells.items() if key in whole):
            remove_path(path)

    def adapter(self, cell_key: str) -> Path | None:
        """Return the folder of a cell's tuned adapter, in PEFT's form; None where none was kept."""
        folder = self.adapters_folder / cell_key
        return folder if (folder / ADAPTER_NOTE).is_file() else None

    def keep_adapter(self, key: str, save: Callable[[Path], None], note: Mapping[str, Any]) -> Path:
        """Keep what ``save`` writes, wholly or not at all; ``note`` says what it was made for."""
        folder = self.adapters_folder / key
        with speaking(self.where), atomic_folder(folder, replace=True) as draft:
            save(draft)
            (draft / ADAPTER_NOTE).write_text(dumps(dict(note)), encoding="utf-8")
        return folder

    def drop_adapter(self, cell_key: str) -> int:
        """Remove a kept adapter; returns the bytes set free."""
        folder = self.adapter(cell_key)
        if folder is None:
            return 0
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        with speaking(self.where):
            shutil.rmtree(folder)
        return size


def _check(cell: CellRecord) -> None:
    place = f"{cell.model} × {cell.task} × {cell.protocol}"
    if cell.metric not in cell.scores:
        raise StoreError(f"the main metric {cell.metric!r} is not among the scores", where=place)
    if not math.isfinite(cell.scores[cell.metric].value):
        raise StoreError(
            "the main score is not a finite number",
            where=place,
            hint="record the cell as failed instead",
        )


def _score_rows(number: int, cell: CellRecord) -> list[dict[str, Any]]:
    return [
        {
            "cell": number,
            "name": name,
            "value": _null(score.value),
            "stderr": _null(score.stderr),
            "n": int(score.n),
            "seeds": score.seeds or None,
            **dict(zip(METRIC, astuple(score.metric), strict=True)),
        }
        for name, score in cell.scores.items()
    ]


def _null(value: float) -> float | None:
    return None if math.isnan(value) else float(value)

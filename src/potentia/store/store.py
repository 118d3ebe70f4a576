"""The result store: cells committed in one transaction each, read back as records or as a ScoreMatrix."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL

from potentia.errors import EmptyStoreError, InputError, NoStoreError, StoreError, without_password
from potentia.files import whole_folder
from potentia.store import schema as s
from potentia.store.database import (
    WRITE,
    check_version,
    connect,
    locate,
    now,
    prepare,
    record_items,
    recorded_items,
    speaking,
    store_gone,
)
from potentia.store.items import dumps, items_path, load, load_values, loads, looks_whole, publish, stage
from potentia.store.leases import Leases
from potentia.store.matrix import METRIC, ORIGIN, Grid, read_metric, read_origin, read_seeds
from potentia.store.patience import wait_for
from potentia.store.records import CellRecord, ChoiceRecord, StudyRecord
from potentia.values.metric import Metric
from potentia.values.origin import UNKNOWN, Origin
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix

_LOCK = 0x706F74656E740001  # guards the creation of the tables on PostgreSQL
_Key = TypeVar("_Key", str, int)
Studies = str | Sequence[str] | None  # one or several studies, by key or name
ADAPTER_NOTE = "potentia.json"
_LAST = sa.select(sa.func.max(s.cells.c.id))  # statements of every commit, built once
_ANY_ITEMS = sa.select(s.cells.c.id).where(s.cells.c.item_count.is_not(None)).limit(1)
_ANY_FAILURE = sa.select(s.failures.c.study).limit(1)
_CHUNK = 500  # keys per statement, well under SQLite's limit of parameters


class Store(Leases):
    """Studies, cells and scores in SQLite (a file) or PostgreSQL (a URL); items as Parquet in a folder beside it.

    Several processes may write at once. The first writer of a key wins; what is committed is whole and stays.
    """

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        items: str | Path | None = None,
        readonly: bool = False,
        create: bool = True,
        patience: float = 0.0,
    ) -> Store:
        """Open or create a store: the path of a SQLite file, or a URL such as ``postgresql+psycopg://host/name``.

        Items lie in ``<file>.items/``; for PostgreSQL in ``items``, or ``?items=FOLDER`` in the URL, or where the store
        says that they lie, which is ``./potentia.items`` of where it was made. ``readonly`` neither creates nor changes
        anything. Without ``create`` a store that is not there is an error. A store with ``patience`` waits so many
        seconds, here and later, while a server is away.
        """
        url, path, named = locate(where)
        name = str(path) if path is not None else without_password(url.render_as_string(hide_password=False))
        named = Path(items).resolve() if items is not None else named
        if path is not None and path.is_dir():
            raise NoStoreError("this is a folder", where=name, hint="give a file, for example potentia.db")
        if path is not None and readonly and not path.exists():
            raise NoStoreError("there is no such store", where=name, hint="check the path, or run a study first")
        if path is not None and not create and not path.exists():
            raise store_gone(name)

        engine, folder = wait_for(lambda: cls._prepared(url, path, name, named, readonly), patience)
        store = cls(engine, name, folder)
        store.patience = patience
        if path is not None and not readonly:
            try:
                found = path.stat()
            except FileNotFoundError:  # just now
                raise store_gone(name) from None
            store._file = (path, (found.st_dev, found.st_ino))
        store._opened = (str(where), items, readonly)
        return store

    @staticmethod
    def _prepared(url: URL, path: Path | None, name: str, named: Path | None, readonly: bool) -> tuple[sa.Engine, Path]:
        """Return the engine of a store whose tables are there, and the folder of its items."""
        with speaking(name):
            if path is not None and not readonly:
                path.parent.mkdir(parents=True, exist_ok=True)
            engine = connect(url, path, readonly=readonly)
            with engine.connect() as plain:
                connection = plain.execution_options(**{WRITE: not readonly})
                with connection.begin():
                    if readonly:
                        check_version(connection, name)
                    else:
                        if engine.dialect.name == "postgresql":
                            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                        prepare(connection, name)
                    recorded = recorded_items(connection)
                    beside = path.with_name(path.name + ".items") if path is not None else None
                    folder = named or recorded or beside or Path("potentia.items").resolve()
                    known = recorded is not None or (connection.execute(_ANY_ITEMS).first() and not folder.is_dir())
                    if not known and folder != beside and not readonly:
                        record_items(connection, folder)
        return engine, folder

    @classmethod
    def find(cls, where: str | Path, *, patience: float = 0.0) -> Store | None:
        """Open a store to read it; None where nothing was stored yet. Creates and changes nothing."""
        _, path, _ = locate(where)
        if path is not None and not path.is_dir() and (not path.exists() or path.stat().st_size == 0):
            return None
        try:
            return cls.open(where, readonly=True, patience=patience)
        except EmptyStoreError:
            return None

    _opened: tuple[str, str | Path | None, bool]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._opened

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
            row = {"key": key, "name": name, "spec": dumps(dict(spec)), "created": moment, "opened": moment}
            insert = self._insert(s.studies).values(**row)
            connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"opened": moment}))
            found = connection.execute(sa.select(s.studies).where(s.studies.c.key == key)).mappings().one()
            return StudyRecord(found["key"], found["name"], loads(found["spec"]), found["created"])

    def studies(self) -> list[StudyRecord]:
        """Return all studies, the one opened last first."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(s.studies).order_by(s.studies.c.opened.desc())).mappings().all()
        return [StudyRecord(r["key"], r["name"], loads(r["spec"]), r["created"]) for r in rows]

    # --- writing cells ----------------------------------------------------------------------------------------------

    def has(self, cell_key: str) -> bool:
        """Say whether this cell is committed."""
        with self._reading() as connection:
            return connection.execute(sa.select(s.cells.c.key).where(s.cells.c.key == cell_key)).first() is not None

    def names(self, cell_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return, for those of the keys that are committed, the model and task that the cell is named after."""
        found: dict[str, tuple[str, str]] = {}
        with self._reading() as connection:
            for chunk in _chunks(cell_keys):
                query = sa.select(s.cells.c.key, s.cells.c.model, s.cells.c.task).where(s.cells.c.key.in_(chunk))
                found |= {key: (model, task) for key, model, task in connection.execute(query)}
        return found

    def commit_cell(
        self,
        cell: CellRecord,
        *,
        items: Sequence[ItemOutcome] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> bool:
        """Commit one cell with scores, manifest and items, and an ``event`` of the kind "cell", wholly or not at all.

        Returns False when the key was committed before: the first writer wins, the cell is only added to the study, and
        nothing is said of it. A cell whose items are missing or cut short is replaced, in this one transaction.
        """
        _check(cell)
        with speaking(self.where):
            staged = stage(self.items_folder, cell.key, items) if items is not None else None
        try:
            with self._writing() as connection:
                count = len(items) if items is not None else None
                fresh = self._put(connection, [cell], {cell.key: count})
                if not fresh and staged is not None and not looks_whole(self.items_folder, cell.key):
                    fresh = self._renew(connection, cell, count)
                if fresh and staged is not None:
                    publish(self.items_folder, cell.key, staged)
                if fresh and event is not None:  # last: on PostgreSQL writers of events wait for one another
                    self._say(connection, cell.study, "cell", event)
            return bool(fresh)
        finally:
            if staged is not None:
                staged.unlink(missing_ok=True)

    def copy_cell(self, source: str, key: str, *, study: str, model: str, task: str) -> None:
        """Commit a copy of a cell, with its items, under another key and other names; one that is there stays."""
        cell = self.cell(source)
        if cell is not None and not self.has(key):
            probe = next(iter(self.probes(key=source).values()), None)
            copy = replace(cell, key=key, study=study, model=model, task=task, probe=probe)
            self.commit_cell(copy, items=self.items(source) or None)

    def commit_cells(self, cells: Sequence[CellRecord]) -> int:
        """Commit a batch of cells without items in one transaction; returns how many were new."""
        for cell in cells:
            _check(cell)
        with self._writing() as connection:
            return self._put(connection, cells, {})

    def linked(self, study: str) -> dict[str, str]:
        """Return the keys of the cells that a study has, each with its model; none where the study is not known."""
        c, linked = s.cells.c, s.study_cells.c
        query = sa.select(c.key, c.model).join_from(s.study_cells, s.cells).where(linked.study == study)
        with self._reading() as connection:
            return dict(connection.execute(query).tuples().all())

    def release(self, study: str, cell_keys: Sequence[str]) -> None:
        """Take cells out of a study that does not ask for them any more; they stay in the store."""
        with self._writing() as connection:
            for number in self._numbers(connection, cell_keys).values():
                here = sa.and_(s.study_cells.c.study == study, s.study_cells.c.cell == number)
                connection.execute(s.study_cells.delete().where(here))

    def discard(self, cell_keys: Sequence[str]) -> None:
        """Forget cells wholly, with items and adapters: whoever asks for them computes them anew."""
        with self._writing() as connection:
            for chunk in _chunks(cell_keys):
                connection.execute(s.cells.delete().where(s.cells.c.key.in_(chunk)))
        for key in cell_keys:
            items_path(self.items_folder, key).unlink(missing_ok=True)
            self.drop_adapter(key)

    def damaged(self, cell_keys: Sequence[str]) -> list[str]:
        """Return those of the committed cells whose items are missing or cut short."""
        found: list[str] = []
        with self._reading() as connection:
            for chunk in _chunks(cell_keys):
                query = sa.select(s.cells.c.key).where(s.cells.c.key.in_(chunk), s.cells.c.item_count.is_not(None))
                found += [key for key in connection.execute(query).scalars() if not looks_whole(self.items_folder, key)]
        return found

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
        words = f"the items of all {len(cell_keys)} finished cells are missing in {self.items_folder}"
        raise StoreError(words, where=self.where, hint=why)

    def adopt(self, study: str, cell_keys: Iterable[str]) -> int:
        """Add committed cells of other studies to this one, which asks for the same keys; returns how many it has."""
        keys = list(dict.fromkeys(cell_keys))
        with self._writing() as connection:
            key = self._study_key(connection, study)
            found = self._numbers(connection, keys)
            self._link(connection, {(key, number) for number in found.values()})
            return len(found)

    def _put(self, connection: sa.Connection, cells: Sequence[CellRecord], items: Mapping[str, int | None]) -> int:
        studies = {name: self._study_key(connection, name) for name in {cell.study for cell in cells}}
        unique: dict[str, CellRecord] = {}
        for cell in cells:
            unique.setdefault(cell.key, cell)
        rows = [
            {
                "key": cell.key,
                "study": studies[cell.study],
                "model": cell.model,
                "task": cell.task,
                "protocol": cell.protocol,
                "metric": cell.metric,
                "created": cell.created,
                "seconds": cell.seconds,
                "direct_value": cell.direct_value,
                "gain": cell.gain,
                "item_count": items.get(cell.key),
                **_origin_row(cell.score.origin),
            }
            for cell in unique.values()
        ]
        fresh = self._claim(connection, rows)
        if fresh:
            new = [(number, unique[key]) for key, number in fresh.items()]
            connection.execute(s.scores.insert(), [row for number, cell in new for row in _score_rows(number, cell)])
            bodies = [
                {"cell": number, "manifest": dumps(dict(c.manifest)), "selection": dumps(dict(c.selection))}
                for number, c in new
            ]
            connection.execute(s.manifests.insert(), bodies)
            probed = [{"cell": number, "probe": dumps(dict(c.probe))} for number, c in new if c.probe is not None]
            if probed:
                connection.execute(s.probes.insert(), probed)
        known = self._numbers(connection, [key for key in unique if key not in fresh])
        numbers = {**known, **fresh}
        self._link(connection, {(studies[cell.study], numbers[cell.key]) for cell in cells})
        return len(fresh)

    def _renew(self, connection: sa.Connection, cell: CellRecord, count: int | None) -> int:
        """Put a cell in the place of one whose items are damaged, in every study that has it."""
        (number,) = self._numbers(connection, [cell.key]).values()
        links = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == number)
        studies = list(connection.execute(links).scalars())
        connection.execute(s.cells.delete().where(s.cells.c.id == number))
        fresh = self._put(connection, [cell], {cell.key: count})
        (number,) = self._numbers(connection, [cell.key]).values()
        self._link(connection, {(study, number) for study in studies})
        return fresh

    def _claim(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Insert the cells whose keys are free; returns the number of each."""
        if not rows:
            return {}
        alone = len(rows) == 1 and connection.dialect.insert_returning
        if connection.dialect.name == "postgresql" or alone:  # another may claim a key meanwhile: ask the insert itself
            return dict(connection.execute(self._claiming, rows).tuples().all())
        known = self._numbers(connection, [row["key"] for row in rows])
        last = connection.execute(_LAST).scalar() or 0  # this transaction alone is writing
        fresh = [row for row in rows if row["key"] not in known]
        numbered = [{**row, "id": number} for number, row in enumerate(fresh, last + 1)]
        if numbered:
            connection.execute(s.cells.insert(), numbered)
        return {row["key"]: row["id"] for row in numbered}

    @cached_property
    def _claiming(self) -> Any:
        return self._insert(s.cells).on_conflict_do_nothing().returning(s.cells.c.key, s.cells.c.id)

    @cached_property
    def _linking(self) -> Any:
        return self._insert(s.study_cells).on_conflict_do_nothing()

    @staticmethod
    def _numbers(connection: sa.Connection, keys: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the cells that are committed."""
        found: dict[str, int] = {}
        for chunk in _chunks(keys):
            query = sa.select(s.cells.c.key, s.cells.c.id).where(s.cells.c.key.in_(chunk))
            found.update(connection.execute(query).tuples().all())
        return found

    def _link(self, connection: sa.Connection, pairs: Collection[tuple[str, int]]) -> None:
        """Add cells to studies, and forget the failures that they heal."""
        if not pairs:
            return
        rows = [{"study": study, "cell": number} for study, number in sorted(pairs)]
        connection.execute(self._linking, rows)
        if connection.execute(_ANY_FAILURE).first() is None:
            return
        f, c = s.failures.c, s.cells.c
        for chunk in _chunks([number for _, number in pairs]):
            asked = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == c.id)
            same = sa.and_(f.model == c.model, f.task == c.task, f.protocol == c.protocol, f.study.in_(asked))
            healed = sa.exists().where(c.id.in_(chunk), sa.or_(f.key == c.key, same))
            connection.execute(s.failures.delete().where(healed))

    # --- reading ----------------------------------------------------------------------------------------------------

    def cells(
        self,
        *,
        study: Studies = None,
        protocol: str | None = None,
        model: str | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[CellRecord]:
        """Return committed cells in the order of their making; ``limit`` and ``offset`` take a page of them."""
        with self._reading() as connection:
            wanted = self._wanted(connection, study=study, protocol=protocol, model=model, task=task, key=key)
            if limit is not None:
                page = sa.select(s.cells.c.id).where(*wanted).order_by(s.cells.c.created, s.cells.c.key)
                wanted = [s.cells.c.id.in_(connection.execute(page.limit(limit).offset(offset)).scalars().all())]
            body = sa.select(s.cells, s.manifests.c.manifest, s.manifests.c.selection).join_from(s.cells, s.manifests)
            body = body.where(*wanted).order_by(s.cells.c.created, s.cells.c.key)
            rows = connection.execute(body).mappings().all()
            parts = sa.select(s.scores).join_from(s.scores, s.cells).where(*wanted).order_by(s.scores.c.name)
            origins = {r["id"]: read_origin(*(r[name] for name in ORIGIN)) or UNKNOWN for r in rows}
            scores: dict[int, dict[str, Score]] = {}
            for row in connection.execute(parts):
                scores.setdefault(row.cell, {})[row.name] = _score(row, origins[row.cell])
        return [
            CellRecord(
                key=r["key"],
                study=r["study"],
                model=r["model"],
                task=r["task"],
                protocol=r["protocol"],
                scores=scores.get(r["id"], {}),
                metric=r["metric"],
                manifest=loads(r["manifest"]),
                created=r["created"],
                seconds=r["seconds"],
                selection=loads(r["selection"]),
                direct_value=r["direct_value"],
                gain=r["gain"],
            )
            for r in rows
        ]

    def choices(self, *, study: Studies = None, protocol: str | None = None) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell, without scores and manifests, in the same order."""
        with self._reading() as connection:
            c = s.cells.c
            body = sa.select(c.key, c.model, c.task, c.protocol, c.metric, s.manifests.c.selection)
            body = body.join_from(s.cells, s.manifests).order_by(c.created, c.key)
            wanted = self._wanted(connection, study=study, protocol=protocol)
            return [ChoiceRecord(*row) for row in connection.execute(body.where(*wanted))]

    def cut_prompts(self, *, study: Studies = None) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
        """Return, by protocol and task, the models whose prompts were cut: how many, of how many requests."""
        c, text = s.cells.c, s.manifests.c.selection
        found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        with self._reading() as connection:
            query = sa.select(c.protocol, c.task, c.model, text).join_from(s.cells, s.manifests)
            wanted = [*self._wanted(connection, study=study), text.contains('"cut_prompts"')]
            for protocol, task, model, selection in connection.execute(query.where(*wanted).order_by(c.created, c.key)):
                cut, asked = loads(selection)["cut_prompts"]
                found.setdefault((protocol, task), {})[model] = cut, asked
        return found

    def probes(self, *, study: Studies = None, key: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """Return what the probe of every model and task recorded, the newest of several; none where none was made."""
        c = s.cells.c
        with self._reading() as connection:
            query = sa.select(c.model, c.task, s.probes.c.probe).join_from(s.cells, s.probes)
            wanted = self._wanted(connection, study=study, key=key)
            rows = connection.execute(query.where(*wanted).order_by(c.created, c.key)).all()
        return {(model, task): loads(text) for model, task, text in rows}

    def count(
        self,
        *,
        study: str | None = None,
        protocol: str | None = None,
        model: str | None = None,
        task: str | None = None,
    ) -> int:
        """Return how many cells are committed, without reading them."""
        with self._reading() as connection:
            wanted = self._wanted(connection, study=study, protocol=protocol, model=model, task=task)
            return int(connection.execute(sa.select(sa.func.count()).select_from(s.cells).where(*wanted)).scalar_one())

    def seconds(self, *, study: str | None = None) -> float:
        """Return how long the committed cells took to compute, all together."""
        with self._reading() as connection:
            total = sa.select(sa.func.coalesce(sa.func.sum(s.cells.c.seconds), 0.0))
            return float(connection.execute(total.where(*self._wanted(connection, study=study))).scalar_one())

    def cell(self, cell_key: str) -> CellRecord | None:
        """Return one cell, or None where it is not committed."""
        found = self.cells(key=cell_key)
        return found[0] if found else None

    def items(self, cell_key: str) -> list[ItemOutcome]:
        """Return the per-item outcomes of a cell; an imported cell has none."""
        with self._reading() as connection:
            row = connection.execute(sa.select(s.cells.c.item_count).where(s.cells.c.key == cell_key)).first()
        if row is None:
            raise StoreError(f"no cell {cell_key!r} in this store", where=self.where)
        return [] if row[0] is None else load(self.items_folder, cell_key)

    # --- adapters ---------------------------------------------------------------------------------------------------

    @property
    def adapters_folder(self) -> Path:
        """The folder of tuned adapters: beside the items."""
        return self.items_folder.with_name(self.items_folder.name.removesuffix(".items") + ".adapters")

    @property
    def lanes_folder(self) -> Path:
        """The folder for what a resumed row needs: beside the items."""
        return self.items_folder.with_name(self.items_folder.name.removesuffix(".items") + ".lanes")

    @property
    def logs_folder(self) -> Path:
        """The folder of the logs of runs: beside the items."""
        return self.items_folder.with_name(self.items_folder.name.removesuffix(".items") + ".logs")

    def sweep(self) -> None:
        """Remove what killed writers left half written of cells that have been committed since."""
        left = [*self.items_folder.glob("*/.*.tmp"), *self.adapters_folder.glob(".*.tmp")]
        if not left:
            return
        cells = {path: path.name.lstrip(".").split(".")[0] for path in left}
        whole = self.names(list(dict.fromkeys(cells.values())))
        for path in (path for path, key in cells.items() if key in whole):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def adapter(self, cell_key: str) -> Path | None:
        """Return the folder of a cell's tuned adapter, in PEFT's form; None where none was kept."""
        folder = self.adapters_folder / cell_key
        return folder if (folder / ADAPTER_NOTE).is_file() else None

    def keep_adapter(self, key: str, save: Callable[[Path], None], note: Mapping[str, Any]) -> Path:
        """Keep what ``save`` writes, wholly or not at all; ``note`` says what it was made for."""
        folder = self.adapters_folder / key
        with speaking(self.where), whole_folder(folder, replace=True) as draft:
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

    def protocols(self, *, study: Studies = None) -> list[str]:
        """Return the protocols that have cells."""
        with self._reading() as connection:
            query = sa.select(s.cells.c.protocol).distinct().where(*self._wanted(connection, study=study))
            return sorted(connection.execute(query).scalars().all())

    def manifests_by_task(self, *, study: Studies = None) -> dict[str, dict[str, Any]]:
        """Return the manifest of the first cell of every task: how its documents were divided is the same in all."""
        c = s.cells.c
        with self._reading() as connection:
            first = sa.select(sa.func.min(c.id)).where(*self._wanted(connection, study=study)).group_by(c.task)
            query = sa.select(c.task, s.manifests.c.manifest).join_from(s.cells, s.manifests).where(c.id.in_(first))
            return {task: loads(text) for task, text in connection.execute(query)}

    def outcomes(self, *, study: Studies = None) -> Iterator[tuple[str, str, str, str | None, dict[int, float]]]:
        """Give (protocol, task, model, data, value by document) of every cell with items, the newest of several last.

        A file that is missing or cannot be read is passed over: the score still stands.
        """
        c = s.cells.c
        with self._reading() as connection:
            wanted = [*self._wanted(connection, study=study), c.item_count.is_not(None)]
            query = sa.select(c.protocol, c.task, c.model, c.data, c.key).where(*wanted).order_by(c.created, c.key)
            rows = connection.execute(query).all()
        for protocol, task, model, data, key in rows:
            values = load_values(self.items_folder, key)
            if values is not None:
                yield protocol, task, model, data, values

    def matrix(self, protocol: str, *, study: Studies = None, metric: str | None = None) -> ScoreMatrix:
        """Return models × tasks of one protocol, each sorted by name; missing cells are NaN.

        Without ``study`` all cells count; where several have the same model and task (another recipe, another import)
        the newest is taken. ``metric`` picks another than each cell's main metric.
        """
        c, p = s.cells.c, s.scores.c
        with self._reading() as connection:
            name = p.name == (c.metric if metric is None else metric)
            query = sa.select(c.model, c.task, p.value, p.stderr, p.n, *METRIC, p.seeds, *(c[name] for name in ORIGIN))
            query = query.join_from(s.cells, s.scores, sa.and_(p.cell == c.id, name))
            wanted = self._wanted(connection, study=study, protocol=protocol)
            grid = Grid(connection.execute(query.where(*wanted)).all())
            if grid.repeats():
                grid = Grid(connection.execute(query.where(*wanted).order_by(c.created, c.key)).all())
        if not grid.models:
            what = f"{protocol} cells" + (f" with the metric {metric!r}" if metric else "")
            known = ", ".join(self.protocols(study=study))
            raise InputError(f"the store has no {what}", where=self.where, hint=f"protocols there: {known or 'none'}")
        return grid.matrix(protocol, self.where)

    def measures(
        self, *, study: Studies = None, metric: str | None = None
    ) -> list[tuple[str, str, str, Metric, Origin]]:
        """Return (study, protocol, task, metric, origin) as they occur among the cells, for ``comparable`` to judge.

        Of the origin only what may differ is there: data, recipe and examples in the prompt.
        """
        c, linked = s.cells.c, s.study_cells.c
        with self._reading() as connection:
            name = s.scores.c.name == (c.metric if metric is None else metric)
            query = sa.select(linked.study, c.protocol, c.task, *METRIC[:-1], c.data, c.recipe, c.shots).distinct()
            query = query.join_from(s.cells, s.scores, sa.and_(s.scores.c.cell == c.id, name))
            query = query.join(s.study_cells, linked.cell == c.id).where(*self._wanted(connection, study=study))
            rows = connection.execute(query).all()
        return [(r[0], r[1], r[2], read_metric(*r[3:7]), Origin(*r[7:])) for r in rows]

    def _wanted(self, connection: sa.Connection, *, study: Studies = None, **equal: str | None) -> list[Any]:
        wanted: list[Any] = [s.cells.c[name] == value for name, value in equal.items() if value is not None]
        if study is not None:
            names = (study,) if isinstance(study, str) else study
            keys = [self._study_key(connection, name) for name in names]
            wanted.append(s.cells.c.id.in_(sa.select(s.study_cells.c.cell).where(s.study_cells.c.study.in_(keys))))
        return wanted


def _reopen(where: str, items: str | Path | None, readonly: bool) -> Store:
    return Store.open(where, items=items, readonly=readonly)


def _check(cell: CellRecord) -> None:
    place = f"{cell.model} × {cell.task} × {cell.protocol}"
    if cell.metric not in cell.scores:
        raise StoreError(f"the main metric {cell.metric!r} is not among the scores", where=place)
    if not math.isfinite(cell.scores[cell.metric].value):
        raise StoreError("the main score is not a finite number", where=place, hint="record the cell as failed instead")


def _score_rows(number: int, cell: CellRecord) -> list[dict[str, Any]]:
    return [
        {
            "cell": number,
            "name": name,
            "metric": score.metric.name,
            "value": _null(score.value),
            "stderr": _null(score.stderr),
            "n": int(score.n),
            "higher_is_better": score.metric.higher_is_better,
            "kind": score.metric.kind,
            "scale": score.metric.scale,
            "chance": score.metric.chance,
            "seeds": dumps(score.seeds) if score.seeds else None,
        }
        for name, score in cell.scores.items()
    ]


def _score(row: Any, origin: Origin) -> Score:
    metric = read_metric(row.metric, row.higher_is_better, row.kind, row.scale, row.chance)
    return Score(_nan(row.value), _nan(row.stderr), row.n, metric, origin, read_seeds(row.seeds) or ())


def _origin_row(origin: Origin) -> dict[str, Any]:
    return {"data": origin.data, "recipe": origin.recipe, "shots": origin.shots, "identity": origin.model,
            "source": origin.source, "path": origin.path}  # fmt: skip


def _null(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def _chunks(keys: Sequence[_Key]) -> list[Sequence[_Key]]:
    return [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]

"""The cells of a store: committed in one transaction each with scores, provenance and items, and read back."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import sqlalchemy as sa

from potentia.errors import StoreError
from potentia.files import atomic_folder
from potentia.store import schema as s
from potentia.store.adapters import Adapters
from potentia.store.cell_queries import (
    CELL_COLUMNS,
    METRIC_NAMES,
    ORIGIN_NAMES,
    SCORE_COLUMNS,
    StudyFilter,
    cell_conditions,
    execute_on_cells,
    score_from_columns,
)
from potentia.store.database import Database, record_columns, split_keys
from potentia.store.error_words import errors_in_words
from potentia.store.events import append_event
from potentia.store.items import (
    ChooseItems,
    items_path,
    load_items,
    looks_whole,
    publish_items,
    stage_items,
)
from potentia.store.opening import read_recorded_items_folder
from potentia.store.records import CellRecord
from potentia.store.waiting import PatientPart
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import ProbeResult

_ANY_FAILURE = sa.select(s.failures.c.study).limit(1)


class Cells(PatientPart):
    """The finished cells. The first writer of a key wins; what is committed is whole and stays."""

    def __init__(self, database: Database, adapters: Adapters) -> None:
        self.database: Database = database
        self._adapters = adapters

    # --- reading ------------------------------------------------------------------------------------------------------

    def has(self, cell_key: str) -> bool:
        """Say whether this cell is committed."""
        return bool(self.read_names([cell_key]))

    def get(self, cell_key: str) -> CellRecord | None:
        """Return one cell, or None where it is not committed."""
        return next(iter(self.read(key=cell_key)), None)

    def read(
        self,
        *,
        study: StudyFilter = None,
        limit: int | None = None,
        offset: int = 0,
        **equal: str | None,
    ) -> list[CellRecord]:
        """Return committed cells in the order of their making; ``limit`` and ``offset`` take a page of them.

        ``protocol``, ``model``, ``task`` and ``key`` narrow them.
        """
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study, **equal)
            if limit is not None:
                page = sa.select(s.cells.c.id).where(*conditions).order_by(s.cells.c.id)
                numbers = connection.execute(page.limit(limit).offset(offset)).scalars().all()
                conditions = [s.cells.c.id.in_(numbers)]
            body = sa.select(
                s.cells.c.id,
                *(s.cells.c[name] for name in CELL_COLUMNS),
                *record_columns(s.provenances, CellRecord),
            )
            body = body.join_from(s.cells, s.provenances).where(*conditions)
            rows = [dict(row) for row in connection.execute(body.order_by(s.cells.c.id)).mappings()]
            scores_by_cell: dict[int, dict[str, Score]] = {row["id"]: {} for row in rows}
            query = sa.select(s.scores.c.cell, s.scores.c.name, *SCORE_COLUMNS)
            query = query.join_from(s.scores, s.cells).where(*conditions)
            for number, name, *columns in connection.execute(query.order_by(s.scores.c.name)):
                scores_by_cell[number][name] = score_from_columns(*columns)
        return [CellRecord(scores=scores_by_cell[row.pop("id")], **row) for row in rows]

    def read_names(self, cell_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return, for those of the keys that are committed, the model and task that the cell is named after."""
        c = s.cells.c
        rows = self._select_by_key(cell_keys, c.key, c.model, c.task)
        return {key: (model, task) for key, model, task in rows}

    def read_models_by_key(self, study: str) -> dict[str, str]:
        """Return the keys of the cells that a study has, each with its model; none where the study is not known."""
        query = sa.select(s.cells.c.key, s.cells.c.model).join_from(s.study_cells, s.cells)
        with self.database.reading() as connection:
            rows = connection.execute(query.where(s.study_cells.c.study == study)).all()
            return dict(rows)

    def read_items(self, cell_key: str, choose: ChooseItems | None = None) -> list[ItemOutcome]:
        """Return the per-item outcomes of a cell, of all or at the places that are chosen by their values.

        An imported cell has none.
        """
        counts = self._select_by_key([cell_key], s.cells.c.item_count)
        if not counts:
            raise StoreError(f"no cell {cell_key!r} in this store", where=self.database.where)
        if counts[0][0] is None:
            return []
        return load_items(self.database.items_folder, cell_key, choose)

    def find_damaged(self, cell_keys: Sequence[str]) -> list[str]:
        """Return those of the committed cells whose items are missing or cut short."""
        rows = self._select_by_key(cell_keys, s.cells.c.key, s.cells.c.item_count)
        with_items = [key for key, count in rows if count is not None]
        return [key for key in with_items if not looks_whole(self.database.items_folder, key)]

    def count(self, *, study: StudyFilter = None, **equal: str | None) -> int:
        """Return how many cells are committed, without reading them."""
        return int(self._aggregate(sa.func.count(s.cells.c.id), study=study, **equal))

    def sum_seconds(self, *, study: StudyFilter = None) -> float:
        """Return how long the committed cells took to compute, all together."""
        total = sa.func.coalesce(sa.func.sum(s.cells.c.seconds), 0.0)
        return self._aggregate(total, study=study)

    def _aggregate(self, expression: Any, *, study: StudyFilter, **equal: str | None) -> float:
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study, **equal)
            query = sa.select(expression).where(*conditions)
            return float(connection.execute(query).scalar_one())

    def _select_by_key(self, cell_keys: Sequence[str], *columns: Any) -> list[Any]:
        """Return columns of the cells with these keys that are committed."""
        rows: list[Any] = []
        with self.database.reading() as connection:
            for some_keys in split_keys(cell_keys):
                query = sa.select(*columns).where(s.cells.c.key.in_(some_keys))
                rows += connection.execute(query)
        return rows

    # --- writing ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        cell: CellRecord,
        *,
        items: Sequence[ItemOutcome] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> bool:
        """Commit one cell with scores, provenance and items, and an ``event`` of the kind "cell", wholly or not at all.

        Returns False when the key was committed before: the first writer wins, the cell is only added to the study, and
        nothing is logged. A cell whose items are missing or cut short is replaced, in this one transaction.
        """
        _check_score(cell)
        folder = self.database.items_folder
        staged = None
        item_count = None
        if items is not None:
            item_count = len(items)
            with errors_in_words(self.database.where):
                staged = stage_items(folder, cell.key, items)
        try:
            with self.database.writing() as connection:
                is_new = bool(self._insert(connection, [cell], item_count))
                if not is_new and staged is not None and not looks_whole(folder, cell.key):
                    self._replace(connection, cell, item_count)
                    is_new = True
                if is_new and staged is not None:
                    publish_items(folder, cell.key, staged)
                if is_new and event is not None:
                    # last: on PostgreSQL writers of events wait for one another
                    append_event(self.database, connection, cell.study, "cell", event)
            return is_new
        finally:
            if staged is not None:
                staged.unlink(missing_ok=True)

    def commit_many(self, cells: Sequence[CellRecord]) -> int:
        """Commit a batch of cells without items in one transaction; returns how many were new."""
        for cell in cells:
            _check_score(cell)
        with self.database.writing() as connection:
            return self._insert(connection, cells)

    def copy(self, source: str, key: str, *, study: str, model: str, task: str) -> None:
        """Commit a copy of a cell, with its items and adapter, under another key and names; one that is there stays."""
        cell = self.get(source)
        if cell is None or self.has(key):
            return
        adapter = self._adapters.find(source)
        if adapter is not None:
            target = self.database.adapters_folder / key
            with errors_in_words(self.database.where), atomic_folder(target, replace=True) as draft:
                shutil.copytree(adapter, draft, dirs_exist_ok=True)
        copy = replace(
            cell, key=key, study=study, model=model, task=task, probe=self._read_probe(source)
        )
        self.commit(copy, items=self.read_items(source) or None)

    def _read_probe(self, cell_key: str) -> ProbeResult | None:
        query = sa.select(s.probes.c.probe).join_from(s.cells, s.probes)
        rows = execute_on_cells(self.database, query, key=cell_key)
        return rows[-1][0] if rows else None

    def adopt(self, study: str, cell_keys: Iterable[str]) -> int:
        """Add committed cells of other studies to this one, which asks for the same keys; returns how many it has."""
        keys = list(dict.fromkeys(cell_keys))
        with self.database.writing() as connection:
            study_key = self.database.find_study_key(connection, study)
            numbers = _read_numbers(connection, keys)
            self._link_and_clear_failures(
                connection, {(study_key, number) for number in numbers.values()}
            )
            return len(numbers)

    def release(self, study: str, cell_keys: Sequence[str]) -> None:
        """Take cells out of a study that does not ask for them any more; they stay in the store."""
        c = s.study_cells.c
        with self.database.writing() as connection:
            numbers = list(_read_numbers(connection, cell_keys).values())
            for some_numbers in split_keys(numbers):
                links = s.study_cells.delete().where(c.study == study, c.cell.in_(some_numbers))
                connection.execute(links)

    def discard(self, cell_keys: Sequence[str]) -> None:
        """Forget cells wholly, with items and adapters: whoever asks for them computes them anew."""
        with self.database.writing() as connection:
            for some_keys in split_keys(cell_keys):
                connection.execute(s.cells.delete().where(s.cells.c.key.in_(some_keys)))
        for key in cell_keys:
            items_path(self.database.items_folder, key).unlink(missing_ok=True)
            self._adapters.delete(key)

    def refuse_wrong_items_folder(self, cell_keys: Sequence[str]) -> None:
        """Refuse to go on where the items of these cells are all missing and their folder is empty: it is another."""
        folder = self.database.items_folder
        if any(items_path(folder, key).exists() for key in cell_keys):
            return
        if next(folder.glob("*/*.parquet"), None) is not None:
            return
        with self.database.reading() as connection:
            recorded = read_recorded_items_folder(connection)
        hint = "bring the folder back, or name it: ?items=FOLDER in the URL; to compute anew: potentia store discard"
        if recorded not in (None, folder):
            hint = f"the store was made with its items in {recorded}: leave out items=, or name that folder"
        message = f"the items of all {len(cell_keys)} finished cells are missing in {folder}"
        raise StoreError(message, where=self.database.where, hint=hint)

    # --- within a transaction -----------------------------------------------------------------------------------------

    def _insert(
        self, connection: sa.Connection, cells: Sequence[CellRecord], item_count: int | None = None
    ) -> int:
        """Write the cells whose keys are free, and add all to their studies; returns how many were new."""
        study_keys = {
            name: self.database.find_study_key(connection, name)
            for name in {cell.study for cell in cells}
        }
        first_of_key: dict[str, CellRecord] = {}
        for cell in cells:
            first_of_key.setdefault(cell.key, cell)
        rows = []
        for cell in first_of_key.values():
            row = {name: getattr(cell, name) for name in CELL_COLUMNS}
            row |= {"study": study_keys[cell.study], "item_count": item_count}
            row |= dict(zip(ORIGIN_NAMES, astuple(cell.score.origin), strict=True))
            rows.append(row)
        new_numbers: dict[str, int] = {}
        if rows:
            insert = self.database.insert_into(s.cells).on_conflict_do_nothing()
            claim = insert.returning(s.cells.c.key, s.cells.c.id)
            new_numbers = dict(connection.execute(claim, rows).all())
        _insert_contents(connection, {n: first_of_key[key] for key, n in new_numbers.items()})
        known_keys = [key for key in first_of_key if key not in new_numbers]
        numbers = new_numbers | _read_numbers(connection, known_keys)
        links = {(study_keys[cell.study], numbers[cell.key]) for cell in cells}
        self._link_and_clear_failures(connection, links)
        return len(new_numbers)

    def _replace(self, connection: sa.Connection, cell: CellRecord, item_count: int | None) -> None:
        """Put a cell in the place of one whose items are damaged, in every study that has it."""
        (number,) = _read_numbers(connection, [cell.key]).values()
        links = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == number)
        studies = list(connection.execute(links).scalars())
        connection.execute(s.cells.delete().where(s.cells.c.id == number))
        self._insert(connection, [cell], item_count)
        (number,) = _read_numbers(connection, [cell.key]).values()
        self._link_and_clear_failures(connection, {(study, number) for study in studies})

    def _link_and_clear_failures(
        self, connection: sa.Connection, links: Collection[tuple[str, int]]
    ) -> None:
        """Add cells (by number) to studies (by key), and forget the failures that they heal."""
        if not links:
            return
        rows = [{"study": study, "cell": number} for study, number in sorted(links)]
        insert = self.database.insert_into(s.study_cells).on_conflict_do_nothing()
        connection.execute(insert, rows)
        if connection.execute(_ANY_FAILURE).first() is None:
            return
        f = s.failures.c
        c = s.cells.c
        for some_numbers in split_keys([number for _, number in links]):
            studies_of_cell = sa.select(s.study_cells.c.study).where(s.study_cells.c.cell == c.id)
            has_same_names = sa.and_(
                f.model == c.model,
                f.task == c.task,
                f.protocol == c.protocol,
                f.study.in_(studies_of_cell),
            )
            is_same = sa.or_(f.key == c.key, has_same_names)
            is_healed = sa.exists().where(c.id.in_(some_numbers), is_same)
            connection.execute(s.failures.delete().where(is_healed))


def _read_numbers(connection: sa.Connection, cell_keys: Sequence[str]) -> dict[str, int]:
    """Return the row numbers of those of the cells that are committed."""
    numbers: dict[str, int] = {}
    for some_keys in split_keys(cell_keys):
        query = sa.select(s.cells.c.key, s.cells.c.id).where(s.cells.c.key.in_(some_keys))
        numbers.update(connection.execute(query).all())
    return numbers


def _insert_contents(connection: sa.Connection, cells: Mapping[int, CellRecord]) -> None:
    """Write what belongs to new cells, by their numbers: scores, provenance, probes."""
    scores: list[dict[str, Any]] = []
    provenances: list[dict[str, Any]] = []
    probes: list[dict[str, Any]] = []
    for number, cell in cells.items():
        scores += _score_rows(number, cell)
        provenances.append(
            {"cell": number, "provenance": cell.provenance, "selection": cell.selection}
        )
        if cell.probe is not None:
            probes.append({"cell": number, "probe": cell.probe})
    for table, rows in ((s.scores, scores), (s.provenances, provenances), (s.probes, probes)):
        if rows:
            connection.execute(table.insert(), rows)


def _check_score(cell: CellRecord) -> None:
    """Refuse a cell without a finite main score."""
    name = f"{cell.model} × {cell.task} × {cell.protocol}"
    if cell.metric not in cell.scores:
        raise StoreError(f"the main metric {cell.metric!r} is not among the scores", where=name)
    if not math.isfinite(cell.scores[cell.metric].value):
        raise StoreError(
            "the main score is not a finite number",
            where=name,
            hint="record the cell as failed instead",
        )


def _score_rows(number: int, cell: CellRecord) -> list[dict[str, Any]]:
    """Return the rows of a cell's scores."""
    rows = []
    for name, score in cell.scores.items():
        row = {
            "cell": number,
            "name": name,
            "value": _null_for_nan(score.value),
            "stderr": _null_for_nan(score.stderr),
            "n": int(score.n),
            "seeds": score.seeds or None,
        }
        row |= dict(zip(METRIC_NAMES, astuple(score.metric), strict=True))
        rows.append(row)
    return rows


def _null_for_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)

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
from potentia.store import schema
from potentia.store.adapters import Adapters
from potentia.store.cell_queries import (
    CELL_COLUMN_NAMES,
    METRIC_COLUMN_NAMES,
    ORIGIN_COLUMN_NAMES,
    SCORE_COLUMNS,
    StudyFilter,
    cell_conditions,
    execute_on_cells,
    score_from_columns,
)
from potentia.store.database import Database, record_columns, split_keys
from potentia.store.error_translation import translated_errors
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

_ANY_FAILURE = sa.select(schema.failures.c.study).limit(1)


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
        **column_values: str | None,
    ) -> list[CellRecord]:
        """Return committed cells in the order of their making; ``limit`` and ``offset`` take a page of them.

        ``protocol``, ``model``, ``task`` and ``key`` narrow them.
        """
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study, **column_values)
            if limit is not None:
                page_query = (
                    sa.select(schema.cells.c.id).where(*conditions).order_by(schema.cells.c.id)
                )
                cell_ids = (
                    connection.execute(page_query.limit(limit).offset(offset)).scalars().all()
                )
                conditions = [schema.cells.c.id.in_(cell_ids)]
            cell_query = sa.select(
                schema.cells.c.id,
                *(schema.cells.c[column_name] for column_name in CELL_COLUMN_NAMES),
                *record_columns(schema.provenances, CellRecord),
            )
            cell_query = cell_query.join_from(schema.cells, schema.provenances).where(*conditions)
            rows = [
                dict(row)
                for row in connection.execute(cell_query.order_by(schema.cells.c.id)).mappings()
            ]
            scores_by_cell: dict[int, dict[str, Score]] = {row["id"]: {} for row in rows}
            score_query = sa.select(schema.scores.c.cell, schema.scores.c.name, *SCORE_COLUMNS)
            score_query = score_query.join_from(schema.scores, schema.cells).where(*conditions)
            for cell_id, column_name, *columns in connection.execute(
                score_query.order_by(schema.scores.c.name)
            ):
                scores_by_cell[cell_id][column_name] = score_from_columns(*columns)
        return [CellRecord(scores=scores_by_cell[row.pop("id")], **row) for row in rows]

    def read_names(self, cell_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return the model and task of each stored cell by its key; keys that are not stored are left out."""
        cell_columns = schema.cells.c
        rows = self._select_by_key(
            cell_keys, cell_columns.key, cell_columns.model, cell_columns.task
        )
        return {cell_key: (model, task) for cell_key, model, task in rows}

    def read_models_by_key(self, study: str) -> dict[str, str]:
        """Return the keys of the cells that a study has, each with its model; none where the study is not known."""
        query = sa.select(schema.cells.c.key, schema.cells.c.model).join_from(
            schema.study_cells, schema.cells
        )
        with self.database.reading() as connection:
            rows = connection.execute(query.where(schema.study_cells.c.study == study)).all()
            return dict(rows)

    def read_items(self, cell_key: str, choose: ChooseItems | None = None) -> list[ItemOutcome]:
        """Return the per-item outcomes of a cell, of all or at the places that are chosen by their values.

        An imported cell has none.
        """
        counts = self._select_by_key([cell_key], schema.cells.c.item_count)
        if not counts:
            raise StoreError(f"no result {cell_key!r} in this store", where=self.database.where)
        if counts[0][0] is None:
            return []
        return load_items(self.database.items_folder, cell_key, choose)

    def find_damaged(self, cell_keys: Sequence[str]) -> list[str]:
        """Return those of the committed cells whose items are missing or cut short."""
        rows = self._select_by_key(cell_keys, schema.cells.c.key, schema.cells.c.item_count)
        with_items = [cell_key for cell_key, item_count in rows if item_count is not None]
        return [
            cell_key
            for cell_key in with_items
            if not looks_whole(self.database.items_folder, cell_key)
        ]

    def count(self, *, study: StudyFilter = None, **column_values: str | None) -> int:
        """Return how many cells are committed, without reading them."""
        return int(self._aggregate(sa.func.count(schema.cells.c.id), study=study, **column_values))

    def sum_seconds(self, *, study: StudyFilter = None) -> float:
        """Return how long the committed cells took to compute, all together."""
        total_seconds = sa.func.coalesce(sa.func.sum(schema.cells.c.seconds), 0.0)
        return self._aggregate(total_seconds, study=study)

    def _aggregate(
        self, expression: sa.ColumnElement[Any], *, study: StudyFilter, **column_values: str | None
    ) -> float:
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study, **column_values)
            query = sa.select(expression).where(*conditions)
            return float(connection.execute(query).scalar_one())

    def _select_by_key(
        self, cell_keys: Sequence[str], *columns: sa.Column[Any]
    ) -> list[sa.Row[*tuple[Any, ...]]]:
        """Return columns of the cells with these keys that are committed."""
        rows: list[sa.Row[*tuple[Any, ...]]] = []
        with self.database.reading() as connection:
            for some_keys in split_keys(cell_keys):
                query = sa.select(*columns).where(schema.cells.c.key.in_(some_keys))
                rows += connection.execute(query)
        return rows

    # --- writing ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        cell: CellRecord,
        *,
        items: Sequence[ItemOutcome] | None = None,
        event: Mapping[str, object] | None = None,
    ) -> bool:
        """Commit one cell with scores, provenance and items, and an ``event`` of the kind "cell", wholly or not at all.

        Returns whether the cell was written. A key that was committed before keeps its first values: the cell is only
        added to the study, nothing is logged, and the answer is False. With ``items``, a cell whose items are missing
        or cut short is replaced in this one transaction, and the answer is True.
        """
        _check_score(cell)
        items_folder = self.database.items_folder
        staged_file = None
        item_count = None
        if items is not None:
            item_count = len(items)
            with translated_errors(self.database.where):
                staged_file = stage_items(items_folder, cell.key, items)
        try:
            with self.database.writing() as connection:
                is_written = bool(self._insert(connection, [cell], item_count))
                if (
                    not is_written
                    and staged_file is not None
                    and not looks_whole(items_folder, cell.key)
                ):
                    self._replace(connection, cell, item_count)
                    is_written = True
                if is_written and staged_file is not None:
                    publish_items(items_folder, cell.key, staged_file)
                if is_written and event is not None:
                    # last: on PostgreSQL writers of events wait for one another
                    append_event(self.database, connection, cell.study, "cell", event)
            return is_written
        finally:
            if staged_file is not None:
                staged_file.unlink(missing_ok=True)

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
            adapter_folder = self.database.adapters_folder / key
            with (
                translated_errors(self.database.where),
                atomic_folder(adapter_folder, replace=True) as draft_folder,
            ):
                shutil.copytree(adapter, draft_folder, dirs_exist_ok=True)
        copied_cell = replace(
            cell, key=key, study=study, model=model, task=task, probe=self._read_probe(source)
        )
        self.commit(copied_cell, items=self.read_items(source) or None)

    def _read_probe(self, cell_key: str) -> ProbeResult | None:
        query = sa.select(schema.probes.c.probe).join_from(schema.cells, schema.probes)
        rows = execute_on_cells(self.database, query, key=cell_key)
        return rows[-1][0] if rows else None

    def adopt(self, study: str, cell_keys: Iterable[str]) -> int:
        """Add committed cells of other studies to this one, which asks for the same keys; returns how many it has."""
        distinct_keys = list(dict.fromkeys(cell_keys))
        with self.database.writing() as connection:
            study_key = self.database.find_study_key(connection, study)
            cell_ids = _read_cell_ids(connection, distinct_keys)
            self._link_and_clear_failures(
                connection, {(study_key, cell_id) for cell_id in cell_ids.values()}
            )
            return len(cell_ids)

    def release(self, study: str, cell_keys: Sequence[str]) -> None:
        """Take cells out of a study that does not ask for them any more; they stay in the store."""
        link_columns = schema.study_cells.c
        with self.database.writing() as connection:
            cell_ids = list(_read_cell_ids(connection, cell_keys).values())
            for some_ids in split_keys(cell_ids):
                deletion = schema.study_cells.delete().where(
                    link_columns.study == study, link_columns.cell.in_(some_ids)
                )
                connection.execute(deletion)

    def discard(self, cell_keys: Sequence[str]) -> None:
        """Forget cells wholly, with items and adapters: whoever asks for them computes them anew."""
        with self.database.writing() as connection:
            for some_keys in split_keys(cell_keys):
                connection.execute(schema.cells.delete().where(schema.cells.c.key.in_(some_keys)))
        for cell_key in cell_keys:
            items_path(self.database.items_folder, cell_key).unlink(missing_ok=True)
            self._adapters.delete(cell_key)

    def refuse_wrong_items_folder(self, cell_keys: Sequence[str]) -> None:
        """Refuse to go on where the files of all these cells are missing: the store was given another, empty folder."""
        folder = self.database.items_folder
        if any(items_path(folder, cell_key).exists() for cell_key in cell_keys):
            return
        if next(folder.glob("*/*.parquet"), None) is not None:
            return
        with self.database.reading() as connection:
            recorded_folder = read_recorded_items_folder(connection)
        hint = "bring the folder back, or name it: ?items=FOLDER in the URL; to compute again: potentia store discard"
        if recorded_folder not in (None, folder):
            hint = f"the store keeps its examples in {recorded_folder}: leave out items=, or name that folder"
        message = f"the examples of all {len(cell_keys)} finished results are missing in {folder}"
        raise StoreError(message, where=self.database.where, hint=hint)

    # --- within a transaction -----------------------------------------------------------------------------------------

    def _insert(
        self, connection: sa.Connection, cells: Sequence[CellRecord], item_count: int | None = None
    ) -> int:
        """Write the cells whose keys are free, and add all to their studies; returns how many were new."""
        study_keys = {}
        for study_name in {cell.study for cell in cells}:
            study_keys[study_name] = self.database.find_study_key(connection, study_name)
        first_of_key: dict[str, CellRecord] = {}
        for cell in cells:
            first_of_key.setdefault(cell.key, cell)
        rows = []
        for cell in first_of_key.values():
            row = {column_name: getattr(cell, column_name) for column_name in CELL_COLUMN_NAMES}
            row |= {"study": study_keys[cell.study], "item_count": item_count}
            row |= dict(zip(ORIGIN_COLUMN_NAMES, astuple(cell.score.origin), strict=True))
            rows.append(row)
        new_ids: dict[str, int] = {}
        if rows:
            insert = self.database.insert_into(schema.cells).on_conflict_do_nothing()
            insert_returning = insert.returning(schema.cells.c.key, schema.cells.c.id)
            new_ids = dict(connection.execute(insert_returning, rows).all())
        _insert_contents(
            connection, {cell_id: first_of_key[cell_key] for cell_key, cell_id in new_ids.items()}
        )
        committed_keys = [cell_key for cell_key in first_of_key if cell_key not in new_ids]
        ids_by_key = new_ids | _read_cell_ids(connection, committed_keys)
        links = {(study_keys[cell.study], ids_by_key[cell.key]) for cell in cells}
        self._link_and_clear_failures(connection, links)
        return len(new_ids)

    def _replace(self, connection: sa.Connection, cell: CellRecord, item_count: int | None) -> None:
        """Put a cell in the place of one whose items are damaged, in every study that has it."""
        (cell_id,) = _read_cell_ids(connection, [cell.key]).values()
        study_query = sa.select(schema.study_cells.c.study).where(
            schema.study_cells.c.cell == cell_id
        )
        studies = list(connection.execute(study_query).scalars())
        connection.execute(schema.cells.delete().where(schema.cells.c.id == cell_id))
        self._insert(connection, [cell], item_count)
        (cell_id,) = _read_cell_ids(connection, [cell.key]).values()
        self._link_and_clear_failures(connection, {(study, cell_id) for study in studies})

    def _link_and_clear_failures(
        self, connection: sa.Connection, links: Collection[tuple[str, int]]
    ) -> None:
        """Add cells (by database id) to studies (by key), and forget the failures that they heal."""
        if not links:
            return
        rows = [{"study": study, "cell": cell_id} for study, cell_id in sorted(links)]
        insert = self.database.insert_into(schema.study_cells).on_conflict_do_nothing()
        connection.execute(insert, rows)
        if connection.execute(_ANY_FAILURE).first() is None:
            return
        failure_columns = schema.failures.c
        cell_columns = schema.cells.c
        for some_ids in split_keys([cell_id for _, cell_id in links]):
            studies_of_cell = sa.select(schema.study_cells.c.study).where(
                schema.study_cells.c.cell == cell_columns.id
            )
            has_same_names = sa.and_(
                failure_columns.model == cell_columns.model,
                failure_columns.task == cell_columns.task,
                failure_columns.protocol == cell_columns.protocol,
                failure_columns.study.in_(studies_of_cell),
            )
            is_same = sa.or_(failure_columns.key == cell_columns.key, has_same_names)
            is_healed = sa.exists().where(cell_columns.id.in_(some_ids), is_same)
            connection.execute(schema.failures.delete().where(is_healed))


def _read_cell_ids(connection: sa.Connection, cell_keys: Sequence[str]) -> dict[str, int]:
    """Return the database ids of those of the cells that are committed."""
    ids_by_key: dict[str, int] = {}
    for some_keys in split_keys(cell_keys):
        query = sa.select(schema.cells.c.key, schema.cells.c.id).where(
            schema.cells.c.key.in_(some_keys)
        )
        ids_by_key.update(connection.execute(query).all())
    return ids_by_key


def _insert_contents(connection: sa.Connection, cells_by_id: Mapping[int, CellRecord]) -> None:
    """Write what belongs to new cells, by their database ids: scores, provenance, probes."""
    score_rows: list[dict[str, object]] = []
    provenance_rows: list[dict[str, object]] = []
    probe_rows: list[dict[str, object]] = []
    for cell_id, cell in cells_by_id.items():
        score_rows += _score_rows(cell_id, cell)
        provenance_rows.append(
            {"cell": cell_id, "provenance": cell.provenance, "selection": cell.selection}
        )
        if cell.probe is not None:
            probe_rows.append({"cell": cell_id, "probe": cell.probe})
    for table, table_rows in (
        (schema.scores, score_rows),
        (schema.provenances, provenance_rows),
        (schema.probes, probe_rows),
    ):
        if table_rows:
            connection.execute(table.insert(), table_rows)


def _check_score(cell: CellRecord) -> None:
    """Refuse a cell without a finite main score."""
    cell_name = f"{cell.model} × {cell.task} × {cell.protocol}"
    if cell.metric not in cell.scores:
        raise StoreError(
            f"the main metric {cell.metric!r} is not among the scores", where=cell_name
        )
    if not math.isfinite(cell.scores[cell.metric].value):
        raise StoreError(
            "the main score is not a finite number",
            where=cell_name,
            hint="record the result as failed instead",
        )


def _score_rows(cell_id: int, cell: CellRecord) -> list[dict[str, object]]:
    """Return the rows of a cell's scores."""
    rows = []
    for metric_name, score in cell.scores.items():
        row = {
            "cell": cell_id,
            "name": metric_name,
            "value": _null_for_nan(score.value),
            "stderr": _null_for_nan(score.stderr),
            "n": int(score.n),
            "seeds": score.seeds or None,
        }
        row |= dict(zip(METRIC_COLUMN_NAMES, astuple(score.metric), strict=True))
        rows.append(row)
    return rows


def _null_for_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)

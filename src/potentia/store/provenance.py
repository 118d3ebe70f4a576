"""How the cells of a store were made, task by task.

What validation chose, which prompts and examples were cut, and what a short fine-tuning (the probe) found left
to learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from potentia.store import schema
from potentia.store.cell_queries import StudyFilter, cell_conditions, execute_on_cells
from potentia.store.database import Database
from potentia.store.records import ChoiceRecord
from potentia.store.waiting import PatientPart
from potentia.values.provenance import Provenance
from potentia.values.selection import CutExamples, CutPrompts, ProbeResult, Selection

_SELECTION_TEXT = sa.type_coerce(schema.provenances.c.selection, sa.Text).label("selection")


class CellNames(NamedTuple):
    """What a cell is of."""

    protocol: str
    task: str
    model: str


class CellProvenance(PatientPart):
    """The provenance, selections and probes of the committed cells."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def read_choices(
        self, *, study: StudyFilter = None, protocol: str | None = None
    ) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell, without its scores, in the order of their making."""
        cell_columns = schema.cells.c
        query = sa.select(
            cell_columns.key,
            cell_columns.model,
            cell_columns.task,
            cell_columns.protocol,
            cell_columns.metric,
            _SELECTION_TEXT,
        )
        query = query.join_from(schema.cells, schema.provenances)
        rows = execute_on_cells(self.database, query, study=study, protocol=protocol)
        return [ChoiceRecord(*row) for row in rows]

    def read_cut_prompts(
        self, *, study: StudyFilter = None
    ) -> dict[tuple[str, str], dict[str, CutPrompts]]:
        """Return, by protocol and task, the models whose prompts were cut: how many, of how many requests."""
        cut_by_task: dict[tuple[str, str], dict[str, CutPrompts]] = {}
        for cell, selection in self._read_selections_that_name("cut_prompts", study):
            if selection.cut_prompts is not None:
                cut_by_model = cut_by_task.setdefault((cell.protocol, cell.task), {})
                cut_by_model[cell.model] = selection.cut_prompts
        return cut_by_task

    def read_cut_examples(
        self, *, study: StudyFilter = None
    ) -> dict[tuple[str, str], dict[str, CutExamples]]:
        """Return, by protocol and task, the models whose training examples were cut: how many, of how many."""
        cut_by_task: dict[tuple[str, str], dict[str, CutExamples]] = {}
        for cell, selection in self._read_selections_that_name("cut_examples", study):
            if selection.cut_examples is not None:
                cut_by_model = cut_by_task.setdefault((cell.protocol, cell.task), {})
                cut_by_model[cell.model] = selection.cut_examples
        return cut_by_task

    def read_unknown_tokens(self, *, study: StudyFilter = None) -> dict[tuple[str, str], float]:
        """Return, by task and model, a high share of tokens that the model's tokenizer does not know."""
        unknown_tokens: dict[tuple[str, str], float] = {}
        for cell, selection in self._read_selections_that_name("unknown_tokens", study):
            if selection.unknown_tokens:
                unknown_tokens[cell.task, cell.model] = selection.unknown_tokens
        return unknown_tokens

    def _read_selections_that_name(
        self, field_name: str, study: StudyFilter
    ) -> Iterator[tuple[CellNames, Selection]]:
        """Yield the cells whose selection may have something in this field, and some that have the word elsewhere.

        Only these are read: defaults are not stored. The caller looks at the field itself.
        """
        cell_columns = schema.cells.c
        query = sa.select(
            cell_columns.protocol,
            cell_columns.task,
            cell_columns.model,
            schema.provenances.c.selection,
        )
        query = query.join_from(schema.cells, schema.provenances)
        query = query.where(_SELECTION_TEXT.contains(f'"{field_name}"'))
        for protocol, task, model, selection in execute_on_cells(self.database, query, study=study):
            yield CellNames(protocol, task, model), selection

    def read_probes(self, *, study: StudyFilter = None) -> dict[tuple[str, str], ProbeResult]:
        """Return what the probe of every model and task found, the newest of several; none where none was made."""
        query = sa.select(schema.cells.c.model, schema.cells.c.task, schema.probes.c.probe)
        rows = execute_on_cells(
            self.database, query.join_from(schema.cells, schema.probes), study=study
        )
        return {(model, task): probe for model, task, probe in rows}

    def read_by_task(self, *, study: StudyFilter = None) -> dict[str, Provenance]:
        """Return the provenance of the first stored cell of every task.

        Use it only for what all cells of a task share: the split of its examples, and its chance level.
        """
        cell_columns = schema.cells.c
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study)
            first_cells = (
                sa.select(sa.func.min(cell_columns.id))
                .where(*conditions)
                .group_by(cell_columns.task)
            )
            query = sa.select(cell_columns.task, schema.provenances.c.provenance)
            query = query.join_from(schema.cells, schema.provenances).where(
                cell_columns.id.in_(first_cells)
            )
            rows = connection.execute(query).all()
            return dict(rows)

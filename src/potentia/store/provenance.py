"""How the cells of a store were made: what validation chose, what was cut, what a probe found, task by task."""

from __future__ import annotations

import sqlalchemy as sa

from potentia.store import schema as s
from potentia.store.cell_queries import StudyFilter, cell_conditions, execute_on_cells
from potentia.store.database import Database
from potentia.store.records import ChoiceRecord
from potentia.store.waiting import PatientPart
from potentia.values.provenance import Provenance
from potentia.values.selection import CutExamples, CutPrompts, ProbeResult

_SELECTION_TEXT = sa.type_coerce(s.provenances.c.selection, sa.Text).label("selection")


class CellProvenance(PatientPart):
    """The provenance, selections and probes of the committed cells."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def read_choices(
        self, *, study: StudyFilter = None, protocol: str | None = None
    ) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell, without its scores, in the order of their making."""
        c = s.cells.c
        query = sa.select(c.key, c.model, c.task, c.protocol, c.metric, _SELECTION_TEXT)
        query = query.join_from(s.cells, s.provenances)
        rows = execute_on_cells(self.database, query, study=study, protocol=protocol)
        return [ChoiceRecord(*row) for row in rows]

    def read_cut_prompts(
        self, *, study: StudyFilter = None
    ) -> dict[tuple[str, str], dict[str, CutPrompts]]:
        """Return, by protocol and task, the models whose prompts were cut: how many, of how many requests."""
        c = s.cells.c
        query = sa.select(c.protocol, c.task, c.model, s.provenances.c.selection)
        query = query.join_from(s.cells, s.provenances)
        query = query.where(_SELECTION_TEXT.contains('"cut_prompts"'))
        cut_by_task: dict[tuple[str, str], dict[str, CutPrompts]] = {}
        for protocol, task, model, selection in execute_on_cells(self.database, query, study=study):
            by_model = cut_by_task.setdefault((protocol, task), {})
            by_model[model] = selection.cut_prompts
        return cut_by_task

    def read_cut_examples(
        self, *, study: StudyFilter = None
    ) -> dict[tuple[str, str], dict[str, CutExamples]]:
        """Return, by protocol and task, the models whose training examples were cut: how many, of how many."""
        c = s.cells.c
        query = sa.select(c.protocol, c.task, c.model, s.provenances.c.selection)
        query = query.join_from(s.cells, s.provenances)
        query = query.where(_SELECTION_TEXT.contains('"cut_examples"'))
        cut_by_task: dict[tuple[str, str], dict[str, CutExamples]] = {}
        for protocol, task, model, selection in execute_on_cells(self.database, query, study=study):
            if selection.cut_examples is not None:
                by_model = cut_by_task.setdefault((protocol, task), {})
                by_model[model] = selection.cut_examples
        return cut_by_task

    def read_unknown_tokens(self, *, study: StudyFilter = None) -> dict[tuple[str, str], float]:
        """Return, by task and model, a high share of tokens that the model's tokenizer does not know."""
        c = s.cells.c
        query = sa.select(c.task, c.model, s.provenances.c.selection)
        query = query.join_from(s.cells, s.provenances)
        query = query.where(_SELECTION_TEXT.contains('"unknown_tokens"'))
        rows = execute_on_cells(self.database, query, study=study)
        return {(task, model): selection.unknown_tokens for task, model, selection in rows}

    def read_probes(self, *, study: StudyFilter = None) -> dict[tuple[str, str], ProbeResult]:
        """Return what the probe of every model and task found, the newest of several; none where none was made."""
        query = sa.select(s.cells.c.model, s.cells.c.task, s.probes.c.probe)
        rows = execute_on_cells(self.database, query.join_from(s.cells, s.probes), study=study)
        return {(model, task): probe for model, task, probe in rows}

    def read_by_task(self, *, study: StudyFilter = None) -> dict[str, Provenance]:
        """Return the provenance of the first cell of every task: how its documents were divided is the same in all."""
        c = s.cells.c
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study)
            first = sa.select(sa.func.min(c.id)).where(*conditions).group_by(c.task)
            query = sa.select(c.task, s.provenances.c.provenance)
            query = query.join_from(s.cells, s.provenances).where(c.id.in_(first))
            rows = connection.execute(query).all()
            return dict(rows)

"""What the sources hold and know of their models and tasks, and what every analysis takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.errors import InputError, PotentiaError
from potentia.facts import Background, Benchmark, ModelFacts, ModelTable, read_facts
from potentia.facts import models as known_models
from potentia.formats import TableLayout
from potentia.store import CellRecord, ChoiceRecord, FailureRecord, LaneRecord, Store, StudyRecord
from potentia.study import EXPOSED, ModelSpec, Study
from potentia.values.protocol import Protocol, TaskName, in_order, main_protocol
from potentia.values.provenance import Provenance
from potentia.values.scores import ItemOutcome, Outcomes, ScoreMatrix
from potentia.values.selection import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources hold. A file of scores has no studies, cells, lanes, failures or outcomes."""

    source: str  # as a person calls it; never a password
    title: str
    scores: Mapping[Protocol, ScoreMatrix]  # from the least to the most preparation
    facts: ModelTable
    studies: tuple[StudyRecord, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know: which study this is, what was left out
    stores: tuple[
        tuple[str, tuple[str, ...]], ...
    ] = ()  # where each is, and the keys of its studies that count
    task_facts: tuple[
        Benchmark, ...
    ] = ()  # of the user's file; what the studies tell of their tasks comes before
    without_items: Mapping[Protocol, frozenset[str]] = field(
        default_factory=dict
    )  # tasks scored by another metric
    table_layout: TableLayout | None = None  # how a foreign table was read
    items_read: Mapping[Protocol, Outcomes] = field(
        default_factory=dict
    )  # of files that have items
    apart: tuple[
        Evidence, ...
    ] = ()  # other groups of sources, whose scores cannot be compared with these

    @classmethod
    def of(
        cls, scores: Mapping[str, ScoreMatrix] | ScoreMatrix, *, title: str = "scores"
    ) -> Evidence:
        """Take matrices made in Python as evidence."""
        given = {scores.protocol: scores} if isinstance(scores, ScoreMatrix) else scores
        return cls(title, title, {p: given[p] for p in in_order(given)}, known_models())

    @property
    def protocols(self) -> list[Protocol]:
        """The protocols, from the least to the most preparation."""
        return list(self.scores)

    @property
    def name(self) -> str:
        """What to call it where several stand apart: the source and, of a store, the study."""
        return (
            self.source
            if not self.studies
            else f"{self.source}: {', '.join(r.name for r in self.studies)}"
        )

    @property
    def planned(self) -> dict[Protocol, ScoreMatrix]:
        """The scores that a study plans, without those on the way (``adjust@100``)."""
        return {
            protocol: matrix for protocol, matrix in self.scores.items() if protocol.step is None
        }

    @property
    def models(self) -> list[str]:
        """Every model that has a score."""
        return list(
            dict.fromkeys(model for matrix in self.scores.values() for model in matrix.models)
        )

    @property
    def main(self) -> Protocol | None:
        """The protocol to rank by: train-before-test, else adjust, else the first."""
        return main_protocol(self.planned)

    @cached_property
    def specs(self) -> tuple[ModelSpec, ...]:
        """The models that the studies name, checkpoints expanded; imported scores name none."""
        rows = [row for study in filter(None, map(study_of, self.studies)) for row in study.rows()]
        first = {row.name: row for row in reversed(rows)}
        return tuple(first[name] for name in dict.fromkeys(row.name for row in rows))

    @cached_property
    def copies(self) -> dict[str, str]:
        """Treated copies and their originals, both with scores: told by a study, else by the copy's name."""
        there = set(self.models)
        told = {row.name: row.copy_of for row in self.specs if row.copy_of is not None}
        named = {m: m.removesuffix(EXPOSED) for m in self.models if m.endswith(EXPOSED)}
        return {
            copy: original for copy, original in (named | told).items() if {copy, original} <= there
        }

    @cached_property
    def background(self) -> Background:
        """What is known of the models and tasks, as the analyses take it."""
        measured = {
            task: metric
            for m in self.scores.values()
            for task, metric in zip(m.tasks, m.metrics, strict=True)
        }
        told = [
            Benchmark(task, chance=metric.chance)
            for task, metric in measured.items()
            if metric.chance is not None
        ]
        for store, studies in self._opened():
            told += _tasks_of(store.provenances_by_task(study=studies))
        told += [
            Benchmark(task.name, category=task.category or "", chance=task.chance)
            for study in filter(None, map(study_of, self.studies))
            for task in study.tasks
        ]
        return Background.of(self.models, table=self.facts, tasks=(*told, *self.task_facts))

    @cached_property
    def outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored item, by protocol, task, model and document."""
        found = {protocol: dict(by) for protocol, by in self.items_read.items()}
        for (protocol, task), documents in self._stored_outcomes().items():
            found.setdefault(protocol, {})[task] = max(documents.values(), key=len)
        kept: dict[Protocol, Outcomes] = {}
        for protocol, matrix in self.scores.items():
            models, tasks = (
                set(matrix.models),
                set(matrix.tasks) - self.without_items.get(protocol, frozenset()),
            )
            there = {task: by for task, by in found.get(protocol, {}).items() if task in tasks}
            kept[protocol] = {
                task: {m: v for m, v in by.items() if m in models} for task, by in there.items()
            }
        return kept

    def _stored_outcomes(
        self,
    ) -> dict[tuple[Protocol, str], dict[str, dict[str, dict[int, float]]]]:
        """Return (protocol, task) → documents → model → values. Items pair only where the documents are the same.

        Documents go by their fingerprint, or by their store where a cell does not say it.
        """
        found: dict[tuple[Protocol, str], dict[str, dict[str, dict[int, float]]]] = {}
        for store, studies in self._opened():
            for name, task, model, data, values in store.outcomes(study=studies):
                protocol, own = Protocol(name), TaskName(task)
                matrix = self.scores.get(protocol)
                # Folds test different documents of one task.
                joined = own.fold is not None and matrix is not None and own.whole in matrix.tasks
                documents = store.where if joined else data or store.where
                by = found.setdefault((protocol, own.whole if joined else task), {}).setdefault(
                    documents, {}
                )
                by[model] = {**by.get(model, {}), **values} if joined else values
        return found

    def frame(self) -> pd.DataFrame:
        """Return one row per score: protocol, model, task, metric, score, stderr, n, higher_is_better, kind, scale."""
        import pandas as pd

        rows = [
            (
                str(p),
                model,
                task,
                s.metric.name,
                s.value,
                s.stderr,
                s.n or np.nan,
                s.higher_is_better,
                s.metric.kind,
                s.metric.scale,
            )
            for p, m in self.scores.items()
            for model, task, s in m.scores()
        ]
        columns = [
            "protocol",
            "model",
            "task",
            "metric",
            "score",
            "stderr",
            "n",
            "higher_is_better",
            "kind",
            "scale",
        ]
        return pd.DataFrame(rows, columns=columns)

    def cells(self) -> list[CellRecord]:
        """Return the committed cells, in the order of their making."""
        return self._gathered(lambda store, key: store.cells(study=key), lambda cell: cell.key)

    def choices(self, protocol: Protocol) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell of a protocol: far less to read than the cells."""
        return self._gathered(
            lambda store, key: store.choices(study=key, protocol=protocol), lambda cell: cell.key
        )

    def probes(self) -> dict[tuple[str, str], ProbeResult]:
        """Return what the probes of the studies recorded, by model and task."""
        found: dict[tuple[str, str], ProbeResult] = {}
        for store, studies in self._opened():
            found |= store.probes(study=studies)
        return found

    def lanes(self, models: Sequence[str] | None = None) -> list[LaneRecord]:
        """Return the fine-tuning lanes with their curves, of these models alone where some are given."""
        return self._gathered(
            lambda store, key: store.lanes(study=key, model=models), lambda lane: lane.key
        )

    def failures(self) -> list[FailureRecord]:
        """Return the cells that failed, with the reason."""
        place = attrgetter("model", "task", "protocol", "study")
        return self._gathered(lambda store, key: store.failures(study=key), place)

    def items(self, cell: str) -> list[ItemOutcome]:
        """Return the outcomes of one cell; none where it is imported or its items are gone."""
        return next((store.items(cell) for store, _ in self._opened() if store.has(cell)), [])

    def samples(
        self, cells: Sequence[str], choose: Callable[[str, list[float]], list[int]]
    ) -> Iterator[tuple[str, list[ItemOutcome]]]:
        """Give outcomes of each cell, chosen by their values; items left behind or damaged are passed over."""
        left = list(cells)
        for store, _ in self._opened():
            mine = store.names(left)
            for key in (key for key in left if key in mine):
                with suppress(PotentiaError):
                    if outcomes := store.items(key, partial(choose, key)):
                        yield key, outcomes
            left = [key for key in left if key not in mine]

    def items_of(self, protocol: str, model: str, task: str) -> list[ItemOutcome]:
        """Return the outcomes of one cell by its names; none where no store has them."""
        for store, studies in self._opened():
            if cells := store.cells(study=studies, protocol=protocol, model=model, task=task):
                return store.items(cells[-1].key)
        return []

    def narrowed(
        self,
        *,
        protocols: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> Evidence:
        """Return the evidence of these protocols, tasks (a benchmark's name keeps all its forms) and models alone."""
        for what, wanted, known in (
            ("protocol", protocols, list(self.scores)),
            ("model", models, self.models),
        ):
            if unknown := [name for name in wanted or () if name not in known]:
                there = ", ".join(known[:8])
                raise InputError(
                    f"no {what} {unknown[0]!r} in {self.source}", hint=f"there are: {there}"
                )
        parts = {
            p: _part(self.scores[p], tasks, models) for p in in_order(protocols or self.scores)
        }
        chosen = {protocol: matrix for protocol, matrix in parts.items() if 0 not in matrix.shape}
        if self.scores and not chosen:
            there = ", ".join(
                sorted({task for matrix in self.scores.values() for task in matrix.tasks})[:12]
            )
            raise InputError(
                f"no scores of {', '.join(tasks or ())} in {self.source}",
                hint=f"there are: {there}",
            )
        return replace(self, scores=chosen)

    def _gathered(
        self, get: Callable[[Store, str], Iterable[T]], key: Callable[[T], object]
    ) -> list[T]:
        found: dict[object, T] = {}
        for store, studies in self._opened():
            for study in studies:
                for record in get(store, study):
                    found.setdefault(key(record), record)
        return list(found.values())

    def _opened(self) -> Iterator[tuple[Store, tuple[str, ...]]]:
        """Open the stores one after the other, each with the keys of its studies."""
        for where, studies in self.stores:
            with Store.open(where, readonly=True) as store:
                yield store, studies


def _part(
    matrix: ScoreMatrix, tasks: Sequence[str] | None, models: Sequence[str] | None
) -> ScoreMatrix:
    """Return what a matrix has of these tasks and models; a study may be unfinished."""
    kept = [t for t in matrix.tasks if not tasks or t in tasks or TaskName(t).base in tasks]
    return matrix.select(
        tasks=kept, models=[m for m in models or matrix.models if m in matrix.models]
    )


def study_of(record: StudyRecord) -> Study | None:
    """Return a stored study as a Study; None for imported scores, and for a study of another version."""
    try:
        return Study.model_validate(dict(record.spec))
    except ValueError:
        return None


def facts_of(
    studies: Iterable[StudyRecord], specs: Iterable[ModelSpec], given: Iterable[ModelFacts]
) -> ModelTable:
    """Return what is known of models: the shipped facts, then what the studies say, then the user's own file."""
    known = known_models()
    told: dict[str, ModelFacts] = {}
    for study in map(study_of, studies):
        if study is not None and study.facts and Path(study.facts).is_file():
            told.update({model.name: model for model in read_facts(study.facts)})
    for row in specs:
        if any((row.family, row.parameters, row.tokens, row.date, row.base_model, row.exposure)):
            told[row.name] = _told(row, told.get(row.name) or known.find(row.name))
    mine = tuple(given)
    return ModelTable((*known, *told.values(), *mine)) if told or mine else known


def study_facts(study: Study) -> ModelTable:
    """Return what is known of models, with what a study that has not run yet says of its own."""
    own = read_facts(study.facts) if study.facts and Path(study.facts).is_file() else ()
    return facts_of((), study.rows(), own)


def _tasks_of(provenances: Mapping[str, Provenance]) -> Iterator[Benchmark]:
    """Give what the studies tell of their tasks: the size of the train split before carving, the score of a guess."""
    for task, provenance in provenances.items():
        splits = provenance.task.splits
        train_size = splits.train.available
        is_carved = splits.validation.origin not in (None, "validation", "none")
        if train_size is not None and is_carved:
            train_size += splits.validation.available or 0  # carved out of train
        chance = provenance.task.chance
        yield Benchmark(TaskName(task).whole, train_size=train_size, chance=chance)


def _told(row: ModelSpec, known: ModelFacts | None) -> ModelFacts:
    """Return what is known of a model, with what its study says in its place."""
    base = known or ModelFacts(
        row.name, row.series or "", None, None, None, "base", None, None, None
    )
    said = {
        "family": row.family,
        "parameters": row.parameters,
        "size": row.parameters,
        "tokens": row.tokens,
        "date": row.date and row.date[:7],
        "kind": row.kind if row.kind != "auto" else None,
        "base_model": row.base_model,
        "exposure": row.exposure,
    }
    changed: dict[str, Any] = {name: value for name, value in said.items() if value}
    if row.parameters and row.tokens:
        changed["compute"] = None
    return replace(base, name=row.name, aliases=(), repository=None, **changed)

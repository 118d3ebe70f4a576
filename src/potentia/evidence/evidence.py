"""What the sources hold and know of their models and tasks, and what every analysis takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.errors import InputError, PotentiaError
from potentia.extras import Extra, require_extra
from potentia.facts import Background, Benchmark, ModelFacts, ModelTable, read_facts
from potentia.facts import models as known_models
from potentia.formats import TableLayout
from potentia.store import CellRecord, ChoiceRecord, FailureRecord, LaneRecord, Store, StudyRecord
from potentia.study import EXPOSED, ModelSpec, Study
from potentia.values.protocol import Protocol, TaskName, in_order, main_protocol
from potentia.values.provenance import Provenance
from potentia.values.scores import (
    ItemOutcome,
    Outcomes,
    ScoreMatrix,
    TaskOutcomes,
    clusters_of_task,
)
from potentia.values.seeds import pool_seed_variance
from potentia.values.selection import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_FRAME_COLUMNS = (
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
)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources hold. A file of scores has no studies, cells, lanes, failures or outcomes."""

    source: str  # as a person calls it; never a password
    title: str
    scores: Mapping[Protocol, ScoreMatrix]  # from the least to the most preparation
    facts: ModelTable
    studies: tuple[StudyRecord, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know: which study this is, what was left out
    # Where each store is, and the keys of its studies that count.
    stores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # Of the user's file; what the studies tell of their tasks comes before.
    task_facts: tuple[Benchmark, ...] = ()
    # The group of tasks that count as one, where the user says it.
    task_groups: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None  # that was asked for; each task's main one where None
    table_layout: TableLayout | None = None  # how a foreign table was read
    items_read: Mapping[Protocol, Outcomes] = field(
        default_factory=dict
    )  # of files that have items
    # Scores of blind twins (``arc_easy:blind``): controls of the tasks, in no ranking.
    blind: Mapping[Protocol, ScoreMatrix] = field(default_factory=dict)
    # Other groups of sources, whose scores cannot be compared with these.
    apart: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        pooled = {protocol: pool_seed_variance(matrix) for protocol, matrix in self.scores.items()}
        object.__setattr__(self, "scores", pooled)

    @classmethod
    def of(
        cls, scores: Mapping[str, ScoreMatrix] | ScoreMatrix, *, title: str = "scores"
    ) -> Evidence:
        """Take matrices made in Python as evidence."""
        matrices = {scores.protocol: scores} if isinstance(scores, ScoreMatrix) else scores
        ordered = {protocol: matrices[protocol] for protocol in in_order(matrices)}
        evidence = cls(source=title, title=title, scores=ordered, facts=known_models())
        return evidence.with_blind_twins_apart()

    def with_blind_twins_apart(self) -> Evidence:
        """Return the evidence with blind twins as ``blind``; evidence of nothing but blind twins stays as it is."""
        scores: dict[Protocol, ScoreMatrix] = {}
        blind = dict(self.blind)
        for protocol, matrix in self.scores.items():
            is_blind = np.array([TaskName(task).sighted is not None for task in matrix.tasks], bool)
            if not is_blind.any():
                scores[protocol] = matrix
                continue
            blind[protocol] = matrix.select(tasks=is_blind)
            if not is_blind.all():
                scores[protocol] = matrix.select(tasks=~is_blind)
        if not scores:
            return self
        return replace(self, scores=scores, blind=blind)

    @property
    def protocols(self) -> list[Protocol]:
        """The protocols, from the least to the most preparation."""
        return list(self.scores)

    @property
    def name(self) -> str:
        """What to call it where several stand apart: the source and, of a store, the study."""
        if not self.studies:
            return self.source
        return f"{self.source}: {', '.join(record.name for record in self.studies)}"

    @property
    def planned(self) -> dict[Protocol, ScoreMatrix]:
        """The scores that a study plans, without those on the way (``adjust@100``)."""
        return {
            protocol: matrix for protocol, matrix in self.scores.items() if protocol.step is None
        }

    @property
    def models(self) -> list[str]:
        """Every model that has a score."""
        names: dict[str, None] = {}
        for matrix in self.scores.values():
            names.update(dict.fromkeys(matrix.models))
        return list(names)

    @property
    def main(self) -> Protocol | None:
        """The protocol to rank by: train-before-test, else adjust, else the first."""
        return main_protocol(self.planned)

    @cached_property
    def study_files(self) -> tuple[Study, ...]:
        """The studies whose files can be read; imported scores have none."""
        return tuple(filter(None, map(parse_study_record, self.studies)))

    @cached_property
    def specs(self) -> tuple[ModelSpec, ...]:
        """The models that the studies name, checkpoints expanded; imported scores name none."""
        specs: dict[str, ModelSpec] = {}
        for study in self.study_files:
            for spec in study.rows():
                specs.setdefault(spec.name, spec)
        return tuple(specs.values())

    @cached_property
    def exposed_copies(self) -> dict[str, str]:
        """Exposed copies and their originals, both with scores: told by a study, else by the copy's name."""
        models = set(self.models)
        originals = {m: m.removesuffix(EXPOSED) for m in self.models if m.endswith(EXPOSED)}
        for spec in self.specs:
            if spec.copy_of is not None:
                originals[spec.name] = spec.copy_of
        return {
            copy: original for copy, original in originals.items() if {copy, original} <= models
        }

    @cached_property
    def background(self) -> Background:
        """What is known of the models and tasks, as the analyses take it."""
        chance_by_task: dict[str, float | None] = {}
        for matrix in self.scores.values():
            for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
                chance_by_task[task] = metric.chance
        task_facts = [
            Benchmark(task, chance=chance)
            for task, chance in chance_by_task.items()
            if chance is not None
        ]
        for store, studies in self.open_stores():
            task_facts += _facts_of_stored_tasks(store.provenance.read_by_task(study=studies))
        for study in self.study_files:
            for spec in study.tasks:
                facts = Benchmark(spec.name, category=spec.category or "", chance=spec.chance)
                task_facts.append(facts)
        every_task = (*task_facts, *self.task_facts)
        background = Background.of(self.models, table=self.facts, tasks=every_task)
        return replace(background, task_groups={**background.task_groups, **self.task_groups})

    @cached_property
    def outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored item, by protocol, task, model and document."""
        return self._select_outcomes(self.scores)

    @cached_property
    def blind_outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored item of the blind twins, as ``outcomes``."""
        return self._select_outcomes(self.blind)

    def _select_outcomes(
        self, matrices: Mapping[Protocol, ScoreMatrix]
    ) -> dict[Protocol, Outcomes]:
        """Return the outcomes of the models and tasks of these matrices."""
        items = {protocol: dict(by_task) for protocol, by_task in self.items_read.items()}
        for (protocol, task), by_documents in self._stored_outcomes.items():
            items.setdefault(protocol, {})[task] = max(by_documents.values(), key=len)
        outcomes: dict[Protocol, Outcomes] = {}
        for protocol, matrix in matrices.items():
            tasks = set(matrix.tasks)
            models = set(matrix.models)
            outcomes[protocol] = {
                task: _keep_models(by_model, models)
                for task, by_model in items.get(protocol, {}).items()
                if task in tasks
            }
        return outcomes

    @cached_property
    def _stored_outcomes(self) -> dict[tuple[Protocol, str], dict[str, TaskOutcomes]]:
        """Return (protocol, task) → documents → model → values. Items pair only where the documents are the same.

        Documents go by their fingerprint, or by their store where a cell does not say it.
        """
        outcomes: dict[tuple[Protocol, str], dict[str, TaskOutcomes]] = {}
        for store, studies in self.open_stores():
            for cell in store.scores.read_outcomes(study=studies, metric=self.metric):
                protocol = Protocol(cell.protocol)
                task = TaskName(cell.task)
                # Folds test different documents of one task.
                is_joined = task.fold is not None and self._has_task(protocol, task.whole)
                documents = store.where if is_joined else cell.data or store.where
                task_shown = task.whole if is_joined else cell.task
                by_documents = outcomes.setdefault((protocol, task_shown), {})
                by_model = by_documents.setdefault(documents, TaskOutcomes({}, {}))
                if cell.clusters:
                    earlier_clusters = by_model.cluster_by_example
                    by_model.cluster_by_example = {**earlier_clusters, **cell.clusters}
                if is_joined:
                    by_model[cell.model] = {**by_model.get(cell.model, {}), **cell.values}
                else:
                    by_model[cell.model] = cell.values
        return outcomes

    def _has_task(self, protocol: Protocol, task: str) -> bool:
        """Whether a task, or a blind twin, has scores by a protocol."""
        matrices = (self.scores.get(protocol), self.blind.get(protocol))
        return any(matrix is not None and task in matrix.tasks for matrix in matrices)

    def frame(self) -> pd.DataFrame:
        """Return one row per score: protocol, model, task, metric, score, stderr, n, higher_is_better, kind, scale."""
        require_extra(Extra.PANDAS, "a pandas table")
        import pandas as pd

        rows = []
        for protocol, matrix in self.scores.items():
            for model, task, score in matrix.scores():
                row = {
                    "protocol": str(protocol),
                    "model": model,
                    "task": task,
                    "metric": score.metric.name,
                    "score": score.value,
                    "stderr": score.stderr,
                    "n": score.n or np.nan,
                    "higher_is_better": score.higher_is_better,
                    "kind": score.metric.kind,
                    "scale": score.metric.scale,
                }
                rows.append(tuple(row[column] for column in _FRAME_COLUMNS))
        return pd.DataFrame(rows, columns=list(_FRAME_COLUMNS))

    def cells(self) -> list[CellRecord]:
        """Return the committed cells, in the order of their making."""
        return self._gather(
            lambda store, study: store.cells.read(study=study), lambda cell: cell.key
        )

    def choices(self, protocol: Protocol) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell of a protocol: far less to read than the cells."""
        return self._gather(
            lambda store, study: store.provenance.read_choices(study=study, protocol=protocol),
            lambda cell: cell.key,
        )

    def probes(self) -> dict[tuple[str, str], ProbeResult]:
        """Return what the probes of the studies recorded, by model and task."""
        probes: dict[tuple[str, str], ProbeResult] = {}
        for store, studies in self.open_stores():
            probes |= store.provenance.read_probes(study=studies)
        return probes

    def lanes(self, models: Sequence[str] | None = None) -> list[LaneRecord]:
        """Return the fine-tuning lanes with their curves, of these models alone where some are given."""
        return self._gather(
            lambda store, study: store.lanes.read(study=study, model=models), lambda lane: lane.key
        )

    def failures(self) -> list[FailureRecord]:
        """Return the cells that failed, with the reason."""
        return self._gather(
            lambda store, study: store.failures.read(study=study),
            lambda failure: (failure.model, failure.task, failure.protocol, failure.study),
        )

    def items(self, cell: str) -> list[ItemOutcome]:
        """Return the outcomes of one cell; none where it is imported or its items are gone."""
        for store, _ in self.open_stores():
            if store.cells.has(cell):
                return store.cells.read_items(cell)
        return []

    def samples(
        self, cells: Sequence[str], choose: Callable[[str, list[float]], list[int]]
    ) -> Iterator[tuple[str, list[ItemOutcome]]]:
        """Give outcomes of each cell, chosen by their values; items left behind or damaged are passed over."""
        remaining = list(cells)
        for store, _ in self.open_stores():
            stored = store.cells.read_names(remaining)
            for key in [key for key in remaining if key in stored]:
                with suppress(PotentiaError):
                    outcomes = store.cells.read_items(key, partial(choose, key))
                    if outcomes:
                        yield key, outcomes
            remaining = [key for key in remaining if key not in stored]

    def items_of(self, protocol: str, model: str, task: str) -> list[ItemOutcome]:
        """Return the outcomes of one cell by its names; none where no store has them."""
        for store, studies in self.open_stores():
            cells = store.cells.read(study=studies, protocol=protocol, model=model, task=task)
            if cells:
                return store.cells.read_items(cells[-1].key)
        return []

    def narrowed(
        self,
        *,
        protocols: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> Evidence:
        """Return the evidence of these protocols, tasks (a benchmark's name keeps all its forms) and models alone."""
        self._check_names("protocol", protocols or (), list(self.scores))
        self._check_names("model", models or (), self.models)
        scores = {}
        for protocol in in_order(protocols or self.scores):
            matrix = _select_part(self.scores[protocol], tasks, models)
            if 0 not in matrix.shape:
                scores[protocol] = matrix
        if self.scores and not scores:
            every_task = {task for matrix in self.scores.values() for task in matrix.tasks}
            raise InputError(
                f"no scores of {', '.join(tasks or ())} in {self.source}",
                hint=f"there are: {', '.join(sorted(every_task)[:12])}",
            )
        blind = {
            protocol: _select_part(matrix, tasks, models) for protocol, matrix in self.blind.items()
        }
        return replace(self, scores=scores, blind=blind)

    def _check_names(self, kind: str, names: Iterable[str], available: Sequence[str]) -> None:
        for name in names:
            if name not in available:
                hint = f"there are: {', '.join(available[:8])}"
                raise InputError(f"no {kind} {name!r} in {self.source}", hint=hint)

    def _gather(
        self, get_records: Callable[[Store, str], Iterable[T]], key: Callable[[T], object]
    ) -> list[T]:
        """Return the records of all studies; of those with the same key the first."""
        records: dict[object, T] = {}
        for store, studies in self.open_stores():
            for study in studies:
                for record in get_records(store, study):
                    records.setdefault(key(record), record)
        return list(records.values())

    def open_stores(self) -> Iterator[tuple[Store, tuple[str, ...]]]:
        """Open the stores one after the other, each with the keys of its studies."""
        for location, studies in self.stores:
            with Store.open(location, readonly=True) as store:
                yield store, studies


def _keep_models(
    outcomes: Mapping[str, Mapping[int, float]], models: Iterable[str]
) -> TaskOutcomes:
    """Return the outcomes of these models on one task, with the clusters of its examples."""
    by_model = {model: values for model, values in outcomes.items() if model in models}
    return TaskOutcomes(by_model, clusters_of_task(outcomes))


def _select_part(
    matrix: ScoreMatrix, tasks: Sequence[str] | None, models: Sequence[str] | None
) -> ScoreMatrix:
    """Return what a matrix has of these tasks and models; a study may be unfinished."""
    chosen_tasks = list(matrix.tasks)
    if tasks:
        chosen_tasks = [t for t in matrix.tasks if t in tasks or TaskName(t).base in tasks]
    chosen_models = [model for model in models or matrix.models if model in matrix.models]
    return matrix.select(tasks=chosen_tasks, models=chosen_models)


def parse_study_record(record: StudyRecord) -> Study | None:
    """Return a stored study as a Study; None for imported scores, and for a study of another version."""
    try:
        return Study.model_validate(dict(record.spec))
    except ValueError:
        return None


def collect_model_facts(
    studies: Iterable[StudyRecord], specs: Iterable[ModelSpec], user_facts: Iterable[ModelFacts]
) -> ModelTable:
    """Return what is known of models: the shipped facts, then what the studies say, then the user's own file."""
    shipped = known_models()
    study_facts: dict[str, ModelFacts] = {}
    for study in map(parse_study_record, studies):
        if study is not None:
            study_facts.update({facts.name: facts for facts in _read_facts_of_study(study)})
    for spec in specs:
        if _has_facts(spec):
            earlier = study_facts.get(spec.name) or shipped.find(spec.name)
            study_facts[spec.name] = _facts_from_spec(spec, earlier)
    own_facts = (*study_facts.values(), *user_facts)
    return ModelTable((*shipped, *own_facts)) if own_facts else shipped


def facts_of_study(study: Study) -> ModelTable:
    """Return what is known of models, with what a study that has not run yet says of its own."""
    return collect_model_facts((), study.rows(), _read_facts_of_study(study))


def _read_facts_of_study(study: Study) -> Iterable[ModelFacts]:
    """Read the file of facts that a study names, where it is there."""
    if not study.facts or not Path(study.facts).is_file():
        return ()
    return read_facts(study.facts)


def _has_facts(spec: ModelSpec) -> bool:
    return any(
        (spec.family, spec.parameters, spec.tokens, spec.date, spec.base_model, spec.exposure)
    )


def _facts_of_stored_tasks(provenances: Mapping[str, Provenance]) -> Iterator[Benchmark]:
    """Give what the studies tell of their tasks: the size of the train split before carving, the score of a guess."""
    for task, provenance in provenances.items():
        splits = provenance.task.splits
        train_size = splits.train.available
        is_carved = splits.validation.origin not in (None, "validation", "none")
        if train_size is not None and is_carved:
            train_size += splits.validation.available or 0  # carved out of train
        chance = provenance.task.chance
        yield Benchmark(TaskName(task).whole, train_size=train_size, chance=chance)


def _facts_from_spec(spec: ModelSpec, earlier: ModelFacts | None) -> ModelFacts:
    """Return what is known of a model, with what its study says in its place."""
    if earlier is None:
        earlier = ModelFacts(
            spec.name, spec.series or "", None, None, None, "base", None, None, None
        )
    changes: dict[str, Any] = {
        "family": spec.family,
        "parameters": spec.parameters,
        "size": spec.parameters,
        "tokens": spec.tokens,
        "date": spec.date and spec.date[:7],
        "kind": spec.kind if spec.kind != "auto" else None,
        "base_model": spec.base_model,
        "exposure": spec.exposure,
    }
    changes = {name: value for name, value in changes.items() if value}
    if spec.parameters and spec.tokens:
        changes["compute"] = None
    return replace(earlier, name=spec.name, aliases=(), repository=None, **changes)

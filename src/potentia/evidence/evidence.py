"""What the sources hold and know of their models and tasks, and what every analysis takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.errors import InputError, PotentiaError, suggest_names
from potentia.extras import Extra, require_extra
from potentia.facts import Background, Benchmark, ModelFacts, ModelTable, read_facts
from potentia.facts import models as known_models
from potentia.formats import TableLayout
from potentia.store import CellRecord, ChoiceRecord, FailureRecord, LaneRecord, Store, StudyRecord
from potentia.study import EXPOSED, ModelSpec, Study
from potentia.values.protocol import Protocol, TaskName, choose_main_protocol, sort_protocols
from potentia.values.provenance import Provenance
from potentia.values.scores import (
    ExampleText,
    ExampleValues,
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


@dataclass(frozen=True)
class Narrowing:
    """The protocols, tasks and models that were asked for; all where there are none."""

    protocols: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def includes(self, record: CellRecord | FailureRecord) -> bool:
        """Whether a stored result or failure is meant; a benchmark's name means all its forms."""
        if self.protocols and record.protocol not in self.protocols:
            return False
        if self.models and record.model not in self.models:
            return False
        task_names = {record.task, TaskName(record.task).base, TaskName(record.task).whole}
        return not self.tasks or not task_names.isdisjoint(self.tasks)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources hold. A file of scores has no studies, results, fine-tunings, failures or outcomes."""

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
    # The group of tasks that count as one, where a results file says it, and where the user does.
    file_task_groups: Mapping[str, str] = field(default_factory=dict)
    task_groups: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None  # that was asked for; each task's main one where None
    table_layout: TableLayout | None = None  # how a foreign table was read
    items_read: Mapping[Protocol, Outcomes] = field(
        default_factory=dict
    )  # of files that have items
    # Scores of tasks without their questions (``arc_easy:blind``): controls of the tasks, in no ranking.
    blind: Mapping[Protocol, ScoreMatrix] = field(default_factory=dict)
    # Other groups of sources, whose scores cannot be compared with these.
    apart: tuple[Evidence, ...] = ()
    narrowings: tuple[Narrowing, ...] = ()  # what is left of the stored results

    def __repr__(self) -> str:
        """Return where it comes from and its matrices; ``to_frame()`` shows the scores."""
        matrices = ", ".join(map(repr, self.scores.values()))
        return f"Evidence({self.source!r}: {matrices or 'no scores'})"

    def __post_init__(self) -> None:
        pooled = {protocol: pool_seed_variance(matrix) for protocol, matrix in self.scores.items()}
        object.__setattr__(self, "scores", pooled)

    @classmethod
    def of(
        cls, scores: Mapping[str, ScoreMatrix] | ScoreMatrix, *, title: str = "scores"
    ) -> Evidence:
        """Take matrices made in Python as evidence."""
        matrices = {scores.protocol: scores} if isinstance(scores, ScoreMatrix) else scores
        ordered = {protocol: matrices[protocol] for protocol in sort_protocols(matrices)}
        evidence = cls(source=title, title=title, scores=ordered, facts=known_models())
        return evidence.with_blind_twins_apart()

    def with_blind_twins_apart(self) -> Evidence:
        """Return the evidence with blind copies of tasks as ``blind``; evidence of nothing else stays as it is."""
        scores: dict[Protocol, ScoreMatrix] = {}
        blind_scores = dict(self.blind)
        for protocol, matrix in self.scores.items():
            is_blind = np.array([TaskName(task).sighted is not None for task in matrix.tasks], bool)
            if not is_blind.any():
                scores[protocol] = matrix
                continue
            blind_scores[protocol] = matrix.select(tasks=is_blind)
            if not is_blind.all():
                scores[protocol] = matrix.select(tasks=~is_blind)
        if not scores:
            return self
        return replace(self, scores=scores, blind=blind_scores)

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
    def final_scores(self) -> dict[Protocol, ScoreMatrix]:
        """The scores at the end of each protocol, without those on the way (``adjust@100``)."""
        return {
            protocol: matrix for protocol, matrix in self.scores.items() if protocol.step is None
        }

    @property
    def models(self) -> list[str]:
        """Every model that has a score."""
        distinct_models: dict[str, None] = {}
        for matrix in self.scores.values():
            distinct_models.update(dict.fromkeys(matrix.models))
        return list(distinct_models)

    @property
    def main(self) -> Protocol | None:
        """The protocol to rank by: train-before-test, else adjust, else the first."""
        return choose_main_protocol(self.final_scores)

    @cached_property
    def study_files(self) -> tuple[Study, ...]:
        """The studies whose files can be read; imported scores have none."""
        return tuple(filter(None, map(parse_study_record, self.studies)))

    @property
    def study_notes(self) -> tuple[str, ...]:
        """What the studies' files say that readers must know, each once."""
        notes = [study.note for study in self.study_files if study.note]
        return tuple(dict.fromkeys(notes))

    @cached_property
    def specs(self) -> tuple[ModelSpec, ...]:
        """The models that the studies name, checkpoints expanded; imported scores name none."""
        specs_by_name: dict[str, ModelSpec] = {}
        for study in self.study_files:
            for model_spec in study.rows():
                specs_by_name.setdefault(model_spec.name, model_spec)
        return tuple(specs_by_name.values())

    @cached_property
    def exposed_copies(self) -> dict[str, str]:
        """Exposed copies and their originals, both with scores: named by a study, else by the copy's name."""
        models = set(self.models)
        originals = {
            model: model.removesuffix(EXPOSED) for model in self.models if model.endswith(EXPOSED)
        }
        for model_spec in self.specs:
            if model_spec.copy_of is not None:
                originals[model_spec.name] = model_spec.copy_of
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
            task_facts += facts_of_stored_tasks(store.provenance.read_by_task(study=studies))
        for study in self.study_files:
            for task_spec in study.tasks:
                benchmark_facts = Benchmark(
                    task_spec.name, category=task_spec.category or "", chance=task_spec.chance
                )
                task_facts.append(benchmark_facts)
        every_task = (*task_facts, *self.task_facts)
        background = Background.of(self.models, table=self.facts, tasks=every_task)
        task_groups = {**self.file_task_groups, **background.task_groups, **self.task_groups}
        return replace(background, task_groups=task_groups)

    @cached_property
    def outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored example, by protocol, task, model and example."""
        return self._select_outcomes(self.scores)

    @cached_property
    def blind_outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored example of the blind copies of tasks, as ``outcomes``."""
        return self._select_outcomes(self.blind)

    def _select_outcomes(
        self, matrices: Mapping[Protocol, ScoreMatrix]
    ) -> dict[Protocol, Outcomes]:
        """Return the outcomes of the models and tasks of these matrices."""
        outcomes_by_protocol = {
            protocol: dict(by_task) for protocol, by_task in self.items_read.items()
        }
        for (protocol, task), by_documents in self._stored_outcomes.items():
            outcomes_by_protocol.setdefault(protocol, {})[task] = max(
                by_documents.values(), key=len
            )
        outcomes: dict[Protocol, Outcomes] = {}
        for protocol, matrix in matrices.items():
            tasks = set(matrix.tasks)
            models = set(matrix.models)
            outcomes[protocol] = {
                task: _keep_models(by_model, models)
                for task, by_model in outcomes_by_protocol.get(protocol, {}).items()
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

    def to_frame(self) -> pd.DataFrame:
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
        """Return the finished results, in the order of their making."""
        cells = self._gather(
            lambda store, study: store.cells.read(study=study), lambda cell: cell.key
        )
        return [cell for cell in cells if self._includes(cell)]

    def _includes(self, record: CellRecord | FailureRecord) -> bool:
        return all(narrowing.includes(record) for narrowing in self.narrowings)

    def choices(self, protocol: Protocol) -> list[ChoiceRecord]:
        """Return what validation chose for every finished result of a protocol: far less to read than the results."""
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
        """Return the fine-tunings with their curves, of these models alone where some are given."""
        return self._gather(
            lambda store, study: store.lanes.read(study=study, model=models), lambda lane: lane.key
        )

    def failures(self) -> list[FailureRecord]:
        """Return the results that failed, with the reason."""
        failures = self._gather(
            lambda store, study: store.failures.read(study=study),
            lambda failure: (failure.model, failure.task, failure.protocol, failure.study),
        )
        return [failure for failure in failures if self._includes(failure)]

    def items(self, cell: str) -> list[ItemOutcome]:
        """Return the outcomes of one result; none where it is imported or its examples are gone."""
        for store, _ in self.open_stores():
            if store.cells.has(cell):
                return store.cells.read_items(cell)
        return []

    def samples(
        self, cells: Sequence[str], choose: Callable[[str, list[float]], list[int]]
    ) -> Iterator[tuple[str, list[ItemOutcome]]]:
        """Give outcomes of each result, chosen by their values; examples left behind or damaged are passed over."""
        remaining = list(cells)
        for store, _ in self.open_stores():
            stored = store.cells.read_names(remaining)
            for cell_key in [cell_key for cell_key in remaining if cell_key in stored]:
                with suppress(PotentiaError):
                    outcomes = store.cells.read_items(cell_key, partial(choose, cell_key))
                    if outcomes:
                        yield cell_key, outcomes
            remaining = [cell_key for cell_key in remaining if cell_key not in stored]

    def items_of(self, protocol: str, model: str, task: str) -> list[ItemOutcome]:
        """Return the outcomes of one result by its names; none where no store has them."""
        for store, studies in self.open_stores():
            cells = store.cells.read(study=studies, protocol=protocol, model=model, task=task)
            if cells:
                return store.cells.read_items(cells[-1].key)
        return []

    def example_texts(self, protocol: Protocol, task: str) -> dict[int, ExampleText]:
        """Return what the examples of a task ask, by their key in ``outcomes``; none where no source has it."""
        outcomes = self.outcomes.get(protocol, {}).get(task, {})
        texts: dict[int, ExampleText] = {}
        for model, values in outcomes.items():
            with suppress(PotentiaError):  # examples left behind or damaged are passed over
                if isinstance(values, ExampleValues):
                    texts = values.read_texts()
                else:
                    texts = self._stored_texts(protocol, model, task)
            if texts:
                break
        return texts

    def _stored_texts(self, protocol: Protocol, model: str, task: str) -> dict[int, ExampleText]:
        """Return the prompts of the examples that a store has of a model on a task."""
        texts = {}
        for outcome in self._stored_items(protocol, model, task):
            prompt = str(outcome.detail.get("prompt", ""))
            texts[outcome.doc_id] = ExampleText(outcome.doc_id, prompt)
        return texts

    def _stored_items(self, protocol: Protocol, model: str, task: str) -> Iterator[ItemOutcome]:
        """Give the outcomes of a model on a task, of all its folds where it is tested in folds."""
        for store, studies in self.open_stores():
            for cell in store.cells.read(study=studies, protocol=protocol, model=model):
                if task in (cell.task, TaskName(cell.task).whole):
                    yield from store.cells.read_items(cell.key)

    def narrowed(
        self,
        *,
        protocols: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> Evidence:
        """Return the evidence of these protocols, tasks (a benchmark's name keeps all its forms) and models alone."""
        self._check_names("protocol", protocols or (), list(self.scores))
        if models:
            models = [self._find_full_name(model) for model in models]
            self._check_names("model", models, self.models)
        scores = {}
        for protocol in sort_protocols(protocols or self.scores):
            matrix = _select_part(self.scores[protocol], tasks, models)
            if 0 not in matrix.shape:
                scores[protocol] = matrix
        if self.scores and not scores:
            every_task: set[str] = set()
            for matrix in self.scores.values():
                every_task.update(matrix.tasks)
            unknown_tasks = ", ".join(tasks or ())
            raise InputError(
                f"no scores of {unknown_tasks} in {self.source}",
                hint=suggest_names(unknown_tasks, sorted(every_task)),
            )
        blind_scores = {
            protocol: _select_part(matrix, tasks, models) for protocol, matrix in self.blind.items()
        }
        narrowing = Narrowing(
            tuple(map(str, protocols or ())), tuple(tasks or ()), tuple(models or ())
        )
        return replace(
            self, scores=scores, blind=blind_scores, narrowings=(*self.narrowings, narrowing)
        )

    def _find_full_name(self, model_name: str) -> str:
        """Return the full name of the model that a user means.

        That is the name itself where a model has it, else the only model whose name without its organisation is this:
        tables show names so. Where there is none, or several, the name is returned as it is.
        """
        if model_name in self.models:
            return model_name
        folded_name = model_name.casefold()
        same_ending = [
            model for model in self.models if model.rpartition("/")[2].casefold() == folded_name
        ]
        return same_ending[0] if len(same_ending) == 1 else model_name

    def _check_names(
        self, kind: str, requested_names: Iterable[str], available: Sequence[str]
    ) -> None:
        for requested_name in requested_names:
            if requested_name not in available:
                hint = suggest_names(requested_name, available)
                raise InputError(f"no {kind} {requested_name!r} in {self.source}", hint=hint)

    def _gather(
        self, get_records: Callable[[Store, str], Iterable[T]], find_key: Callable[[T], object]
    ) -> list[T]:
        """Return the records of all studies; of those with the same key the first."""
        records: dict[object, T] = {}
        for store, studies in self.open_stores():
            for study in studies:
                for record in get_records(store, study):
                    records.setdefault(find_key(record), record)
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
    kept_outcomes = {model: values for model, values in outcomes.items() if model in models}
    return TaskOutcomes(kept_outcomes, clusters_of_task(outcomes))


def _select_part(
    matrix: ScoreMatrix, tasks: Sequence[str] | None, models: Sequence[str] | None
) -> ScoreMatrix:
    """Return what a matrix has of these tasks and models; a study may be unfinished."""
    chosen_tasks = list(matrix.tasks)
    if tasks:
        chosen_tasks = []
        for task in matrix.tasks:
            if task in tasks or TaskName(task).base in tasks:
                chosen_tasks.append(task)
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
    """Return what is known of models.

    Later facts replace earlier ones: the shipped facts, the files of facts that studies name, what the studies say of
    their models (``specs``), the user's own file.
    """
    shipped = known_models()
    study_facts: dict[str, ModelFacts] = {}
    for study in map(parse_study_record, studies):
        if study is not None:
            study_facts.update({facts.name: facts for facts in _read_facts_of_study(study)})
    for model_spec in specs:
        if _has_facts(model_spec):
            earlier = study_facts.get(model_spec.name) or shipped.find(model_spec.name)
            study_facts[model_spec.name] = _facts_from_spec(model_spec, earlier)
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


def _has_facts(model_spec: ModelSpec) -> bool:
    return any(
        (
            model_spec.family,
            model_spec.parameters,
            model_spec.tokens,
            model_spec.date,
            model_spec.base_model,
            model_spec.exposure,
        )
    )


def facts_of_stored_tasks(provenances: Mapping[str, Provenance]) -> Iterator[Benchmark]:
    """Give what the studies tell of their tasks: the size of the train split before carving, the score of a guess."""
    for task, provenance in provenances.items():
        splits = provenance.task.splits
        train_size = None if splits is None else splits.train_size_before_carving
        chance = provenance.task.chance
        yield Benchmark(TaskName(task).whole, train_size=train_size, chance=chance)


def _facts_from_spec(model_spec: ModelSpec, earlier: ModelFacts | None) -> ModelFacts:
    """Return what is known of a model, with what its study says in its place."""
    if earlier is None:
        earlier = ModelFacts(
            model_spec.name, model_spec.series or "", None, None, None, "base", None, None, None
        )
    changes: dict[str, Any] = {
        "family": model_spec.family,
        "parameters": model_spec.parameters,
        "size": model_spec.parameters,
        "tokens": model_spec.tokens,
        "date": model_spec.date and model_spec.date[:7],
        "kind": model_spec.kind if model_spec.kind != "auto" else None,
        "base_model": model_spec.base_model,
        "exposure": model_spec.exposure,
    }
    changes = {field_name: value for field_name, value in changes.items() if value}
    if model_spec.parameters and model_spec.tokens:
        changes["compute"] = None
    return replace(earlier, name=model_spec.name, aliases=(), repository=None, **changes)

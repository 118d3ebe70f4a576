"""Evidence: scores, outcomes, facts and studies, read once from any source; the only door to them.

A source is a store (a SQLite file or a database URL), a table, lm-eval results or a paper's published file. The command
line, the report, the board and Python analyse what ``read`` returns, so they cannot disagree on what is there. Cells
are compared only where task, data, metric and, for tuned cells, the recipe agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from potentia.errors import DataError, InputError, PotentiaError, StoreError
from potentia.facts import Background, Benchmark, ModelFacts, ModelTable, read_benchmarks, read_facts
from potentia.facts import models as known_models
from potentia.formats import read_files
from potentia.store import CellRecord, ChoiceRecord, FailureRecord, LaneRecord, Store, StudyRecord
from potentia.study import EXPOSED, ModelSpec, Study
from potentia.values.protocol import Protocol, in_order, main_protocol
from potentia.values.scores import ItemOutcome, Outcomes, ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
ALL = "all"  # every study of a store


@dataclass(frozen=True)
class StoreView:
    """Where a store is, and which of its studies count."""

    where: str
    studies: tuple[str, ...]  # keys

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Open the store for reading."""
        with Store.open(self.where, readonly=True) as store:
            yield store


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources hold. A file of scores has no studies, cells, lanes, failures or outcomes."""

    source: str  # as a person calls it; never a password
    title: str
    scores: Mapping[Protocol, ScoreMatrix]  # from the least to the most preparation
    facts: ModelTable
    studies: tuple[StudyRecord, ...] = ()
    specs: tuple[ModelSpec, ...] = ()  # the models of the studies, checkpoints expanded
    notes: tuple[str, ...] = ()  # what a reader must know: which study this is, what was left out
    stores: tuple[StoreView, ...] = ()
    task_facts: tuple[Benchmark, ...] = ()  # of the user's file; what the studies tell of their tasks comes before
    without_items: Mapping[Protocol, frozenset[str]] = field(default_factory=dict)  # tasks scored by another metric

    @classmethod
    def of(cls, scores: Mapping[str, ScoreMatrix] | ScoreMatrix, *, title: str = "scores") -> Evidence:
        """Take matrices made in Python as evidence."""
        given = {scores.protocol: scores} if isinstance(scores, ScoreMatrix) else scores
        return cls(title, title, {p: given[p] for p in in_order(given)}, known_models())

    @property
    def protocols(self) -> list[Protocol]:
        """The protocols, from the least to the most preparation."""
        return list(self.scores)

    @property
    def planned(self) -> dict[Protocol, ScoreMatrix]:
        """The scores that a study plans, without those on the way (``adjust@100``)."""
        return {protocol: matrix for protocol, matrix in self.scores.items() if protocol.step is None}

    @property
    def models(self) -> list[str]:
        """Every model that has a score."""
        return list(dict.fromkeys(model for matrix in self.scores.values() for model in matrix.models))

    @property
    def main(self) -> Protocol | None:
        """The protocol to rank by: train-before-test, else adjust, else the first."""
        return main_protocol(self.planned)

    @cached_property
    def copies(self) -> dict[str, str]:
        """Treated copies and their originals, both with scores: told by a study, else by the copy's name."""
        there = set(self.models)
        told = {row.name: row.copy_of for row in self.specs if row.copy_of is not None}
        named = {m: m.removesuffix(EXPOSED) for m in self.models if m.endswith(EXPOSED)}
        return {copy: original for copy, original in (named | told).items() if {copy, original} <= there}

    @cached_property
    def background(self) -> Background:
        """What is known of the models and tasks, as the analyses take it."""
        told = [fact for view in self.stores for fact in _tasks_of(view)]
        told += [
            Benchmark(task.name, category=task.category or "", chance=task.chance)
            for study in filter(None, map(study_of, self.studies))
            for task in study.tasks
        ]
        return Background.of(self.models, table=self.facts, tasks=(*told, *self.task_facts))

    @cached_property
    def outcomes(self) -> dict[Protocol, Outcomes]:
        """The value of every stored item, by protocol, task, model and document."""
        found: dict[Protocol, dict[str, dict[str, dict[int, float]]]] = {}
        for view in self.stores:
            with view.open() as store:
                for protocol, task, model, values in store.outcomes(study=view.studies):
                    whole = _FOLD.sub("", task)  # folds test different documents of one task
                    by = found.setdefault(Protocol(protocol), {}).setdefault(whole, {})
                    by[model] = {**by.get(model, {}), **values} if whole != task else values
        kept: dict[Protocol, Outcomes] = {}
        for protocol, matrix in self.scores.items():
            models, tasks = set(matrix.models), set(matrix.tasks) - self.without_items.get(protocol, frozenset())
            kept[protocol] = {
                task: {m: v for m, v in by.items() if m in models}
                for task, by in found.get(protocol, {}).items()
                if task in tasks
            }
        return kept

    def frame(self) -> pd.DataFrame:
        """Return one row per score: protocol, model, task, metric, score, stderr, n, higher_is_better."""
        import pandas as pd

        rows = [
            (str(p), model, task, m.metrics[j], m.values[i, j], m.stderr[i, j], m.n[i, j], m.higher_is_better[j])
            for p, m in self.scores.items()
            for i, model in enumerate(m.models)
            for j, task in enumerate(m.tasks)
            if np.isfinite(m.values[i, j])
        ]
        columns = ["protocol", "model", "task", "metric", "score", "stderr", "n", "higher_is_better"]
        return pd.DataFrame(rows, columns=columns)

    def cells(self) -> list[CellRecord]:
        """Return the committed cells, in the order of their making."""
        return self._gathered(lambda store, key: store.cells(study=key), lambda cell: cell.key)

    def choices(self, protocol: Protocol) -> list[ChoiceRecord]:
        """Return what validation chose for every committed cell of a protocol: far less to read than the cells."""
        return self._gathered(lambda store, key: store.choices(study=key, protocol=protocol), lambda cell: cell.key)

    def probes(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return what the probes of the studies recorded, by model and task."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for view in self.stores:
            with view.open() as store:
                found |= store.probes(study=view.studies)
        return found

    def lanes(self) -> list[LaneRecord]:
        """Return the fine-tuning lanes with their curves."""
        return self._gathered(lambda store, key: store.lanes(study=key), lambda lane: lane.key)

    def failures(self) -> list[FailureRecord]:
        """Return the cells that failed, with the reason."""
        return self._gathered(
            lambda store, key: store.failures(study=key), lambda f: (f.model, f.task, f.protocol, f.study)
        )

    def items(self, cell: str) -> list[ItemOutcome]:
        """Return the outcomes of one cell; none where it is imported or its items are gone."""
        for view in self.stores:
            with view.open() as store:
                if store.has(cell):
                    return store.items(cell)
        return []

    def narrowed(
        self,
        *,
        protocols: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> Evidence:
        """Return the evidence of these protocols, tasks (a benchmark's name keeps all its forms) and models alone."""
        unknown = [name for name in protocols or () if name not in self.scores]
        if unknown:
            there = ", ".join(self.scores)
            raise InputError(f"no protocol {unknown[0]!r} in {self.source}", hint=f"there are: {there}")
        chosen: dict[Protocol, ScoreMatrix] = {}
        for protocol in in_order(protocols or self.scores):
            matrix = self.scores[protocol]
            kept = [t for t in matrix.tasks if not tasks or t in tasks or t.partition(":")[0] in tasks]
            if kept:
                chosen[protocol] = matrix.select(tasks=kept, models=models or None)
        if self.scores and not chosen:
            known = sorted({task for matrix in self.scores.values() for task in matrix.tasks})
            raise InputError(
                f"no scores of {', '.join(tasks or ())} in {self.source}", hint=f"there are: {', '.join(known[:12])}"
            )
        return replace(self, scores=chosen)

    def _gathered(self, get: Callable[[Store, str], Iterable[T]], key: Callable[[T], object]) -> list[T]:
        found: dict[object, T] = {}
        for view in self.stores:
            with view.open() as store:
                for study in view.studies:
                    for record in get(store, study):
                        found.setdefault(key(record), record)
        return list(found.values())


def read(
    *sources: str | Path,
    study: str | Sequence[str] | None = None,
    metric: str | None = None,
    subtasks: bool = False,
    facts: str | Path | None = None,
    task_facts: str | Path | None = None,
    protocols: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Evidence:
    """Read stores, score tables, lm-eval results or published files, several joined into one.

    ``study`` names one or more studies of a store (``all`` for all of them); without it the one opened last counts.
    ``metric`` picks a metric where a benchmark has several, ``subtasks`` the members of groups such as MMLU, ``facts``
    is a CSV of what is known of the models, ``task_facts`` one of the tasks (category, train_size, chance), and
    ``protocols``, ``tasks`` and ``models`` narrow what is read.
    ``columns`` says which column of a table is which field, where its names do not: ``{"score": "Accuracy"}``.
    """
    if not sources:
        raise InputError("no scores are given", hint="name a store, a table or a folder of lm-eval results")
    wanted = (study,) if isinstance(study, str) else tuple(study or ())
    parts = [_read_one(source, wanted, metric, subtasks, columns) for source in sources]
    found = parts[0] if len(parts) == 1 else _joined(parts)
    if facts is None and (beside := _facts_beside(sources)) is not None:
        facts = beside
        found = replace(found, notes=(*found.notes, f"facts of the models: {beside.name}"))
    table = _facts_of(found, read_facts(facts) if facts is not None else ())
    own = read_benchmarks(task_facts) if task_facts is not None else ()
    whole = replace(found, facts=table, task_facts=own)
    return whole.narrowed(protocols=protocols, tasks=tasks, models=models)


def _facts_beside(sources: Sequence[str | Path]) -> Path | None:
    """Return ``scores.facts.csv`` where it lies beside the one table ``scores.csv``."""
    if len(sources) != 1 or is_store(sources[0]):
        return None
    path = Path(sources[0]).expanduser()
    if not path.name:
        return None
    beside = path.with_name(f"{path.stem}.facts.csv")
    return beside if beside != path and beside.is_file() else None


def is_store(source: str | Path) -> bool:
    """Say whether this is a store (a SQLite file or a database URL) rather than a file of scores."""
    if "://" in str(source):
        return True
    path = Path(source).expanduser()
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(16).startswith(b"SQLite format 3")
    except OSError:
        return False


def _read_one(
    source: str | Path,
    studies: tuple[str, ...],
    metric: str | None,
    subtasks: bool,
    columns: Mapping[str, str] | None,
) -> Evidence:
    if is_store(source):
        return _from_store(str(source), studies, metric)
    path = Path(source).expanduser()
    found = read_files(path, metric=metric, subtasks=subtasks, columns=columns)
    scores = {p: found.scores[p] for p in in_order(found.scores)}
    if metric is not None and not any(name for matrix in scores.values() for name in matrix.metrics):
        raise DataError(f"it does not say which scores are by {metric}", where=str(path), hint="leave out --metric")
    return Evidence(path.name, path.name, scores, known_models(), notes=found.notes)


# --- stores ----------------------------------------------------------------------------------------------------------


def _from_store(where: str, wanted: tuple[str, ...], metric: str | None) -> Evidence:
    try:
        with Store.open(where, readonly=True) as store:
            return _of_store(store, where, wanted, metric)
    except StoreError as error:  # as a source of scores, a damaged or foreign database is bad input
        if isinstance(error, InputError) or "://" in where:
            raise
        raise DataError(error.message, where=error.where, hint=error.hint) from error
    except PotentiaError:
        raise
    except (TypeError, ValueError, AttributeError) as error:  # a text or a gap where the schema promises a number
        raise DataError(f"the database is damaged: {error}", where=where, hint="restore a copy") from error


def _of_store(store: Store, where: str, wanted: tuple[str, ...], metric: str | None) -> Evidence:
    records = store.studies()
    chosen = _chosen(records, wanted, store.where)
    keys = tuple(record.key for record in chosen)
    notes = []
    if not wanted and len(records) > 1:
        others = ", ".join(dict.fromkeys(r.name for r in records if r.key not in keys))
        notes.append(f"this is the study {chosen[0].name}, opened last; the store also holds: {others} (--study NAME)")
    if len(chosen) > 1:
        _check_alike(store, chosen)
    protocols = in_order({p for key in keys for p in store.protocols(study=key)})
    if not protocols and not any(store.failures(study=key) for key in keys):
        raise DataError("the store holds no scores yet", where=store.where, hint="run a study, or import scores")
    scores, without = _by_metric(store, protocols, keys, metric)
    scores = {protocol: _unfolded(matrix) for protocol, matrix in scores.items()}
    name = Path(where).name if "://" not in where else store.where
    return Evidence(
        source=name,
        title=chosen[0].name if len(chosen) == 1 else Path(name).stem,
        scores=scores,
        facts=known_models(),
        studies=tuple(chosen),
        specs=_specs(chosen),
        notes=tuple(notes),
        stores=(StoreView(where, keys),),
        without_items=without,
    )


def _by_metric(
    store: Store, protocols: Sequence[Protocol], studies: tuple[str, ...], metric: str | None
) -> tuple[dict[Protocol, ScoreMatrix], dict[Protocol, frozenset[str]]]:
    """Return the scores by one metric where one is asked for, and the tasks whose items are of another one."""
    main = {p: store.matrix(p, study=studies) for p in protocols}
    if metric is None:
        return main, {}
    scores: dict[Protocol, ScoreMatrix] = {}
    without: dict[Protocol, frozenset[str]] = {}
    problem: InputError | None = None
    for protocol, usual in main.items():
        try:
            scores[protocol] = store.matrix(protocol, study=studies, metric=metric)
        except InputError as error:  # no cell of this protocol has it, as with texts
            problem = problem or error
            continue
        named = zip(usual.tasks, usual.metrics, strict=True)
        without[protocol] = frozenset(_FOLD.sub("", task) for task, name in named if name != metric)
    if not scores and problem is not None:
        raise problem
    return scores, without


_FOLD = re.compile(r"#\d+/\d+$")


def whole_task(name: str) -> str:
    """Return the task that a fold (``name#1/5``) is of, as scores call it."""
    return _FOLD.sub("", name)


def _unfolded(matrix: ScoreMatrix) -> ScoreMatrix:
    """Join the folds of a task (``name#1/5`` …) into one column: the mean over all documents, if no fold is missing."""
    if not any(_FOLD.search(task) for task in matrix.tasks):
        return matrix
    groups: dict[str, list[int]] = {}
    for j, task in enumerate(matrix.tasks):
        groups.setdefault(_FOLD.sub("", task), []).append(j)
    columns = []
    for places in groups.values():
        n, values, stderr = (part[:, places] for part in (matrix.n, matrix.values, matrix.stderr))
        if len(places) == 1:
            columns.append((values[:, 0], stderr[:, 0], n[:, 0]))
            continue
        weights = n / n.sum(axis=1, keepdims=True)
        error = np.sqrt((weights**2 * stderr**2).sum(axis=1))
        columns.append(((weights * values).sum(axis=1), error, n.sum(axis=1)))
    values, stderr, n = (np.stack([column[k] for column in columns], axis=1) for k in range(3))
    firsts = [places[0] for places in groups.values()]
    up = tuple(matrix.higher_is_better[j] for j in firsts)
    metrics = tuple(matrix.metrics[j] for j in firsts)
    return ScoreMatrix(matrix.protocol, matrix.models, tuple(groups), values, stderr, n, up, metrics)


def _chosen(records: Sequence[StudyRecord], wanted: tuple[str, ...], where: str) -> list[StudyRecord]:
    """Return the studies meant: by name or key (a name means the one opened last), all, or the one opened last."""
    if not records:
        raise DataError("the store holds no scores yet", where=where, hint="run a study, or import scores")
    if wanted == (ALL,):
        return list(records)
    found: dict[str, StudyRecord] = {}
    for name in wanted or (records[0].key,):
        record = next((r for r in records if r.key == name), None) or next((r for r in records if r.name == name), None)
        if record is None:
            known = ", ".join(sorted({r.name for r in records}))
            raise DataError(f"no study {name!r} in {where}", hint=f"there are: {known}")
        found.setdefault(record.key, record)
    return list(found.values())


def _check_alike(store: Store, studies: Sequence[StudyRecord]) -> None:
    """Refuse studies whose cells cannot be compared: another metric, other data, another recipe on the same task."""
    seen: dict[tuple[str, str], tuple[str, Mapping[str, object]]] = {}
    for record in studies:
        for cell in store.cells(study=record.key):
            basis = _basis(cell)
            for part, value in basis.items():
                place = (part if part == "data" else f"{part} of {cell.protocol}", cell.task)
                other, known = seen.setdefault(place, (record.name, {part: value}))
                if known[part] != value:
                    raise InputError(
                        f"the studies {other} and {record.name} have cells of {cell.task} with different {place[0]}: "
                        "they cannot be compared",
                        where=store.where,
                        hint=f"choose one: --study {record.name}",
                    )


def _basis(cell: CellRecord) -> dict[str, object]:
    """Return what must agree before two cells of a task are compared; an imported cell says its metric alone."""
    task = cell.manifest.get("task") or {}
    basis: dict[str, object] = {"metric": cell.metric}
    if task.get("fingerprint"):
        basis["data"] = task["fingerprint"]
        basis["examples"] = cell.manifest.get("shots", Protocol(cell.protocol).shots)
        basis["recipe"] = repr([cell.manifest.get(name) for name in ("tuning", "selection", "adjust")])
    return basis


def _specs(records: Iterable[StudyRecord]) -> tuple[ModelSpec, ...]:
    """Return the models that the studies name, checkpoints expanded; imported scores name none."""
    found: dict[str, ModelSpec] = {}
    for study in map(study_of, records):
        for row in study.rows() if study is not None else ():
            found.setdefault(row.name, row)
    return tuple(found.values())


def study_of(record: StudyRecord) -> Study | None:
    """Return a stored study as a Study; None for imported scores, and for a study of another version."""
    try:
        return Study.model_validate(dict(record.spec))
    except ValueError:
        return None


# --- facts and joining -----------------------------------------------------------------------------------------------


def _facts_of(evidence: Evidence, given: Iterable[ModelFacts]) -> ModelTable:
    """Return what is known of models: the shipped facts, then what the studies say, then the user's own file."""
    known = known_models()
    told: dict[str, ModelFacts] = {}
    for study in map(study_of, evidence.studies):
        if study is not None and study.facts and Path(study.facts).is_file():
            told.update({model.name: model for model in read_facts(study.facts)})
    for row in evidence.specs:
        if (
            any(value is not None for value in (row.family, row.parameters, row.tokens, row.date, row.base_model))
            or row.exposure
        ):
            told[row.name] = _told(row, told.get(row.name) or known.find(row.name))
    mine = tuple(given)
    return ModelTable((*known, *told.values(), *mine)) if told or mine else known


def study_facts(study: Study) -> ModelTable:
    """Return what is known of models, with what a study that has not run yet says of its own."""
    bare = Evidence(study.name, study.name, {}, known_models(), specs=study.rows())
    return _facts_of(bare, read_facts(study.facts) if study.facts and Path(study.facts).is_file() else ())


def _tasks_of(view: StoreView) -> Iterator[Benchmark]:
    """Return what the studies tell of their tasks: the size of the train split before carving, the score of a guess."""
    with view.open() as store:
        manifests = store.manifests_by_task(study=view.studies)
    for task, manifest in manifests.items():
        told = manifest.get("task") or {}
        splits = told.get("splits") or {}
        train, validation = splits.get("train") or {}, splits.get("validation") or {}
        size = train.get("available")
        if size is not None and validation.get("origin", "validation") not in ("validation", "none"):
            size += validation.get("available", 0)  # carved out of train
        yield Benchmark(_FOLD.sub("", task), train_size=size, chance=told.get("chance"))


def _told(row: ModelSpec, known: ModelFacts | None) -> ModelFacts:
    base = known or ModelFacts(row.name, row.series or "", None, None, None, "base", None, None, None)
    return replace(
        base,
        name=row.name,
        aliases=(),
        repository=None,
        family=row.family or base.family,
        parameters=row.parameters or base.parameters,
        size=row.parameters or base.size,
        tokens=row.tokens or base.tokens,
        compute=None if row.parameters and row.tokens else base.compute,
        date=row.date[:7] if row.date else base.date,
        kind=row.kind if row.kind != "auto" else base.kind,
        base_model=row.base_model or base.base_model,
        exposure=row.exposure or base.exposure,
    )


def _joined(parts: Sequence[Evidence]) -> Evidence:
    """Join several sources, protocol by protocol; a cell that two of them have is refused."""
    merged: dict[Protocol, ScoreMatrix] = {}
    for part in parts:
        for protocol, matrix in part.scores.items():
            merged[protocol] = _union(merged[protocol], matrix) if protocol in merged else matrix
    names = list(dict.fromkeys(part.source for part in parts))
    return Evidence(
        source=" + ".join(names),
        title=" + ".join(dict.fromkeys(part.title for part in parts)),
        scores={p: merged[p] for p in in_order(merged)},
        facts=known_models(),
        studies=tuple(record for part in parts for record in part.studies),
        specs=tuple({row.name: row for part in reversed(parts) for row in part.specs}.values()),
        notes=tuple(f"{part.source}: {note}" for part in parts for note in part.notes),
        stores=tuple(view for part in parts for view in part.stores),
        without_items={
            p: frozenset(t for part in parts for t in part.without_items.get(p, ())) for p in in_order(merged)
        },
    )


def _union(one: ScoreMatrix, two: ScoreMatrix) -> ScoreMatrix:
    models, tasks = tuple(dict.fromkeys(one.models + two.models)), tuple(dict.fromkeys(one.tasks + two.tasks))
    up: dict[str, bool] = dict(zip(one.tasks, one.higher_is_better, strict=True))
    metrics: dict[str, str] = dict(zip(one.tasks, one.metrics, strict=True))
    for task, direction, metric in zip(two.tasks, two.higher_is_better, two.metrics, strict=True):
        if up.setdefault(task, direction) != direction:
            raise InputError(f"{task} is higher-is-better in one source and lower-is-better in another")
        known = metrics.get(task)
        if known and metric and known != metric:
            raise InputError(f"{task} is scored by {known} in one source and by {metric} in another",
                             hint=f"choose one metric for all: --metric {metric}")  # fmt: skip
        metrics[task] = known or metric
    tables = []
    row, column = {m: i for i, m in enumerate(models)}, {t: j for j, t in enumerate(tasks)}
    for name in ("values", "stderr", "n"):
        table = np.full((len(models), len(tasks)), np.nan)
        for part in (one, two):
            grid = np.ix_([row[m] for m in part.models], [column[t] for t in part.tasks])
            new = getattr(part, name)
            if name == "values" and (twice := np.argwhere(np.isfinite(table[grid]) & np.isfinite(new))).size:
                i, j = twice[0]
                raise InputError(
                    f"two sources have a {one.protocol} score of {part.models[i]} on {part.tasks[j]}",
                    hint="leave one of the sources out",
                )
            table[grid] = np.where(np.isfinite(new), new, table[grid])
        tables.append(table)
    return ScoreMatrix(
        one.protocol,
        models,
        tasks,
        tables[0],
        tables[1],
        tables[2],
        tuple(up[t] for t in tasks),
        tuple(metrics[t] for t in tasks),
    )

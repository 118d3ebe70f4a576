"""What studies and files tell of models and tasks, beside the shipped facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.facts import Benchmark, ModelFacts, ModelTable, read_facts
from potentia.facts import models as known_models
from potentia.store import StudyRecord
from potentia.study import ModelSpec, Study
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.evidence.evidence import StoreView


def study_of(record: StudyRecord) -> Study | None:
    """Return a stored study as a Study; None for imported scores, and for a study of another version."""
    try:
        return Study.model_validate(dict(record.spec))
    except ValueError:
        return None


def specs_of(records: Iterable[StudyRecord]) -> tuple[ModelSpec, ...]:
    """Return the models that the studies name, checkpoints expanded; imported scores name none."""
    found: dict[str, ModelSpec] = {}
    for study in map(study_of, records):
        for row in study.rows() if study is not None else ():
            found.setdefault(row.name, row)
    return tuple(found.values())


def facts_of(studies: Iterable[StudyRecord], specs: Iterable[ModelSpec], given: Iterable[ModelFacts]) -> ModelTable:
    """Return what is known of models: the shipped facts, then what the studies say, then the user's own file."""
    known = known_models()
    told: dict[str, ModelFacts] = {}
    for study in map(study_of, studies):
        if study is not None and study.facts and Path(study.facts).is_file():
            told.update({model.name: model for model in read_facts(study.facts)})
    for row in specs:
        if (
            any(value is not None for value in (row.family, row.parameters, row.tokens, row.date, row.base_model))
            or row.exposure
        ):
            told[row.name] = _told(row, told.get(row.name) or known.find(row.name))
    mine = tuple(given)
    return ModelTable((*known, *told.values(), *mine)) if told or mine else known


def study_facts(study: Study) -> ModelTable:
    """Return what is known of models, with what a study that has not run yet says of its own."""
    own = read_facts(study.facts) if study.facts and Path(study.facts).is_file() else ()
    return facts_of((), study.rows(), own)


def tasks_of(view: StoreView) -> Iterator[Benchmark]:
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
        yield Benchmark(TaskName(task).whole, train_size=size, chance=told.get("chance"))


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

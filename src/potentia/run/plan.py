"""The plan of a study: which rows and cells there are, which are done already, and what the rest will cost.

Planning is pure: it reads tasks, hashes model files and looks into the store, and changes nothing. A row's plan holds
all that another process or machine needs to compute the row, and can be pickled.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.errors import InputError, PotentiaError
from potentia.facts import Kind, decide_kind, models
from potentia.run.preflight import check_source
from potentia.run.progress import find_store
from potentia.study import (
    Adjust,
    Caps,
    ModelSpec,
    Study,
    TaskSpec,
    adjust_tuning,
    cell_key,
    content_key,
    own_rates,
    renamed,
    step_key,
    study_key,
)
from potentia.values.protocol import ADJUST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.tasks import Task

PART = " · part "
TOLD_SECONDS = 1.0  # between two words of planning
SMALL_TEST = 100  # documents; with fewer, few differences between models can be told


@dataclass(frozen=True)
class CellPlan:
    """One model × task × protocol, with the key that names everything its score depends on.

    A cell is found by its content, but read by the names of its model and task. Where the store has the content under
    other names (the last checkpoint ``run@12000`` has the files of the finished model ``run``), the study gets a copy
    of the cell ``copy_of`` under its own names.
    """

    task: str
    protocol: Protocol
    key: str
    done: bool = False
    copy_of: str | None = None


@dataclass(frozen=True)
class RowPlan:
    """All cells of one model. A model that cannot be read has a problem and no keys."""

    study: Study  # with its dtype settled and without models: a row knows its own, and travels
    study_key: str
    model: ModelSpec
    cells: tuple[CellPlan, ...]
    weights: str  # fingerprint of the model: its files, or what a treated copy is made of
    original: str  # fingerprint of the files that are loaded first, before they are quantised
    prints: Mapping[str, str]  # fingerprints of the tasks
    problem: str | None = None
    threads: int = 0  # on a CPU; 0 while it is not planned to run
    run: str = ""  # the run that this is for
    part: tuple[int, int] | None = None  # which of how many, where some of the row's tasks are meant

    @property
    def label(self) -> str:
        """What the row is called while it runs."""
        if self.part is None:
            return self.model.name
        return f"{self.model.name}{PART}{self.part[0]} of {self.part[1]}"

    @property
    def pending(self) -> tuple[CellPlan, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.done)


class LoadedTasks(NamedTuple):
    """The benchmarks of a study by name, the auxiliary data of adjust, and what treated copies are shown."""

    benchmarks: Mapping[str, Task]
    auxiliary: Task | None
    shown: Mapping[str, Task]


@dataclass(frozen=True)
class StudyPlan:
    """Every row of a study, with its tasks loaded.

    ``outdated`` are cells that the study has in its store and does not ask for any more: made by another version of
    Potentia, or of files that have changed since. ``damaged`` are cells whose items are missing or cannot be read. Both
    are computed anew.
    """

    study: Study
    key: str
    rows: tuple[RowPlan, ...]
    tasks: LoadedTasks
    outdated: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    run: str = ""

    def cells(self) -> Iterator[CellPlan]:
        """Go through the cells of all rows."""
        return (cell for row in self.rows for cell in row.cells)

    def notes(self) -> tuple[str, ...]:
        """Say what was inferred of own data or left out, and which tests are too small to tell models apart."""
        said = [f"{name}: {note}" for name, task in self.tasks.benchmarks.items() for note in task.notes]
        for spec in self.study.benchmarks():
            if spec.ratios is None and spec.folds is None:
                plan = self.tasks.benchmarks[spec.name].plan
                if plan.test.origin.endswith("of the one split") and plan.test.available < SMALL_TEST:
                    said.append(
                        f"{spec.name} is tested on {plan.test.available} documents: few to tell models apart."
                        " In the task's entry, `ratios: [6, 1, 3]` tests on three times as many, `folds: 5` on all."
                    )
        return tuple(said)

    def cost(self) -> dict[str, float]:
        """Estimate the pending work: cells, lanes, tokens to train and to score, and FLOPs where sizes are known."""
        from potentia.run.cost import work_of

        left = [work for work in work_of(self) if not work.done]
        return {
            "cells": len(left),
            "lanes": round(sum(work.lanes for work in left)),
            "train_tokens": sum(work.train_tokens for work in left),
            "score_tokens": sum(work.score_tokens for work in left),
            "flops": sum(work.flops for work in left if work.flops == work.flops),
        }


# --- tasks -----------------------------------------------------------------------------------------------------------


def load_tasks(study: Study) -> LoadedTasks:
    """Load every task of the study; all that cannot be loaded are named in one error."""
    loaded: dict[str, Task] = {}
    problems: list[PotentiaError] = []
    for spec in study.benchmarks():
        try:
            loaded[spec.name] = _load_task(study, spec)
            if spec.shots and loaded[spec.name].kind == "corpus":
                words = f"{spec.name}: a text to predict has no examples before it"
                raise InputError(words, hint="drop its `shots`")
        except InputError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InputError(f"{len(problems)} tasks cannot be used\n" + "\n".join(f"  {p}" for p in problems))
    auxiliary = _load_auxiliary(study, study.adjust) if study.adjust and ADJUST in study.protocols else None
    wanted = study.treat.data if study.treat is not None else ()
    shown = {name: loaded[name] if name in loaded else _load_task(study, name) for name in wanted}
    for name, task in shown.items():
        if not task.documents("train"):
            raise InputError(f"treat.data: {name} has no documents to train on")
    return LoadedTasks(loaded, auxiliary, shown)


def _load_task(study: Study, spec: TaskSpec | str) -> Task:
    """Load one task with the study's splits, caps and seed; what is shown may be named by its source alone."""
    from potentia.tasks import Division, OwnData, load

    spec = TaskSpec(name=spec, ratios=(8, 1, 1)) if isinstance(spec, str) else spec
    source, own = spec.source, None
    said = spec.columns.given() or spec.labels or spec.prompt is not None
    if spec.dataset is not None or said or isinstance(spec.file, tuple):
        files = (spec.file,) if isinstance(spec.file, str) else spec.file or ()
        form = ""
        if len(files) == 1 and not Path(files[0]).exists():  # a prompt form may follow the file: own.jsonl:cloze
            named = TaskName(files[0])
            files, form = (named.base,), named.form
        columns = spec.columns.given()
        own = OwnData(
            files, spec.dataset, spec.subset, columns, spec.prompt, dict(spec.labels), drop_bad_rows=study.drop_bad_rows
        )
        source = f"{own.label}:{form}" if form else own.label
    fold = (spec.fold, spec.folds) if spec.fold is not None and spec.folds is not None else None
    return load(
        source,
        data_dir=Path(study.data_dir) if study.data_dir else None,
        caps=study.caps.but(spec.caps),
        seed=study.seed,
        carve=study.carve,
        drop_overlap=study.drop_overlap,
        own=own,
        division=Division(spec.ratios, fold),
        mean=spec.mean,
        answer_tokens=spec.answer_tokens or study.answer_tokens,
        drop_bad_rows=study.drop_bad_rows,
    )


def _load_auxiliary(study: Study, adjust: Adjust) -> Task:
    """Load what models are adjusted on: undivided, with a cap of its own, multiple choice as letters to choose from.

    The auxiliary data of the paper ask with letters (section 2.1). Data that are learned as texts to complete teach
    nothing of that form.
    """
    from potentia.tasks import load

    def loaded(source: str) -> Task:
        return load(
            source,
            data_dir=Path(study.data_dir) if study.data_dir else None,
            caps=Caps(train=adjust.cap, validation=None, test=None),
            seed=study.seed,
            hold_out=adjust.hold_out or 0,
            answer_tokens=study.answer_tokens,
        )

    task = loaded(adjust.data)
    formed = bool(TaskName(Path(adjust.data).name).form)
    return task if formed or adjust.form == "own" or not task.options else loaded(f"{adjust.data}:{adjust.form}")


# --- kinds of models ------------------------------------------------------------------------------------------------


def kind_of(study: Study, model: ModelSpec, *, template: bool | None = None) -> Kind | None:
    """Decide whether a model is a base or an instruct model; None where its tokenizer has to tell."""
    table = models(study.facts)
    return decide_kind(model.kind, (model.name, model.source), table, instruct_of=model.base_model, template=template)


def settled_kind(study: Study, model: ModelSpec) -> Kind | None:
    """Decide the kind where it matters for the score: a model without a chat template is asked plainly anyway."""
    from potentia.engine import may_have_template

    return kind_of(study, model) if may_have_template(model.source) else None


def lanes_name(row: RowPlan, kind: Protocol) -> str:
    """Name the folder of a row's lanes by the cells that they are for, whether these are done or not."""
    cells = [cell.copy_of or cell.key for cell in row.cells if cell.protocol == kind]
    return content_key(cells=sorted(cells))


def remove_lanes(folder: Path) -> None:
    """Remove a folder of lanes, and the one it lies in where it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


# --- planning --------------------------------------------------------------------------------------------------------


def plan_study(study: Study, *, tell: Callable[[str], Any] = lambda _: None) -> StudyPlan:
    """Find every cell's key and whether the store has it. Model files are hashed, not loaded; nothing is written."""
    from potentia.engine import planned_dtype
    from potentia.tasks import quiet

    models = study.rows()
    for model in models:
        check_source(model)
    with quiet():  # once for all tasks
        tasks = load_tasks(study)
    _check_adjust(study, tasks)
    key = study_key(study)
    dtype = planned_dtype(study.dtype, study.device)
    bare = study.model_copy(update={"dtype": dtype, "models": (), "only": None})
    rows, told = [], time.monotonic()
    for model in models:
        rows.append(_plan_row(study, bare, key, tasks, model))
        if time.monotonic() - told > TOLD_SECONDS:
            told = time.monotonic()
            tell(f"reading models: {len(rows):,} of {len(models):,}")
    store = find_store(study.store)
    if store is None:
        return StudyPlan(study, key, tuple(rows), tasks)
    with store:
        rows = seen(rows, store)
        damaged = store.damaged([cell.key for row in rows for cell in row.pending])
        if damaged and not any(cell.done for row in rows for cell in row.cells):
            store.check_items(damaged)
        wanted = {cell.key for row in rows for cell in row.cells}
        readable = {row.model.name for row in rows if not row.problem}
        outdated = [k for k, model in store.linked(key).items() if model in readable and k not in wanted]
    return StudyPlan(study, key, tuple(rows), tasks, tuple(outdated), tuple(damaged))


def under_way(plan: StudyPlan, threads: int) -> StudyPlan:
    """Return the plan as one run of it, which has a name of its own, with the threads of a row."""
    run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"  # sorts by time
    return replace(plan, run=run, rows=tuple(replace(row, run=run, threads=threads) for row in plan.rows))


def _plan_row(whole: Study, study: Study, key: str, tasks: LoadedTasks, model: ModelSpec) -> RowPlan:
    """Plan one row; a model that cannot be read becomes a row with a problem, not an error."""
    from potentia.engine import fingerprint, quantised_fingerprint

    original, problem = "", None
    try:
        original = fingerprint(
            model.source, revision=model.revision, gguf_file=model.gguf_file, adapters=model.adapters
        )
    except (PotentiaError, OSError) as error:
        problem = str(error)
    treated = model.copy_of is not None and not problem
    weights = quantised_fingerprint(original, model.quantise) if not problem else original
    weights = _treated(study, weights, tasks.shown) if treated else weights
    prints = {name: task.fingerprint for name, task in tasks.benchmarks.items()}
    auxiliary = tasks.auxiliary.fingerprint if tasks.auxiliary else None
    steps, rates = sorted(set(study.adjust.at_steps)) if study.adjust else [], own_rates(study, model)
    kind = settled_kind(study, model)
    cells = []
    for protocol in map(Protocol, study.protocols):
        for name, task in tasks.benchmarks.items():
            if protocol.kind == "few_shot" and task.kind == "corpus":
                continue  # a text to predict has no examples before it
            if not whole.asks(model.name, name, protocol):
                continue
            own = (
                ""
                if problem
                else cell_key(
                    study,
                    weights,
                    prints[name],
                    protocol,
                    kind=kind,
                    shots=study.shots_for(name, protocol),
                    rates=rates,
                    auxiliary=auxiliary,
                )
            )
            for step in steps if protocol == ADJUST else ():
                cells.append(CellPlan(name, protocol.at(step), own and step_key(own, step)))
            cells.append(CellPlan(name, protocol, own))
    return RowPlan(study, key, model, tuple(cells), weights, original, prints, problem)


def _treated(study: Study, original: str, shown: Mapping[str, Task]) -> str:
    """Name a treated copy by its original, what it is shown, and how."""
    assert study.treat is not None
    return content_key(
        original=original,
        data=[task.fingerprint for task in shown.values()],
        tuning=study.treat.recipe(study.tuning),
        seed=study.treat.seed,
        dtype=study.dtype,
    )


def seen(rows: Sequence[RowPlan], store: Store) -> list[RowPlan]:
    """Return the rows with what the store has by now, under these names or others; damaged cells are to be made."""
    known = store.names([cell.key for row in rows for cell in row.pending])
    for key in store.damaged(list(known)):
        del known[key]
    return [replace(row, cells=tuple(_seen(cell, row, known) for cell in row.cells)) for row in rows]


def _seen(cell: CellPlan, row: RowPlan, found: Mapping[str, tuple[str, str]]) -> CellPlan:
    names = (row.model.name, cell.task)
    if cell.done or found.get(cell.key, names) == names:
        return replace(cell, done=cell.done or cell.key in found)
    step = cell.protocol.step
    if step is None:
        own = renamed(cell.key, *names)
    else:  # named after the cell at the end
        end = next(other for other in row.cells if (other.task, other.protocol) == (cell.task, ADJUST))
        own = step_key(renamed(end.copy_of or end.key, *names), step)
    return replace(cell, key=own, done=True, copy_of=cell.key)


def take_over(row: RowPlan, store: Store) -> None:
    """Give the study the cells of this row that the store has, as copies where they are there under other names."""
    for cell in row.cells:
        if cell.copy_of is not None:
            store.copy_cell(cell.copy_of, cell.key, study=row.study_key, model=row.model.name, task=cell.task)
    store.adopt(row.study_key, [cell.key for cell in row.cells if cell.done])


def _check_adjust(study: Study, tasks: LoadedTasks) -> None:
    """Refuse auxiliary data without documents, steps that are never reached, and rates that nothing can choose from."""
    auxiliary = tasks.auxiliary
    if auxiliary is None or study.adjust is None:
        return
    blind = [name for name, task in tasks.benchmarks.items() if not task.documents("validation")]
    several = any(len(adjust_tuning(study, row).learning_rates) > 1 for row in study.rows())
    if blind and several and not auxiliary.documents("validation"):
        raise InputError(
            f"{blind[0]} has no validation documents to choose a learning rate by",
            hint="name one learning rate, or keep some of the auxiliary data to choose by: `adjust: {hold_out: 500}`",
        )
    documents = len(auxiliary.documents("train"))
    if not documents:
        raise InputError(f"adjust.data: {study.adjust.data} has no documents to train on")
    tuning = adjust_tuning(study)
    last = tuning.updates(documents)
    beyond = [step for step in study.adjust.at_steps if step > last]
    if beyond:
        raise InputError(
            f"adjust.at_steps: {beyond[0]} lies beyond the tuning, which has {last} steps",
            hint="name earlier steps, or raise the epochs",
        )

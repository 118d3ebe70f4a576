"""The plan of a study: which rows and cells there are, which are done already, and what the rest will cost.

Planning is pure: it reads tasks, hashes model files and looks into the store, and changes nothing. A row's plan holds
all that another process or machine needs to compute the row, and can be pickled.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from potentia.errors import InputError, PotentiaError
from potentia.facts import Kind, decide_kind, models
from potentia.run.preflight import check_source
from potentia.study import Adjust, Caps, ModelSpec, Study, TaskSpec, adjust_tuning, content_key, own_rates
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.tasks import Task

# Raise this when a change of the scoring code can change a score: older cells are then computed anew.
SCORING_VERSION = 1
FEW_BITS = ("bfloat16", "float16")

PART = " · part "
SMALL_TEST = 100  # documents; with fewer, few differences between models can be told


# Fields that say where and how fast to compute, but not what.
_ELSEWHERE = {"probe", "store", "device", "shards", "token_budget", "name", "data_dir", "keep_adapters"}


def study_key(study: Study) -> str:
    """Name the study by its content and its name; where it runs does not matter."""
    return content_key(name=study.name, study=study.model_dump(mode="json", exclude=_ELSEWHERE, exclude_defaults=True))


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
    formerly: str | None = None  # the key before `auto` was settled: a cell of that dtype under it is this cell


@dataclass(frozen=True)
class RowPlan:
    """All cells of one model. A model that cannot be read has a problem and no keys."""

    study: Study  # with its dtype settled
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
            "lanes": sum(work.lanes for work in left),
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
            _check_shots(study, spec, loaded[spec.name])
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
            base, _, form = files[0].partition(":")
            files = (base,)
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


def _check_shots(study: Study, spec: TaskSpec, task: Task) -> None:
    if spec.shots and task.kind == "corpus":
        raise InputError(f"{spec.name}: a text to predict has no examples before it", hint="drop its `shots`")


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
    formed = ":" in Path(adjust.data).name
    return task if formed or adjust.form == "own" or not task.options else loaded(f"{adjust.data}:{adjust.form}")


# --- keys ------------------------------------------------------------------------------------------------------------


class KeyParts(TypedDict):
    """What a cell's key may hold beside study, model, task and protocol."""

    kind: Kind | None
    shots: int | None
    rates: Sequence[float] | None
    auxiliary: str | None


def cell_key(
    study: Study,
    model: str,
    task: str,
    protocol: Protocol,
    *,
    kind: Kind | None,
    shots: int | None = None,
    rates: Sequence[float] | None = None,
    auxiliary: str | None = None,
) -> str:
    """Name everything that can change this cell's score; model, task and auxiliary data by their fingerprints.

    ``kind`` is what decides, before the tokenizer does, whether the model may be asked through a chat template.
    ``shots`` are the examples before a question where they are not the protocol's, ``rates`` a model's own.
    """
    parts: dict[str, Any] = {
        "scoring": SCORING_VERSION,
        "model": model,
        "dtype": study.dtype,
        "chat": study.chat,
        "task": task,
        "protocol": protocol,
        "seed": study.seed,
    }
    if protocol == TRAIN_BEFORE_TEST:
        parts |= {"tuning": study.tuning, "selection": study.selection, "seeds": study.seeds}
    if shots is not None and shots != protocol.shots:
        parts["shots"] = shots
    if protocol == ADJUST and study.adjust is not None:
        told = study.adjust  # of its data the content counts
        parts |= {
            "adjust": {"recipe": told.recipe, "tuning": told.tuning, "at_steps": told.at_steps},
            "adjust_data": auxiliary,
            "tuning": study.tuning,
            "selection": study.selection,
        }
        if rates is not None:
            parts["rates"] = list(rates)
    if kind is not None and kind.value == "base" and study.chat != "never":
        parts["kind"] = "base"  # a template decided in version 0.1
    return content_key(**parts, **_since_0_2(study, protocol))


def kind_of(study: Study, model: ModelSpec, *, template: bool | None = None) -> Kind | None:
    """Decide whether a model is a base or an instruct model; None where its tokenizer has to tell."""
    table = models(study.facts)
    return decide_kind(model.kind, (model.name, model.source), table, instruct_of=model.base_model, template=template)


def settled_kind(study: Study, model: ModelSpec) -> Kind | None:
    """Decide the kind where it matters for the score: a model without a chat template is asked plainly anyway."""
    from potentia.engine import may_have_template

    return kind_of(study, model) if may_have_template(model.source) else None


def _since_0_2(study: Study, protocol: Protocol) -> dict[str, Any]:
    """Tell apart what version 0.1 computed otherwise under the same settings; all other keys are as they were."""
    parts: dict[str, Any] = {}
    if protocol == TRAIN_BEFORE_TEST and study.tuning.method == "full":
        parts["full"] = True  # adapters were tuned nevertheless
    if protocol == TRAIN_BEFORE_TEST and study.tuning.race:
        parts["race"] = "chances"  # rates were dropped by another rule
    if protocol == ADJUST and study.adjust is not None:
        tuning = adjust_tuning(study)
        if study.adjust.recipe is not None:
            parts["recipe"] = "completion"  # the whole text was learned
        if study.adjust.every_rate:
            parts["every_rate"] = True
        if study.seeds > 1:
            parts["seeds"] = study.seeds  # one seed was tuned
        if tuning.race:
            parts["race"] = "chances"  # no rate was dropped
        if study.adjust.at_steps and len(tuning.learning_rates) > 1:
            parts["on_the_way"] = "chosen"  # the first rate's scores were kept, whichever was chosen
    if protocol.tuned:
        parts |= trained_since_0_2(study)
    if protocol.tuned and study.selection == "paper":
        parts["paper"] = "bare"  # the direct score could be taken with another task's adapter in place
    return parts


def lanes_name(row: RowPlan, kind: Protocol) -> str:
    """Name the folder of a row's lanes by the cells that they are for, whether these are done or not."""
    cells = [cell.copy_of or cell.key for cell in row.cells if cell.protocol == kind]
    return content_key(cells=sorted(cells))


def trained_since_0_2(study: Study) -> dict[str, Any]:
    """Tell apart trainings in few bits: a Gemma's norms and gates were taken for a Llama's in them."""
    return {"parts": "sure"} if study.dtype in FEW_BITS else {}


def step_key(key: str, step: int) -> str:
    """Return the key of an adjust cell's score after some optimizer steps."""
    return content_key(cell=key, step=step)


def renamed(key: str, model: str, task: str) -> str:
    """Return the key of the copy of a cell under these names, where the store has it under others."""
    return content_key(cell=key, model=model, task=task)


# --- planning --------------------------------------------------------------------------------------------------------


def plan_study(study: Study) -> StudyPlan:
    """Find every cell's key and whether the store has it. Model files are hashed, not loaded; nothing is written."""
    from potentia.store import Store
    from potentia.tasks import quiet

    for model in study.rows():
        check_source(model)
    with quiet():  # once for all tasks
        tasks = load_tasks(study)
    _check_adjust(study, tasks)
    store = Store.find(study.store)
    if store is None:
        key = study_key(study)
        return StudyPlan(study, key, tuple(_plan_row(study, key, tasks, model) for model in study.rows()), tasks)
    with store:
        key = _known_as(study, store)
        asked = [_plan_row(study, key, tasks, model) for model in study.rows()]
        rows = seen(asked, store)
        damaged = store.damaged([cell.copy_of or cell.key for row in rows for cell in row.cells if cell.done])
        rows = seen(asked, store, but=damaged) if damaged else rows
        wanted = {cell.key for row in rows for cell in row.cells}
        readable = {row.model.name for row in rows if not row.problem}
        outdated = [k for k, model in store.linked(key).items() if model in readable and k not in wanted]
    return StudyPlan(study, key, tuple(rows), tasks, tuple(outdated), tuple(damaged))


def under_way(plan: StudyPlan, threads: int) -> StudyPlan:
    """Return the plan as one run of it, which has a name of its own, with the threads of a row."""
    run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"  # sorts by time
    return replace(plan, run=run, rows=tuple(replace(row, run=run, threads=threads) for row in plan.rows))


def _known_as(study: Study, store: Store) -> str:
    """Return the study's key; one that an older version named otherwise goes on under the name it has."""
    key = study_key(study)
    named = [record for record in store.studies() if record.name == study.name]
    for record in named if key not in {record.key for record in named} else ():
        try:
            if study_key(Study.model_validate(dict(record.spec))) == key:
                return record.key
        except ValueError:  # imported scores, or fields that are no more
            continue
    return key


def _plan_row(study: Study, key: str, tasks: LoadedTasks, model: ModelSpec) -> RowPlan:
    """Plan one row; a model that cannot be read becomes a row with a problem, not an error."""
    from potentia.engine import fingerprint, planned_dtype, quantised_fingerprint
    from potentia.run.treated import treated_fingerprint

    asked = study
    study = study.model_copy(update={"dtype": planned_dtype(study.dtype, study.device)})
    original, problem = "", None
    try:
        original = fingerprint(
            model.source, revision=model.revision, gguf_file=model.gguf_file, adapters=model.adapters
        )
    except (PotentiaError, OSError) as error:
        problem = str(error)
    treated = model.copy_of is not None and not problem
    weights = quantised_fingerprint(original, model.quantise) if not problem else original
    weights = treated_fingerprint(study, weights, tasks.shown) if treated else weights
    prints = {name: task.fingerprint for name, task in tasks.benchmarks.items()}
    auxiliary = tasks.auxiliary.fingerprint if tasks.auxiliary else None
    steps, rates = sorted(set(study.adjust.at_steps)) if study.adjust else [], own_rates(study, model)
    kind = settled_kind(study, model)
    cells = []
    for protocol in map(Protocol, study.protocols):
        for name, task in tasks.benchmarks.items():
            if protocol.kind == "few_shot" and task.kind == "corpus":
                continue  # a text to predict has no examples before it
            if not study.asks(model.name, name, protocol):
                continue
            content = (weights, prints[name], protocol)
            shots = study.shots_for(name, protocol)
            more: KeyParts = {"kind": kind, "shots": shots, "rates": rates, "auxiliary": auxiliary}
            own = "" if problem else cell_key(study, *content, **more)
            sure = not protocol.tuned or study.dtype not in FEW_BITS
            old = cell_key(asked, *content, **more) if sure and not problem and asked != study else None
            if protocol == ADJUST:
                for step in steps:
                    before = old and step_key(old, step)
                    cells.append(CellPlan(name, protocol.at(step), own and step_key(own, step), formerly=before))
            cells.append(CellPlan(name, protocol, own, formerly=old))
    return RowPlan(study, key, model, tuple(cells), weights, original, prints, problem)


def seen(rows: Sequence[RowPlan], store: Store, but: Collection[str] = ()) -> list[RowPlan]:
    """Return the rows with what the store has by now, under these names or others; ``but`` some cells."""
    rows = _settled(rows, store)
    found = store.names([cell.key for row in rows for cell in row.pending])
    found = {key: names for key, names in found.items() if key not in but}
    return [replace(row, cells=tuple(_seen(cell, row, found) for cell in row.cells)) for row in rows]


def _settled(rows: Sequence[RowPlan], store: Store) -> list[RowPlan]:
    """Return the rows with the keys of cells stored before ``auto`` was settled, where the dtype is theirs."""
    old = [cell.formerly for row in rows for cell in row.pending if cell.formerly is not None]
    computed = store.dtypes(old) if old else {}
    return [
        replace(
            row,
            cells=tuple(
                replace(cell, key=cell.formerly)
                if cell.formerly is not None and computed.get(cell.formerly) == row.study.dtype
                else cell
                for cell in row.cells
            ),
        )
        if old
        else row
        for row in rows
    ]


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
    last = tuning.epochs * math.ceil(documents / tuning.batch)
    beyond = [step for step in study.adjust.at_steps if step > last]
    if beyond:
        raise InputError(
            f"adjust.at_steps: {beyond[0]} lies beyond the tuning, which has {last} steps",
            hint="name earlier steps, or raise the epochs",
        )

"""The plan of a study: which rows and cells there are, which are done already, and what the rest will cost.

Planning is pure: it reads tasks, hashes model files and looks into the store, and changes nothing. A row is what is to
be computed, an assignment also where and how; it holds all that another process or machine needs, and can be pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.engine import (
    check_adapter_config,
    check_model_folder,
    fingerprints,
    may_have_template,
    planned_dtype,
    quantised_fingerprint,
)
from potentia.errors import INTERRUPTS, InputError, PotentiaError, first_line
from potentia.extras import Extra, is_installed, require_extra
from potentia.facts import Kind, decide_kind, models
from potentia.run.progress import find_store
from potentia.study import (
    Adjust,
    Caps,
    ModelSpec,
    Study,
    TaskSpec,
    cell_key,
    content_key,
    find_rates_of_model,
    renamed_cell_key,
    step_key,
    study_key,
    tuning_for_adjust,
)
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.tasks import Task, UserData

REPORT_SECONDS = 1.0  # between two words of planning
WRITTEN_FORM = "question"  # the prompt form of auxiliary data that are answered by writing
SMALL_TEST = 100  # documents; with fewer, few differences between models can be told


@dataclass(frozen=True)
class CellPlan:
    """One model × task × protocol, with the key that names everything its score depends on.

    Where the store has the content under other names (the last checkpoint ``run@12000`` has the files of the finished
    model ``run``), the study gets a copy of the cell ``copy_of`` under its own names.
    """

    task: str
    protocol: Protocol
    key: str
    finished: bool = False
    copy_of: str | None = None


@dataclass(frozen=True)
class Row:
    """All cells of one model: what is to be computed. A model that cannot be read has a problem and no keys."""

    study: Study  # with its dtype settled and without models: a row knows its own, and travels
    study_key: str
    model: ModelSpec
    cells: tuple[CellPlan, ...]
    model_fingerprint: str  # of the model's files, or of what an exposed copy is made of
    original_fingerprint: str  # of the files that are loaded first, before they are quantised
    task_fingerprints: Mapping[str, str]
    problem: str | None = None

    @property
    def pending(self) -> tuple[CellPlan, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.finished)

    def refresh(self, store: Store) -> Row:
        """Return the row with the cells marked as finished that the store has by now."""
        (row,) = mark_finished_cells([self], store)
        return row


@dataclass(frozen=True)
class Assignment:
    """A row, or a part of it, as it is handed to one worker.

    The tasks of a row may be divided: each part has the cells of its own tasks, and ``part`` says which of how many it
    is. The lanes of one long task may be divided too: then ``lane_parts`` assignments train some of them each and
    choose nothing (``lane_part`` says which, from 0), and one more without a ``lane_part`` finds these lanes trained.
    """

    row: Row
    run: str = ""  # the run that it belongs to
    threads: int = 0  # on a CPU; 0 leaves them as they are
    memory_share: float = 1.0  # of its GPU's memory, where others run beside it
    part: tuple[int, int] | None = None
    lane_parts: int = 1
    lane_part: int | None = None

    @property
    def study(self) -> Study:
        """The study that it belongs to."""
        return self.row.study

    @property
    def model(self) -> ModelSpec:
        """The model to load."""
        return self.row.model

    @property
    def cells(self) -> tuple[CellPlan, ...]:
        """The cells of this part of the row."""
        return self.row.cells

    @property
    def pending(self) -> tuple[CellPlan, ...]:
        """The cells still to compute."""
        return self.row.pending

    @property
    def only_trains_lanes(self) -> bool:
        """Whether it trains lanes that another assignment chooses from."""
        return self.lane_part is not None

    @property
    def label(self) -> str:
        """What it is called while it runs."""
        label = self.model.name
        if self.part is not None:
            part_number, part_count = self.part
            label += f" · part {part_number} of {part_count}"
        if self.lane_part is not None:
            label += f" · fine-tunings, part {self.lane_part + 1} of {self.lane_parts}"
        return label

    def refresh(self, store: Store) -> Assignment:
        """Return the assignment with the cells marked as finished that the store has by now."""
        return replace(self, row=self.row.refresh(store))


class LoadedTasks(NamedTuple):
    """The tasks of a study by name, the auxiliary data of adjust, and what exposed copies are trained on."""

    by_name: Mapping[str, Task]
    auxiliary: Task | None
    exposure: Mapping[str, Task]


@dataclass(frozen=True)
class StudyPlan:
    """Every row of a study, with its tasks loaded.

    ``outdated`` are cells in its store that it does not ask for any more, made by another version or of files that have
    changed since; ``damaged`` are cells whose items cannot be read. Both are computed anew.
    """

    study: Study
    key: str
    rows: tuple[Row, ...]
    tasks: LoadedTasks
    outdated: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    run: str = ""  # the name of the run, once it has begun
    later_cells: int = 0  # that plans of the same study add, which progress counts to

    def iterate_cells(self) -> Iterator[CellPlan]:
        """Go through the cells of all rows."""
        for row in self.rows:
            yield from row.cells

    def refresh(self, store: Store) -> StudyPlan:
        """Return the plan with the cells marked as finished that the store has by now."""
        return replace(self, rows=tuple(mark_finished_cells(self.rows, store)))

    def count_finished_cells(self) -> int:
        """Return how many cells are marked as finished."""
        return sum(cell.finished for cell in self.iterate_cells())

    def collect_notes(self) -> tuple[str, ...]:
        """Say what was inferred about the user's data or left out, and which tests are too small to separate models."""
        notes = []
        for task_name, task in self.tasks.by_name.items():
            notes += [f"{task_name}: {note}" for note in task.notes]
        for task_spec in self.study.list_task_specs():
            splits = self.tasks.by_name[task_spec.name].split_plan
            # data in one split, of which nobody said how to divide it: 8:1:1 (``USUAL_RATIOS``)
            divided_by_default = (
                splits.shares_one_split and task_spec.ratios is None and task_spec.folds is None
            )
            if divided_by_default and splits.test.available < SMALL_TEST:
                notes.append(
                    f"{task_spec.name} is tested on {splits.test.available} examples: few to separate models."
                    " --folds 5 tests on all; `ratios: [6, 1, 3]` in the task's entry on three times as many."
                )
        return tuple(notes)


# --- tasks -----------------------------------------------------------------------------------------------------------


def load_tasks(study: Study) -> LoadedTasks:
    """Load every task of the study; all that cannot be loaded are named in one error."""
    tasks: dict[str, Task] = {}
    problems: list[InputError] = []
    for task_spec in study.list_task_specs():
        try:
            tasks[task_spec.name] = _load_task(study, task_spec)
            _check_shots(task_spec, tasks[task_spec.name])
            _plan_samples(study, task_spec, tasks[task_spec.name])
        except InputError as error:
            problems.append(error)
    if len({str(problem) for problem in problems}) == 1:  # folds of one file have one problem
        raise problems[0]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"{len(problems)} tasks cannot be used\n{listed}")
    auxiliary = None
    if study.adjust is not None and ADJUST in study.protocols:
        auxiliary = _load_auxiliary(study, study.adjust)
    return LoadedTasks(tasks, auxiliary, _load_exposure(study, tasks))


def _check_shots(task_spec: TaskSpec, task: Task) -> None:
    if task_spec.shots and task.kind == "corpus":
        raise InputError(
            f"{task_spec.name}: a perplexity corpus has no examples before it",
            hint="drop its `shots`",
        )


def _plan_samples(study: Study, task_spec: TaskSpec, task: Task) -> None:
    """Say how the answers of a task are sampled; refuse what is not answered by writing."""
    if task_spec.samples is not None and task.kind != "generation":
        raise InputError(
            f"{task_spec.name} is not answered by writing: there is nothing to sample",
            hint="drop its `samples`",
        )
    task.samples = study.make_sample_plan(task_spec.name)


def _load_task(study: Study, task_spec: TaskSpec) -> Task:
    """Load one task with the study's splits, caps and seed."""
    from potentia.tasks import Division, load

    source, own_data = _find_task_data(study, task_spec)
    fold = None
    if task_spec.fold is not None and task_spec.folds is not None:
        fold = (task_spec.fold, task_spec.folds)
    return load(
        source,
        data_dir=_find_data_folder(study),
        caps=study.caps.overridden_by(task_spec.caps),
        seed=study.seed,
        carve=study.carve,
        drop_overlap=study.drop_overlap,
        user_data=own_data,
        division=Division(task_spec.ratios, fold),
        group_mean=task_spec.mean,
        answer_tokens=task_spec.answer_tokens or study.answer_tokens,
        drop_bad_rows=study.drop_bad_rows,
        cluster_column=task_spec.cluster,
        blind=task_spec.blind_twin,
        category=task_spec.category,
    )


def _find_task_data(study: Study, task_spec: TaskSpec) -> tuple[str, UserData | None]:
    """Return the source of a task, and the user's own data where it is made of some."""
    from potentia.tasks import UserData

    columns = task_spec.columns.list_stated()
    describes_data = (
        columns
        or task_spec.labels
        or task_spec.prompt is not None
        or task_spec.metric is not None
        or not task_spec.merge_spellings
    )
    if not (describes_data or task_spec.dataset is not None or isinstance(task_spec.file, tuple)):
        return task_spec.source, None
    files = task_spec.file or ()
    if isinstance(files, str):
        files = (files,)
    prompt_form = ""
    if len(files) == 1 and not Path(files[0]).exists():  # a form may follow: own.jsonl:cloze
        task_name = TaskName(files[0])
        files = (task_name.base,)
        prompt_form = task_name.form
    own_data = UserData(
        files,
        task_spec.dataset,
        task_spec.subset,
        columns,
        task_spec.prompt,
        dict(task_spec.labels),
        drop_bad_rows=study.drop_bad_rows,
        merge_spellings=task_spec.merge_spellings,
        metric=task_spec.metric,
        cluster_column=task_spec.cluster,
    )
    source = f"{own_data.task_name}:{prompt_form}" if prompt_form else own_data.task_name
    return source, own_data


def _find_data_folder(study: Study) -> Path | None:
    return Path(study.data_dir) if study.data_dir else None


def _load_auxiliary(study: Study, adjust: Adjust) -> Task:
    """Load what models are adjusted on: undivided, with a cap of its own, multiple choice as letters to choose from.

    The auxiliary data of the paper ask with letters (section 2.1). Data that are learned as texts to complete teach
    nothing of that form. Several data sets are learned together, as the paper's two of mathematics.
    """
    from potentia.tasks import Task

    caps = Caps(train=adjust.cap, validation=None, test=None)
    hold_out = adjust.hold_out or 0
    if len(adjust.sources) == 1:
        return _load_auxiliary_part(study, adjust, adjust.sources[0], caps, hold_out)
    no_caps = Caps(train=None, validation=None, test=None)
    parts = [_load_auxiliary_part(study, adjust, source, no_caps, 0) for source in adjust.sources]
    return Task.join_auxiliary(parts, caps=caps, seed=study.seed, hold_out=hold_out)


def _load_auxiliary_part(
    study: Study, adjust: Adjust, source: str, caps: Caps, hold_out: int
) -> Task:
    """Load one data set that models are adjusted on, in the form that is asked for."""
    from potentia.tasks import load

    load_undivided = partial(
        load,
        data_dir=_find_data_folder(study),
        caps=caps,
        seed=study.seed,
        hold_out=hold_out,
        answer_tokens=study.answer_tokens,
    )
    task = load_undivided(source)
    names_its_form = bool(TaskName(Path(source).name).form)
    is_written = task.kind == "generation"
    form_fits = is_written if adjust.form == WRITTEN_FORM else task.has_options
    if names_its_form or adjust.form == "own" or not form_fits:
        return task
    return load_undivided(f"{source}:{adjust.form}")


def _load_exposure(study: Study, tasks: Mapping[str, Task]) -> dict[str, Task]:
    """Load the tasks whose training documents exposed copies are trained on."""
    if study.treat is None:
        return {}
    exposure = {}
    for source in study.treat.data:
        exposure[source] = tasks.get(source) or _load_task(study, TaskSpec(name=source))
        if not exposure[source].documents("train"):
            raise InputError(f"treat.data: {source} has no examples to train on")
    return exposure


def decide_model_kind(
    study: Study, model: ModelSpec, *, template: bool | None = None
) -> Kind | None:
    """Decide whether a model is a base or an instruct model; None where its tokenizer has to tell."""
    return decide_kind(
        model.kind,
        (model.name, model.source),
        models(study.facts),
        instruct_of=model.base_model,
        template=template,
    )


def decide_scoring_kind(study: Study, model: ModelSpec) -> Kind | None:
    """Decide the kind where it matters for the score: a model without a chat template is asked plainly anyway."""
    return decide_model_kind(study, model) if may_have_template(model.source) else None


# --- planning --------------------------------------------------------------------------------------------------------


def plan_study(study: Study, *, report: Callable[[str], Any] = lambda _: None) -> StudyPlan:
    """Find every result's key and whether the store has it. Model files are hashed, not loaded; nothing is written.

    Args:
        study: A study, from ``read_study`` or ``make_study``.
        report: Receives a line on what is being read.

    Example:
        >>> potentia.plan_study(potentia.read_study("study.yaml"))
    """
    require_extra(Extra.RUN, "planning a study")
    from potentia.tasks import silence_libraries

    specs = study.rows()
    for model_spec in specs:
        check_model_source(model_spec)
    sources = [
        (model_spec.source, model_spec.revision, model_spec.gguf_file, tuple(model_spec.adapters))
        for model_spec in specs
    ]
    hashed = fingerprints(sources)  # while tasks are read; a study that is refused waits for none
    with silence_libraries():  # once for all tasks
        tasks = load_tasks(study)
    _check_adjust(study, tasks)
    planner = _RowPlanner(study, study_key(study), tasks)
    rows = []
    reported = time.monotonic()
    for model_spec, source in zip(specs, sources, strict=True):
        rows.append(planner.plan_row(model_spec, hashed[source]))
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            report(f"reading models: {len(rows):,} of {len(specs):,}")
    study_plan = StudyPlan(study, planner.study_key, tuple(rows), tasks=tasks)
    store = find_store(study.store)
    if store is None:
        return study_plan
    with store:
        return _compare_with_store(study_plan, store)


def _compare_with_store(study_plan: StudyPlan, store: Store) -> StudyPlan:
    """Return a plan with what the store has of it: finished, damaged and outdated cells."""
    study_plan = study_plan.refresh(store)
    pending = [cell.key for cell in study_plan.iterate_cells() if not cell.finished]
    damaged = store.cells.find_damaged(pending)
    if damaged and not study_plan.count_finished_cells():
        store.cells.refuse_wrong_items_folder(damaged)
    planned = {cell.key for cell in study_plan.iterate_cells()}
    readable = {row.model.name for row in study_plan.rows if not row.problem}
    outdated = []
    for stored_key, model in store.cells.read_models_by_key(study_plan.key).items():
        if model in readable and stored_key not in planned:
            outdated.append(stored_key)
    return replace(study_plan, outdated=tuple(outdated), damaged=tuple(damaged))


class _RowPlanner:
    """Plans the rows of one study, which share its tasks and settings."""

    def __init__(self, study: Study, study_key: str, tasks: LoadedTasks) -> None:
        self.study_key = study_key
        self._study = study
        self._tasks = tasks
        self._row_study = study.model_copy(update={"models": (), "only": None})
        self._studies_by_dtype: dict[str, Study] = {}
        self._task_fingerprints = {
            task_name: task.fingerprint for task_name, task in tasks.by_name.items()
        }
        self._auxiliary_fingerprint = tasks.auxiliary.fingerprint if tasks.auxiliary else None
        self._steps = sorted(set(study.adjust.at_steps)) if study.adjust else []

    def _row_study_for(self, model: ModelSpec) -> Study:
        """Return the study as a model's row carries it: without models, and with the dtype of this model settled."""
        dtype = planned_dtype(model.dtype or self._study.dtype, self._study.device)
        if dtype not in self._studies_by_dtype:
            settled = self._row_study.model_copy(update={"dtype": dtype})
            self._studies_by_dtype[dtype] = settled
        return self._studies_by_dtype[dtype]

    def plan_row(self, model: ModelSpec, hashed: Future[str]) -> Row:
        """Plan one row; a model that cannot be read becomes a row with a problem, not an error."""
        original_fingerprint = ""
        model_fingerprint = ""
        problem = None
        try:
            original_fingerprint = hashed.result()
            model_fingerprint = self._fingerprint_as_scored(model, original_fingerprint)
        except INTERRUPTS:
            raise
        except (PotentiaError, OSError) as error:
            problem = str(error)
        except (
            BaseException
        ) as error:  # whatever a library makes of its files, the other rows go on
            problem = f"{type(error).__name__}: {first_line(error)}"
        return Row(
            study=self._row_study_for(model),
            study_key=self.study_key,
            model=model,
            cells=tuple(self._plan_cells(model, None if problem else model_fingerprint)),
            model_fingerprint=model_fingerprint,
            original_fingerprint=original_fingerprint,
            task_fingerprints=self._task_fingerprints,
            problem=problem,
        )

    def _fingerprint_as_scored(self, model: ModelSpec, original: str) -> str:
        """Return the fingerprint of a model as it is scored: quantised, or as an exposed copy."""
        fingerprint = quantised_fingerprint(original, model.quantise)
        if model.copy_of is None:
            return fingerprint
        study = self._row_study_for(model)
        assert study.treat is not None
        return content_key(
            original=fingerprint,
            data=[task.fingerprint for task in self._tasks.exposure.values()],
            tuning=study.treat.make_tuning(study.tuning),
            seed=study.treat.seed,
            dtype=study.dtype,
        )

    def _plan_cells(self, model: ModelSpec, fingerprint: str | None) -> Iterator[CellPlan]:
        """Go through the cells of a model; they have no keys where its fingerprint is not known."""
        study = self._row_study_for(model)
        scoring_kind = decide_scoring_kind(study, model)
        rates = find_rates_of_model(study, model)
        for protocol, (task_name, task) in product(
            map(Protocol, study.protocols), self._tasks.by_name.items()
        ):
            has_no_examples = protocol.kind == "few_shot" and task.kind == "corpus"
            if has_no_examples or not self._study.includes_cell(model.name, task_name, protocol):
                continue
            key = ""
            seeds = None
            if protocol == TRAIN_BEFORE_TEST:
                seeds = study.count_seeds(model.name, task_name)
            if fingerprint is not None:
                key = cell_key(
                    study,
                    fingerprint,
                    self._task_fingerprints[task_name],
                    protocol,
                    shots=study.count_shots(task_name, protocol),
                    kind=scoring_kind,
                    rates=rates,
                    auxiliary_fingerprint=self._auxiliary_fingerprint,
                    seeds=seeds,
                    samples=study.make_sample_plan(task_name),
                )
            if protocol == ADJUST:
                for step in self._steps:
                    yield CellPlan(task_name, protocol.at_step(step), key and step_key(key, step))
            yield CellPlan(task_name, protocol, key)


def mark_finished_cells(rows: Sequence[Row], store: Store) -> list[Row]:
    """Return the rows with what the store has by now, under these names or others; damaged cells are to be made."""
    pending: list[str] = []
    for row in rows:
        pending.extend(cell.key for cell in row.pending)
    names_by_key = store.cells.read_names(pending)
    for cell_key_in_store in store.cells.find_damaged(list(names_by_key)):
        del names_by_key[cell_key_in_store]
    marked = []
    for row in rows:
        cells = [_mark_finished(cell, row, names_by_key) for cell in row.cells]
        marked.append(replace(row, cells=tuple(cells)))
    return marked


def _mark_finished(
    cell: CellPlan, row: Row, names_by_key: Mapping[str, tuple[str, str]]
) -> CellPlan:
    """Return a cell as finished where the store has it; as a copy where it has it under other names."""
    names = (row.model.name, cell.task)
    if cell.finished or names_by_key.get(cell.key, names) == names:
        return replace(cell, finished=cell.finished or cell.key in names_by_key)
    key = renamed_cell_key(cell.key, *names)
    step = cell.protocol.step
    if step is not None:  # named after the cell at the end
        last_cell = next(
            adjusted
            for adjusted in row.cells
            if (adjusted.task, adjusted.protocol) == (cell.task, ADJUST)
        )
        key = step_key(renamed_cell_key(last_cell.copy_of or last_cell.key, *names), step)
    return replace(cell, key=key, finished=True, copy_of=cell.key)


def adopt_finished_cells(row: Row, store: Store) -> None:
    """Give the study the cells of this row that the store has, as copies where they are there under other names."""
    for cell in row.cells:
        if cell.copy_of is not None:
            store.cells.copy(
                cell.copy_of, cell.key, study=row.study_key, model=row.model.name, task=cell.task
            )
    store.cells.adopt(row.study_key, [cell.key for cell in row.cells if cell.finished])


def _check_adjust(study: Study, tasks: LoadedTasks) -> None:
    """Refuse auxiliary data without documents, steps that are never reached, and rates that nothing can choose from."""
    auxiliary = tasks.auxiliary
    if auxiliary is None or study.adjust is None:
        return
    unvalidated = [
        task_name for task_name, task in tasks.by_name.items() if not task.documents("validation")
    ]
    has_choice = any(len(tuning_for_adjust(study, row).learning_rates) > 1 for row in study.rows())
    if unvalidated and has_choice and not auxiliary.documents("validation"):
        raise InputError(
            f"{unvalidated[0]} has no validation examples to choose a learning rate by",
            hint="name one learning rate, or keep some of the auxiliary data to choose by:"
            " `adjust: {hold_out: 500}`",
        )
    documents = len(auxiliary.documents("train"))
    if not documents:
        auxiliary_sources = ", ".join(study.adjust.sources)
        raise InputError(f"adjust.data: {auxiliary_sources} has no examples to train on")
    last_step = tuning_for_adjust(study).count_updates(documents)
    beyond = [step for step in study.adjust.at_steps if step > last_step]
    if beyond:
        raise InputError(
            f"adjust.at_steps: {beyond[0]} lies beyond the tuning, which has {last_step} steps",
            hint="name earlier steps, or raise the epochs",
        )


# --- models on disk --------------------------------------------------------------------------------------------------

TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "*vocab.json",
    "merges.txt",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
    "dict.txt",
    "*.codes",
    "*.tokenizer",
    "spiece*",
    "bpe*",
)
# Packages that read the weights of a quantisation, any of which will do; the first is the one to install.
QUANTISED = {
    "bitsandbytes": ("bitsandbytes",),
    "gptq": ("gptqmodel", "auto_gptq"),
    "awq": ("gptqmodel", "awq"),
    "compressed-tensors": ("compressed_tensors",),
    "hqq": ("hqq",),
    "quanto": ("optimum.quanto",),
    "torchao": ("torchao",),
    "aqlm": ("aqlm",),
}


def check_model_source(model: ModelSpec) -> None:
    """Refuse a model that is plainly a path but not there, lacks its tokenizer, or needs a package that is missing.

    Each would fail every cell of its row. A hub name is left to the hub, a folder without a config to the loading.
    """
    source, description = model.source, f"model {model.name!r}"
    source_path = Path(source).expanduser()
    looks_like_path = (
        source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf")
    )
    if looks_like_path and not source_path.exists():
        hint = "give a folder with config.json and weights, or a hub name such as org/model"
        raise InputError(f"{description}: there is no {source}", hint=hint)
    if model.quantise:
        require_extra(Extra.QUANTISE, f"{description}: quantise: {model.quantise}")
    if source.endswith(".gguf") or model.gguf_file:
        require_extra(Extra.GGUF, f"{description}: reading a GGUF file")
        return
    if not (source_path / "config.json").is_file():
        return
    config = check_model_folder(source_path, description)
    _check_quantised(config.get("quantization_config"), description, model.quantise)
    for adapter in model.adapters:
        check_adapter_config(Path(adapter).expanduser(), description)
    if not model.trust_remote_code and not any(
        next(source_path.glob(file_pattern), None) for file_pattern in TOKENIZER_FILES
    ):
        hint = (
            "save it into the folder: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
        )
        raise InputError(f"{description}: {source} has no tokenizer", hint=hint)


def _check_quantised(quantization: Any, description: str, quantise: str | None) -> None:
    method = str(quantization.get("quant_method", "")) if isinstance(quantization, dict) else ""
    if quantization and quantise:
        words = f"{description}: its weights are quantised already ({method or 'as its config.json says'})"
        raise InputError(words, hint=f"drop `quantise: {quantise}`, or give the model unquantised")
    packages = QUANTISED.get(method, ())
    if packages and not any(map(is_installed, packages)):
        hint = f"pip install {packages[0].replace('.', '-').replace('_', '-')}, or give the model unquantised"
        raise InputError(
            f"{description}: its {method} weights need a package that is not installed", hint=hint
        )

"""The plan of a study: which rows and cells there are, which are done already, and what the rest will cost.

Planning is pure: it reads tasks, hashes model files and looks into the store, and changes nothing. A row's plan holds
all that another process or machine needs to compute the row, and can be pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.util import find_spec
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
from potentia.facts import Kind, decide_kind, models
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

REPORT_SECONDS = 1.0  # between two words of planning
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
    """All cells of one model. A model that cannot be read has a problem and no keys."""

    study: Study  # with its dtype settled and without models: a row knows its own, and travels
    study_key: str
    model: ModelSpec
    cells: tuple[CellPlan, ...]
    model_fingerprint: str  # fingerprint of the model: its files, or what a treated copy is made of
    original_fingerprint: (
        str  # fingerprint of the files that are loaded first, before they are quantised
    )
    task_fingerprints: Mapping[str, str]  # fingerprints of the tasks
    problem: str | None = None
    threads: int = 0  # on a CPU; 0 while it is not planned to run
    memory: float = 1.0  # of its GPU's, where others run beside it
    run: str = ""  # the run that this is for
    part: tuple[int, int] | None = (
        None  # which of how many, where some of the row's tasks are meant
    )
    lane_parts: int = (
        1  # in how many parts the lanes of its one task train, before what is left of it is done
    )
    lane_part: int | None = (
        None  # which of these it is, from 0: lanes are trained, and nothing is chosen
    )

    @property
    def label(self) -> str:
        """What the row is called while it runs."""
        name = (
            self.model.name
            if self.part is None
            else f"{self.model.name} · part {self.part[0]} of {self.part[1]}"
        )
        return (
            name
            if self.lane_part is None
            else f"{name} · lanes {self.lane_part + 1} of {self.lane_parts}"
        )

    @property
    def pending(self) -> tuple[CellPlan, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.finished)


class LoadedTasks(NamedTuple):
    """The benchmarks of a study by name, the auxiliary data of adjust, and what treated copies are shown."""

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
    run: str = ""

    def iterate_cells(self) -> Iterator[CellPlan]:
        """Go through the cells of all rows."""
        return (cell for row in self.rows for cell in row.cells)

    def collect_notes(self) -> tuple[str, ...]:
        """Say what was inferred of own data or left out, and which tests are too small to tell models apart."""
        said = [
            f"{name}: {note}" for name, task in self.tasks.by_name.items() for note in task.notes
        ]
        for spec in self.study.benchmarks():
            test = self.tasks.by_name[spec.name].plan.test
            divided = (
                spec.ratios is None
                and spec.folds is None
                and test.origin.endswith("of the one split")
            )
            if divided and test.available < SMALL_TEST:
                said.append(
                    f"{spec.name} is tested on {test.available} documents: few to tell models apart."
                    " In the task's entry, `ratios: [6, 1, 3]` tests on three times as many, `folds: 5` on all."
                )
        return tuple(said)


# --- tasks -----------------------------------------------------------------------------------------------------------


def load_tasks(study: Study) -> LoadedTasks:
    """Load every task of the study; all that cannot be loaded are named in one error."""
    loaded: dict[str, Task] = {}
    problems: list[PotentiaError] = []
    for spec in study.benchmarks():
        try:
            loaded[spec.name] = _load_task(study, spec)
            if spec.shots and loaded[spec.name].kind == "corpus":
                raise InputError(
                    f"{spec.name}: a text to predict has no examples before it",
                    hint="drop its `shots`",
                )
        except InputError as error:
            problems.append(error)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise (
            problems[0]
            if len(problems) == 1
            else InputError(f"{len(problems)} tasks cannot be used\n{listed}")
        )
    auxiliary = (
        _load_auxiliary(study, study.adjust) if study.adjust and ADJUST in study.protocols else None
    )
    wanted = study.treat.data if study.treat is not None else ()
    shown = {name: loaded.get(name) or _load_task(study, TaskSpec(name=name)) for name in wanted}
    for name, task in shown.items():
        if not task.documents("train"):
            raise InputError(f"treat.data: {name} has no documents to train on")
    return LoadedTasks(loaded, auxiliary, shown)


def _load_task(study: Study, spec: TaskSpec) -> Task:
    """Load one task with the study's splits, caps and seed."""
    from potentia.tasks import Division, UserData, load

    source, own, columns = spec.source, None, spec.columns.given()
    if (
        spec.dataset is not None
        or columns
        or spec.labels
        or spec.prompt is not None
        or isinstance(spec.file, tuple)
    ):
        files = (spec.file,) if isinstance(spec.file, str) else spec.file or ()
        form = ""
        if (
            len(files) == 1 and not Path(files[0]).exists()
        ):  # a prompt form may follow the file: own.jsonl:cloze
            named = TaskName(files[0])
            files, form = (named.base,), named.form
        said = spec.dataset, spec.subset, columns, spec.prompt, dict(spec.labels)
        own = UserData(files, *said, drop_bad_rows=study.drop_bad_rows)
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

    how: dict[str, Any] = {
        "data_dir": Path(study.data_dir) if study.data_dir else None,
        "caps": Caps(train=adjust.cap, validation=None, test=None),
        "seed": study.seed,
        "hold_out": adjust.hold_out or 0,
        "answer_tokens": study.answer_tokens,
    }
    task = load(adjust.data, **how)
    formed = bool(TaskName(Path(adjust.data).name).form)
    return (
        task
        if formed or adjust.form == "own" or not task.has_options
        else load(f"{adjust.data}:{adjust.form}", **how)
    )


def decide_model_kind(
    study: Study, model: ModelSpec, *, template: bool | None = None
) -> Kind | None:
    """Decide whether a model is a base or an instruct model; None where its tokenizer has to tell."""
    table = models(study.facts)
    return decide_kind(
        model.kind,
        (model.name, model.source),
        table,
        instruct_of=model.base_model,
        template=template,
    )


def decide_scoring_kind(study: Study, model: ModelSpec) -> Kind | None:
    """Decide the kind where it matters for the score: a model without a chat template is asked plainly anyway."""
    return decide_model_kind(study, model) if may_have_template(model.source) else None


# --- planning --------------------------------------------------------------------------------------------------------


def plan_study(study: Study, *, tell: Callable[[str], Any] = lambda _: None) -> StudyPlan:
    """Find every cell's key and whether the store has it. Model files are hashed, not loaded; nothing is written."""
    from potentia.tasks import silence_libraries

    models = study.rows()
    for model in models:
        check_model_source(model)
    named = [
        (model.source, model.revision, model.gguf_file, tuple(model.adapters)) for model in models
    ]
    prints = fingerprints(named)  # while tasks are read; a study that is refused waits for none
    with silence_libraries():  # once for all tasks
        tasks = load_tasks(study)
    _check_adjust(study, tasks)
    key = study_key(study)
    dtype = planned_dtype(study.dtype, study.device)
    bare = study.model_copy(update={"dtype": dtype, "models": (), "only": None})
    rows, told = [], time.monotonic()
    for model, name in zip(models, named, strict=True):
        rows.append(_plan_row(study, bare, key, tasks, model, prints[name]))
        if time.monotonic() - told > REPORT_SECONDS:
            told = time.monotonic()
            tell(f"reading models: {len(rows):,} of {len(models):,}")
    store = find_store(study.store)
    if store is None:
        return StudyPlan(study, key, tuple(rows), tasks)
    with store:
        rows = mark_finished_cells(rows, store)
        damaged = store.damaged([cell.key for row in rows for cell in row.pending])
        if damaged and not any(cell.finished for row in rows for cell in row.cells):
            store.check_items(damaged)
        wanted = {cell.key for row in rows for cell in row.cells}
        readable = {row.model.name for row in rows if not row.problem}
        outdated = [
            k for k, model in store.linked(key).items() if model in readable and k not in wanted
        ]
    return StudyPlan(study, key, tuple(rows), tasks, tuple(outdated), tuple(damaged))


def _plan_row(
    whole: Study,
    study: Study,
    key: str,
    tasks: LoadedTasks,
    model: ModelSpec,
    print_of: Future[str],
) -> Row:
    """Plan one row; a model that cannot be read becomes a row with a problem, not an error."""
    original = weights = ""
    problem = None
    try:
        original = print_of.result()
        weights = quantised_fingerprint(original, model.quantise)
        weights = weights if model.copy_of is None else _treated(study, weights, tasks.exposure)
    except INTERRUPTS:
        raise
    except (PotentiaError, OSError) as error:
        problem = str(error)
    except BaseException as error:  # whatever a library makes of its files, the other rows go on
        problem = f"{type(error).__name__}: {first_line(error)}"
    prints = {name: task.fingerprint for name, task in tasks.by_name.items()}
    steps = sorted(set(study.adjust.at_steps)) if study.adjust else []
    same = {
        "kind": decide_scoring_kind(study, model),
        "rates": own_rates(study, model),
        "auxiliary": tasks.auxiliary.fingerprint if tasks.auxiliary else None,
    }
    cells = []
    for protocol, (name, task) in product(map(Protocol, study.protocols), tasks.by_name.items()):
        examples_of_text = protocol.kind == "few_shot" and task.kind == "corpus"  # there are none
        if examples_of_text or not whole.asks(model.name, name, protocol):
            continue
        own, shots = "", study.shots_for(name, protocol)
        if not problem:
            own = cell_key(study, weights, prints[name], protocol, shots=shots, **same)  # type: ignore[arg-type]
        for step in steps if protocol == ADJUST else ():
            cells.append(CellPlan(name, protocol.at(step), own and step_key(own, step)))
        cells.append(CellPlan(name, protocol, own))
    return Row(study, key, model, tuple(cells), weights, original, prints, problem)


def _treated(study: Study, original: str, shown: Mapping[str, Task]) -> str:
    """Name a treated copy by its original, what it is shown, and how."""
    assert study.treat is not None
    data, how = [task.fingerprint for task in shown.values()], study.treat.recipe(study.tuning)
    return content_key(
        original=original, data=data, tuning=how, seed=study.treat.seed, dtype=study.dtype
    )


def mark_finished_cells(rows: Sequence[Row], store: Store) -> list[Row]:
    """Return the rows with what the store has by now, under these names or others; damaged cells are to be made."""
    known = store.names([cell.key for row in rows for cell in row.pending])
    for key in store.damaged(list(known)):
        del known[key]
    return [
        replace(row, cells=tuple(_seen(cell, row, known) for cell in row.cells)) for row in rows
    ]


def _seen(cell: CellPlan, row: Row, found: Mapping[str, tuple[str, str]]) -> CellPlan:
    names = (row.model.name, cell.task)
    if cell.finished or found.get(cell.key, names) == names:
        return replace(cell, finished=cell.finished or cell.key in found)
    own, step = renamed(cell.key, *names), cell.protocol.step
    if step is not None:  # named after the cell at the end
        end = next(
            other for other in row.cells if (other.task, other.protocol) == (cell.task, ADJUST)
        )
        own = step_key(renamed(end.copy_of or end.key, *names), step)
    return replace(cell, key=own, finished=True, copy_of=cell.key)


def adopt_finished_cells(row: Row, store: Store) -> None:
    """Give the study the cells of this row that the store has, as copies where they are there under other names."""
    for cell in row.cells:
        if cell.copy_of is not None:
            store.copy_cell(
                cell.copy_of, cell.key, study=row.study_key, model=row.model.name, task=cell.task
            )
    store.adopt(row.study_key, [cell.key for cell in row.cells if cell.finished])


def _check_adjust(study: Study, tasks: LoadedTasks) -> None:
    """Refuse auxiliary data without documents, steps that are never reached, and rates that nothing can choose from."""
    auxiliary = tasks.auxiliary
    if auxiliary is None or study.adjust is None:
        return
    blind = [name for name, task in tasks.by_name.items() if not task.documents("validation")]
    several = any(len(adjust_tuning(study, row).learning_rates) > 1 for row in study.rows())
    if blind and several and not auxiliary.documents("validation"):
        hint = "name one learning rate, or keep some of the auxiliary data to choose by: `adjust: {hold_out: 500}`"
        raise InputError(
            f"{blind[0]} has no validation documents to choose a learning rate by", hint=hint
        )
    documents = len(auxiliary.documents("train"))
    if not documents:
        raise InputError(f"adjust.data: {study.adjust.data} has no documents to train on")
    last = adjust_tuning(study).updates(documents)
    if beyond := [step for step in study.adjust.at_steps if step > last]:
        words = f"adjust.at_steps: {beyond[0]} lies beyond the tuning, which has {last} steps"
        raise InputError(words, hint="name earlier steps, or raise the epochs")


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
    source, name = model.source, f"model {model.name!r}"
    path = Path(source).expanduser()
    looks_like_path = (
        source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf")
    )
    if looks_like_path and not path.exists():
        hint = "give a folder with config.json and weights, or a hub name such as org/model"
        raise InputError(f"{name}: there is no {source}", hint=hint)
    if model.quantise and not _is_there("bitsandbytes"):
        hint = "pip install 'potentia[quantise]'"
        raise InputError(f"{name}: quantise: {model.quantise} needs bitsandbytes", hint=hint)
    if source.endswith(".gguf") or model.gguf_file:
        if not _is_there("gguf"):
            raise InputError(
                f"{name}: reading a GGUF file needs gguf", hint="pip install 'potentia[gguf]'"
            )
        return
    if not (path / "config.json").is_file():
        return
    config = check_model_folder(path, name)
    _check_quantised(config.get("quantization_config"), name, model.quantise)
    for adapter in model.adapters:
        check_adapter_config(Path(adapter).expanduser(), name)
    if not model.trust_remote_code and not any(
        next(path.glob(kind), None) for kind in TOKENIZER_FILES
    ):
        hint = (
            "save it into the folder: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
        )
        raise InputError(f"{name}: {source} has no tokenizer", hint=hint)


def _check_quantised(said: Any, name: str, quantise: str | None) -> None:
    method = str(said.get("quant_method", "")) if isinstance(said, dict) else ""
    if said and quantise:
        words = f"{name}: its weights are quantised already ({method or 'as its config.json says'})"
        raise InputError(words, hint=f"drop `quantise: {quantise}`, or give the model unquantised")
    packages = QUANTISED.get(method, ())
    if packages and not any(map(_is_there, packages)):
        hint = f"pip install {packages[0].replace('.', '-').replace('_', '-')}, or give the model unquantised"
        raise InputError(
            f"{name}: its {method} weights need a package that is not installed", hint=hint
        )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False

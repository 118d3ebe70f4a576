"""The plan of a study: which rows and cells there are, which are done already, and what the rest will cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError, PotentiaError
from potentia.run.names import take_over
from potentia.study import ModelSpec, Study, content_key

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.tasks import Task

# Raise this when a change of the scoring code can change a score: older cells are then computed anew.
SCORING_VERSION = 1

CHARACTERS_PER_TOKEN = 4.0  # a rough reading of English text, used for the cost estimate alone


# Fields that say where and how fast to compute, but not what.
_ELSEWHERE = {"store", "device", "token_budget", "name", "data_dir"}


def study_key(study: Study) -> str:
    """Name the study by its content and its name; where it runs does not matter."""
    return content_key(name=study.name, study=study.model_dump(mode="json", exclude=_ELSEWHERE))


@dataclass(frozen=True)
class CellPlan:
    """One model × task × protocol, with the key that names everything its score depends on."""

    task: str
    protocol: str
    key: str
    done: bool


@dataclass(frozen=True)
class RowPlan:
    """All cells of one model. A model that cannot be read has a reason and no keys."""

    model: ModelSpec
    cells: tuple[CellPlan, ...]
    fingerprint: str = ""
    problem: str | None = None

    @property
    def pending(self) -> tuple[CellPlan, ...]:
        """The cells still to compute."""
        return tuple(cell for cell in self.cells if not cell.done)


@dataclass(frozen=True)
class Plan:
    """Every row of a study."""

    study: Study
    rows: tuple[RowPlan, ...]
    tasks: Mapping[str, Task]

    def cost(self) -> dict[str, float]:
        """Estimate the pending work: cells, lanes, tokens to train and to score, and FLOPs where sizes are known."""
        cells = lanes = 0
        trained = scored = flops = 0.0
        tuning, data = self.study.tuning, adjust_data(self.study)
        for row in self.rows:
            size = row.model.parameters or 0.0
            for cell in row.pending:
                cells += 1
                task = self.tasks[cell.task]
                test = _tokens(task, "test")
                scored += test
                flops += 2 * size * test
                if cell.protocol == "train_before_test":
                    jobs = len(tuning.learning_rates) * self.study.seeds
                    train = _tokens(task, "train") * tuning.epochs * jobs
                    check = _tokens(task, "validation") * tuning.epochs * jobs
                    lanes += jobs
                    trained += train
                    scored += check
                    flops += size * (4 * train + 2 * check)
            if data is not None and any(cell.protocol == "adjust" for cell in row.pending):
                recipe = (self.study.adjust and self.study.adjust.recipe_for(size)) or tuning
                train = _tokens(data, "train") * recipe.epochs * len(recipe.learning_rates)
                lanes += len(recipe.learning_rates)
                trained += train
                flops += 4 * size * train
        return {"cells": cells, "lanes": lanes, "train_tokens": trained, "score_tokens": scored, "flops": flops}


def load_tasks(study: Study) -> dict[str, Task]:
    """Load every task of the study; all that cannot be loaded are named in one error."""
    loaded: dict[str, Task] = {}
    problems: list[PotentiaError] = []
    for spec in study.tasks:
        try:
            loaded[spec.name] = load_task(study, spec.source)
        except InputError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InputError(f"{len(problems)} tasks cannot be used\n" + "\n".join(f"  {p}" for p in problems))
    return loaded


def load_task(study: Study, source: str) -> Task:
    """Load one task with the study's splits, caps and seed."""
    from potentia import tasks

    return tasks.load(
        source,
        data_dir=Path(study.data_dir) if study.data_dir else None,
        caps=tasks.Caps(**study.caps.model_dump()),
        seed=study.seed,
        carve=study.carve,
        drop_overlap=study.drop_overlap,
    )


@lru_cache(maxsize=2)
def adjust_data(study: Study) -> Task | None:
    """Load the auxiliary data of the protocol adjust, once for all rows."""
    return load_task(study, study.adjust.data) if study.adjust and "adjust" in study.protocols else None


def cell_key(study: Study, model: str, task: Task, protocol: str, *, adjust_data: str | None = None) -> str:
    """Name everything that can change this cell's score; ``model`` is the fingerprint of weights and tokenizer."""
    parts: dict[str, Any] = {
        "scoring": SCORING_VERSION,
        "model": model,
        "dtype": study.dtype,
        "chat": study.chat,
        "task": task.fingerprint,
        "protocol": protocol,
        "seed": study.seed,
    }
    if protocol == "train_before_test":
        parts |= {"tuning": study.tuning, "selection": study.selection, "seeds": study.seeds}
    if protocol == "adjust":
        parts |= {
            "adjust": study.adjust and study.adjust.model_dump(exclude={"data"}),  # its content counts, not its place
            "adjust_data": adjust_data,
            "tuning": study.tuning,
            "selection": study.selection,
        }
    return content_key(**parts)


def make_plan(study: Study, store: Store, tasks: Mapping[str, Task]) -> Plan:
    """Find every cell's key and whether the store has it. Model files are hashed, not loaded.

    The store knows the study from now on, and has what it holds under other names under the study's too.
    """
    for model in study.rows():
        check_source(model)
    store.study(study.name, study_key(study), study.model_dump(mode="json"))
    return Plan(study, tuple(plan_row(study, store, tasks, model.name) for model in study.rows()), tasks)


def plan_row(study: Study, store: Store, tasks: Mapping[str, Task], name: str) -> RowPlan:
    """Plan one row; a model that cannot be read becomes a row with a problem, not an error."""
    from potentia.engine import fingerprint

    model = next(row for row in study.rows() if row.name == name)
    try:
        weights = fingerprint(model.source, revision=model.revision, gguf_file=model.gguf_file)
    except (PotentiaError, OSError) as error:
        return RowPlan(model, _unreadable(study), problem=str(error))
    data = adjust_data(study)
    steps = study.adjust.at_steps if study.adjust else ()
    cells = []
    for protocol in study.protocols:
        for task in tasks:
            if protocol.startswith("few_shot:") and tasks[task].kind == "corpus":
                continue  # a text to predict has no examples before it
            key = cell_key(study, weights, tasks[task], protocol, adjust_data=data.fingerprint if data else None)
            key = take_over(store, study_key(study), key, model.name, task, steps)
            cells.append(CellPlan(task, protocol, key, store.has(key)))
    return RowPlan(model, tuple(cells), fingerprint=weights)


def check_source(model: ModelSpec) -> None:
    """Refuse a model that is plainly a path but not there; a hub name is left to the hub."""
    source = model.source
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf")
    if looks_like_path and not Path(source).expanduser().exists():
        raise InputError(
            f"model {model.name!r}: there is no {source}",
            hint="give a folder with config.json and weights, or a hub name such as org/model",
        )


def _unreadable(study: Study) -> tuple[CellPlan, ...]:
    return tuple(CellPlan(t.name, protocol, "", done=False) for protocol in study.protocols for t in study.tasks)


def _tokens(task: Task, split: Any) -> float:
    documents: Sequence[Any] = task.documents(split)
    if not documents:
        return 0.0
    sample = documents[: min(len(documents), 50)]
    length = sum(len(r.context) + len(r.continuation) for r in task.examples(sample)) / len(sample)
    return len(documents) * length / CHARACTERS_PER_TOKEN

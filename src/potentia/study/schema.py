"""The Study: what a user asks for, as one typed value. Splits and caps are those of the train-before-test paper."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from potentia.facts import leaderboard_shots
from potentia.study.checkpoints import find_checkpoints
from potentia.study.tuning import (
    Adjust,
    Positive,
    Probe,
    SelectionRule,
    Strict,
    Treat,
    Tuning,
    adjust_tuning,
)
from potentia.values.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol

PositiveShare = Annotated[float, Field(gt=0)]
Given = TypeVar("Given")
Found = TypeVar("Found")


class CheckpointSpec(Strict):
    """One point of a pretraining run: a hub revision or a folder."""

    step: int = Field(
        ge=0, description="the optimizer step it stands at; its row is called `name@step`"
    )
    revision: str | None = Field(None, description="the hub revision that holds it")
    path: str | None = Field(None, description="the folder that holds it")
    tokens: float | None = Field(None, description="tokens seen so far")

    @model_validator(mode="after")
    def _somewhere(self) -> CheckpointSpec:
        if self.revision is None and self.path is None:
            raise ValueError("a checkpoint needs a revision (on the hub) or a path (a folder)")
        return self


def _found(value: Any) -> Any:
    return find_checkpoints(value) if isinstance(value, str) else value


class ModelSpec(Strict):
    """A causal language model: where it is, and the facts that the built-in table does not know."""

    name: str = Field(
        description="what it is called in tables; also its hub name where there is no path"
    )
    path: str | None = Field(None, description="hub name, folder or GGUF file")
    revision: str | None = Field(None, description="hub branch, tag or commit")
    gguf_file: str | None = Field(
        None, description="the GGUF file to load from a folder or repository of several"
    )
    kind: Literal["auto", "base", "instruct"] = Field(
        "auto",
        description="`base` is never asked through a chat template; `auto` goes by the facts, the name, the tokenizer",
    )
    family: str | None = Field(None, description="for comparisons within and between families")
    parameters: float | None = Field(None, gt=0, description="number of parameters")
    tokens: float | None = Field(
        None, gt=0, description="pretraining tokens; with the parameters, the compute"
    )
    date: str | None = Field(None, description="when it came out: 2024-11 or 2024-11-30")
    base_model: str | None = Field(
        None, description="the base model that an instruct model was made from"
    )
    checkpoints: Annotated[tuple[CheckpointSpec, ...], BeforeValidator(_found)] = Field(
        (),
        description="points of its pretraining, each a row of its own: a list, or the folder (or hub repository) that"
        " holds `checkpoint-390`, `step1000`, `iter_0001000` …",
    )
    series: str | None = Field(
        None, description="the pretraining run it is a checkpoint of; set by `checkpoints`"
    )
    step: int | None = Field(None, description="where in that run; set by `checkpoints`")
    trust_remote_code: bool = Field(
        False, description="run the model's own code; only for those you trust"
    )
    adapter: str | None = Field(
        None, description="folder of a PEFT adapter, merged into the model when it loads"
    )
    quantise: Literal["8bit", "4bit"] | None = Field(
        None,
        description="keep its weights in few bits, by bitsandbytes: `8bit`, or `4bit` (NF4, as in QLoRA)",
    )
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, min_length=1, description="its own under `adjust`, where the recipe's would harm it"
    )
    exposure: tuple[str, ...] = Field(
        (), description="tasks whose form or data were in its training, where known"
    )
    copy_of: str | None = Field(
        None, description="the model that this one is a treated copy of; set by `treat`"
    )

    @property
    def source(self) -> str:
        """The hub name or folder to load from."""
        return self.path or self.name

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters to merge, none or one."""
        return () if self.adapter is None else (self.adapter,)

    def expand(self) -> tuple[ModelSpec, ...]:
        """Return the model itself, or one model per checkpoint of its series."""
        if not self.checkpoints:
            return (self,)
        return tuple(
            self.copied(
                name=f"{self.name}@{point.step}",
                path=point.path or self.source,
                revision=point.revision or self.revision,
                tokens=point.tokens or self.tokens,
                series=self.name,
                step=point.step,
                checkpoints=(),
            )
            for point in self.checkpoints
        )

    def copied(self, **changes: Any) -> ModelSpec:
        """Return the model with some fields changed."""
        return self.model_copy(update=changes)


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    return tuple((str(k), str(v)) for k, v in value.items()) if isinstance(value, dict) else value


class Columns(Strict):
    """Which columns of your own data are what, where they are not called so."""

    question: str | None = Field(None, description="what is asked, of a multiple-choice benchmark")
    choices: str | tuple[str, ...] | None = Field(
        None, description="a column of lists, or one column per choice"
    )
    answer: str | None = Field(
        None, description="the right choice: its text, its number, or its letter"
    )
    prompt: str | None = Field(None, description="what is asked, of a generation benchmark")
    completion: str | None = Field(None, description="what is to be written")
    text: str | None = Field(
        None, description="a document of a corpus, or the text that a label is of"
    )
    text_pair: str | None = Field(None, description="the second text, where a label is of two")
    label: str | None = Field(None, description="the class of a text")

    def given(self) -> dict[str, str | tuple[str, ...]]:
        """Return the fields that have a column named."""
        return {name: column for name, column in self if column is not None}


class Caps(Strict):
    """How many documents of each split are used at most."""

    train: Positive | None = Field(50_000, description="documents to train on; all where null")
    validation: Positive | None = Field(1_000, description="documents to choose by")
    test: Positive | None = Field(10_000, description="documents to test on")

    def but(self, own: Caps | None) -> Caps:
        """Return these caps with what ``own`` says in so many words."""
        said = (
            {name: getattr(own, name) for name in own.model_fields_set} if own is not None else {}
        )
        return self.model_copy(update=said)


class TaskSpec(Strict):
    """A benchmark: a harness task (``arc_easy``), one in another form (``arc_easy:choice``), or the user's file."""

    name: str = Field(
        description="what it is called in tables; also the harness task where there is no file"
    )
    file: str | tuple[str, ...] | None = Field(
        None,
        description="your own: a jsonl, csv, parquet or text file, several of them, a folder, or a harness task file",
    )
    dataset: str | None = Field(
        None, description="your own on the hub: a dataset's name, as `org/name`"
    )
    subset: str | None = Field(None, description="the configuration of that dataset")
    columns: Columns = Field(
        Columns(),
        description="your columns: `{question: query, choices: [a, b, c], answer: label}`",
    )
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = Field(
        (), description="words for the labels of a classification: `{0: negative, 1: positive}`"
    )
    prompt: str | None = Field(
        None, description="how a question is put, over your columns: `{{context}} Q: {{query}}`"
    )
    ratios: tuple[PositiveShare, PositiveShare, PositiveShare] | None = Field(
        None,
        description="shares of train, validation and test of data in one split; 8:1:1 where absent",
    )
    folds: Annotated[int, Field(ge=2, le=20)] | None = Field(
        None,
        description="test every document once, in so many folds; for few documents in one split",
    )
    fold: int | None = Field(None, description="which of the folds; set by `folds`")

    shots: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="examples before a question under direct, few_shot and adjust",
    )
    caps: Caps | None = Field(
        None, description="caps of its own; what they do not say is the study's"
    )
    mean: Literal["items", "subtasks"] | None = Field(
        None,
        description="a group's score: over all items, or the plain mean of its subtasks; the harness's if absent",
    )
    answer_tokens: Positive | None = Field(
        None, description="tokens that an answer is written in at most"
    )
    category: str | None = Field(
        None, description="what kind of task it is, for agreement by category"
    )
    chance: float | None = Field(
        None, ge=0, le=1, description="accuracy of a guess, where the options do not tell it"
    )

    @model_validator(mode="after")
    def _one_source(self) -> TaskSpec:
        if self.file is not None and self.dataset is not None:
            raise ValueError("a task has a file or a dataset, not both")
        own = self.file is not None or self.dataset is not None
        if not own and (self.columns.given() or self.prompt or self.subset or self.labels):
            raise ValueError(
                "columns, labels, prompt and subset are for data of your own: give a file or a dataset"
            )
        if self.ratios is not None and self.folds is not None:
            raise ValueError("give ratios or folds, not both")
        return self

    @property
    def source(self) -> str:
        """What the task loader is asked for."""
        return self.file if isinstance(self.file, str) else self.name

    def expand(self) -> tuple[TaskSpec, ...]:
        """Return the task itself, or one task per fold, as ``name#1/5``."""
        if self.folds is None or self.fold is not None:
            return (self,)
        names = ((k, f"{self.name}#{k}/{self.folds}") for k in range(1, self.folds + 1))
        return tuple(self.model_copy(update={"name": name, "fold": k}) for k, name in names)


EXPOSED = "+exposed"  # follows the name of a model that `treat` tunes


def _once(kind: str, names: list[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ValueError(f"{kind} named twice: {', '.join(twice)}")


def _half(rows: tuple[ModelSpec, ...], seed: int) -> set[str]:
    """Choose one of each two models next to each other in compute (or in size, or as listed), by a seeded coin."""
    order = sorted(rows, key=lambda row: (row.parameters or 0.0) * (row.tokens or 1.0))
    coin = random.Random(seed)
    chosen = [first + coin.randrange(2) for first in range(0, len(order), 2)]
    return {order[place].name for place in chosen if place < len(order)}


class Wanted(Strict):
    """The tuned cells of one model that a study asks for."""

    model: str = Field(description="a row of the study")
    tasks: tuple[str, ...] = Field(description="the tasks it is tuned for")


def _remembered(make: Callable[[Given], Found]) -> Callable[[Given], Found]:
    """Keep the latest answer, by the identity of what was given: every cell of a study asks."""
    latest: list[Any] = [None, None]

    def ask(given: Given) -> Found:
        if latest[0] is not given:
            latest[:] = given, make(given)
        return latest[1]  # type: ignore[no-any-return]

    return ask


@_remembered
def _expanded(tasks: tuple[TaskSpec, ...]) -> dict[str, TaskSpec]:
    """Return tasks by name, folds expanded."""
    return {one.name: one for task in tasks for one in task.expand()}


@_remembered
def _tuned(only: tuple[Wanted, ...]) -> dict[str, frozenset[str]]:
    """Return the tasks that each model is tuned for."""
    return {wanted.model: frozenset(wanted.tasks) for wanted in only}


class Study(Strict):
    """What a user asks for: models, tasks, protocols, the tuning recipe and the budget."""

    name: str = Field("study", description="what it is called in the store")
    models: tuple[Annotated[ModelSpec, BeforeValidator(_named)], ...] = Field(
        min_length=1, description="hub names and folders, or records"
    )
    tasks: tuple[Annotated[TaskSpec, BeforeValidator(_named)], ...] = Field(
        min_length=1,
        description="harness tasks, also in another form (`arc_easy:cloze`), files, or records",
    )
    protocols: tuple[Protocol, ...] = Field(
        (DIRECT, TRAIN_BEFORE_TEST),
        description="`direct`, `few_shot:K`, `train_before_test`, `adjust`",
    )
    data_dir: str | None = Field(
        None,
        description="folder of benchmark splits, `<dataset>/<config>/<split>.parquet`; the hub where absent",
    )
    shots: Literal["leaderboard"] | None = Field(
        None,
        description="`leaderboard`: as many examples as the public leaderboards show (25 for ARC, 5 for MMLU …)",
    )
    answer_tokens: Positive | None = Field(
        None,
        description="tokens that an answer is written in at most; the task's own number where absent",
    )
    caps: Caps = Field(Caps(), description="the most documents of each split")
    carve: float = Field(
        0.2, gt=0, lt=1, description="share of train carved out where validation is the test split"
    )
    drop_overlap: bool | None = Field(
        None,
        description="drop training documents that overlap the test split; where absent, your own that another split"
        " repeats",
    )
    drop_bad_rows: bool = Field(
        False, description="leave out rows of your files that cannot be used"
    )
    tuning: Tuning = Field(Tuning(), description="the fine-tuning that every model receives")
    selection: SelectionRule = Field(
        "validation",
        description="what is tested: the best on validation, the untuned model among them; `tuned`: the best tuned"
        " state; `paper`: the better of that and the untuned model, by the test",
    )
    chat: Literal["auto", "never", "always"] = Field(
        "auto", description="chat template of instruct models; `auto` lets validation choose"
    )
    adjust: Adjust | None = Field(None, description="the auxiliary data of the protocol `adjust`")
    only: tuple[Wanted, ...] | None = Field(
        None,
        description="tune these cells alone, as `potentia plan --budget` writes them; all where absent",
    )
    treat: Treat | None = Field(
        None, description="show some models test tasks before the study, on purpose"
    )
    probe: Annotated[
        Probe, BeforeValidator(lambda given: {"on": given} if isinstance(given, bool) else given)
    ] = Field(
        Probe(),
        description="record how much is left to learn, for `analyze exposure`: true, false, or a record",
    )
    seed: int = Field(
        0, description="seed of splits, orders and examples, and the first of the fine-tuning seeds"
    )
    seeds: Positive = Field(1, description="fine-tuning seeds per cell; the score is their mean")
    device: str = Field(
        "auto",
        description="`auto`, `cpu`, `cuda`, `cuda:1` …; `spread`: each model over all GPUs, and the CPU if need be",
    )
    shards: Positive = Field(
        1,
        description="GPUs that share the weights and moments of one full tuning (FSDP), a process each",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the weights; `auto` is bfloat16 on a GPU, else float32"
    )
    token_budget: Positive | None = Field(
        None, description="tokens per forward pass; found by itself where absent"
    )
    store: str = Field("potentia.db", description="SQLite file, or a PostgreSQL URL")
    keep_adapters: bool = Field(
        True, description="keep the chosen adapter of every tuned cell beside the store"
    )
    facts: str | None = Field(None, description="a CSV of model facts, beside the built-in ones")

    @field_validator("protocols")
    @classmethod
    def _distinct(cls, value: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
        if not value:
            raise ValueError(
                "name at least one protocol: direct, few_shot:K, train_before_test or adjust"
            )
        return tuple(dict.fromkeys(value))

    @field_validator("models", "tasks")
    @classmethod
    def _named_once(
        cls, value: tuple[ModelSpec | TaskSpec, ...]
    ) -> tuple[ModelSpec | TaskSpec, ...]:
        rows = [row for model in value if isinstance(model, ModelSpec) for row in model.expand()]
        _once("model" if rows else "task", [one.name for one in rows or value])
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        if ADJUST in self.protocols and self.adjust is None:
            raise ValueError("protocol adjust needs an `adjust:` section that names its data")
        shown = self.treat.data if self.treat is not None else ()
        folded = [task.name for task in self.tasks if task.folds is not None and task.name in shown]
        if folded:
            raise ValueError(
                f"treat cannot show {folded[0]}, which is tested in folds: every document is in some test"
            )
        self._check_only()
        self._check_few_bits()
        return self

    def _check_only(self) -> None:
        """Refuse cells under ``only`` that the study does not have."""
        rows, tasks = {row.name for row in self.rows()}, {task.name for task in self.benchmarks()}
        _once("model under `only`", [wanted.model for wanted in self.only or ()])
        for wanted in self.only or ():
            if wanted.model not in rows:
                raise ValueError(f"`only` names {wanted.model}, which is not among the models")
            if unknown := sorted(set(wanted.tasks) - tasks):
                raise ValueError(f"`only` names {', '.join(unknown)}, not among the tasks")

    def _check_few_bits(self) -> None:
        """Refuse to tune all weights of a model that is quantised."""
        few = next((model for model in self.models if model.quantise is not None), None)
        if few is None:
            return
        asked = {protocol.kind for protocol in self.protocols}
        methods = {"train_before_test": self.tuning.method, "adjust": adjust_tuning(self).method}
        full: list[str] = [
            kind for kind, method in methods.items() if kind in asked and method == "full"
        ]
        if self.treat is not None and self.treat.recipe(self.tuning).method == "full":
            full.append("treat")
        if full:
            raise ValueError(
                f"{full[0]} tunes all weights, and those of {few.name} are quantised ({few.quantise}):"
                " use `method: lora`, or drop `quantise`"
            )

    def asks(self, model: str, task: str, protocol: Protocol) -> bool:
        """Say whether a cell is part of the study; ``only`` leaves out tuned cells."""
        if self.only is None or not Protocol(protocol).tuned:
            return True
        return task in _tuned(self.only).get(model, ())

    def benchmarks(self) -> tuple[TaskSpec, ...]:
        """Return every task of the study, folds expanded."""
        return tuple(_expanded(self.tasks).values())

    def benchmark(self, name: str) -> TaskSpec | None:
        """Return one task of the study, or one of its folds; None where there is none of this name."""
        return _expanded(self.tasks).get(name)

    def shots_for(self, task: str, protocol: Protocol) -> int:
        """Return the examples before a question: the task's number, the leaderboards', else the protocol's."""
        if protocol.kind == "train_before_test":
            return 0
        spec = self.benchmark(task)
        own = None if spec is None else spec.shots
        if own is None and self.shots == "leaderboard":
            own = leaderboard_shots(task)
        return protocol.shots if own is None else own

    @property
    def grid_lanes(self) -> int:
        """In how many parts the lanes of a task can train: learning rates and seeds; one where all weights do."""
        return 1 if self.tuning.method == "full" else len(self.tuning.learning_rates) * self.seeds

    def rows(self) -> tuple[ModelSpec, ...]:
        """Return every model of the study, checkpoint series expanded and treated copies added: one row each."""
        plain = tuple(row for model in self.models for row in model.expand())
        if self.treat is None:
            return plain
        seen = [name for name in self.treat.data if name in {task.name for task in self.tasks}]
        exposed = [
            row.copied(
                name=row.name + EXPOSED,
                path=row.source,
                copy_of=row.name,
                exposure=(*row.exposure, *seen),
            )
            for row in plain
        ]
        if self.treat.who == "copies":
            return (*plain, *exposed)
        half = _half(plain, self.treat.seed)
        return tuple(
            copy if row.name in half else row for row, copy in zip(plain, exposed, strict=True)
        )

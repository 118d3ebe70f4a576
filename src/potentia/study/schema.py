"""The Study: what a user asks for, as one typed value. Splits and caps are those of the train-before-test paper."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from potentia.facts import leaderboard_shots
from potentia.study.checkpoints import find_checkpoints
from potentia.study.price import parse_price
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
from potentia.values.protocol import ADJUST, BLIND, DIRECT, TRAIN_BEFORE_TEST, Protocol, TaskName
from potentia.values.sampling import SamplePlan, default_k

PositiveShare = Annotated[float, Field(gt=0)]
Argument = TypeVar("Argument")
Result = TypeVar("Result")


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


def _list_checkpoints(value: Any) -> Any:
    """Return the checkpoints of a folder or repository that a study names; a list stays as it is."""
    if isinstance(value, str):
        return find_checkpoints(value)
    return value


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
    checkpoints: Annotated[tuple[CheckpointSpec, ...], BeforeValidator(_list_checkpoints)] = Field(
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
        rows = []
        for checkpoint in self.checkpoints:
            row = self.copied(
                name=f"{self.name}@{checkpoint.step}",
                path=checkpoint.path or self.source,
                revision=checkpoint.revision or self.revision,
                tokens=checkpoint.tokens or self.tokens,
                series=self.name,
                step=checkpoint.step,
                checkpoints=(),
            )
            rows.append(row)
        return tuple(rows)

    def copied(self, **changes: Any) -> ModelSpec:
        """Return the model with some fields changed."""
        return self.model_copy(update=changes)


def _record_from_name(value: Any) -> Any:
    """Return the record of a model or task that is given by its name alone."""
    if isinstance(value, str):
        return {"name": value}
    return value


def _probe_from_switch(value: Any) -> Any:
    """Return the record of a probe that is only switched on or off."""
    if isinstance(value, bool):
        return {"on": value}
    return value


def _pairs_from_mapping(value: Any) -> Any:
    """Return the pairs of a mapping, as text; anything else stays as it is."""
    if isinstance(value, dict):
        return tuple((str(key), str(content)) for key, content in value.items())
    return value


class Columns(Strict):
    """Which columns of your own data are what, where they are not called so."""

    question: str | tuple[str, ...] | None = Field(
        None, description="what is asked, of a multiple-choice benchmark"
    )
    choices: str | tuple[str, ...] | None = Field(
        None, description="a column of lists, or one column per choice"
    )
    answer: str | None = Field(
        None, description="the right choice: its text, its number, or its letter"
    )
    prompt: str | tuple[str, ...] | None = Field(
        None, description="what is asked, of a generation benchmark; several columns are joined"
    )
    completion: str | None = Field(None, description="what is to be written")
    text: str | tuple[str, ...] | None = Field(
        None,
        description="a document of a corpus, or the text that a label is of; several are joined",
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
        if own is None:
            return self.model_copy()
        stated_caps = {name: getattr(own, name) for name in own.model_fields_set}
        return self.model_copy(update=stated_caps)


class Samples(Strict):
    """How often the answers of a task are sampled, beside the greedy answer, and how pass@k is scored."""

    count: int = Field(16, ge=2, le=10_000, description="samples of every test example")
    temperature: float = Field(0.8, gt=0, le=10, description="of the sampling")
    k: tuple[Positive, ...] = Field(
        (), description="the k of pass@k; 1, 2, 4 … up to the number of samples where absent"
    )

    @model_validator(mode="after")
    def _enough_samples(self) -> Samples:
        if self.k and max(self.k) > self.count:
            raise ValueError(
                f"pass@{max(self.k)} needs {max(self.k)} samples at least, and `count` is {self.count}"
            )
        return self

    def make_plan(self, seed: int) -> SamplePlan:
        """Return how answers are sampled, with the study's seed."""
        return SamplePlan(
            count=self.count,
            temperature=self.temperature,
            k=tuple(sorted(set(self.k))) or default_k(self.count),
            seed=seed,
        )


def _samples_from_number(value: Any) -> Any:
    """Return the record of samples of which only the number is given."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    return value


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
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs_from_mapping)] = Field(
        (), description="words for the labels of a classification: `{0: negative, 1: positive}`"
    )
    merge_spellings: bool = Field(
        True, description="labels that differ by case or blanks alone are one label"
    )
    metric: str | None = Field(
        None,
        description="what your own data is scored by: `acc`, `macro_f1`; of written answers `exact_match`, `token_f1`,"
        " `contains`, `rouge_l`",
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
    blind: bool = Field(
        False,
        description="also fine-tune and test it without its questions, as the task `name:blind`: what is learned of"
        " the answers alone",
    )
    samples: Annotated[Samples | None, BeforeValidator(_samples_from_number)] = Field(
        None,
        description="sample every test answer so often and score pass@k, of a task that is answered by writing: a"
        " number, or a record",
    )
    blind_twin: bool = Field(False, description="whether its questions are removed; set by `blind`")

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
    cluster: str | None = Field(
        None,
        description="the column that examples share when they are about one passage: errors and tests allow for it;"
        " where absent, a repeated passage, article, context, paragraph or story",
    )

    @model_validator(mode="after")
    def _one_source(self) -> TaskSpec:
        if self.file is not None and self.dataset is not None:
            raise ValueError("a task has a file or a dataset, not both")
        has_own_data = self.file is not None or self.dataset is not None
        describes_own_data = self.columns.given() or self.prompt or self.subset or self.labels
        if describes_own_data and not has_own_data:
            raise ValueError(
                "columns, labels, prompt and subset are for data of your own: give a file or a dataset"
            )
        if self.ratios is not None and self.folds is not None:
            raise ValueError("give ratios or folds, not both")
        has_blind_data = isinstance(self.file, str) and TaskName(self.file).sighted is not None
        if TaskName(self.name).sighted and has_own_data and not (self.blind_twin or has_blind_data):
            raise ValueError(
                f"{self.name} is the name of a blind twin, but its data are not: name the task alone,"
                " with `blind: true`"
            )
        return self

    @property
    def source(self) -> str:
        """What the task loader is asked for."""
        return self.file if isinstance(self.file, str) else self.name

    def expand(self) -> tuple[TaskSpec, ...]:
        """Return the task itself, or one task per fold, as ``name#1/5``; where asked for, its blind twin as well."""
        if self.blind:
            sighted = self.model_copy(update={"blind": False})
            twin_fields = {"name": f"{self.name}:{BLIND}", "blind_twin": True, "samples": None}
            twin = sighted.model_copy(update=twin_fields)
            return (*sighted.expand(), *twin.expand())
        if self.folds is None or self.fold is not None:
            return (self,)
        fold_tasks = []
        for fold in range(1, self.folds + 1):
            name = f"{self.name}#{fold}/{self.folds}"
            fold_tasks.append(self.model_copy(update={"name": name, "fold": fold}))
        return tuple(fold_tasks)


def _check_price(price: str) -> str:
    """Refuse a price that cannot be read before anything is computed."""
    parse_price(price)
    return price


EXPOSED = "+exposed"  # follows the name of a model that `treat` tunes


def _draw_share(*parts: object) -> float:
    """Draw a number between 0 and 1 that these parts alone decide."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _check_named_once(kind: str, names: list[str]) -> None:
    repeated = sorted(name for name, uses in Counter(names).items() if uses > 1)
    if repeated:
        raise ValueError(f"{kind} named twice: {', '.join(repeated)}")


def _choose_half(rows: tuple[ModelSpec, ...], seed: int) -> set[str]:
    """Choose one of each two models next to each other in compute (or in size, or as listed), by a seeded coin."""
    by_compute = sorted(rows, key=lambda row: (row.parameters or 0.0) * (row.tokens or 1.0))
    coin = random.Random(seed)
    chosen_names = set()
    for first_of_pair in range(0, len(by_compute), 2):
        position = first_of_pair + coin.randrange(2)
        if position < len(by_compute):
            chosen_names.add(by_compute[position].name)
    return chosen_names


class Wanted(Strict):
    """The tuned cells of one model that a study asks for."""

    model: str = Field(description="a row of the study")
    tasks: tuple[str, ...] = Field(description="the tasks it is tuned for")


def _remember_latest(compute: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Keep the latest result, by the identity of the argument: every cell of a study asks."""
    latest: list[Any] = [None, None]

    def compute_once(argument: Argument) -> Result:
        if latest[0] is not argument:
            latest[:] = argument, compute(argument)
        return latest[1]  # type: ignore[no-any-return]

    return compute_once


@_remember_latest
def _tasks_by_name(tasks: tuple[TaskSpec, ...]) -> dict[str, TaskSpec]:
    """Return tasks by name, folds expanded."""
    by_name: dict[str, TaskSpec] = {}
    for task in tasks:
        for expanded_task in task.expand():
            by_name[expanded_task.name] = expanded_task
    return by_name


@_remember_latest
def _tuned_tasks_by_model(only: tuple[Wanted, ...]) -> dict[str, frozenset[str]]:
    """Return the tasks that each model is tuned for."""
    return {selected.model: frozenset(selected.tasks) for selected in only}


class Study(Strict):
    """What a user asks for: models, tasks, protocols, the tuning recipe and the budget."""

    name: str = Field("study", description="what it is called in the store")
    models: tuple[Annotated[ModelSpec, BeforeValidator(_record_from_name)], ...] = Field(
        min_length=1, description="hub names and folders, or records"
    )
    tasks: tuple[Annotated[TaskSpec, BeforeValidator(_record_from_name)], ...] = Field(
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
        description="tune these cells alone, as `potentia run --dry-run --budget` writes them; all where absent",
    )
    treat: Treat | None = Field(
        None, description="show some models test tasks before the study, on purpose"
    )
    probe: Annotated[Probe, BeforeValidator(_probe_from_switch)] = Field(
        Probe(),
        description="record how much is left to learn, for `analyze exposure`: true, false, or a record",
    )
    seed: int = Field(
        0, description="seed of splits, orders and examples, and the first of the fine-tuning seeds"
    )
    seeds: Positive = Field(1, description="fine-tuning seeds per cell; the score is their mean")
    seed_check: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the fine-tuned results that get a second seed (0.1): how far another seed moves a score"
        " becomes part of every error",
    )
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
    price: str | None = Field(
        None,
        description="of an hour of the machine, as `3.5/h` or `3.5 EUR/h`: costs are told then",
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
        kind = "task"
        names: list[str] = []
        for spec in value:
            if isinstance(spec, ModelSpec):
                kind = "model"
                names.extend(row.name for row in spec.expand())
            else:
                names.append(spec.name)
        _check_named_once(kind, names)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        if ADJUST in self.protocols and self.adjust is None:
            raise ValueError("protocol adjust needs an `adjust:` section that names its data")
        exposed_tasks = self.treat.data if self.treat is not None else ()
        for task in self.tasks:
            if task.folds is not None and task.name in exposed_tasks:
                raise ValueError(
                    f"treat cannot show {task.name}, which is tested in folds: every document is in some test"
                )
        self._check_only()
        self._check_quantised()
        return self

    def _check_only(self) -> None:
        """Refuse cells under ``only`` that the study does not have."""
        rows = {row.name for row in self.rows()}
        tasks = {task.name for task in self.benchmarks()}
        _check_named_once("model under `only`", [wanted.model for wanted in self.only or ()])
        for selected in self.only or ():
            if selected.model not in rows:
                raise ValueError(f"`only` names {selected.model}, which is not among the models")
            unknown = sorted(set(selected.tasks) - tasks)
            if unknown:
                raise ValueError(f"`only` names {', '.join(unknown)}, not among the tasks")

    def _check_quantised(self) -> None:
        """Refuse to tune all weights of a model that is quantised."""
        quantised = next((model for model in self.models if model.quantise is not None), None)
        if quantised is None:
            return
        kinds = {protocol.kind for protocol in self.protocols}
        full_tunings: list[str] = []
        if "train_before_test" in kinds and self.tuning.method == "full":
            full_tunings.append("train_before_test")
        if "adjust" in kinds and adjust_tuning(self).method == "full":
            full_tunings.append("adjust")
        if self.treat is not None and self.treat.recipe(self.tuning).method == "full":
            full_tunings.append("treat")
        if full_tunings:
            raise ValueError(
                f"{full_tunings[0]} tunes all weights, and those of {quantised.name} are quantised"
                f" ({quantised.quantise}): use `method: lora`, or drop `quantise`"
            )

    def asks(self, model: str, task: str, protocol: Protocol) -> bool:
        """Say whether a cell is part of the study; ``only`` leaves out tuned cells."""
        if self.only is None or not Protocol(protocol).tuned:
            return True
        return task in _tuned_tasks_by_model(self.only).get(model, ())

    def benchmarks(self) -> tuple[TaskSpec, ...]:
        """Return every task of the study, folds expanded."""
        return tuple(_tasks_by_name(self.tasks).values())

    def benchmark(self, name: str) -> TaskSpec | None:
        """Return one task of the study, or one of its folds; None where there is none of this name."""
        return _tasks_by_name(self.tasks).get(name)

    def shots_for(self, task: str, protocol: Protocol) -> int:
        """Return the examples before a question: the task's number, the leaderboards', else the protocol's."""
        if protocol.kind == "train_before_test":
            return 0
        spec = self.benchmark(task)
        shots = None if spec is None else spec.shots
        if shots is None and self.shots == "leaderboard":
            shots = leaderboard_shots(task)
        return protocol.shots if shots is None else shots

    def count_seeds(self, model: str, task: str) -> int:
        """Return how many seeds a result is fine-tuned with: two for the share of a model's tasks in ``seed_check``.

        Which tasks these are is drawn by model and task, so that a study that grows keeps those it has.
        """
        if self.seeds > 1 or self.seed_check == 0:
            return self.seeds
        tasks = [spec.name for spec in self.benchmarks()]
        expected = self.seed_check * len(tasks)
        repeated = math.floor(expected + _draw_share(self.seed, model))
        in_drawn_order = sorted(tasks, key=lambda name: _draw_share(self.seed, model, name))
        return 2 if task in in_drawn_order[:repeated] else 1

    def sample_plan(self, task: str) -> SamplePlan | None:
        """Return how the answers of a task are sampled; None where they are not."""
        spec = self.benchmark(task)
        if spec is None or spec.samples is None:
            return None
        return spec.samples.make_plan(self.seed)

    @property
    def grid_lanes(self) -> int:
        """In how many parts the lanes of a task can train: learning rates and seeds; one where all weights do."""
        if self.tuning.method == "full":
            return 1
        return len(self.tuning.learning_rates) * self.seeds

    def rows(self) -> tuple[ModelSpec, ...]:
        """Return every model of the study, checkpoint series expanded and treated copies added: one row each."""
        originals: list[ModelSpec] = []
        for model in self.models:
            originals.extend(model.expand())
        if self.treat is None:
            return tuple(originals)
        exposed_copies = [self._expose(row, self.treat) for row in originals]
        if self.treat.who == "copies":
            return (*originals, *exposed_copies)
        chosen_names = _choose_half(tuple(originals), self.treat.seed)
        rows = []
        for original, exposed_copy in zip(originals, exposed_copies, strict=True):
            is_chosen = original.name in chosen_names
            rows.append(exposed_copy if is_chosen else original)
        return tuple(rows)

    def _expose(self, row: ModelSpec, treat: Treat) -> ModelSpec:
        """Return the copy of a model that is tuned on tasks of the study beforehand."""
        task_names = {task.name for task in self.tasks}
        exposed_tasks = [name for name in treat.data if name in task_names]
        return row.copied(
            name=row.name + EXPOSED,
            path=row.source,
            copy_of=row.name,
            exposure=(*row.exposure, *exposed_tasks),
        )

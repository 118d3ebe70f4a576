"""``Study``: what a user asks for, as one frozen, checked value: models, tasks, protocols, and how to fine-tune.

The fields are those of the study file, and their descriptions are its reference (``docs/study.md``). Splits and caps
are those of the train-before-test paper. Some fields expand: a model with ``checkpoints`` is one model per checkpoint,
a task with ``folds`` is one task per fold, ``treat`` adds exposed copies of models.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from potentia.facts import leaderboard_shots
from potentia.study.checkpoints import list_checkpoints_at
from potentia.study.price import parse_price
from potentia.study.tuning import (
    PAPER_DTYPE,
    Adjust,
    Positive,
    Probe,
    SelectionRule,
    StrictRecord,
    Treat,
    Tuning,
    tuning_for_adjust,
)
from potentia.values.protocol import ADJUST, BLIND, DIRECT, TRAIN_BEFORE_TEST, Protocol, TaskName
from potentia.values.sampling import SamplePlan, list_default_ks
from potentia.values.wording import format_count

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
PositiveShare = Annotated[float, Field(gt=0)]
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class CheckpointSpec(StrictRecord):
    """One point of a pretraining run: a hub revision or a folder."""

    step: int = Field(ge=0, description="its optimizer step; its results are called `name@step`")
    revision: str | None = Field(None, description="the hub revision that holds it")
    path: str | None = Field(None, description="the folder that holds it")
    tokens: float | None = Field(None, description="tokens seen so far")

    @model_validator(mode="after")
    def _check_location(self) -> CheckpointSpec:
        """Refuse a checkpoint without a place to load it from."""
        if self.revision is None and self.path is None:
            raise ValueError("a checkpoint needs a revision (on the hub) or a path (a folder)")
        return self


def _list_checkpoints(value: Any) -> Any:
    """Return the checkpoints of the folder or repository that a study names; a list is returned as it is."""
    if isinstance(value, str):
        return list_checkpoints_at(value)
    return value


class ModelSpec(StrictRecord):
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
        description="points of its pretraining, each a model of its own: a list, or the folder (or hub repository) that"
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
    dtype: Dtype | None = Field(None, description="of its weights, where they are not the study's")
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, min_length=1, description="its own under `adjust`, where the recipe's would harm it"
    )
    exposure: tuple[str, ...] = Field(
        (), description="tasks whose form or data were in its training, where known"
    )
    copy_of: str | None = Field(
        None, description="the model that this one is an exposed copy of; set by `treat`"
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
        models = []
        for checkpoint in self.checkpoints:
            model = self.with_changes(
                name=f"{self.name}@{checkpoint.step}",
                path=checkpoint.path or self.source,
                revision=checkpoint.revision or self.revision,
                tokens=checkpoint.tokens or self.tokens,
                series=self.name,
                step=checkpoint.step,
                checkpoints=(),
            )
            models.append(model)
        return tuple(models)

    def with_changes(self, **changes: Any) -> ModelSpec:
        """Return the model with some fields changed."""
        return self.model_copy(update=changes)


def _make_record_from_name(value: Any) -> Any:
    """Return the record of a model or task that a study names without a record."""
    if isinstance(value, str):
        return {"name": value}
    return value


def _make_probe_from_switch(value: Any) -> Any:
    """Return the record of a probe that a study only switches on or off."""
    if isinstance(value, bool):
        return {"on": value}
    if isinstance(value, Mapping) and True in value:  # YAML reads the key `on` as true
        return {"on" if key is True else key: content for key, content in value.items()}
    return value


def _make_pairs_from_mapping(value: Any) -> Any:
    """Return a mapping as pairs of texts; any other value is returned as it is."""
    if isinstance(value, dict):
        return tuple((str(key), str(content)) for key, content in value.items())
    return value


class Columns(StrictRecord):
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
        description="a text of a corpus, or the text that a label is of; several are joined",
    )
    text_pair: str | None = Field(None, description="the second text, where a label is of two")
    label: str | None = Field(None, description="the class of a text")

    def list_stated(self) -> dict[str, str | tuple[str, ...]]:
        """Return the columns that the study states, by field."""
        return {field_name: column for field_name, column in self if column is not None}


class Caps(StrictRecord):
    """How many examples of each split are used at most."""

    train: Positive | None = Field(50_000, description="examples to train on; all where null")
    validation: Positive | None = Field(1_000, description="examples to choose by")
    test: Positive | None = Field(10_000, description="examples to test on")

    def overridden_by(self, other_caps: Caps | None) -> Caps:
        """Return these caps, with those in their place that the other caps state."""
        if other_caps is None:
            return self.model_copy()
        stated_caps = {
            split_name: getattr(other_caps, split_name)
            for split_name in other_caps.model_fields_set
        }
        return self.model_copy(update=stated_caps)


class Samples(StrictRecord):
    """How often the answers of a task are sampled, beside the greedy answer, and how pass@k is scored."""

    count: int = Field(16, ge=2, le=10_000, description="samples of every test example")
    temperature: float = Field(0.8, gt=0, le=10, description="of the sampling")
    k: tuple[Positive, ...] = Field(
        (), description="the k of pass@k; 1, 2, 4 … up to the number of samples where absent"
    )

    @model_validator(mode="after")
    def _check_count(self) -> Samples:
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
            k=tuple(sorted(set(self.k))) or list_default_ks(self.count),
            seed=seed,
        )


def _make_samples_from_number(value: Any) -> Any:
    """Return the record of samples of which a study gives only the number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    return value


class TaskSpec(StrictRecord):
    """A benchmark: an lm-eval task (``arc_easy``), one in another form (``arc_easy:choice``), or the user's file."""

    name: str = Field(
        description="what it is called in tables; also the lm-eval task where there is no file"
    )
    file: str | tuple[str, ...] | None = Field(
        None,
        description="your own: a jsonl, csv, parquet or text file, several of them, a folder, or an lm-eval task file",
    )
    dataset: str | None = Field(
        None, description="your own on the hub: a dataset's name, as `org/name`"
    )
    subset: str | None = Field(None, description="the configuration of that dataset")
    columns: Columns = Field(
        Columns(),
        description="your columns: `{question: query, choices: [a, b, c], answer: label}`",
    )
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_make_pairs_from_mapping)] = (
        Field(
            (), description="words for the labels of a classification: `{0: negative, 1: positive}`"
        )
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
        description="test every example once, in so many folds; for few examples in one split",
    )
    fold: int | None = Field(None, description="which of the folds; set by `folds`")
    blind: bool = Field(
        False,
        description="also fine-tune and test it without its questions, as the task `name:blind`: what is learned of"
        " the answers alone",
    )
    samples: Annotated[Samples | None, BeforeValidator(_make_samples_from_number)] = Field(
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
        description="a group's score: over all examples, or the plain mean of its subtasks; lm-eval's if absent",
    )
    answer_tokens: Positive | None = Field(
        None, description="tokens that an answer is written in at most"
    )
    category: str | None = Field(
        None,
        description="what kind of task it is, for agreement by category and the instruction of the form `instruct`",
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
    def _check_source(self) -> TaskSpec:
        if self.file is not None and self.dataset is not None:
            raise ValueError("a task has a file or a dataset, not both")
        has_own_data = self.file is not None or self.dataset is not None
        describes_own_data = self.columns.list_stated() or self.prompt or self.subset or self.labels
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
        """What the task is loaded from: its file, or lm-eval's task of its name."""
        return self.file if isinstance(self.file, str) else self.name

    def expand(self) -> tuple[TaskSpec, ...]:
        """Return the task itself, or one task per fold (``name#1/5``); with ``blind`` also its blind twin."""
        if self.blind:
            sighted = self.model_copy(update={"blind": False})
            twin_fields = {"name": f"{self.name}:{BLIND}", "blind_twin": True, "samples": None}
            blind_twin = sighted.model_copy(update=twin_fields)
            return (*sighted.expand(), *blind_twin.expand())
        if self.folds is None or self.fold is not None:
            return (self,)
        fold_tasks = []
        for fold in range(1, self.folds + 1):
            fold_name = f"{self.name}#{fold}/{self.folds}"
            fold_tasks.append(self.model_copy(update={"name": fold_name, "fold": fold}))
        return tuple(fold_tasks)


def _check_price(price: str) -> str:
    """Refuse a price that cannot be read, before anything is computed."""
    parse_price(price)
    return price


EXPOSED = "+exposed"  # ends the name of an exposed copy


def _draw_share(*parts: object) -> float:
    """Return a pseudo-random number between 0 and 1, decided by these parts alone."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _refuse_repeated_names(description: str, names: list[str]) -> None:
    repeated = sorted(repeated_name for repeated_name, uses in Counter(names).items() if uses > 1)
    if repeated:
        raise ValueError(f"{description} named twice: {', '.join(repeated)}")


def _choose_half(models: tuple[ModelSpec, ...], seed: int) -> set[str]:
    """Return the names of a random half of the models, of similar compute as the other half.

    The models are sorted by compute (by size if the tokens are not known, else in the order of the study), and a seeded
    coin chooses one of each two neighbours.
    """
    by_compute = sorted(models, key=lambda model: (model.parameters or 0.0) * (model.tokens or 1.0))
    coin = random.Random(seed)
    chosen_names = set()
    for first_of_pair in range(0, len(by_compute), 2):
        position = first_of_pair + coin.randrange(2)
        if position < len(by_compute):
            chosen_names.add(by_compute[position].name)
    return chosen_names


class WantedResults(StrictRecord):
    """The tuned results of one model that a study asks for."""

    model: str = Field(description="a model of the study")
    tasks: tuple[str, ...] = Field(description="the tasks it is tuned for")


def _cache_latest(compute: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Return a function that keeps its latest result and returns it again for the same argument (the same object).

    Every cell of a study asks for the same results, and the arguments take long to hash.
    """
    latest_argument: Any = None
    latest_result: Any = None

    def compute_once(argument: Argument) -> Result:
        nonlocal latest_argument, latest_result
        if latest_argument is not argument:
            latest_result = compute(argument)
            latest_argument = argument
        return latest_result  # type: ignore[no-any-return]

    return compute_once


@_cache_latest
def _map_tasks_by_name(tasks: tuple[TaskSpec, ...]) -> dict[str, TaskSpec]:
    """Return all tasks by name, with folds and blind twins expanded."""
    task_by_name: dict[str, TaskSpec] = {}
    for task in tasks:
        for expanded_task in task.expand():
            task_by_name[expanded_task.name] = expanded_task
    return task_by_name


@_cache_latest
def _map_tuned_tasks_by_model(only_entries: tuple[WantedResults, ...]) -> dict[str, frozenset[str]]:
    """Return the tasks that each model is tuned for."""
    return {entry.model: frozenset(entry.tasks) for entry in only_entries}


class Study(StrictRecord):
    """What a user asks for: models, tasks, protocols, the tuning recipe and the budget."""

    name: str = Field("study", description="what it is called in the store")
    models: tuple[Annotated[ModelSpec, BeforeValidator(_make_record_from_name)], ...] = Field(
        min_length=1, description="hub names and folders, or records"
    )
    tasks: tuple[Annotated[TaskSpec, BeforeValidator(_make_record_from_name)], ...] = Field(
        min_length=1,
        description="lm-eval tasks, also in another form (`arc_easy:cloze`), files, or records",
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
    caps: Caps = Field(Caps(), description="the most examples of each split")
    carve: float = Field(
        0.2, gt=0, lt=1, description="share of train carved out where validation is the test split"
    )
    drop_overlap: bool | None = Field(
        None,
        description="drop training examples that overlap the test split; where absent, your own that another split"
        " repeats",
    )
    drop_bad_rows: bool = Field(
        False, description="leave out rows of your files that cannot be used"
    )
    tuning: Tuning = Field(Tuning(), description="the fine-tuning that every model receives")
    selection: SelectionRule = Field(
        "validation",
        description="what is tested: the best on validation, the untuned model among them; `tuned`: the best tuned"
        " state; `paper`: the better of that and the untuned model, by the test; `last`: the last epoch, unvalidated",
    )
    chat: Literal["auto", "never", "always"] = Field(
        "auto", description="chat template of instruct models; `auto` lets validation choose"
    )
    adjust: Adjust | None = Field(None, description="the auxiliary data of the protocol `adjust`")
    only: tuple[WantedResults, ...] | None = Field(
        None,
        description="fine-tune these results alone, as `potentia run --dry-run --budget` writes them; all where absent",
    )
    treat: Treat | None = Field(
        None,
        description="train copies of models on test tasks before the study, to see what that is worth",
    )
    probe: Annotated[Probe, BeforeValidator(_make_probe_from_switch)] = Field(
        Probe(),
        description="record how much is left to learn, for `analyze exposure`: true, false, or a record",
    )
    seed: int = Field(
        0, description="seed of splits, orders and examples, and the first of the fine-tuning seeds"
    )
    seeds: Positive = Field(1, description="fine-tuning seeds per result; the score is their mean")
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
    dtype: Dtype = Field(
        "auto",
        description="of the weights; `auto` is bfloat16 on a GPU, else float32; float32 by the recipe `paper`",
    )
    token_budget: Positive | None = Field(
        None, description="tokens per forward pass; found by itself where absent"
    )
    price: Annotated[str, AfterValidator(_check_price)] | None = Field(
        None,
        description="of an hour of the machine, as `3.5/h` or `3.5 EUR/h`: costs are shown then",
    )
    store: str = Field("potentia.db", description="SQLite file, or a PostgreSQL URL")
    keep_adapters: bool = Field(
        True, description="keep the chosen adapter of every fine-tuned result beside the store"
    )
    facts: str | None = Field(None, description="a CSV of model facts, beside the built-in ones")
    note: str = Field(
        "", description="what readers must know of the study; the report says it under its headline"
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_paper_dtype(cls, settings: Any) -> Any:
        """Fill in the dtype where the recipe is ``paper`` and none is named: the authors' code computes in float32."""
        if not isinstance(settings, Mapping) or "dtype" in settings:
            return settings
        tuning = settings.get("tuning")
        recipe: Any = None
        if isinstance(tuning, Tuning):
            recipe = tuning.recipe
        elif isinstance(tuning, Mapping):
            recipe = tuning.get("recipe")
        if recipe != "paper":
            return settings
        return {**settings, "dtype": PAPER_DTYPE}

    def __repr__(self) -> str:
        """Return the name and the size, not every field."""
        size = " × ".join(
            (
                format_count(len(self.models), "model"),
                format_count(len(self.tasks), "task"),
                format_count(len(self.protocols), "protocol"),
            )
        )
        return f"Study({self.name!r}, {size})"

    @field_validator("protocols")
    @classmethod
    def _drop_repeated(cls, protocols: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
        if not protocols:
            raise ValueError(
                "name at least one protocol: direct, few_shot:K, train_before_test or adjust"
            )
        return tuple(dict.fromkeys(protocols))

    @field_validator("models", "tasks")
    @classmethod
    def _check_names(
        cls, entries: tuple[ModelSpec | TaskSpec, ...]
    ) -> tuple[ModelSpec | TaskSpec, ...]:
        kind = "task"
        names: list[str] = []
        for spec in entries:
            if isinstance(spec, ModelSpec):
                kind = "model"
                names.extend(model.name for model in spec.expand())
            else:
                names.append(spec.name)
        _refuse_repeated_names(kind, names)
        return entries

    @model_validator(mode="after")
    def _check_consistency(self) -> Study:
        if ADJUST in self.protocols and self.adjust is None:
            raise ValueError("protocol adjust needs an `adjust:` section that names its data")
        exposed_tasks = self.treat.data if self.treat is not None else ()
        for task in self.tasks:
            if task.folds is not None and task.name in exposed_tasks:
                raise ValueError(
                    f"treat cannot expose copies to {task.name}, which is tested in folds:"
                    " every example is in some test"
                )
        self._check_only_entries()
        self._check_quantised()
        return self

    def _check_only_entries(self) -> None:
        """Refuse models and tasks under ``only`` that the study does not have."""
        model_names = {model.name for model in self.rows()}
        task_names = {task.name for task in self.list_task_specs()}
        _refuse_repeated_names("model under `only`", [entry.model for entry in self.only or ()])
        for entry in self.only or ():
            if entry.model not in model_names:
                raise ValueError(f"`only` names {entry.model}, which is not among the models")
            unknown = sorted(set(entry.tasks) - task_names)
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
        if "adjust" in kinds and tuning_for_adjust(self).method == "full":
            full_tunings.append("adjust")
        if self.treat is not None and self.treat.make_tuning(self.tuning).method == "full":
            full_tunings.append("treat")
        if full_tunings:
            raise ValueError(
                f"{full_tunings[0]} tunes all weights, and those of {quantised.name} are quantised"
                f" ({quantised.quantise}): use `method: lora`, or drop `quantise`"
            )

    def includes_cell(self, model_name: str, task_name: str, protocol: Protocol) -> bool:
        """Whether a result (model × task × protocol) is part of the study; ``only`` may leave out fine-tuned ones."""
        if self.only is None or not Protocol(protocol).tuned:
            return True
        return task_name in _map_tuned_tasks_by_model(self.only).get(model_name, ())

    def list_task_specs(self) -> tuple[TaskSpec, ...]:
        """Return every task of the study, with folds and blind copies expanded."""
        return tuple(_map_tasks_by_name(self.tasks).values())

    def find_task_spec(self, task_name: str) -> TaskSpec | None:
        """Return the task, fold or blind copy of this name; None if the study has none."""
        return _map_tasks_by_name(self.tasks).get(task_name)

    def count_shots(self, task_name: str, protocol: Protocol) -> int:
        """Return how many examples stand before a question: as the task says, the leaderboards, or the protocol."""
        if protocol.kind == "train_before_test":
            return 0
        task_spec = self.find_task_spec(task_name)
        shots = None if task_spec is None else task_spec.shots
        if shots is None and self.shots == "leaderboard":
            shots = leaderboard_shots(task_name)
        return protocol.shots if shots is None else shots

    def count_seeds(self, model_name: str, task_name: str) -> int:
        """Return how many seeds a result is fine-tuned with; ``seed_check`` gives a share of a model's tasks two.

        These tasks are drawn by the names of model and task, so that a study that grows keeps those it has.
        """
        if self.seeds > 1 or self.seed_check == 0:
            return self.seeds
        task_names = [spec.name for spec in self.list_task_specs()]
        expected_count = self.seed_check * len(task_names)
        # rounded up as often as its fraction says, so that the share is right over many models
        repeated_count = math.floor(expected_count + _draw_share(self.seed, model_name))
        drawn_order = sorted(task_names, key=lambda name: _draw_share(self.seed, model_name, name))
        return 2 if task_name in drawn_order[:repeated_count] else 1

    def make_sample_plan(self, task_name: str) -> SamplePlan | None:
        """Return how the answers of a task are sampled; None if they are not."""
        task_spec = self.find_task_spec(task_name)
        if task_spec is None or task_spec.samples is None:
            return None
        return task_spec.samples.make_plan(self.seed)

    @property
    def lanes_per_task(self) -> int:
        """How many fine-tunings of a task workers can share.

        One for each learning rate of the grid and each seed; 1 where all weights are tuned, as that is not shared.
        """
        if self.tuning.method == "full":
            return 1
        return len(self.tuning.learning_rates) * self.seeds

    def rows(self) -> tuple[ModelSpec, ...]:
        """Return every model that the study scores, with checkpoints expanded and exposed copies added.

        All cells of one of these models are a *row*, the unit of execution.
        """
        originals: list[ModelSpec] = []
        for model in self.models:
            originals.extend(model.expand())
        if self.treat is None:
            return tuple(originals)
        exposed_copies = [self._make_exposed_copy(model, self.treat) for model in originals]
        if self.treat.who == "copies":
            return (*originals, *exposed_copies)
        chosen_names = _choose_half(tuple(originals), self.treat.seed)
        models = []
        for original, exposed_copy in zip(originals, exposed_copies, strict=True):
            is_replaced = original.name in chosen_names
            models.append(exposed_copy if is_replaced else original)
        return tuple(models)

    def _make_exposed_copy(self, model: ModelSpec, treat: Treat) -> ModelSpec:
        """Return the copy of a model that is trained on tasks of the study before it is scored."""
        task_names = {task.name for task in self.tasks}
        exposed_tasks = [name for name in treat.data if name in task_names]
        return model.with_changes(
            name=model.name + EXPOSED,
            path=model.source,
            copy_of=model.name,
            exposure=(*model.exposure, *exposed_tasks),
        )

"""The Study: what a user asks for, as one typed value. Splits and caps are those of the train-before-test paper."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from potentia.facts import leaderboard_shots
from potentia.study.checkpoints import find_checkpoints
from potentia.values.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol

Positive = Annotated[int, Field(gt=0)]
PositiveShare = Annotated[float, Field(gt=0)]
Selection = Literal["validation", "tuned", "paper"]


class Strict(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CheckpointSpec(Strict):
    """One point of a pretraining run: a hub revision or a folder."""

    step: int = Field(ge=0, description="the optimizer step it stands at; its row is called `name@step`")
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

    name: str = Field(description="what it is called in tables; also its hub name where there is no path")
    path: str | None = Field(None, description="hub name, folder or GGUF file")
    revision: str | None = Field(None, description="hub branch, tag or commit")
    gguf_file: str | None = Field(None, description="the GGUF file to load from a folder or repository of several")
    kind: Literal["auto", "base", "instruct"] = Field(
        "auto",
        description="`base` is never asked through a chat template; `auto` goes by the facts, the name, the tokenizer",
    )
    family: str | None = Field(None, description="for comparisons within and between families")
    parameters: float | None = Field(None, gt=0, description="number of parameters")
    tokens: float | None = Field(None, gt=0, description="pretraining tokens; with the parameters, the compute")
    date: str | None = Field(None, description="when it came out: 2024-11 or 2024-11-30")
    base_model: str | None = Field(None, description="the base model that an instruct model was made from")
    checkpoints: Annotated[tuple[CheckpointSpec, ...], BeforeValidator(_found)] = Field(
        (),
        description="points of its pretraining, each a row of its own: a list, or the folder (or hub repository) that"
        " holds `checkpoint-390`, `step1000`, `iter_0001000` …",
    )
    series: str | None = Field(None, description="the pretraining run it is a checkpoint of; set by `checkpoints`")
    step: int | None = Field(None, description="where in that run; set by `checkpoints`")
    trust_remote_code: bool = Field(False, description="run the model's own code; only for those you trust")
    adapter: str | None = Field(None, description="folder of a PEFT adapter, merged into the model when it loads")
    quantise: Literal["8bit", "4bit"] | None = Field(
        None, description="keep its weights in few bits, by bitsandbytes: `8bit`, or `4bit` (NF4, as in QLoRA)"
    )
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, min_length=1, description="its own under `adjust`, where the recipe's would harm it"
    )
    exposure: tuple[str, ...] = Field((), description="tasks whose form or data were in its training, where known")
    copy_of: str | None = Field(None, description="the model that this one is a treated copy of; set by `treat`")

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
            self.model_copy(
                update={
                    "name": f"{self.name}@{point.step}",
                    "path": point.path or self.source,
                    "revision": point.revision or self.revision,
                    "tokens": point.tokens or self.tokens,
                    "series": self.name,
                    "step": point.step,
                    "checkpoints": (),
                }
            )
            for point in self.checkpoints
        )


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    return tuple((str(k), str(v)) for k, v in value.items()) if isinstance(value, dict) else value


class Columns(Strict):
    """Which columns of your own data are what, where they are not called so."""

    question: str | None = Field(None, description="what is asked, of a multiple-choice benchmark")
    choices: str | tuple[str, ...] | None = Field(None, description="a column of lists, or one column per choice")
    answer: str | None = Field(None, description="the right choice: its text, its number, or its letter")
    prompt: str | None = Field(None, description="what is asked, of a generation benchmark")
    completion: str | None = Field(None, description="what is to be written")
    text: str | None = Field(None, description="a document of a corpus, or the text that a label is of")
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
        said = {name: getattr(own, name) for name in own.model_fields_set} if own is not None else {}
        return self.model_copy(update=said)


class TaskSpec(Strict):
    """A benchmark: a harness task (``arc_easy``), one in another form (``arc_easy:choice``), or the user's file."""

    name: str = Field(description="what it is called in tables; also the harness task where there is no file")
    file: str | tuple[str, ...] | None = Field(
        None,
        description="your own: a jsonl, csv, parquet or text file, several of them, a folder, or a harness task file",
    )
    dataset: str | None = Field(None, description="your own on the hub: a dataset's name, as `org/name`")
    subset: str | None = Field(None, description="the configuration of that dataset")
    columns: Columns = Field(
        Columns(), description="your columns: `{question: query, choices: [a, b, c], answer: label}`"
    )
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = Field(
        (), description="words for the labels of a classification: `{0: negative, 1: positive}`"
    )
    prompt: str | None = Field(None, description="how a question is put, over your columns: `{{context}} Q: {{query}}`")
    ratios: tuple[PositiveShare, PositiveShare, PositiveShare] | None = Field(
        None, description="shares of train, validation and test of data in one split; 8:1:1 where absent"
    )
    folds: Annotated[int, Field(ge=2, le=20)] | None = Field(
        None, description="test every document once, in so many folds; for few documents in one split"
    )
    fold: int | None = Field(None, description="which of the folds; set by `folds`")

    shots: int | None = Field(
        None, ge=0, le=1000, description="examples before a question under direct, few_shot and adjust"
    )
    caps: Caps | None = Field(None, description="caps of its own; what they do not say is the study's")
    mean: Literal["items", "subtasks"] | None = Field(
        None, description="a group's score: over all items, or the plain mean of its subtasks; the harness's if absent"
    )
    answer_tokens: Positive | None = Field(None, description="tokens that an answer is written in at most")
    category: str | None = Field(None, description="what kind of task it is, for agreement by category")
    chance: float | None = Field(None, ge=0, le=1, description="accuracy of a guess, where the options do not tell it")

    @model_validator(mode="after")
    def _one_source(self) -> TaskSpec:
        if self.file is not None and self.dataset is not None:
            raise ValueError("a task has a file or a dataset, not both")
        if (
            (self.columns.given() or self.prompt or self.subset or self.labels)
            and self.file is None
            and self.dataset is None
        ):
            raise ValueError("columns, labels, prompt and subset are for data of your own: give a file or a dataset")
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


# Appendix A.2 of the train-before-test paper, and what its code does beyond the text: PEFT's targets for the
# architecture, the end of the text after every document (its TRL appends it), and all right answers of a question
# joined by spaces (nq_open). One thing is not followed: the code takes each rate's epoch by the loss on validation,
# the paper, as here, by the score.
PAPER: dict[str, Any] = {
    "targets": None, "dropout": 0.1, "epochs": 5, "least_updates": 0, "learning_rates": (1e-5, 2e-5, 5e-5),
    "rate_bounds": None, "race": False, "loss": "text", "end_of_text": "texts", "answers": "all",
}  # fmt: skip
FULL: dict[str, Any] = {"learning_rates": (1e-5, 3e-5, 1e-4), "rate_bounds": (1e-6, 1e-3)}  # of `fair`, all weights
EXPECTED_MORE = 0.7  # learning rates that a search asks for beyond its grid
ROUNDS = 10  # ends of epochs at which few documents are validated at most


class Tuning(Strict):
    """The fine-tuning that every model receives: a recipe by name, and what is said beside it."""

    recipe: Literal["fair", "paper"] = Field(
        "fair",
        exclude=True,  # its values are what counts
        description="the values of all that is not said here: `fair` gives every architecture the same and searches"
        " its learning rate; `paper` is appendix A.2 of the train-before-test paper",
    )
    method: Literal["lora", "rslora", "dora", "full"] = Field(
        "lora", description="train adapters (LoRA, rsLoRA or DoRA), or all weights"
    )
    rank: Positive = Field(8, description="rank of the adapters")
    alpha: float = Field(32, gt=0, description="the adapters' output is scaled by alpha / rank (rsLoRA: √rank)")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the adapters' input")
    targets: tuple[str, ...] | None = Field(
        ("all-linear",),
        description="names of the adapted modules; `[all-linear]`: every linear layer but the head; null: PEFT's own"
        " choice, which differs between architectures",
    )
    epochs: Positive = Field(3, description="passes over the training documents")
    least_updates: int = Field(
        200, ge=0, description="more passes where documents are too few for so many updates; 0 where epochs are named"
    )
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (3e-4, 1e-3, 3e-3), min_length=1, description="the grid; validation chooses from it"
    )
    rate_bounds: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] | None = Field(
        (1e-5, 1e-2),
        description="how far the grid is extended where its end wins; null, as it is where rates are named: not at all",
    )
    batch: Positive = Field(8, description="examples per update, the same on every device")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's")
    clip: float = Field(1.0, gt=0, description="largest norm of a gradient")
    decay: Literal["linear", "cosine", "constant"] = Field("linear", description="how the learning rate falls")
    floor: float = Field(0.0, ge=0, le=1, description="where the decay ends, as a share of the learning rate")
    warmup_steps: int = Field(0, ge=0, description="updates over which the learning rate rises from zero")
    max_tokens: Positive = Field(1_024, description="longer examples are cut")
    loss: Literal["text", "completion"] = Field("completion", description="learn the whole text, or the answer alone")
    end_of_text: Literal["answers", "texts"] = Field(
        "answers", description="learn the end of the text after every answer, or after every text, a corpus's too"
    )
    answers: Literal["first", "all"] = Field(
        "first", description="of several right answers learn the first, or all, joined by spaces"
    )
    race: bool = Field(True, description="drop learning rates that fall behind beyond noise, and those past their best")

    @model_validator(mode="before")
    @classmethod
    def _by_recipe(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        usual = PAPER if raw.get("recipe") == "paper" else FULL if raw.get("method") == "full" else {}
        meant: dict[str, Any] = {"rate_bounds": None} if "learning_rates" in raw else {}  # what is named is meant
        meant |= {"least_updates": 0} if "epochs" in raw else {}
        return {**usual, **meant, **raw}

    @model_validator(mode="after")
    def _grid_in_bounds(self) -> Tuning:
        low, high = self.rate_bounds or (0.0, math.inf)
        if not low <= min(self.learning_rates) <= max(self.learning_rates) <= high:
            raise ValueError("rate_bounds must enclose the learning_rates, the lower bound first")
        return self

    @property
    def expected_lanes(self) -> float:
        """The lanes of a search, as measured where it may go beyond its grid."""
        return len(self.learning_rates) + (EXPECTED_MORE if self.rate_bounds is not None else 0.0)

    def rounds(self, documents: int) -> tuple[int, int]:
        """Return how many epochs are made of so many documents, and the passes of each: several where they are few."""
        if self.epochs * math.ceil(documents / self.batch) >= self.least_updates or documents == 0:
            return self.epochs, 1
        passes = math.ceil(self.least_updates * self.batch / documents)
        repeats = math.ceil(passes / ROUNDS)
        return math.ceil(passes / repeats), repeats

    def updates(self, documents: int) -> int:
        """Return the updates of one lane on so many documents."""
        rounds, repeats = self.rounds(documents)
        return rounds * math.ceil(documents * repeats / self.batch)


class Adjust(Strict):
    """Tune every model on the same auxiliary data, then score the study's tasks."""

    data: str = Field(description="a task or file that every model is tuned on: all of its train split, or of the file")
    form: str = Field(
        "choice",
        description="how multiple-choice data are asked: `choice` teaches letters, `own` what the task asks for",
    )
    cap: Positive | None = Field(None, description="documents to train on at most; all where absent")
    hold_out: Positive | None = Field(
        None, description="documents kept to choose a learning rate by, for tasks without validation documents"
    )
    every_rate: bool = Field(False, description="test every learning rate beside the chosen one; chooses nothing")
    recipe: Literal["test_task"] | None = Field(
        None, description='the recipe of "Training on the test task", appendix B.2: full, its rate by size'
    )
    tuning: Tuning | None = Field(None, description="a recipe of its own; the study's `tuning` where absent")
    at_steps: tuple[Positive, ...] = Field(
        (), description="score also after these updates, as `adjust@N`; none may lie beyond the end"
    )

    @model_validator(mode="after")
    def _one_recipe(self) -> Adjust:
        if self.recipe is not None and self.tuning is not None:
            raise ValueError("give a `recipe` by name or a `tuning` of its own, not both")
        return self


class Treat(Strict):
    """Expose some models to test tasks on purpose, before the study (section 3.1 of "Training on the test task").

    Every model gets a copy, or a random half of the models is replaced by one, that is first tuned on the training data
    of some tasks; the study then scores originals and copies by all protocols.
    """

    data: tuple[str, ...] = Field(min_length=1, description="tasks of the study, or files, whose train split is shown")
    who: Literal["copies", "half"] = Field("copies", description="a copy of each model, or a random half of the models")
    tuning: Tuning | None = Field(None, description="how copies are tuned, by the largest rate; `tuning` where absent")
    seed: int = Field(0, description="of the choice of a half, and of the tuning")

    def recipe(self, tuning: Tuning) -> Tuning:
        """Return the tuning of the copies: its own, or the study's with its largest learning rate alone."""
        chosen = self.tuning or tuning
        return chosen.model_copy(update={"learning_rates": (max(chosen.learning_rates),)})


class Probe(Strict):
    """A short fine-tuning of every model on every task, the same in all studies: how much is left to learn of it.

    `potentia analyze exposure` reads it. It chooses nothing and changes no score; of test documents it takes the loss
    before any update.
    """

    on: bool | None = Field(None, description="by default where it costs at most 3 % of the task's fine-tuning")
    documents: Annotated[int, Field(ge=2)] = Field(
        128, description="documents of each split that are read at most; half as many are learned from"
    )
    learning_rate: float = Field(5e-4, gt=0, description="low, and the same for all models")

    @property
    def learned(self) -> int:
        """The documents that are learned from."""
        return self.documents // 2


EXPOSED = "+exposed"  # follows the name of a model that `treat` tunes


def _switched(value: Any) -> Any:
    return {"on": value} if isinstance(value, bool) else value


def _once(kind: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} named twice: {', '.join(twice)}")


def _half(rows: tuple[ModelSpec, ...], seed: int) -> set[str]:
    """Choose one of each two models next to each other in compute (or in size, or as listed), by a seeded coin."""
    order = sorted(rows, key=lambda row: (row.parameters or 0.0) * (row.tokens or 1.0))
    coin = random.Random(seed)
    pairs = (order[first : first + 2] for first in range(0, len(order), 2))
    tossed = ((pair, coin.randrange(2)) for pair in pairs)
    return {pair[side].name for pair, side in tossed if side < len(pair)}


class Wanted(Strict):
    """The tuned cells of one model that a study asks for."""

    model: str = Field(description="a row of the study")
    tasks: tuple[str, ...] = Field(description="the tasks it is tuned for")


_latest: tuple[tuple[TaskSpec, ...], dict[str, TaskSpec]] = ((), {})


def _expanded(tasks: tuple[TaskSpec, ...]) -> dict[str, TaskSpec]:
    """Return tasks by name, folds expanded; every cell asks, so the latest answer is kept."""
    global _latest
    asked, known = _latest
    if asked is not tasks:
        known = {one.name: one for task in tasks for one in task.expand()}
        _latest = (tasks, known)
    return known


class Study(Strict):
    """What a user asks for: models, tasks, protocols, the tuning recipe and the budget."""

    name: str = Field("study", description="what it is called in the store")
    models: tuple[Annotated[ModelSpec, BeforeValidator(_named)], ...] = Field(
        min_length=1, description="hub names and folders, or records"
    )
    tasks: tuple[Annotated[TaskSpec, BeforeValidator(_named)], ...] = Field(
        min_length=1, description="harness tasks, also in another form (`arc_easy:cloze`), files, or records"
    )
    protocols: tuple[Protocol, ...] = Field(
        (DIRECT, TRAIN_BEFORE_TEST), description="`direct`, `few_shot:K`, `train_before_test`, `adjust`"
    )
    data_dir: str | None = Field(
        None, description="folder of benchmark splits, `<dataset>/<config>/<split>.parquet`; the hub where absent"
    )
    shots: Literal["leaderboard"] | None = Field(
        None, description="`leaderboard`: as many examples as the public leaderboards show (25 for ARC, 5 for MMLU …)"
    )
    answer_tokens: Positive | None = Field(
        None, description="tokens that an answer is written in at most; the task's own number where absent"
    )
    caps: Caps = Field(Caps(), description="the most documents of each split")
    carve: float = Field(0.2, gt=0, lt=1, description="share of train carved out where validation is the test split")
    drop_overlap: bool | None = Field(
        None,
        description="drop training documents that overlap the test split; where absent, your own that another split"
        " repeats",
    )
    drop_bad_rows: bool = Field(False, description="leave out rows of your files that cannot be used")
    tuning: Tuning = Field(Tuning(), description="the fine-tuning that every model receives")
    selection: Selection = Field(
        "validation",
        description="what is tested: the best on validation, the untuned model among them; `tuned`: the best tuned"
        " state; `paper`: the better of that and the untuned model, by the test",
    )
    chat: Literal["auto", "never", "always"] = Field(
        "auto", description="chat template of instruct models; `auto` lets validation choose"
    )
    adjust: Adjust | None = Field(None, description="the auxiliary data of the protocol `adjust`")
    only: tuple[Wanted, ...] | None = Field(
        None, description="tune these cells alone, as `potentia plan --budget` writes them; all where absent"
    )
    treat: Treat | None = Field(None, description="show some models test tasks before the study, on purpose")
    probe: Annotated[Probe, BeforeValidator(_switched)] = Field(
        Probe(), description="record how much is left to learn, for `analyze exposure`: true, false, or a record"
    )
    seed: int = Field(0, description="seed of splits, orders and examples, and the first of the fine-tuning seeds")
    seeds: Positive = Field(1, description="fine-tuning seeds per cell; the score is their mean")
    device: str = Field(
        "auto",
        description="`auto`, `cpu`, `cuda`, `cuda:1` …; `spread`: each model over all GPUs, and the CPU if need be",
    )
    shards: Positive = Field(
        1, description="GPUs that share the weights and moments of one full tuning (FSDP), a process each"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the weights; `auto` is bfloat16 on a GPU, else float32"
    )
    token_budget: Positive | None = Field(None, description="tokens per forward pass; found by itself where absent")
    store: str = Field("potentia.db", description="SQLite file, or a PostgreSQL URL")
    keep_adapters: bool = Field(True, description="keep the chosen adapter of every tuned cell beside the store")
    facts: str | None = Field(None, description="a CSV of model facts, beside the built-in ones")

    @field_validator("protocols")
    @classmethod
    def _distinct(cls, value: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
        if not value:
            raise ValueError("name at least one protocol: direct, few_shot:K, train_before_test or adjust")
        return tuple(dict.fromkeys(value))

    @field_validator("models")
    @classmethod
    def _models_once(cls, value: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
        _once("model", [row.name for model in value for row in model.expand()])
        return value

    @field_validator("tasks")
    @classmethod
    def _tasks_once(cls, value: tuple[TaskSpec, ...]) -> tuple[TaskSpec, ...]:
        _once("task", [task.name for task in value])
        return value

    @model_validator(mode="after")
    def _only_known(self) -> Study:
        rows, tasks = {row.name for row in self.rows()}, {task.name for task in self.benchmarks()}
        _once("model under `only`", [wanted.model for wanted in self.only or ()])
        for wanted in self.only or ():
            if wanted.model not in rows:
                raise ValueError(f"`only` names {wanted.model}, which is not among the models")
            if unknown := sorted(set(wanted.tasks) - tasks):
                raise ValueError(f"`only` names {', '.join(unknown)}, not among the tasks")
        return self

    def asks(self, model: str, task: str, protocol: Protocol) -> bool:
        """Say whether a cell is part of the study; ``only`` leaves out tuned cells."""
        if self.only is None or not Protocol(protocol).tuned:
            return True
        return any(wanted.model == model and task in wanted.tasks for wanted in self.only)

    @model_validator(mode="after")
    def _adjust_has_data(self) -> Study:
        if ADJUST in self.protocols and self.adjust is None:
            raise ValueError("protocol adjust needs an `adjust:` section that names its data")
        return self

    @model_validator(mode="after")
    def _no_few_bits_tuned(self) -> Study:
        few = next((model for model in self.models if model.quantise is not None), None)
        asked = {Protocol(protocol).kind for protocol in self.protocols}
        if few is None:
            return self
        methods = {"train_before_test": self.tuning.method} if "train_before_test" in asked else {}
        if "adjust" in asked and self.adjust is not None:
            own = (self.adjust.tuning or self.tuning).method
            methods["adjust"] = "full" if self.adjust.recipe is not None else own
        if self.treat is not None:
            methods["treat"] = self.treat.recipe(self.tuning).method
        full = next((where for where, method in methods.items() if method == "full"), None)
        if full is not None:
            raise ValueError(
                f"{full} tunes all weights, and those of {few.name} are quantised ({few.quantise}):"
                " use `method: lora`, or drop `quantise`"
            )
        return self

    @model_validator(mode="after")
    def _no_folds_shown(self) -> Study:
        shown = self.treat.data if self.treat is not None else ()
        folded = [task.name for task in self.tasks if task.folds is not None and task.name in shown]
        if folded:
            raise ValueError(f"treat cannot show {folded[0]}, which is tested in folds: every document is in some test")
        return self

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

    def rows(self) -> tuple[ModelSpec, ...]:
        """Return every model of the study, checkpoint series expanded and treated copies added: one row each."""
        plain = tuple(row for model in self.models for row in model.expand())
        if self.treat is None:
            return plain
        seen = tuple(name for name in self.treat.data if name in {task.name for task in self.tasks})
        copies = {
            row.name: row.model_copy(
                update={"name": row.name + EXPOSED, "copy_of": row.name, "exposure": (*row.exposure, *seen)}
            )
            for row in plain
        }
        if self.treat.who == "copies":
            return (*plain, *(copies[row.name].model_copy(update={"path": row.source}) for row in plain))
        half = _half(plain, self.treat.seed)
        return tuple(
            copies[row.name].model_copy(update={"path": row.source}) if row.name in half else row for row in plain
        )

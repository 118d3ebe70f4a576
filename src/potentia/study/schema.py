"""The Study: what a user asks for, as one typed value. Defaults are those of the train-before-test paper."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from potentia.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol

Positive = Annotated[int, Field(gt=0)]
Selection = Literal["validation", "tuned", "paper"]
"""Which state of a model is tested: the best on validation, the untuned model among them; the best tuned one, whatever
the untuned model scores; or the papers' rule, the better of the best tuned one and the untuned model on the test."""


class Strict(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(Strict):
    """One point of a pretraining run: a hub revision or a folder, with the step (or tokens) it stands at."""

    step: Annotated[int, Field(ge=0)]
    revision: str | None = None
    path: str | None = None
    tokens: float | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Checkpoint:
        if self.revision is None and self.path is None:
            raise ValueError("a checkpoint needs a revision (on the hub) or a path (a folder)")
        return self


class ModelSpec(Strict):
    """A causal language model: where it is, and the facts that the built-in table does not know."""

    name: str
    path: str | None = Field(None, description="hub name or folder; the name itself where absent")
    revision: str | None = None
    gguf_file: str | None = None
    kind: Literal["auto", "base", "instruct"] = "auto"
    family: str | None = None
    parameters: float | None = Field(None, gt=0, description="number of parameters")
    tokens: float | None = Field(None, gt=0, description="pretraining tokens")
    date: str | None = None
    base_model: str | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    series: str | None = None
    step: int | None = None
    trust_remote_code: bool = False

    @property
    def source(self) -> str:
        """The hub name or folder to load from."""
        return self.path or self.name

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


class TaskSpec(Strict):
    """A benchmark: a harness task (``arc_easy``), one in another form (``arc_easy:choice``), or the user's file."""

    name: str
    file: str | None = Field(None, description="a jsonl, csv, parquet or text file, or a folder of split files")

    @property
    def source(self) -> str:
        """What the task loader is asked for."""
        return self.file or self.name


class Caps(Strict):
    """How many documents of each split are used at most."""

    train: Positive = 50_000
    validation: Positive = 1_000
    test: Positive = 10_000


class Tuning(Strict):
    """The fine-tuning that every model receives."""

    method: Literal["lora", "full"] = "lora"
    rank: Positive = 8
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    targets: tuple[str, ...] | None = Field(None, description="module names; PEFT's own defaults where absent")
    epochs: Positive = 5
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] = Field((1e-5, 2e-5, 5e-5), min_length=1)
    batch: Positive = 8
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = Field(1.0, gt=0)
    decay: Literal["linear", "cosine", "constant"] = "linear"
    floor: float = Field(0.0, ge=0, le=1, description="where the decay ends, as a share of the learning rate")
    warmup_steps: int = Field(0, ge=0)
    max_tokens: Positive = 1_024
    loss: Literal["text", "completion"] = "text"
    race: bool = Field(False, description="drop learning rates that fall behind beyond noise")


def recipe_test_task(parameters: float) -> Tuning:
    """Return the recipe of "Training on the test task", appendix B.2: the learning rate depends on the size."""
    return Tuning(
        method="full",
        epochs=3,
        learning_rates=(2e-5 if parameters < 10e9 else 2e-6,),
        batch=64,
        weight_decay=0.1,
        betas=(0.9, 0.95),
        clip=1.0,
        decay="cosine",
        floor=0.1,
        warmup_steps=50,
        max_tokens=600,
    )


class Adjust(Strict):
    """Tune every model on the same auxiliary data, then score the study's tasks."""

    data: str = Field(description="a task or file whose train split every model is tuned on")
    recipe: Literal["test_task"] | None = Field(None, description="the named recipe; `tuning` where absent")
    tuning: Tuning | None = None
    at_steps: tuple[Positive, ...] = Field((), description="score also at these optimizer steps")

    def recipe_for(self, parameters: float) -> Tuning | None:
        """Return the tuning of a model of this size; None where the study's own counts."""
        return recipe_test_task(parameters) if self.recipe == "test_task" else self.tuning


def _once(kind: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} named twice: {', '.join(twice)}")


class Study(Strict):
    """What a user asks for: models, tasks, protocols, the tuning recipe and the budget."""

    name: str = "study"
    models: tuple[Annotated[ModelSpec, BeforeValidator(_named)], ...] = Field(min_length=1)
    tasks: tuple[Annotated[TaskSpec, BeforeValidator(_named)], ...] = Field(min_length=1)
    protocols: tuple[Protocol, ...] = (DIRECT, TRAIN_BEFORE_TEST)
    data_dir: str | None = Field(None, description="folder of benchmark splits; the hub where absent")
    caps: Caps = Caps()
    carve: float = Field(0.2, gt=0, lt=1, description="share of train carved out as validation")
    drop_overlap: bool = Field(False, description="drop training documents that overlap the test split")
    tuning: Tuning = Tuning()
    selection: Selection = "validation"
    chat: Literal["auto", "never", "always"] = Field("auto", description="chat template of instruct models")
    adjust: Adjust | None = None
    seed: int = 0
    seeds: Positive = Field(1, description="fine-tuning seeds per cell")
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    token_budget: Positive | None = Field(None, description="tokens per forward pass; found by itself where absent")
    store: str = "potentia.db"
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
    def _adjust_has_data(self) -> Study:
        if ADJUST in self.protocols and self.adjust is None:
            raise ValueError("protocol adjust needs an `adjust:` section that names its data")
        return self

    def rows(self) -> tuple[ModelSpec, ...]:
        """Return every model of the study, checkpoint series expanded: one row each."""
        return tuple(row for model in self.models for row in model.expand())

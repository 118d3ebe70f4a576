"""How models are fine-tuned: the settings (a *recipe*) for each purpose of a fine-tuning.

- ``Tuning``: what every model of a study gets before the test.
- ``Adjust``: tuning on auxiliary data, data of another source than the tasks of the study.
- ``Treat``: exposed copies are trained on test tasks on purpose, to see what that is worth.
- ``Probe``: a short fine-tuning, the same in all studies, that measures what is left to learn of a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from potentia.extensions import ExtensionKind, list_extensions
from potentia.values.recipe import Decay, LoraConfig, Loss, Schedule

if TYPE_CHECKING:
    from potentia.study.schema import ModelSpec, Study

Positive = Annotated[int, Field(gt=0)]
BUILT_IN_METHODS = ("lora", "rslora", "full")
SelectionRule = Literal["validation", "tuned", "paper", "last"]
"""The rule by which a study chooses the state of a fine-tuning that is tested; see ``Study.selection``."""


class StrictRecord(BaseModel):
    """The base of all records of a study: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# The settings of the recipe "paper": appendix A.2 of the train-before-test paper, and what its code does beyond the
# text. The code takes PEFT's targets for the architecture, appends the end of the text to every document (TRL does it),
# joins all right answers of a question by spaces, and shows no description before it (nq_open). It loads weights in
# float32, naming no dtype; so does a study with this recipe that names none. The epoch of each rate is chosen by the
# score on validation, as in the paper and in the command of its README, not by the loss, the default of its main.py.
PAPER_SETTINGS: dict[str, Any] = {
    "targets": None,
    "dropout": 0.1,
    "epochs": 5,
    "least_updates": 0,
    "learning_rates": (1e-5, 2e-5, 5e-5),
    "rate_bounds": None,
    "race": False,
    "loss": "text",
    "end_of_text": "texts",
    "answers": "all",
    "task_description": False,
}
PAPER_DTYPE = "float32"
# The settings of the recipe "fair" that differ from the defaults of Tuning, if all weights are tuned.
FULL_TUNING_SETTINGS: dict[str, Any] = {
    "learning_rates": (1e-5, 3e-5, 1e-4),
    "rate_bounds": (1e-6, 1e-3),
}
EXPECTED_EXTRA_RATES = 0.7  # learning rates that a search adds to its grid, on average
MAX_VALIDATED_EPOCHS = (
    10  # with few documents, several passes over them make an epoch, to validate no more often
)


class Tuning(StrictRecord):
    """The fine-tuning that every model receives: a recipe by name, and what is said beside it."""

    recipe: Literal["fair", "paper"] = Field(
        "fair",
        exclude=True,  # its values are what counts
        description="the values of all that is not said here: `fair` gives every architecture the same and searches"
        " its learning rate; `paper` is appendix A.2 of the train-before-test paper",
    )
    method: Literal["lora", "rslora", "full"] | str = Field(
        "lora", description="train adapters (LoRA, rsLoRA or an extension's), or all weights"
    )
    rank: Positive = Field(LoraConfig.r, description="rank of the adapters")
    alpha: float = Field(
        LoraConfig.alpha,
        gt=0,
        description="the adapters' output is scaled by alpha / rank (rsLoRA: √rank)",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the adapters' input")
    targets: tuple[str, ...] | None = Field(
        ("all-linear",),
        description="names of the adapted modules; `[all-linear]`: every linear layer but the head; null: PEFT's own"
        " choice, which differs between architectures",
    )
    epochs: Positive = Field(Schedule.epochs, description="passes over the training examples")
    least_updates: int = Field(
        200,
        ge=0,
        description="more passes where examples are too few for so many updates; 0 where epochs are named",
    )
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (3e-4, 1e-3, 3e-3), min_length=1, description="the grid; validation chooses from it"
    )
    rate_bounds: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] | None = Field(
        (1e-5, 1e-2),
        description="how far the grid is extended where its end wins; null, as it is where rates are named: not at all",
    )
    batch: Positive = Field(
        Schedule.batch, description="examples per update, the same on every device"
    )
    weight_decay: float = Field(Schedule.weight_decay, ge=0, description="AdamW's")
    betas: tuple[float, float] = Field(Schedule.betas, description="AdamW's")
    clip: float = Field(Schedule.clip, gt=0, description="largest norm of a gradient")
    decay: Decay = Field(Schedule.decay, description="how the learning rate falls")
    floor: float = Field(
        Schedule.floor,
        ge=0,
        le=1,
        description="where the decay ends, as a share of the learning rate",
    )
    warmup_steps: int = Field(
        Schedule.warmup_steps,
        ge=0,
        description="updates over which the learning rate rises from zero",
    )
    max_tokens: Positive = Field(Schedule.max_tokens, description="longer examples are cut")
    loss: Loss = Field("completion", description="learn the whole text, or the answer alone")
    end_of_text: Literal["answers", "texts"] = Field(
        "answers",
        description="learn the end of the text after every answer, or after every text, a corpus's too",
    )
    answers: Literal["first", "all"] = Field(
        "first", description="of several right answers learn the first, or all, joined by spaces"
    )
    task_description: bool = Field(
        True, description="learn the task's description before a question, as the test shows it"
    )
    race: bool = Field(
        True,
        description="drop learning rates that fall behind beyond noise, and those past their best",
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_recipe(cls, settings: Any) -> Any:
        """Fill in the settings of the recipe, or of full tuning, that the study does not name.

        Named learning rates and epochs switch off the search for others.
        """
        if not isinstance(settings, Mapping):
            return settings
        values: dict[str, Any] = {}
        if settings.get("recipe") == "paper":
            values.update(PAPER_SETTINGS)
        elif settings.get("method") == "full":
            values.update(FULL_TUNING_SETTINGS)
        if "learning_rates" in settings:
            values["rate_bounds"] = None
        if "epochs" in settings:
            values["least_updates"] = 0
        values.update(settings)
        return values

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        methods = [*BUILT_IN_METHODS, *list_extensions(ExtensionKind.ADAPTER_METHOD)]
        if method not in methods:
            *others, last = methods
            raise ValueError(f"use {', '.join(others)} or {last}")
        return method

    @model_validator(mode="after")
    def _check_grid(self) -> Tuning:
        lower_bound, upper_bound = self.rate_bounds or (0.0, math.inf)
        lowest_rate = min(self.learning_rates)
        highest_rate = max(self.learning_rates)
        if not lower_bound <= lowest_rate <= highest_rate <= upper_bound:
            raise ValueError("rate_bounds must enclose the learning_rates, the lower bound first")
        return self

    @property
    def expected_lanes(self) -> float:
        """How many fine-tunings (lanes) a search trains on average: one for each learning rate of the grid.

        It is 0.7 more if the search may add rates beyond the grid.
        """
        beyond_grid = EXPECTED_EXTRA_RATES if self.rate_bounds is not None else 0.0
        return len(self.learning_rates) + beyond_grid

    def plan_epochs(self, documents: int) -> tuple[int, int]:
        """Return how many epochs are trained, and how many passes over the documents make an epoch.

        With few documents there are more passes, until ``least_updates`` is reached. They make at most
        ``MAX_VALIDATED_EPOCHS`` epochs.
        """
        planned_updates = self.epochs * math.ceil(documents / self.batch)
        if planned_updates >= self.least_updates or documents == 0:
            return self.epochs, 1
        passes = math.ceil(self.least_updates * self.batch / documents)
        passes_per_epoch = math.ceil(passes / MAX_VALIDATED_EPOCHS)
        return math.ceil(passes / passes_per_epoch), passes_per_epoch

    def make_lora_config(self) -> LoraConfig:
        """Return the shape of the adapters; full tuning has none and ignores it."""
        return LoraConfig(
            r=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=self.targets,
            kind="lora" if self.method == "full" else self.method,
        )

    def make_schedule(self, learning_rate: float, documents: int | None = None) -> Schedule:
        """Return the schedule at one learning rate, with as many epochs as so many documents are trained for.

        A schedule does not know that an epoch may be several passes: ``encode_training_examples`` repeats the texts.
        """
        epochs = self.epochs
        if documents is not None:
            epochs, _ = self.plan_epochs(documents)
        return Schedule(
            epochs=epochs,
            learning_rate=learning_rate,
            batch=self.batch,
            weight_decay=self.weight_decay,
            betas=self.betas,
            clip=self.clip,
            decay=self.decay,
            warmup_steps=self.warmup_steps,
            floor=self.floor,
            loss=self.loss,
            max_tokens=self.max_tokens,
        )

    def count_updates(self, documents: int) -> int:
        """Return the number of updates of one fine-tuning on so many documents."""
        epochs, passes_per_epoch = self.plan_epochs(documents)
        return epochs * math.ceil(documents * passes_per_epoch / self.batch)


class Adjust(StrictRecord):
    """Tune every model on the same auxiliary data, then score the study's tasks."""

    data: str | tuple[str, ...] = Field(
        min_length=1,
        description="a task or file that every model is tuned on, or several: all of the train split, or of the file",
    )
    form: str = Field(
        "choice",
        description="how the data are asked: `choice` teaches letters where there are options; `question` writes"
        ' "Question: …", "Answer:" around what is answered by writing; `own` what the task asks for',
    )
    cap: Positive | None = Field(None, description="examples to train on at most; all where absent")
    hold_out: Positive | None = Field(
        None,
        description="examples kept to choose a learning rate by, for tasks without validation examples",
    )
    every_rate: bool = Field(
        False, description="test every learning rate beside the chosen one; chooses nothing"
    )
    recipe: Literal["test_task"] | None = Field(
        None,
        description='the recipe of "Training on the test task", appendix B.2: full, its rate by size',
    )
    tuning: Tuning | None = Field(
        None, description="a recipe of its own; the study's `tuning` where absent"
    )
    at_steps: tuple[Positive, ...] = Field(
        (), description="score also after these updates, as `adjust@N`; none may lie beyond the end"
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """The tasks or files that models are tuned on together."""
        if isinstance(self.data, str):
            return (self.data,)
        return self.data

    @model_validator(mode="after")
    def _check_recipe(self) -> Adjust:
        if self.recipe is not None and self.tuning is not None:
            raise ValueError("give a `recipe` by name or a `tuning` of its own, not both")
        return self


class Treat(StrictRecord):
    """Expose some models to test tasks on purpose, before the study (section 3.1 of "Training on the test task").

    Every model gets a copy, or a random half of the models is replaced by one, that is first tuned on the training data
    of some tasks; the study then scores originals and copies by all protocols.
    """

    data: tuple[str, ...] = Field(
        min_length=1,
        description="tasks of the study, or files, whose train split the copies are trained on",
    )
    who: Literal["copies", "half"] = Field(
        "copies", description="a copy of each model, or a random half of the models"
    )
    tuning: Tuning | None = Field(
        None, description="how copies are tuned, by the largest rate; `tuning` where absent"
    )
    seed: int = Field(0, description="of the choice of a half, and of the tuning")

    def make_tuning(self, tuning: Tuning) -> Tuning:
        """Return the tuning of the copies: their own, or the study's with its largest learning rate alone."""
        recipe = self.tuning or tuning
        largest_rate = max(recipe.learning_rates)
        return recipe.model_copy(update={"learning_rates": (largest_rate,)})


class Probe(StrictRecord):
    """A short fine-tuning of every model on every task, the same in all studies: how much is left to learn of it.

    `potentia analyze exposure` reads it. It chooses nothing and changes no score; of test examples it takes the loss
    before any update.
    """

    on: bool | None = Field(
        None, description="by default where it costs at most 3 % of the task's fine-tuning"
    )
    documents: Annotated[int, Field(ge=2)] = Field(
        128,
        description="examples of each split that are read at most; half as many are learned from",
    )
    learning_rate: float = Field(5e-4, gt=0, description="low, and the same for all models")

    @property
    def learned(self) -> int:
        """How many documents of a split are learned from."""
        return self.documents // 2


# Models that the usual learning rate harmed (appendix B.2 of "Training on the test task"): Qwen 2 and four of about 7B.
LOW_RATE_MODELS = frozenset(
    {
        "Qwen2-0.5B",
        "Qwen2-1.5B",
        "Qwen2-7B",
        "gemma-7b",
        "OLMo-7B-hf",
        "OLMo-1.7-7B-hf",
        "Meta-Llama-3-8B",
    }
)
LOW_RATE = 2e-6
# The recipe "test_task", appendix B.2 of the same paper, without its learning rate.
TEST_TASK_SETTINGS: dict[str, Any] = {
    "method": "full",
    "epochs": 3,
    "batch": 64,
    "weight_decay": 0.1,
    "betas": (0.9, 0.95),
    "clip": 1.0,
    "decay": "cosine",
    "floor": 0.1,
    "warmup_steps": 50,
    "max_tokens": 600,
    "loss": "completion",
    "race": False,
}


def recipe_test_task(parameters: float) -> Tuning:
    """Return the recipe of "Training on the test task", appendix B.2, for a model of this size: it decides the rate."""
    learning_rate = 2e-5 if parameters < 10e9 else 2e-6
    return Tuning.model_validate({**TEST_TASK_SETTINGS, "learning_rates": (learning_rate,)})


def tuning_for_adjust(
    study: Study, model: ModelSpec | None = None, parameters: float = 0.0
) -> Tuning:
    """Return how a model is tuned on a study's auxiliary data; its size or its entry may decide the learning rates."""
    adjust = study.adjust
    if adjust is None:
        return study.tuning
    if adjust.recipe == "test_task":
        tuning = recipe_test_task(parameters)
    else:
        tuning = adjust.tuning or study.tuning
    if model is None:
        return tuning
    rates_of_model = find_rates_of_model(study, model)
    if rates_of_model is None:
        return tuning
    return tuning.model_copy(update={"learning_rates": rates_of_model, "rate_bounds": None})


def find_rates_of_model(study: Study, model: ModelSpec) -> tuple[float, ...] | None:
    """Return a model's own learning rates under adjust: those of its entry, or the paper's low one; None for others."""
    if model.learning_rates is not None:
        return model.learning_rates
    if study.adjust is None or study.adjust.recipe != "test_task":
        return None
    from potentia.facts import models

    facts = models().find(model.copy_of or model.name) or models().find(model.source)
    if facts is not None and facts.name in LOW_RATE_MODELS:
        return (LOW_RATE,)
    return None

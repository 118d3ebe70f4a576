"""How models are tuned: the recipe of a study, of an adjustment, of treated copies, and of the probe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from potentia.study.schema import ModelSpec, Study

Positive = Annotated[int, Field(gt=0)]
SelectionRule = Literal["validation", "tuned", "paper"]


class Strict(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# Appendix A.2 of the train-before-test paper, and what its code does beyond the text: PEFT's targets for the
# architecture, the end of the text after every document (its TRL appends it), and all right answers of a question
# joined by spaces (nq_open). One thing is not followed: the code takes each rate's epoch by the loss on validation,
# the paper, as here, by the score.
PAPER: dict[str, Any] = {
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
}
# The recipe `fair` where all weights are tuned.
FULL: dict[str, Any] = {
    "learning_rates": (1e-5, 3e-5, 1e-4),
    "rate_bounds": (1e-6, 1e-3),
}
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
    method: Literal["lora", "rslora", "full"] = Field(
        "lora", description="train adapters (LoRA or rsLoRA), or all weights"
    )
    rank: Positive = Field(8, description="rank of the adapters")
    alpha: float = Field(
        32, gt=0, description="the adapters' output is scaled by alpha / rank (rsLoRA: √rank)"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the adapters' input")
    targets: tuple[str, ...] | None = Field(
        ("all-linear",),
        description="names of the adapted modules; `[all-linear]`: every linear layer but the head; null: PEFT's own"
        " choice, which differs between architectures",
    )
    epochs: Positive = Field(5, description="passes over the training documents")
    least_updates: int = Field(
        200,
        ge=0,
        description="more passes where documents are too few for so many updates; 0 where epochs are named",
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
    decay: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="how the learning rate falls"
    )
    floor: float = Field(
        0.0, ge=0, le=1, description="where the decay ends, as a share of the learning rate"
    )
    warmup_steps: int = Field(
        0, ge=0, description="updates over which the learning rate rises from zero"
    )
    max_tokens: Positive = Field(1_024, description="longer examples are cut")
    loss: Literal["text", "completion"] = Field(
        "completion", description="learn the whole text, or the answer alone"
    )
    end_of_text: Literal["answers", "texts"] = Field(
        "answers",
        description="learn the end of the text after every answer, or after every text, a corpus's too",
    )
    answers: Literal["first", "all"] = Field(
        "first", description="of several right answers learn the first, or all, joined by spaces"
    )
    race: bool = Field(
        True,
        description="drop learning rates that fall behind beyond noise, and those past their best",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_recipe(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        values: dict[str, Any] = {}
        if raw.get("recipe") == "paper":
            values.update(PAPER)
        elif raw.get("method") == "full":
            values.update(FULL)
        # Rates and epochs that a user names are meant: no search goes beyond them.
        if "learning_rates" in raw:
            values["rate_bounds"] = None
        if "epochs" in raw:
            values["least_updates"] = 0
        values.update(raw)
        return values

    @model_validator(mode="after")
    def _grid_in_bounds(self) -> Tuning:
        lower_bound, upper_bound = self.rate_bounds or (0.0, math.inf)
        lowest_rate = min(self.learning_rates)
        highest_rate = max(self.learning_rates)
        if not lower_bound <= lowest_rate <= highest_rate <= upper_bound:
            raise ValueError("rate_bounds must enclose the learning_rates, the lower bound first")
        return self

    @property
    def expected_lanes(self) -> float:
        """The lanes of a search, as measured where it may go beyond its grid."""
        beyond_grid = EXPECTED_MORE if self.rate_bounds is not None else 0.0
        return len(self.learning_rates) + beyond_grid

    def rounds(self, documents: int) -> tuple[int, int]:
        """Return how many epochs are made of so many documents, and the passes of each: several where they are few."""
        planned_updates = self.epochs * math.ceil(documents / self.batch)
        if planned_updates >= self.least_updates or documents == 0:
            return self.epochs, 1
        passes = math.ceil(self.least_updates * self.batch / documents)
        passes_per_epoch = math.ceil(passes / ROUNDS)
        return math.ceil(passes / passes_per_epoch), passes_per_epoch

    def updates(self, documents: int) -> int:
        """Return the updates of one lane on so many documents."""
        epochs, passes_per_epoch = self.rounds(documents)
        return epochs * math.ceil(documents * passes_per_epoch / self.batch)


class Adjust(Strict):
    """Tune every model on the same auxiliary data, then score the study's tasks."""

    data: str = Field(
        description="a task or file that every model is tuned on: all of its train split, or of the file"
    )
    form: str = Field(
        "choice",
        description="how multiple-choice data are asked: `choice` teaches letters, `own` what the task asks for",
    )
    cap: Positive | None = Field(
        None, description="documents to train on at most; all where absent"
    )
    hold_out: Positive | None = Field(
        None,
        description="documents kept to choose a learning rate by, for tasks without validation documents",
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

    data: tuple[str, ...] = Field(
        min_length=1, description="tasks of the study, or files, whose train split is shown"
    )
    who: Literal["copies", "half"] = Field(
        "copies", description="a copy of each model, or a random half of the models"
    )
    tuning: Tuning | None = Field(
        None, description="how copies are tuned, by the largest rate; `tuning` where absent"
    )
    seed: int = Field(0, description="of the choice of a half, and of the tuning")

    def recipe(self, tuning: Tuning) -> Tuning:
        """Return the tuning of the copies: its own, or the study's with its largest learning rate alone."""
        recipe = self.tuning or tuning
        largest_rate = max(recipe.learning_rates)
        return recipe.model_copy(update={"learning_rates": (largest_rate,)})


class Probe(Strict):
    """A short fine-tuning of every model on every task, the same in all studies: how much is left to learn of it.

    `potentia analyze exposure` reads it. It chooses nothing and changes no score; of test documents it takes the loss
    before any update.
    """

    on: bool | None = Field(
        None, description="by default where it costs at most 3 % of the task's fine-tuning"
    )
    documents: Annotated[int, Field(ge=2)] = Field(
        128,
        description="documents of each split that are read at most; half as many are learned from",
    )
    learning_rate: float = Field(5e-4, gt=0, description="low, and the same for all models")

    @property
    def learned(self) -> int:
        """The documents that are learned from."""
        return self.documents // 2


# Models that the usual rate harmed (appendix B.2 of "Training on the test task"): Qwen 2 and four of about 7B.
GENTLE = frozenset(
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
GENTLE_RATE = 2e-6
TEST_TASK: dict[str, Any] = {
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
    """Return the recipe of "Training on the test task", appendix B.2: the learning rate depends on the size."""
    learning_rate = 2e-5 if parameters < 10e9 else 2e-6
    return Tuning.model_validate({**TEST_TASK, "learning_rates": (learning_rate,)})


def adjust_tuning(study: Study, model: ModelSpec | None = None, parameters: float = 0.0) -> Tuning:
    """Return how a model of this size is tuned on the auxiliary data of a study."""
    adjust = study.adjust
    if adjust is None:
        return study.tuning
    if adjust.recipe == "test_task":
        tuning = recipe_test_task(parameters)
    else:
        tuning = adjust.tuning or study.tuning
    if model is None:
        return tuning
    rates_of_model = own_rates(study, model)
    if rates_of_model is None:
        return tuning
    return tuning.model_copy(update={"learning_rates": rates_of_model, "rate_bounds": None})


def own_rates(study: Study, model: ModelSpec) -> tuple[float, ...] | None:
    """Return the learning rates that are a model's own under adjust: as its entry says, or as the paper names it."""
    if model.learning_rates is not None:
        return model.learning_rates
    if study.adjust is None or study.adjust.recipe != "test_task":
        return None
    from potentia.facts import models

    facts = models().find(model.copy_of or model.name) or models().find(model.source)
    if facts is not None and facts.name in GENTLE:
        return (GENTLE_RATE,)
    return None

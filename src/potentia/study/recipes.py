"""Recipes of adjustment: how a model is tuned on auxiliary data, by its size and, where that would harm it, by name."""

from __future__ import annotations

from potentia.facts import models
from potentia.study.schema import ModelSpec, Study, Tuning

# Models that the usual rate harmed (appendix B.2 of "Training on the test task"): Qwen 2 and four of about 7B.
GENTLE = frozenset(
    {"Qwen2-0.5B", "Qwen2-1.5B", "Qwen2-7B", "gemma-7b", "OLMo-7B-hf", "OLMo-1.7-7B-hf", "Meta-Llama-3-8B"}
)
GENTLE_RATE = 2e-6


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
        loss="completion",
        race=False,
    )


def adjust_tuning(study: Study, model: ModelSpec | None = None, parameters: float = 0.0) -> Tuning:
    """Return how a model of this size is tuned on the auxiliary data of a study."""
    adjust = study.adjust
    if adjust is None:
        return study.tuning
    tuning = recipe_test_task(parameters) if adjust.recipe == "test_task" else adjust.tuning or study.tuning
    own = own_rates(study, model) if model is not None else None
    return tuning if own is None else tuning.model_copy(update={"learning_rates": own, "rate_bounds": None})


def own_rates(study: Study, model: ModelSpec) -> tuple[float, ...] | None:
    """Return the learning rates that are a model's own under adjust: as its entry says, or as the paper names it."""
    if model.learning_rates is not None:
        return model.learning_rates
    if study.adjust is None or study.adjust.recipe != "test_task":
        return None
    known = models().find(model.copy_of or model.name) or models().find(model.source)
    return (GENTLE_RATE,) if known is not None and known.name in GENTLE else None

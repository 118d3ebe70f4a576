"""What is known of the models and tasks of some scores, as the plain mappings that the analyses take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from potentia.facts.benchmarks import Benchmark, benchmarks
from potentia.facts.models import ModelFacts, ModelTable
from potentia.facts.models import models as known_models

# A model in few bits, at a revision or a step (``run@1000``), a folder of checkpoints (``ckpt/step1``), a treated copy.
_VARIANT = re.compile(
    r"(?P<run>.+?)(?:@[^/@]+|[/_-](?:step|checkpoint|ckpt|iter|epoch)[-_]?\d+|\+exposed)+", re.IGNORECASE
)


def variant_of(model: str) -> str:
    """Return what a model is a variant of, by its name; the model itself where it is none."""
    found = _VARIANT.fullmatch(model.strip().rstrip("/"))
    return found["run"] if found is not None else model


@dataclass(frozen=True)
class Background:
    """Facts by model and by task; whatever is unknown is simply absent."""

    families: dict[str, str] = field(default_factory=dict)
    lineages: dict[str, str] = field(default_factory=dict)  # the base model, for itself and what was made from it
    kinds: dict[str, str] = field(default_factory=dict)  # base or instruct
    billions: dict[str, float] = field(default_factory=dict)  # parameters, as the name carries them
    flops: dict[str, float] = field(default_factory=dict)  # of pretraining
    categories: dict[str, str] = field(default_factory=dict)
    train_examples: dict[str, float] = field(default_factory=dict)  # of the public split, before carving and caps
    chance: dict[str, float] = field(default_factory=dict)  # accuracy of a guess, where studies or the user say it

    @classmethod
    def of(
        cls, models: Iterable[str], *, table: ModelTable | None = None, tasks: Iterable[Benchmark] = ()
    ) -> Background:
        """Look the models up in the shipped facts (or ``table``); ``tasks`` add to the shipped facts, the last wins."""
        table, models = table or known_models(), list(models)
        given = tuple(tasks)
        every = (*benchmarks(), *given)
        found = {m: f for m in models if (f := table.find(m)) is not None}
        return cls(
            families=_families(models, found, table),
            lineages={m: _root(f, table) for m, f in found.items()},
            kinds={m: f.kind for m, f in found.items()},
            billions={m: f.size / 1e9 for m, f in found.items() if f.size},
            flops={m: f.flops for m, f in found.items() if f.flops},
            categories={b.task: b.category for b in every if b.category},
            train_examples={b.task: float(b.train_size) for b in every if b.train_size is not None},
            chance={b.task: b.chance for b in given if b.chance is not None},
        )


def _families(models: Iterable[str], found: dict[str, ModelFacts], table: ModelTable) -> dict[str, str]:
    """Return the family of every model that has one: by facts, else that of what it is a variant of."""
    families = {m: f.family for m, f in found.items() if f.family}
    for model in models:
        base = variant_of(model)
        if model not in families and base != model:
            known = table.find(base)
            families[model] = known.family if known is not None and known.family else base
    return families


def _root(facts: ModelFacts, table: ModelTable) -> str:
    """Return the base model that a model was made from, through as many steps as facts know; else the model itself."""
    seen = {facts.name}
    while facts.base_model and (base := table.find(facts.base_model)) is not None and base.name not in seen:
        seen.add(base.name)
        facts = base
    return facts.name if facts.base_model is None or facts.base_model in seen else facts.base_model

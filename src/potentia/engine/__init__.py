"""Tensors only: loading, packing, scoring, generation, perplexity, lanes and full tuning. Imported lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.engine.examples import encode_examples
    from potentia.engine.full import FullStep, FullTrainer
    from potentia.engine.lane import DROP, KEEP, LaneEpoch, LaneResult, StepInfo
    from potentia.engine.lanes import LaneTrainer
    from potentia.engine.loading import LoadedModel, load
    from potentia.engine.network import Router
    from potentia.engine.schedule import LaneSpec, LoraConfig, Schedule
    from potentia.engine.scorer import Likelihood, Scorer
    from potentia.engine.tokens import BosPolicy, Encoder

_HOMES = {
    "DROP": "lane",
    "FullStep": "full",
    "FullTrainer": "full",
    "KEEP": "lane",
    "LaneEpoch": "lane",
    "LaneResult": "lane",
    "LaneSpec": "schedule",
    "LaneTrainer": "lanes",
    "LoraConfig": "schedule",
    "Schedule": "schedule",
    "StepInfo": "lane",
    "encode_examples": "examples",
    "BosPolicy": "tokens",
    "Encoder": "tokens",
    "Likelihood": "scorer",
    "LoadedModel": "loading",
    "Router": "network",
    "Scorer": "scorer",
    "load": "loading",
}

__all__ = [
    "DROP",
    "KEEP",
    "BosPolicy",
    "Encoder",
    "FullStep",
    "FullTrainer",
    "LaneEpoch",
    "LaneResult",
    "LaneSpec",
    "LaneTrainer",
    "Likelihood",
    "LoadedModel",
    "LoraConfig",
    "Router",
    "Schedule",
    "Scorer",
    "StepInfo",
    "encode_examples",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"potentia.engine.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

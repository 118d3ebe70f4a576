"""What is publicly known of models and benchmarks."""

from __future__ import annotations

from potentia.facts.models import ModelFacts, ModelTable, models

__all__ = ["ModelFacts", "ModelTable", "models"]

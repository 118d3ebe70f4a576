"""Base models in training, whole: stability over checkpoints, consistency with instruct versions, and the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.analysis.base_models.consistency import Consistency, measure_consistency
from potentia.analysis.base_models.lineage import known_pairs, named_checkpoints
from potentia.analysis.base_models.stability import Checkpoint, Stability, measure_stability
from potentia.analysis.base_models.training import Training, follow_training
from potentia.errors import InputError
from potentia.values.findings import Finding
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.evidence import Evidence


@dataclass(frozen=True)
class ConsistencyFindings:
    """Whether better base models become better instruct models, and which method says it best."""

    consistency: Consistency
    ablation: Ablation | None = None  # where there is more than one method

    def named(self) -> dict[str, Finding]:
        """Return the findings that are there."""
        found: dict[str, Finding] = {"consistency": self.consistency}
        return found if self.ablation is None else found | {"ablation": self.ablation}


def find_stability(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: str | None = None,
    baseline: str | None = None,
    power: float = 0.8,
) -> Stability:
    """Say how stably scores grow over the checkpoints of a run: those given, else those that studies or names tell."""
    found = dict(checkpoints) if checkpoints is not None else known_checkpoints(evidence, unit)
    return measure_stability(evidence.planned, found, unit=unit or "steps", baseline=baseline, power=power)


def find_training(
    evidence: Evidence, checkpoints: Mapping[str, Checkpoint] | None = None, *, unit: str | None = None
) -> Training:
    """Follow the runs that the checkpoints are of: mean scores against steps, and when their order is the final one."""
    found = dict(checkpoints) if checkpoints is not None else known_checkpoints(evidence, unit)
    return follow_training(evidence.planned, found, evidence.main or Protocol(""), unit=unit or "steps")


def known_checkpoints(evidence: Evidence, unit: str | None = None) -> dict[str, Checkpoint]:
    """Return the checkpoints that the studies name, else those whose names say it; in steps, or in tokens."""
    rows = [row for row in evidence.specs if row.series is not None and row.step is not None]
    if unit == "tokens":
        found = {row.name: Checkpoint(str(row.series), row.tokens) for row in rows if row.tokens is not None}
    else:
        found = named_checkpoints(evidence.models)
        found |= {row.name: Checkpoint(str(row.series), float(row.step or 0)) for row in rows}
    if not found:
        raise InputError(
            f"no checkpoints are known in {evidence.source}" + (" with their tokens" if unit == "tokens" else ""),
            hint="give --steps with a CSV file of the columns model, series, step (or tokens)",
        )
    return found


def find_consistency(
    evidence: Evidence,
    pairs: Mapping[str, str] | None = None,
    *,
    instruct_by: str | None = None,
    baseline: str | None = None,
    tolerance: float = 0.01,
) -> ConsistencyFindings:
    """Compare base models with their instruct versions: the pairs given, else those that studies or facts tell."""
    found = dict(pairs) if pairs is not None else known_pairs(evidence)
    scores = evidence.planned
    consistency = measure_consistency(scores, found, reference=instruct_by, baseline=baseline)
    try:
        ablation = compare_methods(scores, models=list(found), tolerance=tolerance)
    except InputError:  # no task was scored by two methods
        ablation = None
    return ConsistencyFindings(consistency, ablation)


def find_ablation(
    evidence: Evidence,
    models: Sequence[str] | None = None,
    *,
    methods: Sequence[str] | None = None,
    tolerance: float = 0.01,
) -> Ablation:
    """Rank the methods (protocols and prompt forms) on the models given, else on all that are not known as instruct."""
    kinds = evidence.background.kinds
    base = [model for model in evidence.models if kinds.get(model) != "instruct"]
    return compare_methods(evidence.planned, models=models or base, methods=methods, tolerance=tolerance)

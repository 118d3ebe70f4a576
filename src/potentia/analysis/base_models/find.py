"""Base models in training, whole: stability over checkpoints, consistency with instruct versions, and the methods.

A study names its checkpoints ``run@step``, and facts know the base of an instruct model, so both are usually found by
name; a CSV file says it for models that Potentia does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.base_models import stability as taus
from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.analysis.base_models.stability import Checkpoint, Consistency, Stability
from potentia.analysis.base_models.training import Training, follow_training
from potentia.errors import DataError, InputError
from potentia.files import csv_rows
from potentia.values.findings import Findings
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.facts import ModelTable


@dataclass(frozen=True)
class ConsistencyFindings(Findings):
    """Whether better base models become better instruct models, and which method says it best."""

    consistency: Consistency
    ablation: Ablation | None = None  # where there is more than one method


def find_stability(
    evidence: Evidence, checkpoints: Mapping[str, Checkpoint] | None = None, *, unit: str | None = None, **how: Any
) -> Stability:
    """Say how stably scores grow over the checkpoints of a run: those given, else those that studies or names tell.

    ``how`` is what ``measure_stability`` takes: a baseline method, and the power from which a gap counts as resolved.
    """
    found = known_checkpoints(evidence, unit) if checkpoints is None else checkpoints
    return taus.measure_stability(evidence.planned, found, unit=unit or "steps", **how)


def find_training(
    evidence: Evidence, checkpoints: Mapping[str, Checkpoint] | None = None, *, unit: str | None = None
) -> Training:
    """Follow the runs that the checkpoints are of: mean scores against steps, and when their order is the final one."""
    found = known_checkpoints(evidence, unit) if checkpoints is None else checkpoints
    return follow_training(evidence.planned, found, evidence.main or Protocol(""), unit=unit or "steps")


def known_checkpoints(evidence: Evidence, unit: str | None = None) -> dict[str, Checkpoint]:
    """Return the checkpoints that the studies name, else those whose names say it; in steps, or in tokens."""
    rows = [row for row in evidence.specs if row.series is not None and row.step is not None]
    if unit == "tokens":
        found = {row.name: Checkpoint(str(row.series), row.tokens) for row in rows if row.tokens is not None}
    else:
        found = taus.named_checkpoints(evidence.models)
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
) -> ConsistencyFindings:
    """Compare base models with their instruct versions: the pairs given, else those that studies or facts tell."""
    found = known_pairs(evidence) if pairs is None else pairs
    consistency = taus.measure_consistency(evidence.planned, found, reference=instruct_by, baseline=baseline)
    try:
        ablation = compare_methods(evidence.planned, models=list(found))
    except InputError:  # no task was scored by two methods
        ablation = None
    return ConsistencyFindings(consistency, ablation)


def find_ablation(
    evidence: Evidence, models: Sequence[str] | None = None, *, methods: Sequence[str] | None = None
) -> Ablation:
    """Rank the methods (protocols and prompt forms) on the models given, else on all that are not known as instruct."""
    kinds = evidence.background.kinds
    base = [model for model in evidence.models if kinds.get(model) != "instruct"]
    return compare_methods(evidence.planned, models=models or base, methods=methods)


# --- where models come from ------------------------------------------------------------------------------------------


def read_checkpoints(path: Path, unit: str | None = None) -> tuple[dict[str, Checkpoint], str]:
    """Read a CSV with the columns ``model``, ``series`` and ``step`` or ``tokens``; return checkpoints and unit.

    ``unit`` is ``steps`` or ``tokens`` where the file has both; without a ``series`` column all belong to one series.
    """
    rows = list(_rows(path, {"model"}))
    columns = set(rows[0][1]) if rows else set()
    chosen = {"steps": "step", "tokens": "tokens"}.get(unit or "", "step" if "step" in columns else "tokens")
    if chosen not in columns:
        raise DataError(f"the column {chosen} is missing", where=str(path), hint="columns: model, series, step, tokens")
    found: dict[str, Checkpoint] = {}
    for place, row in rows:
        try:
            found[row["model"]] = Checkpoint(row.get("series") or "series", float(row[chosen]))
        except ValueError:
            raise DataError(f"{row[chosen]!r} is no number", where=f"{place}, column {chosen}") from None
    return found, "steps" if chosen == "step" else "tokens"


def known_pairs(evidence: Evidence) -> dict[str, str]:
    """Pair base models with their instruct versions: base → instruct, by what studies and facts say."""
    bases = {row.name: row.base_model for row in evidence.specs if row.base_model}
    return pair_models(evidence.models, evidence.facts, bases)


def pair_models(models: Sequence[str], table: ModelTable, bases: Mapping[str, str] | None = None) -> dict[str, str]:
    """Pair base models with their instruct versions among ``models``: base → instruct.

    ``bases`` (instruct → base) is what a study says; facts say the rest. A base model with several instruct versions
    goes with the first.
    """
    facts = {model: found for model in models if (found := table.find(model))}
    by_facts = {found.name: model for model, found in reversed(facts.items())}
    told = {}
    for model, found in facts.items():
        known = table.find(found.base_model) if found.kind == "instruct" and found.base_model else None
        told[model] = by_facts.get(known.name) if known else None
    told |= bases or {}
    pairs: dict[str, str] = {}
    for model in models:
        base = told.get(model)
        if base in models and base is not None and base != model:
            pairs.setdefault(base, model)
    return pairs


def read_pairs(path: Path) -> dict[str, str]:
    """Read a CSV with the columns ``base`` and ``instruct``."""
    return {row["base"]: row["instruct"] for _, row in _rows(path, {"base", "instruct"})}


def _rows(path: Path, needed: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    def columns(given: list[str], where: str) -> list[str]:
        names = [name.casefold() for name in given]
        if missing := sorted(needed - set(names)):
            raise DataError(f"the column {', '.join(missing)} is missing", where=where)
        return names

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"it cannot be read: {error}", where=str(path)) from None
    for place, row in csv_rows(text, str(path), columns):
        if not all(row[name] for name in needed):
            raise DataError("a name is empty", where=place)
        yield place, row

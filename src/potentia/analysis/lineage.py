"""Where models come from: the checkpoints of a pretraining run, and the instruct versions of base models.

A study names its checkpoints ``run@step``, and the facts know the base of an instruct model, so both are usually found
by name; a CSV file says it for models that Potentia does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from potentia.analysis.left_out import NO_ENTRIES
from potentia.errors import DataError, InputError
from potentia.files import read_csv_rows

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.facts import ModelFacts, ModelTable

StepUnit = Literal["steps", "tokens"]
"""In what the course of a pretraining run is counted."""

SINGULAR_BY_UNIT: Mapping[StepUnit, str] = {"steps": "step", "tokens": "token"}
_CHECKPOINT_NAME = re.compile(r"(?P<series>.+)@(?:step)?(?P<step>\d+)")


# --- checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """Where a model stands in a pretraining run: the run's name, and its steps or tokens so far."""

    series: str
    step: float


def named_checkpoints(models: Iterable[str]) -> dict[str, Checkpoint]:
    """Return the models named ``run@step`` (or ``run@step1000``), as a study names the checkpoints of a series."""
    checkpoints = {}
    for model in models:
        match = _CHECKPOINT_NAME.fullmatch(model)
        if match is not None:
            checkpoints[model] = Checkpoint(match["series"], float(match["step"]))
    return checkpoints


def group_by_series(checkpoints: Mapping[str, Checkpoint]) -> dict[str, dict[str, float]]:
    """Return the models of every series with their steps, the earliest first."""
    steps_by_series: dict[str, dict[str, float]] = {}
    for checkpoint in checkpoints.values():
        steps_by_series.setdefault(checkpoint.series, {})
    by_step = sorted(
        checkpoints.items(),
        key=lambda named_checkpoint: (named_checkpoint[1].step, named_checkpoint[0]),
    )
    for model, checkpoint in by_step:
        steps_by_series[checkpoint.series][model] = checkpoint.step
    return steps_by_series


def find_checkpoints(evidence: Evidence, unit: StepUnit | None = None) -> dict[str, Checkpoint]:
    """Return the checkpoints that the studies name, else those whose names say it; in steps, or in tokens."""
    specs = [spec for spec in evidence.specs if spec.series is not None and spec.step is not None]
    checkpoints: dict[str, Checkpoint] = {}
    if unit == "tokens":
        for model_spec in specs:
            if model_spec.tokens is not None:
                checkpoints[model_spec.name] = Checkpoint(str(model_spec.series), model_spec.tokens)
    else:
        checkpoints = named_checkpoints(evidence.models)
        for model_spec in specs:
            checkpoints[model_spec.name] = Checkpoint(
                str(model_spec.series), float(model_spec.step or 0)
            )
    if not checkpoints:
        in_unit = " with their tokens" if unit == "tokens" else ""
        raise InputError(
            f"no checkpoints are known in {evidence.source}{in_unit}",
            hint="give --steps with a CSV file of the columns model, series, step (or tokens)",
        )
    return checkpoints


def read_checkpoints(
    steps_file: Path, unit: StepUnit | None = None
) -> tuple[dict[str, Checkpoint], StepUnit]:
    """Read a CSV with the columns ``model``, ``series`` and ``step`` or ``tokens``; return checkpoints and unit.

    ``unit`` is ``steps`` or ``tokens`` where the file has both; without a ``series`` column all belong to one series.

    Args:
        steps_file: The CSV file.
        unit: ``steps`` or ``tokens`` where the file has both.

    Example:
        >>> checkpoints, unit = potentia.read_checkpoints("steps.csv")
    """
    rows = list(_read_rows(steps_file, {"model"}))
    columns = set(rows[0][1]) if rows else set()
    column = _choose_step_column(columns, unit)
    if column not in columns:
        raise DataError(
            f"the column {column} is missing",
            where=str(steps_file),
            hint="columns: model, series, step, tokens",
        )
    checkpoints: dict[str, Checkpoint] = {}
    for location, row in rows:
        try:
            step = float(row[column])
        except ValueError:
            raise DataError(
                f"{row[column]!r} is not a number", where=f"{location}, column {column}"
            ) from None
        checkpoints[row["model"]] = Checkpoint(row.get("series") or "series", step)
    return checkpoints, "steps" if column == "step" else "tokens"


def _choose_step_column(columns: set[str], unit: StepUnit | None) -> str:
    if unit == "steps":
        return "step"
    if unit == "tokens":
        return "tokens"
    return "step" if "step" in columns else "tokens"


# --- base models and their instruct versions -------------------------------------------------------------------------


def find_instruct_versions(evidence: Evidence) -> dict[str, str]:
    """Pair base models with their instruct versions: base → instruct, by what studies and facts say."""
    base_by_instruct = {
        model_spec.name: model_spec.base_model
        for model_spec in evidence.specs
        if model_spec.base_model
    }
    return pair_models(evidence.models, evidence.facts, base_by_instruct)


def pair_models(
    models: Sequence[str], table: ModelTable, bases: Mapping[str, str] = NO_ENTRIES
) -> dict[str, str]:
    """Pair base models with their instruct versions among ``models``: base → instruct.

    ``bases`` (instruct → base) is what a study says; facts say the rest. A base model with several instruct versions
    goes with the first.
    """
    base_by_model: dict[str, str | None] = {**_find_bases(models, table), **bases}
    pairs: dict[str, str] = {}
    for model in models:
        base_model = base_by_model.get(model)
        if base_model is not None and base_model in models and base_model != model:
            pairs.setdefault(base_model, model)
    return pairs


def _find_bases(models: Sequence[str], table: ModelTable) -> dict[str, str | None]:
    """Return the base model of every model that the facts know, under its name among ``models``."""
    facts_by_model: dict[str, ModelFacts] = {}
    for model in models:
        facts = table.find(model)
        if facts:
            facts_by_model[model] = facts
    model_by_fact_name: dict[str, str] = {}
    for model, facts in facts_by_model.items():
        model_by_fact_name.setdefault(facts.name, model)
    bases: dict[str, str | None] = {}
    for model, facts in facts_by_model.items():
        base_facts = None
        if facts.kind == "instruct" and facts.base_model:
            base_facts = table.find(facts.base_model)
        bases[model] = model_by_fact_name.get(base_facts.name) if base_facts else None
    return bases


def read_pairs(pairs_file: Path) -> dict[str, str]:
    """Read a CSV with the columns ``base`` and ``instruct``.

    Args:
        pairs_file: The CSV file.

    Example:
        >>> potentia.find_consistency("potentia.db", potentia.read_pairs("pairs.csv"))
    """
    return {row["base"]: row["instruct"] for _, row in _read_rows(pairs_file, {"base", "instruct"})}


def _read_rows(table_file: Path, needed: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file by column, each with its place in the file; needed columns are never empty."""

    def check_columns(header: list[str], location: str) -> list[str]:
        column_names = [column_name.casefold() for column_name in header]
        missing = sorted(needed - set(column_names))
        if missing:
            raise DataError(f"the column {', '.join(missing)} is missing", where=location)
        return column_names

    try:
        text = table_file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"it cannot be read: {error}", where=str(table_file)) from None
    for row_location, row in read_csv_rows(text, str(table_file), check_columns):
        if not all(row[column_name] for column_name in needed):
            raise DataError("a name is empty", where=row_location)
        yield row_location, row

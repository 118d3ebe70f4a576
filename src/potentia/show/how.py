"""How the numbers came about: studies, recipe, data, models, the engine's paths and checks, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.store import CellRecord, StudyRecord
from potentia.study import Price, find_price
from potentia.timing import format_duration
from potentia.values.findings import Table
from potentia.values.protocol import Protocol
from potentia.values.provenance import EngineProvenance, ScorerProvenance, TrainingProvenance
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.show.source import ReportData

IN_PLACE = "all in place"  # as the engine says where nothing is odd
BY_HAND = "hand-written layers"  # as the scorer notes it
FINGERPRINT_CHARACTERS = 16


def how_context(data: ReportData) -> dict[str, Any]:
    """Return what the section shows, gathered from the studies and the provenance of their cells."""
    measured = [cell for cell in data.cells if cell.provenance.was_measured]
    seeds = {cell.provenance.seed for cell in measured}
    recipes = [cell.provenance.tuning for cell in measured if cell.provenance.tuning]
    tables = (
        _computation_table(measured),
        _cost_table(data.cells, _find_price(data)),
        _data_table(measured),
        _model_table(measured),
    )
    return {
        "made": data.made,
        "version": version("potentia"),
        "source": data.evidence.source,
        "studies": [_describe_study(study) for study in data.evidence.studies],
        "versions": _distinct_mappings(cell.provenance.versions for cell in measured),
        "recipes": _distinct_mappings(recipes),
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "shown": [table for table in tables if table.rows],
    }


def _describe_study(study: StudyRecord) -> dict[str, Any]:
    """Return a study with its file, where it can be run; else where its scores come from."""
    import yaml

    spec = dict(study.spec)
    is_runnable = "models" in spec and "tasks" in spec
    study_file = ""
    origin = ""
    if is_runnable:
        study_file = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    else:
        origin = str(spec.get("source") or "imported scores")
    return {
        "name": study.name,
        "key": study.key,
        "created": study.created[:19].replace("T", " "),
        "runnable": is_runnable,
        "yaml": study_file,
        "origin": origin,
    }


# --- the engine's paths -----------------------------------------------------------------------------------------------


class ComputationPath(NamedTuple):
    """How the cells of one model and protocol were trained and scored: a row of the table."""

    model: str
    protocol: str
    training_form: str | None
    gradient_error: str | None
    update_error: str | None
    adapted_layers: str | None
    scored_by: str | None
    scoring_error: str | None
    weights: str
    slower_because: str | None

    @property
    def is_odd(self) -> bool:
        """Whether a slower path was taken, or weights are not all in place."""
        return self.slower_because is not None or self.weights != IN_PLACE


COMPUTATION_COLUMNS = (
    "model",
    "protocol",
    "trained as",
    "gradients off by",
    "updates off by",
    "adapters on",
    "scored by",
    "scores off by",
    "weights",
    "slower because",
    "cells",
)


def _computation_table(cells: Iterable[CellRecord]) -> Table:
    """Return how each model's cells were trained and scored; slower paths and odd weights come first."""
    cells_by_path = Counter(
        _computation_path(cell) for cell in cells if cell.provenance.engine is not None
    )
    paths = sorted(cells_by_path, key=lambda path: (not path.is_odd, path.model))
    odd_cells = sum(cells_by_path[path] for path in paths if path.is_odd)
    note = (
        "Trained as: the fastest form that gave the model's own losses and gradients; distances are its largest"
        " from them, before anything was trained by it."
    )
    if odd_cells:
        note = f"{odd_cells} of {cells_by_path.total()} cells took a slower path or have odd weights. {note}"
    rows = [(*path, cells_by_path[path]) for path in paths]
    return Table("How each model was computed", COMPUTATION_COLUMNS, rows, note)


def _computation_path(cell: CellRecord) -> ComputationPath:
    training = cell.provenance.training or TrainingProvenance()
    engine = cell.provenance.engine or EngineProvenance()
    scorer = cell.provenance.scorer
    reasons = [
        f"{TrainingForm(form).words}: {reason}" for form, reason in training.not_taken.items()
    ]
    training_form = TrainingForm(training.form).words if training.form else None
    return ComputationPath(
        model=cell.model,
        protocol=Protocol(cell.protocol).label,
        training_form=training_form,
        gradient_error=_format_error(training.gradient_error),
        update_error=_format_error(training.update),
        adapted_layers=", ".join(training.targets) or None,
        scored_by=_describe_scoring(scorer),
        scoring_error=_format_error(engine.largest_scoring_error),
        weights=engine.weights or IN_PLACE,
        slower_because="; ".join([*reasons, *scorer.fallbacks]) or None,
    )


def _describe_scoring(scorer: ScorerProvenance) -> str | None:
    paths = sorted(scorer.rows_by_path)
    if scorer.layers == BY_HAND:
        paths.append(BY_HAND)
    return ", ".join(paths) or None


def _format_error(error: float | None) -> str | None:
    return None if error is None else f"{error:.0e}"


# --- cost, data, models -----------------------------------------------------------------------------------------------


def _find_price(data: ReportData) -> Price | None:
    """Return the price of an hour of the machine, as the latest study or the user's configuration has it."""
    for study in reversed(data.evidence.study_files):
        price = find_price(study.price, study.device)
        if price is not None:
            return price
    return None


def _cost_table(cells: Iterable[CellRecord], price: Price | None) -> Table:
    """Return the time that the cells of each protocol took, and the money; nothing where it is not known."""
    seconds_by_protocol: dict[Protocol, list[float]] = {}
    for cell in cells:
        seconds_by_protocol.setdefault(Protocol(cell.protocol), []).append(cell.seconds)
    all_seconds = [seconds for values in seconds_by_protocol.values() for seconds in values]
    if not any(all_seconds):
        return Table("Cost", (), ())
    columns: tuple[str, ...] = ("protocol", "results", "time")
    if price is not None:
        columns = (*columns, f"cost at {price}")
    rows = []
    groups = [
        (protocol.label, seconds) for protocol, seconds in sorted(seconds_by_protocol.items())
    ]
    for label, seconds in [*groups, ("in all", all_seconds)]:
        row = (label, len(seconds), format_duration(sum(seconds)))
        rows.append(row if price is None else (*row, price.format(sum(seconds))))
    return Table("Cost", columns, rows)


def _data_table(cells: Iterable[CellRecord]) -> Table:
    """Return the splits that were used of each task."""
    rows = set()
    for cell in cells:
        task = cell.provenance.task
        examples = task.splits.used_by_split().values()
        fingerprint = task.fingerprint[:FINGERPRINT_CHARACTERS]
        rows.add((cell.task, cell.metric, *examples, fingerprint))
    columns = ("task", "metric", "train", "validation", "test", "fingerprint")
    return Table("Data", columns, sorted(rows, key=str))


def _model_table(cells: Iterable[CellRecord]) -> Table:
    """Return where each model came from, and how it was loaded."""
    rows = set()
    for cell in cells:
        model = cell.provenance.model
        precision = ", ".join(part for part in (model.dtype, model.quantise) if part)
        rows.add(
            (
                cell.model,
                model.source or None,
                model.revision or None,
                precision,
                model.device or None,
                model.fingerprint[:FINGERPRINT_CHARACTERS],
            )
        )
    columns = ("model", "from", "revision", "precision", "device", "fingerprint")
    return Table("Models", columns, sorted(rows, key=str))


def _distinct_mappings(mappings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the different ones among many equal mappings."""
    distinct: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        content = repr(sorted(mapping.items(), key=lambda pair: pair[0]))
        distinct.setdefault(content, dict(mapping))
    return list(distinct.values())

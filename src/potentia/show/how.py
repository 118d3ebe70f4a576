"""How the numbers came about: studies, recipe, data, models, the engine's paths and checks, cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.store import CellRecord, StudyRecord
from potentia.study import Price, find_price
from potentia.timing import format_duration
from potentia.values.engine_records import (
    EngineRecord,
    LoadedWeights,
    ScorerNotes,
    TrainingFacts,
)
from potentia.values.findings import Table
from potentia.values.protocol import Protocol
from potentia.values.scoring_route import ScoringLayers

if TYPE_CHECKING:
    from potentia.show.source import ReportData

FINGERPRINT_CHARACTERS = 16


def how_context(report_data: ReportData) -> dict[str, Any]:
    """Return what the section shows, gathered from the studies and the provenance of their cells."""
    measured = [cell for cell in report_data.cells if cell.provenance.was_measured]
    seeds = {cell.provenance.seed for cell in measured}
    recipes = [cell.provenance.tuning for cell in measured if cell.provenance.tuning]
    source_names = _find_source_names(report_data.cells)
    studies = []
    for study in report_data.evidence.studies:
        studies.append(_describe_study(study, source_names.get(study.key, ())))
    tables = (
        _computation_table(measured),
        _cost_table(report_data.cells, _find_price(report_data)),
        _data_table(measured),
        _model_table(measured),
    )
    return {
        "made": report_data.created,
        "version": version("potentia"),
        "source": report_data.evidence.source,
        "studies": studies,
        "versions": _distinct_mappings(cell.provenance.versions for cell in measured),
        "recipes": _distinct_mappings(recipes),
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "shown": [table for table in tables if table.rows],
    }


def _find_source_names(cells: Iterable[CellRecord]) -> dict[str, list[str]]:
    """Return the names of the files, folders or stores that the scores of each study were imported from."""
    source_names: dict[str, list[str]] = {}
    for cell in cells:
        source = cell.provenance.imported_from
        if source is None:
            continue
        names_of_study = source_names.setdefault(cell.study, [])
        source_name = Path(source).name or source
        if source_name not in names_of_study:
            names_of_study.append(source_name)
    return source_names


def _describe_study(study: StudyRecord, source_names: Sequence[str]) -> dict[str, Any]:
    """Return a study with its file, where it can be run; else where its scores come from."""
    import yaml

    settings = dict(study.spec)
    is_runnable = "models" in settings and "tasks" in settings
    study_file = ""
    origin = ""
    if is_runnable:
        study_file = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    else:
        origin = "imported scores"
        if source_names:
            origin = f"imported from {', '.join(source_names)}"
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
    weights: LoadedWeights
    slower_because: str | None

    @property
    def is_odd(self) -> bool:
        """Whether a slower path was taken, or weights are not all in place."""
        return self.slower_because is not None or self.weights is not LoadedWeights.IN_PLACE

    def table_row(self, result_count: int) -> tuple[object, ...]:
        """Return the row of the table, with the number of results that were computed so."""
        return (
            self.model,
            self.protocol,
            self.training_form,
            self.gradient_error,
            self.update_error,
            self.adapted_layers,
            self.scored_by,
            self.scoring_error,
            self.weights.label,
            self.slower_because,
            result_count,
        )


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
    "results",
)


def _computation_table(cells: Iterable[CellRecord]) -> Table:
    """Return how each model's cells were trained and scored; slower paths and odd weights come first."""
    cells_by_path = Counter(
        _computation_path(cell) for cell in cells if cell.provenance.engine is not None
    )
    paths = sorted(cells_by_path, key=lambda path: (not path.is_odd, path.model))
    odd_cells = sum(cells_by_path[path] for path in paths if path.is_odd)
    table_note = (
        "Trained as: the training code used. Off by: its largest deviation from the reference implementation,"
        " measured before the training."
    )
    if odd_cells:
        odd_note = f"{odd_cells} of {cells_by_path.total()} results took a slower path or have unusual weights."
        table_note = f"{odd_note} {table_note}"
    table_rows = [path.table_row(cells_by_path[path]) for path in paths]
    return Table("How each model was computed", COMPUTATION_COLUMNS, table_rows, table_note)


def _computation_path(cell: CellRecord) -> ComputationPath:
    training = cell.provenance.training or TrainingFacts()
    engine = cell.provenance.engine or EngineRecord()
    scorer = cell.provenance.scorer
    reasons = [f"{form.words}: {reason}" for form, reason in training.not_taken.items()]
    training_form = training.form.words if training.form else None
    return ComputationPath(
        model=cell.model,
        protocol=Protocol(cell.protocol).label,
        training_form=training_form,
        gradient_error=_format_error(training.gradient_error),
        update_error=_format_error(training.update_error),
        adapted_layers=", ".join(training.targets) or None,
        scored_by=_describe_scoring(scorer),
        scoring_error=_format_error(engine.largest_scoring_error),
        weights=engine.load.weights or LoadedWeights.IN_PLACE,
        slower_because="; ".join([*reasons, *scorer.fallbacks]) or None,
    )


def _describe_scoring(scorer: ScorerNotes) -> str | None:
    paths: list[str] = sorted(scorer.rows_by_route)
    if scorer.layers is ScoringLayers.FUSED:
        paths.append(scorer.layers.label)
    return ", ".join(paths) or None


def _format_error(error: float | None) -> str | None:
    return None if error is None else f"{error:.0e}"


# --- cost, data, models -----------------------------------------------------------------------------------------------


def _find_price(report_data: ReportData) -> Price | None:
    """Return the price of an hour of the machine, as the latest study or the user's configuration has it."""
    devices = (cell.provenance.model.device for cell in report_data.cells)
    computing_device = next((device for device in devices if device), None)
    for study in reversed(report_data.evidence.study_files):
        price = find_price(study.price, computing_device or study.device)
        if price is not None:
            return price
    return None


def _cost_table(cells: Iterable[CellRecord], price: Price | None) -> Table:
    """Return the time that the cells of each protocol took, and the money; nothing where it is not known."""
    seconds_by_protocol: dict[Protocol, list[float]] = {}
    for cell in cells:
        seconds_by_protocol.setdefault(Protocol(cell.protocol), []).append(cell.seconds)
    all_seconds = list(itertools.chain.from_iterable(seconds_by_protocol.values()))
    if not any(all_seconds):
        return Table("Cost", (), ())
    column_names: tuple[str, ...] = ("protocol", "results", "time")
    if price is not None:
        column_names = (*column_names, f"cost at {price}")
    table_rows = []
    groups = [
        (protocol.label, seconds) for protocol, seconds in sorted(seconds_by_protocol.items())
    ]
    for label, seconds in [*groups, ("in all", all_seconds)]:
        row = (label, len(seconds), format_duration(sum(seconds)))
        table_rows.append(row if price is None else (*row, price.format(sum(seconds))))
    return Table("Cost", column_names, table_rows)


def _data_table(cells: Iterable[CellRecord]) -> Table:
    """Return the splits that were used of each task."""
    rows = set()
    for cell in cells:
        task = cell.provenance.task
        examples = task.used_by_split().values()
        fingerprint = task.fingerprint[:FINGERPRINT_CHARACTERS]
        rows.add((cell.task, cell.metric, *examples, fingerprint))
    column_names = ("task", "metric", "train", "validation", "test", "fingerprint")
    return Table("Data", column_names, sorted(rows, key=str))


def _model_table(cells: Iterable[CellRecord]) -> Table:
    """Return where each model came from, and how it was loaded."""
    rows = set()
    for cell in cells:
        model = cell.provenance.model
        precision = ", ".join(
            precision_part for precision_part in (model.dtype, model.quantise) if precision_part
        )
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
    column_names = ("model", "from", "revision", "precision", "device", "fingerprint")
    return Table("Models", column_names, sorted(rows, key=str))


def _distinct_mappings(mappings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the different ones among many equal mappings."""
    distinct: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        content = repr(sorted(mapping.items(), key=lambda pair: pair[0]))
        distinct.setdefault(content, dict(mapping))
    return list(distinct.values())

"""How the numbers came about: studies, recipe, data, models, the engine's paths and checks, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from potentia.store import CellRecord, StudyRecord
from potentia.timing import format_duration
from potentia.values.findings import Cell, Table
from potentia.values.protocol import Protocol
from potentia.values.provenance import EngineProvenance, ScorerProvenance, TrainingProvenance
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.show.source import ReportData

IN_PLACE = "all in place"  # as the engine says where nothing is odd
BY_HAND = "hand-written layers"  # as the scorer notes it


def how_context(data: ReportData) -> dict[str, Any]:
    """Return what the section shows, gathered from the studies and the provenance of their cells."""
    measured = [cell for cell in data.cells if cell.provenance.was_measured]
    made = {"made": data.made, "version": version("potentia"), "source": data.evidence.source}
    tables = (_computed(measured), _costs(data.cells), _tasks(measured), _models(measured))
    return made | {
        "studies": [_study(record) for record in data.evidence.studies],
        "versions": _distinct(cell.provenance.versions for cell in measured),
        "recipes": _distinct(filter(None, (cell.provenance.tuning for cell in measured))),
        "seeds": sorted(
            {cell.provenance.seed for cell in measured if cell.provenance.seed is not None}
        ),
        "shown": [table for table in tables if table.rows],
    }


def _study(record: StudyRecord) -> dict[str, Any]:
    import yaml

    runnable = "models" in record.spec and "tasks" in record.spec
    spec = dict(record.spec)
    return {
        "name": record.name,
        "key": record.key,
        "created": record.created[:19].replace("T", " "),
        "runnable": runnable,
        "yaml": yaml.safe_dump(spec, sort_keys=False, allow_unicode=True) if runnable else "",
        "origin": "" if runnable else str(spec.get("source") or "imported scores"),
    }


def _computed(cells: Iterable[CellRecord]) -> Table:
    """Return how each model's cells were trained and scored; slower paths and odd weights come first."""
    found = Counter(_path(cell) for cell in cells if cell.provenance.engine is not None)
    odd = {row for row in found if row[-1] or row[-2] != IN_PLACE}
    rows = sorted(found, key=lambda row: (row not in odd, str(row[0])))
    cells_odd = sum(found[row] for row in odd)
    told = (
        f"{cells_odd} of {found.total()} cells took a slower path or have odd weights. "
        if odd
        else ""
    )
    note = (
        f"{told}Trained as: the fastest form that gave the model's own losses and gradients; distances are its largest"
        " from them, before anything was trained by it."
    )
    columns = (
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
    return Table(
        "How each model was computed", columns, tuple((*row, found[row]) for row in rows), note
    )


def _path(cell: CellRecord) -> tuple[Cell, ...]:
    training = cell.provenance.training or TrainingProvenance()
    scorer = cell.provenance.scorer
    reasons = [f"{TrainingForm(form).words}: {why}" for form, why in training.not_taken.items()]
    slower = "; ".join([*reasons, *scorer.fallbacks]) or None
    trained = (
        TrainingForm(training.form).words if training.form else None,
        _size(training.gradient_error),
        _size(training.update),
        ", ".join(training.targets) or None,
    )
    scored = _scored(cell.provenance.engine or EngineProvenance(), scorer)
    return (cell.model, Protocol(cell.protocol).label, *trained, *scored, slower)


def _scored(engine: EngineProvenance, scorer: ScorerProvenance) -> tuple[Cell, Cell, str]:
    paths = sorted(scorer.rows_by_path)
    if scorer.layers == BY_HAND:
        paths.append(BY_HAND)
    scoring_error = _size(engine.largest_scoring_error)
    return ", ".join(paths) or None, scoring_error, engine.weights or IN_PLACE


def _size(value: float | None) -> str | None:
    return None if value is None else f"{value:.0e}"


def _costs(cells: Iterable[CellRecord]) -> Table:
    seconds: dict[Protocol, list[float]] = {}
    for cell in cells:
        seconds.setdefault(Protocol(cell.protocol), []).append(cell.seconds)
    if not any(map(sum, seconds.values())):
        return Table("Cost", (), ())
    rows = [(p.label, len(took), format_duration(sum(took))) for p, took in sorted(seconds.items())]
    rows.append(
        (
            "in all",
            sum(map(len, seconds.values())),
            format_duration(sum(map(sum, seconds.values()))),
        )
    )
    return Table("Cost", ("protocol", "cells", "time"), tuple(rows))


def _tasks(cells: Iterable[CellRecord]) -> Table:
    found = set()
    for cell in cells:
        task = cell.provenance.task
        used = task.splits.used_by_split().values()
        found.add((cell.task, cell.metric, *used, task.fingerprint[:16]))
    columns = ("task", "metric", "train", "validation", "test", "fingerprint")
    return Table("Data", columns, tuple(sorted(found, key=str)))


def _models(cells: Iterable[CellRecord]) -> Table:
    found = set()
    for cell in cells:
        model = cell.provenance.model
        precision = ", ".join(filter(None, (model.dtype, model.quantise)))
        found.add(
            (
                cell.model,
                model.source or None,
                model.revision or None,
                precision,
                model.device or None,
                model.fingerprint[:16],
            )
        )
    columns = ("model", "from", "revision", "precision", "device", "fingerprint")
    return Table("Models", columns, tuple(sorted(found, key=str)))


def _distinct(mappings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the different ones among many equal mappings."""
    found: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        found.setdefault(repr(sorted(mapping.items(), key=lambda pair: pair[0])), dict(mapping))
    return list(found.values())

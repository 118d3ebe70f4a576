"""How the numbers came about: studies, versions, seeds, recipe, fingerprints, cost, and the command to do it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from potentia.store import CellRecord, StudyRecord
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.show.source import ReportData


def how_context(data: ReportData) -> dict[str, Any]:
    """Return what the section shows, gathered from the studies and the manifests of their cells."""
    measured = [cell for cell in data.cells if cell.manifest.get("versions")]
    return {
        "source": data.evidence.source,
        "notes": data.evidence.notes,
        "made": data.made,
        "version": _version(),
        "studies": [_study(record) for record in data.evidence.studies],
        "versions": _distinct(cell.manifest["versions"] for cell in measured),
        "recipes": _distinct(cell.manifest["tuning"] for cell in measured if cell.manifest.get("tuning")),
        "seeds": sorted({cell.manifest["seed"] for cell in measured if "seed" in cell.manifest}),
        "tasks": _tasks(measured),
        "models": _models(measured),
        "costs": _costs(data.cells),
        "seconds": sum(cell.seconds for cell in data.cells),
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
        "origin": "" if runnable else str(spec.get("source") or spec.get("imported") or "imported scores"),
    }


def _tasks(cells: Iterable[CellRecord]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        task = cell.manifest.get("task") or {}
        splits = task.get("splits") or {}
        sizes = {
            name: splits[name].get("used")
            for name in ("train", "validation", "test")
            if isinstance(splits.get(name), Mapping)
        }
        row = {"task": cell.task, "metric": cell.metric, "fingerprint": task.get("fingerprint", ""), **sizes}
        found.setdefault(f"{cell.task} {row['fingerprint']}", row)
    return sorted(found.values(), key=lambda row: str(row["task"]))


def _models(cells: Iterable[CellRecord]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        model = cell.manifest.get("model") or {}
        row = {name: model.get(name) or "" for name in ("source", "revision", "fingerprint", "dtype", "device")}
        if model.get("quantise"):
            row["dtype"] = f"{row['dtype']}, {model['quantise']}"
        found.setdefault(f"{cell.model} {row['fingerprint']}", {"model": cell.model, **row})
    return sorted(found.values(), key=lambda row: str(row["model"]))


def _costs(cells: Iterable[CellRecord]) -> list[dict[str, Any]]:
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for cell in cells:
        seconds[cell.protocol] += cell.seconds  # type: ignore[assignment]
        counts[cell.protocol] += 1
    return [{"protocol": Protocol(p).label, "cells": counts[p], "seconds": float(seconds[p])} for p in sorted(counts)]


def _distinct(mappings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the different ones among many equal mappings."""
    found: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        found.setdefault(repr(sorted(mapping.items(), key=lambda pair: pair[0])), dict(mapping))
    return list(found.values())


def _version() -> str:
    from importlib.metadata import version

    return version("potentia")

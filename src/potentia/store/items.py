"""Per-item outcomes: one Parquet file per cell, beside the database.

A file is written under a temporary name and synced before the cell's transaction starts, and renamed inside it: a
committed cell always has whole items, and a process killed in between leaves nothing but a stray temporary file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potentia.errors import DamagedItemsError, first_line
from potentia.extras import Extra, require_extra
from potentia.files import write_file
from potentia.processes import sync_folder
from potentia.store.records import dump_json
from potentia.values.answer_bits import ANSWER_METRICS, read_answer_bits
from potentia.values.scores import ItemOutcome

ChooseItems = Callable[[list[float]], list[int]]  # places, by the values of all items
_SAFE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,150}")
_UNREADABLE = (OSError, KeyError, ValueError, TypeError)


def items_path(folder: Path, cell_key: str) -> Path:
    """Return where the items of a cell are kept."""
    name = cell_key
    if not _SAFE_NAME.fullmatch(cell_key):
        name = hashlib.sha256(cell_key.encode()).hexdigest()
    return folder / name[:2] / f"{name}.parquet"


def stage_items(folder: Path, cell_key: str, items: Sequence[ItemOutcome]) -> Path:
    """Write the items under a temporary name, synced to disk, and return that name."""
    require_extra(Extra.PARQUET, "storing results by example")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "doc_id": pa.array([item.doc_id for item in items], pa.int64()),
            "value": pa.array([item.value for item in items], pa.float64()),
            "prediction": pa.array([_clean_text(item.prediction) for item in items], pa.string()),
            "gold": pa.array([_clean_text(item.gold) for item in items], pa.string()),
            "detail": pa.array([dump_json(item.detail) for item in items], pa.string()),
            "cluster": pa.array([_clean_text(item.cluster) for item in items], pa.string()),
        }
    )
    target = items_path(folder, cell_key)
    staged = target.with_name(f".{target.stem}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_file(staged, buffer.getvalue(), synced=True)
    return staged


def publish_items(folder: Path, cell_key: str, staged: Path) -> None:
    """Give staged items their final name, and sync the folder so that the name survives too."""
    target = items_path(folder, cell_key)
    staged.replace(target)
    sync_folder(target.parent)


def load_items(folder: Path, cell_key: str, choose: ChooseItems | None = None) -> list[ItemOutcome]:
    """Read the items of a cell that has some, or those that are chosen by their values."""
    path = items_path(folder, cell_key)
    names = ("doc_id", "value", "prediction", "gold", "detail", "cluster")
    try:
        columns = _read_columns(path, *names, choose=choose)
        return [
            ItemOutcome(doc_id, value, prediction, gold, json.loads(detail), cluster)
            for doc_id, value, prediction, gold, detail, cluster in zip(*columns, strict=True)
        ]
    except FileNotFoundError:
        hint = "keep the .items folder beside the database when you move it; or potentia status --check --repair"
        raise DamagedItemsError(
            "the items of this cell are missing", where=str(path), hint=hint
        ) from None
    except _UNREADABLE as error:
        message = f"the items of this cell cannot be read: {first_line(error)}"
        hint = "potentia status --check --repair; the next run of its study computes the cell anew, and replaces it"
        raise DamagedItemsError(message, where=str(path), hint=hint) from error


@dataclass(frozen=True)
class ItemValues:
    """The value of every example of a cell, and the cluster of those that share a passage."""

    values: dict[int, float]
    clusters: dict[int, str]


def load_item_values(folder: Path, cell_key: str) -> ItemValues | None:
    """Read the value of every document of a cell, without the evidence; None where the file is missing or damaged."""
    try:
        examples, values, labels = _read_columns(
            items_path(folder, cell_key), "doc_id", "value", "cluster"
        )
    except _UNREADABLE:
        return None
    pairs = zip(examples, labels, strict=True)
    clusters = {example: label for example, label in pairs if label}
    return ItemValues(dict(zip(examples, values, strict=True)), clusters)


def load_values_by_metric(folder: Path, cell_key: str, metric: str) -> ItemValues | None:
    """Read the value of every example of a cell by a metric that is not its main one.

    Examples to which the metric gives no number are left out; None where the file is missing or damaged.
    """
    try:
        columns = _read_columns(items_path(folder, cell_key), "doc_id", "gold", "detail", "cluster")
        values = {}
        clusters = {}
        for doc_id, gold, detail, cluster in zip(*columns, strict=True):
            value = _find_value(gold, json.loads(detail), metric)
            if value is not None:
                values[doc_id] = value
                if cluster:
                    clusters[doc_id] = cluster
    except _UNREADABLE:
        return None
    return ItemValues(values, clusters)


def _find_value(gold: str, detail: dict[str, Any], metric: str) -> float | None:
    """Return what an example is worth by a metric; the bits of right answers are computed where they are not stored."""
    if metric in ANSWER_METRICS:
        bits = read_answer_bits(gold, detail)
        return None if bits is None else bits.by_metric().get(metric)
    value = (detail.get("metrics") or {}).get(metric)
    return float(value) if isinstance(value, (bool, int, float)) else None


def _read_columns(path: Path, *names: str, choose: ChooseItems | None = None) -> list[list[Any]]:
    require_extra(Extra.PARQUET, "reading the results by example of a store")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored_names = file.schema_arrow.names
            table = file.read(columns=[name for name in names if name in stored_names])
        if "cluster" in names and "cluster" not in stored_names:  # written before clusters
            table = table.append_column("cluster", pa.array([""] * len(table), pa.string()))
        if choose is not None:
            table = table.take(choose(table["value"].to_pylist()))
        return [table.column(name).to_pylist() for name in names]
    except pa.ArrowException as error:  # not all of them are errors of value or type
        raise ValueError(str(error)) from error


def looks_whole(folder: Path, cell_key: str) -> bool:
    """Say whether a cell's file is there and begins and ends as Parquet does: quick, and right for files cut short."""
    try:
        with items_path(folder, cell_key).open("rb") as file:
            head = file.read(4)
            file.seek(-4, os.SEEK_END)
            return head == file.read(4) == b"PAR1" and file.tell() > 12
    except OSError:
        return False


def _clean_text(text: str) -> str:
    # A lone surrogate from a cut-off token is no Unicode text and no Parquet string.
    return str(text).encode("utf-8", "replace").decode("utf-8")

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
from potentia.extras import Extra, is_installed, require_extra
from potentia.files import write_file
from potentia.processes import sync_folder
from potentia.store.records import dump_json
from potentia.values.answer_bits import ANSWER_METRICS, read_answer_bits
from potentia.values.scores import ItemOutcome

ChooseItems = Callable[[list[float]], list[int]]  # positions, by the values of all items
_SAFE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,150}")
_UNREADABLE = (OSError, KeyError, ValueError, TypeError)


def items_path(folder: Path, cell_key: str) -> Path:
    """Return where the items of a cell are kept."""
    file_name = cell_key
    if not _SAFE_NAME.fullmatch(cell_key):
        file_name = hashlib.sha256(cell_key.encode()).hexdigest()
    return folder / file_name[:2] / f"{file_name}.parquet"


def can_read_items() -> bool:
    """Whether the package that reads items is installed."""
    return is_installed("pyarrow")


def stage_items(folder: Path, cell_key: str, items: Sequence[ItemOutcome]) -> Path:
    """Write the items under a temporary name, synced to disk, and return that name."""
    require_extra(Extra.PARQUET, "storing results by example")
    import pyarrow as pa
    import pyarrow.parquet as pq

    doc_ids = [outcome.doc_id for outcome in items]
    values = [outcome.value for outcome in items]
    predictions = [_clean_text(outcome.prediction) for outcome in items]
    golds = [_clean_text(outcome.gold) for outcome in items]
    details = [dump_json(outcome.detail) for outcome in items]
    clusters = [_clean_text(outcome.cluster) for outcome in items]
    table = pa.table(
        {
            "doc_id": pa.array(doc_ids, pa.int64()),
            "value": pa.array(values, pa.float64()),
            "prediction": pa.array(predictions, pa.string()),
            "gold": pa.array(golds, pa.string()),
            "detail": pa.array(details, pa.string()),
            "cluster": pa.array(clusters, pa.string()),
        }
    )
    items_file = items_path(folder, cell_key)
    writer = f"{os.getpid()}.{os.urandom(4).hex()}"
    staged_file = items_file.with_name(f".{items_file.stem}.{writer}.tmp")
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_file(staged_file, buffer.getvalue(), synced=True)
    return staged_file


def publish_items(folder: Path, cell_key: str, staged_file: Path) -> None:
    """Give staged items their final name, and sync the folder so that the name survives too."""
    items_file = items_path(folder, cell_key)
    staged_file.replace(items_file)
    sync_folder(items_file.parent)


def load_items(folder: Path, cell_key: str, choose: ChooseItems | None = None) -> list[ItemOutcome]:
    """Read the items of a cell that has some, or those that are chosen by their values."""
    path = items_path(folder, cell_key)
    column_names = ("doc_id", "value", "prediction", "gold", "detail", "cluster")
    try:
        columns = _read_columns(path, *column_names, choose=choose)
        return [
            ItemOutcome(doc_id, value, prediction, gold, json.loads(detail), cluster)
            for doc_id, value, prediction, gold, detail, cluster in zip(*columns, strict=True)
        ]
    except FileNotFoundError:
        hint = "keep the .items folder beside the database when you move it; or potentia status --check --repair"
        raise DamagedItemsError(
            "the examples of this result are missing", where=str(path), hint=hint
        ) from None
    except _UNREADABLE as error:
        message = f"the examples of this result cannot be read: {first_line(error)}"
        hint = "potentia status --check --repair; the next run of its study computes it again and replaces it"
        raise DamagedItemsError(message, where=str(path), hint=hint) from error


@dataclass(frozen=True)
class ItemValues:
    """The value of every example of a cell, and the cluster of those that share a passage."""

    values: dict[int, float]
    clusters: dict[int, str]


def load_item_values(folder: Path, cell_key: str) -> ItemValues | None:
    """Read the value of every document of a cell, without predictions, golds and details.

    None where the file is missing or damaged.
    """
    try:
        examples, values, cluster_labels = _read_columns(
            items_path(folder, cell_key), "doc_id", "value", "cluster"
        )
    except _UNREADABLE:
        return None
    labelled_examples = zip(examples, cluster_labels, strict=True)
    clusters = {example: cluster for example, cluster in labelled_examples if cluster}
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
        answer_bits = read_answer_bits(gold, detail)
        return None if answer_bits is None else answer_bits.by_metric().get(metric)
    value = (detail.get("metrics") or {}).get(metric)
    return float(value) if isinstance(value, (bool, int, float)) else None


def _read_columns(
    path: Path, *column_names: str, choose: ChooseItems | None = None
) -> list[list[Any]]:
    require_extra(Extra.PARQUET, "reading the results by example of a store")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored_names = file.schema_arrow.names
            table = file.read(
                columns=[column_name for column_name in column_names if column_name in stored_names]
            )
        if "cluster" in column_names and "cluster" not in stored_names:  # written before clusters
            table = table.append_column("cluster", pa.array([""] * len(table), pa.string()))
        if choose is not None:
            table = table.take(choose(table["value"].to_pylist()))
        return [table.column(column_name).to_pylist() for column_name in column_names]
    except pa.ArrowException as error:  # not all of them are errors of value or type
        raise ValueError(str(error)) from error


def looks_whole(folder: Path, cell_key: str) -> bool:
    """Say whether a cell's file is there and begins and ends as Parquet does: quick, and right for files cut short."""
    try:
        with items_path(folder, cell_key).open("rb") as file:
            first_bytes = file.read(4)
            file.seek(-4, os.SEEK_END)
            return first_bytes == file.read(4) == b"PAR1" and file.tell() > 12
    except OSError:
        return False


def _clean_text(text: str) -> str:
    # A lone surrogate from a cut-off token is no Unicode text and no Parquet string.
    return str(text).encode("utf-8", "replace").decode("utf-8")

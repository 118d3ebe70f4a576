"""Per-item outcomes: one Parquet file per cell, beside the database.

A file is written under a temporary name and synced before the cell's transaction starts, and renamed inside it: a
committed cell always has whole items, and a process killed in between leaves nothing but a stray temporary file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potentia.errors import DamagedItemsError, StoreError
from potentia.files import write_file
from potentia.values.scores import ItemOutcome


def items_path(folder: Path, key: str) -> Path:
    """Return where the items of the cell ``key`` are kept."""
    name = key if re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,150}", key) else hashlib.sha256(key.encode()).hexdigest()
    return folder / name[:2] / f"{name}.parquet"


def stage(folder: Path, key: str, items: Sequence[ItemOutcome]) -> Path:
    """Write the items under a temporary name, synced to disk, and return that name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "doc_id": pa.array([item.doc_id for item in items], pa.int64()),
            "value": pa.array([item.value for item in items], pa.float64()),
            "prediction": pa.array([_clean(item.prediction) for item in items], pa.string()),
            "gold": pa.array([_clean(item.gold) for item in items], pa.string()),
            "detail": pa.array([dumps(item.detail) for item in items], pa.string()),
        }
    )
    target = items_path(folder, key)
    staged = target.with_name(f".{target.stem}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_file(staged, buffer.getvalue(), synced=True)
    return staged


def publish(folder: Path, key: str, staged: Path) -> None:
    """Give staged items their final name, and sync the folder so that the name survives too."""
    target = items_path(folder, key)
    staged.replace(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(folder: Path, key: str) -> list[ItemOutcome]:
    """Read the items of a cell that has some."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = items_path(folder, key)
    try:
        table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        columns = [table.column(name).to_pylist() for name in ("doc_id", "value", "prediction", "gold", "detail")]
        return [
            ItemOutcome(doc_id=i, value=v, prediction=p, gold=g, detail=json.loads(d))
            for i, v, p, g, d in zip(*columns, strict=True)
        ]
    except FileNotFoundError:
        raise DamagedItemsError(
            "the items of this cell are missing",
            where=str(path),
            hint="keep the .items folder beside the database when you move it; or potentia store check --repair",
        ) from None
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "potentia store check --repair; the next run of its study computes the cell anew, and replaces it"
        raise DamagedItemsError(f"the items of this cell cannot be read: {told}", where=str(path), hint=hint) from error


def looks_whole(folder: Path, key: str) -> bool:
    """Say whether a cell's file is there and begins and ends as Parquet does: quick, and right for files cut short."""
    try:
        with items_path(folder, key).open("rb") as file:
            head = file.read(4)
            file.seek(-4, os.SEEK_END)
            return head == file.read(4) == b"PAR1" and file.tell() > 12
    except OSError:
        return False


def load_values(folder: Path, key: str) -> dict[int, float] | None:
    """Read the value of every document of a cell, without the evidence; None where the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(items_path(folder, key), columns=["doc_id", "value"], partitioning=None)
        return dict(zip(table["doc_id"].to_pylist(), table["value"].to_pylist(), strict=True))
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def loads(text: str, **how: Any) -> Any:
    """Read JSON text that a store holds."""
    try:
        return json.loads(text, **how)
    except (ValueError, TypeError, RecursionError) as error:
        hint = "restore it from a copy, or run again into a new store"
        raise StoreError("a record of this store is damaged", hint=hint) from error


def dumps(value: Any) -> str:
    """Write JSON text; arrays and numpy numbers become plain lists and numbers."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def _clean(text: str) -> str:
    # A lone surrogate from a cut-off token is no Unicode text and no Parquet string.
    return str(text).encode("utf-8", "replace").decode("utf-8")

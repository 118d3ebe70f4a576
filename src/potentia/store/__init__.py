"""Results: the store (SQLite or PostgreSQL, items as Parquet), and scores read from and written to files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potentia.store.records import CellRecord, EpochRecord, EventRecord, FailureRecord, LaneRecord, StudyRecord

if TYPE_CHECKING:
    from potentia.store.files.write import write_scores
    from potentia.store.read import read_scores
    from potentia.store.store import Store
    from potentia.store.transfer import import_scores

__all__ = [
    "CellRecord",
    "EpochRecord",
    "EventRecord",
    "FailureRecord",
    "LaneRecord",
    "Store",
    "StudyRecord",
    "import_scores",
    "read_scores",
    "write_scores",
]

# SQLAlchemy and pyarrow are loaded when first needed, not by ``import potentia``.
_LAZY = {
    "Store": "potentia.store.store",
    "read_scores": "potentia.store.read",
    "write_scores": "potentia.store.files.write",
    "import_scores": "potentia.store.transfer",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

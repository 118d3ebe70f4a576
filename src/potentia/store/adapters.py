"""The adapters that a store keeps, each in a folder in PEFT's form, named by its cell."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from potentia.files import atomic_folder
from potentia.store.database import Database
from potentia.store.error_words import errors_in_words
from potentia.store.records import dump_json
from potentia.store.waiting import PatientPart

ADAPTER_NOTE = "potentia.json"


class Adapters(PatientPart):
    """The tuned adapters that are kept beside the store."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def find(self, cell_key: str) -> Path | None:
        """Return the folder of a cell's tuned adapter, in PEFT's form; None where none was kept."""
        folder = self.database.adapters_folder / cell_key
        return folder if (folder / ADAPTER_NOTE).is_file() else None

    def save(self, key: str, save: Callable[[Path], None], note: Mapping[str, Any]) -> Path:
        """Keep what ``save`` writes, wholly or not at all; ``note`` says what it was made for."""
        folder = self.database.adapters_folder / key
        with errors_in_words(self.database.where), atomic_folder(folder, replace=True) as draft:
            save(draft)
            (draft / ADAPTER_NOTE).write_text(dump_json(dict(note)), encoding="utf-8")
        return folder

    def delete(self, cell_key: str) -> int:
        """Remove a kept adapter; returns the bytes set free."""
        folder = self.find(cell_key)
        if folder is None:
            return 0
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        with errors_in_words(self.database.where):
            shutil.rmtree(folder)
        return size

"""The adapters that a store keeps, each in a folder in PEFT's form, named by its cell or its exposed copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from potentia.files import ADAPTER_NOTE, atomic_folder
from potentia.store.database import Database
from potentia.store.error_translation import translated_errors
from potentia.store.records import dump_json
from potentia.store.waiting import PatientPart


def name_exposed_copy(model_fingerprint: str) -> str:
    """Return the folder name of an exposed copy: an adapter of its original, or a whole model."""
    return f"treated-{model_fingerprint}"


class Adapters(PatientPart):
    """The tuned adapters and the exposed copies that are kept beside the store."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def find(self, cell_key: str) -> Path | None:
        """Return the folder of a cell's tuned adapter, in PEFT's form; None where none was kept."""
        folder = self.database.adapters_folder / cell_key
        return folder if (folder / ADAPTER_NOTE).is_file() else None

    def save(
        self,
        cell_key: str,
        write_adapter: Callable[[Path], None],
        description: Mapping[str, object],
    ) -> Path:
        """Keep what ``write_adapter`` writes, wholly or not at all; ``description`` says what it was made for."""
        folder = self.database.adapters_folder / cell_key
        with (
            translated_errors(self.database.where),
            atomic_folder(folder, replace=True) as draft_folder,
        ):
            write_adapter(draft_folder)
            (draft_folder / ADAPTER_NOTE).write_text(dump_json(dict(description)), encoding="utf-8")
        return folder

    def delete(self, cell_key: str) -> int:
        """Remove a kept adapter; returns the bytes set free."""
        folder = self.find(cell_key)
        if folder is None:
            return 0
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        with translated_errors(self.database.where):
            shutil.rmtree(folder)
        return size

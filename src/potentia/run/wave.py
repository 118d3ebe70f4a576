"""A wave: the tasks whose lanes train together in a row, fixed when it starts so that a resumed run repeats it.

The trainer's packing, and with it the last bits of every number, follows from the list of lanes. Cells of a wave are
committed one by one, so the list of what is still missing shrinks; the wave remembers the whole list until all is done.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wave:
    """The tasks of a wave and the folder of its snapshots and adapters."""

    tasks: tuple[str, ...]
    folder: Path

    def close(self) -> None:
        """Forget the wave: all its cells are committed."""
        shutil.rmtree(self.folder, ignore_errors=True)


def open_wave(folder: Path, every: Sequence[str], pending: Sequence[str]) -> Wave:
    """Go on with the wave that was begun here, if it covers what is pending; else begin one with the pending tasks."""
    note = folder / "wave.json"
    try:
        begun = json.loads(note.read_text())["tasks"]
    except (OSError, ValueError, KeyError, TypeError):
        begun = None
    if begun is not None and set(pending) <= set(begun) <= set(every):
        return Wave(tuple(begun), folder)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".wave.{os.getpid()}"
    aside.write_text(json.dumps({"tasks": list(pending)}))
    aside.replace(note)
    return Wave(tuple(pending), folder)

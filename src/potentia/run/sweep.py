"""What a run leaves behind: nothing. Lanes that a finished row needs no more go, also those of a run that was killed.

A row removes its lanes once its last cell is committed. One that is killed in between has nothing left to compute, so
no row runs that would remove them: the run that finds the cells done does.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.run.plan import RowPlan, StudyPlan, lanes_name, seen
from potentia.run.row_parts import every_part, train_sizes
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store


def sweep(plan: StudyPlan, store: Store) -> None:
    """Remove the lanes of every row of the study that is done, and half-written files of its cells."""
    store.sweep()
    folder = store.lanes_folder
    if not folder.is_dir():
        return
    rows = seen([row for row in plan.rows if not row.problem], store)
    for row in rows:
        _remove_done(folder, row)
    sizes = train_sizes(plan) if folder.is_dir() and any(folder.iterdir()) else {}
    for row in rows if sizes else ():  # a run may have been killed that had them in parts
        for part in every_part(row, sizes):
            _remove_done(folder, part)
    with contextlib.suppress(OSError):  # others have lanes there
        folder.rmdir()


def _remove_done(folder: Path, row: RowPlan) -> None:
    for kind in (TRAIN_BEFORE_TEST, ADJUST):
        own = [cell for cell in row.cells if cell.protocol.kind == kind]
        if own and all(cell.done for cell in own):
            remove(folder / lanes_name(row, kind))


def remove(folder: Path) -> None:
    """Remove a folder of lanes, and the one it lies in where it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()

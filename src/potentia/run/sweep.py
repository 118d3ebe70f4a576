"""What a run leaves behind: nothing. Lanes that a finished row needs no more go, also those of a run that was killed.

A row removes its lanes once its last cell is committed. One that is killed in between has nothing left to compute, so
no row runs that would remove them: the run that finds the cells done does.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol
from potentia.run.plan import RowPlan, StudyPlan, seen
from potentia.study import content_key

if TYPE_CHECKING:
    from potentia.store import Store


def lanes_name(row: RowPlan, kind: Protocol) -> str:
    """Name the folder of a row's lanes by the cells that they are for, whether these are done or not."""
    cells = [cell.copy_of or cell.key for cell in row.cells if cell.protocol == kind]
    return content_key(cells=sorted(cells))


def sweep(plan: StudyPlan, store: Store) -> None:
    """Remove the lanes of every row of the study that is done, and half-written files of its cells."""
    store.sweep()
    folder = store.lanes_folder
    if not folder.is_dir():
        return
    for row in seen([row for row in plan.rows if not row.problem], store):
        for kind in (TRAIN_BEFORE_TEST, ADJUST):
            own = [cell for cell in row.cells if cell.protocol.kind == kind]
            if own and all(cell.done for cell in own):
                remove(folder / lanes_name(row, kind))
    with contextlib.suppress(OSError):  # others have lanes there
        folder.rmdir()


def remove(folder: Path) -> None:
    """Remove a folder of lanes, and the one it lies in where it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()

"""The log of a run: one JSON object a line, in a file of its own beside the store, written by every process of the run.

A line has its time, host, process and kind, and what there is to say: the plan, phases of rows, cells, failures with
their tracebacks, rows that others have, how the run ended. A log that cannot be written costs nothing but itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.store import Store


class RunLog:
    """Appends lines to the log of a run; a run without a name has none."""

    def __init__(self, folder: Path, run: str) -> None:
        self.path = folder / f"{run}.jsonl" if run else None

    @classmethod
    def of(cls, store: Store, run: str) -> RunLog:
        """Return the log of a run on this store."""
        return cls(store.logs_folder, run)

    def write(self, kind: str, **facts: Any) -> None:
        """Append one line, in one write: lines of several processes do not mix."""
        if self.path is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "host": socket.gethostname(), "pid": os.getpid(), "kind": kind, **facts}
        text = json.dumps(line, ensure_ascii=False, default=str) + "\n"
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(text.encode("utf-8", "replace"))

"""Files that are whole or not there: tensors and facts in one sealed file, written aside, then renamed.

A sealed file is a line with the SHA-256 of what follows, then a safetensors payload whose metadata holds the facts. A
file cut short, flipped or half written fails its checksum and reads as absent. Snapshots wait for the disk; the states
of lanes after their epochs, which are many, do not: what a power cut takes is found broken and computed again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from potentia.errors import TuningError
from potentia.files import write_file
from potentia.timing import spending

_MARK = b"potentia-sealed sha256 "


@spending("save")
def write_sealed(
    path: Path, tensors: dict[str, Tensor], facts: dict[str, Any], *, synced: bool = True
) -> None:
    """Write tensors and facts to ``path`` in one atomic step; a full disk is an error and leaves the old file."""
    from safetensors.torch import save

    payload = save(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        {"facts": json.dumps(facts)},
    )
    try:
        write_file(
            path,
            _MARK + hashlib.sha256(payload).hexdigest().encode() + b"\n",
            payload,
            synced=synced,
        )
    except OSError as error:
        raise TuningError(
            f"cannot save a checkpoint: {error.strerror or error}",
            where=str(path),
            hint="free some space, then run the same command again: what was saved before is intact",
        ) from error


def read_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors and facts of a sealed file, or None where it is absent or fails its checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        raw = path.read_bytes()
    except OSError:
        return None
    line, found, payload = raw.partition(b"\n")
    if not found or not line.startswith(_MARK):
        return None
    if hashlib.sha256(payload).hexdigest().encode() != line[len(_MARK) :]:
        return None
    try:
        size = int.from_bytes(payload[:8], "little")
        facts = json.loads(json.loads(payload[8 : 8 + size])["__metadata__"]["facts"])
        return load(payload), facts
    except (SafetensorError, KeyError, ValueError):
        return None


class SavedStates:
    """What lanes were after their epochs: sealed files in a folder, or memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[tuple[str, int], dict[str, Tensor]] = {}

    def path_of_state(self, key: str, epoch: int) -> Path:
        """Return where a state lies."""
        assert self.folder is not None
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return self.folder / name / f"epoch-{epoch}.sealed"

    def save_state(self, key: str, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Keep what a lane is after ``epoch`` (from 1)."""
        if self.folder is None:
            self._memory[key, epoch] = {
                name: part.detach().cpu().clone() for name, part in tensors.items()
            }
        else:
            write_sealed(
                self.path_of_state(key, epoch), tensors, {"key": key, "epoch": epoch}, synced=False
            )

    def load_state(self, key: str, epoch: int) -> dict[str, Tensor] | None:
        """Return what was kept, or None where it is absent or broken."""
        if self.folder is None:
            return self._memory.get((key, epoch))
        found = read_sealed(self.path_of_state(key, epoch))
        return found[0] if found is not None and found[1] == {"key": key, "epoch": epoch} else None

    def keep_only(self, states: Collection[tuple[str, int]]) -> None:
        """Let go of all but these keys and epochs."""
        self._memory = {
            state: tensors for state, tensors in self._memory.items() if state in states
        }
        if self.folder is not None:
            kept = {self.path_of_state(*state) for state in states}
            for file in set(self.folder.glob("*/epoch-*.sealed")) - kept:
                file.unlink(missing_ok=True)


class Snapshots:
    """Two sealed files written in turn, so that a whole one remains whatever happens to the other; none without folder.

    One is due after so many ``seconds``, and not before twenty times what writing the last one took.
    """

    def __init__(self, folder: Path | None, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.serial = 0
        self._at, self._took = time.monotonic(), 0.0

    def due(self, *, now: bool = False) -> bool:
        """Whether to write one; ``now`` asks for it at once."""
        return self.folder is not None and (
            now or time.monotonic() - self._at >= max(self.seconds, 20 * self._took)
        )

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the next snapshot over the older of the two."""
        assert self.folder is not None
        began = time.monotonic()
        self.serial += 1
        write_sealed(
            self.folder / f"snapshot-{self.serial % 2}.sealed",
            tensors,
            {**facts, "serial": self.serial},
        )
        self._at = time.monotonic()
        self._took = self._at - began

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest snapshot that is whole."""
        if self.folder is None:
            return None
        found = [read_sealed(self.folder / f"snapshot-{turn}.sealed") for turn in (0, 1)]
        whole = [snapshot for snapshot in found if snapshot is not None]
        if not whole:
            return None
        newest = max(whole, key=lambda snapshot: int(snapshot[1]["serial"]))
        self.serial = int(newest[1]["serial"])
        return newest

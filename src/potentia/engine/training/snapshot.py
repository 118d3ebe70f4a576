"""Sealed files: tensors and facts in one file with a checksum, written aside, then renamed.

A sealed file is a line with the SHA-256 of what follows, then a safetensors payload whose metadata holds the facts. A
file cut short, flipped or half written fails its checksum and reads as absent. Snapshots wait for the disk; the states
of lanes after their epochs, which are many, do not: a state that a power cut broke is computed again.
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

_SEAL = b"potentia-sealed sha256 "


@spending("save")
def write_sealed(
    path: Path, tensors: dict[str, Tensor], facts: dict[str, Any], *, synced: bool = True
) -> None:
    """Write tensors and facts to ``path`` in one atomic step; a full disk is an error and leaves the old file."""
    from safetensors.torch import save

    host_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    payload = save(host_tensors, {"facts": json.dumps(facts)})
    seal_line = _SEAL + _checksum(payload) + b"\n"
    try:
        write_file(path, seal_line, payload, synced=synced)
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
        content = path.read_bytes()
    except OSError:
        return None
    seal_line, newline, payload = content.partition(b"\n")
    if not newline or not seal_line.startswith(_SEAL):
        return None
    if _checksum(payload) != seal_line.removeprefix(_SEAL):
        return None
    try:
        facts = _read_facts(payload)
        return load(payload), facts
    except (SafetensorError, KeyError, ValueError):
        return None


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).hexdigest().encode()


def _read_facts(payload: bytes) -> dict[str, Any]:
    """Return the facts from a safetensors header: its length in eight bytes, then JSON."""
    header_size = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + header_size])
    facts: dict[str, Any] = json.loads(header["__metadata__"]["facts"])
    return facts


class SavedStates:
    """The states of lanes after their epochs: sealed files in a folder, or memory where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[tuple[str, int], dict[str, Tensor]] = {}

    def path_of_state(self, key: str, epoch: int) -> Path:
        """Return the path of a state's file."""
        assert self.folder is not None
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return self.folder / name / f"epoch-{epoch}.sealed"

    def save_state(self, key: str, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Save the state of a lane after ``epoch`` (from 1)."""
        if self.folder is None:
            copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            self._memory[key, epoch] = copies
            return
        path = self.path_of_state(key, epoch)
        write_sealed(path, tensors, {"key": key, "epoch": epoch}, synced=False)

    def load_state(self, key: str, epoch: int) -> dict[str, Tensor] | None:
        """Return a saved state, or None where it is absent or broken."""
        if self.folder is None:
            return self._memory.get((key, epoch))
        content = read_sealed(self.path_of_state(key, epoch))
        if content is None:
            return None
        tensors, facts = content
        if facts != {"key": key, "epoch": epoch}:
            return None
        return tensors

    def keep_only(self, states: Collection[tuple[str, int]]) -> None:
        """Delete all states but those of these keys and epochs."""
        for state in list(self._memory):
            if state not in states:
                del self._memory[state]
        if self.folder is not None:
            needed_files = {self.path_of_state(key, epoch) for key, epoch in states}
            saved_files = set(self.folder.glob("*/epoch-*.sealed"))
            for file in saved_files - needed_files:
                file.unlink(missing_ok=True)


class Snapshots:
    """Two sealed files written in turn, so that one remains whatever happens to the other; none without a folder.

    One is due after so many ``seconds``, and not before twenty times what writing the last one took.
    """

    def __init__(self, folder: Path | None, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.serial = 0
        self._last_time = time.monotonic()
        self._writing_seconds = 0.0

    def due(self, *, now: bool = False) -> bool:
        """Return whether to write a snapshot; ``now`` asks for one at once."""
        if self.folder is None:
            return False
        if now:
            return True
        seconds_since_last = time.monotonic() - self._last_time
        return seconds_since_last >= max(self.seconds, 20 * self._writing_seconds)

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the next snapshot over the older of the two."""
        assert self.folder is not None
        began = time.monotonic()
        self.serial += 1
        path = self.folder / f"snapshot-{self.serial % 2}.sealed"
        write_sealed(path, tensors, {**facts, "serial": self.serial})
        self._last_time = time.monotonic()
        self._writing_seconds = self._last_time - began

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest snapshot that is not broken."""
        if self.folder is None:
            return None
        newest = None
        newest_serial = -1
        for turn in (0, 1):
            snapshot = read_sealed(self.folder / f"snapshot-{turn}.sealed")
            if snapshot is None:
                continue
            serial = int(snapshot[1]["serial"])
            if serial > newest_serial:
                newest = snapshot
                newest_serial = serial
        if newest is not None:
            self.serial = newest_serial
        return newest

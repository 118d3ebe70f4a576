"""Sealed files: tensors and facts in one file with a checksum, so that a damaged file is never taken for a good one.

A sealed file is a line with the SHA-256 of what follows, then a safetensors payload whose metadata holds the facts,
plain values. It is written beside its place and then renamed. A file that is cut short or has a flipped bit fails its
checksum, and reads as absent.

A *snapshot* holds what an interrupted run needs to go on, and waits until the disk has it. A *state* is what a lane (a
fine-tuning) was after an epoch. States are many and do not wait for the disk: one that a power cut broke is computed
again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from potentia.errors import TuningError
from potentia.files import write_file
from potentia.timing import spending

_SEAL = b"potentia-sealed sha256 "
WRITING_MULTIPLE = (
    20  # a snapshot waits at least this many times as long as writing the last one took
)


class SealedContent(NamedTuple):
    """What a sealed file holds."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


@spending("save")
def write_sealed(
    sealed_file: Path, tensors: dict[str, Tensor], facts: dict[str, object], *, synced: bool = True
) -> None:
    """Write tensors and facts to a file in one step, ``synced`` to the disk; where that fails, the old file stays."""
    from safetensors.torch import save

    host_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    payload = save(host_tensors, {"facts": json.dumps(facts)})
    seal_line = _SEAL + _checksum(payload) + b"\n"
    try:
        write_file(sealed_file, seal_line, payload, synced=synced)
    except OSError as error:
        raise TuningError(
            f"cannot save a checkpoint: {error.strerror or error}",
            where=str(sealed_file),
            hint="free some space, then run the same command again: what was saved before is intact",
        ) from error


def read_sealed(sealed_file: Path) -> SealedContent | None:
    """Return the tensors and facts of a sealed file, or None where it is absent or fails its checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = sealed_file.read_bytes()
    except OSError:
        return None
    seal_line, newline, payload = content.partition(b"\n")
    if not newline or not seal_line.startswith(_SEAL):
        return None
    if _checksum(payload) != seal_line.removeprefix(_SEAL):
        return None
    try:
        return SealedContent(load(payload), _read_facts(payload))
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
    """The states of lanes after their epochs: sealed files in a folder, or tensors in memory without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[tuple[str, int], dict[str, Tensor]] = {}

    def path_of_state(self, key: str, epoch: int) -> Path:
        """Return the path of the file for the state of a lane after an epoch."""
        assert self.folder is not None
        hashed_key = hashlib.sha256(key.encode()).hexdigest()[:24]
        return self.folder / hashed_key / f"epoch-{epoch}.sealed"

    def save_state(self, key: str, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Save the state of the lane ``key`` after ``epoch`` (from 1)."""
        if self.folder is None:
            copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            self._memory[key, epoch] = copies
            return
        state_file = self.path_of_state(key, epoch)
        write_sealed(state_file, tensors, {"key": key, "epoch": epoch}, synced=False)

    def load_state(self, key: str, epoch: int) -> dict[str, Tensor] | None:
        """Return a saved state, or None where it is absent or broken."""
        if self.folder is None:
            return self._memory.get((key, epoch))
        content = read_sealed(self.path_of_state(key, epoch))
        if content is None:
            return None
        if content.facts != {"key": key, "epoch": epoch}:
            return None
        return content.tensors

    def keep_only(self, kept: Collection[tuple[str, int]]) -> None:
        """Delete all states except those of these keys and epochs."""
        for state_key in list(self._memory):
            if state_key not in kept:
                del self._memory[state_key]
        if self.folder is not None:
            needed_files = {self.path_of_state(key, epoch) for key, epoch in kept}
            saved_files = set(self.folder.glob("*/epoch-*.sealed"))
            for file in saved_files - needed_files:
                file.unlink(missing_ok=True)


class Snapshots:
    """Two sealed files written in turn, so that one remains whatever happens to the other; without a folder, none.

    The next is due after so many ``seconds``, or more where writing would otherwise take over 5 % of the time.
    """

    def __init__(self, folder: Path | None, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.serial = 0
        self._last_time = time.monotonic()
        self._writing_seconds = 0.0

    def is_due(self, *, now: bool = False) -> bool:
        """Whether to write a snapshot; with ``now``, whenever there is a folder."""
        if self.folder is None:
            return False
        if now:
            return True
        seconds_since_last = time.monotonic() - self._last_time
        return seconds_since_last >= max(self.seconds, WRITING_MULTIPLE * self._writing_seconds)

    def save(self, tensors: dict[str, Tensor], facts: dict[str, object]) -> None:
        """Write the next snapshot over the older of the two."""
        assert self.folder is not None
        began = time.monotonic()
        self.serial += 1
        snapshot_file = self.folder / f"snapshot-{self.serial % 2}.sealed"
        write_sealed(snapshot_file, tensors, {**facts, "serial": self.serial})
        self._last_time = time.monotonic()
        self._writing_seconds = self._last_time - began

    def read_latest(self) -> SealedContent | None:
        """Return the newest snapshot that is not broken, or None."""
        if self.folder is None:
            return None
        newest = None
        newest_serial = -1
        for turn in (0, 1):
            snapshot = read_sealed(self.folder / f"snapshot-{turn}.sealed")
            if snapshot is None:
                continue
            serial = int(snapshot.facts["serial"])
            if serial > newest_serial:
                newest = snapshot
                newest_serial = serial
        if newest is not None:
            self.serial = newest_serial
        return newest

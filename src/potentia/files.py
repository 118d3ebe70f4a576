"""Files and folders that are whole or not there: written beside their place, then given their name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potentia.errors import InputError


def plain_file(path: Path, largest: int, error: type[InputError] = InputError) -> Path:
    """Return a path of a plain file of at most so many bytes; reading a pipe or a device may never end."""
    if path.exists() and not path.is_file():
        raise error("this is no plain file", where=str(path))
    if path.is_file() and path.stat().st_size > largest:
        raise error(f"larger than {largest // 2**20:,} MiB", where=str(path))
    return path


def write_file(path: Path, *parts: bytes | str, synced: bool = False) -> None:
    """Write a file, and its folder where that is missing: a full disk or a kill leaves the old one.

    With ``synced`` it survives a power cut as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    try:
        with draft.open("wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill, which then takes this name: that of an empty folder, or with ``replace`` of any."""
    path = path.resolve()
    if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("the folder is not empty", where=str(path), hint="give a new folder")
    draft, old = _draft(path), path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if replace and path.exists():
            path.rename(old)  # the old one is gone when the new one is there, not before
        try:
            draft.rename(path)
        except OSError:  # a mount point keeps its name
            shutil.copytree(draft, path, dirs_exist_ok=True)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")

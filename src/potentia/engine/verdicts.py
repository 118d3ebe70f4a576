"""Verdicts of checks, shared by models of one run that are built alike.

Whether a mask, a routing or a hand-written layer is right follows from a model's structure: its config, its modules,
their sizes and dtype, the device and the versions of what computes. A copy treated on other data, a checkpoint of the
same training or a fine-tune of the same shape need not be checked in full again; a few rows of its own are enough, for
its weights may round otherwise, and where these are off it is checked in full. The processes of a run share a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from potentia.files import write_file

VERDICTS = "POTENTIA_VERDICTS"  # where the processes of a run share them
NO_STRUCTURE = ("_name_or_path", "name_or_path", "transformers_version")  # what a config says of its origin


class Verdicts:
    """What checks found, by what they were asked of: in memory, and in a folder where there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def get(self, *asked: str) -> dict[str, Any] | None:
        """Return what was found, or None."""
        key = _digest(*asked)
        if key not in self._known and self.folder is not None:
            try:
                self._known[key] = json.loads((self.folder / key).read_text("utf-8"))
            except (OSError, ValueError):
                return None
        return self._known.get(key)

    def put(self, found: dict[str, Any], *asked: str) -> None:
        """Keep what was found."""
        key = _digest(*asked)
        self._known[key] = found
        if self.folder is not None and self.folder.is_dir():
            write_file(self.folder / key, json.dumps(found))


@lru_cache
def verdicts_of_run() -> Verdicts:
    """Return the verdicts that this process shares with the others of its run."""
    folder = os.environ.get(VERDICTS)
    return Verdicts(Path(folder) if folder else None)


def structure(model: Any) -> str:
    """Name all that decides whether code is right for a model, but for its weights' values.

    A model whose code came with it has a name of its own: the same class may be other code.
    """
    import torch
    import transformers

    from potentia.engine.twin import kind

    if type(model).__module__.startswith("transformers_modules"):
        return f"{id(model)} of {os.getpid()}"
    config = {name: value for name, value in model.config.to_dict().items() if name not in NO_STRUCTURE}
    first = next(p for p in model.parameters() if p.is_floating_point())
    device = torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else first.device.type
    versions = (torch.__version__, transformers.__version__, _own_code())
    settings = json.dumps(config, sort_keys=True, default=str)
    return _digest(str(type(model)), settings, repr(kind(model)), str(first.dtype), device, *versions)


@lru_cache
def _own_code() -> str:
    return _digest(*(path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

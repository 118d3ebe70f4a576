"""A task's fingerprint: changes with anything that can change a score, and with nothing else."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

# Keys of a definition that say where the data came from, not what is asked; the data themselves are hashed.
_PLACE = {"dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset", "tag", "group", "task_list", "metadata"}


def fingerprint(config: Mapping[str, Any], documents: Iterable[tuple[str, int, Mapping[str, Any]]]) -> str:
    """Hash a definition and its documents (split, id, content); the order of keys plays no part."""
    digest = hashlib.sha256()
    digest.update(canonical(describe(config)).encode())
    for split, number, document in documents:
        digest.update(f"\n{split}:{number}:".encode())
        digest.update(canonical(document).encode())
    return digest.hexdigest()


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition as plain values: functions by name and by the text of the file that holds them."""
    return {key: _described(value) for key, value in config.items() if key not in _PLACE and value is not None}


def canonical(value: Any) -> str:
    """Write a value as JSON with sorted keys, the same in every process."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


_FILES = {"data_files", "data_dir"}  # where a definition names its files: a folder may be moved


def _described(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _described(inner) for key, inner in value.items() if key not in _FILES}
    if isinstance(value, (list, tuple)):
        return [_described(inner) for inner in value]
    if callable(value):
        parts = getattr(value, "fingerprint_parts", None)
        if parts is not None:
            return _described(parts)
        name = getattr(value, "__qualname__", type(value).__qualname__)
        inside = getattr(value, "args", ()), getattr(value, "keywords", {})  # functools.partial
        return {"function": name, "source": _source(value), "bound": _described(list(inside)) if any(inside) else None}
    return value


def _source(function: Any) -> str:
    function = getattr(function, "func", function)
    try:
        file = inspect.getsourcefile(function)
        return _file_hash(file) if file else ""
    except TypeError:
        return ""


@lru_cache(maxsize=256)
def _file_hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""

"""The name of a model that a result file knows only by a path: the nearest folder that tells which model it is."""

from __future__ import annotations

import re

# Folders that many models have: what tools call the place of the weights, not the model.
_COMMON_FOLDERS = frozenset(
    {
        "adapter",
        "base",
        "best",
        "checkpoint",
        "checkpoints",
        "final",
        "hf",
        "huggingface",
        "last",
        "latest",
        "main",
        "merged",
        "model",
        "models",
        "output",
        "outputs",
        "pretrained",
        "snapshot",
        "snapshots",
        "weights",
    }
)
_REVISION = re.compile(r"[0-9a-f]{7,64}")  # a commit, as in the hub's cache
_STEP = re.compile(r"(?:checkpoint|global_step|step|iter)[-_]?(\d+)")
_HUB_CACHE = "models--"  # models--google--gemma-7b


def name_model_by_path(path: str) -> str:
    """Return a path without the folders at its end that do not tell one model from another.

    ``/fast/gemma-7b/snapshots/model/`` is ``/fast/gemma-7b``; a step is kept, as in ``/runs/gemma-7b@1000``; a folder
    of the hub's cache is the repository. A name that is no path stays as it is.
    """
    if not _is_path(path):
        return path
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part.startswith(_HUB_CACHE):
            return part.removeprefix(_HUB_CACHE).replace("--", "/")
    step = ""
    while len(parts) > 1 and not _tells_model(parts[-1]):
        step_folder = _STEP.fullmatch(parts[-1].casefold())
        if step_folder is not None and not step:
            step = f"@{step_folder[1]}"
        parts.pop()
    if not _tells_model(parts[-1]):
        return path
    start = "/" if path.startswith("/") else ""
    return f"{start}{'/'.join(parts)}{step}"


def _is_path(name: str) -> bool:
    """Whether a name is a path of the file system: a repository of the hub has at most one slash inside."""
    return name.startswith(("/", "./", "../", "~")) or name.rstrip("/").count("/") > 1


def _tells_model(folder: str) -> bool:
    lower_folder = folder.casefold()
    is_common = lower_folder in _COMMON_FOLDERS
    return not (is_common or _REVISION.fullmatch(lower_folder) or _STEP.fullmatch(lower_folder))

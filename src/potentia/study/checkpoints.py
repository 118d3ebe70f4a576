"""The checkpoints of a pretraining run, found by the names that trainers give them.

``checkpoint-390`` (transformers), ``step1000`` (Pythia, OLMo), ``iter_0001000`` (Megatron), ``global_step5000``:
folders below one folder, or revisions of a hub repository. Tokens seen come from the name (``step1000-tokens4B``) or
from the trainer's state.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from potentia.errors import first_line

_STEP = re.compile(
    r"(?:checkpoint|ckpt|global[-_]?step|step|iter(?:ation)?)[-_]?(\d+)", re.IGNORECASE
)
_TOKENS = re.compile(r"tokens?[-_]?(\d+(?:\.\d+)?)([KMBT])?(?![A-Za-z])", re.IGNORECASE)
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def find_checkpoints(where: str) -> list[dict[str, Any]]:
    """Return the checkpoints of a folder, or of a hub repository's revisions, in the order of their steps."""
    folder = Path(where).expanduser()
    if folder.is_dir():
        found = [
            _of_folder(path)
            for path in folder.iterdir()
            if path.is_dir() and _step(path.name) is not None
        ]
        loadable = [point for point in found if (Path(point["path"]) / "config.json").is_file()]
        if not loadable:
            there = f"; {len(found)} such folders have no config.json" if found else ""
            raise ValueError(
                f"{where} holds no checkpoint (checkpoint-390, step1000, iter_0001000 …){there}"
            )
        return _ordered(loadable)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", where) and not where.startswith("."):
        return _ordered(_of_hub(where))
    raise ValueError(f"{where} is no folder and no repository of the hub")


def _step(name: str) -> int | None:
    match = _STEP.search(name)
    return int(match[1]) if match else None


def _tokens(name: str) -> float | None:
    match = _TOKENS.search(name)
    return float(match[1]) * _SIZES[(match[2] or "").upper()] if match else None


def _of_folder(path: Path) -> dict[str, Any]:
    point: dict[str, Any] = {"step": _step(path.name), "path": str(path)}
    tokens = _tokens(path.name)
    if tokens is None:
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            tokens = float(state.get("num_input_tokens_seen") or 0) or None
        except (OSError, ValueError, AttributeError, TypeError):
            tokens = None
    return point if tokens is None else {**point, "tokens": tokens}


def _of_hub(repository: str) -> list[dict[str, Any]]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        refs = HfApi().list_repo_refs(repository)
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        told = f"{repository} is no folder, and its revisions cannot be had from the hub"
        raise ValueError(f"{told}: {first_line(error)}") from None
    names = [ref.name for ref in (*refs.branches, *refs.tags)]
    points = [
        {"step": _step(n), "path": repository, "revision": n, "tokens": _tokens(n)} for n in names
    ]
    found = [point for point in points if point["step"] is not None]
    if not found:
        raise ValueError(
            f"no revision of {repository} is named after a step (step1000, checkpoint-390 …)"
        )
    return found


def _ordered(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order checkpoints by step; of two with the same step (several stages) the first named counts."""
    ordered = sorted(
        points, key=lambda point: (point["step"], str(point.get("revision") or point.get("path")))
    )
    return [next(same) for _, same in groupby(ordered, key=lambda point: point["step"])]

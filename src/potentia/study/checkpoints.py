"""The checkpoints of a pretraining run, found by the names that trainers give them.

``checkpoint-390`` (transformers), ``step1000`` (Pythia, OLMo), ``iter_0001000`` (Megatron), ``global_step5000``:
folders below one folder, or revisions of a hub repository. Tokens seen come from the name (``step1000-tokens4B``) or
from the trainer's state.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from potentia.errors import first_line

_STEP_IN_NAME = re.compile(
    r"(?:checkpoint|ckpt|global[-_]?step|step|iter(?:ation)?)[-_]?(\d+)", re.IGNORECASE
)
_TOKENS_IN_NAME = re.compile(r"tokens?[-_]?(\d+(?:\.\d+)?)([KMBT])?(?![A-Za-z])", re.IGNORECASE)
_TOKEN_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def find_checkpoints(location: str) -> list[dict[str, Any]]:
    """Return the checkpoints of a folder, or of a hub repository's revisions, in the order of their steps.

    Each is a record of a study file: ``step``, ``path``, and ``revision`` and ``tokens`` where they are known.
    """
    folder = Path(location).expanduser()
    if folder.is_dir():
        return _order_by_step(_find_in_folder(folder, location))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", location) and not location.startswith("."):
        return _order_by_step(_find_on_hub(location))
    raise ValueError(f"{location} is no folder and no repository of the hub")


def _find_in_folder(folder: Path, location: str) -> list[dict[str, Any]]:
    """Return the checkpoints below a folder that can be loaded."""
    loadable = []
    not_loadable = 0
    for path in folder.iterdir():
        step = _parse_step(path.name)
        if step is None or not path.is_dir():
            continue
        if (path / "config.json").is_file():
            loadable.append(_describe_folder(path, step))
        else:
            not_loadable += 1
    if not loadable:
        message = f"{location} holds no checkpoint (checkpoint-390, step1000, iter_0001000 …)"
        if not_loadable:
            message += f"; {not_loadable} such folders have no config.json"
        raise ValueError(message)
    return loadable


def _parse_step(name: str) -> int | None:
    match = _STEP_IN_NAME.search(name)
    return int(match[1]) if match else None


def _parse_tokens(name: str) -> float | None:
    match = _TOKENS_IN_NAME.search(name)
    if match is None:
        return None
    unit = _TOKEN_UNITS[(match[2] or "").upper()]
    return float(match[1]) * unit


def _describe_folder(path: Path, step: int) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"step": step, "path": str(path)}
    tokens = _parse_tokens(path.name)
    if tokens is None:
        tokens = _read_tokens_seen(path)
    if tokens is not None:
        checkpoint["tokens"] = tokens
    return checkpoint


def _read_tokens_seen(path: Path) -> float | None:
    """Return the tokens that the trainer's state counts; None where it counts none or cannot be read."""
    try:
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        return float(state.get("num_input_tokens_seen") or 0) or None
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _find_on_hub(repository: str) -> list[dict[str, Any]]:
    """Return the revisions of a hub repository that are named after a step."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        refs = HfApi().list_repo_refs(repository)
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        message = f"{repository} is no folder, and its revisions cannot be had from the hub"
        raise ValueError(f"{message}: {first_line(error)}") from None
    checkpoints = []
    for ref in (*refs.branches, *refs.tags):
        step = _parse_step(ref.name)
        if step is not None:
            tokens = _parse_tokens(ref.name)
            checkpoints.append(
                {"step": step, "path": repository, "revision": ref.name, "tokens": tokens}
            )
    if not checkpoints:
        raise ValueError(
            f"no revision of {repository} is named after a step (step1000, checkpoint-390 …)"
        )
    return checkpoints


def _order_by_step(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order checkpoints by step; of two with the same step (several stages) the first by name counts."""
    by_name = sorted(checkpoints, key=lambda point: str(point.get("revision") or point.get("path")))
    first_by_step: dict[int, dict[str, Any]] = {}
    for checkpoint in by_name:
        first_by_step.setdefault(checkpoint["step"], checkpoint)
    return [first_by_step[step] for step in sorted(first_by_step)]

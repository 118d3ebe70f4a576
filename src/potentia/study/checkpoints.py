"""Finding the checkpoints of a pretraining run, by the names that trainers give them.

They are folders below one folder, or revisions of a hub repository, named ``checkpoint-390`` (transformers),
``step1000`` (Pythia, OLMo), ``iter_0001000`` (Megatron) or ``global_step5000``. The number of tokens seen is in the
name (``step1000-tokens4B``) or in the trainer's state.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from potentia.errors import first_line
from potentia.hub import hub_answers, is_repository_name

_STEP_IN_NAME = re.compile(
    r"(?:checkpoint|ckpt|global[-_]?step|step|iter(?:ation)?)[-_]?(\d+)", re.IGNORECASE
)
_TOKENS_IN_NAME = re.compile(r"tokens?[-_]?(\d+(?:\.\d+)?)([KMBT])?(?![A-Za-z])", re.IGNORECASE)
# numbered parts of one run, which some trainers put before the step
_COUNTED_PART = re.compile(r"(epoch|stage|phase|part|ingredient)[-_]?\d+", re.IGNORECASE)
# words that mark one checkpoint of a run, and are no run's name
_CHOSEN_CHECKPOINTS = frozenset({"best", "last", "latest", "final"})
_TOKEN_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


EXPECTED_CHECKPOINTS = (
    "name the folder above checkpoint-390, step1000 …, each with a config.json, or a hub repository (org/name)"
    " with such revisions; run --watch waits for the first"
)


class CheckpointsError(ValueError):
    """There are no usable checkpoints where a study says; the message names the place."""

    def __init__(self, message: str, hint: str = EXPECTED_CHECKPOINTS) -> None:
        super().__init__(message)
        self.hint = hint


def list_checkpoints_at(location: str) -> list[dict[str, Any]]:
    """Return the checkpoints in a folder, or among the revisions of a hub repository, in the order of their steps.

    Each has the fields of a checkpoint in a study file: ``step``, ``path``, and ``revision`` and ``tokens`` if known.
    """
    folder = Path(location).expanduser()
    if folder.is_dir():
        return _order_by_step(_find_in_folder(folder, location))
    if is_repository_name(location):
        return _order_by_step(_find_on_hub(location))
    raise CheckpointsError(f"{location} is neither a folder nor a repository of the hub")


def _find_in_folder(folder: Path, location: str) -> list[dict[str, Any]]:
    """Return the checkpoints below a folder that can be loaded; raise if there are none, or those of several runs."""
    checkpoints = []
    run_names: set[str] = set()
    folders_without_config = 0
    for subfolder in folder.iterdir():
        subfolder_step = _parse_step(subfolder.name)
        if subfolder_step is None or not subfolder.is_dir():
            continue
        if (subfolder / "config.json").is_file():
            checkpoints.append(_describe_folder(subfolder, subfolder_step))
            run_names.add(_parse_run_name(subfolder.name))
        else:
            folders_without_config += 1
    if not checkpoints:
        message = f"{location} holds no checkpoint (checkpoint-390, step1000, iter_0001000 …)"
        if folders_without_config:
            message += f"; {folders_without_config} such folders have no config.json"
        raise CheckpointsError(message)
    if len(run_names) > 1:
        shown_names = ", ".join(name or "(no name)" for name in sorted(run_names)[:5])
        raise CheckpointsError(
            f"{location} holds checkpoints of {len(run_names)} runs ({shown_names})",
            hint="give each run a folder of its own",
        )
    return checkpoints


def _parse_run_name(checkpoint_name: str) -> str:
    """Return the run's name: what stands before the step, without the numbers of epochs and stages; often empty."""
    match = _STEP_IN_NAME.search(checkpoint_name)
    prefix = checkpoint_name[: match.start()] if match else checkpoint_name
    run_name = _COUNTED_PART.sub(r"\1", prefix).strip("-_. ").casefold()
    return "" if run_name in _CHOSEN_CHECKPOINTS else run_name


def _parse_step(checkpoint_name: str) -> int | None:
    match = _STEP_IN_NAME.search(checkpoint_name)
    return int(match[1]) if match else None


def _parse_tokens(checkpoint_name: str) -> float | None:
    match = _TOKENS_IN_NAME.search(checkpoint_name)
    if match is None:
        return None
    unit = _TOKEN_UNITS[(match[2] or "").upper()]
    return float(match[1]) * unit


def _describe_folder(folder: Path, step: int) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"step": step, "path": str(folder)}
    tokens = _parse_tokens(folder.name)
    if tokens is None:
        tokens = _read_tokens_seen(folder)
    if tokens is not None:
        checkpoint["tokens"] = tokens
    return checkpoint


def _read_tokens_seen(folder: Path) -> float | None:
    """Return the tokens seen by the trainer's state; None if it does not say it or cannot be read."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        return float(state.get("num_input_tokens_seen") or 0) or None
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _find_on_hub(repository: str) -> list[dict[str, Any]]:
    """Return the branches and tags of a hub repository that are named after a step."""
    from huggingface_hub import HfApi

    if not hub_answers():
        raise CheckpointsError(
            f"there is no folder {repository}, and the hub does not answer: is it a typo?"
        )
    try:
        refs = HfApi().list_repo_refs(repository)
    except Exception as error:  # the errors of the hub's clients have no common base
        message = f"there is no folder {repository}, and its revisions cannot be read from the hub"
        raise CheckpointsError(f"{message}: {first_line(error)}") from None
    checkpoints = []
    for ref in (*refs.branches, *refs.tags):
        step = _parse_step(ref.name)
        if step is not None:
            tokens = _parse_tokens(ref.name)
            checkpoints.append(
                {"step": step, "path": repository, "revision": ref.name, "tokens": tokens}
            )
    if not checkpoints:
        raise CheckpointsError(
            f"no revision of {repository} is named after a step (step1000, checkpoint-390 …)"
        )
    return checkpoints


def _order_by_step(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return checkpoints in the order of their steps; of several with one step (stages of a run) the first by name."""
    by_name = sorted(
        checkpoints,
        key=lambda checkpoint: str(checkpoint.get("revision") or checkpoint.get("path")),
    )
    checkpoint_by_step: dict[int, dict[str, Any]] = {}
    for checkpoint in by_name:
        checkpoint_by_step.setdefault(checkpoint["step"], checkpoint)
    return [checkpoint_by_step[step] for step in sorted(checkpoint_by_step)]

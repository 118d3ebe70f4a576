"""A study of checkpoints that grows: the next checkpoint makes a new study file, and so a new study in the store.

It replaces the one before it, so that a pretraining run stays one study with all its results and one log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potentia.run.progress import open_store
from potentia.store import absorb_study


def absorb_shorter_studies(location: str, study_key: str) -> None:
    """Let a study take over those of its store that ask for the same, but for fewer checkpoints.

    A checkpoint that the trainer has deleted since stays with its results. Studies that another process runs are left
    alone.
    """
    with open_store(location) as store:
        settings_by_study = {record.key: record.spec for record in store.studies.read()}
        grown = _leave_out_checkpoints(settings_by_study.pop(study_key))
        for earlier_key, settings in settings_by_study.items():
            if _leave_out_checkpoints(settings) != grown:
                continue
            if not store.leases.read(study=earlier_key):
                absorb_study(store, earlier_key, study_key)


def _leave_out_checkpoints(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a study but for the checkpoints of its models."""
    models = []
    for model in settings.get("models", ()):
        models.append({**model, "checkpoints": bool(model.get("checkpoints"))})
    return {**settings, "models": models}

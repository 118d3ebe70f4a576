"""Content keys: a key names everything that can change a score, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from potentia.facts import Kind
from potentia.study.schema import Study
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol

# Raise this when a change of the scoring code can change a score: older cells are then computed anew.
SCORING_VERSION = 1

# Fields that say where and how fast to compute, but not what.
_ELSEWHERE = {"probe", "store", "device", "shards", "token_budget", "name", "data_dir", "keep_adapters"}


def canonical(value: Any) -> Any:
    """Reduce to plain JSON values, so that key order, tuples against lists and 1 against 1.0 do not matter."""
    if isinstance(value, BaseModel):
        return {k: canonical(getattr(value, k)) for k, f in type(value).model_fields.items() if not f.exclude}
    if isinstance(value, dict):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def content_key(**parts: Any) -> str:
    """Hash named parts into a key of 32 hexadecimal digits."""
    text = json.dumps(canonical(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def study_key(study: Study) -> str:
    """Name the study by its content and its name; where it runs does not matter."""
    return content_key(name=study.name, study=study.model_dump(mode="json", exclude=_ELSEWHERE, exclude_defaults=True))


def cell_key(
    study: Study,
    model: str,
    task: str,
    protocol: Protocol,
    *,
    kind: Kind | None,
    shots: int | None = None,
    rates: Sequence[float] | None = None,
    auxiliary: str | None = None,
) -> str:
    """Name everything that can change this cell's score; model, task and auxiliary data by their fingerprints.

    ``kind`` is what decides, before the tokenizer does, whether the model may be asked through a chat template.
    ``shots`` are the examples before a question where they are not the protocol's, ``rates`` a model's own.
    """
    parts: dict[str, Any] = {
        "scoring": SCORING_VERSION,
        "model": model,
        "dtype": study.dtype,
        "chat": study.chat,
        "task": task,
        "protocol": protocol,
        "seed": study.seed,
    }
    if protocol in (TRAIN_BEFORE_TEST, ADJUST):
        parts |= {"tuning": study.tuning, "selection": study.selection, "seeds": study.seeds}
    if shots is not None and shots != protocol.shots:
        parts["shots"] = shots
    if protocol == ADJUST and study.adjust is not None:
        told = {name: getattr(study.adjust, name) for name in ("recipe", "tuning", "at_steps", "every_rate")}
        parts |= {"adjust": told, "adjust_data": auxiliary, "rates": rates}  # of its data the content counts
    if kind is not None and kind.value == "base" and study.chat != "never":
        parts["kind"] = "base"
    return content_key(**parts)


def step_key(key: str, step: int) -> str:
    """Return the key of an adjust cell's score after some optimizer steps."""
    return content_key(cell=key, step=step)


def renamed(key: str, model: str, task: str) -> str:
    """Return the key of the copy of a cell under these names, where the store has it under others."""
    return content_key(cell=key, model=model, task=task)

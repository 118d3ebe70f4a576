"""Content keys: a key names everything that can change a score, and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel


def canonical(value: Any) -> Any:
    """Reduce to plain JSON values, so that key order, tuples against lists and 1 against 1.0 do not matter."""
    if isinstance(value, BaseModel):
        return canonical(value.model_dump())
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

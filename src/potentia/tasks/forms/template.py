"""A field of a definition that a form writes from what the task's own prompt says of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Template:
    """Calls ``write(task, doc)``; the fingerprint holds the writer and the task's own fields that it reads."""

    def __init__(self, write: Any, task: Any, config: Mapping[str, Any]) -> None:
        self._write, self._task = write, task
        own = [config.get(key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice")]
        self.fingerprint_parts = {"template": write, "own": own}

    def __call__(self, doc: Mapping[str, Any]) -> Any:
        """Write the field for one document."""
        return self._write(self._task, doc)

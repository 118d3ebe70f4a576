"""Few-shot examples: lm-eval's sampler, seeded per document, and never the document itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from potentia.errors import TaskError


class Lender:
    """lm-eval's few-shot sampler for one document, with that document's own seed."""

    def __init__(self, inner: Any, task: Any, doc: Mapping[str, Any], seed: int) -> None:
        self.inner, self._task, self._doc, self._seed = inner, task, doc, seed

    def sample(self, n: int, **_: Any) -> Sequence[Mapping[str, Any]]:
        """Draw examples; where the document is among them, draw again from the others."""
        try:
            drawn = self.inner.set_rnd(self._seed).sample(n)
            mine = self._asked(self._doc)
            if any(self._asked(other) == mine for other in drawn):
                others = [other for other in self.inner.df if self._asked(other) != mine]
                drawn = type(self.inner)(others).set_rnd(self._seed).sample(n)
        except (AssertionError, ValueError) as error:
            raise TaskError(
                f"{self._task.config.task} has too few documents for {n} examples in a prompt",
                hint=f"ask for fewer shots: {len(self.inner.df)} documents are at hand",
            ) from error
        return list(drawn)

    def _asked(self, doc: Mapping[str, Any]) -> Any:
        """Return what a document asks; two rows that ask the same are the same item here."""
        if self._task.multiple_input:
            return self._task.doc_to_choice(doc)
        return self._task.doc_to_text(doc) or self._task.doc_to_choice(doc)  # a form may put all into the choices


def stream(seed: int, doc_id: int) -> int:
    """Return one document's own seed: examples depend on the document, not on the order of asking."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{doc_id}".encode()).digest()[:8], "big")

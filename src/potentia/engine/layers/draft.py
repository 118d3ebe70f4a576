"""A draft: one text while a model writes it, with what ends it and, for a sampled text, what chooses its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.engine.models.tokenization import Ids

Floats = npt.NDArray[np.float32]


def draw_uniforms(seed: int, count: int) -> Floats:
    """Return the numbers from 0 to 1 that choose the tokens of one sampled text; they depend on its seed alone."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    return generator.random(count, dtype=np.float32)


@dataclass(slots=True)
class Draft:
    """One text being written: its prompt, what ends it, and the tokens written so far."""

    index: int  # of the request
    prompt: Ids
    stop: tuple[str, ...]
    max_new_tokens: int
    owner: int  # the slot of the adapter that writes it; -1 for none
    lookback: int  # how many of the last tokens may hold a stop text
    options: tuple[tuple[str, Any], ...] = ()  # settings of generation that the request asks for
    temperature: float = 0.0  # 0: the likeliest token is written
    uniforms: Floats | None = None  # (max_new_tokens,) of a sampled text, see draw_uniforms
    written: Ids = field(default_factory=list)

    @property
    def full_length(self) -> int:
        """The tokens of prompt and answer, if the answer is as long as it may be."""
        return len(self.prompt) + self.max_new_tokens

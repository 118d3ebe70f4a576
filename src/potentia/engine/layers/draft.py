"""A text that is being written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.engine.models.tokenization import Ids

Floats = npt.NDArray[np.float32]


def draw_uniforms(seed: int, count: int) -> Floats:
    """Return the numbers that choose the tokens of one sampled text: they depend on its seed alone."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    return generator.random(count, dtype=np.float32)


@dataclass(slots=True)
class Draft:
    """One text being written: its prompt, what ends it, and the tokens written so far."""

    index: int  # of the request
    prompt: Ids
    stop: tuple[str, ...]
    room: int  # how many tokens may be written
    owner: int  # the adapter that writes it
    lookback: int  # how many of the last tokens are read for a stop text
    options: tuple[tuple[str, Any], ...] = ()
    temperature: float = 0.0  # 0: the likeliest token is written
    uniforms: Floats | None = (
        None  # (room,) numbers from 0 to 1 that choose the tokens of a sampled text
    )
    written: Ids = field(default_factory=list)

    @property
    def longest(self) -> int:
        """How many tokens the text has when all its room is used."""
        return len(self.prompt) + self.room

"""A text that is being written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from potentia.engine.models.tokenization import Ids


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
    written: Ids = field(default_factory=list)

    @property
    def longest(self) -> int:
        """How many tokens the text has when all its room is used."""
        return len(self.prompt) + self.room

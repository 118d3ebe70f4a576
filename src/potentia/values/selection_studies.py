"""The names of the studies that one run of ``potentia select`` (a *selection*) stores: one for each of its rounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class SelectionPart(StrEnum):
    """What one study of a selection is for."""

    TRIAL = "trial"  # a short study that measures the pace
    DIRECT = "direct"  # scores all candidates before fine-tuning
    ROUND = "round"  # fine-tunes on a part of the training data
    FINAL = "final"  # fine-tunes on all training data
    EMBEDDINGS = "embeddings"  # fits classifiers on frozen embeddings


_WITHOUT_NUMBER = "|".join(part for part in SelectionPart if part is not SelectionPart.ROUND)
_NAME = re.compile(rf"(.+)-(?:({_WITHOUT_NUMBER})|{SelectionPart.ROUND}-(\d+))")


@dataclass(frozen=True)
class SelectionStudy:
    """One study of a selection, as its name says it: ``tickets-direct``, ``tickets-round-1`` …, ``tickets-final``."""

    selection: str  # the name of the selection
    part: SelectionPart
    round_number: int | None = None  # None except for a round

    @property
    def name(self) -> str:
        """The name of the study."""
        name = f"{self.selection}-{self.part}"
        return name if self.round_number is None else f"{name}-{self.round_number}"

    @classmethod
    def parse(cls, name: str) -> SelectionStudy | None:
        """Return what the name of a study says; None for a study that belongs to no selection."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        selection, part, round_number = match.groups()
        if round_number is not None:
            return cls(selection, SelectionPart.ROUND, int(round_number))
        return cls(selection, SelectionPart(part))

    @property
    def fine_tunes(self) -> bool:
        """Whether the study fine-tunes the candidates."""
        return self.part in (SelectionPart.ROUND, SelectionPart.FINAL)

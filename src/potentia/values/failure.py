"""A cell (model × task × protocol) that could not be computed: it is stored with its reason, never as a score of 0."""

from __future__ import annotations

from dataclasses import dataclass

from potentia.values.protocol import Protocol


@dataclass(frozen=True)
class CellFailure:
    """Why a cell could not be computed, and what to do about it, if that is known."""

    model: str
    task: str
    protocol: Protocol
    reason: str
    hint: str | None = None

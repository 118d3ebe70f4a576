"""A result that could not be computed."""

from __future__ import annotations

from dataclasses import dataclass

from potentia.values.protocol import Protocol


@dataclass(frozen=True)
class CellFailure:
    """A cell that could not be computed, and why."""

    model: str
    task: str
    protocol: Protocol
    reason: str

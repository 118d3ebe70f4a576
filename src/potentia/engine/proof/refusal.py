"""Why a fast path is not used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why a fast path is not used, and whether it may be tried again on other rows.

    A router decides near ties by rounding, so numbers that differ on some rows may agree on others. What is wrong is
    wrong on all of them.
    """

    reason: str
    retry: bool = False

"""How the report writes names and numbers, so that every section writes them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potentia.values.findings import Cell

DASH = "–"


def number(value: Cell, digits: int = 3) -> str:
    """Write one cell of a table as the command line does."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def unbroken(sentence: str) -> str:
    """Keep a number with its sign: 95 %, 0.61 ± 0.02."""
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def percent(share: float) -> str:
    """Write a share: 73 %."""
    return f"{100 * share:.0f}\u00a0%"


def setting(value: object) -> str:
    """Write one field of a recipe: yes or no, 32 instead of 32.0, lists in a row, and default where nothing was set."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(setting, value)) if isinstance(value, (list, tuple)) else str(value)


def count(n: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: 1 model, 61 models."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


def listing(names: Sequence[str], most: int = 3) -> str:
    """Write a list in words: A, B and C; or A, B and 4 others."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) <= most:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    rest = len(names) - most + 1
    return f"{', '.join(names[: most - 1])} and {rest} others"

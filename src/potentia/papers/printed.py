"""The numbers that a document prints, and how one of ours is compared with one of them.

The printed numbers are typed into the file ``printed.json`` of each paper's package.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from potentia.values.findings import Table, TableValue

COMPARISON_COLUMNS = ("where", "number", "ours", "paper", "agrees", "remark")
AGREEMENT_WORDS = {True: "yes", False: "NO", None: "–"}


@cache
def read_printed_numbers(paper: str) -> dict[str, Any]:
    """Return the printed tables and numbers of a paper, by the name of its package."""
    numbers_file = Path(__file__).parent / paper / "printed.json"
    return dict(json.loads(numbers_file.read_text("utf-8")))


@dataclass(frozen=True)
class ReproducedNumber:
    """One number of a document: where it stands, ours, the printed one, whether they agree, and a remark."""

    place: str  # "figure 3", "table 5", "section 4.2"; the names of the fields are those of --json
    what: str
    ours: float
    printed: str
    agrees: bool | None  # None: nothing is printed that could be compared
    remark: str = ""

    def to_row(self) -> tuple[TableValue, ...]:
        """Return the cells of ``COMPARISON_COLUMNS``."""
        agreement = AGREEMENT_WORDS[self.agrees]
        return self.place, self.what, self.ours, self.printed, agreement, self.remark


def compare_number(
    location: str,
    quantity: str,
    our_value: float,
    printed: str,
    *,
    remark: str = "",
    unit_text: str = "",
) -> ReproducedNumber:
    """Compare a number with a printed one at its digits; ``unit_text`` is what is printed behind it."""
    agrees = rounds_to(our_value, printed)
    return ReproducedNumber(location, quantity, our_value, printed + unit_text, agrees, remark)


def compare_claim(
    location: str, quantity: str, our_value: float, claim: str, *, holds: bool, remark: str = ""
) -> ReproducedNumber:
    """Compare a number with what the text says about it in words."""
    return ReproducedNumber(location, quantity, our_value, claim, bool(holds), remark)


def rounds_to(value: float, printed: str) -> bool:
    """Whether a value is the printed one at its number of digits; a half may be rounded either way."""
    if not math.isfinite(value):
        return False
    digits: int = len(printed.partition(".")[2])
    half_a_digit = 0.5 * 10.0**-digits
    return abs(value - float(printed)) <= half_a_digit * (1 + 1e-9)


def tabulate_comparison(title: str, lines: list[ReproducedNumber], note: str = "") -> Table:
    """Return ours beside the printed numbers, a row each."""
    agreeing = sum(line.agrees is True for line in lines)
    differing = sum(line.agrees is False for line in lines)
    count = f"{agreeing} of {agreeing + differing} agree. "
    return Table(title, COMPARISON_COLUMNS, [line.to_row() for line in lines], count + note)

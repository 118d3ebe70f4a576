"""The numbers that a document prints, and how one of ours is compared with one of them.

The printed numbers are typed into the file ``printed.json`` of each paper's package.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from potentia.values.findings import Table, TableValue, ValuedText
from potentia.values.wording import format_count

COMPARISON_COLUMNS = ("where", "number", "paper", "ours", "agrees", "remark")
SHOWN_DIGITS = 3  # decimals of a number of ours, more where the paper prints as many
SMALLEST_SHOWN = 0.0005  # what is smaller and not 0 is bounded
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
    from_facts: bool = False  # computed from the shipped facts of models: no given score takes part
    needs: str = ""  # the package without which the paper's method cannot be followed, and nothing is compared

    def to_row(self) -> tuple[TableValue, ...]:
        """Return the cells of ``COMPARISON_COLUMNS``."""
        agreement = AGREEMENT_WORDS[self.agrees]
        if self.needs:
            agreement = f"{agreement} needs {self.needs}"
        our_number = format_our_number(self.ours, self.printed)
        return self.place, self.what, self.printed or None, our_number, agreement, self.remark


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


def format_our_number(value: float, printed: str) -> TableValue:
    """Write a number of ours so that it can be compared with the printed one: a count without decimals."""
    if not math.isfinite(value):
        return None
    decimals = re.fullmatch(r"-?\d*\.(\d+)", printed)
    if 0 < value < SMALLEST_SHOWN:
        text = "< 0.001"
    elif value == round(value) and decimals is None:
        text = f"{value:,.0f}"
    elif decimals is not None:
        text = f"{value:z,.{max(SHOWN_DIGITS, len(decimals[1]) + 1)}f}"
    else:
        text = f"{value:z,.{SHOWN_DIGITS}f}"
    return ValuedText(text, value=value)


def count_agreeing(lines: Sequence[ReproducedNumber]) -> str:
    """Say how many numbers agree, and how many of them no given score takes part in."""
    compared = [line for line in lines if line.agrees is not None]
    agreeing = sum(line.agrees is True for line in compared)
    sentences = [f"{agreeing} of {len(compared)} agree."]
    of_facts = [line for line in compared if line.from_facts]
    if of_facts:
        agreeing_of_facts = sum(line.agrees is True for line in of_facts)
        sentences = [
            f"{agreeing} of {len(compared)} agree: "
            f"{agreeing - agreeing_of_facts} of {len(compared) - len(of_facts)} from the given scores, "
            f"{agreeing_of_facts} of {len(of_facts)} from the shipped facts of the models, "
            "in which no score takes part."
        ]
    needed = sorted({line.needs for line in lines if line.needs})
    for package in needed:
        count = sum(line.needs == package for line in lines)
        sentences.append(f"{format_count(count, 'more number')} can be compared with {package}.")
    return " ".join(sentences)


def rounds_to(value: float, printed: str) -> bool:
    """Whether a value is the printed one at its number of digits; a half may be rounded either way."""
    if not math.isfinite(value):
        return False
    digits: int = len(printed.partition(".")[2])
    half_a_digit = 0.5 * 10.0**-digits
    return abs(value - float(printed)) <= half_a_digit * (1 + 1e-9)


def tabulate_comparison(title: str, lines: list[ReproducedNumber], note: str = "") -> Table:
    """Return ours beside the printed numbers, a row each."""
    full_note = f"{count_agreeing(lines)} {note}".rstrip()
    return Table(title, COMPARISON_COLUMNS, [line.to_row() for line in lines], full_note)

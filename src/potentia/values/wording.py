"""How numbers and texts are written for people, in the terminal and on pages alike."""

from __future__ import annotations

import re

_NUMBER_FIRST = re.compile(r"[+-]?\d")  # as -0.02, or +0.05 to +0.22


def set_signs(sentence: str) -> str:
    """Return a sentence with typographic signs: −0.006 for -0.006 and 95 % for 95%; 1e-4 stays as it is."""
    with_minus_signs = re.sub(r"(?<![\w.-])-(?=\d)", "−", sentence)
    return re.sub(r"(?<=\d)%(?!\w)", " %", with_minus_signs)


def set_signs_of_cell(cell: str) -> str:
    """Return a table's cell with typographic signs where it is a number or an interval; names keep their hyphens."""
    return set_signs(cell) if _NUMBER_FIRST.match(cell) else cell


def shorten_to_end(text: str, characters: int) -> str:
    """Return the last ``characters`` of a text in one line: the end of a prompt is its question."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    return "… " + line[-characters:]


def format_parameters(billions: float) -> str:
    """Return a number of parameters as names of models have it: 237k, 135M, 1.1B."""
    for factor, unit in ((1.0, "B"), (1e-3, "M")):
        if billions >= factor:
            return f"{billions / factor:.3g}{unit}"
    return f"{billions / 1e-6:.3g}k"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: 1 task, 2 tasks; ``plural`` is for nouns whose plural is not made with an s."""
    counted_noun = noun
    if number != 1:
        counted_noun = plural or f"{noun}s"
    return f"{number:,} {counted_noun}"

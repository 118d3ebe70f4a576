"""Five files as companies bring them, made up: messy tickets, an FAQ, an exam, chat messages, a CSV of old Excel."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import ticket_files

_SPELLINGS = {"billing": ("Billing", "BILLING", "billing "), "shipping": ("shipping", "Shipping")}


def write_messy_tickets(path: Path, n: int = 203, seed: int = 0) -> Path:
    """Write tickets with a byte order mark, blank rows, duplicates, umlauts and labels in several spellings."""
    stream = random.Random(seed)
    rows = []
    for text, label in ticket_files.english(n - 3, seed=seed):
        spelling = stream.choice(_SPELLINGS.get(label, (label,)))
        rows.append((f"{text} Grüße aus Köln" if stream.random() < 0.2 else text, spelling))
    rows += rows[:3]
    rows[10:10] = [("", "")]
    rows += [("", ""), (" ", "")]
    text = io.StringIO()
    csv.writer(text).writerows([("Ticket", "Category"), *rows])
    path.write_text(text.getvalue(), encoding="utf-8-sig")
    return path


def write_faq(path: Path, n: int = 60) -> Path:
    """Write questions with answers of a sentence."""
    rows = [
        (
            f"How do I reach desk {i} of the {floor} floor?",
            f"Call the number {100 + i} and ask for desk {i} on the {floor} floor.",
        )
        for i in range(n // 3)
        for floor in ("first", "second", "third")
    ]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("Question", "Answer"), *rows])
    return path


def write_exam(path: Path, n: int = 60) -> Path:
    """Write questions with options and the letter of the right one."""
    lines = []
    for i in range(n):
        options = [str(i), str(i + 1), str(i + 2), str(i + 3)]
        lines.append({"question": f"What is {i} plus 1?", "options": options, "correct": "B"})
        stream = random.Random(i)
        stream.shuffle(options)
        lines[-1]["correct"] = "ABCD"[options.index(str(i + 1))]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def write_chat(path: Path, n: int = 60) -> Path:
    """Write conversations as an interface for chat writes them."""
    lines = []
    for i in range(n):
        messages = [
            {"role": "system", "content": "You answer in one word."},
            {"role": "user", "content": f"Which number comes after {i}?"},
            {"role": "assistant", "content": str(i + 1)},
        ]
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_windows_tickets(path: Path, n: int = 120) -> Path:
    """Write tickets as an old Excel in Germany saves them: Windows-1252, with semicolons."""
    rows = [(f"{text} Mit freundlichen Grüßen", label) for text, label in ticket_files.english(n)]
    text = io.StringIO()
    csv.writer(text, delimiter=";").writerows([("Text", "Label"), *rows])
    path.write_bytes(text.getvalue().encode("cp1252"))
    return path

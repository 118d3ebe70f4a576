"""Support tickets with a category, made up: as a company would bring them, and in the words that zoo models know."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from pathlib import Path

# Five categories, unequally frequent; several share words (the order, the app), so that a word alone does not decide.
TEMPLATES = {
    "billing": (
        9,
        [
            "I was charged twice for order {n}, please send the money back.",
            "The invoice for {month} shows {n} dollars but we agreed on less.",
            "My card was declined although there is money on it.",
            "Why did the price go up to {n} this {month}?",
            "Please send me a receipt for the payment of {n} dollars.",
        ],
    ),
    "shipping": (
        7,
        [
            "Where is my order {n}? It should have come in {month}.",
            "The parcel came to the wrong house, the driver left it at number {n}.",
            "The tracking page has not moved for {n} days.",
            "Can you send my order to another address before {month}?",
            "The box was open and wet when the driver brought it.",
        ],
    ),
    "login": (
        5,
        [
            "I cannot log in, the app says my password is wrong since {month}.",
            "The code to log in never comes to my phone.",
            "My account is locked after {n} tries.",
            "Please reset my password, I have lost the phone with the app.",
        ],
    ),
    "product_question": (
        4,
        [
            "Does the blue lamp {n} fit a small table?",
            "Is the chair {n} made of wood, and can it stand outside?",
            "Which size should I take if I am between {n} and the next?",
            "Will there be more of the red shoes in {month}?",
        ],
    ),
    "cancel": (
        2,
        [
            "Please stop my plan at the end of {month}.",
            "I want to end my account and have my data removed.",
            "We do not need the service any more, cancel contract {n}.",
        ],
    ),
}
OPENINGS = ("", "Hello, ", "Hi there! ", "Dear team, ", "Good morning. ", "Urgent: ")
ENDINGS = (
    "",
    " Thank you.",
    " Please help.",
    " This is the second time I write.",
    " Best, Ann",
    " I am not happy.",
)
MONTHS = ("January", "March", "May", "June", "August", "October", "December")

Row = tuple[str, str]


def english(n: int, seed: int = 0) -> list[Row]:
    """Make different tickets in English."""
    stream = random.Random(seed)
    names, weights = list(TEMPLATES), [share for share, _ in TEMPLATES.values()]
    made: dict[str, str] = {}
    while len(made) < n:
        label = stream.choices(names, weights)[0]
        text = stream.choice(TEMPLATES[label][1]).format(
            n=stream.randrange(2, 9000), month=stream.choice(MONTHS)
        )
        made.setdefault(stream.choice(OPENINGS) + text + stream.choice(ENDINGS), label)
    return list(made.items())


def of_the_zoo(n: int, seed: int = 0) -> list[Row]:
    """Make different tickets of words that zoo models know: each category has words of its own among others."""
    from potentia.zoo.world import vocabulary

    stream = random.Random(seed)
    words = [word for word in vocabulary() if word.isalpha() and word.islower()]
    random.Random(7).shuffle(words)
    labels = words[:3]
    own = {label: words[10 + 4 * k : 14 + 4 * k] for k, label in enumerate(labels)}
    made: dict[str, str] = {}
    while len(made) < n:
        label = stream.choices(labels, (5, 3, 2))[0]
        text = [*stream.choices(words[40:90], k=4), *stream.choices(own[label], k=2)]
        stream.shuffle(text)
        made.setdefault(" ".join(text), label)
    return list(made.items())


def write(path: Path, rows: Iterable[Row], header: Row = ("text", "category")) -> Path:
    """Write tickets as a CSV."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path

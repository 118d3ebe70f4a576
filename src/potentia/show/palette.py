"""Colours that people with any colour vision can tell apart, and names short enough for an axis."""

from __future__ import annotations

from collections.abc import Sequence

# Okabe and Ito's eight, without black and with the pale yellow last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7F7F7F", "#F0E442")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x")
SEQUENTIAL = "Blues"  # one hue: the more, the darker
SEQUENTIAL_STOPS = ((0, "#f1f5fa"), (0.25, "#c3d8ef"), (0.5, "#86b3de"), (0.75, "#3f82c4"), (1, "#0b4a8f"))
DIVERGING = "PuOr"


def colour(place: int) -> str:
    """Return the colour of the n-th series; past eight they repeat with another dash or marker."""
    return COLOURS[place % len(COLOURS)]


def round_of(place: int) -> int:
    """Return how often the colours were used up before the n-th series: the index of its dash and marker."""
    return place // len(COLOURS)


def by_position(x: Sequence[float], labels: Sequence[str]) -> bool:
    """Say whether labelled points merely stand in a row (x is 1, 2, … n), so that the labels belong on the axis."""
    return len(labels) == len(x) > 0 and all(value == place for place, value in enumerate(x, 1))

"""The code that scores a model, as results record it."""

from __future__ import annotations

from enum import StrEnum


class ScoringRoute(StrEnum):
    """How requests go through a model, from fast to slow; the values are what results record."""

    TREE = "tree"  # beginnings that requests share are computed once
    PADDED = "plain"  # one request a row, rows side by side
    SINGLE = "single"  # one row at a time
    REFERENCE = "reference"  # one request at a time through the model's own forward


class WritingRoute(StrEnum):
    """How texts are written; the values are what results record."""

    SEATS = "continuous loop"  # a queue of texts through a fixed number of seats
    LOOP = "greedy loop"  # batches that shrink as texts end
    GENERATE = "the model's own generate"


class ScoringLayers(StrEnum):
    """Whose layers computed scores; the values are what results record."""

    FUSED = "hand-written layers"
    OWN = "the model's own layers"

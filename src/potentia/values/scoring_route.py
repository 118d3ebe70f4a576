"""Which code scored a model, as results record it: a faster route is taken only where it was checked to be right."""

from __future__ import annotations

from enum import StrEnum


class ScoringRoute(StrEnum):
    """How requests for likelihoods go through a model, from fast to slow; the values are what results record."""

    TREE = "tree"  # requests that begin alike share what is computed of the beginning
    PADDED = "plain"  # several requests at once, each a padded row
    SINGLE = "single"  # one row at a time
    REFERENCE = "reference"  # one request at a time through the model's own forward


class WritingRoute(StrEnum):
    """How a model writes texts, from fast to slow; the values are what results record."""

    SEATS = "seats"  # a fixed number of texts at once; where one ends, the next of the queue begins
    LOOP = "loop"  # batches that shrink as their texts end
    GENERATE = "generate"  # transformers' own ``generate``


class ScoringLayers(StrEnum):
    """Whose layers computed scores; the values are what results record."""

    FUSED = "fused"  # Potentia's
    OWN = "own"  # the model's

    @property
    def label(self) -> str:
        """The layers as people read them."""
        return _LAYER_LABELS[self]


_LAYER_LABELS = {
    ScoringLayers.FUSED: "hand-written layers",
    ScoringLayers.OWN: "the model's own layers",
}

"""Cheap ways to label texts, which a fine-tuned model has to beat to be worth its cost."""

from __future__ import annotations

from enum import StrEnum


class Baseline(StrEnum):
    """A way to label texts without fine-tuning; the values are what results record."""

    MAJORITY = "majority"  # always the most frequent label
    TFIDF = "tfidf"  # logistic regression on words
    EMBEDDINGS = "embeddings"  # logistic regression on the embeddings of a candidate model

    @property
    def label(self) -> str:
        """The baseline as people read it."""
        return _LABELS[self]


_LABELS = {
    Baseline.MAJORITY: "majority class",
    Baseline.TFIDF: "TF-IDF + logistic regression",
    Baseline.EMBEDDINGS: "frozen embeddings + logistic regression",
}

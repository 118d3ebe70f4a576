"""Cheap ways to label texts, or to answer questions, which a fine-tuned model has to beat to be worth its cost."""

from __future__ import annotations

from enum import StrEnum


class Baseline(StrEnum):
    """A way to label texts, or to write answers, without fine-tuning; the values are what results record."""

    MAJORITY = "majority"  # always the most frequent label
    TFIDF = "tfidf"  # logistic regression on words
    EMBEDDINGS = "embeddings"  # logistic regression on the embeddings of a candidate model
    FREQUENT_ANSWER = "frequent_answer"  # always the most frequent answer of the training rows
    NEAREST_ANSWER = (
        "nearest_answer"  # that of the training row whose question is nearest by TF-IDF
    )

    @property
    def label(self) -> str:
        """The baseline as people read it."""
        return _LABELS[self]


WRITTEN_BASELINES = (Baseline.FREQUENT_ANSWER, Baseline.NEAREST_ANSWER)  # of written answers
_LABELS = {
    Baseline.MAJORITY: "majority class",
    Baseline.TFIDF: "TF-IDF + logistic regression",
    Baseline.EMBEDDINGS: "frozen embeddings + logistic regression",
    Baseline.FREQUENT_ANSWER: "always writing the most frequent answer",
    Baseline.NEAREST_ANSWER: "the answer of the most similar question",
}

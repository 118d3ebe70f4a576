"""What to know of a task's data: how much of the test is in train already, and what needs no language model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.tasks import grading
from potentia.tasks.linear_classifier import LinearTextClassifier
from potentia.tasks.loading import normalise_words

if TYPE_CHECKING:
    from potentia.tasks.subtask import TaskDocument
    from potentia.tasks.task import Task

RUN_WORDS = 13
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Training and test documents, and how many of each have a twin on the other side.

    ``exact`` compares the whole prompt without case and punctuation; ``ngram`` asks for a run of thirteen words shared
    by any text columns (the prompt's own wording plays no part). The ids are those of training documents.
    """

    train: int
    test: int
    train_exact: int
    test_exact: int
    train_ngram: int
    test_ngram: int
    train_ids: frozenset[int]  # that overlap in either way

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {key: value for key, value in asdict(self).items() if key != "train_ids"}


def measure_overlap(task: Task) -> Overlap:
    """Count the overlap between a task's train and test splits."""
    train = task.documents("train")
    test = task.documents("test")
    train_questions = [normalise_words(text) for text in task.question_texts(train)]
    test_questions = [normalise_words(text) for text in task.question_texts(test)]
    asked_in_train = set(train_questions) - {""}
    asked_in_test = set(test_questions) - {""}
    exact_ids = []
    for document, question in zip(train, train_questions, strict=True):
        if question in asked_in_test:
            exact_ids.append(document.id)
    runs_by_test_document = [_hash_word_runs(document) for document in test]
    test_runs: set[int] = set().union(*runs_by_test_document)
    shared_runs: set[int] = set()
    ngram_ids = []
    for document in train:
        common = test_runs & _hash_word_runs(document)
        if common:
            shared_runs |= common
            ngram_ids.append(document.id)
    return Overlap(
        train=len(train),
        test=len(test),
        train_exact=len(exact_ids),
        test_exact=sum(question in asked_in_train for question in test_questions),
        train_ngram=len(ngram_ids),
        test_ngram=sum(not runs.isdisjoint(shared_runs) for runs in runs_by_test_document),
        train_ids=frozenset(exact_ids) | frozenset(ngram_ids),
    )


def _hash_word_runs(document: TaskDocument) -> set[int]:
    """Return a hash of every run of thirteen words in every text column."""
    hashes: set[int] = set()
    for text in _walk_texts(document.data):
        words = _WORD.findall(text.lower())
        if len(words) >= RUN_WORDS:
            shifted = [words[start:] for start in range(RUN_WORDS)]
            hashes.update(map(hash, zip(*shifted, strict=False)))
    return hashes


def _walk_texts(value: Any) -> Iterator[str]:
    """Give every text in the columns of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _walk_texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _walk_texts(inner)


# --- what needs no language model ------------------------------------------------------------------------------------

MAJORITY = "majority class"
TFIDF = "TF-IDF + logistic regression"

_baselines: dict[str, dict[str, dict[str, float]]] = {}  # by a task's fingerprint


def compute_baselines(task: Task) -> dict[str, dict[str, float]]:
    """Return accuracy, macro-F1 and balanced accuracy of the most frequent class and of a linear classifier on words.

    Both learn from the training split that the models are tuned on and are tested on the same documents. A tuned model
    that does not beat them is not worth its cost.
    """
    if task.fingerprint in _baselines:
        return _baselines[task.fingerprint]
    train = task.documents("train")
    test = task.documents("test")
    if not train or not test:
        return {}
    gold = _read_labels(test)
    train_labels = _read_labels(train)
    most_frequent = Counter(train_labels).most_common(1)[0][0]
    predictions = {MAJORITY: [most_frequent] * len(test)}
    if len(set(train_labels)) > 1:
        predictions[TFIDF] = _predict_with_linear_classifier(task)
    baselines = {name: _score_labels(gold, labels) for name, labels in predictions.items()}
    _baselines[task.fingerprint] = baselines
    return baselines


def _read_labels(documents: Sequence[TaskDocument]) -> list[int]:
    return [int(document["label"]) for document in documents]


def _score_labels(gold: list[int], predicted: list[int]) -> dict[str, float]:
    """Return accuracy with its standard error, and the metrics of labelled texts."""
    pairs = [list(pair) for pair in zip(gold, predicted, strict=True)]
    matches = [float(right == answer) for right, answer in pairs]
    value, error = grading.aggregate_items(np.mean, matches)
    scores = {"acc": value, "stderr": error}
    for name, compute in grading.LABEL_METRICS.items():
        scores[name] = compute(pairs)
    return scores


def _predict_with_linear_classifier(task: Task) -> list[int]:
    """Teach a linear classifier on words the training split, and let it answer the test."""
    classifier = fit_linear_classifier(task)
    return classifier.predict(task.question_texts(task.documents("test")))


def fit_linear_classifier(task: Task, *, on_all: bool = False) -> LinearTextClassifier:
    """Return a linear classifier on words of the training split; with ``on_all`` of all documents, to be used."""
    train = task.documents("train")
    validation = task.documents("validation")
    validation_pair = None
    if validation:
        validation_pair = (task.question_texts(validation), _read_labels(validation))
    classifier = LinearTextClassifier.fit(
        task.question_texts(train), _read_labels(train), validation=validation_pair
    )
    if not on_all:
        return classifier
    everything = [*train, *validation, *task.documents("test")]
    return LinearTextClassifier.fit(
        task.question_texts(everything), _read_labels(everything), strength=classifier.strength
    )

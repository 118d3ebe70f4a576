"""What to know of a task's data: how much of the test is in train already, and what needs no language model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.tasks import grading
from potentia.tasks.loading import normalise_words

if TYPE_CHECKING:
    from potentia.tasks.subtask import TaskDocument
    from potentia.tasks.task import Task

N = 13  # words of a run
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
    train, test = task.documents("train"), task.documents("test")
    asked, tested = (
        [normalise_words(text) for text in task.question_texts(docs)] for docs in (train, test)
    )
    in_test, in_train = set(tested) - {""}, set(asked) - {""}
    exact = [doc.id for doc, text in zip(train, asked, strict=True) if text in in_test]
    of_test = [_runs(doc) for doc in test]
    known, shared, alike = set[int]().union(*of_test), set[int](), list[int]()
    for doc in train:
        if hit := known & _runs(doc):
            shared |= hit
            alike.append(doc.id)
    return Overlap(
        train=len(train),
        test=len(test),
        train_exact=len(exact),
        test_exact=sum(text in in_train for text in tested),
        train_ngram=len(alike),
        test_ngram=sum(not runs.isdisjoint(shared) for runs in of_test),
        train_ids=frozenset(exact) | frozenset(alike),
    )


def _runs(doc: TaskDocument) -> set[int]:
    """Return a hash of every run of thirteen words in every text column."""
    found: set[int] = set()
    for text in _texts(doc.data):
        words = _WORD.findall(text.lower())
        if len(words) >= N:
            found.update(map(hash, zip(*(words[start:] for start in range(N)), strict=False)))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


MAJORITY, TFIDF = "majority class", "TF-IDF + logistic regression"
STRENGTHS = (
    1.0,
    10.0,
    100.0,
)  # inverse regularisation of the linear classifier; validation chooses
MANY = 20_000  # training documents beyond which the second of them is taken

_known: dict[str, dict[str, dict[str, float]]] = {}  # by a task's fingerprint


def compute_baselines(task: Task) -> dict[str, dict[str, float]]:
    """Return accuracy, macro-F1 and balanced accuracy of the most frequent class and of a linear classifier on words.

    Both learn from the training split that the models are tuned on and are tested on the same documents. A tuned model
    that does not beat them is not worth its cost.
    """
    if task.fingerprint not in _known:
        train, test = task.documents("train"), task.documents("test")
        if not train or not test:
            return {}
        gold, learned = _labels(test), _labels(train)
        predicted = {MAJORITY: [Counter(learned).most_common(1)[0][0]] * len(test)}
        if len(set(learned)) > 1:
            predicted[TFIDF] = _linear(task)
        _known[task.fingerprint] = {name: _scored(gold, given) for name, given in predicted.items()}
    return _known[task.fingerprint]


def _labels(docs: Sequence[TaskDocument]) -> list[int]:
    return [int(doc["label"]) for doc in docs]


def _scored(gold: list[int], predicted: list[int]) -> dict[str, float]:
    pairs = [list(pair) for pair in zip(gold, predicted, strict=True)]
    right = [float(a == b) for a, b in pairs]
    value, error = grading.aggregate_items(np.mean, right)
    return {
        "acc": value,
        "stderr": error,
        **{name: of(pairs) for name, of in grading.LABEL_METRICS.items()},
    }


def _linear(task: Task) -> list[int]:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, validation, test = (task.documents(split) for split in ("train", "validation", "test"))
    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, max_features=200_000, token_pattern=r"\w+|[^\w\s]"
    )
    learned: Any = words.fit_transform(task.question_texts(train))
    held: Any = words.transform(task.question_texts(validation)) if validation else None
    best: tuple[float, Any] = (-1.0, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for strength in STRENGTHS if len(train) <= MANY and validation else STRENGTHS[1:2]:
            model = LogisticRegression(C=strength, max_iter=500).fit(learned, _labels(train))
            value = float(model.score(held, _labels(validation))) if validation else 0.0
            best = max(best, (value, model), key=lambda one: one[0])
    return [int(label) for label in best[1].predict(words.transform(task.question_texts(test)))]

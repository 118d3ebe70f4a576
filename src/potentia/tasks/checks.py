"""Two checks of a task's data that need no language model.

``measure_overlap``: how much of the test is in train already. ``compute_baselines``: what two cheap methods score on
labelled texts, the most frequent class and a linear classifier on words. A tuned model should beat both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from potentia.tasks import grading
from potentia.tasks.clusters import normalise_words
from potentia.tasks.free_text import FREE_TEXT_METRICS, grade_free_text
from potentia.tasks.linear_classifier import LinearTextClassifier, find_nearest_texts
from potentia.values.baselines import Baseline

if TYPE_CHECKING:
    from potentia.tasks.subtask import TaskDocument
    from potentia.tasks.task import Task

NGRAM_WORDS = 13  # in a row, by which documents are found to repeat each other
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many training and test documents there are, and how many of each are repeated on the other side.

    A document is repeated exactly if another asks the same and offers the same choices, in any order, without case and
    punctuation. The question alone is enough where neither split asks it with different choices: a question that many
    of a task's examples share tells nothing. A document is repeated as an n-gram if any text column shares thirteen
    words in a row with any of another document; the prompt's own wording plays no part, nor do words that every test
    document has.
    """

    train: int
    test: int
    train_exact: int
    test_exact: int
    train_ngram: int
    test_ngram: int
    train_ids: frozenset[int]  # of the training documents that are repeated in either way

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {
            field_name: field_value
            for field_name, field_value in asdict(self).items()
            if field_name != "train_ids"
        }


def measure_overlap(task: Task) -> Overlap:
    """Return how many documents of a task's train and test splits repeat each other."""
    train_documents = task.documents("train")
    test_documents = task.documents("test")
    train_texts = _identify_documents(task, train_documents)
    test_texts = _identify_documents(task, test_documents)
    shared_texts = (set(train_texts) & set(test_texts)) - {_ShownText("", "")}
    shared_questions = _find_telling_questions(train_texts) & _find_telling_questions(test_texts)
    is_train_repeated = [
        text in shared_texts or text.question in shared_questions for text in train_texts
    ]
    is_test_repeated = [
        text in shared_texts or text.question in shared_questions for text in test_texts
    ]
    exact_ids = []
    for document, is_repeated in zip(train_documents, is_train_repeated, strict=True):
        if is_repeated:
            exact_ids.append(document.id)
    ngrams_by_test_document = [_hash_ngrams(document) for document in test_documents]
    test_ngrams: set[int] = set().union(*ngrams_by_test_document)
    if len(test_documents) > 1:
        wording = set(ngrams_by_test_document[0])
        wording.intersection_update(*ngrams_by_test_document[1:])
        test_ngrams -= wording
    shared_ngrams: set[int] = set()
    ngram_ids = []
    for document in train_documents:
        common = test_ngrams & _hash_ngrams(document)
        if common:
            shared_ngrams |= common
            ngram_ids.append(document.id)
    return Overlap(
        train=len(train_documents),
        test=len(test_documents),
        train_exact=len(exact_ids),
        test_exact=sum(is_test_repeated),
        train_ngram=len(ngram_ids),
        test_ngram=sum(not ngrams.isdisjoint(shared_ngrams) for ngrams in ngrams_by_test_document),
        train_ids=frozenset(exact_ids) | frozenset(ngram_ids),
    )


class _ShownText(NamedTuple):
    """What is shown of a document, without case and punctuation."""

    question: str
    choices: str  # sorted


def _identify_documents(task: Task, documents: Sequence[TaskDocument]) -> list[_ShownText]:
    """Return what is shown of each document."""
    texts = []
    for question, *choices in task.identifying_texts(documents):
        sorted_choices = normalise_words("\n".join(sorted(choices)))
        texts.append(_ShownText(normalise_words(question), sorted_choices))
    return texts


def _find_telling_questions(texts: Sequence[_ShownText]) -> set[str]:
    """Return the questions that stand for one document: no other of the split asks them with other choices."""
    choices_by_question: dict[str, set[str]] = {}
    for text in texts:
        choices_by_question.setdefault(text.question, set()).add(text.choices)
    return {question for question, choices in choices_by_question.items() if len(choices) == 1} - {
        ""
    }


def _hash_ngrams(document: TaskDocument) -> set[int]:
    """Return a hash of every n-gram of words (``NGRAM_WORDS`` in a row) in every text column."""
    hashes: set[int] = set()
    for text in _walk_texts(document.data):
        words = _WORD.findall(text.lower())
        if len(words) >= NGRAM_WORDS:
            shifted_words = [words[start:] for start in range(NGRAM_WORDS)]
            hashes.update(map(hash, zip(*shifted_words, strict=False)))
    return hashes


def _walk_texts(value: object) -> Iterator[str]:
    """Yield every text in the columns of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _walk_texts(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _walk_texts(member)


# --- what needs no language model ------------------------------------------------------------------------------------

BaselineScores = dict[Baseline, dict[str, float]]  # by metric

_baselines: dict[str, BaselineScores] = {}  # by a task's fingerprint


def compute_baselines(task: Task) -> BaselineScores:
    """Return the scores of the most frequent class and of a linear classifier on words; empty without train or test.

    The classifier learns from the training split that the models are tuned on, and is tested on their test split. The
    most frequent class is that of all documents: the most frequent one of a fold's training split is rarer in its test,
    so that it would score below chance.
    """
    if task.fingerprint in _baselines:
        return _baselines[task.fingerprint]
    train = task.documents("train")
    test_documents = task.documents("test")
    if not train or not test_documents:
        return {}
    gold = _read_labels(test_documents)
    train_labels = _read_labels(train)
    label_counts = Counter([*train_labels, *_read_labels(task.documents("validation")), *gold])
    most_frequent = max(sorted(label_counts), key=label_counts.__getitem__)
    predictions = {Baseline.MAJORITY: [most_frequent] * len(test_documents)}
    if len(set(train_labels)) > 1:
        predictions[Baseline.TFIDF] = _predict_with_linear_classifier(task)
    baselines = {baseline: _score_labels(gold, labels) for baseline, labels in predictions.items()}
    _baselines[task.fingerprint] = baselines
    return baselines


def compute_written_baselines(task: Task) -> BaselineScores:
    """Return the scores of written answers that need no model, by every metric of free texts with its error.

    They are the most frequent answer of the training rows, and that of the training row whose question is nearest.
    """
    if task.fingerprint in _baselines:
        return _baselines[task.fingerprint]
    train = task.documents("train")
    test_documents = task.documents("test")
    if not train or not test_documents:
        return {}
    train_answers = [str(document["completion"]).strip() for document in train]
    most_frequent = Counter(train_answers).most_common(1)[0][0]
    nearest_rows = find_nearest_texts(
        task.question_texts(train), task.question_texts(test_documents)
    )
    answers = {
        Baseline.FREQUENT_ANSWER: [most_frequent] * len(test_documents),
        Baseline.NEAREST_ANSWER: [train_answers[row] for row in nearest_rows],
    }
    baselines: BaselineScores = {}
    for baseline, written in answers.items():
        grades = [
            grade_free_text(document.data, [answer])
            for document, answer in zip(test_documents, written, strict=True)
        ]
        scores: dict[str, float] = {}
        for metric in FREE_TEXT_METRICS:
            values = [grade[metric] for grade in grades]
            scores[metric], scores[f"{metric}_stderr"] = grading.aggregate_items(np.mean, values)
        baselines[baseline] = scores
    _baselines[task.fingerprint] = baselines
    return baselines


def _read_labels(documents: Sequence[TaskDocument]) -> list[int]:
    return [int(document["label"]) for document in documents]


def _score_labels(gold: list[int], predicted: list[int]) -> dict[str, float]:
    """Return accuracy, its standard error (``stderr``), macro-F1 and balanced accuracy."""
    pairs = [list(pair) for pair in zip(gold, predicted, strict=True)]
    matches = [float(right == answer) for right, answer in pairs]
    accuracy, error = grading.aggregate_items(np.mean, matches)
    scores = {"acc": accuracy, "stderr": error}
    for metric_name, compute in grading.LABEL_METRICS.items():
        scores[metric_name] = compute(pairs)
    return scores


def _predict_with_linear_classifier(task: Task) -> list[int]:
    """Return what a linear classifier on words, fitted on the training split, answers on the test."""
    classifier = fit_linear_classifier(task)
    return classifier.predict(task.question_texts(task.documents("test")))


def fit_linear_classifier(task: Task, *, on_all: bool = False) -> LinearTextClassifier:
    """Return a linear classifier on words, fitted on the training split; ``on_all`` fits it on all splits, for use.

    Its regularisation is chosen on the validation split in both cases.
    """
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
    all_documents = [*train, *validation, *task.documents("test")]
    return LinearTextClassifier.fit(
        task.question_texts(all_documents),
        _read_labels(all_documents),
        inverse_regularization=classifier.inverse_regularization,
    )

"""What labelled texts need no language model for: the most frequent class, and a linear classifier on words.

Both learn from the training split that the models are tuned on and are tested on the same documents. A tuned model
that does not beat them is not worth its cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from potentia.tasks import metrics

if TYPE_CHECKING:
    from potentia.tasks.task import Doc, Task

MAJORITY, TFIDF = "majority class", "TF-IDF + logistic regression"
STRENGTHS = (1.0, 10.0, 100.0)  # inverse regularisation of the linear classifier; validation chooses
MANY = 20_000  # training documents beyond which the first of them is not searched for

_known: dict[str, dict[str, dict[str, float]]] = {}  # by a task's fingerprint


def baselines(task: Task) -> dict[str, dict[str, float]]:
    """Return accuracy, macro-F1 and balanced accuracy of the baselines on a classification's test split."""
    if task.fingerprint not in _known:
        train, validation, test = (task.documents(split) for split in ("train", "validation", "test"))
        if not train or not test:
            return {}
        gold = _labels(test)
        common = Counter(_labels(train)).most_common(1)[0][0]
        predicted = {MAJORITY: [common] * len(test)}
        if len(set(_labels(train))) > 1:
            predicted[TFIDF] = _linear(task, train, validation, test)
        _known[task.fingerprint] = {name: _scored(gold, given) for name, given in predicted.items()}
    return _known[task.fingerprint]


def _labels(docs: Sequence[Doc]) -> list[int]:
    return [int(doc["label"]) for doc in docs]


def _scored(gold: list[int], predicted: list[int]) -> dict[str, float]:
    pairs = [list(pair) for pair in zip(gold, predicted, strict=True)]
    right = [float(a == b) for a, b in pairs]
    value, stderr = metrics.aggregate(None, right)
    return {"acc": value, "stderr": stderr, **{name: of(pairs) for name, of in metrics.OF_LABELS.items()}}


def _linear(task: Task, train: Sequence[Doc], validation: Sequence[Doc], test: Sequence[Doc]) -> list[int]:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=200_000, token_pattern=r"\w+|[^\w\s]")
    learned: Any = words.fit_transform(task.asked(train))
    held: Any = words.transform(task.asked(validation)) if validation else None
    best: tuple[float, Any] = (-1.0, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for strength in STRENGTHS if len(train) <= MANY and validation else STRENGTHS[1:2]:
            model = LogisticRegression(C=strength, max_iter=500).fit(learned, _labels(train))
            value = float(model.score(held, _labels(validation))) if validation else 0.0
            best = max(best, (value, model), key=lambda one: one[0])
    return [int(label) for label in best[1].predict(words.transform(task.asked(test)))]

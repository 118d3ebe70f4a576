"""A linear classifier on words and pairs of words, as plain arrays: taught in seconds, kept in a file without code.

TF-IDF features and logistic regression are scikit-learn's; what they learned is a list of words and a few arrays, so a
file of it from anyone is data.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potentia.errors import InputError
from potentia.files import LARGEST_DATA, check_plain_file
from potentia.values.scores import Floats

STRENGTHS = (1.0, 10.0, 100.0)  # inverse regularisation; validation chooses
USUAL_STRENGTH = 10.0  # where there is no validation, or too much to try them all
MANY_EXAMPLES = 20_000
MOST_FEATURES = 200_000
_TOKEN = r"\w+|[^\w\s]"


@dataclass(frozen=True)
class LinearTextClassifier:
    """A fitted classifier: the words it knows with their weights, and a row of coefficients for each class."""

    words: tuple[str, ...]
    idf: Floats  # (words,)
    coefficients: Floats  # (classes, words)
    intercepts: Floats  # (classes,)
    classes: tuple[int, ...]  # numbers of the labels
    strength: float

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: Sequence[int],
        *,
        validation: tuple[Sequence[str], Sequence[int]] | None = None,
        strength: float | None = None,
    ) -> LinearTextClassifier:
        """Fit the classifier; validation chooses the regularisation, where none is given."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        vectorizer = _make_vectorizer()
        features = vectorizer.fit_transform(texts)
        strengths = [USUAL_STRENGTH if strength is None else strength]
        validation_features: Any = None
        if strength is None and validation is not None and len(texts) <= MANY_EXAMPLES:
            strengths = list(STRENGTHS)
            validation_features = vectorizer.transform(validation[0])
        best_accuracy = -1.0
        best_model: Any = None
        best_strength = strengths[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for candidate in strengths:
                model = LogisticRegression(C=candidate, max_iter=500)
                model.fit(features, list(labels))
                accuracy = 0.0
                if validation is not None and validation_features is not None:
                    accuracy = float(model.score(validation_features, list(validation[1])))
                if accuracy > best_accuracy:
                    best_accuracy = accuracy
                    best_model = model
                    best_strength = candidate
        words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__)
        return cls(
            words=tuple(words),
            idf=np.asarray(vectorizer.idf_, dtype=np.float64),
            coefficients=np.asarray(best_model.coef_, dtype=np.float64),
            intercepts=np.asarray(best_model.intercept_, dtype=np.float64),
            classes=tuple(int(label) for label in best_model.classes_),
            strength=best_strength,
        )

    def log_probabilities(self, texts: Sequence[str]) -> Floats:
        """Return the log-probability of each class for each text, (texts, classes)."""
        vectorizer = _make_vectorizer(vocabulary={word: i for i, word in enumerate(self.words)})
        vectorizer.idf_ = self.idf
        features = vectorizer.transform(texts)
        scores = np.asarray(features @ self.coefficients.T + self.intercepts)
        if len(self.classes) == 2:  # one row of coefficients for the second class
            scores = np.column_stack([np.zeros(len(texts)), scores[:, 0]])
        shifted = scores - scores.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    def predict(self, texts: Sequence[str]) -> list[int]:
        """Return the class of each text."""
        best = self.log_probabilities(texts).argmax(axis=1)
        return [self.classes[int(place)] for place in best]

    def save(self, file: Path) -> None:
        """Write the classifier as arrays."""
        with file.open("wb") as stream:
            np.savez_compressed(
                stream,
                words=np.array(self.words, dtype=np.str_),
                idf=self.idf.astype(np.float32),
                coefficients=self.coefficients.astype(np.float32),
                intercepts=self.intercepts.astype(np.float32),
                classes=np.array(self.classes, dtype=np.int64),
                strength=np.array(self.strength),
            )

    @classmethod
    def load(cls, file: Path) -> LinearTextClassifier:
        """Read a classifier; whatever is wrong with the file is told."""
        check_plain_file(file, LARGEST_DATA)
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked_bytes = sum(entry.file_size for entry in archive.infolist())
            if unpacked_bytes > LARGEST_DATA:
                raise ValueError("too large when unpacked")
            with np.load(file, allow_pickle=False) as arrays:
                classifier = cls(
                    words=tuple(str(word) for word in arrays["words"]),
                    idf=np.asarray(arrays["idf"], dtype=np.float64),
                    coefficients=np.asarray(arrays["coefficients"], dtype=np.float64),
                    intercepts=np.asarray(arrays["intercepts"], dtype=np.float64),
                    classes=tuple(int(label) for label in arrays["classes"]),
                    strength=float(arrays["strength"]),
                )
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(
                "this is no classifier that Potentia wrote",
                where=str(file),
                hint="run potentia select again",
            ) from error
        rows = 1 if len(classifier.classes) == 2 else len(classifier.classes)
        if classifier.coefficients.shape != (rows, len(classifier.words)):
            raise InputError("the arrays of the classifier do not fit together", where=str(file))
        return classifier


def _make_vectorizer(vocabulary: dict[str, int] | None = None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        max_features=MOST_FEATURES,
        token_pattern=_TOKEN,
        vocabulary=vocabulary,
    )

"""A linear classifier of texts on words and pairs of words: fitted in seconds, stored in a file that runs no code.

It is scikit-learn's logistic regression on TF-IDF features. What they learn is a list of words and a few arrays, and
only those are stored: a file from anyone is read as data, without pickle.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.errors import InputError
from potentia.files import LARGEST_DATA, check_plain_file
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

INVERSE_REGULARIZATIONS = (1.0, 10.0, 100.0)  # scikit-learn's C; validation chooses one
USUAL_INVERSE_REGULARIZATION = 10.0  # without validation, or with too many texts to try them all
MAX_TEXTS_TO_TRY_ALL = 20_000
MAX_FEATURES = 200_000
QUERIES_AT_ONCE = 500  # texts that are compared with all others at a time
# The arrays of a file; ``strength`` is the inverse regularisation, under the name that it had in the first files.
ARRAY_NAMES = ("words", "idf", "coefficients", "intercepts", "classes", "strength")
_TOKEN = r"\w+|[^\w\s]"


@dataclass(frozen=True)
class LinearTextClassifier:
    """A fitted classifier: its words with their weights, and a row of coefficients for each class.

    Of two classes there is one row, for the second class, as in scikit-learn.
    """

    words: tuple[str, ...]
    idf: Floats  # (words,): how rare each word is
    coefficients: Floats  # (classes, words)
    intercepts: Floats  # (classes,)
    classes: tuple[int, ...]  # the numbers of the labels
    inverse_regularization: float

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: Sequence[int],
        *,
        validation: tuple[Sequence[str], Sequence[int]] | None = None,
        inverse_regularization: float | None = None,
    ) -> LinearTextClassifier:
        """Return a classifier fitted on labelled texts; validation chooses its regularisation, if none is given."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        vectorizer = _make_vectorizer()
        features = vectorizer.fit_transform(texts)
        candidates: Sequence[float] = (USUAL_INVERSE_REGULARIZATION,)
        validation_features: csr_matrix | None = None
        if inverse_regularization is not None:
            candidates = (inverse_regularization,)
        elif validation is not None and len(texts) <= MAX_TEXTS_TO_TRY_ALL:
            candidates = INVERSE_REGULARIZATIONS
            validation_features = vectorizer.transform(validation[0])
        best_accuracy = -1.0
        best_model: LogisticRegression | None = None
        best_inverse_regularization = candidates[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for candidate in candidates:
                model = LogisticRegression(C=candidate, max_iter=500)
                model.fit(features, list(labels))
                accuracy = 0.0
                if validation is not None and validation_features is not None:
                    accuracy = float(model.score(validation_features, list(validation[1])))
                if accuracy > best_accuracy:
                    best_accuracy = accuracy
                    best_model = model
                    best_inverse_regularization = candidate
        assert best_model is not None  # at least one was tried
        words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__)
        return cls(
            words=tuple(words),
            idf=np.asarray(vectorizer.idf_, dtype=np.float64),
            coefficients=np.asarray(best_model.coef_, dtype=np.float64),
            intercepts=np.asarray(best_model.intercept_, dtype=np.float64),
            classes=tuple(int(label) for label in best_model.classes_),
            inverse_regularization=best_inverse_regularization,
        )

    def log_probabilities(self, texts: Sequence[str]) -> Floats:
        """Return the log-probability of each class for each text, of shape (texts, classes)."""
        vectorizer = _make_vectorizer(
            vocabulary={word: position for position, word in enumerate(self.words)}
        )
        vectorizer.idf_ = self.idf
        features = vectorizer.transform(texts)
        scores = np.asarray(features @ self.coefficients.T + self.intercepts)
        return normalise_scores(scores, self.classes)

    def predict(self, texts: Sequence[str]) -> list[int]:
        """Return the class of each text."""
        best_positions = self.log_probabilities(texts).argmax(axis=1)
        return [self.classes[int(position)] for position in best_positions]

    def save(self, target_file: Path) -> None:
        """Write the classifier to a file as the arrays of ``ARRAY_NAMES``."""
        with target_file.open("wb") as stream:
            np.savez_compressed(
                stream,
                words=np.array(self.words, dtype=np.str_),
                idf=self.idf.astype(np.float32),
                coefficients=self.coefficients.astype(np.float32),
                intercepts=self.intercepts.astype(np.float32),
                classes=np.array(self.classes, dtype=np.int64),
                strength=np.array(self.inverse_regularization),
            )

    @classmethod
    def load(cls, source_file: Path) -> LinearTextClassifier:
        """Read a classifier from a file of ``save``; raise an ``InputError`` for any other file."""
        arrays = read_arrays(source_file, ARRAY_NAMES)
        classifier = cls(
            words=tuple(str(word) for word in arrays["words"]),
            idf=np.asarray(arrays["idf"], dtype=np.float64),
            coefficients=np.asarray(arrays["coefficients"], dtype=np.float64),
            intercepts=np.asarray(arrays["intercepts"], dtype=np.float64),
            classes=tuple(int(label) for label in arrays["classes"]),
            inverse_regularization=float(arrays["strength"]),
        )
        row_count = count_coefficient_rows(classifier.classes)
        if classifier.coefficients.shape != (row_count, len(classifier.words)):
            raise InputError(
                "the arrays of the classifier do not fit together", where=str(source_file)
            )
        return classifier


def find_nearest_texts(texts: Sequence[str], queries: Sequence[str]) -> list[int]:
    """Return for each query the position of the text that is nearest by TF-IDF, the first of equally near ones."""
    vectorizer = _make_vectorizer()
    features = vectorizer.fit_transform(texts)
    nearest: list[int] = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        similarities = vectorizer.transform(queries[start : start + QUERIES_AT_ONCE]) @ features.T
        nearest += np.asarray(similarities.toarray()).argmax(axis=1).tolist()
    return nearest


def count_coefficient_rows(classes: Sequence[int]) -> int:
    """Return how many rows of coefficients scikit-learn's logistic regression has for these classes."""
    return 1 if len(classes) == 2 else len(classes)


def normalise_scores(scores: Floats, classes: Sequence[int]) -> Floats:
    """Return the log-probability of each class for each text, from the scores of a linear classifier (log-softmax).

    Of two classes scikit-learn scores only the second; the first has the score 0 then.
    """
    if len(classes) == 2:
        scores = np.column_stack([np.zeros(len(scores)), scores[:, 0]])
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def read_arrays(file: Path, array_names: Sequence[str]) -> dict[str, Any]:
    """Read arrays from a file that anyone may have made: no code is run, and its unpacked size is bounded."""
    check_plain_file(file, LARGEST_DATA)
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked_bytes = sum(entry.file_size for entry in archive.infolist())
        if unpacked_bytes > LARGEST_DATA:
            raise ValueError("too large when unpacked")
        with np.load(file, allow_pickle=False) as archived_arrays:
            arrays = {array_name: archived_arrays[array_name] for array_name in array_names}
        for array_name, array in arrays.items():
            if array_name != "words":
                array.astype(np.float64)  # raises if it holds no numbers
        return arrays
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            "this is not a classifier that Potentia wrote",
            where=str(file),
            hint="run potentia select again",
        ) from error


def _make_vectorizer(vocabulary: dict[str, int] | None = None) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        max_features=MAX_FEATURES,
        token_pattern=_TOKEN,
        vocabulary=vocabulary,
    )

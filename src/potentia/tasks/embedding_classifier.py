"""Logistic regression on the embeddings that a frozen model makes of texts, stored in a file that runs no code.

The fit is scikit-learn's. The scaling of the features is folded into the coefficients, so that one matrix is all that
is stored. Which model makes the embeddings is said in the adapter note beside the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from potentia.errors import InputError
from potentia.tasks.linear_classifier import count_coefficient_rows, normalise_scores, read_arrays
from potentia.values.scores import Floats

INVERSE_REGULARIZATIONS = (0.1, 1.0, 10.0)  # scikit-learn's C; validation chooses one
USUAL_INVERSE_REGULARIZATION = 1.0  # without validation
MIN_DEVIATION = (
    1e-6  # features are divided by their standard deviation, or by this if it is smaller
)


@dataclass(frozen=True)
class EmbeddingClassifier:
    """A fitted classifier: for each class a row of coefficients over the features; of two classes, for the second."""

    coefficients: Floats  # (classes, features)
    intercepts: Floats  # (classes,)
    classes: tuple[int, ...]  # numbers of the labels
    inverse_regularization: float | None = None  # of the fit; not stored in a file

    @classmethod
    def fit(
        cls,
        features: Floats,
        labels: Sequence[int],
        *,
        validation: tuple[Floats, Sequence[int]] | None = None,
        inverse_regularization: float | None = None,
    ) -> EmbeddingClassifier:
        """Return a classifier fitted on labelled features; validation chooses its regularisation, if none is given."""
        means = features.mean(axis=0)
        deviations = np.maximum(features.std(axis=0), MIN_DEVIATION)
        scaled_features = (features - means) / deviations
        candidates: Sequence[float] = (USUAL_INVERSE_REGULARIZATION,)
        if inverse_regularization is not None:
            candidates = (inverse_regularization,)
        elif validation is not None:
            candidates = INVERSE_REGULARIZATIONS
        best: EmbeddingClassifier | None = None
        best_accuracy = -1.0
        for candidate in candidates:
            classifier = cls._fit_scaled(scaled_features, labels, candidate, means, deviations)
            accuracy = 0.0
            if validation is not None:
                predicted = classifier.predict(validation[0])
                accuracy = float(np.mean(np.array(predicted) == np.array(validation[1])))
            if accuracy > best_accuracy:
                best_accuracy = accuracy
                best = classifier
        assert best is not None  # at least one was tried
        return best

    @classmethod
    def _fit_scaled(
        cls,
        scaled_features: Floats,
        labels: Sequence[int],
        inverse_regularization: float,
        means: Floats,
        deviations: Floats,
    ) -> EmbeddingClassifier:
        """Fit on features of mean 0 and deviation 1; return the same classifier for features that are not scaled."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=inverse_regularization, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(scaled_features, list(labels))
        coefficients = np.asarray(model.coef_, dtype=np.float64) / deviations
        intercepts = np.asarray(model.intercept_, dtype=np.float64) - coefficients @ means
        classes = tuple(int(label) for label in model.classes_)
        return cls(coefficients, intercepts, classes, inverse_regularization)

    def log_probabilities(self, features: Floats) -> Floats:
        """Return the log-probability of each class for each text, of shape (texts, classes)."""
        if features.shape[1] != self.coefficients.shape[1]:
            raise InputError(
                f"the classifier was fitted on {self.coefficients.shape[1]} features of a text,"
                f" this model gives {features.shape[1]}",
                hint="give the model that it was fitted on: --base FOLDER",
            )
        return normalise_scores(features @ self.coefficients.T + self.intercepts, self.classes)

    def predict(self, features: Floats) -> list[int]:
        """Return the class of each text."""
        best_positions = self.log_probabilities(features).argmax(axis=1)
        return [self.classes[int(position)] for position in best_positions]

    def save(self, file: Path) -> None:
        """Write the classifier to a file, as arrays."""
        with file.open("wb") as stream:
            np.savez_compressed(
                stream,
                coefficients=self.coefficients,
                intercepts=self.intercepts,
                classes=np.array(self.classes, dtype=np.int64),
            )

    @classmethod
    def load(cls, file: Path) -> EmbeddingClassifier:
        """Read a classifier from a file of ``save``; raise an ``InputError`` for any other file."""
        arrays = read_arrays(file, ("coefficients", "intercepts", "classes"))
        classifier = cls(
            coefficients=np.asarray(arrays["coefficients"], dtype=np.float64),
            intercepts=np.asarray(arrays["intercepts"], dtype=np.float64),
            classes=tuple(int(label) for label in arrays["classes"]),
        )
        row_count = count_coefficient_rows(classifier.classes)
        has_rows = classifier.coefficients.ndim == 2 and len(classifier.coefficients) == row_count
        if not has_rows or classifier.intercepts.shape != (row_count,):
            raise InputError("the arrays of the classifier do not fit together", where=str(file))
        return classifier

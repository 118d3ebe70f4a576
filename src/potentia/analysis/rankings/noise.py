"""The noise of a test: how far the scores of one task would move with other documents of the same kind.

Models that answered the same documents fail together on the hard ones, so their scores move together and differ more
surely than their standard errors say. Where the outcomes of all documents are stored, the noise therefore has the
covariance of the outcomes; elsewhere each model has a standard error of its own. Documents that share a passage are
drawn together, as clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.stats.first_place import covariance_root, paired_noise_covariance
from potentia.analysis.stats.significance import is_mean_of
from potentia.values.accuracy_errors import accuracy_errors
from potentia.values.clusters import Clusters
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, find_clusters

PAIRED_MODELS = 1_000  # from more, the covariance of test noise takes too long


@dataclass(frozen=True)
class TaskNoise:
    """The test noise of all models on one task."""

    errors: Floats  # (models,)
    covariance: Floats | None = (
        None  # (models, models); None where the noise of models is independent
    )

    @property
    def variance_about_mean(self) -> float:
        """The sum over models of the variance about their mean: noise that all models share changes no rank."""
        covariance = self.covariance
        if covariance is None:
            total = float((self.errors**2).sum())
            return total - total / len(self.errors)
        return float(np.trace(covariance) - covariance.sum() / len(self.errors))

    def difference_variance(self, first: int, second: int) -> float:
        """The variance of the difference of two models, by their rows."""
        total = float(self.errors[first] ** 2 + self.errors[second] ** 2)
        if self.covariance is None:
            return total
        shared = 2 * float(self.covariance[first, second])
        # Of a model and its copy, rounding may leave less than nothing.
        return max(total - shared, 0.0)

    def full_covariance(self) -> Floats:
        """Return the covariance as a matrix, also where it is diagonal."""
        if self.covariance is None:
            return np.diag(self.errors**2)
        return self.covariance

    def scale_draws(self, standard_normals: Floats) -> Floats:
        """Turn standard normal draws (draws, models) into draws of this noise."""
        if self.covariance is None:
            return standard_normals * self.errors
        return standard_normals @ covariance_root(self.covariance).T


def task_noise(matrix: ScoreMatrix, column: int, items: Outcomes | None) -> TaskNoise:
    """Return the test noise of the models on one task, paired where models answered the same documents.

    One document more of each kind counts: a model that was never wrong on few documents may yet be. An accuracy on
    so many documents has an error of its own, so one that is said to be smaller is not believed.
    """
    of_task = matrix.select(tasks=[matrix.tasks[column]])
    documents = matrix.n[:, column]
    errors = np.nan_to_num(np.fmax(matrix.stderr[:, column], accuracy_errors(of_task)[:, 0]))
    is_share = np.isfinite(documents) & (np.abs(np.nan_to_num(matrix.values[:, column])) <= 1.0)
    counted = np.maximum(np.where(is_share, documents, 1.0), 1.0)
    one_document = np.where(is_share, 1.0 / counted, 0.0)
    errors = np.sqrt(errors**2 + one_document**2)
    if not items or len(matrix.models) > PAIRED_MODELS:
        return TaskNoise(errors)
    paired = paired_outcomes(matrix, column, items)
    if paired is None:
        return TaskNoise(errors)
    covariance: Floats = np.diag(errors**2)
    block = np.ix_(paired.rows, paired.rows)
    covariance[block] = paired_noise_covariance(
        errors[paired.rows], paired.outcomes, paired.clusters
    )
    return TaskNoise(np.sqrt(np.diag(covariance)), covariance)


@dataclass(frozen=True)
class PairedOutcomes:
    """The outcomes of models that answered the same documents of one task."""

    rows: npt.NDArray[np.intp]  # of these models in the matrix
    outcomes: Floats  # (models, documents)
    documents: tuple[int, ...]
    clusters: Clusters  # of documents that share a passage


def paired_outcomes(
    matrix: ScoreMatrix, column: int, items: Outcomes | None
) -> PairedOutcomes | None:
    """Return the stored outcomes of the models whose score is their mean; None where documents differ."""
    outcomes_by_model = (items or {}).get(matrix.tasks[column], {})
    scores = matrix.values[:, column]
    rows = []
    for row, model in enumerate(matrix.models):
        if is_mean_of(outcomes_by_model.get(model, {}), scores[row]):
            rows.append(row)
    stacked = stack_outcomes([outcomes_by_model[matrix.models[row]] for row in rows])
    if stacked is None:
        return None
    documents = tuple(sorted(outcomes_by_model[matrix.models[rows[0]]]))
    clusters = Clusters.of_examples(documents, find_clusters(items, matrix.tasks[column]))
    return PairedOutcomes(np.array(rows), stacked, documents, clusters)


def stack_outcomes(outcomes_of_models: Sequence[Mapping[int, float]]) -> Floats | None:
    """Return outcomes by document as (models, documents); None where not two models share two documents or more."""
    if len(outcomes_of_models) < 2:
        return None
    documents = sorted(outcomes_of_models[0])
    if len(documents) < 2:
        return None
    if any(outcomes.keys() != outcomes_of_models[0].keys() for outcomes in outcomes_of_models):
        return None
    rows = []
    for outcomes in outcomes_of_models:
        rows.append([outcomes[document] for document in documents])
    return np.array(rows)

"""The families of models, inferred from their scores where no fact and no name says what they are.

Copies of one model, also in fewer bits, a few steps later or fine-tuned a little further, have the same strengths and
weaknesses; counted one by one they would be so many witnesses of one fact. Models are joined to a family where their
scores lie closer together, over all tasks, than those of unrelated models do. How close unrelated models come is read
from the same scores: the part of a score that neither its task nor the model's overall ability explains is shuffled
among the models, task by task, and so is overall ability. The threshold is the distance below which so few shuffled
pairs lie that about one in ten unrelated models is joined by mistake, which costs little: a family too few.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.wording import join_names
from potentia.facts import Background
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MIN_SHARED_TASKS = 3  # of two models, to compare their scores
MIN_MODELS = 4  # from which the distances of unrelated models can be read
MAX_MODELS = 1_000  # whose pairs are compared
FALSE_JOINS = 0.1  # of unrelated models, joined by mistake
SHUFFLED_PAIRS = 20_000
MOST_SHUFFLES = 200
FACTOR_ROUNDS = 5
NAMED_FAMILIES = 3  # of each kind that a note lists
NAMED_MODELS = 3  # of each of these families


@dataclass(frozen=True)
class ModelFamilies:
    """The family of every model that has one, and which were inferred; a model of none counts by itself."""

    family_of_model: Mapping[str, str]
    by_name: frozenset[str] = frozenset()  # models whose family was inferred from their names
    by_scores: frozenset[str] = frozenset()  # models whose family was inferred from their scores

    @classmethod
    def infer(
        cls, families: Mapping[str, str], matrix: ScoreMatrix, by_name: Collection[str] = ()
    ) -> ModelFamilies:
        """Add the families of the models of none that score alike; those ``by_name`` were inferred before."""
        alike = find_alike_models(matrix, families)
        return cls({**families, **alike}, frozenset(by_name), frozenset(alike))

    @classmethod
    def of_background(cls, background: Background, matrix: ScoreMatrix) -> ModelFamilies:
        """Return the families that are known of models or inferred from their names or these scores."""
        return cls.infer(background.families, matrix, background.named_families)

    @classmethod
    def of_evidence(cls, evidence: Evidence) -> ModelFamilies:
        """Return the families of the models of evidence, by the scores of the protocol that ranks."""
        if evidence.main is None:
            return cls(evidence.background.families, evidence.background.named_families)
        matrix = evidence.final_scores[evidence.main].benchmarks()
        return cls.of_background(evidence.background, matrix)

    def describe_inference(self, models: Sequence[str]) -> str:
        """Say which of these models count as one family by their names or scores, and how to change that."""
        by_name = self._list_families(models, self.by_name)
        by_scores = self._list_families(models, self.by_scores)
        parts = []
        if by_name:
            parts.append(f"Families inferred from names: {join_names(by_name, NAMED_FAMILIES)}.")
        if by_scores:
            groups = join_names(by_scores, NAMED_FAMILIES)
            parts.append(f"Models that score alike count as one family: {groups}.")
        if parts:
            parts.append(
                "A file of facts (--facts) with the columns name and family overrules this."
            )
        return " ".join(parts)

    def _list_families(self, models: Sequence[str], inferred: Collection[str]) -> list[str]:
        """Return the members of every family that has inferred ones, as people write them."""
        names = {self.family_of_model[model] for model in models if model in inferred}
        families = []
        for name in sorted(names):
            members = [model for model in models if self.family_of_model.get(model) == name]
            if len(members) > 1:
                families.append(join_names(members, NAMED_MODELS))
        return families


def find_alike_models(
    matrix: ScoreMatrix, families: Mapping[str, str] = NO_ENTRIES
) -> dict[str, str]:
    """Return a family for each model of none whose scores are like those of other models.

    It joins the family of a model like it, or founds one with others of no family. Known families stay as they are.
    """
    models = matrix.models
    if not MIN_MODELS <= len(models) <= MAX_MODELS or all(model in families for model in models):
        return {}
    family_of_model: dict[str, str] = {}
    for members in _group_alike_rows(matrix.oriented()):
        names = [models[row] for row in members]
        known = {families[name] for name in names if name in families}
        if len(names) < 2 or len(known) > 1:
            continue
        family = known.pop() if known else f"like {names[0]}"
        family_of_model.update(dict.fromkeys(names, family))
    return {model: name for model, name in family_of_model.items() if model not in families}


def _group_alike_rows(scores: Floats) -> list[list[int]]:
    """Group the rows of (models, tasks) that are closer together than unrelated ones, by average linkage."""
    standard_scores = _standardise_tasks(scores)
    distances = _measure_distances(standard_scores)
    threshold = _find_threshold(standard_scores)
    comparable = np.isfinite(distances)
    distances[~comparable] = 1e6  # far apart, so that they are never joined
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), method="average")
    labels = fcluster(tree, threshold, criterion="distance")
    rows_by_label: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        rows_by_label.setdefault(label, []).append(row)
    return list(rows_by_label.values())


def _standardise_tasks(scores: Floats) -> Floats:
    """Return scores (models, tasks) with mean 0 and standard deviation 1 on every task."""
    deviations = scores - nan_mean(scores, axis=0)
    spread = np.sqrt(nan_mean(deviations**2, axis=0))
    return np.asarray(deviations / np.where(spread > 0, spread, 1.0))


def _measure_distances(scores: Floats) -> Floats:
    """Return the mean squared difference of every two rows on the tasks of both; infinite where these are few."""
    is_known = np.isfinite(scores).astype(np.float64)
    known_scores = np.nan_to_num(scores, nan=0.0)
    shared_tasks = is_known @ is_known.T
    of_first = known_scores**2 @ is_known.T
    squared_differences = of_first + of_first.T - 2 * known_scores @ known_scores.T
    distances = np.full(shared_tasks.shape, np.inf)
    np.divide(
        squared_differences, shared_tasks, out=distances, where=shared_tasks >= MIN_SHARED_TASKS
    )
    return np.asarray(np.maximum(distances, 0.0))


def _find_threshold(standard_scores: Floats) -> float:
    """Return the distance below which so few pairs of shuffled scores lie; 0 where none can be compared."""
    models = len(standard_scores)
    first_of_pair, second_of_pair = np.triu_indices(models, 1)
    shuffles = int(np.clip(SHUFFLED_PAIRS // len(first_of_pair), 2, MOST_SHUFFLES))
    ability, loadings = _fit_common_factor(standard_scores)
    residuals = standard_scores - np.outer(ability, loadings)
    rng = np.random.default_rng(0)
    distances = []
    for _ in range(shuffles):
        shuffled_residuals = rng.permuted(residuals, axis=0)
        shuffled = np.outer(rng.permutation(ability), loadings) + shuffled_residuals
        distances.append(_measure_distances(shuffled)[first_of_pair, second_of_pair])
    comparable = np.concatenate(distances)
    comparable = comparable[np.isfinite(comparable)]
    if not len(comparable):
        return 0.0
    # Of M models as many pairs may be close by chance as there are models to be joined by mistake.
    share_of_pairs = FALSE_JOINS * models / len(first_of_pair)
    return float(np.quantile(comparable, min(share_of_pairs, 1.0)))


def _fit_common_factor(scores: Floats) -> tuple[Floats, Floats]:
    """Return the ability of every model and the loading of every task that explain scores best, by least squares."""
    is_known = np.isfinite(scores)
    known_scores = np.where(is_known, scores, 0.0)
    ability = np.nan_to_num(nan_mean(scores, axis=1), nan=0.0)
    loadings = np.zeros(scores.shape[1])
    for _ in range(FACTOR_ROUNDS):
        loadings = _divide_known(known_scores.T @ ability, is_known.T @ ability**2)
        ability = _divide_known(known_scores @ loadings, is_known @ loadings**2)
    return ability, loadings


def _divide_known(numerator: Floats, denominator: Floats) -> Floats:
    return np.asarray(
        np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
    )

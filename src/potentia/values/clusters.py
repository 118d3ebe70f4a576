"""Standard errors for examples in clusters: ten questions on one passage are not ten independent questions.

A model that understands a passage answers most of its questions, so the outcomes of a cluster move together and
a mean over n examples is less certain than n says (Miller 2024, "Adding error bars to evals", arXiv 2411.00640). With
r_gi = s_gi − s̄ the residual of example i of cluster g, the variance of a mean is the sum of squared cluster sums,

    Var(s̄) = Σ_g (Σ_i r_gi)² / (1 − n_g/n) / n²,

where the factor 1/(1 − n_g/n) removes the bias of few clusters (CR2, Bell and McCaffrey 2002; with clusters of one
size it is G/(G − 1)). Clusters of one example each give the usual standard error. Degrees of freedom are
Satterthwaite's.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError

Floats = npt.NDArray[np.float64]
LEAST_CLUSTERS = 2  # with fewer there is no standard error
# Columns that usually hold a passage, as in boolq, drop and record; race; squad, social_iqa and most people's files;
# multirc; coqa.
PASSAGE_COLUMNS = ("passage", "article", "context", "paragraph", "story")
# Such a column holds passages if it has at least so many distinct values,
MIN_PASSAGES = 10
# each in at most this share of the examples: what nearly all examples share is an instruction.
MAX_PASSAGE_SHARE = 0.5
MAX_LABEL_LENGTH = 40  # characters; a longer value is named by its hash


@dataclass(frozen=True)
class Clusters:
    """The cluster of every example, numbered from 0."""

    numbers: npt.NDArray[np.intp]  # (examples,)

    @classmethod
    def from_labels(cls, labels: Sequence[Hashable]) -> Clusters:
        """Return the clusters of examples with these labels; equal labels are one cluster."""
        number_by_label: dict[Hashable, int] = {}
        numbers = [number_by_label.setdefault(label, len(number_by_label)) for label in labels]
        return cls(np.array(numbers, dtype=np.intp))

    @classmethod
    def of_examples(cls, examples: Sequence[int], label_by_example: Mapping[int, str]) -> Clusters:
        """Return the clusters of these examples; an example without a label is a cluster of its own."""
        if not label_by_example and len(set(examples)) == len(examples):
            return cls.singletons(len(examples))
        labels: list[Hashable] = []
        for example in examples:
            label = label_by_example.get(example)
            labels.append(label or ("example", example))
        return cls.from_labels(labels)

    @classmethod
    def singletons(cls, examples: int) -> Clusters:
        """Return so many examples, each as a cluster of its own."""
        return cls(np.arange(examples))

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return int(self.numbers.max()) + 1 if len(self.numbers) else 0

    @property
    def sizes(self) -> Floats:
        """The number of examples of every cluster."""
        return np.bincount(self.numbers, minlength=self.count).astype(np.float64)

    @property
    def are_independent(self) -> bool:
        """Whether every example is a cluster of its own."""
        return self.count == len(self.numbers)

    @property
    def mean_size(self) -> float:
        """The mean size of the cluster of an example drawn at random, on which the design effect depends."""
        sizes = self.sizes
        return float((sizes**2).sum() / sizes.sum()) if len(sizes) else math.nan

    def sum_by_cluster(self, values: Floats) -> Floats:
        """Return the sums of values over the examples of every cluster: of (…, examples) it is (…, clusters)."""
        if self.are_independent:  # the sums are the values, in the order of the clusters' numbers
            order = np.argsort(self.numbers)
            return np.asarray(values, dtype=np.float64)[..., order]
        rows = np.atleast_2d(values)
        sums = np.stack(
            [np.bincount(self.numbers, weights=row, minlength=self.count) for row in rows]
        )
        return np.asarray(sums.reshape(*np.shape(values)[:-1], self.count), dtype=np.float64)


def clustered_covariance(outcomes: Floats, clusters: Clusters) -> Floats:
    """Return the covariance, robust to clusters, of the models' means over examples: (models, models).

    ``outcomes`` are (models, examples).
    """
    examples = outcomes.shape[1]
    if len(clusters.numbers) != examples:
        raise InputError(f"{len(clusters.numbers)} clusters of examples, but {examples} examples")
    if clusters.count < LEAST_CLUSTERS:
        return np.full((len(outcomes), len(outcomes)), np.nan)
    residuals = outcomes - outcomes.mean(axis=1, keepdims=True)
    cluster_sums = clusters.sum_by_cluster(residuals)
    corrected_sums = cluster_sums / np.sqrt(1 - clusters.sizes / examples)
    return np.asarray(corrected_sums @ corrected_sums.T / examples**2)


def clustered_error(values: npt.ArrayLike, clusters: Clusters) -> float:
    """Return the standard error of a mean, robust to clusters; NaN with fewer than two clusters."""
    row = np.asarray(values, dtype=np.float64)[None, :]
    return float(np.sqrt(clustered_covariance(row, clusters)[0, 0]))


def degrees_of_freedom(clusters: Clusters) -> float:
    """Return the degrees of freedom of a clustered standard error (Satterthwaite), for the t distribution.

    They depend on how far the examples of a cluster move together, which is not known well. So they are computed for
    both extremes, independent examples and examples that are all alike, and the smaller number is returned. With
    clusters of one size both are G − 1.
    """
    sizes = clusters.sizes
    examples = sizes.sum()
    if clusters.count < LEAST_CLUSTERS:
        return 0.0
    if clusters.are_independent:
        return float(examples - 1)
    return min(_satterthwaite_degrees(sizes, variance) for variance in (sizes, sizes**2))


def _satterthwaite_degrees(sizes: Floats, variance: Floats) -> float:
    """Return tr(C)² / tr(C²), where C is the covariance of the corrected cluster sums of residuals.

    C = B^-½ (diag(v) − v s' − s v' + (Σv) s s') B^-½ with v the ``variance`` of each cluster's sum, s = n_g/n and
    B = diag(1 − s). The traces are computed without C, which would have a row for every cluster.
    """
    share = sizes / sizes.sum()
    bias = 1 - share
    total = float(variance.sum())
    diagonal = total * share**2 - 2 * variance * share
    trace = float(((variance + diagonal) / bias).sum())
    variance_square = float((variance**2 / bias).sum())
    share_square = float((share**2 / bias).sum())
    product = float((variance * share / bias).sum())
    trace_of_square = 2 * variance_square * share_square + 2 * product**2
    trace_of_square += total**2 * share_square**2 - 4 * total * product * share_square
    trace_of_square += float(((2 * variance * diagonal + variance**2) / bias**2).sum())
    return trace**2 / trace_of_square


def intracluster_correlation(values: npt.ArrayLike, clusters: Clusters) -> float:
    """Return how far the examples of a cluster agree, from 0 to 1 (ANOVA estimator).

    NaN if that cannot be estimated: with one cluster, without any of two examples, or if all outcomes are equal.
    """
    outcomes = np.asarray(values, dtype=np.float64)
    sizes = clusters.sizes
    groups = clusters.count
    examples = len(outcomes)
    if groups < LEAST_CLUSTERS or clusters.are_independent or float(outcomes.var()) == 0:
        return math.nan
    means = clusters.sum_by_cluster(outcomes) / sizes
    between = float((sizes * (means - outcomes.mean()) ** 2).sum()) / (groups - 1)
    within = float(((outcomes - means[clusters.numbers]) ** 2).sum()) / (examples - groups)
    typical_size = (examples - float((sizes**2).sum()) / examples) / (groups - 1)
    total = between + (typical_size - 1) * within
    return min(1.0, max(0.0, (between - within) / total)) if total > 0 else math.nan


# --- passages --------------------------------------------------------------------------------------------------------


def label_cluster(passage: object) -> str:
    """Return the name of the cluster of examples with this passage: the passage or its hash; empty for an empty one."""
    text = "" if passage is None else str(passage).strip()
    if len(text) <= MAX_LABEL_LENGTH:
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def find_passage_column(examples: Sequence[Mapping[str, object]]) -> str | None:
    """Return the first usual column that holds the passages of these examples; None if no two of them share one."""
    for column in PASSAGE_COLUMNS:
        if _holds_passages([example.get(column) for example in examples]):
            return column
    return None


def label_passages(examples: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """Return the cluster of every example that has a passage, by the example's number; empty if no two share one."""
    column = find_passage_column(list(examples.values()))
    if column is None:
        return {}
    labels = {number: label_cluster(example[column]) for number, example in examples.items()}
    return {number: label for number, label in labels.items() if label}


def _holds_passages(values: Sequence[object]) -> bool:
    """Whether values are passages: several distinct texts, some of which come more than once, but none too often."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        return False
    counts = Counter(text for text in texts if text.strip())
    if len(counts) < MIN_PASSAGES:
        return False
    largest_count = counts.most_common(1)[0][1]
    return 1 < largest_count <= MAX_PASSAGE_SHARE * len(values)

"""Which differences between models are real.

From standard errors, two models differ on a task when |a - b| exceeds z·sqrt(s_a² + s_b²) (appendix C). On the same
items McNemar's exact test is sharper, and decides wherever they are stored: it looks only at those that one of the two
gets right.
Items that share a passage are taken together (``sign_flips``). Over many pairs, Benjamini–Hochberg keeps the share of
false discoveries down. With insignificant differences as ties, agreement is tau-b on the pairwise signs (appendix C.2),
since such ties are not transitive and make no ranking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, false_discovery_control, norm
from scipy.stats import t as student_t

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import (
    kendall_of_significant_differences,
    z_of_difference,
)
from potentia.analysis.stats.score_errors import believe_errors
from potentia.analysis.stats.sign_flips import sign_flip_p_value
from potentia.errors import InputError
from potentia.values.clusters import Clusters, clustered_covariance, degrees_of_freedom
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, clusters_of_task

POWER = 0.8


@dataclass(frozen=True)
class Significance(Finding):
    """How much of a matrix's ranking is real: resolved pairs per task."""

    protocol: Protocol
    level: float
    models: int
    tasks: tuple[str, ...]
    pairs: tuple[int, ...]  # pairs of models that could be compared, per task
    significant: tuple[int, ...]  # by items where they are stored, else by the z test
    discoveries: tuple[int, ...]  # after Benjamini–Hochberg over all pairs of the task
    detectable: tuple[float, ...]  # smallest difference found with 80 % power
    items: tuple[int, ...]  # stored documents that the models share, per task; 0 without
    tests: tuple[str, ...]  # how the pairs of each task are tested
    # whether the scores of each task are shares of 1, so that a difference is told in points
    unit_scaled: tuple[bool, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return the resolved pairs per task."""
        names = ["task", "pairs", "significant", "share", "after BH", "detectable"]
        columns: list[Sequence[str | float | None]] = [
            self.tasks,
            self.pairs,
            self.significant,
            self.shares,
            self.discoveries,
            self.detectable,
        ]
        note = (
            f"detectable: the smallest difference found with {POWER:.0%} power, "
            "at the median standard error."
        )
        names.append("test")
        columns.append(self.tests)
        if any(self.items):
            names.append("items")
            columns.append([items or None for items in self.items])
            note += (
                " Items: stored examples that the models answered; "
                "McNemar: exact test on the stored examples."
            )
        level = f"{100 * (1 - self.level):.0f} % level"
        title = f"Pairs of models that differ significantly ({self.protocol.label}, {level})"
        return [Table(title, names, zip(*columns, strict=True), note)]

    @property
    def shares(self) -> list[float]:
        """The share of pairs that differ, per task; NaN where none could be compared."""
        shares = []
        for significant, pairs in zip(self.significant, self.pairs, strict=True):
            shares.append(significant / pairs if pairs else float("nan"))
        return shares

    def charts(self) -> Sequence[Chart]:
        """Return the resolved share per task; the heat map of tau-b is that of ``measure_agreement``."""
        label = self.protocol.label
        level = f"{100 * (1 - self.level):.0f} % level"
        chart = Bars(
            f"resolved-{self.protocol}",
            f"Share of model pairs that each task separates: {label}",
            f"Pairs of models whose difference is significant at the {level}.",
            self.tasks,
            {label: self.shares},
            y_label="share of pairs",
            group="resolved",
        )
        return [chart]


def measure_significance(
    matrix: ScoreMatrix, outcomes: Outcomes | None = None, *, level: float = LEVEL
) -> Significance:
    """Test every pair of models on every task: by items where ``outcomes`` are stored, else by standard errors."""
    # One by one: a thousand models are half a million pairs.
    counts = [count_task_pairs(matrix, task, outcomes, level=level) for task in matrix.tasks]
    return Significance(
        protocol=matrix.protocol,
        level=level,
        models=matrix.shape[0],
        tasks=matrix.tasks,
        pairs=tuple(count.pairs for count in counts),
        significant=tuple(count.significant for count in counts),
        discoveries=tuple(count.discoveries for count in counts),
        detectable=tuple(detectable_difference(matrix, level=level).tolist()),
        items=tuple(count.items for count in counts),
        tests=tuple(count.test for count in counts),
        unit_scaled=tuple(matrix.select(tasks=[task]).has_unit_scale for task in matrix.tasks),
    )


@dataclass(frozen=True)
class TaskPairs:
    """The p value of every pair of models on one task, in the order of ``np.triu_indices``."""

    p_values: Floats  # NaN where a pair cannot be tested
    test: str
    items: int = 0  # stored documents that the models share


@dataclass(frozen=True)
class TaskPairCounts:
    """How many pairs of models differ on one task."""

    pairs: int  # that could be compared
    significant: int
    discoveries: int  # of these after Benjamini–Hochberg
    test: str
    items: int


def count_task_pairs(
    matrix: ScoreMatrix, task: str, outcomes: Outcomes | None = None, *, level: float = LEVEL
) -> TaskPairCounts:
    """Count the pairs of models that differ on a task, before and after Benjamini–Hochberg."""
    tested = find_task_p_values(matrix, task, outcomes)
    adjusted = benjamini_hochberg(tested.p_values[:, None])
    return TaskPairCounts(
        pairs=int(np.isfinite(tested.p_values).sum()),
        significant=int((tested.p_values < 1 - level).sum()),
        discoveries=int((adjusted <= 1 - level).sum()),
        test=tested.test,
        items=tested.items,
    )


def find_task_p_values(
    matrix: ScoreMatrix, task: str, outcomes: Outcomes | None = None
) -> TaskPairs:
    """Test every pair of models on a task, as ``compare`` does: by the items of both, else by standard errors.

    Items are those of models whose score is their mean; of an f1 or an mcc over a whole set they say nothing.
    """
    of_task = matrix.select(tasks=[task])
    p_values = pair_p_values(of_task)[:, 0]
    with_items: dict[str, Mapping[int, float]] = {}
    outcomes_by_model = (outcomes or {}).get(task, {})
    for model, score in zip(of_task.models, of_task.values[:, 0].tolist(), strict=True):
        if is_mean_of(outcomes_by_model.get(model, {}), score):
            with_items[model] = outcomes_by_model[model]
    aligned = align_outcomes(of_task.models, with_items, clusters_of_task(outcomes_by_model))
    if len(aligned.models) < 2 or len(aligned.documents) < 2:
        return TaskPairs(p_values, "z test")
    models = len(of_task.models)
    rows = np.array([of_task.models.index(model) for model in aligned.models])
    first_of_pair, second_of_pair = np.triu_indices(len(rows), 1)
    row, column = rows[first_of_pair], rows[second_of_pair]
    # The place of a pair (row, column) in the order of ``np.triu_indices``.
    pairs = row * (2 * models - row - 1) // 2 + column - row - 1
    seed_errors = list_seed_errors(matrix, task, aligned.models)
    p_values[pairs] = item_p_values(aligned.values, aligned.clusters, seed_errors)
    test = "McNemar" if are_right_or_wrong(aligned.values) else "paired t"
    return TaskPairs(p_values, test, len(aligned.documents))


def are_right_or_wrong(outcomes: Floats) -> bool:
    """Whether every outcome is 0 or 1."""
    return bool(np.isin(outcomes, (0.0, 1.0)).all())


def item_p_values(
    outcomes: Floats, clusters: Clusters | None = None, seed_errors: Floats | None = None
) -> Floats:
    """Return the p value of every pair of rows of (models, items): McNemar's, or paired t where outcomes are graded."""
    if are_right_or_wrong(outcomes):
        return mcnemar_p_values(outcomes > 0.5, clusters, seed_errors)
    if seed_errors is None:
        seed_errors = np.zeros(len(outcomes))
    p_values = _p_values_with_seeds(outcomes, clusters, seed_errors)
    return np.nan_to_num(p_values, nan=1.0)  # two rows that are the same


def is_mean_of(outcomes: Mapping[int, float], score: float) -> bool:
    """Whether a score is the mean of these outcomes, by document."""
    if len(outcomes) < 2:
        return False
    mean = sum(outcomes.values()) / len(outcomes)
    return math.isclose(mean, score, abs_tol=1e-6)


def list_seed_errors(matrix: ScoreMatrix, task: str, models: Sequence[str]) -> Floats:
    """Return how far another seed moves the score of each model on a task; 0 where that is not known."""
    return np.array([matrix.seed_error(model, task) for model in models], dtype=np.float64)


def pair_z_scores(matrix: ScoreMatrix) -> Floats:
    """Return z of every pair of models on every task: (pairs, tasks) in the order of ``np.triu_indices``.

    Positive where the first is better. NaN where a score or a standard error is missing; two scores without any error
    differ infinitely or not at all.
    """
    matrix = believe_errors(matrix)
    first, second = np.triu_indices(matrix.shape[0], 1)
    values = matrix.oriented()
    return z_of_difference(
        values[first], matrix.stderr[first], values[second], matrix.stderr[second]
    )


def pair_p_values(matrix: ScoreMatrix) -> Floats:
    """Return the two-sided p values of ``pair_z_scores``."""
    return np.asarray(2.0 * norm.sf(np.abs(pair_z_scores(matrix))))


def tau_b_matrix(
    matrix: ScoreMatrix, *, level: float = LEVEL, weights: npt.ArrayLike | None = None
) -> Floats:
    """Return tau-b between all tasks with insignificant differences as ties (appendix C.2), under draws of models."""
    threshold = float(norm.ppf(0.5 + level / 2))
    matrix = believe_errors(matrix)
    return kendall_of_significant_differences(
        matrix.oriented(), matrix.stderr, threshold, weights=weights
    )


def significant_order(
    values: Floats, stderr: Floats, *, level: float = LEVEL
) -> npt.NDArray[np.bool_]:
    """Return the partial order of one task, ``[a, b]`` true where a significantly beats b (algorithm 1)."""
    if not (np.isfinite(values).all() and np.isfinite(stderr).all()):
        raise InputError("the significant order needs a score and a standard error of every model")
    threshold = norm.ppf(0.5 + level / 2)
    margin = threshold * np.sqrt(stderr[:, None] ** 2 + stderr[None, :] ** 2)
    return np.asarray(values[:, None] - values[None, :] > margin)


def benjamini_hochberg(p_values: Floats) -> Floats:
    """Return Benjamini–Hochberg adjusted p values of each column; NaN stays NaN and counts for nothing."""
    columns = np.asarray(p_values, dtype=np.float64)
    flat_columns = columns.reshape(len(columns), -1)
    adjusted = np.full_like(flat_columns, np.nan)
    for column in range(flat_columns.shape[1]):
        tested = np.isfinite(flat_columns[:, column])
        if tested.any():
            adjusted[tested, column] = false_discovery_control(flat_columns[tested, column])
    return adjusted.reshape(columns.shape)


def detectable_difference(matrix: ScoreMatrix, *, level: float = LEVEL) -> Floats:
    """Return the smallest true difference of two models that a test at ``level`` finds with 80 % power, per task."""
    median_errors = np.full(len(matrix.tasks), np.nan)
    for column, errors in enumerate(believe_errors(matrix).stderr.T):
        if np.isfinite(errors).any():
            median_errors[column] = np.median(errors[np.isfinite(errors)])
    detectable_z = norm.ppf(0.5 + level / 2) + norm.ppf(POWER)
    return np.asarray(detectable_z * np.sqrt(2.0) * median_errors)


def mcnemar_p_value(first_only: int, second_only: int) -> float:
    """Return McNemar's exact two-sided p value from the counts of items on which only one model is right."""
    discordant = first_only + second_only
    if not discordant:
        return 1.0
    return float(min(1.0, 2.0 * binom.cdf(min(first_only, second_only), discordant, 0.5)))


def mcnemar_p_values(
    correct: npt.NDArray[np.bool_],
    clusters: Clusters | None = None,
    seed_errors: Floats | None = None,
) -> Floats:
    """Return McNemar's exact p value of every pair of rows of (models, items), in the order of ``np.triu_indices``.

    Items that share a passage speak as one: with ``clusters``, the signs of whole clusters are flipped. Where it is
    known how far another seed moves a score (``seed_errors``, by model), a difference has to stand out from that, too.
    """
    correct_counts = correct.astype(np.float64)
    p_values = _exact_p_values(correct_counts, clusters)
    if seed_errors is None or not seed_errors.any():
        return p_values
    return np.fmax(p_values, _p_values_with_seeds(correct_counts, clusters, seed_errors))


def _p_values_with_seeds(
    correct_counts: Floats, clusters: Clusters | None, seed_errors: Floats
) -> Floats:
    """Return the p value of every pair by Student's t, from the noise of paired items and of seeds."""
    clusters = clusters or Clusters.singletons(correct_counts.shape[1])
    covariance = clustered_covariance(correct_counts, clusters)
    first, second = np.triu_indices(len(correct_counts), 1)
    variances = np.diag(covariance) + seed_errors**2
    variance = variances[first] + variances[second] - 2 * covariance[first, second]
    means = correct_counts.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_values = np.abs(means[first] - means[second]) / np.sqrt(variance)
    return np.asarray(2.0 * student_t.sf(t_values, degrees_of_freedom(clusters)))


def _exact_p_values(correct_counts: Floats, clusters: Clusters | None) -> Floats:
    """Return McNemar's exact p value of every pair, or that of flipped clusters."""
    if clusters is not None and not clusters.are_independent:
        return _cluster_p_values(clusters.sum_by_cluster(correct_counts))
    only_first_right = (
        correct_counts @ (1.0 - correct_counts).T
    )  # [a, b]: items that a alone got right
    first, second = np.triu_indices(len(correct_counts), 1)
    first_only = only_first_right[first, second]
    second_only = only_first_right[second, first]
    discordant = first_only + second_only
    p_values = 2.0 * binom.cdf(np.minimum(first_only, second_only), discordant, 0.5)
    return np.where(discordant > 0, np.minimum(p_values, 1.0), 1.0)


def _cluster_p_values(hits_by_cluster: Floats) -> Floats:
    """Return the p value of every pair of rows of (models, clusters), counts of right answers."""
    first, second = np.triu_indices(len(hits_by_cluster), 1)
    p_values = [
        sign_flip_p_value(hits_by_cluster[first_model] - hits_by_cluster[second_model])
        for first_model, second_model in zip(first, second, strict=True)
    ]
    return np.array(p_values)


def outcome_tables(matrix: ScoreMatrix, outcomes: Outcomes) -> dict[str, Floats]:
    """Return (models, items) for each task whose items can stand for its scores, to draw their noise from.

    Every model with a score must have the items, all on the same documents, and their mean must be the score: that
    leaves out metrics of a whole set (mcc, f1), whose noise comes from their standard errors, as does that of examples
    that share passages, and of scores that are known to move with the seed of a fine-tuning.
    """
    tables = {}
    for column, task in enumerate(matrix.tasks):
        has_score = np.isfinite(matrix.values[:, column])
        scored_models = list(compress(matrix.models, has_score))
        aligned = align_outcomes(scored_models, outcomes.get(task, {}))
        if not scored_models or aligned.models != scored_models or not aligned.documents:
            continue
        if (
            list_seed_errors(matrix, task, scored_models).any()
            or not aligned.clusters.are_independent
        ):
            continue
        scores = matrix.values[has_score, column]
        if np.allclose(aligned.values.mean(axis=1), scores, atol=1e-6):
            table = np.full((len(matrix.models), len(aligned.documents)), np.nan)
            table[has_score] = aligned.values
            tables[task] = table
    return tables


@dataclass(frozen=True)
class AlignedOutcomes:
    """The outcomes of several models on the documents that all of them answered."""

    models: list[str]
    documents: list[int]
    values: Floats  # (models, documents)
    clusters: Clusters  # of documents that share a passage


def align_outcomes(
    models: Sequence[str],
    outcomes: Mapping[str, Mapping[int, float]],
    cluster_by_document: Mapping[int, str] | None = None,
) -> AlignedOutcomes:
    """Return the models with items, the documents that all of them have, and their outcomes.

    ``cluster_by_document`` names the passages of the documents, where the outcomes do not.
    """
    with_outcomes = [model for model in models if outcomes.get(model)]
    documents: list[int] = []
    if with_outcomes:
        documents = sorted(set.intersection(*(set(outcomes[model]) for model in with_outcomes)))
    rows = []
    for model in with_outcomes:
        rows.append([outcomes[model][document] for document in documents])
    values = np.array(rows, dtype=np.float64).reshape(len(with_outcomes), len(documents))
    if cluster_by_document is None:
        cluster_by_document = clusters_of_task(outcomes)
    clusters = Clusters.of_examples(documents, cluster_by_document)
    return AlignedOutcomes(with_outcomes, documents, values, clusters)


def estimate_test_sizes(matrix: ScoreMatrix) -> dict[str, float]:
    """Return the number of test items behind each task: as stored, or as the standard errors imply.

    Where the number is not stored, an accuracy p with the harness's standard error s comes from p(1 - p)/s² + 1 items;
    it is believed only where the models agree on it, which they do for means of zeros and ones and for nothing else.
    """
    sizes = {}
    for column, task in enumerate(matrix.tasks):
        stored = matrix.n[:, column]
        if np.isfinite(stored).any():
            sizes[task] = float(np.nanmedian(stored))
            continue
        implied_size = _implied_test_size(matrix.values[:, column], matrix.stderr[:, column])
        if implied_size is not None:
            sizes[task] = implied_size
    return sizes


def _implied_test_size(accuracies: Floats, stderr: Floats) -> float | None:
    """Return the number of items that accuracies with these errors come from; None where models disagree on it."""
    usable = np.isfinite(accuracies) & np.isfinite(stderr) & (stderr > 0)
    usable &= (accuracies > 0.02) & (accuracies < 0.98)
    if not usable.any():
        return None
    share = accuracies[usable]
    implied = share * (1 - share) / stderr[usable] ** 2 + 1
    median = float(np.median(implied))
    if np.quantile(np.abs(implied - median), 0.75) < 0.01 * median:
        return float(round(median))
    return None

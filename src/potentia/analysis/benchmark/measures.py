"""The measures beside a benchmark's verdict: resolution, items to look at, what tuning changes.

Scores are of one benchmark, (models,), oriented so that higher is better; ``answers`` are its items, (models, items).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress, pairwise

import numpy as np
from scipy import stats

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.stats.bootstrap import Sampling, kendall_by_row
from potentia.analysis.stats.significance import item_p_values
from potentia.values.clusters import LEAST_CLUSTERS, Clusters, clustered_error
from potentia.values.findings import Interval
from potentia.values.scores import ExampleText, Floats, ScoreMatrix

RESOLUTION = 0.02  # a difference that a benchmark should find, with 80 % power
POWER_FACTOR = (1.96 + 0.8416) ** 2  # of a two-sided test at 5 % with a power of 80 %
SIGNIFICANT = 0.05
FALSE_DISCOVERY_RATE = 0.1  # share of items listed as negative that may be fine


# --- resolution ------------------------------------------------------------------------------------------------------


def estimate_documents_needed(answers: Floats, clusters: Clusters) -> float:
    """Return how many documents find a difference of ``RESOLUTION`` with 80 % power, by a paired test.

    The variance is the median one of models that are neighbours in the ranking, with what shared passages add to it.
    """
    documents = answers.shape[1]
    order = np.argsort(answers.mean(axis=1))
    variances = [
        documents * clustered_error(answers[worse] - answers[better], clusters) ** 2
        for worse, better in pairwise(order)
    ]
    if not np.isfinite(variances).all():
        return math.nan
    return float(math.ceil(POWER_FACTOR * float(np.median(variances)) / RESOLUTION**2))


def measure_resolved_share(
    answers: Floats,
    clusters: Clusters,
    scores: Floats,
    stderr: Floats,
    seed_errors: Floats,
) -> float:
    """Return the share of model pairs that differ significantly (5 %), paired where there are items.

    ``seed_errors`` are the parts of the standard errors that are of the fine-tunings' seeds; 0 where not known.
    """
    if clusters.count >= LEAST_CLUSTERS:
        return float(np.mean(item_p_values(answers, clusters, seed_errors) < SIGNIFICANT))
    first_of_pair, second_of_pair = np.triu_indices(len(scores), 1)
    pair_stderr = np.hypot(stderr[first_of_pair], stderr[second_of_pair])
    is_known = np.isfinite(pair_stderr)
    if not is_known.any():
        return math.nan
    is_apart = np.abs(scores[first_of_pair] - scores[second_of_pair]) > 1.96 * pair_stderr
    return float(np.mean(is_apart[is_known]))


# --- items to look at ------------------------------------------------------------------------------------------------


class SuspectReason(StrEnum):
    """Why an item is to be looked at."""

    NEGATIVE_DISCRIMINATION = "negative discrimination"  # worse models answer it better
    ALWAYS_WRONG = "always wrong"
    ALWAYS_WRONG_TUNED = "always wrong after tuning"


@dataclass(frozen=True)
class SuspectItem:
    """An item to look at, and why."""

    document: int
    reason: SuspectReason
    right: float  # share of models that got it right
    discrimination: float  # correlation over models with the rest of the test
    text: ExampleText | None = None  # its number and question, where a source has them


def find_suspect_items(
    documents: Sequence[int], answers: Floats, *, tuned: bool
) -> tuple[SuspectItem, ...]:
    """Return items that worse models answer better, beyond chance, and those that no model gets right."""
    models = len(answers)
    discrimination = _measure_discrimination(answers)
    degrees = max(models - 2, 1)
    unexplained = np.maximum(1 - discrimination**2, 1e-9)
    t_statistic = discrimination * np.sqrt(degrees / unexplained)
    p_values = stats.false_discovery_control(stats.t.cdf(t_statistic, degrees))
    negative = np.flatnonzero(p_values < FALSE_DISCOVERY_RATE)
    most_negative_first = negative[np.argsort(discrimination[negative], kind="stable")]
    share_right = answers.mean(axis=0)
    suspects = []
    for item in map(int, most_negative_first):
        suspects.append(
            SuspectItem(
                document=documents[item],
                reason=SuspectReason.NEGATIVE_DISCRIMINATION,
                right=float(share_right[item]),
                discrimination=float(discrimination[item]),
            )
        )
    wrong = SuspectReason.ALWAYS_WRONG_TUNED if tuned else SuspectReason.ALWAYS_WRONG
    for item in map(int, np.flatnonzero(answers.max(axis=0) <= 0)):
        suspects.append(
            SuspectItem(document=documents[item], reason=wrong, right=0.0, discrimination=0.0)
        )
    return tuple(suspects)


def _measure_discrimination(answers: Floats) -> Floats:
    """Return the correlation over models of each item with the rest of the test; 0 where one does not vary."""
    items = answers.shape[1]
    score_without_item = (answers.sum(axis=1, keepdims=True) - answers) / max(items - 1, 1)
    item_deviation = answers - answers.mean(axis=0)
    rest_deviation = score_without_item - score_without_item.mean(axis=0)
    norm_product = np.sqrt((item_deviation**2).sum(axis=0) * (rest_deviation**2).sum(axis=0))
    covariance = (item_deviation * rest_deviation).sum(axis=0)
    correlation: Floats = np.divide(
        covariance, norm_product, out=np.zeros(items), where=norm_product > 1e-12
    )
    return correlation


# --- before and after tuning -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuningEffect:
    """What tuning changes on a benchmark: the mean gain, and τ of the rankings before and after."""

    gain: Interval | None
    tau: float


def measure_tuning_effect(
    matrix: ScoreMatrix, direct: ScoreMatrix | None, task: str, sampling: Sampling
) -> TuningEffect:
    """Return the mean gain by tuning over families drawn anew, and τ of the rankings before and after it."""
    if direct is None:
        return TuningEffect(None, math.nan)
    models = keep_names_in(matrix.models, direct.models)
    after = matrix.select(models=models, tasks=[task]).oriented()[:, 0]
    before = direct.select(models=models, tasks=[task]).oriented()[:, 0]
    has_both = np.isfinite(after - before)
    gains = (after - before)[has_both]
    if len(gains) < 2:
        return TuningEffect(None, math.nan)
    counts = sampling.draw_models(list(compress(models, has_both)))
    drawn_means = (counts @ gains) / counts.sum(axis=1)
    mean_gain = sampling.interval(float(gains.mean()), drawn_means)
    return TuningEffect(mean_gain, float(kendall_by_row(after, before)))

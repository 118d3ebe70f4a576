"""From graded documents to scores: the value of each document (an *item*), their aggregate, and its standard error.

lm-eval names the function that aggregates the items of each metric, so values are lm-eval's to the last digit. Its
standard errors of mcc, f1 and the like take minutes of bootstrap; here the bootstrap is vectorised and seeded. Items
may be in clusters, such as questions about one passage, and standard errors allow for that.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import TaskError
from potentia.values.clusters import Clusters, clustered_error
from potentia.values.metric import Metric
from potentia.values.scores import ItemOutcome, Score

Floats = npt.NDArray[np.float64]
Aggregation = Callable[[Sequence[Any]], Any]
"""Turns the values of all items into one number."""

PER_TOKEN = "acc_token"  # accuracy if the option of the lowest perplexity per token is chosen
RESAMPLES = 500  # lm-eval takes 100,000; a standard error needs two digits
SLOW_RESAMPLES = 100  # of metrics of whole texts, which take long to compute
RESAMPLES_IN_MEMORY = 50  # drawn at once, where a resample has a number for every item
MAX_EXPONENT = 700.0  # exp overflows a little above it
_SEED = 1234

# --- one item --------------------------------------------------------------------------------------------------------


def name_metric(metric: str, filter_name: str, filter_count: int) -> str:
    """Return a metric's name; of a task with several filters it has the filter's (``exact_match|strict-match``)."""
    return metric if filter_count == 1 else f"{metric}|{filter_name}"


def to_plain_values(value: object) -> Any:
    """Return an item's value as plain JSON values: NumPy's numbers and arrays as Python's, tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [to_plain_values(inner) for inner in value]
    if isinstance(value, dict):
        return {str(member_name): to_plain_values(inner) for member_name, inner in value.items()}
    return value


def reduce_item_value(metric: str, value: object) -> float:
    """Return one item's value as one number; NaN if it cannot be one.

    - bits per byte and perplexities have (log-likelihood, size) per item;
    - metrics of a whole set (mcc, f1) have (gold, predicted): 1.0 where they agree;
    - of a list of numbers, the mean.
    """
    metric_name = metric.split("|")[0]
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, list):
        return math.nan
    if len(value) == 2 and not isinstance(value[0], list):
        if metric_name == "bits_per_byte":
            return float(-value[0] / max(value[1], 1) / math.log(2))
        if metric_name in {"byte_perplexity", "word_perplexity"}:
            return math.exp(min(MAX_EXPONENT, -value[0] / max(value[1], 1)))
        return float(value[0] == value[1])
    if value and all(isinstance(number, (bool, int, float)) for number in value):
        return float(np.mean(value))
    return math.nan


def choose_answer(metric: str, choices: Sequence[str], answers: Sequence[Any]) -> int:
    """Return the position of the option that a metric counts as the answer.

    That is the likeliest one; of ``acc_norm`` the likeliest per character, of ``acc_token`` per token. ``answers`` are
    (log-likelihood, greedy?) pairs; for ``acc_token`` they are ``Likelihood``, which has the number of tokens.
    """
    sizes = [1] * len(answers)
    if metric == "acc_norm":
        sizes = [len(choice) for choice in choices]
    if metric == PER_TOKEN:
        sizes = [getattr(answer, "tokens", 0) for answer in answers]
        if not all(sizes):
            raise TaskError(
                "these answers do not say how many tokens they have",
                hint="ask for blank_ppl:character",
            )
    logprobs = []
    for answer, answer_size in zip(answers, sizes, strict=True):
        logprobs.append(answer[0] / answer_size if answer_size else answer[0] * math.inf)
    # What np.argmax returns, in a tenth of its time for a few numbers: the first NaN, else the first largest.
    for position, logprob in enumerate(logprobs):
        if math.isnan(logprob):
            return position
    return logprobs.index(max(logprobs))


def compute_choice_metrics(
    choices: Sequence[str],
    logprob_pairs: Sequence[Any],
    *,
    right_choices: Sequence[int],
    computed_metrics: Collection[str],
    requested_metrics: Collection[object],
) -> dict[str, object]:
    """Return the values of a multiple-choice item that its definition did not compute (``computed_metrics``).

    These are the accuracies and, with one right choice, the Brier score. ``requested_metrics`` may add accuracy per
    token and the metrics of labelled texts. ``logprob_pairs`` are the (log-likelihood, greedy?) pairs of the choices.
    """
    accuracies = ["acc"]
    has_no_empty_choice = all(choices)
    if has_no_empty_choice:  # an empty choice has no length to divide by
        accuracies.append("acc_norm")
    missing = [metric for metric in accuracies if metric not in computed_metrics]
    if PER_TOKEN in requested_metrics:
        missing.append(PER_TOKEN)
    values: dict[str, object] = {}
    for metric in missing:
        values[metric] = float(choose_answer(metric, choices, logprob_pairs) in right_choices)
    if len(right_choices) == 1:
        gold = right_choices[0]
        logprobs = np.array([pair[0] for pair in logprob_pairs], dtype=np.float64)
        probabilities = np.exp(logprobs - logprobs.max())
        probabilities /= probabilities.sum()
        probabilities[gold] -= 1.0
        values["brier_score"] = float(np.sum(probabilities**2))
        for metric in LABEL_METRICS:
            if metric in requested_metrics:
                # the true and the predicted label: the metric is computed over all items together
                values[metric] = [gold, int(np.argmax(logprobs))]
    return values


# --- all items -------------------------------------------------------------------------------------------------------


def score_outcomes(
    outcomes: Sequence[ItemOutcome],
    aggregations: Mapping[str, Any],
    describe_metric: Callable[[str], Metric],
) -> dict[str, Score]:
    """Return the score of every metric that the outcomes have.

    ``aggregations`` are the functions that lm-eval names for the metrics; ``describe_metric`` makes the ``Metric``.
    """
    from lm_eval.api.metrics import mean

    values_by_metric: dict[str, list[Any]] = {}
    labels_by_metric: dict[str, list[Hashable]] = {}
    for outcome in outcomes:
        label = outcome.cluster or outcome.doc_id  # an example without a passage is a cluster alone
        for metric_name, value in outcome.detail["metrics"].items():
            values_by_metric.setdefault(metric_name, []).append(value)
            labels_by_metric.setdefault(metric_name, []).append(label)
    functions = {**aggregations, **LABEL_METRICS, "brier_score": np.mean}
    scores = {}
    for metric_name, items in values_by_metric.items():
        function = functions.get(metric_name.split("|")[0], mean)
        value, error = aggregate_items(function, items, labels_by_metric[metric_name])
        scores[metric_name] = Score(value, error, len(items), describe_metric(metric_name))
    return scores


def pool_scores(scores: Sequence[Score], *, by_size: bool) -> Score:
    """Return a group's score of its subtasks' scores, as lm-eval does, with the pooled standard error.

    ``by_size`` weights each subtask by its number of examples; otherwise all count the same.
    """
    from lm_eval.api.metrics import (
        aggregate_subtask_metrics,
        pooled_sample_stderr,
        unweighted_mean_stderr,
    )

    sizes = [score.n for score in scores]
    errors = [score.stderr for score in scores]
    pooled_value = float(
        aggregate_subtask_metrics([score.value for score in scores], sizes, by_size)
    )
    if any(math.isnan(error) for error in errors):
        pooled_error = math.nan
    elif by_size:
        pooled_error = float(pooled_sample_stderr(errors, sizes))
    else:
        pooled_error = float(unweighted_mean_stderr(errors))
    return Score(pooled_value, pooled_error, sum(sizes), scores[0].metric)


def aggregate_items(
    function: Aggregation, items: Sequence[object], labels: Sequence[Hashable] = ()
) -> tuple[float, float]:
    """Return the value of one metric over all items, and its standard error; items with one label are a cluster."""
    aggregate = float(function(items))
    if len(set(labels)) < len(labels):
        return aggregate, estimate_clustered_stderr(function, items, labels)
    return aggregate, estimate_stderr(function, items)


def estimate_clustered_stderr(
    function: Aggregation, items: Sequence[Any], labels: Sequence[Hashable]
) -> float:
    """Estimate the standard error of a metric over items in clusters; NaN with one cluster, or where none is defined.

    Means have the closed form of ``potentia.values.clusters``. Other metrics are resampled by whole clusters.
    """
    from lm_eval.api import metrics

    clusters = Clusters.from_labels(labels)
    if clusters.count < 2:
        return math.nan
    if function in (np.mean, metrics.mean):
        return clustered_error(items, clusters)
    statistic = _find_pair_statistic(function)
    if statistic is not None:
        return _estimate_clustered_pair_stderr(statistic, items, clusters)
    unclustered_error = estimate_stderr(function, items)
    # acc_all makes groups of its items by itself
    if math.isnan(unclustered_error) or function is metrics.acc_all:
        return unclustered_error
    members = [np.flatnonzero(clusters.numbers == cluster) for cluster in range(clusters.count)]
    generator = np.random.default_rng(_SEED)
    values = []
    for _ in range(SLOW_RESAMPLES):
        drawn_clusters = generator.integers(clusters.count, size=clusters.count)
        positions = np.concatenate([members[cluster] for cluster in drawn_clusters])
        values.append(float(function([items[position] for position in positions])))
    return float(np.std(values, ddof=1))


def estimate_stderr(function: Aggregation, items: Sequence[object]) -> float:
    """Estimate the standard error of a metric over independent items as lm-eval does; NaN if it defines none.

    Means have a closed form. The others are bootstrapped: mcc and f1 depend on nothing but the counts of (gold,
    predicted) pairs, so that a resample is one multinomial draw of those counts. Bits per byte and perplexities are
    ratios of sums.
    """
    from lm_eval.api import metrics

    if len(items) < 2:
        return math.nan
    if function in (np.mean, metrics.mean):
        return float(metrics.mean_stderr(items))
    if function is metrics.acc_all:
        return float(metrics.acc_all_stderr(items))
    statistic = _find_pair_statistic(function)
    if statistic is not None:
        return _estimate_pair_stderr(statistic, items)
    if function in (metrics.bits_per_byte, metrics.weighted_perplexity):
        return _estimate_ratio_stderr(items, exponent=function is metrics.weighted_perplexity)
    if function in (metrics.perplexity, metrics.median, metrics.nanmean):
        return _estimate_resampled_stderr(function, items, RESAMPLES)
    if function in (metrics.bleu, metrics.chrf, metrics.chrfpp, metrics.ter):
        return _estimate_resampled_stderr(function, items, SLOW_RESAMPLES)
    return math.nan


# --- statistics of (gold, predicted) pairs ---------------------------------------------------------------------------

PairStatistic = Callable[[Floats, Floats, Floats, list[object]], Floats]
"""Computes a metric of every draw: (label_hits, golds, guesses, labels) → (draws,).

A draw is one resample of the items. For each draw and label, of shape (draws, labels): ``label_hits`` counts the items
of the label that were predicted rightly, ``golds`` the items of the label, and ``guesses`` the predictions of it.
"""


def _find_pair_statistic(function: Aggregation) -> PairStatistic | None:
    """Return the vectorised form of a metric of (gold, predicted) pairs; None for other metrics."""
    from lm_eval.api import metrics

    statistics: dict[object, PairStatistic] = {
        metrics.matthews_corrcoef: _compute_mcc,
        metrics.f1_score: _compute_f1,
        **_LABEL_STATISTICS,
    }
    return statistics.get(function)


def _estimate_clustered_pair_stderr(
    statistic: PairStatistic, items: Sequence[Any], clusters: Clusters
) -> float:
    """Return the standard error of a metric of pairs, over draws of whole clusters."""
    pairs = list(Counter(map(tuple, items)))
    number_by_pair = {pair: number for number, pair in enumerate(pairs)}
    cluster_counts = np.zeros((clusters.count, len(pairs)))  # of each pair in each cluster
    for cluster, item in zip(clusters.numbers, items, strict=True):
        cluster_counts[cluster, number_by_pair[tuple(item)]] += 1
    generator = np.random.default_rng(_SEED)
    equal_weights = np.full(clusters.count, 1 / clusters.count)
    draws = generator.multinomial(clusters.count, equal_weights, size=RESAMPLES)
    values = _compute_from_counts(statistic, pairs, draws.astype(np.float64) @ cluster_counts)
    return float(np.std(values, ddof=1))


def _estimate_pair_stderr(statistic: PairStatistic, items: Sequence[Any]) -> float:
    """Return the standard error of a metric of pairs, over draws of items."""
    count_by_pair = Counter(map(tuple, items))
    counts = np.array(list(count_by_pair.values()), dtype=np.float64)
    generator = np.random.default_rng(_SEED)
    draws = generator.multinomial(len(items), counts / counts.sum(), size=RESAMPLES)
    values = _compute_from_counts(statistic, list(count_by_pair), draws.astype(np.float64))
    return float(np.std(values, ddof=1))


def _compute_from_counts(
    statistic: PairStatistic, pairs: Sequence[tuple[Hashable, Hashable]], pair_counts: Floats
) -> Floats:
    """Return a metric of every draw; ``pair_counts``, (draws, pairs), says how often each pair is in each draw."""
    distinct_labels = set(itertools.chain.from_iterable(pairs))
    labels = sorted(distinct_labels, key=str)
    gold = np.array([_match_labels(pair[0], labels) for pair in pairs], dtype=np.float64)
    predicted = np.array([_match_labels(pair[1], labels) for pair in pairs], dtype=np.float64)
    return statistic(
        pair_counts @ (gold * predicted), pair_counts @ gold, pair_counts @ predicted, labels
    )


def _match_labels(answer: Hashable, labels: Sequence[object]) -> list[bool]:
    """Return for each label whether it is the answer."""
    return [answer == label for label in labels]


def _compute_from_items(statistic: PairStatistic, items: Sequence[Any]) -> float:
    """Return a metric of (gold, predicted) pairs, one for each item."""
    count_by_pair = Counter(map(tuple, items))
    pair_counts = np.array([list(count_by_pair.values())], dtype=np.float64)
    return float(_compute_from_counts(statistic, list(count_by_pair), pair_counts)[0])


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotients; a division by zero gives 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _compute_mcc(
    label_hits: Floats, golds: Floats, guesses: Floats, labels: list[object]
) -> Floats:
    total = golds.sum(axis=1)
    numerator = label_hits.sum(axis=1) * total - (golds * guesses).sum(axis=1)
    gold_spread = total**2 - (golds**2).sum(axis=1)
    guess_spread = total**2 - (guesses**2).sum(axis=1)
    return _divide(numerator, np.sqrt(gold_spread * guess_spread))


def _compute_f1(label_hits: Floats, golds: Floats, guesses: Floats, labels: list[object]) -> Floats:
    is_positive = np.array([label == 1 for label in labels], dtype=np.float64)
    return _divide(2 * label_hits @ is_positive, (golds + guesses) @ is_positive)


def _compute_macro_f1(
    label_hits: Floats, golds: Floats, guesses: Floats, labels: list[object]
) -> Floats:
    denominator = golds + guesses
    classes = (denominator > 0).sum(axis=1)
    return np.asarray(_divide(2 * label_hits, denominator).sum(axis=1) / classes, dtype=np.float64)


def _compute_balanced_accuracy(
    label_hits: Floats, golds: Floats, guesses: Floats, labels: list[object]
) -> Floats:
    classes = (golds > 0).sum(axis=1)
    return np.asarray(_divide(label_hits, golds).sum(axis=1) / classes, dtype=np.float64)


# Metrics of labelled texts beside accuracy, of (gold, predicted) pairs: the mean F1 and the mean recall of the classes.
# In both, each class counts the same however rare it is.
LABEL_METRICS: dict[str, Callable[[Sequence[object]], float]] = {
    "macro_f1": partial(_compute_from_items, _compute_macro_f1),
    "balanced_accuracy": partial(_compute_from_items, _compute_balanced_accuracy),
}
_LABEL_STATISTICS: dict[object, PairStatistic] = {
    LABEL_METRICS["macro_f1"]: _compute_macro_f1,
    LABEL_METRICS["balanced_accuracy"]: _compute_balanced_accuracy,
}


# --- other resampled errors ------------------------------------------------------------------------------------------


def _estimate_ratio_stderr(items: Sequence[object], *, exponent: bool) -> float:
    """Return the bootstrapped error of bits per byte or, with ``exponent``, of a perplexity.

    Each item is (log-likelihood, size). Both metrics are made of the ratio of the sums of these.
    """
    logprobs, sizes = np.asarray(items, dtype=np.float64).T
    generator = np.random.default_rng(_SEED)
    equal_weights = np.full(len(items), 1 / len(items))
    ratios = np.empty(0)
    for _ in range(RESAMPLES // RESAMPLES_IN_MEMORY):
        draws = generator.multinomial(len(items), equal_weights, size=RESAMPLES_IN_MEMORY)
        ratios = np.append(ratios, -(draws @ logprobs) / (draws @ sizes))
    values = np.exp(ratios) if exponent else ratios / math.log(2)
    return float(np.std(values, ddof=1))


def _estimate_resampled_stderr(
    function: Aggregation, items: Sequence[object], resamples: int
) -> float:
    """Return the bootstrapped error of any metric, computed once for each resample."""
    generator = np.random.default_rng(_SEED)
    values = []
    for _ in range(resamples):
        drawn_positions = generator.integers(len(items), size=len(items))
        values.append(function([items[position] for position in drawn_positions]))
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1))

"""From answers to scores: what an item is worth, and lm-eval's aggregations to the last digit with fast errors."""

from __future__ import annotations

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

PER_TOKEN = "acc_token"  # accuracy where the answer of the lowest perplexity per token is chosen
RESAMPLES = 500  # lm-eval takes 100,000; a standard error needs two digits
SLOW_RESAMPLES = 100  # of metrics of whole texts, which take long
RESAMPLES_AT_ONCE = 50  # for the memory
LARGEST_EXPONENT = 700.0
_SEED = 1234

# --- one item --------------------------------------------------------------------------------------------------------


def metric_key(metric: str, filter_name: str, filters: int) -> str:
    """Name a metric; with several filters, the filter is part of it (``exact_match|strict-match``)."""
    return metric if filters == 1 else f"{metric}|{filter_name}"


def to_plain_values(value: Any) -> Any:
    """Turn an item's value into plain JSON values, unchanged in worth."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [to_plain_values(inner) for inner in value]
    if isinstance(value, dict):
        return {str(name): to_plain_values(inner) for name, inner in value.items()}
    return value


def item_value(metric: str, value: Any) -> float:
    """Reduce one item's value to one number: 1.0 for agreement where the metric is one of a set (mcc, f1)."""
    name = metric.split("|")[0]
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, list):
        return math.nan
    if len(value) == 2 and not isinstance(value[0], list):
        if name == "bits_per_byte":
            return float(-value[0] / max(value[1], 1) / math.log(2))
        if name in {"byte_perplexity", "word_perplexity"}:
            return math.exp(min(LARGEST_EXPONENT, -value[0] / max(value[1], 1)))
        return float(value[0] == value[1])
    if value and all(isinstance(number, (bool, int, float)) for number in value):
        return float(np.mean(value))
    return math.nan


def choose_answer(metric: str, choices: Sequence[str], answers: Sequence[Any]) -> int:
    """Return the place of the answer that a metric takes: the likeliest, by length or tokens where it divides by them.

    ``answers`` are (log-likelihood, greedy?) pairs that may know how many tokens they have.
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
    for answer, size in zip(answers, sizes, strict=True):
        logprobs.append(answer[0] / size if size else answer[0] * math.inf)
    # as np.argmax, which takes ten times as long for a few numbers: the first that is no number, or the first largest
    for choice, logprob in enumerate(logprobs):
        if logprob != logprob:
            return choice
    return logprobs.index(max(logprobs))


def choice_values(
    choices: Sequence[str],
    answers: Sequence[Any],
    *,
    gold: Sequence[int],
    present: Mapping[str, Any],
    requested: Collection[Any],
) -> dict[str, Any]:
    """Return what any multiple-choice item has beside the metrics that are present: accuracies, the Brier score.

    ``requested`` may ask for accuracy per token and for the metrics of labelled texts.
    """
    accuracies = ["acc", "acc_norm"] if all(choices) else ["acc"]
    missing = [metric for metric in accuracies if metric not in present]
    if PER_TOKEN in requested:
        missing.append(PER_TOKEN)
    values: dict[str, Any] = {}
    for metric in missing:
        values[metric] = float(choose_answer(metric, choices, answers) in gold)
    if len(gold) == 1:
        logprobs = np.array([answer[0] for answer in answers], dtype=np.float64)
        shares = np.exp(logprobs - logprobs.max())
        shares /= shares.sum()
        shares[gold[0]] -= 1.0
        values["brier_score"] = float(np.sum(shares**2))
        for metric in LABEL_METRICS:
            if metric in requested:
                values[metric] = [gold[0], int(np.argmax(logprobs))]
    return values


# --- all items -------------------------------------------------------------------------------------------------------


def score_outcomes(
    outcomes: Sequence[ItemOutcome],
    aggregations: Mapping[str, Any],
    metric_named: Callable[[str], Metric],
) -> dict[str, Score]:
    """Aggregate graded items into all metrics that they have, by the functions that lm-eval names for them."""
    from lm_eval.api.metrics import mean

    values_by_metric: dict[str, list[Any]] = {}
    labels_by_metric: dict[str, list[Hashable]] = {}
    for outcome in outcomes:
        label = outcome.cluster or outcome.doc_id  # an example without a passage stands alone
        for name, value in outcome.detail["metrics"].items():
            values_by_metric.setdefault(name, []).append(value)
            labels_by_metric.setdefault(name, []).append(label)
    functions = {**aggregations, **LABEL_METRICS, "brier_score": np.mean}
    scores = {}
    for name, items in values_by_metric.items():
        function = functions.get(name.split("|")[0], mean)
        value, error = aggregate_items(function, items, labels_by_metric[name])
        scores[name] = Score(value, error, len(items), metric_named(name))
    return scores


def pool_scores(scores: Sequence[Score], *, by_size: bool) -> Score:
    """Return a group's score as lm-eval takes it, with the pooled standard error."""
    from lm_eval.api.metrics import (
        aggregate_subtask_metrics,
        pooled_sample_stderr,
        unweighted_mean_stderr,
    )

    sizes = [score.n for score in scores]
    errors = [score.stderr for score in scores]
    value = float(aggregate_subtask_metrics([score.value for score in scores], sizes, by_size))
    if any(math.isnan(error) for error in errors):
        pooled_error = math.nan
    elif by_size:
        pooled_error = float(pooled_sample_stderr(errors, sizes))
    else:
        pooled_error = float(unweighted_mean_stderr(errors))
    return Score(value, pooled_error, sum(sizes), scores[0].metric)


def aggregate_items(
    function: Aggregation, items: Sequence[Any], labels: Sequence[Hashable] = ()
) -> tuple[float, float]:
    """Return value and standard error of one metric over the items; those with the same label share a passage."""
    value = float(function(items))
    if len(set(labels)) < len(labels):
        return value, estimate_clustered_stderr(function, items, labels)
    return value, estimate_stderr(function, items)


def estimate_clustered_stderr(
    function: Aggregation, items: Sequence[Any], labels: Sequence[Hashable]
) -> float:
    """Estimate the standard error of a metric over items in clusters: NaN where there is one cluster, or no rule.

    Means have the closed form of ``potentia.values.clusters``. Other metrics are resampled by whole clusters.
    """
    from lm_eval.api import metrics

    clusters = Clusters.from_labels(labels)
    if clusters.count < 2:
        return math.nan
    if function in (np.mean, metrics.mean):
        return clustered_error(items, clusters)
    statistic = _pair_statistic(function)
    if statistic is not None:
        return _clustered_pair_stderr(statistic, items, clusters)
    unclustered_error = estimate_stderr(function, items)
    if math.isnan(unclustered_error) or function is metrics.acc_all:  # it groups by itself
        return unclustered_error
    members = [np.flatnonzero(clusters.numbers == number) for number in range(clusters.count)]
    generator = np.random.default_rng(_SEED)
    values = []
    for _ in range(SLOW_RESAMPLES):
        drawn = generator.integers(clusters.count, size=clusters.count)
        places = np.concatenate([members[number] for number in drawn])
        values.append(float(function([items[place] for place in places])))
    return float(np.std(values, ddof=1))


def estimate_stderr(function: Aggregation, items: Sequence[Any]) -> float:
    """Estimate the standard error as lm-eval does, with its bootstraps vectorised and seeded.

    Means have a closed form. mcc and f1 depend on the counts of (gold, predicted) pairs alone, so resampling items is
    one multinomial draw of those counts. Bits per byte and perplexities are ratios of sums. NaN where there is none.
    """
    from lm_eval.api import metrics

    if len(items) < 2:
        return math.nan
    if function in (np.mean, metrics.mean):
        return float(metrics.mean_stderr(items))
    if function is metrics.acc_all:
        return float(metrics.acc_all_stderr(items))
    statistic = _pair_statistic(function)
    if statistic is not None:
        return _pair_stderr(statistic, items)
    if function in (metrics.bits_per_byte, metrics.weighted_perplexity):
        return _ratio_stderr(items, exponent=function is metrics.weighted_perplexity)
    if function in (metrics.perplexity, metrics.median, metrics.nanmean):
        return _resampled_stderr(function, items, RESAMPLES)
    if function in (metrics.bleu, metrics.chrf, metrics.chrfpp, metrics.ter):
        return _resampled_stderr(function, items, SLOW_RESAMPLES)
    return math.nan


# --- statistics of (gold, predicted) pairs ---------------------------------------------------------------------------

PairStatistic = Callable[[Floats, Floats, Floats, list[Any]], Floats]
"""Takes, by class, right answers, gold labels and predictions of every draw, (draws, classes) each, and the labels."""


def _pair_statistic(function: Aggregation) -> PairStatistic | None:
    """Return the vectorised form of a metric of (gold, predicted) pairs; None for other metrics."""
    from lm_eval.api import metrics

    statistics: dict[Any, PairStatistic] = {
        metrics.matthews_corrcoef: _mcc,
        metrics.f1_score: _f1,
        **_LABEL_STATISTICS,
    }
    return statistics.get(function)


def _clustered_pair_stderr(
    statistic: PairStatistic, items: Sequence[Any], clusters: Clusters
) -> float:
    """Return the standard error of a statistic of pairs over draws of whole clusters."""
    pairs = Counter(map(tuple, items))
    number_by_pair = {pair: number for number, pair in enumerate(pairs)}
    counts = np.zeros((clusters.count, len(pairs)))
    for cluster, item in zip(clusters.numbers, items, strict=True):
        counts[cluster, number_by_pair[tuple(item)]] += 1
    generator = np.random.default_rng(_SEED)
    equal_weights = np.full(clusters.count, 1 / clusters.count)
    draws = generator.multinomial(clusters.count, equal_weights, size=RESAMPLES)
    values = _compute_from_counts(statistic, pairs, draws.astype(np.float64) @ counts)
    return float(np.std(values, ddof=1))


def _pair_stderr(statistic: PairStatistic, items: Sequence[Any]) -> float:
    pairs = Counter(map(tuple, items))
    counts = np.array(list(pairs.values()), dtype=np.float64)
    generator = np.random.default_rng(_SEED)
    draws = generator.multinomial(len(items), counts / counts.sum(), size=RESAMPLES)
    values = _compute_from_counts(statistic, pairs, draws.astype(np.float64))
    return float(np.std(values, ddof=1))


def _compute_from_counts(statistic: PairStatistic, pairs: Counter[Any], draws: Floats) -> Floats:
    """Take a statistic of draws, which say how often each of the pairs is in them."""
    distinct = {label for pair in pairs for label in pair}
    labels = sorted(distinct, key=str)
    gold = np.array([[pair[0] == label for label in labels] for pair in pairs], dtype=np.float64)
    predicted = np.array(
        [[pair[1] == label for label in labels] for pair in pairs], dtype=np.float64
    )
    return statistic(draws @ (gold * predicted), draws @ gold, draws @ predicted, labels)


def _compute_from_pairs(statistic: PairStatistic, items: Sequence[Any]) -> float:
    pairs = Counter(map(tuple, items))
    counts = np.array([list(pairs.values())], dtype=np.float64)
    return float(_compute_from_counts(statistic, pairs, counts)[0])


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    """Divide; nothing of nothing is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _mcc(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    total = golds.sum(axis=1)
    numerator = hits.sum(axis=1) * total - (golds * guesses).sum(axis=1)
    gold_spread = total**2 - (golds**2).sum(axis=1)
    guess_spread = total**2 - (guesses**2).sum(axis=1)
    return _divide(numerator, np.sqrt(gold_spread * guess_spread))


def _f1(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    is_positive = np.array([label == 1 for label in labels], dtype=np.float64)
    return _divide(2 * hits @ is_positive, (golds + guesses) @ is_positive)


def _macro_f1(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    denominator = golds + guesses
    classes = (denominator > 0).sum(axis=1)
    return np.asarray(_divide(2 * hits, denominator).sum(axis=1) / classes, dtype=np.float64)


def _balanced_accuracy(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    classes = (golds > 0).sum(axis=1)
    return np.asarray(_divide(hits, golds).sum(axis=1) / classes, dtype=np.float64)


# Metrics of labelled texts beside accuracy, of (gold, predicted) pairs: the mean F1 of the classes, each of which
# counts the same however rare it is, and the mean of their recalls.
LABEL_METRICS: dict[str, Callable[[Sequence[Any]], float]] = {
    "macro_f1": partial(_compute_from_pairs, _macro_f1),
    "balanced_accuracy": partial(_compute_from_pairs, _balanced_accuracy),
}
_LABEL_STATISTICS: dict[Any, PairStatistic] = {
    LABEL_METRICS["macro_f1"]: _macro_f1,
    LABEL_METRICS["balanced_accuracy"]: _balanced_accuracy,
}


# --- other resampled errors ------------------------------------------------------------------------------------------


def _ratio_stderr(items: Sequence[Any], *, exponent: bool) -> float:
    """Return the bootstrapped error of a ratio of sums: of bits per byte, or with ``exponent`` of a perplexity."""
    logprobs, sizes = np.asarray(items, dtype=np.float64).T
    generator = np.random.default_rng(_SEED)
    equal_weights = np.full(len(items), 1 / len(items))
    ratios = np.empty(0)
    for _ in range(RESAMPLES // RESAMPLES_AT_ONCE):
        draws = generator.multinomial(len(items), equal_weights, size=RESAMPLES_AT_ONCE)
        ratios = np.append(ratios, -(draws @ logprobs) / (draws @ sizes))
    values = np.exp(ratios) if exponent else ratios / math.log(2)
    return float(np.std(values, ddof=1))


def _resampled_stderr(function: Aggregation, items: Sequence[Any], resamples: int) -> float:
    generator = np.random.default_rng(_SEED)
    values = []
    for _ in range(resamples):
        places = generator.integers(len(items), size=len(items))
        values.append(function([items[index] for index in places]))
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1))

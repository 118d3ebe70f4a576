"""From answers to scores: what an item is worth, and lm-eval's aggregations to the last digit with fast errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import TaskError
from potentia.values.metric import Metric
from potentia.values.scores import ItemOutcome, Score

Floats = npt.NDArray[np.float64]
PER_TOKEN = "acc_token"  # accuracy where the answer of the lowest perplexity per token is chosen
RESAMPLES = 500  # lm-eval takes 100,000; a standard error needs two digits
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
        return [to_plain_values(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_plain_values(v) for k, v in value.items()}
    return value


def item_value(metric: str, value: Any) -> float:
    """Reduce one item's value to one number: 1.0 for agreement where the metric is one of a set (mcc, f1)."""
    name = metric.split("|")[0]
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, list) and len(value) == 2 and not isinstance(value[0], list):
        if name == "bits_per_byte":
            return float(-value[0] / max(value[1], 1) / math.log(2))
        if name in {"byte_perplexity", "word_perplexity"}:
            return math.exp(min(700.0, -value[0] / max(value[1], 1)))
        return float(value[0] == value[1])
    if isinstance(value, list) and value and all(isinstance(v, (bool, int, float)) for v in value):
        return float(np.mean(value))
    return math.nan


def choose_answer(metric: str, choices: Sequence[str], given: Sequence[Any]) -> int:
    """Return the place of the answer that a metric takes: the likeliest, by length or tokens where it divides by them.

    ``given`` are (log-likelihood, greedy?) pairs that may know how many tokens they have.
    """
    sizes = [1] * len(given)
    if metric == "acc_norm":
        sizes = [len(choice) for choice in choices]
    if metric == PER_TOKEN:
        sizes = [getattr(answer, "tokens", 0) for answer in given]
        if not all(sizes):
            raise TaskError(
                "these answers do not say how many tokens they have",
                hint="ask for blank_ppl:character",
            )
    logprobs = [
        answer[0] / size if size else answer[0] * math.inf
        for answer, size in zip(given, sizes, strict=True)
    ]
    # as np.argmax, which takes ten times as long for a few numbers: the first that is no number, or the first largest
    return next(
        (k for k, value in enumerate(logprobs) if value != value), logprobs.index(max(logprobs))
    )


def choice_values(
    choices: Sequence[str],
    given: Sequence[Any],
    gold: Sequence[int],
    have: Mapping[str, Any],
    more: Collection[Any],
) -> dict[str, Any]:
    """Return what any multiple-choice item has beside the metrics it names: accuracies, the Brier score.

    ``more`` may ask for accuracy per token and for the metrics of labelled texts.
    """
    named = {"acc", "acc_norm"} if all(choices) else {"acc"}
    wanted = [m for m in ("acc", "acc_norm") if m in named - have.keys()] + [PER_TOKEN] * (
        PER_TOKEN in more
    )
    values: dict[str, Any] = {
        metric: float(choose_answer(metric, choices, given) in gold) for metric in wanted
    }
    if len(gold) == 1:
        logprobs = np.array([answer[0] for answer in given], dtype=np.float64)
        shares = np.exp(logprobs - logprobs.max())
        shares /= shares.sum()
        shares[gold[0]] -= 1.0
        values["brier_score"] = float(np.sum(shares**2))
        values |= {
            name: [gold[0], int(np.argmax(logprobs))] for name in LABEL_METRICS if name in more
        }
    return values


# --- all items -------------------------------------------------------------------------------------------------------


def score_outcomes(
    outcomes: Sequence[ItemOutcome],
    aggregations: Mapping[str, Any],
    metric_of: Callable[[str], Metric],
) -> dict[str, Score]:
    """Aggregate graded items into all metrics that they have, by the functions that lm-eval names for them."""
    from lm_eval.api.metrics import mean

    values: dict[str, list[Any]] = {}
    for outcome in outcomes:
        for name, value in outcome.detail["metrics"].items():
            values.setdefault(name, []).append(value)
    functions = {**aggregations, **LABEL_METRICS, "brier_score": np.mean}
    made = {}
    for name, items in values.items():
        function = functions.get(name.split("|")[0], mean)
        made[name] = Score(*aggregate_items(function, items), len(items), metric_of(name))
    return made


def pool_scores(scores: Sequence[Score], *, by_size: bool) -> Score:
    """Return a group's score as lm-eval takes it, with the pooled standard error."""
    from lm_eval.api.metrics import (
        aggregate_subtask_metrics,
        pooled_sample_stderr,
        unweighted_mean_stderr,
    )

    sizes, errors = [score.n for score in scores], [score.stderr for score in scores]
    value = float(aggregate_subtask_metrics([score.value for score in scores], sizes, by_size))
    if any(math.isnan(error) for error in errors):
        error = math.nan
    else:
        error = float(
            pooled_sample_stderr(errors, sizes) if by_size else unweighted_mean_stderr(errors)
        )
    return Score(value, error, sum(sizes), scores[0].metric)


def aggregate_items(
    function: Callable[[Sequence[Any]], Any], items: Sequence[Any]
) -> tuple[float, float]:
    """Return value and standard error of one metric over the items."""
    return float(function(items)), estimate_stderr(function, items)


def estimate_stderr(function: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> float:
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
    of_pairs = {metrics.matthews_corrcoef: _mcc, metrics.f1_score: _f1}
    if (statistic := of_pairs.get(function) or _STATISTICS.get(function)) is not None:
        pairs = Counter(map(tuple, items))
        counts = np.array(list(pairs.values()), dtype=np.float64)
        draws = np.random.default_rng(_SEED).multinomial(
            len(items), counts / counts.sum(), size=RESAMPLES
        )
        return float(np.std(_of_counts(statistic, pairs, draws.astype(np.float64)), ddof=1))
    if function in (metrics.bits_per_byte, metrics.weighted_perplexity):
        return _ratio_stderr(items, exponent=function is metrics.weighted_perplexity)
    if function in (metrics.perplexity, metrics.median, metrics.nanmean):
        return _resampled_stderr(function, items, RESAMPLES)
    if function in (metrics.bleu, metrics.chrf, metrics.chrfpp, metrics.ter):
        return _resampled_stderr(function, items, 100)
    return math.nan


# Statistics of (gold, predicted) pairs: each takes, by class, the right answers, gold labels and predictions of every
# draw, (draws, classes) each, and the labels.
Statistic = Callable[[Floats, Floats, Floats, list[Any]], Floats]


def _of_counts(statistic: Statistic, pairs: Counter[Any], draws: Floats) -> Floats:
    """Take a statistic of draws, which say how often each of the pairs is in them."""
    labels = sorted({label for pair in pairs for label in pair}, key=str)
    gold = np.array([[pair[0] == label for label in labels] for pair in pairs], dtype=np.float64)
    predicted = np.array(
        [[pair[1] == label for label in labels] for pair in pairs], dtype=np.float64
    )
    return statistic(draws @ (gold * predicted), draws @ gold, draws @ predicted, labels)


def _of_pairs(statistic: Statistic, items: Sequence[Any]) -> float:
    pairs = Counter(map(tuple, items))
    return float(
        _of_counts(statistic, pairs, np.array([list(pairs.values())], dtype=np.float64))[0]
    )


def _share(over: Floats, under: Floats) -> Floats:
    """Divide; nothing of nothing is 0."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _mcc(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    n = golds.sum(axis=1)
    over = hits.sum(axis=1) * n - (golds * guesses).sum(axis=1)
    under = (n**2 - (golds**2).sum(axis=1)) * (n**2 - (guesses**2).sum(axis=1))
    return _share(over, np.sqrt(under))


def _f1(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    one = np.array([label == 1 for label in labels], dtype=np.float64)
    return _share(2 * hits @ one, (golds + guesses) @ one)


def _macro_f1(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    under = golds + guesses
    return np.asarray(
        _share(2 * hits, under).sum(axis=1) / (under > 0).sum(axis=1), dtype=np.float64
    )


def _balanced(hits: Floats, golds: Floats, guesses: Floats, labels: list[Any]) -> Floats:
    return np.asarray(_share(hits, golds).sum(axis=1) / (golds > 0).sum(axis=1), dtype=np.float64)


# Metrics of labelled texts beside accuracy, of (gold, predicted) pairs: the mean F1 of the classes, each of which
# counts the same however rare it is, and the mean of their recalls.
LABEL_METRICS: dict[str, Callable[[Sequence[Any]], float]] = {
    "macro_f1": partial(_of_pairs, _macro_f1),
    "balanced_accuracy": partial(_of_pairs, _balanced),
}
_STATISTICS = dict(zip(LABEL_METRICS.values(), (_macro_f1, _balanced), strict=True))


def _ratio_stderr(items: Sequence[Any], *, exponent: bool) -> float:
    logprobs, sizes = np.asarray(items, dtype=np.float64).T
    rng, even = np.random.default_rng(_SEED), np.full(len(items), 1 / len(items))
    ratios = np.empty(0)
    for _ in range(RESAMPLES // 50):  # in parts, for the memory
        draws = rng.multinomial(len(items), even, size=50)
        ratios = np.append(ratios, -(draws @ logprobs) / (draws @ sizes))
    return float(np.std(np.exp(ratios) if exponent else ratios / math.log(2), ddof=1))


def _resampled_stderr(
    function: Callable[[Sequence[Any]], Any], items: Sequence[Any], resamples: int
) -> float:
    rng = np.random.default_rng(_SEED)
    values = [
        function([items[i] for i in rng.integers(len(items), size=len(items))])
        for _ in range(resamples)
    ]
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1))

"""What is known of metrics: which one speaks for a task, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from potentia.facts import benchmark

# Metrics where less is better, by the names that lm-eval, the papers and Potentia use.
LOWER_IS_BETTER = frozenset(
    {"bits_per_byte", "bpb", "byte_perplexity", "word_perplexity", "perplexity", "ppl", "brier_score", "brier", "loss"}
    | {"nll", "ter", "wer", "cer", "mse", "rmse", "mae", "log_loss"}
)

# The corpora of the train-before-test paper, scored in bits per byte.
CORPORA = frozenset(
    {"wiki", "stack", "arxiv", "stackexchange", "wikipedia", "wiki_2025", "stackexchange_2025", "arxiv_2025"}
)

# Which metric speaks for a task that no fact describes: the first of these that it has.
_PREFERENCE = (
    "acc_norm", "acc", "exact_match", "em", "mcc", "f1", "bits_per_byte", "byte_perplexity", "word_perplexity",
    "perplexity", "bleu", "rouge1", "score",
)  # fmt: skip


def higher_is_better(task: str, metric: str | None) -> bool:
    """Say which way is better: by the metric where it is known, else by what is known of the benchmark."""
    named = metric or known_metric(task)
    if named is not None:
        return re.split(r"[|,]", named, maxsplit=1)[0].casefold() not in LOWER_IS_BETTER
    return task.casefold() not in CORPORA


def main_metric(task: str, available: Iterable[str]) -> str | None:
    """Return the metric that speaks for a task: the benchmark's own, else the usual one, else the first."""
    names = list(available)
    known = known_metric(task)
    for name in ([known] if known else []) + list(_PREFERENCE):
        if name in names:
            return name
    return names[0] if names else None


@cache
def known_metric(task: str) -> str | None:
    """Return the metric of a known benchmark, with its filter where it needs one: ``exact_match|flexible-extract``."""
    known = benchmark(task)
    return known.metric if known is not None and known.metric else None

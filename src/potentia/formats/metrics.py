"""Which metric a score of a known benchmark is by, where its source does not say it."""

from __future__ import annotations

from functools import cache

from potentia.facts import benchmark
from potentia.values.metric import Metric

# Texts that are scored by how well they are predicted: those of the train-before-test paper, and what tables call them.
CORPORA = frozenset(
    {"wiki", "stack", "arxiv", "stackexchange", "wikipedia", "wiki_2025", "stackexchange_2025", "arxiv_2025"}
    | {"wikitext", "wikitext2", "wikitext-2", "wikitext103", "wikitext-103", "c4", "ptb", "the_pile", "pile"}
)


def metric_of(task: str, name: str | None = None, higher_is_better: bool | None = None) -> Metric:
    """Return the metric of a score: by its name, else as the benchmark is usually scored; what is given wins."""
    named = name or usual_metric(task) or ""
    if not named and task.casefold() in CORPORA and higher_is_better is not True:
        return Metric("", False, "text", "unbounded")
    return Metric.of(named if name else "", Metric.of(named, higher_is_better).higher_is_better)


@cache
def usual_metric(task: str) -> str | None:
    """Return the metric of a known benchmark, with its filter where it needs one: ``exact_match|flexible-extract``."""
    known = benchmark(task)
    return known.metric if known is not None and known.metric else None

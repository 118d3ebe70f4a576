"""Proxy tasks, whole: choose tasks that stand in for one which early models cannot do yet, predict, and test that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from potentia.analysis.checkpoints import find_instruct_versions
from potentia.analysis.left_out import describe_left_out, drop_names_in, join_first_names
from potentia.errors import InputError
from potentia.papers.proxy_tasks import proxies, validation
from potentia.papers.proxy_tasks.options import ProxyOptions
from potentia.papers.proxy_tasks.proxies import (
    METRICS,
    ProxyTasks,
    Robustness,
    SamplingConsistency,
    Transform,
)
from potentia.papers.proxy_tasks.validation import Forecast, TooFewError, Validation
from potentia.values.findings import Findings
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

TOP = 10  # t of the paper's algorithm 1


def _list_configurations(options: ProxyOptions) -> Sequence[tuple[int, int]]:
    """Return the (n, k) of algorithm 1."""
    if not options.sampled and not options.rounds:
        return proxies.PAPER_CONFIGURATIONS
    sample_sizes = options.sampled or proxies.PAPER_SAMPLED
    sample_counts = options.rounds or proxies.PAPER_ROUNDS
    return list(product(sample_sizes, sample_counts))


def _choose_transform(options: ProxyOptions) -> Transform:
    """Return f(R) of S = C · f(R)."""
    known = {"log": proxies.log_ratio, "none": proxies.ignore_robustness}
    return known.get(options.weigh, proxies.sigmoid(options.steepness))


@dataclass(frozen=True)
class Proxies(Findings):
    """What algorithm 1 says of the measures, the chosen tasks, and how well they predict."""

    sampling: SamplingConsistency | None
    robustness: Robustness | None
    proxies: ProxyTasks
    forecast: Forecast | None
    validation: Validation | None
    problems: tuple[str, ...]


def find_proxies(
    evidence: Evidence, options: ProxyOptions, truth: Evidence | None = None
) -> Proxies:
    """Choose proxy tasks for a target, weigh them, predict the early models, and test the choice against perplexity.

    ``truth`` holds later scores of the early models under the same names, or of their chat versions. With ``on``, the
    target is what chat models score, and the candidates what their base models do (or they themselves).
    """
    target, protocol = options.target, Protocol(options.protocol)
    whole = evidence.narrowed(protocols=[protocol]).scores[protocol]
    rivals = list(whole.corpora().tasks if options.corpora is None else options.corpora)
    wanted = [
        task for task in options.candidates or drop_names_in(whole.tasks, rivals) if task != target
    ]
    small = {*options.data_group, *options.seed_group, *options.early}
    others = whole.select(models=drop_names_in(whole.models, small))
    couples = _couples(evidence, options)
    reference = others
    if options.on != "same":
        reference = validation.join_pairs(others, couples, target, wanted).matrix(
            options.on, wanted
        )
    sampled = _sampling(reference, options, wanted)
    chosen = (
        sampled.chosen
        if sampled is not None and options.correlation == "auto"
        else options.correlation
    )
    robust = None
    if options.data_group or options.seed_group:
        groups = list(options.data_group), list(options.seed_group)
        robust = proxies.measure_robustness(whole.select(tasks=wanted), *groups)
    choice: dict[str, Any] = {
        "metric": chosen if chosen in METRICS else "kendall",
        "how": options.normalise,
        "robust": robust,
        "min_relevance": options.min_relevance,
        "min_robustness": options.min_robustness,
        "transform": _choose_transform(options),
        "top": options.keep,
    }
    tasks = proxies.choose_proxies(reference, target, wanted, **choice)
    problems, forecast, judged = _unused(reference, options, wanted, others, couples), None, None
    if not tasks.weights:
        problems.append(
            "no task passed the thresholds: lower --min-relevance or --min-robustness to predict"
        )
    elif options.early:
        known = _later(truth, options, couples) if truth is not None else {}
        early = whole.select(models=options.early)
        forecast = validation.make_forecast(
            tasks.weights, early, target, truth=known, corpora=rivals
        )
    families = evidence.background.families if options.families else {}
    paired: dict[str, Any] = {
        "corpora": rivals,
        "pairs": couples or None,
        "groups": families,
        "splits": options.splits,
    }
    try:
        judged = validation.validate(others, target, wanted, **paired, **choice)
    except TooFewError:
        problems.append(
            f"no test on other models: fewer than {validation.LEAST_MODELS} have all scores"
        )
    return Proxies(sampled, robust, tasks, forecast, judged, tuple(problems))


def _unused(
    reference: ScoreMatrix,
    options: ProxyOptions,
    wanted: Sequence[str],
    others: ScoreMatrix,
    couples: Mapping[str, str],
) -> list[str]:
    """Say who takes no part in choosing proxies, and why."""
    reasons: dict[str, list[str]] = {}
    if options.on != "same":
        reasons["in no pair of base and chat"] = drop_names_in(
            others.models, {*couples, *couples.values()}
        )
        reasons["not scored on both sides of the pair"] = drop_names_in(couples, reference.models)
    used = reference.select(tasks=[options.target, *wanted])
    for model, row in zip(used.models, np.isnan(used.values), strict=True):
        if row.any():
            reasons.setdefault(
                f"no score on {join_first_names(list(compress(used.tasks, row)), 2)}", []
            ).append(model)
    return list(describe_left_out(reasons))


def _couples(evidence: Evidence, options: ProxyOptions) -> dict[str, str]:
    """Return base → chat: as given, else by what studies and facts tell; none where nothing asks for pairs."""
    if options.on == "same" and not options.pairs:
        return {}
    if not isinstance(options.pairs, bool):
        return dict(options.pairs)
    there = set(evidence.models)
    found = {
        base: chat
        for base, chat in find_instruct_versions(evidence).items()
        if {base, chat} <= there
    }
    if not found:
        raise InputError(
            "no pairs of base and instruct models are known here", hint="name them with --pair-file"
        )
    return found


def _sampling(
    reference: ScoreMatrix, options: ProxyOptions, wanted: Sequence[str]
) -> SamplingConsistency | None:
    """Run algorithm 1, unless the top is all candidates: that is the same in every sample."""
    usable = reference.select(tasks=[options.target, *wanted]).complete()
    asked = _list_configurations(options)
    sizes = asked if options.sampled else [(n, k) for n, k in asked if n <= len(usable.models)]
    top = options.top or min(TOP, len(wanted) // 2)
    if not sizes or not 0 < top < len(wanted):
        return None
    how = cast("proxies.Normalise", options.normalise)
    return proxies.measure_sampling(
        usable, options.target, wanted, top=top, configurations=sizes, how=how
    )


def _later(truth: Evidence, options: ProxyOptions, couples: Mapping[str, str]) -> dict[str, float]:
    """Return the later scores of the early models, or of their chat versions; of the source's only protocol."""
    scores = truth.scores
    matrix = next(
        (m for p, m in scores.items() if p == options.protocol), next(iter(scores.values()))
    )
    column = matrix.select(tasks=[options.target])
    known = {
        m: float(v)
        for m, v in zip(column.models, column.oriented()[:, 0], strict=True)
        if np.isfinite(v)
    }
    names = {m: next((n for n in (couples.get(m), m) if n in known), None) for m in options.early}
    return {m: known[n] for m, n in names.items() if n is not None}

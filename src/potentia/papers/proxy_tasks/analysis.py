"""Proxy tasks, whole: choose tasks that stand in for one which early models cannot do yet, predict, and test that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from potentia.analysis.checkpoints import find_instruct_versions
from potentia.analysis.left_out import describe_left_out, drop_names_in, join_first_names
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.errors import InputError
from potentia.facts import CATEGORIES
from potentia.papers.proxy_tasks import proxies, validation
from potentia.papers.proxy_tasks.capabilities import find_capability
from potentia.papers.proxy_tasks.options import ProxyOptions
from potentia.papers.proxy_tasks.proxies import (
    METRICS,
    TOP,
    ProxyTasks,
    Robustness,
    SamplingConsistency,
    Transform,
)
from potentia.papers.proxy_tasks.validation import Forecast, TooFewError, Validation
from potentia.values.findings import Findings
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence


def _list_configurations(options: ProxyOptions) -> Sequence[tuple[int, int]]:
    """Return the (n, k) of algorithm 1."""
    if not options.sampled and not options.rounds:
        return proxies.PAPER_CONFIGURATIONS
    sample_sizes = options.sampled or proxies.PAPER_SAMPLED
    sample_counts = options.rounds or proxies.PAPER_ROUNDS
    return list(product(sample_sizes, sample_counts))


def _choose_transform(options: ProxyOptions) -> Transform:
    """Return f(R) of S = C · f(R)."""
    other_transforms = {"log": proxies.log_ratio, "none": proxies.ignore_robustness}
    return other_transforms.get(options.weigh, proxies.sigmoid(options.steepness))


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

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        options: The target, the candidates and how they are chosen.
        truth: Later scores of the early models under the same names, or of their chat versions. With ``on``, the
            target is what chat models score, and the candidates what their base models do (or they themselves).

    Example:
        >>> potentia.find_proxies("scores.csv", potentia.ProxyOptions(target="gsm8k")).to_frame()
    """
    target = options.target
    protocol = Protocol(options.protocol)
    scores = evidence.narrowed(protocols=[protocol]).scores[protocol]
    rivals = list(scores.corpora().tasks if options.corpora is None else options.corpora)
    named_tasks = options.candidates or drop_names_in(scores.tasks, rivals)
    candidates = [task for task in named_tasks if task != target]
    small_models = {*options.data_group, *options.seed_group, *options.early}
    full_models = scores.select(models=drop_names_in(scores.models, small_models))
    couples = _find_couples(evidence, options)
    reference = full_models
    if options.on != "same":
        joined = validation.join_pairs(full_models, couples, target, candidates)
        reference = joined.join_target(options.on, candidates)
    sampling = _measure_sampling(reference, options, candidates)
    metric: str | None = options.correlation
    if sampling is not None and options.correlation == "auto":
        metric = sampling.chosen
    robustness = None
    if options.data_group or options.seed_group:
        robustness = proxies.measure_robustness(
            scores.select(tasks=candidates), list(options.data_group), list(options.seed_group)
        )
    choice: dict[str, Any] = {
        "metric": metric if metric in METRICS else "kendall",
        "normalisation": options.normalise,
        "robust": robustness,
        "min_relevance": options.min_relevance,
        "min_robustness": options.min_robustness,
        "transform": _choose_transform(options),
        "top_count": options.keep,
    }
    proxy_tasks = proxies.choose_proxies(reference, target, candidates, **choice)
    capabilities = _find_capabilities(evidence, candidates)
    proxy_tasks = replace(proxy_tasks, capabilities=capabilities)
    problems = _list_unused(reference, options, candidates, full_models, couples)
    forecast = None
    if not proxy_tasks.weights:
        problems.append(
            "no task passed the thresholds: lower min_relevance or min_robustness of ProxyOptions to predict"
        )
    elif options.early:
        later_scores = {}
        if truth is not None:
            later_scores = _read_later_scores(truth, options, couples)
        forecast = validation.make_forecast(
            proxy_tasks.weights,
            scores.select(models=options.early),
            target,
            truth=later_scores,
            corpora=rivals,
        )
    families = ModelFamilies.of_evidence(evidence).family_of_model
    validated = None
    try:
        validated = validation.validate(
            full_models,
            target,
            candidates,
            corpora=rivals,
            pairs=couples or None,
            groups=families if options.families else {},
            splits=options.splits,
            **choice,
        )
    except TooFewError:
        problems.append(
            f"no test on other models: fewer than {validation.LEAST_MODELS} have all scores"
        )
    return Proxies(
        sampling=sampling,
        robustness=robustness,
        proxies=proxy_tasks,
        forecast=forecast,
        validation=validated,
        problems=tuple(problems),
    )


def _find_capabilities(evidence: Evidence, tasks: Sequence[str]) -> dict[str, str]:
    """Return the category of every task that has one, by users and facts first, then by the paper's table 1."""
    categories = evidence.background.categories
    capabilities = {}
    for task in tasks:
        category = categories.get(task) or categories.get(TaskName(task).base)
        if category:
            capabilities[task] = CATEGORIES.get(category, category)
            continue
        capability = find_capability(task)
        if capability is not None:
            capabilities[task] = capability
    return capabilities


def _list_unused(
    reference: ScoreMatrix,
    options: ProxyOptions,
    candidates: Sequence[str],
    full_models: ScoreMatrix,
    couples: Mapping[str, str],
) -> list[str]:
    """Say who takes no part in choosing proxies, and why."""
    reasons: dict[str, list[str]] = {}
    if options.on != "same":
        reasons["in no pair of base and chat"] = drop_names_in(
            full_models.models, {*couples, *couples.values()}
        )
        reasons["not scored on both sides of the pair"] = drop_names_in(couples, reference.models)
    used_scores = reference.select(tasks=[options.target, *candidates])
    for model, is_missing in zip(used_scores.models, np.isnan(used_scores.values), strict=True):
        if is_missing.any():
            missing_tasks = list(compress(used_scores.tasks, is_missing))
            reason = f"no score on {join_first_names(missing_tasks, 2)}"
            reasons.setdefault(reason, []).append(model)
    return list(describe_left_out(reasons))


def _find_couples(evidence: Evidence, options: ProxyOptions) -> dict[str, str]:
    """Return base → chat: as given, else by what studies and facts tell; none where nothing asks for pairs."""
    if options.on == "same" and not options.pairs:
        return {}
    if not isinstance(options.pairs, bool):
        return dict(options.pairs)
    scored_models = set(evidence.models)
    couples = {}
    for base_model, chat_model in find_instruct_versions(evidence).items():
        if {base_model, chat_model} <= scored_models:
            couples[base_model] = chat_model
    if not couples:
        raise InputError(
            "no pairs of base and instruct models are known here", hint="name them with --pairs"
        )
    return couples


def _measure_sampling(
    reference: ScoreMatrix, options: ProxyOptions, candidates: Sequence[str]
) -> SamplingConsistency | None:
    """Run algorithm 1, unless the top is all candidates: that is the same in every sample."""
    usable = reference.select(tasks=[options.target, *candidates]).drop_incomplete_models()
    configurations = _list_configurations(options)
    if not options.sampled:
        configurations = [(n, k) for n, k in configurations if n <= len(usable.models)]
    top_count = options.top or min(TOP, len(candidates) // 2)
    if not configurations or not 0 < top_count < len(candidates):
        return None
    return proxies.measure_sampling(
        usable,
        options.target,
        candidates,
        top_count=top_count,
        configurations=configurations,
        normalisation=cast("proxies.Normalise", options.normalise),
    )


def _read_later_scores(
    truth: Evidence, options: ProxyOptions, couples: Mapping[str, str]
) -> dict[str, float]:
    """Return the later scores of the early models, or of their chat versions; of the source's only protocol."""
    matrix = truth.scores.get(Protocol(options.protocol))
    if matrix is None:
        matrix = next(iter(truth.scores.values()))
    column = matrix.select(tasks=[options.target])
    score_by_model = dict(zip(column.models, column.oriented()[:, 0].tolist(), strict=True))
    later_scores = {}
    for model in options.early:
        for model_name in (couples.get(model, model), model):
            score = score_by_model.get(model_name, np.nan)
            if np.isfinite(score):
                later_scores[model] = score
                break
    return later_scores

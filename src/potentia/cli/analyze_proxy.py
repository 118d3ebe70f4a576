"""``potentia analyze proxy``: tasks that stand in for one which early models cannot do yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from potentia.cli.app import analyze
from potentia.cli.output import errors, print_findings
from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.analysis.proxy.relevance import Normalise
    from potentia.scores import ScoreMatrix


@analyze.command()
def proxy(
    scores: Annotated[str, typer.Argument(help="A store, or a score table, of models and tasks.")],
    target: Annotated[str, typer.Option(help="The task to predict.")],
    candidates: Annotated[list[str] | None, typer.Option(help="Candidate tasks; else all other benchmarks.")] = None,
    protocol: Annotated[str, typer.Option(help="The protocol of the scores.")] = "direct",
    corpora: Annotated[
        list[str] | None,
        typer.Option(help="Corpora whose perplexity is the rival; else all tasks where lower is better."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="kendall, spearman, pearson, or auto: what algorithm 1 chooses.")
    ] = "kendall",
    normalise: Annotated[str, typer.Option(help="both (tasks, then models), feature (tasks only), or none.")] = "both",
    top: Annotated[int, typer.Option(min=1, help="Top tasks that algorithm 1 compares.")] = 5,
    keep: Annotated[int | None, typer.Option(min=1, help="Keep at most this many proxies.")] = None,
    data_group: Annotated[list[str] | None, typer.Option(help="Small models trained on different data.")] = None,
    seed_group: Annotated[list[str] | None, typer.Option(help="Small models that differ in their seed only.")] = None,
    early: Annotated[list[str] | None, typer.Option(help="Models to predict, such as early checkpoints.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Scores of the early models later on, in the same names: a store or table.")
    ] = None,
    min_relevance: Annotated[float, typer.Option(help="Keep candidates with a relevance above this.")] = 0.0,
    min_robustness: Annotated[
        float, typer.Option(help="Keep candidates with a variance ratio of at least this.")
    ] = 1.0,
    weigh: Annotated[str, typer.Option(help="f(R): sigmoid, log, or none.")] = "sigmoid",
    steepness: Annotated[float, typer.Option(min=0.0, help="k of the sigmoid 1/(1+exp(-kR)).")] = 1.0,
    pairs: Annotated[
        bool, typer.Option("--pairs/--no-pairs", help="Compare choosing and scoring on base and chat models.")
    ] = False,
    families: Annotated[
        bool, typer.Option("--families/--no-families", help="Keep a model family on one side of every split.")
    ] = False,
    splits: Annotated[int, typer.Option(min=2, help="Random halves of the models.")] = 200,
    study: Annotated[str | None, typer.Option(help="One study of the store.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Choose proxy tasks for a target, weigh them, predict, and test the prediction against perplexity's.

    Examples:
      potentia analyze proxy scores.csv --target gsm8k --protocol train_before_test

      potentia analyze proxy potentia.db --target gsm8k --candidates arc_easy boolq --early run@1000 run@2000
    """
    from potentia.analysis.base_models.lineage import known_pairs
    from potentia.analysis.proxy.forecast import make_forecast
    from potentia.analysis.proxy.proxies import choose_proxies
    from potentia.analysis.proxy.relevance import METRICS
    from potentia.analysis.proxy.robustness import measure_robustness
    from potentia.analysis.proxy.sampling import PAPER_CONFIGURATIONS, measure_sampling
    from potentia.analysis.proxy.validation import validate
    from potentia.cli.selection import read_chosen
    from potentia.facts import models as known_models
    from potentia.findings import Finding

    if metric not in (*METRICS, "auto"):
        raise InputError(f"no metric {metric!r}", hint=f"choose one of: {', '.join(METRICS)}, auto")
    if normalise not in ("both", "feature", "none"):
        raise InputError(f"no normalisation {normalise!r}", hint="choose both, feature or none")
    how = cast("Normalise", normalise)
    whole = read_chosen(scores, study=study, protocols=[protocol])[protocol]
    rivals = corpora if corpora is not None else _corpora(whole)
    wanted = candidates or [task for task in whole.tasks if task != target and task not in rivals]
    small = {*(data_group or ()), *(seed_group or ()), *(early or ())}
    reference = whole.select(models=[model for model in whole.models if model not in small])
    findings: dict[str, Finding] = {}

    usable = reference.select(tasks=[target, *(t for t in wanted if t != target)]).complete()
    sizes = [(n, k) for n, k in PAPER_CONFIGURATIONS if n <= len(usable.models)]
    if sizes and top < len(usable.tasks) - 1:  # the top of all candidates is the same in every sample
        sampled = measure_sampling(usable, target, wanted, top=top, configurations=sizes, how=how)
        findings["sampling"] = sampled
        chosen: Any = sampled.chosen or "kendall" if metric == "auto" else metric
    else:
        chosen = "kendall" if metric == "auto" else metric
    robust = None
    if data_group or seed_group:
        robust = measure_robustness(whole.select(tasks=wanted), data_group or [], seed_group or [])
        findings["robustness"] = robust
    proxies = choose_proxies(
        reference,
        target,
        wanted,
        metric=chosen,
        how=how,
        robust=robust,
        min_relevance=min_relevance,
        min_robustness=min_robustness,
        transform=_transform(weigh, steepness),
        top=keep,
    )
    findings["proxies"] = proxies
    if not proxies.weights:
        errors.print("no task passed the thresholds: lower --min-relevance or --min-robustness to predict")
    elif early:
        known = _truth(truth, protocol, target, early) if truth else None
        findings["forecast"] = make_forecast(
            proxies.weights, whole.select(models=early), target, truth=known, corpora=rivals
        )
    couples = known_pairs(reference.models, known_models()) if pairs else None
    if pairs and not couples:
        raise InputError("no pairs of base and instruct models are known here", hint="leave out --pairs")
    needed = reference.select(tasks=[target, *(t for t in wanted if t != target), *rivals]).complete()
    if len(needed.models) >= 8:
        findings["validation"] = validate(
            reference,
            target,
            wanted,
            corpora=rivals,
            pairs=couples,
            groups=_families(reference.models) if families else None,
            metric=chosen,
            how=how,
            min_relevance=min_relevance,
            top=keep,
            splits=splits,
        )
    print_findings(findings, as_json=as_json)


def _corpora(matrix: ScoreMatrix) -> list[str]:
    return [task for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True) if not up]


def _transform(name: str, steepness: float) -> Any:
    from potentia.analysis.proxy.proxies import ignore_robustness, log_ratio, sigmoid

    known = {"sigmoid": sigmoid(steepness), "log": log_ratio, "none": ignore_robustness}
    if name not in known:
        raise InputError(f"no transformation {name!r}", hint=f"choose one of: {', '.join(known)}")
    return known[name]


def _truth(path: Path, protocol: str, target: str, models: Sequence[str]) -> dict[str, float]:
    """Return the later scores of the early models on the target; of one protocol alone where the file has one only."""
    from potentia.store import read_scores

    scores = read_scores(path)
    matrix = scores[protocol] if protocol in scores else next(iter(scores.values()))
    column = matrix.select(tasks=[target])
    return {m: float(v) for m, v in zip(column.models, column.oriented()[:, 0], strict=True) if m in set(models)}


def _families(models: Sequence[str]) -> dict[str, str]:
    from potentia.facts import models as known_models

    table = known_models()
    return {model: facts.family for model in models if (facts := table.find(model)) and facts.family}

"""``potentia analyze proxy``: tasks that stand in for one which early models cannot do yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import (
    Figures,
    Formats,
    Map,
    Metric,
    Study,
    columns_of,
    draw_figures,
    errors,
    print_findings,
    print_notes,
)


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
    correlation: Annotated[
        str, typer.Option(help="kendall, spearman, pearson, or auto: what algorithm 1 chooses.")
    ] = "kendall",
    normalise: Annotated[str, typer.Option(help="both (tasks, then models), feature (tasks only), or none.")] = "both",
    top: Annotated[
        int | None,
        typer.Option(min=1, help="t of algorithm 1, top tasks compared; 10, or half of the candidates."),
    ] = None,
    sampled: Annotated[
        list[int] | None, typer.Option(min=3, help="n of algorithm 1, models in a sample; else the paper's 6, 8, 10.")
    ] = None,
    rounds: Annotated[
        list[int] | None, typer.Option(min=2, help="k of algorithm 1, samples; else the paper's 25 (and 15, 35).")
    ] = None,
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
    on: Annotated[
        str,
        typer.Option(help="base: candidates on base models, target on their chat versions; chat: both on these; same."),
    ] = "same",
    pair_file: Annotated[
        Path | None, typer.Option(help="CSV with the columns base and instruct; else by studies and facts.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs/--no-pairs", help="Compare choosing and scoring on base and chat models.")
    ] = False,
    families: Annotated[
        bool, typer.Option("--families/--no-families", help="Keep a model family on one side of every split.")
    ] = False,
    splits: Annotated[int, typer.Option(min=2, help="Random halves of the models.")] = 200,
    facts: Annotated[Path | None, typer.Option(help="CSV of model facts beside the built-in ones.")] = None,
    study: Study = None,
    columns: Map = None,
    metric: Metric = None,
    figures: Figures = None,
    format: Formats = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Choose proxy tasks for a target, weigh them, predict, and test the prediction against perplexity's.

    Examples:
      potentia analyze proxy scores.csv --target gsm8k --protocol train_before_test

      potentia analyze proxy potentia.db --target gsm8k --candidates arc_easy boolq --early run@1000 run@2000

      potentia analyze proxy potentia.db --target t_eval --on base --pair-file pairs.csv --families
    """
    from potentia.analysis.base_models import read_pairs
    from potentia.analysis.proxy import Options, find_proxies
    from potentia.evidence import read

    evidence = read(scores, study=study, facts=facts, columns=columns_of(columns), metric=metric)
    print_notes(evidence)
    options = Options(
        target=target,
        candidates=candidates,
        protocol=protocol,
        corpora=corpora,
        correlation=correlation,
        normalise=normalise,
        top=top,
        sampled=sampled or (),
        rounds=rounds or (),
        keep=keep,
        data_group=data_group or (),
        seed_group=seed_group or (),
        early=early or (),
        min_relevance=min_relevance,
        min_robustness=min_robustness,
        weigh=weigh,
        steepness=steepness,
        on=on,
        pairs=read_pairs(pair_file) if pair_file is not None else pairs,
        families=families,
        splits=splits,
    )
    made = find_proxies(evidence, options, read(truth) if truth is not None else None)
    for problem in made.problems:
        errors.print(problem, markup=False)
    found = made.named()
    print_findings(found, as_json=as_json)
    draw_figures(found.values(), figures, format)

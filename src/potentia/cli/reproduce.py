"""``potentia reproduce``: the papers' numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import reproduce
from potentia.cli.output import Figures, Formats, check_formats, draw_figures, print_findings, print_json, print_table

Json = Annotated[bool, typer.Option("--json", help="Print checks and findings as JSON.")]


@reproduce.command("train-before-test")
def train_before_test(
    scores: Annotated[str, typer.Argument(help="The scores published with the paper, or a store of your own runs.")],
    figures: Figures = None,
    format: Formats = None,
    resamples: Annotated[int, typer.Option(min=20, help="Bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: Json = False,
) -> None:
    """Print every number of the train-before-test paper beside the same number from the given scores.

    Examples:
      potentia reproduce train-before-test train_before_test_scores.csv

      potentia reproduce train-before-test train_before_test_scores.csv --figures figures --format pdf png
    """
    from potentia.evidence import read
    from potentia.papers import reproduce_train_before_test

    check_formats(format)
    found = reproduce_train_before_test(read(scores).scores, resamples=resamples, seed=seed)
    if as_json:
        print_json(found)
    else:
        for table in found.tables():
            print_table(table)
    draw_figures([found], figures, format)


@reproduce.command("test-task")
def training_on_the_test_task(
    scores: Annotated[Path, typer.Argument(help="The published scores: test_task_training_scores.csv.")],
    models: Annotated[Path, typer.Argument(help="The published facts: test_task_training_models.csv.")],
    evaluations: Annotated[
        Path | None,
        typer.Option(help="The authors' evaluation tree (folders base, e1, e2, e3, e1+2, new_evals): figures 3 to 18."),
    ] = None,
    draws: Annotated[int, typer.Option(min=0, help="Wild cluster bootstrap samples; 0 for none.")] = 1999,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and of the boosted trees.")] = 0,
    figures: Figures = None,
    format: Formats = None,
    as_json: Json = False,
) -> None:
    """Print every number of "Training on the test task" that the published scores allow, beside the printed one.

    Example:
      potentia reproduce test-task test_task_training_scores.csv test_task_training_models.csv --evaluations FOLDER
    """
    from potentia.analysis.test_task import Cohort
    from potentia.facts import read_facts
    from potentia.formats import StagedScores
    from potentia.papers import Evaluations, reproduce_task_training

    check_formats(format)
    cohort = Cohort.known(table=read_facts(models))
    tree = Evaluations.read(evaluations) if evaluations is not None else None
    found = reproduce_task_training(StagedScores.read(scores), cohort, tree, draws=draws, seed=seed)
    print_findings({"test-task": found}, as_json=as_json)
    draw_figures([found], figures, format)


@reproduce.command("proxy")
def proxy(figures: Figures = None, format: Formats = None, as_json: Json = False) -> None:
    """Print the variances and ratios of the proxy paper's table 5 beside those that its table 4 gives.

    Example:
      potentia reproduce proxy
    """
    from potentia.papers import reproduce_proxy

    check_formats(format)
    found = reproduce_proxy()
    print_findings({"proxy": found}, as_json=as_json)
    draw_figures([found], figures, format)


@reproduce.command("bose")
def bose(figures: Figures = None, format: Formats = None, as_json: Json = False) -> None:
    """Print the mean ranks of BOSE's figure 5 beside those that its table 4 gives.

    Example:
      potentia reproduce bose
    """
    from potentia.papers import reproduce_bose

    check_formats(format)
    found = reproduce_bose()
    print_findings({"bose": found}, as_json=as_json)
    draw_figures([found], figures, format)

"""``potentia reproduce train-before-test``: the paper's every number beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import reproduce
from potentia.cli.output import errors, print_json, print_table
from potentia.errors import InputError


@reproduce.command("train-before-test")
def train_before_test(
    scores: Annotated[str, typer.Argument(help="The scores published with the paper, or a store of your own runs.")],
    figures: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="pdf, png, svg, html; several may be given.")] = None,
    resamples: Annotated[int, typer.Option(min=20, help="Bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print checks and findings as JSON.")] = False,
) -> None:
    """Print every number of the train-before-test paper beside the same number from the given scores.

    Examples:
      potentia reproduce train-before-test train_before_test_scores.csv

      potentia reproduce train-before-test train_before_test_scores.csv --figures figures --format pdf png
    """
    from potentia.papers.train_before_test import reproduce as compute
    from potentia.report import FORMATS, draw_all
    from potentia.store import read_scores

    formats = list(dict.fromkeys(format or ["pdf"]))
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"no figure format {name!r}", hint=f"--format takes: {', '.join(FORMATS)}")
    found = compute(read_scores(scores), resamples=resamples, seed=seed)
    if as_json:
        print_json(found)
    else:
        for table in found.tables():
            print_table(table)
    if figures is not None:
        written = draw_all(found.charts(), figures, formats)
        errors.print(f"{len(written)} figures in {figures}")

"""``potentia predict``: label a file with a tuned model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import console, errors, print_json, print_table
from potentia.values.findings import Table

SHOWN = 10  # rows of the printed table


@app.command()
def predict(
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="A folder that select or adapters export wrote.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows to predict: csv, jsonl, json or parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .json or .jsonl file to write.")] = Path(
        "predictions.csv"
    ),
    base: Annotated[str | None, typer.Option(help="Where the base model is now, if not where it was.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16; else that of the test.")] = None,
    drop_bad_rows: Annotated[
        bool, typer.Option("--drop-bad-rows", help="Leave rows that cannot be used without an answer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON, and write no file.")] = False,
) -> None:
    """Predict the rows of a file with a tuned model: the label and the probability of each.

    Examples:
      potentia predict selected/adapter new-tickets.csv -o predictions.csv
    """
    from rich.progress import Progress

    from potentia.integrations import predict as predicted

    with Progress(console=errors, transient=True) as bar:
        work = bar.add_task("predicting", total=None)
        found = predicted(
            adapter, file, base=base, device=device, dtype=dtype, drop_bad_rows=drop_bad_rows,
            progress=lambda amount: bar.update(work, advance=amount),
        )  # fmt: skip
    known = sum(gold is not None for gold in found.gold)
    if as_json:
        accuracy = found.accuracy if known else None
        print_json({"predictions": found.records(), "labelled": known, "accuracy": accuracy, "tested": found.tested})
        return
    found.write(output)
    shown = [row["predicted"] for row in found.records()[:SHOWN]]
    shares = [max(p.values(), default=math.nan) for p in found.probabilities[:SHOWN]]
    rows = tuple((n, label, share) for n, (label, share) in enumerate(zip(shown, shares, strict=True), start=1))
    note = f"{len(found.rows)} rows → {output}"
    print_table(Table("Predictions", ("row", "predicted", "probability"), rows, note=note))
    if known:
        tested = "" if found.tested is None else f" The test gave {found.tested:.3f} ({found.metric})."
        console.print(f"Accuracy {found.accuracy:.3f} on {known} labelled rows.{tested}", markup=False)

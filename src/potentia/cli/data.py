"""``potentia import`` and ``potentia export``: scores into a store, and out of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potentia.cli.app import app
from potentia.cli.options import Json, Kind, Lower, Map, Metric, OnlyProtocols, Scale, Study
from potentia.cli.output import answer, opened
from potentia.errors import InputError, without_password
from potentia.values.findings import Table

if TYPE_CHECKING:
    from potentia.values.protocol import Protocol
    from potentia.values.scores import ScoreMatrix


@app.command("import")
def import_command(
    sources: Annotated[list[str], typer.Argument(metavar="SCORES...", help="Score files, folders of lm-eval results.")],
    store: Annotated[str, typer.Option(help="SQLite file or database URL.")] = "potentia.db",
    name: Annotated[str | None, typer.Option(help="The study they become; the file's name by default.")] = None,
    metric: Metric = None,
    columns: Map = None,
    lower: Lower = None,
    scale: Scale = None,
    kind: Kind = None,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="Take the members of groups such as MMLU.")] = False,
    protocol: Annotated[
        str | None, typer.Option(help="How all of these were scored, where the files do not say: direct, adjust, …")
    ] = None,
    short_names: Annotated[
        bool,
        typer.Option("--short-names", help="Call a model by the last part of its path: base and tuned folders join."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Put scores measured elsewhere into a store: tidy CSV or Parquet, lm-eval results, the paper's JSON, a store.

    Examples:
      potentia import results/ scores.csv --store potentia.db

      potentia import base/ --name both --protocol direct --short-names

      potentia import tuned/ --name both --protocol adjust --short-names
    """
    from potentia.formats import import_scores
    from potentia.store import Store

    read = []
    for source in sources:
        evidence = opened(
            source, metric=metric, subtasks=subtasks, columns=columns, lower=lower, scale=scale, kind=kind
        )
        parts = [evidence.scores] if protocol is None else _as_protocol(evidence.scores, protocol, source)
        read += [(source, _short_named(part, source) if short_names else part) for part in parts]
    brought = []
    with Store.open(store) as into:
        for source, scores in read:
            shown = without_password(source)
            brought.append((shown, import_scores(into, scores, source=shown, name=name)))
    where = without_password(store)
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for source, done in brought:
        new, known = counts.get((source, done.study), (0, 0))
        counts[source, done.study] = new + done.new, known + done.known
    rows = tuple((*place, *numbers) for place, numbers in counts.items())
    table = Table(f"into {where}", ("source", "study", "new cells", "known before"), rows)
    imported = [{"source": source, **vars(done)} for source, done in brought]
    answer(as_json, {"store": where, "imported": imported}, table)


def _as_protocol(
    scores: Mapping[Protocol, ScoreMatrix], name: str, source: str
) -> list[Mapping[Protocol, ScoreMatrix]]:
    """Say by which protocol a source was scored, whatever number of examples its files name for its tasks."""
    from potentia.values.protocol import Protocol

    chosen = Protocol(name)
    tasks = [task for matrix in scores.values() for task in matrix.tasks]
    if twice := next((task for task in tasks if tasks.count(task) > 1), None):
        several = ", ".join(scores)
        raise InputError(f"{twice} was scored in several ways: {several}", where=source, hint="leave out --protocol")
    return [{chosen: replace(matrix, protocol=chosen)} for matrix in scores.values()]


def _short_named(scores: Mapping[Protocol, ScoreMatrix], source: str) -> dict[Protocol, ScoreMatrix]:
    """Call every model by the last part of its path."""
    made = {}
    for protocol, matrix in scores.items():
        names = tuple(model.rstrip("/").rpartition("/")[2] or model for model in matrix.models)
        if twice := next((name for name in names if names.count(name) > 1), None):
            both = [model for model, name in zip(matrix.models, names, strict=True) if name == twice]
            raise InputError(f"{both[0]} and {both[1]} end alike", where=source, hint="import their folders one by one")
        made[protocol] = replace(matrix, models=names)
    return made


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="STORE", help="A store, or any score file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file, a folder for lm-eval, or - to print.")],
    format: Annotated[
        str | None,
        typer.Option(help="csv, parquet, lm-eval, every-eval-ever, hub, markdown or latex; else by the file's name."),
    ] = None,
    study: Study = None,
    metric: Metric = None,
    columns: Map = None,
    lower: Lower = None,
    scale: Scale = None,
    kind: Kind = None,
    protocols: OnlyProtocols = None,
    as_json: Json = False,
) -> None:
    """Write scores as a table, as lm-eval results, or as a leaderboard.

    Examples:
      potentia export potentia.db -o scores.csv

      potentia export potentia.db -o leaderboard.tex --protocol train_before_test

      potentia export potentia.db -o - --format markdown

      potentia export potentia.db -o travel --format every-eval-ever
    """
    from potentia.formats import write_scores

    evidence = opened(
        source, study=study, metric=metric, protocols=protocols, columns=columns, lower=lower, scale=scale, kind=kind
    )
    matrices = evidence.scores
    if str(output) == "-":
        _print_file(matrices, format or "csv")
        return
    written = write_scores(matrices, output, format, items=evidence.items_of)
    sizes = {name: {"models": len(m.models), "tasks": len(m.tasks)} for name, m in matrices.items()}
    what = ", ".join(f"{name} ({len(m.models)} × {len(m.tasks)})" for name, m in matrices.items())
    where = str(written[0]) if len(written) == 1 else f"{len(written)} files in {output}"
    answer(as_json, {"files": [str(path) for path in written], "protocols": sizes}, f"{what}, models × tasks → {where}")


def _print_file(matrices: Mapping[Protocol, ScoreMatrix], format: str) -> None:
    """Write the one file of a format to standard output, byte for byte."""
    import sys
    import tempfile

    from potentia.formats import write_scores

    if format in ("lm-eval", "every-eval-ever", "hub"):
        raise InputError(f"{format} results are several files", hint="give a folder: -o results")
    with tempfile.TemporaryDirectory() as folder:
        (file,) = write_scores(matrices, Path(folder) / "scores", format)
        sys.stdout.buffer.write(file.read_bytes())
        sys.stdout.flush()

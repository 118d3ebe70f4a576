"""Scores to files: tidy CSV and Parquet, lm-eval-style JSON, leaderboards and tables in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from potentia.errors import InputError, StoreError
from potentia.extras import Extra, require_extra
from potentia.files import escape_formula, make_folder_name, write_file
from potentia.formats.entries import tidy_row
from potentia.formats.every_eval_ever import OutcomeReader, write_every_eval_ever
from potentia.formats.hub_results import write_hub_results
from potentia.formats.layout import FACT_FIELDS, FIELDS
from potentia.formats.leaderboard import render_latex, render_markdown, render_table_in_latex
from potentia.values.findings import Table, format_cell, make_slug
from potentia.values.metric import Metric
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

Matrices = Mapping[Protocol, ScoreMatrix]
_ALWAYS_WRITTEN = 8  # columns that are written even where they are empty
_FORMAT_BY_SUFFIX = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "lm-eval",
    ".md": "markdown",
    ".tex": "latex",
}


def write_tables(tables: Iterable[Table], folder: Path, formats: Iterable[str]) -> list[Path]:
    """Write every table as ``csv`` or ``latex`` (booktabs), in the order and with the ± of the terminal."""
    files: list[Path] = []
    chosen_formats = list(formats)
    for table in tables:
        rows = [[format_cell(cell, table.digits) for cell in row] for row in table.rows]
        for table_format in chosen_formats:
            if table_format == "latex":
                table_path = _unused_path(folder, make_slug(table.title), "tex", files)
                write_file(table_path, render_table_in_latex(table, rows))
            else:
                table_path = _unused_path(folder, make_slug(table.title), "csv", files)
                write_file(table_path, _render_csv([table.columns, *rows]))
            files.append(table_path)
    return files


def _unused_path(folder: Path, stem: str, suffix: str, used_paths: Sequence[Path]) -> Path:
    """Return a path for a table; a second one of this title gets a number."""
    path = folder / f"{stem}.{suffix}"
    for attempt in itertools.count(2):
        if path not in used_paths:
            break
        path = folder / f"{stem}-{attempt}.{suffix}"
    return path


def write_scores(
    matrices: Matrices | ScoreMatrix,
    path: str | Path,
    format: str | None = None,
    *,
    items: OutcomeReader | None = None,
) -> list[Path]:
    """Write matrices and return the files written.

    ``lm-eval`` writes one file per model and protocol, as lm-eval does; a single model and protocol may go to a file
    ``*.json``.

    Args:
        matrices: A matrix, or protocol → matrix, as ``Evidence.scores`` is.
        path: The file; for ``lm-eval``, ``every-eval-ever`` and ``hub`` a folder.
        format: The format; by the name of the file where absent.
        items: Gives the outcomes by example of a (protocol, model, task), for ``every-eval-ever``.

    Example:
        >>> potentia.write_scores(potentia.read("potentia.db").scores, "scores.csv")
    """
    if isinstance(matrices, ScoreMatrix):
        matrices = {matrices.protocol: matrices}
    target = Path(path).expanduser()
    format_name = format or _FORMAT_BY_SUFFIX.get(target.suffix.casefold())
    if format_name not in FORMATS:
        message = f"{target.name} does not say the format"
        if format_name:
            message = f"unknown format {format_name!r}"
        raise InputError(message, hint=f"the formats are {', '.join(FORMATS)}")
    if not matrices:
        raise InputError("there are no scores to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if format_name == "every-eval-ever":
            return write_every_eval_ever(matrices, target, items)
        return FORMATS[format_name](matrices, target)
    except OSError as error:
        raise StoreError(
            error.strerror or str(error),
            where=str(target),
            hint="give another file, or free some space",
        ) from error


def tidy_rows(matrices: Matrices) -> Iterator[dict[str, Any]]:
    """Give one row per score that is there."""
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            yield tidy_row(protocol, model, task, score)


def _columns_to_write(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the columns that some score has something in, after those that every table has."""
    columns = list(FIELDS[:_ALWAYS_WRITTEN])
    for column in FIELDS[_ALWAYS_WRITTEN:]:
        if any(row[column] is not None for row in rows):
            columns.append(column)
    return columns


def _write_one_file(target: Path, content: str | bytes) -> list[Path]:
    write_file(target, content)
    return [target]


def _write_csv(matrices: Matrices, target: Path) -> list[Path]:
    rows = list(tidy_rows(matrices))
    columns = _columns_to_write(rows)
    lines = [[_format_value(row[column]) for column in columns] for row in rows]
    return _write_one_file(target, _render_csv([columns, *lines]))


def _render_csv(rows: Iterable[Iterable[str]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")  # as RFC 4180; a lone return is quoted then
    writer.writerows(rows)
    return buffer.getvalue()


def _format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        is_exact_integer = value.is_integer() and abs(value) < 2**53
        return str(int(value)) if is_exact_integer else repr(value)
    return str(escape_formula(str(value)))  # a spreadsheet takes it for text


def _write_parquet(matrices: Matrices, target: Path) -> list[Path]:
    require_extra(Extra.PARQUET, "writing a Parquet file", otherwise="write a CSV")
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys(("score", "stderr", "n", "chance"), pa.float64())
    types |= {"higher_is_better": pa.bool_(), "shots": pa.int64()}
    rows = list(tidy_rows(matrices))
    columns = {}
    for column in _columns_to_write(rows):
        columns[column] = pa.array([row[column] for row in rows], types.get(column, pa.string()))
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return _write_one_file(target, buffer.getvalue().to_pybytes())


def _write_lm_eval(matrices: Matrices, target: Path) -> list[Path]:
    is_file = target.suffix.casefold() == ".json"
    if is_file and (len(matrices) > 1 or len(next(iter(matrices.values())).models) > 1):
        raise InputError(
            "an lm-eval file holds one model and one protocol",
            where=str(target),
            hint=f"give a folder: {target.with_suffix('')}",
        )
    files: list[Path] = []
    for protocol, matrix in matrices.items():
        for model in matrix.models:
            results = _render_lm_eval_results(matrix, model)
            if not results["results"]:
                continue
            results_file = target
            if not is_file:
                results_file = (
                    target / make_folder_name(model) / f"results_{make_folder_name(protocol)}.json"
                )
            text = json.dumps(results, indent=2, ensure_ascii=False) + "\n"
            files += _write_one_file(results_file, text)
    return files


def _render_lm_eval_results(matrix: ScoreMatrix, model: str) -> dict[str, Any]:
    """Return one model's scores as lm-eval writes results; what it has no place for is under ``potentia``."""
    results: dict[str, dict[str, Any]] = {}
    group_subtasks: dict[str, list[str]] = {}
    directions: dict[str, dict[str, bool]] = {}
    shots: dict[str, int] = {}
    sizes: dict[str, dict[str, int]] = {}
    potentia_facts: dict[str, dict[str, Any]] = {}
    for row in tidy_rows({matrix.protocol: matrix.select(models=[model])}):
        task = row["benchmark"]
        metric = Metric(row["metric"] or "score")
        filter_name = metric.name.removeprefix(metric.name_without_filter).lstrip("|,") or "none"
        results[task] = {
            "alias": task,
            f"{metric.name_without_filter},{filter_name}": row["score"],
            f"{metric.name_without_filter}_stderr,{filter_name}": "N/A"
            if row["stderr"] is None
            else row["stderr"],
        }
        group_subtasks[task] = []
        directions[task] = {metric.name_without_filter: row["higher_is_better"]}
        if row["n"] is not None:
            sizes[task] = {"original": int(row["n"]), "effective": int(row["n"])}
        if row["shots"] is not None:
            shots[task] = row["shots"]
        facts = {column: row[column] for column in FACT_FIELDS if row[column] is not None}
        potentia_facts[task] = {"metric": row["metric"] or "", **facts}
    return {
        "results": results,
        "group_subtasks": group_subtasks,
        "higher_is_better": directions,
        "n-shot": shots,
        "n-samples": sizes,
        "config": {"model": "potentia", "model_args": f"pretrained={model}"},
        "model_name": model,
        "potentia": {"protocol": matrix.protocol, "scores": potentia_facts},
    }


def _write_markdown(matrices: Matrices, target: Path) -> list[Path]:
    return _write_one_file(target, "\n".join(map(render_markdown, matrices.values())))


def _write_latex(matrices: Matrices, target: Path) -> list[Path]:
    return _write_one_file(target, "\n".join(map(render_latex, matrices.values())))


FORMATS: dict[str, Callable[[Matrices, Path], list[Path]]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "lm-eval": _write_lm_eval,
    "markdown": _write_markdown,
    "latex": _write_latex,
    "every-eval-ever": write_every_eval_ever,
    "hub": write_hub_results,
}

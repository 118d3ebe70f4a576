"""Scores to files: tidy CSV and Parquet, lm-eval-style JSON, leaderboards and tables in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from potentia.errors import InputError, StoreError
from potentia.files import escape_formula, write_file
from potentia.formats.entries import tidy_row
from potentia.formats.layout import FIELDS, TRAVELS
from potentia.formats.table import safe_name
from potentia.formats.travel import Items, write_every_eval_ever, write_hub
from potentia.values.findings import Table, slug, written
from potentia.values.metric import Metric
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


def mean_ranks(matrix: ScoreMatrix) -> Floats:
    """Return each model's rank averaged over the tasks it has (1 is best, ties share their mean rank).

    Ranks of a task run over the models that have it and are stretched to the number of models, so that a model is not
    favoured by having been tested where few others were.
    """
    from scipy.stats import rankdata

    ranks = rankdata(-matrix.oriented(), axis=0, nan_policy="omit")
    there = np.isfinite(ranks).sum(axis=0)
    ranks = 1 + (ranks - 1) * np.where(
        there > 1, (len(matrix.models) - 1) / np.maximum(there - 1, 1), 1.0
    )
    counts = np.isfinite(ranks).sum(axis=1)
    return np.where(counts > 0, np.nansum(ranks, axis=1) / np.maximum(counts, 1), np.nan)


def _leaderboard(
    matrix: ScoreMatrix, plain: Callable[[str], str], bold: str, missing: str, pm: str
) -> Iterator[list[str]]:
    """Give a line for each model, best mean rank first; the best score of each task is bold."""
    ranks, oriented = mean_ranks(matrix), matrix.oriented()
    best = [
        float(np.nanmax(column)) if np.isfinite(column).any() else math.nan for column in oriented.T
    ]
    order = sorted(
        range(len(matrix.models)), key=lambda i: (math.isnan(ranks[i]), ranks[i], matrix.models[i])
    )
    for place, i in enumerate(order, 1):
        cells = []
        for j, (value, error) in enumerate(zip(matrix.values[i], matrix.stderr[i], strict=True)):
            text = f"{value:.3f}" + ("" if math.isnan(error) else f"{pm}{error:.3f}")
            cells.append(
                missing
                if math.isnan(value)
                else bold.format(text)
                if oriented[i, j] == best[j]
                else text
            )
        rank = missing if math.isnan(ranks[i]) else f"{ranks[i]:.2f}"
        yield [str(place), plain(matrix.models[i]), rank, *cells]


def _labels(matrix: ScoreMatrix) -> list[str]:
    return [
        task + ("" if up else " ↓")
        for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True)
    ]


def markdown(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a Markdown table."""
    head = ["#", "model", "mean rank", *map(_plain, _labels(matrix))]
    rows = [
        head,
        ["--:", ":--", *["--:"] * (len(head) - 2)],
        *_leaderboard(matrix, _plain, "**{}**", "–", " ± "),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines[1] = lines[1].replace(" ", "")
    return "\n".join([f"### {_plain(matrix.protocol)}", "", *lines]) + "\n"


def latex(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a LaTeX table (needs booktabs)."""
    tasks = list(map(_tex, _labels(matrix)))
    caption = f"{_tex(matrix.protocol)}: models by mean rank; values with standard errors."
    rows = _leaderboard(matrix, _tex, r"\textbf{{{}}}", "--", r"\,$\pm$\,")
    return _booktabs(
        caption, "rl" + "r" * (len(tasks) + 1), [r"\#", "model", "mean rank", *tasks], rows
    )


def write_tables(tables: Iterable[Table], folder: Path, formats: Iterable[str]) -> list[Path]:
    """Write every table as ``csv`` or ``latex`` (booktabs), in the order and with the ± of the terminal."""
    files: list[Path] = []
    for table in tables:
        for kind in formats:
            rows = [[written(cell, table.digits) for cell in row] for row in table.rows]
            suffix, text = "csv", _csv_text([table.columns, *rows])
            if kind == "latex":
                suffix, text = "tex", _table_in_latex(table, rows)
            names = (
                slug(table.title) + (f"-{count}" if count > 1 else "")
                for count in itertools.count(1)
            )
            paths = (folder / f"{name}.{suffix}" for name in names)
            files.append(next(path for path in paths if path not in files))
            write_file(files[-1], text)
    return files


def _table_in_latex(table: Table, rows: Sequence[Sequence[str]]) -> str:
    numbers = [
        any(isinstance(row[k], (int, float)) for row in table.rows)
        for k in range(len(table.columns))
    ]
    align = "".join("r" if number else "l" for number in numbers)
    return _booktabs(
        _tex(table.title),
        align,
        list(map(_tex, table.columns)),
        [list(map(_tex, row)) for row in rows],
    )


def _booktabs(caption: str, align: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
    ]
    lines += [" & ".join(head) + r" \\", r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("\\", "\\\\").replace("|", r"\|").replace("<", "&lt;")


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "τ": r"$\tau$",
    "×": r"$\times$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "−": "$-$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in re.sub(r"\s+", " ", text))


Matrices = Mapping[Protocol, ScoreMatrix]
_ALWAYS = 8  # columns that are written even where they are empty
_SUFFIXES = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "lm-eval",
    ".md": "markdown",
    ".tex": "latex",
}


def write_scores(
    matrices: Matrices | ScoreMatrix,
    path: str | Path,
    format: str | None = None,
    *,
    items: Items | None = None,
) -> list[Path]:
    """Write matrices and return the files written; the format follows from the file's name where it is not given.

    ``lm-eval`` writes one file per model and protocol, as lm-eval does, into the folder ``path``; a single model and
    protocol may go to a file ``*.json``. ``every-eval-ever`` and ``hub`` write into a folder, too; ``items`` gives the
    outcomes of documents for the former's instance level.
    """
    given: Matrices = (
        {matrices.protocol: matrices} if isinstance(matrices, ScoreMatrix) else dict(matrices)
    )
    target = Path(path).expanduser()
    chosen = format or _SUFFIXES.get(target.suffix.casefold())
    if chosen not in FORMATS:
        raise InputError(
            f"unknown format {chosen!r}" if chosen else f"{target.name} does not say the format",
            hint=f"the formats are {', '.join(FORMATS)}",
        )
    if not given:
        raise InputError("there are no scores to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if chosen == "every-eval-ever":
            return write_every_eval_ever(given, target, items)
        return FORMATS[chosen](given, target)
    except OSError as error:
        raise StoreError(
            error.strerror or str(error),
            where=str(target),
            hint="give another file, or free some space",
        ) from error


def tidy_rows(matrices: Matrices) -> Iterator[dict[str, Any]]:
    """Give one row per score that is there."""
    for protocol, matrix in matrices.items():
        yield from (tidy_row(protocol, *cell) for cell in matrix.scores())


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that some score has something in, after those that every table has."""
    return [
        c for k, c in enumerate(FIELDS) if k < _ALWAYS or any(row[c] is not None for row in rows)
    ]


def _save(target: Path, content: str | bytes) -> list[Path]:
    write_file(target, content)
    return [target]


def _csv(matrices: Matrices, target: Path) -> list[Path]:
    rows = list(tidy_rows(matrices))
    columns = _columns(rows)
    return _save(
        target, _csv_text([columns, *([_written(row[name]) for name in columns] for row in rows)])
    )


def _csv_text(rows: Iterable[Iterable[str]]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerows(
        rows
    )  # as RFC 4180 has it; a lone return is quoted then
    return buffer.getvalue()


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(escape_formula(str(value)))  # a spreadsheet takes it for text


def _parquet(matrices: Matrices, target: Path) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(tidy_rows(matrices))
    kinds = dict.fromkeys(("score", "stderr", "n", "chance"), pa.float64())
    kinds |= {"higher_is_better": pa.bool_(), "shots": pa.int64()}
    columns = {
        name: pa.array([row[name] for row in rows], kinds.get(name, pa.string()))
        for name in _columns(rows)
    }
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return _save(target, buffer.getvalue().to_pybytes())


def _lm_eval(matrices: Matrices, target: Path) -> list[Path]:
    single = target.suffix.casefold() == ".json"
    if single and (len(matrices) > 1 or len(next(iter(matrices.values())).models) > 1):
        hint = f"give a folder: {target.with_suffix('')}"
        raise InputError(
            "an lm-eval file holds one model and one protocol", where=str(target), hint=hint
        )
    files: list[Path] = []
    for protocol, matrix in matrices.items():
        for model in matrix.models:
            body = _results(matrix, model)
            if body["results"]:
                path = (
                    target
                    if single
                    else target / safe_name(model) / f"results_{safe_name(protocol)}.json"
                )
                files += _save(path, json.dumps(body, indent=2, ensure_ascii=False) + "\n")
    return files


def _results(matrix: ScoreMatrix, model: str) -> dict[str, Any]:
    """Return one model's scores as lm-eval writes results; what it has no place for is under ``potentia``."""
    parts: dict[str, dict[str, Any]]
    parts = {
        name: {}
        for name in ("results", "group_subtasks", "higher_is_better", "n-shot", "n-samples")
    }
    facts: dict[str, Any] = {}
    for row in tidy_rows({matrix.protocol: matrix.select(models=[model])}):
        task, metric = row["benchmark"], Metric(row["metric"] or "score")
        choice = metric.name.removeprefix(metric.plain).lstrip("|,") or "none"
        error = "N/A" if row["stderr"] is None else row["stderr"]
        numbers = {
            f"{metric.plain},{choice}": row["score"],
            f"{metric.plain}_stderr,{choice}": error,
        }
        parts["results"][task] = {"alias": task, **numbers}
        parts["group_subtasks"][task] = []
        parts["higher_is_better"][task] = {metric.plain: row["higher_is_better"]}
        if row["n"] is not None:
            parts["n-samples"][task] = {"original": int(row["n"]), "effective": int(row["n"])}
        if row["shots"] is not None:
            parts["n-shot"][task] = row["shots"]
        facts[task] = {
            "metric": row["metric"] or "",
            **{f: row[f] for f in TRAVELS if row[f] is not None},
        }
    return {
        **parts,
        "config": {"model": "potentia", "model_args": f"pretrained={model}"},
        "model_name": model,
        "potentia": {"protocol": matrix.protocol, "scores": facts},
    }


FORMATS: dict[str, Callable[[Matrices, Path], list[Path]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "lm-eval": _lm_eval,
    "markdown": lambda matrices, target: _save(target, "\n".join(map(markdown, matrices.values()))),
    "latex": lambda matrices, target: _save(target, "\n".join(map(latex, matrices.values()))),
    "every-eval-ever": write_every_eval_ever,
    "hub": write_hub,
}

"""Leaderboards as text: models sorted by their mean rank over the tasks, the best score of each task in bold."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from potentia.files import write_file
from potentia.values.findings import Table, slug, written
from potentia.values.scores import Floats, ScoreMatrix


def mean_ranks(matrix: ScoreMatrix) -> Floats:
    """Return each model's rank averaged over the tasks it has (1 is best, ties share their mean rank).

    Ranks of a task run over the models that have it and are stretched to the number of models, so that a model is not
    favoured by having been tested where few others were.
    """
    oriented = matrix.oriented()
    ranks = np.full(oriented.shape, np.nan)
    for j in range(oriented.shape[1]):
        there = np.flatnonzero(np.isfinite(oriented[:, j]))
        column = oriented[there, j]
        above = (column[None, :] > column[:, None]).sum(axis=1)
        same = (column[None, :] == column[:, None]).sum(axis=1)
        position = above + (same + 1) / 2  # 1 … k
        stretch = (len(matrix.models) - 1) / (len(there) - 1) if len(there) > 1 else 1.0
        ranks[there, j] = 1 + (position - 1) * stretch
    counts = np.isfinite(ranks).sum(axis=1)
    totals = np.where(np.isfinite(ranks), ranks, 0.0).sum(axis=1)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def _layout(matrix: ScoreMatrix) -> tuple[list[int], Floats, list[float]]:
    ranks = mean_ranks(matrix)
    order = sorted(range(len(matrix.models)), key=lambda i: (math.isnan(ranks[i]), ranks[i], matrix.models[i]))
    oriented = matrix.oriented()
    best = [float(np.nanmax(column)) if np.isfinite(column).any() else math.nan for column in oriented.T]
    return order, ranks, best


def _cells(matrix: ScoreMatrix, row: int, best: list[float], bold: str, missing: str, pm: str) -> list[str]:
    cells = []
    for j, up in enumerate(matrix.higher_is_better):
        value, stderr = float(matrix.values[row, j]), float(matrix.stderr[row, j])
        if math.isnan(value):
            cells.append(missing)
            continue
        text = f"{value:.3f}" + ("" if math.isnan(stderr) else f"{pm}{stderr:.3f}")
        cells.append(bold.format(text) if (value if up else -value) == best[j] else text)
    return cells


def markdown(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a Markdown table."""
    order, ranks, best = _layout(matrix)
    arrows = [task + ("" if up else " ↓") for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True)]
    head = ["#", "model", "mean rank", *map(_plain, arrows)]
    lines = [f"### {_plain(matrix.protocol)}", "", "| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join(["--:", ":--", *["--:"] * (len(head) - 2)]) + "|")
    for place, i in enumerate(order, 1):
        cells = _cells(matrix, i, best, "**{}**", "–", " ± ")
        lines.append("| " + " | ".join([str(place), _plain(matrix.models[i]), _rank(ranks[i], "–"), *cells]) + " |")
    return "\n".join(lines) + "\n"


def latex(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a LaTeX table (needs booktabs)."""
    order, ranks, best = _layout(matrix)
    arrows = [
        _tex(task) + ("" if up else r" $\downarrow$")
        for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(matrix.protocol)}: models by mean rank; values with standard errors.}}",
        rf"\begin{{tabular}}{{rl{'r' * (len(arrows) + 1)}}}",
        r"\toprule",
        " & ".join([r"\#", "model", "mean rank", *arrows]) + r" \\",
        r"\midrule",
    ]
    for place, i in enumerate(order, 1):
        cells = _cells(matrix, i, best, r"\textbf{{{}}}", "--", r"\,$\pm$\,")
        lines.append(" & ".join([str(place), _tex(matrix.models[i]), _rank(ranks[i], "--"), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def write_tables(tables: Iterable[Table], folder: Path, formats: Iterable[str]) -> list[Path]:
    """Write every table as ``csv`` or ``latex`` (booktabs), in the order and with the ± of the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    written_files: dict[Path, None] = {}
    for table in tables:
        rows = [[written(cell, table.digits) for cell in row] for row in table.rows]
        for kind in formats:
            stem, count = folder / slug(table.title), 1
            file = stem.with_name(f"{stem.name}.{'tex' if kind == 'latex' else 'csv'}")
            while file in written_files:
                count += 1
                file = stem.with_name(f"{stem.name}-{count}{file.suffix}")
            if kind == "latex":
                write_file(file, _latex_table(table, rows))
            else:
                out = io.StringIO(newline="")
                csv.writer(out).writerows([table.columns, *rows])
                write_file(file, out.getvalue())
            written_files[file] = None
    return list(written_files)


def _latex_table(table: Table, rows: list[list[str]]) -> str:
    columns = range(len(table.columns))
    numeric = [any(isinstance(row[k], (int, float)) for row in table.rows) for k in columns]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        " & ".join(map(_tex, table.columns)) + r" \\",
        r"\midrule",
    ]
    lines += [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _rank(value: float, missing: str) -> str:
    return missing if math.isnan(value) else f"{value:.2f}"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("\\", "\\\\").replace("|", r"\|").replace("<", "&lt;")


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "τ": r"$\tau$", "×": r"$\times$",
    "↓": r"$\downarrow$", "↑": r"$\uparrow$", "−": "$-$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in re.sub(r"\s+", " ", text))

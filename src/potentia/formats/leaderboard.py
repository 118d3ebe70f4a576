"""Leaderboards and tables as Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.values.findings import Table
from potentia.values.scores import Floats, ScoreMatrix

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


def mean_ranks(matrix: ScoreMatrix) -> Floats:
    """Return each model's rank averaged over the tasks it has (1 is best, ties share their mean rank).

    Ranks of a task run over the models that have it and are stretched to the number of models, so that a model is not
    favoured by having been tested where few others were.
    """
    from scipy.stats import rankdata

    ranks = rankdata(-matrix.oriented(), axis=0, nan_policy="omit")
    models_of_task = np.isfinite(ranks).sum(axis=0)
    stretch = (len(matrix.models) - 1) / np.maximum(models_of_task - 1, 1)
    ranks = 1 + (ranks - 1) * np.where(models_of_task > 1, stretch, 1.0)
    tasks_of_model = np.isfinite(ranks).sum(axis=1)
    means = np.nansum(ranks, axis=1) / np.maximum(tasks_of_model, 1)
    return np.where(tasks_of_model > 0, means, np.nan)


# Files keep standard errors, as lm-eval writes them and as every reader of such a table, Potentia too, takes ±;
# tables that are only shown have the half-width of the 95 % interval.
ERROR_LEGEND = "± is one standard error; the 95 % interval reaches 1.96 times as far."


@dataclass(frozen=True)
class _Markup:
    """How a language writes the cells of a leaderboard."""

    escape: Callable[[str], str]
    bold: str  # a format
    missing: str
    plus_minus: str


def _leaderboard_rows(matrix: ScoreMatrix, markup: _Markup) -> Iterator[list[str]]:
    """Give a line for each model, best mean rank first; the best score of each task is bold."""
    mean_rank_by_model = mean_ranks(matrix)
    oriented = matrix.oriented()
    best_by_task = [_largest(column) for column in oriented.T]

    def sort_key(row: int) -> tuple[bool, float, str]:
        return (math.isnan(mean_rank_by_model[row]), mean_rank_by_model[row], matrix.models[row])

    rows_by_rank = sorted(range(len(matrix.models)), key=sort_key)
    for position, row in enumerate(rows_by_rank, start=1):
        cells = []
        for column, best_score in enumerate(best_by_task):
            cell_text = _format_score(
                matrix.values[row, column], matrix.stderr[row, column], markup
            )
            if oriented[row, column] == best_score:
                cell_text = markup.bold.format(cell_text)
            cells.append(cell_text)
        rank_text = markup.missing
        if not math.isnan(mean_rank_by_model[row]):
            rank_text = f"{mean_rank_by_model[row]:.2f}"
        yield [str(position), markup.escape(matrix.models[row]), rank_text, *cells]


def _largest(values: Floats) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else math.nan


def _format_score(value: float, stderr: float, markup: _Markup) -> str:
    if math.isnan(value):
        return markup.missing
    if math.isnan(stderr):
        return f"{value:.3f}"
    return f"{value:.3f}{markup.plus_minus}{stderr:.3f}"


def _task_labels(matrix: ScoreMatrix) -> list[str]:
    directions = zip(matrix.tasks, matrix.higher_is_better, strict=True)
    labels = []
    for task, higher_is_better in directions:
        labels.append(task if higher_is_better else f"{task} ↓")
    return labels


def render_markdown(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a Markdown table."""
    markup = _Markup(_escape_markdown, "**{}**", missing="–", plus_minus=" ± ")
    header = ["#", "model", "mean rank", *map(_escape_markdown, _task_labels(matrix))]
    alignment = ["--:", ":--", *["--:"] * (len(header) - 2)]
    lines = [_markdown_line(header), "|" + "|".join(alignment) + "|"]
    lines += map(_markdown_line, _leaderboard_rows(matrix, markup))
    title_lines = [f"### {_escape_markdown(matrix.protocol.label)}", ""]
    if np.isfinite(matrix.stderr).any():
        title_lines += [ERROR_LEGEND, ""]
    return "\n".join([*title_lines, *lines]) + "\n"


def _markdown_line(fields: Sequence[str]) -> str:
    return "| " + " | ".join(fields) + " |"


def render_latex(matrix: ScoreMatrix) -> str:
    """Return the leaderboard of one protocol as a LaTeX table (needs booktabs)."""
    markup = _Markup(_escape_tex, r"\textbf{{{}}}", missing="--", plus_minus=r"\,$\pm$\,")
    tasks = list(map(_escape_tex, _task_labels(matrix)))
    return _render_booktabs(
        caption=rf"{_escape_tex(matrix.protocol.label)}: models by mean rank; $\pm$ is one standard error.",
        alignment="rl" + "r" * (len(tasks) + 1),
        header=[r"\#", "model", "mean rank", *tasks],
        rows=_leaderboard_rows(matrix, markup),
    )


def render_table_in_latex(table: Table, rows: Iterable[Sequence[str]]) -> str:
    """Return a finding's table, whose cells are written already, as a LaTeX table; numbers stand to the right."""
    alignment = ""
    for column in range(len(table.columns)):
        has_numbers = any(isinstance(row[column], (int, float)) for row in table.rows)
        alignment += "r" if has_numbers else "l"
    return _render_booktabs(
        caption=_escape_tex(table.title),
        alignment=alignment,
        header=list(map(_escape_tex, table.columns)),
        rows=[list(map(_escape_tex, row)) for row in rows],
    )


def _render_booktabs(
    *, caption: str, alignment: str, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    table_lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _tex_line(header),
        r"\midrule",
        *map(_tex_line, rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(table_lines) + "\n"


def _tex_line(fields: Sequence[str]) -> str:
    return " & ".join(fields) + r" \\"


def _escape_markdown(text: str) -> str:
    one_line = re.sub(r"\s+", " ", text)
    return one_line.replace("\\", "\\\\").replace("|", r"\|").replace("<", "&lt;")


def _escape_tex(text: str) -> str:
    one_line = re.sub(r"\s+", " ", text)
    return "".join(_TEX.get(letter, letter) for letter in one_line)

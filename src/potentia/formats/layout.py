"""What the columns of a score table mean: one score a row, or models × tasks as leaderboards are.

Names are matched in any case and with the synonyms that people use (``Model``, ``Dataset``, ``Accuracy``); what cannot
be guessed is said with ``Accuracy: {is: score}`` in a file of columns. A wide table has one row per model, or one row
per task; what its numbers are is decided column by column (``columns``). Averages, ranks and facts of models are left
out, and said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from potentia.errors import DataError, list_names, suggest_names
from potentia.formats.columns import (
    ColumnHint,
    ColumnHints,
    ColumnLayout,
    TableLayout,
    decide_column,
    is_average,
    metric_in_name,
    plain_name,
    usual_metric,
)
from potentia.formats.table import RawTable
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, find_known_metric
from potentia.values.protocol import Protocol

_FIRST_FIELDS = (
    "protocol",
    "model",
    "benchmark",
    "score",
    "stderr",
    "n",
    "metric",
    "higher_is_better",
    "shots",
)
_FACTS = (
    *(column.written_as for column in METRIC_COLUMNS),
    "seeds",
    *(column.written_as for column in ORIGIN_COLUMNS),
)
FACT_FIELDS = tuple(name for name in _FACTS if name not in _FIRST_FIELDS)
FIELDS = (*_FIRST_FIELDS, *FACT_FIELDS)
SYNONYMS: dict[str, tuple[str, ...]] = {
    "protocol": ("protocol", "setting", "stage"),
    "step": ("step",),  # of a stage
    "model": ("model", "model name", "model id", "fullname", "llm", "system", "checkpoint"),
    "benchmark": (
        "benchmark",
        "task",
        "dataset",
        "eval",
        "evaluation",
        "task name",
        "benchmark name",
        "test",
    ),
    "score": ("score", "value", "result"),
    "stderr": ("stderr", "standard error", "std err", "se", "score stderr"),
    "n": ("n", "samples", "num samples", "n samples", "items", "test size"),
    "metric": ("metric", "metric name"),
    "higher_is_better": ("higher is better",),
    "shots": ("shots", "num fewshot", "n shot", "nshot", "few shot", "fewshot"),
    **{field: (field.replace("_", " "),) for field in FACT_FIELDS},
}
# What a leaderboard has beside scores: averages, ranks, facts of the model. Matched at the start of a plain name.
_NO_SCORE = re.compile(
    r"(average|avg|mean( rank| score)?$|median|overall|rank\b|ranking|place$|#|no$|nr$|id$|t$|params|parameters|size|"
    r"billion|type|precision|architecture|license|hub|likes|available|revision|sha|flagged|merged|moe|co\S? cost|date$|"
    r"generation|base model|upload|submission|chat template|not merged|official|family|kind|tokens|compute|flops|cost|"
    r"price|latency|inference (latency|time|cost)|throughput|runtime|seconds|memory|vram|energy|ttft|"
    r"time to first|notes?$|url|link|votes|organi[sz]ation|context|vocabulary|version|std|eval name|maintainer)"
)
COST_REASON = "what a model costs, no score"
# What running a model takes: a fact of the model, also where it stands among the tasks as a row.
_RUNNING_COST = re.compile(
    r"((inference|generation|training|wall|mean|median) )?"
    r"(cost|price|latency|throughput|runtime|run time|inference time|time to first token|ttft|vram|energy)"
    r"( \(.*\)| per .*| in .*| p\d+| (ms|s|sec|seconds|usd|gb|kwh))*"
)
# What a table of tasks × models has beside models.
_NO_MODEL = frozenset(
    {"version", "metric", "mode", "category", "group", "type", "shots", "n", "subset", "split"}
)
_GAPS = frozenset({"", "-", "–", "—", "n/a", "na", "nan", "none", "null"})
_NUMBER = re.compile(
    r"\**\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*%?\s*\**(?:\s*(?:±|\+/-)\s*([\d.]+)\s*%?\**)?"
)
_LINK = re.compile(r"^\[(?P<markdown>[^\]]+)\]\([^)]*\)|<a\b[^>]*>(?P<html>[^<]+)</a>")


@dataclass(frozen=True)
class ScoreRow:
    """One score of a table: where it stands ("line 7"), and its values by field."""

    location: str
    fields: Mapping[str, object]


@dataclass(frozen=True)
class ScoreRows:
    """A table as one score a row, and how it was read."""

    rows: tuple[ScoreRow, ...]
    notes: tuple[str, ...] = ()
    layout: TableLayout | None = None


@dataclass(frozen=True)
class _TableCell:
    """One score on its way: where it stands, its fields, and whether a per cent sign stands by it."""

    location: str
    fields: Mapping[str, object]
    has_percent_sign: bool = False

    @property
    def column(self) -> tuple[str, str]:
        """What is decided as one: the task and the metric that the table names."""
        return str(self.fields.get("benchmark") or ""), str(self.fields.get("metric") or "")

    @property
    def number(self) -> float | None:
        """The score; None where it could not be read."""
        score = self.fields["score"]
        return score if isinstance(score, float) else None


def read_score_rows(
    table: RawTable,
    column_map: Mapping[str, str] | None = None,
    hints: ColumnHints | None = None,
) -> ScoreRows:
    """Say what the table holds; ``column_map`` names the columns of some fields, ``hints`` say what scores are."""
    hints = hints or ColumnHints()
    columns = _find_columns(table, column_map or {})
    if {"model", "benchmark", "score"} <= columns.keys():
        return _read_tidy_table(table, columns, hints)
    if _is_transposed(table, columns):
        rows = _read_transposed_table(table, columns, hints)
    else:
        rows = _read_wide_table(table, columns, hints)
    if rows is not None:
        return rows
    missing = [
        field_name for field_name in ("model", "benchmark", "score") if field_name not in columns
    ]
    available_columns = list_names(table.columns, 20)
    raise DataError(
        f"the column {', '.join(missing)} is missing; the file has: {available_columns}",
        where=table.source,
        hint="one score a row needs model, benchmark and score (protocol, stderr, n may follow); a wide table needs a "
        "column of models and numbers beside it; say what is what in --columns FILE:  COLUMN: {is: score}",
    )


# --- which column is which field -------------------------------------------------------------------------------------


def _find_columns(table: RawTable, column_map: Mapping[str, str]) -> dict[str, str]:
    """Return the column of every field that has one: as given, else by name; a metric's name is a score."""
    _check_column_map(table, column_map)
    columns_by_name = {
        _comparable_name(column_name): column_name for column_name in reversed(table.columns)
    }
    candidates = {}
    for field_name, synonyms in SYNONYMS.items():
        known_synonyms = [synonym for synonym in synonyms if synonym in columns_by_name]
        candidates[field_name] = [columns_by_name[synonym] for synonym in known_synonyms]
    score_columns = candidates["score"]
    if "score" not in column_map and len(score_columns) > 1:
        raise DataError(
            f"{' and '.join(score_columns)} could each be the score",
            where=table.source,
            hint=f"in --columns FILE:  {score_columns[0]}: {{is: score}}",
        )
    columns: dict[str, str] = {}
    for field_name, field_columns in candidates.items():
        column = column_map.get(field_name, next(iter(field_columns), None))
        if column is not None and column not in columns.values():
            columns[field_name] = column
    if {"model", "benchmark"} <= columns.keys() and "score" not in columns:
        metric_column = next(filter(_metric_named_by, table.columns), None)
        if metric_column is not None:
            columns["score"] = metric_column
    return columns


def _check_column_map(table: RawTable, column_map: Mapping[str, str]) -> None:
    for field, column in column_map.items():
        if field not in FIELDS:
            raise DataError(
                f"no field {field!r} of a score table", hint=f"one of: {', '.join(FIELDS)}"
            )
        if column not in table.columns:
            raise DataError(
                f"no column {column!r} to map to {field}",
                where=table.source,
                hint=suggest_names(column, table.columns),
            )


def _metric_named_by(column: str) -> str | None:
    """Return the metric whose name a column bears, and no more: such a column is the score of a tidy table."""
    metric = find_known_metric(_comparable_name(column).replace(" ", "_"))
    return metric.name if metric is not None else None


# --- one score a row -------------------------------------------------------------------------------------------------


def _read_tidy_table(table: RawTable, columns: Mapping[str, str], hints: ColumnHints) -> ScoreRows:
    """Read one score per row."""
    positions = _positions_of_fields(table, columns)
    metric = _metric_named_by(columns["score"])
    task_position = positions["benchmark"]
    running_costs: dict[str, None] = {}
    cells = []
    for location, values in table.rows:
        task = str(values[task_position])
        if _is_running_cost(task, hints):
            running_costs[task] = None
            continue
        fields: dict[str, object] = {"metric": metric} if metric else {}
        fields |= {field_name: values[position] for field_name, position in positions.items()}
        fields |= _read_protocol(
            fields, f"{table.source}, {location}, column {columns.get('shots')}"
        )
        cells.append(_make_cell(location, fields, fields["score"], fields.get("stderr")))
    left_out = tuple(running_costs)
    if "higher_is_better" in positions:
        plain_rows = tuple(ScoreRow(cell.location, cell.fields) for cell in cells)
        reasons = dict.fromkeys(left_out, COST_REASON)
        layout = TableLayout((), left_out, reasons) if left_out else None
        return ScoreRows(plain_rows, layout=layout)
    rows, layouts = _decide_columns(table, cells, hints)
    layouts_to_show = []
    for column_layout in layouts:
        if column_layout.is_divided or not _is_task_name(column_layout.task):
            layouts_to_show.append(column_layout)
    layout = None
    if layouts_to_show or left_out:
        reasons = dict.fromkeys(left_out, COST_REASON)
        known = len(layouts) - len(layouts_to_show)
        layout = TableLayout(tuple(layouts_to_show), left_out, reasons, known)
    return ScoreRows(rows, layout=layout)


def _positions_of_fields(table: RawTable, columns: Mapping[str, str]) -> dict[str, int]:
    """Return where in a row each field stands, with the standard error of a column that is named after the score's."""
    positions = {field_name: table.columns.index(column) for field_name, column in columns.items()}
    # a column `step` counts only beside a column `stage`: adjust@100
    if _comparable_name(columns.get("protocol", "")) != "stage":
        positions.pop("step", None)
    plain_names = [_comparable_name(column) for column in table.columns]
    error_name = f"{_comparable_name(columns['score'])} stderr"
    if "stderr" not in positions and error_name in plain_names:
        positions["stderr"] = plain_names.index(error_name)
    return positions


def _read_protocol(fields: Mapping[str, object], source: str) -> dict[str, object]:
    """Return the protocol of a row that has a step beside its stage, or a number of examples and no name for it."""
    if "step" in fields:
        step = _parse_count(fields["step"], "steps", source)
        if step is None:
            return {}
        return {"protocol": f"{fields['protocol']}@{step}"}
    if "shots" in fields and "protocol" not in fields:
        shots = _parse_count(fields["shots"], "examples", source)
        return {"protocol": Protocol.few_shot(shots or 0)}
    return {}


def _parse_count(value: object, unit: str, source: str) -> int | None:
    """Read a whole number; None where there is none."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise DataError(f"{value!r} is not a number of {unit}", where=source) from None


# --- models × tasks --------------------------------------------------------------------------------------------------


def _is_transposed(table: RawTable, columns: Mapping[str, str]) -> bool:
    """Say whether rows are tasks and columns models: the first header says so, or the names are those of benchmarks."""
    if "model" in columns or not table.columns:
        return False
    if columns.get("benchmark") == table.columns[0]:
        return True
    row_names = [str(values[0]) for _, values in table.rows]
    tasks_down = sum(map(_is_task_name, row_names))
    tasks_across = sum(map(_is_task_name, table.columns[1:]))
    return tasks_down > max(tasks_across, len(row_names) / 2)


def _is_task_name(column_name: str) -> bool:
    return (
        usual_metric(plain_name(column_name)) is not None or metric_in_name(column_name) is not None
    )


@dataclass(frozen=True)
class _ScoreColumns:
    """The columns of a wide table: those of scores with their tasks, the errors of some, and what is left out."""

    tasks: Mapping[str, str]
    errors: Mapping[str, str]
    left_out: list[str]


@dataclass(frozen=True)
class _ModelRow:
    """One row of a wide table: where it stands, its values, and the fields that all of its scores share."""

    location: str
    values: Mapping[str, object]
    shared_fields: Mapping[str, object]


def _read_wide_table(
    table: RawTable, columns: Mapping[str, str], hints: ColumnHints
) -> ScoreRows | None:
    """Read one row per model: a column of names, and every other column of numbers is a task."""
    model_column = columns.get("model") or _find_name_column(table)
    if model_column is None:
        return None
    other_fields = {
        field_name: columns[field_name]
        for field_name in ("protocol", "shots")
        if field_name in columns
    }
    score_columns = _find_score_columns(table, {model_column, *other_fields.values()}, hints)
    if not score_columns.tasks:
        return None
    left_out = list(score_columns.left_out)
    model_rows = []
    for location, values in table.records():
        model = values[model_column]
        if is_average(model):
            left_out.append(f"the row {model}")
            continue
        shared_fields = {field_name: values[column] for field_name, column in other_fields.items()}
        shared_fields |= _read_protocol(shared_fields, f"{table.source}, {location}")
        shared_fields = {"model": _strip_link(model), **shared_fields}
        model_rows.append(_ModelRow(location, values, shared_fields))
    cells = []
    for column, task in score_columns.tasks.items():
        error_column = score_columns.errors.get(column)
        for row in model_rows:
            stderr = _parse_cell(row.values[error_column]).value if error_column else None
            fields = {**row.shared_fields, "benchmark": task}
            cells.append(
                _make_cell(f"{row.location}, column {column}", fields, row.values[column], stderr)
            )
    return _rows_of_grid(table, cells, hints, left_out)


def _find_score_columns(
    table: RawTable, other_columns: set[str], hints: ColumnHints
) -> _ScoreColumns:
    """Return the columns of scores with their tasks, the column of errors that each has, and what is left out."""
    numeric_columns = [column for column in _numeric_columns(table) if column not in other_columns]
    errors: dict[str, str] = {}
    for column in numeric_columns:
        measured_column = _column_of_error(column, numeric_columns)
        if measured_column is not None:
            errors[measured_column] = column
    # A leaderboard that shows normalised scores keeps the measured ones beside them, as "MATH Raw".
    measured_task = {
        column: column[: -len(" raw")].strip()
        for column in numeric_columns
        if _comparable_name(column).endswith(" raw")
    }
    normalised = set(measured_task.values()) & set(numeric_columns)
    no_scores = {*other_columns, *errors.values(), *normalised}
    tasks = {}
    for column in numeric_columns:
        if column not in no_scores and _is_task_column(column, hints):
            tasks[column] = measured_task.get(column, column)
    left_out = []
    for column in table.columns:
        if column not in no_scores and column not in tasks:
            left_out.append(column)
    return _ScoreColumns(tasks, errors, left_out)


def _read_transposed_table(
    table: RawTable, columns: Mapping[str, str], hints: ColumnHints
) -> ScoreRows | None:
    """Read one row per task and one column per model, as OpenCompass and many papers write it."""
    task_column = columns.get("benchmark") or table.columns[0]
    candidates = [column for column in _numeric_columns(table) if column != task_column]
    numeric_columns = [column for column in candidates if _comparable_name(column) not in _NO_MODEL]
    if not numeric_columns:
        return None
    model_columns = [column for column in numeric_columns if not is_average(column)]
    used_columns = {task_column, *model_columns}
    other_columns = [column for column in table.columns if column not in used_columns]
    left_out = [column for column in other_columns if _comparable_name(column) != "metric"]
    cells = []
    for location, values in table.records():
        task = str(values[task_column])
        metric = str(values[columns["metric"]]) if "metric" in columns else ""
        if _is_passed_over(task, hints) or _is_running_cost(task, hints):
            left_out.append(f"the row {task}")
            continue
        for model in model_columns:
            fields = {
                "model": _strip_link(model),
                "benchmark": task,
                "metric": metric if metric.strip("- ") else None,
            }
            cells.append(_make_cell(f"{location}, column {model}", fields, values[model]))
    rows = _rows_of_grid(table, cells, hints, left_out)
    return replace(rows, notes=("rows are tasks and columns are models",))


def _is_task_column(column: str, hints: ColumnHints) -> bool:
    """Whether a column of numbers holds scores: as the user says, else by its name."""
    is_skipped = hints.of_column(column).skip
    if is_skipped is not None:
        return not is_skipped
    return not is_average(column) and not _NO_SCORE.match(_comparable_name(column))


def _is_passed_over(column_name: str, hints: ColumnHints) -> bool:
    is_skipped = hints.of_column(column_name).skip
    return is_average(column_name) if is_skipped is None else is_skipped


def _is_running_cost(task: str, hints: ColumnHints) -> bool:
    """Say whether a row tells what a model costs rather than what it can do, unless the user describes the row."""
    if hints.of_column(task) != ColumnHint():
        return False
    return _RUNNING_COST.fullmatch(_comparable_name(task)) is not None


def _rows_of_grid(
    table: RawTable, cells: Sequence[_TableCell], hints: ColumnHints, left_out: Sequence[str]
) -> ScoreRows:
    """Return the scores of a wide table, each task read as its name and values say."""
    scored_cells = [cell for cell in cells if cell.number is not None]
    tasks = list(dict.fromkeys(str(cell.fields["benchmark"]) for cell in scored_cells))
    hints.check_columns([*tasks, *left_out], table.source)
    rows, layouts = _decide_columns(table, scored_cells, hints)
    names = tuple(dict.fromkeys(left_out))
    numeric_columns = set(_numeric_columns(table))
    reasons = {name: _reason_to_leave_out(name, numeric_columns, hints) for name in names}
    return ScoreRows(rows, layout=TableLayout(layouts, names, reasons))


def _reason_to_leave_out(name: str, numeric_columns: Collection[str], hints: ColumnHints) -> str:
    """Say why a column, or a row of a table of tasks, is no score."""
    plain_name = name.removeprefix("the row ")
    if hints.of_column(plain_name).skip:
        return "skip, as was said"
    if is_average(plain_name):
        return "an average"
    if _RUNNING_COST.fullmatch(_comparable_name(plain_name)):
        return COST_REASON
    if _NO_SCORE.match(_comparable_name(plain_name)):
        return "a fact of the model, no score"
    if name == plain_name and name not in numeric_columns:
        return "no numbers"
    return "its measured scores are in another column"


# --- what the numbers are --------------------------------------------------------------------------------------------


def _make_cell(
    location: str, fields: Mapping[str, object], content: object, stderr: object = None
) -> _TableCell:
    """Take one score, with the error that stands by it (**0.46 ± 0.01**) or in a column of its own."""
    parsed_number = _parse_cell(content)
    score_fields = {
        "score": str(content) if parsed_number.value is None else parsed_number.value,
        "stderr": parsed_number.stderr if stderr is None else stderr,
    }
    has_percent_sign = "%" in f"{content}{fields.get('benchmark')}"
    return _TableCell(location, {**fields, **score_fields}, has_percent_sign)


def _decide_columns(
    table: RawTable, cells: Sequence[_TableCell], hints: ColumnHints
) -> tuple[tuple[ScoreRow, ...], tuple[ColumnLayout, ...]]:
    """Decide what the scores of each task are, by the metric that the table names or by their values."""
    cells_by_column: dict[tuple[str, str], list[_TableCell]] = {}
    for cell in cells:
        if cell.column[0].strip() and cell.number is not None:
            cells_by_column.setdefault(cell.column, []).append(cell)
    layouts = {}
    for (task, metric), column_cells in cells_by_column.items():
        layouts[task, metric] = decide_column(
            task,
            [cell.number for cell in column_cells if cell.number is not None],
            hints,
            metric=metric or None,
            has_percent_sign=any(cell.has_percent_sign for cell in column_cells),
            source=table.source,
        )
    rows = []
    for cell in cells:
        layout = layouts.get(cell.column)
        fields = cell.fields if layout is None else _apply_layout(cell.fields, layout)
        rows.append(ScoreRow(cell.location, fields))
    return tuple(rows), tuple(layouts.values())


def _apply_layout(fields: Mapping[str, object], layout: ColumnLayout) -> dict[str, object]:
    """Return a row with what was decided of its column; score and error in per cent become shares of 1."""
    metric = layout.metric
    decided_fields = {
        **fields,
        "benchmark": layout.task,
        "metric": metric.name or None,
        "higher_is_better": metric.higher_is_better,
        "metric_kind": metric.kind,
        "metric_scale": metric.scale,
    }
    if layout.is_divided:
        for field_name in ("score", "stderr"):
            value = _parse_cell(fields.get(field_name)).value
            decided_fields[field_name] = fields.get(field_name) if value is None else value / 100
    return decided_fields


def _find_name_column(table: RawTable) -> str | None:
    """Return the first column of different texts: the models, whatever it is called."""
    for column in table.columns:
        values = [str(value).strip() for value in table.column(column) if value is not None]
        if values and len(set(values)) == len(table.rows) and not _is_numeric(values):
            return column
    return None


def _numeric_columns(table: RawTable) -> list[str]:
    return [column for column in table.columns if _is_numeric(table.column(column))]


def _is_numeric(values: Sequence[object]) -> bool:
    """Say whether a column is numbers and gaps alone, with at least one number."""
    filled = [value for value in values if str(value).strip().casefold() not in _GAPS]
    return bool(filled) and all(_parse_cell(value).value is not None for value in filled)


def _column_of_error(column: str, columns: Sequence[str]) -> str | None:
    """Return the column whose standard error this is, by its name: ``mmlu_stderr`` beside ``mmlu``."""
    name_parts = re.fullmatch(
        r"(.+?)[ _.]*(?:stderr|std err|standard error|\(se\)|_se|±)", column, re.IGNORECASE
    )
    return name_parts[1] if name_parts and name_parts[1] in columns else None


@dataclass(frozen=True)
class _CellNumber:
    """The number of a table's cell and the error that stands by it; None where there is none."""

    value: float | None = None
    stderr: float | None = None


def _parse_cell(content: object) -> _CellNumber:
    """Read a cell: a number, a number with its error (0.46 ± 0.01), a number of per cent, or nothing."""
    if content is None or isinstance(content, bool):
        return _CellNumber()
    if isinstance(content, (int, float)):
        is_finite = abs(content) < 1e300  # no score: NaN, or beyond all numbers
        return _CellNumber(float(content)) if is_finite else _CellNumber()
    number_parts = _NUMBER.fullmatch(str(content).strip())
    if number_parts is None:
        return _CellNumber()
    try:
        return _CellNumber(
            float(number_parts[1]), float(number_parts[2]) if number_parts[2] else None
        )
    except ValueError:
        return _CellNumber()


def _strip_link(model_name: object) -> str:
    """Return a model's name without the link that web leaderboards put around it."""
    text = str(model_name).strip()
    link = _LINK.search(text)
    return (link["markdown"] or link["html"]).strip() if link else text


def _comparable_name(column_name: str) -> str:
    """Return a column's name for comparison: in lower case, words apart, without arrows and emoji."""
    letters = re.sub(r"[^\w#%() ]+", " ", column_name.casefold().replace("_", " "))
    return re.sub(r"\s+", " ", letters).strip()

"""What the columns of a score table mean: one score a row, or models × tasks as leaderboards are.

Names are matched in any case and with the synonyms that people use (``Model``, ``Dataset``, ``Accuracy``); what cannot
be guessed is said with ``--map score=Accuracy``. A wide table has one row per model, or one row per task; what its
numbers are is decided column by column (``columns``). Averages, ranks and facts of models are left out, and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potentia.errors import DataError
from potentia.formats.columns import (
    ColumnReading,
    Reading,
    Says,
    average,
    decide,
    named_metric,
    plain_name,
    usual_metric,
)
from potentia.formats.table import RawTable
from potentia.values.metric import METRIC_COLUMNS, ORIGIN_COLUMNS, known_metric
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
TRAVELS = tuple(name for name in _FACTS if name not in _FIRST_FIELDS)
FIELDS = (*_FIRST_FIELDS, *TRAVELS)
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
    **{field: (field.replace("_", " "),) for field in TRAVELS},
}
# What a leaderboard has beside scores: averages, ranks, facts of the model. Matched at the start of a plain name.
NO_SCORE = re.compile(
    r"(average|avg|mean( rank| score)?$|median|overall|rank\b|ranking|place$|#|no$|nr$|id$|t$|params|parameters|size|"
    r"billion|type|precision|architecture|license|hub|likes|available|revision|sha|flagged|merged|moe|co\S? cost|date|"
    r"generation|base model|upload|submission|chat template|not merged|official|family|kind|tokens|compute|flops|cost|"
    r"price|notes?$|url|link|votes|organi[sz]ation|context|vocabulary|version|std|eval name|maintainer)"
)
BESIDE = frozenset(
    {"version", "metric", "mode", "category", "group", "type", "shots", "n", "subset", "split"}
)
GAPS = frozenset({"", "-", "–", "—", "n/a", "na", "nan", "none", "null"})
_NUMBER = re.compile(
    r"\**\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*%?\s*\**(?:\s*(?:±|\+/-)\s*([\d.]+)\s*%?\**)?"
)
_LINK = re.compile(r"^\[(?P<markdown>[^\]]+)\]\([^)]*\)|<a\b[^>]*>(?P<html>[^<]+)</a>")

Row = tuple[str, Mapping[str, Any]]  # where it stands ("line 7"), and its values by field


@dataclass(frozen=True)
class Layout:
    """The rows of a table as one score each, and how they were read."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    reading: Reading | None = None


@dataclass(frozen=True)
class _Cell:
    """One score on its way: where it stands, its fields, and whether a per cent sign stands by it."""

    at: str
    row: dict[str, Any]
    percent: bool = False

    @property
    def column(self) -> tuple[str, str]:
        """What is decided as one: the task and the metric that the table names."""
        return str(self.row.get("benchmark") or ""), str(self.row.get("metric") or "")


def recognise(
    table: RawTable, columns: Mapping[str, str] | None = None, says: Says | None = None
) -> Layout:
    """Say what the table holds; ``columns`` names the columns of some fields, ``says`` what columns of scores are."""
    found, says = _fields(table, columns or {}), says or Says()
    if {"model", "benchmark", "score"} <= found.keys():
        return _tidy(table, found, says)
    wide = (
        _transposed(table, found, says)
        if _is_transposed(table, found)
        else _wide(table, found, says)
    )
    if wide is not None:
        return wide
    missing = [name for name in ("model", "benchmark", "score") if name not in found]
    raise DataError(
        f"the column {', '.join(missing)} is missing; the file has: {', '.join(table.columns[:20])}",
        where=table.where,
        hint="one score a row needs model, benchmark and score (protocol, stderr, n may follow); a wide table needs a "
        "column of models and numbers beside it; say what is what with --map score=COLUMN",
    )


def _fields(table: RawTable, given: Mapping[str, str]) -> dict[str, str]:
    """Return the column of every field that has one: as given, else by name; a metric's name is a score."""
    _check_map(table, given)
    plain = {_plain(name): name for name in reversed(table.columns)}
    named = {
        field: [plain[name] for name in names if name in plain] for field, names in SYNONYMS.items()
    }
    if "score" not in given and len(named["score"]) > 1:
        several, first = " and ".join(named["score"]), named["score"][0]
        raise DataError(
            f"{several} could each be the score", where=table.where, hint=f"--map score={first}"
        )
    found: dict[str, str] = {}
    for field, present in named.items():
        for column in [given[field]] if field in given else present[:1]:
            if column not in found.values():
                found[field] = column
    if {"model", "benchmark"} <= found.keys():
        for metric in filter(_metric_of, table.columns):
            found.setdefault("score", metric)
    return found


def _check_map(table: RawTable, given: Mapping[str, str]) -> None:
    for field, column in given.items():
        if field not in FIELDS:
            raise DataError(f"--map knows no {field!r}", hint=f"map one of: {', '.join(FIELDS)}")
        if column not in table.columns:
            there = ", ".join(table.columns[:20])
            raise DataError(
                f"no column {column!r} to map to {field}",
                where=table.where,
                hint=f"there are: {there}",
            )


def _metric_of(column: str) -> str | None:
    """Return the metric whose name a column bears, and no more: such a column is the score of a tidy table."""
    known = known_metric(_plain(column).replace(" ", "_"))
    return known.name if known is not None else None


def _tidy(table: RawTable, found: Mapping[str, str], says: Says) -> Layout:
    """Read one score per row."""
    plain = [_plain(column) for column in table.columns]
    place = {field: table.columns.index(column) for field, column in found.items()}
    beside, metric = f"{_plain(found['score'])} stderr", _metric_of(found["score"])
    if _plain(found.get("protocol", "")) != "stage":
        place.pop("step", None)
    if "stderr" not in place and beside in plain:
        place["stderr"] = plain.index(beside)
    cells = []
    for at, values in table.rows:
        row = ({"metric": metric} if metric else {}) | {
            field: values[k] for field, k in place.items()
        }
        row |= _protocol(row, f"{table.where}, {at}, column {found.get('shots')}")
        cells.append(_cell(at, row, row["score"], row.get("stderr")))
    if "higher_is_better" in place:
        return Layout(tuple((cell.at, cell.row) for cell in cells))
    rows, read = _decided(table, cells, says)
    told = tuple(column for column in read if column.divided or not _is_task(column.task))
    return Layout(rows, (), Reading(told) if told else None)


def _protocol(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the protocol of a row that has a step beside its stage, or a number of examples and no name for it."""
    what = next((field for field in ("step", "shots") if field in row), None)
    if what is None or (what == "shots" and "protocol" in row):
        return {}
    text = str("" if row[what] is None else row[what]).strip()
    try:
        count = int(float(text or 0))
    except (ValueError, OverflowError):
        raise DataError(
            f"{row[what]!r} is no number of {'examples' if what == 'shots' else 'steps'}",
            where=where,
        ) from None
    if what == "shots":
        return {"protocol": Protocol.few_shot(count)}
    return {"protocol": f"{row['protocol']}@{count}"} if text else {}


def _is_transposed(table: RawTable, found: Mapping[str, str]) -> bool:
    """Say whether rows are tasks and columns models: the first header says so, or the names are those of benchmarks."""
    if "model" in found or not table.columns:
        return False
    if found.get("benchmark") == table.columns[0]:
        return True
    names = [str(values[0]) for _, values in table.rows]
    across = sum(_is_task(column) for column in table.columns[1:])
    return sum(map(_is_task, names)) > max(across, len(names) / 2)


def _is_task(name: str) -> bool:
    return usual_metric(plain_name(name)) is not None or named_metric(name) is not None


def _wide(table: RawTable, found: Mapping[str, str], says: Says) -> Layout | None:
    """Read one row per model: a column of names, and every other column of numbers is a task."""
    model = found.get("model") or _names(table)
    if model is None:
        return None
    about = {field: found[field] for field in ("protocol", "shots") if field in found}
    tasks, errors, left = _score_columns(table, {model, *about.values()}, says)
    if not tasks:
        return None
    models = []
    for at, row in table.records():
        if average(row[model]):
            left.append(f"the row {row[model]}")
            continue
        said = {field: row[column] for field, column in about.items()}
        models.append(
            (
                at,
                row,
                {"model": _unlinked(row[model]), **said, **_protocol(said, f"{table.where}, {at}")},
            )
        )
    cells = []
    for c, task in tasks.items():
        for at, row, shared in models:
            spread = _value(row[errors[c]])[0] if c in errors else None
            cells.append(_cell(f"{at}, column {c}", {**shared, "benchmark": task}, row[c], spread))
    return _grid(table, cells, says, left)


def _score_columns(
    table: RawTable, others: set[str], says: Says
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return the columns of scores with their tasks, the column of errors that each has, and what is left out."""
    numeric = [c for c in _numeric(table) if c not in others]
    errors = {base: c for c in numeric if (base := _error_of(c, numeric)) is not None}
    # A leaderboard that shows normalised scores keeps the measured ones beside them.
    measured = {c: c[: -len(" raw")].strip() for c in numeric if _plain(c).endswith(" raw")}
    beside = {*others, *errors.values(), *(set(measured.values()) & set(numeric))}
    tasks = {
        c: measured.get(c, c) for c in numeric if c not in beside and not _passed_over(c, says)
    }
    tasks = {c: task for c, task in tasks.items() if not NO_SCORE.match(_plain(c))}
    return tasks, errors, [c for c in table.columns if c not in beside and c not in tasks]


def _transposed(table: RawTable, found: Mapping[str, str], says: Says) -> Layout | None:
    """Read one row per task and one column per model, as OpenCompass and many papers write it."""
    task = found.get("benchmark") or table.columns[0]
    numeric = [c for c in _numeric(table) if c != task and _plain(c) not in BESIDE]
    models = [c for c in numeric if not average(c)]
    if not numeric:
        return None
    left = [c for c in table.columns if c != task and c not in models and _plain(c) != "metric"]
    cells = []
    for at, row in table.records():
        name, metric = str(row[task]), str(row[found["metric"]]) if "metric" in found else ""
        if _passed_over(name, says):
            left.append(f"the row {name}")
            continue
        shared = {"benchmark": name, "metric": metric if metric.strip("- ") else None}
        cells += [
            _cell(f"{at}, column {m}", {"model": _unlinked(m), **shared}, row[m]) for m in models
        ]
    return _grid(table, cells, says, left, "rows are tasks and columns are models")


def _passed_over(name: str, says: Says) -> bool:
    return average(name) or says.about(name).get("skip") is True


def _cell(at: str, row: dict[str, Any], content: Any, spread: Any = None) -> _Cell:
    """Take one score, with the error that stands by it (**0.46 ± 0.01**) or in a column of its own."""
    value, error = _value(content)
    row |= {
        "score": str(content) if value is None else value,
        "stderr": error if spread is None else spread,
    }
    return _Cell(at, row, "%" in f"{content}{row.get('benchmark')}")


def _grid(
    table: RawTable, cells: Sequence[_Cell], says: Says, left: list[str], *notes: str
) -> Layout:
    """Return the scores of a wide table, each task read as its name and values say."""
    known = [cell for cell in cells if isinstance(cell.row["score"], float)]
    says.check([*dict.fromkeys(cell.row["benchmark"] for cell in known), *left], table.where)
    rows, read = _decided(table, known, says)
    return Layout(rows, notes, Reading(read, tuple(dict.fromkeys(left))))


def _decided(
    table: RawTable, cells: Sequence[_Cell], says: Says
) -> tuple[tuple[Row, ...], tuple[ColumnReading, ...]]:
    """Decide what the scores of each task are, by the metric that the table names or by their values."""
    columns: dict[tuple[str, str], list[_Cell]] = {}
    for cell in cells:
        if cell.column[0].strip() and isinstance(cell.row["score"], float):
            columns.setdefault(cell.column, []).append(cell)
    read = {}
    for (task, metric), members in columns.items():
        values, percent = (
            [cell.row["score"] for cell in members],
            any(cell.percent for cell in members),
        )
        read[task, metric] = decide(
            task, values, says, metric=metric or None, percent=percent, where=table.where
        )
    rows: list[Row] = [(cell.at, _said(cell.row, read.get(cell.column))) for cell in cells]
    return tuple(rows), tuple(read.values())


def _said(row: dict[str, Any], column: ColumnReading | None) -> dict[str, Any]:
    """Return a row with what was decided of its column; score and error in per cent become shares of 1."""
    if column is None:
        return row
    m = column.metric
    made = row | {
        "benchmark": column.task,
        "metric": m.name or None,
        "higher_is_better": m.higher_is_better,
        "metric_kind": m.kind,
        "metric_scale": m.scale,
    }
    for field in ("score", "stderr") if column.divided else ():
        value = _value(row.get(field))[0]
        made[field] = row.get(field) if value is None else value / 100
    return made


def _names(table: RawTable) -> str | None:
    """Return the first column of different texts: the models, whatever it is called."""
    for column in table.columns:
        values = [str(v).strip() for v in table.column(column) if v is not None]
        if values and len(set(values)) == len(table.rows) and not _is_numeric(values):
            return column
    return None


def _numeric(table: RawTable) -> list[str]:
    return [column for column in table.columns if _is_numeric(table.column(column))]


def _is_numeric(values: Sequence[Any]) -> bool:
    """Say whether a column is numbers and gaps alone, with at least one number."""
    there = [value for value in values if str(value).strip().casefold() not in GAPS]
    return bool(there) and all(_value(value)[0] is not None for value in there)


def _error_of(column: str, columns: Sequence[str]) -> str | None:
    """Return the column whose standard error this is, by its name: ``mmlu_stderr`` beside ``mmlu``."""
    found = re.fullmatch(
        r"(.+?)[ _.]*(?:stderr|std err|standard error|\(se\)|_se|±)", column, re.IGNORECASE
    )
    return found[1] if found and found[1] in columns else None


def _value(cell: Any) -> tuple[float | None, float | None]:
    """Read a cell: a number, a number with its error (0.46 ± 0.01), a number of per cent, or nothing."""
    if cell is None or isinstance(cell, bool):
        return None, None
    if isinstance(cell, (int, float)):
        return (
            (float(cell), None) if abs(cell) < 1e300 else (None, None)
        )  # no score: NaN, or beyond all numbers
    found = _NUMBER.fullmatch(str(cell).strip())
    if found is None:
        return None, None
    error = found[2]
    try:
        return float(found[1]), float(error) if error else None
    except ValueError:
        return None, None


def _unlinked(name: Any) -> str:
    """Return a model's name without the link that web leaderboards put around it."""
    text = str(name).strip()
    found = _LINK.search(text)
    return (found["markdown"] or found["html"]).strip() if found else text


def _plain(name: str) -> str:
    """Return a column's name for comparison: in lower case, words apart, without arrows and emoji."""
    kept = re.sub(r"[^\w#%() ]+", " ", name.casefold().replace("_", " "))
    return re.sub(r"\s+", " ", kept).strip()

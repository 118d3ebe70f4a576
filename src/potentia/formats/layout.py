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
from potentia.formats.columns import ColumnReading, Reading, Says, average, decide, named_metric, plain_name, usual
from potentia.formats.table import RawTable
from potentia.values.metric import known_metric
from potentia.values.protocol import Protocol

TRAVELS = ("metric_kind", "metric_scale", "chance", "seeds", "data_fingerprint", "recipe_fingerprint",
           "model_fingerprint", "source", "path")  # fmt: skip
FIELDS = ("protocol", "model", "benchmark", "score", "stderr", "n", "metric", "higher_is_better", "shots", *TRAVELS)
SYNONYMS: dict[str, tuple[str, ...]] = {
    "protocol": ("protocol", "setting"),
    "model": ("model", "model name", "model id", "fullname", "llm", "system", "checkpoint"),
    "benchmark": ("benchmark", "task", "dataset", "eval", "evaluation", "task name", "benchmark name", "test"),
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
BESIDE = frozenset({"version", "metric", "mode", "category", "group", "type", "shots", "n", "subset", "split"})
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


@dataclass
class _Column:
    """The scores of one task on their way: the model, the place, value and error of each."""

    name: str
    metric: str | None
    percent: bool
    cells: list[tuple[Mapping[str, Any], str, float, float | None]]

    def add(self, shared: Mapping[str, Any], at: str, cell: Any, *spread: Any) -> None:
        """Take one cell, with the error in it or in the cell of errors."""
        value, error = _value(cell)
        if value is not None:
            self.cells.append((shared, at, value, _value(spread[0])[0] if spread else error))
            self.percent |= "%" in str(cell)


def recognise(table: RawTable, columns: Mapping[str, str] | None = None, says: Says | None = None) -> Layout:
    """Say what the table holds; ``columns`` names the columns of some fields, ``says`` what columns of scores are."""
    found, says = _fields(table, columns or {}), says or Says()
    if {"model", "benchmark", "score"} <= found.keys():
        return _tidy(table, found, says)
    wide = _transposed(table, found, says) if _is_transposed(table, found) else _wide(table, found, says)
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
    for field, column in given.items():
        if field not in FIELDS:
            raise DataError(f"--map knows no {field!r}", hint=f"map one of: {', '.join(FIELDS)}")
        if column not in table.columns:
            there = ", ".join(table.columns[:20])
            raise DataError(f"no column {column!r} to map to {field}", where=table.where, hint=f"there are: {there}")
    plain = {_plain(name): name for name in reversed(table.columns)}
    found: dict[str, str] = {}
    for field, names in SYNONYMS.items():
        present = [plain[name] for name in names if name in plain]
        if field == "score" and field not in given and len(present) > 1:
            several = " and ".join(present)
            raise DataError(f"{several} could each be the score", where=table.where, hint=f"--map score={present[0]}")
        chosen = given.get(field) or next(iter(present), None)
        if chosen is not None and chosen not in found.values():
            found[field] = chosen
    if "score" not in found and {"model", "benchmark"} <= found.keys():
        metric = next((column for column in table.columns if _metric_of(column)), None)
        if metric is not None:
            found["score"] = metric
    return found


def _metric_of(column: str) -> str | None:
    """Return the metric whose name a column bears, and no more: such a column is the score of a tidy table."""
    known = known_metric(_plain(column).replace(" ", "_"))
    return known.name if known is not None else None


def _tidy(table: RawTable, found: Mapping[str, str], says: Says) -> Layout:
    place = {field: table.columns.index(column) for field, column in found.items()}
    metric = _metric_of(found["score"]) or ""
    beside = f"{_plain(found['score'])} stderr"
    if "stderr" not in place and beside in map(_plain, table.columns):
        place["stderr"] = [_plain(c) for c in table.columns].index(beside)
    rows = []
    for at, values in table.rows:
        row = {field: values[k] for field, k in place.items()}
        value, error = _value(row["score"])
        if value is not None:  # **0.46 ± 0.01** is a number with its error
            row["score"] = value
            row["stderr"] = error if row.get("stderr") is None else row["stderr"]
        if metric and "metric" not in place:
            row["metric"] = metric
        rows.append((at, row | _protocol(row, f"{table.where}, {at}, column {found.get('shots')}")))
    if "higher_is_better" in place:
        return Layout(tuple(rows))
    return _decided_tidy(table, rows, says)


def _protocol(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the protocol as a row names it, else by its number of examples."""
    if "protocol" in row or "shots" not in row:
        return {"protocol": row["protocol"]} if "protocol" in row else {}
    try:
        return {"protocol": Protocol.few_shot(int(float(str(row["shots"]).strip() or 0)))}
    except ValueError:
        raise DataError(f"{row['shots']!r} is no number of examples", where=where) from None


def _decided_tidy(table: RawTable, rows: Sequence[Row], says: Says) -> Layout:
    """Decide what each task of a tidy table is, by the metric that it names or by its values."""
    groups: dict[tuple[str, str], list[float]] = {}
    for _, row in rows:
        value = _value(row.get("score"))[0]
        if value is not None:
            groups.setdefault(_group(row), []).append(value)
    read = {
        (task, metric): decide(task, values, says, metric=metric or None, where=table.where)
        for (task, metric), values in groups.items()
        if task.strip()
    }
    made = []
    for at, row in rows:
        column = read.get(_group(row))
        if column is not None:
            row = (_share(row) if column.divided else dict(row)) | _said(column, row.get("metric"))
        made.append((at, row))
    told = tuple(c for c in read.values() if c.divided or not _is_task(c.task))
    return Layout(tuple(made), (), Reading(told) if told else None)


def _group(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row.get("benchmark") or ""), str(row.get("metric") or "")


def _said(column: ColumnReading, metric: Any = None) -> dict[str, Any]:
    """Return what was decided of a column, as the fields of a row."""
    m = column.metric
    return {"metric": metric or m.name or None, "higher_is_better": m.higher_is_better, "metric_kind": m.kind,
            "metric_scale": m.scale}  # fmt: skip


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
    return usual(plain_name(name)) is not None or named_metric(name) is not None


def _wide(table: RawTable, found: Mapping[str, str], says: Says) -> Layout | None:
    """Read one row per model: a column of names, and every other column of numbers is a task."""
    model = found.get("model") or _names(table)
    if model is None:
        return None
    known = {model, *(found[f] for f in ("protocol", "shots") if f in found)}
    numeric = {c for c in table.columns if c not in known and _is_numeric(table.column(c))}
    errors = {c: base for c in numeric if (base := _error_of(c, numeric)) is not None}
    raw = {c: c[: -len(" raw")].strip() for c in numeric if _plain(c).endswith(" raw")}
    left = {c for c in numeric if NO_SCORE.match(_plain(c)) or average(c) or says.about(c).get("skip") is True}
    twins = set(raw.values()) & numeric  # a leaderboard that shows normalised scores keeps the measured ones beside
    tasks = [c for c in table.columns if c in numeric and c not in errors and c not in left and c not in twins]
    if not tasks:
        return None
    spread = {base: c for c, base in errors.items()}
    scores = {task: _Column(raw.get(task, task), None, "%" in task, []) for task in tasks}
    out = [c for c in table.columns if c not in known and c not in tasks and c not in errors and c not in twins]
    for at, values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        if average(row[model]):
            out.append(f"the row {row[model]}")
            continue
        said = {field: row[found[field]] for field in ("protocol", "shots") if field in found}
        shared = {"model": _unlinked(row[model]), **_protocol(said, f"{table.where}, {at}")}
        for task in tasks:
            beside = (row[spread[task]],) if task in spread else ()
            scores[task].add(shared, f"{at}, column {task}", row[task], *beside)
    return _decided(table, list(scores.values()), says, out)


def _transposed(table: RawTable, found: Mapping[str, str], says: Says) -> Layout | None:
    """Read one row per task and one column per model, as OpenCompass and many papers write it."""
    task = found.get("benchmark") or table.columns[0]
    beside = [c for c in table.columns if _plain(c) in BESIDE]
    models = [c for c in table.columns if c != task and c not in beside and _is_numeric(table.column(c))]
    if not models:
        return None
    out = [c for c in table.columns if c != task and c not in models and _plain(c) != "metric"]
    out += [c for c in models if average(c)]
    models = [c for c in models if not average(c)]
    scores = []
    for at, values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        name = str(row[task])
        if average(name) or says.about(name).get("skip") is True:
            out.append(f"the row {name}")
            continue
        metric = str(row[found["metric"]]) if "metric" in found else ""
        column = _Column(name, metric if metric.strip("- ") else None, "%" in name, [])
        for model in models:
            column.add({"model": _unlinked(model)}, f"{at}, column {model}", row[model])
        scores.append(column)
    return _decided(table, scores, says, out, note="rows are tasks and columns are models")


def _decided(table: RawTable, scores: list[_Column], says: Says, left: list[str], note: str = "") -> Layout:
    """Return one row per score, each task read as its name and values say."""
    scores = [column for column in scores if column.cells]
    says.check([*(column.name for column in scores), *left], table.where)
    rows: list[Row] = []
    read = []
    for column in scores:
        values = [value for _, _, value, _ in column.cells]
        made = decide(column.name, values, says, metric=column.metric, percent=column.percent, where=table.where)
        read.append(made)
        for shared, at, value, error in column.cells:
            row = {**shared, "benchmark": made.task, "score": value, "stderr": error, **_said(made)}
            rows.append((at, _share(row) if made.divided else row))
    return Layout(tuple(rows), (note,) if note else (), Reading(tuple(read), tuple(dict.fromkeys(left))))


def _names(table: RawTable) -> str | None:
    """Return the first column of different texts: the models, whatever it is called."""
    for column in table.columns:
        values = [str(v).strip() for v in table.column(column) if v is not None]
        if values and len(set(values)) == len(table.rows) and not _is_numeric(values):
            return column
    return None


def _is_numeric(values: Sequence[Any]) -> bool:
    """Say whether a column is numbers and gaps alone, with at least one number."""
    known = [_value(v)[0] is not None for v in values]
    return any(known) and all(
        there or str(v).strip().casefold() in GAPS for there, v in zip(known, values, strict=True)
    )


def _error_of(column: str, columns: set[str]) -> str | None:
    """Return the column whose standard error this is, by its name: ``mmlu_stderr`` beside ``mmlu``."""
    found = re.fullmatch(r"(.+?)[ _.]*(?:stderr|std err|standard error|\(se\)|_se|±)", column, re.IGNORECASE)
    return found[1] if found and found[1] in columns else None


def _value(cell: Any) -> tuple[float | None, float | None]:
    """Read a cell: a number, a number with its error (0.46 ± 0.01), a number of per cent, or nothing."""
    if cell is None or isinstance(cell, bool):
        return None, None
    if isinstance(cell, (int, float)):
        return (float(cell), None) if abs(cell) < 1e300 else (None, None)  # no score: NaN, or beyond all numbers
    found = _NUMBER.fullmatch(str(cell).strip())
    if found is None:
        return None, None
    error = found[2]
    try:
        return float(found[1]), float(error) if error else None
    except ValueError:
        return None, None


def _share(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose score and error, in per cent, are shares of 1."""
    made = dict(row)
    for field in ("score", "stderr"):
        value = _value(row.get(field))[0]
        if value is not None:
            made[field] = value / 100
    return made


def _unlinked(name: Any) -> str:
    """Return a model's name without the link that web leaderboards put around it."""
    text = str(name).strip()
    found = _LINK.search(text)
    return (found["markdown"] or found["html"]).strip() if found else text


def _plain(name: str) -> str:
    """Return a column's name for comparison: in lower case, words apart, without arrows and emoji."""
    kept = re.sub(r"[^\w#%() ]+", " ", name.casefold().replace("_", " "))
    return re.sub(r"\s+", " ", kept).strip()

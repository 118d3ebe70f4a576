"""What the columns of a score table mean: one score a row, or models × tasks as leaderboards are.

Names are matched in any case and with the synonyms that people use (``Model``, ``Dataset``, ``Accuracy``); what cannot
be guessed is said with ``--map score=Accuracy``. A wide table has one row per model (or, as OpenCompass writes it, one
column per model); its averages, ranks and facts of models are left out, and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potentia.errors import DataError
from potentia.formats.table import RawTable
from potentia.values.metric import Metric
from potentia.values.protocol import Protocol

FIELDS = ("protocol", "model", "benchmark", "score", "stderr", "n", "metric", "higher_is_better", "shots")
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
}
# A column of one of these names is the score of a tidy table, and says its metric.
METRICS = {"accuracy": "acc", "acc": "acc", "acc norm": "acc_norm", "exact match": "exact_match", "em": "exact_match",
           "f1": "f1", "mcc": "mcc", "bits per byte": "bits_per_byte", "perplexity": "perplexity"}  # fmt: skip
# What a leaderboard has beside scores: averages, ranks, facts of the model. Matched at the start of a plain name.
NO_SCORE = re.compile(
    r"(average|avg|mean( rank| score)?$|median|overall|rank\b|ranking|place$|#|no$|nr$|id$|t$|params|parameters|size|"
    r"billion|type|precision|architecture|license|hub|likes|available|revision|sha|flagged|merged|moe|co\S? cost|date|"
    r"generation|base model|upload|submission|chat template|not merged|official|family|kind|tokens|compute|flops|cost|"
    r"price|notes?$|url|link|votes|organi[sz]ation|context|vocabulary|version|std|eval name|maintainer)"
)
OPENCOMPASS = ("dataset", "version", "metric", "mode")
GAPS = frozenset({"", "-", "–", "—", "n/a", "na", "nan", "none", "null"})
PER_CENT = 1.5  # a share of right answers cannot exceed 1: a table that does is in per cent
_NUMBER = re.compile(
    r"\**\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*%?\s*\**(?:\s*(?:±|\+/-)\s*([\d.]+)\s*%?\**)?"
)
_LINK = re.compile(r"^\[(?P<markdown>[^\]]+)\]\([^)]*\)|<a\b[^>]*>(?P<html>[^<]+)</a>")

Row = tuple[str, Mapping[str, Any]]  # where it stands ("line 7"), and its values by field


@dataclass(frozen=True)
class Layout:
    """The rows of a table as one score each, and what a reader must know of how they were read."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def recognise(table: RawTable, columns: Mapping[str, str] | None = None) -> Layout:
    """Say what the table holds; ``columns`` names the columns of some fields where guessing fails."""
    found = _fields(table, columns or {})
    if {"model", "benchmark", "score"} <= found.keys():
        return _tidy(table, found)
    plain = {_plain(name): name for name in table.columns}
    if all(name in plain for name in OPENCOMPASS):
        return _models_as_columns(table, plain)
    wide = _wide(table, found)
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
        metric = next((plain[name] for name in METRICS if name in plain), None)
        if metric is not None:
            found["score"] = metric
    return found


def _tidy(table: RawTable, found: Mapping[str, str]) -> Layout:
    place = {field: table.columns.index(column) for field, column in found.items()}
    metric = METRICS.get(_plain(found["score"]), "")
    beside = f"{_plain(found['score'])} stderr"
    if "stderr" not in place and beside in map(_plain, table.columns):
        place["stderr"] = [_plain(c) for c in table.columns].index(beside)
    rows = []
    for at, values in table.rows:
        row = {field: values[k] for field, k in place.items() if field != "shots"}
        value, error = _value(row["score"])
        if value is not None:  # **0.46 ± 0.01** is a number with its error
            row["score"] = value
            row["stderr"] = error if row.get("stderr") is None else row["stderr"]
        if metric and "metric" not in place:
            row["metric"] = metric
        if "protocol" not in place and "shots" in place:
            row["protocol"] = _shots(values[place["shots"]], f"{table.where}, {at}, column {found['shots']}")
        rows.append((at, row))
    if metric and Metric.of(metric).higher_is_better and _in_per_cent([row["score"] for _, row in rows]):
        return Layout(tuple((at, _share(row)) for at, row in rows), (_PER_CENT_NOTE,))
    return Layout(tuple(rows))


def _wide(table: RawTable, found: Mapping[str, str]) -> Layout | None:
    """Read one row per model: a column of names, and every other column of numbers is a task."""
    model = found.get("model") or _names(table)
    if model is None:
        return None
    known = {model, *(found[f] for f in ("protocol", "shots") if f in found)}
    numeric = {c for c in table.columns if c not in known and _is_numeric(table.column(c))}
    errors = {c: base for c in numeric if (base := _error_of(c, numeric)) is not None}
    raw = {c: c[: -len(" raw")].strip() for c in numeric if _plain(c).endswith(" raw")}
    left = [c for c in table.columns if c in numeric and NO_SCORE.match(_plain(c))]
    twins = set(raw.values()) & numeric  # a leaderboard that shows normalised scores keeps the measured ones beside
    tasks = [c for c in table.columns if c in numeric and c not in errors and c not in left and c not in twins]
    if not tasks:
        return None
    spread = {base: c for c, base in errors.items()}
    place = {name: k for k, name in enumerate(table.columns)}
    rows: list[Row] = []
    for at, values in table.rows:
        shared: dict[str, Any] = {"model": _unlinked(values[place[model]])}
        if "protocol" in found:
            shared["protocol"] = values[place[found["protocol"]]]
        elif "shots" in found:
            shared["protocol"] = _shots(values[place[found["shots"]]], f"{table.where}, {at}")
        for task in tasks:
            value, error = _value(values[place[task]])
            if value is not None:
                given = _value(values[place[spread[task]]])[0] if task in spread else error
                named = {"benchmark": raw.get(task, task), "score": value, "stderr": given}
                rows.append((f"{at}, column {task}", {**shared, **named}))
    notes = [f"read as a table of models × tasks: {_listed([raw.get(t, t) for t in tasks])}"]
    out = [c for c in table.columns if c not in known and c not in tasks and c not in errors and c not in twins]
    if out:
        notes.append(f"columns left out: {_listed(out)}")
    return _shares(rows, notes)


def _models_as_columns(table: RawTable, plain: Mapping[str, str]) -> Layout:
    """Read OpenCompass's summary: one row per dataset, one column per model, a dash where nothing was measured."""
    place = {name: k for k, name in enumerate(table.columns)}
    models = [name for name in table.columns if _plain(name) not in OPENCOMPASS]
    rows: list[Row] = []
    for at, values in table.rows:
        metric = str(values[place[plain["metric"]]])
        for model in models:
            value, error = _value(values[place[model]])
            if value is not None:
                task = values[place[plain["dataset"]]]
                row = {"model": model, "benchmark": task, "score": value, "stderr": error}
                rows.append((f"{at}, column {model}", row | ({"metric": metric} if metric.strip("- ") else {})))
    return _shares(rows, ["read as a summary of OpenCompass"])


def _names(table: RawTable) -> str | None:
    """Return the first column of different texts: the models, whatever it is called."""
    for column in table.columns:
        values = [str(v).strip() for v in table.column(column) if v is not None]
        if values and len(set(values)) == len(table.rows) and not _is_numeric(values):
            return column
    return None


def _is_numeric(values: Sequence[Any]) -> bool:
    """Say whether a column is numbers and gaps alone, with at least one number."""
    read = [_value(v) for v in values]
    gaps = [str(v).strip().casefold() in GAPS for v in values]
    known = [v is not None for v, _ in read]
    return any(known) and all(there or gap for there, gap in zip(known, gaps, strict=True))


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


def _shares(rows: list[Row], notes: list[str]) -> Layout:
    """Return shares of 1 where the table is in per cent."""
    if _in_per_cent([row["score"] for _, row in rows]):
        return Layout(tuple((at, _share(row)) for at, row in rows), (*notes, _PER_CENT_NOTE))
    return Layout(tuple(rows), tuple(notes))


_PER_CENT_NOTE = "the scores are in per cent and were divided by 100"


def _in_per_cent(values: Sequence[Any]) -> bool:
    numbers = [v for v in (_value(value)[0] for value in values) if v is not None]
    return bool(numbers) and max(numbers) > PER_CENT and all(-100 <= v <= 100 for v in numbers)


def _share(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose score and error are shares of 1; one that is no share stays as it is."""
    made = dict(row)
    if not Metric.of(str(row.get("metric") or "")).higher_is_better:
        return made
    for field in ("score", "stderr"):
        value = _value(row.get(field))[0]
        if value is not None:
            made[field] = value / 100
    return made


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "")


def _shots(value: Any, where: str) -> str:
    try:
        return Protocol.few_shot(int(float(str(value).strip() or 0)))
    except ValueError:
        raise DataError(f"{value!r} is no number of examples", where=where) from None


def _unlinked(name: Any) -> str:
    """Return a model's name without the link that web leaderboards put around it."""
    text = str(name).strip()
    found = _LINK.search(text)
    return (found["markdown"] or found["html"]).strip() if found else text


def _plain(name: str) -> str:
    """Return a column's name for comparison: in lower case, words apart, without arrows and emoji."""
    kept = re.sub(r"[^\w#%() ]+", " ", name.casefold().replace("_", " "))
    return re.sub(r"\s+", " ", kept).strip()

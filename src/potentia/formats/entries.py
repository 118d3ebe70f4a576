"""Single scores on their way into matrices: every one is checked, duplicates and mixed directions are refused.

Fields of a tidy row are ``protocol, model, benchmark, score, stderr``; all others of ``FIELDS`` may follow. A cell
that was not measured is left out; what is not known is left empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task, usual_metric
from potentia.formats.json_values import float_or_none
from potentia.formats.layout import ScoreRow
from potentia.values.metric import (
    KINDS,
    METRIC_COLUMNS,
    ORIGIN_COLUMNS,
    SCALES,
    UNKNOWN,
    Metric,
    Origin,
    comparable,
    main_metric,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Score, ScoreMatrix

UNNAMED = Metric()
_DIRECTIONS = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
    "": None,
    "none": None,
}
_NO_NUMBER = ("", "n/a", "na", "none", "null")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScoreFacts:
    """What a source says of a score beside its value."""

    metric: Metric = UNNAMED
    origin: Origin = UNKNOWN
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreEntry:
    """One score on its way into a matrix; ``place`` says where it was read."""

    protocol: str
    model: str
    task: str
    value: float
    stderr: float = math.nan
    n: float = math.nan
    facts: ScoreFacts = ScoreFacts()
    place: str = ""
    items: Mapping[int, float] | None = None  # the value of every document, by its fingerprint

    @property
    def metric(self) -> Metric:
        """What was measured."""
        return self.facts.metric

    @property
    def origin(self) -> Origin:
        """What it was computed from."""
        return self.facts.origin

    @property
    def seeds(self) -> tuple[float, ...]:
        """The score of every seed."""
        return self.facts.seeds


def assemble_matrices(entries: Iterable[ScoreEntry], *, where: str) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol, names in order of appearance; refuse duplicates and mixed directions."""
    cells_by_protocol: dict[str, dict[tuple[str, str], ScoreEntry]] = {}
    first_of_task: dict[str, ScoreEntry] = {}
    for entry in entries:
        _check_unicode(entry, where)
        cells = cells_by_protocol.setdefault(entry.protocol, {})
        duplicate = cells.get((entry.model, entry.task))
        if duplicate is not None:
            cell = f"{entry.protocol} scores of {entry.model} on {entry.task}"
            raise DataError(
                f"two {cell}{_format_places(duplicate, entry)}",
                where=where,
                hint="keep one of them",
            )
        _check_comparable(first_of_task.setdefault(entry.task, entry), entry, where)
        cells[entry.model, entry.task] = entry
    if not cells_by_protocol:
        raise DataError("there are no scores in it", where=where)
    return {
        Protocol(name): ScoreMatrix.of_cells(name, cells)
        for name, cells in cells_by_protocol.items()
    }


def _check_comparable(first: ScoreEntry, entry: ScoreEntry, where: str) -> None:
    """Refuse two scores of one task that cannot be compared; only their data count of their origins."""
    data_alone = replace(entry.facts, origin=Origin(data=entry.origin.data))
    differences = comparable(first, replace(entry, facts=data_alone))
    if differences:
        places = _format_places(first, entry)
        raise DataError(
            f"the scores of {entry.task} cannot be compared: different {differences[0]}{places}",
            where=where,
            hint="use one metric (metric: NAME in --columns FILE), or give the two different benchmark names",
        )


def _check_unicode(entry: ScoreEntry, where: str) -> None:
    names = (entry.protocol, entry.model, entry.task, entry.metric.name, entry.origin.source or "")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:  # JSON can spell half of a character
            place = f", {entry.place}" if entry.place else ""
            raise DataError(
                f"the name {name!r} holds half of a Unicode character", where=where + place
            ) from None


def _format_places(first: ScoreEntry, second: ScoreEntry) -> str:
    if not first.place or not second.place:
        return ""
    return f" ({first.place} and {second.place})"


def collect_items(
    entries: Iterable[ScoreEntry],
) -> dict[Protocol, dict[str, dict[str, Mapping[int, float]]]]:
    """Return protocol → task → model → documents of the entries that have items which make up their score."""
    items: dict[Protocol, dict[str, dict[str, Mapping[int, float]]]] = {}
    for entry in entries:
        if not entry.items:
            continue
        mean = sum(entry.items.values()) / len(entry.items)
        if abs(mean - entry.value) < 1e-6:
            items_by_task = items.setdefault(Protocol(entry.protocol), {})
            items_by_task.setdefault(entry.task, {})[entry.model] = entry.items
    return items


def key_by_content(pairs: Iterable[tuple[object, object]]) -> dict[int, float]:
    """Return the value of every document by a number that names its content; a second one like it gets another."""
    values: dict[int, float] = {}
    for content, raw_value in pairs:
        value = float_or_none(raw_value)
        if value is None:
            continue
        if isinstance(content, str):
            text = content
        else:
            text = json.dumps(content, sort_keys=True, default=str)
        number = int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)
        while number in values:
            number += 1
        values[number] = value
    return values


@dataclass(frozen=True)
class _NamedRow:
    """A row whose names are checked; its numbers are not yet."""

    place: str
    metric: str | None
    fields: Mapping[str, object]


def entries_from_rows(
    rows: Iterable[ScoreRow], *, where: str, metric: str | None
) -> Iterator[ScoreEntry]:
    """Check each row and give its score; of several metrics of one benchmark the wanted or main one is taken."""
    rows_by_cell: dict[tuple[str, str, str], list[_NamedRow]] = {}
    metrics_by_task: dict[str, dict[str, None]] = {}
    for row in rows:
        place = f"{where}, {row.place}"
        metric_name = str(row.fields.get("metric") or "").strip() or None
        task = _require_name(row.fields, "benchmark", place)
        protocol = _require_name(row.fields, "protocol", place, default="direct")
        model = _require_name(row.fields, "model", place)
        named_row = _NamedRow(row.place, metric_name, row.fields)
        rows_by_cell.setdefault((protocol, model, task), []).append(named_row)
        if metric_name is not None:
            metrics_by_task.setdefault(task, {})[metric_name] = None
    main_metrics = {
        task: metric or main_metric(names, usual_metric(task))
        for task, names in metrics_by_task.items()
    }
    for (protocol, model, task), cell_rows in rows_by_cell.items():
        main = main_metrics.get(task)
        chosen_rows = [named for named in cell_rows if named.metric in (None, main)]
        if not chosen_rows and metric is None:
            first = cell_rows[0]
            raise DataError(
                f"{model} has {first.metric} on {task}, where others have {main}",
                where=f"{where}, {first.place}, column metric",
                hint=f"choose one metric for all: metric: {first.metric} in --columns FILE",
            )
        for chosen_row in chosen_rows:
            yield _entry_from_row(chosen_row, protocol, model, task, where)


def _entry_from_row(row: _NamedRow, protocol: str, model: str, task: str, where: str) -> ScoreEntry:
    place = f"{where}, {row.place}"
    return ScoreEntry(
        protocol=protocol,
        model=model,
        task=task,
        value=parse_number(row.fields.get("score"), f"{place}, column score", required=True),
        stderr=_parse_size(row.fields.get("stderr"), f"{place}, column stderr"),
        n=_parse_size(row.fields.get("n"), f"{place}, column n"),
        facts=facts_from_fields(row.fields, task, row.metric, place),
        place=row.place,
    )


def make_entry(
    place: str,
    model: object,
    task: object,
    value: object,
    *,
    protocol: str,
    facts: ScoreFacts,
    stderr: object = None,
    n: object = None,
    divisor: float = 1.0,
    value_place: str = "",
    expected: str = "a number",
    items: Mapping[int, float] | None = None,
) -> ScoreEntry:
    """Return one score of another tool's file, checked.

    ``divisor`` is 100 for per cent; ``value_place`` is where the value stands, ``expected`` what should stand there.
    """
    value_place = value_place or place
    if isinstance(value, str):
        message = f"the text {value[:40]!r} stands where {expected} should"
        raise DataError(message, where=value_place)
    model_name = _require_text(model, place)
    task_name = _require_text(task, place)
    error = parse_number(stderr, f"{value_place}_stderr") / divisor
    if error < 0:
        raise DataError("the standard error is negative", where=place)
    return ScoreEntry(
        protocol=protocol,
        model=model_name,
        task=task_name,
        value=parse_number(value, value_place, required=True) / divisor,
        stderr=error,
        n=parse_number(n, f"{place}, number of documents"),
        facts=facts,
        place=place,
        items=items,
    )


def _require_text(name: object, place: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise DataError("a task or model has no name", where=place)
    return name.strip(" \t")


def tidy_row(protocol: str, model: str, task: str, score: Score) -> dict[str, object]:
    """Return a score as the fields of a row, with all that it knows; what is not known is None."""
    facts = {column.written_as: getattr(score.metric, column.field) for column in METRIC_COLUMNS}
    facts |= {column.written_as: getattr(score.origin, column.field) for column in ORIGIN_COLUMNS}
    return facts | {
        "protocol": protocol,
        "model": model,
        "benchmark": task,
        "score": score.value,
        "stderr": None if math.isnan(score.stderr) else score.stderr,
        "n": float(score.n) if score.n else None,
        "metric": score.metric.name or None,
        "seeds": ";".join(map(repr, score.seeds)) or None,
    }


def facts_from_fields(
    fields: Mapping[str, object], task: str, metric_name: str | None, where: str
) -> ScoreFacts:
    """Return what the fields of a row say of its score; what they do not say is known of the name, or unknown."""
    direction = _parse_direction(fields.get("higher_is_better"), where)
    metric = metric_of_task(task, metric_name, direction)
    kind = _parse_choice(fields, "metric_kind", KINDS, where)
    scale = _parse_choice(fields, "metric_scale", SCALES, where)
    chance = _parse_optional_number(fields, "chance", where)
    shots = _parse_optional_number(fields, "shots", where)
    origin_fields: dict[str, Any] = {
        column.field: _find_text(fields, column.written_as) for column in ORIGIN_COLUMNS
    }
    origin_fields["shots"] = None if shots is None else int(shots)
    return ScoreFacts(
        metric=replace(
            metric, kind=kind or metric.kind, scale=scale or metric.scale, chance=chance
        ),
        origin=Origin(**origin_fields),
        seeds=_parse_seeds(_find_text(fields, "seeds") or "", where),
    )


def _parse_seeds(text: str, where: str) -> tuple[float, ...]:
    """Read the scores of the seeds, which have semicolons between them."""
    parts = [part for part in re.split(r"[;\s]+", text) if part]
    return tuple(parse_number(part, f"{where}, column seeds", required=True) for part in parts)


def _find_text(fields: Mapping[str, object], column: str) -> str | None:
    value = fields.get(column)
    return None if value is None else str(value).strip() or None


def _parse_choice(
    fields: Mapping[str, object], column: str, choices: tuple[T, ...], where: str
) -> T | None:
    text = _find_text(fields, column)
    if text is None:
        return None
    for choice in choices:
        if choice == text:
            return choice
    raise DataError(
        f"{_shorten(text)} is none of {', '.join(map(str, choices))}",
        where=f"{where}, column {column}",
    )


def _require_name(
    fields: Mapping[str, object], column: str, where: str, *, default: str | None = None
) -> str:
    value = fields.get(column)
    if isinstance(value, str) and value.strip():
        return value.strip(" \t")
    if default is not None and (value is None or isinstance(value, str)):
        return default
    raise DataError(f"the {column} {value!r} is no name", where=f"{where}, column {column}")


class MissingScoreError(DataError):
    """A score that is missing or NaN: of many results it is left out, alone it is an error."""


def parse_number(value: object, where: str, *, required: bool = False) -> float:
    """Read one number; empty, missing and NaN mean unknown, which a score may not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise DataError(f"{_shorten(value)} is no number", where=where)
    if value is None or (isinstance(value, str) and value.strip().casefold() in _NO_NUMBER):
        value = math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise DataError(f"{_shorten(value)} is no number", where=where) from None
    if math.isinf(number):
        raise DataError("the number is infinite", where=where)
    if required and math.isnan(number):
        hint = "leave out what was not measured: a gap is no score"
        raise MissingScoreError("the score is missing or NaN", where=where, hint=hint)
    return number


def _parse_optional_number(fields: Mapping[str, object], column: str, where: str) -> float | None:
    number = parse_number(fields.get(column), f"{where}, column {column}")
    return None if math.isnan(number) else number


def _parse_size(value: object, where: str) -> float:
    """Read a number that cannot be negative."""
    number = parse_number(value, where)
    if number < 0:
        raise DataError(f"{number:g} is negative", where=where)
    return number


def _parse_direction(value: object, where: str) -> bool | None:
    word = str(value).strip().casefold()
    if word not in _DIRECTIONS:
        raise DataError(
            f"{_shorten(value)} is neither true nor false",
            where=f"{where}, column higher_is_better",
        )
    return _DIRECTIONS[word]


def _shorten(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

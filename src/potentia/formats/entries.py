"""Single scores on their way into matrices: every one is checked, duplicates and mixed directions are refused.

Fields of a tidy row are ``protocol, model, benchmark, score, stderr``; all others of ``FIELDS`` may follow. A cell
that was not measured is left out; what is not known is left empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task, usual_metric
from potentia.formats.json_values import float_or_none
from potentia.formats.layout import ScoreRow
from potentia.values.clusters import (
    PASSAGE_COLUMNS,
    Clusters,
    clustered_error,
    label_passages,
)
from potentia.values.metric import (
    METRIC_COLUMNS,
    METRIC_KINDS,
    ORIGIN_COLUMNS,
    SCALES,
    UNKNOWN_ORIGIN,
    Metric,
    Origin,
    choose_main_metric,
    find_differences,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import ExampleText, ExampleValues, Score, ScoreMatrix, TaskOutcomes

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
    origin: Origin = UNKNOWN_ORIGIN
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreEntry:
    """One score on its way into a matrix; ``location`` says where it was read."""

    protocol: str
    model: str
    task: str
    value: float
    stderr: float = math.nan
    n: float = math.nan
    facts: ScoreFacts = ScoreFacts()
    location: str = ""
    items: ExampleValues | None = None  # the value of every document, by its fingerprint
    task_group: str = ""  # the benchmark that the file says the task is a part of

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


def assemble_matrices(entries: Iterable[ScoreEntry], *, source: str) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol, names in order of appearance; refuse duplicates and mixed directions."""
    cells_by_protocol: dict[str, dict[tuple[str, str], ScoreEntry]] = {}
    first_of_task: dict[str, ScoreEntry] = {}
    for entry in entries:
        _check_unicode(entry, source)
        entries_by_cell = cells_by_protocol.setdefault(entry.protocol, {})
        duplicate = entries_by_cell.get((entry.model, entry.task))
        if duplicate is not None:
            description = f"{entry.protocol} scores of {entry.model} on {entry.task}"
            raise DataError(
                f"two {description}{_format_locations(duplicate, entry)}",
                where=source,
                hint="keep one of them",
            )
        _check_comparable(first_of_task.setdefault(entry.task, entry), entry, source)
        entries_by_cell[entry.model, entry.task] = entry
    if not cells_by_protocol:
        raise DataError("there are no scores in it", where=source)
    return {
        Protocol(protocol_name): ScoreMatrix.from_cells(protocol_name, entries_by_cell)
        for protocol_name, entries_by_cell in cells_by_protocol.items()
    }


def _check_comparable(earlier_entry: ScoreEntry, entry: ScoreEntry, source: str) -> None:
    """Refuse two scores of one task, of one protocol or two, that cannot be compared.

    Recipe and shots may differ between protocols, so of an origin only the data are compared.
    """
    data_alone = replace(entry.facts, origin=Origin(data=entry.origin.data))
    differences = find_differences(earlier_entry, replace(entry, facts=data_alone))
    if differences:
        places = _format_locations(earlier_entry, entry)
        raise DataError(
            f"the scores of {entry.task} cannot be compared: different {differences[0]}{places}",
            where=source,
            hint="use one metric (metric: NAME in --columns FILE), or give the two different benchmark names",
        )


def _check_unicode(entry: ScoreEntry, source: str) -> None:
    entry_names = (
        entry.protocol,
        entry.model,
        entry.task,
        entry.metric.name,
        entry.origin.source or "",
    )
    for entry_name in entry_names:
        try:
            entry_name.encode()
        except UnicodeEncodeError:  # JSON can spell half of a character
            location = f", {entry.location}" if entry.location else ""
            raise DataError(
                f"the name {entry_name!r} holds half of a Unicode character",
                where=source + location,
            ) from None


def _format_locations(first_entry: ScoreEntry, second_entry: ScoreEntry) -> str:
    if not first_entry.location or not second_entry.location:
        return ""
    return f" ({first_entry.location} and {second_entry.location})"


def _are_behind(items: ExampleValues, value: float) -> bool:
    """Whether a score is the mean of these values."""
    return abs(sum(items.values()) / len(items) - value) < 1e-6


def _allow_for_passages(stderr: float, value: float, items: ExampleValues | None) -> float:
    """Return the standard error of a score, at least what it is where examples share passages.

    Other tools take all examples for independent.
    """
    if not items or not items.cluster_by_example or not _are_behind(items, value):
        return stderr
    clusters = Clusters.of_examples(list(items), items.cluster_by_example)
    return float(np.fmax(stderr, clustered_error(list(items.values()), clusters)))


def collect_items(entries: Iterable[ScoreEntry]) -> dict[Protocol, dict[str, TaskOutcomes]]:
    """Return protocol → task → model → documents of the entries that have items which make up their score."""
    items: dict[Protocol, dict[str, TaskOutcomes]] = {}
    for entry in entries:
        if entry.items and _are_behind(entry.items, entry.value):
            items_by_task = items.setdefault(Protocol(entry.protocol), {})
            outcomes = items_by_task.setdefault(entry.task, TaskOutcomes({}))
            outcomes[entry.model] = entry.items
            clusters = entry.items.cluster_by_example
            outcomes.cluster_by_example = {**outcomes.cluster_by_example, **clusters}
    return items


@dataclass(frozen=True, slots=True)
class ReadExample:
    """One example of a file: what names it, its value, and the fields in which it may have a passage."""

    content: object
    value: object
    fields: Mapping[str, object] = field(default_factory=dict)


def key_by_content(
    examples: Iterable[ReadExample], read_texts: Callable[[], dict[int, ExampleText]] = dict
) -> ExampleValues:
    """Return the value of every example by a number that names its content; a second one like it gets another."""
    values: dict[int, float] = {}
    fields_by_number: dict[int, Mapping[str, object]] = {}
    for example in examples:
        value = float_or_none(example.value)
        if value is None:
            continue
        number = number_content(example.content, values)
        values[number] = value
        fields_by_number[number] = {
            column: example.fields.get(column) for column in PASSAGE_COLUMNS
        }
    return ExampleValues(values, read_texts, label_passages(fields_by_number))


def number_content(content: object, taken: Container[int]) -> int:
    """Return a number that names the content of an example, and that no earlier one has taken."""
    if isinstance(content, str):
        content_text = content
    else:
        content_text = json.dumps(content, sort_keys=True, default=str)
    digest = hashlib.sha256(content_text.encode("utf-8", "surrogatepass")).hexdigest()
    content_number = int(digest[:15], 16)
    while content_number in taken:
        content_number += 1
    return content_number


@dataclass(frozen=True)
class _NamedRow:
    """A row whose names are checked; its numbers are not yet."""

    location: str
    metric: str | None
    fields: Mapping[str, object]


def entries_from_rows(
    rows: Iterable[ScoreRow], *, source: str, metric: str | None
) -> Iterator[ScoreEntry]:
    """Check each row and give its score; of several metrics of one benchmark the wanted or main one is taken."""
    rows_by_cell: dict[tuple[str, str, str], list[_NamedRow]] = {}
    metrics_by_task: dict[str, dict[str, None]] = {}
    for row in rows:
        location = f"{source}, {row.location}"
        metric_name = str(row.fields.get("metric") or "").strip() or None
        task = _require_name(row.fields, "benchmark", location)
        protocol = _require_name(row.fields, "protocol", location, default="direct")
        model = _require_name(row.fields, "model", location)
        named_row = _NamedRow(row.location, metric_name, row.fields)
        rows_by_cell.setdefault((protocol, model, task), []).append(named_row)
        if metric_name is not None:
            metrics_by_task.setdefault(task, {})[metric_name] = None
    main_metrics = {
        task: metric or choose_main_metric(metric_names, usual_metric(task))
        for task, metric_names in metrics_by_task.items()
    }
    for (protocol, model, task), cell_rows in rows_by_cell.items():
        main_name = main_metrics.get(task)
        chosen_rows = [cell_row for cell_row in cell_rows if cell_row.metric in (None, main_name)]
        if not chosen_rows and metric is None:
            first_row = cell_rows[0]
            raise DataError(
                f"{model} has {first_row.metric} on {task}, where others have {main_name}",
                where=f"{source}, {first_row.location}, column metric",
                hint=f"choose one metric for all: metric: {first_row.metric} in --columns FILE",
            )
        for chosen_row in chosen_rows:
            yield _entry_from_row(chosen_row, protocol, model, task, source)


def _entry_from_row(
    row: _NamedRow, protocol: str, model: str, task: str, source: str
) -> ScoreEntry:
    location = f"{source}, {row.location}"
    return ScoreEntry(
        protocol=protocol,
        model=model,
        task=task,
        value=parse_number(row.fields.get("score"), f"{location}, column score", required=True),
        stderr=_parse_size(row.fields.get("stderr"), f"{location}, column stderr"),
        n=_parse_size(row.fields.get("n"), f"{location}, column n"),
        facts=facts_from_fields(row.fields, task, row.metric, location),
        location=row.location,
    )


def make_entry(
    location: str,
    model: object,
    task: object,
    value: object,
    *,
    protocol: str,
    facts: ScoreFacts,
    stderr: object = None,
    example_count: object = None,
    divisor: float = 1.0,
    value_location: str = "",
    expected: str = "a number",
    items: ExampleValues | None = None,
) -> ScoreEntry:
    """Return one score of another tool's file, checked.

    ``divisor`` is 100 for per cent; ``value_location`` is where the value stands, ``expected`` what should stand there.
    """
    value_location = value_location or location
    if isinstance(value, str):
        message = f"the text {value[:40]!r} stands where {expected} should"
        raise DataError(message, where=value_location)
    model_name = _require_text(model, location)
    task_name = _require_text(task, location)
    standard_error = parse_number(stderr, f"{value_location}_stderr") / divisor
    if standard_error < 0:
        raise DataError("the standard error is negative", where=location)
    score = parse_number(value, value_location, required=True) / divisor
    return ScoreEntry(
        protocol=protocol,
        model=model_name,
        task=task_name,
        value=score,
        stderr=_allow_for_passages(standard_error, score, items),
        n=parse_number(example_count, f"{location}, number of examples"),
        facts=facts,
        location=location,
        items=items,
    )


def _require_text(field_value: object, location: str) -> str:
    if not isinstance(field_value, str) or not field_value.strip():
        raise DataError("a task or model has no name", where=location)
    return field_value.strip(" \t")


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
    fields: Mapping[str, object], task: str, metric_name: str | None, source: str
) -> ScoreFacts:
    """Return what the fields of a row say of its score; what they do not say is known of the name, or unknown."""
    direction = _parse_direction(fields.get("higher_is_better"), source)
    metric = metric_of_task(task, metric_name, direction)
    metric_kind = _parse_choice(fields, "metric_kind", METRIC_KINDS, source)
    scale = _parse_choice(fields, "metric_scale", SCALES, source)
    chance = _parse_optional_number(fields, "chance", source)
    shots = _parse_optional_number(fields, "shots", source)
    origin_fields: dict[str, Any] = {
        column.field: _find_text(fields, column.written_as) for column in ORIGIN_COLUMNS
    }
    origin_fields["shots"] = None if shots is None else int(shots)
    return ScoreFacts(
        metric=replace(
            metric, kind=metric_kind or metric.kind, scale=scale or metric.scale, chance=chance
        ),
        origin=Origin(**origin_fields),
        seeds=_parse_seeds(_find_text(fields, "seeds") or "", source),
    )


def _parse_seeds(seed_list: str, source: str) -> tuple[float, ...]:
    """Read the scores of the seeds, which have semicolons between them."""
    seed_texts = [seed_text for seed_text in re.split(r"[;\s]+", seed_list) if seed_text]
    return tuple(
        parse_number(seed_text, f"{source}, column seeds", required=True)
        for seed_text in seed_texts
    )


def _find_text(fields: Mapping[str, object], column: str) -> str | None:
    value = fields.get(column)
    return None if value is None else str(value).strip() or None


def _parse_choice(
    fields: Mapping[str, object], column: str, choices: tuple[T, ...], source: str
) -> T | None:
    text = _find_text(fields, column)
    if text is None:
        return None
    for choice in choices:
        if choice == text:
            return choice
    raise DataError(
        f"{_shorten(text)} is not one of {', '.join(map(str, choices))}",
        where=f"{source}, column {column}",
    )


def _require_name(
    fields: Mapping[str, object], column: str, source: str, *, default: str | None = None
) -> str:
    value = fields.get(column)
    if isinstance(value, str) and value.strip():
        return value.strip(" \t")
    if default is not None and (value is None or isinstance(value, str)):
        return default
    raise DataError(f"the {column} {value!r} is not a name", where=f"{source}, column {column}")


class MissingScoreError(DataError):
    """A score that is missing or NaN: of many results it is left out, alone it is an error."""


def parse_number(value: object, source: str, *, required: bool = False) -> float:
    """Read one number; empty, missing and NaN mean unknown, which a score may not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise DataError(f"{_shorten(value)} is not a number", where=source)
    if value is None or (isinstance(value, str) and value.strip().casefold() in _NO_NUMBER):
        value = math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise DataError(f"{_shorten(value)} is not a number", where=source) from None
    if math.isinf(number):
        raise DataError("the number is infinite", where=source)
    if required and math.isnan(number):
        hint = "leave out what was not measured: a gap is not a score"
        raise MissingScoreError("the score is missing or NaN", where=source, hint=hint)
    return number


def _parse_optional_number(fields: Mapping[str, object], column: str, source: str) -> float | None:
    number = parse_number(fields.get(column), f"{source}, column {column}")
    return None if math.isnan(number) else number


def _parse_size(value: object, source: str) -> float:
    """Read a number that cannot be negative."""
    number = parse_number(value, source)
    if number < 0:
        raise DataError(f"{number:g} is negative", where=source)
    return number


def _parse_direction(value: object, source: str) -> bool | None:
    direction_word = str(value).strip().casefold()
    if direction_word not in _DIRECTIONS:
        raise DataError(
            f"{_shorten(value)} is neither true nor false",
            where=f"{source}, column higher_is_better",
        )
    return _DIRECTIONS[direction_word]


def _shorten(value: object) -> str:
    """Return a value as an error shows it."""
    shown_text = repr(value)
    return shown_text if len(shown_text) <= 60 else shown_text[:57] + "…"

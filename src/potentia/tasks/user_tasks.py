"""A task of a user's own data: rows read, columns told by their names, and what was inferred or left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import TaskError
from potentia.tasks import kinds
from potentia.tasks.clusters import find_cluster_column
from potentia.tasks.columns import ColumnReading, TaskKind, map_columns, read_columns
from potentia.tasks.consent import Definition
from potentia.tasks.data import BadRows, ReadingLog, Record, UserData, dataset_from_records
from potentia.tasks.free_text import FREE_TEXT_METRICS
from potentia.tasks.grading import LABEL_METRICS
from potentia.tasks.harness import SPLIT_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

LISTED_BAD_ROWS = 20  # that an error lists
NAMED_BAD_ROWS = 5  # that a note lists
NAMED_LABELS = 12
SKIP_HINT = "fix them, or skip them with --drop-bad-rows (in a study file: drop_bad_rows: true)"
_MAKERS: dict[TaskKind, kinds.MakeTask] = {
    TaskKind.CHOICE: kinds.make_choice_task,
    TaskKind.CLASSIFICATION: kinds.make_classification,
    TaskKind.GENERATION: kinds.make_generation_task,
    TaskKind.CORPUS: kinds.make_corpus,
}
METRICS_BY_KIND: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.CHOICE: ("acc", "acc_norm", "brier_score"),
    TaskKind.CLASSIFICATION: ("acc", *LABEL_METRICS, "brier_score"),
    TaskKind.GENERATION: FREE_TEXT_METRICS,
    TaskKind.CORPUS: ("bits_per_byte", "byte_perplexity", "word_perplexity"),
}


@dataclass(frozen=True)
class UserTask:
    """What a user's data became: a definition, its documents by split, and what was inferred or left out."""

    config: Definition
    data: dict[str, Dataset]
    # the user's column of each field
    columns: dict[str, str | Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_user_data(user_data: UserData, data_dir: Path | None = None) -> UserTask:
    """Read a user's files or dataset. Rows that cannot be used are told all at once, or dropped if asked for."""
    log = ReadingLog()
    splits = user_data.read(data_dir, log)
    bad = log.bad
    if bad and not any(splits.values()):
        raise bad_rows_error(bad, len(bad))
    reading = read_columns(user_data, splits)
    cluster_column = _find_cluster_column(user_data, splits)
    user_data = replace(user_data, columns=reading.columns, cluster=cluster_column)
    mapped = {split: map_columns(rows, reading.columns) for split, rows in splits.items()}
    if user_data.prompt is not None and reading.kind is TaskKind.CORPUS:
        raise TaskError("a text to predict has no prompt", hint="leave out `prompt`")
    made = _MAKERS[reading.kind](user_data, mapped, bad)
    rows = {split: records for split, records in made.rows.items() if records}
    total = sum(map(len, rows.values())) + len(bad)
    if bad and not (user_data.drop_bad_rows and rows):
        raise bad_rows_error(bad, total)
    definition: Definition = {"task": user_data.label, **made.definition}
    if user_data.metric is not None:
        _check_metric(user_data.metric, reading.kind)
        definition["main_metric"] = user_data.metric
    if user_data.cluster is not None:
        definition["cluster_column"] = user_data.cluster
    if user_data.prompt is not None:
        definition["doc_to_text"] = user_data.prompt
    for split, key in SPLIT_KEYS.items():
        definition[key] = split if split in rows else None
    data = {}
    for split, records in rows.items():
        data[split] = dataset_from_records(records, where=user_data.label)
    notes = [*log.notes, *_describe_columns(reading), *made.notes]
    notes += _describe_rows(user_data, definition, bad, total)
    return UserTask(definition, data, dict(user_data.columns), tuple(notes))


def guess_columns(
    user_data: UserData, data_dir: Path | None = None
) -> dict[str, str | Sequence[str]]:
    """Guess which columns stand for which fields, by the names that people give them; empty where they fit as they are.

    Raises where no kind of task can be made of them.
    """
    splits = user_data.read(data_dir, ReadingLog())
    return dict(read_columns(user_data, splits).columns)


def _check_metric(metric: str, kind: TaskKind) -> None:
    """Refuse a metric that this kind of task is not scored by."""
    if metric not in METRICS_BY_KIND[kind]:
        raise TaskError(
            f"{kind} is not scored by {metric!r}",
            hint=f"metric is one of {', '.join(METRICS_BY_KIND[kind])}",
        )


def _describe_columns(reading: ColumnReading) -> Iterator[str]:
    if reading.note:
        yield reading.note


def _find_cluster_column(user_data: UserData, splits: kinds.Splits) -> str | None:
    """Return the column that rows about one passage share: the one that is stated, or one that repeats a passage."""
    rows: list[Record] = []
    for split in ("test", "validation", "train"):
        rows = rows or list(splits.get(split, ()))
    return find_cluster_column(rows, user_data.cluster, user_data.label)


def bad_rows_error(bad: BadRows, total: int) -> TaskError:
    """Say which rows cannot be used, all in one error."""
    if len(bad) == 1:
        first = bad[0]
        skip = "skip the row with --drop-bad-rows (in a study file: drop_bad_rows: true)"
        hint = f"{first.hint or 'fix it'}; or {skip}"
        return TaskError(first.message, where=first.where, hint=hint)
    lines = [f"  {error.where}: {error.message}" for error in bad[:LISTED_BAD_ROWS]]
    if len(bad) > LISTED_BAD_ROWS:
        lines.append(f"  … and {len(bad) - LISTED_BAD_ROWS} more")
    return TaskError(
        f"{len(bad)} of {total} rows cannot be used\n" + "\n".join(lines), hint=SKIP_HINT
    )


def _describe_rows(
    user_data: UserData, definition: Definition, bad: BadRows, total: int
) -> Iterator[str]:
    """Say what was left out and what was inferred."""
    if bad:
        places = [(error.where or "").rpartition(", ")[2] for error in bad[:NAMED_BAD_ROWS]]
        listed = ", ".join(places) + (" …" if len(bad) > NAMED_BAD_ROWS else "")
        yield (
            f"{len(bad)} of {total} rows cannot be used and are skipped "
            f"({listed}; first: {bad[0].message})."
        )
    labels = definition.get("labels")
    if not labels:
        return
    described = []
    for label, words in list(labels.items())[:NAMED_LABELS]:
        described.append(label if label == words else f'{label} → "{words}"')
    more = " …" if len(labels) > NAMED_LABELS else ""
    column = user_data.column("label")
    yield (
        f"Classification into {len(labels)} labels of the column {column}: "
        f"{', '.join(described)}{more}."
    )
    if all(re.fullmatch(r"-?\d+(\.0)?", words.rstrip(".")) for words in labels.values()):
        yield "The labels are numbers, which tell a model little: give words under `labels: {0: …, 1: …}`."

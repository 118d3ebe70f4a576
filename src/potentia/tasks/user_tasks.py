"""From a user's own data to a task definition.

The rows of the files are read (``data``), the columns are recognised by their names (``columns``), and the rows become
a definition with documents (``kinds``). What was inferred or left out on the way is noted for the user. Rows that
cannot be used are an error that lists them, unless the user wants them dropped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import TaskError
from potentia.tasks import kinds
from potentia.tasks.clusters import find_cluster_column
from potentia.tasks.columns import (
    FIELDS_BY_KIND,
    ColumnReading,
    TaskKind,
    holds_texts,
    list_columns,
    map_columns,
    read_columns,
    write_map_option,
)
from potentia.tasks.consent import Definition
from potentia.tasks.data import (
    BadRows,
    ReadingLog,
    Record,
    RecordsBySplit,
    UserData,
    as_list,
    dataset_from_records,
)
from potentia.tasks.free_text import FREE_TEXT_METRICS
from potentia.tasks.grading import LABEL_METRICS
from potentia.tasks.harness import SPLIT_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

# how many an error or a note lists at most
MAX_ROWS_IN_ERROR = 20
MAX_ROWS_IN_NOTE = 5
MAX_LABELS_IN_NOTE = 12
MAX_COLUMNS_IN_NOTE = 6
OPTIONAL_FIELDS = ("text_pair",)
SKIP_HINT = "fix them, or skip them with --drop-bad-rows (in a study file: drop_bad_rows: true)"
_DEFINE_BY_KIND: dict[TaskKind, kinds.DefineTask] = {
    TaskKind.CHOICE: kinds.define_choice,
    TaskKind.CLASSIFICATION: kinds.define_classification,
    TaskKind.GENERATION: kinds.define_generation,
    TaskKind.CORPUS: kinds.define_corpus,
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

    definition: Definition
    datasets_by_split: dict[str, Dataset]
    # the user's column, or columns, of each field
    columns: dict[str, str | Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bad_rows: int = 0  # rows that cannot be used and were left out
    metric_note: str = (
        ""  # how answers are scored; untrue where a prompt form scores them otherwise
    )


def read_user_data(user_data: UserData, data_dir: Path | None = None) -> UserTask:
    """Make a task of a user's files or dataset.

    Rows that cannot be used are one error that lists them all, or are dropped if the user wants that.
    """
    reading_log = ReadingLog()
    records_by_split = user_data.read(data_dir, reading_log)
    bad_rows = reading_log.bad_rows
    if bad_rows and not any(records_by_split.values()):
        raise bad_rows_error(bad_rows, len(bad_rows))
    reading = read_columns(user_data, records_by_split)
    cluster_column = _find_cluster_column(user_data, records_by_split)
    user_data = replace(user_data, columns=reading.columns, cluster_column=cluster_column)
    if user_data.prompt is not None and reading.kind is TaskKind.CORPUS:
        raise TaskError("a perplexity corpus has no prompt", hint="leave out `prompt`")
    mapped_records = {
        split: map_columns(records, reading.columns) for split, records in records_by_split.items()
    }
    defined_task = _DEFINE_BY_KIND[reading.kind](user_data, mapped_records, bad_rows)
    rows_by_split = {split: rows for split, rows in defined_task.rows_by_split.items() if rows}
    total = sum(map(len, rows_by_split.values())) + len(bad_rows)
    if bad_rows and not (user_data.drop_bad_rows and rows_by_split):
        raise bad_rows_error(bad_rows, total)
    definition = _complete_definition(defined_task.definition, user_data, reading.kind)
    for split, key in SPLIT_KEYS.items():
        definition[key] = split if split in rows_by_split else None
    datasets_by_split = {}
    for split, rows in rows_by_split.items():
        datasets_by_split[split] = dataset_from_records(rows, source=user_data.task_name)
    notes = [*reading_log.notes, reading.note, *defined_task.notes]
    notes += _describe_unused_columns(user_data, reading, records_by_split)
    notes += _describe_rows(user_data, definition, bad_rows, total)
    return UserTask(
        definition=definition,
        datasets_by_split=datasets_by_split,
        columns=dict(user_data.columns),
        notes=tuple(note for note in notes if note),
        bad_rows=len(bad_rows),
        metric_note=defined_task.metric_note,
    )


def _complete_definition(definition: Definition, user_data: UserData, kind: TaskKind) -> Definition:
    """Return a definition with the settings that the user stated: metric, cluster column, prompt."""
    completed: Definition = {"task": user_data.task_name, **definition}
    if user_data.metric is not None:
        _check_metric(user_data.metric, kind)
        completed["main_metric"] = user_data.metric
    if user_data.cluster_column is not None:
        completed["cluster_column"] = user_data.cluster_column
    if user_data.prompt is not None:
        completed["doc_to_text"] = user_data.prompt
    return completed


def guess_columns(
    user_data: UserData, data_dir: Path | None = None
) -> dict[str, str | Sequence[str]]:
    """Guess which column of a user's data stands for which field, by the usual names of columns.

    Columns that have the name of their field are left out. Raises where no kind of task can be made of the columns.
    """
    records_by_split = user_data.read(data_dir, ReadingLog())
    return dict(read_columns(user_data, records_by_split).columns)


def _check_metric(metric: str, kind: TaskKind) -> None:
    """Refuse a metric that this kind of task is not scored by."""
    if metric not in METRICS_BY_KIND[kind]:
        raise TaskError(
            f"{metric!r} is no metric of {kind}",
            hint=f"metric is one of {', '.join(METRICS_BY_KIND[kind])}",
        )


def _describe_unused_columns(
    user_data: UserData, reading: ColumnReading, records_by_split: RecordsBySplit
) -> Iterator[str]:
    """Say which columns no model sees; nothing if the user wrote the prompt, which may show any."""
    if user_data.prompt is not None:
        return
    used = {user_data.cluster_column, *FIELDS_BY_KIND[reading.kind], *OPTIONAL_FIELDS}
    for column in reading.columns.values():
        used.update(as_list(column))
    records = list(itertools.chain.from_iterable(records_by_split.values()))
    unused = sorted(list_columns(records) - used)
    if not unused:
        return
    listed = ", ".join(unused[:MAX_COLUMNS_IN_NOTE])
    ellipsis = " …" if len(unused) > MAX_COLUMNS_IN_NOTE else ""
    hint = ""
    other_texts = [column for column in unused if holds_texts(records, column)]
    if other_texts and reading.kind is TaskKind.CLASSIFICATION:
        text_column = "+".join(as_list(reading.columns.get("text", "text")))
        fields = {"text": f"{other_texts[0]}+{text_column}", "label": user_data.column_of("label")}
        hint = f" ({write_map_option(fields)} would put {other_texts[0]} before the text)"
    yield f"Not used: {listed}{ellipsis}{hint}."


def _find_cluster_column(user_data: UserData, records_by_split: RecordsBySplit) -> str | None:
    """Return the column that rows about one passage share, by the test split, else validation, else train."""
    records: list[Record] = []
    for split in ("test", "validation", "train"):
        records = records or list(records_by_split.get(split, ()))
    return find_cluster_column(records, user_data.cluster_column, user_data.task_name)


def bad_rows_error(bad_rows: BadRows, total: int) -> TaskError:
    """Return one error that lists the rows that cannot be used, of ``total`` rows."""
    if len(bad_rows) == 1:
        first_bad_row = bad_rows[0]
        skip_hint = "skip the row with --drop-bad-rows (in a study file: drop_bad_rows: true)"
        hint = f"{first_bad_row.hint or 'fix it'}; or {skip_hint}"
        return TaskError(first_bad_row.message, where=first_bad_row.where, hint=hint)
    lines = [f"  {error.where}: {error.message}" for error in bad_rows[:MAX_ROWS_IN_ERROR]]
    if len(bad_rows) > MAX_ROWS_IN_ERROR:
        lines.append(f"  … and {len(bad_rows) - MAX_ROWS_IN_ERROR} more")
    return TaskError(
        f"{len(bad_rows)} of {total} rows cannot be used\n" + "\n".join(lines), hint=SKIP_HINT
    )


def _describe_rows(
    user_data: UserData, definition: Definition, bad_rows: BadRows, total: int
) -> Iterator[str]:
    """Say which rows were left out, and which labels the texts are classified into."""
    if bad_rows:
        listed_rows = bad_rows[:MAX_ROWS_IN_NOTE]
        places = [bad_row.place.row_or_file for bad_row in listed_rows]
        listed = ", ".join(places) + (" …" if len(bad_rows) > MAX_ROWS_IN_NOTE else "")
        yield (
            f"{len(bad_rows)} of {total} rows cannot be used and are skipped "
            f"({listed}; first: {bad_rows[0].message})."
        )
    labels = definition.get("labels")
    if not labels:
        return
    listed_labels = []
    for label, words in list(labels.items())[:MAX_LABELS_IN_NOTE]:
        listed_labels.append(label if label == words else f'{label} → "{words}"')
    ellipsis = " …" if len(labels) > MAX_LABELS_IN_NOTE else ""
    column = user_data.column_of("label")
    text_columns = " + ".join(as_list(user_data.columns.get("text", "text")))
    yield (
        f"Classification of the column {text_columns} into {len(labels)} labels of the column {column}: "
        f"{', '.join(listed_labels)}{ellipsis}."
    )
    if all(re.fullmatch(r"-?\d+(\.0)?", words.rstrip(".")) for words in labels.values()):
        yield (
            "The labels are numbers, which tell a model little: give words in the task's entry of a study,"
            " `labels: {0: …, 1: …}`."
        )

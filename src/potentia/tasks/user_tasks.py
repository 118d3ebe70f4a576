"""A task of a user's own data: rows read, columns told apart by their names, and what was inferred or left out.

``question, choices, answer`` is a multiple-choice benchmark, ``text, label`` (or two texts) a classification,
``prompt, completion`` a generation benchmark, ``text`` alone a corpus.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TaskError
from potentia.tasks import kinds
from potentia.tasks.consent import Definition
from potentia.tasks.data import (
    BadRows,
    Record,
    Records,
    UserData,
    as_list,
    dataset_from_records,
)
from potentia.tasks.harness import SPLIT_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

LISTED_BAD_ROWS = 20  # that an error lists
NAMED_BAD_ROWS = 5  # that a note lists
NAMED_LABELS = 12
FEW_VALUES = 50  # distinct values of a column that may be a label
LONGEST_LABEL = 60  # characters


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
    bad: BadRows = []
    splits = user_data.read(data_dir, bad)
    if bad and not any(splits.values()):
        raise bad_rows_error(bad, len(bad))
    user_data, make_task = _decide_kind(user_data, splits)
    mapped = {split: map_columns(rows, user_data.columns) for split, rows in splits.items()}
    if user_data.prompt is not None and make_task is kinds.make_corpus:
        raise TaskError("a text to predict has no prompt", hint="leave out `prompt`")
    made = make_task(user_data, mapped, bad)
    rows = {split: records for split, records in made.rows.items() if records}
    total = sum(map(len, rows.values())) + len(bad)
    if bad and not (user_data.drop_bad_rows and rows):
        raise bad_rows_error(bad, total)
    definition: Definition = {"task": user_data.label, **made.definition}
    if user_data.prompt is not None:
        definition["doc_to_text"] = user_data.prompt
    for split, key in SPLIT_KEYS.items():
        definition[key] = split if split in rows else None
    data = {}
    for split, records in rows.items():
        data[split] = dataset_from_records(records, where=user_data.label)
    notes = tuple(_describe_reading(user_data, definition, bad, total))
    return UserTask(definition, data, dict(user_data.columns), notes)


def bad_rows_error(bad: BadRows, total: int) -> TaskError:
    """Say which rows cannot be used, all in one error."""
    if len(bad) == 1:
        return bad[0]
    lines = [f"  {error.where}: {error.message}" for error in bad[:LISTED_BAD_ROWS]]
    if len(bad) > LISTED_BAD_ROWS:
        lines.append(f"  … and {len(bad) - LISTED_BAD_ROWS} more")
    hint = "mend them, or leave them out: --drop-bad-rows (in a study file: drop_bad_rows: true)"
    return TaskError(f"{len(bad)} of {total} rows cannot be used\n" + "\n".join(lines), hint=hint)


def _describe_reading(
    user_data: UserData, definition: Definition, bad: BadRows, total: int
) -> Iterator[str]:
    """Say what was left out and what was inferred."""
    if bad:
        places = [(error.where or "").rpartition(", ")[2] for error in bad[:NAMED_BAD_ROWS]]
        listed = ", ".join(places) + (" …" if len(bad) > NAMED_BAD_ROWS else "")
        yield (
            f"{len(bad)} of {total} rows cannot be used and are left out "
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


# --- columns ---------------------------------------------------------------------------------------------------------

# Names that columns often have, by the field they stand for.
_USUAL_NAMES = {
    "question": ("question", "query", "q", "stem", "problem", "instruction"),
    "choices": ("choices", "options", "candidates", "answers"),
    "answer": (
        "answer",
        "label",
        "gold",
        "correct",
        "target",
        "answerkey",
        "answer_index",
        "correct_answer",
    ),
    "prompt": ("prompt", "input", "source", "question", "instruction", "query"),
    "completion": ("completion", "output", "response", "target", "answer", "reference"),
    "text": (
        "text",
        "content",
        "document",
        "body",
        "sentence",
        "message",
        "ticket",
        "review",
        "comment",
        "utterance",
    ),
    "label": (
        "label",
        "category",
        "class",
        "intent",
        "topic",
        "sentiment",
        "tag",
        "target",
        "labels",
    ),
}
_KINDS: tuple[tuple[tuple[str, ...], kinds.MakeTask], ...] = (
    (("question", "choices", "answer"), kinds.make_choice_task),
    (("prompt", "completion"), kinds.make_generation_task),
    (("text", "label"), kinds.make_classification),
    (("text",), kinds.make_corpus),
)
_TEXT_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
)


_FIELDS = (*_USUAL_NAMES, "text_pair")


def guess_columns(user_data: UserData, data_dir: Path | None = None) -> dict[str, str]:
    """Guess which columns stand for which fields, by the names that people give them; empty where they fit as they are.

    Raises where no kind of benchmark can be made of them.
    """
    splits = user_data.read(data_dir, [])
    columns: set[str] = set()
    for records in splits.values():
        columns |= _columns_of(records)
    for fields, make_task in _KINDS:
        if set(fields) <= columns and make_task is not kinds.make_corpus:
            return {}
        guessed: dict[str, str] = {}
        if make_task is kinds.make_classification:
            guessed = _find_text_pair(columns)
        missing = [name for name in fields if name not in guessed]
        guessed |= _find_usual_columns(columns, missing, taken=guessed.values())
        if set(fields) <= set(guessed):
            return {name: column for name, column in guessed.items() if name != column}
    _decide_kind(user_data, splits)
    return {}


def _columns_of(records: Records) -> set[str]:
    columns: set[str] = set()
    for record in records:
        columns |= record.keys()
    return columns


def _find_usual_columns(
    columns: set[str], fields: Sequence[str], taken: Iterable[str]
) -> dict[str, str]:
    """Return the columns of usual names for these fields; a column stands for one field alone."""
    columns_by_lower_name = {name.lower(): name for name in sorted(columns)}
    used = set(taken)
    chosen: dict[str, str] = {}
    for name in fields:
        for usual_name in _USUAL_NAMES[name]:
            column = columns_by_lower_name.get(usual_name)
            if column is not None and column not in used:
                chosen[name] = column
                used.add(column)
                break
    return chosen


def _find_text_pair(columns: set[str]) -> dict[str, str]:
    """Return the columns of two texts that are compared, if there are such."""
    columns_by_lower_name = {name.lower(): name for name in columns}
    for first, second in _TEXT_PAIRS:
        if first in columns_by_lower_name and second in columns_by_lower_name:
            return {
                "text": columns_by_lower_name[first],
                "text_pair": columns_by_lower_name[second],
            }
    return {}


def _decide_kind(user_data: UserData, splits: kinds.Splits) -> tuple[UserData, kinds.MakeTask]:
    """Decide what the columns make: a kind of benchmark, and for labelled texts which column is the label."""
    for name in user_data.columns:
        if name not in _FIELDS:
            raise TaskError(
                f"no field {name!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}"
            )
    columns_by_split = [_columns_of(records) for records in splits.values() if records]
    columns = set.intersection(*columns_by_split)
    available = columns | set(user_data.columns)
    for fields, make_task in _KINDS[:2]:
        if set(fields) <= available:
            return user_data, make_task
    if "label" in user_data.columns or "text" not in user_data.columns:
        guessed = {**_find_text_pair(columns), **user_data.columns}
        missing = [name for name in ("text", "label") if name not in guessed]
        guessed |= _find_usual_columns(columns, missing, taken=map(str, guessed.values()))
        if {"text", "label"} <= set(guessed):
            return replace(user_data, columns=guessed), kinds.make_classification
    if "text" not in available:
        raise _no_benchmark_error(user_data, columns)
    if "text" not in user_data.columns:
        _refuse_hidden_label(user_data, splits)
    return user_data, kinds.make_corpus


def _refuse_hidden_label(user_data: UserData, splits: kinds.Splits) -> None:
    """Ask where a corpus has a column that looks like a label."""
    records = [record for split_records in splits.values() for record in split_records]
    column = _find_label_like_column(records)
    if column is None:
        return
    raise TaskError(
        f"is the column {column} a label? It has few distinct values, so this may be no corpus",
        where=user_data.where,
        hint=f"say so in the task's entry: columns: {{text: text, label: {column}}} (--map label={column});"
        " for a corpus columns: {text: text} (--map text=text)",
    )


def _no_benchmark_error(user_data: UserData, columns: set[str]) -> TaskError:
    missing = ""
    for fields, _ in reversed(_KINDS[:2]):
        if columns & set(fields):
            missing = f": missing {', '.join(sorted(set(fields) - columns))}"
    return TaskError(
        f"the columns {', '.join(sorted(columns)) or 'none'} make no benchmark{missing}",
        where=user_data.where,
        hint="one of: question, choices, answer | text, label | prompt, completion | text; "
        "say which column is what in the task's entry: columns: {question: COLUMN, …}",
    )


def _find_label_like_column(records: Records) -> str | None:
    """Return a column beside the text with few distinct short values, each of several rows."""
    columns = dict.fromkeys(key for record in records for key in record)
    for column in columns:
        if column == "text":
            continue
        counts: Counter[str] = Counter()
        for record in records:
            value = record.get(column)
            if value not in (None, "") and not isinstance(value, list):
                counts[str(value)] += 1
        if not 2 <= len(counts) <= FEW_VALUES:
            continue
        if counts.total() >= 4 * len(counts) and max(map(len, counts)) <= LONGEST_LABEL:
            return column
    return None


def map_columns(records: Records, columns: Mapping[str, str | Sequence[str]]) -> Records:
    """Give every record the fields that the user's columns stand for."""
    available = _columns_of(records)
    for name, column in columns.items():
        for part in as_list(column):
            if part not in available:
                raise TaskError(
                    f"no column {part!r} for {name}",
                    where=records[0].place.rpartition(", ")[0] if records else "",
                    hint=f"there are: {', '.join(sorted(available))}",
                )
    mapped = []
    for record in records:
        fields = {name: _field_value(record, column) for name, column in columns.items()}
        mapped.append(Record(record.place, {**record, **fields}))
    return mapped


def _field_value(record: Record, column: str | Sequence[str]) -> Any:
    """Return the value of a field; of several columns those that hold something, as texts."""
    if isinstance(column, str):
        return record.get(column)
    return [str(record[name]) for name in column if record.get(name) not in (None, "")]

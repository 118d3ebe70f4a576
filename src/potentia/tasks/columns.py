"""Which column of a user's file is what, told by the names that people give their columns.

``question, choices, answer`` is multiple choice, ``text, label`` (or two texts) a classification, ``prompt,
completion`` or ``messages`` text to write, ``text`` alone a corpus. Names are compared without case. A column of
answers that takes few short values, each in several rows, holds labels.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from potentia.errors import TaskError
from potentia.tasks.data import Record, Records, UserData, as_list

FEW_VALUES = 50  # distinct values of a column that may be a label
LONGEST_LABEL = 60  # characters
ROWS_PER_LABEL = 4  # on average at least, of a column that may be a label

ColumnsByField = Mapping[str, str | Sequence[str]]
Splits = Mapping[str, Records]


class TaskKind(StrEnum):
    """What a user's rows are."""

    CHOICE = "multiple choice"
    CLASSIFICATION = "labelled texts"
    GENERATION = "text to write"
    CORPUS = "corpus"


@dataclass(frozen=True)
class ColumnReading:
    """What a user's rows are, and the user's column (or columns) of each field that has another name."""

    kind: TaskKind
    columns: ColumnsByField
    note: str = ""  # what was guessed, for the user


_FIELDS_BY_KIND = {
    TaskKind.CHOICE: ("question", "choices", "answer"),
    TaskKind.GENERATION: ("prompt", "completion"),
    TaskKind.CLASSIFICATION: ("text", "label"),
}
# Names that columns often have, by the field they stand for; the likeliest first.
_USUAL_NAMES = {
    "question": ("question", "query", "q", "stem", "problem", "instruction", "prompt", "input"),
    "choices": ("choices", "options", "candidates", "answers", "alternatives"),
    "answer": (
        "answer",
        "correct",
        "label",
        "gold",
        "target",
        "answerkey",
        "answer_key",
        "answer_index",
        "answer_idx",
        "correct_answer",
        "correct_option",
        "solution",
    ),
    "prompt": ("prompt", "question", "instruction", "input", "source", "query", "user", "message"),
    "completion": (
        "completion",
        "response",
        "output",
        "answer",
        "target",
        "reply",
        "reference",
        "assistant",
        "summary",
    ),
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
        "description",
    ),
    "label": (
        "label",
        "category",
        "class",
        "intent",
        "topic",
        "sentiment",
        "tag",
        "queue",
        "target",
        "labels",
    ),
}
_TEXT_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
)
_CONVERSATIONS = ("messages", "conversations", "conversation", "dialog", "dialogue")
_CONTEXTS = ("context", "passage", "input")  # that a question may need; only where not empty
_FIELDS = (*_USUAL_NAMES, "text_pair")


def read_columns(user_data: UserData, splits: Splits) -> ColumnReading:
    """Decide what a user's rows are and which column is what; raises where that cannot be told."""
    _check_field_names(user_data.columns)
    filled = [records for records in splits.values() if records]
    columns = set.intersection(*map(list_columns, filled))
    records = [record for split_records in filled for record in split_records]
    guess = _ColumnGuess(user_data, columns, records)
    for reading in (
        guess.read_exact_names(),
        guess.read_choice(),
        guess.read_conversation(),
        guess.read_classification(),
        guess.read_generation(),
    ):
        if reading is not None:
            return reading
    return guess.read_corpus()


def _check_field_names(columns: ColumnsByField) -> None:
    for name in columns:
        if name not in _FIELDS:
            raise TaskError(
                f"no field {name!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}"
            )


def list_columns(records: Records) -> set[str]:
    """Return the columns that any of the records has."""
    columns: set[str] = set()
    for record in records:
        columns |= record.keys()
    return columns


@dataclass(frozen=True)
class _ColumnGuess:
    """Looks at the columns of one file, as each kind of task in turn."""

    user_data: UserData
    columns: set[str]  # that every split has
    records: Records

    @property
    def stated(self) -> dict[str, str | Sequence[str]]:
        """The columns that the user named."""
        return dict(self.user_data.columns)

    def read_exact_names(self) -> ColumnReading | None:
        """Read columns that have the names of the fields, or that the user named."""
        available = self.columns | set(self.stated)
        for kind in (TaskKind.CHOICE, TaskKind.GENERATION):
            if set(_FIELDS_BY_KIND[kind]) <= available:
                return ColumnReading(kind, self.stated)
        return None

    def read_choice(self) -> ColumnReading | None:
        """Read a question with its choices, in one column or in one column each."""
        if {"prompt", "completion", "label", "text"} & set(self.stated):
            return None
        guessed = self.stated
        if "choices" not in guessed and not self._find("choices", guessed):
            choice_columns = _find_choice_columns(self.columns)
            if not choice_columns:
                return None
            guessed["choices"] = choice_columns
        return self._complete(TaskKind.CHOICE, guessed)

    def read_conversation(self) -> ColumnReading | None:
        """Read a column of chat messages: the last answer is to be written, what stands before it asks."""
        if self.stated:
            return None
        column = _find_name(self.columns, _CONVERSATIONS)
        if column is None or not any(_read_turns(record.get(column)) for record in self.records):
            return None
        guessed = {"prompt": column, "completion": column}
        note = f"{column}: the last answer of each conversation is what a model has to write."
        return ColumnReading(TaskKind.GENERATION, guessed, note)

    def read_classification(self) -> ColumnReading | None:
        """Read a text (or two) with a label."""
        stated = self.stated
        if {"prompt", "completion"} & set(stated) or ("text" in stated and "label" not in stated):
            return None
        guessed = {**_find_text_pair(self.columns), **stated}
        if "label" not in guessed and not self._find("label", guessed):
            return self._read_labels_among_answers(guessed)
        if "label" not in guessed:
            column = self._find("label", guessed)
            assert column is not None
            # summaries may be called "target": with few rows of each value it is no label
            if column.lower() == "target" and not self._holds_labels(column):
                return None
        return self._complete(TaskKind.CLASSIFICATION, guessed)

    def _read_labels_among_answers(self, guessed: ColumnsByField) -> ColumnReading | None:
        """Read questions whose answers are few: labels by another name."""
        text = guessed.get("text") or self._find("text", guessed) or self._find("prompt", guessed)
        answers = self._find("completion", {**guessed, "text": text or ""})
        if text is None or answers is None or not self._holds_labels(answers):
            return None
        columns = {**guessed, "text": text, "label": answers}
        note = (
            f"{answers} has few distinct values, so they are taken as labels of {_join(text)}"
            f" (--map prompt={_join(text)} completion={answers} has them written instead)."
        )
        return ColumnReading(TaskKind.CLASSIFICATION, columns, note)

    def read_generation(self) -> ColumnReading | None:
        """Read a prompt with the text that is to be written."""
        stated = self.stated
        if {"text", "label"} & set(stated):
            return None
        guessed: dict[str, str | Sequence[str]] = {}
        for field, other_name in (("prompt", "question"), ("completion", "answer")):
            column = stated.get(field) or stated.get(other_name)
            if column is not None:
                guessed[field] = column
        if "prompt" not in guessed:
            prompt = self._find("prompt", guessed) or self._find("text", guessed)
            if prompt is not None:
                guessed["prompt"] = self._add_context(prompt, guessed)
        return self._complete(TaskKind.GENERATION, guessed)

    def _add_context(self, prompt: str, guessed: ColumnsByField) -> str | Sequence[str]:
        """Return the columns that a prompt is made of: a passage stands before a question, an input after its task."""
        context = _find_name(self.columns - {prompt}, _CONTEXTS)
        if context is None or context in guessed.values():
            return prompt
        return (prompt, context) if context.lower() == "input" else (context, prompt)

    def read_corpus(self) -> ColumnReading:
        """Read texts alone; raises where there are none, or where a label seems to be among the columns."""
        stated = self.stated
        column = stated.get("text") or self._find("text", stated)
        if column is None or len(set(stated) - {"text"}):
            raise self._unclear_error()
        if "text" not in stated:
            self._refuse_hidden_label(str(column))
        if column == "text":
            return ColumnReading(TaskKind.CORPUS, stated)
        return ColumnReading(TaskKind.CORPUS, {"text": column})

    # --- steps -------------------------------------------------------------------------------------------------------

    def _find(self, field: str, taken: ColumnsByField) -> str | None:
        """Return a free column of a usual name for a field."""
        used = {part for column in taken.values() for part in as_list(column)}
        return _find_name(self.columns - used, _USUAL_NAMES[field])

    def _complete(self, kind: TaskKind, guessed: ColumnsByField) -> ColumnReading | None:
        """Return the reading with the missing fields found by their usual names; None where one is not there."""
        columns = dict(guessed)
        for field in _FIELDS_BY_KIND[kind]:
            if field in columns:
                continue
            column = self._find(field, columns)
            if column is None:
                return None
            columns[field] = column
        renamed = {field: column for field, column in columns.items() if field != column}
        return ColumnReading(kind, renamed, self._describe(kind, renamed))

    def _describe(self, kind: TaskKind, columns: ColumnsByField) -> str:
        """Say which columns were taken for what, where the user did not say it."""
        guessed = {field: name for field, name in columns.items() if field not in self.stated}
        if (
            not guessed or kind is TaskKind.CLASSIFICATION
        ):  # whose labels are told with their column
            return ""
        listed = ", ".join(f"{field} = {_join(name)}" for field, name in guessed.items())
        return f"Read as {kind}: {listed} (--map FIELD=COLUMN changes that)."

    def _holds_labels(self, column: str) -> bool:
        """Whether a column has few distinct short values, each of several rows."""
        return _is_label_like(record.get(column) for record in self.records)

    def _refuse_hidden_label(self, text_column: str) -> None:
        """Ask where a corpus has a column that looks like a label."""
        for column in sorted(self.columns - {text_column}):
            if not self._holds_labels(column):
                continue
            raise TaskError(
                f"is the column {column} a label? It has few distinct values, so this may be no corpus",
                where=self.user_data.where,
                hint=f"if it is: --map text={text_column} label={column}"
                f" (in a study file columns: {{text: {text_column}, label: {column}}});"
                f" if not: --map text={text_column}",
            )

    def _unclear_error(self) -> TaskError:
        listed = ", ".join(sorted(self.columns)) or "none"
        missing = ""
        for kind in (TaskKind.GENERATION, TaskKind.CHOICE):
            fields = set(_FIELDS_BY_KIND[kind])
            if self.columns & fields:
                missing = f"; missing {', '.join(sorted(fields - self.columns))}"
        return TaskError(
            "cannot tell which columns hold the text and the answer"
            f" (there are: {listed}{missing})",
            where=self.user_data.where,
            hint="say it: --map text=COLUMN label=COLUMN, or --map prompt=COLUMN completion=COLUMN, or"
            " --map question=COLUMN choices=COLUMN answer=COLUMN;"
            " in a study file columns: {text: COLUMN, label: COLUMN}",
        )


def _find_name(columns: Iterable[str], usual_names: Sequence[str]) -> str | None:
    """Return the column that has the first of these names that any column has, whatever its case."""
    columns_by_name = {_plain_name(column): column for column in sorted(columns)}
    for name in usual_names:
        if name in columns_by_name:
            return columns_by_name[name]
    return None


def _plain_name(column: str) -> str:
    return re.sub(r"[\s\-]+", "_", str(column).strip().lower())


def _join(column: str | Sequence[str]) -> str:
    return " + ".join(map(str, as_list(column)))


_CHOICE_COLUMN = re.compile(r"(?:option|choice|answer|opt)?[\s_\-]*([a-h]|[1-8])", re.IGNORECASE)


def _find_choice_columns(columns: set[str]) -> list[str]:
    """Return the columns of choices that have one each (``A``, ``B`` … or ``option1``, ``option2`` …), in order."""
    column_by_mark: dict[str, str] = {}
    for column in sorted(columns):
        match = _CHOICE_COLUMN.fullmatch(column.strip())
        if match is not None:
            column_by_mark[match[1].lower()] = column
    for marks in ("abcdefgh", "12345678"):
        present = [mark for mark in marks if mark in column_by_mark]
        if len(present) >= 2 and present == list(marks[: len(present)]):
            return [column_by_mark[mark] for mark in present]
    return []


def _find_text_pair(columns: set[str]) -> dict[str, str]:
    """Return the columns of two texts that are compared, if there are such."""
    columns_by_name = {_plain_name(column): column for column in columns}
    for first, second in _TEXT_PAIRS:
        if first in columns_by_name and second in columns_by_name:
            return {"text": columns_by_name[first], "text_pair": columns_by_name[second]}
    return {}


def _is_label_like(values: Iterable[Any]) -> bool:
    counts: Counter[str] = Counter()
    for value in values:
        if value in (None, ""):
            continue
        if isinstance(value, (list, dict)):
            return False
        counts[str(value)] += 1
    if not 2 <= len(counts) <= FEW_VALUES or max(map(len, counts)) > LONGEST_LABEL:
        return False
    return counts.total() >= ROWS_PER_LABEL * len(counts)


# --- from columns to fields ------------------------------------------------------------------------------------------


def map_columns(records: Records, columns: ColumnsByField) -> Records:
    """Give every record the fields that the user's columns stand for."""
    available = list_columns(records)
    for name, column in columns.items():
        for part in as_list(column):
            if part not in available:
                raise TaskError(
                    f"no column {part!r} for {name}",
                    where=records[0].place.rpartition(", ")[0] if records else "",
                    hint=f"there are: {', '.join(sorted(available))}; say it with --map {name}=COLUMN",
                )
    mapped = []
    for record in records:
        fields = {name: _field_value(record, name, column) for name, column in columns.items()}
        mapped.append(Record(record.place, {**record, **fields}))
    return mapped


def _field_value(record: Record, field: str, column: str | Sequence[str]) -> Any:
    """Return the value of a field; several columns that hold something are choices, or parts of one text."""
    if isinstance(column, str):
        value = record.get(column)
        if field in ("prompt", "completion"):
            turns = _read_turns(value)
            if turns:
                return _render_turns(turns, field)
        return value
    parts = [str(record[name]) for name in column if record.get(name) not in (None, "")]
    return parts if field == "choices" else "\n".join(parts)


# --- conversations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str  # system, user or assistant
    text: str


_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


def _read_turns(value: Any) -> list[Turn]:
    """Return the messages of a conversation, as OpenAI or ShareGPT write it; none where it is something else."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    if not isinstance(value, list):
        return []
    turns = []
    for message in value:
        if not isinstance(message, dict):
            return []
        role = str(message.get("role") or message.get("from") or "").lower()
        text = message.get("content", message.get("value"))
        if not role or not isinstance(text, str):
            return []
        turns.append(Turn(_ROLES.get(role, role), text))
    return turns


def _render_turns(turns: Sequence[Turn], field: str) -> str:
    """Return the last answer of a conversation (``completion``), or all that stands before it (``prompt``)."""
    has_answer = turns[-1].role == "assistant"
    if field == "completion":
        return turns[-1].text if has_answer else ""
    asked = turns[:-1] if has_answer else turns
    spoken = [turn for turn in asked if turn.role != "system"]
    instructions = [turn.text for turn in asked if turn.role == "system"]
    if len(spoken) == 1:
        return "\n\n".join([*instructions, spoken[0].text])
    lines = [f"{turn.role.capitalize()}: {turn.text}" for turn in spoken]
    return "\n".join([*instructions, *lines, "Assistant:"])

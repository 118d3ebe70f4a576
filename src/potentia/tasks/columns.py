"""Which kind of task a user's file holds, and which of its columns stands for which *field* of that kind.

The fields are ``question, choices, answer`` of multiple choice, ``text, label`` of a classification (or two texts),
``prompt, completion`` of text to write (or ``messages``), and ``text`` of a corpus. A column is recognised by the names
that people usually give it. Names are compared without case and accents; if none fits, the last word counts ("Ticket
text"). A column of answers with few short values, each in several rows, holds labels. Where the names do not say
enough, the error proposes columns by what their values look like, and asks the user.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from potentia.errors import TaskError, suggest_names
from potentia.tasks.data import Record, Records, RecordsBySplit, UserData, as_list

# A column looks like labels with at most so many distinct values, of so many characters, in this many rows each,
MAX_LABEL_VALUES = 50
MAX_LABEL_LENGTH = 60
MIN_ROWS_PER_LABEL = 4
# and like texts with at least so many words on average, and this share of distinct values.
MIN_WORDS_PER_TEXT = 3
MIN_DISTINCT_SHARE = 0.5
# A column's "name" of more characters is probably a value, of a file without a line of names.
MAX_NAME_LENGTH = 40

ColumnsByField = Mapping[str, str | Sequence[str]]


class TaskKind(StrEnum):
    """What a user's rows are."""

    CHOICE = "multiple choice"
    CLASSIFICATION = "labelled texts"
    GENERATION = "text to write"
    CORPUS = "corpus"


@dataclass(frozen=True)
class ColumnReading:
    """What a user's rows are, and the user's column (or columns) of each field that is named differently."""

    kind: TaskKind
    columns: ColumnsByField
    note: str = ""  # what was guessed, for the user


FIELDS_BY_KIND = {
    TaskKind.CHOICE: ("question", "choices", "answer"),
    TaskKind.GENERATION: ("prompt", "completion"),
    TaskKind.CLASSIFICATION: ("text", "label"),
    TaskKind.CORPUS: ("text",),
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
    "prompt": (
        "prompt",
        "question",
        "instruction",
        "input",
        "source",
        "query",
        "user",
        "message",
        "frage",
        "pregunta",
        "domanda",
    ),
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
        "antwort",
        "reponse",
        "respuesta",
        "risposta",
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
        "beschreibung",
        "nachricht",
        "texte",
        "texto",
        "mensaje",
        "testo",
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
        "department",
        "kategorie",
        "abteilung",
        "klasse",
        "thema",
        "categorie",
        "categoria",
    ),
}
_TEXT_FIELDS = ("text", "prompt", "question")
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


def read_columns(user_data: UserData, records_by_split: RecordsBySplit) -> ColumnReading:
    """Return what a user's rows are and which column is what; raise if that cannot be told."""
    _check_field_names(user_data.columns)
    filled = [records for records in records_by_split.values() if records]
    columns = set.intersection(*map(list_columns, filled))
    user_data = replace(user_data, columns=split_joined_columns(user_data.columns, columns))
    records = list(itertools.chain.from_iterable(filled))
    guesser = _ColumnGuesser(user_data, columns, records)
    for reading in (
        guesser.guess_by_exact_names(),
        guesser.guess_choice(),
        guesser.guess_conversation(),
        guesser.guess_classification(),
        guesser.guess_generation(),
    ):
        if reading is not None:
            return reading
    return guesser.guess_corpus()


def _check_field_names(columns: ColumnsByField) -> None:
    for field_name in columns:
        if field_name not in _FIELDS:
            raise TaskError(
                f"no field {field_name!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}"
            )


def split_joined_columns(stated: ColumnsByField, available: Iterable[str]) -> ColumnsByField:
    """Return the stated columns with ``Subject+Body`` as the two columns Subject and Body, unless one has that name."""
    present = set(available)
    columns: dict[str, str | Sequence[str]] = {}
    for field_name, column in stated.items():
        columns[field_name] = column
        if isinstance(column, str) and column not in present:
            parts = [part.strip() for part in column.split("+")]
            if len(parts) > 1 and present.issuperset(parts):
                columns[field_name] = parts
    return columns


def list_columns(records: Records) -> set[str]:
    """Return the columns that any of the records has."""
    columns: set[str] = set()
    for record in records:
        columns |= record.keys()
    return columns


@dataclass(frozen=True)
class _ColumnGuesser:
    """Tries to read the columns of one file as each kind of task; a method returns None if they are not such.

    ``guessed`` always maps fields to columns: those that the user stated, and those that were recognised so far.
    """

    user_data: UserData
    columns: set[str]  # those that every split has
    records: Records

    @property
    def stated(self) -> dict[str, str | Sequence[str]]:
        """The columns that the user named."""
        return dict(self.user_data.columns)

    def guess_by_exact_names(self) -> ColumnReading | None:
        """Read columns that are named exactly as the fields, or that the user named."""
        available = self.columns | set(self.stated)
        for kind in (TaskKind.CHOICE, TaskKind.GENERATION):
            if set(FIELDS_BY_KIND[kind]) <= available:
                return ColumnReading(kind, self.stated)
        return None

    def guess_choice(self) -> ColumnReading | None:
        """Read a question with its choices, in one column or in one column each."""
        if {"prompt", "completion", "label", "text"} & set(self.stated):
            return None
        guessed = self.stated
        if "choices" not in guessed and not self._find_column("choices", guessed):
            choice_columns = _find_choice_columns(self.columns)
            if not choice_columns:
                return None
            guessed["choices"] = choice_columns
        return self._complete_reading(TaskKind.CHOICE, guessed)

    def guess_conversation(self) -> ColumnReading | None:
        """Read a column of chat messages: the last answer is to be written, what stands before it asks."""
        if self.stated:
            return None
        column = _find_usual_name(self.columns, _CONVERSATIONS)
        if column is None or not any(_read_turns(record.get(column)) for record in self.records):
            return None
        guessed = {"prompt": column, "completion": column}
        note = f"{column}: the last answer of each conversation is what a model has to write."
        return ColumnReading(TaskKind.GENERATION, guessed, note)

    def guess_classification(self) -> ColumnReading | None:
        """Read a text (or two) with a label."""
        stated = self.stated
        if {"prompt", "completion"} & set(stated):
            return None
        guessed = {**_find_text_pair(self.columns), **stated}
        if "text" in stated and "label" not in stated:
            # The user named a text alone, so a corpus may be meant: a label takes a name and values that look like one.
            label = self._find_column("label", guessed)
            if label is None or not self._column_holds_labels(label):
                return None
        if "label" not in guessed and not self._find_column("label", guessed):
            return self._guess_labels_among_answers(guessed)
        if "label" not in guessed:
            column = self._find_column("label", guessed)
            assert column is not None
            # summaries may be called "target": with few rows of each value it is no label
            if column.lower() == "target" and not self._column_holds_labels(column):
                return None
        return self._complete_reading(TaskKind.CLASSIFICATION, guessed)

    def _guess_labels_among_answers(self, guessed: ColumnsByField) -> ColumnReading | None:
        """Read questions with few distinct answers, which are labels by another name."""
        text = (
            guessed.get("text")
            or self._find_column("text", guessed)
            or self._find_column("prompt", guessed)
        )
        answers = self._find_column("completion", {**guessed, "text": text or ""})
        if text is None or answers is None or not self._column_holds_labels(answers):
            return None
        columns = {**guessed, "text": text, "label": answers}
        note = (
            f"{answers} has few distinct values, so they are taken as labels of {_join_names(text)}"
            f" (--map prompt={_join_names(text)} completion={answers} has them written instead)."
        )
        return ColumnReading(TaskKind.CLASSIFICATION, columns, note)

    def guess_generation(self) -> ColumnReading | None:
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
            prompt = self._find_column("prompt", guessed) or self._find_column("text", guessed)
            if prompt is not None:
                guessed["prompt"] = self._add_context_column(prompt, guessed)
        return self._complete_reading(TaskKind.GENERATION, guessed)

    def _add_context_column(self, prompt: str, guessed: ColumnsByField) -> str | Sequence[str]:
        """Return the prompt's columns: with a passage before its question, or an input after its instruction."""
        context = _find_usual_name(self.columns - {prompt}, _CONTEXTS)
        if context is None or context in guessed.values():
            return prompt
        return (prompt, context) if context.lower() == "input" else (context, prompt)

    def guess_corpus(self) -> ColumnReading:
        """Read texts alone; raise if there are none, or where a label seems to be among the columns."""
        stated = self.stated
        column = stated.get("text") or self._find_column("text", stated)
        if column is None or len(set(stated) - {"text"}):
            raise self._make_unclear_error()
        if "text" not in stated:
            self._refuse_hidden_label(str(column))
        note = ""
        if len(self.columns) > 1 and "text" not in stated:
            note = f"No column of labels or answers: the column {column} is read as a corpus."
        if column == "text":
            return ColumnReading(TaskKind.CORPUS, stated, note)
        return ColumnReading(TaskKind.CORPUS, {"text": column}, note)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _find_column(self, field: str, taken: ColumnsByField) -> str | None:
        """Return the column for a field, of those that stand for no other field (``taken``).

        It has a usual name for the field, or is the only one whose last word is such a name.
        """
        free_columns = self._list_free_columns(taken)
        column = _find_usual_name(free_columns, _USUAL_NAMES[field])
        if column is not None:
            return column
        candidates = []
        for free_column in sorted(free_columns):
            *other_words, last_word = _normalise_name(free_column).split("_")
            if (
                other_words
                and last_word in _USUAL_NAMES[field]
                and self._may_hold(field, free_column)
            ):
                candidates.append(free_column)
        return candidates[0] if len(candidates) == 1 else None

    def _list_free_columns(self, taken: ColumnsByField) -> set[str]:
        """Return the columns that stand for none of these fields."""
        used: set[str] = set()
        for column in taken.values():
            used.update(as_list(column))
        return self.columns - used

    def _may_hold(self, field: str, column: str) -> bool:
        """Whether the values of a column look like those of a field."""
        if field == "label":
            return self._column_holds_labels(column)
        return field not in _TEXT_FIELDS or self._column_holds_texts(column)

    def _find_only_text_column(self, taken: ColumnsByField) -> str | None:
        """Return the only free column that holds texts, whatever its name; None if there are several or none."""
        texts = [
            column
            for column in sorted(self._list_free_columns(taken))
            if self._column_holds_texts(column)
        ]
        return texts[0] if len(texts) == 1 else None

    def _complete_reading(
        self, task_kind: TaskKind, guessed: ColumnsByField
    ) -> ColumnReading | None:
        """Return a reading with the missing fields found by their usual names; None if one is not found."""
        columns = dict(guessed)
        for field in FIELDS_BY_KIND[task_kind]:
            if field in columns:
                continue
            column = self._find_column(field, columns)
            if column is None and task_kind is TaskKind.CLASSIFICATION and field == "text":
                column = self._find_only_text_column(columns)
            if column is None:
                return None
            columns[field] = column
        renamed = {field: column for field, column in columns.items() if field != column}
        return ColumnReading(task_kind, renamed, self._describe_guess(task_kind, renamed))

    def _describe_guess(self, task_kind: TaskKind, columns: ColumnsByField) -> str:
        """Say which columns were taken for what, where the user did not say it."""
        guessed = {field: column for field, column in columns.items() if field not in self.stated}
        # of a classification, the note on its labels names the columns
        if not guessed or task_kind is TaskKind.CLASSIFICATION:
            return ""
        listed = ", ".join(f"{field} = {_join_names(column)}" for field, column in guessed.items())
        return f"Read as {task_kind}: {listed} (--map FIELD=COLUMN changes that)."

    def _column_holds_labels(self, column: str) -> bool:
        """Whether a column has few distinct short values, each of several rows."""
        return _are_label_like(record.get(column) for record in self.records)

    def _column_holds_texts(self, column: str) -> bool:
        """Whether a column has values of several words, most of them different."""
        return holds_texts(self.records, column)

    def _refuse_hidden_label(self, text_column: str) -> None:
        """Raise an error that asks the user, if a corpus has a column that looks like a label."""
        for column in sorted(self.columns - {text_column}):
            if not self._column_holds_labels(column):
                continue
            raise TaskError(
                f"is the column {column} a label? It has few distinct values, so this may be no corpus",
                where=self.user_data.source_name,
                hint=f"if it is: {write_map_option({'text': text_column, 'label': column})}"
                f" (in a study file columns: {{text: {text_column}, label: {column}}});"
                f" if not: {write_map_option({'text': text_column})}",
            )

    def _make_unclear_error(self) -> TaskError:
        listed = ", ".join(sorted(self.columns)) or "none"
        missing = ""
        for kind in (TaskKind.GENERATION, TaskKind.CHOICE):
            fields = set(FIELDS_BY_KIND[kind])
            if self.columns & fields:
                missing = f"; missing {', '.join(sorted(fields - self.columns))}"
        return TaskError(
            "cannot tell which columns hold the text and the answer"
            f" (there are: {listed}{missing})",
            where=self.user_data.source_name,
            hint=self._suggest_columns(),
        )

    def _suggest_columns(self) -> str:
        """Return a hint how to name the columns, with those whose values show what they are."""
        if any(self._looks_like_example(column) for column in self.columns):
            return "the first line seems to be an example: put the names of the columns above it, such as text,label"
        other_kinds = (
            "--map prompt=COLUMN completion=COLUMN, or --map question=COLUMN choices=COLUMN answer=COLUMN;"
            " in a study file columns: {text: COLUMN, label: COLUMN}"
        )
        text_column = self._find_only_text_column({})
        if text_column is None:
            return f"name them: --map text=COLUMN label=COLUMN, or {other_kinds}"
        labels = [column for column in sorted(self.columns) if self._column_holds_labels(column)]
        columns = {"text": text_column, "label": labels[0] if len(labels) == 1 else "COLUMN"}
        return f"perhaps {write_map_option(columns)}; else {other_kinds}"

    def _looks_like_example(self, column: str) -> bool:
        """Whether a column's name seems to be a value: the first row of a file without names is read as names."""
        return len(column) > MAX_NAME_LENGTH or any(
            record.get(column) == column for record in self.records
        )


def _find_usual_name(columns: Iterable[str], usual_names: Sequence[str]) -> str | None:
    """Return the column with one of these names, the earliest in their order; None if no column has any."""
    columns_by_name = {_normalise_name(column): column for column in sorted(columns)}
    for usual_name in usual_names:
        if usual_name in columns_by_name:
            return columns_by_name[usual_name]
    return None


def _normalise_name(column: str) -> str:
    """Return a column's name without case and accents, its words joined by underscores."""
    decomposed = unicodedata.normalize("NFKD", str(column).strip().lower())
    without_accents = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return re.sub(r"[\s\-]+", "_", without_accents)


def write_map_option(columns: Mapping[str, str]) -> str:
    """Return the command-line option that names these columns."""
    pairs = [shlex.quote(f"{field}={column}") for field, column in columns.items()]
    return f"--map {' '.join(pairs)}"


def _join_names(column: str | Sequence[str]) -> str:
    return " + ".join(map(str, as_list(column)))


_CHOICE_COLUMN = re.compile(r"(?:option|choice|answer|opt)?[\s_\-]*([a-h]|[1-8])", re.IGNORECASE)


def _find_choice_columns(columns: set[str]) -> list[str]:
    """Return the columns of choices, in order, if each has its own (``A``, ``B`` … or ``option1``, ``option2`` …)."""
    column_by_mark: dict[str, str] = {}
    for column in sorted(columns):
        match = _CHOICE_COLUMN.fullmatch(column.strip())
        if match is not None:
            column_by_mark[match[1].lower()] = column
    for marks in ("abcdefgh", "12345678"):
        present = [option_mark for option_mark in marks if option_mark in column_by_mark]
        if len(present) >= 2 and present == list(marks[: len(present)]):
            return [column_by_mark[option_mark] for option_mark in present]
    return []


def _find_text_pair(columns: set[str]) -> dict[str, str]:
    """Return the columns of a pair of texts, such as premise and hypothesis; empty if there is none."""
    columns_by_name = {_normalise_name(column): column for column in columns}
    for first_name, second_name in _TEXT_PAIRS:
        if first_name in columns_by_name and second_name in columns_by_name:
            return {"text": columns_by_name[first_name], "text_pair": columns_by_name[second_name]}
    return {}


def _are_label_like(values: Iterable[object]) -> bool:
    """Whether values look like labels: few distinct ones, short, each in several rows."""
    counts: Counter[str] = Counter()
    for value in values:
        if value in (None, ""):
            continue
        if isinstance(value, (list, dict)):
            return False
        counts[str(value)] += 1
    if not 2 <= len(counts) <= MAX_LABEL_VALUES or max(map(len, counts)) > MAX_LABEL_LENGTH:
        return False
    return counts.total() >= MIN_ROWS_PER_LABEL * len(counts)


def holds_texts(records: Records, column: str) -> bool:
    """Whether a column has values of several words, most of them different."""
    texts = [record[column] for record in records if record.get(column) not in (None, "")]
    if not texts or not all(isinstance(value, str) for value in texts):
        return False
    words = sum(len(str(text).split()) for text in texts)
    return words >= MIN_WORDS_PER_TEXT * len(texts) and len(set(texts)) >= MIN_DISTINCT_SHARE * len(
        texts
    )


# --- from columns to fields ------------------------------------------------------------------------------------------


def map_columns(records: Records, columns: ColumnsByField) -> Records:
    """Return the records with the fields that their columns stand for, beside the columns."""
    available = list_columns(records)
    for field_name, column in columns.items():
        for mapped_column in as_list(column):
            if mapped_column not in available:
                raise TaskError(
                    f"no column {mapped_column!r} for {field_name}",
                    where=records[0].place.source if records else "",
                    hint=f"{suggest_names(mapped_column, sorted(available))}; say it with --map {field_name}=COLUMN",
                )
    mapped_records = []
    for record in records:
        fields = {
            field_name: _read_field(record, field_name, column)
            for field_name, column in columns.items()
        }
        mapped_records.append(Record(record.place, {**record, **fields}))
    return mapped_records


def _read_field(record: Record, field: str, column: str | Sequence[str]) -> object:
    """Return the value of a field; several columns are a list of choices, or else parts of one text."""
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


def _read_turns(conversation: object) -> list[Turn]:
    """Return the messages of a conversation as OpenAI or ShareGPT write it; empty if a value is no conversation."""
    if isinstance(conversation, str) and conversation.lstrip().startswith("[{"):
        try:
            conversation = json.loads(conversation)
        except (ValueError, RecursionError):
            return []
    if not isinstance(conversation, list):
        return []
    turns = []
    for message in conversation:
        if not isinstance(message, dict):
            return []
        role = str(message.get("role") or message.get("from") or "").lower()
        content = message.get("content", message.get("value"))
        if not role or not isinstance(content, str):
            return []
        turns.append(Turn(_ROLES.get(role, role), content))
    return turns


def _render_turns(turns: Sequence[Turn], field: str) -> str:
    """Return the field of a conversation: its last answer (``completion``), or what stands before that (``prompt``)."""
    has_answer = turns[-1].role == "assistant"
    if field == "completion":
        return turns[-1].text if has_answer else ""
    prompt_turns = turns[:-1] if has_answer else turns
    dialogue = [turn for turn in prompt_turns if turn.role != "system"]
    instructions = [turn.text for turn in prompt_turns if turn.role == "system"]
    if len(dialogue) == 1:
        return "\n\n".join([*instructions, dialogue[0].text])
    lines = [f"{turn.role.capitalize()}: {turn.text}" for turn in dialogue]
    return "\n".join([*instructions, *lines, "Assistant:"])

"""From a user's rows to a task definition: multiple choice, labelled texts, text to write, or a corpus.

There is one function for each of these kinds (``define_choice`` …). In: the records of each split, their columns
renamed to the fields of the kind (``question``, ``choices``, ``answer``). Out: a definition as lm-eval could have read
it, and the documents of each split as that definition takes them. A record that cannot be used becomes an entry of
``bad_rows``, an error that says where it stands and why.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from potentia.errors import TaskError, suggest_names
from potentia.tasks.consent import Definition
from potentia.tasks.data import BadRows, Record, Records, RecordsBySplit, RowError, UserData
from potentia.tasks.free_text import FREE_TEXT_METRICS, choose_grader, choose_metric
from potentia.values.metric import Metric

DocumentFields = dict[str, Any]
"""The fields of one document, as its definition takes them."""

ENOUGH_ROWS = 5  # with fewer, an answer that fits only if counted from 1 is taken for a slip
FITTING_SHARE = 0.9  # of the rows: the answers that a reading must fit at least
MAX_PLACES = 5  # of rows that contradict each other, that a note lists
MAX_LABELS = 200  # a column with more distinct values holds no labels
# the bound on the tokens of a written answer lies between these
LEAST_ANSWER_TOKENS = 256
MOST_ANSWER_TOKENS = 1024
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class DefinedTask:
    """The definition made for a user's rows, and the documents of each split."""

    definition: Definition
    rows_by_split: dict[str, Records]
    notes: tuple[str, ...] = ()  # what the user should know
    metric_note: str = (
        ""  # how answers are scored; untrue where a prompt form scores them otherwise
    )


DefineTask = Callable[[UserData, RecordsBySplit, BadRows], DefinedTask]
"""Makes a task of records; unusable ones are appended to the bad rows."""


def _make_rows(
    user_data: UserData,
    records_by_split: RecordsBySplit,
    bad_rows: BadRows,
    make_row: Callable[[Record], DocumentFields],
) -> dict[str, Records]:
    """Return the documents of all splits; unusable records go to ``bad_rows``.

    Beside its fields a document has the cluster column, and all columns of text if the user wrote the prompt, which may
    name any of them.
    """

    def make_with_columns(record: Record) -> DocumentFields:
        columns = _read_text_columns(record) if user_data.prompt is not None else {}
        cluster_column = user_data.cluster_column
        if cluster_column is not None:
            columns[cluster_column] = str(record.get(cluster_column) or "")
        return {**columns, **make_row(record)}

    rows: dict[str, Records] = {}
    for split, records in records_by_split.items():
        rows[split] = []
        for record in records:
            row = _try_row(make_with_columns, record, bad_rows)
            if row is not None:
                rows[split].append(Record(record.place, row))
    return rows


def _try_row(
    make_row: Callable[[Record], DocumentFields], record: Record, bad_rows: BadRows
) -> DocumentFields | None:
    """Return the document of one record; None, and one more entry in ``bad_rows``, where it cannot be used."""
    try:
        return make_row(record)
    except TaskError as error:
        bad_rows.append(RowError(error.message, place=record.place, hint=error.hint))
        return None


def _read_text_columns(record: Record) -> dict[str, str]:
    """Return as text every column of a record that holds one value."""
    texts = {}
    for column, value in record.items():
        if not isinstance(value, (list, dict)):
            texts[column] = "" if value is None else str(value)
    return texts


def list_asked_fields(definition: Mapping[str, Any]) -> list[str]:
    """Return the fields that the prompt of a definition made here needs: all but the answer."""
    if definition["output_type"] == "generate_until":
        return ["prompt"]
    if not definition.get("labels"):
        return ["question", "choices"]
    prompt = str(definition["doc_to_text"])
    return [
        field_name for field_name in ("text", "text_pair") if "{{" + field_name + "}}" in prompt
    ]


def make_unanswered_documents(
    definition: Mapping[str, Any], records: Records, bad_rows: BadRows
) -> list[DocumentFields | None]:
    """Return documents of rows whose answer may not be known, for a definition made here; None if a row is bad.

    An unknown answer is stood in for by the first choice or label, or by an empty text.
    """
    labels = list(definition.get("labels") or {})
    asked_fields = list_asked_fields(definition)

    def make_document(record: Record) -> DocumentFields:
        document: DocumentFields = dict(_read_text_columns(record))
        if definition["output_type"] == "generate_until":
            document["prompt"] = _read_text(record, "prompt")
            document["completion"] = str(record.get("completion") or "")
            return document
        if not labels:
            return {**document, **_make_choice_row(record), "answer": 0}
        gold = find_label(record.get("label"), labels)
        for field_name in asked_fields:
            document[field_name] = _read_text(record, field_name).strip()
        document["label"] = 0 if gold is None else labels.index(gold)
        return document

    return [_try_row(make_document, record, bad_rows) for record in records]


def find_label(value: object, labels: Iterable[str]) -> str | None:
    """Return the label that a value of a file means, whatever its case and blanks; None if it means none."""
    label_text = str(value or "").strip()
    label_by_spelling = {normalise_label(label): label for label in labels}
    if label_text in label_by_spelling.values():
        return label_text
    return label_by_spelling.get(normalise_label(label_text))


def _read_text(record: Mapping[str, object], column: str) -> str:
    """Return a field as text; raise if it is missing, empty or no single value."""
    value = record.get(column)
    is_unexpected_bool = isinstance(value, bool) and column != "label"
    if value is None or value != value:  # NaN
        raise TaskError(f"{column} is missing")
    if not isinstance(value, (str, int, float)) or is_unexpected_bool:
        raise TaskError(f"{column} is {value!r}, not text")
    text = str(value)
    if not text.strip():
        raise TaskError(f"{column} is empty")
    return text


def _list_metrics(*metric_names: str, aggregation: str = "mean") -> list[dict[str, object]]:
    """Return the entries of a definition's ``metric_list``, with the direction that is known of each metric."""
    metrics = []
    for metric_name in metric_names:
        higher_is_better = Metric.of(metric_name).higher_is_better
        metrics.append(
            {
                "metric": metric_name,
                "aggregation": aggregation,
                "higher_is_better": higher_is_better,
            }
        )
    return metrics


# --- multiple choice -------------------------------------------------------------------------------------------------


def define_choice(
    user_data: UserData, records_by_split: RecordsBySplit, bad_rows: BadRows
) -> DefinedTask:
    """Make multiple choice of ``question, choices, answer``; how answers are written is decided over all rows."""
    rows_by_split = _make_rows(user_data, records_by_split, bad_rows, _make_choice_row)
    all_rows = list(itertools.chain.from_iterable(rows_by_split.values()))
    readings = _choose_readings(all_rows)
    rows_by_split = _make_rows(
        user_data, rows_by_split, bad_rows, lambda row: _locate_answer(row, readings)
    )
    definition = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": _list_metrics("acc", "acc_norm"),
    }
    notes = _describe_counting(all_rows, readings)
    return DefinedTask(definition, rows_by_split, tuple(notes))


def _describe_counting(
    rows: Sequence[Mapping[str, Any]], readings: Sequence[AnswerReading]
) -> list[str]:
    """Say from which number answers that are numbers were taken to count, since that was inferred."""
    for row in rows:
        number = _parse_whole_number(row["answer"])
        readings_of_row = [reading(row["answer"], row["choices"]) for reading in readings]
        positions = [position for position in readings_of_row if position is not None]
        is_text = _read_as_text(row["answer"], row["choices"]) is not None
        if number is None or not positions or is_text:
            continue
        first_number = number - positions[0]
        return [f"The answers are numbers that count from {first_number}."]
    return []


def _make_choice_row(record: Mapping[str, object]) -> DocumentFields:
    """Return a record's question and choices, checked, and its answer as it is written."""
    question = _read_text(record, "question")
    choices = _parse_choices(record.get("choices"))
    if not isinstance(choices, (list, tuple)):
        hint = 'write ["first", "second"], in a csv also first|second'
        raise TaskError(f"choices is {choices!r}, not a list", hint=hint)
    choices = ["" if choice is None else str(choice) for choice in choices]
    if len(choices) < 2:
        raise TaskError(f"{len(choices)} choice(s); a question needs two or more")
    for position, choice in enumerate(choices):
        if not choice.strip():
            raise TaskError(f"choice {position} is empty")
    return {"question": question, "choices": choices, "answer": record.get("answer")}


def _parse_choices(cell: Any) -> object:
    """Return the choices in one value of a file, as a list where they can be read.

    Text is read as a list of JSON or Python, else divided at ``|``. An object (``{"A": "first", "B": "second"}``) has
    its choices in the order of its keys.
    """
    if isinstance(cell, Mapping):
        return [cell[mark] for mark in sorted(cell) if cell[mark] not in (None, "")]
    if not isinstance(cell, str):
        return cell
    for parse in (json.loads, ast.literal_eval):
        try:
            cell = parse(cell)
            return _parse_choices(cell) if isinstance(cell, Mapping) else cell
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if "|" in cell:
        return [choice_text.strip() for choice_text in cell.split("|")]
    return cell


AnswerReading = Callable[[object, Sequence[str]], int | None]
"""One way to read an answer: returns the position of the right choice, or None if the answer is not written so."""


def _read_as_text(answer: object, choices: Sequence[str]) -> int | None:
    return choices.index(answer) if isinstance(answer, str) and answer in choices else None


def _read_as_number(answer: object, choices: Sequence[str], first_number: int = 0) -> int | None:
    answer_number = _parse_whole_number(answer)
    if answer_number is None or not 0 <= answer_number - first_number < len(choices):
        return None
    return answer_number - first_number


def _read_as_letter(answer: object, choices: Sequence[str]) -> int | None:
    letter = answer.strip().upper() if isinstance(answer, str) else ""
    letters = set(_LETTERS[: len(choices)])
    return _LETTERS.index(letter) if letter and letter in letters else None


_USUAL_READINGS: tuple[AnswerReading, ...] = (_read_as_text, _read_as_number, _read_as_letter)
# Numbers are counted from 1 only if that fits more rows than counting from 0.
_READINGS: tuple[AnswerReading, ...] = (*_USUAL_READINGS, partial(_read_as_number, first_number=1))


def _parse_whole_number(answer: object) -> int | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", answer):
        return int(answer)
    if isinstance(answer, (int, float)) and answer == answer // 1 and abs(answer) < 1e9:
        return int(answer)
    return None


def _choose_readings(rows: Sequence[Mapping[str, Any]]) -> Sequence[AnswerReading]:
    """Return the readings to try on every answer of a file: those that fit most rows, if these are nine of ten.

    One row does not say how its answer is meant: with the choices 1, 2, 3 the answer "1" may be a text or a number. If
    no reading fits nine rows of ten, each row is read by the first usual reading that fits it.
    """
    candidates = _READINGS if len(rows) >= ENOUGH_ROWS else _USUAL_READINGS
    rows_by_reading = {}
    for reading in candidates:
        rows_by_reading[reading] = sum(
            reading(row["answer"], row["choices"]) is not None for row in rows
        )
    most_rows = max(rows_by_reading.values(), default=0)
    if most_rows < FITTING_SHARE * len(rows):
        return _USUAL_READINGS
    return [reading for reading in candidates if rows_by_reading[reading] == most_rows]


def find_right_choices(records: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the text of each row's right choice; None if a row does not give it, or cannot be read."""
    answered_rows: list[DocumentFields | None] = []
    for record in records:
        try:
            row = _make_choice_row(record)
        except TaskError:
            row = {"answer": None}
        answered_rows.append(None if row["answer"] in (None, "") else row)
    readings = _choose_readings([row for row in answered_rows if row is not None])
    right_choices: list[str | None] = []
    for answered_row in answered_rows:
        right_choice = None
        if answered_row is not None:
            with suppress(TaskError):
                located = _locate_answer(answered_row, readings)
                right_choice = located["choices"][located["answer"]]
        right_choices.append(right_choice)
    return right_choices


def _locate_answer(row: Mapping[str, Any], readings: Sequence[AnswerReading]) -> DocumentFields:
    """Return a row with its answer as the position of the right choice, by the first reading that fits."""
    answer = row["answer"]
    choices = row["choices"]
    for reading in readings:
        position = reading(answer, choices)
        if position is not None:
            return {**row, "answer": position}
    answer_number = _parse_whole_number(answer)
    if answer_number is not None:
        raise TaskError(
            f"the answer {answer_number} is out of range: there are {len(choices)} choices",
            hint=f"answers count from 0 to {len(choices) - 1}",
        )
    raise TaskError(
        f"the answer {answer!r} is not one of the choices",
        hint="give the choice's text, its number from 0, or its letter",
    )


# --- labelled texts --------------------------------------------------------------------------------------------------


def define_classification(
    user_data: UserData, records_by_split: RecordsBySplit, bad_rows: BadRows
) -> DefinedTask:
    """Make a classification of ``text, label`` (or two texts): multiple choice between the labels, in words."""
    records = list(itertools.chain.from_iterable(records_by_split.values()))
    has_pairs = any("text_pair" in record for record in records)
    text_fields = ("text", "text_pair") if has_pairs else ("text",)

    def make_row(record: Record) -> DocumentFields:
        return {
            field_name: _read_text(record, field_name).strip()
            for field_name in (*text_fields, "label")
        }

    rows_by_split = _make_rows(user_data, records_by_split, bad_rows, make_row)
    all_rows = list(itertools.chain.from_iterable(rows_by_split.values()))
    notes = _merge_spellings(all_rows) if user_data.merge_spellings else []
    notes += _describe_contradictions(all_rows, text_fields)
    label_counts = Counter(row["label"] for row in all_rows)
    label_column = user_data.column_of("label")
    _check_label_counts(label_counts, label_column)
    words_by_label = _choose_label_words(
        sorted(label_counts, key=_label_sort_key), user_data.labels
    )
    position_by_label = {label: position for position, label in enumerate(words_by_label)}
    for row in all_rows:
        row["label"] = position_by_label[row["label"]]
    prompt_lines = []
    for field_name in text_fields:
        title = _write_title(user_data.column_of(field_name))
        prompt_lines.append(f"{title}: {{{{{field_name}}}}}")
    prompt_lines.append(f"{_write_title(label_column)}:")
    definition = {
        "output_type": "multiple_choice",
        "doc_to_text": "\n".join(prompt_lines),
        "doc_to_choice": list(words_by_label.values()),
        "doc_to_target": "label",
        "metric_list": _list_metrics("acc"),
        "labels": words_by_label,
    }
    return DefinedTask(definition, rows_by_split, tuple(notes))


def normalise_label(label: str) -> str:
    """Return a label without case and extra blanks: spellings of one label are equal then."""
    return " ".join(label.casefold().split())


def _merge_spellings(rows: Sequence[DocumentFields]) -> list[str]:
    """Give labels that differ only by case or blanks their most frequent spelling, in the rows; return notes on it."""
    spelling_counts: dict[str, Counter[str]] = {}
    for row in rows:
        spelling_counts.setdefault(normalise_label(row["label"]), Counter())[row["label"]] += 1
    chosen_spelling = {
        normalised_label: counts.most_common(1)[0][0]
        for normalised_label, counts in spelling_counts.items()
    }
    for row in rows:
        row["label"] = chosen_spelling[normalise_label(row["label"])]
    notes = []
    for normalised_label, counts in spelling_counts.items():
        if len(counts) < 2:
            continue
        spellings = ", ".join(f"{spelling} ({count})" for spelling, count in counts.most_common())
        notes.append(
            f"Merged {len(counts)} spellings of the label {chosen_spelling[normalised_label]}: {spellings}"
            " (--keep-spellings keeps them apart)."
        )
    return notes


def _describe_contradictions(rows: Sequence[Record], text_fields: Sequence[str]) -> list[str]:
    """Say how many texts have different labels in different rows, with an example and its rows."""
    labels_by_text: dict[str, set[str]] = {}
    places_by_text: dict[str, list[str]] = {}
    for row in rows:
        whole_text = "\n".join(str(row[field_name]) for field_name in text_fields)
        normalised_text = " ".join(whole_text.casefold().split())
        labels_by_text.setdefault(normalised_text, set()).add(row["label"])
        places_by_text.setdefault(normalised_text, []).append(row.place.row_or_file)
    contradictions = [text for text, labels in labels_by_text.items() if len(labels) > 1]
    if not contradictions:
        return []
    example = " and ".join(sorted(labels_by_text[contradictions[0]])[:2])
    places = places_by_text[contradictions[0]]
    listed = ", ".join(places[:MAX_PLACES]) + (" …" if len(places) > MAX_PLACES else "")
    first = "" if len(contradictions) == 1 else "first: "
    texts = "1 text has" if len(contradictions) == 1 else f"{len(contradictions)} texts have"
    return [
        f"{texts} different labels in different rows ({first}{listed}: {example}): no model gets all of them right."
    ]


def _check_label_counts(label_counts: Counter[str], column: str) -> None:
    """Refuse a column that cannot hold labels: it has one value, or too many."""
    if len(label_counts) < 2:
        problem = "the same in every row" if label_counts else "empty"
        raise TaskError(f"the label ({column}) is {problem}: there is nothing to classify")
    # with more than 20 values, of which none comes three times, it looks like a column of texts
    are_rare = len(label_counts) > 20 and max(label_counts.values()) < 3
    if len(label_counts) > MAX_LABELS or are_rare:
        raise TaskError(
            f"the column {column} has {len(label_counts)} distinct values: too many for labels",
            hint="for a corpus say so in the task's entry: columns: {text: COLUMN}",
        )


def _choose_label_words(labels: Sequence[str], stated_words: Mapping[str, str]) -> dict[str, str]:
    """Return the words of each label in the prompt: those that the user states, else ``billing_issue`` without "_".

    If one label's words begin with another's ("no" and "no answer"), the shorter would always be the likelier answer:
    all of them then end with a full stop.
    """
    unknown = sorted(set(map(str, stated_words)) - set(labels))
    if unknown:
        raise TaskError(
            f"no row has the label {unknown[0]!r}", hint=suggest_names(unknown[0], labels)
        )
    spaced = {label: " ".join(re.sub(r"[_\s]+", " ", label).split()) or label for label in labels}
    unchanged = {label: label for label in labels}
    for default_words in (spaced, unchanged):
        words_by_label = {
            label: str(stated_words.get(label, default_words[label])) for label in labels
        }
        if len(set(words_by_label.values())) == len(words_by_label):
            break
    else:
        raise TaskError(
            "two labels have the same words", hint="give each label words of its own under `labels`"
        )
    if _has_prefix_among(list(words_by_label.values())):
        return {label: f"{words}." for label, words in words_by_label.items()}
    return words_by_label


def _has_prefix_among(texts: Sequence[str]) -> bool:
    """Whether one of the texts begins with another."""
    ordered = sorted(set(texts))  # a text comes right before those that begin with it
    return any(later.startswith(earlier) for earlier, later in itertools.pairwise(ordered))


def _label_sort_key(label: str) -> tuple[float, str]:
    """Sort labels that are numbers by their value, the others after them."""
    is_number = re.fullmatch(r"-?\d+(\.\d+)?", label)
    return (float(label) if is_number else float("inf"), label)


def _write_title(column: str) -> str:
    """Return a column's name as the prompt shows it: plain words, since other signs could be read as a template."""
    words = " ".join(re.sub(r"[^\w ]|_", " ", column).split())
    return words[:1].upper() + words[1:] if words else "Text"


# --- generation ------------------------------------------------------------------------------------------------------


def define_generation(
    user_data: UserData, records_by_split: RecordsBySplit, bad_rows: BadRows
) -> DefinedTask:
    """Make a task to write text of ``prompt, completion``; the completions decide its metric and where answers stop."""

    def make_row(record: Record) -> DocumentFields:
        return {
            "prompt": _read_text(record, "prompt"),
            "completion": _read_text(record, "completion"),
        }

    rows_by_split = _make_rows(user_data, records_by_split, bad_rows, make_row)
    all_rows = list(itertools.chain.from_iterable(rows_by_split.values()))
    has_own_spaces = any(
        row["prompt"][-1:].isspace() or row["completion"][:1].isspace() for row in all_rows
    )
    # a token has a byte at least: so many tokens are enough for the longest right answer
    longest_bytes = max((len(row["completion"].encode()) for row in all_rows), default=0)
    right_answers = [row["completion"] for row in all_rows]
    metric = choose_metric(right_answers)
    metric_note = ""
    if user_data.metric is None:
        other_metrics = ", ".join(
            metric_name for metric_name in FREE_TEXT_METRICS if metric_name != metric
        )
        metric_note = (
            f"Written answers are scored by {metric}; beside it {other_metrics} (--metric chooses)."
        )
    definition = {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "completion",
        "target_delimiter": "" if has_own_spaces else " ",
        "generation_kwargs": {
            "until": _choose_stops(all_rows),
            "max_gen_toks": min(MOST_ANSWER_TOKENS, max(LEAST_ANSWER_TOKENS, longest_bytes)),
            "do_sample": False,
        },
        "process_results": choose_grader(right_answers),
        "metric_list": _list_metrics(*FREE_TEXT_METRICS),
        "main_metric": metric,
    }
    return DefinedTask(definition, rows_by_split, metric_note=metric_note)


def _choose_stops(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where a written answer stops: at a line break, else at an empty line, if no right answer contains it."""
    for stop_text in ("\n", "\n\n"):
        if not any(stop_text in row["completion"].strip() for row in rows):
            return [stop_text]
    return []


# --- corpora ---------------------------------------------------------------------------------------------------------


def define_corpus(
    user_data: UserData, records_by_split: RecordsBySplit, bad_rows: BadRows
) -> DefinedTask:
    """Make a corpus of ``text``: each text is predicted whole."""
    rows_by_split = _make_rows(
        user_data, records_by_split, bad_rows, lambda record: {"text": _read_text(record, "text")}
    )
    metrics = _list_metrics("bits_per_byte", aggregation="bits_per_byte")
    metrics += _list_metrics(
        "byte_perplexity", "word_perplexity", aggregation="weighted_perplexity"
    )
    definition = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": metrics,
    }
    return DefinedTask(definition, rows_by_split)

"""What a user's rows become: a multiple-choice benchmark, labelled texts, a generation benchmark, or a corpus.

Each is a definition that lm-eval could have read, with the rows as its functions take them.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from potentia.errors import TaskError
from potentia.tasks.consent import Definition
from potentia.tasks.data import BadRows, Record, Records, UserData
from potentia.tasks.free_text import FREE_TEXT_METRICS, choose_metric, grade_free_text
from potentia.values.metric import Metric

Row = dict[str, Any]
"""A document as the functions of its definition take it."""

Splits = Mapping[str, Records]
ENOUGH_ROWS = 5  # to tell answers that count from 1 from a slip
FITTING_SHARE = 0.9  # of the rows whose answers a reading must fit
MOST_LABELS = 200  # a column with more distinct values holds no labels
SHORTEST_ANSWER = 256  # tokens that a written answer may have at least
LONGEST_ANSWER = 1024
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class MadeTask:
    """A definition that asks a user's rows, and the rows of each split."""

    definition: Definition
    rows: dict[str, Records]
    notes: tuple[str, ...] = ()  # what the user should know


MakeTask = Callable[[UserData, Splits, BadRows], MadeTask]


def _make_rows(
    user_data: UserData, splits: Splits, bad: BadRows, make_row: Callable[[Record], Row]
) -> dict[str, Records]:
    """Make the rows of all splits; those that cannot be used go to ``bad``. A prompt may name the user's columns."""

    def make_with_columns(record: Record) -> Row:
        columns = _text_columns(record) if user_data.prompt is not None else {}
        if user_data.cluster is not None:
            columns[user_data.cluster] = str(record.get(user_data.cluster) or "")
        return {**columns, **make_row(record)}

    rows: dict[str, Records] = {}
    for split, records in splits.items():
        rows[split] = []
        for record in records:
            row = _try_row(make_with_columns, record, bad)
            if row is not None:
                rows[split].append(Record(record.place, row))
    return rows


def _try_row(make_row: Callable[[Record], Row], record: Record, bad: BadRows) -> Row | None:
    """Make one row; None, and an entry of ``bad`` that names its place, where it cannot be used."""
    try:
        return make_row(record)
    except TaskError as error:
        error.where = record.place
        bad.append(error)
        return None


def _text_columns(record: Record) -> dict[str, str]:
    """Return the columns of a record that hold one value, as texts."""
    texts = {}
    for name, value in record.items():
        if not isinstance(value, (list, dict)):
            texts[name] = "" if value is None else str(value)
    return texts


def make_unanswered_documents(
    definition: Mapping[str, Any], records: Records, bad: BadRows
) -> list[Row | None]:
    """Make the documents of rows whose answer may not be known, for a definition made here; None where a row is bad."""
    labels = list(definition.get("labels") or {})
    prompt = str(definition["doc_to_text"])
    fields = [name for name in ("text", "text_pair") if labels and "{{" + name + "}}" in prompt]

    def make_document(record: Record) -> Row:
        document: Row = dict(_text_columns(record))
        if definition["output_type"] == "generate_until":
            document["prompt"] = _read_text(record, "prompt")
            document["completion"] = str(record.get("completion") or "")
            return document
        if not labels:
            return {**document, **_make_choice_row(record), "answer": 0}
        gold = find_label(record.get("label"), labels)
        for name in fields:
            document[name] = _read_text(record, name).strip()
        document["label"] = 0 if gold is None else labels.index(gold)
        return document

    return [_try_row(make_document, record, bad) for record in records]


def find_label(value: Any, labels: Iterable[str]) -> str | None:
    """Return the label that a cell of a file means, in this spelling or in another; None where it means none."""
    text = str(value or "").strip()
    label_by_spelling = {normalise_label(label): label for label in labels}
    if text in label_by_spelling.values():
        return text
    return label_by_spelling.get(normalise_label(text))


def _read_text(record: Mapping[str, Any], key: str) -> str:
    """Return a field as text; refuse one that is missing, empty or no single value."""
    value = record.get(key)
    is_odd_bool = isinstance(value, bool) and key != "label"
    if not isinstance(value, (str, int, float)) or is_odd_bool:
        raise TaskError(f"{key} is {'missing' if value is None else repr(value)}, not text")
    text = str(value)
    if not text.strip():
        raise TaskError(f"{key} is empty")
    return text


def _list_metrics(*names: str, aggregation: str = "mean") -> list[dict[str, Any]]:
    """List metrics as a definition does, with the direction that the registry knows."""
    metrics = []
    for name in names:
        higher_is_better = Metric.of(name).higher_is_better
        metrics.append(
            {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}
        )
    return metrics


# --- multiple choice -------------------------------------------------------------------------------------------------


def make_choice_task(user_data: UserData, splits: Splits, bad: BadRows) -> MadeTask:
    """Make a multiple-choice benchmark of ``question, choices, answer``."""
    rows = _make_rows(user_data, splits, bad, _make_choice_row)
    all_rows = [row for records in rows.values() for row in records]
    readings = _choose_readings(all_rows)
    rows = _make_rows(user_data, rows, bad, lambda row: _place_answer(row, readings))
    definition = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": _list_metrics("acc", "acc_norm"),
    }
    return MadeTask(definition, rows)


def _make_choice_row(record: Mapping[str, Any]) -> Row:
    question = _read_text(record, "question")
    choices = _parse_choices(record.get("choices"))
    if not isinstance(choices, (list, tuple)):
        hint = 'write ["first", "second"], in a csv also first|second'
        raise TaskError(f"choices is {choices!r}, not a list", hint=hint)
    choices = [str(choice) for choice in choices]
    if len(choices) < 2:
        raise TaskError(f"{len(choices)} choice(s); a question needs two or more")
    for place, choice in enumerate(choices):
        if not choice.strip():
            raise TaskError(f"choice {place} is empty")
    return {"question": question, "choices": choices, "answer": record.get("answer")}


def _parse_choices(cell: Any) -> Any:
    """Read the choices of a cell of a csv, which are written as a list or with | between them.

    An object (``{"A": "first", "B": "second"}``) has them in the order of its letters.
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
        return [part.strip() for part in cell.split("|")]
    return cell


AnswerReading = Callable[[Any, Sequence[str]], int | None]
"""Returns the place of the right choice, where an answer can be read so."""


def _read_as_text(answer: Any, choices: Sequence[str]) -> int | None:
    return choices.index(answer) if isinstance(answer, str) and answer in choices else None


def _read_as_number(answer: Any, choices: Sequence[str], first: int = 0) -> int | None:
    number = _parse_whole_number(answer)
    if number is None or not 0 <= number - first < len(choices):
        return None
    return number - first


def _read_as_letter(answer: Any, choices: Sequence[str]) -> int | None:
    letter = answer.strip().upper() if isinstance(answer, str) else ""
    letters = set(_LETTERS[: len(choices)])
    return _LETTERS.index(letter) if letter and letter in letters else None


# Numbers count from 1 where counting from 0 does not fit all.
_USUAL_READINGS: tuple[AnswerReading, ...] = (_read_as_text, _read_as_number, _read_as_letter)
_READINGS: tuple[AnswerReading, ...] = (*_USUAL_READINGS, partial(_read_as_number, first=1))


def _parse_whole_number(answer: Any) -> int | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", answer):
        return int(answer)
    if isinstance(answer, (int, float)) and answer == answer // 1 and abs(answer) < 1e9:
        return int(answer)
    return None


def _choose_readings(rows: Sequence[Mapping[str, Any]]) -> Sequence[AnswerReading]:
    """Choose one reading of the answers for the whole file: with choices 1, 2, 3 the answer "1" may be text or number.

    A few bad rows do not change it: the file is meant as what fits nine rows of ten, and more than other readings.
    """
    candidates = _READINGS if len(rows) >= ENOUGH_ROWS else _USUAL_READINGS
    fitting_rows = {}
    for reading in candidates:
        fitting_rows[reading] = sum(
            reading(row["answer"], row["choices"]) is not None for row in rows
        )
    most = max(fitting_rows.values(), default=0)
    if most < FITTING_SHARE * len(rows):
        return _USUAL_READINGS
    return [reading for reading in candidates if fitting_rows[reading] == most]


def _place_answer(row: Mapping[str, Any], readings: Sequence[AnswerReading]) -> Row:
    """Put the place of the right choice in the row, by the first reading of the answer that fits."""
    answer = row["answer"]
    choices = row["choices"]
    for reading in readings:
        place = reading(answer, choices)
        if place is not None:
            return {**row, "answer": place}
    number = _parse_whole_number(answer)
    if number is not None:
        raise TaskError(
            f"the answer {number} is out of range: there are {len(choices)} choices",
            hint=f"answers count from 0 to {len(choices) - 1}",
        )
    raise TaskError(
        f"the answer {answer!r} is none of the choices",
        hint="give the choice's text, its number from 0, or its letter",
    )


# --- labelled texts --------------------------------------------------------------------------------------------------


def make_classification(user_data: UserData, splits: Splits, bad: BadRows) -> MadeTask:
    """Make a classification benchmark of ``text, label`` (or two texts): every label, in words, is a choice."""
    records = [record for split_records in splits.values() for record in split_records]
    has_pairs = any("text_pair" in record for record in records)
    fields = ("text", "text_pair") if has_pairs else ("text",)
    rows = _make_rows(
        user_data,
        splits,
        bad,
        lambda record: {name: _read_text(record, name).strip() for name in (*fields, "label")},
    )
    notes = _merge_spellings(rows) if user_data.merge_spellings else []
    counts = Counter(row["label"] for split_rows in rows.values() for row in split_rows)
    column = user_data.column("label")
    _check_label_counts(counts, column)
    labels = _words_for_labels(sorted(counts, key=_label_order), user_data.labels)
    places = {label: place for place, label in enumerate(labels)}
    for split_rows in rows.values():
        for row in split_rows:
            row["label"] = places[row["label"]]
    titles = [f"{_title_of(user_data.column(name))}: {{{{{name}}}}}" for name in fields]
    definition = {
        "output_type": "multiple_choice",
        "doc_to_text": "\n".join([*titles, f"{_title_of(column)}:"]),
        "doc_to_choice": list(labels.values()),
        "doc_to_target": "label",
        "metric_list": _list_metrics("acc"),
        "labels": labels,
    }
    return MadeTask(definition, rows, tuple(notes))


def normalise_label(label: str) -> str:
    """Return what spellings of one label have in common: no case, no extra blanks."""
    return " ".join(label.casefold().split())


def _merge_spellings(rows: Mapping[str, Records]) -> list[str]:
    """Give labels that differ by case or blanks alone the most frequent spelling of them; say which were merged."""
    all_rows = [row for split_rows in rows.values() for row in split_rows]
    spellings: dict[str, Counter[str]] = {}
    for row in all_rows:
        spellings.setdefault(normalise_label(row["label"]), Counter())[row["label"]] += 1
    chosen = {key: counts.most_common(1)[0][0] for key, counts in spellings.items()}
    for row in all_rows:
        row["label"] = chosen[normalise_label(row["label"])]
    notes = []
    for key, counts in spellings.items():
        if len(counts) < 2:
            continue
        others = ", ".join(f"{spelling} ({n})" for spelling, n in counts.most_common()[1:])
        notes.append(
            f"Merged {len(counts)} spellings of the label {chosen[key]}: {others}"
            " (--keep-spellings keeps them apart)."
        )
    return notes


def _check_label_counts(counts: Counter[str], column: str) -> None:
    """Refuse a column that cannot hold labels: one value, or too many."""
    if len(counts) < 2:
        problem = "the same in every row" if counts else "empty"
        raise TaskError(f"the label ({column}) is {problem}: there is nothing to tell apart")
    if len(counts) > MOST_LABELS or (len(counts) > 20 and max(counts.values()) < 3):
        raise TaskError(
            f"the column {column} has {len(counts)} distinct values: too many for labels",
            hint="for a corpus say so in the task's entry: columns: {text: COLUMN}",
        )


def _words_for_labels(labels: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Say labels as words: as given, else ``billing_issue`` as "billing issue".

    A label that another begins with could never lose against it, so all of them then end with a full stop.
    """
    unknown = sorted(set(map(str, given)) - set(labels))
    if unknown:
        raise TaskError(
            f"no row has the label {unknown[0]!r}", hint=f"there are: {', '.join(labels[:12])}"
        )
    spaced = {label: " ".join(re.sub(r"[_\s]+", " ", label).split()) or label for label in labels}
    unchanged = {label: label for label in labels}
    for default_words in (spaced, unchanged):
        words = {label: str(given.get(label, default_words[label])) for label in labels}
        if len(set(words.values())) == len(words):
            break
    else:
        raise TaskError(
            "two labels have the same words", hint="give each label words of its own under `labels`"
        )
    if _has_prefix_among(list(words.values())):
        return {label: f"{text}." for label, text in words.items()}
    return words


def _has_prefix_among(texts: Sequence[str]) -> bool:
    """Whether one of the texts begins with another."""
    ordered = sorted(set(texts))  # a text comes right before those that begin with it
    return any(later.startswith(earlier) for earlier, later in itertools.pairwise(ordered))


def _label_order(label: str) -> tuple[float, str]:
    """Order labels that are numbers by their value, the others after them."""
    is_number = re.fullmatch(r"-?\d+(\.\d+)?", label)
    return (float(label) if is_number else float("inf"), label)


def _title_of(column: str) -> str:
    """Write a column's name as the prompt shows it; a name that is no plain word could be read as a template."""
    words = " ".join(re.sub(r"[^\w ]|_", " ", column).split())
    return words[:1].upper() + words[1:] if words else "Text"


# --- generation ------------------------------------------------------------------------------------------------------


def make_generation_task(user_data: UserData, splits: Splits, bad: BadRows) -> MadeTask:
    """Make a generation benchmark of ``prompt, completion``."""
    rows = _make_rows(
        user_data,
        splits,
        bad,
        lambda record: {key: _read_text(record, key) for key in ("prompt", "completion")},
    )
    pairs = [row for records in rows.values() for row in records]
    has_spaces = any(
        row["prompt"][-1:].isspace() or row["completion"][:1].isspace() for row in pairs
    )
    longest = max((len(row["completion"].encode()) for row in pairs), default=0)
    metric = choose_metric([row["completion"] for row in pairs])
    notes: tuple[str, ...] = ()
    if user_data.metric is None:
        others = ", ".join(name for name in FREE_TEXT_METRICS if name != metric)
        notes = (f"Written answers are scored by {metric}; beside it {others} (--metric chooses).",)
    definition = {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "completion",
        "target_delimiter": "" if has_spaces else " ",
        "generation_kwargs": {
            "until": _choose_stops(pairs),
            "max_gen_toks": min(LONGEST_ANSWER, max(SHORTEST_ANSWER, longest)),
            "do_sample": False,
        },
        "process_results": grade_free_text,
        "metric_list": _list_metrics(*FREE_TEXT_METRICS),
        "main_metric": metric,
    }
    return MadeTask(definition, rows, notes)


def _choose_stops(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first end of a text that no completion has inside: a line break, or an empty line."""
    for stop in ("\n", "\n\n"):
        if not any(stop in row["completion"].strip() for row in pairs):
            return [stop]
    return []


# --- corpora ---------------------------------------------------------------------------------------------------------


def make_corpus(user_data: UserData, splits: Splits, bad: BadRows) -> MadeTask:
    """Make a corpus of ``text``."""
    rows = _make_rows(user_data, splits, bad, lambda record: {"text": _read_text(record, "text")})
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
    return MadeTask(definition, rows)

"""What a user's rows become: a multiple-choice benchmark, labelled texts, a generation benchmark, or a corpus.

Each is a definition that lm-eval could have read, with the rows as its functions take them.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from potentia.errors import TaskError
from potentia.tasks.data import BadRows, Record, Records, UserData
from potentia.values.metric import Metric

Config = dict[str, Any]
Splits = Mapping[str, Records]
Made = tuple[Config, dict[str, Records]]  # the definition, rows by split
Make = Callable[[UserData, Splits, BadRows], Made]
ENOUGH = 5  # documents, to tell answers that count from 1 from a slip
MOST_LABELS = 200  # a column with more distinct values holds no labels
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _rows(
    own: UserData, splits: Splits, bad: BadRows, make: Callable[[Record], Config]
) -> dict[str, Records]:
    """Make the rows of all splits; those that cannot be used go to ``bad``. A prompt may name the user's columns."""

    def made(record: Record) -> Config:
        return {**(_texts(record) if own.prompt is not None else {}), **make(record)}

    return {
        split: [Record(r.place, row) for r in records if (row := _made(made, r, bad)) is not None]
        for split, records in splits.items()
    }


def _made(make: Callable[[Record], Config], record: Record, bad: BadRows) -> Config | None:
    try:
        return make(record)
    except TaskError as error:
        error.where = record.place
        bad.append(error)
        return None


def _texts(record: Record) -> dict[str, str]:
    return {
        k: "" if v is None else str(v) for k, v in record.items() if not isinstance(v, (list, dict))
    }


def make_unanswered_documents(
    config: Mapping[str, Any], records: Records, bad: BadRows
) -> list[Config | None]:
    """Make the documents of rows whose answer may not be known, for a definition made here; None where a row is bad."""
    labels = list(config.get("labels") or {})
    fields = [
        name
        for name in ("text", "text_pair")
        if labels and "{{" + name + "}}" in str(config["doc_to_text"])
    ]

    def made(record: Record) -> Config:
        texts: Config = _texts(record)
        if config["output_type"] == "generate_until":
            return {
                **texts,
                "prompt": _string(record, "prompt"),
                "completion": str(record.get("completion") or ""),
            }
        if not labels:
            return {**texts, **_choice_row(record), "answer": 0}
        gold = str(record.get("label", "")).strip()
        texts |= {name: _string(record, name).strip() for name in fields}
        return {**texts, "label": labels.index(gold) if gold in labels else 0}

    return [_made(made, record, bad) for record in records]


def _string(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, (str, int, float)) or (isinstance(value, bool) and key != "label"):
        raise TaskError(f"{key} is {'missing' if value is None else repr(value)}, not text")
    text = str(value)
    if not text.strip():
        raise TaskError(f"{key} is empty")
    return text


def _listed(*metrics: str, aggregation: str = "mean") -> list[Config]:
    """List metrics as a definition does, with the direction that the registry knows."""
    return [
        {
            "metric": name,
            "aggregation": aggregation,
            "higher_is_better": Metric.of(name).higher_is_better,
        }
        for name in metrics
    ]


def make_choice_task(own: UserData, splits: Splits, bad: BadRows) -> Made:
    """Make a multiple-choice benchmark of ``question, choices, answer``."""
    rows = _rows(own, splits, bad, _choice_row)
    readings = _readings([row for records in rows.values() for row in records])
    rows = _rows(own, rows, bad, lambda row: _answered(row, readings))
    config = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": _listed("acc", "acc_norm"),
    }
    return config, rows


def _choice_row(record: Mapping[str, Any]) -> Config:
    question, choices = _string(record, "question"), _choices(record.get("choices"))
    if not isinstance(choices, (list, tuple)):
        hint = 'write ["first", "second"], in a csv also first|second'
        raise TaskError(f"choices is {choices!r}, not a list", hint=hint)
    choices = [str(choice) for choice in choices]
    if len(choices) < 2:
        raise TaskError(f"{len(choices)} choice(s); a question needs two or more")
    if blank := [place for place, choice in enumerate(choices) if not choice.strip()]:
        raise TaskError(f"choice {blank[0]} is empty")
    return {"question": question, "choices": choices, "answer": record.get("answer")}


def _choices(given: Any) -> Any:
    """Read the choices of a cell of a csv, which are written as a list or with | between them."""
    if not isinstance(given, str):
        return given
    for parse in (json.loads, ast.literal_eval):
        try:
            given = parse(given)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return (
        [part.strip() for part in given.split("|")]
        if isinstance(given, str) and "|" in given
        else given
    )


Read = Callable[
    [Any, Sequence[str]], int | None
]  # the place of the right choice, where an answer can be read so


def _as_text(answer: Any, choices: Sequence[str]) -> int | None:
    return choices.index(answer) if isinstance(answer, str) and answer in choices else None


def _as_number(answer: Any, choices: Sequence[str], first: int = 0) -> int | None:
    number = _whole(answer)
    return number - first if number is not None and 0 <= number - first < len(choices) else None


def _as_letter(answer: Any, choices: Sequence[str]) -> int | None:
    letter = answer.strip().upper() if isinstance(answer, str) else ""
    return _LETTERS.index(letter) if letter and letter in set(_LETTERS[: len(choices)]) else None


# Numbers count from 1 where counting from 0 does not fit all.
_READINGS: tuple[Read, ...] = (_as_text, _as_number, _as_letter, partial(_as_number, first=1))


def _whole(answer: Any) -> int | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", answer):
        return int(answer)
    return (
        int(answer)
        if isinstance(answer, (int, float)) and answer == answer // 1 and abs(answer) < 1e9
        else None
    )


def _readings(rows: Sequence[Mapping[str, Any]]) -> Sequence[Read]:
    """Choose one reading of the answers for the whole file: with choices 1, 2, 3 the answer "1" may be text or number.

    A few bad rows do not change it: the file is meant as what fits nine rows of ten, and more than other readings.
    """
    some = _READINGS if len(rows) >= ENOUGH else _READINGS[:3]
    fits = {
        read: sum(read(row["answer"], row["choices"]) is not None for row in rows) for read in some
    }
    most = max(fits.values(), default=0)
    return (
        [read for read in some if fits[read] == most] if most >= 0.9 * len(rows) else _READINGS[:3]
    )


def _answered(row: Mapping[str, Any], readings: Sequence[Read]) -> Config:
    """Put the place of the right choice in the row, by the first reading of the answer that fits."""
    answer, choices = row["answer"], row["choices"]
    for read in readings:
        if (place := read(answer, choices)) is not None:
            return {**row, "answer": place}
    if (number := _whole(answer)) is not None:
        told = f"the answer {number} is out of range: there are {len(choices)} choices"
        raise TaskError(told, hint=f"answers count from 0 to {len(choices) - 1}")
    told = f"the answer {answer!r} is none of the choices"
    raise TaskError(told, hint="give the choice's text, its number from 0, or its letter")


def make_classification(own: UserData, splits: Splits, bad: BadRows) -> Made:
    """Make a classification benchmark of ``text, label`` (or two texts): every label, in words, is a choice."""
    pair = any("text_pair" in record for records in splits.values() for record in records)
    fields = ("text", "text_pair") if pair else ("text",)
    rows = _rows(
        own,
        splits,
        bad,
        lambda record: {name: _string(record, name).strip() for name in (*fields, "label")},
    )
    counts = Counter(row["label"] for records in rows.values() for row in records)
    column = own.column("label")
    if len(counts) < 2:
        told = "the same in every row" if counts else "empty"
        raise TaskError(f"the label ({column}) is {told}: there is nothing to tell apart")
    if len(counts) > MOST_LABELS or (len(counts) > 20 and max(counts.values()) < 3):
        raise TaskError(
            f"the column {column} has {len(counts)} distinct values: too many for labels",
            hint="for a corpus say so in the task's entry: columns: {text: COLUMN}",
        )
    labels = _verbalised(sorted(counts, key=_by_number), own.labels)
    places = {label: place for place, label in enumerate(labels)}
    for records in rows.values():
        for row in records:
            row["label"] = places[row["label"]]
    titles = [f"{_title(own.column(name))}: {{{{{name}}}}}" for name in fields]
    config = {
        "output_type": "multiple_choice",
        "doc_to_text": "\n".join([*titles, f"{_title(column)}:"]),
        "doc_to_choice": list(labels.values()),
        "doc_to_target": "label",
        "metric_list": _listed("acc"),
        "labels": labels,
    }
    return config, rows


def _verbalised(labels: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Say labels as words: as given, else ``billing_issue`` as "billing issue".

    A label that another begins with could never lose against it, so all of them then end with a full stop.
    """
    if unknown := sorted(set(map(str, given)) - set(labels)):
        raise TaskError(
            f"no row has the label {unknown[0]!r}", hint=f"there are: {', '.join(labels[:12])}"
        )
    spaced = {label: " ".join(re.sub(r"[_\s]+", " ", label).split()) or label for label in labels}
    for plain in (spaced, {label: label for label in labels}):
        words = {label: str(given.get(label, plain[label])) for label in labels}
        if len(set(words.values())) == len(words):
            break
    else:
        raise TaskError(
            "two labels have the same words", hint="give each label words of its own under `labels`"
        )
    inside = any(a != b and b.startswith(a) for a in words.values() for b in words.values())
    return {label: f"{said}." for label, said in words.items()} if inside else words


def _by_number(label: str) -> tuple[float, str]:
    return (float(label), label) if re.fullmatch(r"-?\d+(\.\d+)?", label) else (float("inf"), label)


def _title(column: str) -> str:
    """Write a column's name as the prompt shows it; a name that is no plain word could be read as a template."""
    words = " ".join(re.sub(r"[^\w ]|_", " ", column).split())
    return words[:1].upper() + words[1:] if words else "Text"


def make_generation_task(own: UserData, splits: Splits, bad: BadRows) -> Made:
    """Make a generation benchmark of ``prompt, completion``."""
    rows = _rows(
        own,
        splits,
        bad,
        lambda record: {key: _string(record, key) for key in ("prompt", "completion")},
    )
    pairs = [row for records in rows.values() for row in records]
    spaced = any(row["prompt"][-1:].isspace() or row["completion"][:1].isspace() for row in pairs)
    longest = max((len(row["completion"].encode()) for row in pairs), default=0)
    stops = (
        stop
        for stop in ("\n", "\n\n")
        if not any(stop in row["completion"].strip() for row in pairs)
    )
    config = {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "completion",
        "target_delimiter": "" if spaced else " ",
        "generation_kwargs": {
            "until": [stop] if (stop := next(stops, None)) else [],
            "max_gen_toks": min(1024, max(256, longest)),
            "do_sample": False,
        },
        "process_results": judge_same_text,
        "metric_list": _listed("exact_match"),
    }
    return config, rows


def judge_same_text(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Judge a completion: the same text, but for white space around it."""
    return {"exact_match": float(results[0].strip() == doc["completion"].strip())}


# What the fingerprint of a task knows of this judge, instead of the text of this whole file.
judge_same_text.fingerprint_parts = "same text, but for white space around it"  # type: ignore[attr-defined]


def make_corpus(own: UserData, splits: Splits, bad: BadRows) -> Made:
    """Make a corpus of ``text``."""
    rows = _rows(own, splits, bad, lambda record: {"text": _string(record, "text")})
    metrics = _listed("bits_per_byte", aggregation="bits_per_byte")
    metrics += _listed("byte_perplexity", "word_perplexity", aggregation="weighted_perplexity")
    config = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"}
    return {**config, "metric_list": metrics}, rows

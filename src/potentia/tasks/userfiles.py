"""A user's own benchmark or corpus: a file or a folder of split files, with no task definition to write.

Three schemas, told apart by their columns: ``question, choices, answer`` is a multiple-choice benchmark, ``prompt,
completion`` a generation benchmark, ``text`` a corpus. Each becomes a definition that lm-eval could have read.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TaskError
from potentia.tasks.data import SUFFIXES, find_splits, from_records, read_records

if TYPE_CHECKING:
    from datasets import Dataset

Records = list[dict[str, Any]]
Config = dict[str, Any]

# Usual names of split files, and the split each means.
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "eval": "test",
}
_SCHEMAS = "question, choices, answer | prompt, completion | text"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read(path: Path) -> tuple[Config, dict[str, Dataset]]:
    """Read a user's file or folder: (task definition, datasets by split)."""
    splits = _folder(path) if path.is_dir() else {"train": _file(path)}
    columns = [set().union(*(record.keys() for record in records)) for _, records in splits.values()]
    make = _schema(set.intersection(*columns), path)
    config, rows = make({split: records for split, (_, records) in splits.items()}, _places(splits))
    config = {"task": path.stem if path.is_file() else path.name, **config}
    for split, key in (("train", "training_split"), ("validation", "validation_split"), ("test", "test_split")):
        config[key] = split if split in rows else None
    data = {split: from_records(records, where=str(splits[split][0])) for split, records in rows.items()}
    return config, data


def _places(splits: Mapping[str, tuple[Path, Records]]) -> dict[str, str]:
    return {split: str(place) for split, (place, _) in splits.items()}


def _folder(folder: Path) -> dict[str, tuple[Path, Records]]:
    files = {name: file for name, file in find_splits(folder).items() if name.lower() in _SPLIT_NAMES}
    texts = {file.stem: file for file in sorted(folder.glob("*.txt")) if file.stem.lower() in _SPLIT_NAMES}
    found: dict[str, tuple[Path, Records]] = {}
    for name, file in {**texts, **files}.items():
        split = _SPLIT_NAMES[name.lower()]
        if split in found:
            raise TaskError(
                f"two files for the split {split}: {found[split][0].name} and {file.name}", where=str(folder)
            )
        found[split] = (file, _file(file)[1])
    if found:
        return found
    if loose := sorted(folder.glob("*.txt")):  # a folder of texts: each file is one document
        return {"train": (folder, [{"text": _text(file)} for file in loose])}
    raise TaskError(
        "no split file in this folder",
        where=str(folder),
        hint=f"name them train, validation, test with one of the suffixes {', '.join(SUFFIXES)}, .txt",
    )


def _file(file: Path) -> tuple[Path, Records]:
    if file.suffix == ".txt":
        documents = [part.strip("\n") for part in re.split(r"\n[ \t]*\n", _text(file)) if part.strip()]
        records: Records = [{"text": document} for document in documents]
    elif file.suffix in SUFFIXES:
        records = read_records(file)
    else:
        raise TaskError(
            f"unknown kind of file {file.suffix or file.name!r}",
            where=str(file),
            hint=f"one of {', '.join((*SUFFIXES, '.txt', '.yaml'))}",
        )
    if not records:
        raise TaskError("the file holds no document", where=str(file))
    return file, records


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"not UTF-8 text: {error.reason} at byte {error.start}", where=str(file)) from error


Make = Callable[[Mapping[str, Records], Mapping[str, str]], tuple[Config, dict[str, Records]]]


def _schema(columns: set[str], path: Path) -> Make:
    if {"question", "choices", "answer"} <= columns:
        return _choice
    if {"prompt", "completion"} <= columns:
        return _generation
    if "text" in columns:
        return _corpus
    raise TaskError(
        f"the columns {', '.join(sorted(columns)) or 'none'} make no benchmark{_missing(columns)}",
        where=str(path),
        hint=f"one of: {_SCHEMAS}",
    )


def _missing(columns: set[str]) -> str:
    for wanted in ({"question", "choices", "answer"}, {"prompt", "completion"}):
        if columns & wanted:
            return f": missing {', '.join(sorted(wanted - columns))}"
    return ""


def _choice(splits: Mapping[str, Records], places: Mapping[str, str]) -> tuple[Config, dict[str, Records]]:
    rows = {
        split: [_choice_row(record, f"{places[split]}, document {n}") for n, record in enumerate(records, start=1)]
        for split, records in splits.items()
    }
    everything = [row for records in rows.values() for row in records]
    # One reading for the whole file: with choices 1, 2, 3 the answer "1" may be a text or a number.
    readings = [how for how in _READINGS if all(how(row["answer"], row["choices"]) is not None for row in everything)]
    for split, records in rows.items():
        for n, row in enumerate(records, start=1):
            row["answer"] = _answer(row, (readings or _READINGS), f"{places[split]}, document {n}")
    config = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [_mean("acc"), _mean("acc_norm")],
    }
    return config, rows


def _choice_row(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    question, choices = _string(record, "question", where), _listed(record.get("choices"), where)
    if len(choices) < 2:
        raise TaskError(f"{len(choices)} choice(s); a question needs two or more", where=where)
    if blank := [place for place, choice in enumerate(choices) if not choice.strip()]:
        raise TaskError(f"choice {blank[0]} is empty", where=where)
    return {"question": question, "choices": choices, "answer": record.get("answer")}


def _as_text(answer: Any, choices: Sequence[str]) -> int | None:
    return choices.index(answer) if isinstance(answer, str) and answer in choices else None


def _as_number(answer: Any, choices: Sequence[str]) -> int | None:
    number = _whole(answer)
    return number if number is not None and 0 <= number < len(choices) else None


def _as_letter(answer: Any, choices: Sequence[str]) -> int | None:
    letter = answer.strip().upper() if isinstance(answer, str) else ""
    return _LETTERS.index(letter) if letter and letter in set(_LETTERS[: len(choices)]) else None


def _whole(answer: Any) -> int | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", answer):
        return int(answer)
    return int(answer) if isinstance(answer, (int, float)) and answer == answer // 1 and abs(answer) < 1e9 else None


_READINGS = (_as_text, _as_number, _as_letter)


def _answer(row: Mapping[str, Any], readings: Sequence[Callable[..., int | None]], where: str) -> int:
    """Return the place of the right choice, by the first reading of the answer that fits."""
    answer, choices = row["answer"], row["choices"]
    for reading in readings:
        place = reading(answer, choices)
        if place is not None:
            return place
    number = _whole(answer)
    if number is not None:
        raise TaskError(
            f"the answer {number} is out of range: there are {len(choices)} choices",
            where=where,
            hint=f"answers count from 0 to {len(choices) - 1}",
        )
    raise TaskError(
        f"the answer {answer!r} is none of the choices",
        where=where,
        hint="give the choice's text, its number from 0, or its letter",
    )


def _listed(value: Any, where: str) -> list[str]:
    if isinstance(value, str):  # a cell of a csv
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(value)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        if isinstance(value, str) and "|" in value:
            value = [part.strip() for part in value.split("|")]
    if not isinstance(value, (list, tuple)):
        raise TaskError(
            f"choices is {value!r}, not a list",
            where=where,
            hint='write ["first", "second"], in a csv also first|second',
        )
    return [str(choice) for choice in value]


def _generation(splits: Mapping[str, Records], places: Mapping[str, str]) -> tuple[Config, dict[str, Records]]:
    rows: dict[str, Records] = {}
    for split, records in splits.items():
        rows[split] = [
            {key: _string(record, key, f"{places[split]}, document {n}") for key in ("prompt", "completion")}
            for n, record in enumerate(records, start=1)
        ]
    pairs = [row for records in rows.values() for row in records]
    spaced = any(row["prompt"][-1:].isspace() or row["completion"][:1].isspace() for row in pairs)
    stops = ["\n", "\n\n"]
    longest = max(len(row["completion"].encode()) for row in pairs)
    config = {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "completion",
        "target_delimiter": "" if spaced else " ",
        "generation_kwargs": {
            "until": next(([s] for s in stops if not any(s in row["completion"].strip() for row in pairs)), []),
            "max_gen_toks": min(1024, max(256, longest)),
            "do_sample": False,
        },
        "process_results": same_text,
        "metric_list": [_mean("exact_match")],
    }
    return config, rows


def same_text(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Judge a completion: the same text, but for white space around it."""
    return {"exact_match": float(results[0].strip() == doc["completion"].strip())}


def _corpus(splits: Mapping[str, Records], places: Mapping[str, str]) -> tuple[Config, dict[str, Records]]:
    rows = {
        split: [{"text": _string(r, "text", f"{places[split]}, document {n}")} for n, r in enumerate(records, start=1)]
        for split, records in splits.items()
    }
    names = ("bits_per_byte", "byte_perplexity", "word_perplexity")
    config = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {
                "metric": name,
                "aggregation": "bits_per_byte" if name == "bits_per_byte" else "weighted_perplexity",
                "higher_is_better": False,
            }
            for name in names
        ],
    }
    return config, rows


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def _string(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TaskError(f"{key} is {'missing' if value is None else repr(value)}, not text", where=where)
    text = str(value)
    if not text.strip():
        raise TaskError(f"{key} is empty", where=where)
    return text

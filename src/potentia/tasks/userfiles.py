"""A user's own benchmark or corpus: a file or a folder of split files, with no task definition to write.

Three schemas, told apart by their columns: ``question, choices, answer`` is a multiple-choice benchmark, ``prompt,
completion`` a generation benchmark, ``text`` a corpus. Each becomes a definition that lm-eval could have read.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TaskError
from potentia.tasks.data import SUFFIXES, find_splits, from_records, load_splits, read_records

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
_FIELDS = ("question", "choices", "answer", "prompt", "completion", "text")
ENOUGH = 5  # documents, to tell answers that count from 1 from a slip
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class OwnData:
    """Where a user's documents are, which of their columns is what, and how a question is put.

    ``columns`` names the user's column of a field (``{"answer": "label"}``); ``choices`` may have several, one each.
    ``prompt`` is a template over the columns that takes the place of the usual question.
    """

    files: tuple[str, ...] = ()
    dataset: str | None = None
    subset: str | None = None
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    prompt: str | None = None

    @property
    def label(self) -> str:
        """What the benchmark is called where nobody names it."""
        if self.dataset is not None:
            return self.dataset.rpartition("/")[2]
        path = Path(self.files[0])
        return path.stem if path.is_file() else path.name

    def documents_in_one_split(self) -> int | None:
        """Count the documents of files that all are one split, which is then divided; None where there are more."""
        if self.dataset is not None:
            return None
        splits = _files([Path(file).expanduser() for file in self.files])
        return sum(len(records) for _, records in splits.values()) if len(splits) == 1 else None


def read(own: OwnData, data_dir: Path | None = None) -> tuple[Config, dict[str, Dataset]]:
    """Read a user's files or dataset: (task definition, datasets by split)."""
    splits = _dataset(own, data_dir) if own.dataset is not None else _files([Path(f).expanduser() for f in own.files])
    if own.columns:
        splits = {split: (place, _mapped(records, own, place)) for split, (place, records) in splits.items()}
    columns = [set().union(*(record.keys() for record in records)) for _, records in splits.values()]
    make = _schema(set.intersection(*columns), own)
    config, rows = make({split: records for split, (_, records) in splits.items()}, _places(splits))
    if own.prompt is not None:
        if make is _corpus:
            raise TaskError("a text to predict has no prompt", hint="leave out `prompt`")
        config |= {"doc_to_text": own.prompt}
        rows = {split: _with_columns(made, splits[split][1]) for split, made in rows.items()}
    config = {"task": own.label, **config}
    for split, key in (("train", "training_split"), ("validation", "validation_split"), ("test", "test_split")):
        config[key] = split if split in rows else None
    data = {split: from_records(records, where=str(splits[split][0])) for split, records in rows.items()}
    return config, data


# Names that columns often have, by the field they stand for.
_USUAL = {
    "question": ("question", "query", "q", "stem", "problem", "instruction"),
    "choices": ("choices", "options", "candidates", "answers"),
    "answer": ("answer", "label", "gold", "correct", "target", "answerkey", "answer_index", "correct_answer"),
    "prompt": ("prompt", "input", "source", "question", "instruction", "query"),
    "completion": ("completion", "output", "response", "target", "answer", "reference"),
    "text": ("text", "content", "document", "body"),
}


def guess_columns(own: OwnData, data_dir: Path | None = None) -> dict[str, str]:
    """Guess which columns stand for which fields, by the names that people give them; empty where they fit as they are.

    Raises where no kind of benchmark can be made of them.
    """
    splits = _dataset(own, data_dir) if own.dataset is not None else _files([Path(f).expanduser() for f in own.files])
    columns = set().union(*(record.keys() for _, records in splits.values() for record in records))
    lower = {name.lower(): name for name in sorted(columns)}
    for kind in (("question", "choices", "answer"), ("prompt", "completion"), ("text",)):
        if set(kind) <= columns:
            return {}
        found: dict[str, str] = {}
        for name in kind:
            usual = (lower[u] for u in _USUAL[name] if u in lower and lower[u] not in found.values())
            if (column := next(usual, None)) is not None:
                found[name] = column
        if len(found) == len(kind):
            return {name: column for name, column in found.items() if name != column}
    _schema(columns, own)
    return {}


def _places(splits: Mapping[str, tuple[Path, Records]]) -> dict[str, str]:
    return {split: str(place) for split, (place, _) in splits.items()}


def _dataset(own: OwnData, data_dir: Path | None) -> dict[str, tuple[Path, Records]]:
    """Read a dataset of the hub (or of the folder of datasets), whose splits have the usual names."""
    config = {"task": own.label, "dataset_path": own.dataset, "dataset_name": own.subset}
    found: dict[str, tuple[Path, Records]] = {}
    loaded = load_splits(config, data_dir)
    for name, data in loaded.items():
        split = _SPLIT_NAMES.get(str(name).lower())
        if split is not None:
            found.setdefault(split, (Path(f"{own.dataset} ({name})"), list(data.to_list())))
    if not found:
        raise TaskError(
            f"the dataset has no split of a usual name; it has: {', '.join(map(str, loaded))}", where=str(own.dataset)
        )
    return found


def _files(paths: Sequence[Path]) -> dict[str, tuple[Path, Records]]:
    """Read one file or folder, or several files: the splits that they are named after, or all of them as one."""
    for path in paths:
        if not path.exists():
            raise TaskError(f"there is no file or folder {path}", hint="check the path")
    if len(paths) == 1:
        return _folder(paths[0]) if paths[0].is_dir() else {"train": _file(paths[0])}
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise TaskError("give one folder, or several files", where=str(folders[0]))
    if all(path.stem.lower() in _SPLIT_NAMES for path in paths):
        named = [(_SPLIT_NAMES[path.stem.lower()], _file(path)) for path in paths]
        if len({split for split, _ in named}) == len(named):
            return dict(named)
    joined = [record for path in paths for record in _file(path)[1]]
    return {"train": (paths[0].parent, joined)}


def _mapped(records: Records, own: OwnData, place: Path) -> Records:
    """Give every record the fields that the user's columns stand for."""
    known = set().union(*(record.keys() for record in records))
    for name, column in own.columns.items():
        if name not in _FIELDS:
            raise TaskError(f"no field {name!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}")
        for one in [column] if isinstance(column, str) else column:
            if one not in known:
                there = ", ".join(sorted(known))
                raise TaskError(f"no column {one!r} for {name}", where=str(place), hint=f"there are: {there}")
    return [{**record, **{name: _taken(record, c) for name, c in own.columns.items()}} for record in records]


def _taken(record: Mapping[str, Any], column: str | Sequence[str]) -> Any:
    if isinstance(column, str):
        return record.get(column)
    return [str(record[one]) for one in column if record.get(one) not in (None, "")]


def _with_columns(rows: Records, records: Records) -> Records:
    """Add the user's own columns, which a prompt may name, as text."""
    return [
        {**{k: "" if v is None else str(v) for k, v in record.items() if not isinstance(v, (list, dict))}, **row}
        for row, record in zip(rows, records, strict=True)
    ]


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
    if several := sorted(find_splits(folder).values()):  # files of documents under other names: all of them as one
        return {"train": (folder, [record for file in several for record in _file(file)[1]])}
    raise TaskError(
        "no file of documents in this folder",
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


def _schema(columns: set[str], own: OwnData) -> Make:
    if {"question", "choices", "answer"} <= columns:
        return _choice
    if {"prompt", "completion"} <= columns:
        return _generation
    if "text" in columns:
        return _corpus
    raise TaskError(
        f"the columns {', '.join(sorted(columns)) or 'none'} make no benchmark{_missing(columns)}",
        where=own.dataset or ", ".join(own.files),
        hint=f"one of: {_SCHEMAS}; say which column is what in the task's entry: columns: {{question: COLUMN, …}}",
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
    some = _READINGS if len(everything) >= ENOUGH else _READINGS[:3]
    readings = [how for how in some if all(how(row["answer"], row["choices"]) is not None for row in everything)]
    for split, records in rows.items():
        for n, row in enumerate(records, start=1):
            row["answer"] = _answer(row, (readings or _READINGS[:3]), f"{places[split]}, document {n}")
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


def _as_ordinal(answer: Any, choices: Sequence[str]) -> int | None:
    number = _whole(answer)
    return number - 1 if number is not None and 1 <= number <= len(choices) else None


# Numbers count from 1 where counting from 0 does not fit all.
_READINGS = (_as_text, _as_number, _as_letter, _as_ordinal)


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

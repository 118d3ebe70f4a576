"""A user's own benchmark or corpus: a file or a folder of split files, with no task definition to write.

Told apart by their columns: ``question, choices, answer`` is a multiple-choice benchmark, ``text, label`` (or two
texts) a classification, ``prompt, completion`` a generation benchmark, ``text`` alone a corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TaskError
from potentia.tasks import kinds
from potentia.tasks.data import SUFFIXES, Bad, Record, find_splits, from_records, load_splits, read_records, read_text

if TYPE_CHECKING:
    from datasets import Dataset

Records = list[Record]
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
_SCHEMAS = "question, choices, answer | text, label | prompt, completion | text"
_FIELDS = ("question", "choices", "answer", "prompt", "completion", "text", "text_pair", "label")
SHOWN = 20  # bad rows that an error lists


@dataclass(frozen=True)
class OwnData:
    """Where a user's documents are, which of their columns is what, and how a question is put.

    ``columns`` names the user's column of a field (``{"answer": "label"}``); ``choices`` may have several, one each.
    ``prompt`` is a template over the columns that takes the place of the usual question, ``labels`` the words for the
    labels of a classification.
    """

    files: tuple[str, ...] = ()
    dataset: str | None = None
    subset: str | None = None
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    prompt: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    drop_bad_rows: bool = False

    @property
    def label(self) -> str:
        """What the benchmark is called where nobody names it."""
        if self.dataset is not None:
            return self.dataset.rpartition("/")[2]
        path = Path(self.files[0])
        return path.stem if path.is_file() else path.name

    def column(self, name: str) -> str:
        """Return the user's column of a field."""
        column = self.columns.get(name, name)
        return column if isinstance(column, str) else name

    def documents_in_one_split(self) -> int | None:
        """Count the documents of files that all are one split, which is then divided; None where there are more."""
        if self.dataset is not None:
            return None
        splits = _splits(self, None, [])
        return sum(map(len, splits.values())) if len(splits) == 1 else None


@dataclass(frozen=True)
class OwnTask:
    """What a user's data became: a definition, its documents by split, and what was inferred or left out."""

    config: Config
    data: dict[str, Dataset]
    columns: dict[str, str | Sequence[str]] = field(default_factory=dict)  # the user's column of each field
    notes: tuple[str, ...] = ()


def read(own: OwnData, data_dir: Path | None = None) -> OwnTask:
    """Read a user's files or dataset. Rows that cannot be used are told all at once, or dropped if asked for."""
    bad: Bad = []
    splits = _splits(own, data_dir, bad)
    if bad and not any(splits.values()):
        raise bad_rows(bad, len(bad))
    own, make = _reading(own, splits)
    splits = {split: map_columns(records, own.columns) for split, records in splits.items()}
    if own.prompt is not None and make is kinds.corpus:
        raise TaskError("a text to predict has no prompt", hint="leave out `prompt`")
    config, rows = make(own, splits, bad)
    total = sum(map(len, rows.values())) + len(bad)
    if bad and not (own.drop_bad_rows and any(rows.values())):
        raise bad_rows(bad, total)
    if own.prompt is not None:
        config |= {"doc_to_text": own.prompt}
    rows = {split: records for split, records in rows.items() if records}
    config = {"task": own.label, **config}
    for split, key in (("train", "training_split"), ("validation", "validation_split"), ("test", "test_split")):
        config[key] = split if split in rows else None
    data = {split: from_records(records, where=own.label) for split, records in rows.items()}
    return OwnTask(config, data, dict(own.columns), tuple(_notes(own, config, bad, total)))


def bad_rows(bad: Bad, total: int) -> TaskError:
    """Say which rows cannot be used, all in one error."""
    if len(bad) == 1:
        return bad[0]
    lines = [f"  {error.where}: {error.message}" for error in bad[:SHOWN]]
    lines += [f"  … and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    hint = "mend them, or leave them out: --drop-bad-rows (in a study file: drop_bad_rows: true)"
    return TaskError(f"{len(bad)} of {total} rows cannot be used\n" + "\n".join(lines), hint=hint)


def _notes(own: OwnData, config: Config, bad: Bad, total: int) -> Iterator[str]:
    if bad:
        places = ", ".join((error.where or "").rpartition(", ")[2] for error in bad[:5]) + (" …" if bad[5:] else "")
        yield f"{len(bad)} of {total} rows cannot be used and are left out ({places}; first: {bad[0].message})."
    if labels := config.get("labels"):
        said = ", ".join(raw if raw == words else f'{raw} → "{words}"' for raw, words in list(labels.items())[:12])
        more = " …" if len(labels) > 12 else ""
        yield f"Classification into {len(labels)} labels of the column {own.column('label')}: {said}{more}."
        if all(re.fullmatch(r"-?\d+(\.0)?", words.rstrip(".")) for words in labels.values()):
            yield "The labels are numbers, which tell a model little: give words under `labels: {0: …, 1: …}`."


# Names that columns often have, by the field they stand for.
_USUAL = {
    "question": ("question", "query", "q", "stem", "problem", "instruction"),
    "choices": ("choices", "options", "candidates", "answers"),
    "answer": ("answer", "label", "gold", "correct", "target", "answerkey", "answer_index", "correct_answer"),
    "prompt": ("prompt", "input", "source", "question", "instruction", "query"),
    "completion": ("completion", "output", "response", "target", "answer", "reference"),
    "text": ("text", "content", "document", "body", "sentence", "message", "ticket", "review", "comment", "utterance"),
    "label": ("label", "category", "class", "intent", "topic", "sentiment", "tag", "target", "labels"),
}
_PAIRS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2"),
    ("sentence_a", "sentence_b"), ("text_a", "text_b"), ("text", "text_pair"),
)  # fmt: skip
_KINDS: tuple[tuple[tuple[str, ...], kinds.Make], ...] = (
    (("question", "choices", "answer"), kinds.choice),
    (("prompt", "completion"), kinds.generation),
    (("text", "label"), kinds.labelled),
    (("text",), kinds.corpus),
)


def guess_columns(own: OwnData, data_dir: Path | None = None) -> dict[str, str]:
    """Guess which columns stand for which fields, by the names that people give them; empty where they fit as they are.

    Raises where no kind of benchmark can be made of them.
    """
    splits = _splits(own, data_dir, [])
    columns = set().union(*(record.keys() for records in splits.values() for record in records))
    for fields, make in _KINDS:
        if set(fields) <= columns and make is not kinds.corpus:
            return {}
        found = _pair(columns) if make is kinds.labelled else {}
        found = found | _named(columns, [name for name in fields if name not in found], taken=found.values())
        if set(fields) <= set(found):
            return {name: column for name, column in found.items() if name != column}
    _reading(own, splits)
    return {}


def _named(columns: set[str], fields: Sequence[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the columns of usual names for these fields."""
    lower = {name.lower(): name for name in sorted(columns)}
    found: dict[str, str] = {}
    for name in fields:
        usual = (lower[u] for u in _USUAL[name] if u in lower and lower[u] not in (*found.values(), *taken))
        if (column := next(usual, None)) is not None:
            found[name] = column
    return found


def _pair(columns: set[str]) -> dict[str, str]:
    lower = {name.lower(): name for name in columns}
    both = next(((a, b) for a, b in _PAIRS if a in lower and b in lower), None)
    return {"text": lower[both[0]], "text_pair": lower[both[1]]} if both else {}


def _reading(own: OwnData, splits: Mapping[str, Records]) -> tuple[OwnData, kinds.Make]:
    """Decide what the columns make: a kind of benchmark, and for labelled texts which column is the label."""
    if odd := next((name for name in own.columns if name not in _FIELDS), None):
        raise TaskError(f"no field {odd!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}")
    columns = set.intersection(*(set().union(*(r.keys() for r in records)) for records in splits.values() if records))
    there = columns | set(own.columns)
    for fields, make in _KINDS[:2]:
        if set(fields) <= there:
            return own, make
    if "label" in own.columns or "text" not in own.columns:
        found = {**_pair(columns), **own.columns}
        found |= _named(columns, [f for f in ("text", "label") if f not in found], taken=map(str, found.values()))
        if {"text", "label"} <= set(found):
            return replace(own, columns=found), kinds.labelled
    if "text" in there:
        everything = [record for records in splits.values() for record in records]
        if "text" not in own.columns and (column := kinds.few_values(everything, "text")):
            raise TaskError(
                f"is the column {column} a label? It has few distinct values, so this may be no corpus",
                where=own.dataset or ", ".join(own.files),
                hint=f"say so in the task's entry: columns: {{text: text, label: {column}}} (--map label={column});"
                " for a corpus columns: {text: text} (--map text=text)",
            )
        return own, kinds.corpus
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


def _splits(own: OwnData, data_dir: Path | None, bad: Bad) -> dict[str, Records]:
    """Read the records of every split, from the hub (or the folder of datasets) or from files."""
    if own.dataset is None:
        return _files([Path(file).expanduser() for file in own.files], bad)
    config = {"task": own.label, "dataset_path": own.dataset, "dataset_name": own.subset}
    found: dict[str, Records] = {}
    loaded = load_splits(config, data_dir)
    for name, data in loaded.items():
        split = _SPLIT_NAMES.get(str(name).lower())
        if split is not None:
            rows = enumerate(_with_names(data), start=1)
            found.setdefault(split, [Record.at(f"{own.dataset} ({name}), row {n}", row) for n, row in rows])
    if not found:
        raise TaskError(
            f"the dataset has no split of a usual name; it has: {', '.join(map(str, loaded))}", where=str(own.dataset)
        )
    return found


def _with_names(data: Any) -> Iterator[dict[str, Any]]:
    """Give the rows of a dataset, with the names of its classes where it has them."""
    names = {column: feature.names for column, feature in data.features.items() if hasattr(feature, "names")}
    for row in data.to_list():
        named = {c: known[row[c]] for c, known in names.items() if isinstance(row[c], int) and 0 <= row[c] < len(known)}
        yield {**row, **named}


def _files(paths: Sequence[Path], bad: Bad) -> dict[str, Records]:
    """Read one file or folder, or several files: the splits that they are named after, or all of them as one."""
    for path in paths:
        if not path.exists():
            raise TaskError(f"there is no file or folder {path}", hint="check the path")
    if len(paths) == 1:
        return _folder(paths[0], bad) if paths[0].is_dir() else {"train": file_records(paths[0], bad)}
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise TaskError("give one folder, or several files", where=str(folders[0]))
    if all(path.stem.lower() in _SPLIT_NAMES for path in paths):
        splits = [_SPLIT_NAMES[path.stem.lower()] for path in paths]
        if len(set(splits)) == len(splits):
            return {split: file_records(path, bad) for split, path in zip(splits, paths, strict=True)}
    return {"train": [record for path in paths for record in file_records(path, bad)]}


def map_columns(records: Records, columns: Mapping[str, str | Sequence[str]]) -> Records:
    """Give every record the fields that the user's columns stand for."""
    known = set().union(*(record.keys() for record in records))
    for name, column in columns.items():
        for one in [column] if isinstance(column, str) else column:
            if one not in known:
                there = ", ".join(sorted(known))
                place = records[0].place.rpartition(", ")[0] if records else ""
                raise TaskError(f"no column {one!r} for {name}", where=place, hint=f"there are: {there}")
    return [Record.at(r.place, {**r, **{name: _taken(r, c) for name, c in columns.items()}}) for r in records]


def _taken(record: Mapping[str, Any], column: str | Sequence[str]) -> Any:
    if isinstance(column, str):
        return record.get(column)
    return [str(record[one]) for one in column if record.get(one) not in (None, "")]


def _folder(folder: Path, bad: Bad) -> dict[str, Records]:
    files = {name: file for name, file in find_splits(folder).items() if name.lower() in _SPLIT_NAMES}
    texts = {file.stem: file for file in sorted(folder.glob("*.txt")) if file.stem.lower() in _SPLIT_NAMES}
    found: dict[str, Path] = {}
    for name, file in {**texts, **files}.items():
        split = _SPLIT_NAMES[name.lower()]
        if split in found:
            told = f"two files for the split {split}: {found[split].name} and {file.name}"
            raise TaskError(told, where=str(folder))
        found[split] = file
    if found:
        return {split: file_records(file, bad) for split, file in found.items()}
    if loose := sorted(folder.glob("*.txt")):  # a folder of texts: each file is one document
        return {"train": [Record.at(str(file), {"text": read_text(file)}) for file in loose]}
    if several := sorted(find_splits(folder).values()):  # files of documents under other names: all of them as one
        return {"train": [record for file in several for record in file_records(file, bad)]}
    raise TaskError(
        "no file of documents in this folder",
        where=str(folder),
        hint=f"name them train, validation, test with one of the suffixes {', '.join(SUFFIXES)}, .txt",
    )


def file_records(file: Path, bad: Bad) -> Records:
    """Read the rows of one file; those that are no rows go to ``bad``."""
    if file.suffix == ".txt":
        parts = [part.strip("\n") for part in re.split(r"\n[ \t]*\n", read_text(file)) if part.strip()]
        records = [Record.at(f"{file}, paragraph {n}", {"text": part}) for n, part in enumerate(parts, start=1)]
    elif file.suffix in SUFFIXES:
        records = read_records(file, bad)
    else:
        raise TaskError(
            f"unknown kind of file {file.suffix or file.name!r}",
            where=str(file),
            hint=f"one of {', '.join((*SUFFIXES, '.txt', '.yaml'))}",
        )
    if not records and not bad:
        raise TaskError("the file holds no document", where=str(file))
    return records

"""Documents: a user's files row by row, and the public splits of a benchmark from a folder or from the hub."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia import limited
from potentia.errors import TaskError, first_line
from potentia.extras import Extra, require_extra
from potentia.files import (
    CODE,
    LARGEST_DATA,
    MOST_VALUES,
    check_plain_file,
    decode_file,
    is_allowed,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

LIMITED = "limited"  # the key of a definition from a user's file: its templates are rendered in a process of its own
WINDOWS = "cp1252"  # the encoding of files that are no Unicode, as Excel saves them
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_PACKED_STARTS = (
    b"\x1f\x8b",
    b"PK",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
    b"7z",
    b"Rar!",
)
# Usual names of splits, and the split each means.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "eval"), "test"),
}


def as_list(value: Any) -> list[Any]:
    """Return what may be one value or several as a list; none of None."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


# --- a user's files --------------------------------------------------------------------------------------------------


class Record(dict[str, Any]):
    """A row of a user's file that knows where it stands in it."""

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.place = place


BadRows = list[TaskError]  # rows that cannot be used: each says where it is and why
Records = list[Record]


@dataclass
class ReadingLog:
    """What happened while a user's files were read: rows that cannot be used, and what the user should know."""

    bad: BadRows = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class UserData:
    """Where a user's documents are, which of their columns is what, and how a question is put.

    ``columns`` names the user's column of a field (``{"answer": "label"}``); ``choices`` may have several, one each.
    ``prompt`` is a template over the columns that takes the place of the usual question, ``labels`` the words for the
    labels of a classification. ``merge_spellings`` takes labels that differ by case or blanks for one, ``metric`` names
    what written answers are scored by.
    """

    files: tuple[str, ...] = ()
    dataset: str | None = None
    subset: str | None = None
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    prompt: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    drop_bad_rows: bool = False
    merge_spellings: bool = True
    metric: str | None = None
    cluster: str | None = None  # the column that examples about one passage share

    @property
    def label(self) -> str:
        """What the benchmark is called where nobody names it."""
        if self.dataset is not None:
            return self.dataset.rpartition("/")[2]
        path = Path(self.files[0])
        return path.stem if path.is_file() else path.name

    @property
    def where(self) -> str:
        """Where its documents are, for an error."""
        return self.dataset or ", ".join(self.files)

    def column(self, name: str) -> str:
        """Return the user's column of a field."""
        column = self.columns.get(name, name)
        return column if isinstance(column, str) else name

    def documents_in_one_split(self) -> int | None:
        """Count the documents of files that all are one split, which is then divided; None where there are more."""
        if self.dataset is not None:
            return None
        splits = self.read(None, ReadingLog())
        if len(splits) != 1:
            return None
        return sum(map(len, splits.values()))

    def read(self, data_dir: Path | None, log: ReadingLog) -> dict[str, Records]:
        """Read the records of every split, from files or from the hub (or the folder of datasets)."""
        if self.dataset is None:
            return read_files([Path(file).expanduser() for file in self.files], log)
        definition = {"task": self.label, "dataset_path": self.dataset, "dataset_name": self.subset}
        loaded = load_splits(definition, data_dir)
        records_by_split: dict[str, Records] = {}
        for name, data in loaded.items():
            split = SPLIT_NAMES.get(str(name).lower())
            if split is None or split in records_by_split:
                continue
            records = []
            for number, row in enumerate(_rows_with_class_names(data), start=1):
                records.append(Record(f"{self.dataset} ({name}), row {number}", row))
            records_by_split[split] = records
        if not records_by_split:
            names = ", ".join(map(str, loaded))
            raise TaskError(
                f"the dataset has no split of a usual name; it has: {names}", where=self.dataset
            )
        return records_by_split


def _rows_with_class_names(data: Dataset) -> Iterator[dict[str, Any]]:
    """Give the rows of a dataset, with the names of its classes where it has them."""
    class_names: dict[str, list[str]] = {}
    for column, feature in data.features.items():
        if hasattr(feature, "names"):
            class_names[column] = feature.names
    for row in data.to_list():
        for column, names in class_names.items():
            number = row[column]
            if isinstance(number, int) and 0 <= number < len(names):
                row[column] = names[number]
        yield row


def read_files(paths: Sequence[Path], log: ReadingLog) -> dict[str, Records]:
    """Read one file or folder, or several files: the splits that they are named after, or all of them as one."""
    for path in paths:
        if not path.exists():
            raise TaskError(f"there is no file or folder {path}", hint="check the path")
    if len(paths) == 1 and paths[0].is_dir():
        return _read_folder(paths[0], log)
    for path in paths:
        if path.is_dir():
            raise TaskError("give one folder, or several files", where=str(path))
    path_by_split = {SPLIT_NAMES.get(path.stem.lower(), ""): path for path in paths}
    are_splits = "" not in path_by_split and len(path_by_split) == len(paths)
    if len(paths) > 1 and are_splits:
        return {split: read_records(path, log) for split, path in path_by_split.items()}
    return {"train": _read_all(paths, log)}


def _read_all(paths: Sequence[Path], log: ReadingLog) -> Records:
    """Read the rows of several files as one split."""
    records: Records = []
    for path in paths:
        records += read_records(path, log)
    return records


def _read_folder(folder: Path, log: ReadingLog) -> dict[str, Records]:
    """Read a folder of split files, of texts, or of files that are one split together."""
    texts = sorted(folder.glob("*.txt"))
    files_by_name = find_splits(folder)
    path_by_split: dict[str, Path] = {}
    for name, file in {**{text.stem: text for text in texts}, **files_by_name}.items():
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            continue
        if split in path_by_split:
            raise TaskError(
                f"two files for the split {split}: {path_by_split[split].name} and {file.name}",
                where=str(folder),
            )
        path_by_split[split] = file
    if path_by_split:
        return {split: read_records(file, log) for split, file in path_by_split.items()}
    if texts:  # each file is one document
        return {
            "train": [Record(str(file), {"text": _read_document_text(file, log)}) for file in texts]
        }
    if files_by_name:  # files of documents under other names: all of them as one
        return {"train": _read_all(sorted(files_by_name.values()), log)}
    raise TaskError(
        "no file of documents in this folder",
        where=str(folder),
        hint=f"name them train, validation, test with one of the suffixes {', '.join(SUFFIXES)}, .txt",
    )


def read_records(file: Path, log: ReadingLog, *, skip_blank: bool = True) -> Records:
    """Read the rows of one file; those that are none go to the log, and so does the number of blank ones."""
    records = []
    blank_rows = 0
    for record in _walk_records(file, log):
        if skip_blank and _is_blank(record):
            blank_rows += 1
        else:
            records.append(record)
    if blank_rows:
        rows = "1 blank row" if blank_rows == 1 else f"{blank_rows} blank rows"
        log.notes.append(f"{file.name}: {rows} skipped.")
    if not records and not log.bad:
        raise TaskError("the file holds no document", where=str(file))
    return records


def _is_blank(record: Record) -> bool:
    """Whether no column of a row holds anything, as spreadsheets leave rows at the end."""
    return all(value is None or not str(value).strip() for value in record.values())


def _walk_records(file: Path, log: ReadingLog) -> Iterator[Record]:
    """Give the rows of one file, by its suffix."""
    if file.suffix not in (*SUFFIXES, ".txt"):
        raise TaskError(
            f"unknown kind of file {file.suffix or file.name!r}",
            where=str(file),
            hint=f"one of {', '.join((*SUFFIXES, '.txt', '.yaml'))}",
        )
    if file.suffix == ".parquet":
        for number, row in enumerate(read_dataset(file).to_list(), start=1):
            yield Record(f"{file}, row {number}", row)
        return
    text = _read_document_text(file, log)
    if file.suffix == ".csv":
        yield from _walk_csv(text, file, log)
    elif file.suffix == ".txt":
        yield from _walk_paragraphs(text, file)
    else:
        yield from _walk_json(text, file, log)


def _walk_paragraphs(text: str, file: Path) -> Iterator[Record]:
    """Give the paragraphs of a text, each one document."""
    paragraphs = [part for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
    for number, paragraph in enumerate(paragraphs, start=1):
        yield Record(f"{file}, paragraph {number}", {"text": paragraph.strip("\n")})


def _walk_json(text: str, file: Path, log: ReadingLog) -> Iterator[Record]:
    """Give the objects of a JSON file: one a line, or all of them in one list."""
    for where, value in _walk_json_values(text, file, log):
        if isinstance(value, dict):
            yield Record(where, value)
        else:
            problem = f"a {type(value).__name__}, not an object"
            log.bad.append(TaskError(problem, where=where, hint='write {"question": …}'))


def _walk_json_values(text: str, file: Path, log: ReadingLog) -> Iterator[tuple[str, Any]]:
    """Give the values of a JSON file, each with its place."""
    if file.suffix == ".json" and text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"not valid JSON: {first_line(error)}", where=str(file)) from error
        for number, value in enumerate(values):
            yield f"{file}, element {number}", value
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "each line holds one JSON object"
            log.bad.append(
                TaskError(f"not valid JSON: {first_line(error)}", where=where, hint=hint)
            )
        else:
            yield where, value


def _walk_csv(text: str, file: Path, log: ReadingLog) -> Iterator[Record]:
    """Give the rows of a CSV; the delimiter is what the header has most of."""
    header = text[: text.find("\n")]
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            # a quoted value may span lines
            line_breaks = sum(str(value).count("\n") for value in row.values())
            where = f"{file}, line {reader.line_num - line_breaks}"
            is_short = None in row or None in row.values()
            if is_short and any(value and str(value).strip() for value in row.values()):
                columns = len(reader.fieldnames or ())
                problem = f"{columns} columns are named, this row has another number"
                hint = "quote values that hold commas or line breaks"
                log.bad.append(TaskError(problem, where=where, hint=hint))
            else:
                yield Record(where, row)
    except csv.Error as error:
        raise TaskError(
            f"not valid CSV: {error}", where=f"{file}, line {reader.line_num}"
        ) from error


def _read_document_text(file: Path, log: ReadingLog) -> str:
    """Return the text of a file of documents; the log says where it was not UTF-8.

    A corpus may have any number of commas.
    """
    limit = LARGEST_DATA if file.suffix == ".txt" else MOST_VALUES
    # JSON is Unicode by definition
    fallback = WINDOWS if file.suffix in (".csv", ".txt") else None
    decoded = decode_file(file, TaskError, most=limit, fallback=fallback)
    if decoded.encoding == WINDOWS:
        example = re.search(r"\w*[^\x00-\x7f]\w*", decoded.text)
        shown = f"; it reads “{example[0]}”" if example else ""
        log.notes.append(
            f"{file.name} is not UTF-8 and was read as Windows-1252, as Excel saves it{shown}."
        )
    return decoded.text


# --- datasets --------------------------------------------------------------------------------------------------------


def read_dataset(file: Path, kind: str | None = None) -> Dataset:
    """Read one split file as a dataset in memory; no cache is written."""
    if (kind or file.suffix[1:]) != "parquet":
        log = ReadingLog()
        records = read_records(file, log)
        if log.bad:
            raise log.bad[0]
        return dataset_from_records(records, where=str(file))
    path = check_plain_file(file, LARGEST_DATA, TaskError).resolve()
    require_extra(Extra.PARQUET, "reading a Parquet file")
    try:
        table = limited.read_parquet(str(path))
    except limited.LimitError as error:
        raise TaskError(
            f"not a readable parquet file: {first_line(error)}", where=str(file)
        ) from error
    return _dataset_from_table(table, str(file))


def dataset_from_records(records: Sequence[Mapping[str, Any]], *, where: str) -> Dataset:
    """Make a dataset of plain records; the columns are the union of all keys."""
    import pyarrow as pa

    if not records:
        raise TaskError("the file holds no document", where=where)
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    try:
        table = pa.table(columns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the columns mix types: {first_line(error)}",
            where=where,
            hint="give each column one type in all rows",
        ) from error
    return _dataset_from_table(table, where)


def _dataset_from_table(table: pa.Table, where: str) -> Dataset:
    """Make a dataset in memory, named without hashing its content (datasets would pickle the whole table)."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    name = hashlib.sha256(where.encode()).hexdigest()[:16]
    return Dataset(InMemoryTable(table), fingerprint=name)


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the split files of a folder by name; the first known suffix counts."""
    files: dict[str, Path] = {}
    try:
        for suffix in SUFFIXES:
            for file in sorted(folder.glob(f"*{suffix}")):
                files.setdefault(file.stem, file)
    except OSError as error:
        raise TaskError(
            f"cannot look for data: {error.strerror}", where=str(folder)[:200]
        ) from error
    return files


def load_splits(definition: Mapping[str, Any], data_dir: Path | None) -> dict[str, Dataset]:
    """Load a task's public splits as lm-eval would have them.

    They lie in ``data_dir``, below ``<dataset_path with / as -->/<config or default>``, or come from the hub.
    """
    looked_in = ""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise TaskError(
                f"there is no folder {data_dir}",
                hint="give --data-dir the folder that holds the datasets",
            )
        name = str(definition.get("dataset_path") or "").replace("/", "--")
        folder = data_dir / name / str(definition.get("dataset_name") or "default")
        files = find_splits(folder)
        if files:
            return {split: read_dataset(file) for split, file in files.items()}
        looked_in = f" and not in {folder}"
    options = dict(definition.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    _refuse_code_readers(definition.get("dataset_path"))
    if definition.get(LIMITED):
        named = _read_named_files(definition, options)
        if named:
            return named
    return _load_from_hub(definition, options, looked_in)


def _load_from_hub(
    definition: Mapping[str, Any], options: Mapping[str, Any], looked_in: str
) -> dict[str, Dataset]:
    """Load splits with ``datasets``; ``looked_in`` says for an error where they are not."""
    import datasets

    path = definition.get("dataset_path")
    name = definition.get("dataset_name")
    make_dataset = definition.get("custom_dataset")
    try:
        with silence_libraries(), _no_waiting_for_hub():
            if callable(make_dataset):
                return dict(make_dataset(**(definition.get("metadata") or {}), **options))
            return dict(datasets.load_dataset(path, name, **options))
    except Exception as error:  # the hub's and datasets' errors have no common base
        task = definition.get("task") or "task"
        place = f"{path} ({name})" if name else f"{path}"
        raise TaskError(
            f"the data of {task} cannot be had from the hub{looked_in}: {place}: {first_line(error)}",
            hint="check the connection, or give --data-dir a folder laid out as <dataset>/<config>/<split>.parquet",
        ) from error


def _read_named_files(
    definition: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Dataset]:
    """Check the local files that a user's definition names, and read them where they are Parquet."""
    import datasets

    named = options.get("data_files") or {}
    patterns_by_split = named if isinstance(named, Mapping) else {"train": named}
    splits: dict[str, Dataset] = {}
    for split, patterns in patterns_by_split.items():
        files = _expand_patterns(patterns)
        for file in files:
            _refuse_packed(file)
        if definition.get("dataset_path") == "parquet" and files:
            parts = [read_dataset(file, "parquet") for file in files]
            splits[str(split)] = datasets.concatenate_datasets(parts)
    return splits


def _expand_patterns(patterns: Any) -> list[Path]:
    """Return the local files that patterns stand for; what has a protocol is left to ``datasets``."""
    from glob import glob

    files: list[Path] = []
    for pattern in map(str, as_list(patterns)):
        if "://" not in pattern:
            files += [Path(file) for file in sorted(glob(pattern, recursive=True))]  # noqa: PTH207
    return files


def _refuse_packed(file: Path) -> None:
    with check_plain_file(file, LARGEST_DATA, TaskError).open("rb") as stream:
        if stream.read(8).startswith(_PACKED_STARTS):
            raise TaskError(
                "a packed file could unpack to anything", where=str(file), hint="unpack it"
            )


# Readers of `datasets` that hold data alone; others unpickle, or ask a database.
_DATA_READERS = frozenset({"csv", "json", "parquet", "arrow", "text"})


def _refuse_code_readers(reader: Any) -> None:
    """Refuse a reader of ``datasets`` that can run code, unless code is allowed."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if not isinstance(reader, str | None):
        raise TaskError(f"dataset_path: {reader!r} is no name")
    runs_code = reader in _PACKAGED_DATASETS_MODULES and reader not in _DATA_READERS
    if runs_code and not is_allowed(CODE):
        raise TaskError(
            f"dataset_path: {reader} can run code", hint="write the data as json, csv or parquet"
        )


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Keep lm-eval's and datasets' messages and progress bars off the screen while a task is built."""
    import logging

    import datasets

    level = logging.root.manager.disable
    if level >= logging.WARNING:  # within another: setting it costs milliseconds
        yield
        return
    had_no_bars = datasets.are_progress_bars_disabled()
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.disable(level)
        if not had_no_bars:
            datasets.enable_progress_bars()


@contextmanager
def _no_waiting_for_hub() -> Iterator[None]:
    """Where the hub's name cannot be resolved, go to the local cache at once, not after half a minute of retries."""
    import datasets
    from huggingface_hub import constants

    hub_before = constants.HF_HUB_OFFLINE
    datasets_before = datasets.config.HF_HUB_OFFLINE
    if not _can_resolve(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = hub_before
        datasets.config.HF_HUB_OFFLINE = datasets_before


def _can_resolve(endpoint: str) -> bool:
    """Whether the name of a server can be resolved; with a proxy that is the proxy's business."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    try:
        return bool(getproxies() or socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except OSError:
        return False

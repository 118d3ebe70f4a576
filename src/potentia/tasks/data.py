"""Reading data: a user's files row by row, and the public splits of a benchmark from a folder or from the hub.

A *record* is one row of a user's file, with the place where it stands. ``ReadingLog`` collects what a user should know
of the reading. Files are limited in size, and no reader of them runs code (``potentia.files``).
"""

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

# Potentia's mark on a definition that anyone may have written: its templates are rendered within limits.
UNTRUSTED = "limited"
WINDOWS = "cp1252"  # the encoding of files that are not UTF-8, as Excel saves them
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
_DELIMITERS = ",;\t|"  # of a CSV
# a line above the header that tells Excel the delimiter
_EXCEL_DELIMITER = re.compile(r'"?sep=([,;\t|])"?\r?\n')
# the keys of a message of a conversation, as OpenAI and ShareGPT write it
_MESSAGE_KEYS = (frozenset({"role", "content"}), frozenset({"from", "value"}))
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
# the first bytes of gzip, zip, bzip2, xz, zstd, lz4, 7z and rar files
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
# Usual names of splits, and the split that each means.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "eval"), "test"),
}


def as_list(value: Any) -> list[Any]:
    """Return a value, or a list or tuple of values, as a list; None gives the empty list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


# --- a user's files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row stands: ``data.csv`` and ``line 7`` of it."""

    source: str = ""  # the file or dataset; empty for rows that were given in Python
    row: str = ""  # empty for a file that is one example

    def __str__(self) -> str:
        """Return the place as people read it: ``data.csv, line 7``."""
        return ", ".join(part for part in (self.source, self.row) if part)

    @property
    def row_or_file(self) -> str:
        """What tells the row from others of its source: ``line 7``, or the name of a file that is one example."""
        return self.row or Path(self.source).name


class Record(dict[str, Any]):
    """One row of a user's file, with the place where it stands."""

    def __init__(self, place: RowPlace, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.place = place


class RowError(TaskError):
    """A row that cannot be used: why, and where it stands."""

    def __init__(self, message: str, *, place: RowPlace, hint: str | None = None) -> None:
        super().__init__(message, where=str(place), hint=hint)
        self.place = place


BadRows = list[RowError]
Records = list[Record]
RecordsBySplit = Mapping[str, Records]


@dataclass
class ReadingLog:
    """What happened while a user's files were read: rows that cannot be used, and what the user should know."""

    bad_rows: BadRows = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_from_spreadsheet: bool = False  # by its encoding: marked as Unicode, or Windows-1252


@dataclass(frozen=True)
class UserData:
    """What a user says of their own data: where the rows are, what the columns mean, how a question is asked.

    The rows are in ``files``, or in a ``dataset`` of the hub (perhaps a ``subset`` of it).
    """

    files: tuple[str, ...] = ()
    dataset: str | None = None
    subset: str | None = None
    # the column of each field, such as {"answer": "label"}; several are joined, or are one choice each
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    prompt: str | None = None  # a template over the columns, in place of the usual question
    labels: Mapping[str, str] = field(default_factory=dict)  # the words that stand for each label
    drop_bad_rows: bool = False
    merge_spellings: bool = True  # whether labels that differ by case or blanks alone are one
    metric: str | None = None  # what answers are scored by
    cluster_column: str | None = None  # its value is the same for examples about one passage

    @property
    def task_name(self) -> str:
        """What the task is called if the user gives it no name: after its dataset or first file."""
        if self.dataset is not None:
            return self.dataset.rpartition("/")[2]
        first_file = Path(self.files[0])
        return first_file.stem if first_file.is_file() else first_file.name

    @property
    def source_name(self) -> str:
        """Where the rows come from, for an error."""
        return self.dataset or ", ".join(self.files)

    def column_of(self, field_name: str) -> str:
        """Return the user's column of a field; the field's own name if it has several columns or none is named."""
        column = self.columns.get(field_name, field_name)
        return column if isinstance(column, str) else field_name

    def count_documents_of_one_split(self) -> int | None:
        """Return how many documents the files hold, if they are one split that Potentia will divide; else None."""
        if self.dataset is not None:
            return None
        records_by_split = self.read(None, ReadingLog())
        if len(records_by_split) != 1:
            return None
        return sum(map(len, records_by_split.values()))

    def read(self, data_dir: Path | None, reading_log: ReadingLog) -> dict[str, Records]:
        """Return the records of every split, from the files, the folder of datasets or the hub."""
        if self.dataset is None:
            return read_files([Path(file).expanduser() for file in self.files], reading_log)
        definition = {
            "task": self.task_name,
            "dataset_path": self.dataset,
            "dataset_name": self.subset,
        }
        datasets_by_split = load_splits(definition, data_dir)
        records_by_split: dict[str, Records] = {}
        for split_name, dataset in datasets_by_split.items():
            split = SPLIT_NAMES.get(str(split_name).lower())
            if split is None or split in records_by_split:
                continue
            records = []
            for row_number, row in enumerate(_walk_dataset(dataset), start=1):
                place = RowPlace(f"{self.dataset} ({split_name})", f"row {row_number}")
                records.append(Record(place, row))
            records_by_split[split] = records
        if not records_by_split:
            split_names = ", ".join(map(str, datasets_by_split))
            raise TaskError(
                f"the dataset has no split of a usual name; it has: {split_names}",
                where=self.dataset,
            )
        return records_by_split


def _walk_dataset(dataset: Dataset) -> Iterator[dict[str, object]]:
    """Yield the rows of a dataset, with the names of classes in place of their numbers."""
    class_names_by_column: dict[str, list[str]] = {}
    for column, feature in dataset.features.items():
        if hasattr(feature, "names"):
            class_names_by_column[column] = feature.names
    for row in dataset.to_list():
        for column, class_names in class_names_by_column.items():
            class_number = row[column]
            if isinstance(class_number, int) and 0 <= class_number < len(class_names):
                row[column] = class_names[class_number]
        yield row


def read_files(paths: Sequence[Path], reading_log: ReadingLog) -> dict[str, Records]:
    """Return the records of one file or folder, or of several files, by split.

    Several files that are all named after splits are those splits; otherwise they are one split together.
    """
    for path in paths:
        if not path.exists():
            raise TaskError(f"there is no file or folder {path}", hint="check the path")
    if len(paths) == 1 and paths[0].is_dir():
        return _read_folder(paths[0], reading_log)
    for path in paths:
        if path.is_dir():
            raise TaskError("give one folder, or several files", where=str(path))
    path_by_split = {SPLIT_NAMES.get(path.stem.lower(), ""): path for path in paths}
    are_splits = "" not in path_by_split and len(path_by_split) == len(paths)
    if len(paths) > 1 and are_splits:
        return {split: read_records(path, reading_log) for split, path in path_by_split.items()}
    return {"train": _read_as_one_split(paths, reading_log)}


def _read_as_one_split(paths: Sequence[Path], reading_log: ReadingLog) -> Records:
    records: Records = []
    for path in paths:
        records += read_records(path, reading_log)
    return records


def _read_folder(folder: Path, reading_log: ReadingLog) -> dict[str, Records]:
    """Return the records of a folder by split.

    The folder holds files that are named after splits, or texts that are one document each, or other files of
    documents, which are one split together.
    """
    text_files = sorted(folder.glob("*.txt"))
    file_by_name = find_splits(folder)
    candidates = {text_file.stem: text_file for text_file in text_files} | file_by_name
    path_by_split: dict[str, Path] = {}
    for file_name, split_file in candidates.items():
        split = SPLIT_NAMES.get(file_name.lower())
        if split is None:
            continue
        if split in path_by_split:
            raise TaskError(
                f"two files for the split {split}: {path_by_split[split].name} and {split_file.name}",
                where=str(folder),
            )
        path_by_split[split] = split_file
    if path_by_split:
        return {
            split: read_records(split_file, reading_log)
            for split, split_file in path_by_split.items()
        }
    if text_files:
        records = []
        for text_file in text_files:
            text = _read_document_text(text_file, reading_log)
            records.append(Record(RowPlace(str(text_file)), {"text": text}))
        return {"train": records}
    if file_by_name:
        return {"train": _read_as_one_split(sorted(file_by_name.values()), reading_log)}
    raise TaskError(
        "no file of examples in this folder",
        where=str(folder),
        hint=f"name them train, validation, test with one of the suffixes {', '.join(SUFFIXES)}, .txt",
    )


def read_records(data_file: Path, reading_log: ReadingLog, *, skip_blank: bool = True) -> Records:
    """Return the records of one file; rows that cannot be read, and the number of blank ones, go to the log."""
    records = []
    blank_rows = 0
    for record in _walk_records(data_file, reading_log):
        if skip_blank and _is_blank(record):
            blank_rows += 1
        else:
            records.append(record)
    if blank_rows:
        rows = "1 blank row" if blank_rows == 1 else f"{blank_rows} blank rows"
        reading_log.notes.append(f"{data_file.name}: {rows} skipped.")
    if not records and not reading_log.bad_rows:
        raise TaskError("the file holds no example", where=str(data_file))
    return records


def _is_blank(record: Record) -> bool:
    """Whether no column of a row holds anything; spreadsheets leave such rows at the end."""
    return all(
        value is None or value != value or not str(value).strip()  # NaN is not itself
        for value in record.values()
    )


def _walk_records(data_file: Path, reading_log: ReadingLog) -> Iterator[Record]:
    """Yield the records of one file, read as its suffix says."""
    if data_file.suffix in _SPREADSHEETS:
        raise TaskError(
            f"{data_file.suffix} is a spreadsheet, which is not read",
            where=str(data_file),
            hint="save its sheet as CSV (File > Save as > CSV UTF-8)",
        )
    if data_file.suffix not in (*SUFFIXES, ".txt"):
        raise TaskError(
            f"unknown kind of file {data_file.suffix or data_file.name!r}",
            where=str(data_file),
            hint=f"one of {', '.join((*SUFFIXES, '.txt', '.yaml'))}",
        )
    if data_file.suffix == ".parquet":
        for row_number, row in enumerate(read_dataset(data_file).to_list(), start=1):
            yield Record(RowPlace(str(data_file), f"row {row_number}"), row)
        return
    text = _read_document_text(data_file, reading_log)
    if data_file.suffix in (".csv", ".tsv"):
        yield from _walk_csv(text, data_file, reading_log)
    elif data_file.suffix == ".txt":
        yield from _walk_paragraphs(text, data_file)
    else:
        yield from _walk_json(text, data_file, reading_log)


def _walk_paragraphs(text: str, data_file: Path) -> Iterator[Record]:
    """Yield the paragraphs of a text, each as one document."""
    paragraphs = [part for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
    for number, paragraph in enumerate(paragraphs, start=1):
        place = RowPlace(str(data_file), f"paragraph {number}")
        yield Record(place, {"text": paragraph.strip("\n")})


def _walk_json(text: str, data_file: Path, reading_log: ReadingLog) -> Iterator[Record]:
    """Yield the objects of a JSON file; other values go to the log."""
    for place, value in _walk_json_values(text, data_file, reading_log):
        if isinstance(value, dict):
            yield Record(place, value)
        else:
            problem = f"a {type(value).__name__}, not an object"
            hint = 'write {"question": …}'
            reading_log.bad_rows.append(RowError(problem, place=place, hint=hint))


def _walk_json_values(
    text: str, data_file: Path, reading_log: ReadingLog
) -> Iterator[tuple[RowPlace, object]]:
    """Yield the values of a JSON file, each with its place: those of one list, or one from each line."""
    if data_file.suffix == ".json" and text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"not valid JSON: {first_line(error)}", where=str(data_file)) from error
        for position, value in enumerate(values):
            yield RowPlace(str(data_file), f"element {position}"), value
        return
    if data_file.suffix == ".json":
        name, rows = _find_wrapped_rows(text)
        if rows:
            reading_log.notes.append(f"{data_file.name}: the rows are the list under {name!r}.")
            for row_number, row in enumerate(rows):
                yield RowPlace(str(data_file), f"{name} {row_number}"), row
            return
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = RowPlace(str(data_file), f"line {line_number}")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON: {first_line(error)}"
            hint = "each line holds one JSON object"
            reading_log.bad_rows.append(RowError(problem, place=place, hint=hint))
        else:
            yield place, value


def _find_wrapped_rows(text: str) -> tuple[str, list[object]]:
    """Return the name and the rows of an export such as ``{"data": [{…}, {…}]}``; empty for any other JSON.

    That is an object with exactly one list of objects that may be rows.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "", []
    if not isinstance(value, dict):
        return "", []
    rows_by_name = {}
    for name, member in value.items():
        if isinstance(member, list) and any(_may_be_row(element) for element in member):
            rows_by_name[str(name)] = member
    if len(rows_by_name) != 1:
        return "", []
    return next(iter(rows_by_name.items()))


def _may_be_row(element: object) -> bool:
    """Whether an element of a list is an object, but no message of a conversation, which is one row altogether."""
    if not isinstance(element, dict):
        return False
    return not any(names <= element.keys() for names in _MESSAGE_KEYS)


def _walk_csv(text: str, data_file: Path, reading_log: ReadingLog) -> Iterator[Record]:
    """Yield the records of a CSV or TSV.

    The delimiter of a CSV is the one that its first line states (``sep=;``, as Excel writes), else the one that its
    header has most of.
    """
    first_line_number = 1
    stated_delimiter = _EXCEL_DELIMITER.match(text)
    if stated_delimiter is not None:
        text = text[stated_delimiter.end() :]
        first_line_number = 2
    header = text[: text.find("\n")]
    delimiter = max(_DELIMITERS, key=header.count)
    if data_file.suffix == ".tsv":
        delimiter = "\t"
    if stated_delimiter is not None:
        delimiter = stated_delimiter[1]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            # a quoted value may span lines
            line_breaks = sum(str(value).count("\n") for value in row.values())
            line_number = reader.line_num - line_breaks + first_line_number - 1
            place = RowPlace(str(data_file), f"line {line_number}")
            # DictReader has the key None for values too many, and the value None for values too few
            has_other_length = None in row or None in row.values()
            if has_other_length and any(value and str(value).strip() for value in row.values()):
                columns = len(reader.fieldnames or ())
                problem = f"{columns} columns are named, this row has another number"
                hint = "quote values that hold commas or line breaks"
                reading_log.bad_rows.append(RowError(problem, place=place, hint=hint))
            else:
                yield Record(place, row)
    except csv.Error as error:
        raise TaskError(
            f"not valid CSV: {error}", where=f"{data_file}, line {reader.line_num}"
        ) from error


def _read_document_text(data_file: Path, reading_log: ReadingLog) -> str:
    """Return the text of a file of documents; the log notes a file that is not UTF-8."""
    # commas of a .txt separate no values: no more of them than bytes means no limit on them
    max_values = LARGEST_DATA if data_file.suffix == ".txt" else MOST_VALUES
    # JSON is Unicode by definition
    fallback = WINDOWS if data_file.suffix in (".csv", ".tsv", ".txt") else None
    decoded = decode_file(data_file, TaskError, max_values=max_values, fallback=fallback)
    if decoded.has_mark or decoded.encoding == WINDOWS:
        reading_log.is_from_spreadsheet = True
    if decoded.encoding == WINDOWS:
        example = re.search(r"\w*[^\x00-\x7f]\w*", decoded.text)
        example_note = f"; it reads “{example[0]}”" if example else ""
        reading_log.notes.append(
            f"{data_file.name} is not UTF-8 and was read as Windows-1252, as Excel saves it{example_note}."
        )
    return decoded.text


# --- datasets --------------------------------------------------------------------------------------------------------


def read_dataset(data_file: Path, file_format: str | None = None) -> Dataset:
    """Return the rows of one split file as a dataset in memory; ``file_format`` overrules the file's suffix."""
    if (file_format or data_file.suffix[1:]) != "parquet":
        reading_log = ReadingLog()
        records = read_records(data_file, reading_log)
        if reading_log.bad_rows:
            raise reading_log.bad_rows[0]
        return dataset_from_records(records, source=str(data_file))
    path = check_plain_file(data_file, LARGEST_DATA, TaskError).resolve()
    require_extra(Extra.PARQUET, "reading a Parquet file")
    try:
        table = limited.read_parquet(str(path))
    except limited.LimitError as error:
        raise TaskError(
            f"not a readable parquet file: {first_line(error)}", where=str(data_file)
        ) from error
    return _dataset_from_table(table, str(data_file))


def dataset_from_records(records: Sequence[Mapping[str, object]], *, source: str) -> Dataset:
    """Return plain records as a dataset; its columns are those that any record has."""
    import pyarrow as pa

    if not records:
        raise TaskError("the file holds no example", where=source)
    column_names: dict[str, None] = {}
    for record in records:
        column_names |= dict.fromkeys(record)
    columns = {}
    for column in column_names:
        columns[column] = [record.get(column) for record in records]
    try:
        table = pa.table(columns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the columns mix types: {first_line(error)}",
            where=source,
            hint="give each column one type in all rows",
        ) from error
    return _dataset_from_table(table, source)


def _dataset_from_table(table: pa.Table, source: str) -> Dataset:
    """Return a table as a dataset in memory.

    Its fingerprint is made of the source's name: ``datasets`` would pickle the whole table to compute one.
    """
    from datasets import Dataset
    from datasets.table import InMemoryTable

    fingerprint = hashlib.sha256(source.encode()).hexdigest()[:16]
    return Dataset(InMemoryTable(table), fingerprint=fingerprint)


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the data files of a folder by name; of files with one name, the one whose suffix is first in SUFFIXES."""
    files: dict[str, Path] = {}
    try:
        for suffix in SUFFIXES:
            for split_file in sorted(folder.glob(f"*{suffix}")):
                files.setdefault(split_file.stem, split_file)
    except OSError as error:
        raise TaskError(
            f"cannot look for data: {error.strerror}", where=str(folder)[:200]
        ) from error
    return files


def load_splits(definition: Mapping[str, Any], data_dir: Path | None) -> dict[str, Dataset]:
    """Return the datasets of a task's public splits, by the benchmark's names of them.

    They lie in ``data_dir``, below ``<dataset_path with / as -->/<config or default>``, or come from the hub.
    """
    searched_note = ""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise TaskError(
                f"there is no folder {data_dir}",
                hint="give --data-dir the folder that holds the datasets",
            )
        dataset = definition.get("dataset_path") or definition.get("task") or ""
        folder_name = str(dataset).replace("/", "--")
        folder = data_dir / folder_name / str(definition.get("dataset_name") or "default")
        files = find_splits(folder)
        if files:
            return {split: read_dataset(file) for split, file in files.items()}
        searched_note = f" and not in {folder}"
    if definition.get("dataset_path") is None and not definition.get("custom_dataset"):
        raise _missing_data_error(definition)
    options = dict(definition.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    _refuse_code_readers(definition.get("dataset_path"))
    if definition.get(UNTRUSTED):
        datasets_by_split = _read_named_files(definition, options)
        if datasets_by_split:
            return datasets_by_split
    return _load_from_hub(definition, options, searched_note)


def _missing_data_error(definition: Mapping[str, Any]) -> TaskError:
    """Return the error for a task whose data are not on the hub: where to put them, and what is to be put there."""
    task = definition.get("task") or "task"
    folder = f"{task}/{definition.get('dataset_name') or 'default'}"
    rows = (definition.get("metadata") or {}).get("data") or "its rows"
    return TaskError(
        f"the data of {task} are not on the hub",
        hint=f"put {rows} into {folder}/test.jsonl of a folder that you name with --data-dir",
    )


def _load_from_hub(
    definition: Mapping[str, Any], options: Mapping[str, Any], searched_note: str
) -> dict[str, Dataset]:
    """Load splits with ``datasets``; an error adds where they were searched before (``searched_note``)."""
    import datasets

    dataset_path = definition.get("dataset_path")
    config_name = definition.get("dataset_name")
    make_dataset = definition.get("custom_dataset")
    try:
        with silence_libraries(), _no_waiting_for_hub():
            if callable(make_dataset):
                return dict(make_dataset(**(definition.get("metadata") or {}), **options))
            return dict(datasets.load_dataset(dataset_path, config_name, **options))
    except Exception as error:  # the hub's and datasets' errors have no common base
        task = definition.get("task") or "task"
        dataset_label = f"{dataset_path} ({config_name})" if config_name else f"{dataset_path}"
        raise TaskError(
            f"the data of {task} cannot be fetched from the hub{searched_note}: {dataset_label}: {first_line(error)}",
            hint="check the connection, or give --data-dir a folder laid out as <dataset>/<config>/<split>.parquet",
        ) from error


def _read_named_files(
    definition: Mapping[str, object], options: Mapping[str, object]
) -> dict[str, Dataset]:
    """Return the local Parquet files that a user's definition names, by split; refuse packed files of any format."""
    import datasets

    data_files = options.get("data_files") or {}
    patterns_by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    datasets_by_split: dict[str, Dataset] = {}
    for split, patterns in patterns_by_split.items():
        files = _expand_patterns(patterns)
        for file in files:
            _refuse_packed(file)
        if definition.get("dataset_path") == "parquet" and files:
            parts = [read_dataset(file, "parquet") for file in files]
            datasets_by_split[str(split)] = datasets.concatenate_datasets(parts)
    return datasets_by_split


def _expand_patterns(patterns: object) -> list[Path]:
    """Return the local files that glob patterns stand for; an address (``https://…``) is left to ``datasets``."""
    from glob import glob

    files: list[Path] = []
    for pattern in map(str, as_list(patterns)):
        if "://" not in pattern:
            files += [Path(file) for file in sorted(glob(pattern, recursive=True))]  # noqa: PTH207
    return files


def _refuse_packed(data_file: Path) -> None:
    with check_plain_file(data_file, LARGEST_DATA, TaskError).open("rb") as stream:
        if stream.read(8).startswith(_PACKED_STARTS):
            raise TaskError(
                "a packed file could unpack to anything", where=str(data_file), hint="unpack it"
            )


# Readers of `datasets` that read data and run nothing; others unpickle, or ask a database.
_DATA_READERS = frozenset({"csv", "json", "parquet", "arrow", "text"})


def _refuse_code_readers(reader: object) -> None:
    """Refuse a reader of ``datasets`` that can run code, unless code is allowed."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if not isinstance(reader, str | None):
        raise TaskError(f"dataset_path: {reader!r} is not a name")
    runs_code = reader in _PACKAGED_DATASETS_MODULES and reader not in _DATA_READERS
    if runs_code and not is_allowed(CODE):
        raise TaskError(
            f"dataset_path: {reader} can run code", hint="write the data as json, csv or parquet"
        )


@contextmanager
def silence_libraries() -> Iterator[None]:
    """While the context is open, keep messages and progress bars of lm-eval and datasets off the screen."""
    import logging

    import datasets

    level_before = logging.root.manager.disable
    if level_before >= logging.WARNING:  # already silent: setting it again costs milliseconds
        yield
        return
    had_no_bars = datasets.are_progress_bars_disabled()
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.disable(level_before)
        if not had_no_bars:
            datasets.enable_progress_bars()


@contextmanager
def _no_waiting_for_hub() -> Iterator[None]:
    """While the context is open and the hub cannot be reached, read the local cache at once, without retries.

    The retries would take half a minute.
    """
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
    """Whether the name of a server can be resolved; behind a proxy it is assumed, as the proxy resolves it."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    try:
        return bool(getproxies() or socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except OSError:
        return False

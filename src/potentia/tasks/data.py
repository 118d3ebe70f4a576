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
from potentia.files import CODE, LARGEST_DATA, check_plain_file, is_allowed, read_text

if TYPE_CHECKING:
    from datasets import Dataset

LIMITED = "limited"  # the key of a definition from a user's file: its templates are rendered in a process of its own
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_PACKED = (
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


@dataclass(frozen=True)
class UserData:
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
        splits = {} if self.dataset is not None else self.read(None, [])
        return sum(map(len, splits.values())) if len(splits) == 1 else None

    def read(self, data_dir: Path | None, bad: BadRows) -> dict[str, Records]:
        """Read the records of every split, from files or from the hub (or the folder of datasets)."""
        if self.dataset is None:
            return read_files([Path(file).expanduser() for file in self.files], bad)
        config = {"task": self.label, "dataset_path": self.dataset, "dataset_name": self.subset}
        loaded = load_splits(config, data_dir)
        found: dict[str, Records] = {}
        for name, data in loaded.items():
            if (split := SPLIT_NAMES.get(str(name).lower())) is not None:
                rows = enumerate(_with_names(data), start=1)
                found.setdefault(
                    split, [Record(f"{self.dataset} ({name}), row {n}", row) for n, row in rows]
                )
        if not found:
            told = (
                f"the dataset has no split of a usual name; it has: {', '.join(map(str, loaded))}"
            )
            raise TaskError(told, where=self.dataset)
        return found


def _with_names(data: Any) -> Iterator[dict[str, Any]]:
    """Give the rows of a dataset, with the names of its classes where it has them."""
    names = {
        column: feature.names
        for column, feature in data.features.items()
        if hasattr(feature, "names")
    }
    for row in data.to_list():
        named = {
            c: known[row[c]]
            for c, known in names.items()
            if isinstance(row[c], int) and 0 <= row[c] < len(known)
        }
        yield {**row, **named}


def read_files(paths: Sequence[Path], bad: BadRows) -> dict[str, Records]:
    """Read one file or folder, or several files: the splits that they are named after, or all of them as one."""
    if missing := [path for path in paths if not path.exists()]:
        raise TaskError(f"there is no file or folder {missing[0]}", hint="check the path")
    if len(paths) == 1 and paths[0].is_dir():
        return _read_folder(paths[0], bad)
    if folders := [path for path in paths if path.is_dir()]:
        raise TaskError("give one folder, or several files", where=str(folders[0]))
    splits = {SPLIT_NAMES.get(path.stem.lower(), ""): path for path in paths}
    if len(paths) > 1 and "" not in splits and len(splits) == len(paths):
        return {split: read_records(path, bad) for split, path in splits.items()}
    return {"train": [record for path in paths for record in read_records(path, bad)]}


def _read_folder(folder: Path, bad: BadRows) -> dict[str, Records]:
    texts, others = sorted(folder.glob("*.txt")), find_splits(folder)
    found: dict[str, Path] = {}
    for name, file in {**{text.stem: text for text in texts}, **others}.items():
        split = SPLIT_NAMES.get(name.lower(), "")
        if split in found:
            told = f"two files for the split {split}: {found[split].name} and {file.name}"
            raise TaskError(told, where=str(folder))
        found |= {split: file} if split else {}
    if found:
        return {split: read_records(file, bad) for split, file in found.items()}
    if texts:  # each file is one document
        return {"train": [Record(str(file), {"text": _text(file)}) for file in texts]}
    if others:  # files of documents under other names: all of them as one
        return {
            "train": [
                record for file in sorted(others.values()) for record in read_records(file, bad)
            ]
        }
    raise TaskError(
        "no file of documents in this folder",
        where=str(folder),
        hint=f"name them train, validation, test with one of the suffixes {', '.join(SUFFIXES)}, .txt",
    )


def read_records(file: Path, bad: BadRows) -> Records:
    """Read the rows of one file; those that are none go to ``bad``."""
    records = list(_rows(file, bad))
    if not records and not bad:
        raise TaskError("the file holds no document", where=str(file))
    return records


def _rows(file: Path, bad: BadRows) -> Iterator[Record]:
    if file.suffix not in (*SUFFIXES, ".txt"):
        raise TaskError(
            f"unknown kind of file {file.suffix or file.name!r}",
            where=str(file),
            hint=f"one of {', '.join((*SUFFIXES, '.txt', '.yaml'))}",
        )
    if file.suffix == ".parquet":
        return (
            Record(f"{file}, row {n}", row)
            for n, row in enumerate(read_dataset(file).to_list(), start=1)
        )
    text = _text(file)
    if file.suffix == ".txt":
        parts = [part.strip("\n") for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
        return (
            Record(f"{file}, paragraph {n}", {"text": part})
            for n, part in enumerate(parts, start=1)
        )
    return _csv_rows(text, file, bad) if file.suffix == ".csv" else _json_rows(text, file, bad)


def _json_rows(text: str, file: Path, bad: BadRows) -> Iterator[Record]:
    """Give the objects of a JSON file: one a line, or all of them in one list."""
    for where, value in _json_values(text, file, bad):
        if isinstance(value, dict):
            yield Record(where, value)
        else:
            hint = 'write {"question": …}'
            bad.append(
                TaskError(f"a {type(value).__name__}, not an object", where=where, hint=hint)
            )


def _json_values(text: str, file: Path, bad: BadRows) -> Iterator[tuple[str, Any]]:
    if file.suffix == ".json" and text.lstrip().startswith("["):
        try:
            yield from (
                (f"{file}, element {place}", value) for place, value in enumerate(json.loads(text))
            )
        except (ValueError, RecursionError) as error:
            raise TaskError(f"not valid JSON: {first_line(error)}", where=str(file)) from error
        return
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{file}, line {number}"
        try:
            if line.strip():
                yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "each line holds one JSON object"
            bad.append(TaskError(f"not valid JSON: {first_line(error)}", where=where, hint=hint))


def _csv_rows(text: str, file: Path, bad: BadRows) -> Iterator[Record]:
    header = text[: text.find("\n")]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    try:
        for record in reader:
            inside = sum(
                str(value).count("\n") for value in record.values()
            )  # a quoted value may span lines
            where = f"{file}, line {reader.line_num - inside}"
            if None in record or None in record.values():
                told = (
                    f"{len(reader.fieldnames or ())} columns are named, this row has another number"
                )
                bad.append(
                    TaskError(
                        told, where=where, hint="quote values that hold commas or line breaks"
                    )
                )
            else:
                yield Record(where, record)
    except csv.Error as error:
        raise TaskError(
            f"not valid CSV: {error}", where=f"{file}, line {reader.line_num}"
        ) from error


def _text(file: Path) -> str:
    """Return the text of a file of documents; a corpus may have any number of commas."""
    return read_text(file, TaskError, **({"most": LARGEST_DATA} if file.suffix == ".txt" else {}))


# --- datasets --------------------------------------------------------------------------------------------------------


def read_dataset(file: Path, kind: str | None = None) -> Dataset:
    """Read one split file as a dataset in memory; no cache is written."""
    if (kind or file.suffix[1:]) != "parquet":
        bad: BadRows = []
        records = read_records(file, bad)
        if bad:
            raise bad[0]
        return dataset_from_records(records, where=str(file))
    try:
        return _dataset(
            limited.read_parquet(str(check_plain_file(file, LARGEST_DATA, TaskError).resolve())),
            str(file),
        )
    except limited.LimitError as error:
        raise TaskError(
            f"not a readable parquet file: {first_line(error)}", where=str(file)
        ) from error


def dataset_from_records(records: Sequence[Mapping[str, Any]], *, where: str) -> Dataset:
    """Make a dataset of plain records; the columns are the union of all keys."""
    import pyarrow as pa

    if not records:
        raise TaskError("the file holds no document", where=where)
    columns = dict.fromkeys(name for record in records for name in record)
    try:
        table = pa.table({name: [record.get(name) for record in records] for name in columns})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the columns mix types: {first_line(error)}",
            where=where,
            hint="give each column one type in all rows",
        ) from error
    return _dataset(table, where)


def _dataset(table: Any, where: str) -> Dataset:
    """Make a dataset in memory, named without hashing its content (datasets would pickle the whole table)."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    return Dataset(
        InMemoryTable(table), fingerprint=hashlib.sha256(where.encode()).hexdigest()[:16]
    )


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the split files of a folder by name; the first known suffix counts."""
    found: dict[str, Path] = {}
    try:
        for suffix in SUFFIXES:
            for file in sorted(folder.glob(f"*{suffix}")):
                found.setdefault(file.stem, file)
    except OSError as error:
        raise TaskError(
            f"cannot look for data: {error.strerror}", where=str(folder)[:200]
        ) from error
    return found


def load_splits(config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Dataset]:
    """Load a task's public splits as lm-eval would have them.

    They lie in ``data_dir``, below ``<dataset_path with / as -->/<config or default>``, or come from the hub.
    """
    looked = ""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise TaskError(
                f"there is no folder {data_dir}",
                hint="give --data-dir the folder that holds the datasets",
            )
        name = str(config.get("dataset_path") or "").replace("/", "--")
        folder = data_dir / name / str(config.get("dataset_name") or "default")
        if files := find_splits(folder):
            return {split: read_dataset(file) for split, file in files.items()}
        looked = f" and not in {folder}"
    options = dict(config.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    _refuse_pickles(config.get("dataset_path"))
    if config.get(LIMITED) and (own := _named_files(config, options)):
        return own
    return _from_hub(config, options, looked)


def _from_hub(
    config: Mapping[str, Any], options: Mapping[str, Any], looked: str
) -> dict[str, Dataset]:
    import datasets

    path, name = config.get("dataset_path"), config.get("dataset_name")
    try:
        with silence_libraries(), _no_waiting():
            if callable(custom := config.get("custom_dataset")):
                return dict(custom(**(config.get("metadata") or {}), **options))
            return dict(datasets.load_dataset(path, name, **options))
    except Exception as error:  # the hub's and datasets' errors have no common base
        place = f"{path} ({name})" if name else f"{path}"
        raise TaskError(
            f"the data of {config.get('task') or 'task'} cannot be had from the hub{looked}: {place}: "
            + first_line(error),
            hint="check the connection, or give --data-dir a folder laid out as <dataset>/<config>/<split>.parquet",
        ) from error


def _named_files(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Dataset]:
    """Check the local files that a user's definition names, and read them where they are Parquet."""
    from glob import glob

    import datasets

    named = options.get("data_files") or {}
    read: dict[str, Dataset] = {}
    for split, patterns in (named if isinstance(named, Mapping) else {"train": named}).items():
        listed = map(str, as_list(patterns))
        files = [
            Path(file)
            for one in listed
            if "://" not in one
            for file in sorted(glob(one, recursive=True))  # noqa: PTH207
        ]
        for file in files:
            with check_plain_file(file, LARGEST_DATA, TaskError).open("rb") as stream:
                if stream.read(8).startswith(_PACKED):
                    raise TaskError(
                        "a packed file could unpack to anything", where=str(file), hint="unpack it"
                    )
        if config.get("dataset_path") == "parquet" and files:
            read[str(split)] = datasets.concatenate_datasets(
                [read_dataset(file, "parquet") for file in files]
            )
    return read


# Readers of `datasets` that hold data alone; others unpickle, or ask a database.
_READERS = frozenset({"csv", "json", "parquet", "arrow", "text"})


def _refuse_pickles(reader: Any) -> None:
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if not isinstance(reader, str | None):
        raise TaskError(f"dataset_path: {reader!r} is no name")
    if reader in _PACKAGED_DATASETS_MODULES and reader not in _READERS and not is_allowed(CODE):
        raise TaskError(
            f"dataset_path: {reader} can run code", hint="write the data as json, csv or parquet"
        )


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Keep lm-eval's and datasets' messages and progress bars off the screen while a task is built."""
    import logging

    import datasets

    below, bars = logging.root.manager.disable, datasets.are_progress_bars_disabled()
    if below >= logging.WARNING:  # within another: setting it costs milliseconds
        yield
        return
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.disable(below)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Where the hub's name cannot be resolved, go to the local cache at once, not after half a minute of retries."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if _unreachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _unreachable(endpoint: str) -> bool:
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    try:
        return not getproxies() and not socket.getaddrinfo(urlsplit(endpoint).hostname, None)
    except OSError:
        return True

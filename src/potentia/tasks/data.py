"""The documents of a benchmark: from a local folder, or from the hub, as lm-eval's own loader would give them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia import limited
from potentia.errors import TaskError
from potentia.files import plain_file
from potentia.processes import CODE, allowed
from potentia.tasks.definitions import LIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datasets import Dataset

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
LARGEST = 2**30  # bytes of a file of documents
MOST = 2**24  # values in it: lists and objects take far more memory than text
_PACKED = (b"\x1f\x8b", b"PK", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"7z", b"Rar!")


def local_folder(config: Mapping[str, Any], data_dir: Path) -> Path:
    """Return where a task's data lies below a data folder: ``<dataset_path with / as -->/<config or default>``."""
    name = str(config.get("dataset_path") or "").replace("/", "--")
    return data_dir / name / str(config.get("dataset_name") or "default")


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the split files of a folder by name; the first known suffix counts."""
    found: dict[str, Path] = {}
    try:
        for suffix in SUFFIXES:
            for file in sorted(folder.glob(f"*{suffix}")):
                found.setdefault(file.stem, file)
    except OSError as error:
        raise TaskError(f"cannot look for data: {error.strerror}", where=str(folder)[:200]) from error
    return found


def load_splits(config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Dataset]:
    """Load a task's public splits: from ``data_dir`` where they lie there, otherwise from the hub."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise TaskError(f"there is no folder {data_dir}", hint="give --data-dir the folder that holds the datasets")
        folder = local_folder(config, data_dir)
        if files := find_splits(folder):
            return {split: read_dataset(file) for split, file in files.items()}
    return _from_hub(config, data_dir)


def _from_hub(config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Dataset]:
    import datasets

    task = str(config.get("task") or "task")
    options = dict(config.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    _refuse_pickles(config.get("dataset_path"))
    if config.get(LIMITED) and (own := _named_files(config, options)):
        return own
    try:
        with quiet(), _no_waiting():
            if callable(custom := config.get("custom_dataset")):
                return dict(custom(**(config.get("metadata") or {}), **options))
            return dict(datasets.load_dataset(config.get("dataset_path"), config.get("dataset_name"), **options))
    except Exception as error:  # the hub's and datasets' errors have no common base
        looked = f" and not in {local_folder(config, data_dir)}" if data_dir else ""
        place = f"{config.get('dataset_path')}" + (f" ({n})" if (n := config.get("dataset_name")) else "")
        raise TaskError(
            f"the data of {task} cannot be had from the hub{looked}: {place}: {_first_line(error)}",
            hint="check the connection, or give --data-dir a folder laid out as <dataset>/<config>/<split>.parquet",
        ) from error


def _named_files(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Dataset]:
    """Check the local files that a user's definition names, and read them where they are Parquet."""
    from glob import glob

    import datasets

    named = options.get("data_files") or {}
    splits = named if isinstance(named, Mapping) else {"train": named}
    read: dict[str, Dataset] = {}
    for split, patterns in splits.items():
        listed = [str(one) for one in (patterns if isinstance(patterns, list) else [patterns])]
        files = [Path(file) for one in listed if "://" not in one for file in sorted(glob(one, recursive=True))]  # noqa: PTH207
        for file in files:
            with plain_file(file, LARGEST, TaskError).open("rb") as stream:
                if stream.read(8).startswith(_PACKED):
                    raise TaskError("a packed file could unpack to anything", where=str(file), hint="unpack it")
        if config.get("dataset_path") == "parquet" and files:
            read[str(split)] = datasets.concatenate_datasets([read_dataset(file, "parquet") for file in files])
    return read


def read_dataset(file: Path, kind: str | None = None) -> Dataset:
    """Read one split file as a dataset in memory; no cache is written."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    if (kind or file.suffix[1:]) == "parquet":
        try:
            table = limited.read_parquet(str(plain_file(file, LARGEST, TaskError).resolve()))
        except limited.LimitError as error:
            raise TaskError(f"not a readable parquet file: {_first_line(error)}", where=str(file)) from error
        return Dataset(InMemoryTable(table), fingerprint=_label(file))
    return from_records(read_records(file), where=str(file))


def from_records(records: Sequence[Mapping[str, Any]], *, where: str) -> Dataset:
    """Make a dataset of plain records; the columns are the union of all keys."""
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    if not records:
        raise TaskError("the file holds no document", where=where)
    columns: dict[str, None] = {}
    for record in records:
        columns.update(dict.fromkeys(record))
    try:
        table = pa.table({name: [record.get(name) for record in records] for name in columns})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the columns mix types: {_first_line(error)}", where=where, hint="give each column one type in all rows"
        ) from error
    return Dataset(InMemoryTable(table), fingerprint=_label(Path(where)))


class Record(dict[str, Any]):
    """A row of a user's file that knows where it stands in it."""

    place = ""

    @classmethod
    def at(cls, place: str, values: Mapping[str, Any]) -> Record:
        """Make a record with its place."""
        record = cls(values)
        record.place = place
        return record


Bad = list[TaskError]  # rows that cannot be used: each says where it is and why


def read_records(file: Path, bad: Bad | None = None) -> list[Record]:
    """Read jsonl, json (a list of objects), csv or parquet as records; a bad row is raised, or added to ``bad``."""
    try:
        if file.suffix == ".parquet":
            rows = read_dataset(file).to_list()
            return [Record.at(f"{file}, row {n}", row) for n, row in enumerate(rows, start=1)]
        if file.suffix == ".csv":
            return list(_csv_records(read_text(file), file, bad))
        text = read_text(file)
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror or error}", where=str(file)) from error
    listed = file.suffix == ".json" and text.lstrip().startswith("[")
    return list(_json_records(_json_list(text, file) if listed else _json_lines(text, file, bad), bad))


def _json_records(values: Iterator[tuple[str, Any]], bad: Bad | None) -> Iterator[Record]:
    for where, value in values:
        if isinstance(value, dict):
            yield Record.at(where, value)
        else:
            hint = 'write {"question": …}'
            _refuse(TaskError(f"a {type(value).__name__}, not an object", where=where, hint=hint), bad)


def _json_lines(text: str, file: Path, bad: Bad | None) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{file}, line {number}"
        try:
            if line.strip():
                yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "each line holds one JSON object"
            _refuse(TaskError(f"not valid JSON: {_first_line(error)}", where=where, hint=hint), bad)


def _json_list(text: str, file: Path) -> Iterator[tuple[str, Any]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not valid JSON: {_first_line(error)}", where=str(file)) from error
    yield from ((f"{file}, element {place}", value) for place, value in enumerate(values))


def read_text(file: Path) -> str:
    """Return the text of a file of documents, of a size that documents can have."""
    try:
        text = plain_file(file, LARGEST, TaskError).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"not UTF-8 text: {error.reason} at byte {error.start}", where=str(file)) from error
    if file.suffix != ".txt" and (values := sum(map(text.count, ",[{\n"))) > MOST:
        raise TaskError(f"about {values:,} values, more than {MOST:,}", where=str(file), hint="divide the file")
    return text


def _csv_records(text: str, file: Path, bad: Bad | None) -> Iterator[Record]:
    import csv
    import io

    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for record in reader:
            inside = sum(str(value).count("\n") for value in record.values())  # a quoted value may span lines
            where = f"{file}, line {reader.line_num - inside}"
            if None in record or None in record.values():
                told = f"{len(reader.fieldnames or ())} columns are named, this row has another number"
                _refuse(TaskError(told, where=where, hint="quote values that hold commas or line breaks"), bad)
            else:
                yield Record.at(where, record)
    except csv.Error as error:
        raise TaskError(f"not valid CSV: {error}", where=f"{file}, line {reader.line_num}") from error


def _refuse(error: TaskError, bad: Bad | None) -> None:
    if bad is None:
        raise error
    bad.append(error)


# Readers of `datasets` that hold data alone; others unpickle, or ask a database.
_READERS = frozenset({"csv", "json", "parquet", "arrow", "text"})


def _refuse_pickles(reader: Any) -> None:
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if not isinstance(reader, str | None):
        raise TaskError(f"dataset_path: {reader!r} is no name")
    if reader in _PACKAGED_DATASETS_MODULES and reader not in _READERS and not allowed(CODE):
        raise TaskError(f"dataset_path: {reader} can run code", hint="write the data as json, csv or parquet")


@contextmanager
def quiet() -> Iterator[None]:
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

    if not _unreachable(constants.ENDPOINT):
        yield
        return
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _unreachable(endpoint: str) -> bool:
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, None)
    except OSError:
        return True
    return False


def _label(file: Path) -> str:
    """Name an in-memory dataset without hashing its content (datasets would pickle the whole table)."""
    import hashlib

    return hashlib.sha256(str(file).encode()).hexdigest()[:16]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]

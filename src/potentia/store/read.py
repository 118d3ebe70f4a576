"""Scores from anywhere: a store, a tidy table, lm-eval results, the paper's published file; told apart by content."""

from __future__ import annotations

from pathlib import Path

from potentia.errors import DataError, StoreError
from potentia.scores import ScoreMatrix
from potentia.store.files.assemble import Entry, assemble


def read_scores(
    source: str | Path, *, study: str | None = None, metric: str | None = None, subtasks: bool = False
) -> dict[str, ScoreMatrix]:
    """Return one matrix per protocol from a file, a folder of lm-eval results, a store, or a store's URL.

    ``study`` picks one study of a store. ``metric`` picks a metric where a benchmark has several. A group such as MMLU
    counts as one benchmark; ``subtasks`` takes its members instead.
    """
    if "://" in str(source):
        return _from_store(str(source), study=study, metric=metric)
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            entries = _from_folder(path, metric=metric, subtasks=subtasks)
        else:
            with path.open("rb") as file:
                start = file.read(4096)
            if start.startswith(b"SQLite format 3\0"):
                return _from_store_file(path, study=study, metric=metric)
            entries = _from_file(path, start, metric=metric, subtasks=subtasks)
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path)) from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror or error}", where=str(path)) from None
    return assemble(entries, where=str(path))


def _from_file(path: Path, start: bytes, *, metric: str | None, subtasks: bool) -> list[Entry]:
    from potentia.store.files import tidy
    from potentia.store.files.jsonfile import read_json

    if start.startswith(b"PAR1"):
        return tidy.read_parquet(path, metric=metric)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")) or path.suffix.casefold() == ".json":
        return read_json(path, metric=metric, subtasks=subtasks)
    return tidy.read_csv(path, metric=metric)


def _from_folder(folder: Path, *, metric: str | None, subtasks: bool) -> list[Entry]:
    from potentia.store.files.jsonfile import read_json

    files = sorted(folder.rglob("results*.json")) or sorted(folder.rglob("*.json"))
    if not files:
        raise DataError("the folder holds no .json results", where=str(folder), hint="give lm-eval's output folder")
    found: dict[tuple[str, str, str], Entry] = {}
    entries: list[Entry] = []
    for path in files:
        for entry in read_json(path, metric=metric, subtasks=subtasks):
            twin = found.setdefault((entry.protocol, entry.model, entry.task), entry)
            if twin is entry or twin.value != entry.value:  # a copy of the same file says nothing new
                entries.append(entry)
    return entries


def _from_store_file(path: Path, *, study: str | None, metric: str | None) -> dict[str, ScoreMatrix]:
    try:
        return _from_store(path, study=study, metric=metric)
    except StoreError as error:  # as a source of scores, a damaged or foreign database is bad input
        raise DataError(error.message, where=error.where, hint=error.hint) from error
    except DataError:
        raise
    except (TypeError, ValueError, AttributeError) as error:  # a text or a gap where the schema promises a number
        raise DataError(f"the database is damaged: {error}", where=str(path), hint="restore a copy") from error


def _from_store(where: str | Path, *, study: str | None, metric: str | None) -> dict[str, ScoreMatrix]:
    from potentia.store.store import Store

    store = Store.open(where, readonly=True)
    try:
        protocols = store.protocols(study=study)
        if not protocols:
            raise StoreError("the store holds no scores yet", where=store.where, hint="run a study, or import scores")
        return {protocol: store.matrix(protocol, study=study, metric=metric) for protocol in protocols}
    finally:
        store.close()

"""Scores from files: tidy tables, lm-eval results, the papers' layouts; told apart by their content."""

from __future__ import annotations

from pathlib import Path

from potentia.errors import DataError
from potentia.protocol import Protocol
from potentia.scores import ScoreMatrix
from potentia.store.files.assemble import Entry, assemble


def read_files(path: Path, *, metric: str | None = None, subtasks: bool = False) -> dict[Protocol, ScoreMatrix]:
    """Return one matrix per protocol from a file, or from a folder of lm-eval results.

    ``metric`` picks a metric where a benchmark has several. A group such as MMLU counts as one benchmark; ``subtasks``
    takes its members instead.
    """
    try:
        if path.is_dir():
            entries = _from_folder(path, metric=metric, subtasks=subtasks)
        else:
            with path.open("rb") as file:
                start = file.read(4096)
            entries = _from_file(path, start, metric=metric, subtasks=subtasks)
    except FileNotFoundError:
        raise DataError("there is no such file", where=str(path)) from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror or error}", where=str(path)) from None
    return assemble(entries, where=str(path))


def _from_file(path: Path, start: bytes, *, metric: str | None, subtasks: bool) -> list[Entry]:
    from potentia.store.files import staged, tidy
    from potentia.store.files.jsonfile import read_json

    if start.startswith(b"PAR1"):
        return tidy.read_parquet(path, metric=metric)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")) or path.suffix.casefold() == ".json":
        return read_json(path, metric=metric, subtasks=subtasks)
    if staged.StagedScores.recognises(path):
        return staged.StagedScores.read(path).entries(metric)
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

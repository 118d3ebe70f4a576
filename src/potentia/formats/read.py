"""Scores from files, told apart by their content: tables of any layout, and the results of evaluation tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import DataError
from potentia.files import LARGEST_DATA, check_plain_file
from potentia.formats.columns import ColumnHints, TableLayout
from potentia.formats.entries import (
    MissingScoreError,
    ScoreEntry,
    assemble_matrices,
    collect_items,
    entries_from_rows,
)
from potentia.formats.euroeval import EuroEvalRecord, parse_euroeval, read_euroeval
from potentia.formats.every_eval_ever import is_every_eval_ever, read_every_eval_ever
from potentia.formats.hub_results import FOLDER as HUB_FOLDER
from potentia.formats.hub_results import read_hub_file, read_hub_folder, scale_hub_entries
from potentia.formats.inspect_log import is_inspect_log, read_inspect_log
from potentia.formats.json_values import load_json, read_json_lines
from potentia.formats.layout import read_score_rows
from potentia.formats.lm_eval import read_lm_eval_results
from potentia.formats.paper_scores import read_paper_scores
from potentia.formats.table import (
    RawTable,
    read_parquet_table,
    read_text_table,
    table_from_json,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Outcomes, ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

_TIME_IN_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:]\d\d[-:]\d\d[\d.]*")


@dataclass(frozen=True)
class FileScores:
    """One matrix per protocol, and what a reader must know of how the file was read."""

    scores: dict[Protocol, ScoreMatrix]
    notes: tuple[str, ...] = ()
    layout: TableLayout | None = None
    items: Mapping[Protocol, Outcomes] = field(default_factory=dict)


@dataclass(frozen=True)
class _ReadOptions:
    """How a file is to be read."""

    metric: str | None
    subtasks: bool
    column_map: Mapping[str, str]
    hints: ColumnHints


@dataclass
class _FileReader:
    """Reads files with the same options, and collects what a reader must know of how they were read."""

    options: _ReadOptions
    notes: list[str] = field(default_factory=list)
    leaves_gaps_out: bool = False  # among many files, a score that is NaN costs itself alone
    missing_scores: list[MissingScoreError] = field(default_factory=list)
    layouts: list[TableLayout] = field(default_factory=list)

    def read_file(self, path: Path) -> list[ScoreEntry]:
        """Read one file of any kind."""
        with check_plain_file(path, LARGEST_DATA, DataError).open("rb") as file:
            start = file.read(4096)
        if start.startswith(b"PAR1"):
            return self.read_table(read_parquet_table(path))
        if start.startswith(b"PK"):
            hint = "for a log of Inspect: inspect log convert FILE --to json --output-dir logs-json"
            raise DataError("this is a packed archive, no score file", where=str(path), hint=hint)
        suffix = path.suffix.casefold()
        if suffix in (".yaml", ".yml"):
            return self._note_hub_results(read_hub_file(path, self.notes))
        if suffix == ".jsonl":
            return self.read_records(list(read_json_lines(path)), path)
        first_bytes = start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if first_bytes.startswith((b"{", b"[")) or suffix == ".json":
            return self.read_json(load_json(path), path)
        return self.read_table(read_text_table(path))

    def _note_hub_results(self, entries: list[ScoreEntry]) -> list[ScoreEntry]:
        """Say what was taken for granted of results that name no metric, and give each task one scale."""
        if any(not entry.metric.name for entry in entries):
            self.notes.append("the Hub's results name no metric: higher counts as better")
        return scale_hub_entries(entries, self.notes)

    def read_table(self, table: RawTable) -> list[ScoreEntry]:
        """Read a table of any layout."""
        rows = read_score_rows(table, self.options.column_map, self.options.hints)
        self.notes += rows.notes
        if rows.layout is not None:
            self.layouts.append(rows.layout)
        entries = entries_from_rows(rows.rows, where=table.where, metric=self.options.metric)
        return list(entries)

    def read_json(self, content: object, path: Path) -> list[ScoreEntry]:
        """Read a JSON file, whose keys tell which tool wrote it."""
        where = str(path)
        metric = self.options.metric
        if isinstance(content, list):
            return self.read_records(content, path)
        if not isinstance(content, dict):
            raise DataError("this is no score file: the top is no object", where=where)
        if is_inspect_log(content):
            return [read_inspect_log(content, where, metric=metric)]
        if is_every_eval_ever(content):
            return self.read_records([content], path)
        if "results" in content:
            entries = read_lm_eval_results(
                content,
                path,
                metric=metric,
                subtasks=self.options.subtasks,
                on_missing_score=self._on_missing_score,
            )
            return list(entries)
        return list(read_paper_scores(content, where))

    def read_records(self, records: list[object], path: Path) -> list[ScoreEntry]:
        """Read a list of JSON values: records of EuroEval, of Every Eval Ever, or the rows of a table."""
        where = str(path)
        euroeval = [parse_euroeval(record, where) for record in records]
        euroeval_records = [record for record in euroeval if record is not None]
        if records and len(euroeval_records) == len(records):
            return self._read_euroeval_records(euroeval_records, where)
        runs = [run for run in records if isinstance(run, dict) and is_every_eval_ever(run)]
        if records and len(runs) == len(records):
            entries: list[ScoreEntry] = []
            for run in runs:
                entries += read_every_eval_ever(run, path, on_missing_score=self._on_missing_score)
            return entries
        return self.read_table(table_from_json(records, where))

    @property
    def _on_missing_score(self) -> Callable[[MissingScoreError], None] | None:
        """What is done with a score that is NaN; None: it is an error."""
        return self.missing_scores.append if self.leaves_gaps_out else None

    def _read_euroeval_records(self, records: list[EuroEvalRecord], where: str) -> list[ScoreEntry]:
        entries = []
        for number, record in enumerate(records, 1):
            place = f"{where}, line {number}"
            try:
                entries.append(read_euroeval(record, place, metric=self.options.metric))
            except MissingScoreError as error:
                if not self.leaves_gaps_out:
                    raise
                self.missing_scores.append(error)
        return entries

    def read_folder(self, folder: Path) -> list[ScoreEntry]:
        """Read all results of a folder; of a cell that was measured again the latest counts.

        A score that is NaN is left out, and a note says so.
        """
        self.leaves_gaps_out = True
        latest: dict[tuple[str, str, str], tuple[str, ScoreEntry]] = {}
        duplicates: list[ScoreEntry] = []
        remeasured: Counter[str] = Counter()
        hub_entries: list[ScoreEntry] = []
        for hub_folder in self._keep_inside(folder, sorted(folder.rglob(HUB_FOLDER))):
            hub_entries += read_hub_folder(hub_folder, self.notes)
        for entry in self._note_hub_results(hub_entries):
            latest[entry.protocol, entry.model, entry.task] = ("", entry)
        results = self._find_results(folder, required=not hub_entries)
        for time, path in sorted((_time_in_name(path), path) for path in results):
            for entry in self._read_file_of_folder(path):
                cell = (entry.protocol, entry.model, entry.task)
                earlier_time, earlier = latest.setdefault(cell, (time, entry))
                if earlier.value == entry.value:  # a copy of the same file says nothing new
                    continue
                if earlier_time < time:
                    latest[cell] = (time, entry)
                    remeasured[entry.model] += 1
                else:
                    duplicates.append(entry)
        for model, count in remeasured.items():
            note = f"{count} score(s) were measured again, and the latest run counts"
            self.notes.append(f"{model}: {note}")
        if self.missing_scores:
            self.notes.append(self._describe_missing_scores())
        return [entry for _, entry in latest.values()] + duplicates

    def _read_file_of_folder(self, path: Path) -> list[ScoreEntry]:
        try:
            return self.read_file(path)
        except MissingScoreError as error:
            self.missing_scores.append(error)
            return []

    def _describe_missing_scores(self) -> str:
        count = len(self.missing_scores)
        places = [str(error.where) for error in self.missing_scores]
        scores = "1 score is" if count == 1 else f"{count} scores are"
        listed = ", ".join(places[:3])
        more = f" and {count - 3} more" if count > 3 else ""
        return f"{scores} missing or NaN and left out: {listed}{more}"

    def _find_results(self, folder: Path, *, required: bool) -> list[Path]:
        """Return the files of results in a folder, those of lm-eval where there are any."""
        candidates = sorted(folder.rglob("results*.json"))
        if not candidates:
            candidates = sorted([*folder.rglob("*.json"), *folder.rglob("*.jsonl")])
        candidates = [path for path in candidates if not path.name.endswith("_samples.jsonl")]
        files = self._keep_inside(folder, candidates)
        if required and not files:
            hint = "give the output folder of lm-eval, lighteval, Inspect (as json) or EuroEval"
            raise DataError("the folder holds no .json results", where=str(folder), hint=hint)
        return files

    def _keep_inside(self, folder: Path, candidates: list[Path]) -> list[Path]:
        """Return the files and folders that lie in a folder; links that lead out of it are passed over."""
        inside = folder.resolve()
        kept = [path for path in candidates if path.resolve().is_relative_to(inside)]
        outside_count = len(candidates) - len(kept)
        if outside_count:
            self.notes.append(f"{outside_count} links that lead out of {folder} are passed over")
        return kept


def read_score_files(
    source: Path | pd.DataFrame,
    *,
    metric: str | None = None,
    subtasks: bool = False,
    column_map: Mapping[str, str] | None = None,
    hints: ColumnHints | None = None,
) -> FileScores:
    """Read a file, a folder of results of lm-eval, lighteval, Inspect or EuroEval, or a pandas table.

    ``metric`` picks a metric where a benchmark has several. A group such as MMLU counts as one benchmark; ``subtasks``
    takes its members instead. ``column_map`` says which column of a table is which field (``{"score": "Accuracy"}``),
    ``hints`` what its columns of scores are.
    """
    options = _ReadOptions(
        metric=metric,
        subtasks=subtasks,
        column_map=column_map or {},
        hints=hints or ColumnHints(),
    )
    where = str(source) if isinstance(source, Path) else "DataFrame"
    try:
        if isinstance(source, Path):
            beside = ColumnHints.read_beside(source)
            options = replace(options, hints=beside.merged(options.hints))
        reader = _FileReader(options)
        if not isinstance(source, Path):
            entries = reader.read_table(_table_of_frame(source))
        elif source.is_dir():
            entries = reader.read_folder(source)
        else:
            entries = reader.read_file(source)
        return FileScores(
            scores=assemble_matrices(entries, where=where),
            notes=tuple(dict.fromkeys(reader.notes)),
            layout=reader.layouts[0] if reader.layouts else None,
            items=collect_items(entries),
        )
    except FileNotFoundError:
        hint = "run a study first, which makes a store, or name a store, a table or a folder of results"
        raise DataError("there is no such file", where=where, hint=hint) from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror or error}", where=where) from None
    except RecursionError:  # JSON that can be parsed, and is too deep to be written or shown
        raise DataError("it is nested too deeply", where=where) from None


def _table_of_frame(frame: pd.DataFrame) -> RawTable:
    """Take a pandas table: models × tasks with the models as index or column, or one score a row."""
    import pandas as pd

    if not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.rename_axis(frame.index.name or "model").reset_index()
    rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    placed = tuple((f"row {number}", row) for number, row in enumerate(rows, 1))
    return RawTable("DataFrame", tuple(map(str, frame.columns)), placed)


def _time_in_name(path: Path) -> str:
    """Return the time in a file's name, as lm-eval and Inspect put it there; empty where there is none."""
    time = _TIME_IN_NAME.search(path.name)
    return time[0].replace(":", "-") if time else ""

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
from potentia.formats.lm_eval import find_file_naming, read_lm_eval_results
from potentia.formats.model_names import FileNaming, choose_model_names
from potentia.formats.paper_scores import read_paper_scores
from potentia.formats.table import (
    RawTable,
    read_parquet_table,
    read_text_table,
    table_from_json,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Outcomes, ScoreMatrix, TaskOutcomes

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
    task_groups: Mapping[str, str] = field(default_factory=dict)  # that the file says, by task


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
    # Whether a score that is NaN is left out with a note, as in a folder of many files. In a file it is an error.
    skips_missing_scores: bool = False
    missing_scores: list[MissingScoreError] = field(default_factory=list)
    layouts: list[TableLayout] = field(default_factory=list)
    has_model_folders: bool = False  # whether a folder that was read holds models
    namings: dict[Path, FileNaming] = field(default_factory=dict)  # of lm-eval's files

    def read_file(self, score_file: Path) -> list[ScoreEntry]:
        """Read one file of any kind."""
        with check_plain_file(score_file, LARGEST_DATA, DataError).open("rb") as file:
            start = file.read(4096)
        if start.startswith(b"PAR1"):
            return self.read_table(read_parquet_table(score_file))
        if start.startswith(b"PK"):
            hint = "for a log of Inspect: inspect log convert FILE --to json --output-dir logs-json"
            raise DataError(
                "this is a packed archive, no score file", where=str(score_file), hint=hint
            )
        suffix = score_file.suffix.casefold()
        if suffix in (".yaml", ".yml"):
            hub_entries = read_hub_file(score_file, self.notes)
            return self._note_hub_results(hub_entries)
        if suffix == ".jsonl":
            return self.read_records(list(read_json_lines(score_file)), score_file)
        first_bytes = start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if first_bytes.startswith((b"{", b"[")) or suffix == ".json":
            return self.read_json(load_json(score_file), score_file)
        return self.read_table(read_text_table(score_file))

    def _note_hub_results(self, entries: list[ScoreEntry]) -> list[ScoreEntry]:
        """Say what was taken for granted of results that name no metric, and give each task one scale."""
        unnamed = [entry for entry in entries if not entry.metric.name]
        if unnamed:
            note = "the Hub's results name no metric: higher counts as better"
            lower_is_better = {entry.task for entry in unnamed if not entry.metric.higher_is_better}
            if lower_is_better:
                note += f", lower on {', '.join(sorted(lower_is_better))}"
            self.notes.append(note)
        return scale_hub_entries(entries, self.notes)

    def read_table(self, table: RawTable) -> list[ScoreEntry]:
        """Read a table of any layout."""
        rows = read_score_rows(table, self.options.column_map, self.options.hints)
        self.notes += rows.notes
        if rows.layout is not None:
            self.layouts.append(rows.layout)
        entries = entries_from_rows(rows.rows, source=table.source, metric=self.options.metric)
        return list(entries)

    def read_json(self, content: object, score_file: Path) -> list[ScoreEntry]:
        """Read a JSON file, whose keys tell which tool wrote it."""
        source = str(score_file)
        metric = self.options.metric
        if isinstance(content, list):
            return self.read_records(content, score_file)
        if not isinstance(content, dict):
            raise DataError("this is not a score file: the top is not an object", where=source)
        if is_inspect_log(content):
            return [read_inspect_log(content, source, metric=metric)]
        if is_every_eval_ever(content):
            return self.read_records([content], score_file)
        if "results" in content:
            naming = find_file_naming(content, score_file)
            if naming is not None:
                self.namings[score_file] = naming
            entries = read_lm_eval_results(
                content,
                score_file,
                metric=metric,
                subtasks=self.options.subtasks,
                on_missing_score=self._on_missing_score,
            )
            return list(entries)
        return list(read_paper_scores(content, source))

    def read_records(self, records: list[object], path: Path) -> list[ScoreEntry]:
        """Read a list of JSON values: records of EuroEval, of Every Eval Ever, or the rows of a table."""
        source = str(path)
        euroeval = [parse_euroeval(record, source) for record in records]
        euroeval_records = [record for record in euroeval if record is not None]
        if records and len(euroeval_records) == len(records):
            return self._read_euroeval_records(euroeval_records, source)
        objects = [record for record in records if isinstance(record, dict)]
        model_runs = [content for content in objects if is_every_eval_ever(content)]
        if records and len(model_runs) == len(records):
            entries: list[ScoreEntry] = []
            for content in model_runs:
                entries += read_every_eval_ever(
                    content, path, on_missing_score=self._on_missing_score
                )
            return entries
        return self.read_table(table_from_json(records, source))

    @property
    def _on_missing_score(self) -> Callable[[MissingScoreError], None] | None:
        """What is done with a score that is NaN; None: it is an error."""
        return self.missing_scores.append if self.skips_missing_scores else None

    def _read_euroeval_records(
        self, records: list[EuroEvalRecord], source: str
    ) -> list[ScoreEntry]:
        entries = []
        for record_number, record in enumerate(records, 1):
            location = f"{source}, line {record_number}"
            try:
                entries.append(read_euroeval(record, location, metric=self.options.metric))
            except MissingScoreError as error:
                if not self.skips_missing_scores:
                    raise
                self.missing_scores.append(error)
        return entries

    def read_folder(self, folder: Path) -> list[ScoreEntry]:
        """Read all results of a folder; of a cell that was measured again the latest counts.

        A score that is NaN is left out, and a note says so.
        """
        self.skips_missing_scores = True
        latest: dict[tuple[str, str, str], tuple[str, ScoreEntry]] = {}
        duplicates: list[ScoreEntry] = []
        remeasured: Counter[str] = Counter()
        hub_entries: list[ScoreEntry] = []
        for hub_folder in self._keep_inside(folder, sorted(folder.rglob(HUB_FOLDER))):
            hub_entries += read_hub_folder(hub_folder, self.notes)
        for entry in self._note_hub_results(hub_entries):
            latest[entry.protocol, entry.model, entry.task] = ("", entry)
        results = self._find_results(folder, required=not hub_entries)
        try:
            entries_by_file = {path: self._read_file_of_folder(path) for path in results}
        except DataError as error:
            if not self.has_model_folders:
                raise
            raise _models_without_scores_error(folder) from error
        entries_by_file = self._rename_models(entries_by_file)
        for results_path in sorted(results, key=lambda path: (_time_in_name(path), path)):
            time = _time_in_name(results_path)
            for entry in entries_by_file[results_path]:
                cell = (entry.protocol, entry.model, entry.task)
                earlier_time, earlier = latest.setdefault(cell, (time, entry))
                # the entry just put in, or one with the same score: a copy of the same file says nothing new
                if earlier.value == entry.value:
                    continue
                if earlier_time < time:
                    latest[cell] = (time, entry)
                    remeasured[entry.model] += 1
                else:
                    # The same cell, no later time and another score: which one counts is not known.
                    # ``assemble_matrices`` refuses them, and names both files.
                    duplicates.append(entry)
        for model, remeasured_count in remeasured.items():
            note = (
                f"{remeasured_count} score(s) were measured more than once; the latest run counts"
            )
            self.notes.append(f"{model}: {note}")
        if self.missing_scores:
            self.notes.append(self._describe_missing_scores())
        return [entry for _, entry in latest.values()] + duplicates

    def _read_file_of_folder(self, score_file: Path) -> list[ScoreEntry]:
        try:
            return self.read_file(score_file)
        except MissingScoreError as error:
            self.missing_scores.append(error)
            return []

    def _rename_models(
        self, entries_by_file: Mapping[Path, list[ScoreEntry]]
    ) -> dict[Path, list[ScoreEntry]]:
        """Return the entries with each model called as the names of its files say, where paths of weights mislead.

        They do where two models lie in folders of the same name, or one model lies in several folders.
        """
        chosen = choose_model_names(list(self.namings.values()))
        self.notes += chosen.notes
        renamed_entries = dict(entries_by_file)
        for file, model in chosen.names.items():
            path_name = self.namings[file].model
            renamed_entries[file] = [
                replace(entry, model=model + entry.model.removeprefix(path_name))
                for entry in entries_by_file[file]
            ]
        return renamed_entries

    def _describe_missing_scores(self) -> str:
        missing_count = len(self.missing_scores)
        places = [str(error.where) for error in self.missing_scores]
        scores = "1 score is" if missing_count == 1 else f"{missing_count} scores are"
        listed = ", ".join(places[:3])
        omitted_count = f" and {missing_count - 3} more" if missing_count > 3 else ""
        return f"{scores} missing or NaN and left out: {listed}{omitted_count}"

    def _find_results(self, folder: Path, *, required: bool) -> list[Path]:
        """Return the files of results in a folder, those of lm-eval where there are any."""
        candidates = sorted(folder.rglob("results*.json"))
        if not candidates:
            candidates = sorted([*folder.rglob("*.json"), *folder.rglob("*.jsonl")])
        candidates = [
            candidate for candidate in candidates if not candidate.name.endswith("_samples.jsonl")
        ]
        files = self._keep_inside(folder, candidates)
        model_folders = {path.parent for path in files if is_model_config(path)}
        files = [path for path in files if path.parent not in model_folders]
        self.has_model_folders = bool(model_folders)
        if required and not files and model_folders:
            raise _models_without_scores_error(folder)
        if required and not files:
            hint = "give the output folder of lm-eval, lighteval, Inspect (as json) or EuroEval"
            raise DataError("the folder holds no .json results", where=str(folder), hint=hint)
        return files

    def _keep_inside(self, folder: Path, candidates: list[Path]) -> list[Path]:
        """Return the files and folders that lie in a folder; links that lead out of it are passed over."""
        inside = folder.resolve()
        inside_files = [
            candidate for candidate in candidates if candidate.resolve().is_relative_to(inside)
        ]
        outside_count = len(candidates) - len(inside_files)
        if outside_count:
            self.notes.append(f"{outside_count} links that lead out of {folder} are passed over")
        return inside_files


def _models_without_scores_error(folder: Path) -> DataError:
    return DataError(
        "the folder holds models and no scores",
        where=str(folder),
        hint="run a study first: potentia run --models FOLDER … --tasks arc_easy; or name the file of scores",
    )


def is_model_config(path: Path) -> bool:
    """Whether a file is the configuration of a model, beside which its weights and tokenizer lie."""
    if path.name != "config.json":
        return False
    try:
        content = load_json(path)
    except DataError:
        return False
    return isinstance(content, dict) and bool({"model_type", "architectures"} & set(content))


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
    source_name = str(source) if isinstance(source, Path) else "DataFrame"
    try:
        if isinstance(source, Path):
            beside = ColumnHints.read_beside(source)
            options = replace(options, hints=beside.overridden_by(options.hints))
        reader = _FileReader(options)
        if not isinstance(source, Path):
            entries = reader.read_table(_table_of_frame(source))
        elif source.is_dir():
            entries = reader.read_folder(source)
        else:
            entries = reader.read_file(source)
        items = collect_items(entries)
        return FileScores(
            scores=assemble_matrices(entries, source=source_name),
            notes=tuple(dict.fromkeys([*reader.notes, *_describe_passages(items)])),
            layout=reader.layouts[0] if reader.layouts else None,
            items=items,
            task_groups=_collect_task_groups(entries),
        )
    except FileNotFoundError:
        hint = "run a study first, which makes a store, or name a store, a table or a folder of results"
        raise DataError("there is no such file", where=source_name, hint=hint) from None
    except OSError as error:
        raise DataError(
            f"it cannot be read: {error.strerror or error}", where=source_name
        ) from None
    except RecursionError:  # JSON that can be parsed, and is too deep to be written or shown
        raise DataError("it is nested too deeply", where=source_name) from None


def _collect_task_groups(entries: list[ScoreEntry]) -> dict[str, str]:
    """Return the group of each task of which a file says one; where files differ, the first counts."""
    group_by_task: dict[str, str] = {}
    for entry in entries:
        if entry.task_group:
            group_by_task.setdefault(entry.task, entry.task_group)
    return group_by_task


def _describe_passages(items: Mapping[Protocol, Mapping[str, TaskOutcomes]]) -> list[str]:
    """Say of every task whose examples share passages how many; what is inferred from a file is told."""
    notes = []
    for outcomes_by_task in items.values():
        for task, outcomes in outcomes_by_task.items():
            labels = outcomes.cluster_by_example.values()
            if labels:
                notes.append(
                    f"{task}: {len(labels):,} examples share {len(set(labels)):,} passages: "
                    "standard errors and tests allow for it."
                )
    return notes


def _table_of_frame(frame: pd.DataFrame) -> RawTable:
    """Take a pandas table: models × tasks with the models as index or column, or one score a row."""
    import pandas as pd

    if not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.rename_axis(frame.index.name or "model").reset_index()
    rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    placed = tuple((f"row {row_number}", row) for row_number, row in enumerate(rows, 1))
    return RawTable("DataFrame", tuple(map(str, frame.columns)), placed)


def _time_in_name(results_file: Path) -> str:
    """Return the time in a file's name, as lm-eval and Inspect put it there; empty where there is none."""
    time = _TIME_IN_NAME.search(results_file.name)
    return time[0].replace(":", "-") if time else ""

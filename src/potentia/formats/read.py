"""Scores from files, told apart by their content: tables of any layout, and the results of evaluation tools."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import DataError, InputError
from potentia.files import LARGEST_DATA, plain_file
from potentia.formats import harness, table
from potentia.formats.columns import Reading, Says
from potentia.formats.entries import Entry, assemble, entries, items_of
from potentia.formats.layout import recognise
from potentia.formats.table import RawTable
from potentia.formats.travel import every_eval_ever_entries, is_every_eval_ever
from potentia.store import CellRecord, Store
from potentia.values.protocol import Protocol
from potentia.values.provenance import Provenance
from potentia.values.scores import Outcomes, ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FileScores:
    """One matrix per protocol, and what a reader must know of how the file was read."""

    scores: dict[Protocol, ScoreMatrix]
    notes: tuple[str, ...] = ()
    reading: Reading | None = None
    items: Mapping[Protocol, Outcomes] = field(default_factory=dict)


@dataclass
class _Wishes:
    """What is asked for, and what is found on the way."""

    metric: str | None
    subtasks: bool
    columns: Mapping[str, str]
    says: Says
    notes: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)


def read_files(
    source: Path | pd.DataFrame,
    *,
    metric: str | None = None,
    subtasks: bool = False,
    columns: Mapping[str, str] | None = None,
    says: Says | None = None,
) -> FileScores:
    """Read a file, a folder of results of lm-eval, lighteval, Inspect or EuroEval, or a pandas table.

    ``metric`` picks a metric where a benchmark has several. A group such as MMLU counts as one benchmark; ``subtasks``
    takes its members instead. ``columns`` says which column of a table is which field (``{"score": "Accuracy"}``),
    ``says`` what its columns of scores are.
    """
    wishes = _Wishes(metric, subtasks, columns or {}, says or Says())
    where = str(source) if isinstance(source, Path) else "DataFrame"
    try:
        if isinstance(source, Path):
            wishes.says = Says.beside(source).joined(wishes.says)
            found = _from_folder(source, wishes) if source.is_dir() else _from_file(source, wishes)
        else:
            found = _from_table(_frame(source), wishes)
    except FileNotFoundError:
        hint = "run a study first, which makes a store, or name a store, a table or a folder of results"
        raise DataError("there is no such file", where=where, hint=hint) from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror or error}", where=where) from None
    reading = wishes.readings[0] if wishes.readings else None
    return FileScores(
        assemble(found, where=where), tuple(dict.fromkeys(wishes.notes)), reading, items_of(found)
    )


def _frame(frame: pd.DataFrame) -> RawTable:
    """Take a pandas table: models × tasks with the models as index or column, or one score a row."""
    import pandas as pd

    if not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.rename_axis(frame.index.name or "model").reset_index()
    rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    return RawTable(
        "DataFrame",
        tuple(map(str, frame.columns)),
        tuple((f"row {i}", row) for i, row in enumerate(rows, 1)),
    )


def _from_file(path: Path, wishes: _Wishes) -> list[Entry]:
    with plain_file(path, LARGEST_DATA, DataError).open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"PAR1"):
        return _from_table(table.read_parquet_table(path), wishes)
    if start.startswith(b"PK"):
        hint = "for a log of Inspect: inspect log convert FILE --to json --output-dir logs-json"
        raise DataError("this is a packed archive, no score file", where=str(path), hint=hint)
    opening = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if path.suffix.casefold() == ".jsonl":
        return _from_records(list(table.json_lines(path)), str(path), wishes)
    if opening.startswith((b"{", b"[")) or path.suffix.casefold() == ".json":
        return _from_json(table.load_json(path), path, wishes)
    return _from_table(table.read_text_table(path), wishes)


def _from_table(given: RawTable, wishes: _Wishes) -> list[Entry]:
    layout = recognise(given, wishes.columns, wishes.says)
    wishes.notes += layout.notes
    wishes.readings += [layout.reading] if layout.reading is not None else []
    return list(entries(layout.rows, where=given.where, metric=wishes.metric))


def _from_json(content: Any, path: Path, wishes: _Wishes) -> list[Entry]:
    if isinstance(content, list):
        return _from_records(content, str(path), wishes)
    if not isinstance(content, dict):
        raise DataError("this is no score file: the top is no object", where=str(path))
    if harness.is_inspect(content):
        return [harness.inspect_entry(content, str(path), metric=wishes.metric)]
    if is_every_eval_ever(content):
        if harness.as_euroeval(content) is not None:
            return _from_records([content], str(path), wishes)
        return list(every_eval_ever_entries(content, path))
    if "results" in content:
        return list(
            harness.harness_entries(content, path, metric=wishes.metric, subtasks=wishes.subtasks)
        )
    return list(harness.paper_entries(content, str(path)))


def _from_records(records: list[Any], where: str, wishes: _Wishes) -> list[Entry]:
    try:
        european = [harness.as_euroeval(record) for record in records]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"a record of EuroEval lacks {error}", where=where) from None
    if records and None not in european:
        numbered = enumerate(filter(None, european), 1)
        return [
            harness.euroeval_entry(record, f"{where}, line {n}", metric=wishes.metric)
            for n, record in numbered
        ]
    if records and all(map(is_every_eval_ever, records)):
        return [
            entry for record in records for entry in every_eval_ever_entries(record, Path(where))
        ]
    return _from_table(table.records_table(records, where), wishes)


def _from_folder(folder: Path, wishes: _Wishes) -> list[Entry]:
    """Read all results of a folder; of a cell that was measured again the latest counts."""
    known: dict[tuple[str, str, str], tuple[str, Entry]] = {}
    twice: list[Entry] = []
    older: Counter[str] = Counter()
    for when, path in sorted((_written_at(path), path) for path in _results_in(folder, wishes)):
        for entry in _from_file(path, wishes):
            place = (entry.protocol, entry.model, entry.task)
            before, twin = known.setdefault(place, (when, entry))
            if twin.value == entry.value:  # a copy of the same file says nothing new
                continue
            if before < when:
                known[place] = when, entry
                older[entry.model] += 1
            else:
                twice.append(entry)
    again = "score(s) were measured again, and the latest run counts"
    wishes.notes += [f"{model}: {count} {again}" for model, count in older.items()]
    return [entry for _, entry in known.values()] + twice


def _results_in(folder: Path, wishes: _Wishes) -> list[Path]:
    there = sorted(folder.rglob("results*.json")) or sorted(
        [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]
    )
    there = [path for path in there if not path.name.endswith("_samples.jsonl")]
    files = [path for path in there if path.resolve().is_relative_to(folder.resolve())]
    if len(files) < len(there):
        wishes.notes.append(
            f"{len(there) - len(files)} links that lead out of {folder} are passed over"
        )
    if not files:
        hint = "give the output folder of lm-eval, lighteval, Inspect (as json) or EuroEval"
        raise DataError("the folder holds no .json results", where=str(folder), hint=hint)
    return files


def _written_at(path: Path) -> str:
    """Return the time in a file's name, as lm-eval and Inspect put it there; empty where there is none."""
    found = re.search(r"\d{4}-\d\d-\d\dT\d\d[-:]\d\d[-:]\d\d[\d.]*", path.name)
    return found[0].replace(":", "-") if found else ""


class StagedScores:
    """Scores by stage (before tuning, after, at steps on the way) and by any metric: a file that is read for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: dict[str | None, dict[Protocol, ScoreMatrix]] = {None: read_files(path).scores}

    def stages(self) -> tuple[str, ...]:
        """Return the names of the stages."""
        return tuple(dict.fromkeys(protocol.base for protocol in self._read[None]))

    def _by(self, metric: str) -> dict[Protocol, ScoreMatrix]:
        if metric not in self._read:
            with suppress(DataError):  # no score is by it
                self._read[metric] = read_files(self.path, metric=metric).scores
        return self._read.get(metric, {})

    def scores(
        self, stage: str, benchmark: str, metric: str, *, step: int | None = None
    ) -> dict[str, float]:
        """Return model → score of one benchmark at one stage (and step)."""
        matrix = self._by(metric).get(Protocol(stage) if step is None else Protocol(stage).at(step))
        found = (
            {model: score.value for model, task, score in matrix.scores() if task == benchmark}
            if matrix
            else {}
        )
        if not found:
            at = "" if step is None else f", step {step}"
            hint = f"stages there: {', '.join(self.stages())}"
            raise InputError(
                f"no {benchmark} ({metric}) at stage {stage}{at}", where=str(self.path), hint=hint
            )
        return found

    def steps(self, stage: str, benchmark: str, metric: str) -> dict[int, dict[str, float]]:
        """Return step → model → score of one benchmark."""
        by = {
            p.step: m
            for p, m in self._by(metric).items()
            if p.base == stage and benchmark in m.tasks
        }
        return {
            step: self.scores(stage, benchmark, metric, step=step)
            for step in sorted(filter(None, by))
        }

    def matrix(self, stage: str, metrics: Mapping[str, str]) -> ScoreMatrix:
        """Return one stage as a matrix of benchmarks, each by the metric given for it."""
        columns = {name: self.scores(stage, name, metric) for name, metric in metrics.items()}
        models = list(dict.fromkeys(model for column in columns.values() for model in column))
        values = [[column.get(model, math.nan) for column in columns.values()] for model in models]
        return ScoreMatrix.build(
            models, list(columns), values, metrics=list(metrics.values()), protocol=stage
        )


# --- into a store ----------------------------------------------------------------------------------------------------

_BATCH = 5000


@dataclass(frozen=True)
class Imported:
    """What an import brought: new cells, and those that the store had already."""

    study: str
    new: int
    known: int


def import_scores(
    store: Store, matrices: Mapping[Protocol, ScoreMatrix], *, source: str, name: str | None = None
) -> Imported:
    """Commit every score as a cell of the study ``name`` (the source's file name); the same scores come in once."""
    study = name or Path(source).name or source
    record = store.study(study, f"import-{_digest(study)}", {"name": study, "imported": True})
    cells = []
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            score = replace(
                score, origin=replace(score.origin, source=score.origin.source or source)
            )
            told = (
                score.value,
                score.stderr if score.stderr == score.stderr else None,
                score.n,
                astuple(score.metric),
            )
            key = f"import-{_digest([study, protocol, model, task, told, score.seeds, astuple(score.origin)[:4]])}"
            metric = score.metric.name or "score"
            provenance = Provenance(imported_from=source)
            cells.append(
                CellRecord(
                    key, record.key, model, task, protocol, {metric: score}, metric, provenance
                )
            )
    new = sum(
        store.commit_cells(cells[start : start + _BATCH]) for start in range(0, len(cells), _BATCH)
    )
    return Imported(study=study, new=new, known=len(cells) - new)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:48]

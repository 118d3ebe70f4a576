"""What a report is made of: scores, facts, findings, and, from a store, cells, lanes, failures and items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.rankings.background import Background
from potentia.analysis.rankings.find import in_order
from potentia.analysis.stats.paired import Outcomes
from potentia.errors import InputError, PotentiaError
from potentia.findings import Finding
from potentia.report.findings import (
    background_of,
    facts_table,
    find_rankings,
    find_test_task,
    is_store,
    study_records,
)
from potentia.report.outcomes import read_outcomes
from potentia.scores import ItemOutcome, ScoreMatrix
from potentia.store.records import CellRecord, FailureRecord, LaneRecord, StudyRecord

if TYPE_CHECKING:
    from potentia.facts import ModelTable
    from potentia.store import Store

ITEMS = 40  # of each cell, half of them wrong, where the whole stays under ITEM_BUDGET
ITEM_BUDGET = 6_000  # items in one file
READ_BUDGET = 300_000  # items read to choose them from; cells after that show none


@dataclass(frozen=True)
class ItemSample:
    """Some items of a cell: how many there are, how many are right (None where items are not right or wrong)."""

    total: int
    right: int | None
    shown: tuple[ItemOutcome, ...]


@dataclass(frozen=True)
class ReportData:
    """Everything that the sections are made of. A file of scores has no studies, cells, lanes or items."""

    source: str
    title: str
    made: str
    scores: Mapping[str, ScoreMatrix]
    background: Background
    findings: Mapping[str, Finding]
    problem: str = ""  # why there is no ranking
    test_task: Mapping[str, Finding] = field(default_factory=dict)
    test_task_problems: tuple[str, ...] = ()
    studies: tuple[StudyRecord, ...] = ()
    cells: tuple[CellRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    lanes: tuple[LaneRecord, ...] = ()
    items: Mapping[str, ItemSample] = field(default_factory=dict)
    items_per_cell: int = 0
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)  # by protocol: values of all items

    @property
    def protocols(self) -> list[str]:
        """Protocols from the least to the most preparation."""
        return in_order(self.scores)

    @property
    def main(self) -> str:
        """The protocol that the report ranks by: the most prepared one, train-before-test before adjust."""
        prepared = [name for name in ("train_before_test", "adjust") if name in self.scores]
        return next(iter([*prepared, *self.protocols]), "")


def read_report(
    source: str | Path, *, study: str | None = None, items: int | None = None, facts: Path | None = None
) -> ReportData:
    """Read a store or any file of scores and compute its findings.

    ``items`` is how many items of each cell to take (half of them wrong); None means 40, or fewer where the cells are
    so many that one file could not hold them; 0 means none.
    """
    from potentia.store import Store, read_scores

    records = study_records(source, study)
    if is_store(source) and study is not None and not records:
        known = ", ".join(sorted({record.name for record in study_records(source)})) or "none"
        raise InputError(f"no study {study!r} in {source}", hint=f"there are: {known}")
    table = facts_table(records, facts)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not is_store(source):
        return _with_findings(read_scores(source), table, source=Path(source).name, title=Path(source).name, made=made)
    with Store.open(source, readonly=True) as store:
        only = records[0].key if study is not None else None
        protocols = store.protocols(study=only)
        scores = {protocol: store.matrix(protocol, study=only) for protocol in protocols}
        cells = tuple(store.cells(study=only))
        failures = tuple(store.failures(study=only))
        lanes = tuple(store.lanes(study=only))
        if not cells and not failures:
            raise InputError("the store holds no scores yet", where=store.where, hint="run a study, or import scores")
        share = items if items is not None else min(ITEMS, ITEM_BUDGET // max(1, len(cells)))
        samples = _samples(store, cells, share)
    return _with_findings(
        scores,
        table,
        source=Path(str(source)).name if "://" not in str(source) else store.where,
        title=records[0].name if len(records) == 1 or study else Path(store.where).stem,
        made=made,
        studies=tuple(records),
        cells=cells,
        failures=failures,
        lanes=lanes,
        items=samples,
        items_per_cell=share,
        outcomes=read_outcomes(source, study=only),
    )


def _with_findings(
    scores: Mapping[str, ScoreMatrix],
    table: ModelTable,
    *,
    source: str,
    title: str,
    made: str,
    studies: tuple[StudyRecord, ...] = (),
    cells: tuple[CellRecord, ...] = (),
    failures: tuple[FailureRecord, ...] = (),
    lanes: tuple[LaneRecord, ...] = (),
    items: Mapping[str, ItemSample] | None = None,
    items_per_cell: int = 0,
    outcomes: Mapping[str, Outcomes] | None = None,
) -> ReportData:
    background = background_of(scores, table)
    findings, problem = find_rankings(scores, background, outcomes)
    test_task, problems = find_test_task(scores, table)
    return ReportData(
        source=source,
        title=title,
        made=made,
        scores=scores,
        background=background,
        findings=findings,
        problem=problem,
        test_task=test_task,
        test_task_problems=tuple(problems),
        studies=studies,
        cells=cells,
        failures=failures,
        lanes=lanes,
        items=items or {},
        items_per_cell=items_per_cell,
        outcomes=outcomes or {},
    )


def _samples(store: Store, cells: tuple[CellRecord, ...], share: int) -> dict[str, ItemSample]:
    """Take items of each cell, until so many were read that the reader would wait."""
    found: dict[str, ItemSample] = {}
    read = 0
    for cell in cells:
        if share and read < READ_BUDGET and (sample := sample_items(store, cell, share)) is not None:
            found[cell.key] = sample
            read += sample.total
    return found


def sample_items(store: Store, cell: CellRecord, count: int) -> ItemSample | None:
    """Take the first wrong and the first right items of a cell; where one kind is short the other fills up."""
    from potentia.store.items import items_path

    if not items_path(store.items_folder, cell.key).exists():  # imported, or the items folder was left behind
        return None
    try:
        outcomes = store.items(cell.key)
    except PotentiaError:  # a damaged file: the scores still stand
        return None
    if not outcomes:
        return None
    if not cell.score.higher_is_better:  # bits per byte: texts are neither right nor wrong
        return ItemSample(len(outcomes), None, tuple(outcomes[:count]))
    right = [item for item in outcomes if item.value > 0.5]
    wrong = [item for item in outcomes if item.value <= 0.5]
    few = min(len(wrong), max(count // 2, count - len(right)))
    shown = sorted([*wrong[:few], *right[: count - few]], key=lambda item: item.doc_id)
    return ItemSample(len(outcomes), len(right), tuple(shown))

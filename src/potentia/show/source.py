"""What a report is made of: the evidence, its findings, and samples of the items behind every cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from potentia.analysis.benchmark import (
    BenchmarkVerdict,
    Classification,
    find_benchmarks,
    find_classification,
)
from potentia.analysis.checkpoints import Training, find_training
from potentia.analysis.completion import Completion, find_outlook
from potentia.analysis.rankings import (
    ENOUGH_MODELS,
    Rankings,
    Scoreboard,
    build_scoreboard,
    find_rankings,
)
from potentia.analysis.registration import ReportSection, SectionContent, SectionRequest
from potentia.errors import InputError, PotentiaError
from potentia.evidence import Evidence
from potentia.extensions import ExtensionKind, load_extensions
from potentia.papers import ProxyOptions, TestTaskOptions
from potentia.store import CellRecord, FailureRecord
from potentia.values.findings import Finding
from potentia.values.protocol import Protocol
from potentia.values.scores import ItemOutcome

MAX_ITEMS_PER_CELL = 40  # half of them wrong, where the whole stays under MAX_ITEMS
MAX_ITEMS = 6_000  # in one file
MAX_ITEMS_READ = 300_000  # to choose them from; cells after that show none
RIGHT_ABOVE = 0.5  # an item with a larger value counts as right

FindingT = TypeVar("FindingT")


@dataclass(frozen=True)
class ItemSample:
    """Some items of a cell: how many there are, how many are right (None where items are not right or wrong)."""

    total: int
    right: int | None
    outcomes: tuple[ItemOutcome, ...]


@dataclass(frozen=True)
class ReportOptions:
    """What a report is asked beyond its scores; what is not asked is shown where the evidence is there by itself."""

    # Without them: newer models against older ones, where models were adjusted.
    test_task: TestTaskOptions | None = None
    proxies: ProxyOptions | None = None  # which task to predict
    baseline: str | None = None  # the method that stability and consistency are compared with
    history: Evidence | None = None  # other models' scores, to predict cells not measured yet
    sections: Mapping[str, Any] = field(default_factory=dict)  # of other registered ones, by id

    def options_by_section(self) -> dict[str, Any]:
        """Return the options of registered sections by the section's id."""
        by_section = {"test-task": self.test_task, "proxies": self.proxies, **self.sections}
        return {
            section_id: options for section_id, options in by_section.items() if options is not None
        }


@dataclass(frozen=True)
class ReportData:
    """Everything that the sections are made of. A file of scores has no studies, cells, lanes or items."""

    evidence: Evidence
    made: str
    rankings: Rankings | None
    board: Scoreboard | None = None  # also of one model, which has no rankings
    problem: str = ""  # why there is no ranking
    benchmarks: tuple[BenchmarkVerdict, ...] = ()
    registered: Mapping[str, SectionContent] = field(default_factory=dict)  # by the section's id
    labelled: tuple[Classification, ...] = ()  # tests on labelled texts of one's own
    training: Training | None = None  # of checkpoints: the runs that they are of
    completion: Completion | None = None  # predictions of cells not measured yet, never scores
    cells: tuple[CellRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    items: Mapping[str, ItemSample] = field(default_factory=dict)
    items_per_cell: int = 0

    @property
    def main(self) -> Protocol:
        """The protocol that the report ranks by."""
        return self.evidence.main or Protocol("")

    @property
    def first(self) -> Protocol:
        """The protocol with the least preparation, which the main one is set against."""
        return next(iter(self.evidence.planned), Protocol(""))

    @property
    def few(self) -> bool:
        """Whether there are too few models to say anything of others."""
        if not self.main:
            return True
        models = self.evidence.planned[self.main].benchmarks().models
        return len(models) < ENOUGH_MODELS

    @property
    def runs(self) -> Training | None:
        """The runs of a study of checkpoints alone: their steps are no rivals."""
        if self.training is None or not self.training.whole:
            return None
        return self.training

    def named(self) -> dict[str, Finding]:
        """Return every finding under the name that the command line and the board's API give it."""
        findings: dict[str, Finding] = {}
        if self.rankings is not None:
            findings |= self.rankings.named()
        for content in self.registered.values():
            findings |= content.named
        for classification in self.labelled:
            findings[f"classification-{classification.task}"] = classification
        if self.training is not None:
            findings["training"] = self.training
        if self.completion is not None:
            findings["completion"] = self.completion
        return findings


def make_report(
    evidence: Evidence, *, items: int | None = None, options: ReportOptions | None = None
) -> ReportData:
    """Compute the findings of evidence and gather what the pages show.

    ``items`` is how many items of each cell to take (half of them wrong); None means 40, or fewer where the cells are
    so many that one file could not hold them; 0 means none.
    """
    options = options or ReportOptions()
    rankings = None
    problem = ""
    try:
        rankings = find_rankings(evidence)
    except PotentiaError as error:
        problem = error.message
    training = _find_or_none(find_training, evidence)
    final_checkpoints = None
    if training is not None and training.whole:
        final_checkpoints = evidence.narrowed(models=training.finals)
    scoreboard = None if rankings is None else rankings.scoreboard
    if final_checkpoints is not None or rankings is None:  # of checkpoints the runs, at their ends
        scoreboard = _find_or_none(
            build_scoreboard, final_checkpoints or evidence, expected_error=PotentiaError
        )
    completion = None
    if final_checkpoints is None:
        completion = _find_or_none(partial(find_outlook, history=options.history), evidence)
    cells = tuple(evidence.cells())
    items_per_cell = items
    if items_per_cell is None:
        items_per_cell = min(MAX_ITEMS_PER_CELL, MAX_ITEMS // max(1, len(cells)))
    return ReportData(
        evidence=evidence,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rankings=rankings,
        board=scoreboard,
        problem=problem,
        benchmarks=find_benchmarks(evidence),
        registered=_find_registered(evidence, options),
        labelled=tuple(find_classification(evidence)),
        training=training,
        completion=completion,
        cells=cells,
        failures=tuple(evidence.failures()),
        items=_sample_items(evidence, cells, items_per_cell),
        items_per_cell=items_per_cell,
    )


def _find_registered(evidence: Evidence, options: ReportOptions) -> dict[str, SectionContent]:
    """Return what the registered sections have to show of the evidence, by the section's id."""
    request = SectionRequest(evidence, options.baseline, options.options_by_section())
    sections: dict[str, ReportSection] = load_extensions(ExtensionKind.SECTION)
    contents = {}
    for section_id, section in sections.items():
        content = section.find(request)
        if content is not None:
            contents[section_id] = content
    return contents


def _find_or_none(
    find: Callable[[Evidence], FindingT],
    evidence: Evidence,
    expected_error: type[PotentiaError] = InputError,
) -> FindingT | None:
    """Return a finding; None where the evidence is not enough for it."""
    try:
        return find(evidence)
    except expected_error:
        return None


def _sample_items(
    evidence: Evidence, cells: tuple[CellRecord, ...], items_per_cell: int
) -> dict[str, ItemSample]:
    """Take items of each cell, until so many were read that the reader would wait."""
    if not items_per_cell:
        return {}
    is_right_or_wrong = {
        cell.key: cell.score.higher_is_better and not cell.score.metric.is_text for cell in cells
    }
    total_items: dict[str, int] = {}
    right_items: dict[str, int | None] = {}

    def choose_items(key: str, values: list[float]) -> list[int]:
        """Take the first wrong and the first right items; where one kind is short the other fills up."""
        total_items[key] = len(values)
        right_items[key] = None
        if not is_right_or_wrong[key]:
            return list(range(min(items_per_cell, len(values))))
        right = [number for number, value in enumerate(values) if value > RIGHT_ABOVE]
        wrong = [number for number, value in enumerate(values) if value <= RIGHT_ABOVE]
        right_items[key] = len(right)
        wrong_shown = min(len(wrong), max(items_per_cell // 2, items_per_cell - len(right)))
        return [*wrong[:wrong_shown], *right[: items_per_cell - wrong_shown]]

    samples: dict[str, ItemSample] = {}
    items_to_read = MAX_ITEMS_READ
    for key, outcomes in evidence.samples(list(is_right_or_wrong), choose_items):
        sample = list(outcomes)
        if is_right_or_wrong[key]:
            sample.sort(key=lambda item: item.doc_id)
        samples[key] = ItemSample(total_items[key], right_items[key], tuple(sample))
        items_to_read -= total_items[key]
        if items_to_read <= 0:
            break
    return samples

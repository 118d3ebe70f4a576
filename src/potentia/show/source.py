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

ITEMS = 40  # of each cell, half of them wrong, where the whole stays under ITEM_BUDGET
ITEM_BUDGET = 6_000  # items in one file
READ_BUDGET = 300_000  # items read to choose them from; cells after that show none

Found = TypeVar("Found")


@dataclass(frozen=True)
class ItemSample:
    """Some items of a cell: how many there are, how many are right (None where items are not right or wrong)."""

    total: int
    right: int | None
    shown: tuple[ItemOutcome, ...]


@dataclass(frozen=True)
class ReportOptions:
    """What a report is asked beyond its scores; what is not asked is shown where the evidence is there by itself."""

    test_task: TestTaskOptions | None = (
        None  # else newer models against older ones, where models were adjusted
    )
    proxies: ProxyOptions | None = None  # which task to predict
    baseline: str | None = None  # the method that stability and consistency are compared with
    history: Evidence | None = (
        None  # other models' scores, to predict cells that are not measured yet
    )
    sections: Mapping[str, Any] = field(
        default_factory=dict
    )  # options of other registered sections, by id

    def options_by_section(self) -> dict[str, Any]:
        """Return the options of registered sections by the section's id."""
        by_section = {"test-task": self.test_task, "proxies": self.proxies, **self.sections}
        return {id: options for id, options in by_section.items() if options is not None}


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
    completion: Completion | None = (
        None  # of a study with cells not measured yet: predictions, never scores
    )
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
        return (
            len(self.evidence.planned[self.main].benchmarks().models) < ENOUGH_MODELS
            if self.main
            else True
        )

    @property
    def runs(self) -> Training | None:
        """The runs of a study of checkpoints alone: their steps are no rivals."""
        return self.training if self.training is not None and self.training.whole else None

    def named(self) -> dict[str, Finding]:
        """Return every finding under the name that the command line and the board's API give it."""
        found: dict[str, Finding] = {}
        if self.rankings is not None:
            found |= self.rankings.named()
        for content in self.registered.values():
            found |= content.named
        found |= {f"classification-{one.task}": one for one in self.labelled}
        single = {"training": self.training, "completion": self.completion}
        return found | {name: f for name, f in single.items() if f is not None}


def make_report(
    evidence: Evidence, *, items: int | None = None, options: ReportOptions | None = None
) -> ReportData:
    """Compute the findings of evidence and gather what the pages show.

    ``items`` is how many items of each cell to take (half of them wrong); None means 40, or fewer where the cells are
    so many that one file could not hold them; 0 means none.
    """
    options = options or ReportOptions()
    rankings, problem = None, ""
    try:
        rankings = find_rankings(evidence)
    except PotentiaError as error:
        problem = error.message
    training = _or_none(find_training, evidence)
    ends = (
        evidence.narrowed(models=training.finals)
        if training is not None and training.whole
        else None
    )
    board = rankings.scoreboard if rankings is not None else None
    if ends is not None or rankings is None:  # of checkpoints the runs, each at its end
        board = _or_none(build_scoreboard, ends or evidence, but=PotentiaError)
    cells = tuple(evidence.cells())
    share = items if items is not None else min(ITEMS, ITEM_BUDGET // max(1, len(cells)))
    return ReportData(
        evidence=evidence,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rankings=rankings,
        board=board,
        problem=problem,
        benchmarks=find_benchmarks(evidence),
        registered=_find_registered(evidence, options),
        labelled=tuple(find_classification(evidence)),
        training=training,
        completion=None
        if ends is not None
        else _or_none(partial(find_outlook, history=options.history), evidence),
        cells=cells,
        failures=tuple(evidence.failures()),
        items=_samples(evidence, cells, share),
        items_per_cell=share,
    )


def _find_registered(evidence: Evidence, options: ReportOptions) -> dict[str, SectionContent]:
    """Return what the registered sections have to show of the evidence, by the section's id."""
    request = SectionRequest(evidence, options.baseline, options.options_by_section())
    sections: dict[str, ReportSection] = load_extensions(ExtensionKind.SECTION)
    contents = {}
    for id, section in sections.items():
        content = section.find(request)
        if content is not None:
            contents[id] = content
    return contents


def _or_none(
    find: Callable[[Evidence], Found], evidence: Evidence, but: type[PotentiaError] = InputError
) -> Found | None:
    """Return a finding; None where the evidence is not enough for it."""
    try:
        return find(evidence)
    except but:
        return None


def _samples(
    evidence: Evidence, cells: tuple[CellRecord, ...], share: int
) -> dict[str, ItemSample]:
    """Take items of each cell, until so many were read that the reader would wait."""
    found: dict[str, ItemSample] = {}
    judged = {
        c.key: c.score.higher_is_better and not c.score.metric.is_text for c in cells
    }  # right or wrong
    sizes: dict[str, tuple[int, int | None]] = {}

    def choose(key: str, values: list[float]) -> list[int]:
        """Take the first wrong and the first right items; where one kind is short the other fills up."""
        right = [k for k, value in enumerate(values) if value > 0.5]
        sizes[key] = len(values), len(right) if judged[key] else None
        if not judged[key]:
            return list(range(min(share, len(values))))
        wrong = [k for k, value in enumerate(values) if value <= 0.5]
        few = min(len(wrong), max(share // 2, share - len(right)))
        return [*wrong[:few], *right[: share - few]]

    left = READ_BUDGET
    for key, outcomes in evidence.samples(list(judged), choose) if share else ():
        shown = sorted(outcomes, key=lambda item: item.doc_id) if judged[key] else outcomes
        found[key] = ItemSample(*sizes[key], tuple(shown))
        left -= sizes[key][0]
        if left <= 0:
            break
    return found

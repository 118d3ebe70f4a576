"""What a report is made of: the evidence, its findings, and samples of the items behind every cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, TypeVar

from potentia.analysis.benchmark import (
    BenchmarkVerdict,
    Classification,
    WrittenAnswers,
    find_benchmarks,
    find_classification,
    find_written_answers,
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
from potentia.analysis.registration import (
    ReportOpening,
    ReportSection,
    SectionContent,
    SectionRequest,
)
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
    history: Evidence | None = None  # other models' scores, to predict results not measured yet
    sections: Mapping[str, Any] = field(default_factory=dict)  # of other registered ones, by id
    only: tuple[str, ...] = ()  # ids of the sections to make; all where empty

    def options_by_section(self) -> dict[str, Any]:
        """Return the options of registered sections by the section's id."""
        by_section = {"test-task": self.test_task, "proxies": self.proxies, **self.sections}
        return {
            section_id: options for section_id, options in by_section.items() if options is not None
        }


@dataclass(frozen=True)
class ReportData:
    """What the sections are made of, computed when the first section asks for it.

    A file of scores has no studies, cells, lanes or items.
    """

    evidence: Evidence
    options: ReportOptions = field(default_factory=lambda: ReportOptions())
    max_items: int | None = None  # of each cell; None takes as many as one file holds
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    _contents: dict[str, SectionContent | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __repr__(self) -> str:
        """Return what the report is of."""
        return f"ReportData({self.evidence!r})"

    @property
    def ranking_protocol(self) -> Protocol:
        """The protocol that the report ranks by."""
        return self.evidence.main or Protocol("")

    @property
    def baseline_protocol(self) -> Protocol:
        """The protocol with the least preparation, which the ranking one is compared with."""
        return next(iter(self.evidence.final_scores), Protocol(""))

    @property
    def has_few_models(self) -> bool:
        """Whether there are too few models to say anything of others."""
        if not self.ranking_protocol:
            return True
        models = self.evidence.final_scores[self.ranking_protocol].benchmarks().models
        return len(models) < ENOUGH_MODELS

    @cached_property
    def _rankings_or_problem(self) -> Rankings | str:
        try:
            return find_rankings(self.evidence)
        except PotentiaError as error:
            return error.message

    @property
    def rankings(self) -> Rankings | None:
        """The rankings; None where there are none, and ``problem`` says why."""
        result = self._rankings_or_problem
        return None if isinstance(result, str) else result

    @property
    def problem(self) -> str:
        """Why there is no ranking."""
        result = self._rankings_or_problem
        return result if isinstance(result, str) else ""

    @cached_property
    def training(self) -> Training | None:
        """The pretraining runs that checkpoints are of."""
        return _find_or_none(find_training, self.evidence)

    @property
    def pretraining_runs(self) -> Training | None:
        """The runs of a study of checkpoints alone: their steps are no rivals."""
        if self.training is None or not self.training.whole:
            return None
        return self.training

    @cached_property
    def scoreboard(self) -> Scoreboard | None:
        """Every model's standing, also of one model, which has no rankings; of checkpoints the runs, at their ends."""
        if self.pretraining_runs is not None:
            ends = self.evidence.narrowed(models=self.pretraining_runs.finals)
            return _find_or_none(build_scoreboard, ends, expected_error=PotentiaError)
        if self.rankings is not None:
            return self.rankings.scoreboard
        return _find_or_none(build_scoreboard, self.evidence, expected_error=PotentiaError)

    @cached_property
    def completion(self) -> Completion | None:
        """Predictions of cells that are not measured yet, never scores."""
        if self.pretraining_runs is not None:
            return None
        return _find_or_none(partial(find_outlook, history=self.options.history), self.evidence)

    @cached_property
    def benchmarks(self) -> tuple[BenchmarkVerdict, ...]:
        """Whether to keep, fix or drop each benchmark."""
        return tuple(find_benchmarks(self.evidence))

    @cached_property
    def labelled(self) -> tuple[Classification, ...]:
        """Tests on labelled texts of one's own."""
        return tuple(find_classification(self.evidence))

    @cached_property
    def written(self) -> tuple[WrittenAnswers, ...]:
        """Tests on written answers of one's own data."""
        return tuple(find_written_answers(self.evidence))

    @cached_property
    def cells(self) -> tuple[CellRecord, ...]:
        """The results of a store."""
        return tuple(self.evidence.cells())

    @cached_property
    def failures(self) -> tuple[FailureRecord, ...]:
        """The results of a store that could not be computed."""
        return tuple(self.evidence.failures())

    @cached_property
    def items_per_cell(self) -> int:
        """How many examples of each cell the page holds at most."""
        if self.max_items is not None:
            return self.max_items
        return min(MAX_ITEMS_PER_CELL, MAX_ITEMS // max(1, len(self.cells)))

    @cached_property
    def items(self) -> Mapping[str, ItemSample]:
        """Examples of every cell, by its key."""
        return _sample_items(self.evidence, self.cells, self.items_per_cell)

    @cached_property
    def _section_request(self) -> SectionRequest:
        return SectionRequest(
            self.evidence, self.options.baseline, self.options.options_by_section()
        )

    def find_content(self, section_id: str, section: ReportSection) -> SectionContent | None:
        """Return what a registered section shows; None where the evidence has nothing for it."""
        if section_id not in self._contents:
            self._contents[section_id] = section.find(self._section_request)
        return self._contents[section_id]

    @property
    def registered(self) -> dict[str, SectionContent]:
        """What the registered sections show, by the section's id."""
        contents = {}
        for section_id, section in load_extensions(ExtensionKind.SECTION).items():
            content = self.find_content(section_id, section)
            if content is not None:
                contents[section_id] = content
        return contents

    @property
    def opening(self) -> ReportOpening | None:
        """What the report begins with in the place of the ranking, where a section asks for that."""
        for content in self.registered.values():
            if content.opening is not None:
                return content.opening
        return None

    def findings_by_name(self) -> dict[str, Finding]:
        """Return every finding under the name that the command line and the board's API give it."""
        findings: dict[str, Finding] = {}
        if self.rankings is not None:
            findings |= self.rankings.findings_by_name()
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
    """Gather what a report shows of evidence; each finding is computed when it is first asked for.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        items: How many examples of each result to take, half of them wrong: 40 where absent, or fewer where one
            file could not hold them; 0 takes none.
        options: Tasks to leave out, scores of other models to predict with, and the like.

    Example:
        >>> potentia.make_report("scores.csv").rankings
    """
    return ReportData(evidence, options or ReportOptions(), max_items=items)


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
    has_binary_metric = {
        cell.key: cell.score.higher_is_better and not cell.score.metric.is_text for cell in cells
    }
    total_items: dict[str, int] = {}
    right_items: dict[str, int | None] = {}

    def choose_items(cell_key: str, values: list[float]) -> list[int]:
        """Take the first wrong and right items; where one kind is short the other fills up, and record the totals."""
        total_items[cell_key] = len(values)
        right_items[cell_key] = None
        if not has_binary_metric[cell_key]:
            return list(range(min(items_per_cell, len(values))))
        right = [item_number for item_number, value in enumerate(values) if value > RIGHT_ABOVE]
        wrong = [item_number for item_number, value in enumerate(values) if value <= RIGHT_ABOVE]
        right_items[cell_key] = len(right)
        wrong_shown = min(len(wrong), max(items_per_cell // 2, items_per_cell - len(right)))
        return [*wrong[:wrong_shown], *right[: items_per_cell - wrong_shown]]

    samples: dict[str, ItemSample] = {}
    items_to_read = MAX_ITEMS_READ
    for cell_key, outcomes in evidence.samples(list(has_binary_metric), choose_items):
        sample = list(outcomes)
        if has_binary_metric[cell_key]:
            sample.sort(key=lambda outcome: outcome.doc_id)
        samples[cell_key] = ItemSample(total_items[cell_key], right_items[cell_key], tuple(sample))
        items_to_read -= total_items[cell_key]
        if items_to_read <= 0:
            break
    return samples

"""Training on the test task as an extension: its commands, report sections and printed numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.registration import (
    AnalysisCommand,
    AnalysisOutput,
    PaperReproduction,
    ReportOpening,
    ReportSection,
    ReproductionRequest,
    SectionContent,
    SectionRequest,
)
from potentia.errors import InputError, PotentiaError
from potentia.papers.task_training.options import (
    ExposureOptions,
    TestTaskCommandOptions,
    TestTaskOptions,
)
from potentia.values.findings import Finding
from potentia.values.protocol import ADJUST

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.papers.task_training.analysis import TestTaskFindings

PAPER_RESAMPLES = 1999  # of the bootstrap, where the request names no other number


def analyze_test_task(evidence: Evidence, options: TestTaskCommandOptions) -> AnalysisOutput:
    """Say how far a group of models is ahead at equal compute, before and after all learn the same task data.

    Examples:
      potentia papers test-task potentia.db --protocols direct adjust --group 2023-11

      potentia papers test-task scores.csv --facts models.csv --group language=en+cn --json

      potentia papers test-task lab/potentia.db --facts lab/facts.csv --group exposed --chance 0.25
    """
    from potentia.papers.task_training.analysis import find_test_task

    analysis_options = options.analysis_options()
    result = find_test_task(evidence, analysis_options)
    findings = result.findings_by_name()
    asks_for_division = bool(analysis_options.since or analysis_options.column)
    if not findings or (asks_for_division and not result.is_divided):
        raise InputError(
            "; ".join(result.problems),
            where=evidence.source,
            hint="give what is missing with --facts, --columns, --chance or --group",
        )
    unprinted: frozenset[str] = frozenset()
    remarks = list(result.problems)
    if result.copies is not None and not result.is_divided:
        unprinted = frozenset(findings) - {"copies"}
        if unprinted:
            remarks.append(
                "Gains and ranks of single tasks: --figures FOLDER draws them, --json prints them."
            )
    return AnalysisOutput(findings, remarks, unprinted)


def analyze_exposure(evidence: Evidence, options: ExposureOptions) -> AnalysisOutput:
    """Say where a model has less left to learn of a task than models of other families: it may have seen such text.

    Evidence, not proof; and a high share left to learn is no evidence of innocence.
    The study must have run with `probe: true`.

    Examples:
      potentia analyze exposure potentia.db

      potentia analyze exposure potentia.db --clean SmolLM2-135M gemma-3-270m stories15M TinyLlama-1.1B
    """
    from potentia.papers.task_training.exposure import find_exposure

    exposure = find_exposure(evidence, clean=options.clean)
    return AnalysisOutput({"signs": exposure}, remarks=(*exposure.left_out, *exposure.sentences()))


TEST_TASK_ANALYSIS = AnalysisCommand(analyze_test_task, TestTaskCommandOptions, group="papers")
EXPOSURE_ANALYSIS = AnalysisCommand(analyze_exposure, ExposureOptions, needs_store=True)


# --- report sections -------------------------------------------------------------------------------------------------


def find_test_task_content(request: SectionRequest) -> SectionContent | None:
    """Look for training on the test task where it is asked for, and where models were adjusted or exposed."""
    result = _find_test_task(request.evidence, request.options.get("test-task"))
    if result is None:
        return None
    lead = "" if result.copies is None else result.copies.headline()
    return SectionContent(
        shown=[result if result.is_divided else _leave_out_single_tasks(result)],
        named=result.findings_by_name(),
        lead=lead,
        opening=_open_with_copies(result, request.evidence),
    )


def _leave_out_single_tasks(result: TestTaskFindings) -> TestTaskFindings:
    """Leave out gains and ranks, two charts for every task, which say little where no two groups are compared."""
    tasks = {}
    for task, findings in result.tasks.items():
        tasks[task] = {
            name: finding for name, finding in findings.items() if name not in ("gain", "ranks")
        }
    return replace(result, tasks=tasks)


def _open_with_copies(result: TestTaskFindings, evidence: Evidence) -> ReportOpening | None:
    """Let the report begin with the advantage of exposed copies, where half of the models or more are such copies."""
    if result.copies is None or 2 * len(evidence.exposed_copies) < len(evidence.models):
        return None
    copies = result.copies
    return ReportOpening(copies.short_headline(), copies.describe_basis(), copies.chart_by_model())


def _find_test_task(evidence: Evidence, options: TestTaskOptions | None) -> TestTaskFindings | None:
    from potentia.papers.task_training.analysis import TestTaskFindings, find_test_task

    if options is not None:
        return find_test_task(evidence, options)
    is_adjusted = any(protocol.kind == ADJUST for protocol in evidence.final_scores)
    if not evidence.exposed_copies and not is_adjusted:
        return None
    try:
        return find_test_task(evidence)
    except PotentiaError as error:
        protocols = list(evidence.final_scores)
        return TestTaskFindings(protocols[0], protocols[-1], problems=(error.message,))


def find_exposure_content(request: SectionRequest) -> SectionContent | None:
    """Look for signs that a model saw a test before, where the study recorded probes."""
    from potentia.papers.task_training.exposure import find_exposure

    try:
        exposure = find_exposure(request.evidence)
    except InputError:
        return None
    return SectionContent(
        shown=[exposure],
        named={"signs": exposure},
        lead=" ".join(exposure.sentences()),
        problems=exposure.left_out,
    )


TEST_TASK_SECTION = ReportSection(
    "Test task",
    find_test_task_content,
    heading="Training on the test task",
    after="perplexity",
)
EXPOSURE_SECTION = ReportSection(
    "Exposure", find_exposure_content, heading="Signs of exposure", after="test-task"
)


# --- published numbers -----------------------------------------------------------------------------------------------


def reproduce_paper(request: ReproductionRequest) -> Finding:
    """Return the paper's numbers beside those of its published scores."""
    from potentia.facts import read_facts
    from potentia.papers.task_training.evaluations import EvaluationTree
    from potentia.papers.task_training.published_scores import PublishedScores
    from potentia.papers.task_training.reproduction import reproduce_task_training

    scores = None
    facts = None
    if request.files:
        scores_file, models_file = request.files
        scores = PublishedScores.from_table(Path(scores_file))
        facts = read_facts(Path(models_file))
    evaluations = None
    if request.evaluations is not None:
        evaluations = EvaluationTree.read(request.evaluations)
    draws = PAPER_RESAMPLES if request.resamples is None else request.resamples
    return reproduce_task_training(scores, facts, evaluations, draws=draws)


TEST_TASK_REPRODUCTION = PaperReproduction(
    reproduce_paper,
    files=("SCORES", "MODELS"),
    where_published="the published scores are in github.com/socialfoundations/training-on-the-test-task:"
    " clone it and give --evaluations FOLDER alone (docs/reproduce.md#get-the-score-files)",
    evaluations_suffice=True,
)

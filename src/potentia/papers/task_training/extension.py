"""Training on the test task as an extension: its commands, report sections and printed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.registration import (
    AnalysisCommand,
    AnalysisOutput,
    PaperReproduction,
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


def analyze_test_task(evidence: Evidence, options: TestTaskCommandOptions) -> AnalysisOutput:
    """Ask what a group of models has more at equal compute, before and after all were tuned on the same task data.

    Examples:
      potentia papers test-task potentia.db --protocols direct adjust --group 2023-11

      potentia papers test-task scores.csv --facts models.csv --group language=en+cn --json

      potentia papers test-task lab/potentia.db --facts lab/facts.csv --group exposed --chance 0.25
    """
    from potentia.papers.task_training.analysis import find_test_task

    analysis_options = options.analysis_options()
    result = find_test_task(evidence, analysis_options)
    findings = result.named()
    is_divided = any("adjustment" in by_name for by_name in result.tasks.values())
    asks_for_division = bool(analysis_options.since or analysis_options.column)
    if not findings or (asks_for_division and not is_divided):
        raise InputError(
            "; ".join(result.problems),
            where=evidence.source,
            hint="give what is missing with --facts, --columns, --chance or --group",
        )
    return AnalysisOutput(findings, remarks=result.problems)


def analyze_exposure(evidence: Evidence, options: ExposureOptions) -> AnalysisOutput:
    """Say where a model has less left to learn of a task than models of other families: it may have seen such text.

    Evidence, not proof; and a high value is no evidence of innocence. The study must have run with `probe: true`.

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
    return SectionContent(shown=[result], named=result.named())


def _find_test_task(evidence: Evidence, options: TestTaskOptions | None) -> TestTaskFindings | None:
    from potentia.papers.task_training.analysis import TestTaskFindings, find_test_task

    if options is not None:
        return find_test_task(evidence, options)
    is_adjusted = any(protocol.kind == ADJUST for protocol in evidence.planned)
    if not evidence.exposed_copies and not is_adjusted:
        return None
    try:
        return find_test_task(evidence)
    except PotentiaError as error:
        protocols = list(evidence.planned)
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
    """Print the paper's numbers beside those of its published scores."""
    from potentia.facts import read_facts
    from potentia.papers.task_training.evaluations import EvaluationTree
    from potentia.papers.task_training.published_scores import PublishedScores
    from potentia.papers.task_training.reproduction import reproduce_task_training

    scores = None
    facts = None
    if request.files:
        scores = PublishedScores.from_table(Path(request.files[0]))
        facts = read_facts(Path(request.files[1]))
    evaluations = None
    if request.evaluations is not None:
        evaluations = EvaluationTree.read(request.evaluations)
    draws = request.resamples or 1999
    return reproduce_task_training(scores, facts, evaluations, draws=draws)


TEST_TASK_REPRODUCTION = PaperReproduction(
    reproduce_paper, files=("SCORES", "MODELS"), evaluations_suffice=True
)

"""BOSE as an extension: its commands, report sections and printed numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from potentia.analysis.registration import (
    AnalysisCommand,
    AnalysisOutput,
    PaperReproduction,
    ReportSection,
    ReproductionRequest,
    SectionContent,
    SectionRequest,
)
from potentia.errors import InputError
from potentia.papers.base_models.options import CheckpointOptions
from potentia.values.findings import Finding
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.analysis.checkpoints import Training, TrainingSignal
    from potentia.evidence import Evidence
    from potentia.papers.base_models.consistency import ConsistencyFindings
    from potentia.papers.base_models.stability import Stability

FindingT = TypeVar("FindingT", bound=Finding)


def analyze_checkpoints(evidence: Evidence, options: CheckpointOptions) -> AnalysisOutput:
    """Say whether a pretraining run improves, how stably, and whether base models keep their order as instruct models.

    It prints what the scores can answer: the course of each run and its stability where there are checkpoints, the
    order of base and instruct models where there are pairs, and which way of asking is best where there are several.

    Examples:
      potentia analyze checkpoints potentia.db --baseline direct

      potentia analyze checkpoints scores.csv --steps steps.csv --tasks arc_easy --json

      potentia analyze checkpoints scores.csv --pairs pairs.csv
    """
    from potentia.analysis.checkpoints import Training

    findings: dict[str, Finding] = {}
    problems: list[InputError] = []
    for analyze in (_analyze_stability, _analyze_consistency):
        try:
            findings |= analyze(evidence, options)
        except InputError as error:
            problems.append(error)
    if options.steps is not None and "stability" not in findings:
        raise problems[0]
    if options.pairs is not None and "consistency" not in findings:
        raise problems[-1]
    answer: list[str] = []
    training = findings.get("training")
    if isinstance(training, Training):
        answer += [training.headline(), *training.sentences()]
    if "stability" in findings:
        with suppress(InputError):  # it takes more checkpoints than the course of a run
            signal = _analyze_signal(evidence, options)
            findings["signal"] = signal
            answer += signal.sentences_beside_runs() if answer else signal.sentences()
    if "ablation" not in findings:
        try:
            findings |= _analyze_ablation(evidence)
        except InputError as error:
            problems.append(error)
    if not findings:
        raise problems[0]
    return AnalysisOutput(findings, answer=answer)


def _analyze_stability(evidence: Evidence, options: CheckpointOptions) -> dict[str, Finding]:
    from potentia.analysis.checkpoints import find_training, read_checkpoints
    from potentia.papers.base_models.stability import find_stability

    checkpoints = None
    unit = None
    if options.steps is not None:
        checkpoints, unit = read_checkpoints(options.steps, None)
    findings: dict[str, Finding] = {}
    stability = find_stability(evidence, checkpoints, unit=unit, baseline=options.baseline)
    with suppress(InputError):  # a run needs three checkpoints with scores on the same tasks
        findings["training"] = find_training(evidence, checkpoints, unit=unit)
    findings["stability"] = stability
    return findings


def _analyze_signal(evidence: Evidence, options: CheckpointOptions) -> TrainingSignal:
    from potentia.analysis.checkpoints import find_training_signal, read_checkpoints

    checkpoints = None
    unit = None
    if options.steps is not None:
        checkpoints, unit = read_checkpoints(options.steps, None)
    return find_training_signal(evidence, checkpoints, unit=unit)


def _analyze_consistency(evidence: Evidence, options: CheckpointOptions) -> dict[str, Finding]:
    from potentia.analysis.checkpoints import read_pairs
    from potentia.papers.base_models.consistency import find_consistency

    pairs = read_pairs(options.pairs) if options.pairs is not None else None
    result = find_consistency(
        evidence, pairs, instruct_by=options.instruct_by, baseline=options.baseline
    )
    return dict(result.findings_by_name())


def _analyze_ablation(evidence: Evidence) -> dict[str, Finding]:
    from potentia.papers.base_models.ablation import find_ablation

    return {"ablation": find_ablation(evidence)}


CHECKPOINT_ANALYSIS = AnalysisCommand(analyze_checkpoints, CheckpointOptions)


# --- report sections -------------------------------------------------------------------------------------------------


STABILITY_LEAD = (
    "Does a benchmark's score grow with pretraining? Kendall's τ between scores and steps: 1 if every later checkpoint"
    " scores higher, 0 if scores go up and down at random; and the smallest gap between checkpoints that the benchmark"
    " detects."
)


def find_stability_content(request: SectionRequest) -> SectionContent | None:
    """Follow the runs and measure stability, where there are checkpoints.

    A report of checkpoints alone begins with the runs, so they are not shown here again.
    """
    training = request.compute_once(_find_training)
    stability = request.compute_once(_find_stability)
    findings: list[Finding] = []
    named: dict[str, Finding] = {}
    sentences: list[str] = []
    if training is not None and not training.whole:
        findings.append(training)
    if stability is not None:
        findings.append(stability)
        named["stability"] = stability
        sentences.append(STABILITY_LEAD)
    if training is None and stability is None:
        return None
    signal = request.compute_once(_find_signal)
    if signal is not None:
        findings.append(signal)
        named["signal"] = signal
        sentences += signal.main_sentences()
    return SectionContent(findings, named, lead=" ".join(sentences)) if findings else None


def find_small_models_content(request: SectionRequest) -> SectionContent | None:
    """Say what small models decide about large ones; where there are checkpoints, these say it with their stability."""
    has_checkpoints = request.compute_once(_find_training) or request.compute_once(_find_stability)
    signal = request.compute_once(_find_signal)
    if has_checkpoints or signal is None:
        return None
    lead = " ".join(signal.main_sentences())
    return SectionContent(shown=[signal], named={"signal": signal}, lead=lead)


def find_consistency_content(request: SectionRequest) -> SectionContent | None:
    """Compare base models with their instruct versions, where pairs are known."""
    result = request.compute_once(_find_consistency)
    if result is None:
        return None
    return SectionContent(shown=[result.consistency], named=result.findings_by_name())


def find_ablation_content(request: SectionRequest) -> SectionContent | None:
    """Rank the methods: on the base models of the pairs, else wherever a task was asked in several forms."""
    from potentia.papers.base_models.ablation import find_ablation

    result = request.compute_once(_find_consistency)
    if result is not None:
        if result.ablation is None:
            return None
        return SectionContent(shown=[result.ablation], named={})
    if not _has_prompt_forms(request.evidence):
        return None
    try:
        ablation = find_ablation(request.evidence)
    except InputError:
        return None
    return SectionContent(shown=[ablation], named={"ablation": ablation})


def _find_training(request: SectionRequest) -> Training | None:
    from potentia.analysis.checkpoints import find_training

    try:
        return find_training(request.evidence)
    except InputError:
        return None


def _find_signal(request: SectionRequest) -> TrainingSignal | None:
    from potentia.analysis.checkpoints import find_training_signal

    try:
        return find_training_signal(request.evidence)
    except InputError:
        return None


def _find_stability(request: SectionRequest) -> Stability | None:
    from potentia.papers.base_models.stability import find_stability

    return _find_with_baseline(find_stability, request)


def _find_consistency(request: SectionRequest) -> ConsistencyFindings | None:
    from potentia.papers.base_models.consistency import find_consistency

    return _find_with_baseline(find_consistency, request)


def _find_with_baseline(
    find_finding: Callable[..., FindingT], request: SectionRequest
) -> FindingT | None:
    """Return a finding; None where the evidence is not enough for it. A baseline that is given must be there."""
    try:
        finding = find_finding(request.evidence)
    except InputError:
        return None
    if request.baseline is None:
        return finding
    return find_finding(request.evidence, baseline=request.baseline)


def _has_prompt_forms(evidence: Evidence) -> bool:
    tasks: set[str] = set()
    for matrix in evidence.final_scores.values():
        tasks.update(matrix.tasks)
    return any(TaskName(task).form for task in tasks)


STABILITY_SECTION = ReportSection("Stability", find_stability_content, after="exposure")
SMALL_MODELS_SECTION = ReportSection(
    "Small models",
    find_small_models_content,
    heading="Do small models rank families as large ones do?",
    after="stability",
)
CONSISTENCY_SECTION = ReportSection("Consistency", find_consistency_content, after="small-models")
ABLATION_SECTION = ReportSection("Methods", find_ablation_content, after="consistency")


# --- published numbers -----------------------------------------------------------------------------------------------


def reproduce_paper(request: ReproductionRequest) -> Finding:
    """Return BOSE's printed numbers beside those that follow from its tables."""
    from potentia.papers.base_models.reproduction import reproduce_bose

    return reproduce_bose()


BOSE_REPRODUCTION = PaperReproduction(reproduce_paper)

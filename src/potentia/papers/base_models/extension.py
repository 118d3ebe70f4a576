"""BOSE as an extension: its commands, report sections and printed numbers."""

from __future__ import annotations

from collections.abc import Callable
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
from potentia.papers.base_models.options import (
    AblationOptions,
    ConsistencyOptions,
    StabilityOptions,
)
from potentia.values.findings import Finding
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.analysis.checkpoints import Training
    from potentia.evidence import Evidence
    from potentia.papers.base_models.consistency import ConsistencyFindings
    from potentia.papers.base_models.stability import Stability

FindingT = TypeVar("FindingT", bound=Finding)


def analyze_stability(evidence: Evidence, options: StabilityOptions) -> AnalysisOutput:
    """Say how stably scores grow with pretraining: tau with steps, and the smallest gap each benchmark resolves.

    Examples:
      potentia analyze checkpoints potentia.db --baseline direct

      potentia analyze checkpoints scores.csv --steps steps.csv --tasks arc_easy --json
    """
    from potentia.analysis.checkpoints import read_checkpoints
    from potentia.papers.base_models.stability import find_stability

    checkpoints = None
    unit = options.unit
    if options.steps is not None:
        checkpoints, unit = read_checkpoints(options.steps, unit)
    stability = find_stability(
        evidence, checkpoints, unit=unit, baseline=options.baseline, power=options.power
    )
    return AnalysisOutput({"stability": stability})


def analyze_consistency(evidence: Evidence, options: ConsistencyOptions) -> AnalysisOutput:
    """Say whether better base models become better instruct models, by every method; rank the methods.

    Examples:
      potentia analyze consistency potentia.db --baseline instruct

      potentia analyze consistency scores.csv --pairs pairs.csv --instruct-by same --json
    """
    from potentia.analysis.checkpoints import read_pairs
    from potentia.papers.base_models.consistency import find_consistency

    pairs = read_pairs(options.pairs) if options.pairs is not None else None
    result = find_consistency(
        evidence, pairs, instruct_by=options.instruct_by, baseline=options.baseline
    )
    return AnalysisOutput(result.named())


def analyze_ablation(evidence: Evidence, options: AblationOptions) -> AnalysisOutput:
    """Rank the methods (protocols and prompt forms) in every cell of model and benchmark.

    Examples:
      potentia analyze ablation potentia.db --tasks gsm8k

      potentia analyze ablation scores.csv --models Llama-3.1-8B Qwen2.5-7B --json
    """
    from potentia.papers.base_models.ablation import find_ablation

    return AnalysisOutput({"ablation": find_ablation(evidence, options.models)})


STABILITY_ANALYSIS = AnalysisCommand(analyze_stability, StabilityOptions)
CONSISTENCY_ANALYSIS = AnalysisCommand(analyze_consistency, ConsistencyOptions)
ABLATION_ANALYSIS = AnalysisCommand(analyze_ablation, AblationOptions)


# --- report sections -------------------------------------------------------------------------------------------------


def find_stability_content(request: SectionRequest) -> SectionContent | None:
    """Follow the runs and measure stability, where there are checkpoints.

    A report of checkpoints alone begins with the runs, so they are not shown here again.
    """
    training = request.compute_once(_find_training)
    stability = request.compute_once(_find_stability)
    shown: list[Finding] = []
    named: dict[str, Finding] = {}
    if training is not None and not training.whole:
        shown.append(training)
    if stability is not None:
        shown.append(stability)
        named["stability"] = stability
    return SectionContent(shown, named) if shown else None


def find_consistency_content(request: SectionRequest) -> SectionContent | None:
    """Compare base models with their instruct versions, where pairs are known."""
    result = request.compute_once(_find_consistency)
    if result is None:
        return None
    return SectionContent(shown=[result.consistency], named=result.named())


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


def _find_stability(request: SectionRequest) -> Stability | None:
    from potentia.papers.base_models.stability import find_stability

    return _find_with_baseline(find_stability, request)


def _find_consistency(request: SectionRequest) -> ConsistencyFindings | None:
    from potentia.papers.base_models.consistency import find_consistency

    return _find_with_baseline(find_consistency, request)


def _find_with_baseline(find: Callable[..., FindingT], request: SectionRequest) -> FindingT | None:
    """Return a finding; None where the evidence is not enough for it. A baseline that is given must be there."""
    try:
        finding = find(request.evidence)
    except InputError:
        return None
    if request.baseline is None:
        return finding
    return find(request.evidence, baseline=request.baseline)


def _has_prompt_forms(evidence: Evidence) -> bool:
    tasks = {task for matrix in evidence.planned.values() for task in matrix.tasks}
    return any(TaskName(task).form for task in tasks)


STABILITY_SECTION = ReportSection("Stability", find_stability_content, after="exposure")
CONSISTENCY_SECTION = ReportSection("Consistency", find_consistency_content, after="stability")
ABLATION_SECTION = ReportSection("Methods", find_ablation_content, after="consistency")


# --- published numbers -----------------------------------------------------------------------------------------------


def reproduce_paper(request: ReproductionRequest) -> Finding:
    """Rank the methods of the paper's table 4."""
    from potentia.papers.base_models.reproduction import reproduce_bose

    return reproduce_bose()


BOSE_REPRODUCTION = PaperReproduction(reproduce_paper)

"""The command and the report sections on answers, as an extension declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from potentia.analysis.registration import (
    AnalysisCommand,
    AnalysisOutput,
    NoOptions,
    ReportSection,
    SectionContent,
    SectionRequest,
)
from potentia.errors import InputError
from potentia.values.findings import Finding

if TYPE_CHECKING:
    from potentia.analysis.answers.metric_comparison import MetricComparison
    from potentia.analysis.answers.pass_at_k import PassAtKFinding
    from potentia.analysis.benchmark import BlindTwins
    from potentia.evidence import Evidence


def find_answer_bits(evidence: Evidence) -> MetricComparison:
    """Compare accuracy with the bits per byte of right answers."""
    from potentia.analysis.answers.metric_comparison import find_metric_comparison

    return find_metric_comparison(evidence)


def find_blind(evidence: Evidence) -> BlindTwins:
    """Compare tasks with their blind twins."""
    from potentia.analysis.benchmark import find_blind_twins

    return find_blind_twins(evidence)


def find_sampled(evidence: Evidence) -> PassAtKFinding:
    """Collect pass@k of sampled answers."""
    from potentia.analysis.answers.pass_at_k import find_pass_at_k

    return find_pass_at_k(evidence)


def analyze_answers(evidence: Evidence, options: NoOptions) -> AnalysisOutput:
    """Say what the answers show beyond accuracy: bits per byte, scores without the question, pass@k of samples.

    Examples:
      potentia analyze answers potentia.db

      potentia analyze answers potentia.db --json
    """
    from potentia.analysis.answers.find import find_answers

    answers = find_answers(evidence)
    return AnalysisOutput(answers.findings_by_name(), answers.sentences())


def _list_sentences(finding: Finding) -> list[str]:
    """Return what a finding says of itself."""
    write_sentences: Callable[[], list[str]] = getattr(finding, "sentences", list)
    return write_sentences()


ANSWERS_ANALYSIS = AnalysisCommand(analyze_answers, NoOptions, needs_store=True)


# --- report sections -------------------------------------------------------------------------------------------------


def _make_content(
    request: SectionRequest, name: str, find: Callable[[Evidence], Finding]
) -> SectionContent | None:
    """Return a section with one finding and what it says; None where the evidence is not enough for it."""
    try:
        finding = find(request.evidence)
    except InputError:
        return None
    return SectionContent(
        shown=[finding], named={name: finding}, lead=" ".join(_list_sentences(finding))
    )


def find_answer_bits_content(request: SectionRequest) -> SectionContent | None:
    """Compare accuracy with bits per byte of right answers, where there are log-likelihoods."""
    return _make_content(request, "answer_bits", find_answer_bits)


def find_blind_content(request: SectionRequest) -> SectionContent | None:
    """Compare tasks with their blind twins, where a study has some."""
    return _make_content(request, "blind", find_blind)


def find_sampled_content(request: SectionRequest) -> SectionContent | None:
    """Show pass@k, where answers were sampled."""
    return _make_content(request, "pass_at_k", find_sampled)


ANSWER_BITS_SECTION = ReportSection(
    "Bits per byte", find_answer_bits_content, heading="Bits per byte of the right answer"
)
BLIND_SECTION = ReportSection(
    "Blind", find_blind_content, heading="Scores without the question", after="answer-bits"
)
PASS_AT_K_SECTION = ReportSection(
    "pass@k", find_sampled_content, heading="One of k sampled answers is right", after="blind"
)

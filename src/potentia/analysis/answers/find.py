"""All that answers show beyond accuracy, as one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.analysis.answers.metric_comparison import MetricComparison, find_metric_comparison
from potentia.analysis.answers.pass_at_k import PassAtKFinding, find_pass_at_k
from potentia.analysis.benchmark import BlindTwins, find_blind_twins
from potentia.errors import InputError
from potentia.values.findings import Findings

if TYPE_CHECKING:
    from potentia.evidence import Evidence


@dataclass(frozen=True)
class AnswerFindings(Findings):
    """Bits per byte of right answers, scores without the question, pass@k; None where the evidence does not tell."""

    answer_bits: MetricComparison | None
    blind: BlindTwins | None
    pass_at_k: PassAtKFinding | None

    def sentences(self) -> list[str]:
        """Say what was found."""
        sentences: list[str] = []
        for finding in (self.answer_bits, self.blind, self.pass_at_k):
            if finding is not None:
                sentences += finding.sentences()
        return sentences


def find_answers(evidence: Evidence) -> AnswerFindings:
    """Find what the answers of a store show; what it does not tell is None."""
    problems: list[InputError] = []
    answer_bits: MetricComparison | None = None
    blind: BlindTwins | None = None
    pass_at_k: PassAtKFinding | None = None
    try:
        answer_bits = find_metric_comparison(evidence)
    except InputError as error:
        problems.append(error)
    try:
        blind = find_blind_twins(evidence)
    except InputError as error:
        problems.append(error)
    try:
        pass_at_k = find_pass_at_k(evidence)
    except InputError as error:
        problems.append(error)
    findings = AnswerFindings(answer_bits, blind, pass_at_k)
    if not findings.findings_by_name():
        raise problems[0]
    return findings

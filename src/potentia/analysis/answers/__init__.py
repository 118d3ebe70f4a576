"""What answers say beyond accuracy: their bits per byte, what is answered blind, how often one of k samples is right.

The commands and report sections are registered as those of a package from outside (``potentia.extensions``).
"""

from typing import TYPE_CHECKING

from potentia.later import import_later

if TYPE_CHECKING:
    from potentia.analysis.answers.find import AnswerFindings, find_answers
    from potentia.analysis.answers.metric_comparison import (
        MetricComparison,
        compare_metrics,
        find_metric_comparison,
    )
    from potentia.analysis.answers.pass_at_k import PassAtKFinding, find_pass_at_k

ENTRY_POINTS = {
    "analysis.answers": "potentia.analysis.answers.extension:ANSWERS_ANALYSIS",
    "section.answer-bits": "potentia.analysis.answers.extension:ANSWER_BITS_SECTION",
    "section.pass-at-k": "potentia.analysis.answers.extension:PASS_AT_K_SECTION",
    "section.blind": "potentia.analysis.answers.extension:BLIND_SECTION",
}

_MODULE_OF_NAME = {
    "AnswerFindings": "find",
    "find_answers": "find",
    "MetricComparison": "metric_comparison",
    "compare_metrics": "metric_comparison",
    "find_metric_comparison": "metric_comparison",
    "PassAtKFinding": "pass_at_k",
    "find_pass_at_k": "pass_at_k",
}

__getattr__ = import_later(__name__, _MODULE_OF_NAME)

"""How a cell is scored: direct, few-shot, train-before-test, adjust. Tasks and engine in, scores out."""

from potentia.protocols.ask import Ask, Evaluation, Form, evaluate
from potentia.protocols.direct import DirectResult, choose_form, direct
from potentia.protocols.selection import Candidate, behind, select

__all__ = [
    "Ask",
    "Candidate",
    "DirectResult",
    "Evaluation",
    "Form",
    "behind",
    "choose_form",
    "direct",
    "evaluate",
    "select",
]

"""Direct and few-shot evaluation: the model as it is.

An instruct model is asked with and without its chat template on the validation split, and the better form is used on
the test split (appendix A.2 of the train-before-test paper); the test split is scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.protocols.ask import Ask, Evaluation, Form, evaluate

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.tasks import ChatTemplate, Task


@dataclass(frozen=True)
class DirectResult:
    """A test evaluation and the prompt form it was made in, with the validation values that chose the form."""

    test: Evaluation
    form: Form
    validation: dict[Form, float]


def better(one: float, other: float, *, higher_is_better: bool) -> bool:
    """Say whether ``one`` beats ``other`` strictly; NaN never beats anything."""
    return one > other if higher_is_better else one < other


def choose_form(task: Task, validation: dict[Form, float]) -> Form:
    """Return the form with the best validation value; ties go to the one named first."""
    forms = list(validation)
    best = forms[0]
    for form in forms[1:]:
        if better(validation[form], validation[best], higher_is_better=task.higher_is_better):
            best = form
    return best


def direct(
    scorer: Scorer,
    task: Task,
    *,
    forms: Sequence[Form] = ("plain",),
    chat: ChatTemplate | None = None,
    shots: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> DirectResult:
    """Evaluate the untuned model on the task's test split, after choosing the prompt form on validation.

    A task without validation documents cannot choose: the first form is used.
    """
    seen: dict[Form, float] = {}
    if len(forms) > 1 and task.documents("validation"):
        asks = [Ask(task, "validation", form, shots, seed) for form in forms]
        made = evaluate(scorer, asks, chat=chat, progress=progress)
        seen = {ask.form: evaluation.main.value for ask, evaluation in zip(asks, made, strict=True)}
    form = choose_form(task, seen) if seen else forms[0]
    (test,) = evaluate(scorer, [Ask(task, "test", form, shots, seed)], chat=chat, progress=progress)
    return DirectResult(test=test, form=form, validation=seen)

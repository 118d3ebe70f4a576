"""Asking a model: documents of a task → requests → the scorer → graded outcomes and scores.

Many questions (tasks, prompt forms, lanes) go through the scorer together, so that a row of the study is scored in a
few full batches rather than in many small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from potentia.requests import Continuation, Document, Generation
from potentia.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.tasks import ChatTemplate, Prompt, Task

Form = Literal["plain", "chat"]
SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Ask:
    """One evaluation to make: a task's split in a prompt form, answered by the base model or by a lane's adapter."""

    task: Task
    split: SplitName
    form: Form = "plain"
    shots: int = 0
    seed: int = 0
    owner: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """The graded answers of one ask."""

    outcomes: list[ItemOutcome]
    scores: dict[str, Score]
    metric: str

    @property
    def main(self) -> Score:
        """The score by the task's own metric."""
        return self.scores[self.metric]


def evaluate(
    scorer: Scorer,
    asks: Sequence[Ask],
    *,
    chat: ChatTemplate | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Evaluation]:
    """Answer all asks; requests of one kind go to the scorer in one call."""
    prompts = [_prompts(ask, chat if ask.form == "chat" else None) for ask in asks]
    flat = [
        (request, asks[a].owner, (a, p, r))
        for a, asked in enumerate(prompts)
        for p, prompt in enumerate(asked)
        for r, request in enumerate(prompt.requests)
    ]
    answers: list[list[list[Any]]] = [[[None] * len(prompt.requests) for prompt in asked] for asked in prompts]
    with_owners = any(ask.owner is not None for ask in asks)
    answerers: dict[type, Callable[..., Sequence[Any]]] = {
        Continuation: scorer.loglikelihood,
        Document: scorer.rolling,
        Generation: scorer.generate,
    }
    for kind, answer in answerers.items():
        chosen = [entry for entry in flat if isinstance(entry[0], kind)]
        if not chosen:
            continue
        owners = [-1 if owner is None else owner for _, owner, _ in chosen] if with_owners else None
        given = answer([request for request, _, _ in chosen], owners=owners, progress=progress)
        for (_, _, (a, p, r)), value in zip(chosen, given, strict=True):
            answers[a][p][r] = _answer(kind, value)
    return [_graded(ask.task, asked, given) for ask, asked, given in zip(asks, prompts, answers, strict=True)]


# Validation prompts of a task, rendered once for all lanes and epochs: (shots, seed, chat template) → prompts.
_rendered: WeakKeyDictionary[Task, dict[tuple[int, int, ChatTemplate | None], list[Prompt]]] = WeakKeyDictionary()


def _prompts(ask: Ask, chat: ChatTemplate | None) -> list[Prompt]:
    def render() -> list[Prompt]:
        return ask.task.prompts(ask.task.documents(ask.split), shots=ask.shots, chat=chat, seed=ask.seed)

    if ask.split != "validation":
        return render()
    known = _rendered.setdefault(ask.task, {})
    key = (ask.shots, ask.seed, chat)
    if key not in known:
        if len(known) > 4:  # templates of models that are gone
            known.clear()
        known[key] = render()
    return known[key]


def _answer(kind: type, value: Any) -> Any:
    if kind is Continuation:
        return value.logprob, value.greedy
    return value.logprob if kind is Document else value


def _graded(task: Task, prompts: Sequence[Any], answers: list[list[Any]]) -> Evaluation:
    outcomes = task.grade(prompts, answers)
    return Evaluation(outcomes=outcomes, scores=task.score(outcomes), metric=task.metric)

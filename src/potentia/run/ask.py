"""Asking a model: documents of a task → requests → the scorer → graded outcomes and scores; direct and few-shot.

Many questions (tasks, styles, lanes) go through the scorer together, so that a row of the study is scored in a
few full batches rather than in many small ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from potentia.values.requests import Continuation, Document, Generation, Likelihood
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import Selection

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.tasks import ChatTemplate, Prompt, Task

TIE = 1e-6  # nats between choices that are equal
TIED_SHARE = 0.95  # of documents, from which a result says nothing
Style = Literal["plain", "chat"]  # the prompt as it is, or in the model's chat template
SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Ask:
    """One evaluation to make: a task's split, plain or as chat, answered by the base model or by a lane's adapter."""

    task: Task
    split: SplitName
    style: Style = "plain"
    shots: int = 0
    seed: int = 0
    owner: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """The graded answers of one ask."""

    outcomes: list[ItemOutcome]
    scores: dict[str, Score]
    metric: str
    cut: int = 0  # requests whose prompt was cut to fit the model
    requests: int = 0
    compared: int = 0  # documents with several choices
    tied: int = 0  # of these, documents whose choices all got the same log-probability

    @property
    def says_nothing(self) -> bool:
        """Whether nearly all questions are ties, so that the first choice was counted as the answer."""
        return self.compared > 0 and self.tied >= TIED_SHARE * self.compared

    @property
    def main(self) -> Score:
        """The score by the task's own metric."""
        return self.scores[self.metric]

    def to_json(self) -> str:
        """Write the answers and scores as text."""
        return json.dumps(
            asdict(self),
            default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value),
        )

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Read what :meth:`to_json` wrote."""
        made = json.loads(text)
        scores = {name: Score.of(score) for name, score in made["scores"].items()}
        return cls(
            outcomes=[ItemOutcome(**item) for item in made["outcomes"]],
            scores=scores,
            metric=made["metric"],
            cut=made.get("cut", 0),
            requests=made.get("requests", 0),
            compared=made.get("compared", 0),
            tied=made.get("tied", 0),
        )

    @classmethod
    def mean(cls, several: Sequence[Evaluation]) -> Evaluation:
        """Average scores and items over seeds; what an item shows beside its value is the first seed's."""
        first = several[0]
        if len(several) == 1:
            return first
        scores = {name: Score.mean([one.scores[name] for one in several]) for name in first.scores}
        outcomes = []
        for items in zip(*(one.outcomes for one in several), strict=True):
            values = [item.value for item in items]
            told = {
                "seeds": [{"value": item.value, "prediction": item.prediction} for item in items]
            }
            outcomes.append(
                replace(items[0], value=sum(values) / len(values), detail=items[0].detail | told)
            )
        return cls(
            outcomes=outcomes,
            scores=scores,
            metric=first.metric,
            cut=first.cut,
            requests=first.requests,
            compared=sum(one.compared for one in several),
            tied=sum(one.tied for one in several),
        )


def evaluate(
    scorer: Scorer,
    asks: Sequence[Ask],
    *,
    chat: ChatTemplate | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Evaluation]:
    """Answer all asks; requests of one kind go to the scorer in one call."""
    prompts = [_prompts(ask, chat if ask.style == "chat" else None) for ask in asks]
    requests = [request for asked in prompts for prompt in asked for request in prompt.requests]
    owners = [
        ask.owner
        for ask, asked in zip(asks, prompts, strict=True)
        for p in asked
        for _ in p.requests
    ]
    heard = progress and _by_document(progress, sum(map(len, prompts)), len(requests))
    cut_before = scorer.notes["truncated"]
    answers = iter(_answers(scorer, requests, owners, heard))
    made = []
    for ask, asked in zip(asks, prompts, strict=True):
        replies = [[next(answers) for _ in prompt.requests] for prompt in asked]
        outcomes = ask.task.grade(asked, replies)
        compared, tied = _count_ties(asked, replies)
        made.append(
            Evaluation(
                outcomes=outcomes,
                scores=ask.task.score(outcomes),
                metric=ask.task.metric,
                compared=compared,
                tied=tied,
            )
        )
    if len(made) == 1:  # tests are asked one at a time
        made[0] = replace(
            made[0], cut=scorer.notes["truncated"] - cut_before, requests=len(requests)
        )
    return made


def _count_ties(prompts: Sequence[Prompt], replies: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Count the documents that compare several continuations, and those in which all of them tie."""
    compared = 0
    tied = 0
    for prompt, prompt_replies in zip(prompts, replies, strict=True):
        choices = {request for request in prompt.requests if isinstance(request, Continuation)}
        if len(choices) < 2 or len(prompt.requests) != len(prompt_replies):
            continue
        logprobs = [reply[0] for reply in prompt_replies if isinstance(reply, Likelihood)]
        compared += 1
        tied += max(logprobs) - min(logprobs) <= TIE
    return compared, tied


def _answers(
    scorer: Scorer,
    requests: Sequence[Any],
    owners: Sequence[int | None],
    progress: Callable[[int], None] | None,
) -> list[Any]:
    """Answer requests of several kinds, in their order."""
    answerers: dict[type, Callable[..., Sequence[Any]]] = {
        Continuation: scorer.loglikelihood,
        Document: scorer.rolling,
        Generation: scorer.generate,
    }
    bare = all(owner is None for owner in owners)
    answers: list[Any] = [None] * len(requests)
    for kind, answer in answerers.items():
        chosen = [k for k, request in enumerate(requests) if isinstance(request, kind)]
        mine = None if bare else [-1 if (owner := owners[k]) is None else owner for k in chosen]
        given = (
            answer([requests[k] for k in chosen], owners=mine, progress=progress) if chosen else ()
        )
        for k, value in zip(chosen, given, strict=True):
            answers[k] = _answer(kind, value)
    return answers


def _by_document(
    progress: Callable[[int], None], documents: int, requests: int
) -> Callable[[int], None]:
    """Return who hears of requests and tells of as large a share of the documents."""
    answered = 0

    def hear(amount: int) -> None:
        nonlocal answered
        before, answered = answered, answered + amount
        progress(documents * answered // requests - documents * before // requests)

    return hear


REMEMBERED, SMALL = 6, 1000  # renderings of a task, and the documents of one
_rendered: WeakKeyDictionary[Task, dict[tuple[Any, ...], list[Any]]] = WeakKeyDictionary()


def render_once(task: Task, how: tuple[Any, ...], render: Callable[[], list[Any]]) -> list[Any]:
    """Render a split once for all lanes, epochs and models that are asked alike; a large one every time."""
    known = _rendered.setdefault(task, {})
    if how in known:
        return known[how]
    made = render()
    if len(made) <= SMALL:
        if len(known) >= REMEMBERED:  # chat templates of models that are gone
            known.clear()
        known[how] = made
    return made


def _prompts(ask: Ask, chat: ChatTemplate | None) -> list[Prompt]:
    documents = ask.task.documents(ask.split)
    render = partial(ask.task.prompts, documents, shots=ask.shots, chat=chat, seed=ask.seed)
    return render_once(ask.task, (ask.split, ask.shots, ask.seed, chat), render)


def _answer(kind: type, value: Any) -> Any:
    if kind is Continuation:
        made = Likelihood((value.logprob, value.greedy))
        made.tokens = value.tokens
        return made
    return value.logprob if kind is Document else value


def evaluate_untuned(
    scorer: Scorer,
    task: Task,
    *,
    styles: Sequence[Style] = ("plain",),
    chat: ChatTemplate | None = None,
    shots: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[Evaluation, Selection]:
    """Evaluate the untuned model on the task's test split, after choosing the style on validation; and say how.

    An instruct model is asked with and without its chat template on the validation split, and the better style is used
    on the test split (appendix A.2 of the train-before-test paper), which is scored once. A task without validation
    documents cannot choose, and ties stay: the first style is used.
    """
    seen: dict[Style, float] = {}
    style = styles[0]
    if len(styles) > 1 and task.documents("validation"):
        asks = [Ask(task, "validation", one, shots, seed) for one in styles]
        made = evaluate(scorer, asks, chat=chat, progress=progress)
        seen = {
            ask.style: evaluation.main.value for ask, evaluation in zip(asks, made, strict=True)
        }
        sign = 1 if task.higher_is_better else -1
        for one, value in seen.items():
            if sign * (value - seen[style]) > 0:  # no number beats nothing
                style = one
    (test,) = evaluate(
        scorer, [Ask(task, "test", style, shots, seed)], chat=chat, progress=progress
    )
    by_style = {str(one): value for one, value in seen.items()}
    return test, Selection(style=style, validation_by_style=by_style)

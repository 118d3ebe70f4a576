"""Asking a model: documents of a task → requests → the scorer → graded outcomes and scores; direct and few-shot.

Questions of many tasks, styles and lanes go through the scorer together, so that a row of the study is scored in a few
full batches rather than in many small ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from potentia.errors import TaskError
from potentia.values.answer_bits import AnswerBits, compute_answer_bits
from potentia.values.fine_tuning import Style
from potentia.values.requests import Continuation, Document, Generation, Likelihood
from potentia.values.sampling import SamplePlan, estimate_pass_at_k, name_pass_metric
from potentia.values.scores import ItemOutcome, Score
from potentia.values.selection import Selection

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.tasks import ChatTemplate, Prompt, Task

TIE = 1e-6  # nats; choices that differ by less are equal
TIED_SHARE = 0.95  # of the documents; with so many ties a result says nothing
# metrics that are 1 for a right answer and 0 for a wrong one
RIGHT_OR_WRONG = frozenset({"exact_match", "acc", "em", "math_verify", "judge"})
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
    cut: int = 0  # requests whose prompt was cut to fit the model; 0 where asks were made together
    requests: int = 0  # likewise
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
        return json.dumps(asdict(self), default=_encode_for_json)

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        return cls(
            outcomes=[ItemOutcome(**outcome) for outcome in fields["outcomes"]],
            scores={
                metric_name: Score.from_dict(score)
                for metric_name, score in fields["scores"].items()
            },
            metric=fields["metric"],
            cut=fields.get("cut", 0),
            requests=fields.get("requests", 0),
            compared=fields.get("compared", 0),
            tied=fields.get("tied", 0),
        )

    @classmethod
    def mean(cls, evaluations: Sequence[Evaluation]) -> Evaluation:
        """Average scores and items over seeds; what an item shows beside its value is the first seed's."""
        first_evaluation = evaluations[0]
        if len(evaluations) == 1:
            return first_evaluation
        scores = {}
        for metric_name in first_evaluation.scores:
            scores[metric_name] = Score.mean(
                [evaluation.scores[metric_name] for evaluation in evaluations]
            )
        outcomes_by_seed = [evaluation.outcomes for evaluation in evaluations]
        mean_outcomes = list(map(_average_outcomes, zip(*outcomes_by_seed, strict=True)))
        return cls(
            outcomes=mean_outcomes,
            scores=scores,
            metric=first_evaluation.metric,
            cut=first_evaluation.cut,
            requests=first_evaluation.requests,
            compared=sum(evaluation.compared for evaluation in evaluations),
            tied=sum(evaluation.tied for evaluation in evaluations),
        )


def _encode_for_json(value: Any) -> Any:
    """Return a value that JSON does not know as one that it knows: arrays as lists, all else as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _average_outcomes(outcomes: Sequence[ItemOutcome]) -> ItemOutcome:
    """Return the mean outcome of one item over seeds, with every seed's value and prediction in its detail."""
    seeds = [{"value": outcome.value, "prediction": outcome.prediction} for outcome in outcomes]
    mean_value = sum(outcome.value for outcome in outcomes) / len(outcomes)
    first_outcome = outcomes[0]
    return replace(first_outcome, value=mean_value, detail=first_outcome.detail | {"seeds": seeds})


def evaluate(
    scorer: Scorer,
    asks: Sequence[Ask],
    *,
    chat_template: ChatTemplate | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Evaluation]:
    """Answer all asks; the requests that are of one kind go to the scorer in one call, those of all asks together.

    Each ask of a test split may call the scorer again: for the likelihood of right answers where a task is answered by
    writing, and for the samples of pass@k. ``progress`` receives the number of documents that were answered since it
    was called last. It does not count these further calls, nor do ``cut`` and ``requests`` of an evaluation, which are
    known for a single ask alone: they are 0 where several asks were made together.
    """
    prompts_by_ask = [_render_prompts(ask, chat_template) for ask in asks]
    requests: list[Any] = []
    owners: list[int | None] = []
    for ask, prompts in zip(asks, prompts_by_ask, strict=True):
        for prompt in prompts:
            requests += prompt.requests
            owners += [ask.owner] * len(prompt.requests)
    report_requests = None
    if progress is not None:
        documents = sum(len(prompts) for prompts in prompts_by_ask)
        report_requests = _report_by_document(progress, documents, len(requests))
    cut_before = scorer.notes.truncated
    answers = iter(_answer_requests(scorer, requests, owners, report_requests))
    cut_count = scorer.notes.truncated - cut_before
    evaluations = []
    for ask, prompts in zip(asks, prompts_by_ask, strict=True):
        replies = [list(islice(answers, len(prompt.requests))) for prompt in prompts]
        answer_bits: Sequence[AnswerBits | None] = ()
        if ask.split == "test":
            answer_bits = _score_written_answers(scorer, prompts, ask.owner)
        evaluation = _grade_replies(ask.task, prompts, replies, answer_bits)
        if ask.split == "test" and ask.task.samples is not None:
            evaluation = _add_samples(scorer, ask, ask.task.samples, prompts, evaluation)
        evaluations.append(evaluation)
    if len(evaluations) == 1:  # tests are asked one at a time
        evaluations[0] = replace(evaluations[0], cut=cut_count, requests=len(requests))
    return evaluations


def _score_written_answers(
    scorer: Scorer, prompts: Sequence[Prompt], owner: int | None
) -> list[AnswerBits | None]:
    """Return the bits of the right answer of every example that is answered by writing; nothing of other tasks."""
    requests = [prompt.answer for prompt in prompts if prompt.answer is not None]
    if not requests:
        return []
    owners = None if owner is None else [owner] * len(requests)
    likelihoods = iter(scorer.loglikelihood(requests, owners=owners))
    bits: list[AnswerBits | None] = []
    for prompt in prompts:
        if prompt.answer is None:
            bits.append(None)
        else:
            right_answer = prompt.answer.continuation.strip()
            bits.append(compute_answer_bits([right_answer], [next(likelihoods).logprob], [0]))
    return bits


def _grade_replies(
    task: Task,
    prompts: Sequence[Prompt],
    replies: Sequence[Sequence[Any]],
    answer_bits: Sequence[AnswerBits | None],
) -> Evaluation:
    outcomes = task.grade(prompts, replies)
    if answer_bits:
        for outcome, bits in zip(outcomes, answer_bits, strict=True):
            if bits is not None:
                outcome.detail["metrics"] |= bits.by_metric()
    compared, tie_count = _count_ties(prompts, replies)
    return Evaluation(
        outcomes=outcomes,
        scores=task.score(outcomes),
        metric=task.metric,
        compared=compared,
        tied=tie_count,
    )


def _add_samples(
    scorer: Scorer,
    ask: Ask,
    sample_plan: SamplePlan,
    prompts: Sequence[Prompt],
    evaluation: Evaluation,
) -> Evaluation:
    """Sample every answer as often as the task asks for, and add pass@k to what was graded."""
    requests: list[Generation] = []
    for prompt in prompts:
        (request,) = prompt.requests
        assert isinstance(request, Generation)
        for sample_number in range(sample_plan.count):
            seed = sample_plan.make_seed(prompt.doc_id, sample_number)
            requests.append(replace(request, temperature=sample_plan.temperature, seed=seed))
    owners = None if ask.owner is None else [ask.owner] * len(requests)
    texts = scorer.generate(requests, owners=owners)
    repeated_prompts: list[Prompt] = []
    for prompt in prompts:
        repeated_prompts += [prompt] * sample_plan.count
    graded = ask.task.grade(repeated_prompts, [[sampled_answer] for sampled_answer in texts])
    metric = _find_verdict_metric(ask.task, evaluation)
    for position, outcome in enumerate(evaluation.outcomes):
        samples = slice(position * sample_plan.count, (position + 1) * sample_plan.count)
        is_right = [bool(sample.detail["metrics"][metric]) for sample in graded[samples]]
        outcome.detail["samples"] = {
            "texts": texts[samples],
            "right": is_right,
            "metric": metric,
            "temperature": sample_plan.temperature,
            "seed": sample_plan.seed,
        }
        for k in sample_plan.k:
            pass_rate = estimate_pass_at_k(sample_plan.count, sum(is_right), k)
            outcome.detail["metrics"][name_pass_metric(k)] = pass_rate
    return replace(evaluation, scores=ask.task.score(evaluation.outcomes))


def _find_verdict_metric(task: Task, evaluation: Evaluation) -> str:
    """Return the metric that says whether an answer is right: the main one, or an exact match beside it."""
    for metric_name in (evaluation.metric, *evaluation.scores):
        if metric_name in evaluation.scores and metric_name.partition("|")[0] in RIGHT_OR_WRONG:
            return metric_name
    raise TaskError(
        f"{task.name} is scored by {task.metric}, which is not right or wrong: it has no pass@k",
        hint="drop its `samples`, or give it a metric such as exact_match",
    )


def _count_ties(prompts: Sequence[Prompt], replies: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Count the documents that compare several continuations, and those in which all of them tie."""
    compared = 0
    tie_count = 0
    for prompt, prompt_replies in zip(prompts, replies, strict=True):
        choices = {request for request in prompt.requests if isinstance(request, Continuation)}
        if len(choices) < 2 or len(prompt.requests) != len(prompt_replies):
            continue
        logprobs = [reply[0] for reply in prompt_replies if isinstance(reply, Likelihood)]
        compared += 1
        tie_count += max(logprobs) - min(logprobs) <= TIE
    return compared, tie_count


def _answer_requests(
    scorer: Scorer,
    requests: Sequence[Any],
    owners: Sequence[int | None],
    progress: Callable[[int], None] | None,
) -> list[Any]:
    """Answer requests of several kinds, in their order."""
    scorer_methods: dict[type, Callable[..., Sequence[Any]]] = {
        Continuation: scorer.loglikelihood,
        Document: scorer.rolling,
        Generation: scorer.generate,
    }
    has_adapters = any(owner is not None for owner in owners)
    answers: list[Any] = [None] * len(requests)
    for request_kind, score_requests in scorer_methods.items():
        positions = [k for k, request in enumerate(requests) if isinstance(request, request_kind)]
        if not positions:
            continue
        kind_requests = [requests[k] for k in positions]
        kind_owners = [_owner_number(owners[k]) for k in positions] if has_adapters else None
        results = score_requests(kind_requests, owners=kind_owners, progress=progress)
        for k, result in zip(positions, results, strict=True):
            answers[k] = _convert_result(request_kind, result)
    return answers


def _owner_number(owner: int | None) -> int:
    """Return the lane's number as the scorer takes it: -1 stands for the base model."""
    return -1 if owner is None else owner


def _convert_result(result_type: type, result: Any) -> Any:
    """Return the scorer's result as tasks grade it."""
    if result_type is Continuation:
        likelihood = Likelihood((result.logprob, result.greedy))
        likelihood.tokens = result.tokens
        return likelihood
    if result_type is Document:
        return result.logprob
    return result


def _report_by_document(
    progress: Callable[[int], None], documents: int, requests: int
) -> Callable[[int], None]:
    """Return a function that takes counts of answered requests and reports the same share of the documents."""
    answered = 0

    def report_requests(amount: int) -> None:
        nonlocal answered
        documents_before = documents * answered // requests
        answered += amount
        progress(documents * answered // requests - documents_before)

    return report_requests


REMEMBERED = 6  # renderings of a task
SMALL = 1000  # documents; larger renderings are not remembered
_renderings: WeakKeyDictionary[Task, dict[tuple[Any, ...], list[Any]]] = WeakKeyDictionary()


def render_once(
    task: Task, settings: tuple[Any, ...], render: Callable[[], list[Any]]
) -> list[Any]:
    """Render a split once for all lanes, epochs and models with the same settings; a large split every time."""
    renderings = _renderings.setdefault(task, {})
    if settings in renderings:
        return renderings[settings]
    rendering = render()
    if len(rendering) <= SMALL:
        if len(renderings) >= REMEMBERED:  # chat templates of models that are gone
            renderings.clear()
        renderings[settings] = rendering
    return rendering


def _render_prompts(ask: Ask, chat_template: ChatTemplate | None) -> list[Prompt]:
    template = chat_template if ask.style == "chat" else None
    documents = ask.task.documents(ask.split)
    render = partial(
        ask.task.prompts, documents, shots=ask.shots, chat_template=template, seed=ask.seed
    )
    return render_once(ask.task, (ask.split, ask.shots, ask.seed, template), render)


def evaluate_untuned(
    scorer: Scorer,
    task: Task,
    *,
    styles: Sequence[Style] = ("plain",),
    chat_template: ChatTemplate | None = None,
    shots: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[Evaluation, Selection]:
    """Evaluate the untuned model on the test split; return the result and how the style was chosen on validation.

    An instruct model is asked with and without its chat template on the validation split, and the better style is used
    on the test split (appendix A.2 of the train-before-test paper), which is scored once. Without validation documents,
    and where the styles tie, the first style is used.
    """
    validation_by_style: dict[Style, float] = {}
    if len(styles) > 1 and task.documents("validation"):
        asks = [
            Ask(task, split="validation", style=style, shots=shots, seed=seed) for style in styles
        ]
        evaluations = evaluate(scorer, asks, chat_template=chat_template, progress=progress)
        for ask, evaluation in zip(asks, evaluations, strict=True):
            validation_by_style[ask.style] = evaluation.main.value
    sign = 1 if task.higher_is_better else -1
    best_style = styles[0]
    for style, validation_value in validation_by_style.items():
        if sign * (validation_value - validation_by_style[best_style]) > 0:  # a NaN beats nothing
            best_style = style
    test_ask = Ask(task, split="test", style=best_style, shots=shots, seed=seed)
    (test_evaluation,) = evaluate(
        scorer, [test_ask], chat_template=chat_template, progress=progress
    )
    by_style = {
        str(style): validation_value for style, validation_value in validation_by_style.items()
    }
    return test_evaluation, Selection(style=best_style, validation_by_style=by_style)

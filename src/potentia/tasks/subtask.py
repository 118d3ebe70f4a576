"""One harness task with its documents: what a benchmark is made of (one subtask, or many in a group)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from potentia.errors import TaskError
from potentia.tasks import grading
from potentia.tasks.data import as_list, silence_libraries
from potentia.tasks.forms.blind import BlindText
from potentia.tasks.forms.open_answers import strip_labels
from potentia.tasks.harness import SPLIT_KEYS, build_harness_task
from potentia.values.answer_bits import AnswerBits, compute_answer_bits
from potentia.values.metric import Metric
from potentia.values.requests import (
    Continuation,
    Document,
    Example,
    Generation,
    Request,
    decoding_options,
)
from potentia.values.scores import ItemOutcome

if TYPE_CHECKING:
    from datasets import Dataset

ChatTemplate = Callable[[list[dict[str, str]]], str]
"""Renders messages as the model's tokenizer does, with the opening of the assistant's turn at the end."""

Answer = tuple[float, bool] | float | str
"""What came back: (log-likelihood, greedy?) for a Continuation, log-likelihood for a Document, or the text."""

Columns = Mapping[str, Any]
"""The columns of one document, as lm-eval's functions take them."""

Kind = Literal["choice", "generation", "corpus"]
_KINDS: dict[str, Kind] = {
    "multiple_choice": "choice",
    "loglikelihood": "choice",
    "loglikelihood_rolling": "corpus",
    "generate_until": "generation",
}
# A definition may turn the label -1 of an unlabelled split into an answer, so the usual columns are looked at as well.
_LABEL_COLUMNS = ("label", "answer", "answerKey", "gold", "target", "cop")
_NO_LABEL = (-1, "-1", "", None)
_NO_TARGET: tuple[Any, ...] = (None, "", [], "None", -1)
_LABELS_SEEN = 50  # documents looked at to tell a labelled split from an unlabelled one
_DEFAULT_ANSWER_TOKENS = 256


@dataclass(eq=False, slots=True)
class TaskDocument:
    """One document: its columns, with an id that is its place in the public split it came from.

    In a group, ids run on from one subtask to the next, so that they are unique within a split.
    """

    id: int
    data: dict[str, Any]
    subtask: int = 0  # the number of its subtask in the group

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


@dataclass(frozen=True)
class Prompt:
    """What one document asks of a model: its requests, and what a person needs to read the answers."""

    doc_id: int
    requests: tuple[Request, ...]
    gold: str
    text: str
    choices: tuple[str, ...]
    right_choices: tuple[int, ...]  # places of the right choices
    doc: TaskDocument = field(repr=False, compare=False)
    # the right answer as a likelihood, of an example that is answered by writing
    answer: Continuation | None = None


class Subtask:
    """A harness task bound to its public splits. Documents are plain dicts, as lm-eval's functions take them."""

    def __init__(self, config: Mapping[str, Any], data: Mapping[str, Dataset]) -> None:
        self.config = dict(config)
        self.task = build_harness_task(config, data)
        self.name = str(self.task.config.task)
        if getattr(self.task, "MULTIMODAL", False):
            raise TaskError(f"{self.name} asks about images or sound; only text tasks can be run")
        self.kind = _KINDS[self.task.OUTPUT_TYPE]
        self.has_options = self.task.OUTPUT_TYPE == "multiple_choice"
        self._prepared: dict[str, Any] = {}
        self._make_sampler: Callable[[Sequence[Columns]], Any] = type(self.task.sampler)

    # --- documents ---

    def public(self, split: str) -> Any:
        """Return a public split after the task's own preparation, or an empty list."""
        if split not in self._prepared:
            name = getattr(self.task.config, SPLIT_KEYS[split])
            if name is None:
                self._prepared[split] = []
            else:
                self._prepared[split] = self._prepare(name, self.task.config.process_docs)
        return self._prepared[split]

    def _prepare(self, name: str, process: Callable[[Any], Any] | None) -> Any:
        """Return a split by its public name, processed as the definition says."""
        if name == (self.task.config.test_split or self.task.config.validation_split):
            return self.task.task_docs  # prepared by lm-eval when the task was built
        with silence_libraries():
            documents = self.task.dataset[name]
            return documents if process is None else process(documents)

    def sizes(self) -> dict[str, int]:
        """Return the number of documents per public split.

        A test split without labels counts as absent. A split that a definition names twice (medmcqa's validation is
        also its test) is the test alone: nobody is selected or trained on the documents of the test.
        """
        counts = {split: len(self.public(split)) for split in SPLIT_KEYS}
        names = {split: getattr(self.task.config, key) for split, key in SPLIT_KEYS.items()}
        for later, earlier in (("test", "validation"), ("test", "train"), ("validation", "train")):
            if names[later] == names[earlier]:
                counts[earlier] = 0
        if counts["test"] and counts["validation"] and not self._is_labelled("test"):
            counts["test"] = 0
        return counts

    def _is_labelled(self, split: str) -> bool:
        """Whether any of the first documents of a split has an answer."""
        documents = self.take(split, range(min(_LABELS_SEEN, len(self.public(split)))))
        if self.kind == "corpus":
            return True
        for column in _LABEL_COLUMNS:
            if column not in documents[0]:
                continue
            if all(document.get(column) in _NO_LABEL for document in documents):
                return False
        return any(self._has_answer(document) for document in documents)

    def take(self, split: str, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return these rows of a public split as dicts."""
        documents = self.public(split)
        if not hasattr(documents, "select"):
            return [dict(documents[row]) for row in rows]
        if len(rows) == len(documents):
            return list(documents.to_list())
        from datasets.formatting import query_table

        # What ``documents.select(rows).to_list()`` gives, without a dataset made for it: that takes milliseconds.
        table = query_table(documents.data, list(rows), indices=documents._indices)
        return list(table.to_pylist())

    def _has_answer(self, doc: Columns) -> bool:
        try:
            if self.has_options:
                return bool(self.gold_indices(doc))
            return self.task.doc_to_target(doc) not in _NO_TARGET
        except (KeyError, ValueError, IndexError, TypeError):
            return False

    # --- answers ---

    def choices(self, doc: Columns) -> list[str]:
        """Return the answer options of a document (for several contexts: the contexts)."""
        return list(self.task.doc_to_choice(doc)) if self.has_options else []

    def gold_indices(self, doc: Columns) -> list[int]:
        """Return the places of the right options; empty where the label is not among them."""
        choices = self.choices(doc)
        if self.task.multiple_input:
            gold = self.task.doc_to_text(doc)
        else:
            gold = self.task.doc_to_target(doc)
        indices = []
        for label in as_list(gold):
            if isinstance(label, str):
                if label in choices:
                    indices.append(choices.index(label))
            elif isinstance(label, (int, float, np.integer)) and 0 <= label < len(choices):
                indices.append(int(label))
        return indices

    def gold(self, doc: Columns) -> str:
        """Return the right answer as text; several accepted answers are joined by `` | ``."""
        if self.has_options:
            choices = self.choices(doc)
            return " | ".join(choices[index] for index in self.gold_indices(doc))
        return "" if self.kind == "corpus" else " | ".join(self._target_texts(doc))

    def _target_texts(self, doc: Columns) -> list[str]:
        """Return the texts that count as a right answer."""
        target = self.task.doc_to_target(doc)
        if self.task.config.doc_to_choice is not None and isinstance(target, int):
            target = self.task.doc_to_choice(doc)[target]
        return [str(text) for text in as_list(target)]

    # --- prompts ---

    def question_text(self, doc: Columns) -> str:
        """Return the question alone: without description, examples or answer."""
        if self.kind == "corpus":
            return str(self.task.doc_to_target(doc))
        if self.task.multiple_input:
            return "\n".join(map(str, [*self.choices(doc), self.task.doc_to_target(doc)]))
        return str(self._asked_text(doc)) or "\n".join(map(str, self.choices(doc)))

    def _asked_text(self, doc: Columns) -> Any:
        """Return what an example asks, also where its prompt does not show it (``blind``)."""
        write_text = self.config.get("doc_to_text")
        if isinstance(write_text, BlindText):
            return write_text.sighted_text(doc)
        return self.task.doc_to_text(doc)

    def prompt(self, doc: TaskDocument, *, shots: int, chat: ChatTemplate | None) -> Prompt:
        """Render one document; the text to read has each context where they differ."""
        requests = self.requests(doc.data, shots=shots, chat=chat)
        contexts: dict[str, None] = {}
        for request in requests:
            contexts[request.text if isinstance(request, Document) else request.context] = None
        return Prompt(
            doc_id=doc.id,
            requests=requests,
            gold=self.gold(doc.data),
            text="\n".join(contexts),
            choices=tuple(self.choices(doc.data)),
            right_choices=tuple(self.gold_indices(doc.data)) if self.has_options else (),
            doc=doc,
            answer=self._answer_request(doc.data, requests[0], chat),
        )

    def _answer_request(
        self, doc: Columns, request: Request, chat: ChatTemplate | None
    ) -> Continuation | None:
        """Return the likelihood of the right answer after the prompt of an example that is answered by writing."""
        if not isinstance(request, Generation):
            return None
        targets = self._target_texts(doc)
        if not targets or not targets[0]:
            return None
        delimiter = self._delimiter(chat, request.context, targets[0])
        return Continuation(request.context, delimiter + targets[0])

    def requests(
        self, doc: dict[str, Any], *, shots: int, chat: ChatTemplate | None
    ) -> tuple[Request, ...]:
        """Ask lm-eval for a document's requests, and turn them into ours."""
        if self.kind == "corpus":
            return (Document(str(self.task.doc_to_target(doc))),)
        harness_template = _adapt_chat_template(chat) if chat else None
        try:
            context = self.task.fewshot_context(
                doc,
                num_fewshot=shots,
                gen_prefix=self.task.doc_to_prefix(doc),
                apply_chat_template=chat is not None,
                chat_template=harness_template,
            )
        except AssertionError as error:
            raise TaskError(f"{self.name}: a document makes no prompt: {error}"[:300]) from error
        instances = self.task.construct_requests(
            doc,
            context,
            metadata=(self.name, 0, 1),
            apply_chat_template=chat is not None,
            chat_template=harness_template,
        )
        return tuple(self._request(*instance.args[:2]) for instance in as_list(instances))

    def _request(self, context: str, continuation: Any) -> Request:
        """Turn what lm-eval asks into our request; a generation's second part are its settings."""
        if self.kind != "generation":
            return Continuation(context, continuation)
        settings = continuation
        stops = tuple(filter(None, as_list(settings.get("until"))))
        longest = (
            settings.get("max_gen_toks")
            or settings.get("max_new_tokens")
            or settings.get("max_tokens")
            or _DEFAULT_ANSWER_TOKENS
        )
        return Generation(context, stops, int(longest), decoding_options(settings))

    def example(
        self, doc: dict[str, Any], *, chat: ChatTemplate | None, every_answer: bool = False
    ) -> Example:
        """Return the training text of a document: the zero-shot prompt and the right answer, split as in scoring.

        With ``every_answer`` all right answers that may be written follow the prompt, joined by spaces.
        """
        requests = self.requests(doc, shots=0, chat=chat)
        request = requests[0]
        if isinstance(request, Document):
            return Example("", request.text)
        if isinstance(request, Generation):
            targets = self._target_texts(doc)
            if not targets or not targets[0]:
                raise TaskError(f"{self.name}: a document without an answer cannot be trained on")
            target = " ".join(targets) if every_answer else targets[0]
            delimiter = self._delimiter(chat, request.context, target)
            return Example(request.context, delimiter + target, end=True)
        if self.has_options:
            gold = self.gold_indices(doc)
            if not gold:
                raise TaskError(
                    f"{self.name}: a document without a valid label cannot be trained on"
                )
            request = requests[gold[0]]
        assert isinstance(request, Continuation)
        return Example(request.context, request.continuation)

    def _delimiter(self, chat: ChatTemplate | None, context: str, target: str) -> str:
        """Return what stands between prompt and answer, as lm-eval writes it between them in its own examples."""
        if self.task.config.gen_prefix:
            return "" if context[-1:].isspace() or target[:1].isspace() else " "
        return "" if chat else str(self.task.config.target_delimiter)

    # --- few-shot examples ---

    def set_aside_examples(self, tested: str) -> Sequence[Columns] | None:
        """Return the examples that the definition sets aside for few-shot prompts, if any.

        ``tested`` is the public split that serves as test: it never lends examples, nor does train, of which the plan
        may have held out a part.
        """
        settings = self.task.fewshot_cfg
        if settings.split is not None:
            test_name = getattr(self.task.config, SPLIT_KEYS[tested])
            if settings.split in {self.task.config.training_split, test_name}:
                return None
            prepared = self._prepare(settings.split, settings.process_docs)
            return list(prepared.to_list() if hasattr(prepared, "to_list") else prepared)
        if settings.samples is None:
            return None
        return list(settings.samples() if callable(settings.samples) else settings.samples)

    def draw_examples(
        self, pool: Sequence[Columns], doc: TaskDocument, *, shots: int, seed: int
    ) -> None:
        """Set what lm-eval shows before this document: examples that its sampler draws, never the document itself."""
        # One document's own seed: examples depend on the document, not on the order of asking. A form may want the
        # same examples before every question; then the seed alone decides.
        drawn_by = str(seed) if self.config.get("fixed_examples") else f"{seed}:{doc.id}"
        digest = hashlib.sha256(drawn_by.encode()).digest()
        document_seed = int.from_bytes(digest[:8], "big")
        question = self._question_key(doc.data)
        try:
            drawn = self._make_sampler(pool).set_rnd(document_seed).sample(shots)
            if any(self._question_key(other) == question for other in drawn):
                remaining = [other for other in pool if self._question_key(other) != question]
                drawn = self._make_sampler(remaining).set_rnd(document_seed).sample(shots)
        except (AssertionError, ValueError) as error:
            raise TaskError(
                f"{self.name} has too few documents for {shots} examples in a prompt",
                hint=f"ask for fewer shots: {len(pool)} documents are at hand",
            ) from error
        self.task.sampler = SimpleNamespace(sample=lambda *_, **__: list(drawn))

    def _question_key(self, doc: Columns) -> Any:
        """Return what a document asks; two rows that ask the same are the same item here."""
        text = None if self.task.multiple_input else self._asked_text(doc)
        return text or self.task.doc_to_choice(doc)  # a form may put all into the choices

    # --- clusters ---

    @property
    def stated_cluster_column(self) -> str | None:
        """The column whose equal values make clusters, where a study or the user's data say it."""
        return self.config.get("cluster_column")

    # --- grades ---

    def grade(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Answer]], metric: str
    ) -> list[ItemOutcome]:
        """Judge the answers through lm-eval's filters and ``process_results``; ``metric`` is the main one."""
        if not prompts:
            return []
        instances: list[list[Any]] = []
        for number, (prompt, given_answers) in enumerate(zip(prompts, answers, strict=True)):
            instances.append(self._answered_instances(number, prompt, given_answers))
        all_instances: list[Any] = []
        for document_instances in instances:
            all_instances += document_instances
        for ensemble in self.task._filters:
            ensemble.apply(all_instances)
        outcomes = []
        for prompt, given_answers, document_instances in zip(
            prompts, answers, instances, strict=True
        ):
            outcomes.append(self._outcome(prompt, given_answers, document_instances, metric))
        return outcomes

    def _answered_instances(
        self, number: int, prompt: Prompt, answers: Sequence[Answer]
    ) -> list[Any]:
        """Return lm-eval's instances of one document's requests, each with its answer."""
        from lm_eval.api.instance import Instance

        if len(answers) != len(prompt.requests):
            raise TaskError(
                f"document {prompt.doc_id} of {self.name} has "
                f"{len(prompt.requests)} requests, but {len(answers)} answers"
            )
        repeats = int(self.task.config.repeats or 1)
        request_type = "loglikelihood" if self.has_options else self.task.OUTPUT_TYPE
        metadata = (self.name, number, repeats)
        instances = []
        for index, answer in enumerate(answers):
            instance = Instance(request_type, prompt.doc.data, (), index, metadata=metadata)
            instance.resps = [answer] * repeats
            instances.append(instance)
        return instances

    def _outcome(
        self, prompt: Prompt, answers: Sequence[Any], instances: Sequence[Any], metric: str
    ) -> ItemOutcome:
        """Return the result of one document: all metrics, what was predicted, and what a reader wants to see."""
        doc = prompt.doc.data
        values = self._metric_values(doc, instances)
        detail: dict[str, Any] = {"prompt": prompt.text, "metrics": values}
        prediction = ""
        if self.kind == "generation":
            detail["generated"] = answers[0]
            # without examples: what a judge is shown
            detail["question"] = strip_labels(self.question_text(doc))
            prediction = self._extracted_answer(instances[0], metric)
        elif self.kind == "corpus":
            detail["logprobs"] = [float(answers[0])]
        else:
            detail["logprobs"] = [float(answer[0]) for answer in answers]
            prediction = prompt.gold if answers[0][1] else ""
        if self.has_options:
            option_answers = answers[: len(prompt.choices)]
            if len(option_answers) == len(prompt.choices):
                values |= grading.choice_values(
                    prompt.choices,
                    option_answers,
                    gold=prompt.right_choices,
                    present=values,
                    requested=self._requested_metrics,
                )
            detail["choices"] = list(prompt.choices)
            chosen = grading.choose_answer(metric, prompt.choices, option_answers)
            prediction = prompt.choices[chosen]
        answer_bits = self._answer_bits(prompt, answers)
        if answer_bits is not None:
            values |= answer_bits.by_metric()
        value = grading.item_value(metric, values.get(metric, math.nan))
        return ItemOutcome(prompt.doc_id, value, prediction, prompt.gold, detail)

    def _answer_bits(self, prompt: Prompt, answers: Sequence[Any]) -> AnswerBits | None:
        """Return the bits of the right answer, where the answers are likelihoods."""
        if self.kind != "choice":
            return None
        if not self.has_options:
            return compute_answer_bits([prompt.gold], [float(answers[0][0])], [0])
        logprobs = [float(answer[0]) for answer in answers[: len(prompt.choices)]]
        if len(logprobs) != len(prompt.choices):
            return None
        if self.task.multiple_input:  # the choices are contexts; what follows each is scored
            ends = [request.continuation for request in prompt.requests[: len(logprobs)]]  # type: ignore[union-attr]
            return compute_answer_bits(
                [end.strip() for end in ends], logprobs, prompt.right_choices
            )
        right_texts = {prompt.choices[position] for position in prompt.right_choices}
        right = [k for k, choice in enumerate(prompt.choices) if choice in right_texts]
        return compute_answer_bits(prompt.choices, logprobs, right)

    def _metric_values(self, doc: dict[str, Any], instances: Sequence[Any]) -> dict[str, Any]:
        """Return the value of every metric, once per filter."""
        filters = self.task._filters
        values: dict[str, Any] = {}
        for ensemble in filters:
            filtered = [instance.filtered_resps[ensemble.name] for instance in instances]
            for name, value in self.task.process_results(doc, filtered).items():
                key = grading.metric_key(name, ensemble.name, len(filters))
                values[key] = grading.to_plain_values(value)
        return values

    def _extracted_answer(self, instance: Any, metric: str) -> str:
        """Return what the filter of a metric found in a written answer."""
        filtered = instance.filtered_resps
        default = filtered[self.task._filters[0].name]
        extracted = filtered.get(metric.partition("|")[2], default)
        return str(grading.to_plain_values(extracted))

    @cached_property
    def _requested_metrics(self) -> frozenset[Any]:
        """The metrics of options that are asked for beside the usual ones."""
        label_metrics = grading.LABEL_METRICS if self.config.get("labels") else ()
        return frozenset((self.config.get("main_metric"), *label_metrics))

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics that the definition asks for, the first filter first."""
        if self.config.get("metric_names"):
            return tuple(self.config["metric_names"])
        filters = self.task._filters
        names = []
        for ensemble in filters:
            for metric in self.task.aggregation():
                names.append(grading.metric_key(metric, ensemble.name, len(filters)))
        return tuple(names)

    def higher_is_better(self, metric: str) -> bool:
        """Whether more of a metric is better."""
        stated = self.task.higher_is_better().get(metric.split("|")[0])
        return Metric.of(metric, stated).higher_is_better


def _adapt_chat_template(template: ChatTemplate) -> Callable[..., str]:
    """Adapt a chat template to lm-eval's call: an opened answer (``gen_prefix``) goes after the generation prompt."""

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if messages and messages[-1]["role"] == "assistant":
            return template(messages[:-1]) + messages[-1]["content"]
        return template(messages)

    return render

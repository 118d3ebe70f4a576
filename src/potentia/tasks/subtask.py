"""One lm-eval task with its documents: a ``Task`` has one such subtask, or many if it is a group such as MMLU.

A subtask does for one document what ``Task`` does for a whole split: it turns the document into requests to a model,
into a training text, and, with the model's answers, into a graded outcome. Prompts, filters and metrics are those of
lm-eval's task object (``harness_task``), which a definition describes. *Public split* means a split as the benchmark
publishes it, after the definition's own ``process_docs``.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
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
    from lm_eval.api.instance import Instance

ChatTemplate = Callable[[list[dict[str, str]]], str]
"""Renders messages as the model's tokenizer does, with the opening of the assistant's turn at the end."""

ModelAnswer = tuple[float, bool] | float | str
"""A model's answer to one request: (log-likelihood, greedy?) to a Continuation, the log-likelihood of a Document, or
the text of a Generation."""

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
_NO_TARGET: tuple[object, ...] = (None, "", [], "None", -1)
_LABEL_SAMPLE = 50  # documents looked at to tell a labelled split from an unlabelled one
_DEFAULT_ANSWER_TOKENS = 256


@dataclass(eq=False, slots=True)
class TaskDocument:
    """One document: its columns, and its row number in the public split it came from as ``id``.

    In a group, ids run on from one subtask to the next, so that they are unique within a split.
    """

    id: int
    data: dict[str, Any]
    subtask_number: int = 0  # which subtask of the group it belongs to, from 0

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


@dataclass(frozen=True)
class Prompt:
    """What one document asks of a model: its requests, and what a person needs to read the answers."""

    doc_id: int
    requests: tuple[Request, ...]
    gold: str  # the right answer as text; several are joined by " | "
    text: str  # what the model reads, for a person to read
    choices: tuple[str, ...]  # empty unless the document has options
    right_choices: tuple[int, ...]  # positions of the right choices
    document: TaskDocument = field(repr=False, compare=False)
    # for a generated answer: asks for the likelihood of the right one
    answer: Continuation | None = None


class Subtask:
    """An lm-eval task bound to its public splits: train, validation and test as the benchmark publishes them.

    Documents are plain dicts, as lm-eval's functions take them.
    """

    def __init__(
        self, definition: Mapping[str, Any], datasets_by_split: Mapping[str, Dataset]
    ) -> None:
        self.definition = dict(definition)
        self.harness_task = build_harness_task(definition, datasets_by_split)
        self.name = str(self.harness_task.config.task)
        if getattr(self.harness_task, "MULTIMODAL", False):
            raise TaskError(f"{self.name} asks about images or sound; only text tasks can be run")
        self.kind = _KINDS[self.harness_task.OUTPUT_TYPE]
        self.has_options = self.harness_task.OUTPUT_TYPE == "multiple_choice"
        self._public_documents: dict[str, Any] = {}  # by public split
        self._make_sampler: Callable[[Sequence[Columns]], Any] = type(self.harness_task.sampler)

    # --- documents ---

    def public_documents(self, split: str) -> Any:
        """Return the documents of a public split, after the definition's ``process_docs``; empty if it has none."""
        if split not in self._public_documents:
            config = self.harness_task.config
            split_name = getattr(config, SPLIT_KEYS[split])
            documents: Any = []
            if split_name is not None:
                documents = self._process_split(split_name, config.process_docs)
            self._public_documents[split] = documents
        return self._public_documents[split]

    def _process_split(
        self, split_name: str, process_docs: Callable[[object], object] | None
    ) -> Any:
        """Return the documents of the split that the benchmark calls ``split_name``, processed by a function."""
        config = self.harness_task.config
        if split_name == (config.test_split or config.validation_split):
            return self.harness_task.task_docs  # lm-eval processed them when the task was built
        with silence_libraries():
            documents = self.harness_task.dataset[split_name]
            return documents if process_docs is None else process_docs(documents)

    def public_sizes(self) -> dict[str, int]:
        """Return the number of documents per public split.

        A test split without labels counts as absent where there is a validation split to test on. A split that a
        definition names twice (medmcqa's validation is also its test) is the test alone: nobody is selected or trained
        on the documents of the test.
        """
        sizes = {split: len(self.public_documents(split)) for split in SPLIT_KEYS}
        config = self.harness_task.config
        split_names = {split: getattr(config, key) for split, key in SPLIT_KEYS.items()}
        for later, earlier in (("test", "validation"), ("test", "train"), ("validation", "train")):
            if split_names[later] == split_names[earlier]:
                sizes[earlier] = 0
        if sizes["test"] and sizes["validation"] and not self._is_labelled("test"):
            sizes["test"] = 0
        return sizes

    def _is_labelled(self, split: str) -> bool:
        """Whether any of the first documents of a split has an answer."""
        if self.kind == "corpus":
            return True
        sample_size = min(_LABEL_SAMPLE, len(self.public_documents(split)))
        documents = self.take_rows(split, range(sample_size))
        for column in _LABEL_COLUMNS:
            if column not in documents[0]:
                continue
            if all(document.get(column) in _NO_LABEL for document in documents):
                return False
        return any(self._has_answer(document) for document in documents)

    def take_rows(self, split: str, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return these rows of a public split as dicts, in the order of ``rows``."""
        documents = self.public_documents(split)
        if not hasattr(documents, "select"):
            return [dict(documents[row]) for row in rows]
        if list(rows) == list(range(len(documents))):
            return list(documents.to_list())
        from datasets.formatting import query_table

        # What ``documents.select(rows).to_list()`` gives, without a dataset made for it: that takes milliseconds.
        table = query_table(documents.data, list(rows), indices=documents._indices)
        return list(table.to_pylist())

    def _has_answer(self, document: Columns) -> bool:
        try:
            if self.has_options:
                return bool(self.gold_indices(document))
            return self.harness_task.doc_to_target(document) not in _NO_TARGET
        except (KeyError, ValueError, IndexError, TypeError):
            return False

    # --- answers ---

    def choices(self, document: Columns) -> list[str]:
        """Return the answer options of a document (for several contexts: the contexts)."""
        return list(self.harness_task.doc_to_choice(document)) if self.has_options else []

    def gold_indices(self, document: Columns) -> list[int]:
        """Return the positions of the right options; empty if the label is none of them."""
        choices = self.choices(document)
        if self.harness_task.multiple_input:
            gold_answer = self.harness_task.doc_to_text(document)
        else:
            gold_answer = self.harness_task.doc_to_target(document)
        indices = []
        for label in as_list(gold_answer):
            if isinstance(label, str):
                if label in choices:
                    indices.append(choices.index(label))
            elif isinstance(label, (int, float, np.integer)) and 0 <= label < len(choices):
                indices.append(int(label))
        return indices

    def gold(self, document: Columns) -> str:
        """Return the right answer as text; several accepted answers are joined by `` | ``."""
        if self.has_options:
            choices = self.choices(document)
            return " | ".join(choices[index] for index in self.gold_indices(document))
        return "" if self.kind == "corpus" else " | ".join(self._read_target_texts(document))

    def _read_target_texts(self, document: Columns) -> list[str]:
        """Return the texts that count as a right answer; a target that is a number is the position of a choice."""
        target = self.harness_task.doc_to_target(document)
        if self.harness_task.config.doc_to_choice is not None and isinstance(target, int):
            target = self.harness_task.doc_to_choice(document)[target]
        return [str(text) for text in as_list(target)]

    # --- prompts ---

    def question_text(self, document: Columns) -> str:
        """Return the question alone: without description, examples or answer."""
        if self.kind == "corpus":
            return str(self.harness_task.doc_to_target(document))
        if self.harness_task.multiple_input:
            ending = self.harness_task.doc_to_target(document)
            return "\n".join(map(str, [*self.choices(document), ending]))
        return str(self._write_asked_text(document)) or "\n".join(map(str, self.choices(document)))

    def identifying_texts(self, document: Columns) -> list[str]:
        """Return the texts that tell documents apart: what is asked, and the choices where they differ."""
        texts = [self.question_text(document)]
        if self.has_options and not self.definition.get("labels"):
            texts += self.choices(document)
        return texts

    def _write_asked_text(self, document: Columns) -> Any:
        """Return what an example asks, even where its prompt hides it (form ``blind``)."""
        write_text = self.definition.get("doc_to_text")
        if isinstance(write_text, BlindText):
            return write_text.sighted_text(document)
        return self.harness_task.doc_to_text(document)

    def prompt(
        self, document: TaskDocument, *, shots: int, chat_template: ChatTemplate | None
    ) -> Prompt:
        """Return one document as a prompt; the text that people read has every distinct context of its requests."""
        requests = self.requests(document.data, shots=shots, chat_template=chat_template)
        contexts: dict[str, None] = {}
        for request in requests:
            contexts[request.text if isinstance(request, Document) else request.context] = None
        return Prompt(
            doc_id=document.id,
            requests=requests,
            gold=self.gold(document.data),
            text="\n".join(contexts),
            choices=tuple(self.choices(document.data)),
            right_choices=tuple(self.gold_indices(document.data)) if self.has_options else (),
            document=document,
            answer=self._make_answer_request(document.data, requests[0], chat_template),
        )

    def _make_answer_request(
        self, document: Columns, request: Request, chat_template: ChatTemplate | None
    ) -> Continuation | None:
        """Return the request for the likelihood of the right answer, of an example whose answer is generated."""
        if not isinstance(request, Generation):
            return None
        targets = self._read_target_texts(document)
        if not targets or not targets[0]:
            return None
        delimiter = self._choose_delimiter(chat_template, request.context, targets[0])
        return Continuation(request.context, delimiter + targets[0])

    def requests(
        self,
        document: dict[str, object],
        *,
        shots: int,
        chat_template: ChatTemplate | None,
        with_description: bool = True,
    ) -> tuple[Request, ...]:
        """Return a document's requests: those that lm-eval constructs, as Potentia's types.

        ``with_description`` puts the task's description before the question, if it has one.
        """
        if self.kind == "corpus":
            return (Document(str(self.harness_task.doc_to_target(document))),)
        harness_template = _adapt_chat_template(chat_template) if chat_template else None
        harness_task = self.harness_task if with_description else self._undescribed_task
        try:
            context = harness_task.fewshot_context(
                document,
                num_fewshot=shots,
                gen_prefix=self.harness_task.doc_to_prefix(document),
                apply_chat_template=chat_template is not None,
                chat_template=harness_template,
            )
        except AssertionError as error:
            raise TaskError(f"{self.name}: an example makes no prompt: {error}"[:300]) from error
        instances = self.harness_task.construct_requests(
            document,
            context,
            metadata=(self.name, 0, 1),
            apply_chat_template=chat_template is not None,
            chat_template=harness_template,
        )
        return tuple(self._convert_request(*instance.args[:2]) for instance in as_list(instances))

    @cached_property
    def _undescribed_task(self) -> Any:
        """lm-eval's task with an empty description: it writes the same prompts without it."""
        bare_task = copy(self.harness_task)
        bare_task._config = copy(self.harness_task.config)
        bare_task._config.description = ""
        return bare_task

    def _convert_request(self, context: str, continuation: Any) -> Request:
        """Return one request of lm-eval's as Potentia's type.

        Where answers are generated, lm-eval's ``continuation`` is the mapping of generation settings.
        """
        if self.kind != "generation":
            return Continuation(context, continuation)
        settings = continuation
        stops = tuple(filter(None, as_list(settings.get("until"))))
        max_tokens = (
            settings.get("max_gen_toks")
            or settings.get("max_new_tokens")
            or settings.get("max_tokens")
            or _DEFAULT_ANSWER_TOKENS
        )
        return Generation(context, stops, int(max_tokens), decoding_options(settings))

    def example(
        self,
        document: dict[str, Any],
        *,
        chat_template: ChatTemplate | None,
        every_answer: bool = False,
        with_description: bool = True,
    ) -> Example:
        """Return the training text of a document: the zero-shot prompt and the right answer, divided as in scoring.

        Where several written answers are right, the first is trained on; ``every_answer`` trains on all of them,
        joined by spaces. ``with_description`` puts the task's description before the prompt, as in the test.
        """
        requests = self.requests(
            document, shots=0, chat_template=chat_template, with_description=with_description
        )
        request = requests[0]
        if isinstance(request, Document):
            return Example("", request.text)
        if isinstance(request, Generation):
            targets = self._read_target_texts(document)
            if not targets or not targets[0]:
                raise TaskError(f"{self.name}: an example without an answer cannot be trained on")
            target = " ".join(targets) if every_answer else targets[0]
            delimiter = self._choose_delimiter(chat_template, request.context, target)
            return Example(request.context, delimiter + target, end=True)
        if self.has_options:
            gold = self.gold_indices(document)
            if not gold:
                raise TaskError(
                    f"{self.name}: an example without a valid label cannot be trained on"
                )
            request = requests[gold[0]]
        assert isinstance(request, Continuation)
        return Example(request.context, request.continuation)

    def _choose_delimiter(
        self, chat_template: ChatTemplate | None, context: str, target: str
    ) -> str:
        """Return what stands between prompt and answer: what lm-eval writes there in its few-shot examples."""
        if self.harness_task.config.gen_prefix:
            return "" if context[-1:].isspace() or target[:1].isspace() else " "
        return "" if chat_template else str(self.harness_task.config.target_delimiter)

    # --- few-shot examples ---

    def set_aside_examples(self, tested_split: str) -> Sequence[Columns] | None:
        """Return the examples that the definition sets aside for few-shot prompts; None if it sets none aside.

        ``tested_split`` is the public split that serves as test. The examples never come from it, nor from train, a
        part of which may be validation now.
        """
        settings = self.harness_task.fewshot_cfg
        if settings.split is not None:
            test_name = getattr(self.harness_task.config, SPLIT_KEYS[tested_split])
            if settings.split in {self.harness_task.config.training_split, test_name}:
                return None
            documents = self._process_split(settings.split, settings.process_docs)
            return list(documents.to_list() if hasattr(documents, "to_list") else documents)
        if settings.samples is None:
            return None
        return list(settings.samples() if callable(settings.samples) else settings.samples)

    def draw_examples(
        self, example_pool: Sequence[Columns], document: TaskDocument, *, shots: int, seed: int
    ) -> None:
        """Draw the examples that lm-eval will show before this document, with its own sampler.

        The document itself is never among them. The next request that lm-eval constructs shows these examples.
        """
        # Each document has its own seed, so that its examples do not depend on the order of asking. A form may want
        # the same examples before every question; then the study's seed alone decides.
        seed_text = str(seed) if self.definition.get("fixed_examples") else f"{seed}:{document.id}"
        digest = hashlib.sha256(seed_text.encode()).digest()
        document_seed = int.from_bytes(digest[:8], "big")
        question = self._question_key(document.data)
        try:
            drawn_examples = self._make_sampler(example_pool).set_rnd(document_seed).sample(shots)
            if any(self._question_key(example) == question for example in drawn_examples):
                remaining = [
                    example for example in example_pool if self._question_key(example) != question
                ]
                drawn_examples = self._make_sampler(remaining).set_rnd(document_seed).sample(shots)
        except (AssertionError, ValueError) as error:
            raise TaskError(
                f"{self.name} has too few examples for {shots} shots in a prompt",
                hint=f"ask for fewer shots: {len(example_pool)} examples are there",
            ) from error
        self.harness_task.sampler = SimpleNamespace(sample=lambda *_, **__: list(drawn_examples))

    def _question_key(self, document: Columns) -> Any:
        """Return what a document asks: rows with equal keys are never shown to each other as examples."""
        text = None if self.harness_task.multiple_input else self._write_asked_text(document)
        # the prompt may be empty: a form may put everything into the choices
        return text or self.harness_task.doc_to_choice(document)

    # --- clusters ---

    @property
    def stated_cluster_column(self) -> str | None:
        """The column whose equal values make clusters, where a study or the user's data name one."""
        return self.definition.get("cluster_column")

    # --- grades ---

    def grade(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[ModelAnswer]], metric: str
    ) -> list[ItemOutcome]:
        """Return the outcome of each document, graded by lm-eval's filters and ``process_results``.

        ``answers`` has the model's answer to each request of each prompt. ``metric`` decides the outcome's value.
        """
        if not prompts:
            return []
        instances_by_prompt: list[list[Instance]] = []
        for prompt_number, (prompt, prompt_answers) in enumerate(
            zip(prompts, answers, strict=True)
        ):
            instances_by_prompt.append(
                self._make_answered_instances(prompt_number, prompt, prompt_answers)
            )
        # all at once: some filters look at all documents together
        all_instances = list(itertools.chain.from_iterable(instances_by_prompt))
        for ensemble in self.harness_task._filters:
            ensemble.apply(all_instances)
        outcomes = []
        for prompt, prompt_answers, instances in zip(
            prompts, answers, instances_by_prompt, strict=True
        ):
            outcomes.append(self._grade_document(prompt, prompt_answers, instances, metric))
        return outcomes

    def _make_answered_instances(
        self, prompt_number: int, prompt: Prompt, answers: Sequence[ModelAnswer]
    ) -> list[Instance]:
        """Return lm-eval's ``Instance`` of each request of one document, with the model's answer in it."""
        from lm_eval.api.instance import Instance

        if len(answers) != len(prompt.requests):
            raise TaskError(
                f"example {prompt.doc_id} of {self.name} has "
                f"{len(prompt.requests)} requests, but {len(answers)} answers"
            )
        repeats = int(self.harness_task.config.repeats or 1)
        request_type = "loglikelihood" if self.has_options else self.harness_task.OUTPUT_TYPE
        metadata = (self.name, prompt_number, repeats)
        instances = []
        for index, answer in enumerate(answers):
            instance = Instance(request_type, prompt.document.data, (), index, metadata=metadata)
            instance.resps = [answer] * repeats
            instances.append(instance)
        return instances

    def _grade_document(
        self, prompt: Prompt, answers: Sequence[Any], instances: Sequence[Instance], metric: str
    ) -> ItemOutcome:
        """Return the result of one document: all metrics, what was predicted, and what a reader wants to see."""
        document = prompt.document.data
        values = self._compute_metric_values(document, instances)
        detail: dict[str, object] = {"prompt": prompt.text, "metrics": values}
        prediction = ""
        if self.kind == "generation":
            detail["generated"] = answers[0]
            # the question alone, without few-shot examples: a judge of the answer reads it
            detail["question"] = strip_labels(self.question_text(document))
            prediction = self._read_extracted_answer(instances[0], metric)
        elif self.kind == "corpus":
            detail["logprobs"] = [float(answers[0])]
        else:
            detail["logprobs"] = [float(answer[0]) for answer in answers]
            prediction = prompt.gold if answers[0][1] else ""
        if self.has_options:
            option_answers = answers[: len(prompt.choices)]
            if len(option_answers) == len(prompt.choices):
                values |= grading.compute_choice_metrics(
                    prompt.choices,
                    option_answers,
                    right_choices=prompt.right_choices,
                    computed_metrics=values,
                    requested_metrics=self._requested_metrics,
                )
            detail["choices"] = list(prompt.choices)
            chosen = grading.choose_answer(metric, prompt.choices, option_answers)
            prediction = prompt.choices[chosen]
        answer_bits = self._compute_document_bits(prompt, answers)
        if answer_bits is not None:
            values |= answer_bits.by_metric()
        value = grading.reduce_item_value(metric, values.get(metric, math.nan))
        return ItemOutcome(prompt.doc_id, value, prediction, prompt.gold, detail)

    def _compute_document_bits(self, prompt: Prompt, answers: Sequence[Any]) -> AnswerBits | None:
        """Return the bits that the model needs for the right answer; None if the answer is generated."""
        if self.kind != "choice":
            return None
        if not self.has_options:
            return compute_answer_bits([prompt.gold], [float(answers[0][0])], [0])
        logprobs = [float(answer[0]) for answer in answers[: len(prompt.choices)]]
        if len(logprobs) != len(prompt.choices):
            return None
        if (
            self.harness_task.multiple_input
        ):  # the choices are contexts; what follows each is scored
            scored_texts = [request.continuation for request in prompt.requests[: len(logprobs)]]  # type: ignore[union-attr]
            return compute_answer_bits(
                [scored_text.strip() for scored_text in scored_texts],
                logprobs,
                prompt.right_choices,
            )
        right_texts = {prompt.choices[position] for position in prompt.right_choices}
        right_positions = [k for k, choice in enumerate(prompt.choices) if choice in right_texts]
        return compute_answer_bits(prompt.choices, logprobs, right_positions)

    def _compute_metric_values(
        self, document: dict[str, Any], instances: Sequence[Instance]
    ) -> dict[str, Any]:
        """Return the value of every metric of one document, once per filter."""
        filters = self.harness_task._filters
        values: dict[str, Any] = {}
        for ensemble in filters:
            filtered = [instance.filtered_resps[ensemble.name] for instance in instances]
            for metric_name, value in self.harness_task.process_results(document, filtered).items():
                key = grading.name_metric(metric_name, ensemble.name, len(filters))
                values[key] = grading.to_plain_values(value)
        return values

    def _read_extracted_answer(self, instance: Instance, metric: str) -> str:
        """Return what the filter of a metric extracted from a written answer."""
        filtered = instance.filtered_resps
        default = filtered[self.harness_task._filters[0].name]
        extracted = filtered.get(metric.partition("|")[2], default)
        return str(grading.to_plain_values(extracted))

    @cached_property
    def _requested_metrics(self) -> frozenset[object]:
        """The metrics to request of ``compute_choice_metrics``: the main one, and those of labelled texts."""
        label_metrics = grading.LABEL_METRICS if self.definition.get("labels") else ()
        return frozenset((self.definition.get("main_metric"), *label_metrics))

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics that the definition asks for, the first filter first."""
        if self.definition.get("metric_names"):
            return tuple(self.definition["metric_names"])
        filters = self.harness_task._filters
        metric_names = []
        for ensemble in filters:
            for metric in self.harness_task.aggregation():
                metric_names.append(grading.name_metric(metric, ensemble.name, len(filters)))
        return tuple(metric_names)

    def higher_is_better(self, metric: str) -> bool:
        """Whether a larger value of a metric is better, by the definition or else by what is known of the metric."""
        stated = self.harness_task.higher_is_better().get(metric.split("|")[0])
        return Metric.of(metric, stated).higher_is_better


def _adapt_chat_template(template: ChatTemplate) -> Callable[..., str]:
    """Return a chat template as lm-eval calls it; an answer's start (``gen_prefix``) follows the turn's opening."""

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if messages and messages[-1]["role"] == "assistant":
            return template(messages[:-1]) + messages[-1]["content"]
        return template(messages)

    return render

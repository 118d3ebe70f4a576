"""One harness task with its documents: what a benchmark is made of (one leaf, or many in a group)."""

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
from potentia.tasks.forms.open_answers import strip_labels
from potentia.tasks.harness import SPLIT_KEYS, build_harness_task
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
_LABELS_SEEN = 50  # documents looked at to tell a labelled split from an unlabelled one


@dataclass(eq=False, slots=True)
class TaskDocument:
    """One document: its columns, with an id that is its place in the public split it came from.

    In a group, ids run on from one subtask to the next, so that they are unique within a split.
    """

    id: int
    data: dict[str, Any]
    subtask: int = 0

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
        self._sampler: Callable[[Sequence[Mapping[str, Any]]], Any] = type(self.task.sampler)

    # Documents

    def public(self, split: str) -> Any:
        """Return a public split after the task's own preparation, or an empty list."""
        if split not in self._prepared:
            name = getattr(self.task.config, SPLIT_KEYS[split])
            self._prepared[split] = (
                [] if name is None else self._prepare(name, self.task.config.process_docs)
            )
        return self._prepared[split]

    def _prepare(self, name: str, process: Callable[[Any], Any] | None) -> Any:
        if name == (self.task.config.test_split or self.task.config.validation_split):
            return self.task.task_docs  # prepared by lm-eval when the task was built
        with silence_libraries():
            return self.task.dataset[name] if process is None else process(self.task.dataset[name])

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
        if counts["test"] and counts["validation"] and not self._labelled("test"):
            counts["test"] = 0
        return counts

    def _labelled(self, split: str) -> bool:
        """Tell whether any of the first documents of a split has an answer."""
        docs = self.take(split, range(min(_LABELS_SEEN, len(self.public(split)))))
        blank = any(
            column in docs[0] and all(doc.get(column) in _NO_LABEL for doc in docs)
            for column in _LABEL_COLUMNS
        )
        return self.kind == "corpus" or (not blank and any(self._has_answer(doc) for doc in docs))

    def take(self, split: str, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return these rows of a public split as dicts."""
        docs = self.public(split)
        if not hasattr(docs, "select"):
            return [dict(docs[row]) for row in rows]
        if len(rows) == len(docs):
            return list(docs.to_list())
        from datasets.formatting import query_table

        # What ``docs.select(rows).to_list()`` gives, without a dataset made for it: that takes milliseconds.
        return list(query_table(docs.data, list(rows), indices=docs._indices).to_pylist())

    def _has_answer(self, doc: Mapping[str, Any]) -> bool:
        try:
            if self.has_options:
                return bool(self.gold_indices(doc))
            return self.task.doc_to_target(doc) not in (None, "", [], "None", -1)
        except (KeyError, ValueError, IndexError, TypeError):
            return False

    # Answers

    def choices(self, doc: Mapping[str, Any]) -> list[str]:
        """Return the answer options of a document (for several contexts: the contexts)."""
        return list(self.task.doc_to_choice(doc)) if self.has_options else []

    def gold_indices(self, doc: Mapping[str, Any]) -> list[int]:
        """Return the places of the right options; empty where the label is not among them."""
        choices = self.choices(doc)
        gold = (
            self.task.doc_to_text(doc) if self.task.multiple_input else self.task.doc_to_target(doc)
        )
        found = []
        for label in as_list(gold):
            if isinstance(label, str):
                found += [choices.index(label)] if label in choices else []
            elif isinstance(label, (int, float, np.integer)) and 0 <= label < len(choices):
                found.append(int(label))
        return found

    def gold(self, doc: Mapping[str, Any]) -> str:
        """Return the right answer as text; several accepted answers are joined by `` | ``."""
        if self.has_options:
            choices = self.choices(doc)
            return " | ".join(choices[i] for i in self.gold_indices(doc))
        return "" if self.kind == "corpus" else " | ".join(self._targets(doc))

    def _targets(self, doc: Mapping[str, Any]) -> list[str]:
        target = self.task.doc_to_target(doc)
        if self.task.config.doc_to_choice is not None and isinstance(target, int):
            target = self.task.doc_to_choice(doc)[target]
        return [str(t) for t in as_list(target)]

    # Prompts

    def asked(self, doc: Mapping[str, Any]) -> str:
        """Return the question alone: without description, examples or answer."""
        if self.kind == "corpus":
            return str(self.task.doc_to_target(doc))
        if self.task.multiple_input:
            return "\n".join(map(str, [*self.choices(doc), self.task.doc_to_target(doc)]))
        return str(self.task.doc_to_text(doc)) or "\n".join(map(str, self.choices(doc)))

    def prompt(self, doc: TaskDocument, *, shots: int, chat: ChatTemplate | None) -> Prompt:
        """Render one document; the text to read has each context where they differ."""
        requests = self.requests(doc.data, shots=shots, chat=chat)
        contexts = dict.fromkeys(r.text if isinstance(r, Document) else r.context for r in requests)
        choices = tuple(self.choices(doc.data))
        right = tuple(self.gold_indices(doc.data)) if self.has_options else ()
        return Prompt(
            doc.id, requests, self.gold(doc.data), "\n".join(contexts), choices, right, doc
        )

    def requests(
        self, doc: dict[str, Any], *, shots: int, chat: ChatTemplate | None
    ) -> tuple[Request, ...]:
        """Ask lm-eval for a document's requests, and turn them into ours."""
        if self.kind == "corpus":
            return (Document(str(self.task.doc_to_target(doc))),)
        how = {
            "apply_chat_template": chat is not None,
            "chat_template": _chat(chat) if chat else None,
        }
        try:
            prefix = self.task.doc_to_prefix(doc)
            context = self.task.fewshot_context(doc, num_fewshot=shots, gen_prefix=prefix, **how)
        except AssertionError as error:
            raise TaskError(f"{self.name}: a document makes no prompt: {error}"[:300]) from error
        made = self.task.construct_requests(doc, context, metadata=(self.name, 0, 1), **how)
        return tuple(self._request(*instance.args[:2]) for instance in as_list(made))

    def _request(self, context: str, more: Any) -> Request:
        if self.kind != "generation":
            return Continuation(context, more)
        stops = tuple(filter(None, as_list(more.get("until"))))
        longest = more.get("max_gen_toks") or more.get("max_new_tokens") or more.get("max_tokens")
        return Generation(context, stops, int(longest or 256), decoding_options(more))

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
            targets = self._targets(doc)
            if not targets or not targets[0]:
                raise TaskError(f"{self.name}: a document without an answer cannot be trained on")
            target = " ".join(targets) if every_answer else targets[0]
            return Example(
                request.context, self._delimiter(chat, request.context, target) + target, end=True
            )
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

    # Few-shot examples

    def own_pool(self, tested: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the examples that the definition sets aside for few-shot prompts, if any.

        ``tested`` is the public split that serves as test: it never lends examples, nor does train, of which the plan
        may have held out a part.
        """
        settings = self.task.fewshot_cfg
        if settings.split is not None:
            if settings.split in {
                self.task.config.training_split,
                getattr(self.task.config, SPLIT_KEYS[tested]),
            }:
                return None
            prepared = self._prepare(settings.split, settings.process_docs)
            return list(prepared.to_list() if hasattr(prepared, "to_list") else prepared)
        if settings.samples is None:
            return None
        return list(settings.samples() if callable(settings.samples) else settings.samples)

    def draw(
        self, pool: Sequence[Mapping[str, Any]], doc: TaskDocument, *, shots: int, seed: int
    ) -> None:
        """Set what lm-eval shows before this document: examples that its sampler draws, never the document itself."""
        # One document's own seed: examples depend on the document, not on the order of asking.
        own = int.from_bytes(hashlib.sha256(f"{seed}:{doc.id}".encode()).digest()[:8], "big")
        mine = self._same(doc.data)
        try:
            drawn = self._sampler(pool).set_rnd(own).sample(shots)
            if any(self._same(other) == mine for other in drawn):
                others = [other for other in pool if self._same(other) != mine]
                drawn = self._sampler(others).set_rnd(own).sample(shots)
        except (AssertionError, ValueError) as error:
            raise TaskError(
                f"{self.name} has too few documents for {shots} examples in a prompt",
                hint=f"ask for fewer shots: {len(pool)} documents are at hand",
            ) from error
        self.task.sampler = SimpleNamespace(sample=lambda *_, **__: list(drawn))

    def _same(self, doc: Mapping[str, Any]) -> Any:
        """Return what a document asks; two rows that ask the same are the same item here."""
        text = None if self.task.multiple_input else self.task.doc_to_text(doc)
        return text or self.task.doc_to_choice(doc)  # a form may put all into the choices

    # Grades

    def grade(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Answer]], metric: str
    ) -> list[ItemOutcome]:
        """Judge the answers through lm-eval's filters and ``process_results``; ``metric`` is the main one."""
        from lm_eval.api.instance import Instance

        if not prompts:
            return []
        repeats = int(self.task.config.repeats or 1)
        kind = "loglikelihood" if self.has_options else self.task.OUTPUT_TYPE
        instances: list[list[Any]] = []
        for number, (prompt, given) in enumerate(zip(prompts, answers, strict=True)):
            if len(given) != len(prompt.requests):
                told = f"{len(prompt.requests)} requests, but {len(given)} answers"
                raise TaskError(f"document {prompt.doc_id} of {self.name} has {told}")
            mine = []
            for place, answer in enumerate(given):
                instance = Instance(
                    kind, prompt.doc.data, (), place, metadata=(self.name, number, repeats)
                )
                instance.resps = [answer] * repeats
                mine.append(instance)
            instances.append(mine)
        for ensemble in self.task._filters:
            ensemble.apply([instance for mine in instances for instance in mine])
        return [
            self._outcome(prompt, given, mine, metric)
            for prompt, given, mine in zip(prompts, answers, instances, strict=True)
        ]

    def _outcome(
        self, prompt: Prompt, given: Sequence[Any], instances: Sequence[Any], metric: str
    ) -> ItemOutcome:
        doc, filters = prompt.doc.data, self.task._filters
        values: dict[str, Any] = {}
        for ensemble in filters:
            filtered = [instance.filtered_resps[ensemble.name] for instance in instances]
            for name, value in self.task.process_results(doc, filtered).items():
                values[grading.metric_key(name, ensemble.name, len(filters))] = (
                    grading.to_plain_values(value)
                )
        detail: dict[str, Any] = {"prompt": prompt.text, "metrics": values}
        prediction = ""
        if self.kind == "generation":
            detail["generated"] = given[0]
            detail["question"] = strip_labels(
                self.asked(doc)
            )  # without examples: what a judge is shown
            shown = instances[0].filtered_resps
            prediction = str(
                grading.to_plain_values(shown.get(metric.partition("|")[2], shown[filters[0].name]))
            )
        elif self.kind == "corpus":
            detail["logprobs"] = [float(given[0])]
        else:
            detail["logprobs"] = [float(answer[0]) for answer in given]
            prediction = prompt.gold if given[0][1] else ""
        if self.has_options:
            answers = given[: len(prompt.choices)]
            if len(answers) == len(prompt.choices):
                values |= grading.choice_values(
                    prompt.choices, answers, prompt.right_choices, values, self._wanted
                )
            detail["choices"] = list(prompt.choices)
            prediction = prompt.choices[grading.choose_answer(metric, prompt.choices, answers)]
        return ItemOutcome(
            prompt.doc_id,
            grading.item_value(metric, values.get(metric, math.nan)),
            prediction,
            prompt.gold,
            detail,
        )

    @cached_property
    def _wanted(self) -> frozenset[Any]:
        """The metrics of options that are asked for beside the usual ones."""
        return frozenset(
            (
                self.config.get("main_metric"),
                *(grading.LABEL_METRICS if self.config.get("labels") else ()),
            )
        )

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics that the definition asks for, the first filter first."""
        if self.config.get("metric_names"):
            return tuple(self.config["metric_names"])
        filters = self.task._filters
        return tuple(
            grading.metric_key(metric, f.name, len(filters))
            for f in filters
            for metric in self.task.aggregation()
        )

    def higher_is_better(self, metric: str) -> bool:
        """Tell the direction of a metric."""
        said = self.task.higher_is_better().get(metric.split("|")[0])
        return Metric.of(metric, said).higher_is_better


def _chat(template: ChatTemplate) -> Callable[..., str]:
    """Adapt a chat template to lm-eval's call: an opened answer (``gen_prefix``) goes after the generation prompt."""

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if messages and messages[-1]["role"] == "assistant":
            return template(messages[:-1]) + messages[-1]["content"]
        return template(messages)

    return render

"""One harness task with its documents: what a benchmark is made of (one leaf, or many in a group)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.errors import TaskError
from potentia.tasks import metrics
from potentia.tasks.data import quiet
from potentia.tasks.harness import SPLIT_KEYS, build
from potentia.values.metric import Metric
from potentia.values.requests import Continuation, Document, Example, Generation, Request, decoding_options

if TYPE_CHECKING:
    from datasets import Dataset

ChatTemplate = Callable[[list[dict[str, str]]], str]
"""Renders messages as the model's tokenizer does, with the opening of the assistant's turn at the end."""

Answer = tuple[float, bool] | float | str
"""What came back: (log-likelihood, greedy?) for a Continuation, log-likelihood for a Document, or the text."""

_KINDS = {
    "multiple_choice": "choice",
    "loglikelihood": "choice",
    "loglikelihood_rolling": "corpus",
    "generate_until": "generation",
}
# A definition may turn the label -1 of an unlabelled split into an answer, so the usual columns are looked at as well.
_LABEL_COLUMNS = ("label", "answer", "answerKey", "gold", "target", "cop")
_NO_LABEL = (-1, "-1", "", None)
_LABELS_SEEN = 50  # documents looked at to tell a labelled split from an unlabelled one


PER_TOKEN = "acc_token"  # accuracy where the answer of the lowest perplexity per token is chosen


class Leaf:
    """A harness task bound to its public splits. Documents are plain dicts, as lm-eval's functions take them."""

    def __init__(self, config: Mapping[str, Any], data: Mapping[str, Dataset]) -> None:
        self.config = dict(config)
        self.task = build(config, data)
        self.name = str(self.task.config.task)
        if getattr(self.task, "MULTIMODAL", False):
            raise TaskError(f"{self.name} asks about images or sound; only text tasks can be run")
        self.output_type: str = self.task.OUTPUT_TYPE
        self.kind: str = _KINDS[self.output_type]
        self._processed: dict[str, Any] = {}
        self._pool_key: object = None

    # Documents

    def public(self, split: str) -> Any:
        """Return a public split after the task's own preparation, or an empty list."""
        if split not in self._processed:
            name = getattr(self.task.config, SPLIT_KEYS[split])
            rows: Any = []
            if name is not None:
                rows = self.prepared(name, self.task.config.process_docs)
            self._processed[split] = rows
        return self._processed[split]

    def prepared(self, name: str, process: Callable[[Any], Any] | None) -> Any:
        """Apply a task's preparation to one split of its data."""
        if name == (self.task.config.test_split or self.task.config.validation_split):
            return self.task.task_docs  # prepared by lm-eval when the task was built
        with quiet():
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
        if counts["test"] and counts["validation"] and not self.labelled("test"):
            counts["test"] = 0
        return counts

    def labelled(self, split: str) -> bool:
        """Tell whether any of the first documents of a split has an answer."""
        docs = self.take(split, range(min(_LABELS_SEEN, len(self.public(split)))))
        blank = any(
            column in docs[0] and all(doc.get(column) in _NO_LABEL for doc in docs) for column in _LABEL_COLUMNS
        )
        return self.kind == "corpus" or (not blank and any(self._has_answer(doc) for doc in docs))

    def take(self, split: str, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return these rows of a public split as dicts."""
        docs = self.public(split)
        if hasattr(docs, "select"):
            from datasets.formatting import query_table

            if len(rows) == len(docs):
                return list(docs.to_list())
            # What ``docs.select(rows).to_list()`` gives, without a dataset made for it: that takes milliseconds.
            return list(query_table(docs.data, list(rows), indices=docs._indices).to_pylist())
        return [dict(docs[row]) for row in rows]

    def _has_answer(self, doc: Mapping[str, Any]) -> bool:
        try:
            if self.output_type == "multiple_choice":
                return bool(self.gold_indices(doc))
            target = self.task.doc_to_target(doc)
        except (KeyError, ValueError, IndexError, TypeError):
            return False
        return target not in (None, "", [], "None", -1)

    # Answers

    def choices(self, doc: Mapping[str, Any]) -> list[str]:
        """Return the answer options of a document (for several contexts: the contexts)."""
        if self.output_type != "multiple_choice":
            return []
        return list(self.task.doc_to_choice(doc))

    def gold_indices(self, doc: Mapping[str, Any]) -> list[int]:
        """Return the places of the right options; empty where the label is not among them."""
        choices = self.choices(doc)
        gold = self.task.doc_to_text(doc) if self.task.multiple_input else self.task.doc_to_target(doc)
        found = []
        for label in gold if isinstance(gold, list) else [gold]:
            if isinstance(label, str):
                found += [choices.index(label)] if label in choices else []
            elif isinstance(label, (int, float, np.integer)) and 0 <= label < len(choices):
                found.append(int(label))
        return found

    def gold(self, doc: Mapping[str, Any]) -> str:
        """Return the right answer as text; several accepted answers are joined by `` | ``."""
        if self.output_type == "multiple_choice":
            choices = self.choices(doc)
            return " | ".join(choices[i] for i in self.gold_indices(doc))
        if self.kind == "corpus":
            return ""
        return " | ".join(self._targets(doc))

    def _targets(self, doc: Mapping[str, Any]) -> list[str]:
        target = self.task.doc_to_target(doc)
        if self.task.config.doc_to_choice is not None and isinstance(target, int):
            target = self.task.doc_to_choice(doc)[target]
        if isinstance(target, (list, tuple)):
            return [str(t) for t in target]
        return [] if target is None else [str(target)]

    # Prompts

    def asked(self, doc: Mapping[str, Any]) -> str:
        """Return the question alone: without description, examples or answer."""
        if self.kind == "corpus":
            return str(self.task.doc_to_target(doc))
        if self.task.multiple_input:
            return "\n".join(map(str, [*self.choices(doc), self.task.doc_to_target(doc)]))
        return str(self.task.doc_to_text(doc)) or "\n".join(map(str, self.choices(doc)))

    def requests(self, doc: dict[str, Any], *, shots: int, chat: ChatTemplate | None) -> tuple[Request, ...]:
        """Ask lm-eval for a document's requests, and turn them into ours."""
        if self.kind == "corpus":
            return (Document(str(self.task.doc_to_target(doc))),)
        rendered = _chat(chat) if chat else None
        try:
            context = self.task.fewshot_context(
                doc,
                num_fewshot=shots,
                apply_chat_template=chat is not None,
                chat_template=rendered,
                gen_prefix=self.task.doc_to_prefix(doc),
            )
        except AssertionError as error:
            raise TaskError(f"{self.name}: a document makes no prompt: {error}"[:300]) from error
        made = self.task.construct_requests(
            doc, context, metadata=(self.name, 0, 1), apply_chat_template=chat is not None, chat_template=rendered
        )
        return tuple(self._request(instance) for instance in (made if isinstance(made, list) else [made]))

    def _request(self, instance: Any) -> Request:
        if self.output_type == "generate_until":
            context, options = instance.args[:2]
            stop = options.get("until") or []
            longest = options.get("max_gen_toks") or options.get("max_new_tokens") or options.get("max_tokens")
            stops = (stop,) if isinstance(stop, str) else tuple(stop)
            return Generation(context, tuple(s for s in stops if s), int(longest or 256), decoding_options(options))
        context, continuation = instance.args[:2]
        return Continuation(context, continuation)

    def example(self, doc: dict[str, Any], *, chat: ChatTemplate | None, every_answer: bool = False) -> Example:
        """Return the training text of a document: the zero-shot prompt and the right answer, split as in scoring.

        With ``every_answer`` all right answers that may be written follow the prompt, joined by spaces.
        """
        requests = self.requests(doc, shots=0, chat=chat)
        first = requests[0]
        if isinstance(first, Document):
            return Example("", first.text)
        if isinstance(first, Generation):
            targets = self._targets(doc)
            if not targets or not targets[0]:
                raise TaskError(f"{self.name}: a document without an answer cannot be trained on")
            target = " ".join(targets) if every_answer else targets[0]
            return Example(first.context, self._delimiter(chat, first.context, target) + target, end=True)
        place = 0
        if self.output_type == "multiple_choice":
            gold = self.gold_indices(doc)
            if not gold:
                raise TaskError(f"{self.name}: a document without a valid label cannot be trained on")
            place = gold[0]
        request = requests[place]
        assert isinstance(request, Continuation)
        return Example(request.context, request.continuation)

    def _delimiter(self, chat: ChatTemplate | None, context: str, target: str) -> str:
        """Return what stands between prompt and answer, as lm-eval writes it between them in its own examples."""
        delimiter = str(self.task.config.target_delimiter)
        if self.task.config.gen_prefix:
            return "" if context[-1:].isspace() or target[:1].isspace() else " "
        return "" if chat else delimiter

    # Grades

    def raw(self, docs: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[Answer]]) -> list[dict[str, Any]]:
        """Return each item's values of all metrics, through lm-eval's filters and ``process_results``."""
        from lm_eval.api.instance import Instance

        repeats = int(self.task.config.repeats or 1)
        kind = "loglikelihood" if self.output_type == "multiple_choice" else self.output_type
        instances: list[list[Any]] = []
        for number, (doc, given) in enumerate(zip(docs, answers, strict=True)):
            mine = []
            for place, answer in enumerate(given):
                instance = Instance(kind, doc, (), place, metadata=(self.name, number, repeats))
                instance.resps = [answer] * repeats
                mine.append(instance)
            instances.append(mine)
        if not instances:
            return []
        flat = [instance for mine in instances for instance in mine]
        filters = self.task._filters
        for ensemble in filters:
            ensemble.apply(flat)
        results: list[dict[str, Any]] = []
        for doc, mine in zip(docs, instances, strict=True):
            values: dict[str, Any] = {}
            for ensemble in filters:
                filtered = [instance.filtered_resps[ensemble.name] for instance in mine]
                for metric, value in self.task.process_results(doc, filtered).items():
                    values[metrics.key(metric, ensemble.name, len(filters))] = metrics.plain(value)
            results.append({"metrics": values, "filtered": _shown(mine, filters)})
        if self.output_type == "multiple_choice":
            for doc, given, result in zip(docs, answers, results, strict=True):
                result["metrics"] = {**result["metrics"], **self._extra(doc, given, result["metrics"])}
        return results

    def _extra(self, doc: Mapping[str, Any], given: Sequence[Any], have: Mapping[str, Any]) -> dict[str, Any]:
        """Add accuracy, its length-normalised form and the Brier score, which any multiple-choice item has."""
        choices, gold = self.choices(doc), self.gold_indices(doc)
        logprobs = np.array([answer[0] for answer in given[: len(choices)]], dtype=np.float64)
        if len(logprobs) != len(choices):
            return {}
        extra: dict[str, Any] = {}
        if "acc" not in have:
            extra["acc"] = float(int(np.argmax(logprobs)) in gold)
        if "acc_norm" not in have and all(choices):
            extra["acc_norm"] = float(int(np.argmax(logprobs / [float(len(c)) for c in choices])) in gold)
        if self.config.get("main_metric") == PER_TOKEN:
            extra[PER_TOKEN] = float(int(np.argmax(per_token(given[: len(choices)]))) in gold)
        if len(gold) == 1:
            extra["brier_score"] = metrics.brier(logprobs.tolist(), gold[0])
            if self.config.get("labels"):
                extra |= {name: [gold[0], int(np.argmax(logprobs))] for name in metrics.OF_LABELS}
        return extra

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics that the definition asks for, the first filter first."""
        if self.config.get("metric_names"):
            return tuple(self.config["metric_names"])
        filters = self.task._filters
        return tuple(metrics.key(metric, f.name, len(filters)) for f in filters for metric in self.task.aggregation())

    @property
    def plain_metrics(self) -> tuple[str, ...]:
        """The metrics without the names of filters."""
        return tuple(dict.fromkeys(name.split("|")[0] for name in self.metric_names))

    def aggregation(self, metric: str) -> Callable[[Sequence[Any]], Any] | None:
        """Return lm-eval's aggregation of a metric; ``None`` (numpy's mean) for those that we add."""
        from lm_eval.api.metrics import mean

        name = metric.split("|")[0]
        if name == "brier_score":
            return None
        if name in metrics.OF_LABELS:
            return metrics.OF_LABELS[name]
        function: Callable[[Sequence[Any]], Any] = self.task.aggregation().get(name, mean)
        return function

    def higher_is_better(self, metric: str) -> bool:
        """Tell the direction of a metric."""
        said = self.task.higher_is_better().get(metric.split("|")[0])
        return Metric.of(metric, said).higher_is_better

    # Few-shot examples

    def own_pool(self, tested: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the examples that the definition sets aside for few-shot prompts, if any.

        ``tested`` is the public split that serves as test: it never lends examples, nor does train, of which the plan
        may have held out a part.
        """
        settings = self.task.fewshot_cfg
        split = settings.split
        if split is not None:
            taken = {self.task.config.training_split, getattr(self.task.config, SPLIT_KEYS[tested])}
            if split not in taken:
                prepared = self.prepared(split, settings.process_docs)
                return list(prepared.to_list() if hasattr(prepared, "to_list") else prepared)
            return None
        if settings.samples is not None:
            return list(settings.samples() if callable(settings.samples) else settings.samples)
        return None

    def lend(self, pool: Sequence[Mapping[str, Any]], doc: Mapping[str, Any], *, seed: int, doc_id: int) -> None:
        """Set lm-eval's sampler to draw this document's examples: from ``pool``, seeded, never the document itself."""
        sampler = self.task.sampler
        if isinstance(sampler, Lender):
            sampler = sampler.inner
        if self._pool_key is not pool:
            sampler.replace_df(pool)
            self._pool_key = pool
        # One document's own seed: examples depend on the document, not on the order of asking.
        own = int.from_bytes(hashlib.sha256(f"{seed}:{doc_id}".encode()).digest()[:8], "big")
        self.task.sampler = Lender(sampler, self.task, doc, own)


class Lender:
    """lm-eval's few-shot sampler for one document, with that document's own seed."""

    def __init__(self, inner: Any, task: Any, doc: Mapping[str, Any], seed: int) -> None:
        self.inner, self._task, self._doc, self._seed = inner, task, doc, seed

    def sample(self, n: int, **_: Any) -> Sequence[Mapping[str, Any]]:
        """Draw examples; where the document is among them, draw again from the others."""
        try:
            drawn = self.inner.set_rnd(self._seed).sample(n)
            mine = self._asked(self._doc)
            if any(self._asked(other) == mine for other in drawn):
                others = [other for other in self.inner.df if self._asked(other) != mine]
                drawn = type(self.inner)(others).set_rnd(self._seed).sample(n)
        except (AssertionError, ValueError) as error:
            raise TaskError(
                f"{self._task.config.task} has too few documents for {n} examples in a prompt",
                hint=f"ask for fewer shots: {len(self.inner.df)} documents are at hand",
            ) from error
        return list(drawn)

    def _asked(self, doc: Mapping[str, Any]) -> Any:
        """Return what a document asks; two rows that ask the same are the same item here."""
        if self._task.multiple_input:
            return self._task.doc_to_choice(doc)
        return self._task.doc_to_text(doc) or self._task.doc_to_choice(doc)  # a form may put all into the choices


def per_token(given: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log-likelihood per token of every answer: the lowest perplexity is the highest of these."""
    counts = [getattr(answer, "tokens", 0) for answer in given]
    if not all(counts):
        raise TaskError("these answers do not say how many tokens they have", hint="ask for blank_ppl:character")
    return np.array([answer[0] for answer in given], dtype=np.float64) / counts


def _chat(template: ChatTemplate) -> Callable[..., str]:
    """Adapt a chat template to lm-eval's call: an opened answer (``gen_prefix``) goes after the generation prompt."""

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if messages and messages[-1]["role"] == "assistant":
            return template(messages[:-1]) + messages[-1]["content"]
        return template(messages)

    return render


def _shown(mine: Sequence[Any], filters: Sequence[Any]) -> dict[str, Any]:
    """Return the filtered text per filter, for generation tasks."""
    if mine[0].request_type != "generate_until":
        return {}
    return {f.name: metrics.plain(mine[0].filtered_resps[f.name]) for f in filters}

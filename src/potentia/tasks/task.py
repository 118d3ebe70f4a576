"""A task: one benchmark, ready to ask. Prompts, grades and scores are the harness's; the splits are one seeded plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from potentia.errors import TaskError
from potentia.study import Caps
from potentia.tasks import metrics
from potentia.tasks.forms.reading import bare
from potentia.tasks.harness import fingerprint
from potentia.tasks.leaf import PER_TOKEN, Answer, ChatTemplate, Leaf, per_token
from potentia.tasks.splits import SPLITS, Division, Part, Rows, Split, SplitPlan, cap, divide, undivided
from potentia.values.metric import Metric
from potentia.values.requests import Document, Example, Request
from potentia.values.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.tasks.userfiles import OwnTask

Kind = Literal["choice", "generation", "corpus"]
GUESSED = 1_000  # documents whose options are counted


class Doc(Mapping[str, Any]):
    """One document: a mapping of its columns, with an id that is its place in the public split it came from.

    In a group, ids run on from one subtask to the next, so that they are unique within a split.
    """

    __slots__ = ("data", "id", "leaf")

    def __init__(self, id: int, data: dict[str, Any], leaf: int = 0) -> None:
        self.id, self.data, self.leaf = id, data, leaf

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Doc({self.id}, {self.data!r})"


@dataclass(frozen=True)
class Prompt:
    """What one document asks of a model: its requests, and what a person needs to read the answers."""

    doc_id: int
    requests: tuple[Request, ...]
    gold: str
    text: str
    choices: tuple[str, ...] = ()
    doc: Doc = field(repr=False, compare=False, default_factory=lambda: Doc(-1, {}))


class Task:
    """One benchmark. ``documents`` gives its splits, ``prompts`` its requests, ``grade`` and ``score`` the results."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Leaf],
        *,
        metric: str | None = None,
        weights: Mapping[str, bool] | None = None,
        caps: Caps | None = None,
        seed: int = 0,
        carve: float = 0.2,
        division: Division | None = None,
        hold_out: int | None = None,
    ) -> None:
        kinds = {leaf.kind for leaf in leaves}
        if len(kinds) != 1:
            raise TaskError(f"{name} mixes {' and '.join(sorted(kinds))} tasks; name its subtasks one by one")
        self.name = name
        self.kind: Kind = cast(Kind, leaves[0].kind)
        self._leaves = tuple(leaves)
        self._weights = dict(weights or {})
        self.metric = self._main(leaves[0].config.get("main_metric") or metric)
        self.shots = int(leaves[0].config.get("shots") or 0)
        self.higher_is_better = leaves[0].higher_is_better(self.metric)
        self.own: OwnTask | None = None  # where the user's own data made it
        self.notes: list[str] = []  # what was inferred, dropped or is to be known of its data
        self._documents: dict[Split, list[Doc]] = {}
        self._pools: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.plan, self._rows = self._split(caps or Caps(), seed, carve, division, hold_out)

    def __repr__(self) -> str:
        used = ", ".join(f"{getattr(self.plan, split).used} {split}" for split in SPLITS)
        return f"Task({self.name!r}, {self.kind}, {self.metric}, {used})"

    @property
    def subtasks(self) -> tuple[str, ...]:
        """The names of the harness tasks that make up this one."""
        return tuple(leaf.name for leaf in self._leaves)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of a classification and the words that a model answers with; empty for other tasks."""
        return dict(self._leaves[0].config.get("labels") or {})

    @property
    def options(self) -> bool:
        """Whether its documents have options to choose from."""
        return self._leaves[0].output_type == "multiple_choice"

    @cached_property
    def chance(self) -> float | None:
        """The accuracy of a uniform guess on the test split: the mean of 1/k over k options; None without options."""
        if not self.options:
            return None
        docs = self.documents("test")
        docs = docs[:: max(1, len(docs) // GUESSED)]  # what a task's questions offer differs little from part to part
        counts = [len(self._leaves[doc.leaf].choices(doc.data)) for doc in docs]
        return sum(1 / count for count in counts if count) / len(counts) if counts else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics that the definition asks for."""
        return self._leaves[0].metric_names

    def _main(self, wanted: str | None) -> str:
        names = self._leaves[0].metric_names
        added: tuple[str, ...] = ("acc", "acc_norm", "brier_score", PER_TOKEN) if self.options else ()
        added += tuple(metrics.OF_LABELS) if self.labels else ()
        if wanted in (*names, *added):
            return str(wanted)
        for usual in ("acc_norm", "bits_per_byte"):
            if usual in names:
                return usual
        if not names:
            raise TaskError(f"{self.name} names no metric")
        return names[0]

    # Splits

    def _split(
        self, caps: Caps, seed: int, carve: float, division: Division | None, hold_out: int | None
    ) -> tuple[SplitPlan, dict[Split, list[Rows]]]:
        sizes = [leaf.sizes() for leaf in self._leaves]
        rows: dict[Split, list[Rows]] = {}
        parts: dict[Split, Part] = {}
        if hold_out is None:
            divided = [
                divide(size, seed=seed, carve=carve, source=i, division=division) for i, size in enumerate(sizes)
            ]
            whole = {split: [chosen[split] for chosen, _ in divided] for split in SPLITS}
            origins = {split: ", ".join(dict.fromkeys(origin[split] for _, origin in divided)) for split in SPLITS}
        else:
            whole, origins = undivided(sizes, hold_out=hold_out, seed=seed)
        for split, before in whole.items():
            rows[split] = cap(before, getattr(caps, split), seed=seed)
            used = sum(len(r.rows) for r in rows[split])
            parts[split] = Part(origins[split], sum(len(r.rows) for r in before), used)
        return SplitPlan(parts["train"], parts["validation"], parts["test"], caps=caps, seed=seed, carve=carve), rows

    def documents(self, split: Split) -> Sequence[Doc]:
        """Return the documents of a split: after carving and caps, in the public order; empty where there is none."""
        if split not in SPLITS:
            raise TaskError(f"no split {split!r}", hint=f"the splits are {', '.join(SPLITS)}")
        if split not in self._documents:
            docs: list[Doc] = []
            start = 0
            for part in self._rows[split]:
                leaf = self._leaves[part.source]
                taken = leaf.take(part.public, part.rows) if part.rows else []
                docs += [Doc(start + row, data, part.source) for row, data in zip(part.rows, taken, strict=True)]
                start += len(leaf.public(part.public))
            self._documents[split] = docs
        return self._documents[split]

    def without(self, ids: frozenset[int], split: Split = "train") -> int:
        """Drop these documents from a split, say so in the plan, and return how many they were."""
        before = self.documents(split)
        kept = [doc for doc in before if doc.id not in ids]
        dropped = len(before) - len(kept)
        self._documents[split] = kept
        self._pools.clear()
        self.__dict__.pop("fingerprint", None)
        part = replace(getattr(self.plan, split), used=len(kept))
        total = self.plan.dropped_overlap + dropped
        self.plan = replace(self.plan, dropped_overlap=total, **{split: part})
        return dropped

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 over the definition (with its form) and the documents of all splits; the same in every process."""
        config = {
            "leaves": [{**leaf.config, "form": leaf.config.get("form")} for leaf in self._leaves],
            "metric": self.metric,
            "weights": self._weights,
        }
        pools = (
            ("few-shot", number, doc)
            for leaf in self._leaves
            for number, doc in enumerate(leaf.own_pool(self._tested(leaf)) or ())
        )
        docs = ((split, doc.id, doc.data) for split in SPLITS for doc in self.documents(split))
        return fingerprint(config, (*pools, *docs))

    # Prompts

    def prompts(
        self, docs: Sequence[Doc], *, shots: int = 0, chat: ChatTemplate | None = None, seed: int = 0
    ) -> list[Prompt]:
        """Render documents as requests, one prompt each.

        ``shots`` examples go before the question, drawn per document with lm-eval's sampler from the examples that the
        definition sets aside or else from train, never the document itself. With ``chat``, the context is the
        rendering of one user message that holds them all, and the answer has no delimiter before it, as in lm-eval.
        A prompt form that has examples of its own (``gsm8k:iclip``) shows those where none are asked for.
        """
        shots = shots or self.shots
        if shots < 0:
            raise TaskError(f"{shots} examples in a prompt cannot be")
        if shots and self.kind == "corpus":
            raise TaskError(f"{self.name} is a corpus: it has no few-shot prompts")
        made = []
        for doc in docs:
            leaf = self._leaves[doc.leaf]
            if shots:
                leaf.lend(self._pool(doc.leaf), doc.data, seed=seed, doc_id=doc.id)
            requests = leaf.requests(doc.data, shots=shots, chat=chat)
            made.append(
                Prompt(
                    doc_id=doc.id,
                    requests=requests,
                    gold=leaf.gold(doc.data),
                    text=_display(requests),
                    choices=tuple(leaf.choices(doc.data)),
                    doc=doc,
                )
            )
        return made

    def asked(self, docs: Sequence[Doc]) -> list[str]:
        """Return what each document asks, without examples or description: the texts that overlap compares."""
        return [self._leaves[doc.leaf].asked(doc.data) for doc in docs]

    def identifying(self, docs: Sequence[Doc]) -> list[list[str]]:
        """Return the texts that tell documents apart: what is asked, and the choices where they differ."""
        asked = self.asked(docs)
        if self.labels or not self.options:
            return [[text] for text in asked]
        return [[text, *self._leaves[doc.leaf].choices(doc.data)] for text, doc in zip(asked, docs, strict=True)]

    def described(self) -> dict[str, Any]:
        """Say what a reader of its scores must know: the level of a guess, labels, baselines, how to ask it again."""
        from potentia.tasks.baselines import baselines

        told: dict[str, Any] = {} if self.chance is None else {"chance": self.chance}
        if self.labels:
            told |= {"labels": self.labels, "baselines": baselines(self)}
        if self.own is not None:
            plain = (str, int, float, bool, list, dict)
            config = {k: v for k, v in self._leaves[0].config.items() if isinstance(v, plain)}
            told |= {"config": config, "columns": self.own.columns}
        return told

    def _tested(self, leaf: Leaf) -> str:
        return next(part.public for part in self._rows["test"] if self._leaves[part.source] is leaf)

    def _pool(self, place: int) -> Sequence[Mapping[str, Any]]:
        """Return the documents that lend few-shot examples to one subtask: its own, train, validation, or test."""
        if place not in self._pools:
            leaf = self._leaves[place]
            pool: Sequence[Mapping[str, Any]] | None = leaf.own_pool(self._tested(leaf))
            for split in SPLITS:
                pool = pool or [doc.data for doc in self.documents(split) if doc.leaf == place]
            self._pools[place] = pool or []
        return self._pools[place]

    def examples(
        self, docs: Sequence[Doc], *, chat: ChatTemplate | None = None, every_answer: bool = False
    ) -> list[Example]:
        """Return training texts: the prompt and the right answer, divided where scoring divides them."""
        return [self._leaves[doc.leaf].example(doc.data, chat=chat, every_answer=every_answer) for doc in docs]

    # Grades and scores

    def grade(self, prompts: Sequence[Prompt], responses: Sequence[Sequence[Answer]]) -> list[ItemOutcome]:
        """Judge the answers with lm-eval's filters and metrics; ``responses`` are parallel to prompts and requests."""
        if len(prompts) != len(responses):
            raise TaskError(f"{len(prompts)} prompts, but {len(responses)} responses")
        outcomes: list[ItemOutcome | None] = [None] * len(prompts)
        for place, leaf in enumerate(self._leaves):
            mine = [i for i, prompt in enumerate(prompts) if prompt.doc.leaf == place]
            for i in mine:
                if len(responses[i]) != len(prompts[i].requests):
                    raise TaskError(
                        f"document {prompts[i].doc_id} of {self.name} has {len(prompts[i].requests)} requests, "
                        f"but {len(responses[i])} answers"
                    )
            graded = leaf.raw([prompts[i].doc.data for i in mine], [responses[i] for i in mine])
            for i, result in zip(mine, graded, strict=True):
                outcomes[i] = self._outcome(prompts[i], responses[i], result, leaf)
        return [outcome for outcome in outcomes if outcome is not None]

    def _outcome(self, prompt: Prompt, given: Sequence[Any], result: dict[str, Any], leaf: Leaf) -> ItemOutcome:
        values = result["metrics"]
        detail: dict[str, Any] = {"prompt": prompt.text, "metrics": values}
        if len(self._leaves) > 1:
            detail["subtask"] = leaf.name
        prediction = ""
        if self.kind == "generation":
            detail["generated"] = given[0]
            detail["question"] = bare(leaf.asked(prompt.doc.data))  # without examples: what a judge is shown
            shown = result["filtered"]
            _, _, filter_name = self.metric.partition("|")
            chosen = shown.get(filter_name, next(iter(shown.values()), given[0]))
            prediction = chosen if isinstance(chosen, str) else str(chosen)
        elif self.kind == "choice":
            detail["logprobs"] = [float(answer[0]) for answer in given]
            if prompt.choices:
                detail["choices"] = list(prompt.choices)
                prediction = prompt.choices[self._best(prompt.choices, given)]
            else:
                prediction = prompt.gold if given[0][1] else ""
        else:
            detail["logprobs"] = [float(given[0])]
        value = metrics.item_value(self.metric, values.get(self.metric, math.nan))
        return ItemOutcome(prompt.doc_id, value, prediction, prompt.gold, detail)

    def _best(self, choices: Sequence[str], given: Sequence[Any]) -> int:
        answers = given[: len(choices)]
        scores = np.array([answer[0] for answer in answers], dtype=np.float64)
        if self.metric == PER_TOKEN:
            scores = per_token(answers)
        if self.metric == "acc_norm":
            scores = scores / np.array([float(len(choice)) for choice in choices])
        return int(np.argmax(scores))

    def score(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Score]:
        """Aggregate graded items into all metrics; ``self.metric`` names the main one.

        A group's score is lm-eval's: the mean of the subtasks' scores weighted by size (or plain, where the group says
        so), with the pooled standard error.
        """
        if not outcomes:
            raise TaskError(f"{self.name}: no graded document to score")
        if len(self._leaves) == 1:
            return self._leaf_scores(self._leaves[0], outcomes)
        members: list[dict[str, Score]] = []
        for leaf in self._leaves:
            mine = [outcome for outcome in outcomes if outcome.detail.get("subtask") == leaf.name]
            if mine:
                members.append(self._leaf_scores(leaf, mine))
        names = dict.fromkeys(name for scores in members for name in scores)
        return {name: self._pooled(name, [scores[name] for scores in members if name in scores]) for name in names}

    def metric_of(self, name: str, leaf: Leaf | None = None) -> Metric:
        """Return what one of its metrics is: of a text where texts are predicted, whichever way is better."""
        kind: Literal["task", "text"] = "text" if self.kind == "corpus" else "task"
        return Metric.of(name, (leaf or self._leaves[0]).higher_is_better(name), kind=kind, chance=self.chance)

    def _leaf_scores(self, leaf: Leaf, outcomes: Sequence[ItemOutcome]) -> dict[str, Score]:
        values: dict[str, list[Any]] = {}
        for outcome in outcomes:
            for name, value in outcome.detail["metrics"].items():
                values.setdefault(name, []).append(value)
        scores = {}
        for name, items in values.items():
            value, error = metrics.aggregate(leaf.aggregation(name), items)
            scores[name] = Score(value, error, len(items), self.metric_of(name, leaf))
        return scores

    def _pooled(self, name: str, scores: Sequence[Score]) -> Score:
        from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

        sizes = [score.n for score in scores]
        by_size = self._weights.get(name.split("|")[0], True)
        value = float(aggregate_subtask_metrics([score.value for score in scores], sizes, by_size))
        errors = [score.stderr for score in scores]
        if any(math.isnan(error) for error in errors):
            error = math.nan
        elif by_size:
            error = float(pooled_sample_stderr(errors, sizes))
        else:
            error = float(unweighted_mean_stderr(errors))
        return Score(value, error, sum(sizes), scores[0].metric)


def _display(requests: Sequence[Request]) -> str:
    """Return what a person reads: the context, or each context where they differ."""
    contexts = list(dict.fromkeys(r.text if isinstance(r, Document) else r.context for r in requests))
    return "\n".join(contexts)

"""A task: one benchmark, ready to ask. Prompts, grades and scores are the harness's; the splits are one seeded plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import TaskError
from potentia.study import Caps
from potentia.tasks import grading
from potentia.tasks.clusters import find_cluster_column, label_cluster
from potentia.tasks.harness import fingerprint_definition
from potentia.tasks.splits import SPLITS, Division, Split, SplitRows, plan_splits
from potentia.tasks.subtask import Answer, ChatTemplate, Prompt, Subtask, TaskDocument
from potentia.values.answer_bits import ANSWER_METRICS
from potentia.values.metric import Metric
from potentia.values.requests import Example
from potentia.values.sampling import SamplePlan
from potentia.values.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.tasks.user_tasks import UserTask

COUNTED_FOR_CHANCE = 1_000  # documents whose options are counted
USUAL_MAIN_METRICS = ("acc_norm", "bits_per_byte")  # the first that a task has is its main one
_CHOICE_METRICS = ("acc", "acc_norm", "brier_score", *ANSWER_METRICS, grading.PER_TOKEN)


class Task:
    """One benchmark. ``documents`` gives its splits, ``prompts`` its requests, ``grade`` and ``score`` the results."""

    def __init__(
        self,
        name: str,
        subtasks: Sequence[Subtask],
        *,
        metric: str | None,
        weighted_by_size: Mapping[str, bool],
        caps: Caps | None,
        seed: int,
        carve: float,
        division: Division | None,
        hold_out: int | None,
    ) -> None:
        kinds = {subtask.kind for subtask in subtasks}
        if len(kinds) != 1:
            raise TaskError(
                f"{name} mixes {' and '.join(sorted(kinds))} tasks; name its subtasks one by one"
            )
        first = subtasks[0]
        self.name = name
        self.kind = first.kind
        self._subtasks = tuple(subtasks)
        self.subtasks = tuple(subtask.name for subtask in subtasks)
        # of a classification: its words by label
        self.labels: dict[str, str] = dict(first.config.get("labels") or {})
        self.has_options = first.has_options  # whether its documents have options to choose from
        self.metrics = first.metric_names  # that the definition asks for
        self.metric = self._choose_main_metric(first.config.get("main_metric") or metric)
        self.shots = int(first.config.get("shots") or 0)
        self.higher_is_better = first.higher_is_better(self.metric)
        self.user_task: UserTask | None = None  # where the user's own data made it
        self.samples: SamplePlan | None = None  # how its answers are sampled, where they are
        self.notes: list[str] = []  # what was inferred, dropped or is to be known of its data
        self._weighted_by_size = dict(weighted_by_size)
        self._documents: dict[Split, list[TaskDocument]] = {}
        self._example_pools: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.plan, self._rows = plan_splits(
            [subtask.sizes() for subtask in subtasks],
            caps=caps or Caps(),
            seed=seed,
            carve=carve,
            division=division,
            hold_out=hold_out,
        )

    def __repr__(self) -> str:
        used = ", ".join(f"{getattr(self.plan, split).used} {split}" for split in SPLITS)
        return f"Task({self.name!r}, {self.kind}, {self.metric}, {used})"

    def _choose_main_metric(self, requested: str | None) -> str:
        """Return the metric that was asked for where the task has it, else the usual one."""
        available = [*self.metrics]
        if self.has_options:
            available += _CHOICE_METRICS
        if self.labels:
            available += grading.LABEL_METRICS
        if requested in available:
            return str(requested)
        if not self.metrics:
            raise TaskError(f"{self.name} names no metric")
        for usual in USUAL_MAIN_METRICS:
            if usual in self.metrics:
                return usual
        return self.metrics[0]

    @cached_property
    def chance(self) -> float | None:
        """The accuracy of a uniform guess on the test split: the mean of 1/k over k options; None without options."""
        if not self.has_options:
            return None
        documents = self.documents("test")
        # what a task's questions offer differs little from part to part
        sample = documents[:: max(1, len(documents) // COUNTED_FOR_CHANCE)]
        if not sample:
            return None
        counts = [len(self._subtask_of(document).choices(document.data)) for document in sample]
        return sum(1 / count for count in counts if count) / len(counts)

    def _subtask_of(self, document: TaskDocument) -> Subtask:
        return self._subtasks[document.subtask]

    def documents(self, split: Split) -> Sequence[TaskDocument]:
        """Return the documents of a split: after carving and caps, in the public order; empty where there is none."""
        if split not in SPLITS:
            raise TaskError(f"no split {split!r}", hint=f"the splits are {', '.join(SPLITS)}")
        if split not in self._documents:
            self._documents[split] = list(self._read_documents(self._rows[split]))
        return self._documents[split]

    def _read_documents(self, parts: Sequence[SplitRows]) -> Iterator[TaskDocument]:
        """Give the documents of a split; ids run on from one subtask to the next."""
        first_id = 0
        for number, (subtask, part) in enumerate(zip(self._subtasks, parts, strict=True)):
            contents = subtask.take(part.public, part.rows) if part.rows else []
            for row, content in zip(part.rows, contents, strict=True):
                yield TaskDocument(first_id + row, content, number)
            first_id += len(subtask.public(part.public))

    def drop_documents(self, ids: frozenset[int], split: Split = "train") -> int:
        """Drop these documents from a split, say so in the plan, and return how many they were."""
        before = self.documents(split)
        remaining = [document for document in before if document.id not in ids]
        dropped = len(before) - len(remaining)
        self._documents[split] = remaining
        self._example_pools.clear()
        self.__dict__.pop("fingerprint", None)
        self.__dict__.pop("cluster_columns", None)
        planned = replace(getattr(self.plan, split), used=len(remaining))
        total = self.plan.dropped_overlap + dropped
        self.plan = replace(self.plan, dropped_overlap=total, **{split: planned})
        return dropped

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 over the definition (with its form) and the documents of all splits; the same in every process."""
        definitions = []
        for subtask in self._subtasks:
            definitions.append({**subtask.config, "form": subtask.config.get("form")})
        # these keys are part of every stored key: they stay as they are
        content = {
            "leaves": definitions,
            "metric": self.metric,
            "weights": self._weighted_by_size,
        }
        return fingerprint_definition(content, self._walk_contents())

    def _walk_contents(self) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        """Give every document that can change a score: set-aside examples, then the splits."""
        for subtask_number in range(len(self._subtasks)):
            for number, example in enumerate(self._set_aside_examples(subtask_number) or ()):
                yield "few-shot", number, example
        for split in SPLITS:
            for document in self.documents(split):
                yield split, document.id, document.data

    def prompts(
        self,
        docs: Sequence[TaskDocument],
        *,
        shots: int = 0,
        chat: ChatTemplate | None = None,
        seed: int = 0,
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
        prompts = []
        for document in docs:
            subtask = self._subtask_of(document)
            if shots:
                pool = self._example_pool(document.subtask)
                subtask.draw_examples(pool, document, shots=shots, seed=seed)
            prompts.append(subtask.prompt(document, shots=shots, chat=chat))
        return prompts

    def _set_aside_examples(self, number: int) -> Sequence[Mapping[str, Any]] | None:
        """Return the examples that a subtask's definition sets aside for few-shot prompts, if any."""
        return self._subtasks[number].set_aside_examples(self._rows["test"][number].public)

    def _example_pool(self, number: int) -> Sequence[Mapping[str, Any]]:
        """Return the documents that lend few-shot examples to one subtask: set aside, train, validation, or test."""
        if number not in self._example_pools:
            pool = self._set_aside_examples(number)
            for split in SPLITS:
                if pool:
                    break
                documents = self.documents(split)
                pool = [document.data for document in documents if document.subtask == number]
            self._example_pools[number] = pool or []
        return self._example_pools[number]

    def examples(
        self,
        docs: Sequence[TaskDocument],
        *,
        chat: ChatTemplate | None = None,
        every_answer: bool = False,
    ) -> list[Example]:
        """Return training texts: the prompt and the right answer, divided where scoring divides them."""
        examples = []
        for document in docs:
            subtask = self._subtask_of(document)
            examples.append(subtask.example(document.data, chat=chat, every_answer=every_answer))
        return examples

    def question_texts(self, docs: Sequence[TaskDocument]) -> list[str]:
        """Return what each document asks, without examples or description: the texts that overlap compares."""
        return [self._subtask_of(document).question_text(document.data) for document in docs]

    def identifying_texts(self, docs: Sequence[TaskDocument]) -> list[list[str]]:
        """Return the texts that tell documents apart: what is asked, and the choices where they differ."""
        texts = [[text] for text in self.question_texts(docs)]
        if self.has_options and not self.labels:
            for document_texts, document in zip(texts, docs, strict=True):
                document_texts += self._subtask_of(document).choices(document.data)
        return texts

    def describe(self) -> dict[str, Any]:
        """Say what a reader of its scores must know: the level of a guess, labels, baselines, how to ask it again."""
        description: dict[str, Any] = {}
        if self.chance is not None:
            description["chance"] = self.chance
        if self.labels:
            from potentia.tasks.checks import compute_baselines

            description |= {"labels": self.labels, "baselines": compute_baselines(self)}
        if self.user_task is not None:
            plain_types = (str, int, float, bool, list, dict)
            config = self._subtasks[0].config
            plain = {key: value for key, value in config.items() if isinstance(value, plain_types)}
            description |= {"config": plain, "columns": self.user_task.columns}
        return description

    @cached_property
    def cluster_columns(self) -> tuple[str | None, ...]:
        """The column of every subtask whose equal values make clusters of test examples."""
        documents = self.documents("test")
        columns = []
        for number, subtask in enumerate(self._subtasks):
            examples = [document.data for document in documents if document.subtask == number]
            stated = subtask.stated_cluster_column
            columns.append(find_cluster_column(examples, stated, subtask.name))
        return tuple(columns)

    def cluster_label(self, document: TaskDocument) -> str:
        """Return the name of the cluster of examples that share a document's passage; empty where it has none."""
        column = self.cluster_columns[document.subtask]
        if column is None:
            return ""
        label = label_cluster(document.data.get(column))
        if label and len(self._subtasks) > 1:
            return f"{document.subtask}: {label}"
        return label

    def describe_clusters(self) -> str | None:
        """Say how many passages the test examples share; None where every example stands alone."""
        labels = [self.cluster_label(document) for document in self.documents("test")]
        named = [label for label in labels if label]
        passages = len(set(named))
        if passages == len(named):
            return None
        columns = ", ".join(sorted({column for column in self.cluster_columns if column}))
        return (
            f"{len(named):,} test examples share {passages:,} values of {columns}: "
            "standard errors and tests allow for it."
        )

    def grade(
        self, prompts: Sequence[Prompt], responses: Sequence[Sequence[Answer]]
    ) -> list[ItemOutcome]:
        """Judge the answers with lm-eval's filters and metrics; ``responses`` are parallel to prompts and requests."""
        if len(prompts) != len(responses):
            raise TaskError(f"{len(prompts)} prompts, but {len(responses)} responses")
        outcomes: dict[int, ItemOutcome] = {}
        for number, subtask in enumerate(self._subtasks):
            places = [i for i, prompt in enumerate(prompts) if prompt.doc.subtask == number]
            graded = subtask.grade(
                [prompts[i] for i in places], [responses[i] for i in places], self.metric
            )
            outcomes |= zip(places, graded, strict=True)
            if len(self._subtasks) > 1:
                for outcome in graded:
                    outcome.detail["subtask"] = subtask.name
        graded_outcomes = []
        for i, prompt in enumerate(prompts):
            graded_outcomes.append(replace(outcomes[i], cluster=self.cluster_label(prompt.doc)))
        return graded_outcomes

    def score(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Score]:
        """Aggregate graded items into all metrics; ``self.metric`` names the main one.

        A group's score is lm-eval's: the mean of the subtasks' scores weighted by size (or plain, where the group says
        so), with the pooled standard error.
        """
        if not outcomes:
            raise TaskError(f"{self.name}: no graded document to score")
        scores_of_subtasks: list[dict[str, Score]] = []
        for subtask in self._subtasks:
            own_outcomes = [
                outcome
                for outcome in outcomes
                if outcome.detail.get("subtask", subtask.name) == subtask.name
            ]
            if not own_outcomes:
                continue
            metric_named = partial(self.metric_named, subtask=subtask)
            aggregations = subtask.task.aggregation()
            scores_of_subtasks.append(
                grading.score_outcomes(own_outcomes, aggregations, metric_named)
            )
        if len(self._subtasks) == 1:
            return scores_of_subtasks[0]
        return self._pool_subtasks(scores_of_subtasks)

    def _pool_subtasks(self, scores_of_subtasks: Sequence[dict[str, Score]]) -> dict[str, Score]:
        """Return a group's scores of those of its subtasks."""
        scores_by_metric: dict[str, list[Score]] = {}
        for scores in scores_of_subtasks:
            for name, score in scores.items():
                scores_by_metric.setdefault(name, []).append(score)
        pooled = {}
        for name, scores_of_metric in scores_by_metric.items():
            by_size = self._weighted_by_size.get(name.split("|")[0], True)
            pooled[name] = grading.pool_scores(scores_of_metric, by_size=by_size)
        return pooled

    def metric_named(self, name: str, subtask: Subtask | None = None) -> Metric:
        """Return what one of its metrics is: of a text where texts are predicted, whichever way is better."""
        higher_is_better = (subtask or self._subtasks[0]).higher_is_better(name)
        kind: Literal["text", "task"] = "text" if self.kind == "corpus" else "task"
        return Metric.of(name, higher_is_better, kind=kind, chance=self.chance)

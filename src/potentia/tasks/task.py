"""A task, ready to be asked of models: its documents by split, their prompts, and what the answers are worth.

A ``Task`` is made of one ``Subtask``, or of several if it is a group (MMLU). Prompts, grades and scores are
lm-eval's; which documents are in which split is one seeded plan (``splits``). The usual order of calls::

    documents = task.documents("test")
    prompts = task.prompts(documents)         # each with its requests to the model
    outcomes = task.grade(prompts, answers)   # one ItemOutcome per document
    scores = task.score(outcomes)             # one Score per metric

and ``task.examples(task.documents("train"))`` are the texts to train on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

from potentia.errors import TaskError
from potentia.study import Caps
from potentia.tasks import grading
from potentia.tasks.clusters import find_cluster_column
from potentia.tasks.free_text import FREE_TEXT_METRICS
from potentia.tasks.harness import fingerprint_definition
from potentia.tasks.splits import SPLITS, Division, RowNumbers, Split, SplitRows, plan_splits
from potentia.tasks.subtask import ChatTemplate, ModelAnswer, Prompt, Subtask, TaskDocument
from potentia.values.answer_bits import ANSWER_METRICS
from potentia.values.clusters import label_cluster
from potentia.values.metric import Metric
from potentia.values.provenance import TaskProvenance
from potentia.values.requests import Example
from potentia.values.sampling import SamplePlan
from potentia.values.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.tasks.user_tasks import UserTask

CHANCE_SAMPLE = 1_000  # documents whose options are counted for the accuracy of guessing
USUAL_MAIN_METRICS = ("acc_norm", "bits_per_byte")  # the first that a task has is its main one
_CHOICE_METRICS = ("acc", "acc_norm", "brier_score", *ANSWER_METRICS, grading.PER_TOKEN)


class Task:
    """One task: ``documents`` gives its splits, ``prompts`` the requests, ``grade`` and ``score`` the results.

    ``metric`` is the wanted main metric; a task that does not have it takes its usual one. ``weighted_by_size`` says
    for each metric of a group whether large subtasks count more. The other arguments are those of ``plan_splits``.
    """

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
        groups: RowNumbers | None = None,
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
        # of a classification: the words that stand for each label in the prompt
        self.labels: dict[str, str] = dict(first.definition.get("labels") or {})
        self.has_options = first.has_options  # whether its documents have options to choose from
        self.metrics = first.metric_names  # those that the definition names
        self.metric = self._choose_main_metric(first.definition.get("main_metric") or metric)
        self.shots = int(first.definition.get("shots") or 0)  # examples that its prompt form shows
        self.higher_is_better = first.higher_is_better(self.metric)
        self.user_task: UserTask | None = None  # set where the task is made of a user's own data
        self.samples: SamplePlan | None = None  # set where several answers are sampled
        self.notes: list[str] = []  # for the user: what was inferred of the data, or dropped
        self._weighted_by_size = dict(weighted_by_size)
        self._documents: dict[Split, list[TaskDocument]] = {}
        self._example_pools: dict[int, Sequence[Mapping[str, object]]] = {}
        self.split_plan, self._rows_by_split = plan_splits(
            [subtask.public_sizes() for subtask in subtasks],
            caps=caps or Caps(),
            seed=seed,
            carve=carve,
            division=division,
            hold_out=hold_out,
            groups=groups,
        )

    @classmethod
    def join_auxiliary(cls, tasks: Sequence[Task], *, caps: Caps, seed: int, hold_out: int) -> Task:
        """Return the training documents of several tasks as one task to train on; it has no test."""
        kinds = {task.kind for task in tasks}
        task_names = [task.name for task in tasks]
        if len(kinds) != 1:
            raise TaskError(
                f"{', '.join(task_names)} are {' and '.join(sorted(kinds))} data: they cannot be learned together",
                hint="name data of one kind",
            )
        subtasks: list[Subtask] = []
        for task in tasks:
            subtasks.extend(task._subtasks)
        joined = cls(
            " + ".join(task_names),
            subtasks,
            metric=tasks[0].metric,
            weighted_by_size={},
            caps=caps,
            seed=seed,
            carve=tasks[0].split_plan.carve,
            division=None,
            hold_out=hold_out,
        )
        for task in tasks:
            joined.notes += task.notes
        return joined

    def __repr__(self) -> str:
        split_sizes = ", ".join(
            f"{getattr(self.split_plan, split).used} {split}" for split in SPLITS
        )
        return f"Task({self.name!r}, {self.kind}, {self.metric}, {split_sizes})"

    def _choose_main_metric(self, requested: str | None) -> str:
        """Return the requested metric where the task has it, else its usual one."""
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
        # every so-manieth document: how many options there are differs little from part to part
        sample = documents[:: max(1, len(documents) // CHANCE_SAMPLE)]
        if not sample:
            return None
        counts = [len(self._subtask_of(document).choices(document.data)) for document in sample]
        return sum(1 / option_count for option_count in counts if option_count) / len(counts)

    def _subtask_of(self, document: TaskDocument) -> Subtask:
        return self._subtasks[document.subtask_number]

    def documents(self, split: Split) -> Sequence[TaskDocument]:
        """Return the documents of a split, as the split plan chose them, in the public order."""
        if split not in SPLITS:
            raise TaskError(f"no split {split!r}", hint=f"the splits are {', '.join(SPLITS)}")
        if split not in self._documents:
            self._documents[split] = list(self._read_documents(self._rows_by_split[split]))
        return self._documents[split]

    def _read_documents(self, rows_by_subtask: Sequence[SplitRows]) -> Iterator[TaskDocument]:
        """Yield the documents of a split; ids run on from one subtask to the next."""
        first_id = 0
        for subtask_number, (subtask, subtask_rows) in enumerate(
            zip(self._subtasks, rows_by_subtask, strict=True)
        ):
            contents = (
                subtask.take_rows(subtask_rows.public_split, subtask_rows.rows)
                if subtask_rows.rows
                else []
            )
            for row, content in zip(subtask_rows.rows, contents, strict=True):
                yield TaskDocument(first_id + row, content, subtask_number)
            first_id += len(subtask.public_documents(subtask_rows.public_split))

    def drop_documents(self, dropped_ids: frozenset[int], split: Split = "train") -> int:
        """Drop these documents from a split, count them in the split plan, and return how many they were."""
        before = self.documents(split)
        remaining = [document for document in before if document.id not in dropped_ids]
        dropped = len(before) - len(remaining)
        self._documents[split] = remaining
        # what was computed from the documents is computed again
        self._example_pools.clear()
        self.__dict__.pop("fingerprint", None)
        self.__dict__.pop("cluster_columns", None)
        planned = replace(getattr(self.split_plan, split), used=len(remaining))
        total = self.split_plan.dropped_overlap + dropped
        self.split_plan = replace(self.split_plan, dropped_overlap=total, **{split: planned})
        return dropped

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 of the definitions (with their prompt form) and the documents of all splits.

        It is part of every result's key, so it is the same in every process.
        """
        definitions = []
        for subtask in self._subtasks:
            definitions.append({**subtask.definition, "form": subtask.definition.get("form")})
        # the names of these keys are hashed too: another name would orphan every stored result
        content = {
            "leaves": definitions,
            "metric": self.metric,
            "weights": self._weighted_by_size,
        }
        return fingerprint_definition(content, self._walk_contents())

    def _walk_contents(self) -> Iterator[tuple[str, int, Mapping[str, object]]]:
        """Yield every document that can change a score, with its split and number: set-aside examples, then splits."""
        for subtask_number in range(len(self._subtasks)):
            for example_number, example in enumerate(
                self._set_aside_examples(subtask_number) or ()
            ):
                yield "few-shot", example_number, example
        for split in SPLITS:
            for document in self.documents(split):
                yield split, document.id, document.data

    def prompts(
        self,
        documents: Sequence[TaskDocument],
        *,
        shots: int = 0,
        chat_template: ChatTemplate | None = None,
        seed: int = 0,
    ) -> list[Prompt]:
        """Return a prompt for each document, with the requests that ask it of a model.

        ``shots`` examples go before the question. lm-eval's sampler draws them for each document, from the examples
        that the definition sets aside or else from train, never the document itself. A prompt form with examples of
        its own (``gsm8k:iclip``) shows those where ``shots`` is 0. With ``chat_template``, examples and question are
        one user message, and the answer has no delimiter before it, as in lm-eval.
        """
        shots = shots or self.shots
        if shots < 0:
            raise TaskError(f"a prompt cannot have {shots} examples")
        if shots and self.kind == "corpus":
            raise TaskError(f"{self.name} is a corpus: it has no few-shot prompts")
        prompts = []
        for document in documents:
            subtask = self._subtask_of(document)
            if shots:
                example_pool = self._example_pool(document.subtask_number)
                subtask.draw_examples(example_pool, document, shots=shots, seed=seed)
            prompts.append(subtask.prompt(document, shots=shots, chat_template=chat_template))
        return prompts

    def _set_aside_examples(self, subtask_number: int) -> Sequence[Mapping[str, object]] | None:
        return self._subtasks[subtask_number].set_aside_examples(
            self._rows_by_split["test"][subtask_number].public_split
        )

    def _example_pool(self, subtask_number: int) -> Sequence[Mapping[str, object]]:
        """Return the documents that few-shot examples of one subtask are drawn from.

        The first of these that has any: examples that the definition sets aside, train, validation, test.
        """
        if subtask_number not in self._example_pools:
            example_pool = self._set_aside_examples(subtask_number)
            for split in SPLITS:
                if example_pool:
                    break
                documents = self.documents(split)
                example_pool = [
                    document.data
                    for document in documents
                    if document.subtask_number == subtask_number
                ]
            self._example_pools[subtask_number] = example_pool or []
        return self._example_pools[subtask_number]

    def examples(
        self,
        documents: Sequence[TaskDocument],
        *,
        chat_template: ChatTemplate | None = None,
        every_answer: bool = False,
        with_description: bool = True,
    ) -> list[Example]:
        """Return the training text of each document: the prompt and the right answer, as ``Subtask.example`` says."""
        examples = []
        for document in documents:
            example = self._subtask_of(document).example(
                document.data,
                chat_template=chat_template,
                every_answer=every_answer,
                with_description=with_description,
            )
            examples.append(example)
        return examples

    def question_texts(self, documents: Sequence[TaskDocument]) -> list[str]:
        """Return what each document asks, without few-shot examples or description."""
        return [self._subtask_of(document).question_text(document.data) for document in documents]

    def identifying_texts(self, documents: Sequence[TaskDocument]) -> list[list[str]]:
        """Return the texts that tell documents apart: what is asked, and the choices where they differ."""
        return [
            self._subtask_of(document).identifying_texts(document.data) for document in documents
        ]

    @property
    def has_written_answers(self) -> bool:
        """Whether a user's own data has answers to write, which are scored by their words."""
        return self.user_task is not None and self.metric in FREE_TEXT_METRICS

    def describe(self) -> TaskProvenance:
        """Return what is stored of the task with its results, for whoever reads the scores.

        That is its examples and splits, the accuracy of guessing, the labels with their baselines, and, for a user's
        own data, the definition and columns by which the task can be asked again. The caller adds the fingerprint, so
        that a worker that was told it does not hash all examples again.
        """
        description = TaskProvenance(
            splits=self.split_plan,
            metric=self.metric,
            chance=self.chance,
            labels=self.labels,
        )
        if self.labels:
            from potentia.tasks.checks import compute_baselines

            description = replace(description, baselines=compute_baselines(self))
        elif self.has_written_answers:
            from potentia.tasks.checks import compute_written_baselines

            description = replace(description, baselines=compute_written_baselines(self))
        if self.user_task is not None:
            plain_types = (str, int, float, bool, list, dict)
            definition = self._subtasks[0].definition
            plain_settings = {
                key: value for key, value in definition.items() if isinstance(value, plain_types)
            }
            description = replace(
                description, config=plain_settings, columns=self.user_task.columns
            )
        return description

    @cached_property
    def cluster_columns(self) -> tuple[str | None, ...]:
        """Each subtask's column whose equal values make clusters of test examples; None if none does."""
        documents = self.documents("test")
        columns = []
        for subtask_number, subtask in enumerate(self._subtasks):
            examples = [
                document.data for document in documents if document.subtask_number == subtask_number
            ]
            stated = subtask.stated_cluster_column
            columns.append(find_cluster_column(examples, stated, subtask.name))
        return tuple(columns)

    def cluster_label(self, document: TaskDocument) -> str:
        """Return the name of the cluster of examples that share a document's passage; empty if it has none."""
        column = self.cluster_columns[document.subtask_number]
        if column is None:
            return ""
        label = label_cluster(document.data.get(column))
        if label and len(self._subtasks) > 1:
            return f"{document.subtask_number}: {label}"
        return label

    def describe_clusters(self) -> str | None:
        """Say how many passages the test examples share; None if every example stands alone."""
        labels = [self.cluster_label(document) for document in self.documents("test")]
        passage_labels = [label for label in labels if label]
        passages = len(set(passage_labels))
        if passages == len(passage_labels):
            return None
        columns = ", ".join(sorted({column for column in self.cluster_columns if column}))
        return (
            f"{len(passage_labels):,} test examples share {passages:,} values of {columns}: "
            "standard errors and tests allow for it."
        )

    def grade(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[ModelAnswer]]
    ) -> list[ItemOutcome]:
        """Return the outcome of each document, graded with lm-eval's filters and metrics.

        ``answers`` has one entry per prompt: the model's answer to each of its requests.
        """
        if len(prompts) != len(answers):
            raise TaskError(f"{len(prompts)} prompts, but {len(answers)} responses")
        outcome_by_position: dict[int, ItemOutcome] = {}
        for subtask_number, subtask in enumerate(self._subtasks):
            positions = [
                position
                for position, prompt in enumerate(prompts)
                if prompt.document.subtask_number == subtask_number
            ]
            subtask_outcomes = subtask.grade(
                [prompts[position] for position in positions],
                [answers[position] for position in positions],
                self.metric,
            )
            outcome_by_position |= zip(positions, subtask_outcomes, strict=True)
            if len(self._subtasks) > 1:
                for outcome in subtask_outcomes:
                    outcome.detail["subtask"] = subtask.name
        outcomes = []
        for position, prompt in enumerate(prompts):
            cluster = self.cluster_label(prompt.document)
            outcomes.append(replace(outcome_by_position[position], cluster=cluster))
        return outcomes

    def score(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Score]:
        """Return the score of every metric over graded documents; ``self.metric`` names the main one.

        A group's score is lm-eval's: the mean of the subtasks' scores weighted by size (or plain, where the group says
        so), with the pooled standard error.
        """
        if not outcomes:
            raise TaskError(f"{self.name}: no graded example to score")
        scores_by_subtask: list[dict[str, Score]] = []
        for subtask in self._subtasks:
            subtask_outcomes = [
                outcome
                for outcome in outcomes
                if outcome.detail.get("subtask", subtask.name) == subtask.name
            ]
            if not subtask_outcomes:
                continue
            describe_metric = partial(self.describe_metric, subtask=subtask)
            aggregations = subtask.harness_task.aggregation()
            scores_by_subtask.append(
                grading.score_outcomes(subtask_outcomes, aggregations, describe_metric)
            )
        if len(self._subtasks) == 1:
            return scores_by_subtask[0]
        return self._pool_subtasks(scores_by_subtask)

    def _pool_subtasks(self, scores_by_subtask: Sequence[dict[str, Score]]) -> dict[str, Score]:
        """Return a group's score by metric, pooled over its subtasks."""
        scores_by_metric: dict[str, list[Score]] = {}
        for scores in scores_by_subtask:
            for metric_name, score in scores.items():
                scores_by_metric.setdefault(metric_name, []).append(score)
        pooled = {}
        for metric_name, subtask_scores in scores_by_metric.items():
            by_size = self._weighted_by_size.get(metric_name.split("|")[0], True)
            pooled[metric_name] = grading.pool_scores(subtask_scores, by_size=by_size)
        return pooled

    def describe_metric(self, metric_name: str, subtask: Subtask | None = None) -> Metric:
        """Return one of the task's metrics as a ``Metric``, with its direction and the accuracy of guessing."""
        higher_is_better = (subtask or self._subtasks[0]).higher_is_better(metric_name)
        metric_kind: Literal["text", "task"] = "text" if self.kind == "corpus" else "task"
        return Metric.of(metric_name, higher_is_better, kind=metric_kind, chance=self.chance)

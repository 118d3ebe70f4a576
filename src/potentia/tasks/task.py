"""A task: one benchmark, ready to ask. Prompts, grades and scores are the harness's; the splits are one seeded plan.

The plan says which documents a model trains on, is selected on, and is tested on: the same for every model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from potentia.errors import TaskError
from potentia.study import Caps
from potentia.tasks import grading
from potentia.tasks.harness import fingerprint_definition
from potentia.tasks.subtask import Answer, ChatTemplate, Prompt, Subtask, TaskDocument
from potentia.values.metric import Metric
from potentia.values.requests import Example
from potentia.values.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.tasks.loading import UserTask

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")
GUESSED = 1_000  # documents whose options are counted
_CARVE, _CAP = (
    1,
    2,
)  # separate streams of one seed, so that a change of one cap does not move the others

# --- splits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split: the public split (or the rule) it came from, its size before and after the cap."""

    origin: str
    available: int
    used: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Where each split came from, how large it was and is, and the seed and fraction behind it; goes into manifests."""

    train: PlannedSplit
    validation: PlannedSplit
    test: PlannedSplit
    caps: Caps
    seed: int
    carve: float
    dropped_overlap: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {"caps": self.caps.model_dump()}


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Row numbers in one public split of a subtask."""

    public: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a benchmark with one public split is divided: by shares of train, validation and test, or into folds.

    Of K folds, fold k is the test, and validation is carved out of the others; every document is tested once in all.
    """

    ratios: tuple[float, float, float] | None = None  # 8:1:1 where neither is given
    fold: tuple[int, int] | None = None  # (k from 1, K)


def divide_documents(
    sizes: Mapping[str, int], *, seed: int, carve: float, division: Division | None = None
) -> tuple[dict[Split, SplitRows], dict[Split, str]]:
    """Decide the splits of one benchmark from the public splits it has, before any cap: rows, and where they are from.

    A benchmark with both validation and labelled test uses them. One without a labelled test is tested on its public
    validation split. In every other case validation is carved out of train (20 % in the paper). A benchmark that has
    one public split only is divided as its ``division`` says.
    """
    division = division or Division()
    train, validation, test = (sizes.get(split) or 0 for split in SPLITS)
    if not 0 < carve < 1:
        raise TaskError(
            f"the fraction of train carved out as validation is {carve}; it must lie between 0 and 1"
        )
    if not train + validation + test:
        raise TaskError("no split has any document")
    order = np.random.default_rng([seed, _CARVE]).permutation(train)
    if not validation and not test:
        parts, how = (
            _folded(order, division.fold, carve)
            if division.fold
            else _shared(order, division.ratios)
        )
        rows = {split: _ordered(part) for split, part in zip(SPLITS, parts, strict=True)}
        return rows, dict.fromkeys(SPLITS, f"{how} of the one split")
    if division != Division():
        raise TaskError(
            "ratios and folds are for data in one split; this has its own",
            hint="leave them out, or give one file",
        )
    tested = "test" if test else "validation"
    rows = {
        "train": _ordered(order),
        "validation": _ordered(order[:0]),
        "test": _whole(tested, test or validation),
    }
    origins: dict[Split, str] = {
        "train": "train" if train else "none",
        "validation": "none",
        "test": tested,
    }
    if validation and test:
        rows["validation"], origins["validation"] = _whole("validation", validation), "validation"
    elif train > 1:
        held = _held(train, carve)
        rows |= {"train": _ordered(order[held:]), "validation": _ordered(order[:held])}
        origins["validation"] = f"{carve:.0%} of train"
    return rows, origins


Order = np.ndarray[Any, np.dtype[np.int64]]


def _shared(order: Order, ratios: tuple[float, float, float] | None) -> tuple[list[Order], str]:
    """Divide documents by shares; every split gets at least one."""
    ratios = ratios or (8.0, 1.0, 1.0)
    if len(order) < 3:
        raise TaskError(
            f"only {len(order)} document(s), too few to divide into train, validation and test"
        )
    test, validation = (max(1, round(len(order) * ratios[k] / sum(ratios))) for k in (2, 1))
    if test + validation >= len(order):
        raise TaskError(f"the shares {ratios} leave nothing to train on of {len(order)} documents")
    tested, selected, trained = np.split(order, [test, test + validation])
    return [trained, selected, tested], ":".join(f"{ratio:g}" for ratio in ratios)


def _folded(order: Order, fold: tuple[int, int], carve: float) -> tuple[list[Order], str]:
    """Take fold k of K as the test, and carve validation out of the others."""
    k, folds = fold
    if len(order) < 2 * folds:
        raise TaskError(f"only {len(order)} document(s), too few for {folds} folds")
    pieces = np.array_split(order, folds)
    rest = np.concatenate([piece for n, piece in enumerate(pieces, 1) if n != k])
    held = _held(len(rest), carve)
    return [rest[held:], rest[:held], pieces[k - 1]], f"fold {k} of {folds}"


def _held(count: int, carve: float) -> int:
    return min(count - 1, max(1, round(count * carve)))


def hold_out_documents(
    sizes: Sequence[Mapping[str, int]], *, hold_out: int, seed: int
) -> tuple[dict[Split, list[SplitRows]], dict[Split, str]]:
    """Leave auxiliary data whole: all of train is trained on, but for ``hold_out`` documents kept to choose by."""
    every = [_whole("train", size.get("train") or 0) for size in sizes]
    total = _count(every)
    if hold_out and hold_out >= total:
        raise TaskError(f"{hold_out} documents to hold out of {total} leave none to train on")
    held = cap_rows(every, hold_out, seed=seed)
    rows: dict[Split, list[SplitRows]] = {
        "train": [
            SplitRows("train", tuple(sorted(set(whole.rows) - set(out.rows))))
            for whole, out in zip(every, held, strict=True)
        ],
        "validation": held,
        "test": [SplitRows("test", ()) for _ in every],
    }
    return rows, {
        "train": "train",
        "validation": "held out of train" if hold_out else "none",
        "test": "none",
    }


def cap_rows(parts: Sequence[SplitRows], limit: int | None, *, seed: int) -> list[SplitRows]:
    """Keep at most ``limit`` rows of a split that may span several sources: a seeded sample, in the public order."""
    total = _count(parts)
    if limit is None or total <= limit:
        return list(parts)
    keep = np.zeros(total, dtype=bool)
    keep[np.random.default_rng([seed, _CAP]).permutation(total)[:limit]] = True
    wanted = iter(keep.tolist())
    return [replace(part, rows=tuple(row for row in part.rows if next(wanted))) for part in parts]


def _count(parts: Sequence[SplitRows]) -> int:
    return sum(len(part.rows) for part in parts)


def _ordered(rows: Order) -> SplitRows:
    return SplitRows("train", tuple(np.sort(rows).tolist()))


def _whole(public: str, size: int) -> SplitRows:
    return SplitRows(public, tuple(range(size)))


# --- the task --------------------------------------------------------------------------------------------------------


class Task:
    """One benchmark. ``documents`` gives its splits, ``prompts`` its requests, ``grade`` and ``score`` the results."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Subtask],
        metric: str | None,
        weights: Mapping[str, bool],
        caps: Caps | None,
        seed: int,
        carve: float,
        division: Division | None,
        hold_out: int | None,
    ) -> None:
        kinds = {leaf.kind for leaf in leaves}
        if len(kinds) != 1:
            raise TaskError(
                f"{name} mixes {' and '.join(sorted(kinds))} tasks; name its subtasks one by one"
            )
        first = leaves[0]
        self.name, self.kind, self._leaves = name, first.kind, tuple(leaves)
        self.subtasks = tuple(leaf.name for leaf in leaves)
        self.labels: dict[str, str] = dict(
            first.config.get("labels") or {}
        )  # of a classification: its words by label
        self.has_options = first.has_options  # whether its documents have options to choose from
        self.metrics = first.metric_names  # that the definition asks for
        self.metric = self._main(first.config.get("main_metric") or metric)
        self.shots = int(first.config.get("shots") or 0)
        self.higher_is_better = first.higher_is_better(self.metric)
        self.user_task: UserTask | None = None  # where the user's own data made it
        self.notes: list[str] = []  # what was inferred, dropped or is to be known of its data
        self._weights = dict(weights)
        self._documents: dict[Split, list[TaskDocument]] = {}
        self._pools: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.plan, self._rows = self._split(caps or Caps(), seed, carve, division, hold_out)

    def __repr__(self) -> str:
        used = ", ".join(f"{getattr(self.plan, split).used} {split}" for split in SPLITS)
        return f"Task({self.name!r}, {self.kind}, {self.metric}, {used})"

    def _main(self, wanted: str | None) -> str:
        added: tuple[str, ...] = (
            ("acc", "acc_norm", "brier_score", grading.PER_TOKEN) if self.has_options else ()
        )
        added += tuple(grading.LABEL_METRICS) if self.labels else ()
        if wanted in (*self.metrics, *added):
            return str(wanted)
        if not self.metrics:
            raise TaskError(f"{self.name} names no metric")
        return next(
            (usual for usual in ("acc_norm", "bits_per_byte") if usual in self.metrics),
            self.metrics[0],
        )

    @cached_property
    def chance(self) -> float | None:
        """The accuracy of a uniform guess on the test split: the mean of 1/k over k options; None without options."""
        docs = self.documents("test") if self.has_options else ()
        docs = docs[
            :: max(1, len(docs) // GUESSED)
        ]  # what a task's questions offer differs little from part to part
        counts = [len(self._leaves[doc.subtask].choices(doc.data)) for doc in docs]
        return sum(1 / count for count in counts if count) / len(counts) if counts else None

    def _split(
        self, caps: Caps, seed: int, carve: float, division: Division | None, hold_out: int | None
    ) -> tuple[SplitPlan, dict[Split, list[SplitRows]]]:
        sizes = [leaf.sizes() for leaf in self._leaves]
        if hold_out is None:
            each = [
                divide_documents(size, seed=seed, carve=carve, division=division) for size in sizes
            ]
            whole = {split: [rows[split] for rows, _ in each] for split in SPLITS}
            origins = {
                split: ", ".join(dict.fromkeys(origin[split] for _, origin in each))
                for split in SPLITS
            }
        else:
            whole, origins = hold_out_documents(sizes, hold_out=hold_out, seed=seed)
        rows = {
            split: cap_rows(parts, getattr(caps, split), seed=seed)
            for split, parts in whole.items()
        }
        train, validation, test = (
            PlannedSplit(origins[s], _count(whole[s]), _count(rows[s])) for s in SPLITS
        )
        return SplitPlan(train, validation, test, caps, seed, carve), rows

    def documents(self, split: Split) -> Sequence[TaskDocument]:
        """Return the documents of a split: after carving and caps, in the public order; empty where there is none."""
        if split not in SPLITS:
            raise TaskError(f"no split {split!r}", hint=f"the splits are {', '.join(SPLITS)}")
        if split not in self._documents:
            docs: list[TaskDocument] = []
            start = 0
            for place, (leaf, part) in enumerate(zip(self._leaves, self._rows[split], strict=True)):
                taken = leaf.take(part.public, part.rows) if part.rows else []
                docs += [
                    TaskDocument(start + row, data, place)
                    for row, data in zip(part.rows, taken, strict=True)
                ]
                start += len(leaf.public(part.public))
            self._documents[split] = docs
        return self._documents[split]

    def drop_documents(self, ids: frozenset[int], split: Split = "train") -> int:
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
            for place in range(len(self._leaves))
            for number, doc in enumerate(self._own_pool(place) or ())
        )
        docs = ((split, doc.id, doc.data) for split in SPLITS for doc in self.documents(split))
        return fingerprint_definition(config, (*pools, *docs))

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
        made = []
        for doc in docs:
            leaf = self._leaves[doc.subtask]
            if shots:
                leaf.draw(self._pool(doc.subtask), doc, shots=shots, seed=seed)
            made.append(leaf.prompt(doc, shots=shots, chat=chat))
        return made

    def _own_pool(self, place: int) -> Sequence[Mapping[str, Any]] | None:
        return self._leaves[place].own_pool(self._rows["test"][place].public)

    def _pool(self, place: int) -> Sequence[Mapping[str, Any]]:
        """Return the documents that lend few-shot examples to one subtask: its own, train, validation, or test."""
        if place not in self._pools:
            pool = self._own_pool(place)
            for split in SPLITS:
                pool = pool or [doc.data for doc in self.documents(split) if doc.subtask == place]
            self._pools[place] = pool or []
        return self._pools[place]

    def examples(
        self,
        docs: Sequence[TaskDocument],
        *,
        chat: ChatTemplate | None = None,
        every_answer: bool = False,
    ) -> list[Example]:
        """Return training texts: the prompt and the right answer, divided where scoring divides them."""
        return [
            self._leaves[doc.subtask].example(doc.data, chat=chat, every_answer=every_answer)
            for doc in docs
        ]

    def question_texts(self, docs: Sequence[TaskDocument]) -> list[str]:
        """Return what each document asks, without examples or description: the texts that overlap compares."""
        return [self._leaves[doc.subtask].asked(doc.data) for doc in docs]

    def identifying_texts(self, docs: Sequence[TaskDocument]) -> list[list[str]]:
        """Return the texts that tell documents apart: what is asked, and the choices where they differ."""
        asked = self.question_texts(docs)
        if self.labels or not self.has_options:
            return [[text] for text in asked]
        return [
            [text, *self._leaves[doc.subtask].choices(doc.data)]
            for text, doc in zip(asked, docs, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        """Say what a reader of its scores must know: the level of a guess, labels, baselines, how to ask it again."""
        told: dict[str, Any] = {} if self.chance is None else {"chance": self.chance}
        if self.labels:
            from potentia.tasks.checks import compute_baselines

            told |= {"labels": self.labels, "baselines": compute_baselines(self)}
        if self.user_task is not None:
            plain = (str, int, float, bool, list, dict)
            config = {k: v for k, v in self._leaves[0].config.items() if isinstance(v, plain)}
            told |= {"config": config, "columns": self.user_task.columns}
        return told

    def grade(
        self, prompts: Sequence[Prompt], responses: Sequence[Sequence[Answer]]
    ) -> list[ItemOutcome]:
        """Judge the answers with lm-eval's filters and metrics; ``responses`` are parallel to prompts and requests."""
        if len(prompts) != len(responses):
            raise TaskError(f"{len(prompts)} prompts, but {len(responses)} responses")
        outcomes: dict[int, ItemOutcome] = {}
        for place, leaf in enumerate(self._leaves):
            mine = [i for i, prompt in enumerate(prompts) if prompt.doc.subtask == place]
            graded = leaf.grade(
                [prompts[i] for i in mine], [responses[i] for i in mine], self.metric
            )
            outcomes |= zip(mine, graded, strict=True)
            if len(self._leaves) > 1:
                for outcome in graded:
                    outcome.detail["subtask"] = leaf.name
        return [outcomes[i] for i in range(len(prompts))]

    def score(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Score]:
        """Aggregate graded items into all metrics; ``self.metric`` names the main one.

        A group's score is lm-eval's: the mean of the subtasks' scores weighted by size (or plain, where the group says
        so), with the pooled standard error.
        """
        if not outcomes:
            raise TaskError(f"{self.name}: no graded document to score")
        members: list[dict[str, Score]] = []
        for leaf in self._leaves:
            mine = [o for o in outcomes if o.detail.get("subtask", leaf.name) == leaf.name]
            if mine:
                members.append(
                    grading.score_outcomes(
                        mine, leaf.task.aggregation(), partial(self.metric_named, leaf=leaf)
                    )
                )
        if len(self._leaves) == 1:
            return members[0]
        made: dict[str, Score] = {}
        for name in dict.fromkeys(name for scores in members for name in scores):
            by_size = self._weights.get(name.split("|")[0], True)
            made[name] = grading.pool_scores(
                [scores[name] for scores in members if name in scores], by_size=by_size
            )
        return made

    def metric_named(self, name: str, leaf: Subtask | None = None) -> Metric:
        """Return what one of its metrics is: of a text where texts are predicted, whichever way is better."""
        up = (leaf or self._leaves[0]).higher_is_better(name)
        return Metric.of(
            name, up, kind="text" if self.kind == "corpus" else "task", chance=self.chance
        )

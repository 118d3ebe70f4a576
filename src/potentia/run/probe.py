"""The probe: a short fine-tuning of every model on every task, the same in all studies, shows what is left to learn.

A model that has seen a test's kind of text has little left to learn from it, and a model that has seen these very
documents predicts them better than others like them. So beside the lanes of a row, one lane a task takes two epochs
over a fixed list of documents at a fixed low rate, rank and batch, by the loss of the whole text and without dropout.
Kept are two losses, of the whole text and of its answer alone: of every document of all three splits before any update,
and summed over training and validation documents after each epoch. That is all that is ever done with test documents
here, and nothing is chosen by it. (Learning by the answer's loss finds as much of what was planted by either loss, and
less of what was in pretraining: ``docs/exposure.md``.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from potentia.engine import LoadedModel
from potentia.errors import PotentiaError
from potentia.files import write_file
from potentia.run.ask import SplitName
from potentia.run.progress import Stopped
from potentia.study import Tuning, content_key
from potentia.timing import spending
from potentia.values.fine_tuning import LaneStatus
from potentia.values.selection import ProbeResult, SplitLosses

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import LaneEpoch, LaneSpec, LaneTrainer
    from potentia.run.row_context import RowContext
    from potentia.study import Probe
    from potentia.tasks import Task
    from potentia.tasks.subtask import TaskDocument

VERSION = 2  # of what is recorded; other probes are not compared with it
EPOCHS = 2
BATCH = 8
RANK = 8  # rank and alpha of the recipe `fair`: its adapters are checked once for both
ALPHA = 32
MAX_TOKENS = 512
LOSS: Literal["text", "completion"] = "text"
MOST_COST = 0.03  # of a task's fine-tuning, unless the study asks for the probe
LEAST_DOCUMENTS = 16  # to train on; fewer say nothing
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
READ_AFTER_EPOCHS: tuple[SplitName, ...] = ("train", "validation")

Place = tuple[str, SplitName]  # a task and one of its splits
Losses = dict[str, tuple[float, ...]]  # nats of every document, by kind of loss


@dataclass(frozen=True)
class ProbeText:
    """A document as tokens, and where its answer begins."""

    ids: list[int]
    answer_start: int


@dataclass(frozen=True)
class ProbeTexts:
    """The documents of one split, the bytes of each by kind of loss, and the passages that some share."""

    texts: list[ProbeText]
    byte_counts: dict[str, tuple[int, ...]]
    clusters: tuple[str, ...]


def name_shared_passages(task: Task, documents: Sequence[TaskDocument]) -> tuple[str, ...]:
    """Return the passage of each document, empty where one has none; nothing where no two share a passage."""
    labels = tuple(task.cluster_label(document) for document in documents)
    passages = [label for label in labels if label]
    return labels if len(set(passages)) < len(passages) else ()


def is_probed(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> bool:
    """Whether a task is probed: where the study asks, or where it costs little beside the task's fine-tuning."""
    if probe.on is False or len(task.documents("train")) < LEAST_DOCUMENTS:
        return False
    return bool(probe.on) or estimate_probe_cost(probe, tuning, task, seeds) <= MOST_COST


def estimate_probe_cost(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> float:
    """Return the share of a task's training that the probe takes; a backward pass counts as two forward."""
    scored = {split: min(probe.documents, len(task.documents(split))) for split in SPLITS}
    learned = {
        split: min(probe.learned, document_count) for split, document_count in scored.items()
    }
    read_after = sum(learned[split] for split in READ_AFTER_EPOCHS)
    probe_passes = EPOCHS * (3 * learned["train"] + read_after) + sum(scored.values())
    documents = len(task.documents("train"))
    epochs, passes_per_epoch = tuning.plan_epochs(documents)
    tuning_passes = 3 * epochs * passes_per_epoch * documents * tuning.expected_lanes * seeds
    return probe_passes / max(tuning_passes, 1)


def probe_row(
    context: RowContext, task_names: Sequence[str], folder: Path, trainer: LaneTrainer | None
) -> dict[str, ProbeResult]:
    """Probe the tasks of a row that are to be, all at once; a resumed row finds what was made in its folder."""
    settings = context.study.probe
    tasks = _choose_tasks(context, task_names)
    if not tasks:
        return {}
    probe_key = content_key(tasks=list(tasks), probe=settings, version=VERSION)
    probe_file = folder / f"probe-{probe_key}.json"
    try:
        results_by_task = json.loads(probe_file.read_text("utf-8")).items()
        return {task_name: ProbeResult.from_dict(result) for task_name, result in results_by_task}
    except (OSError, ValueError, AttributeError):
        pass
    with spending("probe"):
        probe = ModelProbe(
            context.loaded,
            tasks,
            settings,
            token_budget=context.study.token_budget,
            phase=context.progress.phase,
            progress=context.advance,
            reach=context.progress.reach,
            stop=context.stop_requested,
        )
        try:
            results = probe.run(trainer)
        except PotentiaError as error:  # the cells of the row can do without
            context.progress.log_event("probe", reason=error.message)
            return {}
    write_file(
        probe_file,
        json.dumps({task_name: result.to_dict() for task_name, result in results.items()}),
    )
    return results


def _choose_tasks(context: RowContext, task_names: Sequence[str]) -> dict[str, Task]:
    """Return the tasks to probe; those that would cost too much are reported."""
    study = context.study
    tasks = {}
    expensive = []
    for task_name in task_names:
        task = context.tasks.by_name[task_name]
        if is_probed(study.probe, study.tuning, task, study.seeds):
            tasks[task_name] = task
        else:
            cost = estimate_probe_cost(study.probe, study.tuning, task, study.seeds)
            expensive.append(f"{task_name} {cost:.0%}")
    if expensive and study.probe.on is None:
        hint = f"more than {MOST_COST:.0%} of the fine-tuning; `probe: true` asks for it"
        context.progress.log_event("probe", reason=f"not made, {hint}: {', '.join(expensive)}")
    return tasks


def _ignore(*_: Any, **__: Any) -> None:
    pass


@dataclass
class ModelProbe:
    """The probe of one loaded model on several tasks: a lane a task, and what the scorer says before and after."""

    loaded: LoadedModel
    tasks: Mapping[str, Task]
    settings: Probe
    token_budget: int | None = None
    phase: Callable[..., None] = _ignore
    progress: Callable[[int], None] = _ignore
    reach: Callable[[int], None] = _ignore
    stop: Callable[[], bool] | None = None
    loss: Literal["text", "completion"] = LOSS

    def __post_init__(self) -> None:
        self.texts: dict[Place, ProbeTexts] = {}
        for task_name, task in self.tasks.items():
            for split in SPLITS:
                if task.documents(split):
                    self.texts[task_name, split] = self._encode_split(task, split)
        self.losses_before: dict[str, dict[str, SplitLosses]] = {
            task_name: {} for task_name in self.tasks
        }
        self.sums_after: dict[str, dict[int, dict[str, dict[str, float]]]] = {
            task_name: {} for task_name in self.tasks
        }

    def _encode_split(self, task: Task, split: SplitName) -> ProbeTexts:
        """Return the split's documents for the probe, a fixed choice, as tokens; and the bytes of texts and answers."""
        from potentia.engine.training import encode_examples

        documents = task.documents(split)
        order = np.random.default_rng(0).permutation(len(documents))
        chosen = [documents[int(index)] for index in order[: self.settings.documents]]
        examples = task.examples(chosen)
        encoder = self.loaded.encoder
        encoded = encode_examples(encoder, examples, end_id=self.loaded.tokenizer.eos_token_id)
        limit = min(MAX_TOKENS, encoder.max_length)
        texts = []
        for index in range(len(encoded)):
            token_ids, answer_start = encoded.cut_text(index, limit)
            texts.append(ProbeText(token_ids.tolist(), max(answer_start, 1)))
        answer_bytes = [len(example.continuation.encode()) for example in examples]
        context_bytes = [len(example.context.encode()) for example in examples]
        text_bytes = [sum(pair) for pair in zip(context_bytes, answer_bytes, strict=True)]
        byte_counts = {"text": tuple(text_bytes), "answer": tuple(answer_bytes)}
        return ProbeTexts(texts, byte_counts, name_shared_passages(task, chosen))

    def run(self, trainer: LaneTrainer | None = None) -> dict[str, ProbeResult]:
        """Score, train, score again; a trainer whose lanes were checked before need not check them anew."""
        from potentia.engine.training import LaneTrainer

        if trainer is not None:
            return self._run(trainer)
        with LaneTrainer(self.loaded, token_budget=self.token_budget) as new_trainer:
            return self._run(new_trainer)

    def _run(self, trainer: LaneTrainer) -> dict[str, ProbeResult]:
        from potentia.engine.scoring import Scorer

        scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
        self._score_before(scorer)
        specs = [self._make_lane(task_name) for task_name in self.tasks]
        self.phase("probing", total=sum(lane_spec.total_steps for lane_spec in specs), unit="steps")
        workspace = trainer.workspace
        trainer.workspace = None  # what is scored on the way is in no snapshot
        try:
            results = trainer.train(
                specs,
                on_epoch=lambda ended: self._score_after(ended, trainer, scorer),
                on_step=lambda info: self.reach(info.done),
                stop=self.stop,
            )
        finally:
            trainer.workspace = workspace
        if any(result.status == LaneStatus.INTERRUPTED for result in results.values()):
            raise Stopped
        return {
            task_name: self._make_result(task_name, result.targets)
            for task_name, result in results.items()
            if result.status == LaneStatus.DONE
        }

    def _make_result(self, task_name: str, targets: Sequence[str]) -> ProbeResult:
        sums_by_epoch = self.sums_after[task_name]
        return ProbeResult(
            version=VERSION,
            learning_rate=self.settings.learning_rate,
            learned=self.settings.learned,
            data=content_key(
                task=self.tasks[task_name].fingerprint, documents=self.settings.documents
            ),
            before=self.losses_before[task_name],
            after_epochs=tuple(sums_by_epoch[epoch] for epoch in sorted(sums_by_epoch)),
            target_modules=tuple(targets),
        )

    def _make_lane(self, task_name: str) -> LaneSpec:
        from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

        texts = self._list_first_texts(task_name, "train")
        examples = TokenisedExamples.from_lists(
            [text.ids for text in texts], [text.answer_start for text in texts]
        )
        schedule = Schedule(
            epochs=EPOCHS,
            batch=BATCH,
            learning_rate=self.settings.learning_rate,
            weight_decay=0.0,
            decay="constant",
            loss=self.loss,
            max_tokens=MAX_TOKENS,
        )
        lora = LoraConfig(RANK, ALPHA, dropout=0.0, targets=("all-linear",))
        return LaneSpec(task_name, examples, schedule, lora=lora)

    def _list_first_texts(self, task_name: str, split: SplitName) -> list[ProbeText]:
        """Return the documents that are learned from, or as many of another split."""
        return self.texts[task_name, split].texts[: self.settings.learned]

    def _score_before(self, scorer: Scorer) -> None:
        """Take the losses of all documents before any update."""
        groups = [prepared.texts for prepared in self.texts.values()]
        self.phase("probing, before any update", total=2 * sum(map(len, groups)))
        losses = self._measure_losses(scorer, groups, self.progress)
        for (task_name, split), nats_per_example in zip(self.texts, losses, strict=True):
            prepared = self.texts[task_name, split]
            self.losses_before[task_name][split] = SplitLosses(
                nats_per_example, prepared.byte_counts, prepared.clusters
            )

    def _score_after(self, ended: list[LaneEpoch], trainer: LaneTrainer, scorer: Scorer) -> None:
        """Take the summed losses of the texts learned from, and of as many of validation, after an epoch."""
        epochs = {lane.key: lane.epoch for lane in ended}
        tasks_and_splits: list[Place] = []
        for task_name in epochs:
            for split in READ_AFTER_EPOCHS:
                if (task_name, split) in self.texts:
                    tasks_and_splits.append((task_name, split))
        losses = self._measure_losses(
            scorer,
            [self._list_first_texts(task_name, split) for task_name, split in tasks_and_splits],
            lambda _: self.progress(0),
            owners=[trainer.slot(task_name) for task_name, _ in tasks_and_splits],
        )
        for (task_name, split), nats_by_loss in zip(tasks_and_splits, losses, strict=True):
            summed_nats = {
                loss_kind: round(sum(values), 3) for loss_kind, values in nats_by_loss.items()
            }
            self.sums_after[task_name].setdefault(epochs[task_name], {})[split] = summed_nats

    def _measure_losses(
        self,
        scorer: Scorer,
        groups: Sequence[Sequence[ProbeText]],
        progress: Callable[[int], None],
        owners: Sequence[int] = (),
    ) -> list[Losses]:
        """Return the nats of every document: of all but its first token, and of its answer, from the same pass."""
        pairs = []
        routes = []
        for texts, owner in zip(groups, owners or [-1] * len(groups), strict=True):
            for text in texts:
                pairs.append((text.ids[:1], text.ids[1:]))
                pairs.append((text.ids[: text.answer_start], text.ids[text.answer_start :]))
                routes += [owner, owner]
        likelihoods = scorer.loglikelihood_ids(
            pairs, owners=routes if owners else None, progress=progress
        )
        nats = iter([round(-likelihood.logprob, 3) for likelihood in likelihoods])
        losses = []
        for texts in groups:
            of_text = []
            of_answer = []
            for _ in texts:
                of_text.append(next(nats))
                of_answer.append(next(nats))
            losses.append({"text": tuple(of_text), "answer": tuple(of_answer)})
        return losses

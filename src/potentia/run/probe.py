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
from potentia.values.selection import ProbeResult, SplitLosses

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import LaneEpoch, LaneSpec, LaneTrainer
    from potentia.run.row_context import RowContext
    from potentia.study import Probe
    from potentia.tasks import Task

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
    """The documents of one split, and the bytes of each by kind of loss."""

    texts: list[ProbeText]
    byte_counts: dict[str, tuple[int, ...]]


def is_probed(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> bool:
    """Whether a task is probed: where the study asks, or where it costs little beside the task's fine-tuning."""
    if probe.on is False or len(task.documents("train")) < LEAST_DOCUMENTS:
        return False
    return bool(probe.on) or estimate_probe_cost(probe, tuning, task, seeds) <= MOST_COST


def estimate_probe_cost(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> float:
    """Return the share of a task's training that the probe takes; a backward pass counts as two forward."""
    scored = {split: min(probe.documents, len(task.documents(split))) for split in SPLITS}
    learned = {split: min(probe.learned, count) for split, count in scored.items()}
    read_after = sum(learned[split] for split in READ_AFTER_EPOCHS)
    probe_passes = EPOCHS * (3 * learned["train"] + read_after) + sum(scored.values())
    documents = len(task.documents("train"))
    epochs, repeats = tuning.rounds(documents)
    tuning_passes = 3 * epochs * repeats * documents * tuning.expected_lanes * seeds
    return probe_passes / max(tuning_passes, 1)


def probe_row(
    context: RowContext, names: Sequence[str], folder: Path, trainer: LaneTrainer | None
) -> dict[str, ProbeResult]:
    """Probe the tasks of a row that are to be, all at once; a resumed row finds what was made in its folder."""
    settings = context.study.probe
    tasks = _choose_tasks(context, names)
    if not tasks:
        return {}
    key = content_key(tasks=list(tasks), probe=settings, version=VERSION)
    file = folder / f"probe-{key}.json"
    try:
        results_by_task = json.loads(file.read_text("utf-8")).items()
        return {name: ProbeResult.from_dict(result) for name, result in results_by_task}
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
            context.progress.event("probe", reason=error.message)
            return {}
    write_file(file, json.dumps({name: result.to_dict() for name, result in results.items()}))
    return results


def _choose_tasks(context: RowContext, names: Sequence[str]) -> dict[str, Task]:
    """Return the tasks to probe; those that would cost too much are reported."""
    study = context.study
    tasks = {}
    expensive = []
    for name in names:
        task = context.tasks.by_name[name]
        if is_probed(study.probe, study.tuning, task, study.seeds):
            tasks[name] = task
        else:
            cost = estimate_probe_cost(study.probe, study.tuning, task, study.seeds)
            expensive.append(f"{name} {cost:.0%}")
    if expensive and study.probe.on is None:
        hint = f"more than {MOST_COST:.0%} of the fine-tuning; `probe: true` asks for it"
        context.progress.event("probe", reason=f"not made, {hint}: {', '.join(expensive)}")
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
        for name, task in self.tasks.items():
            for split in SPLITS:
                if task.documents(split):
                    self.texts[name, split] = self._encode_split(task, split)
        self.losses_before: dict[str, dict[str, SplitLosses]] = {name: {} for name in self.tasks}
        self.sums_after: dict[str, dict[int, dict[str, dict[str, float]]]] = {
            name: {} for name in self.tasks
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
            ids, answer_start = encoded.cut_text(index, limit)
            texts.append(ProbeText(ids.tolist(), max(answer_start, 1)))
        answer_bytes = [len(example.continuation.encode()) for example in examples]
        context_bytes = [len(example.context.encode()) for example in examples]
        text_bytes = [sum(pair) for pair in zip(context_bytes, answer_bytes, strict=True)]
        return ProbeTexts(texts, {"text": tuple(text_bytes), "answer": tuple(answer_bytes)})

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
        specs = [self._make_lane(name) for name in self.tasks]
        self.phase("probing", total=sum(spec.total_steps for spec in specs), unit="steps")
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
        if any(result.status == "interrupted" for result in results.values()):
            raise Stopped
        return {
            name: self._make_result(name, result.targets)
            for name, result in results.items()
            if result.status == "done"
        }

    def _make_result(self, name: str, targets: Sequence[str]) -> ProbeResult:
        sums_by_epoch = self.sums_after[name]
        return ProbeResult(
            version=VERSION,
            learning_rate=self.settings.learning_rate,
            learned=self.settings.learned,
            data=content_key(task=self.tasks[name].fingerprint, documents=self.settings.documents),
            before=self.losses_before[name],
            after_epochs=tuple(sums_by_epoch[epoch] for epoch in sorted(sums_by_epoch)),
            target_modules=tuple(targets),
        )

    def _make_lane(self, name: str) -> LaneSpec:
        from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

        texts = self._list_learned(name, "train")
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
        return LaneSpec(name, examples, schedule, lora=lora)

    def _list_learned(self, name: str, split: SplitName) -> list[ProbeText]:
        """Return the documents that are learned from, or as many of another split."""
        return self.texts[name, split].texts[: self.settings.learned]

    def _score_before(self, scorer: Scorer) -> None:
        """Take the losses of all documents before any update."""
        groups = [prepared.texts for prepared in self.texts.values()]
        self.phase("probing, before any update", total=2 * sum(map(len, groups)))
        losses = self._measure_losses(scorer, groups, self.progress)
        for (name, split), nats in zip(self.texts, losses, strict=True):
            self.losses_before[name][split] = SplitLosses(nats, self.texts[name, split].byte_counts)

    def _score_after(self, ended: list[LaneEpoch], trainer: LaneTrainer, scorer: Scorer) -> None:
        """Take the losses of what was learned from and of what was not, after an epoch."""
        epochs = {lane.key: lane.epoch for lane in ended}
        places: list[Place] = []
        for name in epochs:
            for split in READ_AFTER_EPOCHS:
                if (name, split) in self.texts:
                    places.append((name, split))
        losses = self._measure_losses(
            scorer,
            [self._list_learned(name, split) for name, split in places],
            lambda _: self.progress(0),
            owners=[trainer.slot(name) for name, _ in places],
        )
        for (name, split), nats in zip(places, losses, strict=True):
            sums = {kind: round(sum(values), 3) for kind, values in nats.items()}
            self.sums_after[name].setdefault(epochs[name], {})[split] = sums

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

"""The probe: a short fine-tuning of every model on every task, the same in all studies: what is left to learn.

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

from potentia.errors import PotentiaError
from potentia.files import write_file
from potentia.run.ask import SplitName
from potentia.run.progress import Stopped
from potentia.study import content_key
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.score import Scorer
    from potentia.engine.tune import LaneEpoch, LaneSpec, LaneTrainer
    from potentia.run.row import RowRun
    from potentia.study import Probe, Tuning
    from potentia.tasks import Task

VERSION = 2  # of what is recorded; other probes are not compared with it
EPOCHS, BATCH, RANK, ALPHA, MAX_TOKENS = 2, 8, 8, 32, 512  # the adapter of the recipe `fair`: checked once for both
LOSS: Literal["text", "completion"] = "text"
MOST_COST = 0.03  # of a task's fine-tuning, unless the study asks for the probe
LEAST_DOCUMENTS = 16  # to train on; fewer say nothing
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
LEARNED: tuple[SplitName, ...] = ("train", "validation")  # read after each epoch

Place = tuple[str, SplitName]
Rows = list[tuple[list[int], int]]  # ids, and where the answer begins


def wanted(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> bool:
    """Say whether a task is probed: where the study asks, or where it costs little beside the task's fine-tuning."""
    documents = len(task.documents("train"))
    if probe.on is False or documents < LEAST_DOCUMENTS:
        return False
    return bool(probe.on) or cost(probe, tuning, task, seeds) <= MOST_COST


def cost(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> float:
    """Return the share of a task's training that the probe takes; a backward pass counts as two forward."""
    sizes = {split: min(probe.documents, len(task.documents(split))) for split in SPLITS}
    learned = {split: min(probe.learned, size) for split, size in sizes.items()}
    own = EPOCHS * (3 * learned["train"] + sum(learned[split] for split in LEARNED)) + sum(sizes.values())
    documents = len(task.documents("train"))
    epochs, passes = tuning.rounds(documents)
    return own / max(3 * epochs * passes * documents * tuning.expected_lanes * seeds, 1)


def probe_row(
    row: RowRun, names: Sequence[str], folder: Path, trainer: LaneTrainer | None
) -> dict[str, dict[str, Any]]:
    """Probe the tasks of a row that are to be, all at once; a resumed row finds what was made in its folder."""
    study, board = row.study, row.board
    every = {name: row.tasks.benchmarks[name] for name in names}
    tasks = {n: task for n, task in every.items() if wanted(study.probe, study.tuning, task, study.seeds)}
    if len(tasks) < len(every) and study.probe.on is None:
        dear = [
            f"{n} {cost(study.probe, study.tuning, task, study.seeds):.0%}"
            for n, task in every.items()
            if n not in tasks
        ]
        hint = f"more than {MOST_COST:.0%} of the fine-tuning; `probe: true` asks for it"
        board.event("probe", reason=f"not made, {hint}: {', '.join(dear)}")
    if not tasks:
        return {}
    note = folder / f"probe-{content_key(tasks=list(tasks), probe=study.probe, version=VERSION)}.json"
    try:
        return dict(json.loads(note.read_text("utf-8")))
    except (OSError, ValueError):
        pass
    with spending("probe"):
        try:
            heard = board.phase, row.progress, board.reach, row.stop
            made = Probing(row.loaded, tasks, study.probe, study.token_budget, *heard).run(trainer)
        except PotentiaError as error:  # the cells of the row can do without
            board.event("probe", reason=error.message)
            return {}
    write_file(note, json.dumps(made))
    return made


def _ignore(*_: Any, **__: Any) -> None:
    pass


@dataclass(frozen=True)
class _Texts:
    rows: Rows
    bytes: dict[str, list[int]]  # of whole texts and of answers


@dataclass
class Probing:
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
        places = [(name, split) for name, task in self.tasks.items() for split in SPLITS if task.documents(split)]
        self.texts = {(name, split): self._texts(self.tasks[name], split) for name, split in places}
        self.records: dict[str, dict[str, Any]] = {
            name: {
                "version": VERSION,
                "learning_rate": self.settings.learning_rate,
                "learned": self.settings.learned,
                "data": content_key(task=task.fingerprint, documents=self.settings.documents),
            }
            for name, task in self.tasks.items()
        }

    def _texts(self, task: Task, split: SplitName) -> _Texts:
        """Return the split's documents for the probe, a fixed choice, as tokens."""
        from potentia.engine.tune import encode_examples

        documents = task.documents(split)
        chosen = np.random.default_rng(0).permutation(len(documents))[: self.settings.documents]
        examples = task.examples([documents[int(i)] for i in chosen])
        encoded = encode_examples(self.loaded.encoder, examples, end_id=self.loaded.tokenizer.eos_token_id)
        most = min(MAX_TOKENS, self.loaded.encoder.max_length)
        cut = [encoded.cut(i, most) for i in range(len(encoded))]
        answers = [len(one.continuation.encode()) for one in examples]
        wholes = [len(one.context.encode()) + answer for one, answer in zip(examples, answers, strict=True)]
        return _Texts([(ids.tolist(), max(prompt, 1)) for ids, prompt in cut], {"text": wholes, "answer": answers})

    def run(self, trainer: LaneTrainer | None = None) -> dict[str, dict[str, Any]]:
        """Score, train, score again; a trainer whose lanes were checked before need not check them anew."""
        from potentia.engine.tune import LaneTrainer

        if trainer is not None:
            return self._run(trainer)
        with LaneTrainer(self.loaded, token_budget=self.token_budget) as own:
            return self._run(own)

    def _run(self, trainer: LaneTrainer) -> dict[str, dict[str, Any]]:
        from potentia.engine.score import Scorer

        scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
        rows = [texts.rows for texts in self.texts.values()]
        self.phase("probing, before any update", total=2 * sum(map(len, rows)))
        for (name, split), losses in zip(self.texts, self._losses(scorer, rows, self.progress), strict=True):
            self.records[name][split] = losses | {"bytes": self.texts[name, split].bytes}
        specs = [self._lane(name) for name in self.records]
        self.phase("probing", total=sum(spec.total_steps for spec in specs), unit="steps")
        workspace, trainer.workspace = trainer.workspace, None  # what is scored on the way is in no snapshot
        try:
            results = trainer.train(
                specs,
                on_epoch=lambda ended: self._after(ended, trainer, scorer),
                on_step=lambda info: self.reach(info.done),
                stop=self.stop,
            )
        finally:
            trainer.workspace = workspace
        if any(result.status == "interrupted" for result in results.values()):
            raise Stopped
        done = {name: result for name, result in results.items() if result.status == "done"}
        return {name: self.records[name] | {"target_modules": list(result.targets)} for name, result in done.items()}

    def _lane(self, name: str) -> LaneSpec:
        from potentia.engine.tune import LaneSpec, LoraConfig, Schedule, TokenisedExamples

        ids, prompts = zip(*self._learned(name, "train"), strict=True)
        rate, lora = self.settings.learning_rate, LoraConfig(RANK, ALPHA, 0.0, ("all-linear",))
        schedule = Schedule(
            EPOCHS, BATCH, rate, weight_decay=0.0, decay="constant", loss=self.loss, max_tokens=MAX_TOKENS
        )
        return LaneSpec(name, TokenisedExamples.of(ids, prompts), schedule, lora)

    def _learned(self, name: str, split: SplitName) -> Rows:
        """Return the documents that are learned from, or as many of another split."""
        return self.texts[name, split].rows[: self.settings.learned]

    def _losses(
        self, scorer: Scorer, texts: Sequence[Rows], progress: Callable[[int], None], owners: Sequence[int] = ()
    ) -> list[dict[str, list[float]]]:
        """Return the nats of every document: of all but its first token, and of its answer, from the same pass."""
        pairs, routed = [], []
        for rows, owner in zip(texts, owners or [-1] * len(texts), strict=True):
            for ids, prompt in rows:
                pairs += [(ids[:1], ids[1:]), (ids[:prompt], ids[prompt:])]
                routed += [owner, owner]
        told = scorer.loglikelihood_ids(pairs, owners=routed if owners else None, progress=progress)
        nats = iter([round(-one.logprob, 3) for one in told])
        both = [[(next(nats), next(nats)) for _ in rows] for rows in texts]
        return [{"text": [x for x, _ in one], "answer": [x for _, x in one]} for one in both]

    def _after(self, ended: list[LaneEpoch], trainer: LaneTrainer, scorer: Scorer) -> None:
        """Take the losses of what was learned from and of what was not, after an epoch."""
        epochs = {lane.key: lane.epoch for lane in ended}
        places: list[Place] = [(name, split) for name in epochs for split in LEARNED if (name, split) in self.texts]
        slots = [trainer.slot(name) for name, _ in places]
        rows = [self._learned(*place) for place in places]
        heard = self._losses(scorer, rows, lambda _: self.progress(0), slots)
        for (name, split), losses in zip(places, heard, strict=True):
            sums = {kind: round(sum(nats), 3) for kind, nats in losses.items()}
            self.records[name].setdefault(f"epoch_{epochs[name]}", {})[split] = sums

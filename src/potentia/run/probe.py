"""The probe: a short fine-tuning of every model on every task, the same in all studies: what is left to learn.

A model that has seen a test's kind of text has little left to learn from it, and a model that has seen these very
documents predicts them better than others like them. So before a row is tuned, one lane a task takes two epochs over a
fixed list of documents at a fixed low rate, rank and batch, by the loss of the whole text and without dropout. Kept are
the mean training losses of both epochs, the validation loss before and after, and the loss of every document of all
three splits before any update: all that is ever done with test documents here, and nothing is chosen by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.errors import PotentiaError
from potentia.files import write_file
from potentia.run.ask import SplitName
from potentia.run.fine_tuning import Stopped
from potentia.study import content_key
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.score import Scorer
    from potentia.engine.tune import LaneEpoch, LaneSpec, LaneTrainer, TokenisedExamples
    from potentia.run.row import RowRun
    from potentia.study import Probe, Tuning
    from potentia.tasks import Task

VERSION = 1  # of what is recorded; other probes are not compared with it
EPOCHS, BATCH, RANK, ALPHA, MAX_TOKENS = 2, 8, 8, 16, 512
MOST_COST = 0.03  # of a task's fine-tuning, unless the study asks for the probe
LEAST_DOCUMENTS = 16  # to train on; fewer say nothing
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def wanted(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> bool:
    """Say whether a task is probed: where the study asks, or where it costs little beside the task's fine-tuning."""
    documents = len(task.documents("train"))
    if probe.on is False or documents < LEAST_DOCUMENTS:
        return False
    return bool(probe.on) or cost(probe, tuning, task, seeds) <= MOST_COST


def cost(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> float:
    """Return the share of a task's training that the probe takes; a backward pass counts as two forward."""
    sizes = {split: min(probe.documents, len(task.documents(split))) for split in SPLITS}
    own = 3 * EPOCHS * sizes["train"] + sum(sizes.values()) + sizes["validation"]
    lanes = len(tuning.learning_rates) * seeds
    return own / max(3 * tuning.epochs * lanes * len(task.documents("train")), 1)


def probe_row(row: RowRun, names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Probe the tasks of a row that are to be, all at once; a resumed row finds what was made in its folder."""
    study = row.study
    tasks = {n: row.tasks.benchmarks[n] for n in names}
    tasks = {n: t for n, t in tasks.items() if wanted(study.probe, study.tuning, t, study.seeds)}
    if not tasks:
        return {}
    note = folder / f"probe-{content_key(tasks=list(tasks), probe=study.probe, version=VERSION)}.json"
    try:
        return dict(json.loads(note.read_text("utf-8")))
    except (OSError, ValueError):
        pass
    board, budget = row.board, study.token_budget
    with spending("probe"):
        try:
            heard = board.phase, row.progress, board.reach, row.stop
            made = Probing(row.loaded, tasks, study.probe, budget, *heard).run()
        except PotentiaError as error:  # the cells of the row can do without
            board.event("probe", reason=error.message)
            return {}
    write_file(note, json.dumps(made))
    return made


def _ignore(*_: Any, **__: Any) -> None:
    pass


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

    def __post_init__(self) -> None:
        self.texts = {(name, split): self._texts(task, split) for name, task in self.tasks.items() for split in SPLITS}
        self.records: dict[str, dict[str, Any]] = {name: self._settings(task) for name, task in self.tasks.items()}

    def _settings(self, task: Task) -> dict[str, Any]:
        return {
            "version": VERSION,
            "learning_rate": self.settings.learning_rate,
            "documents": self.settings.documents,
            "data": content_key(task=task.fingerprint, documents=self.settings.documents),
        }

    def _texts(self, task: Task, split: SplitName) -> tuple[TokenisedExamples, list[int]] | None:
        """Return the split's documents for the probe (a fixed choice), as tokens, and the bytes of each."""
        from potentia.engine.tune import encode_examples

        documents = task.documents(split)
        chosen = np.random.default_rng(0).permutation(len(documents))[: self.settings.documents]
        examples = task.examples([documents[int(i)] for i in chosen])
        if not examples:
            return None
        encoded = encode_examples(self.loaded.encoder, examples, end_id=self.loaded.tokenizer.eos_token_id)
        return encoded, [len((one.context + one.continuation).encode()) for one in examples]

    def run(self) -> dict[str, dict[str, Any]]:
        """Score, train, score again."""
        from potentia.engine.score import Scorer
        from potentia.engine.tune import LaneTrainer

        with LaneTrainer(self.loaded, token_budget=self.token_budget) as trainer:
            scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
            places = [place for place, texts in self.texts.items() if texts is not None]
            self.phase("probing, before any update", total=sum(len(self._rows(place)) for place in places))
            for place, losses in zip(places, self._losses(scorer, places), strict=True):
                self.records[place[0]][place[1]] = losses
            specs = [self._lane(name) for name in self.records]
            self.phase("probing", total=sum(spec.total_steps for spec in specs), unit="steps")
            results = trainer.train(
                specs,
                on_epoch=lambda ended: self._after(ended, trainer, scorer),
                on_step=lambda info: self.reach(info.done),
                stop=self.stop,
            )
        if any(result.status == "interrupted" for result in results.values()):
            raise Stopped
        done = {}
        for name, result in results.items():
            if result.status == "done":
                losses = {f"epoch_{epoch.epoch}": epoch.loss for epoch in result.epochs}
                done[name] = self.records[name] | losses | {"target_modules": list(result.targets)}
        return done

    def _lane(self, name: str) -> LaneSpec:
        from potentia.engine.tune import LaneSpec, LoraConfig, Schedule

        encoded, _ = self.texts[name, "train"] or (None, None)
        assert encoded is not None  # tasks without documents to train on are not probed
        rate = self.settings.learning_rate
        schedule = Schedule(EPOCHS, BATCH, rate, weight_decay=0.0, decay="constant", max_tokens=MAX_TOKENS)
        return LaneSpec(name, encoded, schedule, LoraConfig(RANK, ALPHA, 0.0, ("all-linear",)))

    def _rows(self, place: tuple[str, SplitName]) -> list[list[int]]:
        texts = self.texts[place]
        assert texts is not None
        most = min(MAX_TOKENS, self.loaded.encoder.max_length)
        return [texts[0].cut(i, most)[0].tolist() for i in range(len(texts[0]))]

    def _losses(
        self, scorer: Scorer, places: Sequence[tuple[str, SplitName]], owners: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the nats per token of every document (its first token is read, not predicted), and their sizes."""
        rows = [self._rows(place) for place in places]
        flat = [(ids[:1], ids[1:]) for own in rows for ids in own]
        routed = None
        if owners is not None:
            routed = [owner for owner, own in zip(owners, rows, strict=True) for _ in own]
        answers = iter(scorer.loglikelihood_ids(flat, owners=routed, progress=self.progress))
        made = []
        for place, own in zip(places, rows, strict=True):
            texts = self.texts[place]
            assert texts is not None
            nats = [-next(answers).logprob for _ in own]
            made.append({"nats": [round(x, 3) for x in nats], "tokens": [len(i) - 1 for i in own], "bytes": texts[1]})
        return made

    def _after(self, ended: list[LaneEpoch], trainer: LaneTrainer, scorer: Scorer) -> None:
        """Take the validation loss where a lane has learned all it will."""
        over = [e for e in ended if e.epoch == EPOCHS and self.texts[e.key, "validation"] is not None]
        places: list[tuple[str, SplitName]] = [(epoch.key, "validation") for epoch in over]
        slots = [trainer.slot(epoch.key) for epoch in over]
        for (name, _), losses in zip(places, self._losses(scorer, places, slots) if places else [], strict=True):
            self.records[name]["after"] = {"nats": losses["nats"]}

"""The training of a row's lanes: validated at ends of epochs, raced, scored on the way where that is asked for.

What is chosen in the end: validation alone decides; ties go to the earlier epoch and the smaller learning rate.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TuningError
from potentia.run.ask import Ask, Evaluation, Style, evaluate
from potentia.study import Tuning, content_key
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.score import Scorer
    from potentia.engine.tune import FullLanes, LaneEpoch, LaneResult, LaneSpec, LaneTrainer, Schedule, StepInfo
    from potentia.run.fine_tuning import Tuned


@dataclass(frozen=True)
class LanePlan:
    """One fine-tuning to make: what it learns from, plain or as chat, its learning rate and its seed."""

    key: str
    data: str
    style: Style
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Candidate:
    """A state of the model as validated on a task: a lane after an epoch, or the untuned model at epoch 0."""

    style: Style
    epoch: int
    value: float
    stderr: float
    lane: LanePlan | None = None
    loss: float | None = None  # in training, over the epoch
    tokens: int = 0  # learned from in the epoch
    seconds: float = 0.0

    @property
    def tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None

    @property
    def learning_rate(self) -> float | None:
        """The lane's learning rate; None for the untuned model."""
        return self.lane.learning_rate if self.lane is not None else None


def select(candidates: Sequence[Candidate], *, higher_is_better: bool) -> Candidate:
    """Return the candidate with the best validation value; NaN values never win while a number is there."""

    def order(candidate: Candidate) -> tuple[bool, float, int, float, bool]:
        worth = candidate.value if higher_is_better else -candidate.value
        return (
            math.isnan(worth),
            -worth if not math.isnan(worth) else 0.0,
            candidate.epoch,
            candidate.learning_rate or 0.0,
            candidate.style == "chat",
        )

    return min(candidates, key=order)


class Stopped(Exception):  # noqa: N818 - the user asked for it
    """The tuning was asked to stop; its state is in the workspace."""


@dataclass(frozen=True)
class TunedResult:
    """A tuned cell: its test evaluation, what was chosen and why (plain values), the direct score for the gain."""

    test: Evaluation
    selection: dict[str, Any]
    direct_value: float | None = None


class Training:
    """The training of the lanes of a row: validation at ends of epochs, scores on the way, the race."""

    def __init__(
        self, tuned: Tuned, trainer: LaneTrainer | FullLanes, scorer: Scorer, lanes: Mapping[str, LanePlan]
    ) -> None:
        self.tuned, self.trainer, self.scorer, self.lanes = tuned, trainer, scorer, lanes
        self.done = self.found = 0  # steps of the lanes that ended, and those that an earlier run had made
        self.last: StepInfo | None = None
        self.alone: LanePlan | None = None  # the lane under way where lanes take turns

    def go(self) -> dict[str, LaneResult]:
        """Train every lane to its end."""
        tuned, specs = self.tuned, self._specs()
        on_data = f" on {tuned.auxiliary.name}" if tuned.auxiliary is not None else ""
        tuned.host.phase(f"tuning{on_data}", sum(spec.total_steps for spec in specs), "steps")
        for key, lane in self.lanes.items():
            for name in tuned.served(lane):
                tuned.curves[key, name] = [tuned.untuned[name, lane.style]]
        results: dict[str, LaneResult] = {}
        for batch in [specs] if tuned.together else [[spec] for spec in specs]:
            self.last = None
            self.alone = self.lanes[batch[0].key] if len(batch) == 1 else None
            with spending("train"):
                results |= self.trainer.train(
                    batch,
                    on_epoch=self._on_epoch,
                    on_step=self._on_step,
                    on_recall=self._on_recall,
                    stop=tuned.host.stop,
                )
            for spec in batch:
                self._ended(self.lanes[spec.key], results[spec.key])
            if any(results[spec.key].status == "interrupted" for spec in batch):
                raise Stopped
            steps = sum(spec.total_steps for spec in batch)
            self.done += steps
            self.found += self.last.before if self.last is not None else steps
        return results

    def _specs(self) -> list[LaneSpec]:
        from potentia.engine.tune import LaneSpec, LoraConfig, encode_examples

        tuned, tuning = self.tuned, self.tuned.tuning
        lora = LoraConfig(r=tuning.rank, alpha=tuning.alpha, dropout=tuning.dropout, targets=tuning.targets)
        texts: dict[tuple[str, Style], Any] = {}
        specs = []
        for lane in self.lanes.values():
            place = (lane.data, lane.style)
            if place not in texts:
                data = tuned.auxiliary or tuned.benchmarks[lane.data]
                chat = tuned.chat if lane.style == "chat" else None
                end = tuned.loaded.tokenizer.eos_token_id
                examples = data.examples(data.documents("train"), chat=chat)
                if tuning.end_of_text:
                    examples = [replace(example, end=True) for example in examples]
                texts[place] = encode_examples(tuned.loaded.encoder, examples, end_id=end)
            specs.append(LaneSpec(lane.key, texts[place], schedule(tuning, lane.learning_rate), lora, lane.seed))
        return specs

    # --- ends of epochs ----------------------------------------------------------------------------------------------

    def _on_epoch(self, ended: list[LaneEpoch]) -> dict[str, Any]:
        from potentia.engine.tune import DROP

        asks = {
            (e.key, name): self._question(e, name)
            for e in ended
            for name in self._validated(self.lanes[e.key], e.epoch)
        }
        worth = self._evaluate(dict.fromkeys(asks.values()))
        by_key = {epoch.key: epoch for epoch in ended}
        for (key, name), ask in asks.items():
            by_key[key].notes[name] = [worth[ask].main.value, worth[ask].main.stderr]
        for epoch in ended:
            self._note(self.lanes[epoch.key], epoch)
            for name in self.tuned.served(self.lanes[epoch.key]):
                self.tuned.tell(self.lanes[epoch.key], name, "training")
        self._hold()
        if not self.tuned.tuning.race:
            return {}
        return {e.key: DROP for e in ended if self._is_behind(self.lanes[e.key], e.epoch)}

    def _validated(self, lane: LanePlan, epoch: int) -> list[str]:
        """Return the benchmarks to validate a lane on after an epoch."""
        tuned = self.tuned
        if tuned.auxiliary is not None and epoch < tuned.tuning.epochs and not tuned.tuning.race:
            return []
        return [name for name in tuned.served(lane) if tuned.judge(name).documents("validation")]

    def _question(self, epoch: LaneEpoch, name: str) -> Ask:
        style, owner = self.lanes[epoch.key].style, self.trainer.slot(epoch.key)
        return self.tuned.ask(self.tuned.judge(name), "validation", style, owner)

    def _evaluate(self, asks: Iterable[Ask]) -> dict[Ask, Evaluation]:
        asked = list(asks)
        batches = [asked] if self.tuned.together else [[ask] for ask in asked]
        with spending("validate"):
            made = [one for batch in batches if batch for one in evaluate(self.scorer, batch, chat=self.tuned.chat)]
        return dict(zip(asked, made, strict=True))

    def _note(self, lane: LanePlan, epoch: LaneEpoch) -> None:
        """Add an epoch to the lane's curves; one that was to be validated and could not is worth NaN."""
        last = epoch.epoch == self.tuned.tuning.epochs
        for name in self.tuned.served(lane):
            curve = [c for c in self.tuned.curves[lane.key, name] if c.epoch < epoch.epoch]
            if name in epoch.notes or last:
                value, stderr = epoch.notes.get(name, (math.nan, math.nan))
                made = Candidate(
                    lane.style, epoch.epoch, value, stderr, lane, epoch.loss, epoch.tokens, epoch.seconds
                )  # fmt: skip
                curve.append(made)
            self.tuned.curves[lane.key, name] = curve

    def _hold(self) -> None:
        """Let the trainer keep the states that lead, for each benchmark and seed; adapters are all kept."""
        from potentia.engine.tune import FullLanes

        if not isinstance(self.trainer, FullLanes):
            return
        leaders = set()
        for name in self.tuned.benchmarks:
            by_seed: dict[int, list[Candidate]] = {}
            for candidate in self.tuned.states(name, self.lanes):
                assert candidate.lane is not None
                by_seed.setdefault(candidate.lane.seed, []).append(candidate)
            if self.tuned.every_rate:
                leaders |= {(c.lane.key, c.epoch) for own in by_seed.values() for c in own if c.lane is not None}
            for own in by_seed.values():
                best = self.tuned.best(name, own)
                leaders.add((best.lane.key if best.lane else "", best.epoch))
        self.trainer.hold(leaders)

    def _is_behind(self, lane: LanePlan, epoch: int) -> bool:
        """Say whether a lane has hardly a chance to be the best of its rivals at the same epoch, on all its tasks.

        The rule is that of every race (``analysis.planning.race``); the doubt is shared out over the ends of epochs.
        """
        from potentia.analysis.planning import MAYBE, may_win

        names = self._validated(lane, epoch)
        looks = max(self.tuned.tuning.epochs - 1, 1)
        for name in names:
            same = {
                key: candidate
                for key, other in self.lanes.items()
                if (other.data, other.style, other.seed) == (lane.data, lane.style, lane.seed)
                for candidate in self.tuned.curves[key, name]
                if candidate.epoch == epoch
            }
            if any(math.isfinite(c.value) and not math.isfinite(c.stderr) for c in same.values()):
                return False  # no telling what is noise
            chance = may_win(
                {key: c.value for key, c in same.items()},
                {key: c.stderr for key, c in same.items()},
                higher_is_better=self.tuned.judge(name).higher_is_better,
            )
            if chance[lane.key] >= MAYBE / looks:
                return False
        return bool(names)

    def _on_recall(self, epochs: list[LaneEpoch]) -> None:
        for epoch in epochs:
            self._note(self.lanes[epoch.key], epoch)

    def _ended(self, lane: LanePlan, result: LaneResult) -> None:
        for name in self.tuned.served(lane):
            self.tuned.tell(lane, name, result.status, note=result.reason or "")

    # --- steps -------------------------------------------------------------------------------------------------------

    def _on_step(self, info: StepInfo) -> None:
        self.last = info
        self.tuned.host.step(replace(info, done=self.done + info.done, before=self.found + info.before))
        if self.alone is not None and info.done in self.tuned.at_steps:
            self._score_on_the_way(self.alone, info.done)

    def _score_on_the_way(self, lane: LanePlan, step: int) -> None:
        """Test the lane as it is now; where there are several to choose from, its scores wait for the choice."""
        tuned = self.tuned
        for name in tuned.served(lane):
            if not tuned.host.asked(name, step) or (lane.key, step, name) in tuned.on_the_way:
                continue
            ask = tuned.ask(tuned.benchmarks[name], "test", lane.style, self.trainer.slot(lane.key))
            with spending("test"):
                (made,) = evaluate(self.scorer, [ask], chat=tuned.chat)
            if len(self.lanes) > 1:
                tuned.on_the_way.put(lane.key, step, name, made)
            else:
                chosen = {"step": step, "style": lane.style, "learning_rate": lane.learning_rate}
                tuned.host.commit(name, step, TunedResult(made, chosen))


class OnTheWay:
    """Test evaluations of lanes at given steps, until it is known whose count: files, or memory without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[Path, str] = {}

    def _path(self, lane: str, step: int, task: str) -> Path:
        return (self.folder or Path()) / f"{content_key(lane=lane, step=step, task=task)}.json"

    def __contains__(self, place: tuple[str, int, str]) -> bool:
        path = self._path(*place)
        return path in self._memory or (self.folder is not None and path.exists())

    def put(self, lane: str, step: int, task: str, made: Evaluation) -> None:
        """Keep what a lane scored on a task; the file is whole or not there."""
        path, text = self._path(lane, step, task), made.to_json()
        if self.folder is None:
            self._memory[path] = text
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def get(self, lane: str, step: int, task: str) -> Evaluation:
        """Return what was kept."""
        path = self._path(lane, step, task)
        try:
            return Evaluation.from_json(self._memory[path] if self.folder is None else path.read_text("utf-8"))
        except (OSError, KeyError, ValueError, TypeError):
            raise TuningError(f"the score on {task} after {step} steps was not kept", where=str(path)) from None


def schedule(tuning: Tuning, rate: float) -> Schedule:
    """Return the engine's schedule for this recipe at one learning rate."""
    from potentia.engine.tune import Schedule

    return Schedule(
        epochs=tuning.epochs,
        batch=tuning.batch,
        learning_rate=rate,
        weight_decay=tuning.weight_decay,
        betas=tuning.betas,
        clip=tuning.clip,
        decay=tuning.decay,
        warmup_steps=tuning.warmup_steps,
        floor=tuning.floor,
        loss=tuning.loss,
        max_tokens=tuning.max_tokens,
    )

"""Train-before-test: the same fine-tuning for every model, selection on validation, then the test split once.

For each task the candidates are the untuned model and, for every learning rate, prompt form and epoch, the tuned one
(sections 3.1 and appendix A.2 of the paper). All lanes of a row train together; a lane is validated after each epoch by
the task's own metric. Nothing reads the test split before a task's candidate is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from potentia.errors import TuningError
from potentia.protocols.ask import Ask, Evaluation, Form, evaluate
from potentia.protocols.selection import Candidate, behind, select
from potentia.study import Selection, Tuning, content_key

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.scoring import Scorer
    from potentia.engine.tuning import LaneEpoch, LaneResult, LaneSpec, LaneTrainer, Schedule, StepInfo
    from potentia.tasks import ChatTemplate, Task


@dataclass(frozen=True)
class LanePlan:
    """One fine-tuning to make: a task in a prompt form at a learning rate, with a seed."""

    key: str
    task: str
    form: Form
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Point:
    """One point of a lane's validation curve; epoch 0 is the untuned model."""

    epoch: int
    value: float
    stderr: float
    train_loss: float | None = None


class Watcher(Protocol):
    """Who hears of the tuning while it goes on, and may stop it."""

    def phase(self, name: str, total: int) -> None:
        """A new phase begins, with this much work (documents, or lane steps)."""

    def progress(self, amount: int) -> None:
        """Some of the phase's work is done."""

    def step(self, info: StepInfo) -> None:
        """A training step of all active lanes was made."""

    def lane(self, lane: LanePlan, curve: Sequence[Point], status: str, note: str = "", selected: bool = False) -> None:
        """A lane moved on or ended."""

    def stop(self) -> bool:
        """Say whether to stop now."""


@dataclass(frozen=True)
class TunedResult:
    """A train-before-test cell: what was chosen on validation, and its test score.

    With several seeds each seed chooses and tests for itself; the score is the mean over seeds and ``spread`` their
    standard deviation.
    """

    test: Evaluation
    chosen: tuple[Candidate, ...]  # one per seed
    candidates: tuple[Candidate, ...]
    seed_values: tuple[float, ...]
    direct_value: float | None = None
    kept_direct: bool = False  # selection: paper reported the direct score, the tuned one being no better
    dropped_epochs: int = 0
    targets: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def spread(self) -> float | None:
        """The standard deviation of the test score over seeds."""
        if len(self.seed_values) < 2:
            return None
        mean = sum(self.seed_values) / len(self.seed_values)
        return math.sqrt(sum((v - mean) ** 2 for v in self.seed_values) / (len(self.seed_values) - 1))

    def selection(self) -> dict[str, Any]:
        """Return what was chosen and why, as plain values for the store."""
        first = self.chosen[0]
        return {
            "tuned": first.tuned and not self.kept_direct,
            "form": first.form,
            "learning_rate": first.learning_rate,
            "epoch": first.epoch,
            "validation": first.value,
            "validation_stderr": first.stderr,
            "kept_direct": self.kept_direct,
            "seeds": [
                {"value": v, "learning_rate": c.learning_rate, "epoch": c.epoch, "form": c.form, "validation": c.value}
                for v, c in zip(self.seed_values, self.chosen, strict=True)
            ],
            "spread": self.spread,
            "epochs_saved_by_race": self.dropped_epochs,
            "target_modules": list(self.targets),
            "failed_lanes": list(self.failures),
        }


@dataclass
class TrainBeforeTest:
    """The tuning of one row: all tasks, learning rates, forms and seeds of one model."""

    loaded: LoadedModel
    tasks: Mapping[str, Task]
    tuning: Tuning
    watcher: Watcher
    forms: tuple[Form, ...] = ("plain",)
    chat: ChatTemplate | None = None
    seed: int = 0
    seeds: int = 1
    choice: Selection = "validation"
    token_budget: int | None = None
    workspace: Path | None = None
    untuned: dict[tuple[str, Form], Point] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)

    def run(
        self, wanted: Sequence[str], direct: Callable[[str], Evaluation | None]
    ) -> Iterator[tuple[str, TunedResult | TuningError]]:
        """Tune every task of the row and yield the wanted ones as they are tested.

        ``direct`` gives the direct test evaluation of a task, for the gain (and for ``selection: paper``).
        """
        from potentia.engine.scoring import Scorer
        from potentia.engine.tuning import LaneTrainer

        self._validate_untuned(Scorer(self.loaded, token_budget=self.token_budget))
        lanes = self._lanes()
        with LaneTrainer(self.loaded, token_budget=self.token_budget, workspace=self.workspace) as trainer:
            scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
            results = self._train(trainer, scorer, lanes)
            if any(result.status == "interrupted" for result in results.values()):
                raise Stopped
            for name in wanted:
                mine = [lane for lane in lanes.values() if lane.task == name]
                try:
                    yield name, self._finish(name, mine, results, trainer, scorer, direct(name))
                except TuningError as error:
                    yield name, error

    # --- before: validation of the untuned model, the lanes --------------------------------------------------------

    def _validate_untuned(self, scorer: Scorer) -> None:
        asks = [(name, Ask(task, "validation", form)) for name, task in self.tasks.items() for form in self.forms]
        self.watcher.phase("validating untuned", sum(len(ask.task.documents("validation")) for _, ask in asks))
        for name, ask in asks:
            (made,) = evaluate(scorer, [ask], chat=self.chat, progress=self.watcher.progress)
            self.untuned[name, ask.form] = Point(0, made.main.value, made.main.stderr)

    def _lanes(self) -> dict[str, LanePlan]:
        made = {}
        for name, task in self.tasks.items():
            for form in self.forms:
                for rate in self.tuning.learning_rates:
                    for number in range(self.seeds):
                        key = content_key(
                            model=self.loaded.fingerprint,
                            task=task.fingerprint,
                            form=form,
                            rate=rate,
                            seed=self.seed + number,
                            tuning=self.tuning,
                        )
                        made[key] = LanePlan(key, name, form, rate, self.seed + number)
        return made

    def _specs(self, lanes: Mapping[str, LanePlan]) -> list[LaneSpec]:
        from potentia.engine.tuning import LaneSpec, LoraConfig, encode_examples

        tuning = self.tuning
        lora = LoraConfig(r=tuning.rank, alpha=tuning.alpha, dropout=tuning.dropout, targets=tuning.targets)
        texts: dict[tuple[str, Form], Any] = {}
        specs = []
        for lane in lanes.values():
            if (lane.task, lane.form) not in texts:
                task = self.tasks[lane.task]
                examples = task.examples(task.documents("train"), chat=self.chat if lane.form == "chat" else None)
                texts[lane.task, lane.form] = encode_examples(
                    self.loaded.encoder, examples, end_id=self.loaded.tokenizer.eos_token_id
                )
            specs.append(
                LaneSpec(lane.key, texts[lane.task, lane.form], schedule(tuning, lane.learning_rate), lora, lane.seed)
            )
        return specs

    # --- during: training, validation after every epoch ------------------------------------------------------------

    def _train(self, trainer: LaneTrainer, scorer: Scorer, lanes: Mapping[str, LanePlan]) -> dict[str, LaneResult]:
        from potentia.engine.tuning import DROP

        specs = self._specs(lanes)
        self.watcher.phase("tuning", sum(spec.total_steps for spec in specs))
        self.curves = {key: [self.untuned[lane.task, lane.form]] for key, lane in lanes.items()}

        def on_epoch(ended: list[LaneEpoch]) -> dict[str, Any]:
            asks = [
                Ask(self.tasks[lanes[e.key].task], "validation", lanes[e.key].form, owner=trainer.slot(e.key))
                for e in ended
            ]
            for epoch, made in zip(ended, evaluate(scorer, asks, chat=self.chat), strict=True):
                epoch.notes.update(value=made.main.value, stderr=made.main.stderr)
                self._note(lanes[epoch.key], epoch)
            if not self.tuning.race:
                return {}
            return {e.key: DROP for e in ended if self._is_behind(lanes[e.key], e.epoch, lanes)}

        results = trainer.train(specs, on_epoch=on_epoch, on_step=self.watcher.step, stop=self.watcher.stop)
        for key, result in results.items():
            # What was trained before a resume comes back with its notes.
            self.curves[key] = [self.curves[key][0], *(_point(epoch) for epoch in result.epochs)]
            self.watcher.lane(lanes[key], self.curves[key], result.status, result.reason or "")
        return results

    def _note(self, lane: LanePlan, epoch: LaneEpoch) -> None:
        known = [point for point in self.curves[lane.key] if point.epoch < epoch.epoch]
        self.curves[lane.key] = [*known, _point(epoch)]
        self.watcher.lane(lane, self.curves[lane.key], "training")

    def _is_behind(self, lane: LanePlan, epoch: int, lanes: Mapping[str, LanePlan]) -> bool:
        """Say whether a lane trails the best of its rivals at the same epoch by more than noise."""
        higher = self.tasks[lane.task].higher_is_better
        same = [
            _candidate(other, point)
            for other in lanes.values()
            if (other.task, other.form, other.seed) == (lane.task, lane.form, lane.seed)
            for point in self.curves[other.key]
            if point.epoch == epoch
        ]
        mine = next(c for c in same if c.lane == lane.key)
        return behind(mine, select(same, higher_is_better=higher), higher_is_better=higher)

    # --- after: selection, then the test split once ------------------------------------------------------------------

    def _finish(
        self,
        name: str,
        lanes: Sequence[LanePlan],
        results: Mapping[str, LaneResult],
        trainer: LaneTrainer,
        scorer: Scorer,
        direct: Evaluation | None,
    ) -> TunedResult:
        task = self.tasks[name]
        failures = [
            f"{lane.learning_rate:g} {lane.form}: {results[lane.key].reason}"
            for lane in lanes
            if results[lane.key].reason
        ]
        tuned = [_candidate(lane, point) for lane in lanes for point in self.curves[lane.key] if point.epoch > 0]
        if not tuned:
            raise TuningError(f"every lane of {name} failed: {'; '.join(failures)}")
        untuned = [Candidate(form, 0, None, 0, p.value, p.stderr) for (t, form), p in self.untuned.items() if t == name]
        chosen, tests = [], []
        for number in range(self.seeds):
            mine = [candidate for candidate in tuned if candidate.seed == self.seed + number]
            pool = mine if self.choice != "validation" and mine else [*untuned, *mine]
            best = select(pool, higher_is_better=task.higher_is_better)
            owner = trainer.restore(best.lane, best.epoch) if best.lane is not None else None
            self.watcher.phase(f"testing {name}", len(task.documents("test")))
            ask = Ask(task, "test", best.form, owner=owner)
            (test,) = evaluate(scorer, [ask], chat=self.chat, progress=self.watcher.progress)
            chosen.append(best)
            tests.append(test)
            for lane in lanes:
                if lane.key == best.lane:
                    self.watcher.lane(lane, self.curves[lane.key], results[lane.key].status, selected=True)
        test, kept_direct = _mean(tests), False
        if self.choice == "paper" and direct is not None and not improves(test, direct, task):
            test, kept_direct = direct, True
        full, mine_results = self.tuning.epochs, [results[lane.key] for lane in lanes]
        return TunedResult(
            test=test,
            chosen=tuple(chosen),
            candidates=(*untuned, *tuned),
            seed_values=tuple(t.main.value for t in tests),
            direct_value=direct.main.value if direct is not None else None,
            kept_direct=kept_direct,
            dropped_epochs=sum(full - len(r.epochs) for r in mine_results if r.status == "dropped"),
            targets=results[lanes[0].key].targets,
            failures=tuple(failures),
        )


def trainable(task: Task) -> bool:
    """Say whether a task has documents to train on and to validate with."""
    return bool(task.documents("train") and task.documents("validation"))


class Stopped(Exception):  # noqa: N818 - the user asked for it
    """The tuning was asked to stop; its state is in the workspace."""


def schedule(tuning: Tuning, rate: float) -> Schedule:
    """Return the engine's schedule for this recipe at one learning rate."""
    from potentia.engine.tuning import Schedule

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


def _point(epoch: LaneEpoch) -> Point:
    return Point(epoch.epoch, epoch.notes["value"], epoch.notes["stderr"], epoch.loss)


def _candidate(lane: LanePlan, point: Point) -> Candidate:
    return Candidate(lane.form, point.epoch, lane.learning_rate, lane.seed, point.value, point.stderr, lane.key)


def improves(test: Evaluation, direct: Evaluation, task: Task) -> bool:
    """Say whether the tuned test score beats the direct one (the question of ``selection: paper``)."""
    gain = test.main.value - direct.main.value
    return gain > 0 if task.higher_is_better else gain < 0


def _mean(tests: Sequence[Evaluation]) -> Evaluation:
    """Average the scores over seeds; the items shown are the first seed's."""
    if len(tests) == 1:
        return tests[0]
    scores = {}
    for name, first in tests[0].scores.items():
        values = [t.scores[name].value for t in tests]
        errors = [t.scores[name].stderr for t in tests]
        # The same items are tested with every seed, so their noise does not average out.
        scores[name] = replace(first, value=sum(values) / len(values), stderr=sum(errors) / len(errors))
    return Evaluation(outcomes=tests[0].outcomes, scores=scores, metric=tests[0].metric)
